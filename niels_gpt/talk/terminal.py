"""Chat in the terminal, with line editing and history; Ctrl-C ends the answer, not the program."""

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from platformdirs import user_state_path

from niels_gpt.files.atomic import atomic_path
from niels_gpt.files.messages import EXPECTED, sentence
from niels_gpt.inference.sampling import Sampling
from niels_gpt.rng import derive_seed
from niels_gpt.talk.notes import Notes, with_sections
from niels_gpt.talk.talker import Talker
from niels_gpt.trace.library import find_lines, shared_sections, trace_lines

MOST_LINES = 1000


def history_file() -> Path:
    """Return the path of the history in the user's state folder (XDG on Linux)."""
    return user_state_path("niels_gpt") / "chat_history"


def line_reader() -> Callable[[], str]:
    """Return a function that reads a line; history and editing are used only at a terminal, not for a pipe.

    Only its owner may read the history file and, as in a shell, a line that begins with a space is not stored.
    """
    plain = partial(input, "> ")
    try:
        import readline
    except ImportError:  # Windows
        return plain
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return plain
    readline.set_auto_history(False)
    readline.set_history_length(MOST_LINES)
    path = history_file()
    with suppress(OSError, RuntimeError):  # home folder missing or not writable: no history
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch()
        path.chmod(0o600)
        readline.read_history_file(path)

    def edited() -> str:
        line = plain()
        if line.strip() and not line.startswith(" "):
            readline.add_history(line)
            with suppress(OSError, UnicodeError):
                readline.append_history_file(1, path)
        return line

    return edited


HELP = (
    "/reset clears the chat, /system TEXT sets the system prompt, /trace shows where the answer's words come from, "
    "/save FILE saves the chat, /quit or Ctrl-D exits"
)

CUT = "(the first {:,} tokens do not fit the context and are dropped)\n"


@dataclass
class Conversation:
    """Messages of a chat, and the slash commands."""

    talker: Talker
    sampling: Sampling
    max_new_tokens: int
    seed: int
    open_notes: Callable[[], Notes] | None = None  # opens the indexes, when first needed
    show_notes: bool = False  # search them for each question
    messages: list[dict[str, str]] = field(default_factory=list, init=False)
    _forgotten: int = field(default=0, init=False)
    _saved: dict[Path, bytes] = field(default_factory=dict, init=False)  # path -> bytes that /save wrote there

    def command(self, line: str) -> str:
        """Run a slash command and return the text to show."""
        word, _, rest = line.partition(" ")
        match word:
            case "/reset":
                self.messages = [m for m in self.messages if m["role"] == "system"]
                return "chat cleared"
            case "/system" if rest.strip():
                others = [m for m in self.messages if m["role"] != "system"]
                self.messages = [{"role": "system", "content": rest.strip()}, *others]
                return "system prompt set"
            case "/save" if rest.strip():
                return self._save(Path(rest.strip()))
            case "/trace" if self.open_notes:
                return self._trace(self.open_notes)
        return HELP

    def _trace(self, open_notes: Callable[[], Notes]) -> str:
        answers = [message["content"] for message in self.messages if message["role"] == "assistant"]
        if not answers:
            return "there is no answer to trace yet"
        try:
            return "\n".join(trace_lines(open_notes().library.trace(answers[-1])))
        except EXPECTED as error:
            return f"the answer was not traced: {sentence(error)}"

    def _save(self, path: Path) -> str:
        """Write the chat atomically; overwrite only a file that this chat saved and nobody changed since."""
        text = json.dumps({"messages": self.messages}, ensure_ascii=False) + "\n"
        if path.is_file() and path.read_bytes() != self._saved.get(path):
            return f"{path} exists and was not overwritten: give /save another name"
        with atomic_path(path) as temporary:
            temporary.write_text(text, "utf-8")
        again, self._saved[path] = path in self._saved, text.encode()
        return f"saved to {path}{' again' if again else ''}, in the format of `kind: chat`"

    def answer(self, question: str, *, show: Callable[[str], None]) -> None:
        """Generate and show the answer to a question; on Ctrl-C the partial answer is kept."""
        self.messages.append({"role": "user", "content": question})
        seed, said = derive_seed(self.seed, "reply", len(self.messages)), ""
        notes = self.open_notes() if self.open_notes and self.show_notes else None
        found = notes.find(question) if notes else []
        if notes:
            show("".join(f"{line}\n" for line in find_lines(found)) + "\n")
        asked = with_sections(self.talker, self.messages, found)
        messages, forgotten = self.talker.remember(asked, max_new_tokens=self.max_new_tokens)
        if forgotten > self._forgotten:
            show(f"(the first {forgotten} messages no longer fit the context and are dropped)\n")
        self._forgotten = forgotten
        if cut := self.talker.beyond(self.talker.chat.prompt(messages)):
            show(CUT.format(cut))
        try:
            most = self.max_new_tokens
            for piece in self.talker.reply(messages, sampling=self.sampling, max_new_tokens=most, seed=seed):
                said += piece
                show(piece)
        except KeyboardInterrupt:
            show(" [stopped]")
        self.messages.append({"role": "assistant", "content": said.strip()})
        shared = shared_sections(found, notes.library.trace(said)) if notes else []
        for number in (number for number, mark in enumerate(shared, start=1) if mark):
            show(f"\n(the reply shares words with [{number}])")


def converse(conversation: Conversation, *, read: Callable[[], str], show: Callable[[str], None]) -> None:
    """Read lines and answer them until the end of input or /quit."""
    show(f"{HELP}\n")
    while True:
        try:
            line = read()
            line.encode("utf-8")  # raises if input() turned invalid bytes into lone surrogates
        except EOFError:
            show("\n")
            return
        except UnicodeError:
            show("the input was not UTF-8 and was not sent: set the terminal to UTF-8 and type it again\n")
            continue
        except KeyboardInterrupt:
            show("\n(Ctrl-D or /quit exits)\n")
            continue
        if line.strip() in ("/quit", "/exit"):
            return
        if line.startswith("/"):
            try:
                show(conversation.command(line) + "\n")
            except (OSError, ValueError) as error:  # ValueError: a file name with a NUL character
                show(f"the chat was not saved: {sentence(error)}\n")
        elif line.strip():
            conversation.answer(line, show=show)
            show("\n")
