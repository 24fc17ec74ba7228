"""Tests of parts: how a source is cut into them, how they are split and encoded, and where they are stored."""

import copy
import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_gpt.cache.token_parts import encode_chats
from niels_gpt.cache.windows import open_mix
from niels_gpt.data import fineweb_edu
from niels_gpt.data.corpus.loading import Slice, cut_source, digest_inputs, load_parts
from niels_gpt.data.corpus.parts import (
    CHAT_SCHEMA,
    MANIFEST,
    Part,
    Texts,
    first_documents,
    manifest_of,
    open_texts,
    write_rows,
)
from niels_gpt.data.corpus.split import Drawn, split_by_hash
from niels_gpt.data.corpus.split_files import Splits, part_rows, read_split, sampled_texts
from niels_gpt.data.text import Settings
from niels_gpt.data.types import Chat, Document, Request
from niels_gpt.files.store import Store
from niels_gpt.jobs.engine import LocalEngine, Worker
from niels_gpt.pipeline.params import Params
from niels_gpt.pipeline.sections import Budget, Parts
from niels_gpt.pipeline.stores import open_documents, token_places
from niels_gpt.tokenizer.tokenizers import write_tokenizer
from stages import cache as cache_stage
from stages import load, split, tokenize, tokenizer
from tests.in_process import SOURCES, no_duplicates, run_in_process, tiny_params, write_source
from tests.token_caches import TOK, documents_of, files

NOTES = [f"note {i} " * (1 + i % 5) + "end" for i in range(40)]

# Split by hash


KEYS = [f"page-{i}" for i in range(3000)]


def test_about_as_much_is_held_out_as_was_asked_for() -> None:
    for share in (0.0, 0.05, 0.3):
        rows = split_by_hash(KEYS, Drawn(val_frac=share, seed=1))
        assert abs(len(rows["val"]) - share * len(KEYS)) <= 5 * (share * (1 - share) * len(KEYS)) ** 0.5
        assert sorted([*rows["train"], *rows["val"]]) == list(range(len(KEYS)))
        assert (np.diff(rows["train"]) > 0).all()
    fewer, more = (set(split_by_hash(KEYS, Drawn(val_frac=share, seed=1))["val"]) for share in (0.05, 0.3))
    assert fewer < more


def test_a_row_is_held_out_whatever_other_rows_there_are() -> None:
    rule = Drawn(val_frac=0.2, seed=7)
    whole = split_by_hash(KEYS, rule)["val"]
    chosen = {KEYS[row] for row in whole}
    assert [KEYS[:8][row] for row in split_by_hash(KEYS[:8], rule)["val"]] == ["page-7"]  # pinned: must never change
    some = random.Random(0).sample(KEYS, 500)
    assert {some[row] for row in split_by_hash(some, rule)["val"]} == chosen & set(some)
    other = split_by_hash(KEYS, Drawn(val_frac=0.2, seed=8))["val"]
    assert 0.1 < len(set(whole) & set(other)) / len(whole) < 0.3  # another seed: overlap by chance only


GROUPS: dict[str, Callable[[int], str | None]] = {
    "none": lambda i: None,
    "empty": lambda i: "",
    "pairs": lambda i: f"tree {i // 2}",
    "some": lambda i: f"tree {i // 6}" if i % 6 < 3 else None,
}


@pytest.mark.parametrize("groups", GROUPS)
def test_chats_are_held_out_by_their_group_and_each_by_itself_without_one(groups: str, tmp_path: Path) -> None:
    path, told = tmp_path / "part.parquet", [{"role": "user", "content": "hi"}]
    chats = [Chat(id=f"chat {i}", messages=told, group=GROUPS[groups](i)) for i in range(3000)]
    write_rows(path, CHAT_SCHEMA, chats)
    units = [chat.group or chat.id for chat in chats]
    distinct, seen = len(set(units)), set[frozenset[int]]()
    for share, seed in product((0.05, 0.3, 0.7), range(6)):
        rows = {side: found.tolist() for side, found in part_rows(path, {}, Drawn(share, seed)).items()}
        assert sorted(rows["train"] + rows["val"]) == list(range(3000))
        held_out = {units[row] for row in rows["val"]}
        assert not held_out & {units[row] for row in rows["train"]}
        assert abs(len(held_out) - share * distinct) <= 5 * (share * (1 - share) * distinct) ** 0.5
        seen.add(frozenset(rows["val"]))
    assert len(seen) == 18  # each share and seed has its own split


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    return tmp_path


def hashed(texts: Texts, *, val_frac: float = 0.3, seed: int = 1) -> Splits:
    """Write what the split stage writes for a split by hash; return it as read back."""
    folder = Path("cache/split/text/notes")
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"by": "hash", "val_frac": val_frac, "seed": seed, "texts_sha256": texts.digest, "files": []}
    (folder / "split.json").write_text(json.dumps(facts))
    return read_split(folder, texts)


def test_trees_of_chats_are_held_out_whole(here: Path) -> None:
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": ""}]
    chats = [
        Chat(id=str(i), group=f"tree{i // 3}", messages=[turns[0], {**turns[1], "content": f"tree{i // 3}."}])
        for i in range(60)
    ]
    texts = write_source("own", chats, part_rows=7)
    found = encode_chats(TOK, texts, hashed(texts), budgets={"train": None, "val": None})
    trees = {name: [TOK.decode(ids).split("tree")[1].split(".")[0] for ids in rows] for name, rows in found.items()}
    assert not set(trees["train"]) & set(trees["val"])
    assert sorted(map(int, trees["train"] + trees["val"])) == sorted(i // 3 for i in range(60))
    assert 0 < len(set(trees["val"])) < 15
    assert len(trees["val"]) == 3 * len(set(trees["val"]))


def test_a_tokenizers_sample_of_parts_has_nothing_that_is_held_out(here: Path) -> None:
    notes = [Document(id=f"n{i}", text=f"{i} " + "x" * 30) for i in range(400)]
    texts = write_source("notes", notes, part_rows=50)
    splits = hashed(texts)
    held_out = {notes[row].text for row in split_by_hash([note.id for note in notes], Drawn(0.3, 1))["val"]}

    def sample(share: float, seed: int = 1) -> list[str]:
        size = int(share * texts.text_bytes)
        return [text for _, text in sampled_texts({"notes": (texts, splits)}, sample_bytes=size, seed=seed)]

    everything = sample(1)
    assert set(everything) == {note.text for note in notes} - held_out
    some = sample(0.25)
    assert some == sample(0.25) != sample(0.25, seed=2)
    assert set(some) < set(everything)
    assert some == [text for text in everything if text in set(some)]
    assert 0.75 < sum(map(len, some)) / (0.25 * 0.7 * texts.text_bytes) < 1.25
    few = sample(0.03)  # from some of the parts only
    assert 0 < len(few) < len(some)


# Cutting


def loaded(folder: Path, store: Path, text_bytes: int, workers: int = 1) -> tuple[list[Part], list[str]]:
    """Load a folder of text into a store; return its parts, and all documents in order."""
    request = Request(str(folder), None, max_tokens=None, patience_s=1)
    slices = cut_source(Slice("text", Settings(), request, Store(str(store)), text_bytes))
    parts, _ = load_parts(LocalEngine(workers), slices, say=bool, tick=bool)
    (store / MANIFEST).write_text(json.dumps(manifest_of(parts, {"name": "x"}, at=None)))
    texts = open_texts(store)
    assert sum(part.rows for part in parts) == texts.rows
    return parts, [text for _, text in first_documents(texts, texts.rows)]


def write_notes(folder: Path) -> list[str]:
    """Write files of one document each and, between them, a table of several; return all documents in order."""
    folder.mkdir()
    for i, note in enumerate(NOTES[:20]):
        (folder / f"a{i:02}.txt").write_text(note)
    (folder / "b.jsonl").write_text("".join(json.dumps({"text": note}) + "\n" for note in NOTES[20:35]))
    for i, note in enumerate(NOTES[35:]):
        (folder / f"c{i:02}.txt").write_text(note)
    return NOTES


@pytest.mark.slow
def test_documents_are_never_cut_and_come_in_the_same_order_however_large_a_part_is(here: Path) -> None:
    notes = write_notes(here / "notes")
    (whole,), texts = loaded(here / "notes", here / "whole", 10**9)
    assert texts == notes
    assert (whole.file, whole.rows, whole.text_bytes) == ("part-00000.parquet", 40, sum(map(len, notes)))
    for text_bytes in (1, 60, 200):
        parts, texts = loaded(here / "notes", here / f"in{text_bytes}", text_bytes)
        assert texts == notes
        assert [part.name for part in parts] == sorted(part.name for part in parts)
        sizes = [part.text_bytes for part in parts]
        assert max(sizes) < text_bytes + max(map(len, notes))
        assert (len(parts) == 40) == (text_bytes == 1)
        assert any(part.name.endswith("-001") for part in parts)  # the table fills more than one part
    (here / "one").mkdir()
    shutil.copy(here / "notes/b.jsonl", here / "one")
    parts, texts = loaded(here / "one/b.jsonl", here / "of_one", 100)
    assert texts == notes[20:35]
    assert [part.name for part in parts] == [f"part-{i:05d}" for i in range(len(parts))]


@pytest.mark.slow
def test_loaded_parts_do_not_depend_on_the_number_of_workers(here: Path) -> None:
    write_notes(here / "notes")
    for workers in (1, 2):
        loaded(here / "notes", here / f"by{workers}", 200, workers=workers)
    assert files(here / "by1") == files(here / "by2")
    assert len(list((here / "by2").glob("*.parquet"))) > 3


def test_a_slice_that_was_interrupted_goes_on_behind_its_last_part(here: Path) -> None:
    lines = [json.dumps({"text": note}) + "\n" for note in NOTES]
    (here / "rows.jsonl").write_text("".join(lines[:30]) + "{broken\n")
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 31, is not JSON"):
        loaded(here / "rows.jsonl", here / "store", 100)
    done = {path.name: path.stat().st_ino for path in (here / "store").glob("*.parquet")}
    assert len(done) > 3
    assert not list((here / "store").rglob(".*"))
    (here / "rows.jsonl").write_text("".join(lines))
    assert loaded(here / "rows.jsonl", here / "store", 100)[1] == NOTES
    assert {name: (here / "store" / name).stat().st_ino for name in done} == done  # not written again
    assert loaded(here / "rows.jsonl", here / "fresh", 100)[1] == NOTES
    assert files(here / "store") == files(here / "fresh")


def digests(kind: str, settings: Any, folder: Path) -> list[str]:
    """Return the input digest of each slice of a folder."""
    request = Request(str(folder), None, max_tokens=None, patience_s=1)
    slices = cut_source(Slice(kind, settings, request, Store(""), 60))
    return [digest_inputs(item, Worker()) for item in slices]


PAGES = fineweb_edu.Settings(
    dataset=None,
    revision=None,
    split="train",
    shuffle_buffer=None,
    seed=1,
    max_documents=None,
    bytes_per_token=5.0,
    config="x",
)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "settings"), [("fineweb_edu", PAGES), ("text", Settings()), ("wikitext", None)])
def test_input_digests_do_not_depend_on_where_the_folder_lies(here: Path, kind: str, settings: Any) -> None:
    """They depend on names and contents: of a dataset read by file, a folder of text, and a folder read as a whole."""
    first, second = here / "first/pages", here / "second/elsewhere"
    (first / "more").mkdir(parents=True)
    for name in ("a", "b", "more/c"):
        (first / f"{name}.jsonl").write_text("".join(json.dumps({"text": f"{name} {i}"}) + "\n" for i in range(5)))
    shutil.copytree(first, second)
    (here / "link").symlink_to(first)
    before = digests(kind, settings, first)
    assert len(set(before)) == (1 if kind == "wikitext" else 3)
    for other in (second, here / "link", Path("second/elsewhere")):
        assert digests(kind, settings, other) == before
    (second / "b.jsonl").rename(second / "bb.jsonl")
    renamed = digests(kind, settings, second)
    assert [one == two for one, two in zip(before, renamed, strict=True)].count(False) == 1
    (second / "more/c.jsonl").write_text('{"text": "another"}\n')
    assert digests(kind, settings, second)[-1] != renamed[-1]


# Encoding


@cache
def base() -> Params:
    """Return parameters with a folder of notes, in parts of about 100 bytes and split by hash."""
    changes = {"load": {"kind": "text"}, "split": {"by": "hash", "val_frac": 0.3, "seed": 1}}
    source = {**copy.deepcopy(SOURCES["sources"]["notes"]), **changes}  # type: ignore[index]
    sources: dict[str, object] = {"notes": source, "own": copy.deepcopy(SOURCES["sources"]["own"])}  # type: ignore[index]
    return tiny_params({**SOURCES, "sources": sources, "parts.text_bytes": 100, "runtime.workers": 1})


def parameters(
    *,
    text_bytes: int = 100,
    workers: int = 1,
    train: int | None = None,
    val: int | None = None,
    seed: int = 1,
    store: str | None = None,
) -> Params:
    """Return `base` with these values; `train` and `val` are budgets in tokens, `store` is where the source lies."""
    source, rule = base().sources["notes"], base().sources["notes"].split
    changed = source.model_copy(
        update={
            "budget": Budget(max_train_tokens=train, max_val_tokens=val),
            "split": rule.model_copy(update={"seed": seed}),
            "load": source.load.model_copy(update={"stored": store is not None}),
        }
    )
    runtime = base().runtime.model_copy(update={"workers": workers, "stores": {"store": store, "private": "secret"}})
    sources = {**base().sources, "notes": changed}
    return base().model_copy(
        update={
            "sources": sources,
            "parts": Parts(text_bytes=text_bytes),
            "runtime": runtime,
        }
    )


def run_chain(params: Params, *mains: Callable[..., None]) -> dict[str, Any]:
    """Run load, split and tokenize, or the given stages, on the notes; return the manifest of their tokens."""
    for main in mains or (load.main, split.main, tokenize.main):
        if main is split.main:
            no_duplicates("notes", params)
        run_in_process(main.__module__.removeprefix("stages."), main, params, "notes")
    found: dict[str, Any] = json.loads(Path("cache/manifests/notes.json").read_text())
    return found


@pytest.fixture
def notes(here: Path) -> Path:
    """Write a folder of notes and a tokenizer; return the folder."""
    (here / "data").mkdir()
    write_notes(here / "data/notes")
    write_tokenizer(Path("cache/tokenizer"), model=None)
    return here / "data/notes"


def encoded(manifest: dict[str, Any], split: str, folder: Path = Path("cache/tokens/text/notes")) -> list[str]:
    return [text for part in manifest[split]["parts"] for text in documents_of(folder, part)]


def listed(manifest: dict[str, Any]) -> set[str]:
    parts = [part for split in ("train", "val") for part in manifest[split]["parts"]]
    return {file["file"] for part in parts for file in (part, part["offsets"])}


@pytest.mark.slow
def test_what_is_held_out_does_not_depend_on_how_large_parts_are(notes: Path) -> None:
    found = {}
    for text_bytes in (60, 100, 10**9):
        manifest = run_chain(parameters(text_bytes=text_bytes))
        found[text_bytes] = encoded(manifest, "train"), encoded(manifest, "val")
        assert (len(manifest["train"]["parts"]) > 5) == (text_bytes < 10**9)
    assert found[60] == found[100] == found[10**9]
    train, val = found[60]
    assert sorted(train + val) == sorted(NOTES)
    assert 3 < len(val) < 20
    assert [train, val] == [[text for text in NOTES if text in part] for part in (train, val)]


@pytest.mark.slow
def test_a_budget_takes_whole_parts_in_order_and_the_last_up_to_a_documents_end(notes: Path) -> None:
    everything = run_chain(parameters())
    texts = {split: encoded(everything, split) for split in ("train", "val")}
    ends = {split: np.cumsum([len(text) + 1 for text in texts[split]]) for split in texts}
    for train, val in ((10, 3), (1, 2), (18, 1), (len(texts["train"]), len(texts["val"]))):
        budgets = {"train": int(ends["train"][train - 1]), "val": int(ends["val"][val - 1])}
        for spare in (0, 1):  # not enough for one more document
            values = {name: n + spare for name, n in budgets.items()}
            manifest = run_chain(parameters(**values), tokenize.main)
            assert encoded(manifest, "train") == texts["train"][:train]
            assert encoded(manifest, "val") == texts["val"][:val]
            assert {name: manifest[name]["tokens"] for name in budgets} == budgets
            parts = manifest["train"]["parts"]
            assert [part["file"] for part in parts] == [
                part["file"] for part in everything["train"]["parts"][: len(parts)]
            ]
            whole = [part["tokens"] == part["bytes"] // 2 for part in parts]
            assert all(whole[:-1])


def test_a_short_document_behind_the_one_that_is_too_long_is_not_taken(here: Path) -> None:
    """A budget ends at the first document that exceeds it, even if one of the next part would fit."""
    texts = ["a" * 20, "b" * 50, "c", "d", "e" * 20, "f"]
    write_tokenizer(Path("cache/tokenizer"), model=None)
    rows = [Document(id=str(i), text=text, split="val" if i == 5 else "train") for i, text in enumerate(texts)]
    params = parameters(train=30)
    given = params.sources["notes"].model_copy(update={"split": tiny_params().sources["wiki"].split})
    params = params.model_copy(update={"sources": {**params.sources, "notes": given}})
    write_source("notes", rows, part_rows=2)
    manifest = run_chain(params, split.main, tokenize.main)
    assert encoded(manifest, "train") == ["a" * 20]
    assert encoded(manifest, "val") == ["f"]


@pytest.mark.slow
def test_bytes_do_not_show_how_many_worked_on_them(notes: Path) -> None:
    """The number of workers changes no byte, nor do parts that were in progress when the budget was reached."""
    run_chain(parameters(), load.main, split.main, tokenize.main)
    for budget, others in ((None, [2]), (150, [2, 4])):
        found = []
        for workers in (1, *others):
            manifest = run_chain(parameters(train=budget, val=budget, workers=workers), tokenize.main)
            assert files(Path("cache/tokens/text/notes")).keys() == listed(manifest) | {"meta.json"}
            found.append((files(Path("cache")), manifest))
        assert all(each == found[0] for each in found)


# Stores


def stored(seed: int = 1) -> Params:
    return parameters(store="kept", seed=seed)


@pytest.mark.slow
def test_a_stored_source_leaves_manifests_here_and_parts_in_its_store(
    notes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = run_chain(parameters())
    texts = {split: encoded(plain, split) for split in ("train", "val")}
    run_in_process("tokenizer", tokenizer.main, parameters())
    manifest = run_chain(stored())
    assert files(Path("cache/raw/notes")).keys() == {MANIFEST}
    assert files(Path("cache/tokens/text/notes")).keys() == {"meta.json"}
    assert manifest["at"].startswith("tokens/notes/")
    assert {**manifest, "at": None} == {**plain, "at": None}
    folder = Path("kept", manifest["at"])
    assert {split: encoded(manifest, split, folder) for split in texts} == texts
    assert {*files(folder)} > listed(manifest)
    assert not Path("secret").exists()

    chats = [[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]] * 8
    write_source("own", [Chat(id=str(i), messages=messages) for i, messages in enumerate(chats)])
    no_duplicates("own", stored())
    for main in (split.main, tokenize.main):
        run_in_process(main.__module__.removeprefix("stages."), main, stored(), "own")
    run_in_process("cache", cache_stage.main, stored())
    opened = open_mix("cache/mix.json", places=token_places(stored()), documents=True)
    assert sum(map(len, opened.train["notes"].arrays)) == manifest["train"]["tokens"]
    assert TOK.decode(open_documents(stored(), "notes").document(0)[:-1]) == encoded(manifest, "train", folder)[0]
    with pytest.raises(ValueError, match=r"the tokens of notes lie in a store, under tokens/.*: name the store in"):
        open_mix("cache/mix.json", places=token_places(parameters()))
    with pytest.raises(ValueError, match=r"manifest\.json says that its parts lie in a store, under texts/notes/"):
        run_chain(parameters(), split.main)

    before = {path: path.stat().st_ino for path in Path("kept").rglob("*.*")}
    shutil.rmtree("cache/raw")
    shutil.rmtree("cache/tokens/text")
    capsys.readouterr()
    assert run_chain(stored()) == manifest  # all of it exists already
    assert capsys.readouterr().out.count("0 of ") == 2
    other = run_chain(stored(seed=2))
    assert other["at"] != manifest["at"]
    assert run_chain(stored()) == manifest
    assert before.items() <= {path: path.stat().st_ino for path in Path("kept").rglob("*.*")}.items()

    spoilt = folder / manifest["train"]["parts"][1]["file"]
    spoilt.write_bytes(bytes(spoilt.stat().st_size))
    with pytest.raises(ValueError, match=rf"{spoilt.name} \(changed\)") as error:
        open_mix("cache/mix.json", places=token_places(stored()))
    assert str(spoilt) in str(error.value)


@pytest.mark.parametrize(
    ("stores", "said"),
    [
        ({"store": "kept", "private": "kept"}, r"\w+ lies in \w+"),
        ({"store": "kept", "private": "kept/private"}, "private lies in store"),
        ({"store": "s3://b/x/y/", "private": "s3://b/x"}, "store lies in private"),
        ({"store": "kept", "private": "./kept/"}, r"\w+ lies in \w+"),
        ({"store": "kept", "private": "other/../kept/private"}, "private lies in store"),
    ],
)
def test_stores_must_be_apart(stores: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=rf"runtime\.stores: {said} .*: give each remote a store of its own"):
        tiny_params({"runtime.stores": stores})


def test_a_stored_source_needs_a_store_of_its_remote() -> None:
    said = r"sources\.wiki\.load\.stored is true, but runtime\.stores has no place for store: name one there"
    for stores in ({"store": None, "private": "mine"}, {"private": "mine"}):
        with pytest.raises(ValueError, match=said):
            tiny_params({"sources.wiki.load.stored": True, "runtime.stores": stores})
    # A store whose name begins like that of another is apart from it.
    tiny_params({"sources.wiki.load.stored": True, "runtime.stores": {"store": "kept", "private": "kept-private"}})
