"""What a run trains on: rows of a batch for every step, and a validation. The loop knows no more than this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from niels_gpt.batching import Draw, draw_rows, gather_rows, gather_segments, split_targets
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.cache.windows import TokenStream
from niels_gpt.config import TrainConfig
from niels_gpt.eval.held_out import evaluate, mean_chat_loss
from niels_gpt.model.gpt import GPT
from niels_gpt.model.targets import IGNORE_INDEX, count_targets
from niels_gpt.rng import derive_seed, make_generator


@dataclass(frozen=True)
class Batch:
    """Inputs and targets (B, T), targets that do not count being -100; how many do; and rows by source.

    All numbers lie in one tensor, so that a batch travels in one piece: x, y and, if given, position and segment ids,
    then which row of the whole batch each one is.
    """

    numbers: torch.Tensor  # `parts` times (B, T), B row numbers and the number of targets, int64
    B: int
    parts: tuple[str, ...]
    rows: dict[str, int]

    @classmethod
    def of(cls, x: torch.Tensor, y: torch.Tensor, rows: dict[str, int], **more: torch.Tensor | None) -> Batch:
        """`more`: position_ids, segment_ids."""
        parts = {"x": x, "y": y, **{name: value for name, value in more.items() if value is not None}}
        row_numbers = torch.arange(len(x), device=x.device)
        flat = (*(value.long().flatten() for value in parts.values()), row_numbers, count_targets(y)[None])
        return cls(numbers=torch.cat(flat), B=len(x), parts=tuple(parts), rows=rows)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """(B, T) each, by name."""
        stacked = self.numbers[: -self.B - 1].view(len(self.parts), self.B, -1)
        return dict(zip(self.parts, stacked, strict=True))

    @property
    def x(self) -> torch.Tensor:
        return self.tensors["x"]

    @property
    def y(self) -> torch.Tensor:
        return self.tensors["y"]

    @property
    def row_numbers(self) -> torch.Tensor:
        """(B,): where in the whole batch its rows stood."""
        return self.numbers[-self.B - 1 : -1]

    @property
    def targets(self) -> torch.Tensor:
        return self.numbers[-1]

    def take(self, rows: slice) -> Batch:
        """Some of the rows, still counted against the targets of all."""
        kept = [value[rows].flatten() for value in (*self.tensors.values(), self.row_numbers)]
        return replace(self, numbers=torch.cat((*kept, self.numbers[-1:])), B=len(kept[-1]))

    def to(self, device: str) -> Batch:
        return replace(self, numbers=self.numbers.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        return replace(self, numbers=self.numbers.pin_memory())

    def copy_(self, other: Batch) -> None:
        """Another batch's numbers in the place of this one's, which stay where they are."""
        self.numbers.copy_(other.numbers, non_blocking=True)


class Task(Protocol):
    """Batch n is a function of (seed, n), and so is what `describe` says of its rows. `validate` gives losses by name,
    and as "val_loss" the one that decides; `prompt` is held-out text for a sample of what the model writes."""

    @property
    def sources(self) -> tuple[str, ...]: ...
    @property
    def T(self) -> int:
        """Tokens of a row. All batches are of one size; only those of spans are narrower than the model's context."""
        ...

    def batch(self, n: int) -> Batch: ...
    def describe(self, n: int) -> str: ...
    def prompt(self) -> list[int]: ...
    def validate(self, model: GPT) -> dict[str, float]: ...


def release(sources: Mapping[str, TokenStream | SFTExampleDataset]) -> None:
    """What was read of token files need not stay mapped: see niels_gpt.files.pages."""
    for source in sources.values():
        source.release()


@dataclass(frozen=True)
class PretrainTask:
    """Random windows of a mix of streams; validation on the p_val-weighted mean, always over the same windows.
    Where a stream knows its documents, none sees what stood before it in its window."""

    train: Mapping[str, TokenStream]
    val: Mapping[str, TokenStream]
    cfg: TrainConfig
    T: int
    device: str

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(sorted(self.train))

    def batch(self, n: int) -> Batch:
        draw = self._draw(n)
        x, y = split_targets(gather_rows(self.train, draw, T=self.T), device="cpu")
        segments = gather_segments(self.train, draw, T=self.T)
        release(self.train)
        return Batch.of(x, y, draw.counts(), segment_ids=segments)

    def describe(self, n: int) -> str:
        draw = self._draw(n)
        rows = zip(draw.choices.tolist(), draw.windows.tolist(), strict=True)
        return "windows " + ", ".join(f"{draw.names[choice]}[{window}]" for choice, window in rows)

    def prompt(self) -> list[int]:
        """The first tokens of the first validation source."""
        stream = self.val[min(self.val)]
        window: list[int] = stream.gather(np.array([0]), self.T)[0].tolist()
        return window[: max(1, self.T // 8)]

    def _draw(self, n: int) -> Draw:
        generator = make_generator(derive_seed(self.cfg.seed, "batch", n))
        return draw_rows(self.train, p=self.cfg.p_train, B=self.cfg.B, T=self.T, generator=generator)

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
        release(self.val)
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

    @property
    def T(self) -> int:
        return self.text.T

    def batch(self, n: int) -> Batch:
        chosen = self._draw(n)
        parts = [self.train[name].examples(rows) for name, rows in chosen.items() if len(rows)]
        x, _, y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        release(self.train)
        return Batch.of(x, y, {name: len(rows) for name, rows in chosen.items()})

    def describe(self, n: int) -> str:
        chosen = self._draw(n)
        return "chats " + ", ".join(f"{name}[{row}]" for name, rows in chosen.items() for row in rows.tolist())

    def prompt(self) -> list[int]:
        """The first held-out chat, up to where the assistant begins to speak."""
        x, _, y = self.val[min(self.val)].examples(np.array([0]))
        first = int((y[0] != IGNORE_INDEX).nonzero()[0])
        prompt: list[int] = x[0, : first + 1].tolist()
        return prompt

    def _draw(self, n: int) -> dict[str, np.ndarray]:
        """Which examples of each source."""
        generator = make_generator(derive_seed(self.cfg.seed, "chat batch", n))
        p = torch.tensor([self.cfg.p_train[name] for name in self.sources], dtype=torch.float64)
        choices = torch.multinomial(p, self.cfg.B, replacement=True, generator=generator)
        counts = torch.bincount(choices, minlength=len(self.sources)).tolist()
        return {
            name: torch.randint(0, len(self.train[name]), (count,), generator=generator).numpy()
            for name, count in zip(self.sources, counts, strict=True)
        }

    def validate(self, model: GPT) -> dict[str, float]:
        limit = self.cfg.eval_steps * self.cfg.B
        losses = {
            name: mean_chat_loss(model, chats, np.arange(min(len(chats), limit)), B=self.cfg.B)
            for name, chats in self.val.items()
        }
        release(self.val)
        text = self.text.validate(model)
        text.pop("val_loss")
        return {"val_loss": sum(self.cfg.p_train[name] * loss for name, loss in losses.items()), **losses, **text}
