"""The training task of spliced documents: epoch after epoch, each shuffled anew, and a validation loss a document."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch.nn import functional as F

from niels_gpt.config import TrainConfig
from niels_gpt.eval.held_out import inference
from niels_gpt.model.gpt import GPT
from niels_gpt.model.targets import IGNORE_INDEX
from niels_gpt.splice.dataset import MultiSpliceDocumentDataset
from niels_gpt.splice.example import Example, collate
from niels_gpt.splice.sharding import epoch_order
from niels_gpt.splice.spans import validation_grid
from niels_gpt.train.task import Batch


@dataclass(frozen=True)
class SpliceTask:
    """Batch n is the n-th B examples of epoch after epoch; `names` are the documents'."""

    dataset: MultiSpliceDocumentDataset
    names: tuple[str, ...]
    cfg: TrainConfig
    device: str
    shuffle: bool = True  # another order in every epoch; else the dataset's

    @property
    def sources(self) -> tuple[str, ...]:
        return self.names

    @property
    def T(self) -> int:
        """One width for all batches, so that a step can be recorded: the longest span there is."""
        return self.dataset.longest_span

    def batch(self, n: int) -> Batch:
        examples = self._draw(n)
        counts = torch.bincount(examples["doc_idx"], minlength=len(self.names)).tolist()
        rows = dict(zip(self.names, counts, strict=True))
        return Batch.of(examples["tokens"], masked_targets(examples), rows, position_ids=examples["position_ids"])

    def describe(self, n: int) -> str:
        examples = self._draw(n)
        places = zip(*(examples[key].tolist() for key in ("doc_idx", "t", "s")), strict=True)
        return "spans " + ", ".join(f"{self.names[i]}[{t}]@{s}" for i, t, s in places)

    def prompt(self) -> list[int]:
        """The beginning of the first document."""
        start: list[int] = np.asarray(self.dataset.docs[0][: max(1, self.dataset.rules.S // 8)]).tolist()
        return start

    def validate(self, model: GPT) -> dict[str, float]:
        """The loss of every document that has spans, on a fixed grid of them; their mean decides."""
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
                logits = model(grid["tokens"].to(self.device), position_ids=grid["position_ids"].to(self.device))
                y = masked_targets(grid).to(self.device)
                losses[self.names[i]] = float(
                    F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=IGNORE_INDEX)
                )
        return {"val_loss": sum(losses.values()) / len(losses), **losses}

    def _draw(self, n: int) -> Example:
        N, B = len(self.dataset), self.cfg.B
        places = np.arange(n * B, (n + 1) * B)
        batches = []
        for epoch in np.unique(places // N).tolist():
            order = _order(N, self.cfg.seed, epoch) if self.shuffle else np.arange(N)
            batches.append(self.dataset.batch(order[places[places // N == epoch] % N], epoch=epoch))
        return _joined(batches, width=self.T, pad_id=self.dataset.pad_id)


@lru_cache(maxsize=2)
def _order(n: int, seed: int, epoch: int) -> np.ndarray:
    return epoch_order(n, seed=seed, epoch=epoch)


def masked_targets(examples: Example) -> torch.Tensor:
    """Targets, with -100 where there is no loss."""
    targets: torch.Tensor = examples["targets"].masked_fill(~examples["loss_mask"], IGNORE_INDEX)
    return targets


def _joined(batches: list[Example], *, width: int, pad_id: int) -> Example:
    """Batches of different width as one, padded."""
    fill = {"tokens": pad_id, "targets": pad_id}

    def widened(batch: Example, name: str) -> torch.Tensor:
        value: torch.Tensor = batch[name]
        return value if value.dim() == 1 else F.pad(value, (0, width - value.shape[1]), value=fill.get(name, 0))

    return Example({name: torch.cat([widened(batch, name) for batch in batches]) for name in batches[0]})
