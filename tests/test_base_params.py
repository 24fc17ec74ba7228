"""Tests of the section `base` of params.yaml: accepted combinations, and one-sentence errors for the others."""

from pathlib import Path

import pytest

from niels_gpt.pipeline.external_checks import problems_around
from niels_gpt.pipeline.params import parse_params
from tests.conftest import ROOT, with_values

SAMPLE = (ROOT / "params.yaml").read_text(encoding="utf-8")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
STARTED: dict[str, object] = {
    "base.from": "smollm2",
    "tokenizer": {"kind": "hf", "corpus": "models/base"},
    "model": {"T": 128, "dropout": 0.0},
}
SHAPED = {"T": 128, "dropout": 0.0, "C": 128, "L": 2}


def accepted(**changes: object) -> None:
    values = {**STARTED, **{name.replace("__", "."): value for name, value in changes.items()}}
    parse_params(with_values(SAMPLE, values))


@pytest.mark.slow
def test_each_way_to_name_a_base_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    accepted()
    accepted(base__from="someone/model-1.5", base__revision=COMMIT)
    accepted(base__from="my/models/tiny", base__input="my/models/tiny")
    accepted(base__from="/elsewhere/tiny.gguf", base__input="/elsewhere/tiny.gguf")


BAD = {
    r"base: revision is null: the hub id a/b needs a full commit sha": {"base.from": "a/b"},
    r"base: revision is main: the hub id a/b needs a full commit sha": {"base.from": "a/b", "base.revision": "main"},
    r"base: revision is '0123\w+', which is for hub ids: set it to null": {"base.revision": COMMIT},
    r"base: from is 'a/b\.gguf', a file or folder, and input is 'data/no-input\.md'": {"base.from": "a/b.gguf"},
    r"base: from is 'data/roam', a file or folder, and input is": {"base.from": "data/roam", "base.revision": COMMIT},
    r"base: from is '\./tiny', a file or folder, and input is": {"base.from": "./tiny"},
    r"base: input is 'x', and from 'smollm2' is no file or folder: set input to data/no-input\.md": {"base.input": "x"},
    r"base: models/ is no place for text": {"base.from": "models/sft", "base.input": "models/sft"},
    r"tokenizer\.kind: byte does not go with a base": {"tokenizer": {"kind": "byte", "corpus": "data/no-input.md"}},
    r"tokenizer\.kind: hf is the tokenizer of a base, and base\.from is null": {
        "base.from": None,
        "model": {**SHAPED, "H": 2, "d_ff": 512, "rope_theta": 1e4},
    },
    r"model: the base decides all but T and dropout: leave out C, L$": {"model": SHAPED},
    r"model\.T is missing": {"model": {"dropout": 0.0}},
}


@pytest.mark.parametrize("sentence", BAD)
def test_a_base_that_does_not_fit_is_refused_in_one_sentence(sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(ValueError, match=rf"^params\.yaml: {sentence}") as refused:
        parse_params(with_values(SAMPLE, {**STARTED, **BAD[sentence]}))
    assert "; params.yaml" not in str(refused.value)


def test_a_missing_base_is_reported_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("wikitext", "roam", "dolly", "oasst1", "primer.txt"):
        (tmp_path / "data" / name).mkdir(parents=True)
    params = parse_params(with_values(SAMPLE, {**STARTED, "base.from": "tiny", "base.input": "tiny"}))[1]
    (problem,) = problems_around(params, wrong=())
    assert problem == "base.input is tiny, which does not exist: put the model there, or set base.from to null"
