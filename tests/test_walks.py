"""Tests of how many files an addition touches: each is made in a copy of the project, and must work there.

docs/architecture.md has the same list under "Where to put what". (test_kinds.py adds a source type.)
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT, run_python

ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()


@dataclass(frozen=True)
class Walk:
    """Addition to the project; `edits` is {file: {old text: new text}}, and a file that does not exist is created."""

    adds: str
    edits: dict[str, dict[str, str]]
    check: str

    def take(self, project: Path) -> None:
        for name, changes in self.edits.items():
            file = project / name
            text = file.read_text() if file.exists() else ""
            for before, after in changes.items():
                assert not text or before in text, f"{name} has no {before!r}"
                text = text.replace(before, after) if text else after
            file.write_text(text)


FIELD = "    grad_clip: Annotated["
PARAMETER = Walk(
    "a training parameter",
    {
        "niels_gpt/config.py": {FIELD: f'    cool: Annotated[float, Ge(0), "how cool"] = 0.5\n{FIELD}'},
    },
    """
import contextlib, io, runpy
from niels_gpt.pipeline.params import read_params
from niels_gpt.pipeline.training import train_config
params, _ = read_params()
assert train_config(params.train, p_train={}, p_val={}).cool == params.splice.train.cool == 0.5
with contextlib.redirect_stdout(io.StringIO()) as listed: runpy.run_module("scripts.parameters", run_name="__main__")
assert "| `train.cool` | number >= 0 | `0.5` | `0.5` | how cool |" in listed.getvalue()
file = __import__("pathlib").Path("params.yaml")
file.write_text(file.read_text().replace("  momentum_warmup:", "  cool: 0.25\\n  momentum_warmup:"))
assert read_params()[0].train.cool == 0.25
file.write_text(file.read_text().replace("cool: 0.25", "cool: -1", 1))
try: read_params()
except ValueError as error: assert "train.cool is -1" in str(error), error
else: raise AssertionError("-1 was taken")
""",
)
OPTION = Walk(
    "a model option",
    {
        "niels_gpt/config.py": {'"relu2", "swiglu"]': '"relu2", "swiglu", "silu"]'},
        "niels_gpt/model/blocks.py": {
            "            h = F.relu(fc1(x)).square()\n": "            h = F.relu(fc1(x)).square()\n"
            "        elif self.cfg.activation == 'silu':\n"
            "            h = F.silu(fc1(x))\n",
        },
    },
    """
import torch
from pathlib import Path
from niels_gpt.checkpoint import load_model, save_checkpoint
from niels_gpt.config import ModelConfig, to_dict
from niels_gpt.model.decoder import Decoder
from niels_gpt.model.gpt import GPT
from niels_gpt.pipeline.params import read_params
file = Path("params.yaml")
file.write_text(file.read_text().replace("  d_ff: 512\\n", "  d_ff: 512\\n  activation: silu\\n"))
assert read_params()[0].model.activation == "silu"
sizes = {"T": 16, "C": 16, "L": 2, "H": 2, "d_ff": 32, "dropout": 0.0}
x, out = torch.arange(12)[None], {}
for activation in ("gelu", "silu"):
    torch.manual_seed(0)
    model = GPT(ModelConfig(activation=activation, **sizes)).eval()
    out[activation] = model(x)
    save_checkpoint("model.pt", model, None, 1, to_dict(model.cfg))
    loaded = load_model("model.pt", "cpu")
    assert torch.equal(loaded(x), out[activation])
    decoder = Decoder(loaded, B=1)
    decoded = torch.cat([decoder.extend(x[:, :7], starts=[0]), decoder.extend(x[:, 7:], starts=[7])], dim=1)
    torch.testing.assert_close(loaded.logits(decoded), out[activation])
assert not torch.allclose(out["gelu"], out["silu"])
""",
)
OPTIMIZER = Walk(
    "an optimizer",
    {
        "niels_gpt/config.py": {'Literal["adamw", "muon"]': 'Literal["adamw", "muon", "sgd"]'},
        "niels_gpt/train/optimizer.py": {
            "    number: Callable[[float], Any] = float\n": '    if cfg.optimizer == "sgd":\n'
            "        return [torch.optim.SGD(model.parameters(), lr=cfg.base_lr, momentum=0.9)]\n"
            "    number: Callable[[float], Any] = float\n"
        },
    },
    """
import copy, torch
import numpy as np
from pathlib import Path
from niels_gpt.cache.windows import TokenStream
from niels_gpt.config import ModelConfig, TrainConfig
from niels_gpt.model.gpt import GPT
from niels_gpt.pipeline.params import parse_params
from niels_gpt.train.loop import Hooks, train
from niels_gpt.train.pretraining import PretrainTask
text = Path("params.yaml").read_text().replace("optimizer: muon", "optimizer: sgd")
assert parse_params(text)[0].train.optimizer == "sgd"
cfg = TrainConfig(total_steps=6, B=2, p_train={"a": 1.0}, p_val={"a": 1.0}, eval_steps=1, optimizer="sgd", base_lr=0.1)
stream = {"a": TokenStream([np.arange(200, dtype=np.uint16) % 7])}
task = PretrainTask(train=stream, val=stream, cfg=cfg, T=8, device="cpu")
def fresh():
    torch.manual_seed(0)
    return GPT(ModelConfig(T=8, C=16, L=1, H=2, d_ff=32, dropout=0.0))
whole = train(fresh(), task)
done = []
half = train(fresh(), task, hooks=Hooks(progress=done.append, should_stop=lambda: len(done) >= 3, log_every=1))
assert half.step == 3 and "momentum_buffer" in half.optimizer["0"][0]
resumed = train(fresh(), task, state=copy.deepcopy(half))
assert resumed.losses == whole.losses
assert all(torch.equal(resumed.model[name], whole.model[name]) for name in whole.model)
""",
)
COMMAND = Walk(
    "a command",
    {
        "niels_gpt/cli/app.py": {
            "@app.command()\ndef join(": '@app.command()\ndef sources() -> None:\n    """The names of all sources."""\n'
            "    from niels_gpt.pipeline.params import read_params\n\n"
            "    for name in read_params()[0].sources:\n        typer.echo(name)\n\n\n@app.command()\ndef join("
        },
        "README.md": {"# niels_gpt": "# niels_gpt\n\n`niels-gpt sources` names all sources."},
    },
    """
from typer.testing import CliRunner
from niels_gpt.cli.app import app
assert CliRunner().invoke(app, ["sources"]).output.split()[:3] == ["wiki", "roam", "primer"]
assert "The names of all sources." in CliRunner().invoke(app, ["--help"]).output
""",
)
STAGE = Walk(
    "a DVC stage",
    {
        "stages/census.py": {
            "": '"""census: how many sources there are."""\n\n'
            "from niels_gpt.files.atomic import write_json\n"
            "from niels_gpt.pipeline import layout\n"
            "from niels_gpt.pipeline.stage import Stage, run_stage\n\n\n"
            "def main(stage: Stage) -> None:\n"
            '    write_json(stage.out(layout.CENSUS), {"sources": len(stage.params.sources)})\n\n\n'
            'if __name__ == "__main__":\n    run_stage("census", main)\n'
        },
        "dvc.yaml": {
            "  cache:\n": "  census:\n    cmd: python -m stages.census\n    deps:\n      - cache/code/census.json\n"
            "    params:\n      - sources\n    metrics:\n      - metrics/census.json\n\n  cache:\n"
        },
        "niels_gpt/pipeline/layout.py": {"EXTRACTION = ": 'CENSUS = METRICS / "census.json"\nEXTRACTION = '},
    },
    """
import importlib, json
from pathlib import Path
from niels_gpt.pipeline.stage import execute
for stage in ("code", "census"):
    execute(stage, "", importlib.import_module(f"stages.{stage}").main)
assert json.loads(Path("metrics/census.json").read_text()) == {"sources": 6}
code = json.loads(Path("cache/code/census.json").read_text())
assert "stages/census.py" in code and "niels_gpt/model/gpt.py" not in code
""",
)
WALKS = {walk.adds: walk for walk in (PARAMETER, OPTION, OPTIMIZER, COMMAND, STAGE)}
FILES = {"a training parameter": 1, "a model option": 2, "an optimizer": 2, "a command": 2, "a DVC stage": 3}


@pytest.mark.slow
@pytest.mark.parametrize("adds", WALKS)
def test_an_addition_touches_few_files(adds: str, tmp_path: Path) -> None:
    walk = WALKS[adds]
    assert len(walk.edits) == FILES[adds]
    for name in ("niels_gpt", "stages", "presets", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("dvc.yaml", "params.yaml", "README.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    walk.take(tmp_path)
    done = run_python(walk.check, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("adds", WALKS)
def test_the_page_names_the_same_files(adds: str) -> None:
    (row,) = re.findall(rf"^\| {adds} \| (.*?) \|", ARCHITECTURE, flags=re.MULTILINE)
    named = [path.replace("NAME", "census") for path in re.findall(r"`([^`]+)`", row)]
    assert sorted(named) == sorted(WALKS[adds].edits)
