"""Rules between values of params.yaml, checked before anything runs.

Where the library has the rule, it is called. Rules that would import torch (windows, processes) are repeated here, so
that stages that only load text do not wait for torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import permutations, product
from operator import le, lt
from typing import Any

from niels_gpt.config import ModelConfig
from niels_gpt.data.corpus.mix import mix_probabilities
from niels_gpt.pipeline.yaml_files import Problem, is_sound
from niels_gpt.splice.spans import SpanRules, check_doc_index

_SOURCE_NAME = re.compile(r"[a-z0-9_]+")
_SPANS = ("mode", "content_start_mode", "alpha", "include_tail", "suffix_starts", "offset_jitter")


@dataclass(frozen=True)
class Rule:
    """Rule between the values at the paths `of`, reported at the path `at`.

    `holds` raises a ValueError, or returns False, for which `sentence` is the error, with the values filled in. The
    rule is skipped if one of the sections is disabled.
    """

    at: str
    of: tuple[str, ...]
    holds: Callable[..., bool | None]
    sentence: str = ""


def _at_most(smaller: float | None, larger: float | None) -> bool:
    return smaller is None or larger is None or smaller <= larger


def _check_stores(stores: dict[str, str | None]) -> None:
    """Raise a ValueError if one store lies in another: private text must not end up among public text."""
    places = {
        name: f"{(place if '://' in place else os.path.realpath(place)).rstrip('/')}/"
        for name, place in stores.items()
        if place
    }
    for (name, place), (other, outer) in permutations(places.items(), 2):
        if place.startswith(outer):
            raise ValueError(f"{name} lies in {other} ({outer}): give each remote a store of its own")


def _check_heads(C: int | None, H: int | None, head_dim: int | None) -> None:
    if C is not None:  # else as the base has them
        ModelConfig.from_section({"C": C, "H": H, "head_dim": head_dim})


def _check_uses(sources: dict[str, Any], tuned: bool | None) -> None:
    uses = {_at(source, "use") for source in sources.values()}
    if "text" not in uses:
        raise ValueError("none has `use: text`: pretraining needs at least one")
    if "chat" not in uses and tuned is not False:
        raise ValueError("none has `use: chat`: sft needs at least one, or set sft.run to false")


def _check_spans(*values: Any) -> None:
    SpanRules(S=2, **dict(zip(_SPANS, values, strict=True)))


RULES = (
    Rule("runtime.stores", ("runtime.stores",), _check_stores),
    Rule("sources", ("sources", "sft.run"), _check_uses),
    Rule(
        "memorize.run",
        ("memorize.run", "splice.run"),
        lambda measured, spliced: measured is False or spliced is not False,
        "splice.run is false, and what splice learns is what memorize measures: set this to false, too",
    ),
    Rule(
        "tokenizer.kind",
        ("tokenizer.kind", "base.from"),
        lambda kind, base: base is None or kind == "hf",
        "{0} does not go with a base, which has its own tokenizer: use kind: hf, corpus: models/base",
    ),
    Rule(
        "tokenizer.kind",
        ("tokenizer.kind", "base.from"),
        lambda kind, base: base is not None or kind != "hf",
        "hf is the tokenizer of a base, and base.from is null: name a base, or use another kind",
    ),
    Rule("model.H", ("model.C", "model.H", "model.head_dim"), _check_heads),
    Rule("splice.spans", tuple(f"splice.spans.{key}" for key in _SPANS), _check_spans),
    Rule("splice.doc_index", ("splice.num_docs", "splice.doc_index"), check_doc_index),
    Rule(
        "splice.max_doc_length",
        ("splice.min_doc_length", "splice.max_doc_length"),
        _at_most,
        "{1} is less than min_doc_length={0}: no document is both, so raise it",
    ),
    Rule(
        "splice.restrict_to_training_subset",
        ("splice.restrict_to_training_subset", "splice.dataset_name", "p_train"),
        lambda restrict, source, weights: not restrict or weights.get(source) != 0,
        "it is true, but p_train.{1} is 0, so that the model is trained on nothing of it: give it a weight, or set "
        "this to false",
    ),
    Rule(
        "memorize.chunk_size",
        ("memorize.chunk_size", "splice.max_doc_length"),
        _at_most,
        "{0} is more than splice.max_doc_length={1}, so that no document holds a window: lower it, or raise that",
    ),
    *(
        Rule(at, (at, other), holds, sentence)
        for section in ("memorize", "leak")
        for at, other, holds, sentence in (
            (f"{section}.chunk_size", "model.T", le, "{0} must fit into model.T={1}"),
            (f"{section}.prompt_tokens", f"{section}.chunk_size", lt, "{0} must be less than chunk_size={1}"),
        )
    ),
    *(
        Rule(at, (at, other), holds, sentence)
        for section in ("train", "sft", "splice.train")
        for at, other, holds, sentence in (
            (
                f"{section}.warmup_steps",
                f"{section}.total_steps",
                le,
                "{0} is more than total_steps={1}, so that the learning rate never comes near base_lr: lower it, or "
                "raise total_steps",
            ),
            (
                f"{section}.min_lr",
                f"{section}.base_lr",
                le,
                "{0} is above base_lr={1}, from which it is to fall: lower it, or raise base_lr",
            ),
            (
                f"{section}.freeze_blocks",
                "model.L",
                lambda blocks, L: not blocks or L is None or blocks < L,
                "{0} leaves no block to train, since model.L is {1}: lower it",
            ),
            ("runtime.nproc", f"{section}.B", le, "{0} processes share B={1} rows per step: lower it, or raise B"),
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
        disabled = any(_at(raw, path[0], "run") is False for path in paths if path[-1] != "run")
        if disabled or not all(is_sound(path, wrong) for path in paths):
            continue
        values = [_at(raw, *path) for path in paths]
        try:
            if rule.holds(*values) is False:
                raise ValueError(rule.sentence.format(*values))
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
        [
            (key, entry)
            for key, entry in entries.items()
            if is_sound(("sources", key), wrong) and "delimiter" in entry["load"]
        ]
        for entries in (texts, chats)
    )
    for (text, one), (chat, other) in product(read_as_text, read_as_chats):
        if os.path.realpath(one["input"]) != os.path.realpath(other["input"]):
            continue
        for path in (("load", "delimiter"), ("split",)):
            if _at(one, *path) != _at(other, *path):
                yield (
                    ("sources", chat),
                    f"sources.{chat}.{'.'.join(path)} is not that of sources.{text}, and both read {other['input']}: "
                    "give them the same, or dialogues held out in one are trained on in the other",
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
