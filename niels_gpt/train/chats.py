"""Supervised fine-tuning (SFT) task: whole chats, with loss on the assistant's tokens only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.config import TrainConfig
from niels_gpt.eval.chats import mean_chat_loss
from niels_gpt.files.ranks import ALONE, Ranks
from niels_gpt.model.targets import IGNORE_INDEX
from niels_gpt.rng import derive_seed, make_generator
from niels_gpt.train.pretraining import PretrainTask
from niels_gpt.train.task import ALL, Batch


@dataclass(frozen=True)
class ChatTask:
    """Fine-tuning on whole chats from a mix of sources, with loss on the assistant's tokens only.

    Validates on held-out chats and also on the pretraining text, to show forgetting.
    """

    train: Mapping[str, SFTExampleDataset]
    val: Mapping[str, SFTExampleDataset]
    text: PretrainTask
    cfg: TrainConfig
    device: str

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(sorted(self.train))

    @property
    def T(self) -> int:
        return self.text.T

    def batch(self, n: int, rows: slice = ALL) -> Batch:
        chosen = self._draw(n)
        start, stop, _ = rows.indices(self.cfg.B)
        parts, passed, targets = [], 0, 0
        for name, examples in chosen.items():
            own = slice(max(0, start - passed), max(0, stop - passed))
            if len(examples[own]):
                parts.append(self.train[name].examples(examples[own]))
            # The loss is a mean over the whole batch, so count the targets in other ranks' rows, too.
            targets += int(self.train[name].targets(np.delete(examples, own)).sum())
            passed += len(examples)
        x, _, y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        targets += int((y != IGNORE_INDEX).sum())
        return Batch.of(x, y, {name: len(rows) for name, rows in chosen.items()}, first=start, targets=targets)

    def describe(self, n: int) -> str:
        chosen = self._draw(n)
        return "chats " + ", ".join(f"{name}[{row}]" for name, rows in chosen.items() for row in rows.tolist())

    def prompt(self) -> list[int]:
        """Return the first held-out chat up to and including the assistant's id."""
        x, _, y = self.val[min(self.val)].examples(np.array([0]))
        first = int((y[0] != IGNORE_INDEX).nonzero()[0])
        prompt: list[int] = x[0, : first + 1].tolist()
        return prompt

    def validate(self, model: nn.Module, ranks: Ranks = ALONE) -> dict[str, float]:
        limit = self.cfg.eval_steps * self.cfg.B
        losses = {
            name: mean_chat_loss(model, chats, np.arange(min(len(chats), limit)), B=self.cfg.B, ranks=ranks)
            for name, chats in self.val.items()
        }
        text = self.text.validate(model, ranks)
        text.pop("val_loss")
        return {"val_loss": sum(self.cfg.p_train[name] * loss for name, loss in losses.items()), **losses, **text}

    def _draw(self, n: int) -> dict[str, np.ndarray]:
        """Sample the example indices of batch n, by source."""
        generator = make_generator(derive_seed(self.cfg.seed, "chat batch", n))
        p = torch.tensor([self.cfg.p_train[name] for name in self.sources], dtype=torch.float64)
        choices = torch.multinomial(p, self.cfg.B, replacement=True, generator=generator)
        counts = torch.bincount(choices, minlength=len(self.sources)).tolist()
        return {
            name: torch.randint(0, len(self.train[name]), (count,), generator=generator).numpy()
            for name, count in zip(self.sources, counts, strict=True)
        }
