"""tokenize@S: every row encoded once, an end-of-text id behind each document."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from niels_gpt.cache.encoding import describe_tokenizer, encode_documents
from niels_gpt.cache.formats import write_token_file
from niels_gpt.cache.meta import read_meta, sha256_file, write_meta
from niels_gpt.documents import read_texts
from niels_gpt.progress import progress
from niels_gpt.tokenizer import load_tokenizer, tokenizer_file
from stages.stage import Stage, run_stage

TOKENIZER = Path("cache/tokenizer")


def texts(raw: Path, rows: np.ndarray, *, title: str) -> Iterator[str]:
    with progress(total=len(rows), unit="doc", title=title) as bar:
        for batch in read_texts(raw, rows):
            yield from batch
            bar.update(len(batch))


def main(stage: Stage) -> None:
    tokenizer = load_tokenizer(TOKENIZER)
    raw, split = Path("cache/raw", stage.key), Path("cache/split", stage.key)
    out = stage.out(f"cache/tokens/{stage.key}")
    out.mkdir()
    totals = {}
    for name in ("train", "val"):
        rows = np.load(split / f"{name}.npy")
        documents = encode_documents(tokenizer, texts(raw, rows, title=f"{stage.title} {name}"))
        _, totals[name] = write_token_file(out / f"{name}_tokens.bin", out / f"{name}_idx.npy", documents)
    write_meta(
        out / "meta.json",
        {
            "source": read_meta(raw / "source.json"),
            "split": read_meta(split / "split.json"),
            **describe_tokenizer(tokenizer),
            "tokenizer_sha256": sha256_file(tokenizer_file(TOKENIZER)),
        },
    )
    stage.say(f"{totals['train']:,} train and {totals['val']:,} val tokens -> cache/tokens/{stage.key}")


if __name__ == "__main__":
    run_stage("tokenize", main)
