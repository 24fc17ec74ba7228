"""Tests of the SFT loss mask: the assistant's tokens and the end of its turn are learned, and nothing else."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.cache.build_cache import build_sft_cache
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.cli.inspect import mark_chat
from tests.token_caches import ASST, CHATS, EOT, SYS, TOK, USR


def test_only_a_b_and_eot_of_the_assistant_are_supervised(tmp_path: Path) -> None:
    sequence = np.array([SYS, 1, EOT, USR, 2, 3, EOT, ASST, 65, 66, EOT], dtype="<u2")
    sequence.tofile(tmp_path / "t.bin")
    np.save(tmp_path / "i.npy", np.array([0], dtype=np.int64))
    dataset = SFTExampleDataset(tmp_path / "t.bin", tmp_path / "i.npy", T=16, device="cpu", eot_id=EOT, asst_id=ASST)
    x, y, masked = dataset.get_batch(B=1, generator=torch.Generator())
    assert x.shape == y.shape == masked.shape == (1, 16)
    assert masked[0, masked[0] != -100].tolist() == [65, 66, EOT]
    assert (masked[0] != -100).nonzero().flatten().tolist() == [7, 8, 9]
    assert y[0, 10:].tolist() == [EOT] * 6  # padding, which is not learned
    with pytest.raises(FileNotFoundError, match=r"meta\.json"):
        SFTExampleDataset(tmp_path / "t.bin", tmp_path / "i.npy", T=16, device="cpu", eot_id=EOT)


def slow_example(ids: list[int], T: int) -> tuple[list[int], list[int]]:
    """Return (sequence of T+1, its targets), packed and masked token by token as in the original code."""
    kept = ids[: T + 1]
    inside, targets = False, []
    for token in kept:
        targets.append(token if inside else -100)
        inside = token == ASST or (inside and token != EOT)
    padding = T + 1 - len(kept)
    return kept + [EOT] * padding, targets + [-100] * padding


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sft")


_IDS = st.lists(st.sampled_from([1, 2, SYS, USR, ASST, EOT]), min_size=1, max_size=20)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(_IDS, min_size=1, max_size=4), st.integers(1, 25))
def test_masks_padding_and_truncation_agree_with_a_slow_reference(folder: Path, rows: list[list[int]], T: int) -> None:
    np.array([token for ids in rows for token in ids], dtype="<u2").tofile(folder / "t.bin")
    np.save(folder / "i.npy", np.cumsum([0, *map(len, rows[:-1])], dtype=np.int64))
    dataset = SFTExampleDataset(folder / "t.bin", folder / "i.npy", T=T, device="cpu", eot_id=EOT, asst_id=ASST)
    assert len(dataset) == len(rows)
    x, y, masked = (tensor.tolist() for tensor in dataset.examples(np.arange(len(rows))))
    for row, ids in enumerate(rows):
        sequence, targets = slow_example(ids, T)
        assert (x[row], y[row], masked[row]) == (sequence[:-1], sequence[1:], targets[1:])


def test_a_batch_holds_whole_chats_of_the_cache(tmp_path: Path) -> None:
    build_sft_cache(CHATS, tmp_path / "s", tokenizer=TOK, val_frac=0.1, seed=1)
    paths = (tmp_path / "s/train_tokens.bin", tmp_path / "s/train_idx.npy")
    for T in (8, 20, 200):
        dataset = SFTExampleDataset(*paths, T=T, device="cpu", eot_id=EOT)  # the assistant's id is in meta.json
        every = {tuple(row) for row in torch.cat(dataset.examples(np.arange(len(dataset))), dim=1).tolist()}
        batch = dataset.get_batch(B=800, generator=torch.Generator().manual_seed(2))
        drawn = {tuple(row) for row in torch.cat(batch, dim=1).tolist()}
        assert drawn == every


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
