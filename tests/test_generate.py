from __future__ import annotations

import pytest
import torch

from niels_gpt.config import ModelConfig
from niels_gpt.generate import generate, generate_reply, sample_next_token, top_k_filter
from niels_gpt.model.gpt import GPT
from niels_gpt.samples import format_samples
from niels_gpt.tokenizer import ByteTokenizer

CFG = ModelConfig(V=256, T=8, C=16, L=1, H=2, d_ff=32, dropout=0.1)


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
    with pytest.raises(ValueError, match="temperature must be >= 0"):
        sample_next_token(logits, temperature=-1, top_k=None, generator=None)
    generator = torch.Generator().manual_seed(0)
    drawn = [sample_next_token(logits, temperature=1.0, top_k=None, generator=generator) for _ in range(4000)]
    assert drawn.count(1) / 4000 == pytest.approx(torch.softmax(logits, 0)[1].item(), abs=0.04)


def test_greedy_text_equals_a_plain_loop_past_the_window() -> None:
    torch.manual_seed(0)
    model = GPT(CFG)
    text = generate(model, "hello", max_new_tokens=12, temperature=0)
    model.eval()
    ids = list(b"hello")
    for _ in range(12):
        ids.append(int(model(torch.tensor([ids[-CFG.T :]]))[0, -1].argmax()))
    assert text == bytes(ids).decode("utf-8", errors="replace")


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
    replies = [generate_reply(model, chat, ByteTokenizer(), max_new_tokens=9, generator=d) for d in dice]
    assert replies[0] == replies[1]
    with torch.no_grad():
        model.tok_emb.weight.zero_()
        model.tok_emb.weight[259] = 1.0
        model.ln_f.bias.fill_(1.0)
    assert generate_reply(model, chat, ByteTokenizer(), max_new_tokens=9, temperature=0) == ""


def test_samples_cannot_break_out_of_their_fence() -> None:
    page = format_samples({"Title": [("p\nq", "a\n````\n# not a heading")]})
    assert "`````text\na\n````\n# not a heading\n`````" in page
    assert "# Title\n\n## p\n" in page
