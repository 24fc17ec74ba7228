"""Cross-entropy loss that skips ignored targets, alone or fused with the model's head."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from niels_gpt.model.kernels import dispatch
from niels_gpt.model.targets import IGNORE_INDEX, count_targets

_PIECE_BYTES = {"cpu": 1 << 26, "cuda": 1 << 32}  # logits held at a time: 64 MiB and 4 GiB


def loss_fn(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy in nats of logits (B, T, V) at the targets y (B, T) that are not -100."""
    count_targets(y)
    return F.cross_entropy(logits.flatten(0, -2), y.flatten(), ignore_index=IGNORE_INDEX)


def soft_cap(logits: torch.Tensor, cap: float | None) -> torch.Tensor:
    """Return cap * tanh(logits / cap), which bounds logits by `cap` and barely changes small ones; None: no cap."""
    return logits if cap is None else cap * torch.tanh(logits / cap)


@dataclass(frozen=True)
class SoftTargets:
    """Probabilities of a teacher, mixed with share `alpha` into the targets: the softmax of its logits h @ weight.T.

    h is (B, T, C), `weight` (V, C) and `cap` those of the teacher.
    """

    h: torch.Tensor
    weight: torch.Tensor
    cap: float | None
    alpha: float


@torch.no_grad()
def token_losses(h: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, *, cap: float | None = None) -> torch.Tensor:
    """Return the cross-entropy of each token (B, T) in nats, 0 at ignored targets; see `FusedLoss`."""
    head = weight.to(h.dtype)
    chunks = _chunks(head, h.flatten(0, -2), y.flatten())
    return torch.cat([_losses_and_grad_(part @ head.T, targets, cap) for part, targets in chunks]).view_as(y)


class FusedLoss(torch.autograd.Function):
    """Fused head and loss that holds only one chunk of logits at a time, in their own precision.

    The result is the summed cross-entropy in nats of logits h @ weight.T (in h's dtype) at targets y, with h (rows, C),
    `weight` (V, C) and y (rows,). Options are the cap of `soft_cap`, and soft targets to mix into y, or None. The
    forward pass also computes the gradients, chunk by chunk, in the memory of the logits; backward only scales.
    """

    @staticmethod
    def forward(
        ctx: Any,
        h: torch.Tensor,
        weight: torch.Tensor,
        y: torch.Tensor,
        options: tuple[float | None, SoftTargets | None],
    ) -> torch.Tensor:
        (cap, soft), head = options, weight.to(h.dtype)
        total = torch.zeros((), device=h.device)
        grad_h, grad_weight = torch.empty_like(h), None
        taught = h if soft is None else soft.h.flatten(0, -2)
        for part, targets, grad_part, teacher_part in _chunks(head, h, y, grad_h, taught):
            logits = part @ head.T
            more = None if soft is None else _soft_loss_and_grad(logits, targets, cap, teacher_part, soft)
            total += _losses_and_grad_(logits, targets, cap).sum()
            if more is not None:
                total += more[0]
                logits += more[1]
            torch.mm(logits, head, out=grad_part)
            if ctx.needs_input_grad[1]:  # not for a frozen head
                grad_head = _product_in_float32(logits.T, part)
                grad_weight = grad_head if grad_weight is None else grad_weight.add_(grad_head)
        ctx.save_for_backward(grad_h, grad_weight)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad_h, grad_weight = ctx.saved_tensors
        return grad_h * grads[0], None if grad_weight is None else grad_weight * grads[0], None, None


def _chunks(head: torch.Tensor, h: torch.Tensor, *others: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Split h and the others by rows, so that the logits of a chunk fit _PIECE_BYTES."""
    piece_bytes = _PIECE_BYTES.get(h.device.type, _PIECE_BYTES["cpu"])
    pieces = -(-len(h) * len(head) * h.element_size() // piece_bytes)
    return zip(*(tensor.tensor_split(pieces) for tensor in (h, *others)), strict=True)


def _product_in_float32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a @ b in float32, on a GPU without rounding to their dtype first."""
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else (a @ b).float()


def _losses_and_grad_(logits: torch.Tensor, y: torch.Tensor, cap: float | None) -> torch.Tensor:
    """Return the loss of each row (rows,) in float32; overwrite logits (rows, V) with the gradient of their sum."""
    if kernels := dispatch.loss_kernels(logits):
        return kernels.losses_and_grad_(logits, y, cap)
    counted = (y != IGNORE_INDEX)[:, None]
    targets = y[:, None].where(counted, 0)
    capped = soft_cap(logits.float(), cap)
    slope = None if cap is None else 1 - (capped / cap).square_()
    highest, wanted = capped.amax(1, keepdim=True), capped.gather(1, targets)
    # One exponential serves loss and gradient. In place: float32 logits without a cap need no other memory.
    grad = capped.sub_(highest).exp_()
    total = grad.sum(1, keepdim=True)
    grad.mul_(counted / total).scatter_add_(1, targets, -counted.float())
    logits.copy_(grad if slope is None else grad.mul_(slope))
    return (total.log() + highest - wanted).mul_(counted).squeeze(1)


def _soft_loss_and_grad(
    logits: torch.Tensor, y: torch.Tensor, cap: float | None, h: torch.Tensor, soft: SoftTargets
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what soft targets add to the summed loss of hard ones, and to its gradient (rows, V).

    Cross-entropy is linear in the targets, which change by alpha * (teacher's probabilities - one-hot y).
    """
    counted = (y != IGNORE_INDEX)[:, None]
    change = soft_cap((h @ soft.weight.to(h.dtype).T).float(), soft.cap).softmax(1)
    change.scatter_add_(1, y[:, None].where(counted, 0), -torch.ones_like(change[:, :1]))
    change.mul_(counted * soft.alpha)
    capped = soft_cap(logits.float(), cap)
    loss = -(change * capped).sum()
    slope = 1.0 if cap is None else 1 - (capped / cap).square_()
    return loss, (change * slope).neg_().to(logits.dtype)
