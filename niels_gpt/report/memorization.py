"""What a model knows by heart, to look at: the text coloured token by token, and a strip for each document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from niels_gpt.tokenizer.incremental import IncrementalDecoder
from niels_gpt.tokenizer.vocabulary import Tokenizer


@dataclass(frozen=True)
class DocumentResult:
    """Ids, windows with their p_z, and of each token its log-probability (the first has none) and the likeliest id."""

    name: str
    tokens: np.ndarray
    starts: np.ndarray
    pz: np.ndarray
    log_probs: np.ndarray
    likeliest: np.ndarray


_STYLE = """body{font:16px/1.7 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}
pre{white-space:pre-wrap;font:15px/1.8 ui-monospace,monospace}svg{width:100%;height:auto}small{color:#666}"""


def render_page(documents: Sequence[DocumentResult], tokenizer: Tokenizer, *, window: Mapping[str, int]) -> str:
    """One self-contained page. Clear tokens are well predicted, red ones surprise; a tooltip says how well."""
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>P(z)</title><style>{_STYLE}</style><h1>P(z)</h1>"
    ]
    parts.append(
        f"<p><small>Windows of {window['chunk_size']} tokens, {window['prompt_tokens']} of them the prompt. "
        "Point at a token for its probability.</small></p>"
    )
    for document in documents:
        parts.append(f"<h2>{escape(document.name)}</h2>{render_strips([document], **window)}<pre>")
        decoder = IncrementalDecoder(tokenizer)
        for i, token in enumerate(document.tokens.tolist()):
            # A character that is split over tokens shows at the one that completes it.
            text = decoder.add(token) or ("" if tokenizer.piece(token) else "\u00a4")
            parts.append(_span(text, document, i, tokenizer))
        parts.append("</pre>")
    return "".join(parts) + "</html>\n"


def _span(text: str, document: DocumentResult, i: int, tokenizer: Tokenizer) -> str:
    if i == 0:
        return f'<span title="no context">{escape(text)}</span>'
    log_p = float(document.log_probs[i])
    guess = tokenizer.piece(int(document.likeliest[i])).decode("utf-8", errors="replace")
    title = escape(f"p = {np.exp(log_p):.4f}, log p = {log_p:.3f}, likeliest: {guess!r}", quote=True)
    hue, opacity = 6 * (max(log_p, -10.0) + 10), 1 - np.exp(log_p / 5)
    return f'<span title="{title}" style="background:hsla({hue:.0f},100%,50%,{opacity:.2f})">{escape(text)}</span>'


def render_strips(documents: Sequence[DocumentResult], *, chunk_size: int, prompt_tokens: int) -> str:
    """An SVG: for each document a strip over its tokens, as dark as the highest p_z of a suffix they are in."""
    width, height, gap = 1000, 40, 24
    total = len(documents) * (height + gap)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}" font-family="sans-serif">']
    for row, document in enumerate(documents):
        best = np.zeros(len(document.tokens))
        for start, pz in zip(document.starts.tolist(), document.pz.tolist(), strict=True):
            suffix = best[start + prompt_tokens : start + chunk_size]
            np.maximum(suffix, pz, out=suffix)
        top, step = row * (height + gap) + gap, width / max(1, len(best))
        label = f"{document.name}: highest P(z) over each token, white 0, blue 1"
        parts.append(f'<text x="0" y="{top - 6}" font-size="14">{escape(label)}</text>')
        edges = np.flatnonzero(np.diff(np.round(best, 2), prepend=np.nan, append=np.nan))
        for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            colour = f"rgba(8,48,107,{best[first]:.2f})"
            parts.append(
                f'<rect x="{first * step:.2f}" y="{top}" width="{(last - first) * step:.2f}" height="{height}" '
                f'fill="{colour}"/>'
            )
        parts.append(f'<rect x="0" y="{top}" width="{width}" height="{height}" fill="none" stroke="#999"/>')
    return "".join(parts) + "</svg>\n"
