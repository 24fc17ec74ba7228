"""Tests of code fingerprints: everything but comments, docstrings and layout changes them."""

import hashlib
import importlib
import json
import sys
from pathlib import Path

import pytest

from niels_gpt.data.kinds import kind_files
from niels_gpt.files.checks import Damaged
from niels_gpt.pipeline.code import closure, code_of, describe_code, fingerprint, holding_to, imported_files
from niels_gpt.pipeline.yaml_files import parse_yaml
from scripts.accept_refactoring import only_code_changed
from tests.conftest import ROOT, Repo

MODULE = '''"""About it."""
import re
from a import b as c

X: dict[str, int] = {"a": 1, **{}}  # why


@c(1, k=2)
class A(B, metaclass=M):
    """A class."""

    y = 1.5e-3, 2j, b"\\x00", None, ..., -0.0, "ü" u"ü"

    async def f(self, /, a, *args: int, b: "str" = 1, **kw) -> None:
        """What it does."""
        async with x as (y, z):
            return await y
        yield [i async for i in z if i for j in k]


def g(x, *, y=lambda *a, k=3: (a, k)):
    match x:
        case {"a": [1, *rest], **others} if rest:
            return f"{x!r:>{y}}{'nested' + f'{1:.2f}'}" "joined"
        case A(y=1) | None | -1:
            del x[1:2, ::3], x.y
    while (n := x) not in (1,):
        try:
            n += 1
        except* (OSError, ValueError) as error:
            raise E from error
        else:
            continue
        finally:
            assert n, "why"
    global h
    with open(x) as f, f:
        print(*x, sep="", **y)
    return not x if x else (yield)
'''
# Fingerprint of MODULE in every Python version, since people who share a repository use different versions.
FINGERPRINT = "d6490d9d065348cac7ef7ef9f3378ff3fa9495046809ff87721552c8ade6158d"
SAME = {
    "comments": MODULE.replace("  # why", "").replace("import re", "# here\nimport re"),
    "docstrings": MODULE.replace('"""About it."""\n', "").replace('"""What it does."""', '"""More."""\n        '),
    "layout": MODULE.replace("\n\n\n", "\n").replace("(a, k)", "(\n    a,\n    k,\n)").replace('sep=""', "sep=''"),
}
OTHERS = {
    "a constant": ("1.5e-3", "1.5e-4"),
    "a name": ("return await y", "return await z"),
    "an operator": ("not in (1,)", "in (1,)"),
    "a string that is no docstring": ('"joined"', '"other"'),
    "a default": ("k=3", "k=4"),
    "the order": ("1.5e-3, 2j", "2j, 1.5e-3"),
    "None and nothing": ("case A(y=1) | None", "case A(y=1) | False"),
    "a kind of number": ("{1:.2f}", "{1.0:.2f}"),
    "a handler": ("except*", "except"),
    "a decorator": ("@c(1, k=2)\n", ""),
}


def test_a_fingerprint_is_the_same_under_every_version_of_python() -> None:
    assert fingerprint(MODULE) == FINGERPRINT


@pytest.mark.parametrize("what", SAME)
def test_comments_docstrings_and_layout_are_not_in_a_fingerprint(what: str) -> None:
    assert SAME[what] != MODULE
    assert fingerprint(SAME[what]) == fingerprint(MODULE)


def test_the_help_of_a_setting_is_not_in_a_fingerprint_and_its_range_is() -> None:
    setting = 'x: Annotated[Literal["a"] | int, Ge(1), "how long"] = 2'
    assert fingerprint(setting.replace("how long", "for how long")) == fingerprint(setting)
    for before, after in (("Ge(1)", "Ge(2)"), ('"a"', '"b"'), ("= 2", "= 3"), ("Annotated", "Other"), ("Ge", "Gt")):
        assert fingerprint(setting.replace(before, after)) != fingerprint(setting)


@pytest.mark.parametrize("what", OTHERS)
def test_everything_else_is_in_a_fingerprint(what: str) -> None:
    before, after = OTHERS[what]
    assert MODULE.count(before) == 1
    assert fingerprint(MODULE.replace(before, after)) != fingerprint(MODULE)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_imports_are_followed_into_packages_and_functions_and_not_beyond_what_is_neutral(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "stages/s.py": "import json\nfrom niels_gpt.a import x\ndef f():\n    import niels_gpt.late.b\n",
            "niels_gpt/__init__.py": "",
            "niels_gpt/a.py": "if TYPE_CHECKING:\n    import niels_gpt.typed\nfrom niels_gpt.files import atomic",
            "niels_gpt/typed.py": "x = 1",
            "niels_gpt/late/__init__.py": "try:\n    1\nexcept E:\n    from niels_gpt import c",
            "niels_gpt/c.py": "match x:\n    case 1:\n        import niels_gpt.d",
            "niels_gpt/d.py": "v = 1",
            "niels_gpt/late/b.py": "y = 1",
            "niels_gpt/files/atomic.py": "import niels_gpt.behind",
            "niels_gpt/behind.py": "w = 1",
        },
    )
    found = closure([tmp_path / "stages/s.py"], tmp_path)
    assert found == {"stages/s.py", *(f"niels_gpt/{name}.py" for name in ("a", "late/__init__", "late/b", "c", "d"))}
    for relative in ("from . import c", "from .c import d"):
        write(tmp_path, {"niels_gpt/a.py": relative})
        with pytest.raises(ValueError, match=r"^niels_gpt/a.py: write the import of line 1 out"):
            closure([tmp_path / "stages/s.py"], tmp_path)


@pytest.mark.slow
def test_every_kind_of_source_and_every_stage_has_a_record() -> None:
    stages = parse_yaml((ROOT / "dvc.yaml").read_text(), name="dvc.yaml")["stages"]
    modules = {name.removesuffix("_chat") for name in stages} - {"code", "load"}
    assert set(describe_code(ROOT)) == modules | {f"load/{kind}" for kind in kind_files(ROOT / "niels_gpt/data")}


@pytest.mark.slow
def test_a_loaders_code_is_in_the_record_of_its_kind_alone() -> None:
    kinds = {kind: f"niels_gpt/data/{path.name}" for kind, path in kind_files(ROOT / "niels_gpt/data").items()}
    for kind, file in kinds.items():
        inside = set(code_of("load", ROOT, kind=kind)) & set(kinds.values())
        assert inside == {file}, kind
    for stage, files in describe_code(ROOT).items():
        assert stage.startswith("load/") or not set(files) & set(kinds.values()), stage


# Code that affects how a stage runs, not what it computes: it decides no number, row or byte of the results.
NEUTRAL = (
    *("niels_gpt/__init__.py", "niels_gpt/device.py", "niels_gpt/train/meter.py"),
    *("niels_gpt/cli/", "niels_gpt/jobs/", "niels_gpt/files/", "niels_gpt/pipeline/"),
)
DECIDING = {"niels_gpt/pipeline/training.py"}


@pytest.mark.slow
def test_every_import_of_a_recorded_file_is_recorded_unless_it_is_neutral() -> None:
    for stage, recorded in describe_code(ROOT).items():
        for file in recorded:
            for imported in imported_files(ROOT / file, ROOT) if file.endswith(".py") else []:
                name = imported.relative_to(ROOT).as_posix()
                neutral = name.startswith(NEUTRAL) and name not in DECIDING
                assert neutral or name in recorded or not imported.read_text(), f"{stage}: {file} imports {name}"
        assert [file for file in recorded if file.startswith(NEUTRAL) and file not in DECIDING] == []


@pytest.mark.slow
def test_what_trains_a_model_is_in_the_record_of_every_training() -> None:
    core = ("rng", "batching", "lr_schedule", "config", "checkpoint", "model/gpt", "model/blocks", "model/loss")
    loop = ("loop", "step", "optimizer", "task", "state")
    files = {*(f"niels_gpt/{name}.py" for name in core), *(f"niels_gpt/train/{name}.py" for name in loop)}
    for stage in ("train", "sft", "splice"):
        assert files - set(code_of(stage, ROOT)) == set(), stage


@pytest.mark.slow
def test_files_inlined_in_a_page_are_in_the_records_of_the_stages_that_write_it() -> None:
    holding = {stage for stage, files in describe_code(ROOT).items() if "niels_gpt/report/web/page.js" in files}
    assert holding == {"report", "leak", "memorize"}
    files = code_of("report", ROOT)
    for path in (ROOT / "niels_gpt/report/web").rglob("*.*s"):
        assert files[path.relative_to(ROOT).as_posix()] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert "niels_gpt/eval/pairs.tsv" in code_of("eval", ROOT)
    assert "niels_gpt/eval/pairs.tsv" not in files


@pytest.mark.slow
def test_a_stage_holds_to_the_recorded_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        tmp_path,
        {
            "stages/s.py": "import held_early, held_late",
            "niels_gpt/data/none.py": "",
            "held_early.py": "x = 1",
            "held_late.py": "x = 1",
        },
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("niels_gpt.pipeline.code._PACKAGES", ("held_early", "held_late"))
    monkeypatch.syspath_prepend(str(tmp_path))
    record = Path("cache/code/s.json")
    for damaged in ("[]", "{"):
        write(tmp_path, {str(record): damaged})
        with pytest.raises(Damaged, match=r"^cache/code/s.json (holds no JSON object|is not valid JSON)"):
            holding_to(record).__enter__()
    write(tmp_path, {str(record): json.dumps(code_of("s", Path()))})
    importlib.import_module("held_early")
    with holding_to(record):
        write(tmp_path, {"held_early.py": "x = 2"})  # already imported, so an edit is allowed
    with pytest.raises(ValueError, match=r"^held_early.py changed since cache/code/s.json was written: `dvc repro`"):
        holding_to(record).__enter__()
    write(tmp_path, {"held_early.py": "x = 1  # explained"})

    def edit_and_import() -> None:
        write(tmp_path, {"held_late.py": "x = 2"})
        importlib.import_module("held_late")

    with (
        pytest.raises(ValueError, match=r"^held_late.py changed before the stage came to import it"),
        holding_to(record),
    ):
        edit_and_import()
    for name in ("held_early", "held_late"):
        sys.modules.pop(name, None)


def test_code_that_is_as_it_was_to_the_byte_is_not_parsed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"stages/s.py": "x = 1", "niels_gpt/data/none.py": ""})
    monkeypatch.chdir(tmp_path)
    record, module = Path("cache/code/s.json"), Path("stages/s.py")
    write(tmp_path, {str(record): json.dumps(code_of("s", Path()))})

    def note() -> None:
        hashes = {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in (record, module)}
        write(tmp_path, {"cache/code/files.json": json.dumps(hashes)})

    note()
    parsed: list[str] = []
    monkeypatch.setattr("niels_gpt.pipeline.code.code_of", lambda name, *_, **__: parsed.append(name) or {})
    holding_to(record).__enter__()
    assert not parsed
    write(tmp_path, {str(module): "x = 1  # explained"})
    with pytest.raises(ValueError, match=r"^stages/s.py changed since"):
        holding_to(record).__enter__()
    assert parsed == ["s"]
    note()
    write(tmp_path, {str(record): "{}"})  # the record is no longer the one that was hashed
    holding_to(record).__enter__()
    assert parsed == ["s", "s"]


def edit(repo: Repo, file: str, before: str, after: str) -> None:
    path = repo.path / file
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, after))


@pytest.mark.dag
def test_an_edit_of_the_code_runs_what_it_can_change(built_repo: Repo) -> None:
    edit(built_repo, "niels_gpt/lr_schedule.py", "def lr_at_step", "# The rate of a step.\ndef lr_at_step")
    assert built_repo.repro() == ["code"]
    noted = json.loads((built_repo.path / "cache/code/files.json").read_text())
    assert {"niels_gpt/lr_schedule.py", "stages/eval.py", "cache/code/train.json", "cache/code/load/roam.json"} < set(
        noted
    )
    assert all(hashlib.sha256((built_repo.path / file).read_bytes()).hexdigest() == noted[file] for file in noted)
    edit(built_repo, "niels_gpt/data/roam.py", 'KIND = "roam"', 'KIND = "roam"\n_NEW = 1')
    assert built_repo.repro() == ["code", "load@roam"]  # its output is unchanged, so nothing else runs
    edit(built_repo, "stages/memorize.py", "def main(", "_NEW = 1\n\n\ndef main(")
    assert built_repo.repro() == ["code", "memorize"]


@pytest.mark.dag
def test_a_refactoring_is_recorded_without_a_run_and_other_changes_are_not(built_repo: Repo) -> None:
    edit(built_repo, "niels_gpt/lr_schedule.py", "def lr_at_step", "_NEW = 1\n\n\ndef lr_at_step")
    built_repo.set(sft__seed=7)
    said = built_repo.run("python", "-m", "scripts.accept_refactoring").stdout
    assert "sft differs in more than its code: `dvc repro` runs it" in said
    assert "6 stages are recorded as made by the code as it is now; commit dvc.lock" in said
    assert built_repo.repro() == ["sft", "leak", "eval", "report"]


def test_what_differs_in_more_than_its_code_runs_again() -> None:
    code = {"changed deps": {"cache/code/train.json": "modified"}}
    assert only_code_changed({"train": [code]}) == ["train"]
    for other in (
        {"changed deps": {"cache/code/train.json": "modified", "cache/mix.json": "modified"}},
        {"changed outs": {"models/pretrain": "deleted"}},
        "changed command",
    ):
        assert only_code_changed({"train": [code, other]}) == []
