"""Find and mask secrets and personal data: in a text, or in the rows of a source before they are written.

Keys, tokens, passwords, card numbers, IBANs, recovery codes and seed phrases are found by their form: published
formats, check digits and word lists (`tokens.py`), and names such as `password:` in front of them (`named.py`). Formats
and words are in tables (`*.tsv`). Every pass takes time in proportion to the text, however it was written.

Reported are a secret's kind, its document and its line, never a character of it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from niels_gpt.data.secrets import tokens
from niels_gpt.data.secrets.named import find_named
from niels_gpt.data.types import Chat, Document
from niels_gpt.files.messages import plural

OnSecret = Literal["keep", "mask", "drop", "fail"]
OnPersonal = Literal["keep", "mask"]
NAMED = 20  # of all that were found the first are named, and the rest counted
_DONE = {"keep": "kept", "mask": "replaced", "drop": "skipped with their documents"}

_FROM_DIGIT = re.compile(r"[0-9]\S*+")
_NAME_BEFORE = 100  # characters to search for `password for the router:`


@dataclass(frozen=True)
class Secret:
    """Characters `start` to `end` of a text, which begin in this `line` (from 1)."""

    kind: str
    start: int
    end: int
    line: int


def find_secrets(text: str) -> list[Secret]:
    """Return all secrets of a text in order; those that overlap are merged."""
    lower = text.lower()
    if len(lower) != len(text):  # the small form of a few letters is two characters
        lower = "".join(small if len(small := letter.lower()) == 1 else letter for letter in text)
    digits = [word.span() for word in _FROM_DIGIT.finditer(text)]
    found = (
        *tokens.find_private_keys(text),
        *tokens.find_tokens(text, digits),
        *tokens.find_numbers(text, digits),
        *find_named(text, lower),
        *tokens.find_seed_phrases(lower),
    )
    return located(text, found)


def find_personal(text: str) -> list[Secret]:
    """Return e-mail addresses, telephone numbers and national ids of a text in order."""
    return located(text, [*tokens.find_emails(text), *tokens.find_ids(text), *tokens.find_phones(text)])


def located(text: str, found: Iterable[tuple[int, int, str]]) -> list[Secret]:
    """Return (start, end, kind) in order with their lines, merged where they overlap."""
    secrets: list[Secret] = []
    line = counted = 0
    # A set has no order from run to run: of two kinds for the same characters the first found must win everywhere.
    for start, end, kind in sorted(dict.fromkeys(found), key=lambda s: (s[0], -s[1])):
        if secrets and start < secrets[-1].end:
            secrets[-1] = replace(secrets[-1], end=max(end, secrets[-1].end))
            continue
        line += text.count("\n", counted, start)
        counted = start
        secrets.append(Secret(kind, start, end, line + 1))
    return secrets


def mask(text: str, secrets: Sequence[Secret]) -> str:
    """Return the text with every secret replaced by its kind in brackets, which no rule takes for a secret."""
    parts, end = [], 0
    for secret in secrets:
        parts += [text[end : secret.start], f"[{secret.kind}]"]
        end = secret.end
    return "".join([*parts, text[end:]])


def outside_secrets(text: str, place: int) -> int:
    """Return the first position from `place` on where a cut separates no secret from its name."""
    for secret in find_secrets(text):
        if secret.start - _NAME_BEFORE < place < secret.end:
            place = secret.end
    return place


@dataclass(frozen=True)
class Findings:
    """Secrets of some rows: how many of each kind, in how many documents, and where the first of them stand.

    `personal` counts e-mail addresses, telephone numbers and national ids that were masked, by kind.
    """

    kinds: dict[str, int] = field(default_factory=dict)
    documents: int = 0
    first: list[str] = field(default_factory=list)
    personal: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.documents or self.personal)

    def __add__(self, other: "Findings") -> "Findings":
        kinds = Counter(self.kinds) + Counter(other.kinds)
        first = [*self.first, *other.first][:NAMED]
        personal = Counter(self.personal) + Counter(other.personal)
        documents = self.documents + other.documents
        return Findings(dict(sorted(kinds.items())), documents, first, dict(sorted(personal.items())))

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> "Findings":
        return cls(**record.get("secrets", {}))

    def record(self) -> dict[str, Any]:
        """For the record of a part that is done; nothing where nothing was found."""
        return {"secrets": asdict(self)} if self else {}

    def facts(self, on_secret: OnSecret) -> dict[str, Any]:
        """Numbers alone, for a manifest that others may read; nothing where nothing was found."""
        secrets = {"secrets": {"done": on_secret, "documents": self.documents, **self.kinds}}
        return (secrets if self.documents else {}) | ({"personal": self.personal} if self.personal else {})

    def told(self, on_secret: OnSecret) -> Iterator[str]:
        """Lines for the log of a run."""
        if self.personal:
            found = sum(self.personal.values())
            verb = "is" if found == 1 else "are"
            yield f"{plural(found, 'personal detail')} {verb} replaced ({counted(self.personal)})"
        total, kinds = sum(self.kinds.values()), counted(self.kinds)
        if not total:
            return
        where, verb = plural(self.documents, "document"), "is" if total == 1 else "are"
        yield f"{plural(total, 'secret')} in {where} {verb} {_DONE[on_secret]} ({kinds})"
        yield from (f"  {place}" for place in self.first)
        if total > len(self.first):
            yield f"  and {total - len(self.first):,} more"
        if on_secret == "keep":
            yield "a model learns what is kept: `on_secret: mask` in the source's `load` replaces it"


class Screen:
    """Filter of secrets and personal details for rows on their way to a file.

    Findings of dropped rows are counted with the next row that passes, so that counts do not depend on where a file
    ends or when the work was interrupted. `dropped` has those of rows after the last one that passed.
    """

    def __init__(self, on_secret: OnSecret, on_personal: OnPersonal = "keep") -> None:
        self._on_secret, self._on_personal = on_secret, on_personal
        self._passed, self.dropped = Findings(), Findings()

    def rows(self, rows: Iterable[Document] | Iterable[Chat]) -> Iterator[Document | Chat]:
        for row in rows:
            clean, found = self._screened(row)
            if found.documents and self._on_secret == "fail":
                raise ValueError(
                    f"{found.first[0]}: take it out, or say by on_secret in the source's `load` what to do about it "
                    "(keep, mask or drop); nothing was written"
                )
            if found.documents and self._on_secret == "drop":
                self.dropped += found
                continue
            if found or self.dropped:
                self._passed += self.dropped + found
                self.dropped = Findings()
            yield clean

    def _screened(self, row: Document | Chat) -> tuple[Document | Chat, Findings]:
        """Return the row without what is to be masked, and what was found in it."""
        kinds: Counter[str] = Counter()
        personal: Counter[str] = Counter()
        places, clean = [], []
        for name, text in _texts(row):
            secrets = find_secrets(text)
            places += [f"{name}, line {secret.line}: {secret.kind}" for secret in secrets]
            kinds.update(secret.kind for secret in secrets)
            kept = text if self._on_secret == "keep" else mask(text, secrets)
            details = find_personal(kept) if self._on_personal == "mask" else []
            personal.update(detail.kind for detail in details)
            clean.append(mask(kept, details))
        found = Findings(dict(kinds), int(bool(places)), places[:NAMED], dict(personal))
        if isinstance(row, Document):
            return replace(row, text=clean[0]), found
        messages = [{**message, "content": text} for message, text in zip(row.messages, clean, strict=True)]
        return replace(row, messages=messages), found

    def take(self) -> Findings:
        """Return the findings of the rows passed since the last call."""
        found, self._passed = self._passed, Findings()
        return found


def counted(kinds: Mapping[str, int]) -> str:
    """Return `api key: 2, password: 1`."""
    return ", ".join(f"{kind}: {count:,}" for kind, count in kinds.items())


def findings_of(row: Document | Chat) -> Iterator[tuple[str, str]]:
    """Yield for each secret of a row its document, line and kind, and the line around it with all secrets masked."""
    for name, text in _texts(row):
        secrets = find_secrets(text)
        masked, moved = mask(text, secrets), 0
        for secret in secrets:
            start = secret.start + moved
            moved += len(secret.kind) + 2 - (secret.end - secret.start)
            end = secret.end + moved
            before, after = masked[max(0, start - 40) : start], masked[end : end + 20]
            around = before.rpartition("\n")[2] + masked[start:end] + after.partition("\n")[0]
            yield f"{name}, line {secret.line}: {secret.kind}", around.strip()


def _texts(row: Document | Chat) -> Iterator[tuple[str, str]]:
    if isinstance(row, Document):
        yield row.id, row.text
    else:
        for number, message in enumerate(row.messages, start=1):
            yield f"{row.id}, message {number}", message["content"]
