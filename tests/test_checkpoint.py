from __future__ import annotations

import json
import os
import pickle
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from niels_gpt.atomic import atomic_path
from niels_gpt.checkpoint import load_checkpoint, save_checkpoint, save_tensors
from niels_gpt.config import ModelConfig, TrainConfig, to_dict
from niels_gpt.model.gpt import GPT
from niels_gpt.train.optimizer import build_optimizers
from niels_gpt.train.state import RunFolder, RunState, prune_runs

CFG = ModelConfig(V=20, T=8, C=8, L=1, H=2, d_ff=16, dropout=0.0)


def test_round_trip_with_and_without_the_optimizer(tmp_path: Path) -> None:
    model = GPT(CFG)
    (optimizer,) = build_optimizers(model, TrainConfig(total_steps=1))
    model(torch.zeros(1, 4, dtype=torch.int64)).sum().backward()
    optimizer.step()
    save_checkpoint(tmp_path / "a.pt", model, optimizer, 7, to_dict(CFG))
    config, weights, optimizer_state, step = load_checkpoint(str(tmp_path / "a.pt"), "cpu")
    assert step == 7
    assert json.loads((tmp_path / "config.json").read_text()) == config == to_dict(CFG)
    again = GPT(config)
    again.load_state_dict(weights)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert optimizer_state is not None
    build_optimizers(again, TrainConfig(total_steps=1))[0].load_state_dict(optimizer_state)
    save_checkpoint(tmp_path / "b.pt", model, None, 7, to_dict(CFG))
    assert load_checkpoint(tmp_path / "b.pt", "cpu")[2] is None


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch pwned",)


def test_what_is_no_checkpoint_is_refused_and_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_checkpoint("good.pt", GPT(CFG), None, 1, to_dict(CFG))
    whole = Path("good.pt").read_bytes()
    cases = {
        "truncated.pt": whole[: len(whole) // 2],
        "empty.pt": b"",
        "text.pt": b"hello, not a checkpoint\n",
        "pickle.pt": pickle.dumps({"model": Bomb()}, protocol=2),
    }
    for name, data in cases.items():
        Path(name).write_bytes(data)
    torch.save({"model": Bomb()}, "bomb.pt")
    torch.save([1, 2], "list.pt")
    torch.save({"weights": 1}, "foreign.pt")
    for name in [*cases, "bomb.pt", "list.pt", "foreign.pt"]:
        with pytest.raises(ValueError, match=rf"{name} is not a checkpoint of this project"):
            load_checkpoint(name, "cpu")
    assert not Path("pwned").exists()
    with pytest.raises(FileNotFoundError, match=r"no checkpoint gone\.pt"):
        load_checkpoint("gone.pt", "cpu")


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("old")

    def fail_half_way() -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    save_tensors(tmp_path / "state.pt", {"step": 1})
    script = (
        "import sys, torch; from niels_gpt.checkpoint import save_tensors\n"
        "try: save_tensors(sys.argv[1], {'step': 2, 'w': torch.zeros(1_000_000)})\n"
        "except OSError as error: print(error); sys.exit(7)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "state.pt")],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 7, done.stderr
    assert "state.pt" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]
    assert torch.load(tmp_path / "state.pt", weights_only=True) == {"step": 1}


def run_state(step: int) -> RunState:
    return RunState(step=step, model={"w": torch.ones(2)}, optimizer={}, losses=[1.0, 2.0], drawn_rows={"a": 3})


def test_a_run_folder_gives_back_what_was_saved(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        assert folder.load("cpu") is None
        folder.save(run_state(2))
        loaded = folder.load("cpu")
    assert loaded is not None
    assert (loaded.step, loaded.losses, loaded.drawn_rows) == (2, [1.0, 2.0], {"a": 3})


def test_a_damaged_state_says_what_to_delete(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        (tmp_path / "run/state.pt").write_bytes(b"junk")
        with pytest.raises(ValueError, match=rf"start this training anew, delete {tmp_path}/run"):
            folder.load("cpu")
        save_tensors(tmp_path / "run/state.pt", {"foreign": 1})
        with pytest.raises(ValueError, match="start this training anew"):
            folder.load("cpu")


def test_a_second_process_on_the_same_run_is_refused(tmp_path: Path) -> None:
    with (
        RunFolder(tmp_path / "run").locked(),
        pytest.raises(ValueError, match=f"already running .process {os.getpid()}"),
    ):
        RunFolder(tmp_path / "run").locked().__enter__()


def test_pruning_keeps_the_newest_and_those_in_use(tmp_path: Path) -> None:
    for i in range(5):
        with RunFolder(tmp_path / str(i)).locked():
            os.utime(tmp_path / str(i), (i, i))
    with RunFolder(tmp_path / "0").locked():
        os.utime(tmp_path / "0", (0, 0))
        prune_runs(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "3", "4"]
