from __future__ import annotations

import dataclasses
import random
from typing import Annotated, Any

import pytest
import torch
from annotated_types import Ge, MultipleOf

from niels_gpt.config import Groups, ModelConfig, TrainConfig, check_value, default_p_train, to_dict
from niels_gpt.data.mix import mix_probabilities
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
        ({"T": 0}, "T must be at least 1"),
        ({"dropout": 1.0}, "dropout"),
        ({"rope_theta": 0.0}, "rope_theta"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"dropout": "none"}, "dropout must be a number"),
        ({"V": "260"}, "V must be at least 1, at most 65536 and a whole number, got '260'"),
        ({"L": 1.5}, "L must be at least 1, at most 1024 and a whole number"),
        ({"d_ff": None}, "d_ff must be at least 1"),
        *(({name: 10**9}, f"{name} must be at least 1, at most") for name in ("V", "T", "C", "L", "d_ff")),
        ({"L": 100_000}, "L must be at least 1, at most 1024 and a whole number, got 100000"),
    ],
)
def test_impossible_shapes_are_refused(bad: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ModelConfig(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"total_steps": 0}, "total_steps must be at least 1, at most 100000000 and a whole number, got 0"),
        ({"B": 2**63}, "B must be at least 1, at most 1048576 and a whole number"),
        ({"B": 10**9}, "B must be at least 1, at most 1048576 and a whole number, got 1000000000"),
        ({"eval_steps": 10**9}, "eval_steps must be at least 1, at most 1000000"),
        ({"total_steps": 10**9}, "total_steps must be at least 1, at most 100000000"),
        ({"base_lr": 0.0}, "base_lr must be a number and above 0, got 0.0"),
        ({"base_lr": True}, "base_lr must be a number and above 0, got True"),
        ({"min_lr": float("inf")}, "min_lr must be a number and at least 0"),
        ({"beta2": 1}, "beta2 must be a number, at least 0 and below 1, got 1"),
        ({"precision": "fp8"}, "precision must be one of float32, bf16, got 'fp8'"),
        ({"document_mask": 1}, "document_mask must be true or false, got 1"),
        ({"schedule": "step"}, "schedule must be one of cosine, linear, got 'step'"),
        ({"flat": 1.0}, "flat must be a number, at least 0 and below 1, got 1.0"),
        ({"momentum_warmup": -1}, "momentum_warmup must be at least 0 and a whole number, got -1"),
        ({"lr_scale": 2.0}, "lr_scale must be a table of matrices, embedding, head, vectors, got 2.0"),
        ({"lr_scale": {"matrices": 1.0}}, "lr_scale must be a table of matrices, embedding, head, vectors, got {"),
        ({"decay_scale": {**EVEN, "heads": 1.0}}, "decay_scale must be a table of .*'heads': 1.0"),
        ({"decay_scale": {**EVEN, "head": "1"}}, "decay_scale must be a table of .*'head': '1'"),
        ({"decay_scale": {**EVEN, "head": -1.0}}, "decay_scale must be a table of .*'head': -1.0"),
    ],
)
def test_an_impossible_schedule_is_refused(bad: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TrainConfig(**{"total_steps": 1, **bad})


def test_multiples_by_group_are_a_table_as_a_file_has_it_and_go_back_to_one() -> None:
    scale = {"matrices": 1, "embedding": 0.5, "head": 0.25, "vectors": 2.0}
    cfg = TrainConfig(total_steps=1, lr_scale=scale)  # type: ignore[arg-type]
    assert cfg.lr_scale == Groups(matrices=1, embedding=0.5, head=0.25, vectors=2.0)
    assert cfg == TrainConfig(total_steps=1, lr_scale=cfg.lr_scale)
    assert to_dict(cfg)["lr_scale"] == scale
    assert TrainConfig(**to_dict(cfg)) == cfg
    with pytest.raises(ValueError, match="head must be a number and at least 0, got None"):
        Groups(matrices=1.0, embedding=1.0, head=None, vectors=1.0)  # type: ignore[arg-type]


def test_a_value_is_checked_by_its_annotation() -> None:
    even = Annotated[Annotated[int, Ge(2), MultipleOf(2)] | None, "help"]
    for good in (2, 4, None):
        check_value("n", good, even)
    for bad in (0, 3, 2.0, "2", True):
        with pytest.raises(ValueError, match="n must be at least 2, a multiple of 2 and a whole number or null, got"):
            check_value("n", bad, even)


def test_a_dict_round_trips_and_a_wrong_d_is_refused() -> None:
    config = ModelConfig(C=32, H=4)
    assert ModelConfig.from_dict(to_dict(config)) == config
    with pytest.raises(ValueError, match="contradicts"):
        ModelConfig.from_dict({**to_dict(config), "D": 7})
    with pytest.raises(ValueError, match="unknown model settings"):
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


def test_weights_become_probabilities_and_a_weight_of_0_no_source() -> None:
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
