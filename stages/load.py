"""load@S and load_chat@S: one source, as it lies, into one row a document or a chat."""

from __future__ import annotations

from niels_gpt.data.documents import write_chats, write_documents
from niels_gpt.data.types import Request
from niels_gpt.files.atomic import write_json
from niels_gpt.files.progress import Tally, progress
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.inputs import located
from niels_gpt.pipeline.stage import Stage, run_stage


def main(stage: Stage) -> None:
    source = stage.chat_source or stage.source
    settings = source.settings()
    path, revision = located(source.input, settings)
    max_tokens = None if stage.chat_source else stage.source.shard.tokens()
    request = Request(path, revision, max_tokens=max_tokens, patience_s=stage.params.runtime.hub_patience_s)
    place = layout.RAW / stage.key
    out = stage.out(place)
    with progress(total=None, unit="doc", title=stage.title) as bar:
        tally, rows = Tally(bar, stage.title), source.kind.read(settings, request)
        if source.kind.holds_chats:
            count = write_chats(out, rows, tick=tally)
        else:
            # A blank document has nothing to learn from, and would only be an end of text.
            count = write_documents(out, (row for row in rows if row.text.strip()), tick=tally)
    if not count.rows:
        raise ValueError(f"{path} holds no text: put some there, or take the source out of params.yaml")
    facts = {"name": stage.key, **source.load.model_dump(), "streaming": getattr(settings, "streamed", False)}
    write_json(out / "source.json", {**facts, "revision": revision, "rows": count.rows, "bytes": count.bytes})
    stage.say(f"{tally} -> {place}")


if __name__ == "__main__":
    run_stage("load", main)
