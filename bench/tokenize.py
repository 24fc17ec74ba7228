"""Speed of `tokenize` end to end, beside SentencePiece's own batch encoding of the same text; memory on a large source.

Run: python -m bench.tokenize [MEGABYTES]   (a large source is measured only if a size is given)
"""

import os
import random
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import sentencepiece

from bench.rounds import median_ratio, medians, print_result, seconds_in_turns
from niels_gpt.cache.formats import write_token_file
from niels_gpt.cache.token_parts import encode_documents
from niels_gpt.data.corpus.parts import DOCUMENT_SCHEMA, read_contents, write_rows
from niels_gpt.data.types import Document
from niels_gpt.tokenizer import SentencePieceTokenizer
from niels_gpt.tokenizer.training import train_sentencepiece

PART = "part-00000.parquet"
CORPUS = Path("data/wikitext/wikitext-103-raw-v1/train.txt")


def texts(megabytes: float) -> Iterator[str]:
    """Yield documents of shuffled sentences of the sample, until the given number of bytes is reached."""
    rng = random.Random(0)
    sentences = re.split(r"(?<= \. )", CORPUS.read_text(encoding="utf-8"))
    made = 0
    while made < megabytes * 1e6:
        text = "".join(rng.choices(sentences, k=rng.randint(5, 60)))
        made += len(text)
        yield text


def tokenize(tokenizer: SentencePieceTokenizer, folder: Path, rows: int) -> int:
    """Tokenize as the stage does: parquet in, token file out."""
    stream = (text for batch in read_contents(folder / PART, np.arange(rows)) for text in batch)
    return write_token_file(folder / "t.bin", folder / "i.npy", encode_documents(tokenizer, stream))[1]


def make_tokenizer(folder: Path) -> SentencePieceTokenizer:
    (folder / "spm.model").write_bytes(train_sentencepiece([CORPUS.read_text(encoding="utf-8")], vocab_size=4000))
    return SentencePieceTokenizer(folder / "spm.model")


def compare() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer = make_tokenizer(folder)
        sample = list(texts(8))
        rows = write_rows(
            folder / PART, DOCUMENT_SCHEMA, (Document(id=str(i), text=text) for i, text in enumerate(sample))
        )[0]
        plain = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
        cores = os.cpu_count() or 1
        seconds = seconds_in_turns(
            {
                "tokenize": lambda: tokenize(tokenizer, folder, rows),
                "SentencePiece alone": lambda: plain.encode(sample, num_threads=cores),
            },
            rounds=5,
            calls=1,
        )
        ratio = median_ratio(seconds["SentencePiece alone"], seconds["tokenize"])
        print_result("8 MB of text, parquet to token file", medians(seconds), unit="s", ratio=ratio)


def measure_memory(megabytes: float) -> None:
    """Measure in a new process, so that the peak is that of `tokenize` alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_tokenizer(folder)
        rows = write_rows(
            folder / PART, DOCUMENT_SCHEMA, (Document(id=str(i), text=text) for i, text in enumerate(texts(megabytes)))
        )[0]
        subprocess.run([sys.executable, "-m", "bench.tokenize", "--child", str(folder), str(rows)], check=True)


def child(folder: Path, rows: int) -> None:
    tokens = tokenize(SentencePieceTokenizer(folder / "spm.model"), folder, rows)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print_result(f"tokenize of {rows:,} documents", {"tokens": tokens, "peak memory, MB": peak}, unit="")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(Path(sys.argv[2]), int(sys.argv[3]))
    elif len(sys.argv) > 1:
        measure_memory(float(sys.argv[1]))
    else:
        compare()
