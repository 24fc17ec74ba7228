"""Secrets to plant in texts. None is anybody's: they are drawn from seeds, or are the examples that standards print.

Keys are put together here: whole ones in a repository set off the alarms of those who host it.
"""

from __future__ import annotations

import base64
import random
import string

_RNG = random.Random(12)
_ALNUM = string.ascii_letters + string.digits


def drawn(n: int, alphabet: str = _ALNUM) -> str:
    return "".join(_RNG.choice(alphabet) for _ in range(n))


def _url64(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


KEYS = {
    "AWS": "AKIA" + drawn(16, string.ascii_uppercase + "234567"),
    "GitHub": "ghp_" + drawn(36),
    "a fine-grained one of GitHub": "github_pat_" + drawn(22) + "_" + drawn(59),
    "GitLab": "glpat-" + drawn(20),
    "Slack": f"xoxb-{drawn(12, string.digits)}-{drawn(12, string.digits)}-{drawn(24)}",
    "a hook of Slack": f"hooks.slack.com/services/T{drawn(8)}/B{drawn(8)}/{drawn(24)}",
    "Stripe": "sk_" + "live_" + drawn(24),
    "Google": "AIza" + drawn(35),
    "OpenAI": "sk-" + drawn(20) + "T3BlbkFJ" + drawn(20),
    "OpenAI by project": "sk-proj-" + drawn(60),
    "Anthropic": "sk-ant-api03-" + drawn(90) + "AA",
    "Hugging Face": "hf_" + drawn(34),
    "npm": "npm_" + drawn(36),
    "SendGrid": "SG." + drawn(22) + "." + drawn(43),
    "Telegram": drawn(9, "123456789") + ":AA" + drawn(33),
    "Azure": "AccountKey=" + drawn(86) + "==",
    "age": "AGE-SECRET-KEY-1" + drawn(58, string.ascii_uppercase + string.digits),
}
JWT = ".".join([_url64('{"alg":"HS256","typ":"JWT"}'), _url64('{"sub":"1234567890","name":"x"}'), drawn(43)])
CARDS = (
    *("4111111111111111", "4111 1111 1111 1111", "5555-5555-5555-4444", "378282246310005", "3782 822463 10005"),
    *("6011\u00a01111\u00a01111\u00a01117", "3056 930902 5904", "3530111333300000", "2223003122003222"),
)
IBANS = (
    *("DE89370400440532013000", "DE89 3704 0044 0532 0130 00", "GB29 NWBK 6016 1331 9268 19", "NO9386011117947"),
    *("DK50\u00a00040\u00a00440\u00a01162\u00a043", "FR1420041010050500013M02606", "gb29nwbk60161331926819"),
    "MT84-MALT-0110-0001-2345-MTLC-AST0-01S",
)
PASSWORD = "Tr0ub4dor&3"


def pem(kind: str = "RSA ", *, width: int = 64, line_end: str = "\n", end: bool = True) -> str:
    body = base64.b64encode(_RNG.randbytes(901)).decode()
    lines = [body[i : i + width] for i in range(0, len(body), width)]
    foot = [f"-----END {kind}PRIVATE KEY-----"] if end else []
    return line_end.join([f"-----BEGIN {kind}PRIVATE KEY-----", *lines, *foot])
