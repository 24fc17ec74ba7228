"""Stage `tokenizer`: write the tokenizer of the run: the base's, bytes, or SentencePiece trained on training rows."""

from niels_gpt.base.imported import TOKENIZER as BASE_TOKENIZER
from niels_gpt.base.imported import open_base
from niels_gpt.data.corpus.split_files import sampled_texts
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.sections import Pretrained, SentencePiece
from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.pipeline.stores import open_source
from niels_gpt.tokenizer.tokenizers import copy_tokenizer, write_tokenizer
from niels_gpt.tokenizer.training import train_sentencepiece


def main(stage: Stage) -> None:
    """Train SentencePiece on a sample of all text sources, or write the byte or the base's tokenizer."""
    settings, model = stage.params.tokenizer, None
    if isinstance(settings, SentencePiece):
        sources = {name: open_source(stage.params, name) for name in stage.params.texts}
        sample = list(sampled_texts(sources, sample_bytes=settings.sample_bytes, seed=settings.seed))
        model = train_sentencepiece(
            [text for _, text in sample],
            vocab_size=settings.vocab_size,
            private=[sources[name][1].facts["private"] for name, _ in sample],
            min_documents=settings.min_documents,
        )
    if isinstance(settings, Pretrained):
        base = open_base(layout.BASE)
        tokenizer = copy_tokenizer(base.folder / BASE_TOKENIZER, stage.out(layout.TOKENIZER), vocab_size=base.cfg.V)
    else:
        tokenizer = write_tokenizer(stage.out(layout.TOKENIZER), model=model)
    stage.say(f"{settings.kind}, V={tokenizer.vocab_size:,} -> {layout.TOKENIZER}")


if __name__ == "__main__":
    run_stage("tokenizer", main)
