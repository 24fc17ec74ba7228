"""Extraction of private text from models. The parameters are here, where they are imported without torch."""

from typing import Annotated

from annotated_types import Ge, Le

from niels_gpt.config import INT64, Count, Rows, Section, Seed


class LeakRules(Section):
    """Parameters of the extraction of private passages from the final models."""

    chunk_size: Annotated[int, Ge(2), INT64, "tokens of a passage; at most model.T"] = 100
    prompt_tokens: Annotated[Count, "of these, the first are given; fewer than chunk_size"] = 50
    max_passages: Annotated[
        Count | None, "of a source's training documents, and as many of its validation set; null: all"
    ] = 10_000
    seed: Annotated[Seed, "of the choice of documents, of the bootstrap, and of canaries"]
    B: Annotated[Rows, "passages scored at once"] = 128
    # Each canary is ranked among 4,096 sentences, so 1,000 take as long as scoring four million.
    canaries: Annotated[int, Ge(0), Le(1000), "sentences to plant in a copy of the run, which is trained for it"] = 0


class MemorizeRules(Section):
    """Parameters of P(z), the probability that a passage is continued verbatim, given its first tokens."""

    chunk_size: Annotated[int, Ge(2), INT64, "tokens of a passage; at most model.T"] = 100
    prompt_tokens: Annotated[Count, "of these, the first are given; fewer than chunk_size"] = 50
    cursor_inc_tokens: Annotated[Count, "tokens from one passage to the next"] = 5
    top_k: Annotated[
        Count | None, "null: the full softmax; 40 counts only what a sampler with top-k 40 could write"
    ] = None
    B: Annotated[Rows, "passages scored at once"] = 64
