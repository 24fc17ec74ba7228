"""niels-gpt doctor: check what a run needs, and estimate its duration on this machine and its final loss."""

import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import torch

from niels_gpt.base.imported import is_imported
from niels_gpt.cli.sizing import execution_of, look_ahead, model_config, seconds_to_train, size_on_disk, trained_stages
from niels_gpt.config import ModelConfig
from niels_gpt.data import hub
from niels_gpt.device import prepare_device
from niels_gpt.files.checks import read_meta
from niels_gpt.files.messages import plural
from niels_gpt.model.size import parameter_count
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.external_checks import check_input, problems_around
from niels_gpt.pipeline.sections import BUNDLED
from niels_gpt.pipeline.yaml_files import is_sound
from niels_gpt.train.task import check_memory


@dataclass(frozen=True)
class Finding:
    """Result of one check: `fix` says what must be done, `advice` what could be done."""

    what: str
    fix: str | None = None
    advice: str | None = None

    @classmethod
    def of(cls, problem: object) -> "Finding":
        """Return the finding that a sentence of the form "what is wrong: what to do" reports."""
        what, _, fix = str(problem).rpartition(": ")
        return cls(what, fix)


def examine(params: Mapping[str, Any], *, wrong: Collection[tuple[str, ...]] = ()) -> Iterator[Finding]:
    """Yield the result of every check but the speed, and but those that need a value at one of the paths `wrong`."""

    def sound(*sections: str) -> bool:
        return all(is_sound((section,), wrong) for section in sections)

    yield Finding(f"python {sys.version.split()[0]}, torch {torch.__version__}, {os.cpu_count()} cores")
    if sound("runtime"):
        yield _device(params["runtime"]["device"])
    cfg = model_config(params) if sound("base", "model", "tokenizer") else None
    if cfg and sound("sources"):
        yield _disk(params, cfg)
    if cfg and sound("train", "sft", "runtime"):
        yield from _memory(params, cfg)
    yield from map(Finding.of, problems_around(params, wrong=wrong))
    sources = params["sources"] if isinstance(params.get("sources"), dict) else {}
    why_unreachable = cache(hub.why_unreachable)  # checked once, and only if a source needs it
    for name, source in sources.items():
        if is_sound(("sources", str(name)), wrong):
            yield from _source(name, source, why_unreachable)
    yield from _kept_secrets()
    if sound("base") and (base := params["base"]["from"]):
        yield _base(base)
    for model, skipped in ((layout.PRETRAINED, False), (layout.TUNED, "sft" not in trained_stages(params))):
        trained = "trained" if (model / layout.BEST).is_file() else "not trained yet; run `dvc repro`"
        yield Finding(f"{model}: {'skipped, since sft.run is false' if skipped else trained}")
    if sound("base", "model", "p_train", "sources", "tokenizer", "train"):
        yield from _outlook(params)


def examine_speed(params: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield how long each training of a run will take here, by real steps."""
    for stage, pace in seconds_to_train(params).items():
        yield Finding(f"{stage} will take {pace}")


def _base(name: str) -> Finding:
    from niels_gpt.base.importing import INSTALL, bundled_file

    if is_imported(layout.BASE):
        return Finding(f"base: {name}, imported")
    later = f"base: {name}, not imported yet; `dvc repro base` does it"
    if name == BUNDLED:
        try:
            bundled_file()
        except ValueError:
            return Finding(later, f"run {INSTALL}")
    return Finding(later)


def _kept_secrets() -> Iterator[Finding]:
    """Yield a finding for each loaded source in which secrets are kept."""
    from niels_gpt.data.corpus.parts import MANIFEST  # imports pyarrow, which training does not need

    for path in sorted(layout.RAW.glob(f"*/{MANIFEST}")):
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


def _disk(params: Mapping[str, Any], cfg: ModelConfig) -> Finding:
    free = shutil.disk_usage(".").free
    sources = params["sources"].items()
    texts = {name: _loaded_size(source) for name, source in sources if source["use"] == "text"}
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
        execution = execution_of(params["runtime"])
    except ValueError:  # no such device, as _device reports
        return
    for stage in trained_stages(params):
        try:
            check_memory(cfg, B=params[stage]["B"], execution=execution, frozen=params[stage].get("freeze_blocks", 0))
        except ValueError as error:
            yield Finding.of(f"{stage}: {error}")


def _loaded_size(source: Mapping[str, Any]) -> float | None:
    """Return the bytes of text to load, from local files or from a stream's token budgets; None if unknown."""
    load, budget = source["load"], source["budget"].values()
    if load.get("dataset") is None:
        return size_on_disk(Path(source["input"]))
    # Both splits come from one stream, which ends when their budgets are used up; other datasets are loaded whole.
    return sum(budget) * float(load["bytes_per_token"]) if "bytes_per_token" in load and None not in budget else None


def _outlook(params: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the epochs over each source, advice on sources with too many, the expected loss, and the verdict."""
    ahead = look_ahead(params)
    yield Finding(f"epochs: {ahead.epochs or 'unknown until the text is loaded'}")
    for sentence in ahead.too_often:
        what, _, advice = sentence.partition("; ")
        yield Finding(what, advice=advice)
    if ahead.loss:
        yield Finding(f"train: {ahead.loss}; docs/recipe.md says what to change")
    yield Finding(f"verdict: {ahead.ability}", advice="; ".join(ahead.remedies()) or None)


def _source(name: str, source: Mapping[str, Any], why_unreachable: Callable[[], str | None]) -> Iterator[Finding]:
    """Yield from where the text of a source is read: the hub, its local cache, or a file or folder, with its size."""
    load, path = source["load"], source["input"]
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
    if not os.path.exists(path):
        return
    yield Finding(f"{name}: {path} ({size_on_disk(Path(path)) / 1e6:.1f} MB)")
    if check_input(path):  # skipped files can only be listed in a readable folder
        return
    from niels_gpt.data.kinds import say_left_out, source_kinds  # imports pyarrow

    settings = source_kinds()[load["kind"]].settings
    asked = {field.name: load[field.name] for field in fields(settings) if field.name in load}
    if said := say_left_out(load["kind"], settings(**asked), path):
        what, *others = said
        watched = "DVC hashes them with the folder, so a change runs load again, with the same result"
        yield Finding(f"{name}: {what}", advice="; ".join([*others, f"{watched} (.dvcignore avoids it)"]))
