"""Tests of training steps in all forms of execution: micro-batches, bf16, Muon, CUDA graphs, several processes."""

import copy
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from niels_gpt.cache.windows import TokenFile, TokenStream
from niels_gpt.config import ModelConfig
from niels_gpt.device import keep_freed_memory
from niels_gpt.files.ranks import Ranks
from niels_gpt.lr_schedule import scheduled_lr
from niels_gpt.model import loss, precision
from niels_gpt.model.blocks import CausalSelfAttention
from niels_gpt.model.gpt import GPT
from niels_gpt.model.loss import FusedLoss, SoftTargets, token_losses
from niels_gpt.model.size import flops_per_token
from niels_gpt.model.targets import IGNORE_INDEX
from niels_gpt.rng import set_seed
from niels_gpt.train import loop, meter
from niels_gpt.train import step as step_choice
from niels_gpt.train.loop import Hooks, batches, train
from niels_gpt.train.meter import StepReport, matmul_flops
from niels_gpt.train.optimizer import (
    Muon,
    _evened_out,
    build_optimizers,
    load_optimizer_state,
    optimizer_state,
    orthogonal,
    set_rates,
)
from niels_gpt.train.pretraining import PretrainTask
from niels_gpt.train.state import RunFolder, RunState
from niels_gpt.train.step import GraphStep, PlainStep, build_step
from niels_gpt.train.task import ALL, Batch, Execution, wants_compiler
from tests.conftest import Repo
from tests.tiny_training import (
    CONFIG,
    DRY,
    FROZEN,
    MODEL,
    RECIPE,
    SHORT_BF16,
    STREAMS,
    TASK,
    TINY_V2,
    V2,
    V2_RECIPE,
    V3,
    resident,
    trained,
)


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "documents"), [(1, False), (32, False), (32, True), (100, False), (10**9, False)])
def test_micro_batches_train_the_same(tokens: int, documents: bool) -> None:
    _, whole = trained(documents=documents)
    _, parts = trained(Execution(micro_batch_tokens=tokens), documents=documents)
    np.testing.assert_allclose(parts.losses, whole.losses, rtol=1e-5)


def test_parts_weigh_by_their_targets_not_by_their_number() -> None:
    """The mean is over tokens, not over parts: one row has no target, the other 32."""
    x = torch.randint(0, DRY.V, (2, DRY.T), generator=torch.Generator().manual_seed(0))
    y = x.clone()
    y[0] = IGNORE_INDEX
    positions = torch.arange(DRY.T).expand(2, -1).flip(-1)
    batch = Batch.of(x, y, {"a": 2}, position_ids=positions)
    assert int(batch.targets) == DRY.T
    values = []
    for tokens in (None, DRY.T):
        set_seed(1)
        model = GPT(DRY)
        expected = float(loss.loss_fn(model(x, position_ids=positions), y).detach())
        step = PlainStep(model, replace(CONFIG, B=2), Execution(micro_batch_tokens=tokens), state=None)
        values.append(float(step(batch, lr=0.0, n=0)))
    assert values == pytest.approx([expected] * 2, rel=1e-5)


@pytest.mark.slow
def test_bf16_follows_float32_and_keeps_float32_weights() -> None:
    _, exact = trained()
    model, rounded = trained(precision="bf16")
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert all(v.dtype == torch.float32 for s in rounded.optimizer["0"].values() for v in s.values())
    np.testing.assert_allclose(rounded.losses, exact.losses, rtol=0.02)
    assert rounded.losses != exact.losses


@pytest.mark.slow
def test_a_cpu_without_bf16_units_is_one_sentence_and_computes_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(precision, "_multiplies_bf16", lambda: False)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (model, state), (again, _) = (trained(Execution(say=said.append), precision="bf16") for _ in range(2))
        assert not torch.backends.mkldnn.enabled, "torch would try it again, product by product"
        rates: list[bool] = []
        monkeypatch.setattr(loop, "matmul_flops", lambda *_: float(rates.append(torch.backends.mkldnn.enabled) or 1))
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
        cfg, told = replace(CONFIG, total_steps=1, precision="bf16"), Execution(say=lambda text: None)
        task, folder = replace(TASK, cfg=cfg), tmp_path / "c/x"
        loop.run_training(GPT(DRY), task, execution=told, hooks=Hooks(), folder=folder, title="x")
        assert rates == [False], "the machine's rate was measured before it was known how it multiplies"
    assert len(said) == 1
    assert "no units for bf16" in said[0]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    np.testing.assert_allclose(state.losses, trained()[1].losses, rtol=0.02)


def test_a_chip_is_one_for_bf16_when_torch_says_so_and_multiplies_without_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, real_bmm = torch.ops.mkldnn, torch.bmm
    for claims, warns, expected in ((True, False, True), (False, False, False), (True, True, False)):
        ops = SimpleNamespace(_is_mkldnn_bf16_supported=lambda claims=claims: claims)
        monkeypatch.setattr(torch.ops, "mkldnn", ops)

        def bmm(a: torch.Tensor, b: torch.Tensor, warns: bool = warns) -> torch.Tensor:
            if warns:
                warnings.warn("mkldnn_matmul failed, switching to baddbmm", stacklevel=2)
            return real_bmm(a.float(), b.float())

        monkeypatch.setattr(torch, "bmm", bmm)
        monkeypatch.setattr(F, "linear", lambda x, weight: x.float() @ weight.float())
        assert precision._multiplies_bf16() == expected, (claims, warns)
    monkeypatch.setattr(torch.ops, "mkldnn", real)


def test_float32_and_other_devices_are_not_asked_about_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(precision, "_multiplies_bf16", lambda: bool(asked.append(1)))
    said: list[str] = []
    trained(Execution(say=said.append), total_steps=1)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    precision.settle_bf16("cuda", say=said.append)
    assert (asked, said) == ([], [])


class Products(TorchDispatchMode):
    """Mode that records the dtypes of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm"):
            self.dtypes.add(args[0].dtype)
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_float32_run_on_a_cpu_multiplies_nothing_but_float32(optimizer: str) -> None:
    """On a CPU that does not support another dtype, the first product in it may change how all later ones round."""
    with Products() as products:
        trained(optimizer=optimizer, total_steps=2)
    assert products.dtypes == {torch.float32}


@pytest.mark.slow
def test_a_bf16_step_multiplies_nothing_but_bf16() -> None:
    step = PlainStep(GPT(DRY), replace(CONFIG, precision="bf16"), Execution(), state=None)
    with Products() as products:
        step(TASK.batch(0), lr=0.0, n=0)
    assert products.dtypes == {torch.bfloat16}


@pytest.mark.parametrize("shape", [(12, 40), (40, 12), (16, 16)])
def test_an_orthogonal_update_keeps_the_directions_and_evens_out_their_lengths(shape: tuple[int, int]) -> None:
    for seed in range(5):
        matrix = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
        u, s, vt = torch.linalg.svd(matrix.double(), full_matrices=False)
        inside = u.T @ orthogonal(matrix[None])[0].double() @ vt.T
        lengths = inside.diagonal()
        assert (inside - lengths.diag()).abs().max() < 1e-3
        assert (lengths[s > 0.05 * s.max()] - 1).abs().max() < 0.5
    assert torch.equal(orthogonal(torch.zeros(1, 3, 4)), torch.zeros(1, 3, 4))


@pytest.mark.parametrize("rank", [32, 5])
def test_an_orthogonal_update_by_the_gram_matrix_is_the_plain_one(rank: int) -> None:
    """They agree in float32, also for matrices most of whose singular values are tiny or zero."""
    generator = torch.Generator().manual_seed(0)
    u, _, vt = torch.linalg.svd(torch.randn(2, 32, 96, generator=generator).double(), full_matrices=False)
    lengths = torch.logspace(0, -6, 32, dtype=torch.float64) * (torch.arange(32) < rank)
    matrices = u * lengths @ vt
    plain = _evened_out(matrices / matrices.norm(dim=(1, 2), keepdim=True))
    torch.testing.assert_close(orthogonal(matrices).double(), plain, rtol=0, atol=1e-3)


def test_matrices_in_a_batch_are_orthogonalized_independently() -> None:
    """The norms of the other matrices do not matter."""
    for shape in ((6, 20), (20, 6)):
        matrices = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
        matrices *= torch.tensor([1, 1e3, 1e-3]).view(3, 1, 1)
        alone = torch.cat([orthogonal(matrix[None]) for matrix in matrices])
        torch.testing.assert_close(orthogonal(matrices), alone, rtol=0, atol=1e-3)


def test_muon_moves_the_matrices_of_the_blocks_and_adamw_the_rest() -> None:
    model = GPT(DRY)
    adamw, muon = build_optimizers(model, replace(CONFIG, optimizer="muon"))
    names = {id(p): name for name, p in model.named_parameters()}
    by_muon = {names[id(p)] for group in muon.param_groups for p in group["params"]}
    by_adamw = {names[id(p)] for group in adamw.param_groups for p in group["params"]}
    weights = ("attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight")
    assert by_muon == {f"blocks.{i}.{name}" for i in range(DRY.L) for name in weights}
    assert by_adamw | by_muon == set(names.values())
    assert not by_adamw & by_muon


def test_muon_takes_a_step_of_the_size_of_adamws_against_its_momentum() -> None:
    p = torch.nn.Parameter(torch.zeros(8, 32))
    muon = Muon([{"params": [p], "lr": 0.1, "weight_decay": 0.0, "momentum": 0.8}], {})
    mean = torch.zeros(8, 32)
    for seed in range(3):
        before = p.detach().clone()
        p.grad = torch.randn(8, 32, generator=torch.Generator().manual_seed(seed))
        mean = 0.8 * mean + 0.2 * p.grad
        muon.step()
        expected = -0.1 * 0.2 * 32**0.5 * orthogonal((0.2 * p.grad + 0.8 * mean)[None])[0]
        torch.testing.assert_close(p.detach() - before, expected, rtol=1e-4, atol=1e-5)


def muon_run(
    *, tensors: bool = False, together: bool = True, state: dict[str, Any] | None = None, steps: range
) -> tuple[list[Any], dict[str, Any]]:
    """Return matrices of several shapes after steps with varying gradients, rates and momentum, and Muon's state."""
    shapes = [(8, 32), (32, 8), (8, 32), (16, 16), (32, 8), (8, 32)]
    params = [torch.nn.Parameter(torch.full(shape, 0.5)) for shape in shapes]
    lr, momentum = (torch.tensor(0.0), torch.tensor(0.0)) if tensors else (0.0, 0.0)
    groups = [params] if together else [[parameter] for parameter in params]
    muon = Muon([{"params": group, "lr": lr, "weight_decay": 0.5, "momentum": momentum} for group in groups], {})
    if state is not None:
        load_optimizer_state([muon], state)
    for n in steps:
        generator = torch.Generator().manual_seed(n)
        for parameter in params:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        set_rates([muon], lr=0.01 * (n + 1), momentum=0.85 + 0.02 * n)
        muon.step()
    return params, optimizer_state([muon])


def test_matrices_of_one_shape_move_by_their_own_gradients() -> None:
    for a, b in zip(muon_run(steps=range(3))[0], muon_run(steps=range(3), together=False)[0], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-3)


def test_muon_computes_the_same_with_rate_and_momentum_in_tensors_as_for_a_graph() -> None:
    floats, _ = muon_run(steps=range(5))
    tensors, state = muon_run(tensors=True, steps=range(5))
    for a, b in zip(floats, tensors, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    floats, _ = muon_run(state=state, steps=range(5, 8))
    tensors, _ = muon_run(tensors=True, state=state, steps=range(5, 8))
    for a, b in zip(floats, tensors, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(floats[0], muon_run(steps=range(5, 8))[0][0])


def test_muons_state_is_one_matrix_a_parameter() -> None:
    """Saved states from when matrices were processed one by one have this form, too, and can be loaded."""
    params, state = muon_run(steps=range(2))
    assert list(state["0"]) == list(range(len(params)))
    for parameter, moments in zip(params, state["0"].values(), strict=True):
        assert {name: value.shape for name, value in moments.items()} == {"momentum_buffer": parameter.shape}


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Fake torch's CUDA graphs, to run GraphStep's own code on a CPU; return a list, to which a test appends its step.

    As on a GPU, recording changes nothing, and a replay runs the update again.
    """
    steps: list[Any] = []

    def replay() -> None:
        steps[-1]._loss_value = steps[-1]._update(steps[-1]._batch)

    @contextmanager
    def record(graph: object, pool: object = None) -> Iterator[None]:
        states = steps[-1].optimizer_state().values()
        moments = [value for state in states for values in state.values() for value in values.values()]
        tensors = [*steps[-1]._model.state_dict().values(), *moments]
        before = [tensor.clone() for tensor in tensors]
        yield
        for tensor, kept in zip(tensors, before, strict=True):
            tensor.copy_(kept)

    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=replay, pool=lambda: None))
    monkeypatch.setattr(torch.cuda, "graph", record)
    return steps


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "frozen"), [(DRY, 0), (V3, 0), (V3, 2)], ids=["default", "v3", "v3 frozen"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_recorded_step_trains_as_a_plain_one_and_goes_on(
    recording: list[Any], optimizer: Any, shape: ModelConfig, frozen: int
) -> None:
    """Its warm-up leaves no trace, and it uses the learning rates and the momentum of every step."""
    cfg = replace(CONFIG, **RECIPE, optimizer=optimizer, freeze_blocks=frozen)
    losses = []
    for kind in (PlainStep, GraphStep):
        set_seed(1)
        model, state = GPT(shape), None
        for first in (0, 4):  # the second half by a new step, with the state of the first
            step = kind(model, cfg, Execution(), state=state)
            recording.append(step)
            losses += [float(step(TASK.batch(n), lr=scheduled_lr(cfg, n + 3), n=n)) for n in range(first, first + 4)]
            state = copy.deepcopy(step.optimizer_state())
    np.testing.assert_allclose(losses[8:], losses[:8], rtol=1e-4)


def test_a_step_takes_the_momentum_of_its_number() -> None:
    """After the first gradient, the mean is that gradient times 1 - momentum: 0.15, 0.1, 0.05."""
    means = []
    for n in (0, 10, 20):
        set_seed(1)
        step = PlainStep(GPT(DRY), replace(CONFIG, **RECIPE, optimizer="muon"), Execution(), state=None)
        step(TASK.batch(0), lr=0.0, n=n)
        means.append(step.optimizer_state()["1"][0]["momentum_buffer"])
    torch.testing.assert_close(means[0], 3 * means[2])
    torch.testing.assert_close(means[1], 2 * means[2])


def test_a_single_gpu_records_its_steps_with_either_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GraphStep", "PlainStep"):
        monkeypatch.setattr(step_choice, name, lambda *_, name=name, **__: name)
    for optimizer in ("adamw", "muon"):
        cfg = replace(CONFIG, optimizer=optimizer, B=7)
        for execution, kind in ((Execution(device="cuda"), "GraphStep"), (Execution(), "PlainStep")):
            assert build_step(GPT(DRY), cfg, execution, state=None) == kind  # type: ignore[comparison-overlap]
        assert build_step(GPT(DRY), cfg, Execution(device="cuda", ranks=Ranks(0, 2)), state=None) == "PlainStep"  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_decay_shrinks_matrices_and_leaves_biases_and_norms(optimizer: str) -> None:
    model = GPT(DRY)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
            parameter.grad = torch.zeros_like(parameter)
    optimizers = build_optimizers(model, replace(CONFIG, optimizer=optimizer, weight_decay=0.5))
    set_rates(optimizers, lr=0.1, momentum=0.95)
    for each in optimizers:
        each.step()
    for name, parameter in model.named_parameters():
        expected = 0.95 if parameter.dim() == 2 else 1.0
        assert torch.equal(parameter.detach(), torch.full_like(parameter, expected)), name


def test_gradients_are_clipped_to_the_norm_that_was_asked_for() -> None:
    norms = []
    for grad_clip in (1e9, 1e-3):
        set_seed(1)
        model = GPT(DRY)
        step = PlainStep(model, replace(CONFIG, grad_clip=grad_clip), Execution(), state=None)
        step(TASK.batch(0), lr=0.0, n=0)
        norms.append(float(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()))
    assert norms[0] > 0.1
    assert norms[1] == pytest.approx(1e-3, rel=1e-3)


def test_a_step_takes_the_learning_rate_it_is_given() -> None:
    """AdamW's first step moves every weight that has a gradient by the learning rate."""
    for lr in (0.0, 1e-3, 2e-3):
        set_seed(1)
        model = GPT(DRY)
        before = model.ln_f.bias.detach().clone()
        PlainStep(model, replace(CONFIG, weight_decay=0.0), Execution(), state=None)(TASK.batch(0), lr=lr, n=0)
        moved = (model.ln_f.bias.detach() - before).abs()
        assert moved.max().item() == pytest.approx(lr, rel=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        (DRY, {"optimizer": "muon"}),
        (DRY, RECIPE),
        (DRY, {"optimizer": "muon", **RECIPE}),
        (V2, V2_RECIPE),
        (TINY_V2, {**V2_RECIPE, **SHORT_BF16}),
        (V3, V2_RECIPE),
        (V3, {**V2_RECIPE, **FROZEN}),
    ],
    ids=["muon", "rates", "muon with rates", "v2", "v2 in bf16", "v3", "v3 frozen"],
)
def test_every_recipe_resumes_to_the_bit(shape: ModelConfig, changes: dict[str, Any], tmp_path: Path) -> None:
    """The run is stopped while the momentum still rises and the learning rate is on its plateau."""
    cfg, folder, steps = replace(CONFIG, **changes), RunFolder(tmp_path / "run"), iter(range(99))
    whole_model, _ = trained(shape=shape, **vars(cfg))
    task, stop_at = replace(TASK, cfg=cfg), cfg.total_steps * 11 // 30
    with folder.locked():
        set_seed(1)
        train(GPT(shape), task, hooks=Hooks(should_stop=lambda: next(steps) == stop_at, save=folder.save))
        model = GPT(shape)
        train(model, task, state=folder.load())
    assert all(torch.equal(a, b) for a, b in zip(whole_model.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize(("pieces", "cap"), [(1, None), (5, None), (5, 2.0)])
def test_head_and_loss_in_one_equal_logits_and_cross_entropy(
    pieces: int, cap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    h, weight = torch.randn(4, 9, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
    y = torch.randint(0, 50, (4, 9))
    y[0, :5] = IGNORE_INDEX
    monkeypatch.setattr(loss, "_PIECE_BYTES", {"cpu": 36 * 50 * 4 // pieces})
    ours = FusedLoss.apply(h.flatten(0, 1), weight, y.flatten(), (cap, None)) * 0.3
    logits = h @ weight.T if cap is None else cap * torch.tanh(h @ weight.T / cap)
    losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
    torch.testing.assert_close(token_losses(h, weight, y, cap=cap), losses.detach().view_as(y))
    plain = losses.sum() * 0.3
    torch.testing.assert_close(ours, plain)
    for a, b in zip(torch.autograd.grad(ours, (h, weight)), torch.autograd.grad(plain, (h, weight)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("pieces", "cap"), [(1, None), (5, 2.0)])
def test_soft_targets_are_the_mix_of_the_labels_and_the_teacher(
    pieces: int, cap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    h, weight = torch.randn(4, 9, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
    soft = SoftTargets(torch.randn(4, 9, 6), torch.randn(50, 6), cap=3.0, alpha=0.4)
    y = torch.randint(0, 50, (4, 9))
    y[0, :5] = IGNORE_INDEX
    monkeypatch.setattr(loss, "_PIECE_BYTES", {"cpu": 36 * 50 * 4 // pieces})
    logits = h @ weight.T if cap is None else cap * torch.tanh(h @ weight.T / cap)
    taught = (3.0 * torch.tanh(soft.h @ soft.weight.T / 3.0)).softmax(-1)
    mixed = 0.6 * F.one_hot(y.clamp(min=0), 50) + 0.4 * taught
    plain = -(mixed * logits.log_softmax(-1)).sum(-1)[y != IGNORE_INDEX].sum()
    ours = FusedLoss.apply(h.flatten(0, 1), weight, y.flatten(), (cap, soft))
    torch.testing.assert_close(ours, plain)
    for a, b in zip(torch.autograd.grad(ours, (h, weight)), torch.autograd.grad(plain, (h, weight)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
def test_a_student_follows_its_teacher_and_resumes_to_the_bit(tmp_path: Path) -> None:
    set_seed(5)
    shape = MODEL
    teacher = GPT(shape).eval()
    cfg, folder, steps = replace(CONFIG, total_steps=20, teacher=0.99), RunFolder(tmp_path / "run"), iter(range(99))
    before = copy.deepcopy(teacher.state_dict())

    def student(model: GPT, **how: Any) -> GPT:
        train(model, replace(TASK, cfg=cfg), teacher=teacher, **how)
        return model

    def fresh() -> GPT:
        set_seed(1)
        return GPT(shape)

    x = TASK.batch(0).x

    def distance(model: GPT) -> float:
        with torch.no_grad():
            return float(F.kl_div(model.eval()(x).log_softmax(-1), teacher(x).softmax(-1), reduction="batchmean"))

    whole = student(fresh())
    assert distance(whole) < distance(fresh())
    assert distance(whole) < distance(trained(shape=shape, **vars(cfg))[0])
    assert all(torch.equal(before[name], value) for name, value in teacher.state_dict().items())
    with folder.locked():
        student(fresh(), hooks=Hooks(should_stop=lambda: next(steps) == 7, save=folder.save))
        resumed = student(fresh(), state=folder.load())
    parts = student(fresh(), execution=Execution(micro_batch_tokens=2 * shape.T))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


def test_written_out_attention_equals_the_fused_kernel_in_bf16() -> None:
    torch.manual_seed(0)
    attention = CausalSelfAttention(replace(DRY, T=600)).eval()
    x = torch.randn(2, 600, DRY.C)
    with torch.autocast("cpu", torch.bfloat16):
        beyond, within = attention(x), attention(x[:, :500])
    torch.testing.assert_close(beyond[:, :500], within, atol=2e-2, rtol=2e-2)


def test_without_a_compiler_there_is_one_line_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    assert not wants_compiler(Execution(compile="auto", say=said.append))
    assert not said
    monkeypatch.setenv("PATH", "")
    assert not wants_compiler(Execution(compile=True, say=said.append))
    assert len(said) == 1
    assert "a C compiler is not installed" in said[0]


def test_a_full_memory_says_which_knob_to_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")

    monkeypatch.setattr(PlainStep, "__call__", full)
    with pytest.raises(ValueError, match=r"256 tokens at once: set runtime.micro_batch_tokens to 128"):
        trained()


def test_a_bad_loss_names_step_rows_and_lr() -> None:
    set_seed(1)
    model = GPT(DRY)
    with torch.no_grad():
        model.tok_emb.weight.fill_(float("inf"))
    with pytest.raises(ValueError, match=r"step 0 with lr 0: .* rows of that batch were windows \w+\[\d+\]"):
        train(model, TASK)


@pytest.mark.slow
def test_reports_tell_speed_use_and_time_left() -> None:
    reports: list[StepReport] = []
    set_seed(1)
    hooks = Hooks(report=reports.append, matmul_flops=lambda: 1e12, log_every=15)
    model = GPT(DRY)
    flops = flops_per_token(model, T=DRY.T)
    state = train(model, TASK, hooks=hooks)
    assert all(r.tokens_per_second > 0 for r in reports)
    assert [r.utilisation for r in reports] == [r.tokens_per_second * flops / 1e12 for r in reports]
    assert [r.seconds_left > 0 for r in reports] == [True, True, True, False]
    assert [bool(r.sample) for r in reports] == [True, False, True, True]
    assert [s["step"] for s in state.samples] == [10, 20, 30]
    assert state.samples[0]["ids"][: state.samples[0]["prompt"]] == list(b"the ")
    assert matmul_flops("cpu", "float32") > 0


def test_validations_count_for_the_time_left_but_not_for_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake clock shows 10 steps in 5 s, a validation of 3 s, then 10 steps in 2 s."""
    clock = iter((100.0, 105.0, 108.0, 108.0, 110.0))
    monkeypatch.setattr(meter.time, "perf_counter", lambda: next(clock))
    watch = meter.Meter(replace(CONFIG, total_steps=60), GPT(DRY), T=32, first_step=20, matmul_flops=None)
    run = RunState(
        step=30,
        model={},
        optimizer={},
        losses=[1.0],
        validations=[{"step": 30, "val_loss": 2.0, "wiki": 1.5, "roam": 3.0}],
        samples=[{"step": 30, "ids": [5]}],
    )
    with watch.paused():
        pass
    first = watch.report(run, lr=0.1, validated=True)
    run.step = 40
    second = watch.report(run, lr=0.1, validated=False)
    assert first.tokens_per_second == pytest.approx(10 * CONFIG.B * 32 / 5)
    assert second.tokens_per_second == pytest.approx(10 * CONFIG.B * 32 / 2)
    assert first.seconds_left == pytest.approx(30 * 8 / 10)
    assert second.seconds_left == pytest.approx(20 * 10 / 20)
    assert (first.val_loss, second.val_loss) == (2.0, None)
    assert (first.validation, second.validation) == ({"wiki": 1.5, "roam": 3.0}, None)
    assert (first.first_step, first.total_steps, first.tokens) == (20, 60, 30 * CONFIG.B * 32)
    assert first.asked == CONFIG.p_train
    assert (first.sample, second.sample) == ((5,), ())
    assert first.utilisation is None


@dataclass(frozen=True)
class FailingTask(PretrainTask):
    """Task that raises an OSError for batch number `fails`."""

    fails: int = -1
    failed: threading.Event = field(default_factory=threading.Event)

    def batch(self, n: int, rows: slice = ALL) -> Batch:
        if n == self.fails:
            self.failed.set()
            raise OSError(f"no batch {n}")
        return super().batch(n, rows)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_batches_come_in_order_and_an_error_on_the_way_comes_through(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Batch, "pinned", lambda self: self)  # pinning needs a GPU
    task = FailingTask(train=STREAMS, val=STREAMS, cfg=CONFIG, T=MODEL.T, device="cpu", fails=24)
    feed = batches(task, range(3, 100), device=device)
    for n in range(3, 24):
        assert torch.equal(next(feed).x, TASK.batch(n).x)
    with pytest.raises(OSError, match="no batch 24"):
        next(feed)
    assert [len(b.x) for b in batches(task, range(5, 7), device=device)] == [CONFIG.B] * 2


@pytest.mark.parametrize("fails", [-1, 8])
def test_a_feed_that_nobody_reads_any_more_ends_its_thread(fails: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing must not block, whether the feed is full of batches or holds an error that nobody will read."""
    monkeypatch.setattr(Batch, "pinned", lambda self: self)
    task = FailingTask(train=STREAMS, val=STREAMS, cfg=CONFIG, T=MODEL.T, device="cpu", fails=fails)
    feed = batches(task, range(100), device="cuda")
    next(feed)
    assert fails < 0 or task.failed.wait(timeout=60)
    closing = threading.Thread(target=feed.close, daemon=True)
    closing.start()
    closing.join(timeout=60)
    assert not closing.is_alive()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


@pytest.mark.dag
def test_a_stage_of_several_processes_that_is_killed_saves_and_leaves_none(built_repo: Repo) -> None:
    built_repo.set(runtime__nproc=2, runtime__log_every=1, train__total_steps=10**6)
    stage = built_repo.start("python", "-m", "stages.train")
    assert stage.stdout is not None
    said = ""
    while not re.search(r"^step ", said, flags=re.MULTILINE):
        line = stage.stdout.readline()
        assert line, said
        said += line
    stage.terminate()  # only that process, like a plain `kill`
    said += stage.communicate(timeout=600)[0]
    assert stage.returncode == 130, said
    assert re.search(r"stopped and saved after step \d+ of 1000000", said), said
    folders = (built_repo.path / "checkpoints").iterdir()
    (folder,) = (RunFolder(path) for path in folders if not (path / "finished").exists())
    with folder.locked():  # no process holds the lock
        state = folder.load()
    assert state is not None
    assert state.step > 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc, which is not here")
def test_memory_does_not_grow_with_steps_or_with_the_corpus(tmp_path: Path) -> None:
    """A copy of the token files in memory would show at once, and so would mapped pages that are not released."""
    paths = [tmp_path / "shard_0.bin", tmp_path / "shard_1.bin"]
    for path in paths:
        np.zeros(64 << 20, dtype="<u2").tofile(path)
    stream = TokenStream([TokenFile.whole(path) for path in paths])
    cfg = replace(CONFIG, total_steps=1000, p_train={"wiki": 1.0}, eval_every=1000, eval_steps=1)
    tiny = ModelConfig(V=260, T=16, C=16, L=1, H=2, d_ff=32, dropout=0.0)
    task = PretrainTask(train={"wiki": stream}, val={"wiki": STREAMS["wiki"]}, cfg=cfg, T=16, device="cpu")
    keep_freed_memory()
    mib: dict[int, dict[str, float]] = {}

    def note(report: StepReport) -> None:
        mib[report.step] = resident()

    train(GPT(tiny), task, hooks=Hooks(report=note, log_every=125))
    assert mib[875]["allocated"] - mib[125]["allocated"] < 4, mib
    assert mib[875]["mapped"] - mib[125]["mapped"] < 4, mib  # the windows read in between touch 45 MiB of pages
