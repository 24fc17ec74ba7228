"""Tests of what runs again after a change: exactly the stages that depend on it."""

import json
import shutil
from pathlib import Path

import pytest

from niels_gpt.pipeline.yaml_files import parse_yaml
from tests.conftest import Repo, make_repo
from tests.tiny_base import write_folder

pytestmark = pytest.mark.dag
ROAM_CHAIN = ["duplicates", "split@roam", "tokenize@roam", "cache"]


def repro_mix(repo: Repo, *, due: tuple[str, ...] = ("sft", "train")) -> list[str]:
    """Run the stages up to the mix, check that `due` of train, sft and splice are due then, and return those that ran.

    These three read the mix or the tokens of one source; stages that follow them are not run.
    """
    ran = repo.repro("cache")
    changed = json.loads(repo.run("dvc", "status", "--json", "train", "sft", "splice").stdout)
    assert sorted({"sft", "splice", "train"} & set(changed)) == sorted(due)
    return sorted(ran)


def test_a_change_runs_what_depends_on_it_and_nothing_else(built_repo: Repo) -> None:
    """A change of logging or checkpointing runs nothing, one of a source's split runs that source's chain.

    test_readme.py changes a weight of the mix and reverts it, which runs everything that is trained.
    """
    assert built_repo.repro() == []

    built_repo.set(runtime__log_every=7, runtime__checkpoint_every=13)
    assert built_repo.repro() == []

    built_repo.set(sources__roam__split__val_frac=0.4)
    assert repro_mix(built_repo) == sorted(ROAM_CHAIN)


def test_a_smaller_budget_runs_that_source_and_splits_nothing_again(built_repo: Repo) -> None:
    manifest = built_repo.path / "cache/manifests/wiki.json"
    before = json.loads(manifest.read_text())
    built_repo.set(sources__wiki__budget__max_train_tokens=before["train"]["tokens"] - 1)
    assert repro_mix(built_repo) == ["cache", "duplicates", "load@wiki", "tokenize@wiki"]
    after = json.loads(manifest.read_text())
    assert 0 < after["train"]["tokens"] < before["train"]["tokens"]
    assert after["val"] == before["val"]


def test_a_new_note_runs_the_roam_chain(built_repo: Repo) -> None:
    (built_repo.path / "data/roam/new.md").write_text("# A new note\n\nabout the harbour in winter.\n")
    assert repro_mix(built_repo) == sorted(["load@roam", *ROAM_CHAIN])


def test_the_index_follows_an_edited_and_a_renamed_note_and_other_sources_keep_theirs(built_repo: Repo) -> None:
    note, *_ = sorted((built_repo.path / "data/roam").glob("*.md"))
    note.write_text("# Edited\n\nA bittern in the reeds, and nothing of what was here.\n")
    chain = ["load@roam", "duplicates", "split@roam", "index"]
    assert sorted(built_repo.repro("index")) == sorted(chain)
    note.rename(note.with_name("bittern.md"))
    assert sorted(built_repo.repro("index")) == sorted(chain)
    found = built_repo.run("niels-gpt", "find", "bittern").stdout
    assert found.startswith("1  data/roam/bittern.md:3  Edited\n")
    (note.with_name("bittern.md")).unlink()
    built_repo.repro("index")
    assert built_repo.run("niels-gpt", "find", "bittern").stdout == "nothing found\n"


def test_a_note_that_repeats_another_source_moves_what_it_repeats_and_no_others(built_repo: Repo) -> None:
    """The wiki brings its own split, which decides; none of its training text is dropped because of a note."""
    article = max(
        (built_repo.path / "data/wikitext/wikitext-103-raw-v1/validation.txt").read_text().split("\n = "), key=len
    )
    (built_repo.path / "data/roam/quoted.md").write_text(f"# What I read\n\n{article}")
    ran = repro_mix(built_repo)
    assert ran == sorted(["load@roam", *ROAM_CHAIN])
    counts = json.loads((built_repo.path / "cache/duplicate_pairs/counts.json").read_text())
    assert {name: count["near_elsewhere"] for name, count in counts.items()} == {
        **dict.fromkeys(counts, 0),
        **{"primer": 13, "dialogues": 13, "roam": 1, "wiki": 1},
    }


def test_a_source_taken_out_leaves_the_others_alone(built_repo: Repo) -> None:
    params = built_repo.path / "params.yaml"
    text = params.read_text()
    start, end = text.index("  primer:\n"), text.index("  dolly15k:\n")
    params.write_text(text[:start].replace(", primer: 0.05", "") + text[end:])
    refused = built_repo.stage("splice")
    assert "splice.dataset_name is 'primer', which is no source of text; there are: ['roam', 'wiki']" in refused.stderr
    built_repo.set(splice__dataset_name="wiki")
    ran = repro_mix(built_repo, due=("sft", "splice", "train"))
    assert ran == [
        "cache",
        "duplicates",
        "split@dialogues",
    ]  # its split followed the primer's; it runs again, with the same result


def test_two_fresh_clones_give_the_same_lock(built_template: Repo, tmp_path: Path) -> None:
    """One clone runs in one process, the other by `dvc repro`, which starts a process per stage.

    So a stage's results depend neither on files elsewhere nor on what ran before in its process.
    """
    again = make_repo(tmp_path / "elsewhere" / "clone")
    assert len(again.repro()) == 32
    for name in ("dvc.lock", "metrics/train.json", "metrics/eval.json", "metrics/train.tsv", "metrics/samples.md"):
        assert (again.path / name).read_bytes() == (built_template.path / name).read_bytes(), name
    shutil.rmtree(again.path)


def test_other_chats_and_a_new_vocabulary(built_repo: Repo) -> None:
    """A new split of chats, or a new tokenizer, runs what reads it; test_code.py changes a parameter of fine-tuning."""
    built_repo.set(sources__dolly15k__split__val_frac=0.3)
    assert repro_mix(built_repo, due=("sft",)) == [
        "cache",
        "duplicates",
        "split@dolly15k",
        "tokenize@dolly15k",
    ]

    pieces = {
        "kind": "sentencepiece",
        "corpus": "cache/split/text",
        "vocab_size": 420,
        "sample_bytes": 1000000,
        "seed": 1,
    }
    built_repo.set(tokenizer=pieces)
    names = [f"tokenize@{source}" for source in ("wiki", "roam", "primer")]
    chats = [f"tokenize@{source}" for source in ("dolly15k", "oasst1", "dialogues")]
    assert repro_mix(built_repo, due=("sft", "splice", "train")) == sorted(["tokenizer", *names, *chats, "cache"])


def test_a_base_runs_what_its_tokenizer_encodes_and_another_rate_only_what_is_trained(built_repo: Repo) -> None:
    write_folder(built_repo.path / "tiny")
    tables = parse_yaml((built_repo.path / "params.yaml").read_text(), name="params.yaml")
    encoded = {f"tokenize@{name}" for name in tables["sources"]}
    built_repo.set_all(
        {
            "base": {"from": "tiny", "input": "tiny", "revision": None},
            "tokenizer": {"kind": "hf", "corpus": "models/base"},
            "model": {"T": 64, "dropout": 0.0},
        }
    )
    assert set(built_repo.repro("cache")) == {"base", "tokenizer", "cache", *encoded}
    assert built_repo.repro("train") == ["train"]
    built_repo.set(train__base_lr=0.001)
    assert built_repo.repro("train") == ["train"]
    # Other weights with the same tokenizer: its tokens remain valid, so no tokenize stage runs.
    shutil.rmtree(built_repo.path / "tiny")
    write_folder(built_repo.path / "tiny", seed=4)
    assert built_repo.repro("train") == ["base", "tokenizer", "train"]
