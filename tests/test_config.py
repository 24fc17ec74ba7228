"""Tests of the configuration classes: defaults, checks of values, and messages."""

import dataclasses
import random
from typing import Annotated, Any

import pytest
import torch
from annotated_types import Ge, MultipleOf

from niels_gpt.config import Groups, ModelConfig, TrainConfig, check_value, default_p_train, to_dict
from niels_gpt.data.corpus.mix import mix_probabilities
from niels_gpt.model.gpt import GPT
from niels_gpt.rng import derive_seed, make_generator, permutation, uniform_numbers

EVEN = {"matrices": 1.0, "embedding": 1.0, "head": 1.0, "vectors": 1.0}


def test_the_seeds_v0_defaults() -> None:
    assert to_dict(ModelConfig()) == {
        "V": 256,
        "T": 256,
        "C": 256,
        "L": 4,
        "H": 4,
        "D": 64,
        "d_ff": 1024,
        "dropout": 0.1,
        "rope_theta": 10000.0,
    }
    train = TrainConfig(total_steps=1)
    assert (train.base_lr, train.warmup_steps, train.min_lr, train.seed, train.B) == (3e-4, 200, 3e-5, 42, 32)
    assert train.p_train == default_p_train() == {"wiki": 0.784, "roam": 0.196, "primer": 0.020}
    assert train.p_val == {"wiki": 1.0}
    assert (train.schedule, train.flat, train.momentum_warmup) == ("cosine", 0.0, 0)
    assert (train.lr_scale, train.decay_scale) == (Groups(**EVEN), Groups(**{**EVEN, "vectors": 0.0}))


def test_configs_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ModelConfig().C = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"C": 10, "H": 4}, "not a multiple"),
        ({"C": 12, "H": 4}, "must be even"),
        ({"H": 4, "head_dim": 7}, "head_dim=7 is odd"),
        ({"H": 4, "kv_heads": 3}, "H=4 is not a multiple of kv_heads=3"),
        ({"qk_gain": True}, "set qk_norm to true"),
        ({"norm_eps": 0.0}, "norm_eps must be greater than 0"),
        ({"T": 0}, r"T must be greater than or equal to 1 \(got 0\)"),
        ({"dropout": 1.0}, "dropout"),
        ({"rope_theta": 0.0}, "rope_theta"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"dropout": "none"}, "dropout must be a valid number"),
        ({"V": "260"}, r"V must be a valid integer \(got '260'\)"),
        ({"L": 1.5}, "L must be a valid integer"),
        ({"d_ff": None}, "d_ff must be a valid integer"),
        *(({name: 10**9}, f"{name} must be less than or equal to") for name in ("V", "T", "C", "L", "d_ff")),
        ({"L": 100_000}, r"L must be less than or equal to 1024 \(got 100000\)"),
    ],
)
def test_impossible_shapes_are_refused(bad: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ModelConfig(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"total_steps": 0}, r"total_steps must be greater than or equal to 1 \(got 0\)"),
        ({"B": 2**63}, "B must be less than or equal to 1048576"),
        ({"B": 10**9}, r"B must be less than or equal to 1048576 \(got 1000000000\)"),
        ({"eval_steps": 10**9}, "eval_steps must be less than or equal to 1000000"),
        ({"total_steps": 10**9}, "total_steps must be less than or equal to 100000000"),
        ({"base_lr": 0.0}, r"base_lr must be greater than 0 \(got 0.0\)"),
        ({"base_lr": True}, r"base_lr must be a valid number \(got True\)"),
        ({"min_lr": float("inf")}, "min_lr must be a finite number"),
        ({"beta2": 1}, r"beta2 must be less than 1 \(got 1\)"),
        ({"precision": "fp8"}, r"precision must be 'float32' or 'bf16' \(got 'fp8'\)"),
        ({"document_mask": 1}, r"document_mask must be a valid boolean \(got 1\)"),
        ({"schedule": "step"}, r"schedule must be 'cosine' or 'linear' \(got 'step'\)"),
        ({"flat": 1.0}, r"flat must be less than 1 \(got 1.0\)"),
        ({"momentum_warmup": -1}, r"momentum_warmup must be greater than or equal to 0 \(got -1\)"),
        ({"lr_scale": 2.0}, r"lr_scale must be a dictionary or an instance of Groups \(got 2.0\)"),
        (
            {"lr_scale": {"matrices": 1.0}},
            "^lr_scale.embedding is missing; lr_scale.head is missing; lr_scale.vectors is missing$",
        ),
        ({"decay_scale": {**EVEN, "heads": 1.0}}, "decay_scale.heads is not a setting"),
        ({"decay_scale": {**EVEN, "head": "1"}}, r"decay_scale.head must be a valid number \(got '1'\)"),
        ({"decay_scale": {**EVEN, "head": -1.0}}, r"decay_scale.head must be greater than or equal to 0 \(got -1.0\)"),
    ],
)
def test_an_impossible_schedule_is_refused(bad: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TrainConfig(**{"total_steps": 1, **bad})


def test_multiples_by_group_are_read_from_a_dict_and_written_as_one() -> None:
    scale = {"matrices": 1, "embedding": 0.5, "head": 0.25, "vectors": 2.0}
    cfg = TrainConfig(total_steps=1, lr_scale=scale)  # type: ignore[arg-type]
    assert cfg.lr_scale == Groups(matrices=1, embedding=0.5, head=0.25, vectors=2.0)
    assert cfg == TrainConfig(total_steps=1, lr_scale=cfg.lr_scale)
    assert to_dict(cfg)["lr_scale"] == scale
    assert TrainConfig(**to_dict(cfg)) == cfg
    with pytest.raises(ValueError, match=r"head must be a valid number \(got None\)"):
        Groups(matrices=1.0, embedding=1.0, head=None, vectors=1.0)  # type: ignore[arg-type]


def test_a_value_is_checked_by_its_annotation() -> None:
    even = Annotated[Annotated[int, Ge(2), MultipleOf(2)] | None, "help"]
    for good in (2, 4, None):
        check_value("n", good, even)
    for bad in (3, 2.0, "2", True):
        with pytest.raises(ValueError, match=r"^n must be a .*\(got "):
            check_value("n", bad, even)


def test_a_dict_round_trips_and_a_wrong_d_is_refused() -> None:
    config = ModelConfig(C=32, H=4)
    assert ModelConfig.from_dict(to_dict(config)) == config
    with pytest.raises(ValueError, match="contradicts"):
        ModelConfig.from_dict({**to_dict(config), "D": 7})
    with pytest.raises(ValueError, match="width is not a setting"):
        ModelConfig.from_dict({**to_dict(config), "width": 3})


SEEDS_KEYS = ("V", "T", "C", "L", "H", "D", "d_ff", "dropout")


@pytest.mark.parametrize("key", SEEDS_KEYS)
def test_every_size_but_the_derived_one_is_required(key: str) -> None:
    values = {name: to_dict(ModelConfig())[name] for name in SEEDS_KEYS}
    assert ModelConfig.from_dict(values) == ModelConfig()
    del values[key]
    if key == "D":
        assert GPT(values).cfg.D == 64
    else:
        with pytest.raises(ValueError, match=rf"\['{key}'\] are required"):
            GPT(values)


def test_an_empty_dict_is_no_model() -> None:
    with pytest.raises(ValueError, match=r"\['C', 'H', 'L', 'T', 'V', 'd_ff', 'dropout'\] are required"):
        GPT({})


def test_weights_become_probabilities_and_a_weight_of_0_drops_the_source() -> None:
    assert mix_probabilities({"b": 3, "a": 1.0, "c": 0}, ["a", "b", "c", "d"], name="p_train") == {"a": 0.25, "b": 0.75}
    for weights, sentence in (
        ({"x": 1.0}, r"p_train has weights for \['x'\], which are no sources"),
        ({"a": -1.0, "b": 2.0}, r"not finite numbers >= 0: \{'a': -1.0\}"),
        ({"a": float("inf")}, "not finite numbers >= 0"),
        ({"a": 0.0}, "p_train has no weight above 0"),
    ):
        with pytest.raises(ValueError, match=sentence):
            mix_probabilities(weights, ["a", "b"], name="p_train")


def test_derived_seeds_depend_on_every_name() -> None:
    seeds = {derive_seed(s, name, n) for s in (1, 2) for name in ("batch", "dropout") for n in range(50)}
    assert len(seeds) == 200
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(1, "batch", 3) == derive_seed(1, "batch", 3)
    make_generator(max(seeds))


@pytest.mark.parametrize("seed", [2**32, 2**40 + 3, 2**63 - 1])
def test_numpy_gives_the_numbers_of_torch_and_of_python(seed: int) -> None:
    python = random.Random(seed)
    assert uniform_numbers((50, 2), seed=seed).flatten().tolist() == [python.random() for _ in range(100)]
    for n in (0, 1, 2, 1000):
        assert permutation(n, seed) == torch.randperm(n, generator=make_generator(seed)).tolist()
