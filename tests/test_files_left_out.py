"""Tests of skipped files: they are reported by name, and do not change what is loaded."""

import re
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.cli.doctor import examine
from niels_gpt.data.kinds import left_out, say_left_out, source_kinds
from niels_gpt.pipeline.params import parse_params
from stages import load
from tests.conftest import ROOT, TINY, with_values
from tests.in_process import Checkout, texts


def notes(root: Path) -> Path:
    """Write a folder like those that people have: many suffixes, and empty and hidden files."""
    (root / "sub").mkdir(parents=True)
    for name in ("a.md", "b.pdf", "sub/c.pdf", "d.pdf", "e.pdf", "f.json", "g.html", "h.tar.gz", "i.MD", "Makefile"):
        (root / name).write_text(f"this is {name}")
    (root / "sub/empty.md").touch()
    (root / "blank.md").write_text(" \r\n\t")
    (root / ".hidden.pdf").write_text("nobody's")
    return root


def test_skipped_files_are_grouped_by_suffix(tmp_path: Path) -> None:
    reads = {name: kind.reads for name, kind in source_kinds().items()}
    assert list(left_out(str(notes(tmp_path)), reads["roam"]).items()) == [
        (".pdf", ["b.pdf", "d.pdf", "e.pdf", "sub/c.pdf"]),
        ("empty", ["blank.md", "sub/empty.md"]),
        (".MD", ["i.MD"]),
        (".html", ["g.html"]),
        (".json", ["f.json"]),
        (".tar.gz", ["h.tar.gz"]),
        ("without a suffix", ["Makefile"]),
    ]
    assert left_out(str(tmp_path / "a.md"), reads["roam"]) == {}  # a single file is read, or refused by name
    # Files that a glob does not select are skipped on purpose, so they are not reported.
    assert list(left_out(str(tmp_path), reads["roam"], glob="sub/*")) == [".pdf", "empty"]
    (tmp_path / "packed.md.gz").write_text("x")
    assert ".md.gz" in list(left_out(str(tmp_path), reads["roam"]))
    assert ".md.gz" not in list(left_out(str(tmp_path), reads["text"]))


def test_other_kinds_that_read_them_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("a note")
    (tmp_path / "b.txt").write_text("a text")
    (tmp_path / "c\x1b[2J.pdf").write_text("a paper")

    def said(kind: str, **settings: Any) -> list[str]:
        return say_left_out(kind, source_kinds()[kind].settings(**settings), str(tmp_path))

    assert said("roam") == [
        "2 files are skipped, since kind roam reads .md: 1 .pdf (c\\x1b[2J.pdf); 1 .txt (b.txt)",
        ".pdf: a source of kind rich_text with the same input reads them",
        ".txt: a source of kind text with the same input reads them",
    ]
    assert said("text")[0].startswith("1 file is skipped, since kind text reads .txt, .md, ")
    assert said("text", glob="*.md") == []
    assert said("chat")[0].startswith("3 files are skipped, since kind chat reads .jsonl: ")
    assert len(said("chat")) == 1  # no kind of chats reads them


def test_the_load_stage_names_them_and_loads_the_rest_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = []
    for name in ("alone", "with others"):
        monkeypatch.chdir(tmp_path)
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        checkout = Checkout(tmp_path / name)
        if name == "alone":
            (checkout.notes / "a.md").write_text("this is a.md")
        else:
            checkout.notes.rmdir()
            notes(checkout.notes)
        raw = checkout.run(load, "load")
        assert texts(raw) == ["this is a.md"]
        made.append({path.name: path.read_bytes() for path in raw.iterdir() if path.is_file()})
        out = capsys.readouterr().out
        assert ("files are skipped" in out) == (name == "with others")
    assert "4 .pdf (b.pdf, d.pdf, e.pdf and 1 more); 2 empty (blank.md, sub/empty.md); 1 .MD (i.MD)" in out
    assert made[0] == made[1]


def test_doctor_names_them_and_says_that_dvc_hashes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    params = parse_params(with_values((ROOT / "params.yaml").read_text(), TINY))[1]
    for source in params["sources"].values():
        (tmp_path / source["input"]).mkdir(parents=True, exist_ok=True)
    (tmp_path / "data/roam").rmdir()
    notes(tmp_path / "data/roam")
    (tmp_path / "data/primer.txt").rmdir()
    (tmp_path / "data/primer.txt").write_text("x")
    (found,) = (finding for finding in examine(params) if "are skipped" in finding.what)
    assert found.what.startswith("roam: 11 files are skipped, since kind roam reads .md: 4 .pdf")
    assert found.fix is None
    assert found.advice is not None
    assert re.search("^.pdf, .html: a source of kind rich_text.*; DVC hashes them.*dvcignore", found.advice)
