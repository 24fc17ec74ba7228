"""Find secrets by their form (tokens, key blocks, card numbers, IBANs, seed phrases), and personal data."""

import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from importlib import import_module

from niels_gpt.data.secrets import forms
from niels_gpt.data.secrets.forms import Found

# Private keys: PEM and PGP. Lines may be quoted, indented, or written as \n in one line of JSON.

_NAME = r"(?:(?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?|OpenVPN Static key V[0-9])-----"
_HEAD, _FOOT = re.compile(f"-----BEGIN {_NAME}"), re.compile(f"-----END {_NAME}")
_PUTTY = re.compile(r"Private-Lines: [0-9]{1,3}\r?\n((?:[A-Za-z0-9+/=]{1,80}(?:\r?\n|\Z))++)")
_WHOLE = re.compile(rf"((?:(?!-----)[\s\S])*+){_FOOT.pattern}")
_SOFT = r"(?:\\[nrt]|[^\S\r\n]|[>|\"',#*\\])*+"
_GAP, _LINE_END = rf"(?:{_SOFT}[\r\n]++)*+{_SOFT}", rf"{_SOFT}(?:\r?\n)?+{_SOFT}"
_CUT_OFF = re.compile(  # without a foot, as far as the lines are long and follow one another
    # Not possessive: until 3.11.5 Python kept too much of a possessive group that ends in the middle.
    rf"((?:{_GAP}(?:Proc-Type|DEK-Info|Version|Comment|Charset|Hash):[^\n\\]{{0,200}}+)*+{_GAP}"
    rf"[A-Za-z0-9+/=]{{16,}}+(?:{_LINE_END}[A-Za-z0-9+/=]{{16,}}+)*"
    rf"(?:{_LINE_END}=?[A-Za-z0-9+/]{{1,15}}+={{0,2}}(?![\w ]))?)"
)
_LINE_BEFORE = re.compile(r"[\s>|\"',#*]*[A-Za-z0-9+/=]+[\s\"',]*")


def find_private_keys(text: str) -> Found:
    """Yield PEM, PGP and PuTTY blocks, also without a head or a foot."""
    for lines in _PUTTY.finditer(text) if "Private-Lines" in text else ():
        yield lines.start(1), lines.end(1) - (text[lines.end(1) - 1] == "\n"), forms.PRIVATE_KEY
    if "PRIVATE KEY" not in text and "Static key" not in text:
        return
    end = 0
    for head in _HEAD.finditer(text):
        body = _WHOLE.match(text, head.end()) or _CUT_OFF.match(text, head.end())
        if body and _holds_key(body[1]):
            end = body.end()
            yield head.start(), end, forms.PRIVATE_KEY
    for foot in _FOOT.finditer(text):  # its head is in another document
        start = foot.start()
        while start > end:
            before = text.rfind("\n", end, start - 1) + 1 or end
            if not _LINE_BEFORE.fullmatch(text, before, start):
                break
            start = before
        if foot.end() > end and _holds_key(text[start : foot.start()]):
            yield start, foot.end(), forms.PRIVATE_KEY


def _holds_key(body: str) -> bool:
    """Check for enough characters of a key, and some in a row: with fewer, somebody wrote about one."""
    return len(re.sub(r"[^A-Za-z0-9+/]", "", body)) >= 32 and bool(re.search(r"[A-Za-z0-9+/]{16}", body))


# Tokens of providers. All of them have a digit, so that only words with one are looked at.

_REACH = 500  # characters of a word in front of its first digit, and of a URL in front of its @
_JWT = re.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]{10,}+")
_IN_URL = re.compile(r"://[^\s/:@\"'<>?#]{0,200}:([^\s/@\"'<>`]{1,200})@(?=[A-Za-z0-9\[_-])")
_HASH = re.compile(
    r"(?:\$(?:1|2[abxy]|5|6|7|y|gy|apr1|argon2(?:id|i|d)|pbkdf2[\w-]*)\$|pbkdf2_\w{4,8}\$|\{S?SHA(?:256|512)?\})"
    r"[A-Za-z0-9./+=,$-]{20,300}|(?<=:)[0-9a-f]{32}:[0-9a-f]{32}(?=:::)"
)
_PGPASS = re.compile(r"[\w.*-]{1,100}:(?:[0-9]{2,5}|\*):[\w*-]{1,60}:[\w*-]{1,60}:(\S{4,100})")
_AFTER_EMAIL = re.compile(
    r"@(?:[\w-]{1,63}\.){1,6}[A-Za-z]{2,12}[)\]>]?"
    r"(?:[ \t]{0,2}(?:[/|;,]|(?<=[ \t])[-\u2013\u2014])[ \t]{0,2}|:[ \t]?)(?!//)([^\s/]{8,64})(?!\S)"
)
_WIFI = re.compile(r"WIFI:(?=[^\s]{0,100}T:)(?:[^;\s]{0,80};){0,4}?P:((?:\\.|[^;\\\s]){1,100});")
# A prefix and a random body: the form that most providers have chosen.
_PREFIXED = re.compile(
    r"(?<![A-Za-z0-9_/.=-])[a-z][a-z0-9]{1,11}(?:[_-][a-z0-9]{2,8}){0,2}_([A-Za-z0-9]{24,255})(?![\w./-])"
)
# Where a token may begin: 16 characters and a digit are to come. The slash and the colon are of few.
_TO_COME = (
    r"(?:(?=[A-Za-z0-9_.~$=+-]{16})(?=[A-Za-z_.~$=+-]{0,60}[0-9])"
    r"|(?=hooks\.|discord(?:app)?\.com/api|[01]//?[0-9]|[0-9]{8,10}:AA|[a-z0-9-]{1,60}\.webhook|outlook\.|[0-9a-f-]{36}:fx|[\w-]{11,22}:APA91b))"
)


# For the published formats in providers.tsv. A token has 16 characters or more, and no letter or digit on either side.
@cache
def _providers() -> re.Pattern[str]:
    table = {name: form for name, form, *_ in forms.read_table("providers.tsv")}
    formats = "|".join(form for name, form in table.items() if not name.startswith("%"))
    formats = re.sub("%.", lambda found: table[found[0]], formats)
    return re.compile(f"(?<![A-Za-z0-9]){_TO_COME}(?:{formats})(?![A-Za-z0-9])")


def find_tokens(text: str, digits: Sequence[tuple[int, int]]) -> Found:
    """Yield tokens by their published formats, web tokens, hashes of passwords, and passwords in URLs.

    `digits` are (start, end) from the first digit of each word to its end.
    """
    providers = _providers()
    for first, end in digits:
        if end - first < forms.SHORTEST_KEY and text[first - 1 : first] in (" ", "\n", ""):
            continue
        reach = max(0, first - _REACH)
        place = max(text.rfind(" ", reach, first), text.rfind("\n", reach, first), reach - 1) + 1
        if end - place < forms.SHORTEST_KEY:
            continue
        word = text[place:end]
        for key in providers.finditer(word):
            yield place + key.start(), place + key.end(), forms.KEY
        if "_" in word and (prefixed := _PREFIXED.search(word)) and forms.is_random(prefixed[1]):
            yield place + prefixed.start(), place + prefixed.end(), forms.KEY
        if word.count(":") >= 4 and (line := _PGPASS.fullmatch(word)) and not forms.is_placeholder(line[1]):
            yield place + line.start(1), place + line.end(1), forms.PASSWORD
        for hashed in _HASH.finditer(word) if "$" in word or "}" in word or ":::" in word else ():
            yield place + hashed.start(), place + hashed.end(), forms.PASSWORD
    for token in _JWT.finditer(text) if "eyJ" in text else ():
        yield *token.span(), forms.TOKEN
    for wifi in _WIFI.finditer(text) if "WIFI:" in text else ():
        if not forms.is_placeholder(wifi[1]):
            yield *wifi.span(1), forms.PASSWORD
    yield from _logins(text)


def _logins(text: str) -> Found:
    """Yield passwords at an @: in a URL, and behind an e-mail address."""
    for at in (sign.start() for sign in re.finditer("@", text)):
        if (url := _IN_URL.search(text, max(0, at - _REACH), at + 2)) and not forms.is_placeholder(url[1]):
            yield *url.span(1), forms.PASSWORD
        login = _AFTER_EMAIL.match(text, at)
        if login and forms.is_strong(login[1], 3) and not forms.is_placeholder(login[1]):
            yield login.start(1), login.start(1) + len(forms.without_closing(login[1], "")), forms.PASSWORD


_GAP_IN_NUMBER = "[ \u00a0\u2007\u2009\u202f\u2010\u2011\u2013.-]"  # also a typesetter's
_IBAN = re.compile(rf"(?<![A-Za-z0-9_])[A-Za-z]{{2}}[0-9]{{2}}(?:{_GAP_IN_NUMBER}?+[A-Za-z0-9]){{11,30}}")
_RUN = re.compile(rf"[0-9](?:{_GAP_IN_NUMBER}?+[0-9]){{12,}}+")
_GROUP_END = re.compile("[A-Za-z0-9](?![A-Za-z0-9])")
# Groups of digits as cards print them, or no gap at all; no part of a name, of a path, of another number.
_CARDS = tuple(
    re.compile(r"[0-9](?<![\w./].)(?=(" + _GAP_IN_NUMBER.join(f"[0-9]{{{size}}}" for size in sizes) + r")(?!\w))")
    for sizes in (("12,18",), (3, 4, 4, 4), (3, 4, 4, 4, 3), (3, 6, 5), (3, 6, 4))
)
_ISSUERS = forms.read_table("issuers.tsv")


def find_numbers(text: str, digits: Sequence[tuple[int, int]]) -> Found:
    """Yield card numbers and IBANs. `digits` are (start, end) from the first digit of each word to its end."""
    runs = [(run.start(), run.end() + 1) for run in _RUN.finditer(text)] if digits else []
    for card in (card for run in runs for form in _CARDS for card in form.finditer(text, *run)):
        if is_card(re.sub("[^0-9]", "", card[0] + card[1])):
            yield card.start(), card.end(1), forms.CARD
    for start in (first - 2 for first, _ in digits if first > 1 and text[first - 1].isalpha()):
        found = _IBAN.match(text, start)
        ends = [last.end() for last in _GROUP_END.finditer(text, start, found.end() + 1)] if found else []
        if end := next((end for end in ends if _is_iban(text[start:end])), None):
            yield start, end, forms.IBAN


def is_card(digits: str) -> bool:
    """Check the issuer's prefix, the length and the check digit."""
    if not any(str(len(digits)) in lengths.split() and re.match(prefix, digits) for _, prefix, lengths in _ISSUERS):
        return False
    from stdnum import luhn

    return bool(luhn.is_valid(digits))


def _is_iban(text: str) -> bool:
    from stdnum import iban

    return bool(iban.is_valid(re.sub("[^A-Za-z0-9]", "", text), check_country=False))


_LANGUAGES = ("english", "french", "spanish", "italian", "portuguese")  # German and Dutch have no list
_FEWEST = 12
# A phrase of 12 words is 47 characters at the least and 75 in the mean: it is met within 44 from its head, and words
# are left for a quick look at three of them.
_STRIDE = 44
_LETTER, _WORD_GAP = "[a-zß-ÿ]", "[^a-zß-ÿ]{1,10}+"
_THREE = re.compile(f"{_LETTER}{{0,12}}+{_WORD_GAP}" + _WORD_GAP.join([f"({_LETTER}{{3,9}}+)"] * 3))
_WORD = re.compile(f"{_LETTER}+")
# An end of a sentence, and what closes a bracket, has no number with it.
_BETWEEN = re.compile(r"[^.!?()\[\]{}\"'`«»“”]{1,10}|.{0,6}\d.{0,6}", re.DOTALL)
_NEAR, _FAR = 160, 700  # characters that 12 words may have, with numbers between them, and 24


def find_seed_phrases(lower: str) -> Found:
    """Yield runs of 12 or more words of one list in a text in lower case."""
    done = 0
    every, *lists = _lists() if len(lower) > 46 else [frozenset[str]()]
    for place in range(0, len(lower) - 12, _STRIDE):
        three = _THREE.match(lower, place)
        if three is None or not every.issuperset(three.groups()) or place < done:
            continue
        first, middle = max(done, three.start(1) - _NEAR), three.start(1)
        lists_here = lists if _runs(lower, first, middle + _NEAR, every) else ()
        for run in (run for listed in lists_here for run in _runs(lower, first, middle + _FAR, listed)):
            done = max(done, run[-1].end())
            if 4 * len({word[0] for word in run}) >= 3 * len(run):  # in prose more of them are repeated
                yield run[0].start(), run[-1].end(), forms.SEED


def _runs(lower: str, start: int, end: int, listed: frozenset[str]) -> list[list[re.Match[str]]]:
    """Return runs of 12 or more listed words between two positions."""
    runs: list[list[re.Match[str]]] = [[]]
    for word in _WORD.finditer(lower, start, end):
        if word[0] not in listed:
            runs.append([])
            continue
        if runs[-1] and not _BETWEEN.fullmatch(lower, runs[-1][-1].end(), word.start()):
            runs.append([])
        runs[-1].append(word)
    return [run for run in runs if len(run) >= _FEWEST]


@cache
def _lists() -> list[frozenset[str]]:
    """Return the words of all lists, and those of each."""
    from mnemonic import Mnemonic

    lists = [frozenset(unicodedata.normalize("NFC", word) for word in Mnemonic(name).wordlist) for name in _LANGUAGES]
    return [frozenset().union(*lists), *lists]


# Personal data. Telephone numbers are judged by the `phonenumbers` package and ids by the check digits that
# `python-stdnum` knows. Both are slow, and see only what looks like a number of the kind.

_LOCAL, _DOMAIN = re.compile(r"[\w.%+-]{1,64}\Z"), re.compile(r"@(?:[\w-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![\w-])")
# Seven digits or more with little between them, and no part of a longer number, a name or a path.
_CANDIDATE = re.compile(
    r"(?<![\w./@#=&-])(?:\+|\()?[0-9](?:[ ().\u00a0\u2011\u2013/-]{0,3}[0-9]){6,17}(?![\w@/]|[.,-][0-9])"
)
_NAMED = re.compile(
    r"(?i)(?:tel|fon|phone|mobil|cell|handy|call|ruf|fax|whatsapp|sms|m[óo]vil|portable|t[ée]l[ée]f|celular)[^\n]{0,20}\Z"
)
_REGIONS = ("US", "GB", "DE", "FR", "ES", "PT", "BR", "IT", "NL", "AT", "CH", "BE")
_IDS = forms.read_table("ids.tsv")
_ANY_ID = re.compile(rf"(?<![\w.>-])(?=[A-Z0-9])(?:{'|'.join(form for form, _, _ in _IDS)})(?![\w(-]|[.,][0-9])")


def find_emails(text: str) -> Found:
    """Yield e-mail addresses."""
    for at in (sign.start() for sign in re.finditer("@", text)):
        local, domain = _LOCAL.search(text, max(0, at - 64), at), _DOMAIN.match(text, at)
        if local and domain:
            yield local.start(), domain.end(), forms.EMAIL


def find_ids(text: str) -> Found:
    """Yield national ids with the right check digits."""
    for found in _ANY_ID.finditer(text):
        before = text[max(0, found.start() - 40) : found.start()]
        for form, module, name in _IDS:
            if not re.fullmatch(form, found[0]) or (name and not re.search(f"(?i){name}", before)):
                continue
            if import_module(f"stdnum.{module}").is_valid(found[0]):
                yield *found.span(), forms.ID
                break


def find_phones(text: str) -> Found:
    """Yield telephone numbers of some countries."""
    for found in _CANDIDATE.finditer(text):
        number, named = found[0], bool(_NAMED.search(text, max(0, found.start() - 40), found.start()))
        long = len(re.sub("[^0-9]", "", number)) >= 9  # fewer digits are years and sizes
        written = named or (long and re.match(r"\(?0[1-9]|.*[ ()-]", number))
        if (number.startswith("+") or written) and _is_phone(number, named):
            yield *found.span(), forms.PHONE


def _is_phone(number: str, named: bool) -> bool:
    """Check a number of some country, written as it is there; one behind a name such as "tel." may have any groups."""
    from phonenumbers import Leniency, PhoneNumberMatcher

    if number.startswith("+"):
        return PhoneNumberMatcher(number, None, leniency=Leniency.VALID).has_next()
    leniency = Leniency.VALID if named else Leniency.STRICT_GROUPING
    return any(PhoneNumberMatcher(number, region, leniency=leniency).has_next() for region in _REGIONS)
