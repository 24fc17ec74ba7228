"""Encoding part by part, in processes and on Ray, beside one stream over all cores; bytes compared, memory watched.

Run: python -m bench.engine [MEGABYTES [FOLDER]]   (text of FOLDER or the sample, over and over; Ray where installed)
"""

from __future__ import annotations

import hashlib
import operator
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from bench.rounds import print_result
from bench.tokenize import make_tokenizer, texts
from niels_gpt.cache.formats import write_token_file
from niels_gpt.cache.token_parts import encode_documents, encode_parts
from niels_gpt.data.corpus.loading import up_to
from niels_gpt.data.corpus.parts import Part, Texts, read_column, read_texts, write_documents
from niels_gpt.data.corpus.split import Drawn, split_by_hash
from niels_gpt.data.corpus.split_files import ByHash, Splits
from niels_gpt.data.text import iter_text
from niels_gpt.data.types import Document
from niels_gpt.files.checks import sha256_file
from niels_gpt.files.store import Store
from niels_gpt.jobs.engine import Engine, LocalEngine, RayEngine
from niels_gpt.tokenizer import load_tokenizer

PART_BYTES, ROUNDS, CORES = 2_000_000, 3, os.cpu_count() or 1
RULE = Drawn(val_frac=0.1, seed=1)


def write_corpus(folder: Path, megabytes: float, source: str | None) -> Texts:
    """Parts of about PART_BYTES."""

    def documents() -> Iterator[Document]:
        found = [sample.text for sample in iter_text(source)] if source else list(texts(min(megabytes, 20)))
        made = number = 0
        while made < megabytes * 1e6:
            for text in found:
                yield Document(id=str(number), text=text)
                made, number = made + len(text.encode("utf-8")), number + 1

    rows = documents()
    parts: list[Part] = []
    while batch := list(up_to(PART_BYTES, rows)):
        path = folder / f"part-{len(parts):05d}.parquet"
        count = write_documents(path, batch)
        parts.append(Part(path.name, count.rows, count.bytes, path.stat().st_size, sha256_file(path)))
    return Texts(Store(str(folder)), tuple(parts), {}, "")


def one_stream(corpus: Texts, tokenizer: Path, out: Path) -> None:
    """As before there were parts: documents in order through threads into one file a split."""
    for split in ("train", "val"):

        def rows(split: str = split) -> Iterator[str]:
            for part in corpus.parts:
                path = corpus.store.path(part.file)
                for batch in read_texts(path, split_by_hash(read_column(path, "id"), RULE)[split]):
                    yield from batch

        write_token_file(
            out / f"{split}.bin", out / f"{split}.npy", encode_documents(load_tokenizer(tokenizer), rows())
        )


def by_engine(engine: Engine, corpus: Texts, tokenizer: Path, out: Path) -> None:
    splits = Splits(ByHash(RULE), facts={})
    budgets = {"train": None, "val": None}
    encode_parts(engine, corpus, splits, tokenizer, tokens=Store(str(out)), budgets=budgets, say=bool, tick=bool)


def joined_sha256(out: Path, split: str) -> str:
    digest = hashlib.sha256()
    for path in [out / f"{split}.bin"] if (out / f"{split}.bin").is_file() else sorted((out / split).glob("*.bin")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class Watch:
    """The largest memory of any process below this one while a block runs. (This one made the corpus.)"""

    def __enter__(self) -> Watch:
        self.largest = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(0.1):
            self.largest = max([self.largest, *(_pss(pid) for pid in _tree(os.getpid())[1:])])


def _tree(root: int) -> list[int]:
    below: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            below.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
        except OSError:
            continue
    found = [root]
    for pid in found:
        found += below.get(pid, [])
    return found


def _pss(pid: int) -> float:
    """Megabytes, with what is shared counted once."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def main(megabytes: float, source: str | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_tokenizer(folder)
        corpus = write_corpus(folder / "texts", megabytes, source)
        print(f"{corpus.text_bytes / 1e6:,.0f} MB in {len(corpus.parts)} parts, {corpus.rows:,} documents")
        ways: dict[str, Callable[[Path], None]] = {
            "one stream": lambda out: one_stream(corpus, folder / "spm.model", out),
            "local": lambda out: by_engine(LocalEngine(CORES), corpus, folder / "spm.model", out),
        }
        engines: dict[str, Engine] = {"local": LocalEngine(CORES)}
        with cluster() as address:
            if address:
                engines["ray"] = RayEngine(address)
                ways["ray"] = lambda out: by_engine(RayEngine(address), corpus, folder / "spm.model", out)
            measure(folder, ways, engines, corpus)


def measure(folder: Path, ways: dict[str, Callable[[Path], None]], engines: dict[str, Engine], corpus: Texts) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    memory: dict[str, float] = {}
    shas: dict[str, set[str]] = {"train": set(), "val": set()}
    for number in range(ROUNDS):
        for way, run in ways.items():
            out = folder / f"{way} {number}"
            out.mkdir()
            with Watch() as watch:
                start = time.perf_counter()
                run(out)
                seconds[way].append(time.perf_counter() - start)
            if way in engines:
                memory[f"{way}, largest, MB"] = max(memory.get(f"{way}, largest, MB", 0), watch.largest)
            for split, found in shas.items():
                found.add(joined_sha256(out, split))
            subprocess.run(["rm", "-rf", str(out)], check=True)
    assert all(len(found) == 1 for found in shas.values()), "bytes differ"
    start_up = {}
    for name, engine in engines.items():
        begin = time.perf_counter()
        list(engine.map(operator.is_, corpus.parts[:CORES], tick=bool))  # next to nothing
        start_up[f"start-up of {name}"] = time.perf_counter() - begin
    best = {name: sorted(values)[len(values) // 2] for name, values in seconds.items()}
    ratios = {
        f"{name} to one stream": sorted(
            plain / (value - start_up[f"start-up of {name}"] * (name == "ray"))
            for plain, value in zip(seconds["one stream"], seconds[name], strict=True)
        )[ROUNDS // 2]
        for name in engines
    }
    rates = {f"{name}, MB/s": corpus.text_bytes / 1e6 / value for name, value in best.items()}
    print_result("encoding part by part", {**rates, **start_up, **memory}, unit="", **ratios)


class cluster:
    """A Ray cluster of this machine's cores, where Ray is installed: its address."""

    def __enter__(self) -> str | None:
        self._head: subprocess.Popen[bytes] | None = None
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "of-a-benchmark"}  # its own, for head and driver
        try:
            import ray  # noqa: F401
        except ImportError:
            return None
        command = f"--head --block --port=6399 --num-cpus={CORES} --include-dashboard=false --disable-usage-stats"
        self._head = subprocess.Popen(
            [str(Path(sys.executable).with_name("ray")), "start", "--node-ip-address=127.0.0.1", *command.split()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._head.stdout is not None
        while b"Ray runtime started" not in (line := self._head.stdout.readline()):
            assert line, "no Ray cluster could be started"
        threading.Thread(target=self._head.stdout.read, daemon=True).start()
        return "127.0.0.1:6399"

    def __exit__(self, *_: object) -> None:
        if self._head is not None:
            self._head.terminate()
            self._head.wait()


if __name__ == "__main__":
    size, where = [*islice(sys.argv[1:], 2), None, None][:2] if len(sys.argv) > 1 else ("100", None)
    main(float(size or 100), where)
