"""Tests of the pages that a run writes: the report, and plots that need no network."""

import json
import re

import pytest

from tests.conftest import Repo, real_browser

pytestmark = pytest.mark.dag


def test_the_report_is_one_page_with_everything_in_it(built_repo: Repo) -> None:
    page = (built_repo.path / "metrics/report.html").read_text()
    assert "connect-src 'none'" in page  # it loads nothing: test_report.py checks that in a browser
    for words in ("val_wiki", "sha256", "train.base_lr", '"parameters"', '"lowest validation"'):
        assert words in page, words
    runs = json.loads(page.partition('id="data">')[2].partition("</script>")[0])["runs"]
    assert [run["name"] for run in runs] == ["train", "sft"]
    for run in runs:
        assert {"loss", "lr", "validation"} <= {key for point in run["points"] for key in point}
        assert run["drawn"]


def test_the_full_report_has_date_machine_commit_and_memorization(built_repo: Repo) -> None:
    before = (built_repo.path / "metrics/report.html").read_bytes()
    refused = built_repo.run("niels-gpt", "report", "params.yaml", check=False)
    assert refused.returncode == 1
    assert "params.yaml exists and was not written by this command: give another name" in refused.stderr
    for _ in range(2):  # the second call overwrites the first report
        assert re.search(
            r"nats/token(.|\n)*report\.html: open it in a browser", built_repo.run("niels-gpt", "report").stdout
        )
    page = (built_repo.path / "report.html").read_text()
    commit = built_repo.run("git", "rev-list", "--max-parents=0", "--abbrev-commit", "HEAD").stdout.strip()
    rows = re.findall(
        # A commit of digits alone is set as a number.
        r"<tr><td>(train|sft|splice)</td><td>(.*?) UTC</td><td>(.*?)</td><td>(.*?)</td><td(?: class=.n.)?>(.*?)</td>",
        page,
    )
    assert [row[0] for row in rows] == ["train", "sft", "splice"]
    for _, ended, took, machine, of in rows:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", ended)
        assert took.endswith((" s", "min"))
        assert machine.endswith(" thread")
        assert of == commit
    assert "Memorized: " in page
    assert (built_repo.path / "metrics/report.html").read_bytes() == before
    assert built_repo.run("git", "status", "--porcelain").stdout == ""
    for log in (built_repo.path / "logs").iterdir():
        log.unlink()
    built_repo.run("niels-gpt", "report")
    assert "No log of train, sft, splice" in (built_repo.path / "report.html").read_text()


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
        assert drawn >= 12, drawn  # three curves and a mix for each of three trainings, P(z), and the learning rate
        assert [url for url in outside if not url.startswith("data:")] == []
