"""Files of the split and duplicates stages: rows of each side, and split constraints; samples of training rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.data.corpus.parts import Part, Texts, read_column, read_keys, read_texts, reading_part
from niels_gpt.data.corpus.split import Bonds, Drawn, split_by_hash
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import Damaged, changed_files, described_by, list_files, name_all, read_meta
from niels_gpt.rng import permutation


@dataclass(frozen=True)
class ByHash:
    """Split by hash, evaluated per row; `moved` lists the rows that duplicates put in "train", "val" or "out"."""

    rule: Drawn
    moved: dict[str, np.ndarray] = field(default_factory=dict)


Split = dict[str, np.ndarray] | ByHash  # {"train": row numbers, "val": row numbers}, or a rule


@dataclass(frozen=True)
class Splits:
    """Split of a source, with rows numbered over all parts, and the content of its split.json (`facts`)."""

    split: Split
    facts: dict[str, Any]

    def by_part(self, texts: Texts) -> Iterator[tuple[Part, Split]]:
        """Yield each part with its split, rows numbered within the part."""
        listed, first = self.split.moved if isinstance(self.split, ByHash) else self.split, 0
        for part in texts.parts:
            last = first + part.rows
            own = {name: rows[slice(*np.searchsorted(rows, (first, last)))] - first for name, rows in listed.items()}
            yield part, ByHash(self.split.rule, own) if isinstance(self.split, ByHash) else own
            first = last


def part_rows(split: Split, path: Path) -> dict[str, np.ndarray]:
    """Return {"train": row numbers, "val": row numbers} of a part; a hash rule is applied to the keys in its file."""
    if not isinstance(split, ByHash):
        return split
    rows = split_by_hash(read_keys(path), split.rule)
    if any(map(len, split.moved.values())):
        moved = {side: split.moved.get(side, np.empty(0, dtype=np.int64)) for side in ("train", "val", "out")}
        # Take the moved rows off the side that the hash gave them, then add them to their own.
        every = np.concatenate(list(moved.values()))
        for side, own in rows.items():
            rows[side] = np.setdiff1d(np.union1d(np.setdiff1d(own, every), moved[side]), moved["out"])
    return rows


def document_names(texts: Texts, splits: Splits) -> dict[str, list[str]]:
    """Return {"train": ids, "val": ids} of all rows, in order."""
    names: dict[str, list[str]] = {"train": [], "val": []}
    for part, split in splits.by_part(texts):
        with reading_part(texts.store, part) as path:
            ids = read_column(path, "id")
            for side, rows in part_rows(split, path).items():
                names[side] += [ids[row] for row in rows.tolist()]
    return names


def read_split(folder: Path, texts: Texts) -> Splits:
    """Read the split stage's output, after checking its files and that it was made from these texts."""
    path = folder / "split.json"
    facts = read_checked(path, texts)
    with described_by(path):
        files = [folder / Path(file["path"]).name for file in facts["files"]]
        rows = {file.stem: np.load(file) for file in files}
        if facts["by"] == "hash":
            return Splits(ByHash(Drawn(val_frac=facts["val_frac"], seed=facts["seed"]), rows), facts)
    return Splits(rows, facts)


def read_checked(path: Path, texts: Texts) -> dict[str, Any]:
    """Read a JSON file after checking, by SHA-256, the files that it lists in its folder, and that it is of `texts`."""
    facts, folder = read_meta(path), path.parent
    with described_by(path):
        here = [{**file, "path": str(folder / Path(file["path"]).name)} for file in facts["files"]]
        bad = changed_files(here, root=Path())
    if bad:
        raise Damaged(folder, f"is not what was written: {name_all(bad)}")
    if facts.get("texts_sha256") != texts.digest:
        raise Damaged(texts.store.root, f"is not what {folder} was made of", others=[folder])
    return facts


_FACTS = "bonds.json"
_ROWS = ("joined", "train", "val", "out")


def write_bonds(folder: Path, bonds: Bonds, *, texts_sha256: str, published: str) -> None:
    """Write the constraints as row numbers only, so that the bytes change only if the source or its constraints do."""
    folder.mkdir()
    for name in _ROWS:
        np.save(folder / f"{name}.npy", getattr(bonds, name))
    files = list_files(folder, "*.npy", published=published)
    write_json(folder / _FACTS, {"texts_sha256": texts_sha256, "files": files})


def read_bonds(folder: Path, texts: Texts) -> Bonds:
    """Read the constraints of a source, after checking that they were computed from these texts."""
    read_checked(folder / _FACTS, texts)
    return Bonds(*(np.load(folder / f"{name}.npy") for name in _ROWS))


# Samples of training text, on which a tokenizer is trained. A part has to be read whole to be sampled, so of a large
# hash-split corpus only parts with 8 times the sample's bytes are read.
_OVERSAMPLED = 8


def sampled_texts(
    sources: Mapping[str, tuple[Texts, Splits]], *, sample_bytes: int, seed: int
) -> Iterator[tuple[str, str]]:
    """Yield (source, text) of training documents, about `sample_bytes` in total, sampled by `seed`.

    Every source contributes in proportion to its size.
    """
    share = min(1.0, sample_bytes / sum(texts.text_bytes for texts, _ in sources.values()))
    for name in sorted(sources):
        texts, splits = sources[name]
        if isinstance(splits.split, ByHash):
            chosen = _sampled_parts(texts, splits, share, seed)
        else:
            rows = splits.split["train"]
            if share < 1:
                rows = np.sort(rows[permutation(len(rows), seed)[: max(1, int(len(rows) * share))]])
            chosen = texts.by_part(rows)
        yield from ((name, text) for path, own in chosen for batch in read_texts(path, own) for text in batch)


def _sampled_parts(texts: Texts, splits: Splits, share: float, seed: int) -> Iterator[tuple[Path, np.ndarray]]:
    """Yield (path, rows) of a hash-split source: parts are chosen by a hash of their names, rows by their keys."""
    wanted = share * texts.text_bytes
    chosen, size = set(), 0
    for part in sorted(texts.parts, key=lambda part: hashlib.sha256(f"{seed} {part.name}".encode()).digest()):
        if size >= _OVERSAMPLED * wanted:
            break
        chosen.add(part.name)
        size += part.text_bytes
    # Fraction of these parts' training rows to skip. The keys below have a prefix: with the split's own keys and seed
    # the two choices would be correlated.
    left_out = Drawn(val_frac=max(0.0, 1 - wanted / max(1, size)), seed=seed)
    for part, split in splits.by_part(texts):
        if part.name in chosen:
            with reading_part(texts.store, part) as path:
                keys, train = read_keys(path), part_rows(split, path)["train"]
                yield path, train[split_by_hash([f"sample {keys[row]}" for row in train], left_out)["train"]]
