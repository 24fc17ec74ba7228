"""niels-gpt doctor: check what a run needs, and estimate its duration on this machine and its final loss."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch

from niels_gpt.base.imported import is_imported, open_base
from niels_gpt.cli.outlook import look_ahead, size_on_disk
from niels_gpt.cli.sizing import TAUGHT
from niels_gpt.config import ModelConfig, TrainConfig
from niels_gpt.data import hub
from niels_gpt.data.corpus.mix import read_too_often
from niels_gpt.device import prepare_device
from niels_gpt.files.checks import read_meta
from niels_gpt.files.messages import format_duration, plural
from niels_gpt.model.gpt import GPT
from niels_gpt.model.size import BYTES, LARGEST_MODEL, most_epochs, parameter_count
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
    written = params.get("sources")
    sources = written if isinstance(written, dict) else {}
    sources = {name: source for name, source in sources.items() if sound("sources", str(name))}
    why_unreachable = cache(hub.why_unreachable)  # checked once, and only if a source needs it
    for name, source in sources.items():
        dataset = source["load"].get("dataset")
        if dataset is None:
            yield from _input(name, folder / source["input"], source)
        elif not hub.is_offline():
            reason = why_unreachable()
            yield Finding(f"{name}: {dataset} from the hub", reason and f"{reason}: connect, or use a local `input`")
        elif hub.cached_commit(dataset, source["load"].get("config")):
            yield Finding(f"{name}: {dataset} from the local cache, since HF_HUB_OFFLINE is set")
        else:
            fix = "unset HF_HUB_OFFLINE once, to fetch it, or use a local `input`"
            yield Finding(f"{name}: {dataset} is not in the local cache, and HF_HUB_OFFLINE is set", fix)
    for problem in remote_problems(params, folder=folder, wrong=wrong):
        what, _, fix = problem.sentence.rpartition("; ")
        yield Finding(what, fix)
    yield from _kept_secrets(folder)
    yield from chain(_base(params, folder) if sound("base") else (), _models(params, folder))
    needed = ("base", "model", "p_train", "sources", "tokenizer", "train")
    if all(map(sound, needed)):
        yield from _outlook(params, folder, cfg)


def _base(params: Mapping[str, Any], folder: Path) -> Iterator[Finding]:
    name = (params.get("base") or {}).get("from")
    if name is None:
        return
    from niels_gpt.base.importing import INSTALL, bundled_file

    if is_imported(folder / layout.BASE):
        yield Finding(f"base: {name}, imported")
        return
    missing = None
    try:
        _ = bundled_file() if name == BUNDLED else None
    except ValueError:
        missing = f"run {INSTALL}"
    yield Finding(f"base: {name}, not imported yet; `dvc repro base` does it", missing)


def _models(params: Mapping[str, Any], folder: Path) -> Iterator[Finding]:
    for model in (layout.PRETRAINED, layout.TUNED):
        there = (folder / model / layout.BEST).is_file()
        if model == layout.TUNED and _left_out(params, "sft"):
            yield Finding(f"{model}: skipped, since sft.run is false")
        else:
            yield Finding(f"{model}: " + ("trained" if there else "not trained yet; run `dvc repro`"))


def _left_out(params: Mapping[str, Any], stage: str) -> bool:
    section = params.get(stage)
    return isinstance(section, Mapping) and section.get("run") is False


def _kept_secrets(folder: Path) -> Iterator[Finding]:
    """Yield a finding for each loaded source in which secrets are kept."""
    from niels_gpt.data.corpus.parts import MANIFEST  # imports pyarrow, which training does not need

    for path in sorted((folder / layout.RAW).glob(f"*/{MANIFEST}")):
        secrets = read_meta(path).get("secrets", {})
        if secrets.get("done") == "keep":
            kinds = {kind: count for kind, count in secrets.items() if kind not in ("done", "documents")}
            counts = ", ".join(f"{kind}: {count:,}" for kind, count in kinds.items())
            what = f"{path.parent.name}: secrets in {plural(secrets['documents'], 'document')} are kept ({counts})"
            yield Finding(what, advice=f"remove them, or set on_secret: mask in the `load` of {path.parent.name}")


def _device(name: str) -> Finding:
    try:
        device = prepare_device(name, threads=0)
    except ValueError as error:
        return Finding(f"device {name}", str(error))
    label = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    return Finding(f"computing on {label}")


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
    return Finding(
        what,
        None
        if free > needed
        else f"free {(needed - free) / 2**30:.1f} GiB: `niels-gpt store --checkpoints`, `dvc gc -w`",
    )


def _memory(params: Mapping[str, Any], cfg: ModelConfig) -> Iterator[Finding]:
    """Yield a finding for each training that cannot fit into the device's memory."""
    try:
        execution = _execution(params["runtime"])
    except ValueError:  # no such device, as _device reports
        return
    for stage in _trained(params):
        try:
            frozen = params[stage].get("freeze_blocks", 0)
            check_memory(cfg, B=params[stage]["B"], execution=execution, frozen=frozen)
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
    load, budget = source["load"], source["budget"]
    if load.get("dataset") is None:
        return size_on_disk(folder / source["input"])
    # Both splits come from one stream, which ends when their budgets are used up; other datasets are loaded whole.
    if "bytes_per_token" not in load or None in budget.values():
        return None
    return float(sum(budget.values()) * load["bytes_per_token"])


def _outlook(params: Mapping[str, Any], folder: Path, cfg: ModelConfig | None) -> Iterator[Finding]:
    """Yield the epochs over each source, advice on sources with too many, the expected loss, and the verdict."""
    ahead = look_ahead(params, folder=folder, cfg=cfg)
    yield Finding(f"epochs: {ahead.epochs or 'unknown until the text is loaded'}")
    most = most_epochs(ahead.parameters or LARGEST_MODEL, in_epochs=params["train"]["windows"] == "epochs")
    for sentence in read_too_often(ahead.seen, most=most):
        what, _, advice = sentence.partition("; ")
        yield Finding(what, advice=advice)
    if ahead.bits is not None:
        yield Finding(f"train: {ahead.loss}; docs/recipe.md says what to change")
    yield Finding(f"verdict: {ahead.ability}", advice="; ".join(ahead.remedies()) or None)


def _input(name: str, path: Path, source: Mapping[str, Any]) -> Iterator[Finding]:
    written = source["input"]
    if not path.exists():
        yield Finding(f"{name}: {written} does not exist", f"put the text there, or remove {name} from params.yaml")
        return
    yield Finding(f"{name}: {written} ({size_on_disk(path) / 1e6:.1f} MB)")
    faults = check_input(str(path))
    for fault in faults:
        what, _, fix = fault.rpartition(": ")
        yield Finding(f"{name}: {what}", fix)
    if not faults:  # skipped files can only be listed in a readable folder
        yield from _files_left_out(name, path, source["load"])


def _files_left_out(name: str, path: Path, load: Mapping[str, Any]) -> Iterator[Finding]:
    from niels_gpt.data.kinds import say_left_out, source_kinds  # imports pyarrow

    settings = source_kinds()[load["kind"]].settings
    asked = {field.name: load[field.name] for field in fields(settings) if field.name in load}
    for what, *others in filter(None, [say_left_out(load["kind"], settings(**asked), str(path))]):
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
    for stage in (stages or _trained(params)) if cfg else ():
        settings = {key: value for key, value in params[stage].items() if key not in ("dropout", "run")}
        train_cfg = TrainConfig(**settings)
        assert cfg is not None
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
