"""Command `niels-gpt report --to`: training curves in TensorBoard, MLflow, Weights & Biases or Trackio.

The logs are read from outside, while a run trains or long afterwards, so no result and no hash depends on a tracker.
Numbers, titles, machine, commit and names of sources are sent. Samples are not: a model may recite private text.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, get_args

import typer

from niels_gpt.files.messages import plural
from niels_gpt.pipeline import layout
from niels_gpt.report.runs import Line, Run, read_logs

_INTERVAL_S = 5.0  # between two looks at the logs
_BATCH = 1000  # metrics that MLflow takes in one request
_SENT = {"loss", "lr", "tokens", "tokens_per_second", "utilisation", "val_loss", "seconds"}


def send_curves(to: "Service", *, live: bool) -> None:
    """Send a tracker what it lacks of the curves in logs/, with `live` until Ctrl-C, and print how many points."""
    if not live and not read_logs(layout.LOGS)[0]:
        raise ValueError(f"no run is logged in {layout.LOGS}/ yet: start one with `niels-gpt run`")
    try:
        tracker = TRACKERS[to.value]()
    except ImportError as error:
        raise ValueError(f"this needs {to} ({error}): `pip install 'niels_gpt[{to}]'` installs it") from error
    except Exception as error:  # whatever its library raises: no server, no account
        raise ValueError(f"{to} cannot be opened: {error}") from error
    sent = dict[str, int]()
    with suppress(KeyboardInterrupt):
        while True:
            for title, points in send_new(tracker, sent, to=to):
                typer.echo(f"{title}: {plural(points, 'point')} sent")
            if not live:
                break
            time.sleep(_INTERVAL_S)
    typer.echo(f"{plural(len(sent), 'run')}; look at them with `{tracker.shown_by}`")


def send_new(tracker: "Tracker", sent: dict[str, int], *, to: str) -> Iterator[tuple[str, int]]:
    """Send the points that a tracker lacks; yield the title of each run and the number of its points.

    `sent` has the last step of each run that is there. A resumed run logs some steps again, with the same numbers: they
    are not sent twice.
    """
    for run in reversed(read_logs(layout.LOGS)[0]):
        try:
            if run.name not in sent:
                sent[run.name] = tracker.last_step(run)
            points = [point for point in run.points if point.step > sent[run.name]]
            if points:
                tracker.send(run, points)
        except Exception as error:  # whatever its library raises: no network, no account, a full disk
            raise ValueError(f"{to} did not take {run.title}: {error}") from error
        if points:
            sent[run.name] = points[-1].step
            yield run.title, len(points)


def numbers_of(line: Line) -> dict[str, float]:
    """Return the curves' values at one step, by name."""
    values = line.model_dump(include=_SENT, exclude_none=True)
    return {**values, **{f"val_loss/{source}": loss for source, loss in (line.validation or {}).items()}}


def facts_of(run: Run) -> dict[str, str]:
    """Return what does not change during a run, by name."""
    last = run.last
    return {"stage": run.stage, "steps": str(last.total_steps), "machine": last.machine, "commit": last.commit}


class TensorBoard:
    """Event files, a folder per run."""

    def __init__(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._folder = layout.LOGS / "tensorboard"
        self._writer = cache(lambda name: SummaryWriter(str(self._folder / name)))
        self.shown_by = f"tensorboard --logdir {self._folder}"

    def last_step(self, run: Run) -> int:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        folder = self._folder / run.name
        events = EventAccumulator(str(folder)).Reload() if folder.is_dir() else None
        return events.Scalars("loss")[-1].step if events and "loss" in events.Tags()["scalars"] else -1

    def send(self, run: Run, points: Sequence[Line]) -> None:
        writer = self._writer(run.name)
        for point in points:
            for name, value in numbers_of(point).items():
                writer.add_scalar(name, value, point.step, walltime=point.time)
        writer.flush()


class MLflow:
    """Runs of an MLflow experiment: on a server, or in an SQLite file."""

    def __init__(self) -> None:
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        layout.LOGS.mkdir(exist_ok=True)
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{layout.LOGS / 'mlflow.db'}"
        self._client, self._metric = MlflowClient(tracking_uri=uri), Metric
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or Path.cwd().name
        found = self._client.get_experiment_by_name(name)
        self._experiment = found.experiment_id if found else self._client.create_experiment(name)
        self.shown_by = f"mlflow ui --backend-store-uri {uri}"

    def last_step(self, run: Run) -> int:
        history = self._client.get_metric_history(self._id(run), "loss")
        return max((metric.step for metric in history), default=-1)

    def send(self, run: Run, points: Sequence[Line]) -> None:
        metrics = [
            self._metric(name, value, int(1000 * point.time), point.step)
            for point in points
            for name, value in numbers_of(point).items()
        ]
        for start in range(0, len(metrics), _BATCH):
            self._client.log_batch(self._id(run), metrics=metrics[start : start + _BATCH])
        if run.finished:
            self._client.set_terminated(self._id(run), end_time=int(1000 * run.last.time))

    def _id(self, run: Run) -> str:
        found = self._client.search_runs([self._experiment], f"tags.niels_gpt_run = '{run.name}'")
        if found:
            return str(found[0].info.run_id)
        tags, began = {"niels_gpt_run": run.name, **facts_of(run)}, int(1000 * run.points[0].time)
        made = self._client.create_run(self._experiment, start_time=began, tags=tags, run_name=run.title)
        return str(made.info.run_id)


class Wandb:
    """Weights & Biases; `WANDB_MODE=offline` writes to the folder `wandb` and sends nothing."""

    def __init__(self) -> None:
        import wandb

        self._wandb, self._opened = wandb, dict[str, Any]()
        self.shown_by = "wandb sync wandb/offline-run-*"

    def last_step(self, run: Run) -> int:
        return int(self._open(run).step) - 1

    def send(self, run: Run, points: Sequence[Line]) -> None:
        open_run = self._open(run)
        for point in points:
            open_run.log(numbers_of(point), step=point.step)
        if run.finished:
            open_run.finish()

    def _open(self, run: Run) -> Any:
        """Open a run without what wandb would collect by itself: console, code, git remote, machine."""
        if run.name not in self._opened:
            quiet = {"console": "off", "disable_git": True, "save_code": False, "silent": True}
            settings = self._wandb.Settings(**quiet, x_disable_meta=True, x_disable_stats=True)
            about = {"id": run.name, "name": run.title, "config": facts_of(run), "settings": settings}
            project = os.environ.get("WANDB_PROJECT") or Path.cwd().name
            self._opened[run.name] = self._wandb.init(project=project, resume="allow", reinit="create_new", **about)
            self.shown_by = self._opened[run.name].url or self.shown_by
        return self._opened[run.name]


class Trackio:
    """Trackio's database on this machine, or the Space that `TRACKIO_SPACE_ID` names."""

    def __init__(self) -> None:
        import trackio

        self._trackio, self._project = trackio, Path.cwd().name
        self.shown_by = f"trackio show --project {self._project}"

    def last_step(self, run: Run) -> int:
        step = self._trackio.SQLiteStorage.get_last_step(self._project, run.name)
        return -1 if step is None else int(step)

    def send(self, run: Run, points: Sequence[Line]) -> None:
        quiet = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        open_run = self._trackio.init(self._project, run.name, config=facts_of(run), resume="allow", **quiet)
        for point in points:
            open_run.log(numbers_of(point), step=point.step)
        open_run.finish()


# A tracker knows the last step that it has of a run (-1 without any), and takes points of it.
Tracker = TensorBoard | MLflow | Wandb | Trackio
TRACKERS: dict[str, type[Tracker]] = {tracker.__name__.lower(): tracker for tracker in get_args(Tracker)}
Service = StrEnum("Service", list(TRACKERS))  # type: ignore[misc]  # mypy wants literal members
