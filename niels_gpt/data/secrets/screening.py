"""Remove secrets and personal data from the rows of a source before they are written, and report them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from typing import Any, Literal

from niels_gpt.data.secrets import Secret, find_secrets, located, mask
from niels_gpt.data.secrets.forms import Found
from niels_gpt.data.types import Chat, Document

# Find e-mail addresses, telephone numbers and national ids in a text.
#
# Telephone numbers are judged by the `phonenumbers` package and ids by the check digits that `python-stdnum` knows.
# Both are slow, and see only what looks like a number of the kind. They are imported where the first such number is
# met.

EMAIL, PHONE, ID = "e-mail address", "telephone number", "national id"

_LOCAL, _DOMAIN = re.compile(r"[\w.%+-]{1,64}\Z"), re.compile(r"@(?:[\w-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![\w-])")
# Seven digits or more with little between them, and no part of a longer number, a name or a path.
_CANDIDATE = re.compile(
    r"(?<![\w./@#=&-])(?:\+|\()?[0-9](?:[ ().\u00a0\u2011\u2013/-]{0,3}[0-9]){6,17}(?![\w@/]|[.,-][0-9])"
)
_NAMED = re.compile(
    r"(?i)(?:tel|fon|phone|mobil|cell|handy|call|ruf|fax|whatsapp|sms|m[óo]vil|portable|t[ée]l[ée]f|celular)[^\n]{0,20}\Z"
)
_REGIONS = ("US", "GB", "DE", "FR", "ES", "PT", "BR", "IT", "NL", "AT", "CH", "BE")
# (form, module of stdnum, name that must stand in front of digits alone)
_IDS = (
    (r"[0-9]{3}-[0-9]{2}-[0-9]{4}", "us.ssn", ""),
    (r"[A-Z]{6}[0-9]{2}[A-EHLMPRST][0-9]{2}[A-Z][0-9]{3}[A-Z]", "it.codicefiscale", ""),
    (r"[0-9]{8}[ -]?[A-Z]", "es.dni", ""),
    (r"[XYZ][ -]?[0-9]{7}[ -]?[A-Z]", "es.nie", ""),
    (r"[12] ?[0-9]{2} ?(?:0[1-9]|1[0-2]) ?[0-9][0-9AB] ?[0-9]{3} ?[0-9]{3} ?[0-9]{2}", "fr.nir", ""),
    (r"[0-9]{3}\.[0-9]{3}\.[0-9]{3}-[0-9]{2}", "br.cpf", ""),
    (r"[0-9]{11}", "br.cpf", "cpf"),
    (r"[0-9]{8} ?[0-9] ?[A-Z]{2}[0-9]", "pt.cc", ""),
    (r"[0-9]{9}", "pt.nif", "nif|contribuinte"),
    (r"[0-9]{9}|[0-9]{4}[. ][0-9]{2}[. ][0-9]{3}", "nl.bsn", "bsn|burgerservicenummer|sofinummer"),
    (r"[0-9]{2} ?[0-9]{3} ?[0-9]{3} ?[0-9]{3}", "de.idnr", "steuer|identifikationsnummer|idnr"),
    (r"[0-9]{2}\.[0-9]{2}\.[0-9]{2}-[0-9]{3}\.[0-9]{2}", "be.nn", ""),
    (r"756\.[0-9]{4}\.[0-9]{4}\.[0-9]{2}", "ch.ssn", ""),
    (r"[0-9]{6}-[0-9]{4}", "dk.cpr", "cpr|personnummer"),
    (r"[0-9]{10}|[0-9]{3} [0-9]{3} [0-9]{4}", "gb.nhs", "nhs"),
    (r"[0-9]{11}", "pl.pesel", "pesel"),
)
_ANY_ID = re.compile(rf"(?<![\w.>-])(?=[A-Z0-9])(?:{'|'.join(form for form, _, _ in _IDS)})(?![\w(-]|[.,][0-9])")


def find_personal(text: str) -> list[Secret]:
    """Return e-mail addresses, telephone numbers and national ids of a text in order."""
    return located(text, [*_emails(text), *_ids(text), *_phones(text)])


def _emails(text: str) -> Found:
    for at in (sign.start() for sign in re.finditer("@", text)):
        local, domain = _LOCAL.search(text, max(0, at - 64), at), _DOMAIN.match(text, at)
        if local and domain:
            yield local.start(), domain.end(), EMAIL


def _ids(text: str) -> Found:
    for found in _ANY_ID.finditer(text):
        before = text[max(0, found.start() - 40) : found.start()]
        for form, module, name in _IDS:
            if not re.fullmatch(form, found[0]) or (name and not re.search(f"(?i){name}", before)):
                continue
            if import_module(f"stdnum.{module}").is_valid(found[0]):
                yield *found.span(), ID
                break


def _phones(text: str) -> Found:
    for found in _CANDIDATE.finditer(text):
        number, named = found[0], bool(_NAMED.search(text, max(0, found.start() - 40), found.start()))
        long = len(re.sub("[^0-9]", "", number)) >= 9  # fewer digits are years and sizes
        written = named or (long and re.match(r"\(?0[1-9]|.*[ ()-]", number))
        if (number.startswith("+") or written) and _is_phone(number, named):
            yield *found.span(), PHONE


def _is_phone(number: str, named: bool) -> bool:
    """Check a number of some country, written as it is there; one behind a name such as "tel." may have any groups."""
    from phonenumbers import Leniency, PhoneNumberMatcher

    if number.startswith("+"):
        return PhoneNumberMatcher(number, None, leniency=Leniency.VALID).has_next()
    leniency = Leniency.VALID if named else Leniency.STRICT_GROUPING
    return any(PhoneNumberMatcher(number, region, leniency=leniency).has_next() for region in _REGIONS)


# What is done about secrets in the rows of a source, before any of them is written; and what is told of it.
#
# Told are a secret's kind, its document and its line, never a character of it.

OnSecret = Literal["keep", "mask", "drop", "fail"]
OnPersonal = Literal["keep", "mask"]
NAMED = 20  # of all that were found the first are named, and the rest counted
_DONE = {"keep": "kept", "mask": "replaced", "drop": "skipped with their documents"}


@dataclass(frozen=True)
class Findings:
    """Secrets of some rows: how many of each kind, in how many documents, and where the first of them stand.

    `personal` counts e-mail addresses, telephone numbers and national ids that were masked, by kind.
    """

    kinds: dict[str, int] = field(default_factory=dict)
    documents: int = 0
    first: tuple[str, ...] = ()
    personal: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.documents or self.personal)

    def __add__(self, other: Findings) -> Findings:
        kinds = Counter(self.kinds) + Counter(other.kinds)
        first = (*self.first, *other.first)[:NAMED]
        personal = Counter(self.personal) + Counter(other.personal)
        documents = self.documents + other.documents
        return Findings(dict(sorted(kinds.items())), documents, first, dict(sorted(personal.items())))

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Findings:
        found = record.get("secrets", {})
        return replace(cls(**found), first=tuple(found["first"])) if found else cls()

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
            yield f"{sum(self.personal.values()):,} personal details are replaced ({counted(self.personal)})"
        total, kinds = sum(self.kinds.values()), counted(self.kinds)
        if not total:
            return
        yield f"{total:,} secrets in {self.documents:,} documents are {_DONE[on_secret]} ({kinds})"
        yield from (f"  {place}" for place in self.first)
        if total > len(self.first):
            yield f"  and {total - len(self.first):,} more"
        if on_secret == "keep":
            yield "a model learns what is kept: `on_secret: mask` in the source's `load` replaces it"


class Screen:
    """Filter of secrets and personal details for rows on their way to a file.

    Findings of dropped rows are counted with the next row that passes, so that counts do not depend on where a file
    ends or when the work was interrupted.
    """

    def __init__(self, on_secret: OnSecret, on_personal: OnPersonal = "keep") -> None:
        self._on_secret, self._on_personal = on_secret, on_personal
        self._passed, self._dropped = Findings(), Findings()

    def rows(self, rows: Iterable[Document] | Iterable[Chat]) -> Iterator[Document | Chat]:
        for row in rows:
            clean, found = _screened(
                row, mask_secrets=self._on_secret != "keep", mask_personal=self._on_personal == "mask"
            )
            if found.documents and self._on_secret == "fail":
                raise ValueError(
                    f"{found.first[0]}: take it out, or say by on_secret in the source's `load` what to do about it "
                    "(keep, mask or drop); nothing was written"
                )
            if found.documents and self._on_secret == "drop":
                self._dropped += found
                continue
            if found or self._dropped:
                self._passed += self._dropped + found
                self._dropped = Findings()
            yield clean

    def take(self) -> Findings:
        """Return the findings of the rows passed since the last call."""
        found, self._passed = self._passed, Findings()
        return found

    def rest(self) -> Findings:
        """Return the findings of rows dropped after the last one that passed."""
        return self._dropped


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
    """Yield the texts of a row with their names."""
    if isinstance(row, Document):
        yield row.id, row.text
    else:
        for number, message in enumerate(row.messages, start=1):
            yield f"{row.id}, message {number}", message["content"]


def _screened(row: Document | Chat, *, mask_secrets: bool, mask_personal: bool) -> tuple[Document | Chat, Findings]:
    """Return the row without what is to be masked, and what was found in it."""
    kinds: Counter[str] = Counter()
    personal: Counter[str] = Counter()
    places, clean = [], []
    for name, text in _texts(row):
        secrets = find_secrets(text)
        places += [f"{name}, line {secret.line}: {secret.kind}" for secret in secrets]
        kinds.update(secret.kind for secret in secrets)
        kept = mask(text, secrets) if mask_secrets else text
        if mask_personal:
            details = find_personal(kept)
            personal.update(detail.kind for detail in details)
            kept = mask(kept, details)
        clean.append(kept)
    found = Findings(dict(kinds), int(bool(places)), tuple(places[:NAMED]), dict(personal))
    if not found:
        return row, found
    if isinstance(row, Document):
        return replace(row, text=clean[0]), found
    messages = [{**message, "content": text} for message, text in zip(row.messages, clean, strict=True)]
    return replace(row, messages=messages), found
