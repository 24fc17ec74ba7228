"""Notes for a chat: sections that a question finds, put before the question, and what a reply repeats."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from niels_gpt.talk.talker import Talker
from niels_gpt.trace.library import Found, Library, Span, shared_sections, to_json

# Sections go into the prompt from this context on, and fill at most half of it. Models trained from scratch here have
# less, and cannot answer from a text in front of them: for them the sections are the answer.
READS_NOTES = 1024
_SECTIONS = 3
_SECTION_CHARACTERS = 1500
_QUESTIONS = 3


@dataclass(frozen=True)
class Notes:
    """Indexes for a chat; questions are searched for in `sources`, replies traced in all."""

    library: Library
    sources: Sequence[str]

    def find(self, question: str) -> list[Found]:
        """Return the sections to show beside the reply to a question."""
        return self.library.find(question, limit=_SECTIONS, sources=self.sources)


def with_sections(
    talker: Talker, messages: Sequence[Mapping[str, str]], found: Sequence[Found]
) -> list[Mapping[str, str]]:
    """Return the messages with the sections before the last question, as far as the context holds them."""
    *before, last = messages
    room, text = talker.model.cfg.T // 2 if talker.model.cfg.T >= READS_NOTES else 0, ""
    for number, section in enumerate(found, start=1):
        longer = f"{text}[{number}] {section.file}\n{section.text[:_SECTION_CHARACTERS]}\n\n"
        if len(talker.tokenizer.encode(longer)) > room:
            break
        text = longer
    asked = f"Answer from these notes.\n\n{text}{last['content']}" if text else last["content"]
    return [*before, {**last, "content": asked}]


@dataclass
class Sources:
    """Sources that a request to the server asks for, sent as the field `niels_gpt` of the reply."""

    notes: Notes
    trace: bool
    found: Sequence[Found] | None  # sections for the question; None if not asked for
    with_path: bool = False  # paths of files are for clients on this machine

    def first(self) -> dict[str, Any]:
        """Return the sections found for the question, to be sent before the reply; {} if not asked for."""
        return {} if self.found is None else {"notes": self._sections(self.found, [])}

    def last(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the spans traced in each choice, and the sections with whether the first choice shares words."""
        traced = [self.notes.library.trace(text) for text in texts]
        spans = [[to_json(span, with_path=self.with_path) for span in of_choice] for of_choice in traced]
        told: dict[str, Any] = {"trace": spans} if self.trace else {}
        return told if self.found is None else {**told, "notes": self._sections(self.found, traced[0])}

    def _sections(self, found: Sequence[Found], spans: Sequence[Span]) -> list[dict[str, Any]]:
        shared = shared_sections(found, spans)
        told = [to_json(section, with_path=self.with_path) for section in found]
        return [{**section, "shared": mark} for section, mark in zip(told, shared, strict=True)]


def abilities(notes: Notes | None, talker: Talker) -> dict[str, Any]:
    """Return what the page may offer: search and trace, sections for the model to read, first questions."""
    topics = notes.library.topics(limit=_QUESTIONS, sources=notes.sources) if notes else []
    questions = [topic if topic.endswith("?") else f"Tell me about {topic}." for topic in topics]
    reads = talker.model.cfg.T >= READS_NOTES
    return {"sources": notes is not None, "reads_notes": reads, "questions": questions}
