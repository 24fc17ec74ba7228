"""Tests of the leak measurement: passages, the membership inference attack, and the stage that reports both."""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from niels_gpt.config import ModelConfig
from niels_gpt.generate import generate_ids
from niels_gpt.inference.sampling import Sampling
from niels_gpt.leak import MemorizeRules
from niels_gpt.leak.extraction import Questions, extract
from niels_gpt.leak.measure import Leak, attack, distinct_passages, measure_leak
from niels_gpt.leak.memorized import document_log_pz
from niels_gpt.leak.page import leak_rows, leak_sentence, render_leak, samples_needed
from niels_gpt.leak.passages import (
    DocumentList,
    Passages,
    Scored,
    cut_passages,
    needed_log_pz,
    score_passages,
    windows,
)
from niels_gpt.model.gpt import GPT
from niels_gpt.pipeline.results import read_metrics
from niels_gpt.tokenizer.tokenizers import ByteTokenizer
from tests.conftest import Repo

CFG = ModelConfig(V=260, T=64, C=32, L=2, H=2, d_ff=64, dropout=0.0)
NOTHING = Questions.of(DocumentList([]), DocumentList([]), [], ByteTokenizer(), at_most_tokens=1)
EOT = ByteTokenizer().special_token_ids()["eot"]
NO_SENTENCE = extract(GPT(CFG), NOTHING, end_of_text=EOT, B=1, seed=0)


@given(st.integers(0, 400), st.integers(2, 60), st.data())
def test_every_token_behind_the_first_prompt_is_asked_for_once(L: int, chunk_size: int, data: Any) -> None:
    prompt_tokens = data.draw(st.integers(1, chunk_size - 1))
    asked: list[int] = []
    for start, length, prompt in windows(L, chunk_size, prompt_tokens):
        assert start + length <= L
        assert length <= chunk_size
        assert 1 <= prompt == min(prompt_tokens, L // 2)
        asked += range(start + prompt, start + length)
    first = min(prompt_tokens, L // 2)
    assert asked == list(range(first, first + len(asked)))
    assert L - first - len(asked) < max(1, (chunk_size - prompt_tokens) // 4) or L < 2


def test_a_sample_of_passages_takes_a_run_of_each_document_by_the_seed() -> None:
    texts = DocumentList([range(n) for n in (30, 7, 3, 100)])
    whole = cut_passages(texts, chunk_size=16, prompt_tokens=8)
    assert whole.documents.tolist() == [0, 0, 0, 1, 2, *[3] * 12]
    for i in range(len(whole)):
        start, length = int(whole.starts[i]), int(whole.lengths[i])
        assert whole.tokens[i].tolist() == [*range(start, start + length), *[0] * (16 - length)]
    assert (whole.asked == whole.lengths - whole.prompts).all()
    cut = {s: cut_passages(texts, chunk_size=16, prompt_tokens=8, at_most=4, seed=s) for s in range(20)}
    assert len({tuple(few.starts) for few in cut.values()}) > 1
    for few in cut.values():
        assert few.documents.tolist() == [0, 1, 2, 3]  # one of each: at most a 16th of a sample, but at least one
        assert few.starts[3] in whole.starts[whole.documents == 3]
    long = cut_passages(DocumentList([range(400)] * 3), chunk_size=16, prompt_tokens=8, at_most=48)
    assert long.documents.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for run in np.split(long.starts, 3):  # consecutive passages of each document
        assert np.diff(run).tolist() == [8, 8]
    assert len(cut_passages(DocumentList([]), chunk_size=16, prompt_tokens=8)) == 0


def said(model: GPT, prompt: list[int], n: int) -> list[int]:
    """Return the n tokens that greedy decoding adds to the prompt."""
    return generate_ids(model, prompt, max_new_tokens=n, sampling=Sampling(0))[len(prompt) :]


@pytest.mark.slow
def test_scores_are_those_of_the_model_itself() -> None:
    torch.manual_seed(0)
    model = GPT(CFG)
    model.tok_emb.weight.data *= 8  # puts the most probable token far ahead of the second
    documents = [np.random.default_rng(n).integers(97, 101, size=n).tolist() for n in (200, 33, 9)]
    for document in documents:  # in part the model's greedy output, so that runs have various lengths
        document[20:] = said(model, document[:20], max(0, len(document) - 20))
        document[45:46] = [0] * len(document[45:46])
    passages = cut_passages(DocumentList(documents), chunk_size=32, prompt_tokens=16)
    scored = score_passages(model, passages, end_of_text=EOT, B=3)
    rules = MemorizeRules(chunk_size=32, prompt_tokens=16, cursor_inc_tokens=16)
    starts, expected = document_log_pz(model, np.array(documents[0]), rules)
    np.testing.assert_allclose(scored.log_pz[: len(starts)], expected, rtol=1e-4)
    for i in range(len(passages)):
        prompt = passages.tokens[i, : passages.prompts[i]].tolist()
        asked = passages.tokens[i, passages.prompts[i] : passages.lengths[i]].tolist()
        same = [a == b for a, b in zip(said(model, prompt, len(asked)), asked, strict=True)]
        assert scored.greedy[i] == (same.index(False) if False in same else len(same))
        logs = torch.log_softmax(model(torch.tensor([[EOT, *asked]])).detach().double()[0], dim=-1)
        alone = sum(float(logs[place, token]) for place, token in enumerate(asked))
        extractable = scored.greedy[i] == len(asked) or scored.log_pz[i] >= needed_log_pz(1000)
        assert scored.log_pz_alone[i] == pytest.approx(alone if extractable else -math.inf, rel=1e-4)
    assert 0 < (scored.greedy == passages.asked).sum() < len(passages)
    again = score_passages(model, passages, end_of_text=EOT, B=100)
    np.testing.assert_allclose(again.log_pz, scored.log_pz, rtol=1e-5)
    assert (again.greedy == scored.greedy).all()


def passages_of(documents: list[int], asked: list[int]) -> Passages:
    n = len(documents)
    tokens, prompts = np.zeros((n, 20), np.int64), np.full(n, 4)
    starts = np.array([8 * documents[:i].count(document) for i, document in enumerate(documents)])
    return Passages(tokens, np.array(asked) + prompts, prompts, np.array(documents), starts)


def test_a_run_goes_on_where_a_passage_came_to_its_end() -> None:
    passages = passages_of([0, 0, 0, 1, 1, 2], [8, 8, 8, 8, 8, 8])

    def longest(of: Passages, greedy: list[int]) -> tuple[int, int]:
        scored = Scored(of, np.zeros(len(of)), np.zeros(len(of)), np.array(greedy))
        return int(scored.greedy[scored.longest_run].sum()), int(scored.longest_run[0])

    assert longest(passages, [8, 8, 3, 8, 2, 8]) == (19, 0)  # not into the next document
    assert longest(passages, [7, 8, 3, 5, 8, 0]) == (11, 1)  # 7 of 8 tokens do not complete a passage
    assert longest(passages, [0] * 6) == (0, 0)
    apart = passages.take(np.array([True, False, False, False, True, False]))
    assert longest(apart, [8, 8]) == (8, 0)  # nor if the next passage is another document's
    without = passages.take(np.array([True, False, True, True, True, True]))
    assert longest(without, [8, 8, 8, 2, 8]) == (10, 2)  # nor across a passage that was dropped


def test_text_that_is_in_other_documents_is_not_asked_for() -> None:
    rng = np.random.default_rng(0)
    own, other, template = (rng.integers(1, 5000, size=n).tolist() for n in (60, 60, 60))
    train = DocumentList(
        [own + template, other + template, template[:10] + own[:50] + rng.integers(1, 5000, 9).tolist()]
    )
    held_out = DocumentList([rng.integers(1, 5000, size=60).tolist() + template, other])
    window = {"chunk_size": 20, "prompt_tokens": 10}
    kept = distinct_passages(train, held_out, **window)
    asked = [{(int(p.documents[i]), int(p.starts[i]) + 10) for i in range(len(p))} for p in kept]
    # Only the end of the first document's own text is unique; of the second, all text before the template.
    assert asked[0] == {(0, 50), *((1, place) for place in range(10, 60, 10)), (2, 60)}
    assert asked[1] == {(0, place) for place in range(10, 60, 10)}  # the second is a training document, too
    assert [p.repeated for p in kept] == [11 + 11 + 6 - 7, 11 + 5 - 5]
    doubled = DocumentList([own + own])  # a repetition within one document does not count
    assert distinct_passages(doubled, held_out, **window)[0].repeated == 0
    assert len(distinct_passages(DocumentList([]), DocumentList([[1]]), **window)[0]) == 0


def test_the_rates_of_an_attack_match_their_definitions() -> None:
    rng = np.random.default_rng(0)
    members, others = rng.integers(0, 30, 300) / 10 + 0.4, rng.integers(0, 30, 200) / 10  # with many ties
    found = attack((members, np.arange(300)), (others, np.arange(200)), seed=1)
    assert found is not None
    higher = (members[:, None] > others).mean() + (members[:, None] == others).mean() / 2
    assert found["auc"] == pytest.approx(higher)
    best = max((members > t).mean() for t in np.unique(others) if (others > t).mean() <= 0.01)
    assert found["tpr"] == pytest.approx(best)
    assert 0.5 < found["auc_95"][0] < found["auc"] < found["auc_95"][1] < 1
    assert found["tpr_95"][0] <= found["tpr"] <= found["tpr_95"][1]
    assert attack((members, np.arange(300)), (others, np.zeros(200)), seed=1) is None


def test_an_interval_knows_that_passages_of_one_document_are_alike() -> None:
    rng = np.random.default_rng(0)
    members, others = rng.normal(size=60), rng.normal(size=60)
    one = attack((members, np.arange(60)), (others, np.arange(60)), seed=1)
    copied = [(np.repeat(scores, 5), np.repeat(np.arange(60), 5)) for scores in (members, others)]
    assert attack(*copied, seed=1) == one  # copies of the same scores add no evidence
    assert one is not None
    assert one["auc_95"][0] < 0.5 < one["auc_95"][1]
    assert attack(*((scores, np.arange(300)) for scores, _ in copied), seed=1) != one


def test_an_extractable_passage_takes_a_thousand_samples_at_most() -> None:
    for tries in (1, 10, 1000):
        least = math.exp(needed_log_pz(tries))
        assert samples_needed(least * (1 + 1e-9), 0.5) <= tries < samples_needed(least * 0.98, 0.5)
    log_pz, greedy = np.array([-0.1, -7.0, -8.0, -50.0]), np.array([3, 0, 0, 8])
    told = Scored(passages_of([0, 1, 2, 3], [8, 8, 8, 8]), log_pz, np.full(4, -60.0), greedy)
    assert told.extractable.tolist() == [True, True, False, True]  # the last by greedy decoding
    stats = told.stats()
    assert stats["pz_found_in_n_samples"] == [(1, 1), (10, 1), (100, 1), (1000, 2)]
    assert stats["pz_alone_found_in_n_samples"][-1] == (1000, 0)
    assert (stats["documents"], stats["passages"], stats["greedy"]) == (4, 4, 1)
    nothing = Scored(passages_of([5, 6], [8, 8]), np.full(2, -50.0), np.full(2, -60.0), np.zeros(2, np.int64))
    assert Leak(told, nothing, None, NO_SENTENCE).beyond_chance == 3
    assert Leak(nothing, told, None, NO_SENTENCE).beyond_chance == 0
    assert Leak(told, told, None, NO_SENTENCE).beyond_chance == 0  # as much is extractable from text it never saw


def vault(documents: int, *, seed: int) -> DocumentList:
    """Return documents of random tokens, which a model can only know from training on them."""
    return DocumentList(np.random.default_rng(seed).integers(1, 64, size=(documents, 40)).tolist())


def learned(texts: DocumentList, *, epochs: int) -> GPT:
    """Train a small model on the documents for this many epochs."""
    torch.manual_seed(0)
    model = GPT(ModelConfig(V=64, T=20, C=64, L=1, H=2, d_ff=256, dropout=0.0))
    rows = torch.tensor(np.stack([texts.document(i).astype(np.int64) for i in range(len(texts.lengths))]))
    windows_of_all = torch.cat([rows[:, start : start + 20] for start in (0, 10, 20)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(epochs):
        logits = model(windows_of_all[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows_of_all[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@pytest.mark.slow
def test_memorized_text_is_extractable_and_unseen_text_is_not() -> None:
    train, held_out, unseen = vault(12, seed=1), vault(12, seed=2), vault(12, seed=3)
    how: dict[str, Any] = {"end_of_text": 0, "B": 16, "seed": 0}
    window = {"chunk_size": 20, "prompt_tokens": 10}
    passages, others = (distinct_passages(documents, held_out, **window) for documents in (train, unseen))
    never, twice, often = (learned(train, epochs=epochs) for epochs in (0, 2, 150))
    asked = Questions.of(DocumentList([]), DocumentList([]), [], ByteTokenizer())
    none, few, many = (measure_leak(model, passages, asked, **how) for model in (never, twice, often))
    assert none.attack is not None
    assert few.attack is not None
    assert many.attack is not None
    assert none.attack["auc_95"][0] < 0.5 < none.attack["auc_95"][1]
    assert none.attack["auc_95"][1] < few.attack["auc"] <= many.attack["auc"]
    assert many.attack["auc"] > 0.99
    assert many.attack["auc_95"][0] > 0.5
    assert few.beyond_chance == 0
    assert many.beyond_chance > len(many.train.passages) / 4
    assert many.held_out.extractable.sum() == 0
    assert many.train.stats()["longest_run_tokens"] > 20 > few.train.stats()["longest_run_tokens"]
    other = measure_leak(often, others, asked, **how)
    assert other.attack is not None
    assert other.attack["auc_95"][0] < 0.5 < other.attack["auc_95"][1]
    assert other.beyond_chance == 0


def told_of(documents: list[str], *, greedy: int) -> Scored:
    """Score one passage per document: greedy decoding gets `greedy` bytes right; every second one needs few samples."""
    passages = cut_passages(DocumentList([list(text.encode()) for text in documents]), chunk_size=40, prompt_tokens=10)
    log_pz = np.where(np.arange(len(passages)) % 2, -1.0, -90.0)
    return Scored(passages, log_pz, np.full(len(passages), -1000.0), np.full(len(passages), greedy))


def shown(leak: Leak, names: list[str]) -> str:
    def links(text: str) -> list[tuple[str, str]]:
        return [("../a b/tide.md?<", "tide.md:3")] if text == "a quiet note about the tide & <b>" else []

    return render_leak({"vault": {"sft": leak}}, {"vault": names}, ByteTokenizer().decode, links, budget=9000)


def test_the_page_shows_the_worst_first_and_escapes_what_it_shows() -> None:
    train = told_of(["a quiet note about the tide & <b>", "a loud note, about <script>alert(1)</script>"], greedy=3)
    leak = Leak(train, told_of(["nothing of this is ever shown"], greedy=0), None, NO_SENTENCE)
    names = ["tide.md", "<script>.md"]
    page = shown(leak, names)
    assert "<script>alert" not in page
    assert "&lt;script&gt;.md, token 0: 2 samples needed, inf samples without the beginning" in page
    assert re.search(r"tide.md, token 0: \S+ samples needed<", page)  # not extractable, so the line ends there
    assert "Budget: 9,000 tokens" in page
    assert "No text was sampled from nothing." in page
    assert page.index("a loud no") < page.index("a quiet n")
    assert "<i>a loud not</i><b>e, </b>about &lt;script&gt;" in page
    assert "Longest verbatim run, 3 tokens of tide.md" in page
    assert "nothing of this" not in page
    assert page.count('the tide &amp; &lt;b&gt;</pre><p><a href="../a b/tide.md?&lt;">tide.md:3</a></p>') == 1
    assert page.count("<a href") == 1
    (line,) = leak_rows({"vault": {"sft": leak.stats()}})
    assert (line[5], line[6], line[9]) == ("1 of 2", "0 of 1", "too few documents")
    assert leak_sentence(leak.stats()) == (
        "0 sentences can be extracted (all 0 tested); 1 of 2 passages, 0 of 1 held-out passages; too few documents for "
        "an attack"
    )
    assert "No passage" in shown(Leak(leak.held_out, train, None, NO_SENTENCE), names)


@pytest.mark.dag
def test_the_stage_writes_numbers_for_all_and_passages_for_the_owner(built_repo: Repo) -> None:
    metrics = read_metrics(built_repo.path / "metrics/leak.json")
    assert set(metrics.pop("measured")) == {"pretrain", "sft"}  # with a hash each
    assert list(metrics["sources"]) == ["roam"]  # the others are public
    assert list(metrics["sources"]["roam"]) == ["pretrain", "sft"]

    def leaves(tree: Any) -> list[Any]:
        inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else None
        return [tree] if inner is None else [leaf for branch in inner for leaf in leaves(branch)]

    assert all(leaf is None or isinstance(leaf, int | float) for leaf in leaves(metrics))
    page = (built_repo.path / "metrics/leak.html").read_text()
    assert "Do not share" in page
    assert ".md, token" in page
