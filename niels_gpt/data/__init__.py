"""Data loading: one module per source kind (see kinds.py), and the code that stores and splits its rows.

Names exported here are imported lazily. Code that uses documents or splits therefore does not depend on the loaders,
and an edit of a loader does not change the fingerprints of later stages (pipeline/code.py).
"""

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
