"""Tests of chatting with a model in the terminal, exporting and serving it, and errors before there is one."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import torch
from typer.testing import CliRunner

from niels_gpt.checkpoint import save_checkpoint
from niels_gpt.cli.app import app
from niels_gpt.cli.summary import introduction
from niels_gpt.config import ModelConfig, to_dict
from niels_gpt.files.checks import Damaged, write_sums
from niels_gpt.files.messages import visible
from niels_gpt.inference.engine import Token
from niels_gpt.inference.sampling import Sampling
from niels_gpt.model.gpt import GPT
from niels_gpt.pipeline.results import write_metrics
from niels_gpt.rng import derive_seed
from niels_gpt.talk.export.card import model_card
from niels_gpt.talk.export.folders import export_model, export_transformers, write_card
from niels_gpt.talk.server.app import build_app
from niels_gpt.talk.talker import StreamedText, Talker, TextChunk, open_talker
from niels_gpt.talk.terminal import HELP, MOST_LINES, Conversation, converse, history_file, line_reader
from niels_gpt.tokenizer.tokenizers import ByteTokenizer
from niels_gpt.tokenizer.vocabulary import IncrementalDecoder
from niels_gpt.train.state import RunFolder, RunState
from tests.conftest import ROOT
from tests.servers import post
from tests.talkers import CFG, counted_reads, saying, talkative, talker, write_project


def streamed(text: StreamedText, pieces: Sequence[str]) -> list[str]:
    """Return the text that becomes final with each piece; each byte is a token."""
    return ["".join(text.add(Token(0, byte)).text for byte in piece.encode()) for piece in pieces]


def test_a_transcript_ends_where_the_next_turn_begins() -> None:
    text = StreamedText(ByteTokenizer(), talker("transcript").chat.stop_texts)
    pieces = ["hel", "lo\n", "use", "less\nus", "er", ": no"]
    assert streamed(text, pieces[:-1]) == ["hel", "lo", "", "\nuseless", ""]
    assert [text.add(Token(0, byte)).text for byte in b": "] == ["", ""]
    assert text.finish == "stop"
    assert text.rest().text == ""
    held = StreamedText(ByteTokenizer(), talker("transcript").chat.stop_texts)
    assert streamed(held, ["so\nsys"]) == ["so"]
    assert held.rest().text == "\nsys"
    assert streamed(StreamedText(ByteTokenizer(), ()), ["a\nuser: b"]) == ["a\nuser: b"]


def test_tokens_come_with_the_text_they_end_in() -> None:
    """A token that may begin a stop string, or begins a character, is held back until that is decided."""
    text = StreamedText(ByteTokenizer(), ["xyz", "yy"])
    came = [text.add(Token(0, byte)) for byte in "axy\xe4xyy".encode()]
    assert [piece.text for piece in came] == ["a", "", "", "", "xy\xe4", "", "", "x"]
    assert [len(piece.tokens) for piece in came] == [1, 0, 0, 0, 4, 0, 0, 1]
    assert text.finish == "stop"
    assert text.rest() == TextChunk()

    class Whole(ByteTokenizer):
        def piece(self, id: int) -> bytes:
            return b"one two"

    both = StreamedText(Whole(), ["two", "ne"])  # both in one token: the first ends the answer
    assert both.add(Token(0, 0)) == TextChunk("o", (), "stop", 1)
    rest = StreamedText(ByteTokenizer(), ["xyz"])
    assert [rest.add(Token(0, byte)).text for byte in b"xy\xc3"] == ["", "", ""]
    tokens = tuple(Token(0, byte, offset=place) for place, byte in enumerate(b"xy\xc3"))
    assert rest.rest() == TextChunk("xy\ufffd", tokens, "length", 3)


def test_each_model_is_prompted_in_its_own_format() -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert talker("transcript").chat.prompt(messages) == list(b"user: hi\nassistant: ")
    assert talker().chat.prompt(messages) == [257, *b"hi", 259, 258]
    said = list(talker().reply(messages, sampling=Sampling(0.8, 50), max_new_tokens=7, seed=3))
    assert len(said) <= 8
    assert "".join(said) == "".join(talker().reply(messages, sampling=Sampling(0.8, 50), max_new_tokens=7, seed=3))


@pytest.mark.parametrize(
    ("renderer", "ids", "most", "text", "tokens", "reason"),
    [
        ("chat_tokens", b"world", 5, "world", 5, "length"),
        ("chat_tokens", b"world", 3, "wor", 3, "length"),
        ("chat_tokens", [*b"hi", 259, *b"more"], 3, "hi", 2, "stop"),
        ("chat_tokens", [*b"hi", 259], 2, "hi", 2, "length"),
        ("chat_tokens", [*b"hi", 257, *b"me"], 9, "hi", 2, "stop"),
        ("chat_tokens", b"a\nuser: b", 9, "a\nuser: b", 9, "length"),
        ("chat_tokens", "ä".encode()[:1], 1, "\ufffd", 1, "length"),
        ("transcript", b"a\nuser: ", 99, "a", 8, "stop"),
        ("transcript", b"a\nuser: ", 8, "a", 8, "stop"),
        ("transcript", b"a\nuser:", 7, "a\nuser:", 7, "length"),
        ("transcript", [*b"hi", 259], 9, "hi", 2, "stop"),
    ],
)
def test_a_reply_ends_with_its_turn(
    renderer: str, ids: Sequence[int], most: int, text: str, tokens: int, reason: str
) -> None:
    messages, talker = [{"role": "user", "content": "x"}], saying(renderer, ids)
    assert "".join(talker.reply(messages, sampling=Sampling(0), max_new_tokens=most, seed=0)) == text
    answer = post(build_app(talker, card={}), {"messages": messages, "temperature": 0, "max_tokens": most}).json()
    assert answer["choices"][0]["message"]["content"] == text
    assert answer["choices"][0]["finish_reason"] == reason
    assert answer["usage"]["completion_tokens"] == tokens


def test_interleaved_answers_equal_those_generated_alone() -> None:
    """The long answer goes beyond the context, where ids are prefilled again, and dropout would change it."""
    model = talkative(ModelConfig(V=260, T=8, C=24, L=2, H=3, d_ff=48, dropout=0.5)).train()
    several = Talker("several", model, ByteTokenizer(), "chat_tokens")

    def reply(content: str, tokens: int) -> Iterator[str]:
        messages = [{"role": "user", "content": content}]
        return several.reply(messages, sampling=Sampling(1.0), max_new_tokens=tokens, seed=1)

    alone = "".join(reply("a long one", 30))
    short, long = reply("short", 4), reply("a long one", 30)
    first = [next(short), next(long)][1]
    "".join(short)  # ends before the other
    assert "".join([first, *long]) == alone
    assert several.model.training is False


def test_a_conversation_is_asked_as_a_whole_with_its_settings() -> None:
    whole, settings = talker(T=64), Sampling(5.0, 40, 0.9)
    conversation = Conversation(whole, sampling=settings, max_new_tokens=6, seed=7)
    conversation.command("/system be brief")
    conversation.answer("one", show=lambda _: None)
    asked = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one"}]
    first = "".join(whole.reply(asked, sampling=settings, max_new_tokens=6, seed=derive_seed(7, "reply", 2)))
    assert conversation.messages == [*asked, {"role": "assistant", "content": first.strip()}]
    conversation.command("/system be long")  # replaces the other, before all turns
    assert conversation.messages[0] == {"role": "system", "content": "be long"}
    assert [message["role"] for message in conversation.messages] == ["system", "user", "assistant"]
    asked, shown = [*conversation.messages, {"role": "user", "content": "two"}], []
    conversation.answer("two", show=shown.append)
    second = "".join(whole.reply(asked, sampling=settings, max_new_tokens=6, seed=derive_seed(7, "reply", 4)))
    assert "".join(shown) == second
    assert len(conversation.messages) == 5


def turns(*contents: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]


def test_a_chat_forgets_its_oldest_turns_whole() -> None:
    whole = talker(T=64)  # a message takes its bytes and two ids; the prompt adds one
    chat = turns("a" * 8, "b" * 8, "c" * 8, "d" * 8, "e" * 7)
    assert len(whole.chat.prompt(chat)) == 50
    assert whole.remember(chat, max_new_tokens=14) == (chat, 0)
    assert whole.remember(chat, max_new_tokens=15) == (chat[2:], 2)
    assert whole.remember(chat, max_new_tokens=999) == (chat[2:], 2)  # at most a quarter is reserved for the answer
    system = {"role": "system", "content": "s" * 6}
    assert whole.remember([system, *chat], max_new_tokens=1) == ([system, *chat], 0)
    assert whole.remember([system, *chat], max_new_tokens=9) == ([system, *chat[2:]], 2)
    long = [system, *chat, *turns("f" * 99)]
    assert whole.remember(long, max_new_tokens=9) == ([system, long[-1]], 5)  # the last is always kept
    assert whole.remember(turns("x" * 99), max_new_tokens=9) == (turns("x" * 99), 0)
    for n in range(1, 40):  # as many turns as fit are kept, however many there are
        many = turns(*["y" * 3] * (2 * n - 1))
        kept, forgotten = whole.remember(many, max_new_tokens=9)
        assert kept == many[forgotten:]
        assert len(kept) == min(2 * n - 1, 9)  # 5 ids each, and one of the prompt


def test_a_chat_says_what_it_has_forgotten() -> None:
    shown: list[str] = []
    conversation = Conversation(saying("chat_tokens", b"yes!"), sampling=Sampling(0), max_new_tokens=4, seed=0)
    for question in ("a long one, this", "b?", "c?", "d?", "e?"):
        conversation.answer(question, show=shown.append)
    words = "(the first {} messages no longer fit the context and are dropped)\n"
    assert "".join(shown) == f"yes!{words.format(2)}yes!yes!yes!{words.format(4)}yes!"
    assert len(conversation.messages) == 10  # kept for /save
    conversation.command("/reset")
    conversation.answer("five?", show=shown.append)
    conversation.answer("six?", show=shown.append)
    assert "".join(shown).endswith("yes!yes!")


def test_a_question_beyond_the_context_says_what_was_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    conversation = Conversation(saying("chat_tokens", b"yes!"), sampling=Sampling(0), max_new_tokens=4, seed=0)
    conversation.answer("x" * CFG.T, show=shown.append)
    words = "(the first {} tokens do not fit the context and are dropped)\n"
    assert shown[0] == words.format(3)  # the chat tokens: one before the question, two after it
    assert "".join(shown[1:]) == "yes!"
    conversation.answer("b?", show=shown.append)
    assert "tokens do not fit" not in "".join(shown[1:])
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    for length, said in ((CFG.T, ""), (CFG.T + 1, words.format(1))):
        assert CliRunner().invoke(app, ["sample", "x" * length, "--max-tokens", "1"]).stderr == said


TERMINAL = """
from niels_gpt.talk.terminal import line_reader
read = line_reader()
while (line := read()) != "end":
    print(repr(line), flush=True)
"""


def typed(state: Path, *lines: str) -> str:
    """Type keys at a terminal into a chat's line reader, a line at a time; return what the terminal shows."""
    reader, terminal = pty.openpty()
    command = [sys.executable, "-c", TERMINAL]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb", "XDG_STATE_HOME": str(state)}
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment) as process:
        os.close(terminal)
        shown = ""
        for number, line in enumerate((*lines, "end")):
            while shown.count("> ") <= number:  # wait for the prompt of this line
                shown += os.read(reader, 1000).decode()
            os.write(reader, f"{line}\r".encode())
        with suppress(OSError):  # the terminal was closed
            while part := os.read(reader, 1000):
                shown += part.decode()
    os.close(reader)
    assert process.returncode == 0, shown
    return shown


@pytest.mark.slow
def test_lines_are_edited_and_kept_for_the_next_chat_and_for_nobody_else(tmp_path: Path) -> None:
    pytest.importorskip("readline", reason="this Python has no readline: no line was edited")
    up, left, file = "\x1b[A", "\x1b[D", tmp_path / "niels_gpt/chat_history"
    shown = typed(tmp_path, "hallo", f"{up}{left * 3}\x08e", " secret", "", f"{up}!")
    for line in ("'hallo'", "'hello'", "' secret'", "'hello!'"):
        assert line in shown
    assert file.read_text() == "hallo\nhello\nhello!\nend\n"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    file.chmod(0o644)
    file.write_bytes("caf\xe9\n".encode("latin-1") + b"line\n" * 2 * MOST_LINES + b"last\n")
    assert "'last?'" in typed(tmp_path, f"{up}?")
    lines = file.read_text().splitlines()
    assert lines == ["line"] * (MOST_LINES - 3) + ["last", "last?", "end"]
    assert file.stat().st_mode & 0o777 == 0o600
    assert "'a'" in typed(Path("/dev/null/nowhere"), "a")  # where no history can be stored


def test_lines_of_a_pipe_are_kept_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_file() == tmp_path / "niels_gpt/chat_history"
    monkeypatch.setattr("builtins.input", lambda prompt: f"asked with {prompt}")
    assert line_reader()() == "asked with > "
    monkeypatch.setitem(sys.modules, "readline", None)  # as if it were not installed
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    assert line_reader()() == "asked with > "
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    assert history_file() == Path.home() / ".local/state/niels_gpt/chat_history"


def test_the_next_turn_of_a_chat_prefills_only_new_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, read = talker(T=64), counted_reads(monkeypatch)
    asked = turns("one")
    said = "".join(whole.reply(asked, sampling=Sampling(0), max_new_tokens=4, seed=0))
    assert read == [5, 1, 1, 1, 1]
    messages = [*asked, {"role": "assistant", "content": "another"}, {"role": "user", "content": "two"}]
    "".join(whole.reply(messages, sampling=Sampling(0), max_new_tokens=1, seed=0))
    assert read[5:] == [len(whole.chat.prompt(messages)) - 7, 1]
    assert said


def test_a_turn_of_a_chat_far_beyond_the_context_prefills_no_more_than_the_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, read = saying("chat_tokens", b"thus", T=64), counted_reads(monkeypatch)
    conversation = Conversation(whole, sampling=Sampling(0), max_new_tokens=16, seed=0)
    shown: list[str] = []
    for turn in range(10):
        conversation.answer(f"no {turn}", show=shown.append)
        assert "".join(shown).endswith("thus" + "s" * 12)
        assert sum(read) <= 64
        read.clear()
    assert len(whole.chat.prompt(conversation.messages)) > 3 * 64
    forgotten = whole.remember(conversation.messages[:-1], max_new_tokens=16)[1]
    assert f"(the first {forgotten} messages no longer fit the context and are dropped)\n" in shown


def test_invalid_lines_do_not_end_the_chat(tmp_path: Path) -> None:
    shown: list[str] = []
    conversation = Conversation(talker(), sampling=Sampling(), max_new_tokens=2, seed=0)
    not_utf8 = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/file").touch()
    lines: Iterator[str | BaseException] = iter(
        [not_utf8, "half a \udcff", KeyboardInterrupt(), "  ", "/save", "/save a\0b", f"/save {tmp_path / 'taken'}"]
    )

    def read() -> str:
        line = next(lines, EOFError())
        if isinstance(line, BaseException):
            raise line
        return line

    converse(conversation, read=read, show=shown.append)
    text = "".join(shown)
    assert text.count("was not UTF-8") == 2
    assert text.count("(Ctrl-D or /quit exits)") == 1
    assert text.count("the chat was not saved") == 2
    assert text.count(HELP) == 2
    assert conversation.messages == []
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_conversation_resets_saves_and_survives_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    class Interrupted(Talker):
        def reply(self, *_: object, **__: object) -> Iterator[str]:
            yield "half an "
            raise KeyboardInterrupt

    whole = talker()
    conversation = Conversation(Interrupted(**vars(whole)), sampling=Sampling(), max_new_tokens=5, seed=0)
    lines = iter(["/system be brief", "hello", "/save a.jsonl", "/nonsense", "/reset", "/quit"])
    shown: list[str] = []
    converse(conversation, read=lambda: next(lines), show=shown.append)
    text = "".join(shown)
    assert "half an  [stopped]" in text
    assert text.count("/reset clears") == 2
    assert json.loads((tmp_path / "a.jsonl").read_text())["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "half an"},
    ]
    assert conversation.messages == [{"role": "system", "content": "be brief"}]

    def ended() -> str:
        raise EOFError

    converse(conversation, read=ended, show=shown.append)


def test_a_chat_is_saved_over_nothing_but_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.jsonl").write_text("mine")
    conversation = Conversation(talker(), sampling=Sampling(), max_new_tokens=2, seed=0)
    left = "mine.jsonl exists and was not overwritten: give /save another name"
    assert conversation.command("/save mine.jsonl") == left
    assert (tmp_path / "mine.jsonl").read_text() == "mine"
    assert conversation.command("/save a.jsonl").startswith("saved to a.jsonl, ")
    conversation.messages.append({"role": "user", "content": "more"})
    assert conversation.command("/save a.jsonl").startswith("saved to a.jsonl again, ")
    assert json.loads((tmp_path / "a.jsonl").read_text())["messages"] == conversation.messages
    (tmp_path / "a.jsonl").write_text("changed by another hand")
    assert "was not overwritten" in conversation.command("/save a.jsonl")
    another = Conversation(talker(), sampling=Sampling(), max_new_tokens=2, seed=0)
    assert "was not overwritten" in another.command("/save a.jsonl")
    assert (tmp_path / "a.jsonl").read_text() == "changed by another hand"


def test_an_export_loads_back_bit_equal_and_its_card_names_the_data(tmp_path: Path) -> None:
    whole = write_project(tmp_path)
    parts = [{"file": "train/part-00000.bin", "sha256": "ab" * 32, "bytes": 20}]
    mix = {"sources": {"wiki": {"train": {"parts": parts, "tokens": 10}}}}
    chat_mix = {"sources": {"dolly": {"files": [{"sha256": "cd" * 32}]}}}
    empty = ("model", "tokenizer", "p_sft", "train", "sft", "sources")
    params = {key: {} for key in empty} | {"p_train": {"wiki": 0.5}}
    scores = {"sft": {"val_wiki": {"nats": 1.0, "bits_per_byte": 2.0, "tokens": 9}}}
    made_of = {"mix": mix, "chat_mix": chat_mix, "params": params, "metrics": scores}
    card = model_card(whole, form="plain", folder="out", **made_of, private=(), leaks={})
    assert "| wiki | 0.5 | 10 | 1 | `" + "ab" * 32 + "` | not stated |" in card  # wiki is no longer a source
    assert "```bash\nniels-gpt chat --model out\nniels-gpt serve --model out " in card
    assert "ab" * 32 in card
    assert "cd" * 32 in card
    head = "| model | validation set | nats/token | bits per byte |\n|---|---|---|---|\n"
    assert f"{head}| sft | val_wiki | 1.0000 | 2.0000 |" in card
    assert '## Parameters\n\n```json\n{\n  "model": {},\n' in card
    export_model(whole, tmp_path / "out", tokenizer=tmp_path / "cache/tokenizer")
    write_card(tmp_path / "out", card, None)
    again = open_talker(tmp_path / "out", device="cpu")
    assert again.renderer == "chat_tokens"
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name


def test_the_best_weights_are_opened_and_asked_as_they_were_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = write_project(tmp_path)
    save_checkpoint(tmp_path / "models/sft/elsewhere/last.pt", GPT(CFG), None, 2, to_dict(CFG))
    os.replace("models/sft/elsewhere/last.pt", "models/sft/last.pt")
    tokenizer = Path("cache/tokenizer")
    tuned, plain = (open_talker(f"models/{name}", device="cpu", tokenizer=tokenizer) for name in ("sft", "pretrain/"))
    assert (tuned.name, tuned.renderer, plain.name, plain.renderer) == ("sft", "chat_tokens", "pretrain", "transcript")
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, tuned.model.state_dict()[name]), name


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("config.json", b'{"V": 260', "config.json is not valid JSON"),
        ("config.json", b"[1]", "config.json holds no JSON object"),
        ("config.json", b'{"architectures": []}', "is in the format of the transformers library"),
        ("model.safetensors", None, "model.safetensors is missing: export the model again"),
        ("SHA256SUMS", None, "SHA256SUMS is missing, so nothing vouches for the files beside it"),
        ("SHA256SUMS", b"", "config.json is not what SHA256SUMS beside it says"),
        ("SHA256SUMS", b"\xff", "SHA256SUMS is not UTF-8 text"),
        ("tokenizer.json", b"{}", "tokenizer.json describes a tokenizer of kind None"),
    ],
)
def test_a_damaged_export_is_named(tmp_path: Path, file: str, content: bytes | None, words: str) -> None:
    write_project(tmp_path)
    export_model(talker(), tmp_path / "out", tokenizer=tmp_path / "cache/tokenizer")
    write_card(tmp_path / "out", "", None)
    if content is None:
        (tmp_path / "out" / file).unlink()
    else:
        (tmp_path / "out" / file).write_bytes(content)
        if file != "SHA256SUMS":
            write_sums(tmp_path / "out")  # as if somebody had edited it, not a disk error
    with pytest.raises(ValueError, match=words):
        open_talker(tmp_path / "out", device="cpu")


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_an_export_with_a_flipped_bit_is_refused_by_the_name_of_the_file(tmp_path: Path, file: str) -> None:
    write_project(tmp_path)
    export_model(talker(), tmp_path / "out", tokenizer=tmp_path / "cache/tokenizer")
    write_card(tmp_path / "out", "", None)
    path = tmp_path / "out" / file
    whole = path.read_bytes()
    for place in {0, len(whole) // 3, len(whole) // 2, len(whole) - 1}:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(Damaged, match=file):
            open_talker(tmp_path / "out", device="cpu")
    path.write_bytes(whole)
    (tmp_path / "out/README.md").write_text("the owner's own words")
    open_talker(tmp_path / "out", device="cpu")


def test_an_untied_head_is_exported_and_opened_again(tmp_path: Path) -> None:
    write_project(tmp_path)
    untied = replace(talker(), model=GPT(replace(CFG, tied=False, logit_cap=5.0)).eval())
    export_model(untied, tmp_path / "out", tokenizer=tmp_path / "cache/tokenizer")
    write_card(tmp_path / "out", "", None)
    x = torch.arange(9)[None]
    assert torch.equal(open_talker(tmp_path / "out", device="cpu").model(x), untied.model(x))


def test_a_model_and_a_tokenizer_that_do_not_belong_together_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path)
    small = ModelConfig(V=300, T=8, C=8, L=1, H=1, d_ff=8, dropout=0.0)
    save_checkpoint("models/sft/best.pt", GPT(small), None, 1, to_dict(small))
    with pytest.raises(
        ValueError, match="models/sft holds a model of 300 tokens, and cache/tokenizer a tokenizer of 260"
    ):
        open_talker("models/sft", device="cpu", tokenizer=Path("cache/tokenizer"))


def test_what_transformers_cannot_do_is_refused_by_name(tmp_path: Path) -> None:
    modern = replace(talker(), model=GPT(replace(CFG, qk_norm=True, tied=False)))
    with pytest.raises(ValueError, match=r"does not support model\.qk_norm, model\.tied"):
        export_transformers(modern, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


@pytest.mark.slow
def test_transformers_computes_the_same_logits(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: its form was not tried")
    whole = talker()
    export_transformers(whole, tmp_path / "hf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    x = torch.randint(0, 256, (2, 30))
    with torch.no_grad():
        ours = whole.model.eval()(x)
        torch.testing.assert_close(theirs(x).logits, ours, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["chat"], "models/sft holds no model yet"),
        (["chat", "--model", "nowhere"], "nowhere holds no model yet"),
        (["sample", "x"], "models/pretrain holds no model yet"),
        (["serve"], "models/sft holds no model yet"),
        (["export", "away"], "models/sft holds no model yet"),
        (["doctor"], "no params.yaml here"),
        (["inspect", "mix"], "no params.yaml here"),
        (["inspect", "documents", "wiki"], "run `dvc repro` first"),
    ],
)
def test_without_a_run_every_command_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert sentence in result.output
    assert "Traceback" not in result.output
    (tmp_path / "dvc.yaml").unlink()
    assert not list(tmp_path.iterdir())
    outside = CliRunner().invoke(app, command).output
    assert ("there is no dvc.yaml here: run this in the project's folder" in outside) == sentence.startswith("models/")


@pytest.mark.slow
def test_chat_and_sample_say_what_the_model_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    options = ["--temperature", "5", "--top-k", "40", "--top-p", "0.9", "--max-tokens", "12", "--seed", "3"]
    settings = Sampling(5.0, 40, 0.9)
    result = CliRunner().invoke(app, ["chat", *options], input="hello\n/quit\nmore\n")
    assert result.exit_code == 0, result.output
    asked = [{"role": "user", "content": "hello"}]
    reply = "".join(whole.reply(asked, sampling=settings, max_new_tokens=12, seed=derive_seed(3, "reply", 1)))
    assert result.output == f"{HELP}\n> {visible(reply)}\n> "
    result = CliRunner().invoke(app, ["sample", "Once", *options])
    assert result.exit_code == 0, result.output
    text = "".join(whole.continuation("Once", sampling=settings, max_new_tokens=12, seed=3))
    assert result.output == f"Once{visible(text)}\n"
    assert text
    half = replace(whole, precision="bf16")
    text = "".join(half.continuation("Once", sampling=settings, max_new_tokens=12, seed=3))
    result = CliRunner().invoke(app, ["sample", "Once", *options, "--bf16"])
    assert result.stdout == f"Once{visible(text)}\n"
    for arguments, words in (
        (["sample", ""], "the prompt is empty"),
        (["sample", "x", "--temperature", "inf"], "temperature must be >= 0 and finite"),
    ):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 1, arguments
        assert words in result.output
    for option, value in (("seed", str(2**63)), ("temperature", "nan"), ("top-p", "nan"), ("top-k", "0")):
        assert CliRunner().invoke(app, ["sample", "x", f"--{option}", value]).exit_code == 2
    monkeypatch.setattr(IncrementalDecoder, "add", lambda self, token: "\x1b[2J")  # would clear the terminal
    for command, said in ((["sample", "x"], None), (["chat"], "hello\n")):
        shown = CliRunner().invoke(app, [*command, "--max-tokens", "2"], input=said).output
        assert "\\x1b[2J" in shown
        assert "\x1b" not in shown


def test_the_page_names_a_model_by_its_sources_and_serves_it_as_its_card_advises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = write_project(tmp_path)
    tuned = replace(whole, name="sft")
    size = f"{whole.model.parameter_count() / 1e6:.1f} M parameters"
    assert introduction(tuned) == {"name": f"sft, {size}", "temperature": 0.8}
    (tmp_path / "metrics").mkdir()
    mixes = {"train": {"wiki": 0.3, "notes": 0.7, "unused": 0.0}, "sft": {"chats": 1.0}}
    for stage, mix in mixes.items():
        details = {"mix": {name: {"drawn": share} for name, share in mix.items()}}
        write_metrics(tmp_path / f"metrics/{stage}.json", details)
    write_metrics(tmp_path / "metrics/eval.json", {"card": {"sft": {"repetition": 0.0}}}, text_bits=2.0)
    text = "Trained on text: notes (70%), wiki (30%)"
    name = f"notes and wiki, {size}"
    expected = {"name": name, "trained_on": f"{text}, then on chats: chats (100%).", "temperature": 0.2}
    assert introduction(tuned) == expected
    assert introduction(replace(whole, name="pretrain")) == {**expected, "trained_on": f"{text}.", "temperature": 0.8}
    assert introduction(replace(whole, name="away"))["name"] == f"away, {size}"


@pytest.mark.slow
def test_serve_listens_on_this_machine_alone_until_it_is_interrupted(tmp_path: Path) -> None:
    write_project(tmp_path)
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics/eval.json").write_text(
        json.dumps({"sft": {"val": {"bits_per_byte": 1.25, "nats": 1.0, "tokens": 9}}, "card": {"sft": {"form": 1}}})
    )
    command = [sys.executable, "-c", "from niels_gpt.cli.app import app; app()", "serve", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, text=True, **pipes) as server:
        try:
            assert server.stdout
            address, _, rest = server.stdout.readline().partition(" ")
            assert rest == "(Ctrl-C stops it)\n"
            card = httpx.get(f"{address}/card", timeout=60).json()
            assert (card["model"], card["bits per byte on val"]) == ("sft", "1.250")
            port = int(address.removeprefix("http://127.0.0.1:"))
            with socket.socket() as other:
                assert other.connect_ex(("127.0.0.2", port)) != 0
            server.send_signal(signal.SIGINT)
            assert "Traceback" not in server.communicate(timeout=60)[1]
        finally:
            server.kill()


@pytest.mark.slow
def test_damaged_scores_are_named_before_anything_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "metrics").mkdir()
    for damaged in (
        "{",
        "[]",
        '{"sft": []}',
        '{"sft": {"val": {}}}',
        '{"sft": {"val": {"bits_per_byte": "x"}}}',
    ):
        (tmp_path / "metrics/eval.json").write_text(damaged)
        result = CliRunner().invoke(app, ["serve", "--port", "0"])
        assert result.exit_code == 1
        assert "ERROR: metrics/eval.json " in result.output
        assert "build it again" in result.output


def test_a_taken_name_and_a_taken_port_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["export", "models"])
    assert result.exit_code == 1
    assert "models exists: name a new folder" in result.output
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = CliRunner().invoke(app, ["serve", "--port", str(taken.getsockname()[1])])
    assert result.exit_code == 1
    assert "choose another with --port" in result.output
    (tmp_path / "models/sft/best.pt").write_bytes(b"not a checkpoint")
    result = CliRunner().invoke(app, ["chat"])
    assert result.exit_code == 1
    assert "is not a checkpoint of this project, or is damaged" in result.output


def test_store_frees_finished_runs_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("finished", "stopped", "held"):
        folder = RunFolder(tmp_path / "checkpoints" / name)
        with folder.locked():
            folder.save(RunState(step=1, model={"w": torch.ones(1000)}, optimizer={}))
        if name != "stopped":
            folder.finish()
    with RunFolder(tmp_path / "checkpoints/held").locked():
        assert "1 runs deleted" in CliRunner().invoke(app, ["store", "--checkpoints"]).output
    left = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert left == {"stopped", "held"}
    assert "2 runs deleted" in CliRunner().invoke(app, ["store", "--checkpoints", "--all"]).output
