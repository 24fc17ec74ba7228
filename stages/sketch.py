"""Stages `sketch@S` and `sketch_chat@S`: hash the words of each row, to find duplicates by."""

from __future__ import annotations

from niels_gpt.data.corpus.parts import MANIFEST, manifest_of, open_texts
from niels_gpt.duplicates.sketches import make_sketches
from niels_gpt.files.atomic import write_json
from niels_gpt.files.messages import progress
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.pipeline.stores import open_engine, place_of, store_of


def main(stage: Stage) -> None:
    """Write the sketches of one source, part by part."""
    texts = open_texts(layout.RAW / stage.key, stored=store_of(stage.params, stage.key))
    out = (layout.CHAT_SKETCHES if stage.chat_source else layout.SKETCHES) / stage.key
    stage.out(out).mkdir()
    place = place_of(stage, out, "sketches", texts.digest)
    with progress(total=texts.text_bytes, unit="B", title=stage.title) as bar:
        engine = open_engine(stage.params.runtime)
        parts = make_sketches(engine, texts, place.store, say=stage.say, tick=bar.update)
    place.finish({part.file for part in parts})
    facts = {"name": stage.key, "texts_sha256": texts.digest}
    write_json(stage.out(out) / MANIFEST, manifest_of(parts, facts, at=place.at))
    stage.say(f"{texts.rows:,} documents, {sum(part.bytes for part in parts):,} bytes -> {place}")


if __name__ == "__main__":
    run_stage("sketch", main)
