"""Find e-mail addresses, telephone numbers and national ids in a text.

Telephone numbers are judged by the `phonenumbers` package and ids by the check digits that `python-stdnum` knows. Both
are slow, and see only what looks like a number of the kind. They are imported where the first such number is met.
"""

from __future__ import annotations

import re
from importlib import import_module

from niels_gpt.data.secrets import Secret, located
from niels_gpt.data.secrets.values import Found

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
