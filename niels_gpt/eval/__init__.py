"""Evaluation: loss on held-out text and chats, statistics of generated text, and the report card."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from niels_gpt.eval.held_out import evaluate

__all__ = ["evaluate"]


def __getattr__(name: str) -> Any:  # lazy, so that the parameters are imported without torch
    if name not in __all__:
        raise AttributeError(f"niels_gpt.eval has no {name}")
    from niels_gpt.eval import held_out

    return held_out.evaluate
