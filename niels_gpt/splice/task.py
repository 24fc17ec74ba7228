"""Training task of spliced documents: epochs, each shuffled anew, and a validation loss per document."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from niels_gpt.config import TrainConfig
from niels_gpt.eval.held_out import inference, mean_loss
from niels_gpt.files.ranks import ALONE, Ranks
from niels_gpt.model.targets import IGNORE_INDEX
from niels_gpt.splice.dataset import Example, MultiSpliceDocumentDataset, epoch_order
from niels_gpt.splice.spans import validation_grid
from niels_gpt.train.task import ALL, Batch


@dataclass(frozen=True)
class SpliceTask:
    """Training task over a splice dataset; batch n is the n-th group of B examples of the concatenated epochs."""

    dataset: MultiSpliceDocumentDataset
    sources: tuple[str, ...]  # names of the documents
    cfg: TrainConfig
    device: str
    shuffle: bool = True  # a new order in every epoch; otherwise the dataset's

    @property
    def T(self) -> int:
        """Width of all batches, the longest span: constant, so that a step can be recorded as a CUDA graph."""
        return self.dataset.longest_span

    def batch(self, n: int, rows: slice = ALL) -> Batch:
        examples = self._examples(n)
        counts = np.bincount(examples[:, 0], minlength=len(self.sources)).tolist()
        batch = self.dataset.collate(examples[rows], width=self.T)
        return Batch.of(
            batch["tokens"],
            masked_targets(batch),
            dict(zip(self.sources, counts, strict=True)),
            first=rows.indices(self.cfg.B)[0],
            targets=int(self.dataset.targets(examples).sum()),
            position_ids=batch["position_ids"],
        )

    def describe(self, n: int) -> str:
        """Return the spans of batch n as name[t]@s."""
        return "spans " + ", ".join(f"{self.sources[i]}[{t}]@{s}" for i, t, s, _ in self._examples(n).tolist())

    def prompt(self) -> list[int]:
        """Return the ids of the beginning of the first document, an eighth of a frame."""
        return np.asarray(self.dataset.docs[0][: max(1, self.dataset.rules.S // 8)]).tolist()

    def validate(self, model: nn.Module, ranks: Ranks = ALONE) -> dict[str, float]:
        """Return the loss in nats/token of every document with spans, on a fixed grid of them, and the mean loss."""
        losses, rules = {}, self.dataset.rules
        with inference(model):
            for i in self.dataset.valid_docs:
                L = len(self.dataset.docs[i])
                K = min(rules.content_length or rules.S, rules.S, L)
                examples = np.array([(i, t, s, K) for t, s in validation_grid(L, rules.S, rules.content_length)])
                own = examples[ranks.share(len(examples))]
                grid = self.dataset.collate(own, width=K)
                tensors = (grid["tokens"], masked_targets(grid), grid["position_ids"])
                x, y, positions = (tensor.to(self.device) for tensor in tensors)
                # All rows have equally many targets, so ranks are weighted by rows.
                share = len(own) / len(examples)
                losses[self.sources[i]] = share * mean_loss(model, x, y, position_ids=positions) if share else 0.0
        losses = ranks.summed(losses)
        return {"val_loss": sum(losses.values()) / len(losses), **losses}

    def _examples(self, n: int) -> np.ndarray:
        """Return the examples of batch n, (B, 4); a batch may span two or more epochs."""
        N, B = len(self.dataset), self.cfg.B
        places, parts = np.arange(n * B, (n + 1) * B), []
        for epoch in np.unique(places // N).tolist():
            order = epoch_order(N, seed=self.cfg.seed, epoch=epoch) if self.shuffle else np.arange(N)
            parts.append(self.dataset.examples(order[places[places // N == epoch] % N], epoch=epoch))
        return np.concatenate(parts)


def masked_targets(examples: Example) -> torch.Tensor:
    """Return the targets, with -100 (ignored) where there is no loss."""
    return examples["targets"].masked_fill(~examples["loss_mask"], IGNORE_INDEX)
