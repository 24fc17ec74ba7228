"""What a run trains on: rows of a batch for every step, and a validation. The loop knows no more than this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from niels_gpt.batching import draw_rows, gather_rows, split_targets
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.config import TrainConfig
from niels_gpt.eval import evaluate, mean_chat_loss
from niels_gpt.model.gpt import GPT
from niels_gpt.rng import derive_seed, make_generator
from niels_gpt.windows import TokenStream


@dataclass(frozen=True)
class Batch:
    """Inputs and targets (B, T), targets that do not count being -100, and how many rows each source gave."""

    x: torch.Tensor
    y: torch.Tensor
    rows: dict[str, int]


class Task(Protocol):
    """Batch n is a function of (seed, n). `validate` gives losses by name, and as "val_loss" the one that decides."""

    @property
    def sources(self) -> tuple[str, ...]: ...
    def batch(self, n: int) -> Batch: ...
    def validate(self, model: GPT) -> dict[str, float]: ...


@dataclass(frozen=True)
class PretrainTask:
    """Random windows of a mix of streams; validation on the p_val-weighted mean, always over the same windows."""

    train: Mapping[str, TokenStream]
    val: Mapping[str, TokenStream]
    cfg: TrainConfig
    T: int
    device: str

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(sorted(self.train))

    def batch(self, n: int) -> Batch:
        generator = make_generator(derive_seed(self.cfg.seed, "batch", n))
        draw = draw_rows(self.train, p=self.cfg.p_train, B=self.cfg.B, T=self.T, generator=generator)
        x, y = split_targets(gather_rows(self.train, draw, T=self.T), device=self.device)
        return Batch(x=x, y=y, rows=draw.counts())

    def validate(self, model: GPT) -> dict[str, float]:
        losses = evaluate(
            model,
            self.val,
            eval_steps=self.cfg.eval_steps,
            B=self.cfg.B,
            T=self.T,
            device=self.device,
            generator=make_generator(derive_seed(self.cfg.seed, "validation")),
        )
        return {"val_loss": sum(self.cfg.p_val[name] * loss for name, loss in losses.items()), **losses}


@dataclass(frozen=True)
class ChatTask:
    """Whole chats of a mix of sources, loss on the assistant alone; validation on held-out chats, and beside it on the
    text the model was pretrained on, so that forgetting shows."""

    train: Mapping[str, SFTExampleDataset]
    val: Mapping[str, SFTExampleDataset]
    text: PretrainTask
    cfg: TrainConfig
    device: str

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(sorted(self.train))

    def batch(self, n: int) -> Batch:
        generator = make_generator(derive_seed(self.cfg.seed, "chat batch", n))
        p = torch.tensor([self.cfg.p_train[name] for name in self.sources], dtype=torch.float64)
        choices = torch.multinomial(p, self.cfg.B, replacement=True, generator=generator).numpy()
        parts, rows = [], {}
        for i, name in enumerate(self.sources):
            rows[name] = int((choices == i).sum())
            if rows[name]:
                parts.append(self.train[name].get_batch(B=rows[name], generator=generator))
        x, _, y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return Batch(x=x, y=y, rows=rows)

    def validate(self, model: GPT) -> dict[str, float]:
        limit = self.cfg.eval_steps * self.cfg.B
        losses = {
            name: mean_chat_loss(model, chats, np.arange(min(len(chats), limit)), B=self.cfg.B)
            for name, chats in self.val.items()
        }
        text = self.text.validate(model)
        text.pop("val_loss")
        return {"val_loss": sum(self.cfg.p_train[name] * loss for name, loss in losses.items()), **losses, **text}
