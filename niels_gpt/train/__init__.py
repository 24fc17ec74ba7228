"""Training: tasks, optimizers, the training loop, and the state from which a run resumes."""

from niels_gpt.model.loss import loss_fn

__all__ = ["loss_fn"]
