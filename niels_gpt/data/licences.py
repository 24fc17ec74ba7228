"""Licences of sources: what a hub dataset is published under, or the licence file beside a source's own text."""

from __future__ import annotations

from pathlib import Path

from niels_gpt.data.readers.files import decode_text, read_bytes

_PUBLISHED = {
    "HuggingFaceFW/fineweb-edu": "ODC-By 1.0",
    "Salesforce/wikitext": "CC BY-SA 3.0 and GFDL",
    "databricks/databricks-dolly-15k": "CC BY-SA 3.0",
    "OpenAssistant/oasst1": "Apache 2.0",
}
_NAMES = tuple(f"{name}{suffix}" for name in ("LICENSE", "LICENCE", "COPYING") for suffix in ("", ".txt", ".md"))
UNSAID = "not said"


def licence_of(path: str, dataset: str | None) -> str:
    """Of a source that is read from a file or folder, or from a hub dataset."""
    if dataset is not None:
        return _PUBLISHED.get(dataset, f"see https://huggingface.co/datasets/{dataset}")
    for folder in _folders(Path(path)):
        for file in (folder / name for name in _NAMES):
            if file.is_file():
                lines = decode_text(read_bytes(str(file)))[0].splitlines()
                return next((line.strip("#* \t") for line in lines if line.strip("#* \t")), UNSAID)[:80]
    return UNSAID


def _folders(path: Path) -> list[Path]:
    """The source's own folder and those above it, but not the working folder: its licence is that of the program."""
    above = [] if path.is_absolute() or ".." in path.parts else list(path.parents)[:-1]
    return [path, *above]
