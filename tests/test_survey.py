"""Tests of the survey of a folder, which init prints before anything runs."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.cli import survey as survey_module
from niels_gpt.cli.survey import describe, survey_folder
from niels_gpt.data.secrets import Screen
from niels_gpt.data.text import iter_text
from niels_gpt.data.types import Document
from tests.planted_secrets import IBANS, KEYS, PASSWORD
from tests.surveys import ENGLISH, write

GERMAN = "Der Hafen ist nicht groß, und die Boote liegen auch im Winter auf dem Wasser, das sich kaum bewegt. "


def test_a_folder_is_described_by_type_size_and_encoding(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {f"{i}.md": f"# {i}\n\n{ENGLISH * 30}" for i in range(8)}
    files |= {"sub/g.txt": (GERMAN * 40).encode("cp1252"), "rows.jsonl": '{"text": "a row"}\n{"text": "another"}\n'}
    files |= {"photo.JPG": b"\xff\xd8", "paper.pdf": b"%PDF", "Makefile": "x", ".obsidian/x.md": "hidden"}
    files |= {"empty.md": " \n", "copy.md": files["3.md"], "noise.txt": bytes(range(9)) * 99}
    found = survey_folder(str(write(tmp_path / "notes", files)))
    assert found.files == {".jsonl": 1, ".md": 10, ".txt": 2}
    assert found.left_out == {"": 1, ".jpg": 1, ".pdf": 1}
    assert found.documents == 8 + 1 + 2 + 1  # empty files and copies do not count
    english = sum(len(f"# {i}\n\n{ENGLISH * 30}") for i in range(8))
    assert found.text_bytes == english + len((GERMAN * 40).encode()) + 12 + 9 * 99
    assert found.longest == len((GERMAN * 40).encode())
    assert found.encodings == {"utf-8": 11, "cp1252": 1}
    assert describe(found) == [
        f"{tmp_path}/notes: 28.7 kB of text, 12 documents (10 .md, 2 .txt, 1 .jsonl)",
        "secrets  none found",
        "personal none found",
        "copies   1 (same text as another document): used once",
        "empty    1 (files or rows without text): skipped",
        "encoding 1 cp1252: converted to UTF-8",
        "skipped  1 without extension, 1 .jpg, 1 .pdf: no text",
        f"binary   {tmp_path}/notes/noise.txt has a text extension but looks binary; exclude it",
    ]


def private_notes(folder: Path) -> Path:
    secret = f"password: {PASSWORD}\nkey {KEYS['GitHub']}, IBAN {IBANS[0]}"
    rows = [json.dumps({"text": text}) for text in (f"row\n{secret}", f"row\n{secret}", "", "anna@example.org")]
    return write(
        folder,
        {
            "a.md": f"{ENGLISH}\n{secret}\n",
            "b.md": f"{ENGLISH}\nAnna: anna@example.org, tel. 0170 1234567\npassword: {PASSWORD}",
            "c.txt": f"{ENGLISH}\n{secret}\n",
            "empty.md": "",
            "rows.jsonl": "\n".join(rows) + "\n",
        },
    )


def test_secrets_personal_details_copies_and_empty_files_are_counted_and_none_is_printed(tmp_path: Path) -> None:
    """The counts equal those of a run that masks all of them."""
    folder = private_notes(tmp_path / "notes")
    found = survey_folder(str(folder))
    screen = Screen("mask", "mask")
    list(screen.rows(Document(id="", text=sample.text) for sample in iter_text(str(folder))))
    findings = screen.take()
    assert (found.secrets, found.personal) == (findings.kinds, findings.personal)
    lines = describe(found)
    assert lines[1:] == [
        "secrets  13 (api key: 4, iban: 4, password: 5): masked; `niels-gpt inspect documents --secrets` lists them",
        "personal 3 (e-mail address: 2, telephone number: 1): kept; `on_personal: mask` in `load` masks them",
        "copies   2 (same text as another document): used once",
        "empty    2 (files or rows without text): skipped",
    ]
    assert not [s for s in (PASSWORD, KEYS["GitHub"], IBANS[0], "anna", "0170") if s in "\n".join(lines)]


def test_text_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, read = private_notes(tmp_path / "notes"), Counter[str]()

    def counting(path: str, *, files: list[str]) -> Iterator[Any]:
        read.update(files)
        return iter_text(path, files=files)

    monkeypatch.setattr(survey_module, "iter_text", counting)
    survey_folder(str(folder))
    assert read.pop("rows.jsonl") == 2  # the first rows of a table show whether it can be read
    assert read == dict.fromkeys(("a.md", "b.md", "c.txt", "empty.md"), 1)


def test_a_large_folder_is_sampled_and_its_totals_are_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: dict[str, str | bytes] = {f"{i:03}.md": f"{i} {ENGLISH * (1 + i % 7)}" for i in range(210)}
    folder = str(write(tmp_path / "notes", files))
    whole = survey_folder(folder)
    assert (whole.documents, whole.sample) == (210, None)
    monkeypatch.setattr(survey_module, "_READ_BYTES", whole.text_bytes // 5)
    some = survey_folder(folder)
    assert len(some.sizes) < 60
    assert some.text_bytes == pytest.approx(whole.text_bytes, rel=0.02)
    assert some.documents == pytest.approx(210, rel=0.2)
    assert some.sample == (sum(some.sizes), some.text_bytes)
    searched = f"{sum(some.sizes) / 1e3:.1f} kB"
    assert describe(some)[1] == f"sample   {searched} of 83.9 kB were searched; the counts below are for this sample"
    rows = "".join(f'{{"text": "{ENGLISH}{i}"}}\n' for i in range(3000))
    big = survey_folder(str(write(tmp_path / "rows", {"a.jsonl": rows})))
    assert len(big.sizes) < 3000
    assert big.text_bytes == pytest.approx(len(rows), rel=0.1)


@pytest.mark.parametrize(("bound", "value"), [("_READ_BYTES", 100_000), ("_SEARCH_S", -1.0)])
def test_the_search_for_secrets_ends_by_bytes_and_by_seconds(
    bound: str, value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It also ends within a document: a secret before the bound is counted, and one behind it is not."""
    secret = f"password: {PASSWORD}\n"
    folder = write(tmp_path / "notes", {"a.txt": secret + ENGLISH * 4000 + secret})
    monkeypatch.setattr(survey_module, bound, value)
    found = survey_folder(str(folder))
    searched = 0 if bound == "_SEARCH_S" else 2 * survey_module._SEARCHED_AT_ONCE
    assert found.sample == (searched, len(ENGLISH) * 4000 + 2 * len(secret))
    assert found.secrets == ({} if bound == "_SEARCH_S" else {"password": 1})
    assert found.text_bytes == found.sample[1]
