"""Stage `tokenizer`: write the tokenizer of the run; SentencePiece is trained on training rows only."""

from __future__ import annotations

from pathlib import Path

from niels_gpt.data.corpus.parts import open_texts
from niels_gpt.data.corpus.split_files import read_split
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import HF, SentencePiece
from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.pipeline.stores import store_of
from niels_gpt.tokenizer.corpus import sampled_texts
from niels_gpt.tokenizer.tokenizers import copy_tokenizer, load_tokenizer, write_tokenizer
from niels_gpt.tokenizer.training import train_sentencepiece


def main(stage: Stage) -> None:
    """Train SentencePiece on a sample of all text sources, copy the base's tokenizer, or write the byte tokenizer."""
    settings, model = stage.params.tokenizer, None
    if isinstance(settings, HF):
        source = Path(settings.corpus, "tokenizer")
        copied = copy_tokenizer(source, stage.out(layout.TOKENIZER), vocab_size=load_tokenizer(source).vocab_size)
        stage.say(f"{settings.kind}, V={copied.vocab_size:,} -> {layout.TOKENIZER}")
        return
    if isinstance(settings, SentencePiece):
        texts = {
            name: open_texts(layout.RAW / name, stored=store_of(stage.params, name)) for name in stage.params.sources
        }
        sources = {name: (found, read_split(layout.SPLIT / name, found)) for name, found in texts.items()}
        sample = list(sampled_texts(sources, sample_bytes=settings.sample_bytes, seed=settings.seed))
        model = train_sentencepiece(
            [text for _, text in sample],
            vocab_size=settings.vocab_size,
            private=[stage.params.sources[name].private for name, _ in sample],
            min_documents=settings.min_documents,
        )
    tokenizer = write_tokenizer(stage.out(layout.TOKENIZER), model=model)
    stage.say(f"{settings.kind}, V={tokenizer.vocab_size:,} -> {layout.TOKENIZER}")


if __name__ == "__main__":
    run_stage("tokenizer", main)
