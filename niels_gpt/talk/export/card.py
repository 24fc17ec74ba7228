"""The card of a model that is taken away: what it is made of, in numbers and hashes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from niels_gpt.report.leak import HEAD as LEAKED
from niels_gpt.report.leak import leak_rows
from niels_gpt.report.scores import HEAD, score_rows
from niels_gpt.talk.talker import Talker


def model_card(
    talker: Talker,
    *,
    mix: dict[str, Any],
    chat_mix: dict[str, Any],
    params: dict[str, Any],
    metrics: dict[str, Any],
    private: Sequence[str],
    leaks: Mapping[str, Mapping[str, Any]] | None,
) -> str:
    """Names, numbers and hashes; no text that the model was trained on. `leaks`: by private source what it tells of it,
    None where that was not measured."""
    cfg = talker.model.cfg
    size = f"T={cfg.T}, C={cfg.C}, L={cfg.L}, H={cfg.H}, d_ff={cfg.d_ff}, V={cfg.V}"
    lines = [
        f"# {talker.name}",
        "",
        f"A GPT of {talker.model.parameter_count():,} parameters ({size}), trained by niels_gpt.",
        f"Chats are put to it as {'tokens of their own' if talker.renderer == 'chat_tokens' else 'a text transcript'}.",
        "",
        "## Trained on",
        "",
        "| source | weight in the mix | training tokens | files | sha256 |",
        "|---|---|---|---|---|",
    ]
    for name, source in mix["sources"].items():
        hashes = " ".join(f"`{part['sha256']}`" for part in source["train"]["parts"])
        count, tokens = len(source["train"]["parts"]), source["train"]["tokens"]
        lines.append(f"| {name} | {params['p_train'].get(name, 0)} | {tokens:,} | {count} | {hashes} |")
    if talker.renderer == "chat_tokens":
        for name, source in chat_mix["sources"].items():
            hashes = " ".join(f"`{file['sha256']}`" for file in source["files"])
            lines.append(f"| {name} (chats) | {params['p_sft'].get(name, 0)} | | {len(source['files'])} | {hashes} |")
    scores = [f"| {' | '.join(row[:4])} |" for row in (HEAD, *score_rows(metrics))]
    lines += ["", "## Scores on held-out text", "", scores[0], "|---|---|---|---|", *scores[1:]]
    lines += ["", "## Private text in it", "", *_private(talker.name, private, leaks)]
    shown = {key: params[key] for key in ("model", "tokenizer", "p_train", "p_sft", "train", "sft")}
    lines += ["", "## Parameters", "", "```json", json.dumps(shown, indent=2), "```", ""]
    return "\n".join(lines)


def _private(model: str, private: Sequence[str], leaks: Mapping[str, Mapping[str, Any]] | None) -> list[str]:
    if not private:
        return ["None: it was trained on public sources alone."]
    if leaks is None:
        return [f"It was trained on private text ({', '.join(private)}). What it tells of that was not measured."]
    rows = [f"| {' | '.join(row)} |" for row in (LEAKED, *leak_rows({name: {model: s} for name, s in leaks.items()}))]
    return [rows[0], "|---" * len(LEAKED) + "|", *rows[1:]]
