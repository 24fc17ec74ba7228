"""Loaders: one module a source, each yielding plain samples."""

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
