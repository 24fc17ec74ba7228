"""Stage `index`: index documents, to trace replies to them and search them; find held-out text in training text."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from niels_gpt.data.corpus.parts import Texts, read_column, read_wording
from niels_gpt.data.corpus.split_files import Splits
from niels_gpt.duplicates.overlap import find_quotes, measure_overlap
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import read_meta
from niels_gpt.files.messages import progress
from niels_gpt.jobs.engine import LocalEngine
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.results import write_metrics
from niels_gpt.pipeline.stage import Stage, leave_out, run_stage
from niels_gpt.pipeline.stores import open_engine, open_source
from niels_gpt.trace.index import Row, write_index

Sources = Mapping[str, tuple[Texts, Splits]]

MOST_BYTES = 1 << 30  # text of a source: 7 minutes of CPU and 2.4 GB of disk; web text has more, notes have not
FEW_BYTES = 32 << 20  # of all text: 16 MB take 3.3 s in this process and 6.8 s in two, 32 MB about 16 s in either


def write_overlap(stage: Stage, sources: Sources) -> None:
    """Write overlap statistics by source, and the spans of quotes in held-out documents; stores no text."""
    out, engine = stage.out(layout.DATA), open_engine(stage.params)
    if sum(texts.text_bytes for texts, _ in sources.values()) < FEW_BYTES:
        engine = LocalEngine(workers=1)
    # Next to the output and not in /tmp, so that workers can read it as well.
    with tempfile.TemporaryDirectory(prefix=f"{out.name}.", dir=out.parent) as scratch:
        overlaps = measure_overlap(engine, sources, scratch=Path(scratch))
        quotes = find_quotes(engine, sources, scratch=Path(scratch))
    counts = read_meta(layout.PAIRS / "counts.json", required=list(sources))
    found = {
        name: {
            **counts[name],
            "held_out_runs": overlap["runs"],
            "runs_in_train": round(overlap["runs_found"] / max(1, overlap["runs"]), 6),
            "characters_in_train": round(overlap["characters_found"] / max(1, overlap["characters"]), 6),
        }
        for name, overlap in overlaps.items()
    }
    for name, own in quotes.items():
        if own.spans:
            found[name]["quotes"] = sum(map(len, own.spans.values()))
            found[name] |= {"quoted_documents": len(own.spans), "quoted_characters": own.characters}
    write_metrics(out, found)
    write_json(stage.out(layout.QUOTES), {name: own.spans for name, own in quotes.items()})
    for name, row in found.items():
        stage.say(
            f"{name}: {row['near']:,} of {row['documents']:,} documents are near duplicates; of the held-out text, "
            f"{row['characters_in_train']:.2%} of the characters stand in training text -> {layout.DATA}"
        )


def read_rows(texts: Texts, splits: Splits) -> Iterator[Row]:
    """Yield all documents of a source in order; a chat is a document, with a line per message."""
    for part in splits.by_part(texts):
        with part.reading() as (path, rows):
            ids = read_column(path, "id")
            trained = np.isin(np.arange(len(ids)), rows["train"])
            found = (text for batch in read_wording(path, np.arange(len(ids))) for text in batch)
            yield from map(Row, ids, found, trained.tolist())


def write_indexes(stage: Stage, sources: Sources) -> None:
    """Write the index of each source that is not too large."""
    out = stage.out(layout.INDEX)
    out.mkdir()
    for name, (texts, splits) in sources.items():
        if texts.at is not None or texts.text_bytes > MOST_BYTES:
            stage.say(
                f"{name}: not indexed: {texts.text_bytes:,} bytes of text, more than {MOST_BYTES:,}, or in a store"
            )
            continue
        (out / name).mkdir()
        with progress(total=texts.text_bytes, unit="B", title=f"{stage.title} {name}") as bar:
            words = write_index(out / name, read_rows(texts, splits), tick=bar.update)
        stage.say(f"{name}: {texts.rows:,} documents, {words:,} words to trace -> {layout.INDEX / name}")


def main(stage: Stage) -> None:
    """Write overlap statistics and quotes, and the indexes unless params.yaml disables them."""
    params = stage.params
    sources = {name: open_source(params, name) for name in params.sources}
    write_overlap(stage, sources)
    if params.index.run:
        write_indexes(stage, sources)
    else:
        leave_out(stage, layout.INDEX)


if __name__ == "__main__":
    run_stage("index", main)
