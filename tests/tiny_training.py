"""Tiny models, tasks and recipes to train."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from niels_gpt.cache.build_cache import build_sft_cache
from niels_gpt.cache.formats import write_token_file
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.cache.windows import TokenStream
from niels_gpt.chat_template import format_chat
from niels_gpt.config import Groups, ModelConfig, TrainConfig
from niels_gpt.model.gpt import GPT
from niels_gpt.pipeline.yaml_files import parse_yaml
from niels_gpt.rng import set_seed
from niels_gpt.tokenizer.tokenizers import ByteTokenizer
from niels_gpt.train.chats import ChatTask
from niels_gpt.train.loop import train
from niels_gpt.train.pretraining import PretrainTask
from niels_gpt.train.state import RunState
from niels_gpt.train.task import Execution
from tests.conftest import ROOT

MODEL = ModelConfig(V=260, T=32, C=32, L=2, H=2, d_ff=64, dropout=0.1)


STREAMS = {
    "wiki": TokenStream([np.frombuffer(b"the harbour lies still before the wind comes in . " * 40, np.uint8)]),
    "roam": TokenStream([np.frombuffer(b"- [ ] tar the boat\n- [x] bake bread\n" * 40, np.uint8)]),
}


CONFIG = TrainConfig(
    total_steps=30,
    base_lr=3e-3,
    warmup_steps=5,
    min_lr=3e-4,
    B=8,
    p_train={"wiki": 0.7, "roam": 0.3},
    p_val={"wiki": 1.0},
    eval_every=10,
    eval_steps=2,
)


TASK = PretrainTask(train=STREAMS, val={"wiki": STREAMS["wiki"]}, cfg=CONFIG, T=MODEL.T, device="cpu")


def chat_task(folder: Path) -> ChatTask:
    chats = [
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes" if i % 2 else "no"}]
        for i in range(20)
    ]
    datasets: dict[str, dict[str, SFTExampleDataset]] = {"train": {}, "val": {}}
    for name in ("dolly15k", "oasst1"):
        if name == "oasst1":  # other answers, so that the two datasets have different losses
            chats = [[{**turn, "content": "ZZ" if i else "what"} for i, turn in enumerate(chat)] for chat in chats]
        build_sft_cache(chats, folder / name, tokenizer=ByteTokenizer(), val_frac=0.2, seed=1)
        for split, table in datasets.items():
            paths = (folder / name / f"{split}_tokens.bin", folder / name / f"{split}_idx.npy")
            table[name] = SFTExampleDataset(*paths, T=MODEL.T, device="cpu", eot_id=259)
    cfg = replace(CONFIG, p_train={"dolly15k": 0.25, "oasst1": 0.75})
    return ChatTask(train=datasets["train"], val=datasets["val"], text=TASK, cfg=cfg)


DRY = replace(MODEL, dropout=0.0)


# All options of a recipe for rates and momentum.
RECIPE: dict[str, Any] = {
    "schedule": "linear",
    "flat": 0.4,
    "lr_scale": Groups(matrices=1.5, embedding=0.5, head=1.0, vectors=2.0),
    "decay_scale": Groups(matrices=1.0, embedding=0.0, head=1.0, vectors=0.5),
    "momentum_warmup": 20,
}


# Preset v2 except for sizes and numbers of steps; it has three blocks, so that two mix in the values of the first.
_PRESET = parse_yaml((ROOT / "presets/v2.yaml").read_text(), name="presets/v2.yaml")


V2 = ModelConfig.from_section(_PRESET["model"], **{key: getattr(DRY, key) for key in "VTC"}, L=3, d_ff=64, head_dim=8)


# Preset v3's block, with keys and values shared by groups of heads (`kv_heads`).
_BLOCK = parse_yaml((ROOT / "presets/v3.yaml").read_text(), name="presets/v3.yaml")["model"]


V3 = replace(V2, **{**_BLOCK, "d_ff": 40, "kv_heads": 2})


FROZEN: dict[str, Any] = {"optimizer": "muon", "freeze_blocks": 2}


TINY_V2 = replace(V2, C=16, d_ff=32)


V2_RECIPE: dict[str, Any] = {**_PRESET["train"], "total_steps": 30, "warmup_steps": 5, "momentum_warmup": 20}


SHORT_BF16: dict[str, Any] = {"precision": "bf16", "B": 2, "total_steps": 10, "warmup_steps": 1}  # slow on many CPUs


CUT = {name: TokenStream(stream.arrays, documents=[np.arange(0, len(stream), 7)]) for name, stream in STREAMS.items()}


def trained(
    execution: Execution | None = None, *, shape: ModelConfig = DRY, documents: bool = False, **changes: Any
) -> tuple[GPT, RunState]:
    cfg = replace(CONFIG, **{"total_steps": 12, "eval_every": 12, **changes})
    set_seed(1)
    model = GPT(shape)
    task = replace(TASK, cfg=cfg, train=CUT if documents else STREAMS)
    return model, train(model, task, execution=execution)


ANSWERS = ("yes", "a long answer", "no", "well", "perhaps so")


def chats(folder: Path, T: int = 40) -> SFTExampleDataset:
    """Return a dataset of one chat per answer, each with a question of a different length."""
    turns = [[("user", "q" * n), ("assistant", answer)] for n, answer in enumerate(ANSWERS, start=1)]
    messages = [[{"role": role, "content": content} for role, content in turn] for turn in turns]
    ids = [np.array(format_chat(ByteTokenizer(), chat), dtype="<u2") for chat in messages]
    write_token_file(folder / "t.bin", folder / "i.npy", ids)
    special = ByteTokenizer().special_token_ids()
    return SFTExampleDataset(
        folder / "t.bin", folder / "i.npy", T=T, device="cpu", eot_id=special["eot"], asst_id=special["asst"]
    )


class Doubled(torch.nn.Linear):
    """Linear layer that computes something else with the same weights, as one with low-rank adapters does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def resident(pid: int | str = "self") -> dict[str, float]:
    """Return the MiB that are resident of a process: allocated, and mapped from files."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    mib = {name: int(lines[name].split()[0]) / 1024 for name in ("RssAnon", "RssFile", "RssShmem")}
    return {"allocated": mib["RssAnon"], "mapped": mib["RssFile"] + mib["RssShmem"]}
