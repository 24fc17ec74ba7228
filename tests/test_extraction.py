"""Tests of the extraction attack: sentences that a model recites when prompted with their first words."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from niels_gpt.config import ModelConfig
from niels_gpt.generate import generate_ids
from niels_gpt.inference.sampling import Sampling
from niels_gpt.leak.extraction import (
    Questions,
    distinct,
    extract,
    recite,
    sampled_runs,
    standing_in,
    token_surprise,
)
from niels_gpt.leak.page import asked, verdict
from niels_gpt.leak.passages import DocumentList, Sentence, encode_sentences, find_sentences, split_sentences
from niels_gpt.model.gpt import GPT
from niels_gpt.tokenizer.tokenizers import ByteTokenizer

TOKENIZER = ByteTokenizer()
EOT = TOKENIZER.special_token_ids()["eot"]
CFG = ModelConfig(V=260, T=96, C=64, L=2, H=2, d_ff=128, dropout=0.0)
SECRET = "Anna hides the spare key under the third flowerpot by the door"
HOW: dict[str, Any] = {"end_of_text": EOT, "B": 8}


def documents(*texts: str) -> DocumentList:
    return DocumentList([list(text.encode()) for text in texts])


def sentences_of(texts: DocumentList) -> list[Sentence]:
    return encode_sentences(find_sentences(texts, TOKENIZER), TOKENIZER)


def note(seed: int) -> str:
    """Return 9 random words, which no model can guess."""
    letters = np.random.default_rng(seed).integers(97, 123, size=(9, 5))
    return " ".join(bytes(word.tolist()).decode() for word in letters) + "."


def learned(texts: list[str], *, steps: int) -> GPT:
    """Return a small model trained on these texts, each after an end-of-text token."""
    torch.manual_seed(0)
    model = GPT(CFG)
    rows = torch.full((len(texts), CFG.T + 1), EOT)
    for row, text in zip(rows, texts, strict=True):
        ids = torch.tensor(list(text.encode()))[: CFG.T]
        row[1 : len(ids) + 1] = ids
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def reciting() -> GPT:
    """Return a model that has memorized one sentence, which occurs in every note."""
    return learned([f"{SECRET}.\n{note(i)}" for i in range(12)], steps=200)


def test_sentences_are_those_a_person_would_type() -> None:
    text = "# A heading of four words\n- [ ] Call Anna. She hides the key!\n\n> 2. To quote is to lie\nToo short.\n"
    assert list(split_sentences(text)) == [
        "A heading of four words",
        "Call Anna. She hides the key",  # from the start of the line, since "Anna." might be an abbreviation
        "She hides the key",
        "To quote is to lie",
    ]
    words = [f"w{i}" for i in range(60)]
    pieces = list(split_sentences(" ".join(words)))
    assert [len(piece.split()) for piece in pieces] == [24, 24, 12]
    assert " ".join(pieces).split() == words


@given(st.text(alphabet="ab .!?\n-#1)é", max_size=200))
def test_every_sentence_stands_in_its_text(text: str) -> None:
    for sentence in split_sentences(text):
        assert sentence in text
        assert len(sentence.split()) <= 24


def test_a_sentence_is_one_question_with_all_its_documents() -> None:
    texts = [f"{SECRET}.", note(1), f"{note(2)} {SECRET}.", f"{SECRET}, often. {SECRET}."]
    found = sentences_of(documents(*texts))
    assert found[0].text == SECRET  # the sentence in the most documents is asked for first
    assert found[0].documents == (0, 2, 3)
    for words, first, end in found[0].spans:
        assert TOKENIZER.decode(found[0].ids[:first]) == " ".join(SECRET.split()[:words])
        assert end - first == 48 or end == len(found[0].ids)


@pytest.mark.slow
def test_recited_sentences_are_those_that_greedy_decoding_gives(reciting: GPT) -> None:
    sentences = sentences_of(documents(f"{SECRET}.", note(0), note(99), SECRET.replace("key", "pin")))
    found = {recital.sentence.text: recital for recital in recite(reciting, sentences, **HOW)}
    assert SECRET in found
    for sentence in sentences:
        said = []
        for words, first, end in sentence.spans:
            for start in ([EOT], []):
                prompt = [*start, *sentence.ids[:first].tolist()]
                if prompt and end <= CFG.T:
                    ids = generate_ids(reciting, prompt, max_new_tokens=end - first, sampling=Sampling(0))
                    said.append(words) if ids[len(prompt) :] == sentence.ids[first:end].tolist() else None
        recital = found.get(sentence.text)
        if said or (recital and recital.greedy):
            assert recital is not None
            assert recital.words <= min(said)


@pytest.mark.slow
def test_a_memorized_sentence_is_found_and_one_never_read_is_not(reciting: GPT) -> None:
    train = documents(*(f"{SECRET}.\n{note(i)}" for i in range(12)))
    held_out = documents(*(note(100 + i) for i in range(20)))
    questions = Questions.of(train, held_out, [], TOKENIZER)
    told = extract(reciting, questions, seed=0, **HOW)
    assert SECRET in [finding.sentence.text for finding in told.findings]
    (finding,) = [finding for finding in told.findings if finding.sentence.text == SECRET]
    assert len(finding.sentence.documents) == 12
    assert told.stats["held_out_reported"][0] == 0
    untrained = extract(learned([note(0)], steps=0), questions, seed=0, **HOW)
    assert not untrained.findings
    stranger = Questions.of(held_out, documents(note(300)), [], TOKENIZER)
    assert not extract(reciting, stranger, seed=0, **HOW).findings
    public = replace(questions, public=[documents(f"Everybody knows: {SECRET}, as they say.")])
    assert SECRET not in [finding.sentence.text for finding in extract(reciting, public, seed=0, **HOW).findings]


@pytest.mark.slow
def test_recited_held_out_text_sets_the_threshold(reciting: GPT) -> None:
    train = documents(f"{SECRET}.", note(0))
    held_out = documents(f"{SECRET}.")
    # The held-out sentence also occurs in training text, so it is no control.
    same = Questions.of(train, held_out, [], TOKENIZER)
    assert extract(reciting, same, seed=0, **HOW).findings
    # Now it occurs in held-out text only, so it is a control: reciting the same sentence is common, not a finding.
    guessed = replace(same, train=documents(note(5)))
    told = extract(reciting, guessed, seed=0, **HOW)
    assert not told.findings
    assert (told.stats["public_and_common"], told.stats["held_out_reported"][0]) == ([0, 1], 0)
    assert told.stats["least_bits"] > 0


@pytest.mark.slow
def test_a_budget_asks_for_the_most_repeated_and_says_so() -> None:
    train = documents(*(f"{SECRET}.\n{note(i)}" for i in range(5)))
    few = Questions.of(train, documents(), [], TOKENIZER, at_most_tokens=2 * len(SECRET))
    assert [sentence.text for sentence in few.asked] == [SECRET]
    told = extract(learned([note(0)], steps=0), few, seed=0, **HOW)
    assert (told.stats["asked"], told.stats["documents_asked"]) == ([1, 6], [0, 5])
    assert asked(told.stats) == "1 of 6"
    everything = Questions.of(train, documents(), [], TOKENIZER)
    assert asked(extract(learned([note(0)], steps=0), everything, seed=0, **HOW).stats) == "all 6"


def test_a_budget_bounds_the_tokens_of_all_forward_passes() -> None:
    train = documents(*(f"{note(i)} {SECRET[: 20 + i]} is the end of it.\n{note(i)[:2]} is {i} now" for i in range(40)))
    held_out = documents(*(note(100 + i) for i in range(40)))
    model, read = learned([note(0)], steps=0), list[int]()
    model.register_forward_pre_hook(lambda _, given: read.append(given[0].numel()))
    for budget in (1000, 3000):
        read.clear()
        questions = Questions.of(train, held_out, [], TOKENIZER, at_most_tokens=budget)
        extract(model, questions, seed=0, **{**HOW, "B": 64})
        tokens = sum(len(sentence.ids) for sentence in (*questions.asked, *questions.held_out))
        assert 0.3 * budget < tokens <= 0.9 * budget
        assert sum(read) <= 1.25 * tokens  # with padding
        assert 0 < len(questions.asked) < len(questions.found)
        assert questions.sampled_tokens == 0  # fewer tokens are left than the shortest run to report has
    everything = Questions.of(train, held_out, [], TOKENIZER)
    assert (len(everything.asked), everything.sampled_tokens) == (len(everything.found), 128)


@pytest.mark.slow
@given(st.data())
def test_a_span_stands_in_documents_as_a_search_would_find_it(data: Any) -> None:
    texts = data.draw(st.lists(st.lists(st.integers(0, 2), max_size=40), min_size=1, max_size=3))
    span = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))
    there = any(span == text[i : i + len(span)] for text in texts for i in range(len(text)))
    assert standing_in([np.array(span)], [DocumentList(texts)]).tolist() == [there]


@pytest.mark.slow
def test_lines_that_share_their_end_are_one_finding(reciting: GPT) -> None:
    texts = [f"Monday, he wrote: {SECRET}.", f"{SECRET}.", f"Friday, he wrote: {SECRET}."]
    sentences = sentences_of(documents(*texts))
    recitals = recite(reciting, sentences, **HOW)
    assert len(distinct([*recitals, *recitals])) == len(distinct(recitals)) < 1 + len(recitals)


@pytest.mark.slow
def test_runs_of_free_text_stand_in_the_document_they_name(reciting: GPT) -> None:
    train = documents(note(50), f"{SECRET}.\n{note(0)}")
    runs = sampled_runs(reciting, train, end_of_text=EOT, seed=0, least=12)
    assert runs
    assert [len(ids) for ids, _ in runs] == sorted((len(ids) for ids, _ in runs), reverse=True)
    for ids, row in runs:
        assert bytes(ids.tolist()) in bytes(train.document(row).tolist())
        assert len(ids) >= 12
    assert not sampled_runs(reciting, documents(note(77)), end_of_text=EOT, seed=0, least=12)


def test_rare_tokens_are_surprising() -> None:
    surprise = token_surprise(DocumentList([[1, 1, 1], [2]]), 4)
    assert surprise.argsort(kind="stable").tolist() == [1, 2, 0, 3]
    assert (2.0**-surprise).sum() == pytest.approx(1)


def stats(*, sentences: int = 0, passages: int = 0, auc: tuple[float, float, float] | None = None) -> dict[str, Any]:
    attack = auc and {"auc": auc[0], "auc_95": auc[1:]}
    return {"extractable_sentences": sentences, "extractable_passages": passages, "attack": attack}


def test_the_verdict_is_one_sentence() -> None:
    def said(**of: Any) -> str:
        return verdict({"notes": {"sft": stats(**of)}, "diary": {"sft": stats()}}, "sft")

    assert said(sentences=5) == "This model can recite 5 private sentences; do not share it."
    assert said(sentences=1, passages=2).startswith("This model can recite 1 private sentence and 2 private passages;")
    assert said(auc=(0.52, 0.45, 0.6)) == said() == "Nothing could be extracted."
    assert said(auc=(0.9, 0.83, 0.95)) == (
        "Nothing could be extracted; membership of a note can be guessed with AUC 0.90 (0.83 to 0.95): others may "
        "infer that a note was used in training."
    )
    assert verdict({}, "sft") == "No private text was used."
