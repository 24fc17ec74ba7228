"""Tests of training with the first blocks and the embedding frozen."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from niels_gpt.config import ModelConfig
from niels_gpt.model import loss
from niels_gpt.model.gpt import GPT
from niels_gpt.model.size import flops_per_token
from niels_gpt.rng import set_seed
from niels_gpt.train.loop import train
from niels_gpt.train.step import PlainStep
from niels_gpt.train.task import Execution, least_memory
from tests.tiny_training import CONFIG, TASK, V3, trained

UNTIED = replace(V3, tied=False)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [V3, UNTIED], ids=["tied", "a head of its own"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_frozen_weights_stay_to_the_bit_and_all_others_move(shape: ModelConfig, optimizer: Any) -> None:
    set_seed(1)
    before = copy.deepcopy(GPT(shape).state_dict())
    model, state = trained(shape=shape, freeze_blocks=2, optimizer=optimizer)
    fixed = ("tok_emb.", "blocks.0.", "blocks.1.", *(("lm_head.",) if shape.tied else ()))
    assert set(state.model) == set(before), "a checkpoint has every weight"
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) == name.startswith(fixed), name


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_no_gradient_and_no_optimizer_state_belongs_to_a_frozen_weight(optimizer: Any) -> None:
    model = GPT(V3)
    step = PlainStep(model, replace(CONFIG, freeze_blocks=2, optimizer=optimizer), Execution(), state=None)
    step(TASK.batch(0), lr=1e-3, n=0)
    moving = [name for name, parameter in model.named_parameters() if parameter.grad is not None]
    assert moving == [name for name, _ in model.named_parameters() if name.startswith(("blocks.2.", "ln_f."))]
    assert sum(len(states) for states in step.optimizer_state().values()) == len(moving)


def test_trained_weights_have_the_same_gradients_as_without_freezing() -> None:
    grads = []
    for freeze in (0, 2):
        set_seed(1)
        model = GPT(replace(V3, zero_init=False))
        model.freeze(freeze)
        x, y = TASK.batch(0).x, TASK.batch(0).y
        model.summed_loss(model.hidden(model.embed(x)), y).backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    for name in (name for name in grads[0] if name.startswith(("blocks.2.", "ln_f."))):
        assert torch.equal(grads[0][name], grads[1][name]), name
    assert grads[1]["tok_emb.weight"] is None


@pytest.mark.slow
def test_after_training_with_frozen_blocks_all_weights_can_be_trained() -> None:
    cfg = replace(CONFIG, total_steps=4, eval_every=4)
    model = GPT(V3)
    train(model, replace(TASK, cfg=replace(cfg, freeze_blocks=2)))
    before = copy.deepcopy(model.state_dict())
    train(model, replace(TASK, cfg=cfg))
    moved = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
    assert {name.split(".")[0] for name in moved} == {"tok_emb", "lm_head", "blocks", "ln_f"}


@pytest.mark.parametrize(("shape", "products"), [(V3, [1, 0]), (UNTIED, [1, 1])], ids=["tied", "a head of its own"])
def test_no_gradient_of_a_frozen_head_is_multiplied(
    shape: ModelConfig, products: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, real = [], loss._product_in_float32
    monkeypatch.setattr(loss, "_product_in_float32", lambda *args: calls.append(1) or real(*args))  # type: ignore[func-returns-value]
    counts = []
    for freeze in (0, 2):
        step = PlainStep(GPT(shape), replace(CONFIG, freeze_blocks=freeze), Execution(), state=None)
        calls.clear()
        step(TASK.batch(0), lr=0.0, n=0)
        counts.append(len(calls))
    assert counts == products


@pytest.mark.parametrize("n", [V3.L, V3.L + 1])
def test_freezing_every_block_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match=f"^freeze_blocks={n} leaves no block to train: the model has 3, so lower it$"):
        train(GPT(V3), replace(TASK, cfg=replace(CONFIG, freeze_blocks=n)))


def test_frozen_blocks_cost_a_third_and_less_memory() -> None:
    model = GPT(V3)
    whole = flops_per_token(model, T=32)
    model.freeze(2)
    head = model.lm_head.weight.numel()
    block = (whole - 6 * head) // V3.L
    assert flops_per_token(model, T=32) == block + 2 * (block // 3) + 4 * head
    memory = [least_memory(V3, B=4, execution=Execution(), frozen=n) for n in (0, 2)]
    assert memory[0]["activations"] == 3 * memory[1]["activations"]
    assert memory[1]["weights and optimizer"] < memory[0]["weights and optimizer"] <= 12 * model.parameter_count()
