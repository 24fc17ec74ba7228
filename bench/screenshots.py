"""Take the pictures in docs/pictures: the report, the page of memorized text, the chat and the live page, in a real
browser after a real run.

Run: python -m bench.screenshots [FOLDER]      in a checkout where `dvc repro` has run; chromium and playwright needed

Names with `dark` use the dark theme, names with `phone` a phone's width.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from niels_gpt.cli.find import open_notes
from niels_gpt.cli.report import build_watch, write_report
from niels_gpt.cli.summary import introduction, model_facts
from niels_gpt.device import prepare_device
from niels_gpt.pipeline import layout
from niels_gpt.talk.server.app import build_app
from niels_gpt.talk.talker import open_talker
from tests.servers import serving

PICTURES = Path("docs/pictures")
MOST_BYTES = 160_000
WIDE, PHONE = {"width": 1100, "height": 760}, {"width": 390, "height": 760}
QUESTION = "Who is niels?"


@dataclass(frozen=True)
class Picture:
    """Picture to take: its page, its size, and what is done on the page first."""

    name: str
    address: str
    act: Callable[[Any], None] = lambda page: None
    viewport: dict[str, int] | None = None
    dark: bool = False


def ask(page: Any) -> None:
    page.locator("#text").fill(QUESTION)
    page.keyboard.press("Enter")
    page.locator("#send").wait_for(state="visible", timeout=120_000)


def side(page: Any) -> None:
    """Open the side panel, if it is not open."""
    if page.locator("#menu").get_attribute("aria-expanded") != "true":
        page.locator("#menu").click()


def traced(page: Any) -> None:
    """Show the notes beside the answer, and the positions of its first span that is in training documents."""
    side(page)
    page.locator("#settings summary").click()
    page.locator("#notes").check()
    page.keyboard.press("Escape")  # closes the panel if it covers the chat
    ask(page)
    page.locator("mark.traced").first.click()


def searched(page: Any) -> None:
    side(page)
    page.locator("#find summary").click()
    page.locator("#words").fill("beetroot leak*")
    page.locator("#hits li").first.wait_for()


def drawn(page: Any) -> None:
    page.locator("figure canvas").first.wait_for(timeout=60_000)


def scrolled_to(text: str) -> Callable[[Any], None]:
    def act(page: Any) -> None:
        page.locator("h2", has_text=text).first.evaluate("(e) => e.scrollIntoView()")

    return act


def take(browser: Any, picture: Picture, folder: Path) -> Path:
    context = browser.new_context(
        viewport=picture.viewport or WIDE, color_scheme="dark" if picture.dark else "light", reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(picture.address)
    picture.act(page)
    page.wait_for_timeout(500)  # until canvases have their final size
    file = folder / f"{picture.name}.png"
    page.screenshot(path=file)
    context.close()
    size = file.stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"{file} has {size:,} bytes, more than {MOST_BYTES:,}: take less of the page")
    return file


def main(folder: Path) -> None:
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    folder.mkdir(parents=True, exist_ok=True)
    talker = open_talker(layout.TUNED, device=prepare_device("auto", threads=1), tokenizer=layout.TOKENIZER)
    app = build_app(talker, card=model_facts(talker), notes=open_notes(), about=introduction(talker))
    with tempfile.TemporaryDirectory() as place, serving(app) as chat:
        report = Path(place, "report.html")
        write_report(report)
        with serving(build_watch(layout.LOGS)) as watch, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            pictures = [
                Picture("report", report.as_uri(), drawn),
                Picture("report-card", report.as_uri(), scrolled_to("Report card")),
                Picture("report-heart", report.as_uri(), scrolled_to("Memorized")),
                Picture("report-dark", report.as_uri(), drawn, dark=True),
                Picture("report-phone", report.as_uri(), drawn, viewport=PHONE),
                Picture("memorize-dark", layout.MEMORIZED_PAGE.resolve().as_uri(), dark=True),
                Picture("watch", watch, drawn),
                Picture("chat-empty", chat),
                Picture("chat", chat, ask),
                Picture("chat-phone-dark", chat, ask, viewport=PHONE, dark=True),
                Picture("sources", chat, traced),
                Picture("sources-phone-dark", chat, traced, viewport=PHONE, dark=True),
                Picture("find-phone", chat, searched, viewport=PHONE),
                Picture("find-dark", chat, searched, dark=True),
            ]
            for picture in pictures:
                file = take(browser, picture, folder)
                print(f"{file}: {file.stat().st_size:,} bytes", flush=True)
            browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES)
