"""Cost of a corpus by its size: constants measured here, on one core, and extrapolations to larger corpora.

Run: python -m bench.scale [FOLDER]   (text of FOLDER, or of the sample; under a minute)
"""

import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.rounds import print_result
from bench.tokenize import make_tokenizer, texts
from niels_gpt.cache.token_parts import encode_part
from niels_gpt.data.corpus.parts import DOCUMENT_SCHEMA, Part, write_rows
from niels_gpt.data.corpus.split import Drawn, split_by_hash
from niels_gpt.data.corpus.split_files import SplitPart
from niels_gpt.data.text import iter_text
from niels_gpt.data.types import Document
from niels_gpt.files.checks import sha256_file
from niels_gpt.files.store import Store
from niels_gpt.jobs.engine import Worker

MEGABYTES = 40
PART = 1 << 30
SIZES = {"1 GB": 1e9, "100 GB": 1e11, "10 TB": 1e13, "1 T tokens": None}


def seconds(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def measure(folder: Path, source: str | None) -> dict[str, float]:
    found = [sample.text for sample in iter_text(source)] if source else list(texts(MEGABYTES))
    documents = [Document(id=str(i), text=text) for i, text in enumerate(found)]
    size = sum(document.bytes() for document in documents)
    path = folder / "part-00000.parquet"
    loading = seconds(lambda: write_rows(path, DOCUMENT_SCHEMA, documents))
    part = Part(path.name, len(documents), size, path.stat().st_size, sha256_file(path))
    make_tokenizer(folder)
    tokenizer = (("spm.model", (folder / "spm.model").read_bytes()),)
    rule, out = Drawn(val_frac=0.01, seed=1), Store(str(folder / "tokens"))
    item = SplitPart(Store(str(folder)), part, {}, rule)
    records: list[dict[str, object]] = []
    encoding = seconds(lambda: records.append(encode_part(item, Worker(), packed=tokenizer, tokens=out)))
    tokens = sum(file.stat().st_size for file in Path(out.root).rglob("*.bin")) // 2
    zeros = bytes(1 << 28)
    return {
        "text of a document, bytes": size / len(documents),
        "text of a token, bytes": size / tokens,
        "parquet, of the text": part.bytes / size,
        "load, MB/s": size / 1e6 / loading,
        "encode, MB/s": size / 1e6 / encoding,
        "split, us a document": seconds(lambda: split_by_hash([d.id for d in documents], rule)) / len(documents) * 1e6,
        "sha256, MB/s": 268.4 / seconds(lambda: hashlib.sha256(zeros).digest()),
        "md5 (DVC), MB/s": 268.4 / seconds(lambda: hashlib.md5(zeros).digest()),
        "manifest, bytes a part": float(len(json.dumps(records[0], indent=2))),
    }


def costs(of: dict[str, float], text: float) -> dict[str, str]:
    """Return the costs of a corpus of the given bytes of text."""
    tokens, core_hours = text / of["text of a token, bytes"], 1e6 * 3600
    parquet = text * of["parquet, of the text"]
    return {
        "text, GB": f"{text / 1e9:,.0f}",
        "tokens, G": f"{tokens / 1e9:,.1f}",
        "parts": f"{-(-text // PART):,.0f}",
        "parquet, GB": f"{parquet / 1e9:,.1f}",
        "token files, GB": f"{2 * tokens / 1e9:,.1f}",
        "load, core-hours": f"{text / of['load, MB/s'] / core_hours:,.2f}",
        "encode, core-hours": f"{text / of['encode, MB/s'] / core_hours:,.2f}",
        "check before training, core-hours": f"{2 * tokens / of['sha256, MB/s'] / core_hours:,.2f}",
        "DVC's hash if not stored, hours": f"{(parquet + 2 * tokens) / of['md5 (DVC), MB/s'] / core_hours:,.2f}",
        "manifests, MB": f"{-(-text // PART) * of['manifest, bytes a part'] / 1e6:,.2f}",
    }


def main(source: str | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        constants = measure(Path(name), source)
    print_result("constants, one core", constants, unit="")
    columns = {
        label: costs(constants, text or 1e12 * constants["text of a token, bytes"]) for label, text in SIZES.items()
    }
    print("| | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))
    for row in next(iter(columns.values())):
        print(f"| {row} | " + " | ".join(column[row] for column in columns.values()) + " |")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
