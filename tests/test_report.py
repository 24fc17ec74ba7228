"""What a run leaves to read: the report, samples, curves. Text of a stranger's in them stays text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.report.page import Training, render_report
from niels_gpt.report.samples import format_samples
from niels_gpt.report.tsv import read_tsv, write_tsv

HOSTILE = """</pre></table><script>alert(1)</script><img src=x onerror='a'>" onload="b" & &lt;"""


class Page(HTMLParser):
    """Which tags with which attributes there are, and all text outside of them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: dict[str, set[str]] = {}
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def training(name: str, source: str) -> Training:
    summary = {"parameters": 1234, "tokens": 5000, "steps": 20, "best_step": 10, "best_val_loss": 2.5}
    losses = [{"step": 10, "loss": 3.0, "lr": 0.1}, {"step": 20, "loss": 1.0, "lr": 0.2}]
    validations = [{"step": 10, "val_loss": 2.5, source: 2.5}, {"step": 20, "val_loss": 2.75, source: 2.75}]
    return Training(name, {**summary, "mix": {source: {"p": 0.5, "drawn": 0.25, "rows": 40}}}, losses, validations)


def report(text: str) -> str:
    """A report with `text` wherever somebody's words can come to stand."""
    part = {"tokens": 7654321, "parts": [{"file": text, "sha256": text}]}
    return render_report(
        trainings=[training(text, text), training(text, text)],
        flops_per_token=7404,
        mix={"sources": {text: {"train": part, "val": part}}},
        chat_mix={"sources": {text: {"files": [{"path": text, "sha256": text}]}}},
        scores={text: {text: {"nats": 1.5, "bits_per_byte": 2.25, "tokens": 4321}}},
        samples={text: [(text, text)]},
        params={text: {text: text}, "list": [text]},
    )


def test_no_text_becomes_markup() -> None:
    plain, hostile = Page(report("word")), Page(report(HOSTILE))
    assert hostile.tags == plain.tags
    assert set(hostile.attributes) == set(plain.attributes)
    for name, values in hostile.attributes.items():
        if name not in ("points", "y"):
            assert values == plain.attributes[name], name
    assert hostile.text == plain.text.replace("word", HOSTILE).replace(f"['{HOSTILE}']", f"{[HOSTILE]}")
    assert plain.text.count("word") > 20


def test_the_numbers_are_the_runs() -> None:
    page = Page(report("word")).text
    for words in ("1,234 parameters, 20 steps, 5,000 tokens", "3.7e+07 floating-point", "best at step 10 with 2.5000"):
        assert words in page
    table = report("word")
    assert "<td class=n>1.5000</td><td class=n>2.2500</td><td class=n>4,321</td>" in table
    assert "<td class=n>0.5000</td><td class=n>0.2500</td><td class=n>40</td>" in table
    assert "<td class=n>7,654,321</td>" in table


def test_a_curve_goes_from_the_left_to_the_right_and_from_high_to_low() -> None:
    lines = re.findall(r'<polyline points="([^"]+)"', report("word"))
    losses, validation, rate = ([tuple(map(float, p.split(","))) for p in line.split()] for line in lines[:3])
    assert losses[0][0] < losses[1][0] == 970  # half way, and the end
    assert losses[0][1] == 28  # a loss of 3 on top,
    assert losses[1][1] == 248  # one of 1 at the foot
    assert validation[0][1] > validation[1][1]
    assert rate[0][1] > rate[1][1]


def test_a_sample_cannot_end_its_own_fence() -> None:
    text = format_samples({"T": [("a\nb", "x\n```\n````\n# not a title")], "U": [("\n", "y"), ("", "z")]})
    assert text.startswith("# T\n\n## a\n\n`````text\nx\n```\n````\n# not a title\n`````\n")
    assert "## '\\n'\n\n```text\ny\n```\n" in text
    assert "## ''\n" in text


def test_a_curve_reads_back_as_it_was_written(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"step": 1_234_567, "loss": 0.123456789}, {"step": 2_000_000, "loss": 1e-9}]
    write_tsv(tmp_path / "a.tsv", rows)
    assert (tmp_path / "a.tsv").read_text() == "step\tloss\n1234567\t0.123457\n2000000\t1e-09\n"
    assert read_tsv(tmp_path / "a.tsv") == [{"step": 1_234_567, "loss": 0.123457}, {"step": 2_000_000, "loss": 1e-9}]


@pytest.mark.parametrize(
    "damage", [b"", b"step\tloss\n", b"step\tloss\n1\n", b"step\tloss\n1\tx\n", b"\xff\xfe\n1\t2\n"]
)
def test_a_damaged_curve_is_named(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "train.tsv").write_bytes(damage)
    with pytest.raises(ValueError, match=r"train\.tsv (is no curve|holds no point)"):
        read_tsv(tmp_path / "train.tsv")
