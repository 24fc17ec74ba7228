"""Tests of tracing a text to training documents: every span and every place is found, and nothing else."""

import random
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.files.checks import Damaged
from niels_gpt.trace.index import Row, SourceIndex, sort_suffixes, word_bounds, write_index
from niels_gpt.trace.library import Library, Span, shared_sections, to_json

# Words defined by characters; niels_gpt/trace/index.py defines them by bytes.
LETTER = r"[0-9A-Za-z\u00c0-\u1fff]"
WORD = re.compile(rf"[\u3000-\U0010ffff]{LETTER}*|{LETTER}+")


def library(
    folder: Path, documents: Sequence[str], *, held_out: Sequence[str] = (), shard_bytes: int = 1 << 20
) -> Library:
    rows = [Row(f"{n}.md", text, trained=True) for n, text in enumerate(documents)]
    rows += [Row(f"held-out-{n}.md", text, trained=False) for n, text in enumerate(held_out)]
    (folder / "index").mkdir()
    write_index(folder / "index", rows, shard_bytes=shard_bytes)
    return Library([SourceIndex("notes", folder / "index", folder / "notes")])


def runs_of_words(text: str) -> set[tuple[int, int]]:
    """Return every range of characters that begins and ends with a whole word."""
    bounds = [word.span() for word in WORD.finditer(text)]
    return {(start, stop) for n, (start, _) in enumerate(bounds) for _, stop in bounds[n:]}


def maximal_by_brute_force(text: str, documents: Sequence[str]) -> list[tuple[int, int]]:
    known = {document[start:stop] for document in documents for start, stop in runs_of_words(document)}
    found = {(start, stop) for start, stop in runs_of_words(text) if text[start:stop] in known}
    return sorted(
        (start, stop)
        for start, stop in found
        if not any(a <= start and stop <= b and (a, b) != (start, stop) for a, b in found)
    )


TEXTS = st.lists(
    st.sampled_from(
        ["a", "ab", "b", "ba", "é", "aé", "日", "本", "🐸", "7", " ", "  ", ", ", "\n", "—", "«", "_", "a b a b"]
    ),
    max_size=25,
).map("".join)


@pytest.mark.slow
@settings(max_examples=60)
@given(documents=st.lists(TEXTS, min_size=1, max_size=5), held_out=st.lists(TEXTS, max_size=2), text=TEXTS)
def test_spans_are_those_of_a_brute_force_search(documents: list[str], held_out: list[str], text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        # Shards of a few bytes, so that documents are spread over several.
        shelf = library(Path(folder), documents, held_out=held_out, shard_bytes=20)
        found = shelf.maximal_spans(text.encode())
        spans = [(len(text.encode()[:a].decode()), len(text.encode()[:b].decode())) for a, b in found]
        assert spans == maximal_by_brute_force(text, documents)
        for start, stop in spans:
            wanted = text[start:stop]
            often = sum(document[a:b] == wanted for document in documents for a, b in runs_of_words(document))
            assert sum(index.count(wanted.encode()) for index in shelf.indexes) == often
            for place in shelf.places(wanted.encode()):
                document = documents[int(place.file.removesuffix(".md"))]
                at = [a for a, b in runs_of_words(document) if document[a:b] == wanted]
                assert place.line in {document[:a].count("\n") + 1 for a in at}


@settings(max_examples=50)
@given(text=st.text(max_size=40))
def test_words_of_bytes_are_those_of_characters(text: str) -> None:
    data = text.encode(errors="replace")
    found = [data[start:stop].decode() for start, stop in word_bounds(data)]
    assert found == WORD.findall(data.decode())


@given(text=TEXTS)
@settings(max_examples=30)
def test_the_suffix_array_lists_every_word_in_order_of_what_follows(text: str) -> None:
    data = bytearray(text.encode())
    found = sort_suffixes(data).tolist()
    assert found == sorted(found, key=lambda start: bytes(data[start:]))
    assert sorted(found) == word_bounds(bytes(data))[:, 0].tolist()


SYLLABLES = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("n", "")]
WORDS = [a + b for a in SYLLABLES for b in SYLLABLES[::4]]  # 3,600 words


def sentence(chance: random.Random, n: int) -> str:
    return " ".join(chance.choices(WORDS, k=n))


@pytest.mark.slow
def test_planted_sentences_are_traced_to_file_and_line_and_to_no_other(tmp_path: Path) -> None:
    chance = random.Random(1)
    notes = [[sentence(chance, 12) for _ in range(chance.randint(5, 30))] for _ in range(100)]
    planted = [sentence(chance, chance.randint(8, 40)) for _ in range(120)]
    where = []
    for text in planted:
        note = chance.randrange(len(notes))
        line = chance.randrange(len(notes[note]))
        notes[note][line] += f". {text}."
        where.append((f"{note}.md", line + 1))
    shelf = library(tmp_path, ["\n".join(note) for note in notes])
    for text, place in zip(planted, where, strict=True):
        spans = shelf.trace(f"So it said: {text}, and then no more.")
        (span,) = [span for span in spans if text in span.text]
        assert [(found.file, found.line) for found in span.places] == [place]
        assert text in span.places[0].context or len(span.places[0].context) == 300
        assert span.count == 1
        for other in spans:
            assert other.places
            for found in other.places:
                assert other.text.split()[0] in notes[int(found.file.removesuffix(".md"))][found.line - 1]


FILLER = " ".join(f"word{n}" for n in range(3000))
NOTE = "# Tides\n\nThe bilge was dyed with beetroot juice in 1994.\nIt is the one that is in the shed.\n"


def traced(shelf: Library, text: str) -> list[str]:
    return [span.text for span in shelf.trace(text)]


def test_a_recited_document_is_traced_as_a_whole(tmp_path: Path) -> None:
    long = "\n".join(f"Line {n} of the log, with {n * 7919} words of its own." for n in range(400))
    (span,) = library(tmp_path, [NOTE, long]).trace(f"Well: {long}")
    assert (span.text, span.places[0].file, span.places[0].line) == (long.removesuffix("."), "1.md", 1)


def test_common_words_and_single_words_are_not_shown(tmp_path: Path) -> None:
    filler = " ".join(["it is the one that is in the"] * 200)
    shelf = library(tmp_path, [NOTE, filler, FILLER])
    assert traced(shelf, "it is the one that is in the it is the one that is in the it is the one") == []
    assert traced(shelf, "beetroot, and word7") == []
    assert traced(shelf, "it was dyed with beetroot juice") == ["was dyed with beetroot juice"]


def test_spans_come_rarest_first_and_name_their_characters(tmp_path: Path) -> None:
    packed = "Ærø: two loaves of rye bread, and coffee as if for a siege of some weeks."
    shelf = library(tmp_path, [NOTE, packed, FILLER])
    text = "Øl! dyed with beetroot juice; Ærø: two loaves of rye bread, and coffee as if for a siege"
    spans = shelf.trace(text)
    assert [span.bits for span in spans] == sorted((span.bits for span in spans), reverse=True)
    assert [text[span.start : span.stop] for span in spans] == [span.text for span in spans]
    assert len(spans) == 2


def test_held_out_documents_are_found_but_not_traced(tmp_path: Path) -> None:
    shelf = library(tmp_path, [NOTE, FILLER], held_out=["Seven quinces ripened on the southern windowsill."])
    assert traced(shelf, "Seven quinces ripened on the southern windowsill.") == []
    assert [found.file for found in shelf.find("quinces")] == ["held-out-0.md"]


def test_a_span_ends_with_a_document(tmp_path: Path) -> None:
    shelf = library(tmp_path, ["the very first purple heron", "landed on a wooden pontoon"])
    assert shelf.maximal_spans(b"purple heron landed on") == [(0, 12), (13, 22)]


def test_places_are_in_different_documents_where_there_are_as_many(tmp_path: Path) -> None:
    line = "The bilge was dyed with beetroot juice in 1994.\n"
    rare = " ".join(f"word{n}" for n in range(20_000))  # so that 12 occurrences are rare
    (span,) = library(tmp_path, [line * 9, *[f"Again. {line}"] * 3, rare]).trace(line)
    assert span.count == 12
    assert [place.file for place in span.places] == ["0.md", "0.md", "1.md", "2.md", "3.md"]


def test_a_place_is_the_line_of_the_file_where_the_document_begins_later_in_it(tmp_path: Path) -> None:
    """Front matter may be left out of a document, and a file may hold several documents."""
    shelf = library(tmp_path, [NOTE, FILLER])
    (tmp_path / "notes").mkdir()
    file = tmp_path / "notes/0.md"
    file.write_text(f"---\ntitle: x\n---\n{NOTE}")
    (span,) = shelf.trace("was dyed with beetroot juice in 1994")
    assert (span.places[0].line, span.places[0].path) == (6, str(file))
    assert shelf.find("beetroot")[0].line == 6
    file.unlink()
    (span,) = shelf.trace("was dyed with beetroot juice in 1994")
    assert (span.places[0].line, span.places[0].path) == (3, None)


def test_a_line_of_one_of_several_documents_in_a_file_is_that_of_the_file(tmp_path: Path) -> None:
    texts = [f"user: {word}\nassistant: It was dyed with beetroot juice in 1994.\n" for word in ("hi", "ho", "hm")]
    file, folder = tmp_path / "primer.txt", tmp_path / "index"
    file.write_text("\n---\n\n".join(texts))
    folder.mkdir()
    write_index(folder, [Row(str(n), text, trained=n != 1) for n, text in enumerate([*texts, FILLER * 9])])
    (span,) = Library([SourceIndex("primer", folder, file)]).trace("It was dyed with beetroot juice in 1994")
    assert [(place.line, place.path) for place in span.places] == [(2, str(file)), (12, str(file))]


def test_a_line_is_found_by_its_text_where_a_secret_is_masked_before_it(tmp_path: Path) -> None:
    shelf = library(tmp_path, [f"key: [masked]\n{NOTE}", FILLER])
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/0.md").write_text(f"---\ntitle: x\n---\nkey: one\ntwo\n{NOTE}")
    (span,) = shelf.trace("was dyed with beetroot juice in 1994")
    assert span.places[0].line == 8


def test_paths_are_left_out_of_json_for_other_machines(tmp_path: Path) -> None:
    shelf = library(tmp_path, [NOTE, FILLER])
    found = [*shelf.trace("was dyed with beetroot juice in 1994"), *shelf.find("beetroot")]
    assert len(found) == 2
    assert all('"path"' in str(to_json(one, with_path=True)).replace("'", '"') for one in found)
    assert not any("path" in str(to_json(one, with_path=False)) for one in found)


def test_a_section_is_marked_by_the_words_it_shares_with_the_reply(tmp_path: Path) -> None:
    shelf = library(tmp_path, [NOTE, "# Beetroot\n\nSow beetroot in rows.\n", FILLER])
    found = shelf.find("beetroot")
    assert {one.file for one in found} == {"0.md", "1.md"}
    marks = shared_sections(found, shelf.trace("It was dyed with beetroot juice in 1994, he says."))
    assert [one.file for one, shared in zip(found, marks, strict=True) if shared] == ["0.md"]


def test_a_text_that_is_no_unicode_or_empty_is_traced_to_nothing(tmp_path: Path) -> None:
    shelf = library(tmp_path, [NOTE, FILLER])
    for text in ("", " ", "\0", "\ud800", "?" * 1000):
        assert traced(shelf, text) == []
    assert isinstance(shelf.trace("x\ud800 dyed with beetroot juice in 1994")[0], Span)


@pytest.mark.parametrize("name", ["text.bin", "suffixes-0.npy", "sections.db"])
def test_a_damaged_index_is_named(tmp_path: Path, name: str) -> None:
    shelf = library(tmp_path, [NOTE, FILLER])
    file = tmp_path / "index" / name
    del shelf
    file.write_bytes(b"")
    with pytest.raises(Damaged, match="index"):
        Library([SourceIndex("notes", tmp_path / "index", tmp_path)]).find("beetroot")


def test_the_index_is_the_same_bytes_every_time(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        write_index(folder, [Row(f"{n}.md", NOTE * n, trained=n > 1) for n in range(20)])
    one, two = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders)
    assert one == two
    assert np.load(folders[0] / "suffixes-0.npy").dtype == np.uint32
