"""Training: the optimizer, the loop, and the state a run can be resumed from."""

from niels_gpt.model.loss import loss_fn

__all__ = ["loss_fn"]
