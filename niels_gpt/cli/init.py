"""niels-gpt init: write a params.yaml that fits a folder of text, this machine and the available time."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import typer

from niels_gpt.cli import sizing
from niels_gpt.cli.console import Setting, read_sample
from niels_gpt.cli.plan import OwnChats, Plan, plan_params, plan_text
from niels_gpt.cli.plan_base import ChosenBase
from niels_gpt.cli.survey import Survey, describe, survey_folder
from niels_gpt.data.kinds import source_kinds
from niels_gpt.data.types import Request
from niels_gpt.device import prepare_device
from niels_gpt.files.atomic import write_text
from niels_gpt.files.messages import format_duration, plural, read_text, visible
from niels_gpt.model.size import BYTES
from niels_gpt.pipeline import layout, repository
from niels_gpt.pipeline.external_checks import check_input
from niels_gpt.pipeline.params import Params, parse_params, read_params
from niels_gpt.pipeline.sections import BUNDLED, NO_INPUT, check_base, check_place
from niels_gpt.pipeline.stage import remove_leftovers
from niels_gpt.pipeline.yaml_files import default_at, parse_yaml
from niels_gpt.train.meter import matmul_flops

_LEAST_HOURS, _MOST_HOURS = 0.05, 1000.0
_FEWEST_CHATS, _SCRATCH = 10, "scratch"
_TIME = re.compile(r"(?:(\d*\.?\d+)(?:h|$))?(?:(\d*\.?\d+)m(?:in)?)?")


def parse_hours(text: str | float) -> float:
    """Return the hours of `0.5`, `15m` or `1h30m`."""
    found = _TIME.fullmatch(str(text).replace(" ", "").lower())
    hours = float(found[1] or 0) + float(found[2] or 0) / 60 if found else 0.0
    if not _LEAST_HOURS <= hours <= _MOST_HOURS:
        raise typer.BadParameter(f"{text} is no time from 3m to {_MOST_HOURS:g}h: give hours (0.5), 15m or 1h30m")
    return hours


# Options that `niels-gpt new` has, too.
Hours = Annotated[
    float,
    typer.Option(parser=parse_hours, metavar="TIME", help="how long a run may take on this machine: 0.5, 15m, 1h30m"),
]
Chat = Annotated[
    list[str] | None,
    typer.Option(help="chats of your own for fine-tuning (.jsonl, or dialogues in .txt); repeatable"),
]
Start = Annotated[
    str | None,
    typer.Option("--from", help="smollm2 (the default if installed), a folder, .gguf file or ID@COMMIT; or scratch"),
]


def init(
    folders: Annotated[
        list[str], typer.Argument(metavar="FOLDER...", help="folder with your text, which stays where it is")
    ],
    hours: Hours = 1.0,
    chat: Chat = None,
    start: Start = None,
    speed: Annotated[
        bool, typer.Option(help="measure the speed of real steps: 10 s, more if they are compiled")
    ] = True,
) -> None:
    """Survey your text and write a params.yaml that fits it, this machine and the hours you have."""
    for name in [*folders, *(chat or [])]:
        try:
            check_place(os.path.expanduser(name))
        except ValueError as error:
            raise ValueError(f"{name.strip() or 'FOLDER'}: {error}") from error
    if not layout.PRESETS.is_dir() or not layout.DAG.is_file():
        raise ValueError("there is no dvc.yaml with presets/ here: run this in the project's folder")
    sample = read_sample(layout.PRESETS)
    repository.refuse_without_repository(Path())
    repository.refuse_uncommitted(Path(), layout.PARAMS)
    surveys = look_at(folders)
    chats = [_own_chats(path) for path in chat or []]
    base = _chosen_base(start)
    for survey in surveys:
        for line in describe(survey):
            typer.echo(line)
    how: dict[str, Any] = {"sample": sample, "runtime": _runtime(sample), "hours": hours, "speed": speed}
    said = f"base     {BUNDLED}, which is installed; `--from {_SCRATCH}` trains from scratch instead"
    try:
        if base and not start:
            base.check_room(how["runtime"]["device"])
        plan, text, ahead = _planned(surveys, chats, base=base, **how)
    except ValueError as error:
        if start or not base:
            raise
        said = f"base     not used, although {base.name} is installed: {error}"
        plan, text, ahead = _planned(surveys, chats, base=None, **how)
    with repository.without_dvc(Path()):
        commit = write_baseline(text)
        removed = remove_leftovers(parse_yaml(text, name="the new params.yaml"))
    lines = _summary(plan, ahead, commit=commit, removed=removed, chats=bool(chats))
    for line in ["", *([said] if base and not start else []), *lines]:
        typer.echo(visible(line))


def look_at(folders: Sequence[str]) -> list[Survey]:
    """Survey each folder; raise an error if one has no readable text, overlaps another or would be published by git."""
    surveys = []
    paths = [_written(folder) for folder in folders]
    for path, other in combinations(paths, 2):
        real, other_real = Path(path).resolve(), Path(other).resolve()
        if real.is_relative_to(other_real) or other_real.is_relative_to(real):
            raise ValueError(f"{path} and {other} are nested and would be loaded twice: give one of them")
    for path in paths:
        survey = survey_folder(path)
        if faults := check_input(path):
            more = f" (and {len(faults) - 1:,} more)" if faults[1:] else ""
            raise ValueError(f"{faults[0]}{more}")
        if not os.path.isabs(path):
            repository.refuse_unignored(Path(), path)
        surveys.append(survey)
    return surveys


def write_baseline(text: str) -> str:
    """Write params.yaml, commit it alone and return the commit, or "" if it is unchanged; restore it if git refuses."""
    before = read_text(layout.PARAMS)
    if before == text:
        return ""
    write_text(layout.PARAMS, text)
    try:
        return repository.commit_file(Path(), layout.PARAMS, "params.yaml for my own text, by niels-gpt init")
    except ValueError:
        write_text(layout.PARAMS, before)
        raise


def _written(folder: str) -> str:
    """Return a path for params.yaml: relative in the project, else absolute, as experiments run in a copy of it."""
    path, project = os.path.abspath(os.path.expanduser(folder)), Path().resolve()
    inside = Path(path).parent.resolve() / Path(path).name
    return str(inside.relative_to(project)) if inside.is_relative_to(project) and inside != project else path


def _chosen_base(start: str | None) -> ChosenBase | None:
    """Return the base that `--from` names, or else the one that is installed; a hub id has its commit after an @."""
    from niels_gpt.base.importing import bundled_file, read_config

    if start is None:
        with suppress(ValueError):  # not installed
            start = BUNDLED if bundled_file() else None
    if start in (None, _SCRATCH):
        return None
    path = _written(start)
    local = os.path.exists(path)
    name, _, commit = (path, "", "") if local else start.partition("@")
    watched, revision = path if local else NO_INPUT, commit or None
    check_base(name, watched, revision)
    return ChosenBase(name, watched, revision, read_config(name, local=local, revision=revision))


def _runtime(sample: str) -> dict[str, Any]:
    """Return the `runtime` section of the current params.yaml, or that of the sample if it cannot be read."""
    with suppress(ValueError, OSError):
        return dict(read_params()[1]["runtime"])
    return dict(parse_params(sample)[1]["runtime"])


def _own_chats(path: str) -> OwnChats:
    written = _written(path)
    if not os.path.exists(written):
        raise FileNotFoundError(f"{path} does not exist: give a .jsonl or .txt file with chats, or a folder of .jsonl")
    kind = source_kinds()["dialogues" if os.path.isfile(written) and written.endswith(".txt") else "chat"]
    request = Request(written, None, max_tokens=None, patience_s=0)
    count = sum(1 for _ in kind.read(kind.settings(), request))
    if count < _FEWEST_CHATS:
        few = f"{path} has {plural(count, 'chat')}"
        raise ValueError(f"{few}: at least {_FEWEST_CHATS} are needed, since some are held out")
    if not os.path.isabs(written):
        repository.refuse_unignored(Path(), written)
    return OwnChats(written, kind.name, count)


def _planned(
    surveys: Sequence[Survey],
    chats: Sequence[OwnChats],
    *,
    base: ChosenBase | None,
    sample: str,
    runtime: Mapping[str, Any],
    hours: float,
    speed: bool,
) -> tuple[Plan, str, sizing.Outlook]:
    """Return a plan, its YAML and its outlook, by a matrix product's speed or, with `speed`, by that of real steps."""
    values = parse_yaml(sample, name="presets/sample.yaml")
    own = {f"runtime.{key}": runtime[key] for key in _OF_THE_MACHINE}
    # Defaults are left to the plan, which may know better.
    kept = {name: Setting(value) for name, value in own.items() if value != default_at(name, Params)}
    planned = partial(plan_params, surveys, chats=chats, base=base, sample=values, kept=kept)
    machine = measure(runtime["device"], threads=runtime["threads"])
    if speed:
        if base:
            flops, pace = base.time_step(runtime, cuda=machine.cuda)
        else:
            first = planned(machine=machine, hours=hours)
            flops = first.run.seconds(sizing.Machine(1.0))
            pace = sizing.seconds_to_train(parse_params(plan_text(first, sample))[1], "train")["train"]
        machine = sizing.Machine(flops / pace.seconds, machine.cuda, pace.busy, sizing.seconds_to_start())
    plan = planned(machine=machine, hours=hours)
    text = plan_text(plan, sample)
    params = parse_params(text, name="the new params.yaml")[1]
    sizes = {name: float(survey.text_bytes) for name, survey in plan.named.items()}
    ahead = sizing.look_ahead(params, known=sizes)
    further = sizing.look_further(ahead, lambda longer: planned(machine=machine, hours=longer).run, hours=hours)
    return plan, text, further


# Keys of `runtime` that are kept from the current params.yaml: they describe the machine, not the text.
_OF_THE_MACHINE = ("device", "threads", "engine", "workers", "ray_address", "stores", "nproc", "compile")
_USED = 0.3  # speed of a small model's training step relative to a large matrix product


def measure(device: str, *, threads: int) -> sizing.Machine:
    """Estimate the FLOP/s of training from one matrix product, in a fraction of a second."""
    device = prepare_device(device, threads=threads)
    cuda = device.startswith("cuda")
    return sizing.Machine(_USED * matmul_flops(device, "bf16" if cuda else "float32"), cuda=cuda)


def _summary(plan: Plan, ahead: sizing.Outlook, *, commit: str, removed: Sequence[str], chats: bool) -> Iterator[str]:
    run, cfg, seconds = plan.run, plan.run.cfg, plan.seconds
    tokenizer = "bytes as tokens" if cfg.V == BYTES else f"vocabulary of {cfg.V:,}"
    yield f"model    {run.parameters / 1e6:.1f} M parameters (C{cfg.C} L{cfg.L}, context {cfg.T}), {tokenizer}"
    yield f"trains   on {run.tokens:,} tokens in {plural(run.steps, 'step')}; epochs: {ahead.epochs}"
    if run.limited_by == "text":
        yield "         (more text would lower the loss, more hours would not)"
    yield f"verdict  {ahead.ability}"
    yield from (f"         {line}" for line in ahead.remedies())
    total = sum(seconds.values())
    parts = {"data stages": "text", "train": "train", "sft": "sft", "leak, eval and the rest": "rest"}
    shown = ", ".join(f"{name} {format_duration(seconds[key])}" for name, key in parts.items())
    yield f"takes    about {format_duration(total)} of the {plan.hours:.3g} h here: {shown}"
    if plan.busy:
        now = format_duration(total / (1 - plan.busy))
        yield f"busy     other programs take {plan.busy:.0%} of the cores: while they do, it takes about {now}"
    if "tokenizer.min_documents" in plan.settings:
        yield "names    may be in the vocabulary, as may other rare words: too few documents to filter them"
    if not chats:
        yield "chats    the sample's, in English; --chat FILE uses your own"
    yield f"written  params.yaml, with reasons{f', and committed as {commit}' if commit else ', unchanged'}"
    if commit:
        yield f"undo     `git checkout {commit}~1 params.yaml` restores the previous one"
    if removed:
        yield f"removed  cache/ of {', '.join(removed)}; DVC's cache still has it"
    yield "next     `niels-gpt run` trains and checks it; then `niels-gpt chat`"
