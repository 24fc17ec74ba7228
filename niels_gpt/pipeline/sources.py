"""Sections of params.yaml derived from dataclasses, and the section of a source.

The keys of a source kind under `load` come from its own module, so a new kind needs no change here.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_type_hints

from annotated_types import MinLen
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, create_model, field_validator

from niels_gpt.config import STRICT, Count
from niels_gpt.data.corpus.split import Drawn
from niels_gpt.data.kinds import Kind, source_kinds
from niels_gpt.data.secrets.screening import OnPersonal, OnSecret
from niels_gpt.pipeline import layout

# A parameter is a field of a frozen dataclass of the library, with its type, range (`annotated_types`) and a line of
# help in `Annotated`. A section of params.yaml has the same fields, without defaults unless requested.


class Section(BaseModel):
    """Section of params.yaml: strict types, no unknown keys, immutable."""

    model_config = ConfigDict(**STRICT, frozen=True)


def section(
    of: type,
    *,
    without: Collection[str] = (),
    optional: Collection[str] = (),
    with_defaults: bool = False,
    base: type[Section] = Section,
) -> type[Section]:
    """Return a section with the fields of a dataclass, without those in `without`.

    `optional` keys may be omitted: options added later whose default changes nothing. With `with_defaults`, all keys
    that have a default are optional.
    """
    hints = get_type_hints(of, include_extras=True)
    keys: dict[str, Any] = {}
    for field in fields(of):
        if field.name not in without:
            default = field.default if with_defaults or field.name in optional else MISSING
            keys[field.name] = hints[field.name], ... if default is MISSING else default
    return create_model(of.__name__, __base__=base, __doc__=of.__doc__, **keys)


COMMON = ("on_secret", "on_personal", "stored")  # keys under `load` that all source kinds have
_ON_SECRET = "what becomes of keys, passwords, card numbers, IBANs; null: keep where remote is store, else mask"
_ON_PERSONAL = "what becomes of e-mail addresses, telephone numbers and national ids"
_STORED = "true: its parts lie in the store of its remote (runtime.stores), where DVC neither hashes nor moves them"
_KERNELS = ("/dev", "/proc", "/sys")  # virtual file systems of the kernel


def _load_section(kind: Kind) -> Any:
    tag: Any = (Literal[kind.name], ...)
    common: Any = {
        "on_secret": (Annotated[OnSecret | None, _ON_SECRET], None),
        "on_personal": (Annotated[OnPersonal, _ON_PERSONAL], "keep"),
        "stored": (Annotated[bool, _STORED], False),
    }
    return create_model(kind.name, __base__=section(kind.settings, with_defaults=True), kind=tag, **common)


class GivenSplit(Section):
    """Split that the source itself provides."""

    by: Literal["given"]


if TYPE_CHECKING:
    from typing import Any as Load
    from typing import Any as Split
else:
    Load = Union[tuple(map(_load_section, source_kinds().values()))]  # noqa: UP007
    Split = GivenSplit | create_model(
        "DrawnSplit", __base__=section(Drawn), by=(Literal["document", "tree", "hash"], ...)
    )


class Budget(Section):
    """Token budgets of a source."""

    max_train_tokens: Annotated[Count | None, "token budget, ending at a document's end; null takes all"]
    max_val_tokens: Annotated[Count | None, "the same for the validation set"]

    def by_split(self) -> dict[str, int | None]:
        """Return {"train": tokens, "val": tokens}; None is unlimited."""
        return {"train": self.max_train_tokens, "val": self.max_val_tokens}

    def tokens(self) -> int | None:
        """Return the sum of both budgets in tokens; None if one is unlimited."""
        budgets = self.by_split().values()
        return None if None in budgets else sum(budget or 0 for budget in budgets)


class Source(Section):
    """Source of documents (`use: text`) or of chats (`use: chat`)."""

    use: Annotated[Literal["text", "chat"], "text to pretrain on, or chats to fine-tune on; the kind holds one of them"]
    input: Annotated[
        str, MinLen(1), "file or folder that DVC watches and the loader reads; data/no-input.md for a hub dataset"
    ]
    remote: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9_-]+$"), "where `dvc push` sends what is made of it: store (public) or private"
    ]
    val_name: Annotated[str, Field(pattern=r"^[a-z0-9_]+$"), "name of its held-out text in metrics"]
    load: Annotated[Load, Field(discriminator="kind")]
    split: Annotated[Split, Field(discriminator="by")]
    budget: Budget

    @property
    def private(self) -> bool:
        return self.remote != layout.PUBLIC

    @property
    def kind(self) -> Kind:
        return source_kinds()[self.load.kind]

    @property
    def on_secret(self) -> OnSecret:
        written: OnSecret | None = self.load.on_secret
        return written or ("mask" if self.private else "keep")

    @property
    def on_personal(self) -> OnPersonal:
        written: OnPersonal = self.load.on_personal
        return written

    def settings(self) -> Any:
        """Return the keys under `load` as the kind's own dataclass."""
        return _settings(self.load)

    @field_validator("input")
    @classmethod
    def _holds_text(cls, written: str) -> str:
        if not written.isprintable():
            raise ValueError("a path of printable characters is needed")
        check_place(written)
        return written

    @field_validator("load")
    @classmethod
    def _fits_the_use(cls, load: Any, info: ValidationInfo) -> Any:
        use, holds = info.data.get("use"), "chat" if source_kinds()[load.kind].holds_chats else "text"
        if use is not None and use != holds:
            raise ValueError(f"kind {load.kind} does not go with use: {use}, it goes with use: {holds}")
        return load

    @field_validator("split")
    @classmethod
    def _fits_the_kind(cls, split: Any, info: ValidationInfo) -> Any:
        load = info.data.get("load")
        if load is None:  # invalid itself
            return split
        kinds = _settings(load).splits
        fitting = (*kinds, "hash") if {"document", "tree"} & set(kinds) else kinds
        if split.by not in fitting:
            raise ValueError(
                f"by: {split.by} does not go with this load of kind {load.kind}: use by: {' or by: '.join(fitting)}"
            )
        return split


def check_place(written: str) -> None:
    """Raise a ValueError if a path may not be an input.

    DVC hashes all of an input and the loader reads it, so it must not contain the project itself or its outputs.
    """
    if not written.strip():
        raise ValueError("the name is empty: give the file or folder with the text")
    path, project = Path(os.path.realpath(written)), Path.cwd()
    if path == project:
        raise ValueError("this is the project itself: put the text in a folder of its own")
    if path in project.parents:
        raise ValueError("the project itself lies in there: put the text in a folder of its own")
    if path.is_relative_to(project) and (top := path.relative_to(project).parts[0]) in layout.WRITTEN_HERE:
        raise ValueError(
            f"{top}/ is no place for text, the pipeline or its tools write it: put it in a folder of its own"
        )
    if any(path.is_relative_to(place) for place in _KERNELS):
        raise ValueError("there are no texts there, only what the system makes up: give a file or a folder")


def _settings(load: Any) -> Any:
    return source_kinds()[load.kind].settings(**load.model_dump(exclude={"kind", *COMMON}))
