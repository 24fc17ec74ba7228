"""Memorization of chosen documents: P(z) of windows, and pages that colour a document token by token.

P(z) is the probability that a model, given the prompt of a window, samples the rest of the window (z) verbatim. It is
kept as a logarithm in float64: 50 tokens at 3 nats/token are 1e-65, which is 0 in float32.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from niels_gpt.eval.held_out import inference
from niels_gpt.files.messages import read_text
from niels_gpt.leak import MemorizeRules
from niels_gpt.model.gpt import GPT
from niels_gpt.report import page
from niels_gpt.tokenizer.vocabulary import IncrementalDecoder, Tokenizer

TRIES = (1, 10, 100, 1000)  # samples an attacker takes
THRESHOLDS = (1e-3, 0.01, 0.1, 0.5, 0.9)  # of p_z


def pz_windows(L: int, *, chunk_size: int = 100, cursor_inc_tokens: int = 5) -> np.ndarray:
    """Return the starts of the windows of a document of L tokens: 0, inc, 2*inc, ... <= L - chunk_size."""
    return np.arange(0, max(0, L - chunk_size + 1), cursor_inc_tokens, dtype=np.int64)


def suffix_positions(chunk_size: int, prompt_tokens: int) -> range:
    """Return the positions whose prediction is scored: the prompt's last token to the window's last but one."""
    return range(prompt_tokens - 1, chunk_size - 1)


def log_pz(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    *,
    prompt_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
) -> torch.Tensor:
    """Return log p_z of windows, (...) in float64, from logits (..., N, V) and tokens (..., N); -inf outside top_k."""
    positions = suffix_positions(tokens.shape[-1], prompt_tokens)
    scored = logits[..., positions.start : positions.stop, :].double() / temperature
    if top_k is not None:
        kth = scored.topk(min(top_k, scored.shape[-1]), dim=-1).values[..., -1:]
        scored = scored.masked_fill(scored < kth, float("-inf"))  # ties with the k-th stay
    wanted = tokens[..., positions.start + 1 : positions.stop + 1, None]
    return scored.log_softmax(dim=-1).gather(-1, wanted).squeeze(-1).sum(dim=-1)


def document_log_pz(model: GPT, tokens: np.ndarray, rules: MemorizeRules) -> tuple[np.ndarray, np.ndarray]:
    """Return (starts, log p_z) of every window of a document of ids (L,)."""
    starts = pz_windows(len(tokens), chunk_size=rules.chunk_size, cursor_inc_tokens=rules.cursor_inc_tokens)
    device, values = model.tok_emb.weight.device, []
    with inference(model):
        for first in range(0, len(starts), rules.B):
            rows = sliding_window_view(tokens, rules.chunk_size)[starts[first : first + rules.B]].astype(np.int64)
            x = torch.from_numpy(rows).to(device)
            values.append(log_pz(model(x), x, prompt_tokens=rules.prompt_tokens, top_k=rules.top_k).cpu().numpy())
    return starts, np.concatenate(values)


def document_stats(starts: np.ndarray, log_pz: np.ndarray, rules: MemorizeRules, *, L: int) -> dict[str, Any]:
    """Return `pz_stats` of a document of L tokens, the median p_z by third of the starts, and the token coverage.

    The coverage is the fraction of the document's tokens in the suffix of a window with p_z >= 0.5.
    """
    p, third = np.exp(log_pz), np.minimum(2, 3 * starts // max(1, int(starts.max()) + 1))
    thirds = {name: p[third == i] for i, name in enumerate(("head", "middle", "tail"))}
    return {
        **pz_stats(log_pz),
        "doc_len": L,
        "median_pz_by_third": {name: float(np.median(own)) if len(own) else None for name, own in thirds.items()},
        "token_coverage": float((highest_by_token(p, starts, rules, L=L) >= 0.5).mean()),
    }


def token_log_probs(model: GPT, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (log probability, most probable id) of every token of a document, (L,) each.

    Windows of T tokens overlap by half, so that from T/2 on every token has at least T/2 tokens of context. The first
    token has none: its log probability is nan, its most probable id its own.
    """
    T, L = model.cfg.T, len(tokens)
    log_probs, most_probable = np.full(L, np.nan), np.array(tokens, dtype=np.int64)
    device = model.tok_emb.weight.device
    with inference(model):
        for start in range(0, max(1, L - T // 2), max(1, T // 2)):
            x = torch.from_numpy(np.asarray(tokens[start : start + T], dtype=np.int64)).to(device)
            scores = model(x[None])[0, :-1].double().log_softmax(dim=-1)
            own, best = scores.gather(-1, x[1:, None])[:, 0].cpu().numpy(), scores.argmax(dim=-1).cpu().numpy()
            skip = T // 2 if start else 1  # the window before scored the first half, with more context
            log_probs[start + skip : start + len(x)] = own[skip - 1 :]
            most_probable[start + skip : start + len(x)] = best[skip - 1 :]
    return log_probs, most_probable


def pz_stats(log_pz: Sequence[float] | np.ndarray) -> dict[str, Any]:
    """Return statistics of windows: p_z and log p_z, shares at least each threshold, and shares found in n samples."""
    logs = np.asarray(log_pz, dtype=np.float64)
    p = np.exp(logs)
    # 1 - (1 - p)^n, in a form that does not round a small p to 0.
    found = {n: -np.expm1(n * np.log1p(-np.minimum(p, 1 - 1e-16))) for n in TRIES}
    return {
        "num_windows": len(logs),
        "mean_pz": float(p.mean()),
        "median_pz": float(np.median(p)),
        "max_pz": float(p.max()),
        "mean_log_pz": float(logs.mean()),
        "median_log_pz": float(np.median(logs)),
        "fraction_at_least": {f"{t:g}": float((p >= t).mean()) for t in THRESHOLDS},
        "found_in_n_samples": {str(n): float(values.mean()) for n, values in found.items()},
    }


def highest_by_token(pz: np.ndarray, starts: np.ndarray, rules: MemorizeRules, *, L: int) -> np.ndarray:
    """Return for each of the L tokens of a document the highest p_z of the suffixes that contain it, 0 without any."""
    highest = np.zeros(L)
    for start, value in zip(starts.tolist(), pz.tolist(), strict=True):
        suffix = highest[start + rules.prompt_tokens : start + rules.chunk_size]
        np.maximum(suffix, value, out=suffix)
    return highest


_WIDTH, _HEIGHT, _GAP = 1000, 40, 24  # of a strip, in SVG units
_SHADES = 10  # of a token's colour; page.css has a class for each
# Set as attributes, since the page's content security policy forbids inline styles. The fallback colours are for the
# SVG as a file of its own, without page.css.
_TEXT, _PZ, _EDGE = "var(--ink, #1d1c1a)", "var(--accent, #08306b)", "var(--soft, #6b675f)"


@dataclass(frozen=True)
class DocumentResult:
    """Document with its ids, and for each token the highest p_z, its log probability (first: nan) and best guess."""

    name: str
    tokens: np.ndarray
    pz: np.ndarray
    log_probs: np.ndarray
    most_probable: np.ndarray


def render_page(documents: Sequence[DocumentResult], tokenizer: Tokenizer, rules: MemorizeRules) -> str:
    """Return a self-contained HTML page: the less probable a token, the redder it is; tooltips have the numbers."""
    labels = ["probable", *["&nbsp;"] * (_SHADES - 1), "improbable"]
    shades = "".join(f'<span class="s{shade}">{label}</span>' for shade, label in enumerate(labels))
    parts = [
        explain_pz(rules),
        f'<p>Less probable tokens are redder: <span class="shades">{shades}</span>. Point at one for its '
        "probability and for the model's most probable token there.</p>",
    ]
    for document in documents:
        strip = render_strips({document.name: document.pz})
        parts.append(f'<section><h2>{escape(document.name)}</h2>{strip}<pre class="passage" dir="auto">')
        decoder = IncrementalDecoder(tokenizer)
        for i, token in enumerate(document.tokens.tolist()):
            # A character split over several tokens is shown at the one that completes it.
            text = decoder.add(token) or ("" if tokenizer.piece(token) else "\u00a4")
            parts.append(_span(text, document, i, tokenizer))
        parts.append("</pre></section>")
    return page.render_page("Memorization", cards=[], live=False, before="".join(parts))


def explain_pz(rules: MemorizeRules) -> str:
    """Return HTML that explains P(z) and its colours."""
    text = read_text(Path(__file__).with_name("pz.html"))
    given = rules.prompt_tokens
    return "".join(text.format(given=given, asked=rules.chunk_size - given).splitlines())


def render_splice(facts: Mapping[str, Any], strips: Mapping[str, np.ndarray], rules: MemorizeRules) -> str:
    """Return the report's section on the splice stage, before and after; `facts`: metrics of the memorize stage."""
    numbers = ("median P(z) before", "median P(z) after", "windows with P(z) of 0.5 and more")
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
    table = page.render_table(("document", "tokens", "windows", *numbers), rows)
    title = "Memorized: chosen documents before and after the splice stage"
    return f"<section><h2>{title}</h2>{table}{explain_pz(rules)}{render_strips(strips)}</section>"


def _span(text: str, document: DocumentResult, i: int, tokenizer: Tokenizer) -> str:
    if i == 0:
        return f'<span title="no context">{escape(text)}</span>'
    log_p = float(document.log_probs[i])
    guess = tokenizer.piece(int(document.most_probable[i])).decode("utf-8", errors="replace")
    title = escape(f"p = {np.exp(log_p):.4f}, log p = {log_p:.3f}, most probable: {guess!r}", quote=True)
    # exp(log_p / 5) rather than p: the shades then still differ between improbable tokens.
    shade = round(_SHADES * (1 - np.exp(log_p / 5)))
    return f'<span title="{title}" class="s{shade}">{escape(text)}</span>'


def render_strips(strips: Mapping[str, np.ndarray]) -> str:
    """Return an SVG with a strip per document: each token as dark as its `highest_by_token`."""
    total = len(strips) * (_HEIGHT + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="strips" viewBox="0 0 {_WIDTH} {total}" '
        'font-family="system-ui, sans-serif">'
    ]
    for row, (name, pz) in enumerate(strips.items()):
        top, step = row * (_HEIGHT + _GAP) + _GAP, _WIDTH / max(1, len(pz))
        label = f"{name}: highest P(z) over each of {len(pz):,} tokens, clear 0, blue 1"
        parts.append(f'<text x="0" y="{top - 6}" font-size="14" fill="{_TEXT}">{escape(label)}</text>')
        # One rectangle per run of equal values, rounded to 0.01, keeps the file small.
        edges = np.flatnonzero(np.diff(np.round(pz, 2), prepend=np.nan, append=np.nan))
        for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            parts.append(
                f'<rect x="{first * step:.2f}" y="{top}" width="{(last - first) * step:.2f}" height="{_HEIGHT}" '
                f'shape-rendering="crispEdges" fill="{_PZ}" fill-opacity="{pz[first]:.2f}"/>'
            )
        parts.append(f'<rect x="0" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="{_EDGE}"/>')
    return "".join(parts) + "</svg>\n"
