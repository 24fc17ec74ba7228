"""Stage `load@S`: convert one source to Parquet parts, with one row per document or chat and its sketch."""

from dataclasses import replace

from niels_gpt.data.corpus.loading import Slice, cut_source, digest_inputs, load_parts
from niels_gpt.data.corpus.parts import MANIFEST, manifest_of
from niels_gpt.data.kinds import say_left_out
from niels_gpt.files.atomic import write_json
from niels_gpt.files.messages import plural, progress
from niels_gpt.files.store import Store
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.external_checks import request_of
from niels_gpt.pipeline.sections import CommonLoad
from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.pipeline.stores import open_engine, place_of


def main(stage: Stage) -> None:
    """Read the source, screen it for secrets and personal data, and write its parts and manifest."""
    source, settings, text_bytes = stage.source, stage.source.load.settings(), stage.params.parts.text_bytes
    request = request_of(source, patience_s=stage.params.runtime.hub_patience_s)
    engine, out = open_engine(stage.params), layout.RAW / stage.key
    asked = source.load.model_dump(exclude=set(CommonLoad.model_fields))
    # Nothing for the default, so that fingerprints from before this key existed stay valid.
    personal = [] if source.load.on_personal == "keep" else [source.load.on_personal]
    whole = Slice(source.load.kind, settings, request, Store(""), text_bytes, source.on_secret, source.load.on_personal)
    stage.out(out).mkdir()
    for line in say_left_out(source.load.kind, settings, request.path):
        stage.say(line)
    with progress(total=None, unit="B", title=stage.title) as bar:
        made_of = []
        if source.load.stored:
            found = engine.map(digest_inputs, cut_source(whole), tick=bool)
            made_of = [digest for _, digest in sorted(found, key=lambda pair: pair[0].number)]
        asked_for = (asked, request.max_tokens, text_bytes, source.on_secret, *personal, made_of)
        place = place_of(stage, out, "texts", *asked_for, stored=source.load.stored)
        parts, secrets = load_parts(
            engine, cut_source(replace(whole, store=place.store)), say=stage.say, tick=bar.update
        )
    for line in secrets.told(source.on_secret):
        stage.say(line)
    if not any(part.rows for part in parts):
        if secrets.documents:
            raise ValueError(
                f"every document in {request.path} has a secret, and on_secret is drop: mask replaces them instead"
            )
        raise ValueError(f"{request.path} holds no text: put some there, or take the source out of params.yaml")
    place.finish({part.file for part in parts})
    streamed = getattr(settings, "streamed", False)
    facts = {"name": stage.key, **asked, "streaming": streamed, "revision": request.revision}
    manifest = manifest_of(parts, {**facts, **secrets.facts(source.on_secret)}, at=place.at)
    write_json(stage.out(out) / MANIFEST, manifest)
    stage.say(f"{plural(manifest['rows'], 'document')} in {plural(len(parts), 'part')}, {bar.rate()} -> {place}")


if __name__ == "__main__":
    run_stage("load", main)
