"""Find secrets by the name in front of them: `password: x`, DB_PASSWORD=x, "the password is x", --password x.

Behind a word such as token nearly all is prose, so that the value must look like one: letters and digits. Behind
`password:` a word that is all the line has is one, too. Without any sign in between the value must look random.
"""

import re

from niels_gpt.data.secrets import forms
from niels_gpt.data.secrets.codes import find_columns, find_list, find_number
from niels_gpt.data.secrets.forms import Found, words

_QUOTED = (  # the first is JSON within a string
    r"\\\"[^\"\\\r\n]{1,200}\\\"|\"[^\"\r\n]{1,200}\"|'[^'\r\n]{1,200}'|`[^`\r\n]{1,200}`|“[^”\r\n]{1,200}”"
    r"|„[^“”\r\n]{1,200}[“”]|«[^»\r\n]{1,200}»"
)
# Four characters at a time: how app passwords and secrets for one-time codes are shown.
_GROUPED = (
    r"(?:[A-Za-z0-9]{4}(?:[ -][A-Za-z0-9]{4}){3,15}|[0-9A-F]{2}(?:[ :][0-9A-F]{2}){7,31})"
    r"(?![A-Za-z0-9])(?=[^\S\r\n]*(?:[\r\n]|\Z))"
)
_FOR_WHAT = (
    rf"(?:[ \t]*\([^()\r\n]{{0,40}}\)|[ \t]+(?:{words('for what')})\b"
    r"(?:[^][()\r\n:=|\".,;!?]|\.(?=\w)){0,40}?)"
)
_JOIN = (
    r"(?:[\"'`*_\]\\]{0,4}[^\S\r\n]{0,8}(?P<sign>::|:=|=>|->|\u2192|[:=|\uff1a]|[-\u2013\u2014](?=\s)"
    r"|(?<=[\"']),(?=[ \t]*[\"']))"
    rf"(?:(?=\\?[\"'][^\s\"',])(?={_QUOTED})|[\"'`*_\\]{{0,3}})"
    rf"|[\"'`*_]{{0,3}}(?:[ \t](?:{words('now')}))?[ \t]{{1,3}}(?P<verb>{forms.VERBS})\b"
    rf"(?:[ \t]{{1,3}}(?:{words('now')})\b)?[ \t]{{0,2}}:?(?=\s)"
    r"|(?P<tag>[\"'](?:[ \t]+[\w-]{1,20}=\"[^\"\r\n]{0,40}\"){0,3}>|>|[\"'][ \t]+value=(?=[\"']))"
    r"|(?P<heading>[*_`]{0,3}(?=[ \t]*\r?\n)))"
)
_VALUE = (
    r"[^\S\r\n]{0,8}(?P<below>(?:\r?\n[^\S\r\n]{0,8}){1,2}(?:[-*>] |```\w{0,10}\r?\n)?)?"
    rf"(?P<value>(?P<grouped>{_GROUPED})|{_QUOTED}|\S{{1,200}})(?P<rest>[^\r\n]{{0,8}})"
)
_ANY_WORDS = r"(?P<what>(?P<loose>(?:[ \t]+[\w+-]{2,14}){1,4}))"
_SAID = tuple(
    re.compile(forms.NAME + between + _JOIN + _VALUE)
    for between in ("(?P<loose>)(?P<what>)", f"(?P<loose>)(?P<what>{_FOR_WHAT})", _ANY_WORDS)
)
_NEXT_WORD = re.compile(rf"{forms.NAME}[\"'`*_]{{0,3}}[ \t]+(?P<value>{_QUOTED}|\S{{1,200}})(?P<rest>[^\r\n]{{0,8}})")
_IN_MASK = re.compile(r"\[(?:api |private |to)?\Z")
_NAME_ALONE = re.compile(forms.NAME)
_KEY_KIND = re.compile(rf"(?i)(?:{words('kind of key')})[ _-]?(?:cha|chia|schl|sle)?\Z")
_KEY_KIND_BEHIND = re.compile(rf"(?i)\b(?:{words('kind of key')})\b")
_OPTION = re.compile(r"(?:\A|[\s(`\"'])--?[\w-]*\Z")
_NETRC = re.compile(r"(?:login|user)\s+\S+\s+(?:account\s+\S+\s+)?\Z")
_VALUE_FIRST = re.compile(  # "x is the new password", "benutze x als Passwort"
    rf"(?i)(?<!\S)[\"'`(“„«]{{0,2}}(?P<value>[^\s\"'`(“„«]{{6,100}}?)[\"'`)”“»,]{{0,2}}"
    rf"[ \t]+(?:{words('as')})(?:[ \t]+(?:{words('the')})){{0,4}}"
    r"[ \t]+(?:[\w-]{1,12}[ -])?[\w-]{0,12}\Z"
)
_VALUE_BEFORE = re.compile(rf"(?i)[ \t](?:{words('as')})[ \t]")  # a quick look
_PIPED = re.compile(
    r"\becho[ \t]+(?:-\w+[ \t]+)?[\"']?(?P<value>[^\s|\"']{4,200})[\"']?[ \t]*\|[^|\n]{0,80}?(?:passw|sudo -S)"
)
_ODD = re.compile(r"(?![#-])(?=\S*(?:[\d!@#$%^&*+=~]|[a-z][A-Z]))\S*[^\s:]")
_LIKE_A_PASSWORD = re.compile(f"{_ODD.pattern}|(?![#-])[a-z]+")
_RANDOM_WORD = re.compile(rf"(?<![\w+/=.~-])[\w+/=~-]{{{forms.SHORTEST_KEY},}}+")
_PHRASE = re.compile(
    r"(?:[a-zß-ÿ]{3,14}(?:[ -][a-zß-ÿ]{3,14}){3}|[a-zß-ÿ]{2,14}(?:[ -][a-zß-ÿ]{2,14}){4,11})(?=[ \t]*(?:[\r\n]|\Z))"
)
_SIGNS = (":", "::", ":=", "=", "=>", "->", "\uff1a", "\u2192")
_NAMING = ("lautet", "lautete", "luidt")  # nothing but the value follows these
_CLOSING = {'"': '"', "'": "'", "`": "`", "“": "”", "„": "“”", "«": "»"}
_UUID = re.compile("[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")  # mostly a name of something
_SAME_LINE = re.compile(r"[^\r\n\[]*")  # and not beyond text that is masked already
_NEXT_FIELD = re.compile(r"[;,](?=\s{0,2}[A-Za-z][\w. -]{0,30}=|$)")  # of `password=x;Encrypt=true`
_REACH = 90  # characters after a name within which a random word belongs to it
_WORD, _IN_QUERY = re.compile(r"\S*"), re.compile(r"[^\s&)\]#]*")
_IN_LOGIN = re.compile(r"[^\s@/]*")


def find_named(text: str, lower: str) -> Found:
    """Yield values behind a name; `lower` is the text in lower case, of the same length."""
    done = in_table = 0
    for place in (anchor.start() for anchor in forms.ANCHORS.finditer(lower)):
        if place >= in_table and (cells := list(find_columns(text, place))):
            yield from cells
            in_table, done = max(end for _, end, _ in cells), text.index("\n", place)
        for found in _first_at(text, place) if place >= done else ():
            yield found
            done = max(done, found[1])
    for other in ("senha", "seed", "tan "):  # names without a rare letter
        for name in re.finditer(other, lower):
            yield from _first_at(text, name.start())
    yield from _options(text)


def _first_at(text: str, place: int) -> Found:
    """Yield what the first rule finds at a name that several rules know."""
    for rule in (_plain_at, find_list, _value_at, find_number, _login_at):
        if found := list(rule(text, place)):
            yield from found
            return


def _value_at(text: str, place: int) -> Found:
    """Yield the value of the name at this position, where there is one that looks like a secret."""
    name = _NAME_ALONE.match(text, place)
    if name is None:
        return
    before = forms.line_before(text, place)
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
        return
    first = _VALUE_FIRST.search(before) if name["password"] and _VALUE_BEFORE.search(before[-50:]) else None
    if first and forms.is_mixed(first["value"]) and not forms.is_harmless(first["value"]):
        offset = place - len(before)
        yield offset + first.start("value"), offset + first.end("value"), forms.PASSWORD


def _said(text: str, said: re.Match[str], before: str) -> tuple[int, int, str] | None:
    """Return the value behind a sign, a verb or a tag."""
    start, value, quoted = _unquoted(said)
    sign, verb, tag = said["sign"] or "", (said["verb"] or "").lower(), said["tag"] or ""
    if sign == "|" and "|" not in before + value[-1] + said["rest"]:  # a pipe of commands, and no table
        return None
    if (tag and "<" not in before) or (sign == "," and not forms.is_mixed(value)):
        return None
    if tag.endswith(">"):
        value = value.partition("<")[0]
    is_password, grouped = bool(said["password"] or said["short"]), said["grouped"] is not None
    alone = grouped or bool(tag) or _is_alone(said["rest"])
    known = is_password or said["key"] or _KEY_KIND.search(before[-20:]) or _KEY_KIND_BEHIND.search(said["what"])
    one_word = not re.search(r"\s", value)
    if grouped or said["loose"]:  # "password manager: x" has words between that may say anything
        bare = forms.without_closing(value, "")
        long = is_password and alone and bool(sign or said["below"]) and _is_long(bare)
        good = bool(known) and (grouped or ((alone or not said["below"]) and (forms.is_strong(bare, 3) or long)))
    elif said["password"] and said["below"]:
        like_one = _is_long(value) if said["heading"] is not None else _LIKE_A_PASSWORD.fullmatch(value)
        good = alone and len(value) >= forms.SHORTEST_VALUE[True] and bool(like_one)
    elif said["password"] and one_word and (quoted or (alone and (tag or sign in _SIGNS)) or verb in _NAMING):
        good = len(value) >= forms.SHORTEST_PASSWORD
    elif said["password"] and "phrase" in said["password"].lower() and sign and (quoted or _PHRASE.match(text, start)):
        phrase = None if quoted else _PHRASE.match(text, start)
        value, quoted, good = phrase[0] if phrase else value, True, True
    elif known:
        mixed = len(value) >= forms.SHORTEST_VALUE[is_password] and forms.is_mixed(value)
        good = _is_assigned(said, value, quoted, alone) or (mixed and (alone or not said["below"]))
    else:
        random = len(value) >= forms.SHORTEST_KEY and forms.is_random(value)
        good = not said["below"] and (random or forms.is_strong(forms.without_closing(value, ""), 4))
    if not good or forms.is_harmless(value):
        return None
    if not (quoted or grouped or tag):
        in_url = "://" in text[max(0, said.start() - 500) : said.start()].rpartition(" ")[2]
        form = {"=": _IN_QUERY, ":": _IN_LOGIN}.get(sign, _WORD) if in_url else _WORD
        value = _whole(text, start, before + said[0][: start - said.start()], form)
        value = _NEXT_FIELD.split(value, maxsplit=1)[0] if sign == "=" else value.rstrip(".") if verb else value
    return (start, start + len(value), forms.kind_of(said)) if value else None


def _is_assigned(said: re.Match[str], value: str, quoted: bool, alone: bool) -> bool:
    """Check for the value of a shell's variable, for a number, and for an odd word that is all a line or a cell has."""
    sign, name = said["sign"] or "", said["password"] or said["key"] or ""
    if sign == "=" and name.isupper() and (quoted if said["password"] else alone and len(value) >= forms.SHORTEST_KEY):
        return True
    if (sign or said["verb"]) and re.fullmatch("[0-9]{4,63}", value.rstrip(".")):
        return len(value) >= (forms.SHORTEST_PASSWORD if said["password"] else forms.SHORTEST_KEY)
    named = (said["password"] or said["short"]) and len(value) >= forms.SHORTEST_VALUE[True]
    return bool(alone and named and sign in (*_SIGNS, "|") and _ODD.fullmatch(value))


def _is_long(value: str) -> bool:
    return len(value) >= 8 and forms.is_mixed(value)


def _next_word(text: str, word: re.Match[str], before: str) -> tuple[int, int, str] | None:
    """Return the word behind a name without a sign: of an option, in .netrc, or one that only a password can be."""
    start, value, quoted = _unquoted(word)
    is_password, alone = bool(word["password"] or word["short"]), _is_alone(word["rest"])
    value = value if quoted else forms.without_closing(value, before)
    if not value:
        return None
    in_netrc = word["password"] and _NETRC.search(text, max(0, word.start() - 200), word.start())
    if in_netrc or _OPTION.search(before[-40:]):
        good = len(value) >= forms.SHORTEST_PASSWORD and (quoted or alone or forms.is_mixed(value))
    else:
        good = forms.is_strong(value, 3 if is_password else 4) or (is_password and alone and _is_long(value))
    if not good or value[0] == "-" or forms.is_harmless(value):
        return None
    value = value if quoted else _whole(text, start, before + word[0][: start - word.start()], _WORD)
    return start, start + len(value), forms.kind_of(word)


def _random_word(text: str, name: re.Match[str]) -> tuple[int, int, str] | None:
    """Return the first random word of the line that is not far behind a name."""
    behind = _SAME_LINE.match(text, name.start("value"), name.start() + _REACH)
    for random in _RANDOM_WORD.finditer(text, *behind.span()) if behind else ():
        whole = _RANDOM_WORD.match(text, random.start()) or random
        if forms.is_random(whole[0]) and not forms.is_harmless(whole[0]) and not _UUID.fullmatch(whole[0]):
            return *whole.span(), forms.kind_of(name)
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
    return forms.without_closing(whole[0], before) if whole else ""


# Headers, cookies, SQL, logins, answers, and phrases with words that no list has

_NEXT = r"[a-zß-ÿ]{2,14},?[ \t\n]+"
# (form, check that the value has to pass, or else it must not be harmless, kind)
_PLAIN = (
    (
        r"(?i)uth(?:orization|enticate)?[\"']?[ \t]{0,3}[:= ][ \t]{0,3}[\"']?"
        r"(?:basic|bearer|token|digest|api-?key|plain|login|key)[ \t]+(?P<value>[^\s\"'`<>]{6,})",
        None,
        forms.TOKEN,
    ),
    (r"(?i)bearer[ \t]+[\"'`]?(?P<value>[\w.~+/=-]{16,})", forms.is_random, forms.TOKEN),
    (r"(?i)fied[ \t]+(?:with[ \t]+\S+[ \t]+)?by[ \t]+[\"'](?P<value>[^\"'\n]+)", None, forms.PASSWORD),
    (
        rf"(?i)(?:{words('answer')})[^\r\n,;.`]{{0,80}}(?:[:=?\u2192]|->)[ \t*_]+"
        r"(?P<value>[\w'\u2019-]+(?: [\w'\u2019-]+){0,3})[ \t]*(?=[.)\r\n]|\Z)",
        None,
        forms.PASSWORD,
    ),
    (  # 12, 15, 18, 21 or 24 words
        rf"(?i:{words('phrase')})(?:[^\r\n:=\u2192]{{0,50}}(?:[:=\u2192]|->)|[^\r\n]{{0,20}}\n)\s{{0,4}}[\"'`]?"
        rf"(?P<value>(?:{_NEXT}){{9}}(?:(?:{_NEXT}){{3}}){{0,4}}(?:{_NEXT}){{2}}[a-zß-ÿ]{{2,14}})"
        r"[\"'`]?[ \t]*(?=[\r\n]|\Z)",
        None,
        forms.SEED,
    ),
)
_PLAIN_FORMS = tuple((re.compile(form), check, kind) for form, check, kind in _PLAIN)
_COOKIE = re.compile(r"[\w.-]{1,40}=(?P<value>[^\s;\"']{16,})")
_LOGIN = re.compile(
    rf"(?i)(?:{words('login')}|wi-?fi|wlan)"
    rf"(?:(?=min)|(?![^\W_])[^:=\n]{{0,40}}[:=]{{1,2}}[*_]{{0,2}}\s{{0,4}}|(?![^\W_])[^:=\n]{{0,40}}?[ \t](?=\S+ / ))"
    r"[\"'`]?(?P<user>[^\s/:|,;&\"'`]{2,60}(?: [^\s/:|,;\"'`]{1,20}){0,3})[\"'`]?"
    r"[ \t]{0,3}[/:|,;\u2013\u2014\u2192-][ \t]{0,3}[\"'`]?(?P<value>[^\s\"'`]{6,100})"
)


def _plain_at(text: str, place: int) -> Found:
    """Yield the secrets at a position that their form alone shows."""
    for form, check, kind in _PLAIN_FORMS:
        found = form.match(text, place)
        if found and (check(found["value"]) if check else not forms.is_harmless(found["value"])):
            yield found.start("value"), found.start("value") + len(forms.without_closing(found["value"], "")), kind
    line = _SAME_LINE.match(text, place, place + 1000) if text.startswith("kie:", place) else None
    for cookie in _COOKIE.finditer(text, *line.span()) if line else ():
        if forms.is_random(cookie["value"]):
            yield *cookie.span("value"), forms.TOKEN
    if text[place - 1 : place] == "/":
        yield from _login_at(text, place)


def _login_at(text: str, place: int) -> Found:
    """Yield the password of `login: me / x`."""
    found = _LOGIN.match(text, place)
    if found is None or "//" in found[0] or (found.start("user") == place and "/" in found["value"]):  # a path
        return
    mixed = forms.is_mixed(found["value"]) or re.match("[0-9]{8}", found["value"])
    if mixed and not forms.is_harmless(found["value"]):
        value = forms.without_closing(found["value"], text[place : found.start("value")]).rstrip(".,")
        yield found.start("value"), found.start("value") + len(value), forms.PASSWORD


# Options of commands

_OPTION_OF = tuple(
    (
        re.compile(rf"(?<![\w.-])(?:{commands})(?:\.exe)?(?:\s|\Z)"),
        re.compile(rf"{option}(?P<value>{_QUOTED}|\S{{1,200}})"),
    )
    for commands, option in forms.read_table("options.tsv")
)
_OPTION_START = re.compile(" -(?=[apuwAPUXkKcbBmi-])")


def _options(text: str) -> Found:
    """Yield passwords behind options of commands that are known to take one, or piped into a command."""
    for piped in _PIPED.finditer(text) if "echo" in text else ():
        if not forms.is_harmless(piped["value"]):
            yield *piped.span("value"), forms.PASSWORD
    for place in (dash.start() for dash in _OPTION_START.finditer(text)):
        before = forms.line_before(text, place)
        for command, option in _OPTION_OF:
            found = option.match(text, place + 1)
            if found and command.search(before):
                start, value, quoted = _unquoted(found)
                if not forms.is_harmless(value) and value[0] != "-":
                    value = value if quoted else forms.without_closing(value, before + found[0][: -len(value)])
                    yield start, start + len(value), forms.PASSWORD
                    break
