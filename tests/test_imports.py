"""Tests of imports: training needs only torch, numpy, pyyaml and pydantic, and other libraries load only if used."""

import os
import platform
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, run_fresh_python

pytestmark = pytest.mark.slow

LEFT_OUT = ("dvc", "datasets", "sentencepiece", "pyarrow", "tqdm", "typer", "ruamel", "pandas", "fsspec", "ray")
BLOCK = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {LEFT_OUT!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
"""


PARQUET = {"data/corpus/" + name for name in ("loading.py", "parts.py", "split_files.py")}
PARQUET |= {"duplicates/" + name for name in ("overlap.py", "pairs.py", "sides.py")}
PARQUET |= {"cache/build_cache.py", "cache/token_parts.py", "pipeline/private_text.py"}
TYPER = ("cache/cli.py", "cli/")  # commands


def test_training_imports_without_what_only_loading_needs() -> None:
    modules = [
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        for path in sorted((ROOT / "niels_gpt").rglob("*.py"))
        if not (name := path.relative_to(ROOT / "niels_gpt").as_posix()).startswith(TYPER)
        and name not in PARQUET
        and not path.name.endswith("_triton.py")  # for GPUs
    ]
    done = run_fresh_python(f"{BLOCK}\nimport {', '.join(modules)}\nimport stages.train, stages.eval, stages.cache")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "stage", ["load", "duplicates", "split", "index", "tokenizer", "tokenize", "cache", "curves", "code"]
)
def test_stages_that_need_no_torch_do_not_wait_for_it(stage: str) -> None:
    done = run_fresh_python(f"import stages.{stage}, sys; sys.exit('torch' in sys.modules)")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="GNU's OpenMP is set up on x86-64 only"
)
@pytest.mark.parametrize(
    ("code", "given", "sleeps"),
    [
        ("import stages.train", {}, True),  # `dvc repro`
        ("import niels_gpt.pipeline.repro, torch", {}, True),  # `niels-gpt run`
        ("import niels_gpt.cli.app, torch", {}, True),
        ("import stages.train", {"OMP_WAIT_POLICY": "active"}, False),
        ("import stages.train", {"GOMP_SPINCOUNT": "7"}, False),
    ],
)
def test_threads_that_wait_sleep_soon_unless_the_user_says_otherwise(
    code: str, given: dict[str, str], sleeps: bool
) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = run_fresh_python(code, env={**env, **given, "OMP_DISPLAY_ENV": "verbose"})
    assert ("GOMP_SPINCOUNT = '3000'" in done.stderr) is sleeps
    assert "GOMP_SPINCOUNT = " in done.stderr  # OpenMP has said what it uses


def test_texts_are_written_sketched_and_read_without_pandas(tmp_path: Path) -> None:
    """The many pyarrow calls that import pandas, where it is installed, are avoided."""
    code = """
import sys
from pathlib import Path
import numpy as np
from niels_gpt.data.corpus.parts import CHAT_SCHEMA, DOCUMENT_SCHEMA, read_contents, write_rows
from niels_gpt.data.types import Chat, Document
path = Path(sys.argv[1])
write_rows(path, CHAT_SCHEMA, [Chat(id="1", messages=[{"role": "user", "content": "why"}])])
write_rows(path, DOCUMENT_SCHEMA, [Document(id=str(i), text=f"text {i}") for i in range(5)])
print(*read_contents(path, np.array([1, 4])))
sys.exit("pandas" in sys.modules)
"""
    done = run_fresh_python(code, str(tmp_path / "part.parquet"))
    assert (done.returncode, done.stdout) == (0, "['text 1', 'text 4']\n"), done.stderr


def test_training_does_not_import_the_compiler() -> None:
    """Many torch functions import it at the first call, such as those for an optimizer, a step, or a meta tensor."""
    code = """
import sys
from dataclasses import replace
from niels_gpt.model.gpt import GPT
from niels_gpt.train.loop import train
from tests.tiny_training import CONFIG, MODEL, TASK
cfg = replace(CONFIG, total_steps=4, eval_every=2, optimizer="muon")  # and AdamW for the rest
state = train(GPT(MODEL), replace(TASK, cfg=replace(cfg, total_steps=2)))
train(GPT(MODEL), replace(TASK, cfg=cfg), state=state)
sys.exit("torch._dynamo" in sys.modules)
"""
    done = run_fresh_python(code)
    assert done.returncode == 0, done.stderr
