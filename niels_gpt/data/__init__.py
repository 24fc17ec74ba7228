"""Data loading: one module per source kind (see kinds.py), and the code that stores and splits its rows.

Names exported here are imported lazily. Code that uses documents or splits therefore does not depend on the loaders,
and an edit of a loader does not change the fingerprints of later stages (pipeline/code.py).
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "primer": ("DIALOGUE_DELIM", "load_primer_text", "split_primer_dialogues"),
    "roam": ("list_roam_paths", "load_texts", "split_roam_paths"),
    "wikitext": ("load_wikitext",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"niels_gpt.data.{module}"), name)
    raise AttributeError(f"niels_gpt.data has no {name}")
