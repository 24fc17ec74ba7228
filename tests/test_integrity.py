"""Tests that stored row numbers and offsets, and the files they point into, are refused if a bit has changed."""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from niels_gpt.cache.formats import read_offsets, write_token_file
from niels_gpt.cache.sft_dataset import open_chats
from niels_gpt.cache.windows import Mix, Places, TokenStore, open_mix
from niels_gpt.data.corpus.parts import open_texts
from niels_gpt.data.corpus.split_files import read_split
from niels_gpt.pipeline.stores import open_documents
from stages import tokenizer
from tests.in_process import SOURCES, make_caches, notes_params, run, run_in_process, tiny_params


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_caches([f"note {i}, and more" for i in range(12)])
    return tmp_path


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def replace_rows(path: Path, rows: list[int]) -> None:
    with path.open("wb") as f:  # given a name, np.save would append .npy to it
        np.save(f, np.array(rows, dtype=np.int64))


def opened_mix(path: str = "cache/mix.json") -> Mix:
    return open_mix(path, places=Places(Path("cache/tokens/text")))


def learned_by_heart() -> TokenStore:
    """Return the documents that `splice` chooses from."""
    return open_documents(notes_params(), "notes")


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a row out of range": lambda path: replace_rows(path, [0, 1, 4000]),
    "a negative row": lambda path: replace_rows(path, [-1, 2, 3]),
    "another row": lambda path: flip(path, -8),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "empty": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize(
    ("stage", "path"),
    [
        ("tokenize notes", "cache/split/text/notes/train.npy"),
        ("tokenize notes", "cache/split/text/notes/val.npy"),
        ("tokenize own", "cache/split/chat/own/val.npy"),
        ("splice", "cache/tokens/text/notes/train/part-00000.idx.npy"),
        ("splice", "cache/tokens/text/notes/val/part-00000.bin"),
    ],
)
def test_rows_and_offsets_that_are_not_those_written_are_refused_by_name(
    stage: str, path: str, damage: Callable[[Path], None], caches: Path
) -> None:
    damage(Path(path))
    with pytest.raises(ValueError, match=rf"{re.escape(path)} \((changed|missing)\)"):
        learned_by_heart() if stage == "splice" else run(stage)


def test_train_and_val_are_read_each_from_its_file(caches: Path) -> None:
    rows = read_split(Path("cache/split/text/notes"), open_texts(Path("cache/raw/notes"))).rows
    assert isinstance(rows, dict)
    assert {split: len(chosen) for split, chosen in rows.items()} == {"train": 9, "val": 3}
    assert sorted(np.concatenate([*rows.values()]).tolist()) == list(range(12))


def test_a_tokenizer_is_not_trained_on_rows_or_documents_that_changed(caches: Path) -> None:
    settings: dict[str, object] = {"kind": "sentencepiece", "corpus": "cache/split/text", "vocab_size": 300, "seed": 1}
    params = tiny_params({**SOURCES, "tokenizer": {**settings, "sample_bytes": 1000}})
    flip(Path("cache/split/text/notes/train.npy"), -8)
    with pytest.raises(ValueError, match=r"cache/split/text/notes/train\.npy \(changed\)"):
        run_in_process("tokenizer", tokenizer.main, params)
    flip(Path("cache/split/text/notes/train.npy"), -8)
    manifest = Path("cache/raw/notes/manifest.json")
    whole = manifest.read_bytes()
    for fault, said in (
        (
            lambda: flip(Path("cache/raw/notes/part-00000.parquet"), 60),
            r"part-00000\.parquet is not what its manifest says",
        ),
        (lambda: manifest.write_bytes(whole + b" "), r"cache/raw/notes is not what cache/split/text/notes was made of"),
    ):
        fault()
        with pytest.raises(ValueError, match=said):
            run_in_process("tokenizer", tokenizer.main, params)
        with pytest.raises(ValueError, match=said):
            run("tokenize notes")


def test_documents_to_memorize_are_read_from_unchanged_files(caches: Path) -> None:
    store, file = learned_by_heart(), Path("cache/tokens/text/notes/train/part-00000.bin")
    assert bytes(store.document(0)[:5].astype(np.uint8)) == b"note "
    assert store.lengths.sum() == len(np.fromfile(file, dtype="<u2"))
    flip(file, 6)
    with pytest.raises(ValueError, match=r"cache/tokens/text/notes/train/part-00000\.bin \(changed\)"):
        learned_by_heart()


def test_a_changed_token_file_or_chat_is_refused_before_a_token_is_read(caches: Path) -> None:
    def chats() -> object:
        return open_chats("cache/chat_mix.json", names=["own"], T=32, device="cpu")

    assert set(opened_mix().train) == {"notes"}
    chats()
    flip(Path("cache/tokens/text/notes/val/part-00000.bin"), 3)
    with pytest.raises(ValueError, match=r"part-00000\.bin \(changed\)"):
        opened_mix()
    flip(Path("cache/tokens/chat/own/train_idx.npy"), -8)
    with pytest.raises(ValueError, match=r"cache/tokens/chat/own/train_idx\.npy \(changed\)"):
        chats()


@pytest.mark.slow
def test_a_mix_with_a_changed_byte_opens_or_is_refused_with_a_clear_error(caches: Path) -> None:
    for path, names in (("cache/mix.json", None), ("cache/chat_mix.json", ["own"])):
        whole = Path(path).read_bytes()
        for place in range(0, len(whole), 5):
            flip(Path(path), place)
            with suppress(ValueError, FileNotFoundError):  # no other error may occur
                if names is None:
                    opened_mix(path)
                else:
                    open_chats(path, names=names, T=32, device="cpu")
            Path(path).write_bytes(whole)
    Path("cache/mix.json").write_text("{}")
    with pytest.raises(ValueError, match=r"cache/mix\.json is not what was written \('sources' is not in it\)"):
        opened_mix()
    Path("cache/mix.json").write_text('{"sources": ')
    with pytest.raises(ValueError, match=r"cache/mix\.json"):
        opened_mix()


def test_offsets_fit_their_tokens_or_are_refused(tmp_path: Path) -> None:
    tokens, idx = tmp_path / "tokens.bin", tmp_path / "idx.npy"
    write_token_file(tokens, idx, [np.arange(n) for n in (5, 4, 21, 1, 9)])
    starts, lengths = read_offsets(idx, tokens=40)
    assert (starts.tolist(), lengths.tolist()) == ([0, 5, 9, 30, 31], [5, 4, 21, 1, 9])
    for damaged in ([0, 9, 5], [0, 5, 5], [0, 40], [-1, 5], [1, 5], [], [0, 2**63 - 1], [0, -(2**63), 5]):
        np.save(idx, np.array(damaged, dtype=np.int64))
        with pytest.raises(ValueError, match=r"idx\.npy does not hold the ascending offsets of 40 tokens"):
            read_offsets(idx, tokens=40)
