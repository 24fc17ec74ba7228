"""Samples of an evaluation: what a model writes after given prompts, and what it answers to given questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from niels_gpt.eval.chats import generate_reply
from niels_gpt.generate import generate_ids
from niels_gpt.inference.sampling import Sampling
from niels_gpt.model.gpt import GPT
from niels_gpt.rng import derive_seed, make_generator
from niels_gpt.tokenizer.vocabulary import Tokenizer


@dataclass(frozen=True)
class Sampler:
    """Draws every sample from a seed of its own: one prompt more changes no other's."""

    tokenizer: Tokenizer
    sampling: Sampling
    max_new_tokens: int
    seed: int

    def texts(self, model: GPT, prompts: Sequence[str]) -> list[tuple[str, str]]:
        """(Prompt, the prompt and its continuation) of each."""
        return [(prompt, self._text(model, prompt, i)) for i, prompt in enumerate(prompts)]

    def replies(self, model: GPT, questions: Sequence[str]) -> list[tuple[str, str]]:
        """(Question, answer) of each."""
        return [(question, self._reply(model, question, i)) for i, question in enumerate(questions)]

    def _text(self, model: GPT, prompt: str, i: int) -> str:
        ids = generate_ids(
            model,
            self.tokenizer.encode(prompt),
            max_new_tokens=self.max_new_tokens,
            sampling=self.sampling,
            stop=self.tokenizer.special_token_ids()["eot"],
            generator=make_generator(derive_seed(self.seed, "sample", i)),
        )
        return self.tokenizer.decode(ids)

    def _reply(self, model: GPT, question: str, i: int) -> str:
        return generate_reply(
            model,
            [{"role": "user", "content": question}],
            self.tokenizer,
            max_new_tokens=self.max_new_tokens,
            sampling=self.sampling,
            generator=make_generator(derive_seed(self.seed, "reply", i)),
        )
