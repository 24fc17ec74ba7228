"""Tests of the stage `index`: which documents it indexes, and a disabled stage."""

from pathlib import Path

import pytest

from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import Params
from niels_gpt.pipeline.results import is_left_out
from niels_gpt.pipeline.stores import open_library
from stages import index
from tests.in_process import SOURCES, make_caches, notes_params, run_in_process, tiny_params

NOTES = [f"# Note {n}\n\nOn day {n} the heron stood {n} times on pontoon {n * 31}.\n" for n in range(40)]


def make_indexes(params: Params | None = None) -> None:
    make_caches(NOTES, params)
    run_in_process("index", index.main, params or notes_params())


@pytest.mark.slow
def test_training_documents_are_traced_and_all_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_indexes()
    library = open_library(notes_params())
    assert [one.name for one in library.indexes] == ["notes", "own"]
    sentences = [note.split("\n")[2] for note in NOTES]
    traced = [library.places(sentence.removesuffix(".").encode()) for sentence in sentences]
    trained = [n for n, places in enumerate(traced) if places]
    assert [(traced[n][0].file, traced[n][0].line) for n in trained] == [(str(n), 3) for n in trained]
    assert 0 < len(NOTES) - len(trained) < 20
    for n in range(40):
        assert library.find(f'"pontoon {n * 31}"', sources=["notes"])[0].file == str(n)
    (answer,) = {place.context for place in library.places(b"because")}
    assert answer == "assistant: because"


@pytest.mark.slow
def test_an_index_follows_changes_of_its_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index is built from the current documents: a replaced note has its new text, and deleted notes are gone."""
    monkeypatch.chdir(tmp_path)
    make_indexes()
    before = open_library(notes_params()).find("heron", limit=100, sources=["notes"])
    make_caches([*NOTES[:10], "Only here: a bittern.", *NOTES[11:30]])
    run_in_process("index", index.main, notes_params())
    library = open_library(notes_params())
    after = library.find("heron", limit=100, sources=["notes"])
    assert (len(before), len(after)) == (40, 29)
    assert [one.file for one in library.find("bittern")] == ["10"]


@pytest.mark.slow
def test_a_disabled_stage_leaves_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    params = tiny_params({**SOURCES, "index.run": False})
    make_indexes(params)
    assert is_left_out(layout.INDEX)
    assert open_library(params).indexes == ()


@pytest.mark.slow
def test_a_source_that_is_too_large_is_not_indexed_and_the_stage_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(index, "MOST_BYTES", 1000)
    make_indexes()
    assert [one.name for one in open_library(notes_params()).indexes] == ["own"]
    assert "index: notes: not indexed: " in capsys.readouterr().out
