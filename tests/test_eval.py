"""Tests of validation: losses, bits per byte, and the scorer of held-out text."""

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from niels_gpt.batching import get_batch
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.cache.windows import TokenStream
from niels_gpt.config import ModelConfig
from niels_gpt.eval.chats import mean_chat_loss, score_chats
from niels_gpt.eval.held_out import evaluate, inference, score_stream, yardstick_bits
from niels_gpt.model.gpt import GPT
from niels_gpt.pipeline import layout
from niels_gpt.tokenizer.tokenizers import ByteTokenizer
from niels_gpt.train import loss_fn
from tests.tiny_training import ANSWERS, chats

CFG = ModelConfig(V=260, T=16, C=16, L=1, H=2, d_ff=32, dropout=0.5)


def test_loss_ignores_unsupervised_targets_and_refuses_a_batch_of_only_these() -> None:
    logits, y = torch.randn(2, 3, 5), torch.tensor([[1, -100, 2], [-100, -100, 4]])
    kept = y != -100
    torch.testing.assert_close(loss_fn(logits, y), F.cross_entropy(logits[kept], y[kept]))
    with pytest.raises(ValueError, match="no supervised target"):
        loss_fn(logits, torch.full((2, 3), -100))


@pytest.mark.parametrize("training", [True, False])
def test_evaluate_is_the_mean_loss_without_dropout_and_leaves_the_mode_alone(training: bool) -> None:
    model = GPT(CFG).train(training)
    streams = {"val_a": b"hello there " * 20, "val_b": b"0123456789" * 20}
    results = [
        evaluate(model, streams, eval_steps=3, B=4, T=16, device="cpu", generator=torch.Generator().manual_seed(1))
        for _ in range(2)
    ]
    assert results[0] == results[1]
    assert model.training == training
    model.eval()
    generator, expected = torch.Generator().manual_seed(1), {}
    for name, stream in streams.items():
        drawn = [get_batch({name: stream}, p={name: 1.0}, B=4, T=16, device="cpu", generator=generator) for _ in "123"]
        x, y = (torch.cat(part) for part in zip(*drawn, strict=True))
        expected[name] = float(F.cross_entropy(model(x).flatten(0, 1), y.flatten()).detach())
    assert results[0] == pytest.approx(expected, rel=1e-5)
    assert min(expected.values()) > 1
    with pytest.raises(ValueError, match="eval_steps must be at least 1"):
        evaluate(model, streams, eval_steps=0, B=4, T=16, device="cpu", generator=generator)


def test_inference_restores_mode_and_gradients_after_an_error() -> None:
    model = GPT(CFG).train()

    def fail() -> None:
        with inference(model):
            assert not model.training
            assert not torch.is_grad_enabled()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert model.training
    assert torch.is_grad_enabled()


class Uniform(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*x.shape, 260)


def test_a_uniform_model_scores_log2_v_bits_per_byte() -> None:
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
    seen: list[int] = []

    class Recorder(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.extend(x[:, 0].tolist())
            return torch.zeros(*x.shape, 260)

    stream = TokenStream([np.arange(0, 161, dtype="<u2")])
    score = score_stream(Recorder(), stream, token_bytes=np.ones(260, np.int64), T=16, B=4, device="cpu", max_tokens=64)
    assert score.tokens == 64
    assert seen == [0, 48, 96, 144]


def test_a_score_without_quotes_is_the_mean_over_the_other_tokens() -> None:
    """The stream has two arrays, and batches without a quote; the ends of documents count only in nats."""
    dice, token_bytes = np.random.default_rng(0), np.where(np.arange(260) < 256, 3, 0)
    arrays = [dice.integers(250, 260, size).astype("<u2") for size in (70, 95)]
    marks = [(dice.random(len(ids)) < 0.3) & (ids < 256) for ids in arrays]
    marks[0][:40] = False
    how: dict[str, Any] = {"token_bytes": token_bytes, "T": 16, "B": 2, "device": "cpu"}
    plain = score_stream(Bigrams(), TokenStream(arrays), **how)
    score = score_stream(Bigrams(), TokenStream(arrays), quoted=TokenStream(marks), **how)
    assert (score.nats, score.bits_per_byte, score.tokens) == (plain.nats, plain.bits_per_byte, plain.tokens)
    assert (plain.nats_without_quotes, plain.bits_per_byte_without_quotes) == (plain.nats, plain.bits_per_byte)
    assert plain.quoted_tokens == 0
    nats, text, quoted = [], [], 0
    for ids, mark in zip(arrays, marks, strict=True):
        scored = (len(ids) - 1) // 16 * 16
        x, y = (torch.from_numpy(part.astype(np.int64)) for part in (ids[:scored], ids[1 : scored + 1]))
        losses = F.cross_entropy(Bigrams()(x[None])[0], y, reduction="none").tolist()
        for loss, token, left_out in zip(losses, y.tolist(), mark[1 : scored + 1].tolist(), strict=True):
            quoted += left_out
            nats += [] if left_out else [loss]
            text += [] if left_out or token >= 256 else [loss]
    assert score.quoted_tokens == quoted > 10
    assert score.nats_without_quotes == pytest.approx(sum(nats) / len(nats), rel=1e-5)
    assert score.bits_per_byte_without_quotes == pytest.approx(sum(text) / math.log(2) / (3 * len(text)), rel=1e-5)
    every = [np.ones(len(ids), dtype=bool) for ids in arrays]
    none_left = score_stream(Bigrams(), TokenStream(arrays), quoted=TokenStream(every), **how)
    assert (none_left.nats, none_left.nats_without_quotes) == (plain.nats, None)


class Bigrams(nn.Module):
    """Model whose prediction depends only on the current token."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = torch.randn(260, 260, generator=torch.Generator().manual_seed(0))
        return table[x]


def answer_losses(model: nn.Module, data: SFTExampleDataset) -> list[torch.Tensor]:
    """Return for each chat the losses of the answer's tokens and of the end of its turn."""
    x, _, y = data.examples(np.arange(len(data)))
    losses = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none")
    return [row[targets != -100] for row, targets in zip(losses, y, strict=True)]


def test_chats_are_scored_by_what_the_assistant_says(tmp_path: Path) -> None:
    data, model = chats(tmp_path), Bigrams()
    losses = answer_losses(model, data)
    assert [len(row) for row in losses] == [len(answer) + 1 for answer in ANSWERS]
    token_bytes = np.where(np.arange(260) < 256, 3, 0)  # as if each byte were three bytes of text; eot has none
    score = score_chats(model, data, token_bytes=token_bytes, B=2, max_tokens=None)
    flat, text = torch.cat(losses), torch.cat([row[:-1] for row in losses])
    assert score.tokens == len(flat)
    assert score.nats == pytest.approx(float(flat.mean()), rel=1e-5)
    assert score.bits_per_byte == pytest.approx(float(text.sum()) / math.log(2) / (3 * len(text)), rel=1e-5)


def test_quoted_tokens_of_chats_are_left_out_of_a_second_mean(tmp_path: Path) -> None:
    """Every token has a mark: role id, question, end of turn, role id, answer, end of turn."""
    data, model = chats(tmp_path), Bigrams()
    question, answer = 4 + 3, len(ANSWERS[3])
    marks = {3: np.array([False] * question + [True] * (answer - 1) + [False] * 2)}
    how: dict[str, Any] = {"token_bytes": np.ones(260, np.int64), "B": 2, "max_tokens": None}
    score = score_chats(model, data, quoted=marks, **how)
    losses = answer_losses(model, data)
    losses[3] = losses[3][answer - 1 :]
    assert score.quoted_tokens == answer - 1
    assert score.nats_without_quotes == pytest.approx(float(torch.cat(losses).mean()), rel=1e-5)
    plain = score_chats(model, data, **how)
    assert plain.nats == plain.nats_without_quotes == score.nats


def test_a_cap_on_chats_ends_after_the_batch_that_reaches_it(tmp_path: Path) -> None:
    data = chats(tmp_path)
    lengths = [len(answer) + 1 for answer in ANSWERS]
    for cap, expected in ((1, 2), (sum(lengths[:2]), 2), (sum(lengths[:2]) + 1, 4), (10**6, 5)):
        score = score_chats(Bigrams(), data, token_bytes=np.ones(260, np.int64), B=2, max_tokens=cap)
        assert score.tokens == sum(lengths[:expected])


def test_the_mean_of_chats_is_over_their_tokens_and_over_the_rows_that_were_asked_for(tmp_path: Path) -> None:
    data, model = chats(tmp_path), Bigrams()
    losses = answer_losses(model, data)
    expected = float(torch.cat([losses[i] for i in (0, 1, 4)]).mean())
    assert mean_chat_loss(model, data, np.array([0, 1, 4]), B=2) == pytest.approx(expected, rel=1e-5)


def test_compressors_are_measured_on_the_text_that_is_scored() -> None:
    """With bytes as tokens, a text of one letter costs nearly nothing, and noise more than its 8 bits per byte."""
    noise = np.frombuffer(b"".join(hashlib.sha256(bytes([i])).digest() for i in range(126)), np.uint8)
    for ids, low, high in ((np.zeros(4001, np.uint8), 0.0, 0.3), (noise, 8.0, 9.0)):
        bits = yardstick_bits(TokenStream([ids]), piece=lambda i: bytes([i]), T=100)
        assert list(bits) == list(layout.YARDSTICKS)
        assert all(low < value < high for value in bits.values())
