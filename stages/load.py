"""load@S: one source, as it lies, into one row a document."""

from __future__ import annotations

from collections.abc import Iterator

from niels_gpt.atomic import write_json
from niels_gpt.data.primer import iter_primer
from niels_gpt.data.roam import iter_roam
from niels_gpt.data.wikitext import iter_articles, iter_wikitext
from niels_gpt.documents import Document, write_documents
from stages.params import PrimerLoad, RoamLoad, Source, WikitextLoad
from stages.stage import Stage, run_stage


def documents(source: Source) -> Iterator[Document]:
    match source.load:
        case WikitextLoad() as load:
            for split in ("train", "val"):
                lines = iter_wikitext(
                    path=load.dataset or source.input,
                    config=load.config,
                    split=split,
                    revision=load.revision,
                    streaming=True,
                )
                for i, article in enumerate(iter_articles(lines)):
                    yield Document(id=f"{split}/{i} {article.meta['title']}", text=article.text, split=split)
        case RoamLoad():
            for note in iter_roam(source.input):
                if not note.meta["utf8"]:
                    print(f"  {note.meta['path']} is not UTF-8: what could not be read is shown as U+FFFD")
                yield Document(id=note.meta["path"], text=note.text)
        case PrimerLoad() as load:
            for dialogue in iter_primer(source.input, delimiter=load.delimiter):
                yield Document(id=str(dialogue.meta["dialogue"]), text=dialogue.text)


def main(stage: Stage) -> None:
    out = stage.out(f"cache/raw/{stage.key}")
    # A blank document has nothing to learn from, and would only be an end of text.
    count = write_documents(out, (document for document in documents(stage.source) if document.text.strip()))
    if not count.documents:
        raise ValueError(f"{stage.source.input} holds no text: put some there, or take the source out of params.yaml")
    write_json(out / "source.json", {"name": stage.key, **stage.source.load.model_dump()})
    stage.say(f"{count.documents:,} documents, {count.bytes:,} bytes -> cache/raw/{stage.key}")


if __name__ == "__main__":
    run_stage("load", main)
