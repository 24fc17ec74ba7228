from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from niels_gpt.config import ModelConfig
from niels_gpt.eval import evaluate, score_stream
from niels_gpt.model.gpt import GPT
from niels_gpt.tokenizer import ByteTokenizer
from niels_gpt.train import loss_fn
from niels_gpt.windows import TokenStream

CFG = ModelConfig(V=260, T=16, C=16, L=1, H=2, d_ff=32, dropout=0.5)


def test_loss_ignores_what_is_not_supervised_and_refuses_nothing() -> None:
    logits, y = torch.randn(2, 3, 5), torch.tensor([[1, -100, 2], [-100, -100, 4]])
    kept = y != -100
    torch.testing.assert_close(loss_fn(logits, y), F.cross_entropy(logits[kept], y[kept]))
    with pytest.raises(ValueError, match="no supervised target"):
        loss_fn(logits, torch.full((2, 3), -100))


def test_evaluate_is_deterministic_and_leaves_the_mode_alone() -> None:
    model = GPT(CFG).train()
    streams = {"val_a": b"hello there " * 20, "val_b": b"0123456789" * 20}
    results = [
        evaluate(model, streams, eval_steps=3, B=4, T=16, device="cpu", generator=torch.Generator().manual_seed(1))
        for _ in range(2)
    ]
    assert results[0] == results[1]
    assert set(results[0]) == set(streams)
    assert model.training


class Uniform(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*x.shape, 260)


def test_a_uniform_model_scores_log2_v_bits_a_byte() -> None:
    stream = TokenStream([np.frombuffer(b"abcdefgh" * 40, np.uint8).astype("<u2")])
    score = score_stream(Uniform(), stream, token_bytes=ByteTokenizer().token_bytes(), T=16, B=3, device="cpu")
    assert score.nats == pytest.approx(math.log(260))
    assert score.bits_per_byte == pytest.approx(math.log2(260))
    assert score.tokens == (320 - 1) // 16 * 16


def test_every_target_is_scored_once_across_arrays() -> None:
    seen: list[int] = []

    class Recorder(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.extend(x.flatten().tolist())
            return torch.zeros(*x.shape, 260)

    arrays = [np.arange(0, 33, dtype="<u2"), np.arange(100, 150, dtype="<u2")]
    score = score_stream(Recorder(), TokenStream(arrays), token_bytes=np.ones(260, np.int64), T=16, B=2, device="cpu")
    assert sorted(seen) == [*range(32), *range(100, 148)]
    assert score.tokens == 80


def test_an_end_of_text_counts_in_nats_but_has_no_bytes() -> None:
    ids = np.array([97, 98, 259, 97, 98, 259, 97, 98, 259], dtype="<u2")
    score = score_stream(
        Uniform(), TokenStream([ids]), token_bytes=ByteTokenizer().token_bytes(), T=8, B=1, device="cpu"
    )
    assert score.tokens == 8
    assert score.bits_per_byte == pytest.approx(math.log2(260))


def test_a_cap_scores_fewer_windows_spread_over_the_stream() -> None:
    stream = TokenStream([np.arange(0, 161, dtype="<u2")])
    score = score_stream(Uniform(), stream, token_bytes=np.ones(260, np.int64), T=16, B=4, device="cpu", max_tokens=64)
    assert score.tokens == 64
    with pytest.raises(ValueError, match="too short"):
        score_stream(Uniform(), stream, token_bytes=np.ones(260, np.int64), T=200, B=4, device="cpu")
