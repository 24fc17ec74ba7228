"""What a model wrote, as a page to read."""

from __future__ import annotations

from collections.abc import Sequence


def format_samples(prompts: Sequence[str], texts: Sequence[str]) -> str:
    """Markdown: for each prompt what the model made of it. The fence is longer than any the model can have written."""
    parts = ["# Samples\n"]
    for i, (prompt, text) in enumerate(zip(prompts, texts, strict=True), start=1):
        fence = "`" * max(3, _longest_run(text, "`") + 1)
        parts.append(f"## {i}. {prompt.strip().splitlines()[0]}\n\n{fence}text\n{text}\n{fence}\n")
    return "\n".join(parts)


def _longest_run(text: str, character: str) -> int:
    longest = run = 0
    for c in text:
        run = run + 1 if c == character else 0
        longest = max(longest, run)
    return longest
