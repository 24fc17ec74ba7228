"""Tests of the training loop: golden losses, bit-for-bit resume, and what stops a run."""

import copy
import itertools
import json
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from niels_gpt.cache.sft_dataset import best_fit
from niels_gpt.config import Groups, ModelConfig
from niels_gpt.eval.chats import mean_chat_loss
from niels_gpt.files.ranks import ALONE, Ranks
from niels_gpt.lr_schedule import lr_at_step
from niels_gpt.model.gpt import GPT
from niels_gpt.report.history import History
from niels_gpt.report.tables import loss_curve, mix_shares, read_tsv, summarise, validations_by_source, write_tsv
from niels_gpt.rng import set_seed
from niels_gpt.tokenizer.tokenizers import ByteTokenizer
from niels_gpt.train import meter
from niels_gpt.train.chats import ChatTask
from niels_gpt.train.loop import Hooks, run_training, stop_on_signal, train
from niels_gpt.train.meter import RunLog, StepReport
from niels_gpt.train.optimizer import build_optimizers, load_optimizer_state, set_rates
from niels_gpt.train.pretraining import PretrainTask
from niels_gpt.train.state import RunFolder, RunState
from niels_gpt.train.task import Batch, Execution
from tests.tiny_training import CONFIG, MODEL, STREAMS, TASK, chat_task

GOLDEN = Path(__file__).parent / "golden_losses.json"


def run(state: RunState | None = None, hooks: Hooks | None = None) -> tuple[GPT, RunState]:
    set_seed(1)
    model = GPT(MODEL)
    return model, train(model, TASK, state=state, hooks=hooks)


@cache
def whole_run() -> tuple[GPT, RunState]:
    """Return the uninterrupted run, which is cached: do not modify it."""
    return run()


@pytest.mark.slow
def test_a_tiny_seeded_run_matches_the_golden_losses() -> None:
    """Other losses mean other results for everybody. To accept them, write them to GOLDEN and say why in the log."""
    _, state = whole_run()
    golden = json.loads(GOLDEN.read_text())
    np.testing.assert_allclose(state.losses, golden["losses"], rtol=1e-4)
    np.testing.assert_allclose([v["val_loss"] for v in state.validations], golden["val_losses"], rtol=1e-4)
    assert state.drawn_rows == golden["drawn_rows"]


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [1, 10, 23])
def test_stopped_and_resumed_equals_uninterrupted_bit_for_bit(stop_at: int, tmp_path: Path) -> None:
    whole, whole_state = whole_run()
    folder, steps = RunFolder(tmp_path / "run"), iter(range(1000))
    with folder.locked():
        _, stopped = run(hooks=Hooks(should_stop=lambda: next(steps) == stop_at, save=folder.save))
        assert stopped.step == stop_at
        resumed, resumed_state = run(state=folder.load(), hooks=Hooks(save=folder.save))
    assert resumed_state.losses == whole_state.losses
    assert resumed_state.validations == whole_state.validations
    assert resumed_state.samples == whole_state.samples
    assert resumed_state.drawn_rows == whole_state.drawn_rows
    assert resumed_state.best_step == whole_state.best_step
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_finished_state_trains_no_further() -> None:
    model, state = whole_run()
    before = copy.deepcopy(model.state_dict())
    again, same = run(state=copy.deepcopy(state))
    assert same.step == CONFIG.total_steps
    assert all(torch.equal(before[key], value) for key, value in again.state_dict().items())


@pytest.mark.slow
def test_checkpoints_and_reports_come_when_asked_for() -> None:
    saved: list[int] = []
    reports: list[StepReport] = []
    hooks = Hooks(save=lambda s: saved.append(s.step), report=reports.append, checkpoint_every=12, log_every=15)
    run(hooks=hooks)
    assert saved == [12, 24, 30]
    assert [r.step for r in reports] == [10, 15, 20, 30]
    assert [r.val_loss is not None for r in reports] == [True, False, True, True]
    assert sum(reports[-1].drawn_rows.values()) == CONFIG.total_steps * CONFIG.B
    warm, rates = CONFIG.warmup_steps, {"base_lr": CONFIG.base_lr, "min_lr": CONFIG.min_lr}
    assert [r.lr for r in reports] == [lr_at_step(r.step - 1, 30, warmup_steps=warm, **rates) for r in reports]


SMALL = ModelConfig(V=260, T=8, C=8, L=1, H=1, d_ff=8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("eval_every", "checkpoint_every", "log_every"),
    [(2, 4, 1), (4, 4, 4), (4, 2, 3), (3, 2, 7), (5, 1, 3), (99, 6, 99), (5, 99, 4)],
)
def test_a_checkpoint_is_saved_when_it_is_due_whatever_else_is_done_after_that_step(
    eval_every: int, checkpoint_every: int, log_every: int
) -> None:
    cfg = replace(CONFIG, total_steps=12, eval_every=eval_every, B=2)
    task = Scripted(train=STREAMS, val=STREAMS, cfg=cfg, T=SMALL.T, device="cpu", script=itertools.repeat(1.0))
    saved: list[tuple[int, int, list[float], int]] = []
    reported: list[int] = []

    def save(state: RunState) -> None:
        steps = [validation["step"] for validation in state.validations]
        saved.append((state.step, len(state.losses), steps, sum(state.drawn_rows.values())))
        assert state.model.keys() == GPT(SMALL).state_dict().keys()
        assert state.optimizer
        assert all(len(sample["ids"]) == sample["prompt"] + 64 for sample in state.samples)

    hooks = Hooks(
        save=save, report=lambda r: reported.append(r.step), checkpoint_every=checkpoint_every, log_every=log_every
    )
    train(GPT(SMALL), task, hooks=hooks)
    due = [*range(checkpoint_every, 12, checkpoint_every), 12]
    validated = [n for n in range(1, 13) if n % eval_every == 0 or n == 12]
    assert saved == [(n, n, [v for v in validated if v <= n], 2 * n) for n in due]
    assert reported == [n for n in range(1, 13) if n in validated or n % log_every == 0]


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [1, 5, 11])
def test_the_time_left_is_estimated_from_the_steps_of_this_process_also_after_a_resume(
    stop_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is simulated: a step takes 2 s, a validation 3 s, and 1000 s pass between the two processes."""
    cfg = replace(CONFIG, total_steps=12, eval_every=4, B=2)
    clock, steps = [0.0], iter(range(100))

    def validations() -> Iterator[float]:
        while True:
            clock[0] += 3.0
            yield 1.0

    task = Scripted(train=STREAMS, val=STREAMS, cfg=cfg, T=SMALL.T, device="cpu", script=validations())
    monkeypatch.setattr(meter, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    reports: list[StepReport] = []

    def progress(done: int) -> None:
        clock[0] += 2.0 * done

    hooks = Hooks(progress=progress, report=reports.append, log_every=1, should_stop=lambda: next(steps) == stop_at)
    stopped = train(GPT(SMALL), task, hooks=hooks)
    assert stopped.step == stop_at
    clock[0] += 1000.0
    train(GPT(SMALL), task, state=stopped, hooks=replace(hooks, should_stop=lambda: False))
    assert [report.step for report in reports] == list(range(1, 13))
    for report in reports:
        began = 0 if report.step <= stop_at else stop_at
        seconds = 2.0 * (report.step - began) + 3.0 * (report.step // 4 - began // 4)
        assert report.seconds == pytest.approx(seconds)
        assert report.seconds_left == pytest.approx(seconds / (report.step - began) * (12 - report.step))
        assert report.tokens_per_second == pytest.approx(cfg.B * SMALL.T / 2.0)
        assert (report.first_step, report.tokens) == (began, report.step * cfg.B * SMALL.T)
        assert report.loss == stopped.losses[report.step - 1]


def test_a_run_is_validated_at_its_end_whatever_the_interval() -> None:
    cfg = replace(CONFIG, total_steps=5, eval_every=3)
    state = train(GPT(MODEL), replace(TASK, cfg=cfg))
    assert [v["step"] for v in state.validations] == [3, 5]


@pytest.mark.slow
@pytest.mark.parametrize(("validations", "steps"), [(1, [1]), (4, [1, 2, 4]), (11, [1, 2, 4, 8, 11])])
def test_samples_are_of_validations_1_2_4_8_and_the_last(validations: int, steps: list[int]) -> None:
    """A run stopped between two of them and resumed has the same samples; a log line has the sample of its own step."""
    cfg = replace(CONFIG, total_steps=validations, eval_every=1)
    task, reports, stops = replace(TASK, cfg=cfg), [], iter(range(100))
    set_seed(1)
    state = train(GPT(MODEL), task, hooks=Hooks(report=reports.append))
    assert [sample["step"] for sample in state.samples] == steps
    assert {report.step: report.sample for report in reports if report.sample} == {
        sample["step"]: tuple(sample["ids"]) for sample in state.samples
    }
    set_seed(1)
    stopped = train(GPT(MODEL), task, hooks=Hooks(should_stop=lambda: next(stops) == min(5, validations)))
    assert train(GPT(MODEL), task, state=stopped).samples == state.samples


@pytest.mark.slow
def test_what_a_state_holds_is_not_touched_by_the_run_that_goes_on_from_it() -> None:
    _, state = run()
    before = copy.deepcopy(state.optimizer)
    optimizers = build_optimizers(GPT(MODEL), CONFIG)
    load_optimizer_state(optimizers, state.optimizer)
    for group in optimizers[0].param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizers[0].step()
    for number, moments in state.optimizer["0"].items():
        assert all(torch.equal(value, before["0"][number][name]) for name, value in moments.items())


def test_text_batches_are_a_function_of_seed_and_step() -> None:
    other = replace(TASK, cfg=replace(CONFIG, seed=7))
    assert torch.equal(TASK.batch(3).x, TASK.batch(3).x)
    assert torch.equal(TASK.batch(3).y[:, :-1], TASK.batch(3).x[:, 1:])
    assert not torch.equal(TASK.batch(3).x, TASK.batch(4).x)
    assert not torch.equal(TASK.batch(3).x, other.batch(3).x)
    always_roam = replace(TASK, cfg=replace(CONFIG, p_train={"wiki": 0.0, "roam": 1.0}))
    assert always_roam.batch(3).rows == {"roam": CONFIG.B, "wiki": 0}


def test_rows_say_where_a_batch_comes_from() -> None:
    rows, batch = TASK.rows(3), TASK.batch(3)
    assert [ids[:-1] for _, _, ids in rows] == batch.x.tolist()
    assert [ids[1:] for _, _, ids in rows] == batch.y.tolist()
    for source, window, ids in rows:
        assert ids == STREAMS[source].gather(np.array([window]), MODEL.T)[0].tolist()
    assert TASK.describe(3) == "windows " + ", ".join(f"{source}[{window}]" for source, window, _ in rows)


def test_a_loss_that_is_no_number_stops_with_step_and_lr_and_saves_nothing_bad() -> None:
    saved: list[int] = []
    set_seed(1)
    model = GPT(MODEL)
    with torch.no_grad():
        model.tok_emb.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match=r"became nan at step 0 with lr 0"):
        train(model, TASK, hooks=Hooks(save=lambda s: saved.append(s.step)))
    assert saved == []


def test_decay_is_on_matrices_only() -> None:
    model = GPT(MODEL)
    matrices, vectors = build_optimizers(model, CONFIG)[0].param_groups
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (CONFIG.weight_decay, 0)
    assert all(p.dim() >= 2 for p in matrices["params"])
    assert len(matrices["params"]) == 1 + 4 * MODEL.L, "the embedding and those of the blocks"
    assert len(matrices["params"]) + len(vectors["params"]) == len(list(model.parameters()))


def test_groups_are_apart_where_rates_or_decays_are() -> None:
    faster = replace(CONFIG, lr_scale=replace(CONFIG.lr_scale, embedding=2.0))
    lighter = replace(CONFIG, decay_scale=replace(CONFIG.decay_scale, embedding=0.5))
    for apart in (faster, lighter):
        embedding, matrices, vectors = build_optimizers(GPT(MODEL), apart)[0].param_groups
        assert [len(group["params"]) for group in (embedding, matrices)] == [1, 4 * MODEL.L]
        assert len({(group["lr_scale"], group["weight_decay"]) for group in (embedding, matrices, vectors)}) == 3


def with_own_head() -> GPT:
    """Return a model whose head does not share the embedding's weight."""
    model = GPT(MODEL)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def test_a_state_numbers_the_matrices_first_and_then_the_vectors() -> None:
    """States saved before there were parameter groups have this order."""
    model = with_own_head()
    (adamw,) = build_optimizers(model, replace(CONFIG, lr_scale=Groups(1.0, 2.0, 3.0, 4.0)))
    numbered = [p for group in adamw.param_groups for p in group["params"]]
    parameters = list(model.parameters())
    expected = [p for p in parameters if p.dim() == 2] + [p for p in parameters if p.dim() == 1]
    assert all(a is b for a, b in zip(numbered, expected, strict=True))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_every_group_has_its_multiple_of_rate_and_decay(optimizer: Any) -> None:
    model = with_own_head()
    names = {id(p): name for name, p in model.named_parameters()}
    scales = {"lr_scale": Groups(1.0, 2.0, 3.0, 4.0), "decay_scale": Groups(5.0, 6.0, 7.0, 8.0)}
    cfg = replace(CONFIG, optimizer=optimizer, weight_decay=0.5, **scales)
    optimizers = build_optimizers(model, cfg)
    for lr in (0.5, 0.25):
        set_rates(optimizers, lr=lr, momentum=0.95)
        found = {
            names[id(p)]: (group["lr"] / lr, group["weight_decay"] / 0.5)
            for each in optimizers
            for group in each.param_groups
            for p in group["params"]
        }
        for name, parameter in model.named_parameters():
            expected = {"tok_emb.weight": (2, 6), "lm_head.weight": (3, 7)}
            assert found.pop(name) == expected.get(name, (1, 5) if parameter.dim() == 2 else (4, 8)), name
        assert not found


def test_a_graphs_rates_are_tensors_of_their_own() -> None:
    """A CUDA graph reads the tensors it was recorded with, so setting rates and loading a state must keep them."""
    cfg = replace(CONFIG, lr_scale=Groups(1.0, 2.0, 1.0, 4.0), optimizer="muon")
    optimizers = build_optimizers(GPT(MODEL), cfg, capturable=True)
    adamw, muon = optimizers

    def numbers() -> list[torch.Tensor]:
        return [*(group["lr"] for group in (*adamw.param_groups, *muon.param_groups)), muon.param_groups[0]["momentum"]]

    before = numbers()
    load_optimizer_state(optimizers, {"0": {}, "1": {}})
    set_rates(optimizers, lr=0.25, momentum=0.5)
    assert all(number is same for number, same in zip(numbers(), before, strict=True))
    assert numbers() == [0.5, 1.0, 0.25, 0.5]


@pytest.mark.slow
def test_metrics_report_the_sampled_mix_and_no_times(tmp_path: Path) -> None:
    _, state = run()
    history = History.of(state, CONFIG, parameters=5, T=32)
    summary = summarise(history)
    assert summary["mix"]["roam"]["p"] == 0.3
    assert summary["mix"]["roam"]["rows"] + summary["mix"]["wiki"]["rows"] == 240
    assert summary["tokens"] == 30 * 8 * 32
    curve = loss_curve(history)
    assert [row["step"] for row in curve] == list(range(1, 31))
    write_tsv(tmp_path / "x.tsv", curve)
    lines = (tmp_path / "x.tsv").read_text().splitlines()
    assert lines[0] == "step\tloss\tlr"
    assert len(lines) == 31
    assert [row["step"] for row in read_tsv(tmp_path / "x.tsv")] == list(range(1, 31))
    shares = {(row["mix"], row["source"]): row["share"] for row in mix_shares(history)}
    assert shares["asked", "roam"] == 0.3
    assert shares["drawn", "roam"] + shares["drawn", "wiki"] == pytest.approx(1)
    by_source = validations_by_source(history)
    assert {row["source"] for row in by_source} == set(CONFIG.p_val)
    assert len(by_source) == len(state.validations) * len(CONFIG.p_val)


@pytest.mark.slow
def test_fine_tuning_learns_the_answers_and_shows_what_is_forgotten(tmp_path: Path) -> None:
    task = chat_task(tmp_path)
    set_seed(1)
    model = GPT(MODEL)
    state = train(model, task)
    assert set(state.drawn_rows) == {"dolly15k", "oasst1"}
    assert state.drawn_rows["oasst1"] > state.drawn_rows["dolly15k"]
    first, last = state.validations[0], state.validations[-1]
    assert set(last) == {"step", "val_loss", "dolly15k", "oasst1", "wiki"}
    assert last["val_loss"] < first["val_loss"]
    for losses in state.validations:
        assert losses["val_loss"] == pytest.approx(0.25 * losses["dolly15k"] + 0.75 * losses["oasst1"])
        assert abs(losses["dolly15k"] - losses["oasst1"]) > 1e-3
    assert task.text.validate(model)["wiki"] == pytest.approx(last["wiki"])


def test_eval_steps_limit_the_chats_that_are_validated(tmp_path: Path) -> None:
    task = chat_task(tmp_path)
    model = GPT(MODEL)
    for eval_steps, rows in ((1, 2), (2, 4), (9, 4)):  # 2 chats per step; there are 4
        cfg = replace(task.cfg, eval_steps=eval_steps, B=2)
        expected = {name: mean_chat_loss(model, task.val[name], np.arange(rows), B=2) for name in task.sources}
        losses = replace(task, cfg=cfg).validate(model)
        assert {name: losses[name] for name in task.sources} == pytest.approx(expected)


@dataclass(frozen=True)
class Scripted(PretrainTask):
    """Pretraining task with scripted validation losses."""

    script: Iterator[float] = field(default_factory=lambda: iter(()))

    def validate(self, model: GPT, ranks: Ranks = ALONE) -> dict[str, float]:
        return {"val_loss": next(self.script)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "best"), [((3.0, 1.0, 2.0), 20), ((1.0, 2.0, 3.0), 10), ((3.0, 2.0, 1.0), 30), ((2.0, 1.0, 1.0), 20)]
)
def test_the_best_model_is_that_of_the_lowest_validation_as_it_was_then(script: tuple[float, ...], best: int) -> None:
    weights: dict[int, dict[str, torch.Tensor]] = {}
    set_seed(1)
    model = GPT(MODEL)
    task = Scripted(**{f.name: getattr(TASK, f.name) for f in fields(TASK)}, script=iter(script))
    hooks = Hooks(report=lambda report: weights.update({report.step: copy.deepcopy(model.state_dict())}), log_every=99)
    state = train(model, task, hooks=hooks)
    assert (state.best_step, state.best_val_loss) == (best, min(script))
    assert state.best_model is not None
    assert all(torch.equal(state.best_model[key], value) for key, value in weights[best].items())
    assert not torch.equal(weights[10]["tok_emb.weight"], weights[30]["tok_emb.weight"])
    assert all(torch.equal(state.model[key], value) for key, value in weights[30].items())


def test_validation_weighs_its_sources_by_p_val() -> None:
    set_seed(1)
    model = GPT(MODEL)
    with torch.no_grad():
        model.tok_emb.weight.mul_(20)  # so that the losses of the sources differ
    for p_val in ({"wiki": 0.9, "roam": 0.1}, {"wiki": 0.2, "roam": 0.8}):
        losses = replace(TASK, val=STREAMS, cfg=replace(CONFIG, p_val=p_val)).validate(model)
        assert abs(losses["wiki"] - losses["roam"]) > 0.01
        expected = sum(p * losses[name] for name, p in p_val.items())
        assert losses["val_loss"] == pytest.approx(expected)


def test_equal_seeds_are_validated_on_equal_windows_and_others_on_others() -> None:
    model = GPT(MODEL)
    values = [replace(TASK, cfg=replace(CONFIG, seed=seed)).validate(model)["val_loss"] for seed in (1, 1, 2)]
    assert values[0] == values[1] != values[2]


class Interrupted:
    """Task that raises a signal in this process when the batch of a given step is requested."""

    def __init__(self, signals: dict[int, int]) -> None:
        self._signals = signals

    def __getattr__(self, name: str) -> Any:
        return getattr(TASK, name)

    def batch(self, n: int, rows: slice) -> Batch:
        if n in self._signals:
            signal.raise_signal(self._signals.pop(n))
        return TASK.batch(n, rows)


@pytest.fixture
def handlers() -> Iterator[list[int]]:
    """Yield the list of signals that no handler of the project has caught."""
    missed: list[int] = []
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(kind, lambda number, _: missed.append(number)) for kind in kinds]
    yield missed
    for kind, handler in zip(kinds, before, strict=True):
        signal.signal(kind, handler)


def run_in(folder: Path, model: GPT, task: Any) -> RunState:
    log = RunLog(folder / "logs/train.jsonl", run="x", decode=ByteTokenizer().decode)
    hooks, checkpoints = Hooks(report=log, log_every=10, checkpoint_every=12), folder / "checkpoints/x"
    return run_training(model, task, execution=Execution(), hooks=hooks, folder=checkpoints, title="train")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_step_at_hand_saves_and_the_run_goes_on_from_there(
    kind: int, handlers: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, whole_state = run()
    set_seed(1)
    stopped = run_in(tmp_path, GPT(MODEL), Interrupted({17: kind}))
    assert handlers == []
    assert stopped.step == 18
    saved = RunFolder(tmp_path / "checkpoints/x").load()
    assert saved is not None
    assert saved.step == 18
    assert "resuming" not in capsys.readouterr().out
    model = GPT(MODEL)
    resumed = run_in(tmp_path, model, TASK)
    assert "resuming after step 18" in capsys.readouterr().out
    assert resumed.losses == whole_state.losses
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), model.parameters(), strict=True))
    lines = [json.loads(line) for line in (tmp_path / "logs/train.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [10, 20, 30]
    assert lines[0]["sample"].startswith("the ")


def test_a_second_ctrl_c_is_a_plain_one(handlers: list[int]) -> None:
    should_stop = stop_on_signal()
    assert not should_stop()
    signal.raise_signal(signal.SIGTERM)
    assert should_stop()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert handlers == []


def test_metrics_of_a_long_run_are_means_of_what_lies_between_the_points() -> None:
    run = History(
        cfg=replace(CONFIG, total_steps=1000, warmup_steps=100),
        T=32,
        parameters=5,
        losses=[float(n) for n in range(1000)],
        validations=[{"step": 500, "val_loss": 3.0, "wiki": 4.0}, {"step": 1000, "val_loss": 5.0, "wiki": 6.0}],
        best_val_loss=3.0,
        best_step=500,
        drawn_rows={"wiki": 6000, "roam": 2000},
        samples=[],
    )
    curve = loss_curve(run)
    assert len(curve) == 200
    assert [row["step"] for row in curve[:3]] == [5, 10, 15]
    assert [row["loss"] for row in curve[:3]] == [2.0, 7.0, 12.0]
    assert curve[0]["lr"] == pytest.approx(CONFIG.base_lr * 4 / 100)
    assert curve[-1]["lr"] == pytest.approx(CONFIG.min_lr)
    summary = summarise(run)
    assert summary["loss"] == 997.0
    assert (summary["val_loss"], summary["best_val_loss"], summary["best_step"]) == (5.0, 3.0, 500)
    assert (summary["steps"], summary["tokens"]) == (1000, 1000 * 8 * 32)
    assert summary["mix"]["roam"] == {"p": 0.3, "rows": 2000, "drawn": 0.25}
    assert {(row["mix"], row["source"]): row["share"] for row in mix_shares(run)} == {
        ("asked", "wiki"): 0.7,
        ("asked", "roam"): 0.3,
        ("drawn", "wiki"): 0.75,
        ("drawn", "roam"): 0.25,
    }
    assert validations_by_source(run) == [
        {"step": 500, "source": "wiki", "loss": 4.0},
        {"step": 1000, "source": "wiki", "loss": 6.0},
    ]


def test_a_log_line_tells_a_person_what_the_file_tells_a_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = RunLog(tmp_path / "logs/x.jsonl", run="3f2a", decode=lambda ids: "".join(map(chr, ids)))
    report = StepReport(
        step=50,
        total_steps=200,
        first_step=0,
        tokens=6400,
        loss=2.5,
        lr=1e-3,
        tokens_per_second=12345.6,
        utilisation=0.25,
        seconds_left=3725,
        asked={"wiki": 0.7, "roam": 0.3},
        drawn_rows={"wiki": 3, "roam": 1},
        val_loss=2.75,
        validation={"wiki": 2.75},
        sample=(104, 105),
    )
    log(report)
    log(replace(report, step=100, utilisation=None, seconds_left=65, val_loss=None, validation=None, sample=()))
    log(replace(report, step=150, seconds_left=5.4))
    printed = capsys.readouterr()
    lines = (printed.out + printed.err).splitlines()
    assert lines[0] == (
        "step  50/200  loss 2.5000  val 2.7500  lr 1.00e-03  12,346 tok/s (MFU 25%)  1 h 02 min left  "
        "sampled: wiki 0.750 roam 0.250"
    )
    assert lines[1] == '  sample: "hi"'
    assert lines[2].startswith("step 100/200  loss 2.5000  lr 1.00e-03  12,346 tok/s  1 min 05 s left")
    assert "  5 s left" in lines[3]
    written = [json.loads(line) for line in (tmp_path / "logs/x.jsonl").read_text().splitlines()]
    assert [line["step"] for line in written] == [50, 100, 150]
    assert written[0]["sample"] == "hi"
    assert written[0]["drawn_rows"] == {"wiki": 3, "roam": 1}
    assert {line["run"] for line in written} == {"3f2a"}


def test_chat_batches_are_a_function_of_seed_and_step(tmp_path: Path) -> None:
    task = chat_task(tmp_path)
    for n in (0, 5):
        a, b = task.batch(n), task.batch(n)
        assert torch.equal(a.packed, b.packed)
        assert sum(a.rows.values()) == CONFIG.B
        assert ((a.y == -100) | (a.y == torch.roll(a.x, -1, 1)) | (torch.arange(MODEL.T) == MODEL.T - 1)).all()
        asked = a.x == 256 + 1  # the byte tokenizer's user token
        assert asked[:, 0].all()
        assert (asked.sum(1) > 1).any(), "rows have several chats"
        assert (a.y[:, 0] == -100).all()
        starts = a.tensors["segment_ids"].diff() > 0
        assert (asked[:, 1:] <= starts).all(), "every chat is a segment of its own"
        assert (a.y[:, :-1][starts] == -100).all(), "nothing is learned across chats"
    assert not torch.equal(task.batch(0).x, task.batch(1).x)
    assert not torch.equal(task.batch(0).x, replace(task, cfg=replace(task.cfg, seed=7)).batch(0).x)


@pytest.mark.slow
@given(lengths=st.lists(st.integers(1, 50), max_size=60))
def test_best_fit_places_every_item_once_and_overfills_no_row(lengths: list[int]) -> None:
    rows = best_fit(np.array(lengths, dtype=np.int64), room=50)
    assert sorted(item for row in rows for item in row.tolist()) == list(range(len(lengths)))
    filled = sorted(sum(lengths[item] for item in row) for row in rows)
    assert all(total <= 50 for total in filled)
    assert len(filled) < 2 or filled[0] + filled[1] > 50, "two rows that would fit into one are one"


def test_the_loss_of_a_packed_row_is_that_of_its_chats_one_by_one(tmp_path: Path) -> None:
    chats = chat_task(tmp_path).train["dolly15k"]
    set_seed(1)
    model = GPT(MODEL).eval()
    with torch.no_grad():
        for rows in chats.packs():
            x, y, segments = (tensor[None] for tensor in chats.packed(rows))
            hidden = model.hidden(model.embed(x), segment_ids=segments)
            alone_x, _, alone_y = chats.examples(rows)
            alone = model.token_losses(model.hidden(model.embed(alone_x)), alone_y)[alone_y != -100]
            torch.testing.assert_close(model.token_losses(hidden, y)[y != -100], alone, atol=1e-5, rtol=0)


def test_padding_is_what_chats_leave_of_their_rows(tmp_path: Path) -> None:
    task, left = chat_task(tmp_path), 0.0
    for name, chats in task.train.items():
        tokens = sum(len(chats.document(row)) for row in range(len(chats)))
        left += task.cfg.p_train[name] * (1 - tokens / (len(chats.packs()) * (task.T + 1)))
    assert task.padding() == pytest.approx(left)
    assert 0 < left < 1


def replaying(folder: Path) -> ChatTask:
    task = chat_task(folder)
    return replace(task, replay=replace(TASK, cfg=replace(CONFIG, B=3, seed=9)))


def test_replayed_rows_are_pretraining_text_with_loss_on_every_token(tmp_path: Path) -> None:
    task = replaying(tmp_path)
    batch, text = task.batch(4), replace(TASK, cfg=replace(CONFIG, B=3, seed=9)).batch(4)
    assert torch.equal(batch.x[-3:], text.x)
    assert torch.equal(batch.y[-3:], text.y)
    assert (batch.tensors["segment_ids"][-3:] == 0).all()
    assert batch.rows["wiki"] + batch.rows["roam"] == 3
    assert sum(batch.rows.values()) == CONFIG.B
    assert batch.targets == (batch.y != -100).sum()
    for cut in (1, 5, 6, 8):  # a rank has some of the rows, and counts the targets of all
        parts = [task.batch(4, slice(0, cut)), *([task.batch(4, slice(cut, 8))] if cut < 8 else [])]
        assert torch.equal(torch.cat([part.x for part in parts]), batch.x)
        assert torch.equal(torch.cat([part.y for part in parts]), batch.y)
        assert all(part.targets == batch.targets and part.rows == batch.rows for part in parts)
    replayed = replace(TASK, cfg=replace(CONFIG, B=3, seed=9)).describe(4)
    assert re.fullmatch(rf"chats (\w+\[[\d, ]+\](, )?)+; {re.escape(replayed)}", task.describe(4))
    assert re.fullmatch(r"chats (\w+\[[\d, ]+\](, )?)+", chat_task(tmp_path).describe(4))
    losses = task.validate(GPT(MODEL))
    chats = 0.25 * losses["dolly15k"] + 0.75 * losses["oasst1"]
    assert losses["val_loss"] == pytest.approx(5 / 8 * chats + 3 / 8 * losses["wiki"])


@pytest.mark.slow
def test_packed_chats_with_replay_average_and_teacher_resume_bit_for_bit(tmp_path: Path) -> None:
    task, steps, saved = replaying(tmp_path), iter(range(99)), RunFolder(tmp_path / "run")
    cfg = replace(task.cfg, average=0.8, teacher=0.5)
    set_seed(7)
    teacher = GPT(MODEL).eval()

    def trained(hooks: Hooks | None = None) -> tuple[GPT, RunState]:
        set_seed(1)
        model = GPT(MODEL)
        with saved.locked():
            how: dict[str, Any] = {"state": saved.load(), "hooks": hooks or Hooks(), "teacher": teacher}
            return model, train(model, replace(task, cfg=cfg), **how)

    model, whole = trained()
    _, stopped = trained(Hooks(should_stop=lambda: next(steps) == 7, save=saved.save))
    resumed, again = trained()
    assert 0 < stopped.step < again.step == cfg.total_steps
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), resumed.parameters(), strict=True))
    assert whole.best_model is not None
    assert again.best_model is not None
    assert all(torch.equal(again.best_model[key], value) for key, value in whole.best_model.items())
    assert again.losses == whole.losses


@pytest.mark.slow
def test_an_averaged_run_publishes_the_mean_of_its_weights_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    cfg, weights = replace(CONFIG, average=0.8, eval_every=30), []
    task, folder, steps = replace(TASK, cfg=cfg), RunFolder(tmp_path), iter(range(99))

    def trained(state: RunState | None = None, hooks: Hooks | None = None) -> tuple[GPT, RunState]:
        set_seed(1)
        model = GPT(MODEL)
        if hooks is None:
            hooks = Hooks(progress=lambda _: weights.append(model.tok_emb.weight.detach().clone()))
        return model, train(model, task, state=state, hooks=hooks)

    model, whole = trained()
    shares = [0.8 ** (29 - n) for n in range(30)]
    mean = sum(share * weight for share, weight in zip(shares, weights, strict=True)) / sum(shares)
    assert whole.best_model is not None
    torch.testing.assert_close(whole.best_model["tok_emb.weight"], mean, rtol=1e-5, atol=1e-6)
    assert torch.equal(model.tok_emb.weight, weights[-1]), "training goes on from the weights themselves"
    assert whole.losses == run()[1].losses
    with folder.locked():
        trained(hooks=Hooks(should_stop=lambda: next(steps) == 13, save=folder.save))
        again = trained(state=folder.load(), hooks=Hooks())[1]
    assert again.best_model is not None
    assert all(torch.equal(again.best_model[key], value) for key, value in whole.best_model.items())
    assert again.validations == whole.validations


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "patience", "end", "best"),
    [((1.0, 2.0), 1, 20, 10), ((3.0, 1.0, 2.0), 1, 30, 20), ((1.0, 2.0, 3.0), 2, 30, 10), ((3.0, 2.0, 1.0), 1, 30, 30)],
)
def test_a_run_ends_when_its_patience_does(script: tuple[float, ...], patience: int, end: int, best: int) -> None:
    cfg = replace(CONFIG, patience=patience)
    task = Scripted(**{**{f.name: getattr(TASK, f.name) for f in fields(TASK)}, "cfg": cfg}, script=iter(script))
    model = GPT(MODEL)
    state = train(model, task)
    assert (state.step, state.best_step) == (end, best)
    assert state.ended(cfg)
    assert train(model, task, state=state).step == end, "an ended run is not resumed"


def test_a_sample_of_chats_begins_where_the_assistant_is_to_speak(tmp_path: Path) -> None:
    assert chat_task(tmp_path).prompt() == [257, ord("q"), 259, 258]


@pytest.mark.slow
def test_a_log_that_ends_within_a_line_continues_on_a_new_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"step": 1}\n{"ste')
    log = RunLog(path, run="x", decode=ByteTokenizer().decode)
    reports: list[StepReport] = []
    run(hooks=Hooks(report=reports.append))
    log(reports[0])
    log(reports[1])
    lines = path.read_text().splitlines()
    assert lines[:2] == ['{"step": 1}', '{"ste']
    assert [json.loads(line)["step"] for line in lines[2:]] == [reports[0].step, reports[1].step]
