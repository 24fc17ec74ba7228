"""What a model wrote, as a page to read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence


def format_samples(sections: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """Markdown: under each title its (prompt, text) pairs. A fence is longer than any the model can have written."""
    parts = []
    for section, samples in sections.items():
        parts.append(f"# {section}\n")
        for prompt, text in samples:
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
            title = next(iter(prompt.strip().splitlines()), repr(prompt))  # a prompt may be a line's end alone
            parts.append(f"## {title}\n\n{fence}text\n{text}\n{fence}\n")
    return "\n".join(parts)
