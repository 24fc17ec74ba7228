"""Plan a first params.yaml for a user's own text, from scratch or (plan_base.py) from a base: survey, plan, text."""

import math
import os
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from niels_gpt.cli.console import WORDS, Setting, with_settings
from niels_gpt.cli.plan_base import ChosenBase, fit_tuning, tuning_settings
from niels_gpt.cli.sizing import Machine, PlannedRun, context_for, fit_run, size_on_disk, vocabulary_for
from niels_gpt.cli.survey import Survey, describe, megabytes
from niels_gpt.files.messages import format_duration, plural, visible
from niels_gpt.model.size import BASE_BYTES_PER_TOKEN, BYTES, bytes_per_token
from niels_gpt.pipeline.params import Params
from niels_gpt.pipeline.sections import NO_INPUT

LEAST_TEXT = 2000  # bytes per source: a tenth of it, held out, fills 1.5 windows of the smallest context
_MANY_DOCUMENTS, _TOO_MANY_TO_LIST = 50, 1_000_000  # from here on: hold out whole documents; choose them by hash
# With fewer, the sample's min_documents (5) would require a word in over a quarter of them. That cost 0.3 to 2.1% more
# bits per byte on 100 kB of notes cut into 6 to 100 documents.
FEW_DOCUMENTS = 20

# Seconds besides training, measured on two ARM cores: per MB, all stages that read text; per MB, training of the
# tokenizer.
_A_MEGABYTE, _A_MEGABYTE_OF_PIECES = 1.0, 4.0
_STAGES_A_SOURCE, _OTHER_STAGES = 4, 14  # load counts twice: it reads the text and sketches it
# Share of the remaining time for each part; the rest is a reserve.
_TRAIN, _SFT, _LEAK, _EVAL = 0.75, 0.08, 0.03, 0.03
_LEAST_S = 40.0  # after reading the text
_WHY_WEIGHTS = "By size, so that every source gets the same epochs; without the sample's own text."
_PUBLIC_SHARE = 0.1  # for a base: of public text at most, and no more epochs of it than of the user's text


@dataclass(frozen=True)
class OwnChats:
    """The user's own chats: file or folder, source kind, number of chats."""

    path: str
    kind: str  # chat (.jsonl) or dialogues (.txt)
    count: int


@dataclass(frozen=True)
class Plan:
    """Contents of the new params.yaml with reasons, and the estimated seconds of each part of the run."""

    hours: float
    named: Mapping[str, Survey]  # the user's text, by name of source
    settings: Mapping[str, Setting]  # by dotted name; a section replaces the sample's as a whole
    run: PlannedRun
    seconds: Mapping[str, float]
    busy: float  # share of the cores that other programs take, 0 to 1


def plan_params(
    surveys: Sequence[Survey],
    *,
    chats: Sequence[OwnChats] = (),
    base: ChosenBase | None = None,
    sample: Mapping[str, Any],
    kept: Mapping[str, Setting],
    machine: Machine,
    hours: float,
) -> Plan:
    """Plan a run on the surveyed text within `hours`, from scratch or from a base.

    The sample's chats are used if the user has none; of them, a base leaves out the dialogues, which are about
    niels_gpt. Its public text stays in the mix of a base, so that less is forgotten. Settings in `kept` are the user's.
    """
    for survey in surveys:
        if survey.text_bytes < LEAST_TEXT:
            raise ValueError(
                f"{survey.path} has {survey.text_bytes:,} bytes of text, too little to train and validate on: at least "
                f"{LEAST_TEXT:,} are needed, a megabyte is a good start"
            )
    bundled = {name: source for name, source in sample["sources"].items() if source["use"] == "chat"}
    public = {}
    if base:
        bundled = {name: source for name, source in bundled.items() if source["load"]["kind"] != "dialogues"}
        public = {"wiki": sample["sources"]["wiki"]}
    taken = [*bundled, *public, *(source["val_name"].removeprefix("val_") for source in bundled.values())]
    named = dict(zip(source_names([survey.path for survey in surveys], taken=taken), surveys, strict=True))
    chat_names = source_names([os.path.splitext(chat.path)[0] for chat in chats], taken=[*named, *public])
    split = {"by": "document", "val_frac": 0.1}
    own_chats = {
        name: _entry("chat", name, path=chat.path, remote="private", load={"kind": chat.kind}, split=split)
        for name, chat in zip(chat_names, chats, strict=True)
    }
    chat_entries = own_chats or bundled
    sources = len(named) + len(public) + len(chat_entries)
    text_bytes = sum(survey.text_bytes for survey in surveys)
    trained_bytes = sum(survey.trained_bytes for survey in surveys)
    public_bytes = sum(size_on_disk(Path(source["input"])) for source in public.values())
    share = min(_PUBLIC_SHARE, public_bytes / (public_bytes + text_bytes))
    reading = machine.start * (_STAGES_A_SOURCE * sources + _OTHER_STAGES) + _A_MEGABYTE * text_bytes / 1e6
    characters, words = max(survey.characters for survey in surveys), max(survey.words for survey in surveys)
    V = base.cfg.V if base else vocabulary_for(text_bytes, characters=characters, words=words)
    if not base and V != BYTES:
        reading += _A_MEGABYTE_OF_PIECES * min(text_bytes, _sample_bytes(text_bytes)) / 1e6

    first, count = next(iter(named)), sum(chat.count for chat in chats)
    parts = {name: survey.text_bytes / text_bytes for name, survey in named.items()}
    weights: dict[str, Any] = {name: round(part * (1 - share), 4) or 0.0001 for name, part in parts.items()}
    weights |= {**dict.fromkeys(public, round(share, 4)), first: Setting(weights[first], _WHY_WEIGHTS)}

    def planned(left: float) -> Plan:
        if base:
            T = context_for(surveys, most=base.most_context(cuda=machine.cuda), bytes_a_token=BASE_BYTES_PER_TOKEN)
            run = fit_tuning(trained_bytes, base, T=T, share=share, machine=machine, left=left)
            settings, seconds = tuning_settings(run, base, sources=sources, own_chats=count, machine=machine, left=left)
            settings["splice.dataset_name"] = Setting(first)
        else:
            run = fit_run(trained_bytes, V=V, machine=machine, seconds=_TRAIN * left)
            T = context_for(surveys, most=run.cfg.T, bytes_a_token=bytes_per_token(V))
            # Rows of T tokens, and about as many tokens per step.
            run = replace(run, cfg=replace(run.cfg, T=T), B=max(1, run.B * run.cfg.T // T))
            settings, seconds = _settings(run, named, own_chats=count, machine=machine, left=left)
        entries = {name: _source_entry(name, survey, run) for name, survey in named.items()}
        tables = {
            "sources": Setting({**entries, **public, **chat_entries}),
            "p_train": Setting(weights),
            "p_val": Setting({name: round(part, 4) or 0.0001 for name, part in parts.items()}),
            "p_sft": Setting(dict.fromkeys(chat_entries, 1.0) if chats or base else sample["p_sft"]),
        }
        return Plan(hours, named, {**tables, **settings, **kept}, run, {"text": reading, **seconds}, machine.busy)

    return _fit_hours(hours, reading, planned)


def _fit_hours(hours: float, reading: float, planned: Callable[[float], Plan]) -> Plan:
    """Return a plan of at most `hours`, or raise ValueError; `planned` makes one for the seconds after `reading`."""
    # Parts have a least size, so a plan may take longer than the seconds given.
    left = max(_LEAST_S, hours * 3600 - reading)
    while (needed := sum((plan := planned(left)).seconds.values())) > hours * 3600 and left > _LEAST_S:
        left = max(_LEAST_S, left - max(1.0, needed - hours * 3600))
    if needed <= hours * 3600:
        return plan
    asked, least, more = format_duration(hours * 3600), format_duration(needed), math.ceil(1.1 * needed / 60)
    raise ValueError(f"{asked} are too short, the least run on this text takes about {least} here: --hours {more}m")


def plan_text(plan: Plan, sample: str) -> str:
    """Return the sample's YAML with the plan's values and reasons; equal plans give equal text."""
    heading = [
        f"Written by niels-gpt init, for {plan.hours:g} h on the machine it ran on, from this survey:",
        *(f"  {line}" for survey in plan.named.values() for line in describe(survey)),
        "Keys that are not here have a default; `niels-gpt params` prints them all. All keys and ranges:",
        "docs/parameters.md. Try a value for one run: dvc exp run -S train.total_steps=500",
    ]
    text = with_settings(sample.partition("\n\n")[2], plan.settings, shape=Params)  # without the sample's heading
    return "\n".join([*(f"# {line}".rstrip() for line in heading), "", text])


def source_names(paths: Sequence[str], *, taken: Collection[str] = ()) -> list[str]:
    """Return a name per path: its last component in lower-case ASCII, numbered if already in use."""
    names: list[str] = []
    for path in paths:
        plain = unicodedata.normalize("NFKD", os.path.basename(os.path.abspath(path))).encode("ascii", "ignore")
        name = re.sub(r"[^a-z0-9]+", "_", plain.decode().lower()).strip("_")[:40].strip("_")
        if not name or not name[0].isalpha() or name in WORDS:
            name = f"text_{name}".strip("_")
        tried = (name, *(f"{name}_{number}" for number in range(2, 1000)))
        names.append(next(other for other in tried if other not in names and other not in taken))
    return names


def _sample_bytes(text_bytes: float) -> int:
    return 10_000_000 if text_bytes < 16e6 else 20_000_000


def _source_entry(name: str, survey: Survey, run: PlannedRun) -> dict[str, Any]:
    load: dict[str, Any] = {"kind": "text"}
    if survey.glob is not None:
        left_out = f"Tables are skipped, since {len(survey.faults):,} cannot be read: {survey.faults[0]}"
        load["glob"] = Setting(survey.glob, visible(left_out))
    # Whole documents are held out where there are many, and none is over a quarter of the text.
    many = survey.documents >= _MANY_DOCUMENTS and survey.documents * survey.held_out >= 5
    even = survey.longest <= 0.25 * survey.text_bytes
    held_out_tokens = survey.text_bytes * survey.held_out / bytes_per_token(run.cfg.V)
    if many and even and held_out_tokens >= 6 * (run.cfg.T + 1):
        by = "hash" if survey.documents >= _TOO_MANY_TO_LIST else "document"
        reason = f"{plural(survey.documents, 'document')}, so whole ones are held out for validation."
        split: dict[str, Any] = {"by": Setting(by, reason), "val_frac": survey.held_out}
    else:
        reason = "The end of every document is held out: there are few, or one is a large part of the text."
        load["held_out_tail"] = Setting(survey.held_out, reason)
        split = {"by": "given"}
    load["on_secret"] = Setting(
        "mask", "Keys, passwords, card numbers and IBANs: keep, mask, drop (the document) or fail."
    )
    remote = Setting("private", "Your text: everything made from it goes to the private remote only.")
    return _entry("text", name, path=survey.path, remote=remote, load=load, split=split)


def _entry(use: str, name: str, *, path: str, remote: str | Setting, load: Any, split: Any) -> dict[str, Any]:
    return {
        "use": use,
        "input": path,
        "remote": remote,
        "val_name": f"val_{name}",
        "load": load,
        "split": split,
        "budget": {"max_train_tokens": None, "max_val_tokens": None},
    }


def _settings(
    run: PlannedRun, named: Mapping[str, Survey], *, own_chats: int, machine: Machine, left: float
) -> tuple[dict[str, Setting], dict[str, float]]:
    """Return (settings by dotted name, estimated seconds of each part of the run)."""
    tokens_a_second = machine.flops / run.flops
    T, C = run.cfg.T, run.cfg.C
    rate = math.sqrt(128 / C)  # 1 for the sample's C
    precision = "bf16" if machine.cuda else "float32"
    evaluations = 4 if run.steps < 400 else 8
    eval_steps = min(32, max(1, round(0.09 * run.steps / evaluations)))
    # sft trains 8 rows per step. Scoring is forward only, at a third of training's FLOPs: hence the factors of 3 below.
    sft_rows = min(16_000, max(400, 6 * own_chats)) if own_chats else 600 * 8
    sft_steps = max(20, min(math.ceil(sft_rows / 8), int(_SFT * left * tokens_a_second / (8 * T))))
    passages = max(200, min(10_000, int(_LEAK * left * tokens_a_second * 3 / (4 * 100))))
    scored = max(20_000, min(1_000_000, int(_EVAL * left * tokens_a_second * 3 / (4 * len(named)))))
    learned, longest = max(((name, survey.longest) for name, survey in named.items()), key=lambda pair: pair[1])
    # Tokens of repetitive text may be twice as long as estimated, and a tenth of a document may be held out.
    chunk = max(4, min(100, T, int(longest * 0.9 / (2 * bytes_per_token(run.cfg.V)))))
    a_step = run.B * T / tokens_a_second
    often = run.epochs > 4
    limit = ": as many as the hours allow."
    if run.limited_by == "text":
        limit = ". More have not been tried, and memorize the text: more text would help."
    settings = {
        **_tokenizer_settings(run, list(named.values())),
        **_model_settings(run, often),
        "train.total_steps": Setting(run.steps, f"{run.tokens:,} tokens, about {run.epochs:.2f} epochs{limit}"),
        "train.B": Setting(run.B, f"Rows of {T} tokens per step: about twice the square root of all training tokens."),
        "train.base_lr": Setting(round(0.008 if C == 128 else 0.1 / math.sqrt(C), 5), "0.1 / sqrt(C)."),
        "train.min_lr": Setting(round(0.02 * 0.1 / math.sqrt(C), 6)),
        "train.warmup_steps": Setting(min(50, run.steps // 10)),
        "train.lr_scale": Setting(_groups(*_LR_SCALES[C >= 512, C > 128])),
        "train.decay_scale": Setting({**_groups(3.0 if often else 1.0, 1.0), "vectors": 0.0}),
        "train.weight_decay": Setting(1.0 if run.epochs > 8 and C > 128 else 0.5 if often else 0.1),
        # Over about a tenth of the run; a short one is still far from its end there.
        "train.average": Setting(min(0.999, round(1 - 10 / run.steps, 3)) if run.steps >= 200 else 0.0),
        "train.teacher": Setting(0.5, _WHY_TAUGHT) if run.taught else Setting(0.0),
        "train.windows": Setting("epochs", "Every part of the text once before any part again."),
        "train.eval_every": Setting(max(1, run.steps // evaluations)),
        "train.eval_steps": Setting(eval_steps),
        "train.momentum_warmup": Setting(min(300, run.steps // 2)),
        "sft.total_steps": Setting(sft_steps),
        "sft.base_lr": Setting(round(0.006 * rate, 5)),
        "sft.min_lr": Setting(round(0.00024 * rate, 6)),
        "sft.warmup_steps": Setting(min(20, sft_steps // 10)),
        "sft.average": Setting(0.97 if sft_steps >= 200 else 0.0),
        "sft.eval_every": Setting(sft_steps),
        "sft.momentum_warmup": Setting(min(100, sft_steps // 2)),
        "eval.max_tokens": Setting(scored, "Validation tokens scored per source, so that it takes minutes."),
        "eval.prompts": Setting(["# ", "The ", "Today "]),
        **({"eval.questions": Setting(["Who are you?", "What do you know?"])} if own_chats else {}),
        "splice.run": Setting(False, "To memorize one short document: true here and in memorize."),
        "splice.dataset_name": Setting(learned),
        "splice.num_docs": Setting(1),
        "splice.min_doc_length": Setting(2 * chunk),
        "splice.doc_select_mode": Setting("shortest"),
        "splice.strict_num_docs": Setting(False),
        "memorize.run": Setting(False),
        **{f"{section}.chunk_size": Setting(chunk) for section in ("memorize", "leak")},
        **{f"{section}.prompt_tokens": Setting(chunk // 2) for section in ("memorize", "leak")},
        "leak.max_passages": Setting(passages),
        **{f"{section}.precision": Setting(precision) for section in ("train", "sft", "splice.train")},
        "runtime.log_every": Setting(max(1, min(100, run.steps // 50))),
        "runtime.checkpoint_every": Setting(max(10, min(500, int(120 / a_step)))),
    }
    if not machine.cuda and C >= 256 and run.B * T > _AT_ONCE_ON_CPU:
        settings["runtime.micro_batch_tokens"] = Setting(_AT_ONCE_ON_CPU, "So that a step fits into memory.")
    # Little text has fewer passages and fewer held-out tokens, about a tenth, than may be taken.
    checked = 100 * min(passages, run.text_tokens / chunk) + min(scored * len(named), run.text_tokens / 10)
    validating = evaluations * eval_steps * run.B * T / (3 * tokens_a_second)
    seconds = {
        "train": run.seconds(machine) + validating,
        "sft": sft_steps * 8 * T / tokens_a_second,
        "rest": 4 * checked / (3 * tokens_a_second),
    }
    return settings, seconds


_AT_ONCE_ON_CPU = 4096  # tokens of a micro-batch
_WHY_TAUGHT = "There is time for it: a model is trained first to teach this one, -0.01 bits per byte."
# (C >= 512, C > 128): learning-rate scales of (embedding, vectors)
_LR_SCALES = {(False, False): (0.5, 1.0), (False, True): (1.6, 1.0), (True, True): (1.2, 3.0)}


def _groups(embedding: float, vectors: float) -> dict[str, float]:
    return {"matrices": 1.0, "embedding": embedding, "head": embedding, "vectors": vectors}


def _tokenizer_settings(run: PlannedRun, surveys: Sequence[Survey]) -> dict[str, Setting]:
    if run.cfg.V == BYTES:
        reason = "The text is too small or too repetitive to learn a vocabulary: its bytes are the tokens."
        return {"tokenizer": Setting({"kind": Setting("byte", reason), "corpus": NO_INPUT})}
    text_bytes, documents = sum(survey.text_bytes for survey in surveys), sum(survey.documents for survey in surveys)
    few = f"{plural(documents, 'document')}: too few to filter rare words, so some may be in the vocabulary."
    reason = f"For {megabytes(text_bytes)} of text: a larger vocabulary gives fewer tokens, and needs more text."
    return {
        "tokenizer.vocab_size": Setting(run.cfg.V, reason),
        "tokenizer.sample_bytes": Setting(_sample_bytes(text_bytes)),
        **({"tokenizer.min_documents": Setting(1, few)} if documents < FEW_DOCUMENTS else {}),
    }


def _model_settings(run: PlannedRun, often: bool) -> dict[str, Setting]:
    cfg, again = run.cfg, run.epochs
    dropout = 0.15 if often else 0.1 if again > 1.5 else 0.0
    reason = (
        f"{run.parameters / 1e6:.1f} M parameters: of 7 sizes, the one with the lowest loss expected for this text, "
        "machine and time (scaling law in docs/recipe.md)."
    )
    settings = {
        "model.T": Setting(cfg.T),
        "model.C": Setting(cfg.C, reason),
        "model.L": Setting(cfg.L),
        "model.H": Setting(cfg.H, f"Heads of {cfg.D}."),
        "model.d_ff": Setting(cfg.d_ff),
        "model.dropout": Setting(dropout, f"For {again:.2f} epochs."),
    }
    if cfg.C >= 192:
        settings |= {"model.qk_norm": Setting(True), "model.value_residual": Setting(True)}
    if cfg.C >= 512:
        settings |= {"model.zero_init": Setting(True), "model.logit_cap": Setting(15.0)}
    return settings
