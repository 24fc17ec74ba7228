"""Tests of curves sent to trackers, read back from the trackers' storage."""

import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from typer.testing import CliRunner

from niels_gpt.cli.app import app
from niels_gpt.cli.track import send_new
from tests.written_runs import line

SAMPLE = "a passage that is recited"
SCALARS = ("loss", "lr", "tokens", "tokens_per_second", "utilisation", "seconds")


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


def points(*, seed: int, steps: range) -> list[bytes]:
    rng = np.random.default_rng(seed)
    more: list[dict[str, Any]] = [
        {"loss": float(rng.uniform(1, 9)), "seconds": float(rng.uniform(1, 99)), "sample": SAMPLE} for _ in steps
    ]
    more[-1] |= {"val_loss": 2.5 + seed, "validation": {"wiki": 2.0, "roam": 1 / 3}}
    return [line(step, run=f"{seed}" * 10, **each) for step, each in zip(steps, more, strict=True)]


def curves(lines: list[bytes]) -> dict[str, dict[int, float]]:
    """Return the curves of a log, {name: {step: value}}."""
    told: dict[str, dict[int, float]] = {}
    for point in map(json.loads, lines):
        values = {name: point[name] for name in (*SCALARS, "val_loss") if point.get(name) is not None}
        values |= {f"val_loss/{source}": loss for source, loss in (point["validation"] or {}).items()}
        for name, value in values.items():
            told.setdefault(name, {})[point["step"]] = float(value)
    return told


def event_files(run: str) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(f"logs/tensorboard/{run}", size_guidance={"scalars": 0}).Reload()
    found = {name: events.Scalars(name) for name in events.Tags()["scalars"]}
    assert all(len({event.step for event in of}) == len(of) for of in found.values()), "a step was sent twice"
    assert {event.wall_time - event.step for of in found.values() for event in of} == {1000.0}
    return {name: {event.step: event.value for event in of} for name, of in found.items()}


def mlflow_store(run: str) -> dict[str, dict[int, float]]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri="sqlite:///logs/mlflow.db")
    experiment = client.get_experiment_by_name(Path.cwd().name)
    assert experiment is not None
    (kept,) = client.search_runs([experiment.experiment_id], f"tags.niels_gpt_run = '{run}'")
    histories = {name: client.get_metric_history(kept.info.run_id, name) for name in kept.data.metrics}
    assert all(len({metric.step for metric in of}) == len(of) for of in histories.values()), "a step was sent twice"
    assert {metric.timestamp - 1000 * metric.step for of in histories.values() for metric in of} == {1_000_000}
    return {name: {metric.step: metric.value for metric in of} for name, of in histories.items()}


@pytest.mark.slow
@pytest.mark.parametrize("to", ["tensorboard", "mlflow"])
def test_a_tracker_gets_the_whole_log_and_a_second_call_sends_only_new_points(to: str, logs: Path) -> None:
    pytest.importorskip(to, reason=f"{to} is not installed: no curve was read back")
    read_back = {"tensorboard": event_files, "mlflow": mlflow_store}[to]
    first, second = points(seed=1, steps=range(50, 450, 50)), points(seed=2, steps=range(100, 300, 100))
    (logs / "train.jsonl").write_bytes(b"".join(first[:3]) + b"damaged\n")
    (logs / "sft.jsonl").write_bytes(b"".join(second))
    result = CliRunner().invoke(app, ["report", "--to", to])
    assert result.exit_code == 0, result.output
    assert "3 points sent" in result.output
    assert f"look at them with `{to}" in result.output
    # The run was killed after step 150 and resumed from 100, so the log has one step twice.
    again = [line(**{**json.loads(first[2]), "first_step": 100})]
    rest = [line(**{**json.loads(each), "first_step": 100}) for each in first[3:]]
    with (logs / "train.jsonl").open("ab") as file:
        file.write(b"".join([*again, *rest]))
    result = CliRunner().invoke(app, ["report", "--to", to])
    assert result.exit_code == 0, result.output
    assert "5 points sent" in result.output
    assert result.output.count("sent") == 1
    for name, lines in {"train-11111111": first, "sft-22222222": second}.items():
        expected = curves(lines)
        if to == "tensorboard":  # stores float32
            expected = {curve: {s: float(np.float32(v)) for s, v in of.items()} for curve, of in expected.items()}
        assert read_back(name) == expected
    kept = [path.read_bytes() for path in logs.rglob("*") if path.is_file() and path.suffix != ".jsonl"]
    assert kept
    assert not any(SAMPLE.encode() in data for data in kept)


def test_a_missing_package_an_empty_folder_and_a_refusal_are_one_sentence_each(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = CliRunner().invoke(app, ["report", "--to", "wandb"])
    assert result.exit_code == 1
    assert "no run is logged in logs/ yet: start one with `niels-gpt run`" in result.output
    (logs / "train.jsonl").write_bytes(line(100))
    monkeypatch.setitem(sys.modules, "wandb", None)
    result = CliRunner().invoke(app, ["report", "--to", "wandb"])
    assert result.exit_code == 1
    assert "pip install 'niels_gpt[wandb]'" in result.output

    tracker = Mock()
    tracker.last_step.side_effect = ConnectionError("no route to host")
    with pytest.raises(ValueError, match=r"mlflow did not take train: .*: no route to host"):
        list(send_new(tracker, {}, to="mlflow"))
    assert sorted(path.name for path in logs.iterdir()) == ["train.jsonl"]
