"""Stage `index@S`: index the documents of one source, to trace replies to them and to search them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from niels_gpt.data.corpus.parts import Texts, open_texts, read_chats, read_column, read_texts, reading_part, transcript
from niels_gpt.data.corpus.split_files import Splits, part_rows, read_split
from niels_gpt.files.messages import plural, progress
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.stage import Stage, leave_out, run_stage
from niels_gpt.pipeline.stores import store_of
from niels_gpt.trace.index import Row, write_index


def read_rows(texts: Texts, splits: Splits, *, chats: bool) -> Iterator[Row]:
    """Yield all documents of a source in order; a chat is a document, with a line per message."""
    for part, split in splits.by_part(texts):
        with reading_part(texts.store, part) as path:
            every, trained = np.arange(part.rows), np.zeros(part.rows, dtype=bool)
            trained[part_rows(split, path)["train"]] = True
            found = (
                (transcript(chat) for batch in read_chats(path, every) for chat in batch)
                if chats
                else (text for batch in read_texts(path, every) for text in batch)
            )
            yield from map(Row, read_column(path, "id"), found, trained.tolist())


MOST_BYTES = 1 << 30  # text of a source: 7 minutes of CPU and 2.4 GB of disk; web text has more, notes have not


def main(stage: Stage) -> None:
    """Write the index of one source, unless it is too large for one."""
    place = layout.INDEX / stage.key
    texts = open_texts(layout.RAW / stage.key, stored=store_of(stage.params, stage.key))
    splits = read_split(layout.SPLIT / stage.source.use / stage.key, texts)
    too_large = texts.at is not None or texts.text_bytes > MOST_BYTES
    if too_large:
        stage.say(f"not indexed: {texts.text_bytes:,} bytes of text, more than {MOST_BYTES:,}, or in a store")
    if too_large or not stage.params.index.run:
        leave_out(stage, place)
        return
    stage.out(place).mkdir()
    with progress(total=texts.text_bytes, unit="B", title=stage.title) as bar:
        rows = read_rows(texts, splits, chats=stage.source.use == "chat")
        size = write_index(stage.out(place), rows, tick=bar.update)
    stage.say(f"{plural(size.documents, 'document')}, {plural(size.words, 'word')} to trace -> {place}")


if __name__ == "__main__":
    run_stage("index", main)
