"""Resident memory of training on a token file of a gigabyte, over 2,000 steps. Run: python -m bench.memory"""

import json
import tempfile
from pathlib import Path

import numpy as np

from niels_gpt.cache.windows import TokenFile, TokenStream
from niels_gpt.config import ModelConfig, TrainConfig
from niels_gpt.device import keep_freed_memory
from niels_gpt.model.gpt import GPT
from niels_gpt.train.loop import Hooks, train
from niels_gpt.train.meter import StepReport
from niels_gpt.train.pretraining import PretrainTask

STEPS, PAGE = 2000, 4096


def resident(pid: int | str = "self") -> dict[str, float]:
    """Return the megabytes that the process has allocated, and those it has mapped from files."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    mib = {name: int(lines[name].split()[0]) / 1024 for name in ("RssAnon", "RssFile", "RssShmem")}
    return {"allocated": mib["RssAnon"], "mapped": mib["RssFile"] + mib["RssShmem"]}


def main() -> None:
    keep_freed_memory()
    cfg = TrainConfig(
        total_steps=STEPS, B=8, p_train={"text": 1.0}, p_val={"text": 1.0}, eval_every=STEPS, eval_steps=1
    )
    model = ModelConfig(V=512, T=64, C=32, L=1, H=2, d_ff=64, dropout=0.0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "part.bin")
        with path.open("wb") as f:
            rng = np.random.default_rng(0)
            for _ in range(16):
                rng.integers(0, 512, 32 << 20, dtype=np.uint16).tofile(f)
        stream = {"text": TokenStream([TokenFile.whole(path)])}
        task = PretrainTask(train=stream, val=stream, cfg=cfg, T=model.T, device="cpu")
        seen: dict[int, dict[str, float]] = {0: resident()}

        def note(report: StepReport) -> None:
            seen[report.step] = resident()

        train(GPT(model), task, hooks=Hooks(report=note, log_every=200))
    touched = STEPS * cfg.B * 2 * PAGE / 2**20  # a window of 130 bytes lies in one or two pages
    print(f"training on {path.name} of 1 GiB, {STEPS} steps of {cfg.B} windows, which touch at most {touched:.0f} MiB")
    for step, row in seen.items():
        print(f"  step {step:>5}   allocated {row['allocated']:>7.1f} MiB   mapped {row['mapped']:>7.1f} MiB")
    print(json.dumps({"touched_mib": touched, **{str(step): row for step, row in seen.items()}}))


if __name__ == "__main__":
    main()
