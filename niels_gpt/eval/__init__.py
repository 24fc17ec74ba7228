"""Evaluation: loss on held-out text and chats, statistics of generated text, and the report card."""

from niels_gpt.eval.held_out import evaluate

__all__ = ["evaluate"]
