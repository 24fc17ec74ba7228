"""Evaluation: held-out text, chats, and what a model knows by heart."""

from niels_gpt.eval.held_out import evaluate

__all__ = ["evaluate"]
