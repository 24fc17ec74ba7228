"""Tests of what all stages share: their identity from DVC, inputs fixed during a run, outputs published atomically."""

import os
import shutil
from pathlib import Path

import pytest

from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import Damaged
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.code import code_of
from niels_gpt.pipeline.stage import Stage, digest, execute, project_root, read_inputs, sentence_with_remedy
from tests.conftest import ROOT, Repo, run_python


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project with the graph, its parameters and the code, but without the stages' inputs: a valid state."""
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("stages", "niels_gpt"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    for stage, kind in (("cache", ""), ("load", "oasst1")):
        record = layout.CODE / stage / f"{kind}.json" if kind else layout.CODE / f"{stage}.json"
        write_json(record, code_of(stage, Path(), kind=kind))
    return tmp_path


def run_module(project: Path, body: str, *, module: str = "cache", address: str | None = None) -> tuple[int, str, str]:
    """Run a stage with this `body` in a process, like `python -m stages.MODULE`; return (status, stdout, stderr)."""
    script = "import os, signal\nfrom niels_gpt.pipeline.stage import run_stage\n"
    script += f"def main(stage):\n    {body}\nrun_stage({module!r}, main)"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DVC_")}
    environment |= {"PYTHONPATH": str(ROOT)} | ({} if address is None else {"DVC_STAGE": address})
    done = run_python(script, cwd=project, env=environment)
    return done.returncode, done.stdout, done.stderr


def files(project: Path) -> set[str]:
    found = (path for path in project.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(project).as_posix() for path in found}


def test_a_source_that_is_not_there_is_named(project: Path) -> None:
    assert "sources.oasst1.load" in read_inputs("load", "oasst1")[1].params
    known = ["dialogues", "dolly15k", "oasst1", "primer", "roam", "wiki"]
    for key in ("nobody", ""):
        with pytest.raises(ValueError, match="source") as refused:
            read_inputs("load", key)
        assert str(refused.value) == f"there is no source {key!r} in params.yaml; there are: {known}"


@pytest.mark.slow
def test_a_process_takes_its_stage_from_the_environment(project: Path) -> None:
    body = "stage.say(stage.source.input)"
    for address in ("load@oasst1", "../dvc.yaml:load@oasst1"):  # the second if DVC was called in a subfolder
        assert run_module(project, body, module="load", address=address) == (0, "load@oasst1: data/oasst1\n", "")
    code, out, err = run_module(project, body, module="load", address="load@a\nb")
    assert (code, out) == (1, "")
    assert err.startswith(r"ERROR: load@a b: there is no source 'a\nb' in params.yaml")


@pytest.mark.slow
def test_a_damaged_output_is_named_with_its_remedy(project: Path) -> None:
    def said(path: str, *others: str) -> str:
        return sentence_with_remedy(Damaged(path, "is damaged", others=others)).removeprefix(f"{path} is damaged")

    assert said("cache/mix.json") == "; delete cache/mix.json and run `dvc repro`"
    assert said("models/pretrain/best.pt") == "; delete models/pretrain and run `dvc repro`"
    both = said("cache/split/text/a/train.npy", "cache/raw/a/part-00000.parquet", "cache/raw/a/manifest.json")
    assert both == "; delete cache/raw/a, cache/split/text/a and run `dvc repro`"
    assert said("elsewhere/best.pt") == said("cache/mix.json.bak") == ""
    assert run_module(
        project, "from niels_gpt.files.checks import Damaged; raise Damaged('cache/mix.json', 'is bad')"
    ) == (
        1,
        "",
        "ERROR: cache: cache/mix.json is bad; delete cache/mix.json and run `dvc repro`\n",
    )


@pytest.mark.slow
@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM"])
def test_a_stage_that_is_stopped_leaves_nothing(project: Path, signal: str) -> None:
    before = files(project)
    body = (
        f"stage.out('cache/mix.json').write_text('half'); os.kill(os.getpid(), signal.{signal}); stage.say('went on')"
    )
    code, out, err = run_module(project, body)
    assert (code, out, err) == (130, "", "cache: interrupted; nothing was written\n")
    assert files(project) == before


def test_outputs_appear_together_at_the_end(project: Path) -> None:
    def main(stage: Stage) -> None:
        first, second = stage.out("cache/mix.json"), stage.out("cache/chat_mix.json")
        first.write_text("one")
        second.write_text("two")
        assert stage.out("cache/mix.json").read_text() == "one"  # the same file, with its content
        assert not Path("cache/mix.json").exists()
        stage.on_success.append(lambda: seen.append(Path("cache/mix.json").read_text()))

    seen: list[str] = []
    (project / "cache/.mix.json.tmp1").write_text("of a run that was killed")
    before = files(project) - {"cache/.mix.json.tmp1"}
    execute("cache", "", main)
    assert files(project) == before | {"cache/mix.json", "cache/chat_mix.json"}
    assert Path("cache/mix.json").read_text() == "one"
    assert seen == ["one"]


def test_a_stage_that_fails_publishes_nothing(project: Path) -> None:
    def main(stage: Stage) -> None:
        stage.out("cache/mix.json").write_text("one")
        stage.out("cache/chat_mix.json").mkdir()
        raise ValueError("no")

    before = files(project)
    with pytest.raises(ValueError, match="no"):
        execute("cache", "", main)
    assert files(project) == before


@pytest.mark.parametrize(
    ("file", "change", "named"),
    [
        ("params.yaml", "dolly15k:\n    use: chat\n    input: data/dolly2", "sources"),
        ("cache/code/cache.json", "{}", "cache/code/cache.json"),
        ("cache/manifests/wiki.json", "{}", "cache/manifests"),
    ],
)
def test_what_changed_while_a_stage_ran_is_named(project: Path, file: str, change: str, named: str) -> None:
    def main(stage: Stage) -> None:
        stage.out("cache/mix.json").write_text("one")
        stage.on_success.append(lambda: pytest.fail("nothing was published"))
        path = Path(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        in_place = file == "params.yaml"
        before = "dolly15k:\n    use: chat\n    input: data/dolly"
        path.write_text(path.read_text().replace(before, change) if in_place else change)

    with pytest.raises(ValueError, match=f"^{named} changed while the stage ran"):
        execute("cache", "", main)
    assert not Path("cache/mix.json").exists()


def test_what_dvc_does_not_watch_may_change_while_a_stage_runs(project: Path) -> None:
    def main(stage: Stage) -> None:
        stage.out("cache/mix.json").write_text("one")
        Path("cache/manifests/.DS_Store").write_text("a folder was looked at")
        for name in (".git", "__pycache__"):  # as in a folder of notes with its own git repository
            Path("cache/manifests", name).mkdir(parents=True)
            Path("cache/manifests", name, "index").write_text("new")

    Path("cache/manifests").mkdir(parents=True, exist_ok=True)
    execute("cache", "", main)
    assert Path("cache/mix.json").read_text() == "one"


@pytest.mark.parametrize("folder", ["", "sub"])
def test_the_digest_of_a_folder_ignores_only_what_dvc_ignores(folder: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    (notes / folder).mkdir(parents=True)
    (notes / folder / "a.md").write_text("a note")
    before = digest(notes), digest(notes, whole=True)
    os.utime(notes / folder / "a.md", (1, 1))  # rewritten with the same content
    assert (digest(notes), digest(notes, whole=True)) == before
    for name in (".git", ".hg", ".dvc", "__pycache__", ".DS_Store"):
        put = notes / folder / name
        for content in ("new", "changed"):
            put.write_text(content)
            assert (digest(notes), digest(notes, whole=True)) == before, name
        put.unlink()
        put.mkdir()
        (put / "index").write_text("new")
        assert (digest(notes), digest(notes, whole=True)) == before, name
    for name in ("b.md", ".hidden.md", "DS_Store", "x.DS_Store", ".gitignore", ".obsidian", "git"):
        (notes / folder / name).write_text("new")
        after = digest(notes), digest(notes, whole=True)
        assert after != before, name
        (notes / folder / name).write_text("changed")
        assert (digest(notes), digest(notes, whole=True)) != after, name
        (notes / folder / name).unlink()
        assert (digest(notes), digest(notes, whole=True)) == before, name


def test_all_bytes_of_a_large_file_count_where_hosts_are_compared(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for file, last in ((one, b"a"), (other, b"b")):
        file.write_bytes(bytes(1 << 24) + last)
        os.utime(file, (1, 1))
    assert digest(one) == digest(other)  # by size and mtime: reading gigabytes would take longer than the stage
    assert digest(one, whole=True) != digest(other, whole=True)
    assert digest(one, whole=True) == digest(shutil.copyfile(one, other), whole=True)  # type: ignore[arg-type]


def test_code_may_be_edited_while_a_stage_runs_and_is_seen_by_the_next(project: Path) -> None:
    def main(stage: Stage) -> None:
        stage.out("cache/mix.json").write_text("one")
        with Path("stages/cache.py").open("a") as f:
            f.write("print('other code')\n")

    execute("cache", "", main)
    with pytest.raises(ValueError, match=r"^stages/cache.py changed since cache/code/cache.json was written: `dvc"):
        execute("cache", "", main)


def test_the_fingerprint_depends_on_declared_inputs_only(project: Path) -> None:
    def fingerprint(name: str) -> str:
        return read_inputs(name, "")[1].fingerprint()

    train, sft = fingerprint("train"), fingerprint("sft")
    text = (project / "params.yaml").read_text()
    (project / "params.yaml").write_text(text.replace("threads: 0", "threads: 1"))
    assert (fingerprint("train"), fingerprint("sft")) == (train, sft)
    (project / "params.yaml").write_text(text.replace("  dropout: 0.05", "  dropout: 0.1"))
    assert fingerprint("train") != train
    assert fingerprint("sft") != sft
    (project / "params.yaml").write_text(text.replace("  replay: 0.375\n", "  replay: 0.25\n"))
    assert fingerprint("train") == train
    assert fingerprint("sft") != sft
    (project / "params.yaml").write_text(text)
    (project / "cache/chat_mix.json").write_text("{}")
    assert fingerprint("train") == train
    assert fingerprint("sft") != sft


def test_checkpoints_are_kept_in_the_checkout_also_for_an_experiment_in_a_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DVC_ROOT", raising=False)
    assert project_root() == Path()
    monkeypatch.setenv("DVC_ROOT", "/the/checkout")
    assert project_root() == Path("/the/checkout")


@pytest.mark.dag
def test_a_hostile_name_runs_nothing_and_deletes_nothing(fresh_repo: Repo) -> None:
    """This runs DVC itself, which fills in the names before any stage can refuse them."""
    params = fresh_repo.path / "params.yaml"
    text, roam = params.read_text(), "\n  roam:\n    use: text\n"
    assert text.count(roam) == 1
    # First in the table, so that no stage with a valid name runs before it and refuses.
    hostile = '"$(touch pwned);touch pwned`touch pwned`"'
    params.write_text(text.replace("\n  wiki:\n", f"\n  {hostile}:\n"))
    done = fresh_repo.run("dvc", "repro", check=False)
    assert done.returncode != 0
    assert "must match [a-z0-9_]+" in done.stderr, done.stderr
    assert not (fresh_repo.path / "pwned").exists()
    precious = [fresh_repo.path / "data/precious", fresh_repo.path.parent / "precious"]
    for folder in precious:
        folder.mkdir()
    for name, use in (
        ("../../data/precious", "text"),
        ("../../../precious", "text"),
        ("precious", "../../data"),
        ("precious", "../../.."),
    ):
        params.write_text(text.replace(roam, roam.replace("roam", f'"{name}"').replace("text", use)))
        done = fresh_repo.run("dvc", "repro", check=False)
        assert done.returncode != 0
        assert "Running stage" not in done.stdout
        assert all(folder.is_dir() for folder in precious)
