"""split@S and split_chat@S: which rows are train and which are held out. Row numbers only; no text is copied."""

from __future__ import annotations

import numpy as np

from niels_gpt.cache.meta import list_files, sha256_file
from niels_gpt.data.documents import FILE_NAME, count_rows, read_column
from niels_gpt.data.split import split_as_given, split_groups, split_rows
from niels_gpt.files.atomic import write_json
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.stage import Stage, run_stage


def main(stage: Stage) -> None:
    raw = layout.RAW / stage.key
    source = stage.chat_source or stage.source
    rule = source.split
    if rule.by == "given":
        train, val = split_as_given(read_column(raw, "split"))
    elif rule.by == "tree":
        train, val = split_groups(read_column(raw, "group"), val_frac=rule.val_frac, seed=rule.seed)
    else:
        train, val = split_rows(count_rows(raw), val_frac=rule.val_frac, seed=rule.seed)
    if not train or not val:
        raise ValueError(
            f"{len(train)} documents to train on and {len(val)} to hold out for validation: each needs at least one "
            f"(by: {rule.by}); add text, or check how documents are told apart in {source.input}"
        )
    # Chats beside, not among: the tokenizer is trained on what is in the other folder.
    place = (layout.CHAT_SPLIT if stage.chat_source else layout.SPLIT) / stage.key
    out = stage.out(place)
    out.mkdir()
    np.save(out / "train.npy", np.array(train, dtype=np.int64))
    np.save(out / "val.npy", np.array(val, dtype=np.int64))
    facts = {
        **rule.model_dump(),
        "documents_sha256": sha256_file(raw / FILE_NAME),
        "files": list_files(out, "*.npy", published=str(place)),
    }
    # The tokenizer depends on splits alone; with the documents' hash they tell it of a changed text, too.
    write_json(out / "split.json", facts)
    stage.say(f"{len(train):,} train, {len(val):,} val -> {place}")


if __name__ == "__main__":
    run_stage("split", main)
