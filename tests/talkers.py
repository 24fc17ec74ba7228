"""Tiny talkers, and talkers with a fixed output."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from niels_gpt.checkpoint import save_checkpoint
from niels_gpt.config import ModelConfig, Renderer, to_dict
from niels_gpt.model.decoder import Decoder
from niels_gpt.model.gpt import GPT
from niels_gpt.talk.talker import Talker
from niels_gpt.tokenizer.tokenizers import ByteTokenizer, describe
from niels_gpt.tokenizer.vocabulary import Tokenizer

CFG = ModelConfig(V=260, T=32, C=24, L=2, H=3, d_ff=48, dropout=0.0)


def talker(renderer: str = "chat_tokens", *, T: int = CFG.T) -> Talker:
    torch.manual_seed(0)
    model = GPT(replace(CFG, T=T))
    for parameter in model.parameters():  # biases and norms too, so that mixing them up would show
        torch.nn.init.normal_(parameter, std=0.3)
    return Talker("tiny", model, ByteTokenizer(), renderer)  # type: ignore[arg-type]


def saying(renderer: str, ids: Sequence[int], *, T: int = 32) -> Talker:
    """Return a talker that always generates these ids, each determined only by the id before it.

    The last one repeats forever.
    """
    model = GPT(ModelConfig(V=260, T=T, C=260, L=1, H=2, d_ff=260, dropout=0.0))
    start = 258 if renderer == "chat_tokens" else ord(" ")  # the last token of a prompt
    with torch.no_grad():
        for parameter in model.blocks.parameters():
            parameter.zero_()
        for weight in (model.tok_emb.weight, model.blocks[0].mlp.fc1.weight):
            weight.copy_(torch.eye(260))
        model.blocks[0].ln2.weight.fill_(1.0)
        for before, after in zip([start, *ids], ids, strict=False):
            model.blocks[0].mlp.fc2.weight[after, before] = 1.0
    return Talker("saying", model, ByteTokenizer(), renderer)  # type: ignore[arg-type]


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the token count of every `Decoder.extend`, of all models, until the end of the test."""
    read: list[int] = []
    extend = Decoder.extend

    def counting(self: Decoder, x: torch.Tensor, **how: Any) -> torch.Tensor:
        read.append(x.numel())
        return extend(self, x, **how)

    monkeypatch.setattr(Decoder, "extend", counting)
    return read


def write_project(root: Path) -> Talker:
    """Write the files of a finished run that the commands read; return a talker with its weights."""
    whole = talker()
    for name in ("pretrain", "sft"):
        save_checkpoint(root / f"models/{name}/best.pt", whole.model, None, 1, to_dict(CFG))
    config = {**to_dict(CFG), "renderer": "chat_tokens"}
    (root / "models/sft/config.json").write_text(json.dumps(config))
    (root / "cache/tokenizer").mkdir(parents=True)
    (root / "cache/tokenizer/tokenizer.json").write_text(json.dumps(describe(ByteTokenizer())))
    return whole


def put(data: bytes) -> str:
    md5 = hashlib.md5(data).hexdigest()
    file = Path(".dvc/cache/files/md5", md5[:2], md5[2:])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return md5


def certain_talker(
    tokenizer: Tokenizer, renderer: Renderer = "chat_tokens", *, shape: dict[str, Any] | None = None
) -> Talker:
    """Return a tiny talker without zero weights whose greedy output varies, each token 0.02 ahead of the runner-up."""
    torch.manual_seed(234)
    shape = shape or {"T": 96, "C": 32, "L": 2, "H": 2, "d_ff": 64}
    model = GPT(ModelConfig(V=tokenizer.vocab_size, dropout=0.0, **shape))
    for name, parameter in model.named_parameters():
        vector = parameter.dim() == 1
        torch.nn.init.normal_(parameter, mean=float(vector and name.endswith("weight")), std=0.2)
    return Talker("tiny", model, tokenizer, renderer)


def talkative(cfg: ModelConfig) -> GPT:
    """Return a model whose output depends on its whole context, its biases and its norms.

    A freshly initialized model repeats one token in any context, which would hide errors in generation.
    """
    torch.manual_seed(0)
    model = GPT(cfg).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        model.tok_emb.weight.mul_(0.3)
    return model
