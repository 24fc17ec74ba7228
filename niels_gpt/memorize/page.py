"""Display of memorized text: documents coloured token by token, and a strip of P(z) for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from niels_gpt.report import page
from niels_gpt.tokenizer.vocabulary import IncrementalDecoder, Tokenizer

_WIDTH, _HEIGHT, _GAP = 1000, 40, 24  # of a strip, in SVG units
_SHADES = 10  # of a token's colour; page.css has a class for each
# Set as attributes, since the page's content security policy forbids inline styles. The fallback colours are for the
# SVG as a file of its own, without page.css.
_TEXT, _PZ, _EDGE = "var(--ink, #1d1c1a)", "var(--accent, #08306b)", "var(--soft, #6b675f)"


@dataclass(frozen=True)
class Strip:
    """P(z) along a document of `length` tokens: the starts of its windows, and the p_z of each."""

    name: str
    length: int
    starts: np.ndarray
    pz: np.ndarray


@dataclass(frozen=True)
class DocumentResult:
    """Document with its ids, the p_z of its windows, and each token's log probability (first: nan) and best guess."""

    name: str
    tokens: np.ndarray
    starts: np.ndarray
    pz: np.ndarray
    log_probs: np.ndarray
    likeliest: np.ndarray

    @property
    def strip(self) -> Strip:
        return Strip(self.name, len(self.tokens), self.starts, self.pz)


def render_page(documents: Sequence[DocumentResult], tokenizer: Tokenizer, *, window: Mapping[str, int]) -> str:
    """Return a self-contained HTML page: the less probable a token, the redder it is; tooltips have the numbers."""
    shades = "".join(f'<span class="s{i}">{"probable" if not i else "&nbsp;" if i < _SHADES else "improbable"}</span>'
                     for i in range(_SHADES + 1))  # fmt: skip
    parts = [
        explain_pz(window),
        f'<p>Less probable tokens are redder: <span class="shades">{shades}</span>. Point at one for its '
        "probability and for the model's most probable token there.</p>",
    ]
    for document in documents:
        strip = render_strips([document.strip], **window)
        parts.append(f'<section><h2>{escape(document.name)}</h2>{strip}<pre class="passage" dir="auto">')
        decoder = IncrementalDecoder(tokenizer)
        for i, token in enumerate(document.tokens.tolist()):
            # A character split over several tokens is shown at the one that completes it.
            text = decoder.add(token) or ("" if tokenizer.piece(token) else "\u00a4")
            parts.append(_span(text, document, i, tokenizer))
        parts.append("</pre></section>")
    return page.render_page("Memorization", cards=[], live=False, before="".join(parts))


def explain_pz(window: Mapping[str, int]) -> str:
    """Return HTML that explains P(z) and its colours."""
    prompt, asked = window["prompt_tokens"], window["chunk_size"] - window["prompt_tokens"]
    return (
        f"<p><b>P(z)</b> is the probability that the model, given {prompt} tokens of a document, generates the next "
        f"{asked} verbatim: the product of the probabilities of those {asked}. At 1 the passage is memorized, at 0.5 "
        "every second sample is verbatim, and for text that was not in the training data P(z) is 1e-50 or less. It is "
        "measured for windows all along a document; each token has the highest P(z) of the windows that contain it "
        "after their prompt.</p>" + _legend()
    )


def render_splice(facts: Mapping[str, Any], strips: Sequence[Strip], *, window: Mapping[str, int]) -> str:
    """Return the report's section on the splice stage, before and after; `facts`: metrics of the memorize stage."""
    head = (
        "document",
        "tokens",
        "windows",
        "median P(z) before",
        "median P(z) after",
        "windows with P(z) of 0.5 and more",
    )
    rows = [
        (
            stats["name"],
            f"{stats['after']['doc_len']:,}",
            f"{stats['after']['num_windows']:,}",
            *(f"{stats[when]['median_pz']:.2g}" for when in ("before", "after")),
            f"{stats['after']['fraction_at_least']['0.5']:.0%}",
        )
        for stats in facts["documents"]
    ]
    drawn = render_strips(strips, **window)
    return (
        f"<section><h2>Memorized: chosen documents before and after the splice stage</h2>"
        f"{page.render_table(head, rows)}{explain_pz(window)}{drawn}</section>"
    )


def _span(text: str, document: DocumentResult, i: int, tokenizer: Tokenizer) -> str:
    if i == 0:
        return f'<span title="no context">{escape(text)}</span>'
    log_p = float(document.log_probs[i])
    guess = tokenizer.piece(int(document.likeliest[i])).decode("utf-8", errors="replace")
    title = escape(f"p = {np.exp(log_p):.4f}, log p = {log_p:.3f}, most probable: {guess!r}", quote=True)
    # exp(log_p / 5) rather than p: the shades then still differ between improbable tokens.
    shade = round(_SHADES * (1 - np.exp(log_p / 5)))
    return f'<span title="{title}" class="s{shade}">{escape(text)}</span>'


def _legend() -> str:
    shades = [i / 10 for i in range(11)]
    boxes = "".join(
        f'<rect x="{24 * i}" y="0" width="24" height="14" fill="{_PZ}" fill-opacity="{shade:.2f}"/>'
        for i, shade in enumerate(shades)
    )
    return (
        '<p class="legend-pz">P(z) 0 <svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 264 14" width="264" '
        f'height="14" role="img" aria-label="from clear, 0, to blue, 1">{boxes}'
        f'<rect x="0.5" y="0.5" width="263" height="13" fill="none" stroke="{_EDGE}"/></svg> 1</p>'
    )


def render_strips(strips: Sequence[Strip], *, chunk_size: int, prompt_tokens: int) -> str:
    """Return an SVG with a strip per document: each token as dark as the highest p_z of a suffix that contains it."""
    total = len(strips) * (_HEIGHT + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="strips" viewBox="0 0 {_WIDTH} {total}" '
        'font-family="system-ui, sans-serif">'
    ]
    for row, strip in enumerate(strips):
        best = np.zeros(strip.length)
        for start, pz in zip(strip.starts.tolist(), strip.pz.tolist(), strict=True):
            suffix = best[start + prompt_tokens : start + chunk_size]
            np.maximum(suffix, pz, out=suffix)
        top, step = row * (_HEIGHT + _GAP) + _GAP, _WIDTH / max(1, len(best))
        label = f"{strip.name}: highest P(z) over each of {strip.length:,} tokens, clear 0, blue 1"
        parts.append(f'<text x="0" y="{top - 6}" font-size="14" fill="{_TEXT}">{escape(label)}</text>')
        # One rectangle per run of equal values, rounded to 0.01, keeps the file small.
        edges = np.flatnonzero(np.diff(np.round(best, 2), prepend=np.nan, append=np.nan))
        for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            parts.append(
                f'<rect x="{first * step:.2f}" y="{top}" width="{(last - first) * step:.2f}" height="{_HEIGHT}" '
                f'shape-rendering="crispEdges" fill="{_PZ}" fill-opacity="{best[first]:.2f}"/>'
            )
        parts.append(f'<rect x="0" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="{_EDGE}"/>')
    return "".join(parts) + "</svg>\n"
