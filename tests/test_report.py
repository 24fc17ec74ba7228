"""Tests of the report, samples and curves of a run: untrusted text in them stays text."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.report.page import ORIGIN, SPLICE, render_table
from niels_gpt.report.tables import format_samples, read_tsv, write_tsv
from tests.conftest import real_browser
from tests.reports import report, splice_section
from tests.written_runs import NOTE_TEXT, written

HOSTILE = """</pre></table><script>alert(1)</script><img src=x onerror='a'>" onload="b" & &lt;"""


class Page(HTMLParser):
    """Parsed page: its tags, its attributes with their values, and its text outside scripts and styles."""

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
        if self.lasttag not in ("script", "style"):
            self.text += data


def data(page: str) -> Any:
    """Return the data that the page's script plots."""
    return json.loads(page.partition('id="data">')[2].partition("</script>")[0])


def test_no_text_becomes_markup() -> None:
    plain, hostile = Page(report("word")), Page(report(HOSTILE))
    assert hostile.tags == plain.tags
    assert hostile.attributes == plain.attributes
    assert hostile.text == plain.text.replace("word", HOSTILE).replace(f"['{HOSTILE}']", f"{[HOSTILE]}")
    assert plain.text.count("word") > 15
    assert [run["name"] for run in data(report(HOSTILE))["runs"]] == [HOSTILE, f"{HOSTILE} again"]


def test_the_numbers_are_the_runs() -> None:
    page = report("word")
    run, _ = data(page)["runs"]
    assert run["facts"] == [
        ["parameters", "1,234"],
        ["steps", "20"],
        ["tokens", "5,000"],
        ["floating-point operations", "about 3.7e+07"],
        ["final loss", "1.2500"],
        ["lowest validation", "2.5000 at step 10"],
    ]
    assert run["drawn"] == [["word", "0.5000", "1.0000", "40"]]
    assert run["points"] == [
        {"step": 10, "tokens": 2500, "loss": 3.0, "lr": 0.1},
        {"step": 20, "tokens": 5000, "loss": 1.0, "lr": 0.2},
        {"step": 10, "tokens": 2500, "val_loss": 2.5, "validation": {"word": 2.5}},
        {"step": 20, "tokens": 5000, "val_loss": 2.75, "validation": {"word": 2.75}},
    ]
    assert '<td class="n">1.5000</td><td class="n">2.2500</td><td class="n">4,321</td>' in page
    assert '<td class="n">7,654,321</td>' in page
    counted = "".join(f'<td class="n">{number}</td>' for number in ("1,000", 2, 30, 4, 5, "6.25", "50.00"))
    assert f"<td>word</td>{counted}" in page


def test_the_same_run_gives_the_same_bytes() -> None:
    assert report("word") == report("word")


def test_inserted_sections_are_in_order_and_their_text_is_text() -> None:
    def whole(text: str) -> str:
        return report(text).replace(ORIGIN, "<p>origin</p>").replace(SPLICE, splice_section(text))

    plain, hostile = Page(whole("word")), Page(whole(HOSTILE))
    assert hostile.tags == plain.tags
    assert hostile.attributes == plain.attributes
    page = whole("word")
    assert ORIGIN not in page
    assert SPLICE not in page
    order = (
        'class="verdict"',
        'id="runs"',
        'class="samples"',
        "Validation sets",
        "Memorized",
        "<p>origin</p>",
        "hashes",
    )
    assert [page.index(part) for part in order] == sorted(page.index(part) for part in order)
    numbers = "".join(f'<td class="n">{number}</td>' for number in ("1,234", 40, "1.9e-86", 0.87, "92%"))
    assert f"<td>word</td>{numbers}" in page
    assert "given 10 tokens" in page
    assert "the next 10 verbatim" in page


@pytest.mark.parametrize("text", ["1", "1,234", "0.5", "-0.25", "1.9e-86", "92%", "0.894 ± 0.032"])
def test_numbers_are_right_aligned(text: str) -> None:
    assert f'<th class="n">a</th></tr></thead><tbody><tr><td class="n">{text}</td>' in render_table(["a"], [[text]])


@pytest.mark.parametrize("text", ["", "0 of 729", "not logged", "2026-11-16 22:14 UTC", "1e5f00d", "0.5 (0.4 to 0.6)"])
def test_words_are_left_aligned(text: str) -> None:
    assert f"<td>{text}</td>" in render_table(["a"], [[text]])


# Returns the WCAG contrast ratio of an element's text and the page's background, and the background's luminance.
CONTRAST = """(selector) => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[0-9.]+/g).slice(0, 3).map((v) => v / 255);
    const [R, G, B] = [r, g, b].map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * R + 0.7152 * G + 0.0722 * B;
  };
  const one = light(getComputedStyle(document.querySelector(selector)).color);
  const other = light(getComputedStyle(document.body).backgroundColor);
  return [(Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05), other];
}"""


ACCENT = """(e) => {
  e.style.color = "var(--accent)";
  return getComputedStyle(e).color;
}"""


@pytest.mark.slow
def test_in_a_browser_it_has_scales_and_a_legend_and_fits_a_phone_in_dark_mode(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    page_of_all = report(HOSTILE).replace(SPLICE, splice_section("d"))
    file.write_text(page_of_all, encoding="utf-8")
    with real_browser() as (browser, expect):
        expect.set_options(timeout=60_000)  # ms; only a watchdog
        context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
        context.add_init_script(NOTE_TEXT)
        page = context.new_page()
        amiss: list[str] = []
        page.on("console", lambda message: amiss.append(message.text))
        page.on("pageerror", lambda error: amiss.append(str(error)))
        page.on("request", lambda request: None if request.url == file.as_uri() else amiss.append(request.url))
        page.goto(file.as_uri())
        expect(page.locator("figure canvas")).to_have_count(3)  # the two charts of speed have no data here
        for chart, texts in {
            "loss": ["steps", "nats/token", "0", "10", "20", "1", "2", "3"],
            "validation": ["steps", "nats/token", "20", "2.5", "2.6", "2.7"],
            "lr": ["steps", "learning rate", "0.1", "0.2"],
        }.items():
            for text in texts:
                expect(page.locator(f"figure[data-chart={chart}]")).to_have_attribute("data-written", written(text))
        legend = page.locator("figure[data-chart=loss] .legend li")
        assert legend.all_inner_texts() == [f"{HOSTILE}\n1.000", f"{HOSTILE} again\n1.000"]
        page.locator(".axis button", has_text="tokens").click()
        expect(page.locator("figure[data-chart=loss]")).to_have_attribute("data-written", written("4k"))
        page.locator(".run input").first.uncheck()
        expect(legend).to_have_count(1)
        assert page.locator("main script, main img").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        for selector in ("h1", "dt", "td", "pre", ".legend output"):
            contrast, background = page.evaluate(CONTRAST, selector)
            assert contrast > 4.5, selector
            assert background < 0.05
        shade = page.locator(".strips rect[fill-opacity]").first
        colours = [shade.evaluate("(e) => getComputedStyle(e).fill"), page.locator("h2").first.evaluate(ACCENT)]
        assert colours[0] == colours[1] != "rgb(0, 0, 0)"  # the dark mode's accent, from a CSS variable in an attribute
        assert [text for text in amiss if not text.startswith("data:")] == []


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
