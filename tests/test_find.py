"""Tests of the search in notes: questions find the file that answers them, and no query is an error."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from niels_gpt.trace.index import Row, SourceIndex, best_line, match_expression, split_sections, write_index
from niels_gpt.trace.library import Library
from tests.conftest import ROOT

# One question per line: vault, file that answers it, question. bench/trace.py asks those about the other vaults.
QUESTIONS = [line.split("\t") for line in (ROOT / "tests/find_questions.tsv").read_text().splitlines()]


def shelve(folder: Path, texts: dict[str, str]) -> Library:
    (folder / "index").mkdir()
    write_index(folder / "index", [Row(name, text, trained=True) for name, text in texts.items()])
    return Library([SourceIndex("notes", folder / "index", folder)])


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Library:
    root = ROOT / "data/roam"
    texts = {path.relative_to(root).as_posix(): path.read_text() for path in sorted(root.rglob("*.md"))}
    return shelve(tmp_path_factory.mktemp("sample"), texts)


@pytest.mark.slow
def test_questions_about_the_sample_find_the_file_that_answers_them(sample: Library) -> None:
    asked = [(file, question) for vault, file, question in QUESTIONS if vault == "roam"]
    right = [file in [found.file for found in sample.find(question, limit=3)] for file, question in asked]
    assert len(QUESTIONS) == 60
    assert len(asked) == 24
    assert sum(right) >= 0.85 * len(asked)


@pytest.mark.slow
@given(typed=st.text(max_size=60) | st.text(alphabet='"*()-:^+{}, abANDORNTE', max_size=60))
@example(typed='NEAR("a b", 2) AND text : x* OR -y ^z {a b} : "')
@example(typed='"')
@example(typed='"" "*" \'--')
@example(typed="word " * 20_000)
@example(typed='"word" ' * 20_000)
@example(typed="\0\ud800")
@settings(max_examples=300, deadline=None)
def test_no_query_is_an_error(sample: Library, typed: str) -> None:
    assert len(sample.find(typed, limit=3)) <= 3


@pytest.mark.parametrize(
    ("typed", "files"),
    [
        ("beetroots", ["tide.md"]),  # stemmed
        ("BEETROOT", ["tide.md"]),
        ("beet*", ["tide.md"]),
        ("beet", []),
        ("maske", ["boat.md"]),  # without diacritics
        ('"juice in"', ["tide.md"]),
        ('"in juice"', []),
        ('"a dentist" beetroot', ["boat.md"]),  # a phrase is required, a word is not
        ("the", ["boat.md", "tide.md"]),  # a stop word alone
        ("the beetroot", ["tide.md"]),
        ("zzz", []),
    ],
)
def test_words_prefixes_and_phrases(tmp_path: Path, typed: str, files: list[str]) -> None:
    texts = {"tide.md": "The beetroot juice in 1994.", "boat.md": "Måske, the boat of a dentist."}
    assert sorted(found.file for found in shelve(tmp_path, texts).find(typed)) == files


def test_headings_and_names_weigh_more_than_text(tmp_path: Path) -> None:
    body = "Something about a lamp, a boat and nothing else at all."
    texts = {"a.md": f"{body} Quince, quince. Bell, bell.", "b.md": f"# Quince\n\n{body}", "bell.md": body}
    shelf = shelve(tmp_path, texts)
    assert [shelf.find(word)[0].file for word in ("quince", "bell")] == ["b.md", "bell.md"]


def test_a_document_is_listed_once_with_its_best_section_and_line(tmp_path: Path) -> None:
    text = "# Log\n\nAn eel.\n\n## Summer\n\nRain.\nThe eel in the strainer, an eel.\n\n### Eels\n\nNone.\n"
    (found,) = shelve(tmp_path, {"log.md": text}).find("eel strainer")
    assert (found.headings, found.line, found.context) == ("Log > Summer", 8, "The eel in the strainer, an eel.")


def sections(text: str) -> list[tuple[int, str]]:
    return [(one.line, one.headings) for one in split_sections(text.encode())]


def test_sections_begin_at_headings_outside_of_code() -> None:
    assert sections("a\n# B\nb\n## C\n### D\n## E\n# F\n") == [
        *((1, ""), (2, "B"), (4, "B > C"), (5, "B > C > D"), (6, "B > E"), (7, "F"))
    ]
    assert sections("```\n# no heading\n```\n#tag\n") == [(1, "")]
    assert sections("- ## In an outline\n  text\n") == [(1, "In an outline")]
    assert sections(" = Title = \n text \n = = Part = = \n more \n") == [(1, "Title"), (3, "Title > Part")]
    assert sections("") == sections(" \n\n") == []


def test_a_long_section_is_cut_at_an_empty_line_or_at_any() -> None:
    assert [line for line, _ in sections("word " * 300 + "\n" + "word " * 200 + "\n\nend\n")] == [1, 3]
    assert [line for line, _ in sections(("word " * 20 + "\n") * 100)] == [1, 41, 81]


@given(text=st.text(alphabet="#= ab\n`", max_size=200))
def test_sections_cover_all_text(text: str) -> None:
    found = list(split_sections(text.encode()))
    assert all(one.stop == other.start for one, other in pairwise(found))
    if text.strip():
        assert text[: found[0].start].strip() == text[found[-1].stop :].strip() == ""
    for one in found:
        assert text[: one.start].count("\n") + 1 == one.line


def test_the_line_with_most_of_the_words_is_shown() -> None:
    assert best_line("rain\nan eel\nthe eel was strained", "eels strain") == 2
    assert best_line("engine log\nengine\noverheating", "when did the engine overheat") == 2
    assert best_line("rain\nan eel", "the") == 0


def test_operators_are_words() -> None:
    assert match_expression("tide AND water") == '"tide" OR "water"'
    assert match_expression('tide "spring tide" x*') == '"spring tide" AND ("spring tide" OR "tide" OR "x"*)'
    assert match_expression(" * ( ") == match_expression('"" " "') == ""
