"""What a tokenizer makes of a corpus: how much text a token carries, and how a line is cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from niels_gpt.files.damage import Damaged
from niels_gpt.files.sentences import visible
from niels_gpt.tokenizer.vocabulary import Tokenizer


@dataclass(frozen=True)
class SourceReport:
    tokens: int
    bytes_per_token: float
    vocabulary_used: int


def report_source(tokenizer: Tokenizer, files: Iterable[tuple[str, np.ndarray]]) -> SourceReport:
    """Counts over token files, (name, ids) each, one at a time."""
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for name, ids in files:
        found = np.bincount(ids, minlength=tokenizer.vocab_size)
        if len(found) > tokenizer.vocab_size:
            raise Damaged(name, f"has ids at or above V={tokenizer.vocab_size}")
        counts += found
    tokens = int(counts.sum())
    text_bytes = int(counts @ tokenizer.token_bytes())
    return SourceReport(tokens=tokens, bytes_per_token=text_bytes / tokens, vocabulary_used=int((counts > 0).sum()))


def format_report(tokenizer: Tokenizer, sources: Mapping[str, SourceReport], *, line: str) -> str:
    rows = [f"V = {tokenizer.vocab_size:,}", "", f"{'source':<14}{'tokens':>14}{'bytes/token':>13}{'ids used':>10}"]
    rows += [
        f"{name:<14}{report.tokens:>14,}{report.bytes_per_token:>13.3f}{report.vocabulary_used:>10,}"
        for name, report in sources.items()
    ]
    pieces = sorted((tokenizer.piece(i) for i in range(tokenizer.vocab_size)), key=len, reverse=True)[:12]
    rows += ["", "longest pieces: " + " ".join(_show(piece) for piece in pieces)]
    ids = tokenizer.encode(line)
    rows += ["", f"{len(ids)} tokens: " + " ".join(_show(tokenizer.piece(i)) for i in ids)]
    return "\n".join(rows)


def _show(piece: bytes) -> str:
    """Visible, with spaces and line ends as marks, and bytes that are no character by number."""
    try:
        text = piece.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(f"<{byte:02X}>" for byte in piece)
    return f"[{visible(text).replace(' ', '·').replace(chr(10), '⏎')}]"
