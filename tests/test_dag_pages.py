"""What a run leaves to look at: plots that need no network, and the report."""

from __future__ import annotations

import pytest

from tests.conftest import Repo, real_browser

pytestmark = pytest.mark.dag


def test_the_report_is_one_page_with_everything_in_it(built_repo: Repo) -> None:
    page = (built_repo.path / "metrics/report.html").read_text()
    assert "http" not in page.replace("http://www.w3.org", "")
    for words in ("val_wiki", "sha256", "training loss", "learning rate", "asked", "train.base_lr", "parameters,"):
        assert words in page, words
    assert page.count("<svg") == 6


def test_plots_show_without_a_network(built_repo: Repo) -> None:
    built_repo.run("dvc", "plots", "show", "-o", "pages")
    file = built_repo.path / "pages/index.html"
    page = file.read_text()
    assert "cdn.jsdelivr.net" not in page
    with real_browser() as (browser, expect):
        tab = browser.new_page()
        outside: list[str] = []
        tab.on("request", lambda request: None if request.url.startswith("file:") else outside.append(request.url))
        tab.goto(file.as_uri())
        expect(tab.locator("canvas, svg.marks").first).to_be_visible()
        drawn = tab.locator("canvas, svg.marks").count()
        assert drawn >= 12, drawn  # three curves and a mix for each of three trainings, P(z), the learning rate
        assert [url for url in outside if not url.startswith("data:")] == []
