"""Evaluation: loss on held-out text and chats, statistics of generated text, and the report card.

The parameters are here, where they are imported without torch.
"""

from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, MinLen

from niels_gpt.config import Count, NewTokens, Rows, Section, Seed

if TYPE_CHECKING:
    from niels_gpt.eval.held_out import evaluate

__all__ = ["EvalRules", "evaluate"]

Texts = Annotated[list[Annotated[str, MinLen(1)]], MinLen(1)]


class EvalRules(Section):
    """Parameters of scores and samples."""

    B: Annotated[Rows, "rows scored at once"] = 64
    max_tokens: Annotated[Count | None, "held-out tokens scored of a source, spread evenly; null: all"] = None
    prompts: Annotated[Texts, "first words of the samples"]
    questions: Annotated[Texts, "what the fine-tuned model is asked for samples"]
    max_new_tokens: Annotated[NewTokens, "the longest sample, in tokens"] = 200
    temperature: Annotated[float, Ge(0), "sampling temperature; 0 is greedy"] = 0.8
    top_k: Annotated[Count | None, "sample from the k most probable tokens; null: from all"] = 50
    seed: Annotated[Seed, "of the samples"]


def __getattr__(name: str) -> Any:
    if name != "evaluate":
        raise AttributeError(f"niels_gpt.eval has no {name}")
    from niels_gpt.eval import held_out

    return held_out.evaluate
