"""Tests of train.document_mask: documents in one window do not see each other; offsets say where each begins."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from niels_gpt.batching import draw_rows, gather_rows
from niels_gpt.cache.formats import write_token_file
from niels_gpt.cache.meta import sha256_file
from niels_gpt.cache.windows import Places, TokenStream, open_mix
from niels_gpt.config import ModelConfig, TrainConfig
from niels_gpt.eval.held_out import evaluate, score_stream
from niels_gpt.files.atomic import write_json
from niels_gpt.model.gpt import GPT
from niels_gpt.rng import derive_seed, make_generator, set_seed
from niels_gpt.train.loop import train
from niels_gpt.train.pretraining import PretrainTask

EOT = 19
A_FILE = 20  # documents per token file
CFG = ModelConfig(V=20, T=16, C=16, L=2, H=2, d_ff=32, dropout=0.0)
PORTABLE = replace(CFG, norm="rms", bias=False, activation="swiglu", kv_heads=1, qk_norm=True, qk_gain=True)


def corpus(seed: int = 0, documents: int = 90) -> tuple[np.ndarray, np.ndarray]:
    """Return (tokens, document starts). The end-of-text id also occurs inside documents, which is allowed."""
    dice = np.random.default_rng(seed)
    lengths = dice.integers(1, 25, documents)
    return dice.integers(0, EOT + 1, lengths.sum()).astype("<u2"), np.concatenate(([0], lengths.cumsum()[:-1]))


def by_array(starts: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Convert offsets in the whole corpus to offsets in each of its arrays."""
    ends = lengths.cumsum()
    firsts = ends - lengths
    return [starts[(starts >= a) & (starts < b)] - a for a, b in zip(firsts, ends, strict=True)]


TOKENS, STARTS = corpus()
PLAIN = TokenStream(np.split(TOKENS, (300, 317, 700)))  # one is too short for a window of T = 40
MASKED = TokenStream(PLAIN.arrays, documents=by_array(STARTS, PLAIN.lengths))


def expected_segments(place: int, T: int) -> list[int]:
    number = [int(np.searchsorted(STARTS, i, side="right")) for i in range(place, place + T)]
    return [n - number[0] for n in number]


def places(stream: TokenStream, T: int) -> list[int]:
    """Return the position in the whole stream of each window's first token."""
    ends = np.cumsum([len(array) for array in stream.arrays]).tolist()
    return [
        place
        for start, end in zip([0, *ends], ends, strict=False)
        for place in range(start, end - T)
    ]  # fmt: skip


@pytest.mark.parametrize("T", [1, 16, 40])
def test_a_document_begins_where_its_offset_says_and_nowhere_else(T: int) -> None:
    for stream in (MASKED, TokenStream([TOKENS], documents=[STARTS])):
        segments = stream.segments(np.arange(stream.windows(T)), T)
        assert segments is not None
        assert segments.tolist() == [expected_segments(place, T) for place in places(stream, T)]
    assert PLAIN.segments(np.arange(3), T) is None


def test_rows_of_several_sources_keep_their_own_documents() -> None:
    sources, p = {"a": MASKED, "b": TokenStream([TOKENS[::-1]]), "c": MASKED}, {"a": 0.4, "b": 0.3, "c": 0.3}
    draw = draw_rows(sources, p=p, B=30, T=16, generator=torch.Generator().manual_seed(0))
    _, segments = gather_rows(sources, draw, T=16)
    assert segments is not None
    before = places(MASKED, 16)
    for row, choice, window in zip(segments.tolist(), draw.choices, draw.windows, strict=True):
        assert row == ([0] * 16 if choice == 1 else expected_segments(before[window], 16))
    plain = dict.fromkeys(p, PLAIN)
    assert gather_rows(plain, draw_rows(plain, p=p, B=30, T=16), T=16)[1] is None


def losses_one_by_one(model: GPT, stream: TokenStream, numbers: np.ndarray, T: int) -> torch.Tensor:
    """Return the losses (n, T) of windows, with each document in a window predicted by itself."""
    before, rows = places(stream, T), []
    for number, window in zip(numbers.tolist(), torch.from_numpy(stream.gather(numbers, T)), strict=True):
        segments = torch.tensor(expected_segments(before[number], T))
        parts = [model(window[:-1][segments == k][None])[0] for k in range(int(segments[-1]) + 1)]
        rows.append(F.cross_entropy(torch.cat(parts), window[1:], reduction="none"))
    return torch.stack(rows).detach()


@pytest.fixture(params=[CFG, PORTABLE], ids=["default block", "portable block"])
def model(request: pytest.FixtureRequest) -> GPT:
    set_seed(0)
    model = GPT(request.param).eval()
    with torch.no_grad():  # larger weights, as after training: a new model hardly uses its context
        for parameter in model.parameters():
            parameter.mul_(5)
    return model


def task(stream: TokenStream) -> PretrainTask:
    cfg = TrainConfig(total_steps=1, warmup_steps=1, B=4, p_train={"wiki": 1.0}, p_val={"wiki": 1.0}, eval_steps=2)
    return PretrainTask(train={"wiki": stream}, val={"wiki": stream}, cfg=cfg, T=CFG.T, device="cpu")


@pytest.mark.slow
def test_training_and_validation_see_one_document_at_a_time(model: GPT) -> None:
    masked, plain = task(MASKED), task(PLAIN)
    assert torch.equal(plain.batch(0).x, masked.batch(0).x)
    assert "segment_ids" not in plain.batch(0).tensors
    generator = make_generator(derive_seed(masked.cfg.seed, "batch", 0))
    drawn = draw_rows(masked.train, p={"wiki": 1.0}, B=4, T=CFG.T, generator=generator).windows
    alone = float(losses_one_by_one(model, MASKED, drawn, CFG.T).mean())
    state = train(model, masked)
    assert state.losses[0] == pytest.approx(alone, rel=1e-4)
    assert abs(train(model, plain).losses[0] - alone) > 0.01

    def validate(stream: TokenStream) -> float:
        generator = make_generator(derive_seed(masked.cfg.seed, "validation"))
        return evaluate(model, {"w": stream}, eval_steps=2, B=4, T=CFG.T, device="cpu", generator=generator)["w"]

    generator = make_generator(derive_seed(masked.cfg.seed, "validation"))
    held_out = [draw_rows({"w": MASKED}, p={"w": 1.0}, B=4, T=CFG.T, generator=generator).windows for _ in range(2)]
    alone = float(losses_one_by_one(model, MASKED, np.concatenate(held_out), CFG.T).mean())
    assert validate(MASKED) == pytest.approx(alone, rel=1e-4)
    assert masked.validate(model)["val_loss"] == pytest.approx(alone, rel=1e-4)
    assert abs(validate(PLAIN) - alone) > 0.01


@pytest.mark.slow
def test_a_score_is_of_one_document_at_a_time(model: GPT) -> None:
    first = 0
    numbers = []
    for array in MASKED.arrays:
        count = max(0, len(array) - CFG.T)
        numbers += range(first, first + count, CFG.T)
        first += count
    alone = losses_one_by_one(model, MASKED, np.array(numbers), CFG.T)
    ones = np.ones(CFG.V, np.int64)
    masked, plain = (score_stream(model, s, token_bytes=ones, T=CFG.T, B=3, device="cpu") for s in (MASKED, PLAIN))
    assert masked.tokens == alone.numel()
    assert masked.nats == pytest.approx(float(alone.double().mean()), rel=1e-4)
    assert abs(plain.nats - masked.nats) > 0.01


def written_mix(folder: Path) -> Path:
    """Write a mix of one source with several token files; return its path."""
    documents = np.split(TOKENS, STARTS[1:])

    def described(file: str) -> dict[str, Any]:
        path = folder / "wiki" / file
        return {"file": file, "bytes": path.stat().st_size, "sha256": sha256_file(path)}

    source: dict[str, Any] = {"val_name": "v"}
    for split in ("train", "val"):
        source[split] = {"parts": []}
        (folder / "wiki" / split).mkdir(parents=True)
        for number, first in enumerate(range(0, len(documents), A_FILE)):
            ids, idx = f"{split}/part-{number:05d}.bin", f"{split}/part-{number:05d}.idx.npy"
            some = documents[first : first + A_FILE]
            counts = write_token_file(folder / "wiki" / ids, folder / "wiki" / idx, some)
            source[split]["parts"].append(
                {**described(ids), "documents": counts[0], "tokens": counts[1], "offsets": described(idx)}
            )
    write_json(folder / "mix.json", {"vocab_size": CFG.V, "sources": {"wiki": source}})
    return folder / "mix.json"


def test_documents_are_read_from_beside_the_tokens_when_asked_for(tmp_path: Path) -> None:
    path = written_mix(tmp_path)
    opened, plain = (open_mix(path, places=Places(tmp_path), documents=documents) for documents in (True, False))
    for split in (opened.train, opened.val):
        stream = split["wiki"]
        assert len(stream.arrays) > 3
        segments = stream.segments(np.arange(stream.windows(16)), 16)
        assert segments is not None
        assert segments.tolist() == [expected_segments(place, 16) for place in places(stream, 16)]
    assert plain.train["wiki"].documents is None


def test_offsets_that_are_not_those_of_the_mix_are_refused_by_name(tmp_path: Path) -> None:
    path = written_mix(tmp_path)
    offsets = tmp_path / "wiki/val/part-00001.idx.npy"
    damaged = bytearray(offsets.read_bytes())
    damaged[-8] ^= 1
    offsets.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"wiki/val/part-00001\.idx\.npy \(changed\)"):
        open_mix(path, places=Places(tmp_path), documents=True)
    offsets.unlink()
    with pytest.raises(ValueError, match=r"wiki/val/part-00001\.idx\.npy \(missing\)"):
        open_mix(path, places=Places(tmp_path), documents=True)
