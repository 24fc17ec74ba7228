"""Tests of the sources of a text (traces, notes, search): in the chat, on the server and its page, on the leak page."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from niels_gpt.cli.app import app as commands
from niels_gpt.cli.find import open_notes, served_notes
from niels_gpt.inference.sampling import Sampling
from niels_gpt.pipeline import layout
from niels_gpt.talk.notes import READS_NOTES, Notes, abilities, with_sections
from niels_gpt.talk.server.access import Access
from niels_gpt.talk.server.app import Limits, build_app
from niels_gpt.talk.terminal import Conversation
from niels_gpt.trace.index import Row, SourceIndex, write_index
from niels_gpt.trace.library import Library
from tests.conftest import ROOT, real_browser
from tests.servers import openai_client, serving
from tests.talkers import saying

# The model's reply. No byte occurs twice, since the model maps each byte to one next byte.
SAID = "juicy.fox,bald-kept;wOrm"
NOTE = f"# Tides\n\nThe log says {SAID} of the beetroot.\n"
FILLER = " ".join(f"word{n}" for n in range(3000))
QUESTION = {"role": "user", "content": "What of the beetroot?"}
LIMITS = Limits(new_tokens=len(SAID))


def shelve(folder: Path, source: str, texts: dict[str, str]) -> SourceIndex:
    (folder / source).mkdir(parents=True)
    write_index(folder / source, [Row(name, text, trained=True) for name, text in texts.items()])
    return SourceIndex(source, folder / source, folder / "input")


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Notes:
    folder = tmp_path_factory.mktemp("notes")
    index = shelve(folder, "notes", {"tides.md": NOTE, "other.md": FILLER})
    (folder / "input").mkdir()
    (folder / "input/tides.md").write_text(NOTE)
    return Notes(Library([index]), ["notes"])


def asked(**more: object) -> dict[str, Any]:
    return {"messages": [QUESTION], "temperature": 0, "max_tokens": len(SAID), **more}


def post(notes: Notes | None, path: str, body: dict[str, Any], *, client: str = "127.0.0.1") -> httpx.Response:
    """Send a request to the application without a network, as from a client with this address."""
    app = build_app(saying("chat_tokens", SAID.encode(), T=64), card={}, limits=LIMITS, notes=notes)

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(client, 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as inside:
            return await inside.request("POST" if body else "GET", path, json=body or None)

    return asyncio.run(send())


CHAT = "/v1/chat/completions"


def test_a_reply_is_traced_where_the_request_asks_for_it(notes: Notes) -> None:
    body = post(notes, CHAT, asked(niels_gpt={"trace": True})).json()
    assert body["choices"][0]["message"]["content"] == SAID
    ((span,),) = body["niels_gpt"]["trace"]
    assert (span["text"], span["start"], span["stop"], span["count"]) == (SAID, 0, len(SAID), 1)
    (place,) = span["places"]
    assert (place["source"], place["file"], place["line"]) == ("notes", "tides.md", 3)
    assert place["path"].endswith("input/tides.md")
    assert "notes" not in body["niels_gpt"]
    assert "niels_gpt" not in post(notes, CHAT, asked()).json()


def test_each_choice_and_a_continued_text_are_traced(notes: Notes) -> None:
    body = post(notes, CHAT, asked(n=2, niels_gpt={"trace": True})).json()
    assert [[span["text"] for span in spans] for spans in body["niels_gpt"]["trace"]] == [[SAID], [SAID]]
    fields = {"prompt": SAID[:1], "temperature": 0, "max_tokens": len(SAID) - 1, "niels_gpt": {"trace": True}}
    ((span,),) = post(notes, "/v1/completions", fields).json()["niels_gpt"]["trace"]
    assert span["text"] == SAID.partition(".")[2]  # its first word begins in the prompt


def test_a_stream_begins_with_the_sections_and_ends_with_the_trace(notes: Notes) -> None:
    fields = asked(stream=True, stream_options={"include_usage": True}, niels_gpt={"trace": True, "notes": True})
    events = [line.removeprefix("data: ") for line in post(notes, CHAT, fields).text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    first, *between, usage, last = map(json.loads, events)
    assert [section["file"] for section in first["niels_gpt"]["notes"]] == ["tides.md"]
    assert "".join(part["choices"][0]["delta"].get("content", "") for part in between) == SAID
    assert usage["usage"]["completion_tokens"] == len(SAID)
    assert last["choices"] == []
    assert [span["text"] for span in last["niels_gpt"]["trace"][0]] == [SAID]
    assert [section["shared"] for section in last["niels_gpt"]["notes"]] == [True]


def test_openais_client_reads_a_traced_stream(notes: Notes) -> None:
    app = build_app(saying("chat_tokens", SAID.encode(), T=64), card={}, limits=LIMITS, notes=notes)
    with serving(app) as address:
        client = openai_client(address)
        more: Any = {"extra_body": {"niels_gpt": {"trace": True}}, "model": "saying", "temperature": 0}
        parts = list(client.chat.completions.create(messages=[QUESTION], stream=True, **more))  # type: ignore[list-item]
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == SAID
    assert parts[-1].to_dict()["niels_gpt"]["trace"]  # type: ignore[index]


def test_paths_are_for_clients_on_this_machine(notes: Notes) -> None:
    for path, body in ((CHAT, asked(niels_gpt={"trace": True, "notes": True})), ("/v1/find?q=beetroot", {})):
        assert "input/tides.md" in post(notes, path, body).text
        far = post(notes, path, body, client="192.168.1.7")
        assert far.status_code == 200
        assert "tides.md" in far.text
        assert "input" not in far.text


@pytest.mark.slow
def test_find_answers_whatever_is_typed(notes: Notes) -> None:
    found = post(notes, "/v1/find?q=beetroot", {}).json()["data"]
    assert [(one["file"], one["line"], one["headings"]) for one in found] == [("tides.md", 3, "Tides")]
    for typed in ("", "?q=", "?q=%22%00(*", "?q=NEAR(&limit=50"):
        assert post(notes, f"/v1/find{typed}", {}).status_code == 200
    for limit in ("0", "51", "x", "-1", "%C2%B2", "9" * 5000):
        refused = post(notes, f"/v1/find?q=a&limit={limit}", {})
        assert (refused.status_code, refused.json()["error"]["message"][:6]) == (400, "limit:")


def test_a_server_without_an_index_says_so() -> None:
    refused = post(None, CHAT, asked(niels_gpt={"trace": True}))
    assert refused.status_code == 400
    assert "this server has no index" in refused.json()["error"]["message"]
    assert post(None, "/v1/find?q=a", {}).status_code == 404
    assert post(None, CHAT, asked(niels_gpt={"trace": False})).status_code == 200
    assert post(None, "/v1/models", {}).json()["data"][0]["niels_gpt"]["sources"] is False


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the sample's parameters and an index each of roam, which is private, and primer, which is not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    shelve(layout.INDEX, "roam", {"tides.md": NOTE, "other.md": FILLER})
    shelve(layout.INDEX, "primer", {"1": "A public primer on the beetroot, and more.", "2": FILLER})
    return tmp_path


def run(*command: str) -> str:
    result = CliRunner().invoke(commands, command)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
def test_find_and_trace_in_the_terminal(project: Path) -> None:
    assert run("find", "beetroot").splitlines()[0] == "1  roam: tides.md:3  Tides"
    assert run("find", "zzz") == "nothing found\n"
    assert "primer: 1:1" in run("find", "beetroot", "--source", "primer")
    assert json.loads(run("find", "beetroot", "--json"))[0]["file"] == "tides.md"
    spans = run("trace", f"He: {SAID}!").splitlines()
    assert spans[0] == f'"{SAID}" (once)'
    assert spans[1].startswith("    roam: tides.md:3  The log says")
    assert run("find", "--trace", SAID, "--json") == run("trace", SAID, "--json")
    assert run("trace", "nothing of it") == "no part of it stands in training documents, common words aside\n"
    for command, refused in {
        ("find", "a", "--source", "wiki"): "there is no index of 'wiki'; there are: roam, primer",
        ("find", "a", "--source", "x"): "there is no index of 'x'",
    }.items():
        result = CliRunner().invoke(commands, command)
        assert result.exit_code == 1
        assert refused in result.stderr


@pytest.mark.slow
def test_private_text_is_opened_for_others_only_where_it_is_shared(project: Path) -> None:
    """With another --host, `serve` opens private sources only with --share-sources."""
    for private, names in ((True, ["roam", "primer"]), (False, ["primer"])):
        opened = served_notes(private=private)
        assert opened is not None
        assert [index.name for index in opened.library.indexes] == names
        assert bool(opened.library.trace(SAID)) is private
        access = Access(others=True, key="k")
        app = build_app(saying("chat_tokens", SAID.encode()), card={}, access=access, notes=opened)
        with serving(app) as address, httpx.Client(base_url=address, timeout=60) as client:
            headers = {"authorization": "Bearer k"}
            found = client.get("/v1/find?q=beetroot&limit=50", headers=headers)
            assert ("log says" in found.text) is private
            assert ("public primer" in found.text) is not private  # private notes are searched instead, if open
            traced = client.post(CHAT, json=asked(niels_gpt={"trace": True, "notes": True}), headers=headers)
            assert ("log says" in traced.text) is private
            assert client.get("/v1/find?q=beetroot").status_code == 401
            assert client.get("/v1/find?q=a", headers={**headers, "origin": "http://other"}).status_code == 403


@pytest.mark.parametrize(
    ("options", "private"),
    [([], True), (["--host", "0.0.0.0"], False), (["--host", "0.0.0.0", "--share-sources"], True)],
)
def test_serve_shares_private_text_as_its_options_say(
    monkeypatch: pytest.MonkeyPatch, options: list[str], private: bool
) -> None:
    opened: list[bool] = []

    def record(*, private: bool) -> None:
        opened.append(private)
        raise ValueError("far enough")

    monkeypatch.setattr("niels_gpt.cli.app.served_notes", record)
    monkeypatch.setattr("niels_gpt.cli.app.open_model", lambda *args, **more: saying("chat_tokens", b"a"))
    CliRunner().invoke(commands, ["serve", "--model", "x", *options], env={"NIELS_GPT_API_KEY": "k"})
    assert opened == [private]


def test_without_an_index_commands_say_how_to_make_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    result = CliRunner().invoke(commands, ["trace", "x"])
    assert result.exit_code == 1
    assert result.stderr == "ERROR: there is no index of the documents: `dvc repro index` makes it\n"
    assert served_notes(private=True) is None


def conversation(
    open_notes: Callable[[], Notes] | None, *, show_notes: bool = False, T: int = 64
) -> tuple[Any, list[str]]:
    talker = saying("chat_tokens", SAID.encode(), T=T)
    how: dict[str, Any] = {"max_new_tokens": len(SAID), "seed": 0, "open_notes": open_notes, "show_notes": show_notes}
    return Conversation(talker, sampling=Sampling(0), **how), []


def test_the_chat_traces_the_last_answer(notes: Notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chat, shown = conversation(lambda: notes)
    assert chat.command("/trace") == "there is no answer to trace yet"
    chat.answer("hello", show=shown.append)
    assert "".join(shown) == SAID
    assert chat.command("/trace").startswith(f'"{SAID}" (once)\n')
    missing, _ = conversation(open_notes)
    missing.messages = chat.messages
    assert missing.command("/trace").startswith("the answer was not traced: there is no ")


def test_the_chat_shows_notes_before_the_answer_and_what_it_shares_with_them(notes: Notes) -> None:
    chat, shown = conversation(lambda: notes, show_notes=True)
    chat.answer(QUESTION["content"], show=shown.append)
    text = "".join(shown)
    assert text.index("tides.md:3  Tides") < text.index(f"\n\n{SAID}")
    assert text.endswith("(the reply shares words with [1])")
    assert chat.messages[0] == QUESTION


def test_sections_are_in_the_prompt_where_the_context_holds_them(notes: Notes) -> None:
    found = notes.find("beetroot")
    small, large = (saying("chat_tokens", b"a", T=T) for T in (READS_NOTES - 1, READS_NOTES))
    assert with_sections(small, [QUESTION], found) == [QUESTION]
    (asked,) = with_sections(large, [QUESTION], found)
    assert "[1] tides.md\n# Tides" in asked["content"]
    assert asked["content"].endswith(QUESTION["content"])
    assert len(large.tokenizer.encode(asked["content"])) <= READS_NOTES // 2 + 100
    long = [*found, *notes.find("word1")] * 9
    (asked,) = with_sections(large, [QUESTION], long)
    assert len(large.tokenizer.encode(asked["content"])) <= READS_NOTES // 2 + 100


def test_questions_to_begin_with_are_headings_without_markup_dates_and_doubles(tmp_path: Path) -> None:
    texts = {
        "short.md": "# Short one\nx\n",
        "long.md": "# Longer one\n" + "x y " * 50 + "\n# Longer one\n" + "x y " * 40,
        "asked.md": "# Why is it so?\n" + "x y " * 60,
        "2024_11_17.md": "x y " * 90,
        "linked.md": "# [[Page]] of **links**\n" + "x y " * 80,
        "sub/own-name.md": "x y " * 70,
    }
    write_index(tmp_path, [Row(name, text, trained=True) for name, text in texts.items()])
    index = SourceIndex("notes", tmp_path, None)
    for limit in (2, 9):
        expected = ["Why is it so?", "Longer one", "Short one", "own name"][:limit]
        assert Library([index]).topics(limit=limit, sources=["notes"]) == expected
    assert Library([index]).topics(limit=9, sources=["other"]) == []
    offered = abilities(Notes(Library([index]), ["notes"]), saying("chat_tokens", b"x"))
    assert offered["questions"] == ["Why is it so?", "Tell me about Longer one.", "Tell me about Short one."]
    assert abilities(None, saying("chat_tokens", b"x"))["questions"] == []


@pytest.fixture(scope="module")
def page(notes: Notes) -> Iterator[tuple[Any, Any]]:
    app = build_app(saying("chat_tokens", SAID.encode(), T=64), card={}, limits=LIMITS, notes=notes)
    with real_browser() as (browser, expect), serving(app) as address:
        expect.set_options(timeout=60_000)
        opened = browser.new_context(viewport={"width": 390, "height": 800}).new_page()
        errors: list[str] = []
        opened.on("pageerror", lambda error: errors.append(str(error)))
        opened.goto(address)
        opened.locator("#menu").click()
        expect(opened.locator("#find")).to_be_visible()
        yield opened, expect
        assert errors == []


@pytest.mark.slow
def test_in_a_browser_spans_notes_and_search_by_keyboard(page: tuple[Any, Any]) -> None:
    tab, expect = page
    tab.locator("#settings summary").click()
    tab.locator("#temperature").fill("0")
    tab.locator("#notes").check()
    tab.keyboard.press("Escape")
    tab.locator("#text").fill(QUESTION["content"])
    tab.keyboard.press("Enter")
    marks = tab.locator("article.assistant mark.traced")
    expect(marks).to_have_text([SAID])
    expect(tab.locator(".sources .notes li")).to_contain_text(["notes: tides.md:3"])
    expect(tab.locator(".sources")).to_contain_text("This model cannot read notes; these sections are the answer")
    expect(tab.locator(".shared")).to_have_count(1)
    marks.first.focus()
    tab.keyboard.press("Enter")
    expect(tab.locator(".places")).to_contain_text("Once in training documents")
    link = tab.locator(".places a.file")
    assert link.get_attribute("href").startswith("vscode://file/")
    assert link.get_attribute("href").endswith("input/tides.md:3")
    tab.keyboard.press("Enter")
    expect(tab.locator(".places")).to_have_count(0)
    tab.locator("#menu").focus()
    tab.keyboard.press("Enter")
    tab.locator("#find summary").focus()
    tab.keyboard.press("Enter")
    tab.locator("#words").fill("beet*")
    expect(tab.locator("#hits li")).to_contain_text(["notes: tides.md:3"])
    tab.locator("#words").fill("zzz")
    expect(tab.locator("#hits")).to_have_attribute("data-none", "Nothing found.")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
def test_in_a_browser_marks_and_notes_are_there_after_a_reload(page: tuple[Any, Any]) -> None:
    tab, expect = page
    tab.reload()
    expect(tab.locator("article.assistant mark.traced")).to_have_text([SAID])
    tab.locator("#menu").click()
    tab.locator("#settings summary").click()
    expect(tab.locator("#notes")).to_be_checked()
    tab.locator("#opener").select_option("obsidian")
    tab.keyboard.press("Escape")
    tab.locator("article.assistant mark.traced").click()
    assert tab.locator(".places a.file").get_attribute("href").startswith("obsidian://open?path=%2F")
