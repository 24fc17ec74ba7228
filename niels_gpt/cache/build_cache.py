"""Token caches built from plain iterables of texts or chats, in one pass and with constant memory.

For use without the pipeline, whose stages share the lower-level functions (chat rendering, encoding, writing).
"""

from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.cache.formats import read_offsets, write_token_file
from niels_gpt.cache.meta import write_meta
from niels_gpt.cache.token_parts import SPLITS, describe_chats, describe_tokenizer, encode_documents, write_sft_files
from niels_gpt.cache.windows import TokenFile
from niels_gpt.chat_template import Message, chat_renderer
from niels_gpt.data.corpus.split import split_groups
from niels_gpt.files.atomic import atomic_path
from niels_gpt.rng import derive_seed, make_generator
from niels_gpt.tokenizer import load_tokenizer
from niels_gpt.tokenizer.tokenizers import copy_tokenizer, tokenizer_file, write_tokenizer_meta
from niels_gpt.tokenizer.vocabulary import Tokenizer


def build_pretrain_cache(
    texts: Iterable[str],
    out_dir: str | Path,
    *,
    tokenizer: Tokenizer,
    max_train_tokens: int,
    max_val_tokens: int,
    shard_bytes: int,
    seed: int,
    shuffle_buffer: int | None,
    source_name: str | None = None,
    source_config: str | None = None,
    streaming: bool | None = None,
) -> None:
    """Write out_dir/{train,val}/shard_*.bin with document offsets, and out_dir/meta.json, atomically.

    Each document goes to val if val has less than its share of the tokens so far, else to train. A split is full when
    its next document would not fit its budget (in tokens). So no document is in both splits or cut, and a stream that
    ends early has filled both in proportion. An empty split is an error, unless it is val and its budget is 0.
    `shuffle_buffer` is the size of a shuffle buffer, in texts; None keeps the order.
    """
    ordered = _shuffled(texts, shuffle_buffer, seed) if shuffle_buffer else texts
    budgets = {"train": max_train_tokens, "val": max_val_tokens}
    val_share = max_val_tokens / max(1, max_train_tokens + max_val_tokens)

    def documents() -> Iterator[tuple[str, np.ndarray]]:
        tokens = {"train": 0, "val": 0}
        open_splits = {split for split, budget in budgets.items() if budget > 0}
        for ids in encode_documents(tokenizer, ordered):
            total = tokens["train"] + tokens["val"]
            first = "val" if total and tokens["val"] < val_share * total else "train"
            for split in (first, "train" if first == "val" else "val"):
                if split in open_splits and tokens[split] + len(ids) <= budgets[split]:
                    tokens[split] += len(ids)
                    yield split, ids
                    break
                if tokens[split]:
                    open_splits.discard(split)  # full: it ends with the document before this one
            if not open_splits:
                break
        for split, budget in budgets.items():
            if not tokens[split] and (budget or split == "train"):
                raise ValueError(
                    f"{source_name or out_dir} has no document for its {split} split that fits a budget of {budget:,} "
                    f"tokens: add text, or raise max_{split}_tokens"
                )

    facts = {"dataset_config": source_config, "streaming": streaming, "seed": seed, "shuffle_buffer": shuffle_buffer}
    rule = "whole documents in proportion to the budgets"
    _write_shards(out_dir, documents(), tokenizer, shard_bytes, dataset_name=source_name, split_rule=rule, **facts)


def build_split_cache(
    splits: Mapping[str, Iterable[str]],
    out_dir: str | Path,
    *,
    tokenizer: Tokenizer,
    shard_bytes: int,
    seed: int | None,
    source_name: str | None = None,
    source_config: str | None = None,
    split_rule: str = "given",
) -> None:
    """Write the same files for all texts of given splits, {"train": texts, "val": texts}, without a token budget."""

    def documents() -> Iterator[tuple[str, np.ndarray]]:
        for split, texts in splits.items():
            empty = True
            for ids in encode_documents(tokenizer, texts):
                empty = False
                yield split, ids
            if empty:
                raise ValueError(f"{source_name or out_dir} has no text in its {split} split")

    facts = {"dataset_config": source_config, "streaming": False, "split_rule": split_rule, "seed": seed}
    _write_shards(out_dir, documents(), tokenizer, shard_bytes, dataset_name=source_name, **facts)


def write_unbuilt_cache(
    out_dir: str | Path, *, tokenizer: Tokenizer, shard_bytes: int, seed: int, source_name: str | None
) -> None:
    """Write empty split folders and a meta.json with status "not built", unless an earlier cache exists."""
    if any(Path(out_dir).glob("train/shard_*.bin")):
        return
    facts = {"dataset_name": source_name, "dataset_config": None, "split_rule": None, "seed": seed}
    _write_shards(out_dir, (), tokenizer, shard_bytes, status="not built", **facts)


def _write_shards(
    out_dir: str | Path,
    documents: Iterable[tuple[str, np.ndarray]],
    tokenizer: Tokenizer,
    shard_bytes: int,
    **facts: Any,
) -> None:
    """Write documents, given as (split, ids), to the shards of their splits, with offsets and meta.json, atomically.

    Shards have a fixed size, so a document may span two or more of them. `facts` are entries of meta.json.
    """
    shard_tokens = shard_bytes // tokenizer.dtype.itemsize
    if shard_tokens < 1:
        raise ValueError(f"shard_bytes must hold at least one token, got {shard_bytes}")
    offsets, tokens = {split: array("q") for split in SPLITS}, dict.fromkeys(SPLITS, 0)
    with atomic_path(out_dir) as folder:
        for split in SPLITS:
            (folder / split).mkdir(parents=True)
        for split, ids in documents:
            offsets[split].append(tokens[split])
            shard, used = divmod(tokens[split], shard_tokens)
            cuts = range(shard_tokens - used, len(ids), shard_tokens)
            for number, part in enumerate(np.split(ids, cuts), shard):
                with (folder / split / f"shard_{number:05d}.bin").open("ab") as file:
                    file.write(part.data)
            tokens[split] += len(ids)
        for split, starts in offsets.items():
            np.save(folder / split / "offsets.npy", np.array(starts, dtype=np.int64))
        totals = {f"{split}_tokens": total for split, total in tokens.items()}
        meta = {**describe_tokenizer(tokenizer), **facts, "shard_bytes": shard_bytes, **totals}
        write_meta(folder / "meta.json", meta)


def build_sft_cache(
    examples: Iterable[Sequence[Message] | Sequence[Mapping[str, str]]],
    out_dir: str | Path,
    *,
    tokenizer: Tokenizer,
    val_frac: float,
    seed: int,
    source_name: str | None = None,
    source_config: str | None = None,
    T: int | None = None,
    groups: Iterable[str] | None = None,
) -> None:
    """Write out_dir/{train,val}_tokens.bin, {train,val}_idx.npy (offsets) and meta.json, atomically.

    Examples are split at random by `seed`; `groups` names the group of each (e.g. its conversation tree), and a group
    is never divided. Examples without supervised tokens in their first T+1 (all, if T is None) are dropped and counted.
    The split needs the number of examples, so the whole stream is first written to a temporary file, not to memory.
    """
    chat, dtype, name = chat_renderer(tokenizer), tokenizer.dtype, source_name or out_dir
    split_units: list[Hashable] = []  # the group of each example; without groups, every example is its own

    def rendered() -> Iterator[np.ndarray]:
        for example, unit in zip(examples, count() if groups is None else groups, strict=groups is not None):
            split_units.append(unit)
            yield np.array(chat.example(example), dtype=dtype)

    with atomic_path(out_dir) as folder:
        folder.mkdir()
        every = (folder / "all_tokens.bin", folder / "all_idx.npy")
        _, tokens = write_token_file(*every, rendered(), dtype=dtype)
        if not tokens:
            raise ValueError(f"{name} has no chats: nothing to build a cache of")
        ids, (starts, lengths) = TokenFile.whole(every[0], dtype), read_offsets(every[1], tokens=tokens)
        sides = zip(SPLITS, split_groups(split_units, val_frac=val_frac, seed=seed), strict=True)
        examples_of = {split: (ids[starts[i] : starts[i] + lengths[i]] for i in rows) for split, rows in sides}
        totals = write_sft_files(folder, examples_of, tokenizer=tokenizer, T=T)
        for path in every:
            path.unlink()
        for split in SPLITS:
            if not totals[f"{split}_examples"]:
                raise ValueError(
                    f"{name} has no chat with an answer to learn for its {split} split "
                    f"({totals[f'{split}_dropped']:,} without one): add chats"
                )
        meta = {
            **describe_tokenizer(tokenizer),
            **describe_chats(tokenizer),
            "dataset_name": source_name,
            "dataset_config": source_config,
            "split_rule": f"by {'example' if groups is None else 'group'}, val_frac {val_frac}",
            "seed": seed,
            **totals,
        }
        write_meta(folder / "meta.json", meta)


def keep_tokenizer(source: str | Path, out_dir: str | Path) -> Tokenizer:
    """Copy a tokenizer to `out_dir` (spm.model or tokenizer.json, and meta.json) and return it loaded from there."""
    file, out = tokenizer_file(source), Path(out_dir)
    if file.parent.resolve() != out.resolve():
        vocab_size = load_tokenizer(file).vocab_size  # of one that can be read, before it replaces another
        with atomic_path(out) as folder:
            copy_tokenizer(file, folder, vocab_size=vocab_size)
    return load_tokenizer(out) if (out / "meta.json").is_file() else write_tokenizer_meta(out)


def _shuffled(texts: Iterable[str], buffer_size: int, seed: int) -> Iterator[str]:
    """Yield the texts through a shuffle buffer: each new text replaces a random one, which is yielded."""
    import torch

    generator = make_generator(derive_seed(seed, "shuffle buffer"))
    buffer: list[str] = []
    for text in texts:
        if len(buffer) < buffer_size:
            buffer.append(text)
            continue
        place = int(torch.randint(0, buffer_size, (1,), generator=generator))
        yield buffer[place]
        buffer[place] = text
    for place in torch.randperm(len(buffer), generator=generator).tolist():
        yield buffer[place]
