"""Supervised fine-tuning (SFT) task: packed chats with loss on the assistant's tokens, and replayed text."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

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
    """Fine-tuning on whole chats from a mix of sources, several to a row, with loss on the assistant's tokens only.

    The last rows of every batch are those of `replay`, the pretraining task with a smaller batch, so that the model
    keeps what it knows. Validates on held-out chats and on `text`, weighed as in the batch.
    """

    train: Mapping[str, SFTExampleDataset]
    val: Mapping[str, SFTExampleDataset]
    text: PretrainTask
    cfg: TrainConfig
    replay: PretrainTask | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(sorted((*self.train, *(self.replay.sources if self.replay else ()))))

    @property
    def T(self) -> int:
        return self.text.T

    @property
    def replayed(self) -> int:
        """Return the number of rows of every batch that are replayed text."""
        return self.replay.cfg.B if self.replay else 0

    def padding(self) -> float:
        """Return the share of padding in the rows of chats, weighted as they are sampled."""
        room = {name: len(packs) * (self.T + 1) for name, packs in self._packs.items()}
        return float(1 - sum(p * (self.train[name].lengths.sum() / room[name]) for name, p in self.cfg.p_train.items()))

    def batch(self, n: int, rows: slice = ALL) -> Batch:
        # The loss is a mean over the whole batch, so the targets of other ranks' rows count, too: all rows are read.
        chosen = self._draw(n)
        counts = dict.fromkeys(self.sources, 0) | Counter(name for name, _ in chosen)
        whole = [self.train[name].packed(chats) for name, chats in chosen]
        if self.replay:
            text = self.replay.batch(n)
            counts |= text.rows
            whole += zip(text.x, text.y, text.tensors.get("segment_ids", torch.zeros_like(text.x)), strict=True)
        x, y, segments = (torch.stack(tensors) for tensors in zip(*whole, strict=True))
        first, targets = rows.indices(self.cfg.B)[0], int((y != IGNORE_INDEX).sum())
        return Batch.of(x[rows], y[rows], counts, first=first, targets=targets, segment_ids=segments[rows])

    def describe(self, n: int) -> str:
        chats = "chats " + ", ".join(f"{name}{chats.tolist()}" for name, chats in self._draw(n))
        return f"{chats}; {self.replay.describe(n)}" if self.replay else chats

    def prompt(self) -> list[int]:
        """Return the first held-out chat up to and including the assistant's id."""
        x, _, y = self.val[min(self.val)].examples(np.array([0]))
        first = int((y[0] != IGNORE_INDEX).nonzero()[0])
        return x[0, : first + 1].tolist()

    def validate(self, model: nn.Module, ranks: Ranks = ALONE) -> dict[str, float]:
        limit = self.cfg.eval_steps * self.cfg.B
        losses = {
            name: mean_chat_loss(model, chats, np.arange(min(len(chats), limit)), B=self.cfg.B, ranks=ranks)
            for name, chats in self.val.items()
        }
        text = self.text.validate(model, ranks)
        share = self.replayed / self.cfg.B
        chats = sum(self.cfg.p_train[name] * loss for name, loss in losses.items())
        return {**losses, **text, "val_loss": (1 - share) * chats + share * text["val_loss"]}

    @cached_property
    def _packs(self) -> dict[str, list[np.ndarray]]:
        return {name: chats.packs() for name, chats in self.train.items()}

    def _draw(self, n: int) -> list[tuple[str, np.ndarray]]:
        """Sample the rows of chats of batch n: the source of each, and the indices of its chats there."""
        generator = make_generator(derive_seed(self.cfg.seed, "chat batch", n))
        names = sorted(self.train)
        p = torch.tensor([self.cfg.p_train[name] for name in names], dtype=torch.float64)
        choices = torch.multinomial(p, self.cfg.B - self.replayed, replacement=True, generator=generator)
        counts = torch.bincount(choices, minlength=len(names)).tolist()
        rows = []
        for name, count in zip(names, counts, strict=True):
            packs = self._packs[name]
            drawn = torch.randint(0, len(packs), (count,), generator=generator)
            rows += [(name, packs[i]) for i in drawn.tolist()]
        return rows
