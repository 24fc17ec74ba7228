"""Tests of the SFT cache: it preserves chats, reads them once without holding them, and splits by example or group."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from niels_gpt.cache.build_cache import build_sft_cache
from niels_gpt.cache.meta import read_meta
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.chat_template import format_chat
from niels_gpt.data.corpus.split import split_groups, split_rows
from tests.token_caches import ASST, CHATS, EOT, EXCHANGES, TEXTS, TOK, chats, documents, files, pretrain

SILENT = [{"role": "user", "content": "anybody there?"}]


def test_a_cache_gives_back_what_went_in(tmp_path: Path) -> None:
    out = pretrain(tmp_path / "c")
    train, val = documents(out / "train"), documents(out / "val")
    assert set(train) <= set(TEXTS)
    assert not set(train) & set(val)
    build_sft_cache(CHATS, tmp_path / "s", tokenizer=TOK, val_frac=0.1, seed=1)
    assert sorted(files(tmp_path / "s")) == sorted(
        ["meta.json", *(f"{s}_{f}" for s in ("train", "val") for f in ("idx.npy", "tokens.bin"))]
    )
    for split, rows in zip(("train", "val"), split_rows(len(CHATS), val_frac=0.1, seed=1), strict=True):
        assert chats(tmp_path / "s", split) == [format_chat(TOK, CHATS[i]) for i in rows]
    meta = read_meta(tmp_path / "s/meta.json")
    assert (meta["train_examples"], meta["val_examples"]) == (36, 4)
    wanted = "dataset_name dataset_config split_rule seed token_dtype tokenizer_sha256 vocab_size special_token_ids"
    assert set(wanted.split()) <= set(meta)


def test_chats_are_read_once_and_none_is_held(tmp_path: Path) -> None:
    count, characters = 200, 20_000

    def stream() -> Iterator[list[dict[str, str]]]:
        for i in range(count):
            question = {"role": "user", "content": f"{i}" * (characters // len(str(i)))}
            yield [question, {"role": "assistant", "content": "yes"}]

    small = stream()
    build_sft_cache([next(small), next(small)], tmp_path / "warm", tokenizer=TOK, val_frac=0.1, seed=1)
    tracemalloc.start()
    try:
        build_sft_cache(stream(), tmp_path / "s", tokenizer=TOK, val_frac=0.1, seed=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    written = sum(path.stat().st_size for path in (tmp_path / "s").glob("*_tokens.bin"))
    assert written > count * characters
    assert peak < written / 4


def test_examples_with_nothing_to_learn_are_dropped_and_counted(tmp_path: Path) -> None:
    long = [{"role": "user", "content": "x" * 100}, {"role": "assistant", "content": "y"}]
    build_sft_cache([*CHATS, long, SILENT], tmp_path / "s", tokenizer=TOK, val_frac=0.1, seed=1, T=64)
    meta = read_meta(tmp_path / "s/meta.json")
    assert meta["train_dropped"] + meta["val_dropped"] == 2
    assert meta["train_examples"] + meta["val_examples"] == 40


def test_a_group_is_never_torn_apart(tmp_path: Path) -> None:
    groups = [f"tree{i // 4}" for i in range(40)]
    train, val = split_groups(groups, val_frac=0.2, seed=3)
    assert sorted(train + val) == list(range(40))
    assert len(val) == 8
    assert not {groups[i] for i in train} & {groups[i] for i in val}
    build_sft_cache(EXCHANGES, tmp_path / "s", tokenizer=TOK, val_frac=0.2, seed=3, groups=iter(groups))
    assert chats(tmp_path / "s", "val") == [format_chat(TOK, EXCHANGES[i]) for i in val]
    with pytest.raises(ValueError, match="shorter"):
        build_sft_cache(EXCHANGES, tmp_path / "t", tokenizer=TOK, val_frac=0.2, seed=3, groups=groups[:-1])


@pytest.mark.parametrize(
    ("examples", "sentence"),
    [
        ([], "mine has no chats"),
        ([CHATS[0]], "mine has no chat with an answer to learn for its val split"),
        ([SILENT] * 5, "mine has no chat with an answer to learn for its train split"),
    ],
)
def test_a_cache_that_would_be_empty_is_refused(
    tmp_path: Path, examples: list[list[dict[str, str]]], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        build_sft_cache(examples, tmp_path / "s", tokenizer=TOK, val_frac=0.1, seed=1, source_name="mine")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("t.bin", b"", "no token file .*: build it again"),
        ("t.bin", b"abc", "no token file .*: build it again"),
        ("i.npy", None, "does not hold the ascending offsets"),
        ("meta.json", b'{"special_token_ids": {"as', "not valid JSON .*: build it again"),
        ("meta.json", b"[" * 100_000, "not valid JSON .*: build it again"),
        ("meta.json", b"\xff\xfe", "not valid JSON .*: build it again"),
        ("meta.json", b"[]", "no JSON object: build it again"),
        ("meta.json", b'{"special_token_ids": {}}', "lacks vocab_size: build it again"),
    ],
)
def test_damaged_files_are_refused_by_name(tmp_path: Path, name: str, data: bytes | None, sentence: str) -> None:
    np.array([ASST, 1, EOT], dtype="<u2").tofile(tmp_path / "t.bin")
    np.save(tmp_path / "i.npy", np.array([0], dtype=np.int64))
    if data is None:
        np.save(tmp_path / "i.npy", np.array([0, 9], dtype=np.int64))
    else:
        (tmp_path / name).write_bytes(data)
    asst_id = None if name == "meta.json" else ASST
    with pytest.raises(ValueError, match=sentence) as error:
        SFTExampleDataset(tmp_path / "t.bin", tmp_path / "i.npy", T=4, device="cpu", eot_id=EOT, asst_id=asst_id)
    assert name in str(error.value)
