"""Tests of reading runs from logs: growing logs, partial lines, several runs in one log, and resumed runs."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.cli.report import render_origin, run_of
from niels_gpt.config import TrainConfig
from niels_gpt.report.history import History
from niels_gpt.report.page import live_card
from niels_gpt.report.runs import Run, parse_log, present_runs, read_logs
from niels_gpt.train.meter import RunLog, StepReport
from tests.written_runs import REPORT, line


def runs_of(*lines: bytes) -> list[Run]:
    runs, unread = parse_log(lines, stage="train")
    assert unread == 0
    return runs


def steps(run: Run) -> list[int]:
    return [point.step for point in run.points]


def test_what_a_training_logs_is_read(tmp_path: Path) -> None:
    origin = {"machine": "a CPU", "commit": "abc1234"}
    log = RunLog(tmp_path / "train.jsonl", run="abcdef0123", decode=lambda ids: "".join(map(chr, ids)), origin=origin)
    validation = {"wiki": 3.0, "roam": 3.5}
    told = {**REPORT, "val_loss": 3.25, "validation": validation}
    log(StepReport(step=100, tokens=6400, loss=4.0, sample=(104, 105), **told))
    log(StepReport(step=200, tokens=12800, loss=3.5, sample=(), seconds=2.5, **REPORT))
    (run,), unread = read_logs(tmp_path)
    assert (run.name, run.stage, run.last.total_steps, steps(run)) == ("train-abcdef01", "train", 400, [100, 200])
    assert (run.seconds, run.last.machine, run.last.commit) == (2.5, "a CPU", "abc1234")
    first, second = run.points
    assert (first.loss, first.val_loss, first.validation, first.sample) == (4.0, 3.25, validation, "hi")
    assert (second.tokens, second.val_loss, second.validation, second.sample) == (12800, None, None, "")
    assert live_card(run, now=0.0)["drawn"] == [("wiki", "0.7500", "0.6000", "60"), ("roam", "0.2500", "0.4000", "40")]
    assert unread == {}


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    path, whole = tmp_path / "train.jsonl", line(20)
    for written, known in ((whole[:30], [10]), (whole[:-1], [10]), (whole + line(30), [10, 20, 30])):
        path.write_bytes(line(10) + written)
        (run,), unread = read_logs(tmp_path)
        assert (steps(run), unread) == (known, {})


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[1]", b"\xff\xfe", b'{"step": 5}', b"[" * 100_000, line(20, loss="high"), line(20, run=None)],
)
def test_an_invalid_line_is_counted_and_skipped(damage: bytes) -> None:
    runs, unread = parse_log([line(10), damage, line(30)], stage="train")
    assert unread == 1
    assert [steps(run) for run in runs] == [[10, 30]]


def test_a_resumed_run_continues_without_repeating_points() -> None:
    killed = (line(10), line(20), line(30, loss=1.0))
    (run,) = runs_of(*killed)
    (resumed,) = runs_of(*killed, line(30, first_step=25), line(40, first_step=25))
    assert steps(resumed) == [10, 20, 30, 40]
    assert resumed.points[2].loss == 4.0
    assert resumed.revision != run.revision  # a page that has the old third point must replace it
    (far_back,) = runs_of(*killed, line(10, first_step=5))
    assert steps(far_back) == [10]
    (from_its_end,) = runs_of(*killed, line(40, first_step=30))
    assert steps(from_its_end) == [10, 20, 30, 40]
    assert from_its_end.revision == run.revision
    (later,) = runs_of(*killed, line(40, first_step=25))  # the resumed process reports at other steps
    assert steps(later) == [10, 20, 40]


def test_a_run_that_begins_anew_is_the_same_one_until_it_has_ended() -> None:
    (run,) = runs_of(line(10), line(20), line(10))
    assert steps(run) == [10]
    whole, again = runs_of(line(200), line(400), line(200))
    assert (whole.name, again.name) == ("train-01234567", "train-01234567-2")
    assert (steps(whole), steps(again)) == ([200, 400], [200])


def test_runs_that_write_at_once_are_kept_apart() -> None:
    one, other = runs_of(line(10, run="a"), line(10, run="b"), line(20, run="b"), line(20, run="a"), line(30, run="b"))
    assert (steps(one), steps(other)) == ([10, 20], [10, 20, 30])


def test_a_log_that_was_deleted_or_begun_anew_is_read_from_its_start(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    assert read_logs(folder) == ([], {})
    folder.mkdir()
    path = folder / "sft.jsonl"
    path.write_bytes(line(10) + line(20) + b"?\n")
    (before,), unread = read_logs(folder)
    assert unread == {"sft.jsonl": 1}
    path.write_bytes(line(10, time=9.0))
    (run,), unread = read_logs(folder)
    assert (steps(run), unread) == ([10], {})
    assert run.revision != before.revision
    path.write_bytes(line(10, run="x") + line(20, run="x"))  # longer than the log that it replaces
    assert [run.name for run in read_logs(folder)[0]] == ["sft-x"]
    os.unlink(path)
    path.mkdir()  # no regular file, like a FIFO, which would block the reader
    assert read_logs(folder) == ([], {})


def test_the_run_heard_of_last_comes_first(tmp_path: Path) -> None:
    (tmp_path / "sft.jsonl").write_bytes(line(10, time=5.0))
    (tmp_path / "train.jsonl").write_bytes(line(10, time=6.0, run="a") + line(10, time=4.0, run="b"))
    assert [run.name for run in read_logs(tmp_path)[0]] == ["train-a", "sft-01234567", "train-b"]


def test_a_run_is_titled_by_its_experiment_or_by_its_main_source_and_its_beginning() -> None:
    (run,) = runs_of(line(10, time=5.0), line(20))
    began = time.localtime(5.0)
    assert live_card(run, now=0.0)["title"] == f"train: wiki, {began.tm_mday} {time.strftime('%b %H:%M', began)}"
    (run,) = runs_of(line(10, name="warmer"))
    assert live_card(run, now=0.0)["title"] == "train: warmer"


@pytest.mark.parametrize(
    ("train", "sft", "shown"),
    [
        ((10, 20), (30, 40), ["train", "sft"]),
        ((50, 60), (30, 40), ["train"]),  # the older sft run is of another model
        ((10, 60), (30, 40), ["train", "sft"]),
        ((50, 60), None, ["train"]),
        (None, (30, 40), ["sft"]),
    ],
)
def test_runs_of_the_present_model_are_shown_first(tmp_path: Path, train: Any, sft: Any, shown: list[str]) -> None:
    for stage, times in (("train", train), ("sft", sft)):
        if times:
            old = line(10, run="old", time=1.0)
            log = old + b"".join(line(10 * step, run="new", time=float(at)) for step, at in enumerate(times, start=1))
            (tmp_path / f"{stage}.jsonl").write_bytes(log)
    assert present_runs(read_logs(tmp_path)[0], ["train", "sft"]) == [f"{stage}-new" for stage in shown]


def test_a_card_tells_how_far_a_run_is_and_whether_it_still_goes() -> None:
    (run,) = runs_of(
        line(100, val_loss=3.0, validation={"wiki": 3.0}), line(200, val_loss=3.5, validation={"wiki": 3.5}), line(300)
    )
    card = live_card(run, now=run.last.time + 10)
    assert dict(card["facts"]) == {
        "step": "300 of 400",
        "tokens": "19,200",
        "loss": "4.0000",
        "validation": "3.5000",
        "lowest validation": "3.0000 at step 100",
        "tokens/s": "7,000",
        "MFU": "35%",
        "time left": "4 min 50 s",
    }
    assert (card["state"], card["share"]) == ("running", 0.75)
    # 300 s are left for 100 steps, the interval between lines: a run is silent after 3 times that plus 60 s.
    assert live_card(run, now=run.last.time + 959)["state"] == "running"
    late = live_card(run, now=run.last.time + 961)
    assert (late["state"], dict(late["facts"])["no log line for"]) == ("silent", "16 min 01 s")
    (ended,) = runs_of(line(400, seconds_left=0.0, utilisation=None))
    done = live_card(ended, now=ended.last.time + 10**6)
    assert done["state"] == "finished"
    assert not {"time left", "MFU", "validation", "took", "machine"} & set(dict(done["facts"]))
    (told,) = runs_of(line(400, seconds_left=0.0, seconds=75.0, machine="a CPU", commit="abc1234"))
    facts = dict(live_card(told, now=told.last.time)["facts"])
    assert (facts["took"], facts["machine"], facts["commit"]) == ("1 min 15 s", "a CPU", "abc1234")


def test_a_run_took_what_all_of_its_processes_took() -> None:
    (run,) = runs_of(
        line(100, seconds=10.0, machine="old"),
        line(200, seconds=20.0, machine="old"),
        line(200, first_step=100, seconds=9.0, machine="new"),  # lost steps are trained again, and count
        line(400, first_step=100, seconds=30.0, machine="new"),
    )
    assert (run.seconds, run.last.machine) == (50.0, "new")


def history(*losses: float) -> History:
    cfg = TrainConfig(total_steps=len(losses))
    return History(cfg, T=8, parameters=1, losses=list(losses), validations=[], best_val_loss=None, best_step=None,
                   drawn_rows={}, samples=[])  # fmt: skip


def test_a_model_is_known_again_by_its_losses() -> None:
    def run(name: str, *losses: float, time: float = 1.0, total: int = 2) -> list[bytes]:
        told = {"run": name, "total_steps": total, "time": time}
        return [line(step, loss=loss, **told) for step, loss in enumerate(losses, start=1)]

    runs = runs_of(*run("a", 4.0, 3.0), *run("c", 4.0, 3.0, time=9.0), *run("b", 4.0, 3.5), *run("d", 4.0, total=3))
    found = run_of(history(4.0, 3.0), runs, stage="train")
    assert found is not None
    assert found.name == "train-c"  # the later of two equal runs
    assert run_of(history(4.0, 3.0), runs, stage="sft") is None
    assert run_of(history(4.0, 3.25), runs, stage="train") is None
    assert run_of(history(4.0), runs, stage="train") is None  # d has not ended, and the others went further
    assert run_of(history(4.0, 3.0, 2.0), runs, stage="train") is None


def test_the_report_says_when_and_where_a_run_was_trained_or_that_it_is_unknown() -> None:
    (run,) = runs_of(line(400, time=86400.0 * 365, seconds=3600.0, machine="<b>CPU</b>", commit="abc1234, changed"))
    html = render_origin({"train": run, "sft": None})
    for text in (
        "1971-01-01 00:00 UTC",
        "1 h 00 min",
        "&lt;b&gt;CPU",
        "abc1234, changed",
        "No log of sft in this checkout",
    ):
        assert text in html
    assert "not logged" in render_origin({"train": runs_of(line(400))[0]})
    assert render_origin({}) == ""


def test_a_card_has_only_new_points_and_finite_numbers() -> None:
    (run,) = runs_of(line(10), line(20, loss=float("nan"), validation={"a": float("inf"), "b": 0.0}), line(30))
    told = live_card(run, now=0.0, since=1)
    assert [point["step"] for point in told["points"]] == [20, 30]
    assert "loss" not in told["points"][0]
    assert told["points"][0]["validation"] == {"b": 0.0}
    json.dumps(told, allow_nan=False)
    assert live_card(run, now=0.0, since=3)["points"] == []
