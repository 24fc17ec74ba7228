"""A chat in the terminal. Ctrl-C ends the answer, not the program."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from niels_gpt.files.atomic import atomic_path
from niels_gpt.files.sentences import sentence
from niels_gpt.inference.sampling import Sampling
from niels_gpt.rng import derive_seed
from niels_gpt.talk.talker import Talker

HELP = "/reset forgets the chat, /system TEXT sets who is speaking, /save FILE writes the chat, /quit or Ctrl-D ends"

CUT = "(the first {:,} tokens of that do not fit the context: the model reads the rest alone)\n"


class Conversation:
    """What has been said, and the commands that begin with a slash."""

    def __init__(self, talker: Talker, *, sampling: Sampling, max_new_tokens: int, seed: int) -> None:
        self._talker, self._sampling, self._most, self._seed = talker, sampling, max_new_tokens, seed
        self.messages: list[dict[str, str]] = []
        self._forgotten = 0
        self._saved: dict[Path, bytes] = {}  # by file, what was written to it

    def command(self, line: str) -> str:
        """Do what a line that begins with a slash says; what to show for it."""
        word, _, rest = line.partition(" ")
        match word:
            case "/reset":
                self.messages = [m for m in self.messages if m["role"] == "system"]
                return "forgotten"
            case "/system" if rest.strip():
                others = [m for m in self.messages if m["role"] != "system"]
                self.messages = [{"role": "system", "content": rest.strip()}, *others]
                return "so be it"
            case "/save" if rest.strip():
                return self._save(Path(rest.strip()))
        return HELP

    def _save(self, path: Path) -> str:
        """Whole, and over nothing but what this chat has itself saved there."""
        text = json.dumps({"messages": self.messages}, ensure_ascii=False) + "\n"
        if path.is_file() and path.read_bytes() != self._saved.get(path):
            return f"{path} is there already and is left as it is: give /save another name"
        with atomic_path(path) as temporary:
            temporary.write_text(text, "utf-8")
        again, self._saved[path] = path in self._saved, text.encode()
        return f"saved to {path}{' again' if again else ''}, a line that `kind: chat` reads"

    def answer(self, question: str, *, show: Callable[[str], None]) -> None:
        """Ask, and show the answer as it comes; an interrupt keeps what there is of it."""
        self.messages.append({"role": "user", "content": question})
        seed, said = derive_seed(self._seed, "reply", len(self.messages)), ""
        messages, forgotten = self._talker.remember(self.messages, max_new_tokens=self._most)
        if forgotten > self._forgotten:
            show(f"(the first {forgotten} messages no longer fit the context and are forgotten)\n")
        self._forgotten = forgotten
        if cut := self._talker.beyond(self._talker.prompt(messages)):
            show(CUT.format(cut))
        try:
            for piece in self._talker.reply(messages, sampling=self._sampling, max_new_tokens=self._most, seed=seed):
                said += piece
                show(piece)
        except KeyboardInterrupt:
            show(" [stopped]")
        self.messages.append({"role": "assistant", "content": said.strip()})


def converse(conversation: Conversation, *, read: Callable[[], str], show: Callable[[str], None]) -> None:
    """Until the end of input or /quit."""
    show(f"{HELP}\n")
    while True:
        try:
            line = read()
            line.encode("utf-8")  # bytes that no UTF-8 begins with come as half surrogate pairs, or not at all
        except EOFError:
            show("\n")
            return
        except UnicodeError:
            show("that was not UTF-8 and went nowhere: set the terminal to UTF-8 and say it again\n")
            continue
        except KeyboardInterrupt:
            show("\n(Ctrl-D or /quit ends)\n")
            continue
        if line.strip() in ("/quit", "/exit"):
            return
        if line.startswith("/"):
            try:
                show(conversation.command(line) + "\n")
            except (OSError, ValueError) as error:  # ValueError: a name with a NUL in it
                show(f"that could not be written: {sentence(error)}\n")
        elif line.strip():
            conversation.answer(line, show=show)
            show("\n")
