"""Find secrets by the name in front of them: `password: x`, DB_PASSWORD=x, "the password is x", --password x.

Behind a word such as token nearly all is prose, so that the value must look like one: letters and digits. Behind
`password:` a word that is all the line has is one, too. Without any sign in between the value must look random.
"""

from __future__ import annotations

import re

from niels_gpt.data.secrets import forms
from niels_gpt.data.secrets.forms import (
    CODE,
    KEY,
    PASSWORD,
    PIN,
    SHORTEST_KEY,
    TOKEN,
    Found,
    first_field,
    is_harmless,
    is_mixed,
    is_random,
    is_strong,
    without_closing,
)

_QUOTED = (  # the first is JSON within a string
    r"\\\"[^\"\\\r\n]{1,200}\\\"|\"[^\"\r\n]{1,200}\"|'[^'\r\n]{1,200}'|`[^`\r\n]{1,200}`|“[^”\r\n]{1,200}”"
    r"|„[^“”\r\n]{1,200}[“”]|«[^»\r\n]{1,200}»"
)
# Four characters at a time: how app passwords and secrets for one-time codes are shown.
_GROUPED = r"[A-Za-z0-9]{4}(?:[ -][A-Za-z0-9]{4}){3,15}(?![A-Za-z0-9])(?=[^\S\r\n]*(?:[\r\n]|\Z))"
_NAME = (
    rf"(?i)(?:(?P<password>{forms.PASSWORD_NAMES})|(?P<short>{forms.SHORT_PASSWORD_NAMES})|(?P<key>{forms.KEY_NAMES})"
    rf"|(?P<plain>{forms.PLAIN_KEY_NAMES}))(?![^\W_])(?:_\w{{1,30}}+)?+"
)
_FOR_WHAT = rf"(?:[ \t]*\([^()\r\n]{{0,40}}\)|[ \t]+(?:{forms.FOR_WHAT})\b[^][()\r\n:=|\".,;!?]{{0,40}}?)"
_JOIN = (
    r"(?:[\"'`*_\]\\]{0,4}[^\S\r\n]{0,8}(?P<sign>::|:=|=>|->|\u2192|[:=|\uff1a]|[-\u2013\u2014](?=\s))[\"'`*_\\]{0,3}"
    rf"|[\"'`*_]{{0,3}}(?:[ \t](?:{forms.ADVERBS}))?[ \t]{{1,3}}(?P<verb>{forms.VERBS})\b"
    rf"(?:[ \t]{{1,3}}(?:{forms.ADVERBS})\b)?[ \t]{{0,2}}:?(?=\s)"
    r"|(?P<tag>[\"'](?:[ \t]+[\w-]{1,20}=\"[^\"\r\n]{0,40}\"){0,3}>|>|[\"'][ \t]+value=(?=[\"'])))"
)
_VALUE = (
    r"[^\S\r\n]{0,8}(?P<below>(?:\r?\n[^\S\r\n]{0,8}){1,2}(?:[-*>] )?)?"
    rf"(?P<value>(?P<grouped>{_GROUPED})|{_QUOTED}|\S{{1,200}})(?P<rest>[^\r\n]{{0,8}})"
)
_ANY_WORDS = r"(?P<loose>(?:[ \t]+[^\W\d_]{2,14}){1,3})"
_SAID = tuple(
    re.compile(_NAME + between + _JOIN + _VALUE) for between in ("(?P<loose>)", f"(?P<loose>){_FOR_WHAT}", _ANY_WORDS)
)
_NEXT_WORD = re.compile(rf"{_NAME}[\"'`*_]{{0,3}}[ \t]+(?P<value>{_QUOTED}|\S{{1,200}})(?P<rest>[^\r\n]{{0,8}})")
_IN_MASK = re.compile(r"\[(?:api |private |to)?\Z")
_NAME_ALONE = re.compile(_NAME)
_NAME_ALONE_IN, _ROW = re.compile(rf"{_NAME}[\s*_`]*\Z"), re.compile("[^\n]+")
_KEY_KIND = re.compile(rf"(?i)(?:{forms.KEY_KINDS})[ _-]?\Z")
_OPTION = re.compile(r"(?:\A|[\s(`\"'])--?[\w-]*\Z")
_NETRC = re.compile(r"(?:login|user)\s+\S+\s+(?:account\s+\S+\s+)?\Z")
_VALUE_FIRST = re.compile(
    rf"(?i)(?<!\S)[\"'`(“„«]{{0,2}}(?P<value>[^\s\"'`(“„«]{{6,100}}?)[\"'`)”“»,]{{0,2}}"
    rf"[ \t]+(?:{forms.VALUE_FIRST_VERBS})(?:[ \t]+(?:{forms.ARTICLES})){{0,4}}"
    r"[ \t]+(?:[\w-]{1,12}[ -])?[\w-]{0,12}\Z"
)
_VALUE_BEFORE = re.compile(rf"(?i)[ \t](?:{forms.VALUE_FIRST_VERBS})[ \t]")  # a quick look
_PIPED = re.compile(r"\becho[ \t]+(?:-\w+[ \t]+)?[\"']?(?P<value>[^\s|\"']{4,200})[\"']?[ \t]*\|[^|\n]{0,80}\Z")
_LIKE_A_PASSWORD = re.compile(r"(?![#-])(?:(?=\S*(?:[\d!@#$%^&*+=~]|[a-z][A-Z]))\S*[^\s:]|[a-z]+)")
_RANDOM_WORD = re.compile(rf"(?<![\w+/=.~-])[\w+/=~-]{{{SHORTEST_KEY},}}+")
_PHRASE = re.compile(r"[a-zß-ÿ]{3,14}(?:[ -][a-zß-ÿ]{3,14}){3,11}(?=[ \t]*(?:[\r\n]|\Z))")
_SIGNS, _NAMING = (":", "=", "\uff1a"), forms.NAMING_VERBS
_CLOSING = {'"': '"', "'": "'", "`": "`", "“": "”", "„": "“”", "«": "»"}
_UUID = re.compile("[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")  # mostly a name of something
_SAME_LINE = re.compile(r"[^\r\n\[]*")  # and no further than to what is masked
_REACH = 90  # characters behind a name in which a random word belongs to it
_WORD, _IN_QUERY = re.compile(r"\S*"), re.compile(r"[^\s&)\]#]*")
_SHORTEST_PASSWORD, _SHORTEST_VALUE = 4, {True: 6, False: 8}  # a word alone; letters and digits: a password, a key


def find_named(text: str, lower: str) -> Found:
    """Yield values behind a name; `lower` is the text in lower case, of the same length."""
    done = 0
    for anchor in _ANCHORS.finditer(lower):
        if anchor.start() >= done:
            for found in _BY_ANCHOR.get(anchor[0], _value_at)(text, anchor.start()):
                yield found
                done = max(done, found[1])
    for other in forms.OTHER_ANCHORS:
        for found_at in re.finditer(other, lower):
            yield from _value_at(text, found_at.start())
    yield from _options(text)
    if any(rule in text for rule in ("|-", "-|", "| -", "- |", "|:")):
        yield from _columns(text)


def _value_at(text: str, place: int) -> Found:
    """Yield the value of the name at this position, where there is one that looks like a secret."""
    name = _NAME_ALONE.match(text, place)
    if name is None:
        return
    before = _line_before(text, place)
    if _IN_MASK.search(before[-10:]) and text.startswith("]", name.end()):  # no name, but what was masked
        return
    for form in _SAID:
        said = form.match(text, place)
        if said and (found := _said(text, said, before)):
            yield found
            return
    word = _NEXT_WORD.match(text, place)
    if word and (found := _next_word(text, word, before) or _random_word(text, word)):
        yield found
    elif name["password"]:
        for form in (_VALUE_FIRST, _PIPED):
            first = form.search(before) if form is _PIPED or _VALUE_BEFORE.search(before[-50:]) else None
            if first and is_mixed(first["value"]) and not is_harmless(first["value"]):
                offset = place - len(before)
                yield offset + first.start("value"), offset + first.end("value"), PASSWORD


def _line_before(text: str, place: int) -> str:
    """Return the line up to a position, of which 200 characters are enough."""
    reach = max(0, place - 200)
    return text[max(reach, text.rfind("\n", reach, place) + 1) : place]


def _said(text: str, said: re.Match[str], before: str) -> tuple[int, int, str] | None:
    """Return the value behind a sign, a verb or a tag."""
    start, value, quoted = _unquoted(said)
    sign, verb, tag = said["sign"] or "", (said["verb"] or "").lower(), said["tag"] or ""
    if sign == "|" and "|" not in before + value[-1] + said["rest"]:  # a pipe of commands, and no table
        return None
    if tag and "<" not in before:
        return None
    if tag.endswith(">"):
        value = value.partition("<")[0]
    is_password, grouped = bool(said["password"] or said["short"]), said["grouped"] is not None
    alone = grouped or bool(tag) or _is_alone(said["rest"])
    known = is_password or said["key"] or _KEY_KIND.search(before[-14:])
    one_word = not re.search(r"\s", value)
    if said["loose"]:  # "password manager: x" has words between that may say anything
        good = bool(known) and not said["below"] and is_strong(without_closing(value, ""), 3)
    elif grouped:
        good = bool(known)
    elif said["password"] and said["below"]:
        good = alone and len(value) >= _SHORTEST_VALUE[True] and bool(_LIKE_A_PASSWORD.fullmatch(value))
    elif said["password"] and one_word and (quoted or (alone and (tag or sign[:1] in _SIGNS)) or verb in _NAMING):
        good = len(value) >= _SHORTEST_PASSWORD
    elif (
        said["password"]
        and said["password"].lower() == "passphrase"
        and sign
        and (quoted or _PHRASE.match(text, start))
    ):
        phrase = None if quoted else _PHRASE.match(text, start)
        value, quoted, good = phrase[0] if phrase else value, True, True
    elif known:
        good = len(value) >= _SHORTEST_VALUE[is_password] and is_mixed(value) and (alone or not said["below"])
    else:
        good = not said["below"] and (
            is_strong(without_closing(value, ""), 4) or (len(value) >= SHORTEST_KEY and is_random(value))
        )
    if not good or is_harmless(value):
        return None
    if not (quoted or grouped or tag):
        in_query = sign == "=" and "://" in text[max(0, said.start() - 500) : said.start()].rpartition(" ")[2]
        value = _whole(text, start, before + said[0][: start - said.start()], _IN_QUERY if in_query else _WORD)
        value = first_field(value) if sign == "=" else value.rstrip(".") if verb else value
    return (start, start + len(value), PASSWORD if is_password else KEY) if value else None


def _next_word(text: str, word: re.Match[str], before: str) -> tuple[int, int, str] | None:
    """Return the word behind a name without a sign: of an option, in .netrc, or one that only a password can be."""
    start, value, quoted = _unquoted(word)
    is_password = bool(word["password"] or word["short"])
    value = value if quoted else without_closing(value, before)
    if not value:
        return None
    if _OPTION.search(before[-40:]) or (
        word["password"] and _NETRC.search(text, max(0, word.start() - 200), word.start())
    ):
        good = len(value) >= _SHORTEST_PASSWORD and (quoted or _is_alone(word["rest"]) or is_mixed(value))
    else:
        good = is_strong(value, 3 if is_password else 4)
    if not good or value[0] == "-" or is_harmless(value):
        return None
    value = value if quoted else _whole(text, start, before + word[0][: start - word.start()], _WORD)
    return start, start + len(value), PASSWORD if is_password else KEY


def _random_word(text: str, name: re.Match[str]) -> tuple[int, int, str] | None:
    """Return the first random word of the line that is not far behind a name."""
    behind = _SAME_LINE.match(text, name.start("value"), name.start() + _REACH)
    for random in _RANDOM_WORD.finditer(text, *behind.span()) if behind else ():
        whole = _RANDOM_WORD.match(text, random.start()) or random
        if is_random(whole[0]) and not is_harmless(whole[0]) and not _UUID.fullmatch(whole[0]):
            return *whole.span(), PASSWORD if name["password"] or name["short"] else KEY
    return None


def _unquoted(match: re.Match[str]) -> tuple[int, str, bool]:
    """Return (start, value, whether it stood in quotes)."""
    value, start = match["value"], match.start("value")
    if value.startswith('\\"') and value.endswith('\\"') and len(value) > 4:  # JSON within a string
        return start + 2, value[2:-2], True
    if len(value) > 2 and value[-1] in _CLOSING.get(value[0], ""):
        return start + 1, value[1:-1], True
    return start, value, False


def _is_alone(rest: str) -> bool:
    return not rest.strip(" \t\u00a0\"'`*_|,;)}]\\")


def _whole(text: str, start: int, before: str, form: re.Pattern[str]) -> str:
    """Return all of a value, which may be longer than what was looked at, without what closes the text around it."""
    whole = form.match(text, start)
    return without_closing(whole[0], before) if whole else ""


# Headers, cookies, SQL, numbers, logins and lists of codes

_AUTHORIZED = re.compile(
    r"(?i)uth(?:orization|enticate)?[\"']?[ \t]{0,3}[:= ][ \t]{0,3}[\"']?"
    r"(?:basic|bearer|token|digest|api-?key|plain|login|key)[ \t]+(?P<value>[^\s\"'`<>]{6,})"
)
_BEARER = re.compile(r"(?i)bearer[ \t]+[\"'`]?(?P<value>[\w.~+/=-]{16,})")
_COOKIE = re.compile(r"[\w.-]{1,40}=(?P<value>[^\s;\"']{16,})")
_IDENTIFIED = re.compile(r"(?i)fied[ \t]+(?:with[ \t]+\S+[ \t]+)?by[ \t]+(?P<value>\"[^\"\n]+\"|'[^'\n]+')")
_PIN = re.compile(
    rf"{forms.PIN_NAMES}(?:{_FOR_WHAT.replace('{0,40}?', '{0,40}')})?"
    rf"(?:[*_]{{0,2}}[ \t]{{0,2}}[:=][*_]{{0,2}}|[ \t]+(?:{forms.VERBS})\b(?:[ \t]+(?:{forms.ADVERBS})\b)?:?)?"
    r"[ \t]{1,3}[\"'`]?(?P<value>[0-9]{3,8})(?![\w/-]|[.,:][0-9])"
)
_LOGIN = re.compile(
    rf"(?i)(?:{forms.LOGIN_NAMES})(?![^\W_])[^:=\n]{{0,40}}[:=]{{1,2}}[*_]{{0,2}}\s{{0,4}}[\"'`]?(?P<user>[^\s/:|,;\"'`]{{2,60}})[\"'`]?"
    r"[ \t]{0,3}[/:|,;\u2013\u2014\u2192-][ \t]{0,3}[\"'`]?(?P<value>[^\s\"'`]{6,100})"
)
_CODE_LIST = re.compile(
    r"(?P<name>[^\n:]{0,80}):?[ \t]*(?P<list>(?:[\s,;*|>\u2022-]{0,8}(?:[0-9]{1,2}[.)][ \t]+)?"
    r"\b(?=[A-Za-z]{0,9}[0-9-])[A-Za-z0-9]{4,12}(?:[- ](?=[A-Za-z]{0,9}[0-9])[A-Za-z0-9]{3,8}){0,3}\b"
    r"(?!['\u2019:=(/])){1,40})"
)
_CODE_KIND = re.compile(rf"(?i)(?:{forms.CODE_KINDS})[ -]?\Z")
_CODE_NAME = re.compile(rf"(?i){forms.CODE_NAMES}")
_CODE_IN_LIST = re.compile(r"(?<![\w-])(?![0-9]{1,2}[.)])[A-Za-z0-9]{3,12}(?:[- ][A-Za-z0-9]{3,8})*")


def _pass_at(text: str, place: int) -> Found:
    yield from _login_at(text, place) if text[place - 1 : place] == "/" else ()
    yield from _value_at(text, place)


def _auth_at(text: str, place: int) -> Found:
    found = _AUTHORIZED.match(text, place)
    if found and not is_harmless(found["value"]):
        yield found.start("value"), found.start("value") + len(without_closing(found["value"], "")), TOKEN
    else:
        yield from _value_at(text, place)


def _bearer_at(text: str, place: int) -> Found:
    found = _BEARER.match(text, place)
    if found and is_random(found["value"]):
        yield *found.span("value"), TOKEN


def _cookies_at(text: str, place: int) -> Found:
    line = _SAME_LINE.match(text, place, place + 1000)
    for cookie in _COOKIE.finditer(text, *line.span()) if line else ():
        if is_random(cookie["value"]):
            yield *cookie.span("value"), TOKEN


def _identified_at(text: str, place: int) -> Found:
    found = _IDENTIFIED.match(text, place)
    if found and not is_harmless(found["value"][1:-1]):
        yield found.start("value") + 1, found.end("value") - 1, PASSWORD


def _pin_at(text: str, place: int) -> Found:
    found = _PIN.match(text, place)
    if found and len(found["value"]) >= (4 if text[place : place + 1] in "Pp" else 3):
        yield *found.span("value"), PIN


def _login_at(text: str, place: int) -> Found:
    found = _LOGIN.match(text, place)
    if found and "//" not in found[0] and is_mixed(found["value"]) and not is_harmless(found["value"]):
        value = without_closing(found["value"], text[place : found.start("value")]).rstrip(".,")
        yield found.start("value"), found.start("value") + len(value), PASSWORD


def _codes_at(text: str, place: int) -> Found:
    if not (_CODE_KIND.search(text, max(0, place - 20), place) or _CODE_NAME.match(text, place)):
        return
    found = _CODE_LIST.match(text, place)
    for code in _CODE_IN_LIST.finditer(text, *found.span("list")) if found else ():
        if re.search("[0-9]", code[0]):
            yield *code.span(), CODE


# Columns of a table

_RULE = re.compile(r"\n[ \t>]*+\|?+[ \t]*+:?+-[-:| \t\r]*+(?=\n|\Z)")  # below the heads of columns
_ROWS = re.compile(r"(?:\n(?![ \t>|:-]*+\n)[^\n|]*+\|[^\n]*+)++")


def _columns(text: str) -> Found:
    """Yield what stands in the columns of a Markdown table whose heads are names of secrets."""
    for rule in _RULE.finditer(text):
        above = _line_before(text, rule.start())
        heads = [_NAME_ALONE_IN.search(head) for head in above.split("|")]
        rows = _ROWS.match(text, rule.end()) if any(heads) else None
        for row in _ROW.finditer(text, *rows.span()) if rows else ():
            start = row.start()
            for head, cell in zip(heads, row[0].split("|"), strict=False):
                value = cell.strip(" \t\r`*\"'")
                if head and _fills(value, bool(head["password"])) and not is_harmless(value):
                    place = start + cell.index(value)
                    yield place, place + len(value), PASSWORD if head["password"] or head["short"] else KEY
                start += len(cell) + 1


def _fills(value: str, is_password: bool) -> bool:
    if is_password:
        return len(value) >= _SHORTEST_PASSWORD and not re.search(r"\s", value)
    return len(value) >= _SHORTEST_VALUE[False] and is_mixed(value)


# Options of commands

_OPTION_OF = tuple(
    (
        re.compile(rf"(?<![\w.-])(?:{commands})(?:\.exe)?(?:\s|\Z)"),
        re.compile(rf"{option}(?P<value>{_QUOTED}|\S{{1,200}})"),
    )
    for commands, option in forms.OPTIONS
)
_OPTION_START = re.compile(" -(?=[apuwAPUXkKcbBmiS-])")


def _options(text: str) -> Found:
    """Yield passwords behind options of commands that are known to take one."""
    for place in (dash.start() for dash in _OPTION_START.finditer(text)):
        before = _line_before(text, place)
        for command, option in _OPTION_OF:
            found = option.match(text, place + 1)
            if found and command.search(before):
                start, value, quoted = _unquoted(found)
                if not is_harmless(value) and value[0] != "-":
                    value = value if quoted else without_closing(value, before + found[0][: -len(value)])
                    yield start, start + len(value), PASSWORD
                    break
        piped = _PIPED.search(before) if text.startswith("-S", place + 1) else None
        if piped and not is_harmless(piped["value"]):
            yield place - len(before) + piped.start("value"), place - len(before) + piped.end("value"), PASSWORD


_ANCHORS = re.compile(forms.ANCHORS)
_BY_ANCHOR = {
    **dict.fromkeys(("cred", "fiant", "gin", "g-in", "ggegevens", "meldedaten", "zugang"), _login_at),
    **dict.fromkeys(("codes", "codici di", "gos"), _codes_at),
    **{
        "pass": _pass_at,
        "uth": _auth_at,
        "bearer ": _bearer_at,
        **dict.fromkeys(("pin", "vv", "vc", "uk"), _pin_at),
        "fied ": _identified_at,
        "kie:": _cookies_at,
    },
}
