"""Training: the loss, the optimizer, the loop, and the state a run can be resumed from."""

from niels_gpt.train.loss import loss_fn

__all__ = ["loss_fn"]
