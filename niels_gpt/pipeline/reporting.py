"""`niels-gpt report`: the page of the last run to show around. What the pipeline made is on it as it is in metrics/;
when and where it was trained, which no result may depend on, comes from the logs, and is added here."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from niels_gpt.files.descriptions import described_by, read_meta
from niels_gpt.files.sentences import read_text
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import read_params
from niels_gpt.report.history import History
from niels_gpt.report.memorization import Strip, render_splice
from niels_gpt.report.origin import render_origin, run_of
from niels_gpt.report.page import ORIGIN, REPORT_TITLE, SPLICE, with_sections
from niels_gpt.report.runs import Logs, Run
from niels_gpt.report.tsv import read_tsv


def full_report() -> str:
    if not layout.REPORT.is_file():
        raise ValueError(f"there is no {layout.REPORT} yet: run `dvc repro` first")
    sections = {ORIGIN: render_origin(_origins()), SPLICE: _splice()}
    return with_sections(read_text(layout.REPORT), sections)


def is_report(path: Path) -> bool:
    """Whether an older one stands there, and not something that a person would miss."""
    if not path.is_file():
        return False
    whole = path.read_bytes()
    return whole.startswith(b"<!doctype html>") and f"<title>{REPORT_TITLE}".encode() in whole


def _origins() -> dict[str, Run | None]:
    """By the stage that trained: the run that made the model which is there now."""
    logs = Logs(layout.LOGS)
    logs.read_on()
    histories = {stage: folder / layout.HISTORY for stage, folder in layout.MODEL_OF.items()}
    return {
        stage: run_of(History.read(path), logs.runs, stage=stage) for stage, path in histories.items() if path.is_file()
    }


def _splice() -> str:
    if not layout.MEMORIZED.is_file():
        return ""
    settings, facts = read_params()[0].memorize, read_meta(layout.MEMORIZED, required=["documents"])
    window = {"chunk_size": settings.chunk_size, "prompt_tokens": settings.prompt_tokens}
    with described_by(layout.MEMORIZED):
        strips = [
            _strip(layout.EXTRACTION / f"{stats['name']}.tsv", stats["name"], stats["after"]["doc_len"])
            for stats in facts["documents"]
        ]
        return render_splice(facts, strips, window=window)


def _strip(path: Path, name: str, length: int) -> Strip:
    rows = read_tsv(path)
    return Strip(
        name, length, np.array([int(row["start"]) for row in rows]), np.array([row["pz_after"] for row in rows])
    )
