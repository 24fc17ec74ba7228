"""A chat as a person can check it: roles by name, and what the model is trained to say set apart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from niels_gpt.files.sentences import visible
from niels_gpt.tokenizer.vocabulary import Tokenizer

_ON, _OFF = "\033[1;32m", "\033[0m"


def mark_chat(tokenizer: Tokenizer, ids: Sequence[int], learned: Sequence[bool], *, color: bool) -> str:
    """One chat as text, without padding; a run of learned tokens stands in green, or in «» without colour."""
    names = {id: f"<{name}>" for name, id in tokenizer.special_token_ids().items()}
    eot = tokenizer.special_token_ids()["eot"]
    end = min(len(ids), max(i for i, id in enumerate(ids) if id != eot) + 2)  # its own end of turn, and no padding
    marks = (_ON, _OFF) if color else ("«", "»")
    parts: list[str] = []
    for is_learned, run in groupby(range(end), key=learned.__getitem__):
        text = _text(tokenizer, [ids[i] for i in run], names)
        parts.append(f"{marks[0]}{text}{marks[1]}" if is_learned else text)
    return "".join(parts)


def _text(tokenizer: Tokenizer, ids: Sequence[int], names: dict[int, str]) -> str:
    out: list[str] = []
    run: list[int] = []
    for id in ids:
        if id in names:
            out += [visible(tokenizer.decode(run)), names[id]]
            run = []
        else:
            run.append(id)
    return "".join([*out, visible(tokenizer.decode(run))])
