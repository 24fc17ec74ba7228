"""The token cache of seed 004: its four acceptance tests, and what must not go wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.atomic import write_json
from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache, build_split_cache
from niels_gpt.cache.manifest import open_mix
from niels_gpt.cache.meta import list_files, read_meta, sha256_file
from niels_gpt.cache.pretrain_dataset import PretrainTokenStreamDataset
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.chat_inspection import mark_chat
from niels_gpt.chat_template import format_chat
from niels_gpt.sft_mask import supervised
from niels_gpt.split import split_groups
from niels_gpt.tokenizer import ByteTokenizer

TOK = ByteTokenizer()
SYS, USR, ASST, EOT = (TOK.special_token_ids()[name] for name in ("sys", "usr", "asst", "eot"))
TEXTS = [f"text number {i} " * (1 + i % 7) for i in range(200)]
EXCHANGES = [[{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"answer {i}"}] for i in range(40)]
CHATS = [exchange * (1 + i % 3) for i, exchange in enumerate(EXCHANGES)]


def pretrain(out: Path, **changes: object) -> Path:
    options = {
        "tokenizer": TOK,
        "max_train_tokens": 5000,
        "max_val_tokens": 500,
        "shard_bytes": 1000,
        "seed": 1,
        "shuffle_buffer": 16,
    }
    build_pretrain_cache(TEXTS, str(out), **{**options, **changes})  # type: ignore[arg-type]
    return out


def files(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): sha256_file(p) for p in sorted(folder.rglob("*")) if p.is_file()}


def tokens(folder: Path) -> np.ndarray:
    return np.concatenate([np.fromfile(p, "<u2") for p in sorted(folder.glob("shard_*.bin"))])


def documents(folder: Path) -> list[str]:
    ids, offsets = tokens(folder), np.load(folder / "offsets.npy")
    ends = np.append(offsets[1:], len(ids))
    assert all(ids[end - 1] == EOT for end in ends)
    return [TOK.decode(ids[a:b]) for a, b in zip(offsets, ends, strict=True)]


# The seed's acceptance tests


def test_only_a_b_and_eot_of_the_assistant_are_supervised(tmp_path: Path) -> None:
    sequence = np.array([SYS, 1, EOT, USR, 2, 3, EOT, ASST, 65, 66, EOT], dtype="<u2")
    sequence.tofile(tmp_path / "t.bin")
    np.save(tmp_path / "i.npy", np.array([0], dtype=np.int64))
    dataset = SFTExampleDataset(tmp_path / "t.bin", tmp_path / "i.npy", T=16, device="cpu", eot_id=EOT, asst_id=ASST)
    x, y, masked = dataset.get_batch(B=1, generator=torch.Generator())
    assert x.shape == y.shape == masked.shape == (1, 16)
    assert masked[0, masked[0] != -100].tolist() == [65, 66, EOT]
    assert (masked[0] != -100).nonzero().flatten().tolist() == [7, 8, 9]
    assert y[0, 10:].tolist() == [EOT] * 6  # padding, and none of it is learned


def test_windows_are_shifted_and_within_the_vocabulary(tmp_path: Path) -> None:
    dataset = PretrainTokenStreamDataset(str(pretrain(tmp_path / "c") / "train"), T=32, device="cpu")
    x, y = dataset.get_batch(B=64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(y[:, :-1], x[:, 1:])
    assert x.dtype == torch.int64
    assert 0 <= int(x.min()) <= int(x.max()) < TOK.vocab_size


def test_a_cache_gives_back_what_went_in(tmp_path: Path) -> None:
    out = pretrain(tmp_path / "c")
    train, val = documents(out / "train"), documents(out / "val")
    assert set(train) <= set(TEXTS)
    assert not set(train) & set(val)
    build_sft_cache(CHATS, tmp_path / "s", tokenizer=TOK, val_frac=0.1, seed=1)
    expected = sorted(format_chat(TOK, chat) for chat in CHATS)
    found = []
    for split in ("train", "val"):
        ids, offsets = np.fromfile(tmp_path / f"s/{split}_tokens.bin", "<u2"), np.load(tmp_path / f"s/{split}_idx.npy")
        assert offsets.dtype == np.int64
        found += [part.tolist() for part in np.split(ids, offsets[1:])]
    assert sorted(found) == expected
    meta = read_meta(tmp_path / "s/meta.json")
    assert (meta["train_examples"], meta["val_examples"]) == (36, 4)


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    assert files(pretrain(tmp_path / "a")) == files(pretrain(tmp_path / "b"))
    assert files(pretrain(tmp_path / "a")) != files(pretrain(tmp_path / "c", seed=2))
    for name in ("d", "e"):
        build_sft_cache(CHATS, tmp_path / name, tokenizer=TOK, val_frac=0.1, seed=1)
    assert files(tmp_path / "d") == files(tmp_path / "e")


# Budgets, shards, meta


def test_budgets_end_at_a_documents_end_and_fill_in_proportion(tmp_path: Path) -> None:
    out = pretrain(tmp_path / "c")
    meta = read_meta(out / "meta.json")
    assert 5000 - 110 <= meta["train_tokens"] <= 5000
    assert 500 - 110 <= meta["val_tokens"] <= 500
    assert len(tokens(out / "train")) == meta["train_tokens"]
    sizes = [p.stat().st_size for p in sorted((out / "train").glob("shard_*.bin"))]
    assert set(sizes[:-1]) == {1000}
    wanted = "dataset_name dataset_config split_rule seed token_dtype tokenizer_sha256 vocab_size special_token_ids"
    assert {*wanted.split(), "train_tokens", "val_tokens", "shard_bytes"} <= set(meta)
    assert meta["token_dtype"] == "uint16-le"
    assert str(tmp_path) not in json.dumps(meta)
    small = pretrain(tmp_path / "small", max_train_tokens=10**6, max_val_tokens=10**5)
    assert len(documents(small / "train")) + len(documents(small / "val")) == len(TEXTS)
    assert 0.05 < read_meta(small / "meta.json")["val_tokens"] / read_meta(small / "meta.json")["train_tokens"] < 0.2


def test_a_rebuild_leaves_no_stale_shard_and_a_failure_leaves_the_old_cache(tmp_path: Path) -> None:
    out = pretrain(tmp_path / "c")
    many = len(list((out / "train").glob("shard_*.bin")))
    pretrain(out, max_train_tokens=900)
    assert len(list((out / "train").glob("shard_*.bin"))) < many
    before = files(out)

    def broken():  # type: ignore[no-untyped-def]
        yield from TEXTS[:50]
        raise OSError("the line went dead")

    with pytest.raises(OSError, match="went dead"):
        build_pretrain_cache(
            broken(),
            out,
            tokenizer=TOK,
            max_train_tokens=9999,
            max_val_tokens=99,
            shard_bytes=1000,
            seed=1,
            shuffle_buffer=None,
        )
    assert files(out) == before
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_given_splits_are_kept_whole(tmp_path: Path) -> None:
    build_split_cache(
        {"train": TEXTS[:150], "val": TEXTS[150:]}, tmp_path / "c", tokenizer=TOK, shard_bytes=512, seed=None
    )
    assert documents(tmp_path / "c/train") == TEXTS[:150]
    assert documents(tmp_path / "c/val") == TEXTS[150:]


def test_every_window_is_equally_likely(tmp_path: Path) -> None:
    np.arange(0, 11, dtype="<u2").tofile(tmp_path / "shard_00000.bin")  # 8 windows of T=3
    np.arange(100, 105, dtype="<u2").tofile(tmp_path / "shard_00001.bin")  # 2
    np.arange(200, 202, dtype="<u2").tofile(tmp_path / "shard_00002.bin")  # none
    dataset = PretrainTokenStreamDataset(tmp_path, T=3, device="cpu")
    x, _ = dataset.get_batch(B=20_000, generator=torch.Generator().manual_seed(0))
    starts, counts = np.unique(x[:, 0].numpy(), return_counts=True)
    assert starts.tolist() == [*range(8), 100, 101]
    assert np.all(np.abs(counts - 2000) < 5 * (2000 * 0.9) ** 0.5)


# SFT


def slow_mask(ids: list[int], length: int) -> list[bool]:
    inside, out = False, []
    for place, token in enumerate(ids):
        out.append(inside and place < length)
        if token == ASST:
            inside = True
        elif token == EOT:
            inside = False
    return out


@settings(max_examples=200)
@given(st.lists(st.sampled_from([1, 2, SYS, USR, ASST, EOT]), min_size=1, max_size=40), st.integers(1, 50))
def test_masks_agree_with_a_slow_reference(ids: list[int], T: int) -> None:
    inside = supervised(np.array([ids]), asst_id=ASST, eot_id=EOT)[0].tolist()
    assert inside == slow_mask(ids, len(ids))


def test_multi_turn_padding_and_truncation(tmp_path: Path) -> None:
    build_sft_cache(CHATS, tmp_path / "s", tokenizer=TOK, val_frac=0.1, seed=1)
    for T in (8, 20, 200):
        dataset = SFTExampleDataset(
            tmp_path / "s/train_tokens.bin", tmp_path / "s/train_idx.npy", T=T, device="cpu", eot_id=EOT
        )
        x, y, masked = dataset.get_batch(B=50, generator=torch.Generator().manual_seed(2))
        assert torch.equal(y[:, :-1], x[:, 1:])
        for row_x, row_y, row_masked in zip(x.tolist(), y.tolist(), masked.tolist(), strict=True):
            ids = [row_x[0], *row_y]
            length = max(i for i, t in enumerate(ids) if t != EOT) + 2  # the last turn's own EOT belongs to it
            expected = [t if m else -100 for t, m in zip(ids, slow_mask(ids, length), strict=True)][1:]
            assert row_masked == expected


def test_examples_with_nothing_to_learn_are_dropped_and_counted(tmp_path: Path) -> None:
    long = [{"role": "user", "content": "x" * 100}, {"role": "assistant", "content": "y"}]
    silent = [{"role": "user", "content": "anybody there?"}]
    build_sft_cache([*CHATS, long, silent], tmp_path / "s", tokenizer=TOK, val_frac=0.1, seed=1, T=64)
    meta = read_meta(tmp_path / "s/meta.json")
    assert meta["train_dropped"] + meta["val_dropped"] == 2
    assert meta["train_examples"] + meta["val_examples"] == 40


def test_a_group_is_never_torn_apart(tmp_path: Path) -> None:
    groups = [f"tree{i // 4}" for i in range(40)]
    train, val = split_groups(groups, val_frac=0.2, seed=3)
    assert sorted(train + val) == list(range(40))
    assert len(val) == 8
    assert not {groups[i] for i in train} & {groups[i] for i in val}


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("t.bin", b"", "no token file"),
        ("t.bin", b"abc", "no token file"),
        ("i.npy", b"junk", "no file of offsets"),
        ("i.npy", None, "does not hold the ascending offsets"),
    ],
)
def test_damaged_files_are_refused_by_name(tmp_path: Path, name: str, data: bytes | None, sentence: str) -> None:
    np.array([ASST, 1, EOT], dtype="<u2").tofile(tmp_path / "t.bin")
    np.save(tmp_path / "i.npy", np.array([0], dtype=np.int64))
    if data is None:
        np.save(tmp_path / "i.npy", np.array([0, 9], dtype=np.int64))
    else:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=sentence) as error:
        SFTExampleDataset(tmp_path / "t.bin", tmp_path / "i.npy", T=4, device="cpu", eot_id=EOT, asst_id=ASST)
    assert name in str(error.value)


def test_a_folder_without_shards_or_too_short_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no shard_\*\.bin"):
        PretrainTokenStreamDataset(tmp_path, T=4, device="cpu")
    np.arange(4, dtype="<u2").tofile(tmp_path / "shard_00000.bin")
    with pytest.raises(ValueError, match="too short"):
        PretrainTokenStreamDataset(tmp_path, T=4, device="cpu")


def test_a_marked_chat_shows_exactly_what_is_learned(tmp_path: Path) -> None:
    chat = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yo"},
        {"role": "user", "content": "more"},
        {"role": "assistant", "content": "no"},
    ]
    build_sft_cache([chat, *CHATS[:5]], tmp_path / "s", tokenizer=TOK, val_frac=0.1, seed=3)
    paths = (tmp_path / "s/train_tokens.bin", tmp_path / "s/train_idx.npy")
    whole = "<sys>be brief<eot><usr>hi<eot><asst>«yo<eot>»<usr>more<eot><asst>«no<eot>»"
    for T, expected in ((64, whole), (20, "<sys>be brief<eot><usr>hi<eot><asst>«yo<eot>»<usr>mo")):
        dataset = SFTExampleDataset(*paths, T=T, device="cpu", eot_id=EOT)
        shown = []
        for row in range(len(dataset)):
            x, y, masked = (tensor[0].tolist() for tensor in dataset.examples(np.array([row])))
            ids, learned = [x[0], *y], [False, *(target != -100 for target in masked)]
            shown.append(mark_chat(TOK, ids, learned, color=False))
        assert expected in shown
    assert "\033[1;32m" in mark_chat(TOK, ids, learned, color=True)


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_bytes_do_not_depend_on_the_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    expected = files(pretrain(tmp_path / "a"))
    monkeypatch.setattr(os, "cpu_count", lambda: workers)
    assert files(pretrain(tmp_path / "b")) == expected


def test_every_bad_file_of_a_mix_is_listed_at_once(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    for name, ids in (("good", [1, 2, 3]), ("high", [1, 300]), ("cut", [1, 2, 3]), ("gone", [5])):
        np.array(ids, dtype="<u2").tofile(tmp_path / f"c/shard_{name}.bin")
    shards = list_files(tmp_path / "c", "shard_*.bin", published="c")
    (tmp_path / "c/shard_gone.bin").unlink()
    (tmp_path / "c/shard_cut.bin").write_bytes(b"\1")
    source = {"val_name": "v", "train": {"shards": shards}, "val": {"shards": []}}
    write_json(tmp_path / "mix.json", {"vocab_size": 260, "sources": {"x": source}})
    with pytest.raises(ValueError, match="tokens differ from the mix") as error:
        open_mix(tmp_path / "mix.json", root=tmp_path)
    for part in ("shard_high.bin (ids at or above V=260)", "shard_cut.bin (changed)", "shard_gone.bin (missing)"):
        assert part in str(error.value)
    assert "shard_good" not in str(error.value)
    (tmp_path / "mix.json").write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        open_mix(tmp_path / "mix.json", root=tmp_path)
