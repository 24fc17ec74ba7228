"""Token caches: equal input and seed give equal bytes; another seed or buffer changes tokens, not only meta.json."""

import itertools
import os
from pathlib import Path

import pytest

from niels_gpt.cache.build_cache import build_sft_cache
from tests.token_caches import CHATS, TEXTS, TOK, chats, documents, files, pretrain


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    assert files(pretrain(tmp_path / "a")) == files(pretrain(tmp_path / "b"))
    for name in ("d", "e"):
        build_sft_cache(iter(CHATS), tmp_path / name, tokenizer=TOK, val_frac=0.1, seed=1)
    assert files(tmp_path / "d") == files(tmp_path / "e")


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_bytes_do_not_depend_on_the_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    expected = files(pretrain(tmp_path / "a"))
    monkeypatch.setattr(os, "cpu_count", lambda: workers)
    assert files(pretrain(tmp_path / "b")) == expected


def test_the_seed_decides_the_order_of_texts_and_which_chats_are_held_out(tmp_path: Path) -> None:
    orders = [documents(pretrain(tmp_path / f"p{seed}", seed=seed) / "train") for seed in (1, 2, 3)]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    held_out = []
    for seed in range(8):
        build_sft_cache(CHATS, tmp_path / f"s{seed}", tokenizer=TOK, val_frac=0.1, seed=seed)
        held_out.append(chats(tmp_path / f"s{seed}", "val"))
    assert [len(chosen) for chosen in held_out] == [4] * 8
    assert len({str(chosen) for chosen in held_out}) > 4


def test_a_shuffle_buffer_mixes_texts_as_far_as_it_reaches_and_none_keeps_their_order(tmp_path: Path) -> None:
    everything = {"max_train_tokens": 10**6, "max_val_tokens": 0}
    assert documents(pretrain(tmp_path / "none", shuffle_buffer=None, **everything) / "train") == TEXTS
    moved = {}
    for buffer in (4, 64):
        order = documents(pretrain(tmp_path / str(buffer), shuffle_buffer=buffer, **everything) / "train")
        assert sorted(order) == sorted(TEXTS)
        rows = [TEXTS.index(text) for text in order]
        earlier = [row - place for place, row in enumerate(rows)]
        assert max(earlier) <= buffer  # a text cannot leave the buffer before it has entered it
        moved[buffer] = sum(map(abs, earlier)) / len(earlier)
    assert 1 < moved[4] < moved[64] / 4
    neighbours = sum(later == row + 1 for row, later in itertools.pairwise(rows))
    assert neighbours < len(rows) / 5  # by chance, about 1 in 64 still follows its predecessor
