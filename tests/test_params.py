"""params.yaml: its keys are frozen here, and what is wrong in it gets a sentence."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from stages.params import Params, parse_params
from tests.conftest import ROOT, with_values

TEXT = (ROOT / "params.yaml").read_text()


def leaves(tree: Any, prefix: str = "") -> set[str]:
    if not isinstance(tree, dict):
        return {prefix}
    return {leaf for key, value in tree.items() for leaf in leaves(value, f"{prefix}.{key}" if prefix else key)}


def test_the_key_set_is_frozen() -> None:
    """A new key is a change of the public surface: write it here as well, and into the README's table."""
    params, raw = parse_params(TEXT)
    assert isinstance(params, Params)
    source = ["input", "remote", "val_name", "load.kind", "shard.max_train_tokens", "shard.max_val_tokens", "split.by"]
    by_document = ["split.val_frac", "split.seed"]
    chat = [
        "input",
        "remote",
        "val_name",
        "load.kind",
        "load.dataset",
        "load.revision",
        "load.seed",
        "split.by",
        *by_document,
    ]
    schedule = ["seed", "total_steps", "B", "base_lr", "min_lr", "warmup_steps", "weight_decay", "beta1", "beta2"]
    schedule += ["grad_clip", "eval_every", "eval_steps", "precision", "optimizer"]
    expected = {
        *(f"sources.wiki.{key}" for key in [*source, "load.dataset", "load.config", "load.revision"]),
        *(f"sources.roam.{key}" for key in [*source, *by_document]),
        *(f"sources.primer.{key}" for key in [*source, *by_document, "load.delimiter"]),
        *(f"tokenizer.{key}" for key in ["kind", "corpus", "vocab_size", "sample_bytes", "seed"]),
        *(f"chats.dolly15k.{key}" for key in [*chat, "load.include_system", "load.max_documents"]),
        *(f"chats.oasst1.{key}" for key in [*chat, "load.english_only", "load.max_messages", "load.max_trees"]),
        "shard.shard_bytes",
        *(f"p_train.{name}" for name in ("wiki", "roam", "primer")),
        *("p_val.wiki", "p_sft.dolly15k", "p_sft.oasst1"),
        *(f"model.{key}" for key in ["T", "C", "L", "H", "d_ff", "dropout", "rope_theta"]),
        *(f"{stage}.{key}" for stage in ("train", "sft", "splice.train") for key in schedule),
        *(f"splice.{key}" for key in ["dataset_name", "num_docs", "min_doc_length", "max_doc_length", "doc_index"]),
        *(f"splice.{key}" for key in ["doc_select_mode", "strict_num_docs", "restrict_to_training_subset", "shuffle"]),
        *(f"splice.{key}" for key in ["balance_mode", "balance_tau", "epoch_length"]),
        *(f"splice.training_subset.{key}" for key in ["max_train_batches", "initial_batch_size"]),
        "splice.training_subset.num_validation_sequences",
        "train.document_mask",
        *(f"splice.spans.{key}" for key in ["mode", "content_start_mode", "content_length", "content_stride"]),
        *(f"splice.spans.{key}" for key in ["offset_stride", "offset_bound", "min_copy_len", "alpha", "adaptive_k"]),
        *(f"splice.spans.{key}" for key in ["include_tail", "suffix_starts", "offset_jitter", "jitter_mode"]),
        *(f"memorize.{key}" for key in ["chunk_size", "prompt_tokens", "cursor_inc_tokens", "top_k", "B"]),
        *(
            f"eval.{key}"
            for key in ["B", "max_tokens", "prompts", "questions", "max_new_tokens", "temperature", "top_k", "seed"]
        ),
        *(f"runtime.{key}" for key in ["device", "hub_patience_s", "threads", "log_every", "checkpoint_every"]),
        *(f"runtime.{key}" for key in ["nproc", "compile", "micro_batch_tokens", "deterministic"]),
    }
    assert leaves(raw) == expected


@pytest.mark.parametrize("preset", sorted((ROOT / "presets").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_preset_is_a_whole_valid_set(preset: Any) -> None:
    _, raw = parse_params(preset.read_text())
    own = ("sources", "chats", "p_train", "p_val", "p_sft", "tokenizer")
    _, sample = parse_params(TEXT)
    assert {leaf for leaf in leaves(raw) if not leaf.startswith(own)} == {
        leaf for leaf in leaves(sample) if not leaf.startswith(own)
    }


def test_the_committed_parameters_are_the_sample() -> None:
    assert (ROOT / "presets/sample.yaml").read_text() == TEXT


def test_v0_is_the_seeds() -> None:
    params, _ = parse_params((ROOT / "presets/v0.yaml").read_text())
    model = params.model.model_dump()
    assert model == {"T": 256, "C": 256, "L": 4, "H": 4, "d_ff": 1024, "dropout": 0.1, "rope_theta": 10000.0}
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
        ({"model.C": 130}, ["model: C=130 is not a multiple of H=4"]),
        ({"model.C": 12}, ["model: D = C/H = 12/4 = 3 is odd"]),
        ({"p_train.roam": -0.1}, ["p_train", "'roam': -0.1"]),
        ({"p_train.room": 0.1}, ["p_train has weights for ['room'], which are no sources", "'roam'"]),
        ({"p_train": {"wiki": 0, "roam": 0, "primer": 0}}, ["p_train has no weight above 0"]),
        ({"p_train": {"wiki": 1, "roam": 0}}, ["p_train has no weight for ['primer']"]),
        ({"p_train.roam": float("nan")}, ["p_train", "not finite"]),
        ({"p_val": {"news": 1.0}}, ["p_val has weights for ['news']"]),
        ({"shard.shard_bytes": 3}, ["shard.shard_bytes is 3", "multiple of 2"]),
        ({"sources.primer.val_name": "val_wiki"}, ["val_name ['val_wiki'] is used by more than one"]),
        ({"runtime.devise": "cpu"}, ["runtime.devise is not a parameter; did you mean device?"]),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(values: dict[str, object], sentences: list[str]) -> None:
    with pytest.raises(ValueError, match=re.escape(sentences[0])) as error:
        parse_params(with_values(TEXT, values))
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


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ValueError, match=r"train\.B is missing"):
        parse_params(TEXT.replace("  B: 32\n", "", 1).replace("  B: 16\n", "", 1).replace("  B: 8\n", "", 1))
    with pytest.raises(ValueError, match="holds no parameters"):
        parse_params("")


def test_numbers_as_dvc_writes_them_are_numbers() -> None:
    params, _ = parse_params(TEXT.replace("base_lr: 0.0", "base_lr: 1e-05 #"))
    assert params.train.base_lr == 1e-5
