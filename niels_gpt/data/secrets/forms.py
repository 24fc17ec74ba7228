"""Names of secrets and the words around them, and how a word in the place of a secret is judged.

The languages are English, German, French, Spanish, Portuguese, Italian and Dutch, and single words of some others. All
words are in lower case; patterns are matched without regard to case where words are involved.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

Found = Iterator[tuple[int, int, str]]  # start, end, kind


def read_table(name: str) -> list[list[str]]:
    """Return the rows of a table in this folder, without its head."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines[1:]]


_WORDS = read_table("words.tsv")


def words(meaning: str) -> str:
    """Return the words of words.tsv with this meaning in all languages, as alternatives of a pattern.

    Names (of passwords, keys, logins, codes, answers and phrases) begin at one of the anchors. A short name of a
    password has other uses, too, and "key" is weak evidence without a word such as API before it.
    """
    return "|".join(row[2] for row in _WORDS if row[0] == meaning)


SHORTEST_PASSWORD, SHORTEST_VALUE = 4, {True: 6, False: 8}  # a word alone; letters and digits: a password, a key
SHORTEST_KEY = 16  # characters of a token that needs no name, or little of one
_PLACEHOLDER = re.compile(
    r"(?i)[\[…]|<[^<>]*>|\$?\{|\$\(|(?-i:\$[A-Z_][A-Z0-9_]*$)|\$\w*(?:pass|pw|token|secret|key)\w*$|%\w+%"
    r"|(?:https?:)?//|www\.|!\[|\(+\w|[*_x.•●·-]+$"
    r"|(?:your|enter|insert|some)[ _-]|(?-i:[A-Z_]*(?:PASS|TOKEN|KEY|SECRET|PW)[A-Z_]*$)"
    r"|(?:~|\.{0,2})/(?:[\w.-]+/)*[\w-]*[a-z_-]$"  # a path
    r"|[a-z_]+(?:\.[a-z_]+)*[(\[]|(?-i:[a-z_]+(?:\.(?:[a-z_][A-Za-z_]*[0-9]?|[A-Z_]+))+$)"  # code that asks for it
)
_PROSE = re.compile(f"(?i)(?:{words('prose')})")
_STRONG = ("[a-z]", "[A-Z]", "[0-9]", r"[!@#$%^&*+=~?](?=.)")
_OPEN, _CLOSED = "([{<«\u2018„", ")]}>»”\u2019“"  # German closes with what English opens with
_QUOTES = {'"': re.compile('"'), "`": re.compile("`"), "'": re.compile(r"(?<!\w)'")}  # no apostrophes


def is_random(value: str) -> bool:
    """Tell a random string from an identifier: it changes often between digits, capitals and small letters."""
    body = max(re.split("[^A-Za-z0-9]", value), key=len)
    classes = re.sub("[A-Z]", "A", re.sub("[a-z]", "a", re.sub("[0-9]", "0", body)))
    changes = sum(a != b for a, b in pairwise(classes))
    return len(body) >= 10 and 2 <= classes.count("0") < len(body) and 5 * changes >= len(body)


def is_mixed(value: str) -> bool:
    """Check for letters and digits without a space: few words of prose have both."""
    return not re.search(r"\s", value) and bool(re.search(r"[^\W\d_]", value) and re.search(r"\d", value))


def is_strong(value: str, kinds: int) -> bool:
    """Check for 8 characters of at least `kinds` kinds: lower case, upper case, digits, signs."""
    return len(value) >= 8 and sum(bool(re.search(form, value)) for form in _STRONG) >= kinds


def is_placeholder(value: str) -> bool:
    """Check for a placeholder of a secret: `<password>`, `$TOKEN`, `********`, a path, a call."""
    return not value or bool(_PLACEHOLDER.match(value))


def is_harmless(value: str) -> bool:
    """Check for placeholders, and for words that prose has behind the name of a secret."""
    bare = value.strip(".,;:!?()*_\"'`|")
    return is_placeholder(value) or is_placeholder(bare) or bool(_PROSE.fullmatch(bare))


def without_closing(value: str, before: str) -> str:
    """Cut a value at the first quote or bracket that closes what was opened before it, and at its last comma.

    `before` is the line up to the value. A bracket inside a password is part of it; one at its end that the password
    does not open itself is not.
    """
    for quote, form in _QUOTES.items():
        if len(form.findall(before)) % 2:
            value = value.partition(quote)[0]
    value = value.removesuffix("\\") if value != "\\" else value
    depth = 0
    for place, character in enumerate(value):
        if character in _OPEN:
            depth += 1
        elif character in _CLOSED:
            depth -= 1
            if depth < 0 and not value[place + 1 : place + 2].isalnum():
                value = value[:place]
                break
    return value.rstrip("\"'`,;|")


def line_before(text: str, place: int, *, most: int = 200) -> str:
    """Return the line up to a position, at most `most` characters of it."""
    reach = max(0, place - most)
    return text[max(reach, text.rfind("\n", reach, place) + 1) : place]


KEY, PRIVATE_KEY, TOKEN, PASSWORD, CARD, IBAN = "api key", "private key", "token", "password", "card number", "iban"
PIN, CODE, SEED = "pin", "recovery code", "seed phrase"
EMAIL, PHONE, ID = "e-mail address", "telephone number", "national id"


def kind_of(name: re.Match[str]) -> str:
    """Return the kind of secret that a match of `NAME` says."""
    return PASSWORD if name["password"] or name["short"] else KEY


# Names of secrets. Each may end a longer one: DB_PASSWORD, dbPassword, Routerpasswort. A name is searched for by its
# anchor: it begins there, and looks behind for what stands before. Anchors begin with the rarer letters of their names,
# which halves the time of the search.
NAME = (
    f"(?i)(?:(?P<password>{words('password')})|(?P<short>{words('password, if short')})|(?P<key>{words('key')})"
    rf"|(?P<plain>{words('key, by its kind')}))(?![^\W_])(?:_\w{{1,30}}+)?+"
)
ANCHORS = re.compile(
    r"b(?:earer |ox(?<=lockbox))|c(?:o(?:de|di[cg]|mbina|mbo\b|ntrase)|lé|ódig|r(?:ed|et(?<=secret)|yptogramme)|hloss"
    r"|a(?:den|ndad|dead)[ao]|chetto|ijferslot)|f(?:i(?<=identifi)(?:ant|ed )|ra(?:ge(?<=sfrage)|se ))|g(?:e(?:heimnis"
    r"|gevens)|-?in(?<=login|og-in)|re[td]o|slot|(?<=sig)(?:nature)?(?==))|jeton|k(?:e(?:ypad|y ?safe|y|nnwort"
    r"|n(?<=token))|ode|ombina|luis|ie:|(?<=psk)|(?<=unlock))|m(?:dp|in(?= ?[/:])|nemonic|emorable w|eldedaten|anda seg"
    r"|(?<=isarm))|p(?:pid=|a(?:dlock|ss|rola d)|hrase|in(?![abd-mo-z])|rüfziffer|onse sec|uesta se|osta se|(?:re"
    r"|er)gunta )|question(?: sec|(?<=[yt] question))|u(?:th(?<=auth)|tel(?<=sleutel)|k(?<=puk)|nscharf)|üssel(?:box"
    r"|safe|tresor)?|v(?:e(?<=clave|chave|hiave)|[vc](?<=cv[vc])|[ea]r(?<=activ[ea]r)|are(?<=attivare)|raag)"
    r"|w(?:oor(?:d(?<=twoord)|den)|ort(?<=swort|mwort)|i-?fi|lan|ords(?<=[24] words)|örter|er(?<=[yt] answer)|(?<=pw)"
    r"|(?<=psw)|(?<=ww)(?![\w.]))|z(?:ugang|ahl(?<=heimzahl)|in(?<=stelzin))|ösenord|пароль"
)
# "has been changed to" is one, too
VERBS = words("is") + r"|(?:[^\W\d_]{2,14}[ \t]){0,3}(?:to|auf|in|en|a|para|naar)"
PIN_NAMES = (  # behind these a number is a secret, whatever else the line says
    r"(?:(?<![^\W_])(?:PIN|Pin)|(?<=C)V[VC]2?|(?<=P)UK|(?<![^\W_])TAN|(?<=eheim)zahl|[Cc]ryptogramme|[Pp]rüfziffer)"
    r"(?:[ -]?(?:[12](?=:)|code|Code|nummer|Nummer|number|Nr\.?))?"
)
