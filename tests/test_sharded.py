"""A model shared out among ranks (FSDP2), and its checkpoints: what comes out is what data parallelism gives."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_gpt.cache.windows import TokenStream
from niels_gpt.config import Groups, ModelConfig, TrainConfig
from niels_gpt.files.ranks import Ranks, joined_ranks
from niels_gpt.model.gpt import GPT
from niels_gpt.rng import set_seed
from niels_gpt.train import run as training_run
from niels_gpt.train.execution import Execution
from niels_gpt.train.loop import Hooks
from niels_gpt.train.pretraining import PretrainTask
from niels_gpt.train.run import run_training
from niels_gpt.train.state import RunState
from niels_gpt.train.step import build_step
from niels_gpt.train.task import ALL, Batch
from tests.conftest import ROOT
from tests.forked_ranks import fork_ranks
from tests.test_step import CONFIG, DRY, STREAMS, TASK, TINY_V2, V2_RECIPE

# Seven rows: of two and of three ranks one has a row more, and with it a micro-batch more, were they not counted alike.
# Trained on letters, it predicts digits ever worse: the best validation is the first.
TRAIN = {"wiki": STREAMS["wiki"]}
VAL = {"digits": TokenStream([np.frombuffer(b"0123456789" * 40, np.uint8)])}
CFG: TrainConfig = replace(
    CONFIG,
    B=7,
    total_steps=6,
    eval_every=3,
    eval_steps=1,
    p_train={"wiki": 1.0},
    p_val={"digits": 1.0},
    lr_scale=Groups(matrices=1.0, embedding=2.0, head=1.0, vectors=0.5),
    decay_scale=Groups(matrices=1.0, embedding=0.0, head=1.0, vectors=1.0),
)
TINY = replace(DRY, C=16, H=2, d_ff=32)
# Of v2 all but Muon, which needs whole matrices. Three ranks share out its pairs of numbers: one has none.
RECIPES: dict[str, tuple[ModelConfig, TrainConfig]] = {
    "plain": (TINY, CFG),
    "v2": (TINY_V2, replace(CFG, **{**V2_RECIPE, "total_steps": CFG.total_steps, "optimizer": "adamw"})),
}
HALF = 4


@dataclass(frozen=True)
class StoppedTask(PretrainTask):
    """Asked for the batch of step HALF, it is as if somebody pressed Ctrl-C."""

    asked: list[int] = field(default_factory=list)

    def batch(self, n: int, rows: slice = ALL) -> Batch:
        if n == HALF - 1:
            signal.raise_signal(signal.SIGTERM)
        return super().batch(n, rows)


def trained(folder: Path, ranks: Ranks, *, sharded: bool, stopped: bool = False) -> tuple[GPT, RunState]:
    """A run of the recipe that the folder lies in."""
    shape, cfg = RECIPES[folder.parent.name]
    set_seed(1 + ranks.rank)  # the first rank's weights are everybody's
    model = GPT(shape)
    kind = StoppedTask if stopped else PretrainTask
    task = kind(train=TRAIN, val=VAL, cfg=cfg, T=TASK.T, device="cpu")
    execution = Execution(ranks=ranks, shard_model=sharded, micro_batch_tokens=2 * TASK.T, say=lambda text: None)
    hooks = Hooks(checkpoint_every=2)
    return model, run_training(model, task, cfg, execution=execution, hooks=hooks, folder=folder / "run", title="t")


def write(path: Path, model: GPT, run: RunState) -> None:
    """What a test in another process asks about."""
    facts = {"step": run.step, "losses": run.losses, "val": [row["val_loss"] for row in run.validations]}
    path.with_suffix(".json").write_text(json.dumps({**facts, "best_step": run.best_step}))
    torch.save({"last": model.state_dict(), "best": run.best_model}, path.with_suffix(".pt"))


def in_two_ranks(folder: Path, ranks: Ranks) -> None:
    kinds = (("ddp", False, False), ("fsdp", True, False), ("half", True, True))
    for name, sharded, stopped in kinds:
        model, run = trained(folder / name, ranks, sharded=sharded, stopped=stopped)
        if ranks.first and not stopped:
            write(folder / name, model, run)
    if ranks.first:
        for copy in ("resumed", "half1", "half3"):
            shutil.copytree(folder / "half", folder / copy)
    ranks.exchange(None)  # they are there now
    for name, found in (("resumed", "resumed"), ("fsdp", "again")):  # the second is finished, and only read
        model, run = trained(folder / name, ranks, sharded=True)
        if ranks.first:
            write(folder / found, model, run)


def in_three_ranks(folder: Path, ranks: Ranks) -> None:
    for name in ("half3", "whole"):
        model, run = trained(folder / name, ranks, sharded=True)
        if ranks.first:
            write(folder / name, model, run)


@pytest.fixture(scope="module")
def all_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two ranks and each recipe: one of data parallelism, one shared out, one that was stopped half way and went on,
    and one that was stopped, which three ranks end. These also end a run that one process began. All in one process
    that forks: torch is imported once."""
    folder = tmp_path_factory.mktemp("runs")
    with own_signals():
        for recipe in RECIPES:
            trained(folder / recipe / "whole", Ranks(), sharded=False, stopped=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.test_sharded", str(folder)],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(params=RECIPES)
def runs(all_runs: Path, request: pytest.FixtureRequest) -> Path:
    return all_runs / request.param


@pytest.fixture
def plain_runs(all_runs: Path) -> Path:
    return all_runs / "plain"


@contextmanager
def own_signals() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def facts(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return json.loads((folder / f"{name}.json").read_text()), torch.load(folder / f"{name}.pt", weights_only=True)


def assert_same_run(folder: Path, name: str) -> None:
    """As by data parallelism, within rounding."""
    (found, weights), (expected, others) = facts(folder, name), facts(folder, "ddp")
    assert (found["step"], found["best_step"]) == (expected["step"], expected["best_step"]) == (6, 3)
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=2e-5)
    np.testing.assert_allclose(found["val"], expected["val"], rtol=2e-5)
    for which in ("last", "best"):
        assert list(weights[which]) == list(others[which])
        for key, value in weights[which].items():
            assert type(value) is torch.Tensor
            torch.testing.assert_close(value, others[which][key], rtol=1e-3, atol=1e-5)


def test_a_model_that_is_shared_out_trains_as_by_data_parallelism(runs: Path) -> None:
    assert_same_run(runs, "fsdp")
    learned, (shape, _) = facts(runs, "fsdp")[1]["last"], RECIPES[runs.name]
    set_seed(1)
    for name, first in GPT(shape).named_parameters():
        assert not torch.equal(learned[name], first), name


def test_two_ranks_checkpoint_goes_on_with_three(runs: Path) -> None:
    assert_same_run(runs, "half3")


def test_two_ranks_checkpoint_goes_on_with_one(runs: Path) -> None:
    with own_signals():
        model, run = trained(runs / "half1", Ranks(), sharded=True)
    write(runs / "half1", model, run)
    assert_same_run(runs, "half1")
    assert (runs / "half1/run/state.pt").is_file()
    assert not (runs / "half1/run/sharded").exists()


def test_a_whole_checkpoint_goes_on_shared_out(runs: Path) -> None:
    assert_same_run(runs, "whole")
    assert not (runs / "whole/run/state.pt").exists()


@pytest.mark.parametrize("name", ["again", "resumed"])
def test_a_run_that_was_finished_or_stopped_and_gone_on_with_is_the_same_to_the_bit(name: str, runs: Path) -> None:
    (found, weights), (expected, others) = facts(runs, name), facts(runs, "fsdp")
    assert found == expected
    for which in ("last", "best"):
        assert all(torch.equal(weights[which][key], value) for key, value in others[which].items())


def test_one_state_is_kept_and_it_has_a_part_of_every_rank(runs: Path) -> None:
    for name, step, size in (("half", HALF, 2), ("fsdp", 6, 2), ("half3", 6, 3)):
        (state,) = (runs / name / "run/sharded").iterdir()
        assert state.name == f"step-{step}"
        assert {path.name for path in state.iterdir()} == {
            "run.pt", ".metadata", *(f"__{rank}_0.distcp" for rank in range(size))
        }  # fmt: skip


def test_a_save_that_was_cut_short_is_not_gone_on_from(plain_runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plain/run"
    shutil.copytree(plain_runs / "half", folder)
    states = folder / "run/sharded"
    shutil.copytree(states / f"step-{HALF}", states / "step-5")
    (states / "step-5/.metadata").unlink()
    with own_signals():
        model, run = trained(folder, Ranks(), sharded=False)
    write(plain_runs / "cut", model, run)
    assert_same_run(plain_runs, "cut")


def test_a_damaged_part_is_refused_by_name(plain_runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plain/run"
    shutil.copytree(plain_runs / "half", folder)
    part = folder / f"run/sharded/step-{HALF}/__1_0.distcp"
    part.write_bytes(part.read_bytes()[:1000])
    with (
        own_signals(),
        pytest.raises(ValueError, match=r"step-4 is damaged.*to start this training anew, delete .*run"),
    ):
        trained(folder, Ranks(), sharded=True)


def test_muon_is_refused() -> None:
    execution = Execution(ranks=Ranks(0, 2), shard_model=True)
    with pytest.raises(ValueError, match=r"muon needs whole matrices.*runtime\.shard_model"):
        build_step(GPT(TINY), replace(CFG, optimizer="muon"), execution, state=None)


def run_ranks(size: int, work: Callable[[Path, Ranks], None], folders: list[Path]) -> None:
    def joined(rank: int) -> None:
        with joined_ranks("cpu") as ranks:
            for folder in folders:
                work(folder, ranks)

    if any(fork_ranks(size, joined)):
        sys.exit(f"one of {size} ranks failed")


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    training_run.matmul_flops = lambda *_: 1.0  # measured for the log alone
    recipes = [folder / name for name in RECIPES]
    run_ranks(2, in_two_ranks, recipes)
    run_ranks(3, in_three_ranks, recipes)


if __name__ == "__main__":
    import torch._dynamo  # all that ranks import, before there are ranks

    from niels_gpt.train import sharded_step  # noqa: F401

    main(Path(sys.argv[1]))
