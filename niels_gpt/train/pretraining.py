"""Pretraining task: random windows from a mix of token streams."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import nn

from niels_gpt.batching import Draw, draw_rows, gather_rows, in_epochs
from niels_gpt.cache.windows import TokenStream, split_targets
from niels_gpt.config import TrainConfig
from niels_gpt.eval.held_out import evaluate
from niels_gpt.files.ranks import ALONE, Ranks
from niels_gpt.rng import derive_seed, make_generator
from niels_gpt.train.task import ALL, Batch


@dataclass(frozen=True)
class PretrainTask:
    """Pretraining on random windows of T+1 tokens from a mix of streams.

    The validation loss is the p_val-weighted mean over sources, always on the same windows. If a stream has document
    boundaries, the attention mask separates the documents of a window.
    """

    train: Mapping[str, TokenStream]
    val: Mapping[str, TokenStream]
    cfg: TrainConfig
    T: int
    device: str

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(sorted(self.train))

    def batch(self, n: int, rows: slice = ALL) -> Batch:
        draw = self._draw(n)
        tokens, segments = gather_rows(self.train, draw.take(rows), T=self.T)
        x, y = split_targets(tokens, device="cpu")
        first, targets = rows.indices(self.cfg.B)[0], self.cfg.B * self.T
        return Batch.of(x, y, draw.counts(), first=first, targets=targets, segment_ids=segments)

    def rows(self, n: int) -> list[tuple[str, int, list[int]]]:
        """Return the source, the window's number there, and the T+1 ids of each row of batch n."""
        draw = self._draw(n)
        ids = gather_rows(self.train, draw, T=self.T)[0].tolist()
        sources = [draw.names[i] for i in draw.choices]
        return list(zip(sources, draw.windows.tolist(), ids, strict=True))

    def describe(self, n: int) -> str:
        return "windows " + ", ".join(f"{source}[{window}]" for source, window, _ in self.rows(n))

    def prompt(self) -> list[int]:
        """Return the first T/8 tokens of the first validation source."""
        stream = self.val[min(self.val)]
        return stream.gather(np.array([0]), self.T)[0, : max(1, self.T // 8)].tolist()

    def validate(self, model: nn.Module, ranks: Ranks = ALONE) -> dict[str, float]:
        losses = evaluate(
            model,
            self.val,
            eval_steps=self.cfg.eval_steps,
            B=self.cfg.B,
            T=self.T,
            device=self.device,
            generator=make_generator(derive_seed(self.cfg.seed, "validation")),
            ranks=ranks,
        )
        return {"val_loss": sum(self.cfg.p_val[name] * loss for name, loss in losses.items()), **losses}

    def _draw(self, n: int) -> Draw:
        draw = self._random_draw(n)
        if self.cfg.windows == "random":
            return draw
        totals = self._row_totals
        while len(totals) <= n:
            totals.append(totals[-1] + list(self._random_draw(len(totals) - 1).counts().values()))
        return in_epochs(draw, self.train, T=self.T, rows_before=totals[n], seed=self.cfg.seed)

    def _random_draw(self, n: int) -> Draw:
        generator = make_generator(derive_seed(self.cfg.seed, "batch", n))
        return draw_rows(self.train, p=self.cfg.p_train, B=self.cfg.B, T=self.T, generator=generator)

    @cached_property
    def _row_totals(self) -> list[np.ndarray]:
        """Rows that the batches before n took from each source, for every n so far; from the draws of all of them."""
        return [np.zeros(len(self.train), dtype=np.int64)]
