"""Tests of quotes: all are found, to the character, and a second score excludes their tokens."""

import json
import random
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from niels_gpt.cache.formats import write_token_file
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.cache.windows import TokenFile, TokenStream
from niels_gpt.chat_format import chat_key
from niels_gpt.chat_template import format_chat
from niels_gpt.data.corpus.split_files import Splits
from niels_gpt.data.types import Chat, Document
from niels_gpt.duplicates.overlap import QUOTE, Spans, find_quotes
from niels_gpt.duplicates.quoted import quoted_chats, quoted_stream, quoted_tokens
from niels_gpt.jobs.engine import LocalEngine
from niels_gpt.pipeline.results import read_metrics
from niels_gpt.report.tables import score_rows
from niels_gpt.tokenizer.tokenizers import ByteTokenizer, SentencePieceTokenizer
from niels_gpt.tokenizer.training import train_sentencepiece
from niels_gpt.tokenizer.vocabulary import Tokenizer
from stages import index
from tests.in_process import run_in_process, write_source
from tests.planted_duplicates import decide, parameters, write_notes

LETTERS = "aeiounrstlmdäß中"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prose(rng: random.Random, length: int) -> str:
    """Return `length` characters of words and paragraphs, without a space at either end."""
    words, size = [], 0
    while size < length:
        words.append(
            "".join(rng.choices(LETTERS, k=rng.randint(1, 9))) + rng.choice([" ", " ", " ", " ", ". ", "\n\n"])
        )
        size += len(words[-1])
    return "".join(words)[: length - 1].rstrip().ljust(length, "x")


def found_among(
    folder: Path, *, workers: int = 1, part_rows: int = 1000, **sources: tuple[Sequence[str], Sequence[str]]
) -> dict[str, Spans]:
    """Return the quotes in (held-out, training) texts, by source; in the source `chats`, each text is an answer."""
    opened = {}
    for name, (held_out, training) in sources.items():
        texts = [*held_out, *training]
        rows: list[Document] | list[Chat] = [Document(str(i), text) for i, text in enumerate(texts)]
        if name == "chats":
            rows = [Chat(str(i), turns(text)) for i, text in enumerate(texts)]
        sides = np.split(np.arange(len(texts)), [len(held_out)])
        split = Splits(dict(zip(("val", "train"), sides, strict=True)), facts={})
        opened[name] = (write_source(name, rows, part_rows=part_rows), split)
    folder.mkdir(parents=True, exist_ok=True)
    return {name: own.spans for name, own in find_quotes(LocalEngine(workers), opened, scratch=folder).items()}


def turns(answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": "Wie heißt es?"}, {"role": "assistant", "content": answer}]


def in_bytes(text: str, start: int, end: int) -> tuple[int, int]:
    return len(text[:start].encode()), len(text[:end].encode())


def wrapped(text: str) -> str:
    """Wrap each paragraph at 60 characters; each new line end replaces a space, so the length is unchanged."""
    return "\n\n".join(textwrap.fill(paragraph, 60) for paragraph in text.split("\n\n"))


FORMS: dict[str, Callable[[str], str]] = {
    "exact": str,
    "wrapped": wrapped,
    "tabs": lambda text: text.replace(" ", "\u00a0", 3).replace(" ", "\t", 3),
    "block quote": lambda text: "\n> " + wrapped(text).replace("\n", "\n> "),
}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_every_planted_quote_is_found_to_the_character(here: Path, workers: int) -> None:
    """Quotes in notes of 1 to 10 kB are found across sources and chats, however wrapped; shorter runs are not."""
    rng = random.Random(0)
    texts: dict[str, tuple[list[str], list[str]]] = {name: ([], []) for name in ("chats", "notes", "wiki")}
    expected: dict[str, Spans] = {name: {} for name in texts}
    names = [*texts]
    for number in range(36):
        quote = prose(rng, rng.randint(300, 3000) if number < 30 else 250)
        share = rng.uniform(0.10, 0.27)
        around = min(10_000, max(1_000, int(len(quote) / share))) - len(quote)
        cut, held_out_by, trained_by = rng.randint(0, around), names[number % 3], names[number // 3 % 3]
        form = [*FORMS.values()][number % 4]
        before = prose(rng, cut) + "«" if cut else ""
        # A block-quote marker in front of the first character would not be part of the span that is found.
        here_it_is = quote if number % 8 < 4 else form(quote).removeprefix("\n> ")
        note = f"{before}{here_it_is}»{prose(rng, around - cut + 1)}"
        other = f"{prose(rng, 700)}“{form(quote) if here_it_is is quote else quote}”{prose(rng, 50)}"
        place = len(texts[held_out_by][0])
        texts[held_out_by][0].append(note)
        texts[trained_by][1].append(other)
        if number < 30:
            chat = held_out_by == "chats"
            key = (
                chat_key("".join(turn["content"] for turn in turns(note)))
                if chat
                else f"part-{place // 5:05d}/{place % 5}"
            )
            whole = "".join(turn["content"] for turn in turns(note)) if chat else note
            start = len(whole) - len(note) + len(before)
            expected[held_out_by][key] = [in_bytes(whole, start, start + len(here_it_is))]
    assert found_among(here / "scratch", workers=workers, part_rows=5, **texts) == expected
    assert sum(map(len, expected.values())) == 30


def test_a_run_of_300_is_found_at_every_offset_and_one_of_299_at_none(here: Path) -> None:
    rng = random.Random(1)
    held_out, training, expected = [], [], {}
    for number in range(170):
        quote = prose(rng, QUOTE - (number >= 160))
        before, after = prose(rng, rng.randint(1, 99)), prose(rng, rng.randint(1, 99))
        held_out.append(f"{before}«{quote}»{after}")
        training.append(f"{prose(rng, rng.randint(1, 99))}“{quote}”{prose(rng, rng.randint(1, 99))}")
        if number < 160:
            start = len(before) + 1
            expected[f"part-00000/{number}"] = [in_bytes(held_out[-1], start, start + QUOTE)]
    assert found_among(here / "scratch", notes=(held_out, training))["notes"] == expected


def test_a_quote_begins_behind_a_mark_and_ends_in_front_of_one(here: Path) -> None:
    quote = prose(random.Random(7), QUOTE).replace("\n", " ")
    held_out = f"ä\n  > {quote}\n>> c"
    spans = found_among(here / "scratch", notes=([held_out], [f"[{quote}]"]))["notes"]
    assert spans == {"part-00000/0": [in_bytes(held_out, 6, 6 + QUOTE)]}


def shared_windows(held_out: str, training: Sequence[str]) -> list[tuple[int, int]]:
    """Return the merged byte spans of the windows that are also in `training`, by looking up every window."""
    known = {text[i : i + QUOTE] for text in training for i in range(len(text) - QUOTE + 1)}
    found: list[tuple[int, int]] = []
    for start in range(len(held_out) - QUOTE + 1):
        if held_out[start : start + QUOTE] in known:
            first = found.pop()[0] if found and found[-1][1] >= start else start
            found.append((first, start + QUOTE))
    return [in_bytes(held_out, *span) for span in found]


def test_quotes_are_the_union_of_shared_windows(here: Path) -> None:
    """The texts are assembled from few parts, one of them a line of one character, and many share a template."""
    rng = random.Random(2)
    pieces = [prose(rng, rng.randint(60, 400)).replace("\n", " ") for _ in range(40)] + ["=" * 700]
    held_out, training = ([" ".join(rng.choices(pieces, k=4)) for _ in range(12)] for _ in "12")
    training += [f"{pieces[0] * 3}{prose(rng, 300)}".replace("\n", " ") for _ in range(5)]
    expected = {
        f"part-00000/{i}": spans for i, text in enumerate(held_out) if (spans := shared_windows(text, training))
    }
    found = found_among(here / "scratch", notes=(held_out, training))["notes"]
    assert len(expected) > 3
    assert found == expected


def test_without_a_quote_there_is_nothing(here: Path) -> None:
    rng = random.Random(3)
    assert found_among(here / "scratch", notes=([prose(rng, 900), "", "x"], [prose(rng, 900), ""])) == {"notes": {}}


def test_a_quote_does_not_go_across_two_texts(here: Path) -> None:
    """It spans neither two documents that are adjacent on both sides, nor two messages of a chat."""
    rng = random.Random(4)
    a, b = prose(rng, 200), prose(rng, 200)
    held_out, training = ([prose(rng, 100) + a, b + prose(rng, 100)] for _ in "12")
    assert found_among(here / "scratch", notes=(held_out, training)) == {"notes": {}}
    chat = [Chat("0", [{"role": "user", "content": a}, {"role": "assistant", "content": b}])]
    sides = [np.arange(1), np.arange(0)]
    sources = {
        "chats": (write_source("chats", chat), Splits(dict(zip(("val", "train"), sides, strict=True)), facts={})),
        "other": (
            write_source("other", [Document("0", a + b)]),
            Splits(dict(zip(("train", "val"), sides, strict=True)), facts={}),
        ),
    }
    assert find_quotes(LocalEngine(1), sources, scratch=here)["chats"].spans == {}


# Tokens


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> SentencePieceTokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "spm.model"
    path.write_bytes(train_sentencepiece([prose(random.Random(i), 3000) for i in range(9)], vocab_size=320))
    return SentencePieceTokenizer(path)


@pytest.fixture(params=["bytes", "pieces"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    chosen: Tokenizer = ByteTokenizer() if request.param == "bytes" else request.getfixturevalue("pieces")
    return chosen


def touched(tokenizer: Tokenizer, ids: Sequence[int], start: int, end: int) -> list[bool]:
    """Return, checking byte by byte, which tokens the span touches."""
    found, at = [], 0
    for token in ids:
        size = len(tokenizer.piece(token))
        found.append(any(start <= byte < end for byte in range(at, at + size)))
        at += size
    return found


def test_a_token_is_quoted_if_any_of_its_bytes_is(tokenizer: Tokenizer) -> None:
    text = prose(random.Random(5), 400) + "▁🙂"
    ids, size = tokenizer.encode(text), len(text.encode())
    lengths = tokenizer.token_bytes()[ids]
    for start, end in [(0, 1), (0, size), (size - 1, size), *((at, at + at % 7 + 1) for at in range(0, size - 9, 5))]:
        assert quoted_tokens(lengths, [(start, end)]).tolist() == touched(tokenizer, ids, start, end)


def test_the_tokens_of_a_stream_are_marked_document_by_document(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """One document is empty, and the last is cut off by the token budget."""
    eot = tokenizer.special_token_ids()["eot"]
    texts = [prose(random.Random(i), 50 + i) if i != 2 else "" for i in range(6)]
    documents = [np.array([*tokenizer.encode(text), eot], dtype="<u2") for text in texts]
    files = [tmp_path / f"part-0000{i}.bin" for i in (0, 1)]
    for i, file in enumerate(files):
        write_token_file(file, tmp_path / "idx.npy", documents[3 * i : 3 * i + 3])
    last = TokenFile(str(files[1]), len(documents[3]) + len(documents[4]))
    stream = TokenStream([TokenFile.whole(files[0]), last])
    spans = {
        "part-00000/1": [(3, 20), (30, 34)],
        "part-00001/1": [(0, 10**6)],
        "part-00001/2": [(0, 9)],
    }
    marks, counts = quoted_stream(stream, spans, tokenizer)
    expected = [np.zeros(len(ids), dtype=bool) for ids in documents[:5]]
    expected[1] = np.array(touched(tokenizer, documents[1], 3, 20)) | touched(tokenizer, documents[1], 30, 34)
    expected[4] = documents[4] != eot
    assert np.concatenate(marks.arrays).astype(bool).tolist() == np.concatenate(expected).tolist()
    assert counts == {"quotes": 3, "quoted_documents": 2}


def test_the_tokens_of_chats_are_marked_by_their_text(tmp_path: Path, tokenizer: Tokenizer) -> None:
    special = tokenizer.special_token_ids()
    answers = [prose(random.Random(i), 90) for i in range(3)]
    chats = [np.array(format_chat(tokenizer, turns(answer)), dtype="<u2") for answer in answers]
    write_token_file(tmp_path / "t.bin", tmp_path / "i.npy", chats)
    ids = {"eot_id": special["eot"], "asst_id": special["asst"]}
    data = SFTExampleDataset(tmp_path / "t.bin", tmp_path / "i.npy", T=16, device="cpu", **ids)
    key = chat_key("".join(turn["content"] for turn in turns(answers[1])))
    marks, counts = quoted_chats(data, {key: [(20, 60)], "another": [(0, 1)]}, tokenizer)
    assert {row: mark.tolist() for row, mark in marks.items()} == {1: touched(tokenizer, chats[1].tolist(), 20, 60)}
    assert counts == {"quotes": 1, "quoted_documents": 1}
    assert quoted_chats(data, {}, tokenizer)[0] == {}


# Stage and report


@pytest.mark.slow
def test_overlap_records_quotes_and_leaves_splits_as_they_are(here: Path) -> None:
    rng = random.Random(6)
    quote = prose(rng, 500)
    held_out = f"{prose(rng, 1500)}«{quote}»{prose(rng, 1500)}"
    write_notes([0], wiki=[held_out, f"{prose(rng, 1800)}“{quote}”{prose(rng, 1300)}"])
    params = parameters()
    sides = decide(params)
    assert 0 in sides["wiki"]["val"]
    assert 1 in sides["wiki"]["train"]
    run_in_process("index", index.main, params)
    spans = json.loads(Path("cache/quotes.json").read_text())
    assert {*spans} == {"large", "notes", "trees", "wiki"}
    assert spans["wiki"] == {"part-00000/0": [[*in_bytes(held_out, 1501, 2001)]]}
    data = read_metrics(Path("metrics/data.json"))
    keys = ("quotes", "quoted_documents", "quoted_characters")
    assert [data["wiki"][key] for key in keys] == [1, 1, 500]
    assert not {*keys} & {*data["large"]}


def test_a_second_row_of_scores_is_shown_only_where_there_are_quotes() -> None:
    plain = {"nats": 2.0, "bits_per_byte": 1.0, "tokens": 1000}
    without = {"nats_without_quotes": 2.5, "bits_per_byte_without_quotes": 1.25, "quoted_tokens": 100}
    none_left = {"nats_without_quotes": None, "bits_per_byte_without_quotes": None, "quoted_tokens": 1000}
    scores = {"m": {"a": plain, "b": {**plain, **without}, "c": {**plain, **none_left}}}
    assert [row[1:] for row in score_rows(scores)] == [
        ("a", "2.0000", "1.0000", "1,000"),
        ("b", "2.0000", "1.0000", "1,000"),
        ("b without quotes", "2.5000", "1.2500", "900"),
        ("c", "2.0000", "1.0000", "1,000"),
        ("c without quotes", "-", "-", "0"),
    ]
