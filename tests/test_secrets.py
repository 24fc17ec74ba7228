"""Tests of secrets: what is found by its form, what is left alone, and that no part of a secret reaches a file."""

import json
import random
import re
import subprocess
import sys
import unicodedata
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from mnemonic import Mnemonic
from stdnum import luhn

from niels_gpt.cli.inspect import listed_secrets
from niels_gpt.data.corpus.loading import Slice, cut_source, load_parts
from niels_gpt.data.secrets import (
    NAMED,
    Findings,
    OnSecret,
    Screen,
    Secret,
    find_personal,
    find_secrets,
    located,
    mask,
    outside_secrets,
)
from niels_gpt.data.secrets.forms import is_mixed, is_random, is_strong
from niels_gpt.data.secrets.tokens import is_card
from niels_gpt.data.text import Settings
from niels_gpt.data.types import Chat, Document, Request
from niels_gpt.files.store import Store
from niels_gpt.jobs.engine import LocalEngine
from stages import load
from tests.in_process import run_in_process, tiny_params
from tests.planted_secrets import CARDS, FORMS, IBANS, JWT, KEYS, LANGUAGES, PASSWORD, WRITTEN, pem
from tests.watchdog import watchdog

AROUND = ("the shop has {} since May", "{}", "KEY='{}'\r\n", '{{"a": "{}", "b": 1}}', "- `{}`\n", "see ({}), or not")


def masked(text: str) -> str:
    clean = mask(text, find_secrets(text))
    assert find_secrets(clean) == [], "what has been masked has none"
    return clean


def kinds(text: str) -> list[str]:
    return [secret.kind for secret in find_secrets(text)]


def test_nearly_all_planted_forms_in_seven_languages_are_masked() -> None:
    assert len(FORMS) >= 200
    assert len({kind for kind, *_ in FORMS}) >= 60
    assert {language for _, language, *_ in FORMS} == {"", *LANGUAGES}
    survived = [(kind, language) for kind, language, text, needles in FORMS if any(n in masked(text) for n in needles)]
    assert len(survived) <= 0.05 * len(FORMS), survived


# One line per class of words and shapes that people use, with the secret in angle brackets.
CLASSES = (
    *("Gate code: <4482>#", "Türcode Büro: <C4471>", "Codice cancello: <1846>", "De code van de voordeur is <6620>"),
    *(
        "Il codice del portone è <2938>",
        "Tresor-Kombination: <17-44-08-93>",
        "The lockbox at the back opens with <0915>",
    ),
    *("Die Geheimzahl für die Karte lautet <9034>.", "PIN bancomat: <30982>", "the new card uses <9250> as PIN"),
    *(
        "A senha do alarme da loja é <4410>.",
        "Clave de la alarma: <2286>",
        "cryptogramme : <205>",
        "| Card | PIN |\n|-|-|\n| A | <8093> |",
    ),
    *(
        "WLAN-Schlüssel (Gäste): <Sonnenblume-2019>",
        "La clave del wifi es <Gato.Negro88> y ya",
        "mdp Netflix: <soleil_2018>",
    ),
    *(
        "Le code du wifi chez Paul, c'est « <croissant42!> ».",
        "wifi: FRITZ!Box 7590 / <48219930571284406713>",
        "ww: <kaas-Markt44>",
    ),
    *(
        "Netzwerkschlüssel vom Speedport: <39481726350918273645>",
        "The iPad passcode is <471902>",
        "mdp : <Moutarde$Dijon>",
    ),
    *("a,url,password\nR,https://r.com,<Maple%Syrup1>\nS,https://s.com,<x9y8>\n", "a\tpassword\nsteam\t<Half_3ever>\n"),
    *(
        "Site     Password\nebay     <Thistle_Down2>\n",
        "## Passwort Router\n\n<Fuchsbau-3318>\n",
        "Senha:\n```\n<Coruja_9Noite>\n```\n",
    ),
    *(
        "Sicherheitsfrage Haustier: <Schnuffi>",
        "Secret answer (first pet): <Mr Biscuit>",
        "login modem admin:<vodaF0ne_2>",
    ),
    *(
        "Wiederherstellungscode: <HX7K-92LM>",
        "Código de recuperación: <829104-ksqpwe>",
        "licence number <EA7E-1140-92B7-6621>",
    ),
    *(
        "define('DB_PASSWORD', '<Scoter%Sea2>');",
        "MAIL_PASSWORD='<redshank Bay 3>'\nA=1\n",
        "JWT_SECRET=<my-long-secret-for-signing>",
    ),
    *(
        "nk:<{SHA}UK28xHjghz+5BinhfvY+13TKrHE=>",
        "App-Passwort iCloud: <wqzt-hbnm-krpl-xcvd>",
        "Amazon (a@example.org): <Zx9!bookworm>",
    ),
)


@pytest.mark.parametrize("line", CLASSES)
def test_each_class_of_words_and_shapes_is_masked_and_the_rest_of_the_line_stays(line: str) -> None:
    text = re.sub("[<>]", "", line)
    assert re.sub(r"\[[a-z ]+\]", "[]", masked(text)) == re.sub("<[^>]*>", "[]", line)


def test_numbers_and_words_that_open_nothing_are_left_alone() -> None:
    for text in (
        *(
            "Area code: 4482",
            "error code 40412",
            "The postal code is 10115",
            "alarm: 0630",
            "Building code: 2019 edition",
        ),
        *(
            "The security question is old",
            "a seed in its league",
            "root/usr/lib2x",
            '["password", "token"]',
            "the pin is 5 mm",
        ),
        *(
            "password,\npassword,\n",
            "The correct answer is Paris.",
            "see /admin/comments/8inzn5",
            "Cardiff has a code of 029",
        ),
    ):
        assert kinds(text) == [], text


CLOSINGS = (
    '"{}"',
    "'{}'",
    "`{}`",
    "({})",
    "[{}]",
    "{{{}}}",
    "«{}»",
    "“{}”",
    'f("{}")',
    "[({})]",
    "({}), then",
    '{{"a": "{}"}}',
)


@pytest.mark.slow
def test_no_mask_eats_a_closing_bracket_or_quote() -> None:
    for closing in CLOSINGS:
        for kind, _, text, needles in FORMS:
            has_quotes = any(quote in text for quote in "\"'`") and any(quote in closing for quote in "\"'`")
            if "\n" in text or has_quotes or kind in _TO_THE_END_OF_A_LINE:
                continue
            around = closing.format(text)
            clean = masked(around)
            assert clean.endswith(around[around.index(text) + len(text) :]), (kind, clean)
            if not any(needle in masked(text) for needle in needles):
                assert not any(needle in clean for needle in needles), (kind, clean)


_TO_THE_END_OF_A_LINE = ("one-time secret in groups", "app password", "shadow", "WiFi as a QR code")


def test_of_json_in_a_string_the_value_is_masked_and_its_escaped_quotes_stay() -> None:
    for line in (
        r'{"body": "{\"password\": \"swordfish\", \"user\": \"anna\"}"}',
        r'"{\"password\": \"Sommer2024!,)\"}"',
        r'"{\"password\":\"four\",\"port\": 22}"',
    ):
        value = re.search(r'password\\": ?\\"(.*?)\\"', line)
        assert value is not None
        assert mask(line, find_secrets(line)) == line.replace(value[1], "[password]")
    assert not find_secrets(r'"{\"password\": \"abc\", \"port\": 22}"')


def test_a_mask_is_what_a_secret_was_and_no_more() -> None:
    for text, clean in (
        ("connect(password=x1y2z3)", "connect(password=[password])"),
        ('print("password: hunter2")', 'print("password: [password]")'),
        ("(the password is hunter2)", "(the password is [password])"),
        ("password: hunter2(2)x", "password: [password]"),
        ("password: hunter2;", "password: [password];"),
        ("password: hunter2\\\nand a line break of Markdown", None),
        ("password: \\", None),
        ("hunter2 is the password, and a1b2c3d4 is the token", None),
        ("İİİİ (two letters each when small), password: hunter2", None),
        ('"two lines\npassword: hunter2"', '"two lines\npassword: [password]"'),
        ('{\\"password\\": \\"hunter2\\"}', '{\\"password\\": \\"[password]\\"}'),
        (WRITTEN["connection string"].format(PASSWORD), "Server=db;User Id=sa;Password=[password];Encrypt=true"),
        (WRITTEN["curl"].format(PASSWORD), "curl -u anna:[password] https://example.org"),
        (WRITTEN["XML"].format(PASSWORD), "<user>anna</user><password>[password]</password>"),
        ("| user | password |\n|---|---|\n| anna | sommer |\n\n| a | b |", None),
    ):
        assert masked(text) == (clean or re.sub("sommer|hunter2", "[password]", text))


def test_keys_of_services_are_found_by_their_form() -> None:
    for name, around in product(KEYS, AROUND):
        assert masked(around.format(KEYS[name])) == around.format("[api key]")


# Key formats as services document them: (prefix, smallest and largest number of characters after it).
KEY_LENGTHS = (
    *((name, 16, 16) for name in ("AKIA", "ASIA", "ABIA", "ACCA")),
    *((f"gh{kind}_", 36, 255) for kind in "pousr"),
    ("github_pat_", 22, 255),
    *((f"gl{kind}-", 20, 64) for kind in ("pat", "rt", "dt", "cbt", "ptt", "soat")),
    *((f"xox{kind}-", 11, 255) for kind in "abceoprs"),
    ("xapp-1-", 10, 255),
    *((f"{kind}k_{mode}_", 10, 255) for kind in "rs" for mode in ("live", "test")),
    *(("whsec_", 24, 88), ("AIza", 35, 35), ("GOCSPX-", 28, 28), ("ya29.", 20, 1024), ("sk-", 20, 250)),
    *(("gsk_", 40, 64), ("xai-", 40, 100), ("hf_", 30, 64), ("r8_", 30, 64), ("npm_", 36, 36), ("pypi-", 50, 400)),
    *(("dckr_pat_", 20, 64), ("SG.a1b2c3d4e5f6a1b2.", 16, 64), ("key-", 32, 32), ("SK", 32, 32)),
    *(("12345678:AA", 33, 33), ("1234567890:AA", 33, 33), ("Ma1b2c3d4e5f6a1b2c3d4e5f.a1b2c3.", 27, 38)),
    *(("sq0atp-", 22, 43), ("EAAA", 60, 60), ("dop_v1_", 64, 64), ("doo_v1_", 64, 64), ("dor_v1_", 64, 64)),
    *(("shpat_", 32, 32), ("shpss_", 32, 32), ("lin_api_", 40, 40), ("secret_", 40, 50), ("ntn_", 40, 50)),
    *(("dp.st.", 40, 44), ("AGE-SECRET-KEY-1", 58, 58)),
)


def mixed(n: int) -> str:
    """Return `n` hexadecimal letters and digits that no rule takes for a number."""
    return ("a1b2c3d4e5f6" * (n // 12 + 1))[:n]


def test_a_key_is_found_from_its_fewest_characters_to_its_most() -> None:
    for prefix, shortest, longest in KEY_LENGTHS:
        for around in ("{}", "the shop has {} since May", "KEY='{}'"):
            for n in (shortest, longest):
                body = mixed(n).upper() if prefix.startswith("A") else mixed(n)
                assert masked(around.format(prefix + body)) == around.format("[api key]"), n


def test_parts_of_a_web_token_have_ten_characters_and_the_path_of_a_webhook_has_twenty() -> None:
    for part in range(3):
        for n, found in ((9, []), (10, ["token"]), (300, ["token"])):
            lengths = [n if i == part else 20 for i in range(3)]
            assert kinds("eyJ" + ".".join(map(mixed, lengths))) == found
    for host in (
        *("hooks.slack.com/services/", "hooks.slack.com/workflows/"),
        *("discord.com/api/webhooks/", "discordapp.com/api/webhooks/"),
    ):
        assert kinds(f"https://{host}{mixed(19)}") == []
        for n in (20, 255):
            assert masked(f"https://{host}{mixed(n)}") == "https://[api key]"


def test_a_web_token_is_found() -> None:
    assert masked(f"curl -H 'Authorization: Bearer {JWT}' x") == "curl -H 'Authorization: Bearer [token]' x"


def test_a_part_of_a_key_is_none_and_a_longer_word_is_none() -> None:
    for name in ("AWS", "Google", "age"):  # keys of a fixed length
        assert kinds(KEYS[name][:-2]) == [], name
        assert kinds(f"x{KEYS[name]}") == [], name
        assert kinds(f"{KEYS[name]}x") == [], name
    assert kinds(f"x{JWT}") == []


LINE_ENDS = ("\n", "\r\n", "\\n", "\n> ", "\n    ", " ")


def test_a_private_key_is_found_to_its_end() -> None:
    for kind, line_end, end in product(("RSA ", "", "EC ", "OPENSSH ", "ENCRYPTED "), LINE_ENDS, (True, False)):
        block = pem(kind, line_end=line_end, end=end)
        text = f'before\n"{block}"\nNow the notes go on, with words.\n'
        assert masked(text) == 'before\n"[private key]"\nNow the notes go on, with words.\n'
        assert [secret.line for secret in find_secrets(text)] == [2]


def test_private_keys_that_are_cut_or_have_headers_are_found() -> None:
    block = pem()
    lines = block.split("\n")
    assert masked("\n".join([*lines[:1], "Proc-Type: 4,ENCRYPTED", "DEK-Info: AES-128-CBC,00FF", "", *lines[1:]])) == (
        "[private key]"
    )
    assert masked("\n".join(lines[6:]) + "\nb") == "[private key]\nb"  # its header was in another document
    assert masked(f"{block}\n{block}\nend of note") == "[private key]\n[private key]\nend of note"
    pgp = pem("PGP ").replace("KEY-----", "KEY BLOCK-----")
    assert masked(f"a\n{pgp}\nb") == "a\n[private key]\nb"


def test_text_about_private_keys_has_none() -> None:
    for text in (
        "Look for -----BEGIN RSA PRIVATE KEY----- at the head of a file and -----END RSA PRIVATE KEY----- at its end.",
        "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----",
        pem().replace("PRIVATE", "PUBLIC"),
    ):
        assert kinds(text) == []


def test_a_private_key_has_at_least_thirty_two_characters() -> None:
    for kind in ("", "RSA ", "OPENSSH "):
        head, foot = (f"-----{word} {kind}PRIVATE KEY-----" for word in ("BEGIN", "END"))
        for n in (16, 31, 32, 33, 64):
            for text in (f"{head}\n{mixed(n)}\n{foot}", f"{head}\n{mixed(n)}\n\nWords.", f"{mixed(n)}\n{foot}"):
                assert kinds(text) == (["private key"] if n >= 32 else []), (n, text)


def test_a_password_in_a_url_is_found_and_the_rest_of_the_url_stays() -> None:
    for url in ("postgres://admin:{}@db.example.org/x", "https://me:{}@[::1]:80/r.git", "redis://:{}@cache:6379"):
        assert masked(f"use {url.format(PASSWORD)}.") == f"use {url.format('[password]')}."
    for scheme, user, password, host in product(
        ("x", "https"), ("", "me"), ("p", PASSWORD), ("h", "db.example.org:5432")
    ):
        assert masked(f"{scheme}://{user}:{password}@{host} x") == f"{scheme}://{user}:[password]@{host} x"
    for url in ("https://medium.com/@niels/a-b", "https://h:8080/@x", "ftp://u:${PASS}@h", "https://u:<password>@h"):
        assert kinds(url) == [], url


LINES = (
    *("password: {}", "- **Password:** {}", "pwd={}", "DB_PASSWORD={}", "dbPassword = '{}'", "password:: {}"),
    *('"password": "{}",', "Wi-Fi password: `{}`", "my password is {}", "Passwort: {}", "adgangskode = {}"),
    *(
        "mot de passe : {}",
        "password (router): {}",
        "password for the router: {}",
        "PASSWORD:\u00a0{}",
        "password\t=\t{}",
    ),
    *("пароль: {}", "passphrase: {}", "password | {} |", "pw: {}", "user: me pass: {}", "Password - {}"),
    *("password on paper: {}", "password => {}", "Password:\n{}", "**password**:\r\n  {}"),
)
KEY_LINES = ("secret: {}", "client_secret={}", "api_key = '{}'", "apiKey: {}", "access_token={}", "API-Key: {}")


def test_the_value_of_a_line_that_names_a_password_is_found() -> None:
    for line in (*LINES, *KEY_LINES):
        put = "[password]" if line in LINES else "[api key]"
        for line_end in ("\n", "\r\n"):
            text = f"one{line_end}{line.format(PASSWORD)}{line_end}three 3"
            assert masked(text) == f"one{line_end}{line.format(put)}{line_end}three 3"
            assert [secret.line for secret in find_secrets(text)] == [2 + line.count("\n")]


SEED = tuple(Mnemonic("english").wordlist[:12])
# (text, kind, a value at the bound of its rule, a value just below it)
BOUNDS = (
    ("key: {}", "api key", mixed(16), mixed(15)),
    ("acme_{}", "", mixed(24), mixed(23)),
    ("echo {} | sudo -S ls", "password", "a1b2", "a1b"),
    ("echo {} | docker login --password-stdin", "password", "a1b2", "a1b"),
    ("{} as the new password", "password", "hunt22", "hunt2"),
    ("Bearer {}", "token", mixed(16), mixed(15)),
    ("Cookie: a=b; sid={}; c=d", "token", mixed(16), mixed(15)),
    ("Authorization: Basic {}", "token", "abcdef", "abcde"),
    ("login: me / {}", "password", "hunt22", "hunt2"),
    ("login: me / {}", "password", "hunt22", "hunter"),
    ("IDENTIFIED WITH mysql BY '{}'", "password", "q", "<q>"),
    ("PIN: {}", "pin", "1234", "123"),
    ("PIN code of the door is now: {}", "pin", "12345678", "123456789"),
    ("CVV: {}", "pin", "123", "12"),
    ("passphrase: {}", "password", "correct horse battery staple", "correct horse battery"),
    ("passphrase: {}", "password", "correct-horse-battery", "so-so is it"),
    ("machine h login me password {}", "password", "abcd", "abc"),
    ("x --password {}", "password", "abcd", "abc"),
    ("x --password {} and more", "password", "a1cd", "abcd"),
    ("x --password {}", "password", "a-bc", "-abc"),
    ("the password {} was old", "password", "hunter2A", "hunter22"),
    ("the password {} was old", "password", "hunter2A", "unter2A"),
    ("the token {} was old", "api key", "hunt2!AB", "hunt2AB!"),
    (f"token {'word ' * 13}{{}}", "api key", mixed(16), mixed(15)),
    (f"token {'word ' * 14}{{}}", "api key", mixed(40), f" {mixed(40)}"),
    ("my password in use, {}", "password", mixed(16), "61024cd6-1951-47cc-8050-25f68960d729"),
    ("| a | password |\n|---|---|\n| x | {} |", "password", "abcd", "abc"),
    ("| a | password |\n|---|---|\n| x | {} |", "password", "ab-cd", "ab cd"),
    ("| a | token |\n|---|---|\n| x | {} |", "api key", "abcdef12", "abcdef1"),
    ("recovery codes: {}", "recovery code", "a1b2", "a1b"),
    ("recovery codes:\n1. {}", "recovery code", "abcd-123", "abcd-efg"),
    ("Password:\n{}", "password", "abcdef", "abcde"),
    ("Password:\n{}", "password", "hunTer", "Hunter"),
    ("password manager: {}", "password", "hunter22", "hunter2"),
    ("Das Passwort lautet {}", "password", "abcd", "abc"),
    ("the password is {}", "password", "abc123", "ab123"),
    ("the password is {}", "password", "abc123", "abcdef"),
    ("<input name='password' value='{}'>", "password", "abcd", "abc"),
    ('say \\"password\\": \\"{}\\"', "password", "abcd", "abc"),
    ("{}", "seed phrase", " ".join(SEED), " ".join(SEED[:11])),
    ("{}", "seed phrase", " ".join(SEED[:9] + SEED[:3]), " ".join(SEED[:8] + SEED[:4])),
    ("{}", "seed phrase", ", ".join(SEED), ". ".join(SEED)),
    ("me@example.org / {}", "password", "Hunter22", "Hunter2"),
    ("me@example.org: {}", "password", "Hunter22", "hunter22"),
    ("db:5432:shop:me:{}", "password", "abcd", "abc"),
    ("WIFI:T:WPA;S:net;P:{};;", "password", "q", "<q>"),
    ("{}", "password", f"$6${mixed(20)}", f"$6${mixed(19)}"),
)


def test_a_value_is_masked_at_the_bound_of_its_rule_and_not_below() -> None:
    for text, kind, at, below in BOUNDS:
        assert masked(text.format(at)) == (text.format(f"[{kind}]") if kind else "[api key]"), text
        assert masked(text.format(below)) == text.format(below), text


def test_codes_are_masked_with_few_words_before_them_and_columns_from_two_on() -> None:
    for text, expected in CODES:
        assert masked(text) == expected


CODES = (
    ("the door code upstairs 4711", "the door code upstairs [pin]"),
    ("code of door 4711", "code of door 4711"),
    ("PIN of card 4711", "PIN of card [pin]"),
    ("PIN of my card 4711", "PIN of my card 4711"),
    ("alarm code: hunter2A", "alarm code: [password]"),
    ("PIN: hunter2A", "PIN: hunter2A"),
    ("2FA codes: a1b2c3d4", "2FA codes: [recovery code]"),
    ("(alarm code: 2hunter(A))", "(alarm code: [password])"),
    ('"a" and "b" password: hunter2A"x', '"a" and "b" password: [password]'),
    ("user,password\nanna,hunter22", "user,password\nanna,[password]"),
    ("user  password\nanna  hunter22", "user  password\nanna  [password]"),
)


def test_a_word_is_random_strong_or_mixed_from_a_bound_on() -> None:
    for word, random_word in (
        *(("a1b2c3d4e5", True), ("a1b2c3d4e", False), ("aaaa11bbbb", True), ("aaaa11bbbbb", False)),
        *(("abcdeFGhI1", False), ("abcdEfGhI12", True), ("1234567890", False), ("a1b2c.3d4e5", False)),
    ):
        assert is_random(word) is random_word, word
    for word, kinds_of_characters in (
        ("aB3aB3aB", 3),
        ("aB3aB3a", 0),
        ("aB3!aB3a", 4),
        ("aB3aB3a!", 3),
        ("aaaaaaaa", 1),
    ):
        assert [is_strong(word, n) for n in range(1, 5)] == [n <= kinds_of_characters for n in range(1, 5)], word
    assert [is_mixed(word) for word in ("a1", "é1", "a", "1", "_1", "a 1")] == [True, True, False, False, False, False]


def test_secrets_that_overlap_are_merged_and_neighbours_are_not() -> None:
    found = located("ab\ncdefghi", [(4, 6, "y"), (0, 2, "a"), (2, 5, "x"), (4, 5, "z"), (6, 7, "b")])
    assert found == [Secret("a", 0, 2, 1), Secret("x", 2, 6, 1), Secret("b", 6, 7, 2)]
    assert located("abc", [(0, 1, "x"), (0, 3, "y"), (0, 3, "z")]) == [Secret("y", 0, 3, 1)]  # the first of equal spans


# After these names prose is as common as passwords, so a value needs six characters with letters and digits.
AMONG_PROSE = (
    *("password | {} |", "my password is {}", "pw: {}", "user: me pass: {}", "Password - {}"),
    *("Password:\n{}", "**password**:\r\n  {}"),
)


def test_a_value_is_masked_from_its_fewest_characters_on() -> None:
    for line in (*LINES, *KEY_LINES):
        put = "[password]" if line in LINES else "[api key]"
        shortest = 8 if line in KEY_LINES else 6 if line in AMONG_PROSE else 4
        for n in (*range(shortest, 20), 199, 200):
            # A long random word is reported as a key, whatever name is in front of it.
            puts = {put, "[api key]"} if n >= 16 else {put}
            assert masked(f"one\n{line.format(mixed(n))}\nthree") in {f"one\n{line.format(p)}\nthree" for p in puts}, n
        for n in range(1, shortest):
            assert kinds(f"one\n{line.format(mixed(n))}\nthree") == [], n
        plain = f"one\n{line.format('swordfishes')}\nthree"
        assert kinds(plain) == (["password"] if shortest == 4 or "\n" in line else [])  # without a digit


NAMES = (
    *("password", "passwd", "Passwort", "passphrase", "passcode", "passord", "mot de passe", "pwd", "Kennwort"),
    *("wachtwoord", "contraseña", "adgangskode", "kodeord", "lösenord", "senha", "пароль", "pass", "pw"),
)
KEY_NAMES = (
    *("secret", "secret key", "secret_access_key", "token", "api key", "access-key", "auth_key", "account key"),
    *("encryption key", "signing key", "master key", "private_key", "license key", "licence key", "apikey"),
)


def test_every_name_of_a_password_or_a_key_is_known_in_small_and_in_capital_letters() -> None:
    for name in (*NAMES, *KEY_NAMES):
        put = "[password]" if name in NAMES else "[api key]"
        for written, sign in product((name, name.upper(), name.capitalize()), (": ", "=", " = ", " := ", " => ")):
            assert masked(f"{written}{sign}{PASSWORD}") == f"{written}{sign}{put}"


def test_a_password_is_masked_to_its_end_however_long_it_is() -> None:
    assert masked(f"password={'a1' * 5000} b") == "password=[password] b"
    assert masked(f"token: secret: password: {PASSWORD}") == "token: secret: password: [password]"
    assert masked(f"İ İ İ password: {PASSWORD}") == "İ İ İ password: [password]"  # in lower case, İ is two characters
    for word in ("swordfish", "correct-horse-battery", "13371337", "$ecretly", "<3hunter", "hunter2(x", "a1.b2"):
        assert masked(f"Password: {word}\nx") == "Password: [password]\nx"


def test_a_token_in_a_link_is_masked_and_the_link_stays() -> None:
    assert masked("[a](https://x.org/?token=a1b2c3d4e5&b=1) c") == "[a](https://x.org/?token=[api key]&b=1) c"


PROSE = (
    "The password: required, at least 8 characters.",
    "Password: required",
    "password: <your password>",
    "password: ${DB_PASSWORD}",
    "password: $password1",
    "First pass: skim",
    "the second pass: 2nd",
    'a password on a lookalike address.", "role": "assistant1"',
    "Password:\n\nuse2of4 words",
    "## Token:\nThe 2nd part",
    "password - the 2 rules",
    "PASSWORD=$PASSWORD1",
    "password: ********",
    "password = getpass()",
    "api_key = os.environ['KEY_1']",
    "token = settings.token2",
    "the password is wrong again",
    "a token: a piece of a word",
    "The secret: work every day",
    "the key: C major, 120 bpm, bars1to8",
    "Password reset: https://example.org/reset1",
    "## Passwords\n1Password is a manager2",
    "monkey: banana99",
    "key: a1b2c3d4e5",
    "password: [[Where passwords are 2]]",
    "sk-learn and risk-adjusted-returns-of-the-year",
    "[autonomy: the secret of joy?](https://www.example.org/us/blog/202201/x)",
    "anna ALL=(ALL) NOPASSWD: /usr/sbin/zfs",
    "kubectl get secret x -o jsonpath={.data.password} | base64 --decode",
    "echo $PASSWORD | base64",
    "My Cloud-Based Password Manager](https://example.org/2016/a)",
    "mysql -u root -p shop",
    "Do the best you can until you know better. Then when you know better, do better.",
    "curl -u anna https://example.org:8080",
    "fill in your API key mentioned in ((61024cd6-1951-47cc-8050-25f68960d729))",
    "shopping: 1234, Pin 13, PIN codes",
    "The author: 3rd edition",
)


def test_prose_and_placeholders_are_left_alone() -> None:
    for text in PROSE:
        assert kinds(text) == [], text


def test_card_numbers_are_found_by_prefix_length_and_check_digit() -> None:
    for card in CARDS:
        for around in ("card {}, valid to 12/27", "{}", "{} 12/27", "pay: {}\n", "12 {} 123"):
            assert masked(around.format(card)) == around.format("[card number]")
        last = str((int(card[-1]) + 1) % 10)
        assert kinds(card[:-1] + last) == []
        assert kinds(f"id{card}") == kinds(f"/{card}") == kinds(f"{card}x") == []


def test_a_card_has_one_of_its_issuer_s_lengths() -> None:
    for prefixes, lengths in (
        ("4", {13, 16, 19}),
        ("51 55 2221 229 23 26 270 2720", {16}),
        ("34 37", {15}),
        ("6011 644 649 65", {16, 19}),
        ("300 305 36 38 39", {14, 16}),
        ("3528 3529 353 358", {16}),
        ("62", {16, 17, 18, 19}),
        ("50 56 2220 2721 33 6010 643 306 1 7 9", set()),
    ):
        for prefix, n in product(prefixes.split(), range(12, 21)):
            body = prefix + "0" * (n - 1 - len(prefix))
            assert is_card(body + luhn.calc_check_digit(body)) is (n in lengths), (prefix, n)


def test_other_long_numbers_are_no_cards() -> None:
    digits = random.Random(3)
    taken = sum(is_card(str(digits.randrange(10**15, 10**16))) for _ in range(4000))
    assert 0 < taken < 0.05 * 4000  # few prefixes are valid, and the check digit lets a tenth of them through
    assert kinds("years 2010 2011 2012 2013, and 0000 0000 0000 0000; 1 2 3 4 5 6 7 8 9 10 11 12 13") == []
    assert kinds("4111 1111 1111 1111".replace(" ", "  ")) == []


def test_ibans_are_found_by_country_length_and_check_digits() -> None:
    for iban in IBANS:
        for around in ("IBAN: {}.", "{}", "send it to {} today", "({})"):
            assert masked(around.format(iban)) == around.format("[iban]")
        place = len(iban) - 1
        other = "7" if iban[place] != "7" else "6"
        assert kinds(iban[:place] + other) == []
        assert kinds(f"{iban}9") == kinds(f"A{iban}") == []
    assert masked("BE41 5390 0754 7035") == "[iban]"  # the bank's own check digits (34 is right) are not verified


def test_what_stands_around_secrets_stays_and_masking_twice_changes_nothing() -> None:
    rng = random.Random(5)
    secrets = {
        **dict.fromkeys(KEYS.values(), "[api key]"),
        **dict.fromkeys(CARDS, "[card number]"),
        **dict.fromkeys(IBANS, "[iban]"),
        **{pem(end=False): "[private key]", pem(): "[private key]", JWT: "[token]"},
    }
    for _ in range(200):
        pieces = [rng.choice([*secrets, "Words, 12 of them.", "ünï = 3", "a: b"]) for _ in range(8)]
        joined = "\n\n".join(pieces)
        assert masked(joined) == "\n\n".join(secrets.get(piece, piece) for piece in pieces)
    for _ in range(300):  # random fragments of them, joined
        mixed = "".join(
            piece[rng.randrange(9) :][: rng.randrange(60)] for piece in rng.choices([*secrets, *LINES], k=9)
        )
        masked(mixed)


HOSTILE = (
    *("password=", "password=a1", "token: ", "sk-", "eyJ", "eyJ.", "a1:", "1 ", "4111", "DE89", "://a:", "key_", "\\n"),
    *("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----\n", "A\n", " "),
    *("abandon ", "password ", "|--", "cookie: a=b;", " -p", "auth ", "| password |\n|---|\n| a |\n", "@"),
)


@pytest.mark.slow
@pytest.mark.parametrize("piece", HOSTILE)
def test_time_grows_with_the_text_and_no_faster(piece: str) -> None:
    """A few hundredths of the watchdog's time are enough, unless run time grows with the square of the length."""
    with watchdog(20, of_cpu=True):
        find_secrets(piece * (100_000 // len(piece)))
        find_secrets("-----BEGIN PRIVATE KEY-----\n" + piece * (40_000 // len(piece)))


def test_no_cut_goes_through_a_secret() -> None:
    text = f"a note\npassword: {PASSWORD}\nmore"
    text, end = "x" * 200 + text, 200 + text.index(PASSWORD) + len(PASSWORD)
    named = text.index("password")
    assert {outside_secrets(text, place) for place in range(named, end)} == {end}
    assert [outside_secrets(text, place) for place in (0, 5, end, end + 1)] == [0, 5, end, end + 1]


# Handling of secrets by the stage `load`


def rows(n: int = 12) -> list[Document]:
    """Return `n` documents; every third one has a secret, in its second line."""
    return [
        Document(id=f"n{i}", text=f"note {i}\n" + (f"password: {PASSWORD}" if i % 3 == 1 else "x")) for i in range(n)
    ]


def screened(on_secret: OnSecret) -> tuple[list[Any], Findings]:
    screen = Screen(on_secret)
    passed = list(screen.rows(rows()))
    return passed, screen.take() + screen.dropped


def test_personal_details_are_masked_where_it_is_asked_for_and_counted() -> None:
    text = "Anna, anna@example.org, tel. 0170 1234567, SSN 536-90-4399, 2010 2011 2012, 192.168.100.200"
    kept, found = Screen("mask"), Screen("mask", "mask")
    assert list(kept.rows([Document(id="a", text=text)])) == [Document(id="a", text=text)]
    assert kept.take() == Findings()
    (row,) = found.rows([Document(id="a", text=text)])
    clean = "Anna, [e-mail address], tel. [telephone number], SSN [national id], 2010 2011 2012, 192.168.100.200"
    assert row == Document(id="a", text=clean)
    findings = found.take()
    assert findings.personal == {"e-mail address": 1, "telephone number": 1, "national id": 1}
    assert findings.facts("mask") == {"personal": findings.personal}
    assert Findings.of_record(json.loads(json.dumps(findings.record()))) == findings
    assert next(findings.told("mask")).startswith("3 personal details are replaced (")


PERSONAL = (
    *("+49 30 901820", "(415) 555-2671", "01 42 68 53 00", "+351 912 345 678", "CPF 390.533.447-05"),
    *("RSSMRA85T10A562S", "54362315K", "BSN 111222333", "Steuer-ID 36 574 261 809", "2 95 10 99 126 111 93"),
    *("756.9217.0769.85", "x.y+z@sub.example.co.uk"),
)


def test_personal_details_are_found_by_their_country_s_form() -> None:
    for detail in PERSONAL:
        assert len(find_personal(f"see {detail}, and so on")) == 1
    for text in ("ISBN 978-3-16-148410-0", "2021-04-05 10:11:12", "1605555555", "(3000-2350 BC)", "10 000 000 000"):
        assert find_personal(text) == [], text


def test_seed_phrases_are_found_wherever_they_stand_and_however_they_are_written() -> None:
    for language in ("english", "french", "spanish", "italian", "portuguese"):
        rng, found = random.Random(3), 0
        words = [unicodedata.normalize("NFC", word) for word in Mnemonic(language).wordlist]
        for i in range(100):
            chosen = rng.sample(words, rng.choice((12, 15, 18, 21, 24)))
            numbered = [f"{number}. {word}" for number, word in enumerate(chosen, start=1)]
            written = (" ".join(chosen), "\n".join(chosen), ", ".join(chosen), " ".join(numbered))[i % 4]
            clean = masked(f"{'z' * i} It is {written}")
            found += not any(word in clean.split() for word in chosen)
        assert found >= 95


@pytest.mark.slow
def test_packages_for_personal_details_are_imported_by_no_one_else() -> None:
    code = "import stages.load, sys; sys.exit(any(m in sys.modules for m in ('phonenumbers', 'stdnum', 'mnemonic')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_all_findings_are_listed_and_no_secret_is_told(notes: Path) -> None:
    for i in range(30):
        (notes / f"{i:02d}.md").write_text(f"note {i}\n- password: {PASSWORD} (old: {KEYS['GitHub']})")
    params = tiny_params({"sources.roam.load": {"kind": "roam"}})
    lines = list(listed_secrets(params, "roam"))
    assert lines[0] == "roam: 00.md, line 2: password    - password: [password] (old: [api key])"
    assert lines[-1] == "roam: 60 secrets (on_secret: mask)"
    assert len(lines) == 61
    assert not [line for line in lines if PASSWORD in line or KEYS["GitHub"] in line]
    with pytest.raises(ValueError, match=r"^there is no source 'rome'; there are: "):
        list(listed_secrets(params, "rome"))


def test_rows_are_kept_masked_or_dropped() -> None:
    kept, found = screened("keep")
    assert kept == rows()
    assert found.kinds == {"password": 4}
    assert found.documents == 4
    assert found.first == [f"n{i}, line 2: password" for i in (1, 4, 7, 10)]
    replaced, same = screened("mask")
    assert same == found
    assert [row.text for row in replaced] == [row.text.replace(PASSWORD, "[password]") for row in rows()]
    dropped, same = screened("drop")
    assert same == found
    assert dropped == [row for row in rows() if PASSWORD not in row.text]
    with pytest.raises(ValueError, match=r"^n1, line 2: password: take it out, or .*; nothing was written$"):
        screened("fail")


def test_every_message_of_a_chat_is_looked_at() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": f"so:\npwd={PASSWORD}"}]
    screen = Screen("mask")
    (chat,) = screen.rows([Chat(id="c", messages=messages, group="g")])
    assert chat == Chat(id="c", messages=[messages[0], {**messages[1], "content": "so:\npwd=[password]"}], group="g")
    assert screen.take().first == ["c, message 2, line 2: password"]


def test_the_first_are_named_and_all_are_counted_and_no_secret_is_told() -> None:
    found = sum((Findings({"password": 2}, 1, [f"{i}", f"{i}"]) for i in range(30)), Findings())
    assert len(found.first) == NAMED == 20
    said = list(found.told("keep"))
    assert said[0] == "60 secrets in 30 documents are kept (password: 60)"
    assert said[21] == "  and 40 more"
    assert "on_secret: mask" in said[22]
    assert list(Findings().told("keep")) == []
    for n, replaced in (
        (1, "1 personal detail is replaced (email: 1)"),
        (2, "2 personal details are replaced (email: 2)"),
    ):
        assert list(Findings(personal={"email": n}).told("mask")) == [replaced]
    assert (Findings().facts("mask"), Findings().record()) == ({}, {})
    assert Findings.of_record(json.loads(json.dumps(found.record()))) == found
    assert found.facts("mask") == {"secrets": {"done": "mask", "documents": 30, "password": 60}}


def loaded(file: Path, store: Path, on_secret: OnSecret, *, workers: int = 1, text_bytes: int = 20) -> Findings:
    request = Request(str(file), None, max_tokens=None, patience_s=1)
    slices = cut_source(Slice("text", Settings(), request, Store(str(store)), text_bytes, on_secret))
    return load_parts(LocalEngine(workers), slices, say=bool, tick=bool)[1]


def parts_of(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.glob("*.parquet")}


@pytest.mark.slow
@pytest.mark.parametrize("on_secret", ["keep", "mask", "drop"])
def test_a_load_that_was_interrupted_counts_every_secret_once(on_secret: OnSecret, tmp_path: Path) -> None:
    lines = [json.dumps({"text": row.text}) + "\n" for row in rows(14)]
    file = tmp_path / "rows.jsonl"
    for cut in range(3, len(lines) + 1):
        store = tmp_path / f"{cut}"
        file.write_text("".join(lines[:cut]) + "{broken\n")
        with pytest.raises(ValueError, match="is not JSON"):
            loaded(file, store, on_secret)
        file.write_text("".join(lines))
        found = loaded(file, store, on_secret)
        for record in (store / "done").glob("slice*"):
            record.unlink()  # all parts are done, but no record says so
        assert loaded(file, store, on_secret) == found
        assert found == loaded(file, tmp_path / "fresh", on_secret)
        assert sum(found.kinds.values()) == len([line for line in lines if PASSWORD in line])
        assert parts_of(store) == parts_of(tmp_path / "fresh")
    assert len(parts_of(tmp_path / "fresh")) > 2


@pytest.mark.slow
@pytest.mark.parametrize("on_secret", ["mask", "drop"])
def test_findings_do_not_depend_on_the_number_of_workers(on_secret: OnSecret, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for row in rows(12):
        (tmp_path / f"notes/{row.id}.md").write_text(row.text)
    found = [loaded(tmp_path / "notes", tmp_path / f"{n}", on_secret, workers=n) for n in (1, 3)]
    assert found[0] == found[1]
    assert found[0].documents == 4
    assert parts_of(tmp_path / "1") == parts_of(tmp_path / "3")


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/roam").mkdir(parents=True)
    return tmp_path / "data/roam"


def load_roam(**changes: object) -> dict[str, Any]:
    """Load the source `roam` and return its manifest."""
    params = tiny_params({f"sources.roam.{key}": value for key, value in changes.items()})
    run_in_process("load", load.main, params, "roam")
    manifest: dict[str, Any] = json.loads(Path("cache/raw/roam/manifest.json").read_text())
    return manifest


def test_private_text_is_masked_by_default_and_public_text_is_not(
    notes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (notes / "a.md").write_text("plain")
    (notes / "b.md").write_text(f"see\n\nAPI_KEY={KEYS['GitHub']} x\nIBAN {IBANS[0]}")
    manifest = load_roam(load={"kind": "roam"})
    assert manifest["secrets"] == {"done": "mask", "documents": 1, "api key": 1, "iban": 1}
    said = capsys.readouterr().out
    for line in (
        "load@roam: 2 secrets in 1 document are replaced (api key: 1, iban: 1)",
        "load@roam:   b.md, line 3: api key",
        "load@roam:   b.md, line 4: iban",
    ):
        assert f"{line}\n" in said
    assert load_roam(load={"kind": "roam"}, remote="store")["secrets"]["done"] == "keep"
    kept = capsys.readouterr().out
    assert "2 secrets in 1 document are kept" in kept
    assert "b.md, line 4: iban\n" in kept
    assert load_roam(load={"kind": "roam", "on_secret": "drop"}, remote="store")["rows"] == 1
    with pytest.raises(ValueError, match=r"^b\.md, line 3: api key: take it out"):
        load_roam(load={"kind": "roam", "on_secret": "fail"})
    assert json.loads(Path("cache/raw/roam/manifest.json").read_text())["rows"] == 1, "as the run before left it"
    everything = said + kept + capsys.readouterr().out
    assert not [
        part for secret in (KEYS["GitHub"], IBANS[0]) for part in re.findall("....", secret) if part in everything
    ]


def test_dropping_every_document_is_an_error(notes: Path) -> None:
    (notes / "a.md").write_text(f"password: {PASSWORD}")
    with pytest.raises(ValueError, match=r"^every document in data/roam has a secret, and on_secret is drop"):
        load_roam(load={"kind": "roam", "on_secret": "drop"})


@pytest.mark.parametrize("on_secret", ["keep", "mask", "drop", "fail"])
def test_text_without_secrets_is_the_same_whatever_is_done_about_them(on_secret: OnSecret, notes: Path) -> None:
    (notes / "a.md").write_text("plain")
    before = load_roam(load={"kind": "roam"}, remote="store")
    assert "secrets" not in before
    assert "on_secret" not in before
    assert load_roam(load={"kind": "roam", "on_secret": on_secret}) == before


def test_where_a_held_out_tail_would_begin_in_a_secret_it_begins_behind_it(notes: Path) -> None:
    text = f"{'x' * 40}\npassword: {PASSWORD}\nend"
    (notes / "a.txt").write_text(text)
    load_roam(load={"kind": "text", "held_out_tail": 8 / len(text)}, split={"by": "given"})
    table = pq.read_table("cache/raw/roam/part-00000.parquet")
    assert table["text"].to_pylist() == [f"{'x' * 40}\npassword: [password]", "\nend"]
