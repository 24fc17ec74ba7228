"""Reports with a given text wherever a user's words can appear."""

import numpy as np

from niels_gpt.data.corpus.mix import Exposure
from niels_gpt.leak import MemorizeRules
from niels_gpt.leak.memorized import highest_by_token, render_splice
from niels_gpt.report.page import Training, finished_card, render_report
from niels_gpt.report.tables import HEAD, score_rows
from stages.report import duplicates_table

DATA: dict[str, float] = {"documents": 1000, "exact": 2, "near": 30, "clusters": 4, "left_out": 5}
DATA |= {"runs_in_train": 0.0625, "characters_in_train": 0.5}


def training(name: str, source: str) -> Training:
    summary = {"parameters": 1234, "tokens": 5000, "steps": 20, "loss": 1.25, "best_step": 10, "best_val_loss": 2.5}
    losses = [{"step": 10, "loss": 3.0, "lr": 0.1}, {"step": 20, "loss": 1.0, "lr": 0.2}]
    validations = [{"step": 10, "val_loss": 2.5, source: 2.5}, {"step": 20, "val_loss": 2.75, source: 2.75}]
    return Training(name, {**summary, "mix": {source: {"p": 0.5, "drawn": 0.25, "rows": 40}}}, losses, validations)


def report(text: str) -> str:
    """Return a report with `text` wherever a user's words can appear."""
    part = {"tokens": 7654321, "parts": [{"file": text, "sha256": text}]}
    scores = {text: {text: {"nats": 1.5, "bits_per_byte": 2.25, "tokens": 4321}}}
    return render_report(
        tables={"Validation sets": [HEAD, *score_rows(scores)], text: duplicates_table({text: DATA})},
        cards=[finished_card(training(name, text), flops_per_token=7404) for name in (text, f"{text} again")],
        mix={"sources": {text: {"train": part, "val": part}}},
        chat_mix={"sources": {text: {"files": [{"path": text, "sha256": text}]}}},
        verdict=[text, text],
        seen={text: Exposure(7654321, 0.25, 7654321 * 17.5)},
        notes=[text],
        samples={text: [(text, text)]},
        params={text: {text: text}, "list": [text]},
    )


def splice_section(name: str) -> str:
    stats = {"doc_len": 1234, "num_windows": 40, "fraction_at_least": {"0.5": 0.925}}
    measured = {"name": name, "before": {"median_pz": 1.9e-86}, "after": {**stats, "median_pz": 0.87}}
    facts = {"documents": [measured]}
    rules = MemorizeRules(chunk_size=20, prompt_tokens=10)
    highest = highest_by_token(np.array([0.25, 0.75]), np.array([0, 5]), rules, L=30)
    return render_splice(facts, {name: highest}, rules)
