"""Writers that kill themselves at chosen points of a write, instead of by a timer; run by test_checkpoint.

Each kill is a fork that counts its calls (of Python and C functions, entry and return) and sends itself SIGKILL at the
n-th. Prints two lines, one for the state of a run and one for a folder: for each kill in order, whether the old
version, nothing or the new version was there afterwards.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from niels_gpt.files.atomic import discard, publish, temporary_beside
from niels_gpt.train.state import RunFolder, RunState

WEIGHTS = torch.arange(40_000.0)


def killed_at(n: int | None, write: Callable[[], None]) -> int:
    """Run `write` in a fork that is killed at its n-th call (None: never); return its number of calls, 0 if killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        calls = 0

        def count(*_: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == n:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(count)
        write()
        sys.setprofile(None)
        os.write(writing, str(calls).encode())
        os._exit(0)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    told = os.read(reading, 20)
    os.close(reading)
    assert os.WIFSIGNALED(status) or told, status
    return int(told or 0)


def instants(total: int) -> range:
    """Return about 40 call numbers up to `total`, evenly spaced and including `total`."""
    return range(total, 0, -max(1, total // 40))[::-1]


def kill_states(path: Path) -> list[str]:
    folder = RunFolder(path)

    def write(step: int) -> None:
        with folder.locked():
            folder.save(RunState(step=step, model={"w": WEIGHTS + step}, optimizer={}))

    write(0)
    total, seen = killed_at(None, lambda: write(0)), []
    for n in instants(total):
        write(1)
        killed_at(n, lambda: write(2))
        with folder.locked():
            state = folder.load()
            assert state is not None
            assert torch.equal(state.model["w"], WEIGHTS + state.step)
            assert sorted(file.name for file in path.iterdir()) == ["lock", "state.pt"], list(path.iterdir())
        seen.append({1: "old", 2: "new"}[state.step])
    return seen


def kill_folders(path: Path) -> list[str]:
    def write(what: str) -> None:
        temporary = temporary_beside(path)
        temporary.mkdir()
        for i in range(5):
            (temporary / f"{i}.txt").write_text(what)
        publish(temporary, path)

    path.parent.mkdir()
    write("old")
    total, seen = killed_at(None, lambda: write("old")), []
    for n in instants(total):
        killed_at(n, lambda: write("new"))
        texts = {file.read_text() for file in path.iterdir()} if path.exists() else {"nothing"}
        assert len(texts) == 1, texts
        assert not path.exists() or len(list(path.iterdir())) == 5
        seen += texts
        for stale in path.parent.glob(f".{path.name}.tmp*"):  # as the next run of a stage does
            discard(stale)
        assert [file.name for file in path.parent.iterdir()] in ([path.name], []), list(path.parent.iterdir())
        write("old")
    return seen


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(*kill_states(Path(sys.argv[1], "run")))
    print(*kill_folders(Path(sys.argv[1], "out/model")))
