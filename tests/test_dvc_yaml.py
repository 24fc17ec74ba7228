"""Tests that dvc.yaml agrees with the code of the stages."""

import configparser
import contextlib
import importlib
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import torch
import yaml
from pydantic.fields import FieldInfo

from niels_gpt.data.kinds import source_kinds
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.code import code_of
from niels_gpt.pipeline.params import Params, parse_params
from niels_gpt.pipeline.sections import CommonLoad, Source
from niels_gpt.pipeline.stage import Stage, execute, only_declared, read_inputs
from niels_gpt.pipeline.yaml_files import default_of, members, parse_yaml
from tests.conftest import ITERATED, ROOT, STAGES, make_repo


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_depends_on_the_record_of_its_own_code(name: str) -> None:
    code = [dep for dep in STAGES[name]["deps"] if dep.startswith(("cache/code", "niels_gpt", "stages"))]
    record = "load/${item.load.kind}" if name == "load" else name
    assert code == (["niels_gpt", "stages"] if name == "code" else [f"cache/code/{record}.json"])


def test_every_module_of_stages_is_a_stage() -> None:
    assert {path.stem for path in (ROOT / "stages").glob("*.py")} == {"__init__", *STAGES}


@pytest.mark.parametrize("name", STAGES)
def test_no_parameter_reaches_the_shell(name: str) -> None:
    assert STAGES[name]["cmd"] == f"python -m stages.{name}"


def test_curves_are_made_of_every_model_that_is_trained() -> None:
    for (stage, folder), writes in zip(layout.MODEL_OF.items(), ("curves", "eval", "memorize"), strict=True):
        curves = {out.replace("train", stage): about for out, about in outs_of("curves").items()}
        assert curves.items() <= outs_of(writes).items()
        assert {str(folder), "cache/tokenizer"} <= {*STAGES[writes]["deps"]}
        assert STAGES[stage]["outs"] == [str(folder)]


# Paths that a stage opens without declaring them, and the declared file that changes whenever they do.
NAMED_BY_HASH = {
    "tokenizer": {"cache/raw": "cache/split/text"},  # split.json holds the sha256 of the manifest of the texts
    "train": {"cache/tokens/text": "cache/mix.json"},
    "sft": {"cache/tokens": "cache/mix.json", "cache/tokens/chat": "cache/chat_mix.json"},
    "eval": {"cache/tokens": "cache/mix.json", "cache/tokens/chat": "cache/chat_mix.json"},
    "leak": {"cache/tokens": "cache/mix.json", "cache/tokens/chat": "cache/chat_mix.json", "cache/raw": "cache/split"},
}
SOURCES = ("wiki", "dolly15k")
_watched: list[set[str]] = []  # one set, of paths that the running stage has opened; empty if none runs


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched and event == "open" and isinstance(arguments[0], str | Path):
        _watched[-1].add(os.path.relpath(arguments[0]))


@dataclass(frozen=True)
class Ran:
    """Data that a stage has opened, and data that dvc.yaml declares for it."""

    opened: set[str]
    declared: set[str]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Run every stage in turn, in this process, on one text source and one chat source; return what each opened."""
    repo = make_repo(tmp_path_factory.mktemp("in-process") / "repo")
    values = parse_yaml((repo.path / "params.yaml").read_text(), name="params.yaml")
    values["sources"] = {name: {**values["sources"][name], "remote": "private"} for name in SOURCES}
    values["p_train"], values["p_sft"], values["splice"]["dataset_name"] = {"wiki": 1.0}, {"dolly15k": 1.0}, "wiki"
    for section in (values["train"], values["sft"], values["splice"]["train"]):
        section |= {"total_steps": 2, "eval_every": 2, "warmup_steps": 1}
    values["eval"]["max_new_tokens"] = 2
    values["splice"]["restrict_to_training_subset"] = True
    (repo.path / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    found: dict[str, Ran] = {}

    def watched(stage: Stage) -> None:
        """Run a stage and record what it opens, without the checks for changed inputs before and after it."""
        _watched.append(set())
        try:
            importlib.import_module(f"stages.{stage.name}").main(stage)
        finally:
            files = {file for file in _watched.pop() if file.startswith(("cache/", "data/", "metrics/", "models/"))}
        deps = {
            dep
            for dep in stage.inputs.deps
            if not dep.startswith(("cache/code", "niels_gpt", "stages", "data/no-input", "models/base"))  # no base here
        }
        before = found.get(stage.name, Ran(set(), set()))
        opened = {file for file in files if ".tmp" not in file}
        found[stage.name] = Ran(opened=before.opened | opened, declared=before.declared | deps)

    threads = torch.get_num_threads()
    sys.addaudithook(_watch)
    with contextlib.chdir(repo.path):
        for name in STAGES:
            for key in SOURCES if name in ITERATED else ("",):
                execute(name, key, watched)
    torch.set_num_threads(threads)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", STAGES)
def test_data_a_stage_opens_is_in_its_deps_and_nothing_else_is(ran: dict[str, Ran], name: str) -> None:
    opened, declared, through = ran[name].opened, ran[name].declared, NAMED_BY_HASH.get(name, {})

    def inside(file: str, places: set[str]) -> bool:
        return any(file == place or file.startswith(f"{place}/") for place in places)

    assert [file for file in sorted(opened) if not inside(file, declared | set(through))] == []
    assert {dep for dep in declared if not any(inside(file, {dep}) for file in opened)} == set()
    assert all(inside(file, declared) for file in through.values()) or name == "tokenizer"  # a byte one needs no corpus


def test_a_stage_sees_the_parameters_that_it_declares_and_no_others() -> None:
    params, _ = parse_params((ROOT / "params.yaml").read_text())
    seen = only_declared(params, ["seed", "sources.wiki.load", "model.dropout", "train"])
    assert seen.train == params.train
    assert seen.runtime == params.runtime
    assert seen.model.dropout == params.model.dropout
    assert seen.sources["wiki"].load == params.sources["wiki"].load
    assert seen.sources["wiki"].input == params.sources["wiki"].input
    assert list(seen.sources) == list(params.sources)
    assert (list(seen.texts), list(seen.chats)) == (["wiki", "roam", "primer"], ["dolly15k", "oasst1", "dialogues"])
    for hidden in (
        lambda: seen.sft,
        lambda: seen.p_train,
        lambda: seen.model.T,
        lambda: seen.model.norm,  # has a default
        lambda: seen.sources["wiki"].split,
        lambda: seen.sources["roam"].load,
        lambda: seen.chats["dolly15k"].load,
    ):
        with pytest.raises(AttributeError):
            hidden()


def test_a_stage_that_does_not_declare_the_seed_sees_none_that_follows_it() -> None:
    with contextlib.chdir(ROOT):
        seen = {name: read_inputs(name, "")[0] for name in ("cache", "leak")}
    assert seen["leak"].leak.seed == seen["leak"].sources["roam"].split.seed == 42
    assert seen["cache"].sources["dolly15k"].load.seed == 42  # does not follow the top-level seed
    for hidden in (lambda: seen["cache"].seed, lambda: seen["cache"].sources["roam"].split.seed):
        with pytest.raises(AttributeError):
            hidden()


def test_stages_that_sample_depend_on_the_seed_and_no_others() -> None:
    declare = {name for name, stage in STAGES.items() if "seed" in stage.get("params", [])}
    assert declare == {"duplicates", "split", "tokenizer", "train", "sft", "splice", "leak", "eval", "report"}


def fields_at(path: list[str], shape: Any) -> list[FieldInfo]:
    """Return the schema's field of each key on a path, except the keys of mappings, such as names of sources."""
    found: list[FieldInfo] = []
    kinds = [shape]
    for key in path:
        if get_origin(kinds[0]) is dict:
            kinds = members(get_args(kinds[0])[1])
            continue
        field = next(kind.__pydantic_fields__[key] for kind in kinds if key in kind.__pydantic_fields__)
        found.append(field)
        kinds = members(field.annotation)
    return found


@pytest.mark.parametrize("name", STAGES)
def test_a_key_that_dvc_is_asked_for_has_no_default(name: str) -> None:
    """If such a key is missing, DVC stops with an error of its own, before any code of this project runs."""
    text = json.dumps(STAGES[name]).replace("${item.", "${sources.x.").replace("${key}", "x")
    asked = {*re.findall(r"\$\{([\w.]+)\}", text), *json.loads(text).get("params", [])}
    for path in asked:
        assert all(field.is_required() for field in fields_at(path.split("."), Params)), path


def defaults_below(shape: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield (path, module of the class that has it) of each key whose default is neither None nor empty."""
    for kind in members(shape):
        if get_origin(kind) is dict:
            yield from defaults_below(get_args(kind)[1], path)
        for key, field in getattr(kind, "__pydantic_fields__", {}).items():
            if key not in ("run", *CommonLoad.model_fields) and default_of(field) not in (..., None, {}):
                (owner, *_) = [of for of in kind.__mro__ if key in vars(of).get("__annotations__", {})]
                yield f"{path}.{key}", owner.__module__
            yield from defaults_below(field.annotation, f"{path}.{key}")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*STAGES} - {"code", "load"}))
def test_a_default_is_part_of_the_code_of_each_stage_that_declares_it(name: str) -> None:
    """A changed default must rerun the stages that depend on it, though params.yaml is the same."""
    code = set(code_of(name, ROOT))
    for path in (param.replace("${key}", "x") for param in STAGES[name].get("params", [])):
        for leaf, module in defaults_below(fields_at(path.split("."), Params)[-1].annotation, path):
            shown = name == "report" and leaf.startswith("tokenizer.")  # the report only prints it
            if ".load." not in leaf and not shown:
                assert f"{module.replace('.', '/')}.py" in code or f"{module.replace('.', '/')}/__init__.py" in code, (
                    leaf,
                    module,
                )


@pytest.mark.parametrize("kind", source_kinds())
def test_a_default_of_a_kind_is_part_of_the_code_that_loads_it(kind: str) -> None:
    code = code_of("load", ROOT, kind=kind)
    for load in members(Source.__pydantic_fields__["load"].annotation):
        for leaf, module in defaults_below(load, load.__name__) if load.__name__ == kind else ():
            assert f"{module.replace('.', '/')}.py" in code, leaf


def outs_of(name: str) -> dict[str, dict[str, Any]]:
    """Return {path: options} of all outputs of a stage: outs, metrics and plots."""
    declared = [out for kind in ("outs", "metrics", "plots") for out in STAGES[name].get(kind, [])]
    return {path: about for out in declared for path, about in ({out: {}} if isinstance(out, str) else out).items()}


@pytest.mark.parametrize("name", STAGES)
def test_no_stage_declares_runtime_and_no_out_is_named_by_a_value(name: str) -> None:
    assert not any(param.split(".")[0] == "runtime" for param in STAGES[name].get("params", []))
    assert outs_of(name)
    for out in outs_of(name):
        assert "$" not in out.replace("${key}", "").replace("${item.use}", "")
        assert out.startswith(("cache/", "metrics/", "models/")), out
        assert ".." not in out


@pytest.mark.parametrize(
    ("use", "key"), [("text", "../../x"), ("text", "../../../x"), ("..", "x"), ("../../..", "x"), ("../x", "y")]
)
def test_a_name_or_a_use_that_leads_out_of_its_folder_gives_two_stages_one_output(use: str, key: str) -> None:
    """DVC deletes outputs before it runs a stage, but first it refuses two stages with the same output.

    `../../x` is the same path from every folder of the same depth.
    """
    outs = [
        os.path.normpath(out.replace("${item.use}", use).replace("${key}", key))
        for name in ITERATED
        for out in outs_of(name)
    ]
    assert len(outs) == 4
    assert len(set(outs)) < len(outs)


@pytest.mark.parametrize("name", STAGES)
def test_outputs_of_one_source_go_to_its_remote_and_all_others_to_the_private_one(name: str) -> None:
    """Private notes may be in vocabularies, mixes and models, so these go to the default remote, which is private."""
    config = configparser.ConfigParser()
    config.read(ROOT / ".dvc/config")
    assert config["core"]["remote"] == "private"
    for out, about in outs_of(name).items():
        assert about.get("remote") == ("${item.remote}" if name in ITERATED else None), out
