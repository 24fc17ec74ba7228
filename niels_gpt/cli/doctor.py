"""niels-gpt doctor: check what a run needs, and estimate its duration on this machine and its final loss."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from niels_gpt.base.imported import is_imported, open_base
from niels_gpt.cli.sizing import TAUGHT
from niels_gpt.cli.survey import PLAIN, text_bytes
from niels_gpt.config import ModelConfig, TrainConfig
from niels_gpt.data import hub
from niels_gpt.data.corpus.mix import Exposure, exposures, read_too_often
from niels_gpt.data.text import SUFFIXES
from niels_gpt.device import prepare_device
from niels_gpt.files.checks import read_meta
from niels_gpt.files.messages import format_duration, plural
from niels_gpt.model import size as scaling
from niels_gpt.model.gpt import GPT
from niels_gpt.model.size import BYTES, Ability, Reading, parameter_count
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.external_checks import check_input, remote_problems
from niels_gpt.pipeline.repository import broken_files
from niels_gpt.pipeline.sources import BUNDLED
from niels_gpt.pipeline.yaml_files import is_sound
from niels_gpt.train.step import build_step
from niels_gpt.train.task import Batch, Execution, check_memory

_MEASURED_S = 8.0  # seconds of real steps, train and sft together


@dataclass(frozen=True)
class Finding:
    """Result of one check: `fix` says what must be done, `advice` what could be done."""

    what: str
    fix: str | None = None
    advice: str | None = None


def examine(params: Mapping[str, Any], *, folder: Path, wrong: Collection[tuple[str, ...]] = ()) -> Iterator[Finding]:
    """Yield the result of every check but the speed.

    `params` is params.yaml as a plain mapping. It has errors at the paths `wrong`; checks that need those are skipped.
    """

    def sound(*path: str) -> bool:
        return is_sound(path, wrong)

    yield Finding(f"python {sys.version.split()[0]}, torch {torch.__version__}, {os.cpu_count()} cores")
    if sound("runtime"):
        yield _device(params["runtime"]["device"])
    cfg = model_config(params, folder) if all(map(sound, ("base", "model", "tokenizer"))) else None
    if cfg and sound("sources"):
        yield _disk(params, folder, cfg)
    if cfg and all(map(sound, ("train", "sft", "runtime"))):
        yield from _memory(params, cfg)
    for name in broken_files(folder):
        yield Finding(f"{name} is half-written: DVC was stopped while it wrote it", "`niels-gpt doctor --fix`")
    sources = params["sources"] if isinstance(params.get("sources"), dict) else {}
    why_unreachable = cache(hub.why_unreachable)  # checked once, and only if a source needs it
    for name, source in sources.items():
        if sound("sources", str(name)):
            yield from _source(name, source, folder / source["input"], why_unreachable)
    for problem in remote_problems(params, folder=folder, wrong=wrong):
        what, _, fix = problem.sentence.rpartition("; ")
        yield Finding(what, fix)
    yield from _kept_secrets(folder)
    if sound("base") and (base := (params.get("base") or {}).get("from")):
        yield _base(base, folder)
    for model, skipped in ((layout.PRETRAINED, False), (layout.TUNED, _left_out(params, "sft"))):
        trained = "trained" if (folder / model / layout.BEST).is_file() else "not trained yet; run `dvc repro`"
        yield Finding(f"{model}: {'skipped, since sft.run is false' if skipped else trained}")
    if all(map(sound, ("base", "model", "p_train", "sources", "tokenizer", "train"))):
        yield from _outlook(params, folder, cfg)


def _base(name: str, folder: Path) -> Finding:
    from niels_gpt.base.importing import INSTALL, bundled_file

    if is_imported(folder / layout.BASE):
        return Finding(f"base: {name}, imported")
    later = f"base: {name}, not imported yet; `dvc repro base` does it"
    if name == BUNDLED:
        try:
            bundled_file()
        except ValueError:
            return Finding(later, f"run {INSTALL}")
    return Finding(later)


def _left_out(params: Mapping[str, Any], stage: str) -> bool:
    section = params.get(stage)
    return isinstance(section, Mapping) and section.get("run") is False


def _kept_secrets(folder: Path) -> Iterator[Finding]:
    """Yield a finding for each loaded source in which secrets are kept."""
    from niels_gpt.data.corpus.parts import MANIFEST  # imports pyarrow, which training does not need

    for path in sorted((folder / layout.RAW).glob(f"*/{MANIFEST}")):
        secrets = read_meta(path).get("secrets", {})
        if secrets.get("done") == "keep":
            counts = ", ".join(f"{kind}: {n:,}" for kind, n in secrets.items() if kind not in ("done", "documents"))
            what = f"{path.parent.name}: secrets in {plural(secrets['documents'], 'document')} are kept ({counts})"
            yield Finding(what, advice=f"remove them, or set on_secret: mask in the `load` of {path.parent.name}")


def _device(name: str) -> Finding:
    try:
        device = prepare_device(name, threads=0)
    except ValueError as error:
        return Finding(f"device {name}", str(error))
    return Finding(f"computing on {torch.cuda.get_device_name(device) if device.startswith('cuda') else device}")


def _disk(params: Mapping[str, Any], folder: Path, cfg: ModelConfig) -> Finding:
    free = shutil.disk_usage(folder).free
    sources = params["sources"].items()
    texts = {name: _loaded_size(source, folder) for name, source in sources if source["use"] == "text"}
    known = sum(size for size in texts.values() if size is not None)
    # Text and tokens, each in the work tree and in DVC's cache; 16 float32 numbers per parameter for all copies of
    # weights, optimizer moments and best weights; 100 MiB for the rest.
    needed = 4 * known + 16 * 4 * parameter_count(cfg) + (100 << 20)
    what = f"disk: {free / 2**30:.1f} GiB free, about {needed / 2**30:.1f} GiB needed"
    if whole := [name for name, size in texts.items() if size is None]:
        what += f", plus 4 times the text of {', '.join(whole)}, whose size on the hub is unknown"
    fix = f"free {(needed - free) / 2**30:.1f} GiB: `niels-gpt store --checkpoints`, `dvc gc -w`"
    return Finding(what, None if free > needed else fix)


def _memory(params: Mapping[str, Any], cfg: ModelConfig) -> Iterator[Finding]:
    """Yield a finding for each training that cannot fit into the device's memory."""
    try:
        execution = _execution(params["runtime"])
    except ValueError:  # no such device, as _device reports
        return
    for stage in _trained(params):
        try:
            check_memory(cfg, B=params[stage]["B"], execution=execution, frozen=params[stage].get("freeze_blocks", 0))
        except ValueError as error:
            what, _, fix = str(error).rpartition(": ")
            yield Finding(f"{stage}: {what}", fix)


def _trained(params: Mapping[str, Any]) -> tuple[str, ...]:
    return ("train",) if _left_out(params, "sft") else ("train", "sft")


def _execution(runtime: Mapping[str, Any]) -> Execution:
    device = prepare_device(runtime["device"], threads=runtime["threads"])
    as_run = {key: runtime[key] for key in ("compile", "micro_batch_tokens", "deterministic")}
    return Execution(device=device, say=lambda text: None, **as_run)


def _loaded_size(source: Mapping[str, Any], folder: Path) -> float | None:
    """Return the bytes of text to load, from local files or from a stream's token budgets; None if unknown."""
    load, budget = source["load"], source["budget"].values()
    if load.get("dataset") is None:
        return size_on_disk(folder / source["input"])
    # Both splits come from one stream, which ends when their budgets are used up; other datasets are loaded whole.
    return sum(budget) * float(load["bytes_per_token"]) if "bytes_per_token" in load and None not in budget else None


def _outlook(params: Mapping[str, Any], folder: Path, cfg: ModelConfig | None) -> Iterator[Finding]:
    """Yield the epochs over each source, advice on sources with too many, the expected loss, and the verdict."""
    ahead = look_ahead(params, folder=folder, cfg=cfg)
    yield Finding(f"epochs: {ahead.epochs or 'unknown until the text is loaded'}")
    most = scaling.most_epochs(
        ahead.parameters or scaling.LARGEST_MODEL, in_epochs=params["train"]["windows"] == "epochs"
    )
    for sentence in read_too_often(ahead.seen, most=most):
        what, _, advice = sentence.partition("; ")
        yield Finding(what, advice=advice)
    if ahead.bits is not None:
        yield Finding(f"train: {ahead.loss}; docs/recipe.md says what to change")
    yield Finding(f"verdict: {ahead.ability}", advice="; ".join(ahead.remedies()) or None)


# Outlook of a run, what it reads and what its model will write: one answer for `init` and `doctor`, from params.yaml.
# Tokens of a text are estimated from its size until cache/mix.json has counted them, as the report does.


@dataclass(frozen=True)
class Outlook:
    """Text that a run trains on, and the loss and ability expected of its model."""

    seen: Mapping[str, Exposure]  # by source of text, if it has any weight and its size is known
    text_bytes: float  # of training text
    parameters: int | None  # None: those of a base that is not imported yet
    bits: float | None  # expected by the scaling law, per byte; None from a base, which the law does not cover
    ability: Ability
    note: str = ""  # on the recipe or on the range of the law
    further: tuple[float, Ability] | None = None  # hours that would do better, and what they would do

    def remedies(self) -> list[str]:
        """Return what would make the model write more than it will."""
        if self.bits is None:
            return ["what it says about your notes may be invented"]
        hours = [f"with --hours {self.further[0]:g}: {self.further[1]}"] if self.further else []
        base = "with a pretrained model: sentences in your style (--from smollm2; `make base` installs it)"
        return [*hours, base] if self.ability != Ability.SENTENCES else []

    @property
    def epochs(self) -> str:
        """Return the epochs over each source as text."""
        return ", ".join(f"{name} {it.epochs:,.2f} of {it.tokens:,.0f} tokens" for name, it in self.seen.items())

    @property
    def loss(self) -> str:
        """Return the expected loss as text; no figure below the range of the law."""
        assert self.bits is not None
        assert self.parameters is not None
        what = f"{self.text_bytes / 1e6:.1f} MB of text and {self.parameters / 1e6:.1f} M parameters"
        if self.text_bytes < scaling.SMALLEST_TEXT or self.parameters < scaling.SMALLEST_MODEL:
            return f"{what} are too little to predict the final loss"
        return f"{what}, expected loss about {self.bits:.2f} bits per byte on held-out English{self.note}"


def look_ahead(
    params: Mapping[str, Any], *, folder: Path, cfg: ModelConfig | None, known: Mapping[str, float] | None = None
) -> Outlook:
    """Return the outlook of a run; `cfg` is None for a base that is not imported yet.

    `known` has the bytes of text in each folder of text, where they are known already.
    """
    texts = {name: source for name, source in params["sources"].items() if source["use"] == "text"}
    pretrained, V = params["tokenizer"]["kind"] == "hf", params["tokenizer"].get("vocab_size", BYTES)
    a_token = scaling.BASE_BYTES_PER_TOKEN if pretrained else scaling.bytes_per_token(V)
    mix = read_meta(folder / layout.MIX) if (folder / layout.MIX).is_file() else {"sources": {}}
    # Counts of another vocabulary are of an earlier run.
    counted = mix["sources"] if cfg is None or mix.get("vocab_size", cfg.V) == cfg.V else {}
    tokens = {
        name: counted[name]["train"]["tokens"]
        if name in counted
        else (_trained_bytes(source, folder, a_token, size=(known or {}).get(name)) or 0.0) / a_token
        for name, source in texts.items()
    }
    steps = params["train"]["total_steps"]
    seen = exposures(params["p_train"], tokens, drawn=steps * params["train"]["B"] * params["model"]["T"])
    # Text of unknown size is taken to be read once.
    in_epochs = params["train"]["windows"] == "epochs"
    readings = [
        Reading((it.tokens or it.drawn) * a_token, it.drawn * a_token, in_epochs) for it in seen.values() if it.drawn
    ]
    size, parameters = sum(reading.size for reading in readings), parameter_count(cfg) if cfg else None
    bits, note, ability = None, "", Ability.SENTENCES
    if params["base"]["from"] is None and parameters is not None:
        bits = scaling.expected_bits_per_byte(parameters, readings, steps=steps)
        ability = scaling.expected_ability(parameters, readings, steps=steps)
        note = " with preset v2's recipe, higher with this one" if params["train"]["optimizer"] != "muon" else ""
        if size > scaling.LARGEST_TEXT or parameters > scaling.LARGEST_MODEL:
            note += " (extrapolated: no run of this size was measured)"
    return Outlook({name: it for name, it in seen.items() if it.epochs}, size, parameters, bits, ability, note)


_LONGER = (0.25, 0.5, 1, 2, 4, 8, 24, 72, 240)  # hours to try


def look_further(ahead: Outlook, ability_in: Callable[[float], Ability], *, hours: float) -> Outlook:
    """Return the outlook with the fewest hours, of those worth trying, that do better than `hours`."""
    better = list(Ability)[list(Ability).index(ahead.ability) + 1 :]
    tried = ((more, ability_in(more)) for more in _LONGER if better and more > hours)
    return replace(ahead, further=next((found for found in tried if found[1] in better), None))


def _trained_bytes(source: Mapping[str, Any], folder: Path, a_token: float, *, size: float | None) -> float | None:
    """Return the bytes of a source's training text as far as known before it is loaded; None if unknown."""
    budget, load = source["budget"]["max_train_tokens"], source["load"]
    limits = [budget * a_token] if budget is not None else []
    if load.get("dataset") is None:
        path = folder / source["input"]
        try:
            if size is None and load["kind"] == "text" and path.is_dir():
                size = text_bytes(str(path), PLAIN if load.get("glob") else SUFFIXES)
        except (ValueError, OSError):  # a file that cannot be read, which the checks of inputs name
            pass
        size = size_on_disk(path) if size is None else size
        limits.append(size * (1 - (load.get("held_out_tail") or source["split"].get("val_frac", 0.0))))
    return min(limits, default=None)


def size_on_disk(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder; 0 if there is none."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size if path.is_file() else 0


def _source(
    name: str, source: Mapping[str, Any], path: Path, why_unreachable: Callable[[], str | None]
) -> Iterator[Finding]:
    """Yield whether the text of a source can be read, from the hub, its local cache or `path`."""
    load, written = source["load"], source["input"]
    if (dataset := load.get("dataset")) is not None:
        if not hub.is_offline():
            reason = why_unreachable()
            yield Finding(f"{name}: {dataset} from the hub", reason and f"{reason}: connect, or use a local `input`")
        elif hub.cached_commit(dataset, load.get("config")):
            yield Finding(f"{name}: {dataset} from the local cache, since HF_HUB_OFFLINE is set")
        else:
            fix = "unset HF_HUB_OFFLINE once, to fetch it, or use a local `input`"
            yield Finding(f"{name}: {dataset} is not in the local cache, and HF_HUB_OFFLINE is set", fix)
        return
    if not path.exists():
        yield Finding(f"{name}: {written} does not exist", f"put the text there, or remove {name} from params.yaml")
        return
    yield Finding(f"{name}: {written} ({size_on_disk(path) / 1e6:.1f} MB)")
    faults = check_input(str(path))
    for fault in faults:
        what, _, fix = fault.rpartition(": ")
        yield Finding(f"{name}: {what}", fix)
    if faults:  # skipped files can only be listed in a readable folder
        return
    from niels_gpt.data.kinds import say_left_out, source_kinds  # imports pyarrow

    settings = source_kinds()[load["kind"]].settings
    asked = {field.name: load[field.name] for field in fields(settings) if field.name in load}
    if said := say_left_out(load["kind"], settings(**asked), str(path)):
        what, *others = said
        watched = "DVC hashes them with the folder, so a change runs load again, with the same result"
        yield Finding(f"{name}: {what}", advice="; ".join([*others, f"{watched} (.dvcignore avoids it)"]))


def model_config(params: Mapping[str, Any], folder: Path = Path()) -> ModelConfig | None:
    """Return the configuration of the model to train; None if it is that of a base that is not imported yet."""
    if params["base"]["from"] is not None:
        base, given = folder / layout.BASE, params["model"]
        return open_base(base).config(T=given["T"], dropout=given["dropout"]) if is_imported(base) else None
    V = params["tokenizer"].get("vocab_size", BYTES)
    return ModelConfig.from_section(params["model"], V=V)


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
    for stage in stages or _trained(params):
        settings = {key: value for key, value in params[stage].items() if key not in ("dropout", "run")}
        train_cfg = TrainConfig(**settings)
        a_step = seconds_per_step(cfg, train_cfg, params["runtime"])
        runs = TAUGHT if train_cfg.teacher else 1
        out[stage] = a_step._replace(seconds=a_step.seconds * train_cfg.total_steps * runs)
    return out


_IDLE = 0.75  # of the threads' wall time that is CPU time; above it, the rest is put down to serial parts of a step
_PARALLEL = 0.9  # speed of n threads over n times that of one


def seconds_per_step(cfg: ModelConfig, train_cfg: TrainConfig, runtime: Mapping[str, Any]) -> Pace:
    """Return the pace of a training step here, from real steps on random tokens for 4 s.

    A thread that waits for a core has wall time and no CPU time, which tells a busy machine from a slow one. One that
    waits for another thread spins, so the CPU time of a step on idle cores is measured with one thread.
    """
    execution = _execution(runtime)
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
