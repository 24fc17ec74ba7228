"""Data loading: one module a kind of source (see kinds.py), and what is done with its rows.

The names handed on here are looked up when they are asked for (lazy imports): whoever wants documents or a split does
not import the loaders, so that an edit of a loader is no change of what comes after it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from niels_gpt.data.primer import DIALOGUE_DELIM, load_primer_text, split_primer_dialogues
    from niels_gpt.data.roam import list_roam_paths, load_texts, split_roam_paths
    from niels_gpt.data.wikitext import load_wikitext

__all__ = [
    "DIALOGUE_DELIM",
    "list_roam_paths",
    "load_primer_text",
    "load_texts",
    "load_wikitext",
    "split_primer_dialogues",
    "split_roam_paths",
]


def __getattr__(name: str) -> Any:
    for module in ("primer", "roam", "wikitext") if name in __all__ else ():
        found = import_module(f"niels_gpt.data.{module}")
        if hasattr(found, name):
            return getattr(found, name)
    raise AttributeError(f"niels_gpt.data has no {name}")
