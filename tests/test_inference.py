"""Tests of the inference engine: a row's tokens depend neither on its neighbours nor on what its slot held before."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from niels_gpt.config import ModelConfig
from niels_gpt.generate import generate_ids, sample_next_token, top_k_filter
from niels_gpt.inference.engine import Engine, RowsFailed, Token
from niels_gpt.inference.runner import RecordedSteps
from niels_gpt.inference.sampling import (
    GREEDY,
    Draw,
    Kind,
    Penalties,
    Sampling,
    SeededNoise,
    next_noise,
    noise_of,
    penalise,
    topk_of_parts,
)
from niels_gpt.model.decoder import Decoder
from niels_gpt.model.gpt import GPT
from niels_gpt.model.precision import computing_in, settle_bf16
from tests.played_graphs import Graph
from tests.talkers import talkative

CFG = ModelConfig(V=260, T=24, C=32, L=3, H=4, d_ff=64, dropout=0.1)
BLOCK: dict[str, Any] = {"norm": "rms", "bias": False, "activation": "swiglu", "qk_norm": True, "qk_gain": True}
PORTABLE = replace(CFG, kv_heads=2, head_dim=10, **BLOCK)
CPU = torch.device("cpu")
# One of each kind of setting, and some combinations.
SAMPLINGS = (
    GREEDY,
    Sampling(),
    Sampling(0.7, None),
    Sampling(1.5, None, 0.9),
    Sampling(2.0, 20, 0.8),
    Sampling(1.2, 100, min_p=0.05),
    Sampling(0.0, repetition_penalty=1.5),
    Sampling(0.9, 50, presence_penalty=0.5, frequency_penalty=0.25, logit_bias={7: 4.0, 65: -100.0}),
)


@pytest.fixture(scope="module")
def model() -> GPT:
    return talkative(CFG)


@pytest.fixture(scope="module", params=[CFG, PORTABLE], ids=["default block", "portable block"])
def any_model(request: pytest.FixtureRequest) -> GPT:
    return talkative(request.param)


def reference_id(logits: torch.Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """Sample an id as `torch.multinomial` does, after top-k."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    kept = logits if sampling.top_k is None else top_k_filter(logits, sampling.top_k)
    return int(torch.multinomial((kept / sampling.temperature).softmax(dim=-1), 1, generator=generator))


def plain(model: GPT, ids: Sequence[int]) -> torch.Tensor:
    """Return the model's own logits after these ids, (V,), computed without a cache."""
    with torch.inference_mode():
        return model(torch.tensor([list(ids)]))[0, -1]


def write(engine: Engine, row: int, n: int) -> list[int]:
    return [token.id for _ in range(n) for token in engine.step([row])]


def alone(model: GPT, prompt: Sequence[int], sampling: Sampling, *, seed: int, n: int, **how: Any) -> list[int]:
    engine = Engine(model, slots=1)
    return write(engine, engine.add(prompt, sampling, noise=SeededNoise(seed), **how), n)


@contextmanager
def counted_tokens(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Yield a list to which each call of the model appends its number of tokens."""
    read: list[int] = []
    extend = Decoder.extend

    def counting(self: Decoder, x: torch.Tensor, **how: Any) -> torch.Tensor:
        read.append(x.numel())
        return extend(self, x, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "extend", counting)
        yield read


# Ids generated after "hello" with a generator of seed 7, before the engine existed, by (temperature, top_k, top_p).
# GOLDEN_NOISE: the first exponential numbers that torch sampled then; other CPUs may give other ones.
GOLDEN_NOISE = [0.3276439309120178, 0.319783478975296, 1.981175422668457, 1.0691168308258057]
GOLDEN = (
    (
        (0.0, 50, 1.0),
        "126 126 233 233 110 195 110 176 231 176 231 110 125 215 193 125 214 125 68 154 246 125 66 246 231 "
        "231 154 154 214 68 154 246 124 246 110 110 110 231 231 231",
    ),
    (
        (0.9, 50, 1.0),
        "206 132 246 212 244 63 173 161 96 82 64 165 238 246 233 58 224 244 126 215 164 97 18 178 244 125 125 "
        "221 150 233 8 2 109 127 110 63 127 152 222 222",
    ),
    (
        (0.5, None, 1.0),
        "200 132 246 212 244 63 159 161 96 82 130 104 144 246 233 229 95 111 133 120 164 97 135 107 21 68 9 "
        "36 150 240 199 168 212 195 110 178 246 256 96 244",
    ),
    (
        (1.3, None, 0.9),
        "200 132 246 75 244 63 159 161 96 82 130 104 137 246 44 222 163 111 153 27 164 97 135 235 21 45 9 36 "
        "89 58 199 168 212 135 155 175 221 256 191 160",
    ),
    (
        (2.0, 20, 0.8),
        "124 66 258 126 133 239 193 126 87 247 125 104 66 193 63 87 139 12 126 27 193 97 210 8 244 125 127 "
        "237 109 27 8 32 124 127 110 63 30 110 110 246",
    ),
)


@pytest.mark.slow
def test_text_for_a_generator_is_as_it_was_before_the_engine(model: GPT) -> None:
    noise = torch.empty(CFG.V).exponential_(generator=torch.Generator().manual_seed(7))[:4]
    for (temperature, top_k, top_p), ids in GOLDEN:
        if temperature == 0 or noise.tolist() == GOLDEN_NOISE:
            sampling, generator = Sampling(temperature, top_k, top_p), torch.Generator().manual_seed(7)
            text = generate_ids(model, list(b"hello"), max_new_tokens=40, sampling=sampling, generator=generator)
            assert text[5:] == [int(token) for token in ids.split()]


@pytest.mark.slow
def test_cached_and_uncached_text_are_equal_far_past_the_context(any_model: GPT) -> None:
    ids = list(b"hello")
    for _ in range(2 * CFG.T + 9):
        ids.append(int(plain(any_model, ids[-CFG.T :]).argmax()))
    assert generate_ids(any_model, b"hello", max_new_tokens=2 * CFG.T + 9, sampling=GREEDY) == ids
    assert len(set(ids)) > 10


@pytest.mark.parametrize(
    "sampling",
    [Sampling(t, k) for t in (0.3, 1.0, 3.0) for k in (None, 1, 7, 50, 999)],
    ids=lambda sampling: f"{sampling.temperature}-{sampling.top_k}",
)
def test_batched_sampling_gives_what_each_row_gets_by_itself(sampling: Sampling) -> None:
    logits = torch.randn(40, 6, 80, generator=torch.Generator().manual_seed(0)) * 3
    dice, again, single = ([torch.Generator().manual_seed(i) for i in range(6)] for _ in range(3))
    t, top_k = sampling.temperature, sampling.top_k
    draw = Draw([sampling] * 6, V=80, device=CPU)
    for batch in logits:
        noise = torch.stack([torch.empty(80).exponential_(generator=g) for g in dice])
        expected = [
            (reference_id(row, sampling, g), sample_next_token(row, temperature=t, top_k=top_k, generator=g2))
            for row, g, g2 in zip(batch, again, single, strict=True)
        ]
        assert draw.ids(batch, noise).tolist() == [id for id, _ in expected] == [id for _, id in expected]


def test_greedy_rows_take_the_most_probable_id_beside_sampled_rows() -> None:
    logits, keys = torch.randn(4, 80, generator=torch.Generator().manual_seed(0)), torch.arange(1, 5)
    logits[0] = 0.0  # of equal logits the first wins
    draw = Draw([GREEDY, Sampling(50.0), None, GREEDY], V=80, device=CPU)
    ids = draw.ids(logits, keys)
    assert ids[[0, 3]].tolist() == logits[[0, 3]].argmax(dim=-1).tolist()
    alone = Draw([Sampling(50.0)], V=80, device=CPU).ids(logits[1:2], keys[1:2])
    assert ids[1] == alone != logits[1].argmax()


def test_equal_logits_are_cut_off_as_for_a_row_by_itself() -> None:
    """In bf16 many logits are equal, and which of them are among the k most probable is up to torch."""
    logits = torch.randint(0, 4, (5, 300), generator=torch.Generator().manual_seed(0)).float()
    ks = (3, 50, 50, 7, 200)
    noise = torch.empty(5, 300).exponential_(generator=torch.Generator().manual_seed(1))
    together = Draw([Sampling(1.0, k) for k in ks], V=300, device=CPU).ids(logits, noise)
    for row, k in enumerate(ks):
        by_itself = Draw([Sampling(1.0, k)], V=300, device=CPU).ids(logits[row : row + 1], noise[row : row + 1])
        assert int(together[row]) == int(by_itself)


@pytest.mark.slow
def test_text_for_a_generator_is_that_of_a_plain_loop(model: GPT) -> None:
    for sampling in (sampling for sampling in SAMPLINGS[:5] if sampling.top_p == 1):
        ids, dice = list(b"hello"), torch.Generator().manual_seed(7)
        for _ in range(40):
            row = plain(model, ids[-CFG.T :])
            ids.append(reference_id(row, sampling, dice))
        generator = torch.Generator().manual_seed(7)
        assert generate_ids(model, b"hello", max_new_tokens=40, sampling=sampling, generator=generator) == ids


def reference_logits(
    logits: torch.Tensor, sampling: Sampling, prompt: Sequence[int], said: Sequence[int]
) -> list[float]:
    """Return the logits after penalties and biases, id by id, as the docstring of Sampling defines them."""
    adjusted = []
    for token, own in enumerate(logits.double().tolist()):
        logit = own
        if token in prompt or token in said:
            logit = logit / sampling.repetition_penalty if logit > 0 else logit * sampling.repetition_penalty
        count = list(said).count(token)
        logit -= sampling.presence_penalty * (count > 0) + sampling.frequency_penalty * count
        adjusted.append(logit + sampling.logit_bias.get(token, 0.0))
    return adjusted


def test_adjusted_logits_are_those_written_out() -> None:
    logits = torch.randn(3, 30, generator=torch.Generator().manual_seed(0))
    sampling = Sampling(1.0, None, 1.0, 0.0, 1.7, 0.6, 0.3, {4: 2.0, 20: -3.0})
    prompt, said = list(range(0, 14)), [*range(7, 21), 8, 8, 19]
    penalties = Penalties(sampling, prompt, V=30, device=CPU)
    for token in said:
        penalties.count(token)
    for row in logits:
        expected = reference_logits(row, sampling, prompt, said)
        assert penalise(row[None], [penalties])[0].tolist() == pytest.approx(expected, abs=1e-5)


def reference_draw(logits: torch.Tensor, sampling: Sampling, prompt: Sequence[int], said: Sequence[int]) -> list[float]:
    """Return the sampling weight of each id, as the docstring of Sampling defines it."""
    adjusted = reference_logits(logits, sampling, prompt, said)
    order = sorted(range(len(adjusted)), key=lambda token: -adjusted[token])[: sampling.top_k]
    weights = [
        float(torch.tensor((adjusted[token] - adjusted[order[0]]) / sampling.temperature).exp()) for token in order
    ]
    total, before, found = sum(weights), 0.0, [0.0] * len(adjusted)
    for token, weight in zip(order, weights, strict=True):
        if before < sampling.top_p * total and weight >= sampling.min_p:
            found[token] = weight
        before += weight
    return found


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1.0, None, min_p=0.2),
        Sampling(2.0, 30, 0.9, min_p=0.1),
        Sampling(1.0, None, repetition_penalty=1.7),
        Sampling(1.0, None, repetition_penalty=0.6),
        Sampling(1.0, None, presence_penalty=1.5),
        Sampling(1.0, None, frequency_penalty=0.8),
        Sampling(1.0, 20, 0.9, 0.05, 1.3, 0.4, 0.3, {5: 3.0, 30: -4.0}),
    ],
    ids=str,
)
def test_penalties_biases_and_min_p_are_those_written_out(model: GPT, sampling: Sampling) -> None:
    prompt, dice = list(b"hello"), torch.Generator().manual_seed(3)
    engine = Engine(model, slots=3)
    row = engine.add(prompt, sampling, noise=torch.Generator().manual_seed(3))
    engine.add(prompt, Sampling(), noise=torch.Generator())  # a neighbour without such settings
    said: list[int] = []
    for _ in range(18):
        probabilities = reference_draw(plain(model, [*prompt, *said]), sampling, prompt, said)
        noise = torch.empty(CFG.V).exponential_(generator=dice)
        expected = int((torch.tensor(probabilities) / noise).argmax())
        drawn = {token.row: token.id for token in engine.step()}
        assert drawn[row] == expected
        said.append(expected)
    assert len(set(said)) > 3


def test_a_slot_forgets_the_penalties_and_biases_of_the_row_before(model: GPT) -> None:
    engine = Engine(model, slots=2)
    watched = engine.add(b"somebody", Sampling(0, logit_bias={1: 0.001}))
    biased = engine.add(b"hello", Sampling(0, logit_bias={9: 1000.0}, frequency_penalty=2.0))
    assert write(engine, biased, 3) == [9, 9, 9]
    engine.drop(biased)
    assert write(engine, engine.add(b"hello", GREEDY), 9) == alone(model, b"hello", GREEDY, seed=0, n=9)
    engine.drop(watched)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"temperature": -1}, "temperature must be >= 0 and finite"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"top_p": 0.0}, "top_p must be in"),
        ({"top_p": 1.01}, "top_p must be in"),
        ({"min_p": 1.5}, "min_p must be in"),
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Sampling(**wrong)


# Both ends of the range of every setting, some of which float32 cannot represent.
EXTREMES: dict[str, tuple[Any, ...]] = {
    "temperature": (0.0, 5e-324, 1e-45, 1e308),
    "top_k": (1, 10**30, None),
    "top_p": (5e-324, 1e-46, 1 - 2**-53, 1.0),
    "min_p": (0.0, 5e-324, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "presence_penalty": (-1000.0, 5e-324, 1000.0),
    "frequency_penalty": (-1000.0, 5e-324, 1000.0),
    "logit_bias": ({}, dict.fromkeys(range(CFG.V), -1000.0), {1: 1000.0, 2: -1000.0, 3: 5e-324}),
}


@pytest.mark.slow
def test_settings_at_the_ends_of_their_ranges_give_tokens(model: GPT) -> None:
    assert set(EXTREMES) == {field.name for field in fields(Sampling)}, "every setting has a range"
    dice = random.Random(0)
    for _ in range(30):
        engine, samplings = (
            Engine(model, slots=4),
            [Sampling(**{name: dice.choice(ends) for name, ends in EXTREMES.items()}) for _ in range(3)],
        )
        own = engine.add(b"neighbour", Sampling(1.3), noise=SeededNoise(5))
        rows = [engine.add(b"hello", sampling, noise=SeededNoise(1)) for sampling in samplings]
        steps = [{token.row: token.id for token in engine.step()} for _ in range(4)]
        assert all(0 <= step[row] < CFG.V for step in steps for row in rows)
        assert [step[own] for step in steps] == alone(model, b"neighbour", Sampling(1.3), seed=5, n=4)


def fragile() -> GPT:
    """Return a model in which the embedding of id 7 is NaN, as after a bit flip, and which hardly ever generates it."""
    model = talkative(replace(CFG, tied=False))
    with torch.no_grad():
        model.tok_emb.weight[7] = float("nan")
        model.lm_head.weight[7] = 0
    return model


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(
    "sampling", [GREEDY, Sampling(0.9, 20), Sampling(0.7, None, min_p=0.05), Sampling(0.9, 20, frequency_penalty=1)]
)
def test_a_row_whose_logits_are_no_numbers_fails_alone(
    sampling: Sampling, recorded: bool, recorded_engine: Callable[..., Engine]
) -> None:
    model, neighbour = fragile(), Sampling(1.2, 20)
    engine = (recorded_engine if recorded else Engine)(model, slots=4)
    wanted: dict[int, tuple[bytes, Sampling, int]] = {}
    texts: dict[int, list[int]] = {}

    def add(prompt: bytes, settings: Sampling, seed: int) -> None:
        row = engine.add(prompt, settings, noise=SeededNoise(seed))
        wanted[row], texts[row] = (prompt, settings, seed), []

    def step(*expected: int) -> None:
        failed: Sequence[int] = []
        try:
            tokens: Sequence[Token] = engine.step()
        except RowsFailed as error:
            failed, tokens = error.rows, error.tokens
        assert failed == list(expected)
        assert [token.row for token in tokens] == list(texts)
        for token in tokens:
            texts[token.row].append(token.id)

    add(b"abc", neighbour, 1)
    add(b"xy", neighbour, 2)
    for prompt in (b"hello \7 there", b"\7", b"much more of it: \7"):
        step()
        failing = engine.add(prompt, sampling, noise=SeededNoise(9), top_logprobs=2 if sampling.penalises else None)
        step(failing)
        step(failing)  # it gets no token the next time either
        engine.drop(failing)
        step()
    for seed in (3, 4):  # in the slots of the failed rows
        add(b"hello there", sampling, seed)
    for _ in range(5):
        step()
    for row, (prompt, settings, seed) in wanted.items():
        assert texts[row] == alone(model, prompt, settings, seed=seed, n=len(texts[row]))


def test_a_step_that_raised_leaves_no_keys_behind(model: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, prompt, extend = Engine(model, slots=1), list(b"hello there"), Decoder.extend
    row = engine.add(prompt, GREEDY)

    def failing(self: Decoder, x: torch.Tensor, **how: Any) -> torch.Tensor:
        if x.numel() == 1:  # the decoding step; the prefill before it succeeds
            raise RuntimeError("out of memory")
        return extend(self, x, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "extend", failing)
        with pytest.raises(RuntimeError):
            engine.step()
    engine.drop(row)
    longer = [*prompt, *b" and more"]  # which continues the ids that the slot has cached
    assert write(engine, engine.add(longer, GREEDY), 9) == alone(model, longer, GREEDY, seed=0, n=9)


def test_rows_that_cannot_be_added_leave_no_trace(model: GPT) -> None:
    engine = Engine(model, slots=1)
    with pytest.raises(ValueError, match="the prompt is empty"):
        engine.add([], GREEDY)
    with pytest.raises(IndexError):
        engine.add(b"hello", Sampling(logit_bias={260: 1.0}))
    engine.add(b"hello", GREEDY)
    assert len(engine.step()) == 1


def test_log_probabilities_are_the_models_own(model: GPT) -> None:
    engine, ids = Engine(model, slots=2), list(b"hello")
    sampling = Sampling(3.0, 40, 0.9, repetition_penalty=2.0, logit_bias={3: 5.0})
    silent, row = (
        engine.add(ids, sampling, noise=SeededNoise(2)),
        engine.add(ids, sampling, noise=SeededNoise(1), top_logprobs=5),
    )
    for _ in range(12):
        own = plain(model, ids).log_softmax(dim=-1)
        tokens = {token.row: token for token in engine.step()}
        token = tokens[row]
        assert token.logprob == pytest.approx(float(own[token.id]), abs=1e-5)
        assert [token_id for token_id, _ in token.top_logprobs] == own.topk(5).indices.tolist()
        assert [logprob for _, logprob in token.top_logprobs] == pytest.approx(own.topk(5).values.tolist(), abs=1e-5)
        assert tokens[silent] == Token(silent, tokens[silent].id)
        ids.append(token.id)
    engine.drop(row)
    engine.add(b"only of the drawn", sampling, noise=SeededNoise(3), top_logprobs=0)
    token = engine.step()[1]
    assert token.logprob is not None
    assert token.top_logprobs == ()


def with_neighbours(model: GPT, prompts: Sequence[bytes], samplings: Sequence[Sampling], *, steps: int) -> list[Token]:
    """Return a row's tokens in the third of eight slots, beside rows of these prompts, some of which come and go."""
    engine = Engine(model, slots=8)
    engine._bucket = lambda rows: 8  # type: ignore[method-assign]
    others = [engine.add(prompts[i], samplings[i], noise=SeededNoise(i)) for i in range(2)]
    row = engine.add(b"the one that counts", Sampling(1.1, 30), noise=SeededNoise(99), top_logprobs=260)
    found = []
    for step in range(steps):
        if step < len(prompts) - 2 and len(others) < 7:
            others.append(engine.add(prompts[2 + step], samplings[2 + step], noise=SeededNoise(step)))
        found += [token._replace(row=0) for token in engine.step() if token.row == row]
        if step % 5 == 4 and others:
            engine.drop(others.pop(0))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("cfg", [CFG, PORTABLE], ids=["default block", "portable block"])
def test_at_one_bucket_what_a_row_gets_is_the_same_to_the_bit_whoever_is_beside_it(cfg: ModelConfig) -> None:
    long = talkative(replace(cfg, T=150))  # attention reads keys in blocks of 64: neighbours reach the next one earlier
    few = with_neighbours(long, [b"a", b"b"], [GREEDY] * 2, steps=120)
    for prompts in ([b"x" * 140, b"y" * 60, b"z" * 3, b"u" * 149], [b"m" * (20 * i + 1) for i in range(7)]):
        beside = with_neighbours(long, prompts, SAMPLINGS, steps=120)
        assert beside == few


@pytest.mark.slow
def test_rows_of_different_settings_side_by_side_get_what_each_gets_alone(any_model: GPT) -> None:
    prompts = [b"b", b"hello there", b"abc", b"x" * 40, b"hello", b"q" * 23, b"hello there", b"zz"]
    engine = Engine(any_model, slots=8)
    rows = [
        engine.add(prompt, sampling, noise=SeededNoise(i))
        for i, (prompt, sampling) in enumerate(zip(prompts, SAMPLINGS, strict=True))
    ]
    texts: dict[int, list[int]] = {row: [] for row in rows}
    for _ in range(60):
        for token in engine.step():
            texts[token.row].append(token.id)
    for i, row in enumerate(rows):
        assert texts[row] == alone(any_model, prompts[i], SAMPLINGS[i], seed=i, n=60)


def test_the_next_turn_prefills_only_what_is_new(model: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(model, slots=2)
    first = engine.add(b"hello", GREEDY)
    other = engine.add(b"help!", GREEDY)
    said = write(engine, first, 6)
    write(engine, other, 2)
    engine.drop(first)
    engine.drop(other)
    prompt = [*b"hello", *said, *b"and then"]
    with counted_tokens(monkeypatch) as read:
        row = engine.add(prompt, GREEDY)
        found = write(engine, row, 4)
    # The last generated id was not cached yet, and the last id of the prompt is fed by itself.
    assert read == [len(b"and then"), 1, 1, 1, 1]
    assert found == alone(model, prompt, GREEDY, seed=0, n=4)
    engine.drop(row)
    with counted_tokens(monkeypatch) as read:  # nothing is new, but the logits of the last id are needed
        assert write(engine, engine.add(prompt, GREEDY), 3) == found[:3]
    assert read == [1, 1, 1]
    with counted_tokens(monkeypatch) as read:  # only "hel" is shared: the other slot is taken
        assert write(engine, engine.add(prompt, GREEDY), 3) == found[:3]
    assert read[0] == len(prompt) - len(b"hel") - 1 == 15


def test_sliding_keeps_half_and_reads_it_once(model: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    T, ids, window = CFG.T, list(b"hello"), list(b"hello")
    for _ in range(3 * T):
        token = int(plain(model, window).argmax())
        ids.append(token)
        window.append(token)
        window = window[-T // 2 :] if len(window) > T else window
    with counted_tokens(monkeypatch) as read:
        assert alone(model, b"hello", GREEDY, seed=0, n=3 * T) == ids[5:]
    past = read[T - 3 :]  # from the first step whose ids no longer fit
    assert set(past) == {1, T // 2 - 1}
    assert past.count(T // 2 - 1) == -(-past.count(1) // (T // 2 + 1))
    assert len(set(ids)) > 10


@pytest.mark.slow
def test_rows_that_come_and_go_are_never_mixed_up(model: GPT) -> None:
    """Each row's text equals that of the same row by itself, whatever happens around it."""
    dice = random.Random(0)
    engine, running, wanted = Engine(model, slots=6), {}, {}
    for n in range(200):
        if len(running) < 6 and dice.random() < 0.3:
            prompt = [*b"shared beginning"[: dice.randrange(1, 17)], *dice.choices(range(260), k=dice.randrange(20))]
            sampling, keep = dice.choice(SAMPLINGS), dice.choice((None, CFG.T))
            row = engine.add(prompt, sampling, noise=SeededNoise(n), keep=keep)
            running[row], wanted[row] = [], (prompt, sampling, n, keep)
        some = None if dice.random() < 0.7 else dice.sample(sorted(running), dice.randrange(len(running) + 1))
        tokens = engine.step(some)
        assert [token.row for token in tokens] == [row for row in running if some is None or row in some]
        for token in tokens:
            running[token.row].append(token.id)
        for row in [row for row in running if dice.random() < 0.03]:
            engine.drop(row)
            prompt, sampling, seed, keep = wanted.pop(row)
            said = running.pop(row)
            assert said == alone(model, prompt, sampling, seed=seed, n=len(said), keep=keep)


def test_a_step_computes_the_smallest_bucket(model: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(model, slots=8)
    rows = [engine.add([65 + i], GREEDY) for i in range(5)]
    with counted_tokens(monkeypatch) as read:
        for _ in range(5):
            engine.step()
            engine.drop(rows.pop(0))
    assert read == [8, 4, 4, 2, 1]


def test_a_model_whose_weights_are_no_numbers_says_so() -> None:
    broken = talkative(CFG)
    with torch.no_grad():
        broken.ln_f.bias.fill_(float("nan"))
    with pytest.raises(ValueError, match="logits are no numbers"):
        generate_ids(broken, b"hello", max_new_tokens=1, sampling=Sampling())


def test_seeded_noise_is_exponential_and_is_made_of_seed_draw_and_id_alone() -> None:
    V = 5000
    sources = {row: SeededNoise(70 if row < 4 else row) for row in range(8)}
    first, second = (torch.as_tensor(next_noise(sources, rows=8, V=V)) for _ in range(2))
    numbers = noise_of(first, None, V=V)
    assert numbers.shape == (8, V)
    assert (numbers[:4] == numbers[0]).all(), "a seed is a seed, in whichever row"
    several = torch.stack([numbers[0], noise_of(second, None, V=V)[0], *numbers[4:]]).double()  # seeds and steps
    assert several.min() > 0
    for x in (0.01, 0.1, 0.5, 1.0, 2.0, 4.0):  # a share of exp(-x) must exceed x
        share = math.exp(-x)
        assert (several > x).double().mean() == pytest.approx(share, abs=4 * (share / several.numel()) ** 0.5)
    correlations = torch.corrcoef(torch.cat((several, several.roll(1, dims=1))))
    assert (correlations - torch.eye(len(correlations))).abs().max() < 5 / V**0.5
    ids = torch.tensor([[3, 4999, 3], [17, 0, 1]])
    rows = torch.tensor([6, 2])
    assert torch.equal(noise_of(first[rows], ids, V=V), numbers[rows].gather(-1, ids)), "the same for few ids and rows"


def test_in_bf16_an_engine_writes_what_autocast_writes(any_model: GPT) -> None:
    settle_bf16("cpu", say=lambda sentence: None)

    def text(engine: Engine) -> list[Token]:
        engine.add(b"the first", GREEDY, top_logprobs=3)
        engine.add(b"another", Sampling(), noise=SeededNoise(1), top_logprobs=3)
        return [token for _ in range(CFG.T) for token in engine.step()]

    with computing_in("bf16", "cpu"):
        expected = text(Engine(any_model, slots=2))
    copied = Engine(any_model, slots=2, precision="bf16")
    assert text(copied) == expected
    assert {p.dtype for p in any_model.parameters()} == {torch.float32}, "the model itself stays as it was"
    assert text(Engine(any_model, slots=2)) != expected


@pytest.fixture
def recorded_engine(monkeypatch: pytest.MonkeyPatch, graphs: list[Graph]) -> Callable[..., Engine]:
    """Return a function that makes engines with recorded graphs, as on a GPU."""

    def make(model: GPT, **how: Any) -> Engine:
        with monkeypatch.context() as patch:
            patch.setattr("niels_gpt.inference.engine.Steps", RecordedSteps)
            return Engine(model, **how)

    return make


@pytest.mark.slow
def test_recorded_graphs_write_what_the_decoder_writes(
    any_model: GPT, recorded_engine: Callable[..., Engine], graphs: list[Graph]
) -> None:
    def texts(engine: Engine) -> list[Token]:
        rows = [
            engine.add(f"row {i}".encode() * (i + 1), GREEDY if i % 2 else Sampling(), noise=SeededNoise(i))
            for i in range(3)
        ]
        said = [token for _ in range(9) for token in engine.step()]
        said += [*engine.step([rows[1]]), *engine.step()]  # the first leaves the other rows as they are
        engine.drop(rows[0])
        engine.add(b"one that came later", GREEDY)
        said += [token for _ in range(2 * CFG.T) for token in engine.step()]
        engine.drop(rows[1])
        engine.drop(rows[2])
        return said + [token for _ in range(5) for token in engine.step()]

    assert texts(recorded_engine(any_model, slots=4)) == texts(Engine(any_model, slots=4))
    assert len(graphs) == 4, "for four rows and for one, and for reading up to 16 ids and up to 32"


def test_a_step_begun_for_one_row_is_not_taken_for_anothers(model: GPT, recorded_engine: Callable[..., Engine]) -> None:
    engine = recorded_engine(model, slots=1)
    gone = engine.add(b"abc", GREEDY)
    (token,) = engine.step()
    engine.drop(gone)
    prompt = [*b"zyx", token.id]  # of the same length, with the same last id
    assert write(engine, engine.add(prompt, GREEDY), 5) == alone(model, prompt, GREEDY, seed=0, n=5)


def test_few_recordings_are_kept_whatever_is_asked_for(
    model: GPT, recorded_engine: Callable[..., Engine], graphs: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("niels_gpt.inference.runner._KEPT", 2)
    engine = recorded_engine(model, slots=1)
    for k in (1, 2, 1, 3, 1, 2):
        row = engine.add(b"x", Sampling(5.0, k), noise=SeededNoise(k))
        assert write(engine, row, 2) == alone(model, b"x", Sampling(5.0, k), seed=k, n=2)
        engine.drop(row)
    assert len(graphs) == 4, "of 1, 2 and 3, and of 2 again: 1 was asked for since"


@pytest.mark.parametrize(("V", "k"), [(5000, 50), (4096, 1), (4097, 512)])
def test_top_k_of_parts_is_that_of_the_whole(V: int, k: int) -> None:
    logits = torch.randn(3, V, generator=torch.Generator().manual_seed(V))
    values, ids = topk_of_parts(logits, k)
    expected = logits.topk(k)
    assert torch.equal(values, expected.values)
    assert torch.equal(ids, expected.indices)


@pytest.mark.parametrize(
    "kind",
    [
        Kind(False),
        Kind(True),
        Kind(True, k=3),
        Kind(True, k=3, top_p=True, min_p=True),
        Kind(True, k=3, some_greedy=True),
    ],
)
def test_a_row_without_numbers_has_no_id_and_its_neighbours_have_theirs(kind: Kind) -> None:
    rows = [[0.0, 1.0, 2.0, 3.0], [math.nan] * 4, [0.0, math.inf, 0.0, 0.0], [3.0, 2.0, 1.0, 0.0]]
    logits, settings = torch.tensor(rows), torch.tensor([[1.0, 0.9, 0.1, 0.0]]).repeat(4, 1)
    ids = kind.ids(logits, settings, torch.ones(4, 4))
    assert ids.tolist() == [3, -1, -1, 0]
