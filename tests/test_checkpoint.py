"""Tests of checkpoints: round trips, damaged files, and files that are no checkpoint."""

import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from niels_gpt.checkpoint import load_checkpoint, load_model, save_checkpoint, save_tensors
from niels_gpt.config import ModelConfig, TrainConfig, to_dict
from niels_gpt.files.atomic import atomic_path, publish, temporary_beside, write_json
from niels_gpt.files.checks import Damaged
from niels_gpt.model.gpt import GPT
from niels_gpt.train.optimizer import build_optimizers
from niels_gpt.train.state import RunFolder, RunState, delete_runs, prune_runs
from tests.conftest import ROOT

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


def test_a_file_that_is_no_checkpoint_is_refused_and_runs_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        with pytest.raises(Damaged, match=rf"{name} is not a checkpoint of this project") as refused:
            load_checkpoint(name, "cpu")
        assert refused.value.paths == (name,)
    assert not Path("pwned").exists()
    with pytest.raises(Damaged, match=r"gone\.pt does not exist"):
        load_checkpoint("gone.pt", "cpu")


def spread(size: int) -> list[int]:
    """Return about 100 positions spread over a file of `size` bytes, and its last 80, where an archive's tables are."""
    return [*range(0, size, max(1, size // 100)), *range(size - 80, size)]


def with_a_bit_flipped(whole: bytes, place: int) -> bytes:
    return whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]


def test_a_flipped_bit_anywhere_in_a_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "best.pt", GPT(CFG), None, 7, to_dict(CFG))
    whole = (tmp_path / "best.pt").read_bytes()
    for place in spread(len(whole)):
        (tmp_path / "best.pt").write_bytes(with_a_bit_flipped(whole, place))
        with pytest.raises(ValueError, match=r"best\.pt is not a checkpoint of this project, or is damaged"):
            load_checkpoint(tmp_path / "best.pt", "cpu")


def test_a_flipped_bit_anywhere_in_a_state_is_refused_and_says_what_to_delete(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        folder.save(run_state(2))
        whole = (tmp_path / "run/state.pt").read_bytes()
        for place in spread(len(whole)):
            (tmp_path / "run/state.pt").write_bytes(with_a_bit_flipped(whole, place))
            with pytest.raises(ValueError, match=rf"state\.pt .* delete {tmp_path}/run"):
                folder.load()


def test_a_plain_dict_of_torch_loads_without_a_seal(tmp_path: Path) -> None:
    path, weights = tmp_path / "plain.pt", {"w": torch.arange(50.0), "b": torch.ones(3)}
    torch.save({"config": {"T": 8}, "model": weights, "optimizer": None, "step": 3}, path)
    config, model, _, step = load_checkpoint(path, "cpu")
    assert (config, step, list(model)) == ({"T": 8}, 3, ["w", "b"])
    assert all(torch.equal(model[name], value) for name, value in weights.items())
    torch.save({"config": {}, "model": {}, "optimizer": None, "step": 1}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match=r"plain\.pt is not a checkpoint of this project, or is damaged"):
        load_checkpoint(path, "cpu")


def test_a_checkpoint_is_torchs_own_dict_and_equal_values_give_equal_bytes(tmp_path: Path) -> None:
    model = GPT(CFG)
    for folder in ("a", "b"):
        save_checkpoint(tmp_path / folder / "best.pt", model, None, 7, to_dict(CFG))
    assert (tmp_path / "a/best.pt").read_bytes() == (tmp_path / "b/best.pt").read_bytes()
    for mmap in (False, True):
        stored = torch.load(tmp_path / "a/best.pt", weights_only=True, mmap=mmap)
        assert set(stored) == {"config", "model", "optimizer", "step"}
        assert all(torch.equal(stored["model"][name], value) for name, value in model.state_dict().items())


def test_weights_that_are_not_those_of_their_config_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "best.pt"
    for config in (to_dict(CFG) | {"C": 16, "D": 8}, to_dict(CFG) | {"H": 3}, {"T": 8, "surprise": 1}, [1, 2]):
        save_tensors(path, {"config": config, "model": GPT(CFG).state_dict(), "optimizer": None, "step": 1})
        with pytest.raises(Damaged, match=r"best\.pt is not a checkpoint of this project: its weights"):
            load_model(path, "cpu")
    save_checkpoint(path, GPT(CFG), None, 1, to_dict(CFG))
    assert load_model(path, "cpu", dropout=0.25).cfg.dropout == 0.25
    assert load_model(path, "cpu").cfg.dropout == 0.0


def test_a_file_has_reached_the_disk_when_it_takes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, int]] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(fd: int) -> None:
        fsync(fd)
        done.append(("on the disk", os.fstat(fd).st_ino))

    def note_replace(source: Path, target: Path) -> None:
        done.append(("renamed", os.stat(source).st_ino))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    write_json(tmp_path / "x.json", {"b": 1, "a": "ä"})
    inode = (tmp_path / "x.json").stat().st_ino
    assert done == [("on the disk", inode), ("renamed", inode)]
    assert (tmp_path / "x.json").read_text(encoding="utf-8") == '{\n  "a": "ä",\n  "b": 1\n}\n'


def test_a_finished_folder_is_renamed_not_copied_and_nothing_of_the_old_one_stays(tmp_path: Path) -> None:
    final = tmp_path / "model"
    for text in ("old", "new"):
        temporary = temporary_beside(final)
        temporary.mkdir()
        (temporary / f"{text}.txt").write_text(text)
        inode = temporary.stat().st_ino
        publish(temporary, final)
        assert final.stat().st_ino == inode
    assert [file.name for file in final.iterdir()] == ["new.txt"]
    assert list(tmp_path.iterdir()) == [final]


@pytest.mark.slow
def test_a_writer_killed_at_any_instant_leaves_the_old_or_the_new_and_no_part_of_either(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.killed_writers", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    states, folders = (line.split() for line in done.stdout.splitlines())
    order = ["old", "nothing", "new"]
    for seen in (states, folders):
        assert len(seen) >= 40
        assert seen == sorted(seen, key=order.index)
        assert (seen[0], seen[-1]) == ("old", "new")
    assert "nothing" not in states


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


@pytest.mark.slow
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
        timeout=600,
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
        assert folder.load() is None
        folder.save(run_state(2))
        loaded = folder.load()
    assert loaded is not None
    assert (loaded.step, loaded.losses, loaded.drawn_rows) == (2, [1.0, 2.0], {"a": 3})


def test_a_damaged_state_says_what_to_delete(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        (tmp_path / "run/state.pt").write_bytes(b"junk")
        with pytest.raises(ValueError, match=rf"start this training anew, delete {tmp_path}/run"):
            folder.load()
        save_tensors(tmp_path / "run/state.pt", {"foreign": 1})
        with pytest.raises(ValueError, match="start this training anew"):
            folder.load()


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


def test_finished_runs_are_deleted_others_only_when_asked_and_none_that_is_held(tmp_path: Path) -> None:
    for name in ("done", "half", "held"):
        with RunFolder(tmp_path / name).locked():
            RunFolder(tmp_path / name).save(run_state(1))
    for name in ("done", "held"):
        RunFolder(tmp_path / name).finish()
    (tmp_path / "notes").mkdir()  # not a run: it has no lock
    size = sum(file.stat().st_size for file in (tmp_path / "done").iterdir())
    with RunFolder(tmp_path / "held").locked():
        assert delete_runs(tmp_path, unfinished=False) == (1, size)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["half", "held", "notes"]
        assert delete_runs(tmp_path, unfinished=True)[0] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held", "notes"]


def test_a_run_that_another_process_deletes_meanwhile_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        with RunFolder(tmp_path / name).locked():
            RunFolder(tmp_path / name).finish()
    found = sorted(tmp_path.glob("*"))
    shutil.rmtree(tmp_path / "a")
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter(found))
    monkeypatch.setattr(Path, "is_file", lambda self: True)
    assert delete_runs(tmp_path, unfinished=False)[0] == 1


def test_what_a_killed_writer_left_is_gone_once_the_folder_is_held(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.state.pt.tmp123").write_bytes(b"half")
    with RunFolder(tmp_path / "run").locked():
        assert [file.name for file in (tmp_path / "run").iterdir()] == ["lock"]
        assert (tmp_path / "run/lock").read_text() == str(os.getpid())
