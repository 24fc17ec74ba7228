"""Checkpoints of a model that no rank has whole: every rank writes its parts (torch.distributed.checkpoint), while the
training goes on, and any number of ranks can go on from them.

    RUN/sharded/step-200/run.pt           all that is no tensor: the step, losses, validations
    RUN/sharded/step-200/__1_0.distcp     what rank 1 had
    RUN/sharded/step-200/.metadata        where what lies; written last, so that a folder that has it is whole

torch promises this format to no other version of itself, and reads its metadata by pickle: it is for this machine, for
the next try, and not to be handed around. Models are written as ever.
"""

from __future__ import annotations

import time
import uuid
import warnings
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed import checkpoint as dcp

from niels_gpt.checkpoint import load_tensors, save_tensors
from niels_gpt.files.damage import Damaged
from niels_gpt.files.ranks import Ranks
from niels_gpt.model.gpt import GPT
from niels_gpt.train.state import RunFolder, RunState

_METADATA, _VALUES = ".metadata", "run.pt"
_TENSORS = ("model", "optimizer", "best_model")
_FAILURES = (Exception, dcp.CheckpointException)  # in which torch wraps what went wrong on each rank; no Exception
_VISIBLE_WITHIN_S = 15  # on a network disk


@dataclass
class StoredRun(RunState):
    """A state whose tensors are still in `path`, for each rank to read its parts."""

    path: Path = Path()


class ShardedSaves:
    """Writes a run's states as parts: one at a time, in the background. All ranks call it, at the same steps."""

    def __init__(self, folder: RunFolder, ranks: Ranks, *, state: RunState | None) -> None:
        self._folder, self._ranks = folder, ranks
        self._group = distributed.new_group(backend="gloo")  # of its own: the training talks meanwhile
        self._saving: Future[Any] | None = None
        self._newest = state.path if isinstance(state, StoredRun) else None

    def save(self, run: RunState) -> None:
        """Returns once the parts are copied to the CPU's memory."""
        self.wait()
        path = self._folder.sharded / f"step-{run.step}"
        if path == self._newest:  # a finished run that is only read
            return
        self._newest = path
        if self._ranks.first:
            path.mkdir(parents=True, exist_ok=True)
            values = {name: value for name, value in vars(run).items() if name not in (*_TENSORS, "path")}
            save_tensors(path / _VALUES, values)
        saving = dcp.async_save(_tensors(run), checkpoint_id=path, process_group=self._group)
        assert isinstance(saving, Future)
        self._saving = saving

    def wait(self) -> None:
        """Until the last state is written; then those before it go."""
        if self._saving is None or self._newest is None:
            return
        try:
            self._saving.result()
        except _FAILURES as error:
            raise OSError(f"{self._newest} could not be written (is the disk full?): {_reason(error)}") from error
        self._saving = None
        if self._ranks.first:
            self._folder.forget_all_but(self._newest)


def check_shared_disk(folder: RunFolder, ranks: Ranks) -> None:
    """Raise, on all ranks, where the first one's folder is not seen by all: parts on several disks are no state."""
    word = ranks.from_first(str(uuid.uuid4()))
    mark = folder.path / "shared"
    if ranks.first:
        mark.write_text(word)
    ranks.exchange(None)  # it is there now
    deadline = time.monotonic() + _VISIBLE_WITHIN_S
    while not (seen := mark.is_file() and mark.read_text() == word) and time.monotonic() < deadline:
        time.sleep(0.5)
    blind = sorted({host for host, sees in ranks.exchange((ranks.host, seen)) if not sees})
    if blind:
        raise ValueError(
            f"runtime.shard_model: host {', '.join(map(str, blind))} does not see host 0's {folder.path}: put its "
            "parent on a disk that all hosts share (a link will do), or set shard_model to false"
        )


def newest_state(folder: RunFolder, model: GPT, *, whole: bool) -> RunState | None:
    """The state with the most steps, however it was written; with `whole`, all of it in this process's memory."""
    folder.forget_unfinished(_METADATA)
    paths = sorted(folder.sharded.glob("step-*"), key=_step)
    state = folder.load()
    if not paths or (state is not None and state.step >= _step(paths[-1])):
        return state
    try:
        stored = StoredRun(model={}, optimizer={}, path=paths[-1], **load_tensors(paths[-1] / _VALUES, "cpu"))
        return _read_whole(stored, model) if whole else stored
    except (ValueError, TypeError) as error:
        raise ValueError(f"{error}; to start this training anew, delete {folder.path}") from error


def read_parts(run: StoredRun, *, ranks: Ranks) -> None:
    """Fill the state's tensors, in place, with what lies in its folder; of shared-out ones each rank its parts."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is one process: it is meant
            dcp.load(_tensors(run), checkpoint_id=run.path, no_dist=ranks.size == 1)
    except _FAILURES as error:
        what = f"is damaged, or was written by another torch ({_reason(error)})"
        raise Damaged(run.path, f"{what}; to start this training anew, delete {run.path.parent.parent}") from error


def _read_whole(run: StoredRun, model: GPT) -> RunState:
    entries = dcp.FileSystemReader(run.path).read_metadata().state_dict_metadata
    for name, entry in entries.items():
        kind, _, place = name.partition("/")
        empty = torch.empty(entry.size, dtype=entry.properties.dtype)  # type: ignore[union-attr]  # all are tensors
        if kind == "optimizer":
            number, i, key = place.split("/")
            run.optimizer.setdefault(number, {}).setdefault(int(i), {})[key] = empty
        elif kind == "model":
            run.model[place] = empty
        else:
            run.best_model = {**(run.best_model or {}), place: empty}
    read_parts(run, ranks=Ranks())
    run.model = _with_tied(run.model, model)
    run.best_model = run.best_model and _with_tied(run.best_model, model)
    return RunState(**{name: value for name, value in vars(run).items() if name != "path"})


def _with_tied(weights: dict[str, torch.Tensor], model: GPT) -> dict[str, torch.Tensor]:
    """By all names: a weight that has several was stored under its first."""
    named = list(model.named_parameters(remove_duplicate=False))
    first: dict[int, str] = {}
    for name, parameter in named:
        first.setdefault(id(parameter), name)
    return {name: weights[first[id(parameter)]] for name, parameter in named}


def _tensors(run: RunState) -> dict[str, torch.Tensor]:
    """All of a state's, by names that do not depend on the number of ranks."""
    weights = {"model": run.model, "best_model": run.best_model or {}}
    flat = {f"{kind}/{name}": tensor for kind, named in weights.items() for name, tensor in named.items()}
    for number, parameters in run.optimizer.items():
        for i, values in parameters.items():
            flat |= {f"optimizer/{number}/{i}/{key}": value for key, value in values.items()}
    return flat


def _reason(error: BaseException) -> str:
    """The last line of what is often a stack of several ranks."""
    lines = str(error).strip().splitlines()
    return lines[-1][:160] if lines else type(error).__name__


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))
