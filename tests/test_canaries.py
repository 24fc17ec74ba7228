"""Tests of canaries: unguessable sentences, planted among unchanged documents, and how much of them models memorize."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_gpt.cache.formats import TOKEN_DTYPE
from niels_gpt.cache.token_parts import encode_documents
from niels_gpt.config import ModelConfig
from niels_gpt.leak.measure import (
    COPIES,
    REFERENCES,
    Canary,
    exposure_stats,
    make_canaries,
    measure_exposure,
    plant,
    planted_texts,
)
from niels_gpt.leak.page import canary_rows, canary_sentence
from niels_gpt.leak.passages import DocumentList
from niels_gpt.model.gpt import GPT
from niels_gpt.tokenizer.tokenizers import ByteTokenizer

TOKENIZER = ByteTokenizer()
TINY = ModelConfig(V=TOKENIZER.vocab_size, T=48, C=64, L=2, H=2, d_ff=256, dropout=0.0)


class Trained(DocumentList):
    trained_tokens = 9


def test_canaries_differ_follow_the_seed_and_are_planted_once_four_and_sixteen_times() -> None:
    made = make_canaries(300, seed=1)
    assert made == make_canaries(300, seed=1)
    assert len({canary.beginning for canary in made}) == 300
    assert not {canary.beginning for canary in made} & {canary.beginning for canary in make_canaries(300, seed=2)}
    assert [canary.copies for canary in made[:5]] == [1, 4, 16, 1, 4]
    assert planted_texts(made[:2]) == [made[0].sentence, *[made[1].sentence] * 4]
    assert make_canaries(0, seed=1) == []
    assert made[0].sentence == "The code word of tigaro is pizozo."  # the same on every machine and in every release


def test_documents_stay_whole_and_in_order_among_planted_ones(tmp_path: Path) -> None:
    documents: Any = Trained([[1, 2, 3], [4, 5], [6, 7, 8, 9], [10, 11]])  # training samples none of the last
    planted = [np.array([100 + i, 200], dtype=np.int64) for i in range(30)]
    stream = plant(documents, planted, folder=tmp_path, seed=3, apart=True, dtype=TOKEN_DTYPE)
    ids = stream.arrays[0][0 : len(stream)]
    kept = [int(token) for token in ids if token < 100]
    assert kept == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert sorted(int(token) for token in ids if 100 <= token < 200) == list(range(100, 130))
    assert stream.documents is not None
    starts = np.load(stream.documents[0]).tolist()
    assert len(starts) == 33
    assert [ids[start] for start in starts if ids[start] < 100] == [1, 4, 6]  # no document is split
    firsts = [int(ids[start]) for start in starts]
    assert 1 < firsts.index(4) - firsts.index(1) < 30  # some are planted between documents
    assert plant(documents, planted, folder=tmp_path, seed=3, apart=False, dtype=TOKEN_DTYPE).documents is None


def learned(texts: list[str], *, steps: int) -> GPT:
    torch.manual_seed(0)
    model = GPT(TINY)
    rows = [torch.from_numpy(ids.astype(np.int64)) for ids in encode_documents(TOKENIZER, texts)]
    eot = TOKENIZER.special_token_ids()["eot"]
    x = torch.stack([torch.cat((torch.tensor([eot]), row)) for row in rows])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@pytest.mark.slow
def test_exposure_is_high_for_what_was_learned_and_chance_for_what_was_not() -> None:
    canaries = make_canaries(9, seed=1)
    others = make_canaries(60, seed=2)
    model = learned([canary.sentence for canary in canaries], steps=240)
    bits, extracted = measure_exposure(model, TOKENIZER, [*canaries, *others], seed=1, B=512)
    n = len(canaries)
    assert (bits[:n] == np.log2(REFERENCES + 1)).all()
    assert extracted[:n].sum() > 5
    assert 0.7 < bits[n:].mean() < 2.5  # 1.44 bits are expected by chance
    assert not extracted[n:].any()


@pytest.mark.slow
def test_a_model_that_gives_all_sentences_one_probability_has_no_exposure() -> None:
    model = GPT(TINY)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    canary = Canary("The code word of bababa is", " bebebe.", 4)
    bits, extracted = measure_exposure(model, TOKENIZER, [canary], seed=1, B=512)
    assert (bits.tolist(), extracted.tolist()) == ([0.0], [False])


def test_a_short_context_is_given_what_fits_of_the_beginning() -> None:
    model = GPT(ModelConfig(V=TOKENIZER.vocab_size, T=12, C=16, L=1, H=2, d_ff=32, dropout=0.0))
    bits, _ = measure_exposure(model, TOKENIZER, make_canaries(2, seed=1), seed=1, B=512)
    assert len(bits) == 2


def test_exposure_is_reported_by_number_of_copies() -> None:
    canaries = [Canary("", "", copies) for copies in (1, 1, 16)]
    by_copies = exposure_stats(canaries, np.array([1.0, 3.0, 12.0]), np.array([False, False, True]))
    stats = {"source": "roam", "references": 4095, "by_copies": by_copies}
    assert stats["by_copies"] == {
        "1": {"sentences": 2, "mean_bits": 2.0, "most_bits": 3.0, "extracted": 0},
        "16": {"sentences": 1, "mean_bits": 12.0, "most_bits": 12.0, "extracted": 1},
    }
    assert [tuple(row) for row in canary_rows(stats)] == [
        ("1", "2", "2.0", "3.0", "0"),
        ("16", "1", "12.0", "12.0", "1"),
    ]
    assert canary_rows(None) == []
    assert canary_sentence(stats) == (
        "canaries in roam: exposure 2.0 bits at 1 copy (0 of 2 extracted), 12.0 bits at 16 copies "
        "(1 of 1 extracted) (chance 1.4, maximum 12)"
    )
    assert COPIES == (1, 4, 16)
