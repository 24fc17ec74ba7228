"""Tests of the report card, with models whose answers are known."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from niels_gpt.cache.formats import write_token_file
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.cache.windows import TokenStream
from niels_gpt.chat_template import format_chat
from niels_gpt.config import ModelConfig
from niels_gpt.eval import card as probes
from niels_gpt.eval.ability import ability, best_temperature, measured_ability
from niels_gpt.eval.card import (
    MEASURES,
    Measured,
    answer_card,
    blind_card,
    card_rows,
    human_card,
    likelihood_card,
    measure_card,
    nats_saved,
    share_right,
    text_card,
    text_nats,
)
from niels_gpt.eval.generations import (
    MAX_BYTES,
    Text,
    distinct_share,
    held_out_replies,
    held_out_texts,
    in_form,
    known_words,
    opening_prompt,
    question_prompt,
    repeated_share,
    write_texts,
)
from niels_gpt.inference.sampling import GREEDY, SAMPLING
from niels_gpt.model.gpt import GPT
from niels_gpt.model.size import Ability
from niels_gpt.tokenizer.tokenizers import ByteTokenizer, SentencePieceTokenizer
from niels_gpt.tokenizer.training import train_sentencepiece
from niels_gpt.tokenizer.vocabulary import Tokenizer
from tests.talkers import saying

T = 128
BYTES = ByteTokenizer()


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("pieces") / "pieces.model"
    right = [choice[0] for choice in probes.spelling_choices()]
    path.write_bytes(train_sentencepiece(right * 3, vocab_size=400))
    return SentencePieceTokenizer(path)


class Uniform(nn.Module):
    """Model that gives every token the same probability."""

    def __init__(self, V: int) -> None:
        super().__init__()
        self.V = V

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*x.shape, self.V)


class Reader(Uniform):
    """Model that predicts how each of its texts continues, and is uniform on everything else."""

    def __init__(self, texts: Sequence[str], tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer.vocab_size)
        eot = tokenizer.special_token_ids()["eot"]
        read = [[eot, *map(int, ids)] for ids in tokenizer.encode_batch(list(texts))]
        self.after: dict[tuple[int, ...], set[int]] = {}
        for ids in read:
            for n in range(1, len(ids)):
                self.after.setdefault(tuple(ids[:n]), set()).add(ids[n])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = super().forward(x)
        for row, ids in zip(logits, x.tolist(), strict=True):
            for i in range(len(ids)):
                known = self.after.get(tuple(ids[: i + 1]))
                if known is None:  # the rest of the row is unknown, too
                    break
                row[i, list(known)] = 30.0
        return logits


def test_a_misspelling_is_no_word_and_as_long_as_the_word() -> None:
    right = {choice[0] for choice in probes.spelling_choices()}
    for choice in probes.spelling_choices():
        assert len(set(choice)) == 4
        assert not right & set(choice[1:])
        assert len({len(text.encode()) for text in choice}) == 1  # none is more probable for being shorter


def test_each_opening_mark_is_paired_with_every_closing_mark_its_own_on_the_diagonal() -> None:
    for marked in probes.closing_questions():
        for i, (opened, closed) in enumerate(probes.MARKS.items()):
            for j, other in enumerate(probes.MARKS.values()):
                left, _, rest = marked[i][j].partition(opened)
                assert rest.count(other) == 1
                assert (other == closed) == (i == j)
                assert not set(left) & set('"()[]')


def test_pairs_are_minimal_and_as_many_of_each_phenomenon() -> None:
    pairs = probes.minimal_pairs()
    assert Counter(name for name, _, _ in pairs) == dict.fromkeys((name for name, _, _ in pairs), 25)
    assert len(pairs) == 300
    assert len({text for _, *both in pairs for text in both}) == 600
    assert all(good[0].isupper() and good[-1] in ".?" and bad[-1] in ".?" for _, good, bad in pairs)
    shorter, longer = (sum(sign * (len(b) - len(g)) > 0 for _, g, b in pairs) for sign in (1, -1))
    assert abs(shorter - longer) < 15  # preferring the shorter text gains nothing


def test_a_tie_is_no_sign_of_grammar() -> None:
    pairs = [("x", "good", "bad"), ("x", "better", "worse")]
    assert probes.share_grammatical(pairs, {"good": 1.0, "bad": 1.0, "better": 1.0, "worse": 2.0}).value == 0.5
    assert probes.share_grammatical(probes.minimal_pairs(), defaultdict(float)).value == 0


def test_a_uniform_model_is_right_by_chance_and_saves_nothing() -> None:
    card = likelihood_card(Uniform(260), BYTES, T=T, B=64)
    assert card["spelling"].value == pytest.approx(1 / 4)
    assert card["closing"].value == pytest.approx(0, abs=1e-6)
    for name, measured in blind_card(BYTES).items():
        assert measured.value == pytest.approx(card[name].value, abs=1e-6)


def test_the_blind_card_of_a_tokenizer_is_that_of_a_uniform_model(pieces: Tokenizer) -> None:
    blind, uniform = blind_card(pieces), likelihood_card(Uniform(pieces.vocab_size), pieces, T=T, B=64)
    for name, measured in uniform.items():
        assert blind[name].value == pytest.approx(measured.value, abs=1e-4)
    assert 0.25 < blind["grammar"].value < 0.5  # the text of fewer tokens wins, and a tie is wrong
    assert blind["spelling"].value > 0.5  # words it was trained on have fewer tokens


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_a_model_prefers_the_texts_it_has_memorized_whether_right_or_wrong(kind: str, pieces: Tokenizer) -> None:
    tokenizer: Tokenizer = BYTES if kind == "bytes" else pieces
    own = [marked[i][i] for marked in probes.closing_questions() for i in range(3)]
    others = [marked[i][(i + 1) % 3] for marked in probes.closing_questions() for i in range(3)]
    for place, marked, share in ((0, own, 1.0), (1, others, 0.0)):
        read = [choice[place] for choice in probes.spelling_choices()] + marked
        read += [both[place] for _, *both in probes.minimal_pairs()]
        card = likelihood_card(Reader(read, tokenizer), tokenizer, T=T, B=50)
        assert card["spelling"].value == card["grammar"].value == share
        assert card["closing"].value > 10 if share else card["closing"].value < -4


def test_a_mark_that_is_common_everywhere_saves_nothing() -> None:
    class Quoter(Uniform):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits = super().forward(x)
            logits[..., ord('"')] = 5.0
            return logits

    assert likelihood_card(Quoter(260), BYTES, T=T, B=64)["closing"].value == pytest.approx(0, abs=1e-4)


def test_nats_saved_are_of_the_right_mark_against_the_mean_of_the_others() -> None:
    marked = (("aa", "ab"), ("ba", "bb"))
    saved = nats_saved([marked, marked], {"aa": 1.0, "ab": 4.0, "ba": 6.0, "bb": 2.0})
    assert saved == Measured(3.5, 0.0)


def test_text_costs_the_same_whatever_stands_beside_it(pieces: Tokenizer) -> None:
    texts = ["A", "The river was cold, and nobody went in.", "x" * 40, "one two three"]
    for tokenizer in (BYTES, pieces):
        torch.manual_seed(0)
        model = GPT(ModelConfig(V=tokenizer.vocab_size, T=16, C=16, L=1, H=2, d_ff=32, dropout=0.5)).train()
        expected = []
        model.eval()
        for text in texts:
            ids = [tokenizer.special_token_ids()["eot"], *tokenizer.encode(text)]
            parts = [torch.tensor(ids[i : i + 17]) for i in range(0, len(ids) - 1, 16)]
            with torch.no_grad():
                losses = [F.cross_entropy(model(p[None, :-1])[0], p[1:], reduction="sum") for p in parts]
            expected.append(float(torch.stack(losses).sum()))
        model.train()
        for B in (1, 3, 64):
            assert text_nats(model, tokenizer, texts, T=16, B=B) == pytest.approx(expected, rel=1e-5)
        assert model.training


def test_equal_texts_share_the_point() -> None:
    choices = [("a", "b"), ("c", "b"), ("d", "b")]
    measured = share_right(choices, {"a": 1.0, "b": 1.0, "c": 0.5, "d": 2.0})
    assert measured.value == pytest.approx((0.5 + 1 + 0) / 3)
    assert measured.error == pytest.approx(0.5 / math.sqrt(3))


def test_one_item_has_no_error_and_no_warning() -> None:
    assert Measured.mean([1.0]) == Measured(1.0, 0.0)


def sure(renderer: str, ids: Sequence[int]) -> GPT:
    """Return a model that generates these ids even when sampling, since no others are probable."""
    model = saying(renderer, ids, T=64).model
    with torch.no_grad():
        model.blocks[0].mlp.fc2.weight.mul_(1000)  # type: ignore[union-attr, operator]
    return model


@pytest.mark.parametrize(
    ("renderer", "ids", "expected"),
    [
        ("chat_tokens", [*b"Hi bot.", 259], Text("Hi bot.", True)),
        ("chat_tokens", [*b"Hi", 257, *b"me"], Text("Hi", True)),
        ("chat_tokens", b"hoo", Text("h" + "o" * (MAX_BYTES - 1), False)),
        ("transcript", b"Na.\nuser: ", Text("Na.", True)),
        ("transcript", [*b"so", 259], Text("so", True)),
    ],
)
def test_a_text_ends_with_its_turn_or_when_there_is_enough(renderer: str, ids: Sequence[int], expected: Text) -> None:
    prompts = [question_prompt(BYTES, question, renderer) for question in ("x", "Who?")]  # type: ignore[arg-type]
    written = write_texts(sure(renderer, ids), BYTES, [(ids, SAMPLING) for ids in prompts], seed=1)
    assert written == [expected] * 2


@pytest.mark.slow
def test_each_text_is_sampled_with_its_own_seed() -> None:
    torch.manual_seed(0)
    model = GPT(ModelConfig(V=260, T=32, C=16, L=1, H=2, d_ff=32, dropout=0.5))
    ids = opening_prompt(BYTES, "The")
    prompts = [(ids, SAMPLING)] * 3
    *texts, greedy = write_texts(model, BYTES, [*prompts, (ids, GREEDY)], seed=1)
    assert len({text.text for text in (*texts, greedy)}) == 4
    assert write_texts(model, BYTES, [(ids, GREEDY)], seed=2) == [greedy]
    assert write_texts(model, BYTES, prompts[:1], seed=1) == texts[:1]
    assert write_texts(model, BYTES, prompts[:1], seed=2) != texts[:1]
    assert model.training


@pytest.mark.parametrize(
    ("text", "ended", "good"),
    [
        ("I am a model.", True, True),
        ("Why not?\n", True, True),
        ('He said "no"', True, True),
        ("I am a model.", False, False),
        ("I am a", True, False),
        ("No.", True, False),
        ("", True, False),
        ("Well.\nuser: and you? I am.", True, False),
        ("Half a \ufffd letter.", True, False),
    ],
)
def test_form(text: str, ended: bool, good: bool) -> None:
    assert in_form(Text(text, ended)) == good


def test_words_are_counted_and_not_tokens() -> None:
    assert repeated_share("a b c d e f") == 0
    assert repeated_share("A b, c d! a B c d") == pytest.approx(1 / 5)
    assert repeated_share("one two three") == 0
    assert distinct_share(["a b a b", "b a"]) == pytest.approx(2 / 4)
    assert distinct_share(["alone"]) == 0


def test_a_card_of_what_was_written() -> None:
    answers = [Text("One two.", True), Text("three", False), Text("Four five six.", True), Text("Seven", True)]
    card = answer_card(answers, replies=[Text("1234567", True), Text("123456789", False)])
    assert card["form"] == Measured(0.5, pytest.approx(math.sqrt(1 / 3) / 2))
    assert card["length"].value == pytest.approx(8 / 8)
    assert card["length"].error == pytest.approx(math.hypot(math.sqrt(18) / 2, 1) / 8)
    assert "length" not in answer_card(answers, replies=[])
    stopped = answer_card([Text("x" * MAX_BYTES, False)] * 2, replies=[Text("y" * 5000, True)] * 2)
    assert stopped["length"].value == pytest.approx(1)  # replies are cut like answers, at MAX_BYTES
    drawn, greedy = ([Text(text, False) for text in side] for side in (["a b c d", "a b x y"], ["a b a b a b a"]))
    card = text_card(drawn, greedy, known={"aa"})
    assert card["repetition"] == Measured(pytest.approx(2 / 4), 0.0)
    assert card["distinct"] == Measured(pytest.approx(5 / 6), pytest.approx(0))
    uneven = text_card([Text("a b a b a", False), Text("c d e", False)], greedy, known=())["distinct"]
    assert uneven == Measured(pytest.approx(4 / 6), pytest.approx(abs(1 - 2 / 4) / 2))


def test_people_are_scored_by_the_same_rules() -> None:
    replies = [Text("A good answer.", True), Text("No end", True), Text("x. " * 100, True), Text("Cut", False)]
    card = human_card(["a b c d e"] * 2, replies, known=())
    assert card["form"].value == pytest.approx(2 / 3)
    assert card["distinct"].value == pytest.approx(0.5)
    assert "length" not in card
    assert "form" not in human_card(["a b"], [], known=())


@pytest.mark.slow
def test_a_model_that_answers_well_has_form_and_no_variety() -> None:
    model = sure("chat_tokens", [*b"Not yes.", 259])
    asked: dict[str, Any] = {"known": {"yes"}, "replies": [Text("Not yes.", True)], "T": 64, "B": 64}
    card = measure_card(model, BYTES, renderer="chat_tokens", **asked)
    assert set(card) == set(MEASURES)
    assert card["form"] == Measured(1.0, 0.0)
    assert card["length"] == Measured(1.0, 0.0)
    other = measure_card(model, BYTES, renderer="transcript", **asked)
    assert other["form"].value == 0


def test_held_out_texts_are_spread_over_all_streams() -> None:
    streams = [TokenStream([np.full(1000, ord(letter), dtype="<u2")]) for letter in "ab"]
    texts = held_out_texts(streams, BYTES, n=5)
    assert [text[0] for text in texts] == ["a", "a", "a", "b", "b"]
    assert {len(text) for text in texts} == {MAX_BYTES}
    short = held_out_texts([TokenStream([np.arange(48, 58, dtype="<u2")])], BYTES, n=2)
    assert short == ["0123456789"] * 2


def test_the_first_reply_of_held_out_chats_by_the_weights_of_their_sources(tmp_path: Path) -> None:
    special = BYTES.special_token_ids()

    def source(name: str, count: int) -> SFTExampleDataset:
        chats = [
            [("user", "q"), ("assistant", f"{name}{i}"), ("user", "and?"), ("assistant", "last")] for i in range(count)
        ]
        ids = [
            np.array(format_chat(BYTES, [{"role": r, "content": c} for r, c in chat]), dtype="<u2") for chat in chats
        ]
        folder = tmp_path / name
        folder.mkdir()
        write_token_file(folder / "t.bin", folder / "i.npy", ids)
        return SFTExampleDataset(
            folder / "t.bin", folder / "i.npy", T=40, device="cpu", eot_id=special["eot"], asst_id=special["asst"]
        )

    chats = {"a": source("a", 9), "b": source("b", 9), "c": source("c", 9)}
    replies = held_out_replies(chats, BYTES, weights={"a": 3.0, "b": 1.0, "c": 0.0}, at_most=4)
    assert replies == [Text(text, True) for text in ("a0", "a4", "a8", "b0")]
    (long,) = held_out_replies({"a": source("long" * 20, 1)}, BYTES, weights={"a": 1.0}, at_most=1)
    assert long.text.startswith("longlong")
    assert not long.ended


def test_the_table_has_every_number_with_its_error_and_what_to_hold_it_against() -> None:
    card = {"spelling": Measured(0.75, 0.0321), "form": Measured(0.5, 0.1)}
    head, *rows = card_rows(
        {"pretrain": card, "sft": {"form": Measured(1, 0)}},
        blind={"spelling": Measured(0.25, 0.5)},
        people={"form": Measured(0.9, 0.5)},
    )
    assert head == ["number", "what it measures", "pretrain", "sft", "by chance", "held-out text"]
    assert rows == [
        ["spelling", MEASURES["spelling"], "0.750 ± 0.032", "", "0.250", ""],
        ["form", MEASURES["form"], "0.500 ± 0.100", "1.000 ± 0.000", "", "0.900"],
    ]


def test_words_are_those_of_the_training_text() -> None:
    arrays = [np.frombuffer(text, dtype=np.uint8) for text in (b"The boat, 12 boats; a", b"Harbour_x rope")]
    assert known_words([arrays[:1], arrays], BYTES) == {"the", "boat", "boats", "rope"}
    texts = [Text("The boat 12 z", True), Text("boat xx Boats yy", True), Text("1 2 a", True)]
    card = text_card(texts, texts, known={"the", "boat", "boats"})
    assert card["words"] == Measured.mean([1.0, 0.5, 0.0])


@pytest.mark.parametrize(
    ("spelling", "closing", "words"),
    [
        (0.44, 0.0, "does not form words yet"),
        (0.77, 0.1, "does not form words yet"),
        (0.92, 0.7, "forms words, not sentences"),
        (0.87, 2.3, "forms words, not sentences"),
        (0.98, 8.0, "writes sentences"),
    ],
)
def test_a_card_says_what_a_model_can_do(spelling: float, closing: float, words: str) -> None:
    assert words in ability({"spelling": spelling, "closing": closing, "form": 0.9})


def test_a_model_that_does_not_loop_is_served_cooler() -> None:
    temperatures = [best_temperature({"repetition": share}) for share in (0.0, 0.1, 0.2, 0.3, 1.0)]
    assert temperatures == sorted(temperatures)
    assert (temperatures[0], temperatures[-1], best_temperature({})) == (0.2, 0.8, 0.8)


def test_what_a_model_writes_is_read_off_its_card() -> None:
    """Cards as in docs/report-card.md: two note vaults, the sample, a pretrained base, and a model that loops."""
    for words, spelling, closing, repetition, expected in (
        (0.50, 0.404, 0.0, 0.9, Ability.NO_WORDS),
        (0.67, 0.638, 0.53, 0.73, Ability.NO_WORDS),
        (0.52, 0.681, 0.07, 0.14, Ability.NO_WORDS),
        (0.81, 0.649, 0.53, 0.73, Ability.WORDS),  # notes with few of the card's words
        (0.6, 0.851, 2.55, 0.37, Ability.WORDS),
        (0.77, 0.915, 0.95, 0.61, Ability.WORDS),
        (0.7, 1.0, 10.94, 0.26, Ability.SENTENCES),  # a base has more words than the notes
        (0.9, 1.0, 10.94, 0.9, Ability.WORDS),
    ):
        values = {"words": words, "spelling": spelling, "closing": closing, "repetition": repetition}
        assert measured_ability(values) == expected
    assert Ability.WORDS.measured == "forms words, not sentences"
