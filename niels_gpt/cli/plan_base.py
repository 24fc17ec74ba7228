"""Plan the tuning of a pretrained model: steps, settings and speed; docs/base.md has the figures behind constants."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from niels_gpt.cli.console import Setting
from niels_gpt.cli.sizing import Machine, Pace, PlannedRun, costs, seconds_per_step
from niels_gpt.config import ModelConfig, TrainConfig
from niels_gpt.device import prepare_device
from niels_gpt.model.size import BASE_BYTES_PER_TOKEN
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import Params
from niels_gpt.pipeline.yaml_files import default_at
from niels_gpt.train.task import Execution, device_memory, least_memory

_ROWS, _ROWS_ON_CPU = 8, 4
_CONTEXT, _CONTEXT_ON_CPU = 1024, 512
_SMALL_TEXT = 1e6  # bytes; below, three epochs were best, above, two
# Share of the time after reading the text.
_TRAIN, _SFT, _EVAL, _LEAK = 0.6, 0.1, 0.14, 0.06
_COMPILED_STEPS = 2000  # compiling 30 blocks takes 50 s on an H200, and saves less than 0.03 s a step
_FEWEST_STEPS = 8  # fewer teach no style
_OTHER_TOKENS = 12_000  # of a model's forward passes in `eval`, besides scores: the report card and the samples
# Of `train` and `sft`, not as the sample has them.
_BY_DEFAULT = ("optimizer", "flat", "weight_decay", "lr_scale", "decay_scale", "momentum_warmup", "average")


@dataclass(frozen=True)
class ChosenBase:
    """Base as params.yaml names it, and its configuration."""

    name: str
    input: str
    revision: str | None
    cfg: ModelConfig

    def most_context(self, *, cuda: bool) -> int:
        """Return the longest context to tune with."""
        return min(self.cfg.T, _CONTEXT if cuda else _CONTEXT_ON_CPU)

    def time_step(self, runtime: Mapping[str, Any], *, cuda: bool) -> tuple[float, Pace]:
        """Return the FLOPs and the pace of a real training step; on a CPU on a short row, in about 10 s."""
        B, T = (_ROWS, _CONTEXT) if cuda else (1, 256)
        cfg = replace(self.cfg, T=min(T, self.cfg.T), dropout=0.0)
        train = TrainConfig(total_steps=4, B=B, precision="bf16" if cuda else "float32")
        return B * cfg.T * costs(cfg)[1], seconds_per_step(cfg, train, {**runtime, "compile": False})

    def check_room(self, device: str) -> None:
        """Raise ValueError if tuning may not fit into memory: SmolLM2-135M took three times the least (4.8 GB)."""
        execution = Execution(device=prepare_device(device, threads=0), micro_batch_tokens=_CONTEXT_ON_CPU)
        least = sum(least_memory(replace(self.cfg, T=_CONTEXT_ON_CPU), B=_ROWS, execution=execution).values())
        if 3 * least > (there := device_memory(execution.device)):
            raise ValueError(f"it needs about {3 * least / 1e9:.0f} GB of memory, and there are {there / 1e9:.1f}")


def fit_tuning(
    text_bytes: float, base: ChosenBase, *, T: int, share: float, machine: Machine, left: float
) -> PlannedRun:
    """Return the run of as many epochs as help, or as the time allows; `share` of its text is public."""
    cfg = replace(base.cfg, T=T)
    parameters, flops = costs(cfg)
    text_tokens = text_bytes / BASE_BYTES_PER_TOKEN / (1 - share)
    by_text = (3 if text_bytes < _SMALL_TEXT else 2) * text_tokens
    by_time = machine.flops * (_TRAIN * left) / flops
    tokens = min(by_text, max(by_time, _FEWEST_STEPS * T))
    B = max(1, min(_ROWS if machine.cuda else _ROWS_ON_CPU, int(tokens / T)))
    steps = max(1, int(tokens / (B * T)))
    limit = "time" if by_time < by_text else "text"
    return PlannedRun(cfg, B, steps, parameters, flops, text_tokens, limit)


def tuning_settings(
    run: PlannedRun, base: ChosenBase, *, sources: int, own_chats: int, machine: Machine, left: float
) -> tuple[dict[str, Setting], dict[str, float]]:
    """Return (settings by dotted name, estimated seconds of each part); `own_chats` and `sources` are counts."""
    T, tokens_a_second = run.cfg.T, machine.flops / run.flops
    forward = 3 * tokens_a_second  # scoring has no backward pass
    sft_rows = min(16_000, max(400, 3 * own_chats)) if own_chats else 480
    sft_steps = min(-(-sft_rows // run.B), int(_SFT * left * tokens_a_second / (run.B * T)))
    tuned = sft_steps >= 20
    sft_steps = max(1, sft_steps)
    models = 3 if tuned else 2
    scored = max(4 * T, min(1_000_000, int(_EVAL * left * forward / (models * sources))))
    passages = max(20, min(10_000, int(_LEAK * left * forward / (models * 2 * 100))))
    rate = 2e-4 if run.epochs >= 1 else 3e-4
    evaluations = 2 if run.steps < 100 else 4
    eval_steps = max(1, min(16, round(0.1 * run.steps / evaluations)))
    precision = "bf16" if machine.cuda else "float32"
    recipe: dict[str, Any] = {"schedule": "linear", "min_lr": 0.0, "precision": precision, "B": run.B}
    recipe |= {key: default_at(f"train.{key}", Params) for key in _BY_DEFAULT}
    start = {"from": Setting(base.name, "The model to start from: docs/base.md."), "input": base.input}
    time = "what the hours allow" if run.limited_by == "time" else "more epochs overfit"
    settings = {
        "base": Setting({**start, "revision": base.revision}),
        "tokenizer": Setting({"kind": "hf", "corpus": str(layout.BASE)}),
        "model": Setting({"T": Setting(T, "Everything else of the model is the base's."), "dropout": 0.0}),
        **{f"{section}.{key}": Setting(value) for section in ("train", "sft") for key, value in recipe.items()},
        "train.total_steps": Setting(
            run.steps, f"{run.tokens:,} tokens, about {run.epochs:.2f} epochs of your text: {time}."
        ),
        "train.base_lr": Setting(rate, "2e-4, or 3e-4 for less than one epoch; higher rates overfit from the second."),
        "train.warmup_steps": Setting(run.steps // 20),
        "train.windows": Setting("epochs", "Every part of the text once before any part again."),
        "train.eval_every": Setting(max(1, run.steps // evaluations)),
        "train.eval_steps": Setting(eval_steps),
        "sft.run": Setting(tuned, "false: too little time; the base's own answers remain." if not tuned else ""),
        "sft.dropout": Setting(0.0),
        "sft.total_steps": Setting(sft_steps),
        "sft.base_lr": Setting(5e-5),
        "sft.warmup_steps": Setting(sft_steps // 20),
        "sft.eval_every": Setting(sft_steps),
        "sft.eval_steps": Setting(min(4, eval_steps)),
        "eval.max_tokens": Setting(scored, "Held-out tokens scored per source."),
        "eval.prompts": Setting(["# ", "The ", "Today "]),
        "eval.questions": Setting(["Who are you?", "What are these notes about?"]),
        "eval.max_new_tokens": Setting(100),
        "splice.run": Setting(False),
        "memorize.run": Setting(False),
        "leak.max_passages": Setting(passages),
        "runtime.log_every": Setting(max(1, min(100, run.steps // 50))),
        "runtime.checkpoint_every": Setting(max(5, min(500, int(120 * tokens_a_second / (run.B * T))))),
    }
    if run.steps < _COMPILED_STEPS:
        settings["runtime.compile"] = Setting(False, "Compiling takes longer than these few steps would gain.")
    if not machine.cuda:
        settings["runtime.micro_batch_tokens"] = Setting(T, "One row at a time, so that a step fits into memory.")
    validating = evaluations * eval_steps * run.B * T / forward
    seconds = {
        "train": run.seconds(machine) + validating,
        "sft": sft_steps * run.B * T / tokens_a_second if tuned else 0.0,
        "rest": models * (sources * scored + 2 * 100 * passages + _OTHER_TOKENS) / forward,
    }
    return settings, seconds
