"""Surveys of folders, machines, and plans for them."""

from pathlib import Path
from typing import Any

from niels_gpt.cli.plan import OwnChats, Plan, plan_params
from niels_gpt.cli.plan_base import ChosenBase
from niels_gpt.cli.sizing import Machine
from niels_gpt.cli.survey import Survey
from niels_gpt.pipeline.yaml_files import parse_yaml
from tests.conftest import ROOT

SAMPLE = (ROOT / "params.yaml").read_text()


VALUES: dict[str, Any] = parse_yaml(SAMPLE, name="sample")


LAPTOP, GPU = Machine(2e10), Machine(2e14, cuda=True)


def a_survey(text_bytes: int, documents: int, **more: Any) -> Survey:
    """Return the survey of a folder of English documents of similar size."""
    size = max(1, text_bytes // documents)
    values: dict[str, Any] = {
        "path": "/home/me/notes",
        "files": {".md": documents},
        "left_out": {},
        "documents": documents,
        "text_bytes": text_bytes,
        "sizes": (size // 2 + 1, size, 2 * size),
        "encodings": {"utf-8": documents},
        "characters": 90,
        "words": int(4 * text_bytes**0.6),
    }
    return Survey(**values | more)


def chats_of(raw: dict[str, Any]) -> dict[str, Any]:
    return {name: source for name, source in raw["sources"].items() if source["use"] == "chat"}


BUNDLED = chats_of(VALUES)


def planned(
    *surveys: Survey,
    machine: Machine = LAPTOP,
    hours: float = 1.0,
    chats: tuple[OwnChats, ...] = (),
    base: ChosenBase | None = None,
) -> Plan:
    how: dict[str, Any] = {"sample": VALUES, "kept": {}, "machine": machine, "hours": hours}
    return plan_params(surveys, chats=chats, base=base, **how)


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


ENGLISH = "The tide comes in twice a day, and the boats that are moored to the pier rise with it for a while. "
