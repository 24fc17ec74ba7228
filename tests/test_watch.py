"""Tests of `niels-gpt report --live`: responses, access control, and the page in a browser while a log grows."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from niels_gpt.cli.report import build_watch
from tests.conftest import real_browser
from tests.servers import serving
from tests.written_runs import NOTE_TEXT, line, written


def ask(logs: Path, *requests: tuple[str, str, dict[str, str]]) -> list[httpx.Response]:
    """Return the responses to requests (method, path, headers), all to one server and without a network."""

    async def send() -> list[httpx.Response]:
        transport = httpx.ASGITransport(build_watch(logs))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8001") as client:
            return [await client.request(method, path, headers=headers) for method, path, headers in requests]

    return asyncio.run(send())


def test_it_is_read_by_its_own_page_and_by_nobody_else(tmp_path: Path) -> None:
    page, runs, foreign, rebound, posted, lost, wrong = ask(
        tmp_path / "none",
        ("GET", "/", {}),
        ("GET", "/runs", {}),
        ("GET", "/runs", {"origin": "http://elsewhere.example"}),
        ("GET", "/", {"host": "elsewhere.example:8001"}),
        ("POST", "/runs", {}),
        ("GET", "/logs", {}),
        ("GET", "/runs?have=train:x:1", {}),
    )
    assert "connect-src 'self'" in page.text
    assert runs.json() == {"runs": [], "unread": {}}
    assert {answer.headers["cache-control"] for answer in (page, runs)} == {"no-store"}
    statuses = [answer.status_code for answer in (page, runs, foreign, rebound, posted, lost, wrong)]
    assert statuses == [200, 200, 403, 403, 405, 404, 400]
    assert "RUN:REVISION:POINTS" in wrong.json()["error"]["message"]


def test_a_page_is_sent_what_it_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_bytes(line(10) + line(20) + line(30))

    async def send() -> list[Any]:
        transport = httpx.ASGITransport(build_watch(tmp_path))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8001") as client:
            run = (await client.get("/runs")).json()["runs"][0]
            known = {"have": f"{run['name']}:{run['revision']}:2"}
            others = {"have": [f"{run['name']}:{run['revision'] + 1}:2", "train-other:0:2"]}
            return [run, *[(await client.get("/runs", params=one)).json()["runs"][0] for one in (known, others)]]

    whole, new, anew = asyncio.run(send())
    assert [point["step"] for point in whole["points"]] == [10, 20, 30]
    assert ([point["step"] for point in new["points"]], new["since"]) == ([30], 2)
    assert anew["points"] == whole["points"]


@pytest.mark.slow
def test_in_a_browser_runs_appear_and_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    log = tmp_path / "logs/train.jsonl"
    with serving(build_watch(log.parent)) as address, real_browser() as (browser, expect):
        expect.set_options(timeout=60_000)  # ms; only a watchdog
        page = browser.new_page(viewport={"width": 390, "height": 800})
        page.add_init_script(NOTE_TEXT)
        amiss: list[str] = []
        page.on("pageerror", lambda error: amiss.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(address) else amiss.append(request.url))
        page.goto(address)
        expect(page.locator("#none")).to_be_visible()
        expect(page.locator("#none")).to_contain_text("dvc repro")

        log.parent.mkdir()
        first, second = line(100, val_loss=4.0, validation={"wiki": 3.5, "roam": 4.5}, sample="hm <b>"), line(200)
        log.write_bytes(first + second[:40])
        facts, legend = page.locator(".run dl"), page.locator("figure[data-chart=loss] .legend li")
        expect(facts).to_contain_text("100 of 400")
        expect(page.locator("#none")).to_be_hidden()
        expect(legend).to_have_text(["train: wiki, 1 Jan 00:184.000"])
        sources = page.locator("figure[data-chart=validation] .legend li")
        expect(sources).to_have_text(["mean4.000", "wiki3.500", "roam4.500"])
        expect(page.locator("pre")).to_have_text("hm <b>")
        expect(page.locator("figure[data-chart=tokens_per_second]")).to_have_attribute("data-written", written("2k"))
        expect(page.locator("figure[data-chart=utilisation]")).to_have_attribute("data-written", written("20"))
        expect(page.locator("figure canvas")).to_have_count(5)

        with log.open("ab") as f:
            f.write(second[40:] + line(300, loss=2.5))
        expect(facts).to_contain_text("300 of 400")
        expect(legend).to_have_text(["train: wiki, 1 Jan 00:182.500"])
        with log.open("ab") as f:  # killed, and resumed from step 150
            f.write(line(200, first_step=150, loss=3.0))
        expect(facts).to_contain_text("200 of 400")
        expect(legend).to_have_text(["train: wiki, 1 Jan 00:183.000"])

        (log.parent / "sft.jsonl").write_bytes(line(400, run="abc", time=1.0, total_steps=400))
        expect(legend).to_have_count(2)
        expect(page.locator(".run .state")).to_have_text(["silent", "finished"])
        page.locator(".run input").first.uncheck()
        expect(legend).to_have_text(["sft: wiki, 1 Jan 00:004.000"])
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert [text for text in amiss if not text.startswith("data:")] == []
