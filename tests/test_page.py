"""Tests of the server's page, in a real browser and with a real model behind it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from niels_gpt.talk.server.access import Access
from niels_gpt.talk.server.app import Limits, build_app
from tests.conftest import real_browser
from tests.servers import serving, tiny_talker, under_way, wait_until
from tests.talkers import counted_reads, saying

pytestmark = pytest.mark.slow

T = 64
ANSWER = "1. x"  # markdown: a list with an x in it
LIMITS = Limits(body_bytes=40_000, new_tokens=10**9)
HOSTILE = '<img src=x onerror="document.title=1"> **bold** \u202eRTL <script>document.title=1</script>'


@pytest.fixture(scope="module")
def opened() -> Iterator[tuple[Any, Any]]:
    """Yield (browser, playwright's `expect`), shared by all tests of this file."""
    with real_browser() as (browser, expect):
        expect.set_options(timeout=60_000)  # only guards against a hang, however slow the machine
        yield browser, expect


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    talker = saying("chat_tokens", ANSWER.encode(), T=T)
    with serving(build_app(talker, card={"parameters": "few"}, limits=LIMITS)) as address:
        yield address


@dataclass(frozen=True)
class Tab:
    """Open page, with the requests it has sent and the errors raised in it."""

    page: Any
    expect: Any
    sent: list[list[str]]  # message contents, by request
    errors: list[str]

    def open(self, address: str) -> None:
        self.page.goto(address)
        self.set(max_tokens=len(ANSWER))

    def reload(self) -> None:
        self.page.reload()
        self.set(max_tokens=len(ANSWER))

    def set(self, *, max_tokens: int, system: str | None = None) -> None:
        self.side()
        if self.page.locator("#settings").get_attribute("open") is None:
            self.page.locator("#settings summary").click()
        self.page.locator("#temperature").fill("0")
        self.page.locator("#max_tokens").fill(str(max_tokens))
        if system is not None:
            self.page.locator("#system").fill(system)
        self.page.keyboard.press("Escape")
        self.expect(self.page.locator("#side")).to_be_hidden()

    def side(self) -> None:
        """Open the side panel, which covers the chat on a phone."""
        self.page.locator("#menu").click()
        self.expect(self.page.locator("#list")).to_be_visible()

    def ask(self, question: str) -> None:
        """Ask a question, and wait until the answer, or the error instead of it, is complete."""
        self.page.locator("#text").fill(question)
        self.page.keyboard.press("Enter")
        self.done()

    def done(self) -> None:
        self.expect(self.page.locator("#send")).to_be_visible()

    def said(self, *texts: str) -> None:
        """Check that the chat shows exactly these questions and answers."""
        self.expect(self.page.locator("article .text")).to_have_text(list(texts))

    def box(self, content: str) -> None:
        self.expect(self.page.locator("#text")).to_have_value(content)

    def refuse(self, status: int, body: str) -> None:
        """Reply to the next request with this status and body, as a server that is not ours may."""
        self.page.route("**/v1/*/*", lambda route: route.fulfill(status=status, body=body), times=1)


@pytest.fixture
def tab(opened: tuple[Any, Any]) -> Iterator[Tab]:
    browser, expect = opened
    context = browser.new_context(
        viewport={"width": 390, "height": 800}, permissions=["clipboard-read", "clipboard-write"]
    )
    tab = Tab(context.new_page(), expect, [], [])
    tab.page.on("pageerror", lambda error: tab.errors.append(str(error)))
    tab.page.on("request", lambda request: tab.sent.append(contents(request)) if request.method == "POST" else None)
    yield tab
    context.close()
    assert tab.errors == []


def contents(request: Any) -> list[str]:
    return [message["content"] for message in json.loads(request.post_data)["messages"]]


def test_in_a_browser(tab: Tab) -> None:
    page, expect = tab.page, tab.expect
    with serving(build_app(tiny_talker(), card={"parameters": "few"}, limits=LIMITS)) as address:
        outside: list[str] = []
        page.on("request", lambda request: None if request.url.startswith(address) else outside.append(request.url))
        page.goto(address)
        expect(page.locator("#card")).to_contain_text("few")
        # Keyboard only: the input box has the focus, Enter sends, Escape stops.
        page.keyboard.type(HOSTILE)
        page.keyboard.press("Enter")
        expect(page.locator("article.user .text")).to_have_text(HOSTILE)
        expect(page.locator("article.assistant .text")).not_to_be_empty()
        tab.done()
        assert page.title() == "niels_gpt"
        assert page.locator("article img, article script").count() == 0
        tab.set(max_tokens=10**6)
        question = "for ever" + "x" * 30_000
        page.locator("#text").fill(question)
        page.keyboard.press("Enter")
        expect(page.locator("article.assistant .text").last).not_to_be_empty()
        expect(page.locator("#stop")).to_be_visible()
        page.keyboard.press("Escape")
        tab.done()
        wait_until(lambda: under_way(address) == 0)
        assert page.locator("article.user .text").nth(1).inner_text() == question
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        rendered = page.evaluate(
            "async (text) => { const m = await import('/static/markdown.js'); const e = document.createElement('div');"
            " e.append(m.markdown(text)); return e.innerHTML; }",
            "**b** `c<d>` [l](https://a.b) [x](javascript:alert(1)) ![i](https://a.b/c.png)\nnext\n"
            "- <img onerror=x>\n- [x] done\n\n```\n<b>\n```\n\n<script>alert(1)</script>\n\n| h |\n|--|\n| *d* |",
        )
        assert "<strong>b</strong>" in rendered
        assert "<code>c&lt;d&gt;</code>" in rendered
        assert 'href="https://a.b"' in rendered
        assert 'href="javascript' not in rendered
        assert "<li>&lt;img onerror=x&gt;</li>" in rendered
        assert "<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>" in rendered
        assert "![i](https://a.b/c.png)<br>next" in rendered
        assert "[x] done" in rendered
        assert "<td><em>d</em></td>" in rendered
        assert 'rel="noopener noreferrer"' in rendered
        colour = page.locator("article.user .text").first.evaluate("(e) => getComputedStyle(e).backgroundColor")
        assert colour != "rgba(0, 0, 0, 0)"
        assert outside == []


def test_a_message_that_was_refused_is_given_back_and_the_chat_goes_on_without_it(tab: Tab, address: str) -> None:
    page, problem = tab.page, tab.page.locator("#problem")
    tab.open(address)
    tab.ask("one")
    tab.said("one", "x")
    # Set by JavaScript, since half a surrogate pair can neither be typed nor sent to the browser.
    for refused, length, words in (
        ("'x'.repeat(50_000)", 50_000, "larger than 40,000 bytes"),
        ("'half \\ud83d a pair'", 13, "invalid JSON"),
    ):
        page.locator("#text").evaluate(f"(field) => {{ field.value = {refused}; }}")
        page.locator("#send").click()
        tab.expect(problem).to_contain_text(words)
        tab.done()
        assert page.locator("#text").evaluate("(field) => field.value.length") == length
        tab.said("one", "x")
    for status, body, words in (
        (429, '{"error": {"message": "too many of you: ask again in a moment"}}', "too many of you"),
        (502, "<html>a proxy</html>", "status 502"),
        (200, "data: {", "in the middle of the answer"),
    ):
        tab.refuse(status, body)
        tab.ask("two")
        tab.expect(problem).to_contain_text(words)
        tab.box("two")
        tab.said("one", "x")
    page.keyboard.press("Enter")
    tab.said("one", "x", "two", "x")
    tab.done()
    tab.expect(problem).to_be_empty()
    assert tab.sent[-1] == ["one", ANSWER, "two"]
    # Text typed while the server is busy is kept, too.
    page.route("**/v1/*/*", lambda route: page.keyboard.type("and then") or route.abort(), times=1)
    page.locator("#text").fill("three")
    page.keyboard.press("Enter")
    tab.expect(problem).to_contain_text("cannot be reached")
    tab.box("three\n\nand then")


FOREIGN = (
    *("", "{", "null", "1", '"x"', "{}", '{"length": 2}', "[null]", "[[]]", '[{"role": "user"}]'),
    '[{"role": "system", "content": "x"}]',
    '[{"role": "assistant", "content": "x", "forgotten": 0}]',
    '[{"role": "user", "content": "x"}]',
    '[{"role": "user", "content": {"x": 1}}, {"role": "assistant", "content": "y", "forgotten": 0}]',
    '[{"role": "user", "content": "x"}, {"role": "user", "content": "x"}]',
    *(
        f'[{{"role": "user", "content": "x"}}, {{"role": "assistant", "content": "y"{n}}}]'
        for n in ("", ', "forgotten": 9')
    ),
)


def test_the_chat_outlives_a_reload_but_not_the_tab(tab: Tab, address: str) -> None:
    page = tab.page
    tab.open(address)
    tab.ask("one")
    tab.reload()
    tab.said("one", "x")
    tab.ask("two")
    assert tab.sent[-1] == ["one", ANSWER, "two"]
    other = page.context.new_page()
    other.goto(address)
    tab.expect(other.locator("#card")).to_contain_text("few")
    assert other.locator("article").count() == 0
    other.close()
    # A reload in the middle of an answer keeps what has arrived of it.
    tab.set(max_tokens=10**6)
    page.locator("#text").fill("for ever")
    page.keyboard.press("Enter")
    tab.expect(page.locator("article.assistant .text").nth(2)).to_contain_text("x")
    tab.reload()
    tab.expect(page.locator("article.assistant .text").nth(2)).to_contain_text("x")
    wait_until(lambda: under_way(address) == 0)
    # A reload before its first token returns the question to the input box.
    page.route("**/v1/*/*", lambda _: None)
    page.locator("#text").fill("unheard")
    page.keyboard.press("Enter")
    tab.expect(page.locator("article")).to_have_count(8)
    tab.reload()
    tab.box("unheard")
    page.unroute_all()
    tab.expect(page.locator("article")).to_have_count(6)
    page.locator("#new").click()
    tab.said()
    tab.reload()
    tab.said()
    tab.ask("one")
    assert tab.sent[-1] == ["one"]


def stored(messages: str, **facts: object) -> str:
    """Return a chat as the page stores it."""
    return f'{json.dumps({"id": "a", "system": "", "when": 1, **facts})[:-1]}, "messages": {messages}}}'


def test_a_stored_chat_that_is_damaged_or_foreign_is_ignored(tab: Tab, address: str) -> None:
    tab.page.goto(address)
    whole = '[{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "forgotten": 0}]'
    facts = ({"id": "../x"}, {"id": 1}, {"system": None}, {"when": "now"})
    foreign = [*FOREIGN, *map(stored, FOREIGN[5:]), *(stored(whole, **fact) for fact in facts)]
    read = "async (texts) => { const m = await import('/static/chats.js'); return texts.map(m.chatOf); }"
    assert tab.page.evaluate(read, foreign) == [None] * len(foreign)
    for value in (FOREIGN[1], stored(FOREIGN[-1]), stored("[]")):
        tab.page.add_init_script(
            "for (const [storage, key] of [[sessionStorage, 'niels_gpt.chat'], [localStorage, 'niels_gpt.chat.a']])"
            f" storage.setItem(key, {json.dumps(value)})"
        )
        tab.page.reload()
        tab.expect(tab.page.locator("#card")).to_contain_text("few")
        tab.said()
        tab.box("")
        assert tab.page.locator("#list li").count() == 0
    tab.page.add_init_script(f"sessionStorage.setItem('niels_gpt.chat', {json.dumps(stored(whole))})")
    tab.page.reload()
    tab.said("x", "y")
    tab.page.locator("#new").click()
    tab.page.add_init_script("sessionStorage.setItem('niels_gpt.key', '\u2603')")
    tab.page.add_init_script("Storage.prototype.setItem = () => { throw new Error('full'); };")
    tab.reload()
    tab.page.locator("#new").click()
    tab.ask("one")
    tab.said("one", "x")
    tab.expect(tab.page.locator("#problem")).to_contain_text("browser storage is full")


def test_a_question_can_be_edited_asked_again_and_its_answer_copied(tab: Tab, address: str) -> None:
    page = tab.page
    edit, again = page.get_by_role("button", name="Edit"), page.get_by_role("button", name="Ask again")
    tab.open(address)
    for question in ("one", "two", "three"):
        tab.ask(question)
    page.locator("#text").fill("a draft")
    edit.nth(1).click()
    tab.box("two")
    tab.expect(page.locator("article.going")).to_have_count(4)
    page.keyboard.press("Escape")
    tab.box("a draft")
    tab.expect(page.locator("article.going")).to_have_count(0)
    # Refused: no message is removed, and the question is still being edited.
    edit.nth(1).click()
    tab.refuse(429, '{"error": {"message": "not now"}}')
    tab.ask("zwei")
    tab.expect(page.locator("#problem")).to_have_text("not now")
    tab.said("one", "x", "two", "x", "three", "x")
    tab.box("zwei")
    page.keyboard.press("Enter")
    tab.said("one", "x", "zwei", "x")
    tab.done()
    tab.box("a draft")
    assert tab.sent[-1] == ["one", ANSWER, "zwei"]
    # "Ask again" is below the last answer only; if it is refused, that answer stays.
    assert again.count() == 1
    tab.refuse(429, '{"error": {"message": "not now"}}')
    again.click()
    tab.expect(page.locator("#problem")).to_have_text("not now")
    tab.said("one", "x", "zwei", "x")
    tab.box("a draft")
    tab.set(max_tokens=len(ANSWER) + 1)
    again.click()
    tab.said("one", "x", "zwei", "xx")
    tab.done()
    assert tab.sent[-1] == ["one", ANSWER, "zwei"]
    # The answer is copied as the model wrote it, not as it is shown.
    page.get_by_role("button", name="Copy").first.click()
    page.get_by_role("button", name="Copied").wait_for()
    page.locator("#text").fill("")
    page.keyboard.press("Control+V")
    tab.box(ANSWER)
    # If the browser has no clipboard, the text is selected, to be copied by hand.
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.get_by_role("button", name="Copy", exact=True).last.click()
    page.get_by_role("button", name="Ctrl+C").wait_for()
    assert page.evaluate("getSelection().toString().trim()") == "xx"


def test_before_the_first_question_the_model_introduces_itself(tab: Tab) -> None:
    page, empty = tab.page, tab.page.locator("#empty")
    about: dict[str, Any] = {"name": "notes, 0.9 M parameters", "trained_on": "Trained on <b>."}
    about |= {"temperature": 0.3, "questions": ["Why <b>?"]}
    app = build_app(saying("chat_tokens", ANSWER.encode(), T=T), card={}, limits=LIMITS, about=about)
    with serving(app) as address:
        page.goto(address)
        tab.expect(empty.locator("#name")).to_have_text("notes, 0.9 M parameters")
        tab.expect(page.locator("#model")).to_have_text("notes, 0.9 M parameters")
        tab.expect(empty.locator("#trained")).to_have_text("Trained on <b>.")
        tab.expect(page.locator("#temperature")).to_have_value("0.3")
        tab.set(max_tokens=len(ANSWER))
        empty.get_by_role("button", name="Why <b>?").click()
        tab.done()
        tab.said("Why <b>?", "x")
        tab.expect(empty).to_be_hidden()
        tab.expect(page.locator("article.assistant .by")).to_have_text("notes, 0.9 M parameters")
        # The box of a short question is only as wide as its words.
        assert page.locator("article.user .text").evaluate("(e) => e.offsetWidth") < 150
        page.locator("#new").click()
        tab.expect(empty).to_be_visible()


def test_a_stopped_answer_says_so_also_after_a_reload(tab: Tab, address: str) -> None:
    page, marks = tab.page, tab.page.locator(".stopped")
    ending = saying("chat_tokens", [*ANSWER.encode(), 259], T=T)
    with serving(build_app(ending, card={}, limits=LIMITS)) as other:
        page.goto(other)
        tab.set(max_tokens=20)
        tab.ask("one")
        tab.expect(marks).to_have_count(0)
    tab.open(address)
    tab.ask("one")
    said = f"Stopped at {len(ANSWER)} tokens, the maximum."
    tab.expect(marks).to_have_text([said])
    tab.set(max_tokens=10**6)
    page.locator("#text").fill("for ever")
    page.keyboard.press("Enter")
    tab.expect(page.locator("article.assistant .text").last).to_contain_text("x")
    page.keyboard.press("Escape")
    tab.done()
    tab.expect(marks).to_have_text([said, "Stopped by you."])
    tab.reload()
    tab.expect(marks).to_have_text([said, "Stopped by you."])


def test_an_answer_is_drawn_once_a_frame_however_fast_it_comes(tab: Tab, address: str) -> None:
    """Drawing lays out the whole answer: once a token, a fast model kept the page from taking a click."""
    tab.open(address)
    tab.page.evaluate(
        """() => {
          window.drawn = 0;
          const drawing = (change) => change.target.matches(".assistant .text");
          const count = (changes) => { window.drawn += changes.filter(drawing).length; };
          new MutationObserver(count).observe(document.querySelector("#chat"), { childList: true, subtree: true });
        }"""
    )
    events = [json.dumps({"model": "m", "choices": [{"delta": {"content": "x"}}]})] * 300
    tab.refuse(200, "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]))
    tab.ask("one")
    tab.said("one", "x" * 300)
    assert 0 < tab.page.evaluate("window.drawn") < 30


def test_chats_are_saved_listed_opened_and_deleted(tab: Tab, address: str) -> None:
    page, rows = tab.page, tab.page.locator("#list li")
    delete = page.get_by_role("button", name="Delete")

    def titles(*expected: str) -> None:
        tab.expect(rows.locator(".open")).to_have_text(list(expected))

    tab.open(address)
    titles()
    tab.ask("one")
    page.locator("#new").click()
    tab.said()
    tab.ask("two\n" + "x" * 100)
    tab.ask("three")
    titles("two\n" + "x" * 76, "one")
    # A chat that is left in the middle of an answer keeps what has arrived of it.
    tab.side()
    rows.nth(1).locator(".open").click()
    tab.said("one", "x")
    tab.expect(page.locator("#side")).to_be_hidden()
    tab.set(max_tokens=10**6)
    page.locator("#text").fill("for ever")
    page.keyboard.press("Enter")
    tab.expect(page.locator("article.assistant .text").nth(1)).not_to_be_empty()
    tab.side()
    page.locator("#list [aria-current]").click()  # it is open already
    tab.expect(page.locator("#side")).to_be_hidden()
    tab.expect(page.locator("article")).to_have_count(4)
    page.locator("#new").click()
    tab.said()
    tab.done()
    wait_until(lambda: under_way(address) == 0)
    titles("one", "two\n" + "x" * 76)
    tab.side()
    rows.first.locator(".open").click()
    tab.expect(page.locator("article")).to_have_count(4)
    tab.expect(rows.first.locator("[aria-current]")).to_have_text("one")
    # All tabs have the same list, new ones, too. If two continue the same chat, both versions are kept.
    other = page.context.new_page()
    other.goto(address)
    other.locator("#menu").click()
    other.locator("#list li .open").first.click()
    other.locator("#menu").click()
    other.locator("#settings summary").click()
    other.locator("#max_tokens").fill("4")
    other.locator("#shade").click(position={"x": 380, "y": 400})
    other.locator("#text").fill("elsewhere")
    other.keyboard.press("Enter")
    tab.expect(other.locator("article")).to_have_count(6)
    tab.expect(other.locator("#send")).to_be_visible()
    tab.set(max_tokens=len(ANSWER))
    tab.ask("here")
    titles("one", "one", "two\n" + "x" * 76)
    other.close()
    tab.side()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    # A second press deletes a chat; if it is the open one, it is removed from the page, too.
    delete.nth(2).click()
    tab.expect(delete.nth(2)).to_have_count(0)
    page.get_by_role("button", name="Really?").blur()
    tab.expect(rows).to_have_count(3)
    for left in (2, 1, 0):
        delete.first.click()
        page.get_by_role("button", name="Really?").click()
        tab.expect(rows).to_have_count(left)
        if left == 2:
            tab.said()
            tab.side()
    page.reload()
    tab.expect(page.locator("#card")).to_contain_text("few")
    tab.expect(rows).to_have_count(0)
    tab.said()


def test_a_system_prompt_goes_first_and_belongs_to_its_chat(tab: Tab, address: str) -> None:
    page, system = tab.page, tab.page.locator("#system")
    tab.open(address)
    tab.set(max_tokens=len(ANSWER), system=" be brief ")
    tab.ask("one")
    assert tab.sent[-1] == ["be brief", "one"]
    tab.reload()
    tab.expect(system).to_have_value(" be brief ")
    page.locator("#new").click()
    tab.expect(system).to_have_value(" be brief ")
    tab.set(max_tokens=len(ANSWER), system="be long")
    tab.ask("two")
    tab.side()
    page.locator("#list .open").nth(1).click()
    tab.expect(system).to_have_value(" be brief ")
    tab.set(max_tokens=len(ANSWER))
    tab.ask("three")
    assert tab.sent[-1] == ["be brief", "one", ANSWER, "three"]


def test_the_page_names_the_model_and_shows_how_full_the_context_is(tab: Tab, address: str) -> None:
    page, room = tab.page, tab.page.locator("#room")
    tab.open(address)
    tab.expect(page.locator("#model")).to_have_text("saying")
    tab.expect(room).to_be_hidden()
    tab.ask("one")
    used = len("one") + 3 + len(ANSWER)  # one token per byte, and 3 of the chat format
    tab.expect(room).to_have_text(f"{used} of {T} tokens of context")
    assert page.locator("meter").evaluate("(meter) => meter.value / meter.max") == used / T
    tab.expect(page.locator("article.assistant .by")).to_have_text("saying")
    tab.reload()
    tab.expect(room).to_contain_text(f"{used} of {T}")
    # A question that does not fit is cut, and the page says so; the prompt then fills the context.
    tab.ask("x" * 100)
    words = f"The first {100 + 3 - T} tokens of the question did not fit the context and were dropped."
    tab.expect(page.locator(".cut-line")).to_have_text(words)
    tab.expect(room).to_contain_text(f"{T} of {T}")
    page.locator("#new").click()
    tab.expect(room).to_be_hidden()


def test_an_edited_question_that_was_not_answered_yet_has_changed_nothing(tab: Tab, address: str) -> None:
    page = tab.page
    tab.open(address)
    for question in ("one", "two"):
        tab.ask(question)
    page.route("**/v1/*/*", lambda _: None)
    for leave in (tab.reload, page.locator("#new").click):
        page.get_by_role("button", name="Edit").last.click()
        page.locator("#text").fill("zwei")
        page.keyboard.press("Enter")
        tab.expect(page.locator("article .text").nth(2)).to_have_text("zwei")
        leave()
        tab.box("zwei")
        page.locator("#text").fill("")
        if page.locator("article").count() == 0:
            tab.side()
            page.locator("#list .open").click()
        tab.said("one", "x", "two", "x")
    page.unroute_all()


def test_a_key_is_asked_for_and_kept_for_the_tab(tab: Tab) -> None:
    page, field, dialog = tab.page, tab.page.locator("#key"), tab.page.get_by_role("dialog")
    shown: list[str | None] = []
    page.on("request", lambda request: shown.append(request.headers.get("authorization")))
    app = build_app(saying("chat_tokens", ANSWER.encode()), card={"parameters": "few"}, access=Access(key="s3cret"))
    with serving(app) as address:
        page.goto(address)
        tab.expect(dialog).to_contain_text("needs an API key")
        page.keyboard.press("Escape")
        tab.expect(page.locator("#problem")).to_contain_text("needs an API key")
        tab.set(max_tokens=len(ANSWER))
        page.locator("#text").fill("one")
        page.locator("#send").click()
        dialog.get_by_role("button", name="Cancel").click()
        tab.done()
        tab.expect(page.locator("#problem")).to_contain_text("needs an API key")
        tab.box("one")
        tab.said()
        page.locator("#send").click()
        field.fill("no \u2603 key")  # a header cannot hold it
        page.keyboard.press("Enter")
        tab.expect(dialog).to_contain_text("needs an API key")
        field.fill("wrong")
        page.keyboard.press("Enter")
        tab.expect(dialog).to_contain_text("rejected this key")
        field.fill("s3cret")
        page.keyboard.press("Enter")
        tab.said("one", "x")
        tab.done()
        assert shown[-1] == "Bearer s3cret"
        page.reload()
        tab.expect(page.locator("#card")).to_contain_text("few")
        tab.said("one", "x")
        assert "s3cret" not in page.evaluate("JSON.stringify({ ...localStorage }) + document.cookie")
        other = page.context.new_page()
        other.goto(address)
        tab.expect(other.get_by_role("dialog")).to_be_visible()


def test_a_chat_far_beyond_the_context_says_what_is_forgotten_and_costs_no_more(
    tab: Tab, monkeypatch: pytest.MonkeyPatch
) -> None:
    talker, read = saying("chat_tokens", ANSWER.encode(), T=T), counted_reads(monkeypatch)
    page, most = tab.page, T // 4
    answer = ANSWER + "x" * (most - len(ANSWER))
    messages: list[dict[str, str]] = []
    with serving(build_app(talker, card={}, limits=LIMITS)) as address:
        page.goto(address)
        tab.set(max_tokens=most)
        while len(talker.chat.prompt(messages)) <= 3 * T:
            messages.append({"role": "user", "content": f"no {len(messages) // 2}"})
            tab.ask(messages[-1]["content"])
            assert sum(read) <= T
            read.clear()
            forgotten = talker.remember(messages, max_new_tokens=most)[1]
            messages.append({"role": "assistant", "content": answer})
            tab.expect(page.locator("article.forgotten")).to_have_count(forgotten)
            assert page.locator("#problem").inner_text() == ""
        words = f"The first {forgotten} messages no longer fit the context and are dropped."
        tab.expect(page.locator(".forgotten-line").last).to_have_text(words)
        # Forgotten messages are not sent again, so requests do not grow either.
        assert len(tab.sent[-1]) == len(tab.sent[-2]) < 6
        assert tab.sent[-1][-1] == messages[-2]["content"]
        lines = page.locator(".forgotten-line").count()
        page.reload()
        tab.expect(page.locator("article.forgotten")).to_have_count(forgotten)
        assert page.locator(".forgotten-line").count() == lines
        # An edited early question is sent with the messages that were in the context before it.
        page.get_by_role("button", name="Edit").nth(1).click()
        tab.ask("again")
        assert tab.sent[-1] == [messages[0]["content"], answer, "again"]
        tab.expect(page.locator(".forgotten-line")).to_have_count(0)
