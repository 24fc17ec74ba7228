"""Notes for a chat: sections that a question finds, put before the question if the context holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from niels_gpt.talk.talker import Talker
from niels_gpt.trace.library import Found, Library, Span, shared_sections

# Sections go into the prompt from this context on, and fill at most half of it. Models trained from scratch here have
# less, and cannot answer from a text in front of them: for them the sections are the answer.
READS_NOTES = 1024
_SECTIONS = 3
_SECTION_CHARACTERS = 1500


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


def sharing_lines(found: Sequence[Found], spans: Sequence[Span]) -> Iterator[str]:
    """Yield a line for each section that the reply shares words with, by its number."""
    for number, shared in enumerate(shared_sections(found, spans), start=1):
        if shared:
            yield f"the reply shares words with [{number}]"
