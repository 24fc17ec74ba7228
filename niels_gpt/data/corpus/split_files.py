"""Files of the split and duplicates stages: rows of each side, and split constraints; samples of training rows."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.data.corpus.parts import Part, Texts, read_column, read_contents, read_keys, reading_part
from niels_gpt.data.corpus.split import Bonds, Drawn, joined_units, split_by_hash, split_groups
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import Damaged, changed_files, described_by, list_files, name_all, read_meta
from niels_gpt.files.store import Store
from niels_gpt.rng import permutation


@dataclass(frozen=True)
class SplitPart:
    """Part of a source, its store, and the split of its rows as in `Splits`; a task for a worker."""

    store: Store
    part: Part
    rows: Mapping[str, np.ndarray]
    rule: Drawn | None

    @property
    def name(self) -> str:
        return self.part.name

    @contextmanager
    def reading(self) -> Iterator[tuple[Path, dict[str, np.ndarray]]]:
        """Yield (local path of the part, {"train": row numbers within it, "val": row numbers})."""
        with reading_part(self.store, self.part) as path:
            yield path, part_rows(path, self.rows, self.rule)


@dataclass(frozen=True)
class Splits:
    """Split of a source: the rows of "train" and "val", numbered over all parts, and its split.json (`facts`).

    With a `rule`, rows are split by a hash of their keys, and only those are listed that duplicates put in "train",
    "val" or "out".
    """

    rows: Mapping[str, np.ndarray]
    rule: Drawn | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def by_part(self, texts: Texts) -> Iterator[SplitPart]:
        """Yield the parts in order, each with its own rows."""
        first = 0
        for part in texts.parts:
            ends = (first, first + part.rows)
            own = {side: rows[slice(*np.searchsorted(rows, ends))] - first for side, rows in self.rows.items()}
            yield SplitPart(texts.store, part, own, self.rule)
            first += part.rows


def part_rows(path: Path, listed: Mapping[str, np.ndarray], rule: Drawn | None) -> dict[str, np.ndarray]:
    """Return {"train": row numbers, "val": row numbers} of a part; a hash rule is applied to the keys in its file."""
    if rule is None:
        return dict(listed)
    moved = {side: listed.get(side, np.empty(0, dtype=np.int64)) for side in ("train", "val", "out")}
    every = np.concatenate(list(moved.values()))
    # Take the moved rows off the side that the hash gave them, then add them to their own.
    return {
        side: np.setdiff1d(np.union1d(np.setdiff1d(own, every), moved[side]), moved["out"])
        for side, own in split_by_hash(read_keys(path), rule).items()
    }


def document_names(texts: Texts, splits: Splits) -> dict[str, list[str]]:
    """Return {"train": ids, "val": ids} of all rows, in order."""
    names: dict[str, list[str]] = {"train": [], "val": []}
    for part in splits.by_part(texts):
        with part.reading() as (path, sides):
            ids = read_column(path, "id")
            for side, rows in sides.items():
                names[side] += [ids[row] for row in rows.tolist()]
    return names


def split_source(texts: Texts, by: str, rule: Drawn | None, bonds: Bonds) -> tuple[list[int], list[int]]:
    """Return the (train, val) row numbers of a source split `by` "given", "document" or "tree"; given has no `rule`."""
    if rule is None:
        sides = texts.column("split")  # rows with another value or None are on neither side
    else:
        units = joined_units(texts.keys() if by == "tree" else range(texts.rows), bonds.joined)
        held_out = set(split_groups(units, val_frac=rule.val_frac, seed=rule.seed)[1])
        # A row that is fixed to a side takes its whole unit along.
        fixed = {units[row]: side for side in ("train", "val") for row in getattr(bonds, side).tolist()}
        sides = [fixed.get(unit, "val" if row in held_out else "train") for row, unit in enumerate(units)]
    for row in bonds.out.tolist():
        sides[row] = None
    train, val = ([row for row, side in enumerate(sides) if side == name] for name in ("train", "val"))
    return train, val


def read_split(folder: Path, texts: Texts) -> Splits:
    """Read the split stage's output, after checking its files and that it was made from these texts."""
    path = folder / "split.json"
    facts = read_checked(path, texts)
    with described_by(path):
        files = [folder / Path(file["path"]).name for file in facts["files"]]
        rule = Drawn(val_frac=facts["val_frac"], seed=facts["seed"]) if facts["by"] == "hash" else None
    return Splits({file.stem: np.load(file) for file in files}, rule, facts)


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


def write_bonds(folder: Path, bonds: Bonds, *, texts_sha256: str, published: str) -> None:
    """Write the constraints as row numbers only, so that the bytes change only if the source or its constraints do."""
    folder.mkdir()
    for name, rows in bonds._asdict().items():
        np.save(folder / f"{name}.npy", rows)
    files = list_files(folder, "*.npy", published=published)
    write_json(folder / _FACTS, {"texts_sha256": texts_sha256, "files": files})


def read_bonds(folder: Path, texts: Texts) -> Bonds:
    """Read the constraints of a source, after checking that they were computed from these texts."""
    read_checked(folder / _FACTS, texts)
    return Bonds(*(np.load(folder / f"{name}.npy") for name in Bonds._fields))


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
        if splits.rule is not None:
            chosen = _sampled_parts(texts, splits, share, seed)
        else:
            rows = splits.rows["train"]
            if share < 1:
                rows = np.sort(rows[permutation(len(rows), seed)[: max(1, int(len(rows) * share))]])
            chosen = texts.by_part(rows)
        yield from ((name, text) for path, own in chosen for batch in read_contents(path, own) for text in batch)


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
    for own in splits.by_part(texts):
        if own.name in chosen:
            with own.reading() as (path, rows):
                keys, train = read_keys(path), rows["train"]
                yield path, train[split_by_hash([f"sample {keys[row]}" for row in train], left_out)["train"]]
