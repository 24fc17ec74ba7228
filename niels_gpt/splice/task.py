"""Training task of spliced documents: epochs, each shuffled anew, and a validation loss per document."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from niels_gpt.config import TrainConfig
from niels_gpt.eval.held_out import inference, mean_loss
from niels_gpt.files.ranks import ALONE, Ranks
from niels_gpt.model.targets import IGNORE_INDEX
from niels_gpt.splice.dataset import Example, MultiSpliceDocumentDataset, collate, epoch_order
from niels_gpt.splice.spans import validation_grid
from niels_gpt.train.task import ALL, Batch


@dataclass(frozen=True)
class SpliceTask:
    """Training task over a splice dataset; batch n is the n-th group of B examples of the concatenated epochs."""

    dataset: MultiSpliceDocumentDataset
    names: tuple[str, ...]  # of the documents
    cfg: TrainConfig
    device: str
    shuffle: bool = True  # a new order in every epoch; otherwise the dataset's

    @property
    def sources(self) -> tuple[str, ...]:
        return self.names

    @property
    def T(self) -> int:
        """Width of all batches, the longest span: constant, so that a step can be recorded as a CUDA graph."""
        return self.dataset.longest_span

    def batch(self, n: int, rows: slice = ALL) -> Batch:
        """Return some rows of batch n, with the row and target counts of the whole batch."""
        drawn = [self.dataset.content(indices, epoch=epoch) for epoch, indices in self._numbers(n, ALL)]
        documents, targets = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
        counts = np.bincount(documents, minlength=len(self.names)).tolist()
        examples = self._draw(n, rows)
        return Batch.of(
            examples["tokens"],
            masked_targets(examples),
            dict(zip(self.names, counts, strict=True)),
            first=rows.indices(self.cfg.B)[0],
            targets=int(targets.sum()),
            position_ids=examples["position_ids"],
        )

    def describe(self, n: int) -> str:
        """Return the spans of batch n as name[t]@s."""
        examples = self._draw(n)
        places = zip(*(examples[key].tolist() for key in ("doc_idx", "t", "s")), strict=True)
        return "spans " + ", ".join(f"{self.names[i]}[{t}]@{s}" for i, t, s in places)

    def prompt(self) -> list[int]:
        """Return the ids of the beginning of the first document, an eighth of a frame."""
        start: list[int] = np.asarray(self.dataset.docs[0][: max(1, self.dataset.rules.S // 8)]).tolist()
        return start

    def validate(self, model: nn.Module, ranks: Ranks = ALONE) -> dict[str, float]:
        """Return the loss in nats/token of every document with spans, on a fixed grid of them, and the mean loss."""
        losses = {}
        rules = self.dataset.rules
        with inference(model):
            for i in self.dataset.valid_docs:
                pairs = validation_grid(len(self.dataset.docs[i]), rules.S, rules.content_length)
                triples = np.array([(i, t, s) for t, s in pairs])
                K = min(rules.content_length or rules.S, rules.S, len(self.dataset.docs[i]))
                lens = np.full(len(triples), K)
                grid = collate(
                    self.dataset.docs, triples, lens, S=rules.S, pad_id=self.dataset.pad_id, layout="compact"
                )
                # All rows have equally many targets, so ranks are weighted by rows.
                rows = ranks.share(len(triples))
                share = len(triples[rows]) / len(triples)
                x, positions = grid["tokens"][rows].to(self.device), grid["position_ids"][rows].to(self.device)
                y = masked_targets(grid)[rows].to(self.device)
                losses[self.names[i]] = share * mean_loss(model, x, y, position_ids=positions) if share else 0.0
        losses = ranks.summed(losses)
        return {"val_loss": sum(losses.values()) / len(losses), **losses}

    def _draw(self, n: int, rows: slice = ALL) -> Example:
        batches = [self.dataset.batch(indices, epoch=epoch) for epoch, indices in self._numbers(n, rows)]
        return _joined(batches, width=self.T, pad_id=self.dataset.pad_id)

    def _numbers(self, n: int, rows: slice) -> list[tuple[int, np.ndarray]]:
        """Return (epoch, example numbers) of batch n's rows; a batch may span two or more epochs."""
        N, B = len(self.dataset), self.cfg.B
        places = np.arange(n * B, (n + 1) * B)[rows]
        drawn = []
        for epoch in np.unique(places // N).tolist():
            order = _order(N, self.cfg.seed, epoch) if self.shuffle else np.arange(N)
            drawn.append((epoch, order[places[places // N == epoch] % N]))
        return drawn


@lru_cache(maxsize=2)
def _order(n: int, seed: int, epoch: int) -> np.ndarray:
    return epoch_order(n, seed=seed, epoch=epoch)


def masked_targets(examples: Example) -> torch.Tensor:
    """Return the targets, with -100 (ignored) where there is no loss."""
    targets: torch.Tensor = examples["targets"].masked_fill(~examples["loss_mask"], IGNORE_INDEX)
    return targets


def _joined(batches: list[Example], *, width: int, pad_id: int) -> Example:
    """Concatenate batches of different width, padded to `width`."""
    fill = {"tokens": pad_id, "targets": pad_id}

    def widened(batch: Example, name: str) -> torch.Tensor:
        value: torch.Tensor = batch[name]
        return value if value.dim() == 1 else F.pad(value, (0, width - value.shape[1]), value=fill.get(name, 0))

    return Example({name: torch.cat([widened(batch, name) for batch in batches]) for name in batches[0]})
