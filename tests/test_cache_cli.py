"""Tests of `build-all` on datasets in local files: its layout, its flags, and datasets that are unavailable."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import Result
from huggingface_hub import constants
from typer.testing import CliRunner

from niels_gpt.cache.cli import app
from niels_gpt.cache.meta import read_meta, sha256_file
from niels_gpt.files.atomic import write_json
from niels_gpt.tokenizer.tokenizers import ByteTokenizer, describe, write_tokenizer
from niels_gpt.tokenizer.training import train_sentencepiece
from tests.conftest import tiny_trees
from tests.token_caches import ASST, SYS, TEXTS, USR, chats, documents, files


def write_rows(path: Path, rows: Iterable[object]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write fineweb, gutenberg, dolly and oasst1 as files, and make the hub unreachable; return the files' folder."""
    import datasets

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    folder = tmp_path / "data"
    folder.mkdir()
    write_rows(folder / "fineweb.jsonl", ({"text": text} for text in TEXTS))
    write_rows(folder / "gutenberg.jsonl", ({"text": text} for text in TEXTS[:50]))
    write_rows(folder / "dolly.jsonl", ({"instruction": f"q{i}", "response": f"a{i}"} for i in range(20)))
    german = [{**row, "lang": "de"} for row in tiny_trees() if row["message_tree_id"] == "tree3"]
    others = [row for row in tiny_trees() if row["message_tree_id"] != "tree3"]
    answer = {**others[2], "message_id": "x", "parent_id": others[1]["message_id"], "role": "prompter", "text": "more?"}
    write_rows(folder / "oasst1.jsonl", [*others, answer, *german])
    return folder


def build(data: Path, *flags: str, only: Iterable[str] = (), tokenizer: Path | None = None) -> Result:
    if tokenizer is None:
        write_tokenizer(data.parent / "tokenizer", model=None)
        tokenizer = data.parent / "tokenizer"
    command = ["build-all", "--cache-dir", str(data.parent / "c"), "--tokenizer", str(tokenizer)]
    command += [f"--{name}-dataset={data / name}.jsonl" for name in ("fineweb", "gutenberg", "dolly", "oasst1")]
    command += ["--max-train-tokens=100000", "--max-val-tokens=1000", "--shard-bytes=4000", "--shuffle-buffer=10"]
    command += ["--gutenberg-train-tokens=4000", "--gutenberg-val-tokens=400"]
    return CliRunner().invoke(app, [*command, *(f"--only={name}" for name in only), *flags])


@pytest.mark.slow
def test_no_meta_holds_a_path_of_this_machine(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal datasets give equal bytes under absolute and relative paths; of a missing one only the name is recorded."""
    for split in ("train", "validation", "test"):
        write_rows(data / "wikitext" / f"{split}.jsonl", ({"text": f" = {i} = \n"} for i in range(9)))
    for i in range(20):
        (data / "notes").mkdir(exist_ok=True)
        (data / f"notes/{i}.md").write_text(TEXTS[i])
    flags = [f"--wikitext-dataset={data}/wikitext", f"--roam-root={data}/notes"]
    done = build(data, *flags)
    assert done.exit_code == 0, done.output
    built = files(data.parent / "c")
    metas = {name: read_meta(data.parent / "c" / name) for name in built if name.endswith("meta.json")}
    assert len(metas) == 7
    assert [name for name, meta in metas.items() if str(data.parent) in json.dumps(meta)] == []
    assert metas["pretrain/fineweb_edu/meta.json"]["dataset_name"] == "fineweb.jsonl"
    monkeypatch.chdir(data)
    assert build(Path(), *flags, only=["fineweb_edu", "dolly15k"]).exit_code == 0
    assert {name: built[name] for name in files(Path("c"))} == files(Path("c"))
    assert build(Path(), f"--gutenberg-dataset={data}/missing", only=["gutenberg"]).exit_code == 0
    assert read_meta("c/pretrain/gutenberg/meta.json")["dataset_name"] == "missing"


@pytest.mark.slow
def test_an_unavailable_gutenberg_is_recorded_in_its_meta_and_is_no_failure(data: Path) -> None:
    done = build(data, "--gutenberg-dataset=nobody/nothing", only=["gutenberg", "dolly15k"])
    assert done.exit_code == 0, done.output
    assert "pretrain/gutenberg: not built: " in done.output
    assert "sft/dolly15k: built" in done.output
    out = data.parent / "c/pretrain/gutenberg"
    assert sorted(path.name for path in out.iterdir()) == ["meta.json", "train", "val"]
    meta = read_meta(out / "meta.json")
    assert (meta["status"], meta["dataset_name"], meta["train_tokens"]) == ("not built", "nobody/nothing", 0)

    assert build(data, only=["gutenberg"]).exit_code == 0  # available again
    built = files(out)
    assert "status" not in read_meta(out / "meta.json")
    assert "train/shard_00000.bin" in built
    assert build(data, "--gutenberg-dataset=nobody/nothing", only=["gutenberg"]).exit_code == 0
    assert files(out) == built  # an existing cache is kept


@pytest.mark.slow
def test_any_other_unavailable_dataset_is_a_failure(data: Path) -> None:
    done = build(data, "--fineweb-dataset=nobody/nothing", only=["fineweb_edu", "dolly15k"])
    assert done.exit_code == 1
    assert "1 caches were not built: pretrain/fineweb_edu" in done.output
    assert "sft/dolly15k: built" in done.output
    assert not (data.parent / "c/pretrain/fineweb_edu").exists()
    done = build(data, "--gutenberg-val-tokens=3", only=["gutenberg"])  # available, but no document fits
    assert done.exit_code == 1
    assert "max_val_tokens" in done.output


@pytest.mark.slow
def test_the_tokenizer_lies_in_the_layout(data: Path) -> None:
    kept, elsewhere = data.parent / "c/tokenizer", data.parent / "mine"
    assert build(data, only=["dolly15k"]).exit_code == 0
    assert sorted(files(kept)) == ["meta.json", "tokenizer.json"]
    before = files(kept)
    assert build(data, only=["dolly15k"], tokenizer=kept).exit_code == 0
    assert files(kept) == before

    elsewhere.mkdir()
    (elsewhere / "pieces.model").write_bytes(train_sentencepiece(TEXTS, vocab_size=280))
    assert build(data, only=["dolly15k"], tokenizer=elsewhere / "pieces.model").exit_code == 0
    assert sorted(files(kept)) == ["meta.json", "spm.model"]
    expected = sha256_file(elsewhere / "pieces.model")
    for meta in (kept / "meta.json", data.parent / "c/sft/dolly15k/meta.json"):
        assert read_meta(meta)["tokenizer_sha256"] == sha256_file(kept / "spm.model") == expected
        assert read_meta(meta)["vocab_size"] == 280

    (kept / "meta.json").unlink()  # as if a user had put the tokenizer there
    (kept / "spm.vocab").write_text("his")
    assert build(data, only=["dolly15k"], tokenizer=kept).exit_code == 0
    assert read_meta(kept / "meta.json")["tokenizer_sha256"] == expected
    assert sorted(files(kept)) == ["meta.json", "spm.model", "spm.vocab"]


def test_without_a_tokenizer_nothing_is_built(data: Path) -> None:
    write_json(data.parent / "runes/tokenizer.json", {**describe(ByteTokenizer()), "kind": "runes"})
    for folder, sentence in (("nowhere", "holds no tokenizer"), ("runes", "of kind 'runes'")):
        done = build(data, tokenizer=data.parent / folder)
        assert done.exit_code == 1
        assert done.output.startswith("ERROR: ")
        assert sentence in done.output
        assert done.output.count("\n") == 1
    assert not (data.parent / "c").exists()


@pytest.mark.slow
def test_options_of_the_loaders_have_flags(data: Path) -> None:
    def built(name: str, *flags: str) -> Path:
        assert build(data, *flags, only=[name]).exit_code == 0
        return data.parent / ("c/sft" if name in ("dolly15k", "oasst1") else "c/pretrain") / name

    def turns(name: str, *flags: str) -> list[list[int]]:
        out = built(name, *flags)
        return [
            [token for token in ids if token in (SYS, USR, ASST)]
            for split in ("train", "val")
            for ids in chats(out, split)
        ]

    assert turns("dolly15k") == [[USR, ASST]] * 20
    assert turns("dolly15k", "--include-system") == [[SYS, USR, ASST]] * 20
    assert turns("oasst1").count([USR, ASST]) == 13
    assert turns("oasst1").count([USR, ASST, USR]) == 1
    assert turns("oasst1", "--max-messages=2") == [[USR, ASST]] * 14
    assert len(turns("oasst1", "--no-english-only")) == 16
    val = chats(built("dolly15k", "--sft-val-frac=0.5"), "val")
    assert len(val) == 10
    assert chats(built("dolly15k", "--sft-val-frac=0.5", "--seed=7"), "val") != val
    meta = read_meta(built("dolly15k", "--sft-context=5", "--sft-val-frac=0.5") / "meta.json")
    assert meta["train_dropped"] + meta["val_dropped"] == 10  # questions with two digits do not fit
    done = build(data, "--sft-context=3", only=["oasst1"])
    assert done.exit_code == 1
    assert "has no chat with an answer to learn" in done.output

    everything = ["--max-train-tokens=1000000", "--max-val-tokens=0"]
    assert documents(built("fineweb_edu", *everything, "--no-shuffle") / "train") == TEXTS
    shuffled = documents(built("fineweb_edu", *everything) / "train")
    assert sorted(shuffled) == sorted(TEXTS) != shuffled != TEXTS
    assert read_meta(data.parent / "c/pretrain/fineweb_edu/meta.json")["streaming"] is True
    out = built("fineweb_edu", *everything, "--no-streaming", "--seed=3", "--shard-bytes=100")
    meta = read_meta(out / "meta.json")
    assert (meta["streaming"], meta["seed"], meta["shard_bytes"]) == (False, 3, 100)
    assert sorted(documents(out / "train")) == sorted(TEXTS)


def test_a_name_that_is_no_cache_is_refused(data: Path) -> None:
    done = build(data, only=["dolly"])
    assert done.exit_code == 2
    assert not (data.parent / "c").exists()


def test_notes_are_read_in_whatever_encoding(data: Path) -> None:
    notes = data.parent / "notes"
    notes.mkdir()
    for i in range(5):
        (notes / f"{i}.md").write_text(f"note {i}: Smørrebrød og øl på en bænk ved åen\n" * 5, encoding="latin-1")
    done = build(data, f"--roam-root={notes}", only=["roam"])
    assert done.exit_code == 0, done.output
    out = data.parent / "c/pretrain/roam"
    text = b"".join(file.read_bytes()[::2] for file in sorted(out.glob("*/shard_*.bin")))
    assert text.count("Smørrebrød".encode()) == 25
