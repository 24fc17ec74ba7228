"""Accessibility tests of the pages by axe-core in a real browser: contrast, labels, roles and keyboard access."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.report.page import SPLICE
from niels_gpt.talk.server.app import build_app
from tests.conftest import ROOT, real_browser
from tests.reports import report, splice_section
from tests.servers import serving
from tests.talkers import saying

AXE = ROOT / ".ci/axe/node_modules/axe-core/axe.min.js"
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 760}
ABOUT = {
    "name": "notes, 0.9 M parameters",
    "trained_on": "Trained on text: notes (100%).",
    "questions": ["Why?", "How?"],
}
FINDINGS = "async () => (await axe.run()).violations.map(({ id, nodes }) => [id, ...nodes.map((node) => node.html)])"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not AXE.is_file(),
        reason="axe-core is not installed (.ci/run installs it): no page was checked for accessibility",
    ),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with real_browser() as (browser, _):
        yield browser


@pytest.fixture(params=["desktop", "desktop dark", "phone", "phone dark"])
def page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    context = browser.new_context(
        viewport=PHONE if "phone" in request.param else WIDE,
        color_scheme="dark" if "dark" in request.param else "light",
        reduced_motion="reduce",
    )
    page = context.new_page()
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert errors == []


def findings(page: Any) -> Any:
    page.evaluate(AXE.read_text(encoding="utf-8"))
    return page.evaluate(FINDINGS)


def test_the_chat_page_before_and_after_a_question_and_its_settings(page: Any) -> None:
    app = build_app(saying("chat_tokens", b"1. x", T=64), card={"parameters": "few"}, about=ABOUT)
    with serving(app) as address:
        page.goto(address)
        page.locator("#questions button").first.wait_for(timeout=60_000)
        assert findings(page) == []
        page.locator("#questions button").first.click()
        page.locator(".stopped").wait_for(timeout=60_000)  # after 200 tokens
        assert findings(page) == []
        if page.locator("#menu").get_attribute("aria-expanded") == "false":
            page.locator("#menu").click()
        page.locator("#settings summary").click()
        assert findings(page) == []


def test_the_report(page: Any, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(report("word").replace(SPLICE, splice_section("d")), encoding="utf-8")
    page.goto(file.as_uri())
    page.locator("figure canvas").first.wait_for(timeout=60_000)
    assert findings(page) == []
