"""Sources in the API: `GET /v1/find`, and the field `niels_gpt` of requests and replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import HTTPException, Request

from niels_gpt.talk.notes import READS_NOTES, Notes, with_sections
from niels_gpt.talk.server.schema import Extension
from niels_gpt.talk.talker import Talker
from niels_gpt.trace.library import Found, shared_sections, to_json

_MOST_FOUND = 50
_QUESTIONS = 3
_THIS_MACHINE = ("127.0.0.1", "::1")


@dataclass(frozen=True)
class About:
    """Sources that a request asks for; with paths of files only if the client is on this machine."""

    notes: Notes
    trace: bool
    found: Sequence[Found] | None
    with_path: bool = False

    def first(self) -> dict[str, Any]:
        """Return the sections found for the question, to be sent before the reply; {} if not asked for."""
        return {} if self.found is None else {"notes": self._sections([])}

    def last(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the spans traced in each choice, and the sections with whether the first choice shares words."""
        traced = [self.notes.library.trace(text) for text in texts]
        spans = [[to_json(span, with_path=self.with_path) for span in of_choice] for of_choice in traced]
        told: dict[str, Any] = {"trace": spans} if self.trace else {}
        return told if self.found is None else {**told, "notes": self._sections(traced[0])}

    def _sections(self, spans: Sequence[Any]) -> list[dict[str, Any]]:
        found = self.found or ()
        shared = shared_sections(found, spans)
        return [
            {**to_json(section, with_path=self.with_path), "shared": mark}
            for section, mark in zip(found, shared, strict=True)
        ]

    def for_client(self, request: Request) -> About:
        """Return it with paths if the client is on this machine."""
        return replace(self, with_path=is_here(request))


def ask_about(
    notes: Notes | None, asked: Extension, talker: Talker, messages: Sequence[Mapping[str, str]]
) -> tuple[About | None, Sequence[Mapping[str, str]]]:
    """Return what to tell about sources, None if nothing, and the messages, with the sections found for the last."""
    if not (asked.trace or asked.notes):
        return None, messages
    if notes is None:
        raise ValueError("niels_gpt: this server has no index of documents: leave the field out")
    if not (asked.notes and messages):
        return About(notes, asked.trace, None), messages
    found = notes.find(messages[-1]["content"])
    return About(notes, asked.trace, found), with_sections(talker, messages, found)


def finder(notes: Notes) -> Callable[[Request], dict[str, Any]]:
    """Return the handler of `GET /v1/find?q=WORDS&limit=5`."""

    def find(request: Request) -> dict[str, Any]:
        limit = request.query_params.get("limit", "5")
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= _MOST_FOUND):
            raise HTTPException(400, f"limit: it must be an integer from 1 to {_MOST_FOUND}")
        typed = request.query_params.get("q", "")
        found = notes.library.find(typed, limit=int(limit), sources=notes.sources)
        return {"object": "list", "data": [to_json(section, with_path=is_here(request)) for section in found]}

    return find


def is_here(request: Request) -> bool:
    """Return whether the client is on this machine."""
    return request.client is not None and request.client.host in _THIS_MACHINE


def abilities(notes: Notes | None, talker: Talker) -> dict[str, Any]:
    """Return what the page may offer: search and trace, sections for the model to read, first questions."""
    topics = notes.library.topics(limit=_QUESTIONS, sources=notes.sources) if notes else []
    questions = [topic if topic.endswith("?") else f"Tell me about {topic}." for topic in topics]
    reads = talker.model.cfg.T >= READS_NOTES
    return {"sources": notes is not None, "reads_notes": reads, "questions": questions}
