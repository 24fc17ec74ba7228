"""Tests of params.yaml: its set of keys is frozen here, and each error in it gets one sentence."""

import copy
import json
import os
import re
import subprocess
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

from niels_gpt.cli.console import read_preset
from niels_gpt.config import ModelConfig, TrainConfig, to_dict
from niels_gpt.pipeline.params import Params, parse_params, read_params
from niels_gpt.pipeline.training import train_config
from niels_gpt.pipeline.yaml_files import ParamsError
from tests.conftest import ROOT, leaves, with_values

TEXT = (ROOT / "params.yaml").read_text()
_, RAW = parse_params(TEXT)
RAW_TEXTS = {name: source for name, source in RAW["sources"].items() if source["use"] == "text"}


GROUPS = ("matrices", "embedding", "head", "vectors")
DEFAULTS = to_dict(TrainConfig(total_steps=1))
OPTIONAL = {f"model.{key}" for key in set(ModelConfig.__dataclass_fields__) - set(to_dict(ModelConfig()))}
STAGES = ("train", "sft", "splice.train")


def changed(values: dict[str, Any]) -> str:
    """Return params.yaml with other values and without its comments."""
    tree = copy.deepcopy(RAW)
    for dotted, value in values.items():
        *parents, last = dotted.split(".")
        reduce(lambda node, part: node[part], parents, tree)[last] = value
    return str(yaml.safe_dump(tree, sort_keys=False))


def test_the_key_set_is_frozen() -> None:
    """A new key changes the public interface: add it here as well."""
    params, raw = parse_params(TEXT)
    source = ["use", "input", "remote", "val_name", "load.kind", "budget.max_train_tokens", "budget.max_val_tokens"]
    source += ["split.by"]
    by_document = ["split.val_frac", "split.seed"]
    chat = [*source, "load.dataset", "load.revision", "load.seed", *by_document]
    schedule = ["seed", "total_steps", "B", "base_lr", "min_lr", "warmup_steps", "weight_decay", "beta1", "beta2"]
    schedule += ["grad_clip", "eval_every", "precision", "optimizer"]
    expected = {
        "seed",
        *(f"sources.wiki.{key}" for key in [*source, "load.dataset", "load.config", "load.revision"]),
        *(f"sources.roam.{key}" for key in [*source, *by_document, "load.on_secret"]),
        *(f"sources.primer.{key}" for key in [*source, *by_document, "load.delimiter"]),
        *(f"tokenizer.{key}" for key in ["kind", "corpus", "vocab_size", "sample_bytes", "seed", "min_documents"]),
        *(f"sources.dolly15k.{key}" for key in [*chat, "load.include_system", "load.max_documents"]),
        *(f"sources.oasst1.{key}" for key in [*chat, "load.english_only", "load.max_messages", "load.max_trees"]),
        *(f"sources.dialogues.{key}" for key in [*source, *by_document, "load.delimiter"]),
        *("duplicates.exact", "duplicates.near", "parts.text_bytes"),
        *("base.from", "base.input", "base.revision"),
        *(f"p_train.{name}" for name in ("wiki", "roam", "primer")),
        *("p_val.wiki", "p_sft.dolly15k", "p_sft.oasst1", "p_sft.dialogues"),
        *(f"model.{key}" for key in ["T", "C", "L", "H", "d_ff", "dropout", "rope_theta"]),
        *(f"{stage}.{key}" for stage in STAGES for key in schedule),
        *(f"splice.{key}" for key in ["dataset_name", "num_docs", "min_doc_length", "max_doc_length", "doc_index"]),
        *(f"splice.{key}" for key in ["doc_select_mode", "strict_num_docs", "restrict_to_training_subset", "shuffle"]),
        *(f"splice.{key}" for key in ["balance_mode", "balance_tau", "epoch_length"]),
        *("train.eval_steps", "sft.eval_steps", "train.document_mask", "index.run"),
        *(f"splice.spans.{key}" for key in ["mode", "content_start_mode", "content_length", "content_stride"]),
        *(f"splice.spans.{key}" for key in ["offset_stride", "offset_bound", "min_copy_len", "alpha", "adaptive_k"]),
        *(f"splice.spans.{key}" for key in ["include_tail", "suffix_starts", "offset_jitter", "jitter_mode"]),
        *(f"memorize.{key}" for key in ["chunk_size", "prompt_tokens", "cursor_inc_tokens", "top_k", "B"]),
        *(f"leak.{key}" for key in ["chunk_size", "prompt_tokens", "max_passages", "seed", "B", "canaries"]),
        *(
            f"eval.{key}"
            for key in ["B", "max_tokens", "prompts", "questions", "max_new_tokens", "temperature", "top_k", "seed"]
        ),
        *(f"runtime.{key}" for key in ["device", "hub_patience_s", "threads", "log_every", "checkpoint_every"]),
        *(f"runtime.{key}" for key in ["nproc", "compile", "micro_batch_tokens", "deterministic"]),
        *(f"runtime.{key}" for key in ["engine", "workers", "ray_address", "stores.store", "stores.private"]),
    }
    recipe = ["schedule", "flat", "momentum_warmup"]
    freezing = {f"{stage}.{key}" for stage in STAGES for key in ("freeze_blocks", "patience", "average")}
    recipe += [f"{table}.{group}" for table in ("lr_scale", "decay_scale") for group in GROUPS]
    further = {"sft.dropout", "splice.train.dropout"}
    optional = (
        {f"{stage}.{key}" for stage in STAGES for key in recipe}
        | OPTIONAL
        | further
        | freezing
        | {"train.windows", "train.teacher", "sft.replay"}
    )
    optional |= {f"{stage}.run" for stage in ("sft", "splice", "memorize")}
    screened = {
        f"sources.{name}.load.{key}" for name in raw["sources"] for key in ("on_secret", "on_personal", "stored")
    }
    assert leaves(params.model_dump()) == leaves(raw) == expected | optional | screened


def test_the_file_is_short_starts_with_the_main_settings_and_omits_library_defaults() -> None:
    assert len(TEXT.splitlines()) <= 160
    written = yaml.safe_load(TEXT)
    assert list(written)[:6] == ["seed", "model", "p_train", "p_val", "train", "sources"]
    assert set(written) == set(Params.model_fields)
    assert sum(leaf.endswith("seed") for leaf in leaves(written)) == 1
    assert len(leaves(written)) < 0.6 * len(leaves(RAW))
    assert "  beta2:" not in TEXT
    assert parse_params(TEXT)[0].train.beta2 == TrainConfig(total_steps=1).beta2


@pytest.mark.slow
def test_a_section_without_a_seed_has_the_one_at_the_top_unless_it_only_orders_what_is_loaded() -> None:
    params, raw = parse_params(with_values(TEXT, {"seed": 7, "sft.seed": 8, "sources.roam.split.seed": 9}))
    assert (params.train.seed, params.sft.seed, params.splice.train.seed) == (7, 8, 7)
    assert (params.eval.seed, params.leak.seed, params.tokenizer.seed) == (7, 7, 7)  # type: ignore[union-attr]
    assert {name: source.split.seed for name, source in params.sources.items() if name != "wiki"} == {
        "primer": 7,
        "roam": 9,
        **dict.fromkeys(("dolly15k", "oasst1", "dialogues"), 7),
    }
    assert params.sources["dolly15k"].load.seed == 42
    assert raw["train"]["seed"] == 7
    for seed in (-1, "x", None, 2**63, True):
        (said,) = problems(with_values(TEXT, {"seed": seed}))
        assert said.startswith(f"params.yaml: seed is {seed!r}: ")
    (said,) = problems(TEXT.replace("\nseed: 42\n", "\n"))
    assert said == "params.yaml: seed is missing: it has no default"


@pytest.mark.slow
def test_rules_between_values_apply_to_defaults_as_well() -> None:
    """A rule between two values is checked even if only one of them is given."""
    (said,) = problems(with_values(TEXT.replace("  warmup_steps: 50\n", ""), {"train.total_steps": 199}))
    assert "train.warmup_steps: 200 is more than total_steps=199" in said
    (said,) = problems(with_values(TEXT, {"memorize": {"chunk_size": 40}}))
    assert "memorize.prompt_tokens: 50 must be less than chunk_size=40" in said
    parse_params(TEXT[: TEXT.index("\nruntime:")])
    parse_params(with_values(TEXT, {"memorize": {}, "leak": {}, "duplicates": {}, "splice.spans": {}}))


PAGE = (ROOT / "docs/parameters.md").read_text()


@pytest.mark.slow
def test_the_list_of_parameters_is_what_the_command_prints() -> None:
    command = [sys.executable, "-m", "scripts.parameters"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == PAGE


def test_the_list_names_every_parameter_with_its_value_in_the_sample() -> None:
    rows = [line[2:-2].split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
    told = {name.strip("`"): sample for name, _, _, sample, _ in rows if ".NAME" not in name and sample}
    for leaf, value in values_of(parse_params(TEXT)[0].model_dump()).items():
        tables = ("sources", "p_train", "p_val", "p_sft")
        if leaf == "tokenizer.kind":
            assert f"### tokenizer of kind {value}\n" in PAGE
        elif leaf.startswith("runtime.stores."):
            assert "| `runtime.stores.NAME` | text, or null |" in PAGE
        elif leaf.startswith(tables):
            named = re.sub(r"^(\w+)\.\w+", r"\1.NAME", leaf)
            assert f"| `{named}` |" in PAGE or leaf.endswith((".kind", ".by"))
        else:
            assert json.loads(told.pop(leaf).strip("`")) == value, leaf
    assert not told
    assert [name for name, *_, what in rows if not what] == []


@pytest.mark.parametrize(
    "name",
    [
        *(f"model.{key}" for key in ("T", "C", "L", "d_ff")),
        *(f"{section}.B" for section in ("train", "sft", "splice.train", "eval", "memorize", "leak")),
        *(f"{section}.total_steps" for section in ("train", "sft", "splice.train")),
        *(f"{section}.eval_steps" for section in ("train", "sft")),
        *(f"runtime.{key}" for key in ("threads", "workers", "nproc")),
        "eval.max_new_tokens",
        "splice.epoch_length",
        "leak.canaries",
    ],
)
def test_a_value_that_no_machine_could_end_is_refused(name: str) -> None:
    found = problems(with_values(TEXT, {name: 10**9}))
    assert any(
        sentence.startswith(f"params.yaml: {name} is 1000000000: ") and "less than" in sentence for sentence in found
    ), found


def test_the_list_says_what_is_allowed() -> None:
    for row in (
        "| `model.T` | integer >= 1 and <= 1048576 |  | `128` | context length in tokens |",
        "| `train.beta1` | number >= 0 and < 1 | `0.9` | `0.9` |",
        "| `train.base_lr` | number > 0 | `0.0003` | `0.008` |",
        "| `train.seed` | integer >= 0 | seed | `42` |",
        "| `sources.NAME.load.seed` | integer >= 0 | `42` |  |",
        "| `splice.spans.content_length` | integer >= 2, or null | `null` | `null` |",
        '| `runtime.compile` | one of auto, true, false | `"auto"` | `"auto"` |',
        "| `parts.text_bytes` | integer >= 1 |",
        "| `eval.questions` | list of length >= 1 |",
        "### sources.NAME.split of by given\n\nNothing else.\n",
        "| `sources.NAME.load.on_secret` | one of keep, mask, drop, fail, or null | `null` |  | what becomes of keys",
        "| `splice.train.flat` | number >= 0 and < 1 | `0.0` | `0.0` | share of",
        "| `train.decay_scale.embedding` | number >= 0 | `1.0` | `3.0` | multiple of weight_decay: the embedding",
    ):
        assert row in PAGE


@pytest.mark.parametrize("preset", sorted((ROOT / "presets").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_preset_is_a_whole_valid_set(preset: Any) -> None:
    _, raw = parse_params(read_preset(preset.parent, preset.stem))
    own = ("sources", "p_train", "p_val", "p_sft", "tokenizer")
    _, sample = parse_params(TEXT)
    assert {leaf for leaf in leaves(raw) if not leaf.startswith(own)} == {
        leaf for leaf in leaves(sample) if not leaf.startswith(own)
    }


@pytest.mark.parametrize("preset", sorted((ROOT / "presets").glob("*.yaml")), ids=lambda path: path.stem)
def test_validation_takes_at_most_a_twentieth_of_a_run(preset: Any) -> None:
    """A validation batch takes about a third of the time of a step, on a CPU and on a GPU (docs/performance.md)."""
    _, raw = parse_params(read_preset(preset.parent, preset.stem))
    for stage in ("train", "sft"):
        assert raw[stage]["eval_steps"] / 3 <= raw[stage]["eval_every"] * 0.05 / 0.95, stage


def test_the_committed_parameters_are_the_sample() -> None:
    """A change of params.yaml changes the sample, which names its git blob (`git hash-object params.yaml`)."""
    blob = subprocess.check_output(["git", "hash-object", "params.yaml"], cwd=ROOT, text=True).strip()
    assert yaml.safe_load((ROOT / "presets/sample.yaml").read_text()) == {"blob": blob}
    assert read_preset(ROOT / "presets", "sample") == TEXT


@pytest.mark.slow
def test_a_preset_says_only_what_differs_from_the_sample() -> None:
    others = [path.read_text() for path in sorted((ROOT / "presets").glob("*.yaml")) if path.stem != "sample"]
    assert sum(len(text.splitlines()) for text in others) <= 330
    for text in others:
        said = yaml.safe_load(text)
        base = parse_params(read_preset(ROOT / "presets", said.pop("based_on", "sample")))[1]
        for leaf, value in values_of(said).items():
            # lr_scale and decay_scale are given as whole tables or not at all.
            if not leaf.startswith(("sources", "p_", "tokenizer")) and "_scale." not in leaf:
                assert values_of(base).get(leaf, "left out") != value, leaf


def values_of(tree: dict[str, Any]) -> dict[str, Any]:
    return {leaf: reduce(lambda node, part: node[part], leaf.split("."), tree) for leaf in leaves(tree)}


def test_v0_follows_the_original_specification() -> None:
    params, _ = parse_params(read_preset(ROOT / "presets", "v0"))
    assert ModelConfig.from_section(params.model.model_dump(), V=256) == ModelConfig()
    plain = to_dict(TrainConfig(total_steps=1))
    for name in ("optimizer", "schedule", "flat", "lr_scale", "decay_scale", "momentum_warmup", "weight_decay"):
        assert params.train.model_dump()[name] == plain[name], name
    assert (params.train.B, params.train.base_lr, params.train.min_lr, params.train.warmup_steps) == (
        32,
        3e-4,
        3e-5,
        200,
    )
    assert params.sources["roam"].input == ".roam-data"
    wiki = params.sources["wiki"].load.model_dump()
    assert (wiki["dataset"], wiki["config"]) == ("Salesforce/wikitext", "wikitext-103-raw-v1")


@pytest.mark.parametrize(
    ("values", "sentences"),
    [
        ({"train.base_lr": "1e-5x"}, ["train.base_lr is '1e-5x'", "number"]),
        ({"train.base_lrr": 1}, ["train.base_lrr is not a parameter; did you mean base_lr?"]),
        ({"train.flat": 1}, ["train.flat is 1", "less than 1"]),
        ({"sft.schedule": "step"}, ["sft.schedule is 'step'", "'cosine' or 'linear'"]),
        ({"splice.train.momentum_warmup": 0.5}, ["splice.train.momentum_warmup is 0.5", "integer"]),
        ({"train.lr_scale": 2.0}, ["train.lr_scale is 2.0: keys and values of its own"]),
        (
            {"train.lr_scale": {**dict.fromkeys(GROUPS, 1.0), "heads": 1.0}},
            ["train.lr_scale.heads is not a parameter; did you mean head?"],
        ),
        ({"sft.decay_scale": {**dict.fromkeys(GROUPS, 1.0), "head": "1"}}, ["sft.decay_scale.head is '1'", "number"]),
        ({"sft.decay_scale": {**dict.fromkeys(GROUPS, 1.0), "head": -1}}, ["sft.decay_scale.head is -1", "equal to 0"]),
        (
            {"train.lr_scale": {"matrices": 1.0}},
            ["train.lr_scale.embedding is missing", "train.lr_scale.vectors is missing"],
        ),
        ({"trian": 1}, ["trian is not a parameter; did you mean train?"]),
        ({"sources.roam.load.zyx": "*.md"}, ["sources.roam.load.zyx is not a parameter", "known here"]),
        ({"sources.roam.load.glob": "*.md"}, ["sources.roam.load.glob goes with another kind"]),
        ({"sources.roam.split.val_fraction": 0.1}, ["sources.roam.split.val_fraction", "did you mean val_frac?"]),
        ({"sources.roam.split.val_frac": 1.0}, ["sources.roam.split.val_frac is 1.0", "less than 1"]),
        ({"sources.roam.load.kind": "rome"}, ["sources.roam.load", "kind must be one of", "'roam'"]),
        ({"train.total_steps": 0}, ["train.total_steps is 0", "greater than or equal to 1"]),
        ({"train.total_steps": 1.5}, ["train.total_steps is 1.5", "integer"]),
        ({"train.B": "32"}, ["train.B is '32'", "integer"]),
        ({"model.T": 0}, ["model.T is 0"]),
        ({"model.C": 129}, ["model.H: C=129 is not a multiple of H=2"]),
        ({"model.C": 6}, ["model.H: D = C/H = 6/2 = 3 is odd"]),
        ({"model.H": None}, ["model.H: give H (heads), head_dim (width of a head) or both"]),
        ({"train.freeze_blocks": 2}, ["train.freeze_blocks: 2 leaves no block to train, since model.L is 2: lower it"]),
        ({"model.H": None, "model.head_dim": 24}, ["model.H: C=128 is not a multiple of head_dim=24"]),
        ({"p_train.roam": -0.1}, ["p_train", "'roam': -0.1"]),
        ({"p_train.room": 0.1}, ["p_train has weights for ['room'], which are no sources", "'roam'"]),
        ({"p_train": {"wiki": 0, "roam": 0, "primer": 0}}, ["p_train has no weight above 0"]),
        ({"p_train": {"wiki": 1, "roam": 0}}, ["p_train has no weight for ['primer']"]),
        ({"p_train.roam": float("nan")}, ["p_train", "not finite"]),
        ({"p_val": {"news": 1.0}}, ["p_val has weights for ['news']"]),
        ({"parts.text_bytes": 0}, ["parts.text_bytes is 0", "greater than or equal to 1"]),
        ({"sources.primer.val_name": "val_wiki"}, ["val_name 'val_wiki' is used by sources.wiki and sources.primer"]),
        ({"runtime.devise": "cpu"}, ["runtime.devise is not a parameter; did you mean device?"]),
        ({"splice.spans.alpah": 1.0}, ["splice.spans.alpah is not a parameter; did you mean alpha?"]),
        ({"splice.train.bate1": 1.0}, ["splice.train.bate1 is not a parameter; did you mean beta1?"]),
        ({"tokenizer.vocab_sise": 1}, ["tokenizer.vocab_sise is not a parameter; did you mean vocab_size?"]),
        ({"tokenizer.vocab_size": 261}, ["tokenizer.vocab_size is 261", "262"]),
        ({"tokenizer.vocab_size": 65537}, ["tokenizer.vocab_size is 65537", "65536"]),
        ({"runtime.compile": "yes"}, ["runtime.compile is 'yes'", "'auto', True or False"]),
        ({"train": 3}, ["train is 3: keys and values of its own"]),
        ({"sources": [1]}, ["sources is [1]: keys and values of its own"]),
        ({"p_train": None}, ["p_train is None: keys and values of its own"]),
        ({"p_train.roam": "much"}, ["p_train.roam is 'much'", "number"]),
        ({"p_train.roam": True}, ["p_train.roam is True", "number"]),
        ({"sources": {}}, ["sources: none has `use: text`: pretraining needs at least one"]),
        (
            {"sources": RAW_TEXTS, "p_sft": {}},
            ["sources: none has `use: chat`: sft needs at least one, or set sft.run to false"],
        ),
        (
            {"sources": RAW_TEXTS, "sft.run": False},
            ["p_sft has weights for ['dialogues', 'dolly15k', 'oasst1']"],
        ),
        ({"sources.wiki.use": "chat"}, ["sources.wiki.load: kind wikitext does not go with use: chat, it goes with"]),
        ({"sources.wiki.use": "both"}, ["sources.wiki.use is 'both': input should be 'text' or 'chat'"]),
        ({"splice.run": False}, ["memorize.run: splice.run is false", "set this to false, too"]),
        ({"sft.run": "no"}, ["sft.run is 'no'", "boolean"]),
        ({"train.warmup_steps": 801}, ["train.warmup_steps: 801 is more than total_steps=800"]),
        ({"splice.train.warmup_steps": 71}, ["splice.train.warmup_steps: 71 is more than total_steps=70"]),
        ({"sft.min_lr": 0.009}, ["sft.min_lr: 0.009 is above base_lr=0.006"]),
        ({"splice.max_doc_length": 109}, ["splice.max_doc_length: 109 is less than min_doc_length=110"]),
        (
            {"splice.min_doc_length": None, "splice.max_doc_length": 99},
            ["memorize.chunk_size: 100 is more than splice.max_doc_length=99"],
        ),
        (
            {"sources.roam.budget": {"max_train_tokens": 128, "max_val_tokens": 128}},
            [
                "sources.roam.budget.max_train_tokens is 128, which holds no window of model.T+1 = 129 tokens",
                "sources.roam.budget.max_val_tokens is 128",
            ],
        ),
        ({"train.B": 2**63}, [f"train.B is {2**63}", "less than"]),
        ({"model.rope_theta": float("inf")}, ["model.rope_theta is inf", "finite"]),
        ({"splice.dataset_name": "oasst1"}, ["splice.dataset_name is 'oasst1', which is no source", "'roam'"]),
        ({"memorize.chunk_size": 129}, ["memorize.chunk_size: 129 must fit into model.T=128"]),
        ({"memorize.prompt_tokens": 100}, ["memorize.prompt_tokens: 100 must be less than chunk_size=100"]),
        ({"runtime.device": "tpu"}, ["runtime.device: 'tpu' is no device: use auto, cpu, mps, cuda"]),
        ({"runtime.device": "cuda:x"}, ["runtime.device: 'cuda:x' is no device"]),
        ({"runtime.device": "cpu:0"}, ["runtime.device: 'cpu:0' is no device"]),
        ({"runtime.nproc": 9}, ["runtime.nproc: 9 processes share B=8 rows per step"]),
        ({"splice.spans.alpha": 0.5}, ["splice.spans: alpha and suffix_starts exclude each other"]),
        (
            {"splice.spans.content_start_mode": "cyclic_roll"},
            ["splice.spans: suffix_starts goes with content_start_mode coverage_balanced only"],
        ),
        ({"splice.doc_index": 1}, ["splice.doc_index: doc_index names one document, num_docs is 3"]),
        (
            {"splice.restrict_to_training_subset": True, "p_train.primer": 0},
            ["splice.restrict_to_training_subset: it is true, but p_train.primer is 0"],
        ),
        ({"train.beta1": float("nan")}, ["train.beta1 is nan", "finite"]),
        (
            {"sources.roam.split": {"by": "given"}},
            ["sources.roam.split: by: given does not go with this load of kind roam: use by: document"],
        ),
        (
            {"sources.roam.load": {"kind": "text", "held_out_tail": 0.1}},
            ["sources.roam.split: by: document does not go with this load of kind text: use by: given"],
        ),
        (
            {"sources.dolly15k.split.by": "tree"},
            ["sources.dolly15k.split: by: tree does not go with this load of kind dolly: use by: document"],
        ),
        (
            {"sources.oasst1.split": {"by": "given"}},
            ["sources.oasst1.split: by: given does not go with this load of kind oasst1: use by: tree or by: document"],
        ),
        (
            {"sources.dialogues.split.seed": 7},
            ["sources.dialogues.split is not that of sources.primer, and both read data/primer.txt: give them"],
        ),
        (
            {"sources.primer.load.delimiter": "---", "sources.dialogues.input": "data/../data/primer.txt"},
            ["sources.dialogues.load.delimiter is not that of sources.primer"],
        ),
        ({"sources.roam.load.kind": "chat"}, ["sources.roam.load: kind chat does not go with use: text, it goes with"]),
        (
            {"sources.oasst1.load.max_messages": 1},
            ["sources.oasst1.load.max_messages is 1", "greater than or equal to 2"],
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(values: dict[str, object], sentences: list[str]) -> None:
    with pytest.raises(ValueError, match=re.escape(sentences[0])) as error:
        parse_params(changed(values))
    message = str(error.value)
    assert "\n" not in message
    for sentence in sentences:
        assert sentence in message


@pytest.mark.parametrize("name", ["Roam", "ro am", "../up", "x;touch y", "ü", ""])
def test_a_source_name_that_is_no_word_is_refused(name: str) -> None:
    _, raw = parse_params(TEXT)
    raw["sources"][name] = raw["sources"].pop("roam")
    with pytest.raises(ValueError, match=r"must match \[a-z0-9_\]\+"):
        parse_params(json.dumps(raw))


def test_optional_settings_are_used_as_given_or_have_the_library_defaults() -> None:
    scale = {"matrices": 1.0, "embedding": 0.5, "head": 0.25, "vectors": 2.0}
    options = {"schedule": "linear", "flat": 0.5, "lr_scale": scale, "decay_scale": scale, "momentum_warmup": 9}
    for stage in STAGES:
        params, raw = parse_params(changed({f"{stage}.{key}": value for key, value in options.items()}))
        for other in STAGES:
            section = reduce(getattr, other.split("."), params)
            cfg = train_config(section, p_train={}, p_val={})
            table = reduce(lambda node, part: node[part], other.split("."), raw)
            written = options if other == stage else {key: table[key] for key in options if key in table}
            assert {key: to_dict(cfg)[key] for key in options} == {**{k: DEFAULTS[k] for k in options}, **written}
            table = {key: value for key, value in table.items() if key not in ("dropout", "run")}
            assert TrainConfig(**table, p_train={}, p_val={}) == cfg  # as niels-gpt doctor does


@pytest.mark.parametrize(
    "values",
    [
        {"sft.run": False, "sources": RAW_TEXTS, "p_sft": {}},
        {"sft.run": False, "p_sft": {}},
        {"sft.run": False, "p_sft": {"dolly15k": 0}},
        {"sft.run": False, "sft.warmup_steps": 10**6, "sft.min_lr": 9.0},
        {"memorize.run": False, "memorize.chunk_size": 1000, "memorize.prompt_tokens": 2000},
        {
            **{"splice.run": False, "memorize.run": False, "splice.train.min_lr": 9.0, "splice.doc_index": 3},
            **{"splice.spans.alpha": 0.5, "splice.max_doc_length": 1, "splice.restrict_to_training_subset": True},
            **{"p_train.primer": 0, "runtime.nproc": 8, "splice.train.B": 1},
        },
        {"train.warmup_steps": 800, "train.min_lr": 0.008, "sources.roam.budget.max_val_tokens": 129},
        {"p_train.roam": 0, "sources.roam.budget.max_train_tokens": 1},  # nothing is sampled from it
        {"splice.max_doc_length": 110, "splice.min_doc_length": 110, "memorize.chunk_size": 110},
    ],
)
def test_unused_values_and_values_at_a_limit_are_accepted(values: dict[str, Any]) -> None:
    parse_params(changed(values))


def test_values_of_a_skipped_stage_are_checked() -> None:
    """DVC depends on the source of the spliced documents even if the splice stage is skipped."""
    values = {"splice.run": False, "memorize.run": False, "sft.run": False}
    found = problems(changed({**values, "memorize.B": 0, "sft.B": "8"}))
    assert [sentence.partition(":")[2].split(":")[0] for sentence in found] == [" sft.B is '8'", " memorize.B is 0"]
    found = problems(changed({**values, "splice.dataset_name": "x", "p_sft": {"dolly": 0, "oasst1": -1}}))
    for words in ("splice.dataset_name is 'x'", "['dolly']", "{'oasst1': -1.0}"):
        assert sum(words in sentence for sentence in found) == 1, (words, found)
    assert len(found) == 3


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ValueError, match=r"train\.total_steps is missing: it has no default"):
        parse_params(TEXT.replace("  total_steps: 800\n", "", 1))
    with pytest.raises(ValueError, match="holds no parameters"):
        parse_params("")


@pytest.mark.slow
def test_the_file_as_dvc_writes_it_has_the_same_values(tmp_path: Path) -> None:
    """`dvc exp run -S` rewrites the whole file for one key; a strict parser takes no unquoted `[who?]` for a list."""
    from dvc.utils.serialize import modify_yaml

    for name in ("sample", "v0", "v1", "shakespeare"):
        file, text = tmp_path / "params.yaml", read_preset(ROOT / "presets", name)
        file.write_text(text)
        with modify_yaml(file) as written:
            written["eval"]["max_new_tokens"] = written["eval"].get("max_new_tokens", 200)
            written["runtime"]["stores"]["store"] = "s3://lake/public"
        assert file.read_text() != text
        read, meant = parse_params(file.read_text())[0], parse_params(text)[0]
        assert read.runtime.stores["store"] == "s3://lake/public"
        assert read.model_copy(update={"runtime": meant.runtime}) == meant


def test_numbers_as_dvc_writes_them_are_numbers() -> None:
    params, _ = parse_params(TEXT.replace("base_lr: 0.0", "base_lr: 1e-05 #").replace("min_lr: 0.0", "min_lr: 1e-06 #"))
    assert params.train.base_lr == 1e-5


def test_compile_is_what_was_written() -> None:
    for written in ("auto", True, False):
        params, _ = parse_params(changed({"runtime.compile": written}))
        assert params.runtime.compile is written or params.runtime.compile == written == "auto"


def problems(text: str) -> list[str]:
    with pytest.raises(ParamsError) as error:
        parse_params(text)
    assert str(error.value) == "; ".join(problem.sentence for problem in error.value.problems)
    return [problem.sentence for problem in error.value.problems]


def test_every_value_that_is_wrong_is_named_at_once() -> None:
    """Every leaf is tested but `kind` and `by`, which decide which keys a section has."""
    _, raw = parse_params(TEXT)

    def spoilt(tree: Any) -> Any:
        if not isinstance(tree, dict):
            return [[]]
        return {key: value if key in ("kind", "by") else spoilt(value) for key, value in tree.items()}

    found = problems(json.dumps(spoilt(raw)))
    for leaf in leaves(raw):
        if leaf.split(".")[-1] not in ("kind", "by"):
            assert any(re.search(rf": {re.escape(leaf)}(?:\.0)? is \[", sentence) for sentence in found), leaf


def test_every_key_that_is_missing_is_named_at_once() -> None:
    _, raw = parse_params(TEXT)

    def emptied(tree: dict[str, Any], path: str = "") -> dict[str, Any]:
        tables = {key: value for key, value in tree.items() if isinstance(value, dict) and "_scale" not in key}
        inner = {key: emptied(value, f"{path}.{key}") for key, value in tables.items()}
        return inner | {key: tree[key] for key in ("kind", "by") if key in tree}

    # H is not listed: it may be missing if head_dim is given, which a separate rule checks.
    ending = re.compile(
        r"seed|model\.(T|C|L|d_ff|dropout)|(train|sft|splice\.train)\.total_steps|train\.document_mask|base\.\w+"
        r"|tokenizer\.(corpus|vocab_size)|splice\.dataset_name|parts\.text_bytes|eval\.(prompts|questions)"
        r"|sources\.\w+\.(use|input|remote|val_name|budget\.\w+|split\.val_frac)"
    )
    found = [said for said in problems(json.dumps(emptied(raw))) if "is missing" in said]
    assert sorted(found) == sorted(
        f"params.yaml: {leaf} is missing: it has no default" for leaf in leaves(raw) if ending.fullmatch(leaf)
    )


def test_an_error_hides_no_other_of_its_kind() -> None:
    """All invalid values are reported at once, and if there are none, all conflicts between values."""
    alone = {
        "sources.wiki.remote": "not a word",
        "p_sft.dolly15k": "half",
        "model.L": 0,
        "memorize.B": 0,
    }
    between = {
        "sources.roam.val_name": "val_wiki",
        "p_train.roam": -1.0,
        "p_train.news": 1.0,
        "model.H": 3,
        "memorize.prompt_tokens": 100,
    }
    said = ["sources.wiki.remote is 'not a word'", "p_sft.dolly15k is 'half'", "model.L is 0", "memorize.B is 0"]
    conflicts = [
        "val_name 'val_wiki' is used by sources.wiki and sources.roam",
        "{'roam': -1.0}",
        "p_train has weights for ['news']",
        "C=128 is not a multiple of H=3",
        "100 must be less than chunk_size=100",
    ]
    for values, expected in (({**alone, **between}, said), (between, conflicts)):
        found = problems(changed(values))
        for words in expected:
            assert sum(words in sentence for sentence in found) == 1, (words, found)
        assert len(found) == len(expected)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        *((written, "the project itself lies in there") for written in ("..", "../..", "/")),
        *((written, "the project itself lies in there") for written in (".", "a/..", "./.")),
        *((f"{name}/x", f"{name}/ is no place for text") for name in ("cache", "models", "metrics", ".git", ".dvc")),
        ("checkpoints", "checkpoints/ is no place for text"),
        ("data/../logs", "logs/ is no place for text"),
        ("link", "the project itself lies in there"),
        ("a\0b", "not printable"),
        ("a\nb", "not printable"),
        ("", "at least 1 character"),
        (" ", "the name is empty or not printable"),
    ],
)
def test_an_input_that_is_no_place_for_text_is_refused(
    written: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    os.symlink("..", "link")
    _, raw = parse_params(TEXT)
    raw["sources"]["roam"]["input"] = raw["sources"]["oasst1"]["input"] = written
    found = problems(json.dumps(raw))
    assert [words in sentence for sentence in found] == [True, True]
    assert found[0].startswith("params.yaml: sources.roam.input")
    assert found[1].startswith("params.yaml: sources.oasst1.input")


def test_an_input_may_lie_anywhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    os.symlink("loop", "loop")
    _, raw = parse_params(TEXT)
    for written in (
        "../notes",
        str(tmp_path / "notes"),
        "data/no-input.md",
        "data",
        "my cache",
        "Smørrebrød",
        "loop",
        "*",
    ):
        raw["sources"]["roam"]["input"] = written
        assert parse_params(json.dumps(raw))[0].sources["roam"].input == written


def test_a_file_is_named_by_its_own_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    with pytest.raises(ValueError, match=r"there is no .*mine\.yaml here"):
        read_params(file)
    for text, words in (("", "holds no parameters"), ("a: [", "not valid YAML"), ("a: 1", "a is not a parameter")):
        file.write_text(text)
        with pytest.raises(ParamsError, match=words) as error:
            read_params(file)
        assert all(problem.sentence.startswith(str(file)) for problem in error.value.problems)
    file.write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"mine\.yaml is not UTF-8 text \(byte 1\)"):
        read_params(file)


@pytest.mark.parametrize("key", ["1", "'a\\nb'", "null", "true", "1.5", "~", "''"])
def test_a_strange_key_gets_a_sentence(key: str) -> None:
    for text in (f"{key}: 1\n", TEXT.replace("model:\n", f"model:\n  {key}: 1\n", 1)):
        assert all("\n" not in sentence for sentence in problems(text))
    assert any("sources" in sentence for sentence in problems(TEXT.replace("  roam:\n", f"  {key}:\n", 1)))
