"""What a run leaves to look at: plots that need no network, and the report."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Repo, real_browser

pytestmark = pytest.mark.dag


def test_the_report_is_one_page_with_everything_in_it(built_repo: Repo) -> None:
    page = (built_repo.path / "metrics/report.html").read_text()
    assert "connect-src 'none'" in page  # a browser will not let it load anything: test_report.py opens one
    for words in ("val_wiki", "sha256", "train.base_lr", '"parameters"', '"lowest validation"'):
        assert words in page, words
    runs = json.loads(page.partition('id="data">')[2].partition("</script>")[0])["runs"]
    assert [run["name"] for run in runs] == ["train", "sft"]
    for run in runs:
        assert {"loss", "lr", "validation"} <= {key for point in run["points"] for key in point}
        assert run["drawn"]


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
