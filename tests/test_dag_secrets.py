"""Tests of the whole pipeline on private text: secrets in it reach no file, and its passages reach no public one."""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from niels_gpt.tokenizer import load_tokenizer
from tests.conftest import ROOT, Repo
from tests.everything import files_in, texts_in
from tests.planted_secrets import IBANS, KEYS, PASSWORD, pem

pytestmark = pytest.mark.dag

BLOCK = pem()
PLANTED = f"The shop: {KEYS['Stripe']}\n\n{BLOCK}\n\nPay to {IBANS[1]} by May.\npassword: {PASSWORD}\n"
NEEDLES = [KEYS["Stripe"], *BLOCK.split("\n")[1:-1], *IBANS[:2], PASSWORD]
KINDS = ("api key", "private key", "iban", "password")


def plant(vault: Path) -> None:
    """Write the secrets into Markdown, CSV, JSONL, Parquet and chats, often enough for a tokenizer to learn them."""
    notes = [path.read_text() for path in sorted((ROOT / "data/roam/daily").glob("*.md"))]
    texts = [f"{note}\n{PLANTED}" for note in notes[:12]]
    (vault / "notes").mkdir(parents=True)
    for i, text in enumerate(texts[:6]):
        (vault / f"notes/{i}.md").write_text(text)
    (vault / "tables").mkdir()
    with (vault / "tables/a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "text"], *([str(i), text] for i, text in enumerate(texts[6:8]))])
    (vault / "tables/b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[8:10]))
    pq.write_table(pa.table({"text": texts[10:12]}), vault / "tables/c.parquet")
    chats = [[("user", f"say {i}"), ("assistant", f"word {i} {PLANTED}")] for i in range(12)]
    lines = [{"messages": [{"role": role, "content": content} for role, content in chat]} for chat in chats]
    (vault / "chats.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def private(path: Path, name: str, load: str) -> dict[str, object]:
    return {
        "use": "chat" if load == "chat" else "text",
        "input": str(path),
        "remote": "private",
        "val_name": f"val_{name}",
        "load": {"kind": load},
        "split": {"by": "document", "val_frac": 0.3, "seed": 1},
        "budget": {"max_train_tokens": None, "max_val_tokens": None},
    }


def found_in(folder: Path) -> set[str]:
    """Return the files that contain one of the secrets."""
    hits = set()
    for path in files_in(folder):
        for text in texts_in(path, folder / "cache/tokenizer"):
            joined = re.sub(r"[^\w+/&]", "", text)
            if any(needle in text or re.sub(r"[^\w+/&]", "", needle) in joined for needle in NEEDLES):
                hits.add(path.relative_to(folder).as_posix())
    return hits


def test_planted_secrets_reach_no_file(fresh_repo: Repo, tmp_path: Path) -> None:
    vault = tmp_path / "vault"
    plant(vault)
    primer = yaml.safe_load((fresh_repo.path / "params.yaml").read_text())["sources"]["primer"]
    primer["split"]["val_frac"] = 0.3
    fresh_repo.set_all(
        {
            "sources": {
                "notes": private(vault / "notes", "notes", "roam"),
                "tables": private(vault / "tables", "tables", "text"),
                "primer": primer,
                "own": private(vault / "chats.jsonl", "own", "chat"),
            },
            "p_train": {"notes": 1.0, "tables": 1.0, "primer": 0.1},
            "p_val": {"notes": 1.0},
            "p_sft": {"own": 1.0},
            "tokenizer": {
                "kind": "sentencepiece",
                "corpus": "cache/split/text",
                "vocab_size": 600,
                "sample_bytes": 1_000_000,
                "seed": 1,
            },
            "splice.dataset_name": "notes",
            "duplicates.near": None,  # the chats are all alike
            "model.T": 64,
        }
    )
    run = fresh_repo.run_here()
    said = run.stdout + run.stderr
    for name, place in (
        ("notes", "0.md"),
        ("tables", "a.csv:2"),
        ("tables", "c.parquet:0"),
        ("own", "chats.jsonl:1, message 2"),
    ):
        assert re.search(rf"load\w*@{name}:   {re.escape(place)}, line \d+: api key\n", said), place
    for kind in KINDS:
        assert re.search(rf"load@notes: 24 secrets in 6 documents are replaced \(.*{kind}: 6", said)
    assert not [needle for needle in NEEDLES if needle in said]
    (fresh_repo.path / "repro.log").write_text(said)
    fresh_repo.commit("built")
    assert found_in(fresh_repo.path) == set()
    for source, count in (("notes", 6), ("tables", 6)):
        rows = pq.read_table(fresh_repo.path / f"cache/raw/{source}/part-00000.parquet")["text"].to_pylist()
        assert len(rows) == count
        assert all(
            "The shop: [api key]\n\n[private key]\n\nPay to [iban] by May.\npassword: [password]\n" in r for r in rows
        )
    tokenizer = load_tokenizer(fresh_repo.path / "cache/tokenizer")
    pieces = {tokenizer.decode([i]).strip() for i in range(tokenizer.vocab_size)}
    assert not [piece for piece in pieces for needle in NEEDLES if len(piece) > 4 and piece in needle]

    # Secrets that are kept are reported every time, and the search above does find them.
    fresh_repo.set_all({"sources.notes.load": {"kind": "roam", "on_secret": "keep"}})
    said = fresh_repo.run("dvc", "repro", "tokenize@notes").stdout
    assert "load@notes: 24 secrets in 6 documents are kept" in said
    kept = found_in(fresh_repo.path)
    assert {"cache/raw/notes/part-00000.parquet", "cache/tokenizer/tokenizer.json"} & kept
    assert any(path.startswith("cache/tokens/text/notes/") for path in kept)
    assert any(path.startswith(".dvc/cache/") for path in kept)
    again = fresh_repo.run("dvc", "repro", "--force", "--single-item", "load@notes").stdout
    assert "load@notes: 24 secrets in 6 documents are kept" in again
    doctor = fresh_repo.run("niels-gpt", "doctor", "--no-speed", check=False).stdout
    assert "notes: secrets in 6 documents are kept (api key: 6, iban: 6, password: 6, private key: 6)" in doctor


def outs(repo: Repo) -> Iterator[tuple[str, bool]]:
    """Yield (path, public) for every output; public are those of the public remote and those that git tracks."""
    params = yaml.safe_load((repo.path / "params.yaml").read_text())
    for stage in yaml.safe_load((repo.path / "dvc.yaml").read_text())["stages"].values():
        declared, items = stage.get("do", stage), stage.get("foreach", {"": None})
        for key, item in (params[items.strip("${}")] if isinstance(items, str) else items).items():
            for out in (out for kind in ("outs", "metrics", "plots") for out in declared.get(kind, [])):
                path, how = next(iter(out.items())) if isinstance(out, dict) else (out, {})
                remote = item["remote"] if how.get("remote") == "${item.remote}" else how.get("remote", "private")
                use = item["use"] if isinstance(item, dict) else ""
                yield (
                    path.replace("${key}", key).replace("${item.use}", use),
                    remote == "store" or how.get("cache") is False,
                )


def shingles(text: str) -> set[str]:
    words = re.findall(r"\w+", text.lower())
    return {" ".join(words[i : i + 8]) for i in range(len(words) - 7)}


def test_nothing_of_a_private_passage_is_in_a_public_out_or_in_git(built_repo: Repo) -> None:
    private_text = set().union(*(shingles(path.read_text()) for path in (built_repo.path / "data/roam").glob("*.md")))
    assert len(private_text) > 500
    by_whom = dict(outs(built_repo))
    assert {"cache/raw/wiki", "cache/tokens/text/wiki", "metrics/eval.json", "metrics/train.tsv"} <= {
        path for path, public in by_whom.items() if public
    }
    tracked = built_repo.run("git", "ls-files").stdout.splitlines()
    public = [built_repo.path / path for path in tracked if not path.startswith("data/")]
    leaked, seen = set(), set()
    for path, is_public in by_whom.items():
        place = built_repo.path / path
        for file in [place] if place.is_file() else list(files_in(place)):
            words = set().union(*map(shingles, texts_in(file, built_repo.path / "cache/tokenizer")))
            if words & private_text:
                (leaked if is_public else seen).add(path)
    for file in public:
        if file.is_file() and shingles(file.read_text(errors="replace")) & private_text:
            leaked.add(str(file))
    assert leaked == set()
    assert {"cache/raw/roam", "cache/tokens/text/roam"} <= seen  # the search does find them in private outputs
