"""Small hub repositories with the real layouts and columns of the six datasets, the same at every call."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_S, _F, _I32 = pa.string(), pa.float64(), pa.int32()
_WORDS = re.findall(
    r"\w+",
    "harbour winter stone light water theory garden machine number method river history bread tide lantern rope the of "
    "and to in a is that it was for on are as with his they at be this from have or by one had not but what",
)
FINEWEB = pa.schema(
    [(name, _S) for name in ("text", "id", "dump", "url", "date", "file_path", "language")]
    + [("language_score", _F), ("token_count", pa.int64()), ("score", _F), ("int_score", pa.int64())]
)
_DETOXIFY = pa.struct(
    [
        (name, _F)
        for name in ("toxicity", "severe_toxicity", "obscene", "identity_attack", "insult", "threat", "sexual_explicit")
    ]
)
OASST1 = pa.schema(
    [(name, _S) for name in ("message_id", "parent_id", "user_id", "created_date", "text", "role", "lang")]
    + [("review_count", _I32), ("review_result", pa.bool_()), ("deleted", pa.bool_()), ("rank", _I32)]
    + [("synthetic", pa.bool_()), ("model_name", _S), ("detoxify", _DETOXIFY), ("message_tree_id", _S)]
    + [("tree_state", _S), ("emojis", pa.struct([("name", pa.list_(_S)), ("count", pa.list_(_I32))]))]
    + [("labels", pa.struct([("name", pa.list_(_S)), ("value", pa.list_(_F)), ("count", pa.list_(_I32))]))]
)
_LANGUAGES = ("de", "en", "es", "fr", "it", "nl", "pl", "pt", "ru", "sv", "zh")


def make_repositories(root: Path) -> None:
    rng = random.Random(0)
    _fineweb(root / "HuggingFaceFW/fineweb-edu", rng)
    _wikitext(root / "Salesforce/wikitext", rng)
    _dolly(root / "databricks/databricks-dolly-15k", rng)
    _oasst1(root / "OpenAssistant/oasst1", rng)
    _gutenberg(root / "nikolina-p/gutenberg_clean_en_splits", rng)
    _raw_gutenberg(root / "manu/project_gutenberg", rng)


def make_large_fineweb(repo: Path, *, megabytes: int) -> None:
    """Write a dataset of one uncompressed shard of about `megabytes` MB, in row groups of 1000 rows."""
    rng = random.Random(1)
    pool = [_text(rng, rng.randint(100, 900)) for _ in range(500)]
    _card(repo, configs=[("CC-MAIN-2024-10", [("train", "data/CC-MAIN-2024-10/*")])])
    path = repo / "data/CC-MAIN-2024-10/000_00000.parquet"
    path.parent.mkdir(parents=True)
    number = 0
    with pq.ParquetWriter(path, FINEWEB, compression="none", use_dictionary=False) as writer:
        while path.stat().st_size < megabytes * 1e6:
            rows = [_page(f"{number + i} {rng.choice(pool)}", number + i) for i in range(1000)]
            writer.write_table(pa.Table.from_pylist(rows, FINEWEB), row_group_size=1000)
            number += 1000


def _sentence(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(words)).capitalize() + "."


def _text(rng: random.Random, words: int) -> str:
    return "\n\n".join(_sentence(rng, rng.randint(6, 16)) for _ in range(max(1, words // 11)))


def _card(repo: Path, *, configs: list[tuple[str, list[tuple[str, str]]]] = ()) -> None:  # type: ignore[assignment]
    lines = ["---", "license: mit"]
    if configs:
        lines.append("configs:")
    for name, splits in configs:
        lines += [f"- config_name: {name}", "  data_files:"]
        for split, pattern in splits:
            lines += [f"  - split: {split}", f"    path: {pattern}"]
    repo.mkdir(parents=True, exist_ok=True)
    (repo / "README.md").write_text("\n".join([*lines, "---", "# A dataset", ""]))


def _write(path: Path, rows: list[dict[str, Any]], schema: pa.Schema, *, row_group_size: int = 1000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema), path, row_group_size=row_group_size)


def _page(text: str, number: int) -> dict[str, Any]:
    return {
        "text": text,
        "id": f"<urn:uuid:{number:09d}>",
        "dump": "CC-MAIN-2024-10",
        "url": f"http://example.invalid/{number}",
        "date": "2024-02-21T00:00:00Z",
        "file_path": "s3://commoncrawl/x.warc.gz",
        "language": "en",
        "language_score": 0.97,
        "token_count": len(text) // 4,
        "score": 3.1,
        "int_score": 3,
    }


def _fineweb(repo: Path, rng: random.Random) -> None:
    configs = [("default", "data/*/*"), ("sample-10BT", "sample/10BT/*"), ("CC-MAIN-2024-10", "data/CC-MAIN-2024-10/*")]
    _card(repo, configs=[(name, [("train", pattern)]) for name, pattern in configs])
    for shard in range(4):
        rows = [_page(_text(rng, rng.randint(60, 300)), shard * 1000 + i) for i in range(400)]
        _write(repo / f"data/CC-MAIN-2024-10/{shard:03d}_00000.parquet", rows, FINEWEB, row_group_size=100)
    _write(repo / "sample/10BT/000_00000.parquet", [_page(_text(rng, 80), i) for i in range(20)], FINEWEB)


def _wikitext(repo: Path, rng: random.Random) -> None:
    names = ("wikitext-103-raw-v1", "wikitext-2-raw-v1")
    splits = ("test", "train", "validation")
    _card(repo, configs=[(name, [(split, f"{name}/{split}-*") for split in splits]) for name in names])
    for name in names:
        for split, files in (("test", 1), ("train", 2), ("validation", 1)):
            for i in range(files):
                lines: list[str] = []
                for article in range(6):
                    lines += ["", f" = Article {split} {i} {article} = \n", ""]
                    lines += [f" {_sentence(rng, 30)} \n" for _ in range(4)]
                rows = [{"text": line} for line in lines]
                _write(repo / f"{name}/{split}-{i:05d}-of-{files:05d}.parquet", rows, pa.schema([("text", _S)]))


def _dolly(repo: Path, rng: random.Random) -> None:
    _card(repo)
    rows = [
        {
            "instruction": _sentence(rng, 12),
            "context": _text(rng, 60) if i % 3 == 0 else "",
            "response": _text(rng, 70),
            "category": rng.choice(["closed_qa", "open_qa", "brainstorming"]),
        }
        for i in range(300)
    ]
    (repo / "databricks-dolly-15k.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _oasst1(repo: Path, rng: random.Random) -> None:
    _card(repo)
    for split, trees in (("train", 40), ("validation", 5)):
        rows = [row for tree in range(trees) for row in _tree(f"{split}-tree-{tree:04d}", tree, rng)]
        _write(repo / f"data/{split}-00000-of-00001-b42a775f407cee45.parquet", rows, OASST1)


def _tree(tree: str, number: int, rng: random.Random) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    parent = None
    for depth in range(rng.choice([2, 2, 3, 4])):
        for rank in range(1 if depth % 2 == 0 else rng.choice([1, 2])):
            rows.append(
                {
                    "message_id": f"{tree}-{depth}-{rank}",
                    "parent_id": parent,
                    "user_id": "u",
                    "created_date": "2023-02-05T14:23:50.983374+00:00",
                    "text": _sentence(rng, 15),
                    "role": "prompter" if depth % 2 == 0 else "assistant",
                    "lang": "en" if number % 3 else "es",
                    "review_count": 3,
                    "review_result": True,
                    "deleted": False,
                    "rank": rank if depth % 2 else None,
                    "synthetic": False,
                    "model_name": None,
                    "detoxify": None if number % 7 == 0 else {field.name: 0.001 for field in _DETOXIFY},
                    "message_tree_id": tree,
                    "tree_state": "ready_for_export",
                    "emojis": {"name": ["+1"], "count": [2]} if depth else None,
                    "labels": {"name": ["spam", "quality"], "value": [0.0, 0.75], "count": [3, 3]},
                }
            )
        parent = f"{tree}-{depth}-0"
    return rows


def _gutenberg(repo: Path, rng: random.Random) -> None:
    _card(repo)
    schema = pa.schema([("id", _S), ("title", _S), ("text", _S)])
    for split, files in (("train", 2), ("validation", 1), ("test", 1)):
        for i in range(files):
            rows = [{"id": f"{split}-{i}-{j}", "title": _sentence(rng, 4), "text": _text(rng, 3000)} for j in range(12)]
            _write(repo / f"data/{split}/{split}-{i:05d}-of-{files:05d}.parquet", rows, schema, row_group_size=4)


def _raw_gutenberg(repo: Path, rng: random.Random) -> None:
    _card(repo, configs=[("default", [(language, f"data/{language}-*") for language in _LANGUAGES])])
    for language in _LANGUAGES:
        rows = [{"id": f"{language}-{j}", "text": _text(rng, 1000)} for j in range(6)]
        name = f"data/{language}-00000-of-00001-7cda8f63c262acf8.parquet"
        _write(repo / name, rows, pa.schema([("id", _S), ("text", _S)]))
