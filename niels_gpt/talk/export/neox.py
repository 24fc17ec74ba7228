"""The GPT-NeoX form of a model, which others compute: its blocks are these, differently written down.

There a rotation turns the two halves of a head against each other where this project turns neighbours, so rows of the
queries' and keys' weights change places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from niels_gpt.config import ModelConfig
from niels_gpt.model.gpt import GPT

LAYER_NORM_EPS = 1e-5  # torch's, which the blocks are made with


@dataclass(frozen=True)
class Naming:
    """How somebody who computes this form calls its weights."""

    top: Mapping[str, str]  # our module -> theirs
    block: str  # what block {i} is called
    parts: Mapping[str, str]  # our module in a block -> theirs
    join_heads: Callable[[torch.Tensor], torch.Tensor]  # (3, H, D, ...) to the order of rows that they have


def check_neox(cfg: ModelConfig, *, option: str) -> None:
    """Refuse a model that this form cannot express."""
    if cfg.options:
        raise ValueError(
            f"GPT-NeoX has no {', '.join(f'model.{name}' for name in cfg.options)} as this model has: export it "
            f"without {option}, or train one whose model section is that of preset v1"
        )


def neox_weights(model: GPT, naming: Naming) -> dict[str, torch.Tensor]:
    """Every weight under its name there. The head stands beside the embedding that it is."""
    weights = {}
    for name, value in model.state_dict().items():
        module, _, part = name.rpartition(".")
        if module.startswith("blocks."):
            _, i, module = module.split(".", 2)
            theirs = f"{naming.block.format(i=i)}.{naming.parts[module]}"
        else:
            theirs = naming.top[module]
        if module == "attn.qkv":
            value = naming.join_heads(_halved(value, cfg=model.cfg)).flatten(0, 2)  # noqa: PLW2901
        weights[f"{theirs}.{part}"] = value
    return weights


def _halved(qkv: torch.Tensor, *, cfg: ModelConfig) -> torch.Tensor:
    """(3, H, D, ...) with the even places of a query's or key's head before the odd ones."""
    q, k, v = qkv.unflatten(0, (3, cfg.H, cfg.D))
    order = torch.cat((torch.arange(0, cfg.D, 2), torch.arange(1, cfg.D, 2)))
    return torch.stack((q[:, order], k[:, order], v))
