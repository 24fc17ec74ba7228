"""Tests of the epochs that a run makes over each source, and of the warning where they are too many."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.cli.doctor import examine
from niels_gpt.data.corpus.mix import Exposure, exposures, read_too_often
from niels_gpt.model.size import Reading, most_epochs
from niels_gpt.pipeline.params import read_params
from tests.conftest import ROOT


def test_epochs_are_sampled_tokens_divided_by_tokens_of_the_source() -> None:
    seen = exposures({"a": 3.0, "b": 1.0, "c": 0.0}, {"a": 500, "b": 1000, "c": 7}, drawn=8000)
    assert seen == {"a": Exposure(500, 0.75, 6000), "b": Exposure(1000, 0.25, 2000), "c": Exposure(7, 0.0, 0.0)}
    assert [source.epochs for source in seen.values()] == [12.0, 2.0, 0.0]
    assert Exposure(0, 0.5, 100).epochs == 0.0
    with pytest.raises(ValueError, match="p_train has weights for"):
        exposures({"x": 1.0}, {"a": 5}, drawn=1)


def test_only_a_source_that_is_read_more_often_than_the_bound_is_named() -> None:
    seen = {"a": Exposure(10, 0.5, 81), "b": Exposure(10, 0.5, 80)}
    (sentence,) = read_too_often(seen, most=8)
    assert sentence.startswith(
        "a is sampled for 8.1 epochs: no run of this size gained from more than 8, and repeated text is memorized"
    )
    assert sentence.endswith("use fewer steps, a smaller p_train.a, or more text")


def test_the_bound_is_that_of_the_runs() -> None:
    """The runs had 0.9 M and 4 M parameters. At the bound, the law credits over 98% of a repeated text's full worth."""
    assert [most_epochs(parameters) for parameters in (1000, 900_000, 1_999_999, 2_000_000, 4_000_000, 10**9)] == [
        *(16, 16, 16),
        *(8, 8, 8),
    ]
    assert [most_epochs(parameters, in_epochs=True) for parameters in (900_000, 2_000_000)] == [32, 32]
    for most, in_epochs in ((8, False), (16, False), (32, True)):
        assert Reading(1.0, most, in_epochs).as_new > 0.98 * Reading(1.0, 1000.0, in_epochs).as_new


def told(params: dict[str, Any]) -> list[tuple[str, str | None]]:
    found = [(finding.what, finding.advice) for finding in examine(params)]
    first = next(i for i, (what, _) in enumerate(found) if what.startswith("epochs: "))
    return found[first:-2]


def test_doctor_reports_epochs_from_the_size_of_the_text_or_from_counted_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = read_params(ROOT / "params.yaml")[1]
    monkeypatch.chdir(tmp_path)
    params |= {"tokenizer": {"kind": "byte", "corpus": "data/no-input.md"}}
    params["p_train"] = {"wiki": 1.0, "roam": 3.0, "primer": 0.0}
    drawn = 800 * 8 * 128
    assert told(params) == [("epochs: unknown until the text is loaded", None)]
    (tmp_path / "data/roam").mkdir(parents=True)
    (tmp_path / "data/roam/a.md").write_bytes(b"x" * 100_000)  # a tenth is for validation
    assert told(params) == [(f"epochs: roam {0.75 * drawn / 90_000:,.2f} of 90,000 tokens", None)]
    pieces = copy.deepcopy(params) | {"tokenizer": {"kind": "sentencepiece", "vocab_size": 1024}}
    assert told(pieces)[0][0] == f"epochs: roam {0.75 * drawn / 90_000 * 2.24:,.2f} of 40,179 tokens"
    (tmp_path / "cache").mkdir()
    counts = {"wiki": 400_000, "roam": 16_000, "primer": 5}
    mix = {"sources": {name: {"train": {"tokens": n}} for name, n in counts.items()}}
    (tmp_path / "cache/mix.json").write_text(json.dumps(mix))
    often = 0.75 * drawn / 16_000
    assert often > 32
    (first, no_advice), (second, advice) = told(params)
    assert first == f"epochs: wiki {0.25 * drawn / 400_000:,.2f} of 400,000 tokens, roam {often:,.2f} of 16,000 tokens"
    assert no_advice is None
    assert second.startswith(f"roam is sampled for {often:,.1f} epochs")
    assert advice == "use fewer steps, a smaller p_train.roam, or more text"
