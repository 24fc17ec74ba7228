"""A plain GPT and a plain training loop, as people write them first: the reference of the benchmarks."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from niels_gpt.config import ModelConfig


class PlainBlock(nn.Module):
    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.ln1, self.ln2 = nn.LayerNorm(cfg.C), nn.LayerNorm(cfg.C)
        self.qkv, self.proj = nn.Linear(cfg.C, 3 * cfg.C), nn.Linear(cfg.C, cfg.C)
        self.fc1, self.fc2 = nn.Linear(cfg.C, cfg.d_ff), nn.Linear(cfg.d_ff, cfg.C)

    def forward(self, x: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor) -> torch.Tensor:
        B, T, C = x.shape
        parts = self.qkv(self.ln1(x)).split(C, 2)
        q, k, v = (part.view(B, T, self.cfg.H, self.cfg.D).transpose(1, 2) for part in parts)
        out = F.scaled_dot_product_attention(turn(q, sin, cos), turn(k, sin, cos), v, is_causal=True)
        x = x + self.proj(out.transpose(1, 2).reshape(B, T, C))
        h: torch.Tensor = x + self.fc2(F.gelu(self.fc1(self.ln2(x))))
        return h


def turn(x: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor) -> torch.Tensor:
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)


class PlainGPT(nn.Module):
    """The same architecture as niels_gpt's, without dropout."""

    sin: torch.Tensor
    cos: torch.Tensor

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.tok_emb = nn.Embedding(cfg.V, cfg.C)
        self.blocks = nn.ModuleList(PlainBlock(cfg) for _ in range(cfg.L))
        self.ln_f = nn.LayerNorm(cfg.C)
        angles = torch.arange(cfg.T)[:, None] * cfg.rope_theta ** (-torch.arange(0, cfg.D, 2) / cfg.D)
        self.register_buffer("sin", angles.sin())
        self.register_buffer("cos", angles.cos())
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        T = x.shape[1]
        h = self.tok_emb(x)
        for block in self.blocks:
            h = block(h, self.sin[:T], self.cos[:T])
        return F.linear(self.ln_f(h), self.tok_emb.weight)


class PlainLoop:
    """Plain loop: batches row by row, optimizer calls one by one, and the loss read at every step."""

    def __init__(
        self, cfg: ModelConfig, tokens: np.ndarray, *, B: int, device: str, bf16: bool, compile: bool, seed: int = 0
    ) -> None:
        self._cfg, self._tokens, self._B, self._device, self._bf16 = cfg, tokens, B, device, bf16
        torch.manual_seed(seed)
        self.model = PlainGPT(cfg).to(device)
        self._forward = torch.compile(self.model) if compile else self.model
        self._optimizer = torch.optim.AdamW(self.model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
        self.losses: list[float] = []

    def step(self, lr: float = 1e-3) -> None:
        T = self._cfg.T
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        starts = torch.randint(0, len(self._tokens) - T, (self._B,)).tolist()
        rows = [torch.from_numpy(self._tokens[i : i + T + 1].astype(np.int64)) for i in starts]
        x = torch.stack([row[:-1] for row in rows]).to(self._device)
        y = torch.stack([row[1:] for row in rows]).to(self._device)
        with torch.autocast(self._device, torch.bfloat16, enabled=self._bf16):
            loss = F.cross_entropy(self._forward(x).flatten(0, 1), y.flatten())
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self.losses.append(loss.item())


def plain_generate(model: nn.Module, ids: list[int], *, T: int, new_tokens: int) -> list[int]:
    """Generate greedily, with a forward pass over the whole window for every token."""
    ids = list(ids)
    with torch.no_grad():
        for _ in range(new_tokens):
            ids.append(int(model(torch.tensor([ids[-T:]]))[0, -1].argmax()))
    return ids


def synthetic_tokens(V: int, n: int) -> np.ndarray:
    """Return tokens that can be learned: each follows from the last by one of a few rules, with some noise."""
    rng = np.random.default_rng(0)
    rules, noise = rng.permuted(np.tile(np.arange(V), (4, 1)), axis=1), rng.random(n)
    which, random = rng.integers(0, 4, n), rng.integers(0, V, n)
    tokens = np.zeros(n, dtype=np.uint16)
    for i in range(1, n):
        tokens[i] = random[i] if noise[i] < 0.1 else rules[which[i], tokens[i - 1]]
    return tokens
