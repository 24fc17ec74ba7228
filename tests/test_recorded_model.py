"""Tests of validation as on a GPU: losses that are recorded once and replayed, and the code that asks for them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from niels_gpt.cache.windows import TokenStream
from niels_gpt.config import TrainConfig
from niels_gpt.eval.chats import mean_chat_loss, score_chats
from niels_gpt.eval.held_out import evaluate, inference, mean_loss, score_stream, token_losses
from niels_gpt.model.gpt import GPT
from niels_gpt.model.precision import computing_in, settle_bf16
from niels_gpt.model.targets import IGNORE_INDEX
from niels_gpt.rng import set_seed
from niels_gpt.splice import MultiSpliceDocumentDataset
from niels_gpt.splice.task import SpliceTask
from niels_gpt.train.loop import train
from niels_gpt.train.step import GraphStep, PlainStep, RecordedModel, SummedLoss
from niels_gpt.train.task import Execution
from tests.played_graphs import Graph
from tests.tiny_training import ANSWERS, CONFIG, MODEL, TASK, chats

B, T = CONFIG.B, MODEL.T


def model_and_recorded(pool: object = None) -> tuple[GPT, RecordedModel]:
    set_seed(1)
    model = GPT(MODEL)
    loss = SummedLoss(model, cfg=CONFIG, execution=Execution())
    return model, RecordedModel(loss, shape=torch.Size((B, T)), pool=pool)


def batch(seed: int, rows: int = B, width: int = T) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = torch.randint(0, MODEL.V, (2, rows, width), generator=torch.Generator().manual_seed(seed))
    y[:, seed % width] = IGNORE_INDEX
    return x, y


def check_losses(recorded: RecordedModel, model: GPT, x: torch.Tensor, y: torch.Tensor, **ids: torch.Tensor) -> None:
    with inference(recorded):
        torch.testing.assert_close(token_losses(recorded, x, y, **ids), token_losses(model, x, y, **ids))


def test_losses_are_those_of_the_model_as_it_is_now(graphs: list[Graph]) -> None:
    model, recorded = model_and_recorded(pool="of the step")
    assert model.training
    for seed in range(3):
        check_losses(recorded, model, *batch(seed))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)  # as a step does, in place
    assert model.training, "the model's mode is put back"
    assert [graph.memory for graph in graphs] == ["of the step"]


def test_fewer_rows_than_a_batch_are_filled_up_and_cut(graphs: list[Graph]) -> None:
    model, recorded = model_and_recorded()
    for rows in (3, 1, B, B - 1):
        x, y = batch(rows, rows)
        check_losses(recorded, model, x, y, segment_ids=torch.arange(T).expand(rows, T) // 5)
    assert len(graphs) == 1


def test_rows_of_another_length_and_more_of_them_go_through_the_model(graphs: list[Graph]) -> None:
    model, recorded = model_and_recorded()
    for rows, width in ((B, T - 3), (B + 1, T), (2, 5)):
        check_losses(recorded, model, *batch(0, rows, width), segment_ids=torch.arange(width).expand(rows, width) // 3)
    assert not graphs


def test_there_is_a_recording_for_each_set_of_ids(graphs: list[Graph]) -> None:
    model, recorded = model_and_recorded()
    for seed in range(3):
        dice = torch.Generator().manual_seed(seed)
        segments = torch.randint(0, 2, (B, T), generator=dice).cumsum(1)
        positions = torch.randint(0, T, (B, T), generator=dice)
        for ids in ({}, {"segment_ids": segments}, {"position_ids": positions}):
            check_losses(recorded, model, *batch(seed), **ids)
        check_losses(recorded, model, *batch(seed), segment_ids=segments, position_ids=positions)
    assert len(graphs) == 4


def test_inputs_and_returned_losses_are_not_overwritten(graphs: list[Graph]) -> None:
    _, recorded = model_and_recorded()
    (x, y), (other_x, other_y) = batch(0), batch(1)
    given = x.clone(), y.clone()
    with inference(recorded):
        first = recorded.losses(x, y)
        kept = first.clone()
        recorded.losses(other_x, other_y)
    assert torch.equal(x, given[0])
    assert torch.equal(y, given[1])
    assert torch.equal(first, kept)
    assert len(graphs) == 1


def test_a_recorded_step_validates_by_one_recorded_model_in_its_own_memory(
    graphs: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = GPT(MODEL)
    step = GraphStep(model, CONFIG, Execution(), state=None)
    monkeypatch.setattr(Graph, "replay", lambda graph: None)
    step(TASK.batch(0), lr=0.0, n=0)
    recorded = step.validated(model)
    assert step.validated(model) is recorded
    with inference(recorded):
        token_losses(recorded, *batch(0))
    training, validation = graphs
    assert validation.memory is training
    assert PlainStep(model, CONFIG, Execution(), state=None).validated(model) is model


class Known(torch.nn.Module):
    """Scorer whose losses are a tenth of the targets, and which has no logits."""

    def losses(self, x: torch.Tensor, y: torch.Tensor, **ids: torch.Tensor) -> torch.Tensor:
        return torch.where(y == IGNORE_INDEX, 0, y) / 10


def test_a_mean_is_over_the_targets_that_count() -> None:
    y = torch.tensor([[1, IGNORE_INDEX, 2], [IGNORE_INDEX, IGNORE_INDEX, 6]])
    assert mean_loss(Known(), y, y) == pytest.approx(0.3)


def test_every_validation_takes_a_scorers_own_losses(tmp_path: Path) -> None:
    stream = TokenStream([np.full(50, 7, dtype="<u2")])
    dice = torch.Generator().manual_seed(0)
    assert evaluate(Known(), {"a": stream}, eval_steps=2, B=3, T=8, device="cpu", generator=dice) == {
        "a": pytest.approx(0.7)
    }
    token_bytes = np.ones(MODEL.V, np.int64)
    assert score_stream(Known(), stream, token_bytes=token_bytes, T=8, B=3, device="cpu").nats == pytest.approx(0.7)
    data = chats(tmp_path)
    _, _, y = data.examples(np.arange(len(ANSWERS)))
    mean = float(y[y != IGNORE_INDEX].double().mean()) / 10
    assert mean_chat_loss(Known(), data, np.arange(len(ANSWERS)), B=2) == pytest.approx(mean)
    assert score_chats(Known(), data, token_bytes=token_bytes, B=2, max_tokens=None).nats == pytest.approx(mean)
    ds = MultiSpliceDocumentDataset([np.full(20, 4), np.full(30, 8)], S=8, pad_id=11, content_length=6)
    task = SpliceTask(dataset=ds, sources=("a", "b"), cfg=TrainConfig(total_steps=1, B=2), device="cpu")
    assert task.validate(Known()) == pytest.approx({"val_loss": 0.6, "a": 0.4, "b": 0.8})


def test_a_run_is_validated_with_the_model_that_its_step_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlainStep, "validated", lambda self, model: Known())
    cfg = replace(CONFIG, total_steps=2, eval_every=1)
    task = replace(TASK, cfg=cfg, val={"wiki": TokenStream([np.full(100, 9)])})
    run = train(GPT(MODEL), task)
    assert [validation["val_loss"] for validation in run.validations] == pytest.approx([0.9, 0.9])


def test_a_recording_in_bf16_casts_the_weights_as_they_are_at_each_replay(graphs: list[Graph]) -> None:
    """It is made under the loop's autocast, which caches the weights that it has cast, except in inference mode."""
    settle_bf16("cpu", say=lambda text: None)
    set_seed(1)
    model = GPT(MODEL)
    loss = SummedLoss(model, cfg=replace(CONFIG, precision="bf16"), execution=Execution())
    recorded = RecordedModel(loss, shape=torch.Size((B, T)), pool=None)
    x, y = batch(0)
    means = []
    for _ in range(3):
        with computing_in("bf16", "cpu"):
            means.append([evaluated(one, x, y) for one in (recorded, model)])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    ours, plain = np.transpose(means)
    np.testing.assert_allclose(ours, plain, rtol=0.01)
    assert np.abs(np.diff(plain)).min() > 0.02 * plain.max()
    assert len(graphs) == 1


def evaluated(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    with inference(model):
        return mean_loss(model, x, y)
