"""Predict what a run costs and gives, and choose the model and steps that fit text and hours.

Of a few sizes, take the one with the lowest loss by the scaling law, within the time and within the number of epochs
that has helped. docs/recipe.md has the runs behind the figures.
"""

import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from niels_gpt.base.imported import is_imported, open_base
from niels_gpt.cli.survey import PLAIN, Survey, text_bytes
from niels_gpt.config import ModelConfig, TrainConfig
from niels_gpt.data.corpus.mix import Exposure, exposures, read_too_often
from niels_gpt.data.text import SUFFIXES
from niels_gpt.device import prepare_device
from niels_gpt.files.checks import read_meta
from niels_gpt.files.messages import format_duration
from niels_gpt.model import size as model_size
from niels_gpt.model.gpt import GPT
from niels_gpt.model.size import BYTES, Ability, Reading, bytes_per_token
from niels_gpt.pipeline import layout
from niels_gpt.train.step import build_step
from niels_gpt.train.task import Batch, Execution

# Stay below the number of epochs at which doctor warns: the exact number of tokens is known only after encoding.
_OF_MOST_EPOCHS = 0.75
_MOST_AT_ONCE = 32768  # tokens per step: as in preset v2, which fits a GPU
_MOST_AT_ONCE_ON_CPU = 16384
_FEWEST_STEPS = 10
_BATCH_EPOCHS = 8  # more do not make a batch larger: those runs were measured with the batch of 6 to 12
TAUGHT = 2.4  # time of a teacher and its student over that of one run; measured: docs/recipe.md
_LEAST_TAUGHT = 2_000_000  # parameters: a smaller student was no better than a plain model


# The sample's size, and sizes from preset v2-small to v2 at a measured ratio of depth to width: C, L, T, H, and the
# bytes of text below which a model of this size would memorize the text.
SIZES = {
    ModelConfig(C=C, L=L, T=T, H=H, d_ff=4 * C): least_text
    for C, L, T, H, least_text in (
        (128, 2, 128, 2, 0),
        (192, 3, 256, 3, 0.5e6),
        (256, 4, 256, 4, 0.7e6),
        (384, 6, 256, 6, 3e6),
        (512, 8, 512, 4, 5e6),
        (640, 10, 512, 5, 20e6),
        (768, 12, 1024, 6, 20e6),
    )
}


@dataclass(frozen=True)
class Machine:
    """Speed of a machine: FLOP/s that a training step reaches on idle cores, and what else decides a plan."""

    flops: float
    cuda: bool = False
    busy: float = 0.0  # share of the cores that other programs use, 0 to 1
    start: float = 3.5  # seconds that a stage takes to start


def seconds_to_start() -> float:
    """Return the mean seconds that a stage takes to start, by those of a Python that imports what training does."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import pyarrow.parquet, pydantic, ruamel.yaml, torch"], check=True)
    # Other stages import less, and DVC takes its part. Forked stages take half of it: the other half is what leak, eval
    # and report take at least, which no other part of an estimate has.
    return 0.85 * (time.perf_counter() - start)


@dataclass(frozen=True)
class PlannedRun:
    """One training run: a model, and `steps` steps of B rows."""

    cfg: ModelConfig
    B: int
    steps: int
    parameters: int
    flops: float  # per token, forward and backward
    text_tokens: float  # estimated tokens of the training text
    limited_by: str  # "time" or "text"
    taught: bool = False  # by a model that is trained first, in the same way

    @property
    def tokens(self) -> int:
        return self.steps * self.B * self.cfg.T

    @property
    def epochs(self) -> float:
        return self.tokens / self.text_tokens

    def expected(self, predict: Callable[..., Any]) -> Any:
        """Return what a law of model/size.py says about this run."""
        a_token = bytes_per_token(self.cfg.V)
        reading = Reading(self.text_tokens * a_token, self.tokens * a_token, in_epochs=True)
        return predict(self.parameters, [reading], steps=self.steps)

    def seconds(self, machine: Machine) -> float:
        """Return the estimated training time in seconds."""
        return self.tokens * self.flops / machine.flops * (TAUGHT if self.taught else 1)


def vocabulary_for(text_bytes: float, *, characters: int, words: int) -> int:
    """Return the vocabulary size for a text, or `BYTES` if it is too short or too repetitive for SentencePiece.

    Training the tokenizer fails if the text has fewer vocabulary entries than requested. Texts of 3 kB to 300 kB
    (notes, a book, Chinese poems, one line repeated) all had more than the estimate `found`.
    """
    found = 0.8 * (BYTES + 1 + characters + 0.3 * words)
    needed = BYTES + 1 + 1.5 * characters  # one entry per character, and some longer ones
    wanted = next(size for most, size in _WANTED if text_bytes < most)
    for size in sorted(_VOCABULARIES, key=lambda size: (size < wanted, abs(size - wanted))):
        if needed <= size <= found and text_bytes >= 50e3:
            return size
    return BYTES


_VOCABULARIES = (512, 1024, 2048, 4096, 8192, 16128, 32768)
# (text is smaller than this many bytes, preferred vocabulary size)
_WANTED = ((1e6, 1024), (4e6, 4096), (16e6, 8192), (math.inf, 16128))


def fit_run(text_bytes: float, *, V: int, machine: Machine, seconds: float) -> PlannedRun:
    """Return the run with the lowest expected loss; with a teacher if there is time for both to read all that helps."""
    sizes = [replace(size, V=V) for size, least_text in SIZES.items() if text_bytes >= least_text]
    runs = [_run(size, text_bytes, machine, seconds) for size in sizes]
    plain = min(runs, key=lambda run: run.expected(model_size.expected_bits_per_byte))
    taught = _run(plain.cfg, text_bytes, machine, seconds, taught=True)
    return taught if taught.limited_by == "text" and taught.parameters >= _LEAST_TAUGHT else plain


def _run(cfg: ModelConfig, text_bytes: float, machine: Machine, seconds: float, *, taught: bool = False) -> PlannedRun:
    parameters, flops = costs(cfg)
    text_tokens = text_bytes / bytes_per_token(cfg.V)
    by_time = machine.flops * seconds / flops / (TAUGHT if taught else 1)
    by_text = _OF_MOST_EPOCHS * model_size.most_epochs(parameters, in_epochs=True) * text_tokens
    tokens = min(by_time, by_text)
    most = _MOST_AT_ONCE if machine.cuda else _MOST_AT_ONCE_ON_CPU
    # Batches of about 2 * sqrt(tokens) tokens were near the best in runs of 2 M and 8 M tokens (docs/recipe.md).
    B = round(min(most, 2 * math.sqrt(min(tokens, _BATCH_EPOCHS * text_tokens))) / cfg.T)
    B = min(max(4, B), max(1, int(tokens / cfg.T / _FEWEST_STEPS)))
    steps = max(1, int(tokens / (B * cfg.T)))
    limit = "time" if by_time < by_text else "text"
    return PlannedRun(cfg, B, steps, parameters, flops, text_tokens, limit, taught)


def context_for(surveys: Sequence[Survey], *, most: int, bytes_a_token: float) -> int:
    """Return the longest context T, at most `most`, of which 1.5 windows fit into the held-out text of every source."""
    tokens = [survey.text_bytes * survey.held_out / bytes_a_token for survey in surveys]
    for T in (1024, 512, 256, 128):
        if most >= T and min(tokens) >= 1.5 * (T + 1):
            return T
    smallest = min(surveys, key=lambda survey: survey.text_bytes)
    raise ValueError(
        f"{smallest.path} holds {smallest.text_bytes:,} bytes of text, too little for a source of its own: put it into "
        "one folder with other text"
    )


@cache
def costs(cfg: ModelConfig) -> tuple[int, int]:
    """Return (parameters, FLOPs per token of training); the model is on the meta device, where it takes no memory."""
    with torch.device("meta"):
        model = GPT(cfg)
    return model.parameter_count(), model_size.flops_per_token(model, T=cfg.T)


# Outlook of a run, what it reads and what its model will write: one answer for `init` and `doctor`, from params.yaml.
# Tokens of a text are estimated from its size until cache/mix.json has counted them, as the report does.


@dataclass(frozen=True)
class Outlook:
    """Text that a run trains on, and the loss and ability expected of its model."""

    seen: Mapping[str, Exposure]  # by source of text
    too_often: Sequence[str]  # warnings of sources with too many epochs
    loss: str  # expected by the scaling law, in words; empty from a base, which the law does not cover
    ability: Ability
    further: tuple[float, Ability] | None = None  # hours that would do better, and what they would do

    def remedies(self) -> list[str]:
        """Return what would make the model write more than it will."""
        if not self.loss:
            return ["what it says about your notes may be invented"]
        hours = [f"with --hours {self.further[0]:g}: {self.further[1]}"] if self.further else []
        base = "with a pretrained model: sentences in your style (--from smollm2; `make base` installs it)"
        return [*hours, base] if self.ability != Ability.SENTENCES else []

    @property
    def epochs(self) -> str:
        """Return as text the epochs over each source that has any weight and whose size is known."""
        seen = {name: it for name, it in self.seen.items() if it.epochs}
        return ", ".join(f"{name} {it.epochs:,.2f} of {it.tokens:,.0f} tokens" for name, it in seen.items())


def look_ahead(params: Mapping[str, Any], *, known: Mapping[str, float] | None = None) -> Outlook:
    """Return the outlook of a run; `known` has the bytes of text of the sources for which a survey has them."""
    cfg = model_config(params)
    texts = {name: source for name, source in params["sources"].items() if source["use"] == "text"}
    pretrained, V = params["tokenizer"]["kind"] == "hf", params["tokenizer"].get("vocab_size", BYTES)
    a_token = model_size.BASE_BYTES_PER_TOKEN if pretrained else bytes_per_token(V)
    mix = read_meta(layout.MIX) if layout.MIX.is_file() else {"sources": {}}
    # Counts of another vocabulary are of an earlier run.
    counted = mix["sources"] if cfg is None or mix.get("vocab_size", cfg.V) == cfg.V else {}
    tokens = {
        name: counted[name]["train"]["tokens"]
        if name in counted
        else _trained_bytes(source, a_token, size=(known or {}).get(name)) / a_token
        for name, source in texts.items()
    }
    steps = params["train"]["total_steps"]
    seen = exposures(params["p_train"], tokens, drawn=steps * params["train"]["B"] * params["model"]["T"])
    # Text of unknown size is taken to be read once.
    in_epochs = params["train"]["windows"] == "epochs"
    readings = [
        Reading((it.tokens or it.drawn) * a_token, it.drawn * a_token, in_epochs) for it in seen.values() if it.drawn
    ]
    loss, ability, parameters = "", Ability.SENTENCES, model_size.parameter_count(cfg) if cfg else None
    if params["base"]["from"] is None and parameters is not None:
        ability = model_size.expected_ability(parameters, readings, steps=steps)
        loss = _expected_loss(parameters, readings, steps=steps, optimizer=params["train"]["optimizer"])
    most = model_size.most_epochs(parameters or model_size.LARGEST_MODEL, in_epochs=in_epochs)
    return Outlook(seen, read_too_often(seen, most=most), loss, ability)


def _expected_loss(parameters: int, readings: Sequence[Reading], *, steps: int, optimizer: str) -> str:
    """Return the expected loss in words; no figure below the range of the law."""
    size = sum(reading.size for reading in readings)
    what = f"{size / 1e6:.1f} MB of text and {parameters / 1e6:.1f} M parameters"
    if size < model_size.SMALLEST_TEXT or parameters < model_size.SMALLEST_MODEL:
        return f"{what} are too little to predict the final loss"
    bits = model_size.expected_bits_per_byte(parameters, readings, steps=steps)
    recipe = " with preset v2's recipe, higher with this one" if optimizer != "muon" else ""
    beyond = size > model_size.LARGEST_TEXT or parameters > model_size.LARGEST_MODEL
    note = " (extrapolated: no run of this size was measured)" if beyond else ""
    return f"{what}, expected loss about {bits:.2f} bits per byte on held-out English{recipe}{note}"


_LONGER = (0.25, 0.5, 1, 2, 4, 8, 24, 72, 240)  # hours to try


def look_further(ahead: Outlook, planned: Callable[[float], PlannedRun], *, hours: float) -> Outlook:
    """Return the outlook with the fewest hours, of those worth trying, for which a better run than this is planned."""
    better = list(Ability)[list(Ability).index(ahead.ability) + 1 :]
    tried = ((more, planned(more).expected(model_size.expected_ability)) for more in _LONGER if better and more > hours)
    return replace(ahead, further=next((found for found in tried if found[1] in better), None))


def _trained_bytes(source: Mapping[str, Any], a_token: float, *, size: float | None) -> float:
    """Return the bytes of a source's training text as far as known before it is loaded; 0 if unknown."""
    budget, load = source["budget"]["max_train_tokens"], source["load"]
    limits = [budget * a_token] if budget is not None else []
    if load.get("dataset") is None:
        path = Path(source["input"])
        if size is None and load["kind"] == "text" and path.is_dir():
            with suppress(ValueError, OSError):  # a file that cannot be read, which the checks of inputs name
                size = text_bytes(str(path), PLAIN if load.get("glob") else SUFFIXES)
        size = size_on_disk(path) if size is None else size
        limits.append(size * (1 - (load.get("held_out_tail") or source["split"].get("val_frac", 0.0))))
    return min(limits, default=0.0)


def size_on_disk(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder; 0 if there is none."""
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())


def model_config(params: Mapping[str, Any]) -> ModelConfig | None:
    """Return the configuration of the model to train; None if it is that of a base that is not imported yet."""
    if params["base"]["from"] is not None:
        shape = {key: params["model"][key] for key in ("T", "dropout")}
        return open_base(layout.BASE).config(**shape) if is_imported(layout.BASE) else None
    return ModelConfig.from_section(params["model"], V=params["tokenizer"].get("vocab_size", BYTES))


class Pace(NamedTuple):
    """Seconds on idle cores, and the share of the cores that other programs took while it was measured, 0 to 1."""

    seconds: float
    busy: float = 0.0

    def __str__(self) -> str:
        if not self.busy:
            return f"about {format_duration(self.seconds)} here"
        now = format_duration(self.seconds / (1 - self.busy))
        return f"about {format_duration(self.seconds)} on idle cores, {now} while others take {self.busy:.0%} of them"


def seconds_to_train(params: Mapping[str, Any], *stages: str) -> dict[str, Pace]:
    """Return the expected time of `stages`, by default train and sft; {} with a base that is not imported yet."""
    cfg, out = model_config(params), {}
    if cfg is None:
        return {}
    for stage in stages or trained_stages(params):
        settings = {key: value for key, value in params[stage].items() if key not in ("dropout", "run")}
        train_cfg = TrainConfig(**settings)
        a_step = seconds_per_step(cfg, train_cfg, params["runtime"])
        runs = TAUGHT if train_cfg.teacher else 1
        out[stage] = a_step._replace(seconds=a_step.seconds * train_cfg.total_steps * runs)
    return out


_MEASURED_S = 8.0  # seconds of real steps, train and sft together
_IDLE = 0.75  # of the threads' wall time that is CPU time; above it, the rest is put down to serial parts of a step
_PARALLEL = 0.9  # speed of n threads over n times that of one


def seconds_per_step(cfg: ModelConfig, train_cfg: TrainConfig, runtime: Mapping[str, Any]) -> Pace:
    """Return the pace of a training step here, from real steps on random tokens for 4 s.

    A thread that waits for a core has wall time and no CPU time, which tells a busy machine from a slow one. One that
    waits for another thread spins, so the CPU time of a step on idle cores is measured with one thread.
    """
    execution = execution_of(runtime)
    step = build_step(GPT(cfg).to(execution.device), train_cfg, execution, state=None)
    x = torch.randint(0, cfg.V, (train_cfg.B, cfg.T))
    batch = Batch.of(x, x, {})

    def timed() -> tuple[float, float]:
        """Return the wall and the CPU seconds of a step."""
        start, cpu, steps = time.perf_counter(), time.process_time(), 0
        while not steps or (time.perf_counter() - start < _MEASURED_S / 2 and steps < train_cfg.total_steps):
            step(batch, lr=0.0, n=0).item()
            steps += 1
        return (time.perf_counter() - start) / steps, (time.process_time() - cpu) / steps

    step(batch, lr=0.0, n=0).item()  # warm-up; compiles where runtime.compile asks for it
    (wall, cpu), threads = timed(), torch.get_num_threads()
    if execution.device != "cpu" or cpu > _IDLE * wall * threads:
        return Pace(wall)
    torch.set_num_threads(1)
    idle = timed()[1] / (1 if threads == 1 else _PARALLEL * threads)
    torch.set_num_threads(threads)
    return Pace(idle, 1 - idle / wall) if idle < wall else Pace(wall)


def trained_stages(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the stages that train; params.yaml may leave out fine-tuning."""
    tuning = params.get("sft")
    return ("train",) if isinstance(tuning, Mapping) and tuning.get("run") is False else ("train", "sft")


def execution_of(runtime: Mapping[str, Any]) -> Execution:
    """Return how a run would execute here; raise ValueError if it names a device that is not available."""
    device = prepare_device(runtime["device"], threads=runtime["threads"])
    as_run = {key: runtime[key] for key in ("compile", "micro_batch_tokens", "deterministic")}
    return Execution(device=device, say=lambda text: None, **as_run)
