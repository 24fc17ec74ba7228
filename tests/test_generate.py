"""Tests of `generate` and `sample`: sampling settings, seeds, stops, and the sliding window."""

from itertools import accumulate

import pytest
import torch

from niels_gpt.config import ModelConfig
from niels_gpt.eval.generations import generate_reply
from niels_gpt.generate import (
    generate,
    generate_ids,
    sample_next_token,
    top_k_filter,
)
from niels_gpt.inference.engine import Engine
from niels_gpt.inference.sampling import Sampling
from niels_gpt.model.decoder import Decoder
from niels_gpt.model.gpt import GPT
from niels_gpt.model.precision import computing_in
from niels_gpt.report.tables import format_samples
from niels_gpt.tokenizer.tokenizers import ByteTokenizer
from niels_gpt.tokenizer.vocabulary import IncrementalDecoder
from tests.talkers import talkative

CFG = ModelConfig(V=256, T=8, C=16, L=1, H=2, d_ff=32, dropout=0.1)
LONG = ModelConfig(V=260, T=24, C=32, L=3, H=4, d_ff=64, dropout=0.1)
GREEDY = Sampling(temperature=0)
BYTES = ByteTokenizer()


def test_top_k_keeps_exactly_k_even_among_equals() -> None:
    kept = top_k_filter(torch.zeros(10), 3)
    assert int(kept.isfinite().sum()) == 3
    logits = torch.tensor([1.0, 5.0, 3.0, 4.0])
    assert top_k_filter(logits, 2).isfinite().tolist() == [False, True, False, True]
    assert torch.equal(top_k_filter(logits, 99), logits)
    with pytest.raises(ValueError, match="top_k"):
        top_k_filter(logits, 0)


def test_temperature() -> None:
    logits = torch.tensor([0.0, 2.0, 1.0])
    assert sample_next_token(logits, temperature=0, top_k=None, generator=None) == 1
    assert sample_next_token(logits, temperature=1e-30, top_k=None, generator=None) == 1
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="temperature must be >= 0"):
            sample_next_token(logits, temperature=wrong, top_k=None, generator=None)
    for temperature in (0, 1):
        with pytest.raises(ValueError, match="logits are no numbers"):
            sample_next_token(logits * float("nan"), temperature=temperature, top_k=None, generator=None)
    generator = torch.Generator().manual_seed(0)
    drawn = [sample_next_token(logits, temperature=1.0, top_k=None, generator=generator) for _ in range(4000)]
    assert drawn.count(1) / 4000 == pytest.approx(torch.softmax(logits, 0)[1].item(), abs=0.04)


def drawn(probabilities: list[float], **sampling: float | None) -> set[int]:
    """Return the ids that occur among 200 samples."""
    generator, logits = torch.Generator().manual_seed(0), torch.tensor(probabilities).log()
    settings = {"temperature": 1.0, "top_k": None, **sampling}
    return {sample_next_token(logits, generator=generator, **settings) for _ in range(200)}  # type: ignore[arg-type]


@pytest.mark.parametrize("top_k", [None, 2])
def test_temperatures_outside_the_range_of_float32_still_sample(top_k: int | None) -> None:
    for tiny in (5e-324, 1e-320, 1e-45, 1e-39):
        assert drawn([0.2, 0.5, 0.3], temperature=tiny, top_k=top_k) == {1}
    for huge in (1e38, 1e39, 1e308):
        assert drawn([0.2, 0.5, 0.3], temperature=huge, top_k=top_k) == ({1, 2} if top_k else {0, 1, 2})


def test_the_settings_reach_the_sampler() -> None:
    model, prompt = talkative(LONG), list(b"abc")

    def ids(seed: int, sampling: Sampling, n: int = 12) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        return generate_ids(model, prompt, max_new_tokens=n, sampling=sampling, generator=generator)

    greedy, hot = ids(0, Sampling(0)), Sampling(50.0, None)
    assert ids(1, hot) != greedy
    assert ids(1, Sampling(50.0, 1)) == greedy
    assert ids(1, Sampling(50.0, None, 1e-9)) == greedy
    assert ids(1, hot) == ids(1, hot) != ids(2, hot)
    for n in (0, 1, 2):
        assert len(ids(0, hot, n)) == 3 + n
    assert generate(model, "abc", max_new_tokens=12, temperature=50, top_k=1, tokenizer=BYTES) == BYTES.decode(greedy)
    for top_k, top_p in ((1, 1.0), (None, 1e-9)):
        chat = [{"role": "system", "content": "abc"}, {"role": "user", "content": "d"}]
        replies = [
            generate_reply(model, chat, BYTES, max_new_tokens=6, sampling=sampling)
            for sampling in (Sampling(50, top_k, top_p), GREEDY)
        ]
        assert replies[0] == replies[1]


def test_greedy_text_equals_a_plain_loop_past_the_window() -> None:
    model = talkative(CFG).train()
    text = generate(model, "hello", max_new_tokens=20, temperature=0)
    model.eval()
    ids = list(b"hello")
    for _ in range(20):
        ids.append(int(model(torch.tensor([ids[-CFG.T :]]))[0, -1].argmax()))
    assert text == bytes(ids).decode("utf-8", errors="replace")
    assert len(set(ids[5:])) > 3


def test_a_seeded_generator_repeats_and_the_mode_is_put_back() -> None:
    model = GPT(CFG).train()
    texts = [generate(model, "x", max_new_tokens=9, generator=torch.Generator().manual_seed(3)) for _ in range(2)]
    assert texts[0] == texts[1]
    assert model.training
    with pytest.raises(ValueError, match="empty"):
        generate(model, "", max_new_tokens=1)


def test_with_a_tokenizer_the_end_of_turn_stops() -> None:
    model = GPT(ModelConfig(V=260, T=8, C=16, L=1, H=2, d_ff=32, dropout=0.0))
    with torch.no_grad():
        model.tok_emb.weight.zero_()
        model.tok_emb.weight[259] = 1.0
        model.ln_f.bias.fill_(1.0)
    assert generate(model, "abc", max_new_tokens=20, temperature=0, tokenizer=ByteTokenizer()) == "abc"


def test_a_reply_is_what_comes_before_the_end_of_the_turn() -> None:
    model = GPT(ModelConfig(V=260, T=32, C=16, L=1, H=2, d_ff=32, dropout=0.0))
    chat = [{"role": "user", "content": "hi"}]
    dice = [torch.Generator().manual_seed(1) for _ in range(2)]
    replies = [generate_reply(model, chat, BYTES, max_new_tokens=9, sampling=Sampling(), generator=d) for d in dice]
    assert replies[0] == replies[1]
    with torch.no_grad():
        model.tok_emb.weight.zero_()
        model.tok_emb.weight[259] = 1.0
        model.ln_f.bias.fill_(1.0)
    assert generate_reply(model, chat, BYTES, max_new_tokens=9, sampling=GREEDY) == ""


def test_every_weight_of_the_model_affects_the_decoder() -> None:
    model, x = talkative(LONG), torch.randint(0, 260, (1, 5))
    for name, parameter in model.named_parameters():
        with torch.inference_mode():
            before = model.logits(Decoder(model, B=1).extend(x, starts=[0]))
        with torch.no_grad():
            parameter.add_(0.1 * torch.randn_like(parameter))
        with torch.inference_mode():
            after = model.logits(Decoder(model, B=1).extend(x, starts=[0]))
            torch.testing.assert_close(after, model(x), atol=1e-5, rtol=1e-5)
        assert not torch.allclose(after, before, atol=1e-5), name


def in_parts(decoder: Decoder, x: torch.Tensor, parts: list[int]) -> torch.Tensor:
    """Return the hidden states of x (B, n), passed to the decoder part by part."""
    starts = [0, *accumulate(parts)]
    read = (
        decoder.extend(part, starts=[start] * len(x))
        for part, start in zip(x.split(parts, dim=1), starts, strict=False)
    )
    return torch.cat(list(read), dim=1)


def test_cached_logits_equal_uncached_ones_however_the_tokens_come() -> None:
    model, x = talkative(LONG), torch.randint(0, 260, (2, LONG.T))
    with torch.inference_mode():
        whole = model(x)
        for parts in ([24], [1] * 24, [10, 1, 1, 12], [5, 19]):
            decoder = Decoder(model, B=2)
            torch.testing.assert_close(model.logits(in_parts(decoder, x, parts)), whole, atol=1e-5, rtol=1e-5)
        with pytest.raises(ValueError, match="25 tokens do not fit"):
            decoder.extend(x[:, :1], starts=[24, 24])
        with pytest.raises(ValueError, match="only be continued token by token"):
            decoder.extend(x[:, :2], starts=[3, 4])


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # training calls settle_bf16 first: see test_step.py
def test_a_run_in_bf16_samples_with_the_positions_it_was_trained_with() -> None:
    model, x = talkative(LONG), torch.randint(0, 260, (2, LONG.T))
    with torch.inference_mode():
        exact = model(x)
        with computing_in("bf16", "cpu"):
            decoder, rounded = Decoder(model, B=2), model(x)
            read = model.logits(in_parts(decoder, x, [20, 1, 1, 1, 1]))
    assert (read - exact).abs().mean() < 1.5 * (rounded - exact).abs().mean()


@pytest.mark.slow
def test_rows_of_different_length_do_not_see_their_padding_or_each_other() -> None:
    model = talkative(LONG)
    prompts = [list(b"b"), list(b"hello there"), list(b"abc"), list(b"x" * 40)]  # the last exceeds the context at once
    engine, texts = Engine(model, slots=4), [list(prompt) for prompt in prompts]
    for prompt in prompts:
        engine.add(prompt, GREEDY, keep=LONG.T, top_logprobs=260)
    for _ in range(30):
        for token, ids in zip(engine.step(), texts, strict=True):
            with torch.inference_mode():
                plain = model(torch.tensor([ids[-LONG.T :]]))[0, -1].log_softmax(dim=-1)
            logprobs = torch.tensor([logprob for _, logprob in sorted(token.top_logprobs)])
            torch.testing.assert_close(logprobs, plain, atol=1e-5, rtol=1e-5)
            assert token.id == int(plain.argmax())
            ids.append(token.id)
    for row, prompt in enumerate(prompts):
        assert generate_ids(model, prompt, max_new_tokens=30, sampling=GREEDY) == texts[row]
        assert len(set(texts[row][-30:])) > 3


def test_a_text_ends_before_the_id_that_stops_it() -> None:
    model, prompt = talkative(LONG), list(b"hello there")
    free = generate_ids(model, prompt, max_new_tokens=10, sampling=GREEDY)
    cut = next(i for i in range(len(prompt) + 2, len(free)) if free[i] not in free[len(prompt) : i])
    assert generate_ids(model, prompt, max_new_tokens=10, sampling=GREEDY, stop=free[cut]) == free[:cut]


def test_a_stream_never_holds_half_a_character() -> None:
    text, decoder = "naïve 🌊 日本", IncrementalDecoder(BYTES)
    pieces = [decoder.add(token) for token in text.encode()]
    assert "".join(pieces) == text
    assert "🌊" in pieces
    assert decoder.rest() == ""
    cut = IncrementalDecoder(BYTES)
    assert [*map(cut.add, b"a\xf0\x9f"), cut.rest()] == ["a", "", "", "\ufffd"]  # a character left unfinished


def test_samples_cannot_break_out_of_their_fence() -> None:
    page = format_samples({"Title": [("p\nq", "a\n````\n# not a heading")]})
    assert "`````text\na\n````\n# not a heading\n`````" in page
    assert "# Title\n\n## p\n" in page
