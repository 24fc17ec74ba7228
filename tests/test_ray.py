"""Tests of parts on a Ray cluster: two nodes, also with a killed worker, give the same bytes as this process."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_gpt.base.importing import write_tokenizer_from_gguf
from niels_gpt.cache.token_parts import encode_part, encode_parts
from niels_gpt.data.corpus.parts import DOCUMENT_SCHEMA, Part, Texts, write_rows
from niels_gpt.data.corpus.split import Drawn
from niels_gpt.data.corpus.split_files import Splits
from niels_gpt.data.types import Document
from niels_gpt.files.checks import sha256_file
from niels_gpt.files.store import Store
from niels_gpt.jobs.engine import Engine, LocalEngine, Worker
from niels_gpt.tokenizer.pretrained import byte_alphabet
from tests.ray_cluster import run_in_cluster, why_not

PARTS = 4


def corpus(folder: Path) -> Texts:
    """Write a corpus and a pretrained tokenizer, with the same bytes every time; return the corpus."""
    dice, parts = np.random.default_rng(1), []
    for number in range(PARTS):
        path = folder / f"part-{number:05d}.parquet"
        texts = ["".join(map(chr, dice.integers(97, 123, size))) for size in dice.integers(20, 400, 30)]
        count = write_rows(
            path, DOCUMENT_SCHEMA, [Document(id=f"{number}/{i}", text=text) for i, text in enumerate(texts)]
        )
        parts.append(Part(path.name, *count, path.stat().st_size, sha256_file(path)))
    tokens = ["<|endoftext|>", *byte_alphabet(), "th", "the"]
    fields = {"model": "gpt2", "pre": "smollm", "tokens": tokens, "merges": ["t h", "th e"]}
    fields["token_type"] = [3, *[1] * (len(tokens) - 1)]
    write_tokenizer_from_gguf({f"tokenizer.ggml.{key}": value for key, value in fields.items()}, folder / "tokenizer")
    return Texts(Store(str(folder)), tuple(parts), {}, "")


def encoded(engine: Engine, texts: Texts, out: Path) -> dict[str, Any]:
    """Encode the corpus; return the manifest, and the SHA-256 of every file."""
    splits = Splits({}, Drawn(val_frac=0.2, seed=1))
    options: dict[str, Any] = {"budgets": {"train": None, "val": None}, "say": bool, "tick": bool}
    counted = encode_parts(
        engine, texts, splits, Path(texts.store.root, "tokenizer"), tokens=Store(str(out)), **options
    )
    files = {path.relative_to(out).as_posix(): sha256_file(path) for path in sorted(out.rglob("*")) if path.is_file()}
    return {"manifest": counted, "files": files}


def killed_once(item: Any, worker: Worker, **options: Any) -> Any:
    """Encode a part; at the first attempt at part-00003, kill the worker with SIGKILL."""
    marker = Path(options["tokens"].root).with_suffix(".killed")
    if item.name == "part-00003" and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return encode_part(item, worker, **options)


def on_the_cluster(folder: Path) -> None:
    """Encode the corpus on the cluster, from within its namespaces; write the results to found.json."""
    from niels_gpt.cache import token_parts
    from niels_gpt.jobs.engine import RayEngine

    engine, texts = RayEngine(os.environ["RAY_ADDRESS"]), corpus(folder)
    token_parts.encode_part = killed_once
    found = encoded(engine, texts, folder / "killed")
    assert (folder / "killed.killed").exists()
    (folder / "found.json").write_text(json.dumps(found))


@pytest.mark.slow
def test_a_cluster_of_two_nodes_gives_the_bytes_of_this_process_also_when_a_worker_is_killed(
    tmp_path: Path,
) -> None:
    if reason := why_not():
        pytest.skip(reason)
    texts = corpus(tmp_path / "here")
    alone = encoded(LocalEngine(1), texts, tmp_path / "alone")
    script = (
        f"from pathlib import Path; from tests.test_ray import *; on_the_cluster(Path({str(tmp_path / 'there')!r}))"
    )
    done = run_in_cluster(2, sys.executable, "-c", script)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "there/found.json").read_text())
    assert found == alone
    assert len(alone["files"]) == PARTS * 5  # two files per split, and a record


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_named() -> None:
    pytest.importorskip("ray", reason="ray is not installed: no cluster was looked for")
    from niels_gpt.jobs.engine import RayEngine

    for address in ("127.0.0.1:1", "nowhere"):
        with pytest.raises(ValueError, match=rf"no Ray cluster at {address} .*set runtime\.engine to local"):
            list(RayEngine(address).map(encode_part, [], tick=bool))
