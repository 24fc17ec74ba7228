"""Stage `duplicates`: find duplicate documents across all sources, and constrain the split of each source."""

import shutil
from collections import Counter
from collections.abc import Iterator

import numpy as np

from niels_gpt.data.corpus.parts import open_texts
from niels_gpt.data.corpus.split import Drawn
from niels_gpt.data.corpus.split_files import write_bonds
from niels_gpt.duplicates.pairs import find_pairs, read_sketches
from niels_gpt.duplicates.sides import SplitSource, bonds_of
from niels_gpt.files.atomic import write_json
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.pipeline.stores import store_of

# Estimate, between short texts (one hash a word, 6 bytes) and long ones (one hash in 8 words).
_BYTES_PER_HASH = 16


def sources_of(stage: Stage) -> Iterator[SplitSource]:
    """Yield the sources of text, then those of chats, sorted by name.

    DVC ignores their order in params.yaml, so no result may depend on it.
    """
    first = 0
    for name, source in [*sorted(stage.params.texts.items()), *sorted(stage.params.chats.items())]:
        texts, split = open_texts(layout.RAW / name, stored=store_of(stage.params, name)), source.split
        rule = None if split.by == "given" else Drawn(val_frac=split.val_frac, seed=split.seed)
        yield SplitSource(name, texts, first, split.by, rule)
        first += texts.rows


def main(stage: Stage) -> None:
    """Find duplicate pairs, and write how they constrain each source's split."""
    rules = stage.params.duplicates
    out, listed = stage.out(layout.DUPLICATES), stage.out(layout.PAIRS)
    out.mkdir()
    listed.mkdir()
    sources, scratch = list(sources_of(stage)), out / "scratch"
    hashes = sum(source.texts.text_bytes for source in sources) // _BYTES_PER_HASH
    sketches = (read_sketches(source.texts) for source in sources)
    pairs = find_pairs(sketches, near=rules.near, hashes=hashes, scratch=scratch)
    shutil.rmtree(scratch)
    found = bonds_of(sources, pairs, once=rules.exact == "once")
    for source in sources:
        write_bonds(
            out / source.name,
            found[source.name][0],
            texts_sha256=source.texts.digest,
            published=str(layout.DUPLICATES / source.name),
        )
    # For inspection only, and a separate output: splits depend on DUPLICATES alone and rerun only when that changes.
    np.save(listed / "documents.npy", pairs.documents)
    np.save(listed / "containment.npy", pairs.containment)
    write_json(listed / "sources.json", {source.name: [source.first, source.texts.rows] for source in sources})
    write_json(listed / "counts.json", {name: counts for name, (_, counts) in found.items()})
    total = sum((Counter(counts) for _, counts in found.values()), Counter())
    stage.say(
        f"{total['near']:,} of {total['documents']:,} documents are near duplicates, {total['exact']:,} repeat a text "
        f"of their source, {total['left_out']:,} are excluded -> {layout.DUPLICATES}"
    )


if __name__ == "__main__":
    run_stage("duplicates", main)
