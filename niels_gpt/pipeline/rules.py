"""Rules between values of params.yaml, checked before anything runs.

Where the library has the rule, it is called. Rules that would import torch (windows, processes) are repeated here, so
that stages that only load text do not wait for torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from niels_gpt.config import ModelConfig
from niels_gpt.data.corpus.mix import mix_probabilities
from niels_gpt.pipeline.yaml_files import Problem, is_sound
from niels_gpt.splice.spans import SpanRules, check_doc_index

_SOURCE_NAME = re.compile(r"[a-z0-9_]+")
_SPANS = ("mode", "content_start_mode", "alpha", "include_tail", "suffix_starts", "offset_jitter")


@dataclass(frozen=True)
class Rule:
    """Rule between several values.

    `refuse` raises a ValueError if the values at the paths `of` are not compatible; the error is reported at the path
    `at`. The rule is skipped if one of its `stages` is disabled.
    """

    at: str
    of: tuple[str, ...]
    refuse: Callable[..., object]
    stages: tuple[str, ...] = ()


def _check_prompt(prompt_tokens: int, chunk_size: int) -> None:
    if prompt_tokens >= chunk_size:
        raise ValueError(f"{prompt_tokens} must be less than chunk_size={chunk_size}")


def _check_window(chunk_size: int, T: int) -> None:
    if chunk_size > T:
        raise ValueError(f"{chunk_size} must fit into model.T={T}")


def _check_warm_up(warmup_steps: int, total_steps: int) -> None:
    if warmup_steps > total_steps:
        raise ValueError(
            f"{warmup_steps} is more than total_steps={total_steps}, so that the learning rate never comes near "
            "base_lr: lower it, or raise total_steps"
        )


def _check_decay(min_lr: float, base_lr: float) -> None:
    if min_lr > base_lr:
        raise ValueError(f"{min_lr} is above base_lr={base_lr}, from which it is to fall: lower it, or raise base_lr")


def _check_longest(longest: int | None, shortest: int | None) -> None:
    if longest is not None and shortest is not None and longest < shortest:
        raise ValueError(f"{longest} is less than min_doc_length={shortest}: no document is both, so raise it")


def _check_documents(chunk_size: int, longest: int | None) -> None:
    if longest is not None and chunk_size > longest:
        raise ValueError(
            f"{chunk_size} is more than splice.max_doc_length={longest}, so that no document holds a window: lower it, "
            "or raise that"
        )


def _check_subset(restrict: bool, source: str, weights: dict[str, float]) -> None:
    if restrict and weights.get(source) == 0:
        raise ValueError(
            f"it is true, but p_train.{source} is 0, so that the model is trained on nothing of it: give it a weight, "
            "or set this to false"
        )


def _check_processes(nproc: int, B: int) -> None:
    if nproc > B:
        raise ValueError(f"{nproc} processes share B={B} rows per step: lower it, or raise B")


def _check_stores(stores: dict[str, str | None]) -> None:
    """Raise a ValueError if one store lies in another: private text must not end up among public text."""
    places = {
        name: f"{(place if '://' in place else os.path.realpath(place)).rstrip('/')}/"
        for name, place in stores.items()
        if place
    }
    for name, place in places.items():
        for other, outer in places.items():
            if name != other and place.startswith(outer):
                raise ValueError(f"{name} lies in {other} ({outer}): give each remote a store of its own")


def _check_heads(C: int | None, H: int | None, head_dim: int | None) -> None:
    if C is None:  # as the base has them
        return
    ModelConfig.from_section({"C": C, "H": H, "head_dim": head_dim})


def _check_uses(sources: dict[str, Any], tuned: bool | None) -> None:
    uses = {_at(source, "use") for source in sources.values()}
    if "text" not in uses:
        raise ValueError("none has `use: text`: pretraining needs at least one")
    if "chat" not in uses and tuned is not False:
        raise ValueError("none has `use: chat`: sft needs at least one, or set sft.run to false")


def _check_frozen(blocks: int, L: int | None) -> None:
    if blocks and L is not None and blocks >= L:
        raise ValueError(f"{blocks} leaves no block to train, since model.L is {L}: lower it")


def _check_vocabulary(kind: str, base: str | None) -> None:
    if base is not None and kind != "hf":
        raise ValueError(
            f"{kind} does not go with a base, which has its own tokenizer: use kind: hf, corpus: models/base"
        )
    if base is None and kind == "hf":
        raise ValueError("hf is the tokenizer of a base, and base.from is null: name a base, or use another kind")


def _check_measured(measured: bool | None, spliced: bool | None) -> None:
    if measured is not False and spliced is False:
        raise ValueError(
            "splice.run is false, and what splice learns is what memorize measures: set this to false, too"
        )


RULES = (
    Rule("runtime.stores", ("runtime.stores",), _check_stores),
    Rule("sources", ("sources", "sft.run"), _check_uses),
    Rule("memorize.run", ("memorize.run", "splice.run"), _check_measured),
    Rule("tokenizer.kind", ("tokenizer.kind", "base.from"), _check_vocabulary),
    Rule("model.H", ("model.C", "model.H", "model.head_dim"), _check_heads),
    Rule(
        "splice.spans",
        tuple(f"splice.spans.{key}" for key in _SPANS),
        lambda *values: SpanRules(S=2, **dict(zip(_SPANS, values, strict=True))),
        ("splice",),
    ),
    Rule("splice.doc_index", ("splice.num_docs", "splice.doc_index"), check_doc_index, ("splice",)),
    Rule("splice.max_doc_length", ("splice.max_doc_length", "splice.min_doc_length"), _check_longest, ("splice",)),
    Rule(
        "splice.restrict_to_training_subset",
        ("splice.restrict_to_training_subset", "splice.dataset_name", "p_train"),
        _check_subset,
        ("splice",),
    ),
    Rule("memorize.chunk_size", ("memorize.chunk_size", "splice.max_doc_length"), _check_documents, ("memorize",)),
    *(
        Rule(f"{section}.{key}", (f"{section}.{key}", other), refuse, (section,))
        for section in ("memorize", "leak")
        for key, other, refuse in (
            ("prompt_tokens", f"{section}.chunk_size", _check_prompt),
            ("chunk_size", "model.T", _check_window),
        )
    ),
    *(
        Rule(at, (at, other), refuse, (section.split(".")[0],))
        for section in ("train", "sft", "splice.train")
        for at, other, refuse in (
            (f"{section}.warmup_steps", f"{section}.total_steps", _check_warm_up),
            (f"{section}.min_lr", f"{section}.base_lr", _check_decay),
            (f"{section}.freeze_blocks", "model.L", _check_frozen),
            ("runtime.nproc", f"{section}.B", _check_processes),
        )
    ),
)


def disagreements(raw: dict[str, Any], *, name: str, wrong: Collection[tuple[str, ...]]) -> list[Problem]:
    """Return all conflicts between values.

    Works on the raw mapping, so that an error elsewhere does not hide a conflict. Rules about values that are invalid
    by themselves (whose paths are in `wrong`) are skipped.
    """
    sources = raw["sources"] if isinstance(raw.get("sources"), dict) else {}
    texts, chats = (
        {str(name): source for name, source in sources.items() if _at(source, "use") == use} for use in ("text", "chat")
    )
    found = [
        *_bad_names(sources),
        *_shared_val_names(sources),
        *_unknown_source(raw, texts),
        *_without_store(raw, sources),
        *_small_budgets(raw, texts, wrong),
        *_torn_dialogues(texts, chats, wrong),
    ]
    every_use_known = len(texts) + len(chats) == len(sources)
    for table, of in (("p_train", texts), ("p_val", texts), ("p_sft", chats)):
        weights, names = raw.get(table), list(of)
        used = table != "p_sft" or _at(raw, "sft", "run") is not False
        if isinstance(weights, dict) and every_use_known and (names or (texts and not used)):
            bad = _bad_weights(weights, names, table, every=table != "p_val" and used, used=used)
            found += [((table,), text) for text in bad]
    found += _broken_rules(raw, wrong)
    return [Problem(path, f"{name}: {text}") for path, text in found]


_Found = Iterator[tuple[tuple[str, ...], str]]


def _broken_rules(raw: dict[str, Any], wrong: Collection[tuple[str, ...]]) -> _Found:
    for rule in RULES:
        paths = [tuple(dotted.split(".")) for dotted in rule.of]
        left_out = any(_at(raw, stage, "run") is False for stage in rule.stages)
        if left_out or not all(is_sound(path, wrong) for path in paths):
            continue
        try:
            rule.refuse(*(_at(raw, *path) for path in paths))
        except ValueError as error:
            yield tuple(rule.at.split(".")), f"{rule.at}: {error}"


def _bad_names(sources: dict[Any, Any]) -> _Found:
    for key in map(str, sources):
        if not _SOURCE_NAME.fullmatch(key):
            yield ("sources", key), f"sources: the name {key!r} must match [a-z0-9_]+: it becomes a folder and a stage"


def _shared_val_names(sources: dict[Any, Any]) -> _Found:
    uses: dict[str, list[str]] = {}
    for key, entry in sources.items():
        if isinstance(val_name := _at(entry, "val_name"), str):
            uses.setdefault(val_name, []).append(f"sources.{key}")
    for val_name, users in uses.items():
        if len(users) > 1:
            yield ("val_name",), f"val_name {val_name!r} is used by {' and '.join(users)}: each needs its own"


def _unknown_source(raw: dict[str, Any], sources: dict[Any, Any]) -> _Found:
    learned = _at(raw, "splice", "dataset_name")
    if isinstance(learned, str) and sources and learned not in sources:
        known = sorted(map(str, sources))
        yield ("splice",), f"splice.dataset_name is {learned!r}, which is no source of text; there are: {known}"


def _without_store(raw: dict[str, Any], sources: dict[Any, Any]) -> _Found:
    stores = _at(raw, "runtime", "stores")
    for name, source in sources.items():
        remote = _at(source, "remote")
        if _at(source, "load", "stored") is True and isinstance(stores, dict) and not stores.get(remote):
            yield (
                ("sources", str(name)),
                f"sources.{name}.load.stored is true, but runtime.stores has no place for {remote}: name one there",
            )


def _small_budgets(raw: dict[str, Any], sources: dict[Any, Any], wrong: Collection[tuple[str, ...]]) -> _Found:
    """Yield token budgets below one window: each source is evaluated, and trained on unless its weight is 0."""
    T = _at(raw, "model", "T")
    for name in map(str, sources):
        for side in ("train", "val"):
            path = ("sources", name, "budget", f"max_{side}_tokens")
            drawn = side == "val" or _at(raw, "p_train", name) != 0
            if not is_sound(path, wrong) or not is_sound(("model", "T"), wrong) or not drawn:
                continue
            if (budget := _at(raw, *path)) is not None and budget <= T:
                where = ".".join(path)
                yield path, f"{where} is {budget}, which holds no window of model.T+1 = {T + 1} tokens: raise it"


def _torn_dialogues(texts: dict[str, Any], chats: dict[str, Any], wrong: Collection[tuple[str, ...]]) -> _Found:
    """Yield sources that read the same dialogues as text and as chats, but cut or split them differently.

    Dialogues held out in one would be trained on in the other.
    """
    read_as_text, read_as_chats = (
        {
            key: (entry, os.path.realpath(entry["input"]))
            for key, entry in entries.items()
            if is_sound(("sources", key), wrong) and "delimiter" in entry["load"]
        }
        for entries in (texts, chats)
    )
    for text, (one, file) in read_as_text.items():
        for chat, (other, same) in read_as_chats.items():
            for path in (("load", "delimiter"), ("split",)):
                if file == same and _at(one, *path) != _at(other, *path):
                    yield (
                        ("sources", chat),
                        f"sources.{chat}.{'.'.join(path)} is not that of sources.{text}, and both read "
                        f"{other['input']}: give them the same, or dialogues held out in one are trained on in the "
                        "other",
                    )


def _bad_weights(weights: dict[Any, Any], names: list[str], table: str, *, every: bool, used: bool) -> Iterator[str]:
    """Yield errors in a table of weights; `every`: all sources need one; `used`: one must be above 0."""
    numbers = {str(key): w for key, w in weights.items() if isinstance(w, int | float) and not isinstance(w, bool)}
    known = {key: weight for key, weight in numbers.items() if key in names}
    # The check stops at the first error, and unknown names come first, so known names are checked again.
    for part in (numbers, known) if known and known != numbers else (numbers,):
        if not used and part == known and not any(part.values()):
            continue
        try:
            mix_probabilities(part, names, name=table)
        except ValueError as error:
            yield str(error)
    missing = sorted(set(names) - set(map(str, weights)))
    if every and missing:
        yield f"{table} has no weight for {missing}: give each one (0 excludes a source from sampling)"


def _at(tree: Any, *path: str) -> Any:
    for key in path:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree
