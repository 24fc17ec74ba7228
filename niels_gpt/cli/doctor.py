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
from typing import Any

import torch

from niels_gpt.base.imported import is_imported, open_base
from niels_gpt.config import ModelConfig, TrainConfig
from niels_gpt.data import hub
from niels_gpt.data.corpus.mix import exposures, mix_probabilities, read_too_often
from niels_gpt.device import prepare_device
from niels_gpt.files.checks import read_meta
from niels_gpt.files.messages import plural
from niels_gpt.model.gpt import GPT
from niels_gpt.model.size import (
    LARGEST_MODEL,
    LARGEST_TEXT,
    SMALLEST_MODEL,
    SMALLEST_TEXT,
    Reading,
    bytes_per_token,
    expected_bits_per_byte,
    most_epochs,
    parameter_count,
)
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.external_checks import check_input, remote_problems
from niels_gpt.pipeline.repository import broken_files
from niels_gpt.pipeline.sources import BUNDLED
from niels_gpt.pipeline.yaml_files import is_sound
from niels_gpt.tokenizer.tokenizers import ByteTokenizer
from niels_gpt.train.step import build_step
from niels_gpt.train.task import Batch, Execution, check_memory

_BYTES_A_TOKEN_OF_A_BASE = 4.0  # of notes in English, by the vocabulary of SmolLM2
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
    cfg = _model_config(params, folder) if all(map(sound, ("base", "model", "tokenizer"))) else None
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
    if cfg and all(map(sound, ("sources", "p_train", "train"))):
        yield from _epochs(params, folder, cfg)
        if params["base"]["from"] is None:  # the scaling law is one of models from scratch
            yield _loss(params, folder, cfg)


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
    texts = {name: _loaded_size(source, folder) for name, source in _texts(params).items()}
    known = sum(size for size in texts.values() if size is not None)
    # Text and tokens, each in the work tree and in DVC's cache; 16 float32 numbers per parameter for all copies of
    # weights, optimizer moments and best weights; 100 MiB for the rest.
    needed = 4 * known + 16 * 4 * parameter_count(cfg) + (100 << 20)
    what = f"disk: {free / 2**30:.1f} GiB free, about {needed / 2**30:.1f} GiB needed"
    if whole := [name for name, size in texts.items() if size is None]:
        what += f", plus 4 times the text of {', '.join(whole)}, whose size on the hub is unknown"
    return Finding(
        what, None if free > needed else f"free {(needed - free) / 2**30:.1f} GiB: `niels-gpt gc`, `dvc gc -w`"
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
        return _size(folder / source["input"])
    # Both splits come from one stream, which ends when their budgets are used up; other datasets are loaded whole.
    if "bytes_per_token" not in load or None in budget.values():
        return None
    return float(sum(budget.values()) * load["bytes_per_token"])


def _epochs(params: Mapping[str, Any], folder: Path, cfg: ModelConfig) -> Iterator[Finding]:
    """Yield the epochs over each source, and advice on sources with too many.

    Token counts are those of cache/mix.json; for sources not in it, they are estimated from the size of the text.
    """
    file, texts = folder / layout.MIX, _texts(params)
    sizes = dict.fromkeys(texts, 0.0)
    counted = read_meta(file)["sources"] if file.is_file() else {}
    for name, source in texts.items():
        size = _text_size(source, folder, _bytes_per_token(params)) or 0.0
        sizes[name] = counted[name]["train"]["tokens"] if name in counted else size / _bytes_per_token(params)
    drawn = params["train"]["total_steps"] * params["train"]["B"] * params["model"]["T"]
    seen = {name: source for name, source in exposures(params["p_train"], sizes, drawn=drawn).items() if source.epochs}
    shown = ", ".join(f"{name} {source.epochs:,.1f} of {source.tokens:,.0f} tokens" for name, source in seen.items())
    yield Finding(f"epochs: {shown or 'unknown until the text is loaded'}")
    for sentence in read_too_often(seen, most=most_epochs(parameter_count(cfg))):
        what, _, advice = sentence.partition("; ")
        yield Finding(what, advice=advice)


def _texts(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: source for name, source in params["sources"].items() if source["use"] == "text"}


def _bytes_per_token(params: Mapping[str, Any]) -> float:
    if params["tokenizer"]["kind"] == "hf":
        return _BYTES_A_TOKEN_OF_A_BASE
    return bytes_per_token(params["tokenizer"]["vocab_size"]) if "vocab_size" in params["tokenizer"] else 1.0


def _loss(params: Mapping[str, Any], folder: Path, cfg: ModelConfig) -> Finding:
    """Estimate the final loss by the scaling law, in bits per byte; no figure for runs below the measured range."""
    parameters, steps, readings = parameter_count(cfg), params["train"]["total_steps"], []
    a_token = _bytes_per_token(params)
    in_all = steps * params["train"]["B"] * params["model"]["T"] * a_token
    for name, share in mix_probabilities(params["p_train"], _texts(params), name="p_train").items():
        size = _text_size(params["sources"][name], folder, a_token)
        readings.append(Reading(size or in_all * share, in_all * share))
    text = sum(reading.size for reading in readings)
    what = f"train: {text / 1e6:.1f} MB of text and {parameters / 1e6:.1f} M parameters"
    if text < SMALLEST_TEXT or parameters < SMALLEST_MODEL:
        return Finding(f"{what} are too little to predict the final loss")
    loss = f"about {expected_bits_per_byte(parameters, readings, steps=steps):.2f} bits per byte on held-out English"
    if params["train"]["optimizer"] != "muon":
        loss += " with preset v2's recipe, higher with this one"
    if text > LARGEST_TEXT or parameters > LARGEST_MODEL:
        loss += " (extrapolated: no run of this size was measured)"
    return Finding(f"{what}, expected loss {loss}; docs/recipe.md says what to change")


def _text_size(source: Mapping[str, Any], folder: Path, a_token: float) -> float | None:
    """Return the bytes of a source's training text as far as known before it is loaded; None if unknown."""
    budget, local = source["budget"]["max_train_tokens"], source["load"].get("dataset") is None
    sizes = [budget * a_token] if budget is not None else []
    if local:
        sizes.append(_size(folder / source["input"]) * (1 - source["split"].get("val_frac", 0.0)))
    return min(sizes, default=None)


def _input(name: str, path: Path, source: Mapping[str, Any]) -> Iterator[Finding]:
    written = source["input"]
    if not path.exists():
        yield Finding(f"{name}: {written} does not exist", f"put the text there, or remove {name} from params.yaml")
        return
    yield Finding(f"{name}: {written} ({_size(path) / 1e6:.1f} MB)")
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


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size if path.is_file() else 0


def _model_config(params: Mapping[str, Any], folder: Path = Path()) -> ModelConfig | None:
    """Return the configuration of the model to train; None if it is that of a base that is not imported yet."""
    if params["base"]["from"] is not None:
        base, given = folder / layout.BASE, params["model"]
        return open_base(base).config(T=given["T"], dropout=given["dropout"]) if is_imported(base) else None
    V = params["tokenizer"].get("vocab_size", ByteTokenizer().vocab_size)
    return ModelConfig.from_section(params["model"], V=V)


def seconds_to_train(params: Mapping[str, Any]) -> dict[str, float]:
    """Return the expected seconds of train and sft here; {} if a base decides the model and is not imported yet."""
    cfg, out = _model_config(params), {}
    for stage in _trained(params) if cfg else ():
        settings = {key: value for key, value in params[stage].items() if key not in ("dropout", "run")}
        train_cfg = TrainConfig(**settings)
        assert cfg is not None
        out[stage] = seconds_per_step(cfg, train_cfg, params["runtime"]) * train_cfg.total_steps
    return out


def seconds_per_step(cfg: ModelConfig, train_cfg: TrainConfig, runtime: Mapping[str, Any]) -> float:
    """Return the seconds of a training step here, from real steps on random tokens for 4 s."""
    execution = _execution(runtime)
    step = build_step(GPT(cfg).to(execution.device), train_cfg, execution, state=None)
    x = torch.randint(0, cfg.V, (train_cfg.B, cfg.T))
    batch = Batch.of(x, x, {})
    step(batch, lr=0.0, n=0).item()  # warm-up; compiles where runtime.compile asks for it
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < _MEASURED_S / 2 and steps < train_cfg.total_steps:
        step(batch, lr=0.0, n=0).item()
        steps += 1
    return (time.perf_counter() - start) / steps
