"""Stage `split@S`: assign rows to train or validation, by row number; no text is copied."""

import numpy as np

from niels_gpt.data.corpus.parts import open_texts
from niels_gpt.data.corpus.split import Drawn
from niels_gpt.data.corpus.split_files import read_bonds, split_source
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import list_files
from niels_gpt.files.messages import plural
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.pipeline.stores import store_of


def main(stage: Stage) -> None:
    """Write the row numbers of each side; a hash rule lists only the rows that duplicates decide."""
    texts = open_texts(layout.RAW / stage.key, stored=store_of(stage.params, stage.key))
    source, rule = stage.source, stage.source.split
    # Text and chats have their own folders: the tokenizer depends on the whole folder of text splits.
    place = layout.SPLIT / source.use / stage.key
    out = stage.out(place)
    out.mkdir()
    bonds = read_bonds(layout.DUPLICATES / stage.key, texts)
    told = f"{plural(texts.rows, 'document')} by a hash of each one's name"
    if rule.by == "hash":  # evaluated row by row when a part is read
        listed = {side: getattr(bonds, side) for side in ("train", "val", "out")}
        listed = {side: rows for side, rows in listed.items() if len(rows)}
        told += f", but for {sum(map(len, listed.values())):,} that others decide" if listed else ""
    else:
        drawn = None if rule.by == "given" else Drawn(val_frac=rule.val_frac, seed=rule.seed)
        train, val = split_source(texts, rule.by, drawn, bonds)
        if not train or not val:
            alike = "; too many repeat each other (`niels-gpt inspect duplicates`; or set duplicates.near: null)"
            bound = any(map(len, (bonds.joined, bonds.train, bonds.val, bonds.out)))
            raise ValueError(
                f"{plural(len(train), 'document')} to train on and {len(val)} to hold out for validation: each needs "
                f"at least one (by: {rule.by}); add text, or check how {source.input} is divided into documents"
                f"{alike if bound else ''}"
            )
        listed = {"train": np.array(train, dtype=np.int64), "val": np.array(val, dtype=np.int64)}
        told = f"{len(train):,} train, {len(val):,} val"
        told += f", {plural(len(bonds.out), 'duplicate')} excluded" if len(bonds.out) else ""
    for side, rows in listed.items():
        np.save(out / f"{side}.npy", rows)
    facts = {
        **rule.model_dump(),
        "private": source.private,
        "texts_sha256": texts.digest,
        "files": list_files(out, "*.npy", published=str(place)),
    }
    # The tokenizer stage depends on splits only: it reruns when a text changes, or whether it is private.
    write_json(out / "split.json", facts)
    stage.say(f"{told} -> {place}")


if __name__ == "__main__":
    run_stage("split", main)
