"""tokenizer: the one tokenizer of the run. Bytes need no training; pieces are trained on train rows alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from niels_gpt.cache.integrity import read_split
from niels_gpt.cache.meta import read_meta
from niels_gpt.data.documents import FILE_NAME, read_texts
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import SentencePiece
from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.tokenizer.folder import write_tokenizer
from niels_gpt.tokenizer.training import train_sentencepiece


def sampled_texts(stage: Stage, settings: SentencePiece) -> Iterator[str]:
    """About `sample_bytes` of train rows, each source in proportion to its size, drawn by seed and read in order."""
    names = sorted(stage.params.sources)
    sizes = {name: read_meta(layout.RAW / name / "source.json", required=["bytes"])["bytes"] for name in names}
    share = min(1.0, settings.sample_bytes / sum(sizes.values()))
    for name in names:
        rows = read_split(layout.SPLIT / name, layout.RAW / name / FILE_NAME)["train"]
        if share < 1:
            import torch

            order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(settings.seed)).numpy()
            rows = np.sort(rows[order[: max(1, int(len(rows) * share))]])
        for texts in read_texts(layout.RAW / name, rows):
            yield from texts


def main(stage: Stage) -> None:
    settings, out = stage.params.tokenizer, stage.out(layout.TOKENIZER)
    model = None
    if isinstance(settings, SentencePiece):
        model = train_sentencepiece(sampled_texts(stage, settings), vocab_size=settings.vocab_size)
    tokenizer = write_tokenizer(out, model=model)
    stage.say(f"{settings.kind}, V={tokenizer.vocab_size:,} -> {layout.TOKENIZER}")


if __name__ == "__main__":
    run_stage("tokenizer", main)
