"""Tests of the plan that `init` makes: exact values for five inputs, and rules for any text, machine and hours."""

import re
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from niels_gpt.cli.plan import OwnChats, Plan, source_names
from niels_gpt.cli.sizing import SIZES, Machine
from niels_gpt.cli.survey import Survey
from niels_gpt.config import ModelConfig
from niels_gpt.model.size import BYTES, bytes_per_token, most_epochs
from tests.surveys import BUNDLED, GPU, LAPTOP, VALUES, a_survey, chats_of, planned

SERVER = Machine(4e11)
LETTERS = a_survey(8_000_000, 40, path="/home/me/letters", sizes=(3000, 900_000))
CHATS = (OwnChats("/home/me/chats.jsonl", "chat", 500),)


def five_plans() -> list[Plan]:
    """Plan notes in minutes and in an hour, much text on a GPU, the least text, and two sources with chats in a day."""
    return [
        planned(a_survey(300_000, 200), hours=0.1),
        planned(a_survey(3_000_000, 900)),
        planned(a_survey(40_000_000, 5000), machine=GPU),
        planned(a_survey(2000, 20, sizes=(50, 150)), hours=0.1),
        planned(a_survey(40_000_000, 5000), LETTERS, hours=24, machine=SERVER, chats=CHATS),
    ]


# Settings and seconds of the five plans; None where the sample's value is kept.
VALUES_OF_FIVE: dict[str, tuple[Any, ...]] = {
    "tokenizer.vocab_size": (1024, 4096, 16_128, None, 16_128),
    "tokenizer.sample_bytes": (10_000_000, 10_000_000, 20_000_000, None, 20_000_000),
    "model.T": (128, 256, 1024, 128, 512),
    "model.C": (128, 192, 768, 128, 640),
    "model.L": (2, 3, 12, 2, 10),
    "model.H": (2, 3, 6, 2, 5),
    "model.d_ff": (512, 768, 3072, 512, 2560),
    "model.dropout": (0.15, 0.15, 0.15, 0.15, 0.15),
    "train.total_steps": (592, 1002, 13_342, 84, 4191),
    "train.B": (15, 15, 17, 4, 32),
    "train.base_lr": (0.008, 0.00722, 0.00361, 0.008, 0.00395),
    "train.min_lr": (0.000177, 0.000144, 7.2e-05, 0.000177, 7.9e-05),
    "train.warmup_steps": (50, 50, 50, 8, 50),
    "train.weight_decay": (0.5, 0.5, 1.0, 0.5, 0.5),
    "train.average": (0.983, 0.99, 0.999, 0.0, 0.998),
    "train.teacher": (0.0, 0.0, 0.5, 0.0, 0.0),
    "train.windows": ("epochs",) * 5,
    "train.eval_every": (74, 125, 1667, 21, 523),
    "train.eval_steps": (7, 11, 32, 2, 32),
    "train.momentum_warmup": (296, 300, 300, 42, 300),
    "sft.total_steps": (118, 200, 600, 144, 375),
    "sft.base_lr": (0.006, 0.0049, 0.00245, 0.006, 0.00268),
    "sft.min_lr": (0.00024, 0.000196, 9.8e-05, 0.00024, 0.000107),
    "sft.average": (0.0, 0.97, 0.97, 0.0, 0.97),
    "sft.warmup_steps": (11, 20, 20, 14, 20),
    "sft.eval_every": (118, 200, 600, 144, 375),
    "sft.momentum_warmup": (59, 100, 100, 72, 100),
    "eval.max_tokens": (34_130, 115_436, 1_000_000, 41_642, 1_000_000),
    "splice.run": (False,) * 5,
    "memorize.run": (False,) * 5,
    "splice.dataset_name": ("notes", "notes", "notes", "notes", "letters"),
    "splice.min_doc_length": (200, 200, 200, 134, 200),
    "memorize.chunk_size": (100, 100, 100, 67, 100),
    "memorize.prompt_tokens": (50, 50, 50, 33, 50),
    "leak.chunk_size": (100, 100, 100, 67, 100),
    "leak.prompt_tokens": (50, 50, 50, 33, 50),
    "leak.max_passages": (341, 1154, 10_000, 416, 10_000),
    "train.precision": ("float32", "float32", "bf16", "float32", "float32"),
    "sft.precision": ("float32", "float32", "bf16", "float32", "float32"),
    "splice.train.precision": ("float32", "float32", "bf16", "float32", "float32"),
    "runtime.log_every": (11, 20, 100, 1, 83),
    "runtime.checkpoint_every": (373, 46, 500, 500, 10),
    "model.qk_norm": (None, True, True, None, True),
    "model.value_residual": (None, True, True, None, True),
    "model.zero_init": (None, None, True, None, True),
    "model.logit_cap": (None, None, 15.0, None, 15.0),
    "runtime.micro_batch_tokens": (None, None, None, None, 4096),
    "train.lr_scale.embedding": (0.5, 1.6, 1.2, 0.5, 1.2),
    "train.lr_scale.vectors": (1.0, 1.0, 3.0, 1.0, 3.0),
    "train.decay_scale.embedding": (3.0, 3.0, 3.0, 3.0, 3.0),
    "seconds.text": (106, 120, 225, 105, 219),
    "seconds.train": (196, 2686, 1790, 6, 65_948),
    "seconds.sft": (20, 278, 16, 20, 1446),
    "seconds.rest": (10, 182, 8, 1, 2694),
}


def test_a_check_takes_no_longer_than_little_text_has_passages_for() -> None:
    half, two = (planned(a_survey(92_000, 84), hours=hours) for hours in (0.5, 2.0))
    assert two.settings["leak.max_passages"].value > 2 * half.settings["leak.max_passages"].value
    assert two.seconds["rest"] == pytest.approx(half.seconds["rest"], rel=0.3)


@pytest.mark.slow
def test_five_plans_have_exactly_these_values() -> None:
    plans = five_plans()
    for name, expected in VALUES_OF_FIVE.items():
        assert tuple(value_of(plan, name) for plan in plans) == expected, name
    expected_names = {name.rpartition(".")[0] if "_scale." in name else name for name in VALUES_OF_FIVE}
    tables = {"sources", "p_train", "p_val", "p_sft", "tokenizer"}
    others = tables | {
        "eval.prompts",
        "splice.num_docs",
        "splice.doc_select_mode",
        "splice.strict_num_docs",
        "eval.questions",
    }
    assert {name for plan in plans for name in plan.settings} <= expected_names | tables | others


def texts_of(plan: Plan) -> dict[str, Any]:
    """Return the entries of the user's text in `sources`."""
    return {name: plan.settings["sources"].value[name] for name in plan.named}


def value_of(plan: Plan, name: str) -> Any:
    section, _, key = name.rpartition(".")
    if section == "seconds":
        return round(plan.seconds[key])
    if section.endswith("_scale"):
        scale = plan.settings[section].value
        assert (scale["matrices"], scale["head"]) == (1.0, scale["embedding"])
        return scale[key]
    return plan.settings[name].value if name in plan.settings else None


@pytest.mark.slow
def test_sources_weights_and_chats_of_the_plans() -> None:
    notes, _, large, least, two = five_plans()
    assert [plan.run.cfg.V == BYTES for plan in (notes, large, least, two)] == [False, False, True, False]
    assert two.settings["p_val"].value == {"notes": 0.8333, "letters": 0.1667}
    assert (two.settings["p_sft"].value, notes.settings["p_sft"].value) == ({"chats": 1.0}, VALUES["p_sft"])
    assert chats_of({"sources": notes.settings["sources"].value}) == BUNDLED
    splits = [
        (source["split"].get("val_frac"), tail.value if (tail := source["load"].get("held_out_tail")) else None)
        for plan in (notes, large, least, two)
        for source in texts_of(plan).values()
    ]
    assert splits == [(0.1, None), (0.025, None), (None, 0.1), (0.025, None), (None, 0.1)]
    assert two.settings["sources"].value["chats"]["split"] == {"by": "document", "val_frac": 0.1}
    assert [source["val_name"] for source in texts_of(two).values()] == ["val_notes", "val_letters"]
    uneven = planned(a_survey(9_000_000_000, 900), a_survey(90_000, 99, path="/b"), hours=24)
    assert uneven.settings["p_train"].value["b"] == 0.0001


def test_a_plan_fits_the_hours_and_its_steps_agree_with_the_text() -> None:
    for text_bytes in (50_000, 700_000, 9_000_000, 300_000_000):
        for hours in (0.2, 1.0, 10.0):
            for machine in (LAPTOP, SERVER, GPU):
                plan = planned(a_survey(text_bytes, 2000), hours=hours, machine=machine)
                run = plan.run
                assert sum(plan.seconds.values()) <= 3600 * hours
                assert run.seconds(machine) <= 0.75 * (3600 * hours - plan.seconds["text"])
                held_out = texts_of(plan)["notes"]["split"]["val_frac"]
                assert run.text_tokens == pytest.approx(text_bytes * (1 - held_out) / bytes_per_token(run.cfg.V))
                assert run.epochs == pytest.approx(run.steps * run.B * run.cfg.T / run.text_tokens)
                assert run.epochs <= 0.75 * most_epochs(run.parameters, in_epochs=True)
                assert replace(run.cfg, V=ModelConfig.V) in SIZES
                assert (plan.settings["model.C"].value % plan.settings["model.H"].value, run.cfg.T % 128) == (0, 0)


def test_more_hours_or_a_faster_machine_never_give_a_smaller_model() -> None:
    for text_bytes in (200_000, 4_000_000, 100_000_000):
        survey = a_survey(text_bytes, 2000)
        by_hours = [planned(survey, hours=hours).run.parameters for hours in (0.2, 0.3, 1, 3, 10, 30, 100)]
        by_speed = [planned(survey, machine=Machine(flops)).run.parameters for flops in (1e10, 1e11, 1e12, 1e13)]
        assert (by_hours, by_speed) == (sorted(by_hours), sorted(by_speed))


def split_of(survey: Survey) -> str:
    (source,) = texts_of(planned(survey, machine=GPU)).values()
    by = source["split"]["by"]
    return str(getattr(by, "value", by))


def test_documents_are_held_out_whole_from_a_bound_on() -> None:
    many = a_survey(1_000_000, 50, sizes=(10, 250_000))
    for survey, by in (
        (many, "document"),
        (replace(many, documents=49), "given"),
        (replace(many, sizes=(10, 250_001)), "given"),
        (replace(many, documents=1_000_000), "hash"),
        (replace(many, documents=999_999), "document"),
        # Least sizes: 5 documents in the held-out 1%; 6 windows in the held-out text.
        (a_survey(100_000_000, 500), "document"),
        (a_survey(100_000_000, 499), "given"),
        (a_survey(6 * 129 * 10, 60, characters=9, words=9), "document"),
        (a_survey(6 * 129 * 10 - 10, 60, characters=9, words=9), "given"),
    ):
        assert split_of(survey) == by, survey


def test_the_context_is_the_longest_that_held_out_text_has_windows_for() -> None:
    large = a_survey(400_000_000, 900, path="/a")
    per_token = bytes_per_token(16128)
    for T in (1024, 512, 256, 128):
        fitting = round(1.5 * (T + 1) * per_token * 10) + 10
        small = a_survey(fitting, 60, path="/b")
        plan = planned(large, small, machine=GPU, hours=24)
        assert (plan.run.cfg.V, plan.run.cfg.T) == (16128, T)
        assert pytest.approx(32768, rel=0.01) == plan.run.B * T  # the tokens per step stay the same
        if T > 128:
            assert planned(large, replace(small, text_bytes=fitting - 20), machine=GPU, hours=24).run.cfg.T == T // 2
        else:
            with pytest.raises(ValueError, match="too little for a source of its own"):
                planned(large, replace(small, text_bytes=fitting - 20), machine=GPU, hours=24)


def test_fine_tuning_reads_ones_own_chats_six_times_within_bounds() -> None:
    for count, steps in ((10, 50), (66, 50), (70, 53), (500, 375), (2666, 2000), (9000, 2000)):
        plan = planned(a_survey(3_000_000, 900), machine=GPU, chats=(replace(CHATS[0], count=count),))
        assert plan.settings["sft.total_steps"].value == steps
    slow = planned(a_survey(3_000_000, 900), machine=Machine(1e9), hours=0.2)
    least = ("sft.total_steps", "leak.max_passages", "eval.max_tokens")
    assert [slow.settings[name].value for name in least] == [20, 200, 20_000]


def test_a_plan_never_takes_longer_than_asked_and_too_few_hours_name_those_that_do() -> None:
    for text_bytes, flops, hours in product((50_000, 5_000_000, 900_000_000), (1e8, 1e9, 1e10), (0.05, 0.15, 0.5)):
        survey = a_survey(text_bytes, 2000)
        try:
            plan = planned(survey, machine=Machine(flops), hours=hours)
        except ValueError as error:
            (minutes,) = map(int, re.findall(r" are too short, the least run .* here: --hours (\d+)m$", str(error)))
            assert minutes > 60 * hours
            plan = planned(survey, machine=Machine(flops), hours=minutes / 60)
            assert 30 * minutes < sum(plan.seconds.values()) <= 60 * minutes
        else:
            assert sum(plan.seconds.values()) <= 3600 * hours


def test_names_of_sources_and_of_their_chats_never_meet() -> None:
    assert source_names(["/x/" + "a" * 39 + " b", "/x/9"]) == ["a" * 39, "text_9"]
    assert source_names(["/x/a", "/y/a", "/z/a"], taken=["a_2"]) == ["a", "a_3", "a_4"]
    plan = planned(a_survey(3_000_000, 900, path="/x/dolly15k"), chats=(OwnChats("/y/dolly15k.jsonl", "chat", 50),))
    assert list(plan.settings["sources"].value) == ["dolly15k_2", "dolly15k"]
