"""What is done about secrets in the rows of a source, before any of them is written; and what is told of it.

Told are a secret's kind, its document and its line, never a character of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from niels_gpt.data.secrets import find_secrets, mask
from niels_gpt.data.types import Chat, Document

OnSecret = Literal["keep", "mask", "drop", "fail"]
NAMED = 20  # of all that were found the first are named, and the rest counted
_DONE = {"keep": "kept", "mask": "replaced", "drop": "left out with their documents"}


@dataclass(frozen=True)
class Findings:
    """Secrets of some rows: how many of each kind, in how many documents, and where the first of them stand."""

    kinds: dict[str, int] = field(default_factory=dict)
    documents: int = 0
    first: tuple[str, ...] = ()

    def __add__(self, other: Findings) -> Findings:
        kinds = Counter(self.kinds) + Counter(other.kinds)
        first = (*self.first, *other.first)[:NAMED]
        return Findings(dict(sorted(kinds.items())), self.documents + other.documents, first)

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Findings:
        found = record.get("secrets", {})
        return replace(cls(**found), first=tuple(found["first"])) if found else cls()

    def record(self) -> dict[str, Any]:
        """For the record of a part that is done; nothing where nothing was found."""
        return {"secrets": asdict(self)} if self.documents else {}

    def facts(self, on_secret: OnSecret) -> dict[str, Any]:
        """Numbers alone, for a manifest that others may read; nothing where nothing was found."""
        return {"secrets": {"done": on_secret, "documents": self.documents, **self.kinds}} if self.documents else {}

    def told(self, on_secret: OnSecret) -> Iterator[str]:
        """Lines for the log of a run."""
        total = sum(self.kinds.values())
        if not total:
            return
        kinds = ", ".join(f"{kind}: {count:,}" for kind, count in self.kinds.items())
        yield f"{total:,} secrets in {self.documents:,} documents are {_DONE[on_secret]} ({kinds})"
        yield from (f"  {place}" for place in self.first)
        if total > len(self.first):
            yield f"  and {total - len(self.first):,} more"
        if on_secret == "keep":
            yield "a model learns what is kept: `on_secret: mask` in the source's `load` replaces it"


class Screen:
    """Rows on their way to a file. What is found in dropped ones is counted with the next row that passes: so it is the
    same wherever a file ends, and whenever the work was interrupted."""

    def __init__(self, on_secret: OnSecret) -> None:
        self._on_secret = on_secret
        self._passed, self._dropped = Findings(), Findings()

    def rows(self, rows: Iterable[Document] | Iterable[Chat]) -> Iterator[Document | Chat]:
        for row in rows:
            clean, found = _screened(row)
            if found.documents and self._on_secret == "fail":
                raise ValueError(
                    f"{found.first[0]}: take it out, or say by on_secret in the source's `load` what to do about it "
                    "(keep, mask or drop); nothing was written"
                )
            if found.documents and self._on_secret == "drop":
                self._dropped += found
                continue
            if found.documents or self._dropped.documents:
                self._passed += self._dropped + found
                self._dropped = Findings()
            yield row if self._on_secret == "keep" else clean

    def take(self) -> Findings:
        """Of the rows that have passed since it was last asked."""
        found, self._passed = self._passed, Findings()
        return found

    def rest(self) -> Findings:
        """Of rows dropped behind the last one that has passed."""
        return self._dropped


def _screened(row: Document | Chat) -> tuple[Document | Chat, Findings]:
    """The row without its secrets, and what they were."""
    texts = [row.text] if isinstance(row, Document) else [message["content"] for message in row.messages]
    kinds: Counter[str] = Counter()
    places, clean = [], []
    for number, text in enumerate(texts, start=1):
        secrets = find_secrets(text)
        name = row.id if isinstance(row, Document) else f"{row.id}, message {number}"
        places += [f"{name}, line {secret.line}: {secret.kind}" for secret in secrets]
        kinds.update(secret.kind for secret in secrets)
        clean.append(mask(text, secrets))
    if not places:
        return row, Findings()
    found = Findings(dict(kinds), 1, tuple(places[:NAMED]))
    if isinstance(row, Document):
        return replace(row, text=clean[0]), found
    messages = [{**message, "content": text} for message, text in zip(row.messages, clean, strict=True)]
    return replace(row, messages=messages), found
