"""Source kind `wikitext`: WikiText from the hub or a local copy; rows are lines, a document is an article."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from niels_gpt.data.hub import HubError, HubSettings, explained, load_dataset
from niels_gpt.data.readers.tables import check_texts
from niels_gpt.data.types import Document, PretrainSample, Request

KIND = "wikitext"

CONFIG = "wikitext-103-raw-v1"
_HUB_SPLITS = {"train": "train", "val": "validation", "test": "test"}  # our name -> the hub's
# " = Title = " opens an article; " = = Section = = " does not.
_TITLE = re.compile(r"^ = ([^=].*?) = \s*$")


@dataclass(frozen=True)
class Settings(HubSettings):
    splits: ClassVar[tuple[str, ...]] = ("given", "document")

    config: Annotated[str, "config of the dataset: which WikiText"] = "wikitext-103-raw-v1"


def documents(settings: Settings, request: Request) -> Iterator[Document]:
    """Yield one document per article of the train and validation splits."""
    for split in ("train", "val"):
        # Stream local copies: otherwise `datasets` would first copy them into its cache.
        lines = iter_wikitext(
            path=request.path,
            config=settings.config,
            split=split,
            revision=request.revision,
            streaming=settings.dataset is None,
        )
        for i, article in enumerate(iter_articles(lines)):
            yield Document(id=f"{split}/{i} {article.meta['title']}", text=article.text, split=split)


def load_wikitext(*, path: str | None = None, config: str = CONFIG) -> dict[str, list[str]]:
    """Return the non-blank lines of the splits "train", "val" and "test"; `path` is a folder or another hub id."""
    dataset = _open(path, config)
    return {ours: [text for text in dataset[hub]["text"] if text.strip()] for ours, hub in _HUB_SPLITS.items()}


def iter_wikitext(
    *,
    config: str = CONFIG,
    split: str = "train",
    take: int | None = None,
    path: str | None = None,
    revision: str | None = None,
    streaming: bool = False,
) -> Iterator[PretrainSample]:
    """Yield the first `take` non-blank lines of a split as samples; `path` is a folder or another hub id."""
    rows = _open(path, config, split=_HUB_SPLITS.get(split, split), revision=revision, streaming=streaming)
    place, lines = path or "wikitext", 0
    for i, row in enumerate(explained(rows, path=place, name=config)):
        if lines == take:
            return
        check_texts(row, ("text",), place=f"{place}, row {i} of {split},")
        if row["text"].strip():
            lines += 1
            yield PretrainSample(row["text"], source="wikitext", meta={"config": config, "split": split, "row": i})


def iter_articles(lines: Iterable[PretrainSample]) -> Iterator[PretrainSample]:
    """Yield articles joined from lines, starting a new one at each title line.

    meta["title"] is the title; it is None for lines before the first title.
    """
    title: str | None = None
    parts: list[str] = []
    for line in lines:
        match = _TITLE.match(line.text)
        if match and parts:
            yield PretrainSample(text="".join(parts), source=line.source, meta={"title": title})
            parts = []
        if match:
            title = match[1]
        parts.append(line.text if line.text.endswith("\n") else line.text + "\n")
    if parts:
        yield PretrainSample(text="".join(parts), source="wikitext", meta={"title": title})


def _open(path: str | None, config: str, **options: Any) -> Any:
    if path is not None:
        return load_dataset(path, config, **options)
    try:
        return load_dataset("wikitext", config, **options)
    except (ValueError, HubError):  # newer clients reject ids without a namespace
        return load_dataset("Salesforce/wikitext", config, **options)
