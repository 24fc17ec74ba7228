"""Tests of `niels-gpt compare`: experiments side by side, in the terminal and on an HTML page."""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from niels_gpt.cli.app import app
from niels_gpt.cli.compare import (
    Measure,
    Result,
    comparison_of,
    differing,
    list_experiments,
    measures,
    notes,
    render_comparison,
    result_of,
)
from niels_gpt.pipeline.repository import read_committed
from niels_gpt.report.page import Training
from niels_gpt.report.tables import lay_out
from tests.conftest import ROOT, real_browser

PARAMS = (ROOT / "params.yaml").read_text()
BITS = Measure("pretrain val_wiki", "lowest", ("sources.wiki",))
KNOWN = Measure("median P(z)", "highest")
SIZE = Measure("parameters")


def column(table: list[list[str]], name: str) -> dict[str, str]:
    return {row[0]: row[table[0].index(name)] for row in table[1:]}


def test_the_best_of_a_row_is_marked_and_what_is_missing_is_shown_as_such() -> None:
    results = [
        Result("a", {"p": 0.1}, {SIZE: 1000, BITS: 2.5, KNOWN: 0.25}),
        Result("b", {"p": 0.2}, {SIZE: 2000, BITS: 2.25, KNOWN: 0.75}),
        Result("c", {"p": 0.2}, {SIZE: 3000, BITS: 2.25}),
        Result("d"),
    ]
    assert comparison_of(results) == [
        ["", "a", "b", "c", "d"],
        ["p", "0.1", "0.2", "0.2", "-"],
        ["parameters", "1,000", "2,000", "3,000", "-"],
        ["pretrain val_wiki", "2.5000", "2.2500 *", "2.2500 *", "-"],
        ["median P(z)", "0.2500", "0.7500 *", "-", "-"],
    ]
    same = comparison_of([Result("a", {}, {BITS: 2.5}), Result("b", {}, {BITS: 2.5})])
    assert same[1:] == [[BITS.name, "2.5000", "2.5000"]]  # equal values: none is the best


def test_dvc_has_no_column_for_each_window_of_each_document() -> None:
    """DVC shows a column for each number or string in a mapping, and none for a list; the committed run has few."""
    metrics = [json.loads(path.read_text()) for path in (ROOT / "metrics").glob("*.json")]
    found = [name for metric in metrics for name in metric if name != "details"]
    assert sorted(found) == ["chat_bits", "form", "leaks", "pz", "spelling", "text_bits"]


@pytest.mark.slow
def test_dvc_shows_three_experiments_in_15_columns_of_160_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is that of docs/experiments.md. Each experiment changes a different parameter and the metrics."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for name in ("dvc.yaml", "dvc.lock", "params.yaml", ".dvcignore", ".dvc/config", "metrics"):
        Path(name).parent.mkdir(exist_ok=True)
        (shutil.copytree if name == "metrics" else shutil.copy)(ROOT / name, name)
    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-qm", "run")
    base, lock = git("rev-parse", "HEAD"), Path("dvc.lock").read_text()
    changes = {"tawny-heir": ("total_steps: 800", "total_steps: 900"), "mural-sprig": ("roam: 0.26", "roam: 0.3")}
    for number, (name, change) in enumerate({**changes, "sinewy-dopa": ("replay: 0.375", "replay: 0.5")}.items()):
        Path("params.yaml").write_text(PARAMS.replace(*change))
        Path("dvc.lock").write_text(re.sub(r"(path: m\w+/.*\n.*\n    +md5: )\w{8}", rf"\g<1>{number:08}", lock))
        for path in Path("metrics").glob("*.json"):
            metric = json.loads(path.read_text())
            shown = {
                key: value + number + (0 if key == "leaks" else 0.1234567)
                for key, value in metric.items()
                if key != "details"
            }
            path.write_text(json.dumps({**metric, **shown}))
        git("add", "-A")
        commit = git("commit-tree", git("write-tree"), "-p", base, "-m", name)
        git("update-ref", f"refs/exps/{base[:2]}/{base[2:]}/{name}", commit)
        git("reset", "-q", "--hard")
    (command,) = re.findall(r"`(dvc exp show [^`]+)`", (ROOT / "docs/experiments.md").read_text())
    lines = subprocess.check_output(shlex.split(command), text=True).splitlines()
    assert max(map(len, lines)) <= 160
    head = lines[1].split()
    assert len(head) <= 15
    assert {"Experiment", "text_bits", "leaks", "p_train.roam", "train.total_steps", "sft.replay"} <= set(head)
    assert all(any(f"[{name}]" in line for line in lines) for name in (*changes, "sinewy-dopa"))


def test_only_parameters_that_differ_are_named() -> None:
    results = [
        Result("a", {"x": 1, "y": [1, 2], "only": None, "z": True}, {}),
        Result("b", {"x": 1, "y": [1, 3], "z": False}, {}),
        Result("c", {}, {}),
    ]
    assert differing(results) == ["y", "only", "z"]
    table = comparison_of(results)
    assert column(table, "a") == {"y": "[1, 2]", "only": "null", "z": "true"}
    assert column(table, "b") == {"y": "[1, 3]", "only": "-", "z": "false"}
    assert differing(results[:1]) == differing([]) == []
    many = [Result(name, {f"p{i}": f"{name}{i}" for i in range(20)}, {BITS: 1.0}) for name in "ab"]
    assert [name for name, *_ in comparison_of(many)] == ["", *(f"p{i}" for i in range(8)), BITS.name]
    assert list(notes(many)) == ["12 more parameters differ: the page has them all"]
    assert all(f"p{i}" in render_comparison(many) for i in range(20))


def test_numbers_of_other_text_have_no_best() -> None:
    def results(name: str) -> list[Result]:
        return [Result(str(i), {name: i}, {BITS: 2.0 + i}) for i in range(2)]

    for name in ("sources.wiki.input", "sources.wiki.split.val_frac"):
        assert comparison_of(results(name))[-1][1:] == ["2.0000", "3.0000"]
        (note,) = notes(results(name))
        assert note.endswith(f": {name} differ")
    for name in ("sources.roam.input", "sources.wikipedia.input", "sources.wiki.budget.max_train_tokens"):
        assert comparison_of(results(name))[-1][1:] == ["2.0000 *", "3.0000"]
        assert not list(notes(results(name)))


def test_other_chats_leave_pretraining_comparable() -> None:
    measure = Measure("lowest validation", "lowest", same=("sources",))
    for use, best in (("text", ["2.0000", "3.0000"]), ("chat", ["2.0000 *", "3.0000"])):
        results = [
            Result(f"{number}", {"sources.a.use": use, "sources.a.split.seed": number}, {measure: number})
            for number in (2.0, 3.0)
        ]
        assert comparison_of(results)[-1][1:] == best


TEXTS = [f"val_{letter}" for letter in "abcdefgh"]
TABLES = st.dictionaries(st.sampled_from(TEXTS), st.integers(1, 9), max_size=8)


@pytest.mark.slow
@given(first=TABLES, second=TABLES)
def test_each_model_is_compared_on_its_three_longest_validation_sets_that_no_earlier_model_has(
    first: dict[str, int], second: dict[str, int]
) -> None:
    bits = {name: 2.0 + number for number, name in enumerate(TEXTS)}
    scores = {
        model: {name: {"tokens": tokens, "bits_per_byte": bits[name] / weight, "nats": 0.0} for name, tokens in table}
        for model, table, weight in (("pretrain", first.items(), 1), ("sft", second.items(), 2))
    }
    sections = {name: f"sources.{name}" for name in TEXTS[:4]}
    params = {f"{section}.val_name": name for name, section in sections.items()}
    found = measures(params, trainings=(), scores=scores, leaks={}, memorized=())
    assert [measure.name.split()[0] for measure in found] == sorted(measure.name.split()[0] for measure in found)
    for model, table, told, weight in (("pretrain", first, {}, 1), ("sft", second, first, 2)):
        new = {name: tokens for name, tokens in table.items() if name not in told}
        shown = {measure.name.split()[1]: measure for measure in found if measure.name.startswith(f"{model} ")}
        assert len(shown) == min(3, len(new))
        assert sorted((new[name] for name in shown), reverse=True) == sorted(new.values(), reverse=True)[:3]
        for name, measure in shown.items():
            assert found[measure] == bits[name] / weight
            assert measure.best == "lowest"
            own = (sections[name],) if name in sections else ()
            assert measure.same == ("duplicates", "eval.max_tokens", *own)


def test_a_run_with_a_base_compares_the_trained_models() -> None:
    """As in a run without a base, text is scored by the pretrained model and chats by the fine-tuned one."""
    bits = {"base": 3.0, "pretrain": 2.0, "sft": 1.0}
    scores = {
        model: {name: {"tokens": 9, "bits_per_byte": each, "nats": 0.0} for name in ("val_notes", "val_own")}
        for model, each in bits.items()
    }
    leaks = {"notes": {model: {"extractable_sentences": 1, "extractable_passages": 0} for model in bits}}
    params = {"sources.notes.val_name": "val_notes", "sources.own.val_name": "val_own", "sources.own.use": "chat"}
    found = measures(params, trainings=(), scores=scores, leaks=leaks, memorized=())
    named = {measure.name: value for measure, value in found.items()}
    assert named == {"pretrain val_notes": 2.0, "sft val_own": 1.0, "extractable": 2}


def test_each_measure_is_of_its_own_stage_and_of_all_that_was_measured() -> None:
    def summary(number: float) -> dict[str, Any]:
        return {"parameters": number, "tokens": number + 1, "loss": number + 2, "best_val_loss": number + 3}

    told = {"roam": {"pretrain": 1, "sft": 2}, "mail": {"sft": 4}}
    found = measures(
        {},
        trainings=[Training("train", summary(10.0), [], []), Training("sft", summary(20.0), [], [])],
        scores={},
        leaks={
            source: {model: {"extractable_sentences": 0, "extractable_passages": n} for model, n in models.items()}
            for source, models in told.items()
        },
        memorized=[{"after": {"median_pz": value}} for value in (0.25, 0.5, 0.9)],
    )
    by_name = {measure.name: measure for measure in found}
    assert {name: found[measure] for name, measure in by_name.items()} == {
        "parameters": 10.0,
        "tokens seen": 11.0,
        "lowest validation": 13.0,
        "extractable": 7,
        "median P(z)": pytest.approx(0.55),
    }
    best = {"lowest validation": "lowest", "extractable": "lowest", "median P(z)": "highest"}
    assert {name: measure.best for name, measure in by_name.items()} == {"parameters": "", "tokens seen": ""} | best
    # If one of these differs, the numbers are not comparable, and no best is marked.
    unlike = {
        "lowest validation": ("p_val.a", "sources.a.input", "duplicates.near", "tokenizer.kind", "train.eval_steps"),
        "extractable": ("leak.chunk_size", "sources.a.input", "tokenizer.vocab_size"),
        "median P(z)": ("memorize.chunk_size", "splice.train.B", "sources.a.split.seed", "tokenizer.kind"),
    }
    for name, parameters in unlike.items():
        for parameter in parameters:
            results = [Result(str(i), {parameter: i}, {by_name[name]: 1.0 + i}) for i in range(2)]
            assert "*" not in "".join(comparison_of(results)[-1]), parameter
        results = [Result(str(i), {"train.base_lr": i}, {by_name[name]: 1.0 + i}) for i in range(2)]
        assert "".join(comparison_of(results)[-1]).count("*") == 1


def test_the_page_draws_as_many_pretrainings_at_first_as_there_are_colours() -> None:
    def training(stage: str) -> Training:
        return Training(stage, TRAINED, [{"step": 4, "loss": 3.5, "lr": 0.1}], [{"step": 4, "val_loss": 3.25}])

    results = [Result(f"e{i}", {}, {}, [training("train"), training("sft")]) for i in range(12)]
    shown = {run["name"]: run["shown"] for run in runs_of(render_comparison(results))}
    assert shown == {f"e{i} {stage}": stage == "train" and i < 8 for i in range(12) for stage in ("train", "sft")}


def test_a_table_fits_its_width_whether_transposed_or_not() -> None:
    for experiments in (1, 2, 5, 6, 20, 40):
        results = [
            Result(
                f"{'long-' * (i % 3)}name{i}",
                {"train.base_lr": i, "sources.roam.split.a_long_name_of.its_own": i},
                {Measure(f"measure number{k}", "lowest"): 1.0 + i + k for k in range(11)},
            )
            for i in range(experiments)
        ]
        table = comparison_of(results)
        lines = lay_out(table, width=100)
        assert max(map(len, lines)) <= 100
        text = "\n".join(lines)
        for result in results:
            assert result.name in text
        for name, *_ in table:
            assert name.rpartition(" ")[2][-20:] in text
        assert "measure number0" in text or experiments > 5  # transposed only with many experiments
        for k in range(11):
            assert f"{1.0 + k:.4f}{' *' if experiments > 1 else ''}" in text
        assert len(lines) <= max(15, 3 * (experiments + 3))
    few = lay_out([["", "a", "b"], ["x y", "1.0 *", "1"], ["z", "2", "33 *"]], width=100)
    assert few == ["         a     b", "x y  1.0 *   1", "z      2    33 *"]


def test_a_table_turned_has_names_of_two_lines() -> None:
    table = [["", *(f"e{i}" for i in range(12))], ["pretrain val", *["1"] * 12], ["loss", *["22"] * 12]]
    lines = lay_out(table, width=24)
    assert lines[:3] == ["     pretrain", "          val  loss", "e0          1    22"]
    assert len(lines) == 14


# The tests below read experiments from git, in the form in which DVC stores them.

SCORES = {"pretrain": {"val_wiki": {"nats": 3.0, "bits_per_byte": 2.5, "tokens": 100}}}
TRAINED = {
    "steps": 4, "tokens": 64, "parameters": 1234, "loss": 3.5, "val_loss": 3.25, "best_val_loss": 3.25, "best_step": 4,
    "mix": {"wiki": {"p": 1.0, "rows": 16, "drawn": 1.0}},
}  # fmt: skip


def result_files(*, weight: float, bits: float) -> dict[str, str]:
    scores = json.loads(json.dumps(SCORES))
    scores["pretrain"]["val_wiki"]["bits_per_byte"] = bits
    leak = {"extractable_sentences": round(bits) - 1, "extractable_passages": 1}
    return {
        "params.yaml": PARAMS.replace("roam: 0.26,", f"roam: {weight},"),
        "metrics/eval.json": json.dumps(scores),
        "metrics/train.json": json.dumps(TRAINED),
        "metrics/train.tsv": "step\tloss\tlr\n2\t4.5\t0.1\n4\t3.5\t0.1\n",
        "metrics/train_val.tsv": "step\tval_loss\twiki\n4\t3.25\t3.25\n",
        "metrics/leak.json": json.dumps({"sources": {"roam": {"sft": leak}}}),
        "metrics/memorize.json": json.dumps({"documents": [{"name": "doc1", "after": {"median_pz": weight}}]}),
    }


def git(*arguments: str, when: int = 0) -> str:
    who = {f"GIT_{role}_{what}": "t@t" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    time = {f"GIT_{role}_DATE": f"{1_700_000_000 + when} +0000" for role in ("AUTHOR", "COMMITTER")}
    return subprocess.check_output(["git", *arguments], text=True, env={**os.environ, **who, **time}).strip()


def write(files: dict[str, str]) -> None:
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with a commit and three experiments on it; the workspace has the files of the third."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    git("init", "-q", "-b", "main")
    write({"dvc.yaml": "stages: {}\n", ".gitignore": (ROOT / ".gitignore").read_text()})
    write(result_files(weight=0.25, bits=2.5))
    git("add", "-A")
    git("commit", "-qm", "run")
    base = git("rev-parse", "HEAD")
    for when, (name, weight, bits) in enumerate([("old", 0.1, 2.25), ("mid", 0.5, 2.125), ("new", 0.75, 2.75)]):
        write(result_files(weight=weight, bits=bits))
        git("add", "-A")
        commit = git("commit-tree", git("write-tree"), "-p", base, "-m", name, when=when)
        git("update-ref", f"refs/exps/{base[:2]}/{base[2:]}/{name}", commit)
    git("update-ref", "refs/exps/stash", base)  # as DVC stores its queue
    git("update-ref", "refs/exps/exec/EXEC_HEAD", base)
    git("reset", "-q")
    return tmp_path


def run(*command: str) -> str:
    result = CliRunner().invoke(app, ["compare", *command])
    assert result.exit_code == 0, result.output
    return result.output


def refusal(*command: str) -> str:
    result = CliRunner().invoke(app, ["compare", *command])
    assert result.exit_code == 1, result.output
    (line,) = result.stderr.splitlines()
    return line


def runs_of(page: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(page.partition('id="data">')[2].partition("</script>")[0])["runs"]
    return found


@pytest.mark.slow
def test_without_names_everything_is_compared_the_newest_first(project: Path) -> None:
    shown = run().splitlines()
    assert "note: workspace is the same run as new" in shown
    assert shown[0].split() == ["HEAD", "new", "mid", "old"]
    rows = {line[:18].strip(): line[18:].split() for line in shown[1 : shown.index("")]}
    assert rows["p_train.roam"] == ["0.25", "0.75", "0.5", "0.1"]
    assert [name for name in rows if "." in name] == ["p_train.roam"]
    assert rows["pretrain val_wiki"] == ["2.5000", "2.7500", "2.1250", "*", "2.2500"]
    assert rows["lowest validation"] == ["3.2500"] * 4
    assert rows["parameters"] == ["1,234"] * 4
    assert rows["extractable"] == ["2", "*", "3", "2", "*", "2", "*"]
    assert rows["median P(z)"] == ["0.2500", "0.7500", "*", "0.5000", "0.1000"]
    assert max(map(len, shown)) <= 100
    page = (project / "metrics/compare.html").read_text()
    assert [card["name"] for card in runs_of(page)] == [f"{name} train" for name in shown[0].split()]
    assert all(card["shown"] and len(card["points"]) == 3 for card in runs_of(page))
    assert "compare.html" not in git("status", "--porcelain", "--untracked-files=all")
    assert run("-n", "1").splitlines()[0].split() == ["HEAD", "new"]
    assert "note: 2 older experiments are not shown: -n 3 shows them" in run("-n", "1")
    assert run("workspace", "new").split()[:2] == ["workspace", "new"]  # named runs are not deduplicated


def test_experiments_and_commits_are_compared_by_name(project: Path) -> None:
    shown = run("old", "main", "old", git("rev-parse", "HEAD")[:12], "--html", "mine.html").splitlines()
    assert shown[0].split() == ["old", "main", git("rev-parse", "HEAD")[:12]]
    assert not (project / "metrics/compare.html").exists()
    before = (project / "mine.html").read_text()
    assert run("new", "--html", "mine.html")
    assert (project / "mine.html").read_text() != before
    (project / "letter.html").write_text("dear reader")
    assert "letter.html exists and was not written by this command" in refusal("--html", "letter.html")
    assert (project / "letter.html").read_text() == "dear reader"
    line = refusal("old", "nope")
    assert "commit nope; known: workspace, HEAD, new, mid, old" in line


def test_damaged_files_are_reported_and_the_rest_is_compared(project: Path) -> None:
    (project / "metrics/eval.json").write_text('{"pretrain": {"val_wiki": {}}}')
    (project / "metrics/train.tsv").write_text("step\tloss\n1\t2\n")
    (project / "metrics/leak.json").unlink()
    shown = run()
    for file in ("eval.json", "train.tsv"):
        assert f"note: metrics/{file} of workspace is damaged, or of another version, and is skipped" in shown
    assert shown.count("note: ") == 2
    rows = {line[:18].strip(): line[18:].split() for line in shown.splitlines()}
    assert rows["pretrain val_wiki"][0] == rows["extractable"][0] == rows["parameters"][0] == "-"
    assert rows["median P(z)"][0] == "0.7500"
    faults: list[str] = []
    result = result_of("x", {"params.yaml": "- 1"}, fault=faults.append)
    assert (result.params, result.numbers, list(result.trainings)) == ({}, {}, [])
    assert len(faults) == 1


def test_without_a_project_or_a_commit_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert "there is no dvc.yaml here" in refusal()
    assert not list(tmp_path.iterdir())
    write({"dvc.yaml": "", **result_files(weight=0.25, bits=2.5)})
    assert run().splitlines()[0].split() == ["workspace"]
    assert "commit HEAD; known: workspace, HEAD" in refusal("HEAD")
    assert list_experiments() == {}
    assert read_committed(tmp_path, [("HEAD", "a"), ("HEAD", "b")]) == [None, None]


def test_files_are_read_out_of_commits_whatever_is_in_them(project: Path) -> None:
    texts = {"a": "", "b c": "x blob 3\nmissing\n", "d": "\n\nno end"}
    write(texts)
    git("add", "-A")
    git("commit", "-qm", "more")
    wanted = ["b c", "nothing", "a", "metrics", "d"]
    assert read_committed(project, [("HEAD", name) for name in wanted]) == [texts["b c"], None, "", None, texts["d"]]


@pytest.mark.slow
def test_in_a_browser_the_curves_of_all_are_on_one_chart(project: Path) -> None:
    run()
    faults: list[str] = []
    with real_browser() as (browser, expect):
        for scheme, width in (("light", 1200), ("dark", 390)):
            tab = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
            tab.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
            tab.goto((project / "metrics/compare.html").as_uri())
            names = tab.locator("[data-chart=loss] .legend button span")
            expect(names).to_have_text([f"{name} train" for name in ("HEAD", "new", "mid", "old")])
            expect(tab.locator("td", has_text="2.1250 *")).to_be_visible()
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            tab.close()
    assert faults == []
