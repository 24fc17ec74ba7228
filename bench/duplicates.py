"""Near duplicates: speed of sketches, and memory needed to find pairs as the number of documents grows.

Run: python -m bench.duplicates [THOUSANDS...]   (number of documents; each in its own process)
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from niels_gpt.data.corpus.sketch import Sketches, sketch_texts
from niels_gpt.duplicates.pairs import find_pairs

BATCH, HASHES, COMMON = 1000, 100, 20_000
TWINS = 10  # one document in so many repeats nine of ten hashes of an earlier one


def synthetic(documents: int) -> Iterator[Sketches]:
    """Return sketches of 100 hashes each: 70 unique ones, and 30 of phrases that many documents share."""
    rng = np.random.default_rng(0)
    last = rng.integers(0, 2**63, (BATCH, HASHES), dtype=np.uint64)
    for _ in range(documents // BATCH):
        own = rng.integers(0, 2**63, (BATCH, HASHES), dtype=np.uint64)
        phrases = (COMMON * rng.random((BATCH, 30)) ** 3).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        own[:, :30] = phrases
        own[::TWINS] = np.where(rng.random((len(own[::TWINS]), HASHES)) < 0.9, last[::TWINS], own[::TWINS])
        last = own
        rows = [np.unique(row) for row in own]
        names = rng.integers(0, 2**63, (2, BATCH), dtype=np.uint64)
        starts = np.cumsum([0, *map(len, rows)])
        yield Sketches(names[0], names[1], np.zeros(BATCH, dtype=np.uint8), starts, np.concatenate(rows))


def peak_mib() -> float:
    """Return this process's peak memory. (getrusage reports the parent's peak if that was larger.)"""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) / 1024


def measure(documents: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        made = sum(1 for _ in synthetic(documents))
        making = time.process_time() - start
        before, start = peak_mib(), time.process_time()
        hashes = made * BATCH * HASHES
        pairs = find_pairs([synthetic(documents)], near=0.5, hashes=hashes, scratch=Path(folder, "scratch"))
        seconds = time.process_time() - start - making
    twins = documents // TWINS - BATCH // TWINS
    return (
        f"{documents:>10,} documents  {seconds:7.1f} s ({seconds / documents * 1e6:.0f} us each)  "
        f"{before:.0f} -> {peak_mib():.0f} MiB  {len(pairs.documents):,} pairs for {twins:,} planted"
    )


def main() -> None:
    if sys.argv[1:2] == ["--alone"]:
        print(measure(int(sys.argv[2])))
        return
    from bench.tokenize import texts  # imports torch, which would be most of the memory

    found = list(texts(20))
    sketch_texts(found[:100])
    start = time.process_time()
    for first in range(0, len(found), BATCH):
        sketch_texts(found[first : first + BATCH])
    size = sum(len(text.encode("utf-8")) for text in found) / 1e6
    print(f"sketches: {size / (time.process_time() - start):.1f} MB/s of text on one core, {len(found):,} documents")
    for thousands in sys.argv[1:] or ["100", "300", "1000"]:
        alone = [sys.executable, "-m", "bench.duplicates", "--alone", str(1000 * int(thousands))]
        subprocess.run(alone, check=True)


if __name__ == "__main__":
    main()
