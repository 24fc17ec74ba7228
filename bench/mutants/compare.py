"""Faults in `niels-gpt compare`, and in what keeps results, models and parameters from being lost."""

from __future__ import annotations

from bench.mutants.fault import Fault

_COMPARISON, _GRID, _COMPARING = (
    "niels_gpt/report/comparison.py",
    "niels_gpt/report/grid.py",
    "niels_gpt/pipeline/comparing.py",
)
_EXPERIMENTS, _GIT, _KEPT = (
    "niels_gpt/pipeline/experiments.py",
    "niels_gpt/pipeline/git.py",
    "niels_gpt/pipeline/kept_models.py",
)
_CLI, _PRESETS = "niels_gpt/pipeline/cli.py", "niels_gpt/pipeline/presets.py"
_TESTS, _KEPT_TESTS, _CLI_TESTS = "tests/test_compare.py::", "tests/test_kept_models.py::", "tests/test_cli.py::"
_BEST = _TESTS + "test_the_best_of_a_row_is_marked_and_what_is_missing_is_shown_as_such"
_DIFFER = _TESTS + "test_only_parameters_that_differ_are_named"
_FAIR = _TESTS + "test_numbers_of_other_text_have_no_best"
_WIDE = _TESTS + "test_a_table_is_as_wide_as_it_may_be_whichever_way_round"
_ALL = _TESTS + "test_without_names_everything_is_compared_the_newest_first"
_NAMED = _TESTS + "test_experiments_and_commits_are_compared_by_name"
_REPLACED = _KEPT_TESTS + "test_a_model_that_is_being_replaced_answers_out_of_the_cache"
_OWN = _KEPT_TESTS + "test_a_model_is_asked_with_the_tokenizer_that_it_was_trained_with"
_PRESET = _CLI_TESTS + "test_a_preset_keeps_what_it_writes_over_and_says_so"
_BASELINE = _CLI_TESTS + "test_summary_offers_a_baseline_and_make_records_it"
_SAVED = "tests/test_talk.py::test_a_chat_is_saved_over_nothing_but_itself"

FAULTS = (
    Fault(
        "compare: the highest is the best of everything",
        _COMPARISON,
        'min(known) if measure.best == "lowest" else max(known)',
        "max(known)",
        _BEST,
    ),
    Fault("compare: equal numbers are best", _COMPARISON, "len(set(known)) > 1", "known", _BEST),
    Fault(
        "compare: a parameter that one lacks is the same",
        _COMPARISON,
        "params.get(name, ...) != known[0].get(name, ...)",
        "params.get(name) != known[0].get(name)",
        _DIFFER,
    ),
    Fault("compare: all parameters in the table", _COMPARISON, "in differ[:_MOST_PARAMETERS]]", "in differ]", _DIFFER),
    Fault(
        "compare: the page has no more parameters than the table",
        _COMPARISON,
        "rest = differ[_MOST_PARAMETERS:]",
        "rest = []",
        _DIFFER,
    ),
    Fault(
        "compare: best of other text",
        _COMPARISON,
        "and len(set(known)) > 1 and not _unlike(measure, differ):",
        "and len(set(known)) > 1:",
        _FAIR,
    ),
    Fault(
        "compare: a longer name is in the section",
        _COMPARISON,
        'name.startswith(f"{same}.")',
        "name.startswith(same)",
        _FAIR,
    ),
    Fault(
        "compare: a training budget is other text",
        _COMPARISON,
        " and not name.endswith(_HARMLESS)",
        "",
        _FAIR,
    ),
    Fault("compare: one curve is drawn", _COMPARISON, "number < _MOST_DRAWN", "number < 1", _ALL),
    Fault("table: never in blocks", _GRID, "if blocks[-1] and size > left:", "if False:", _WIDE),
    Fault("table: the room of the first block for all", _GRID, "            left = room\n", "", _WIDE),
    Fault("table: marks move digits", _GRID, "if marked and not", "if False and not", _WIDE),
    Fault("table: the longer way round", _GRID, "else min((", "else max((", _WIDE),
    Fault(
        "compare: a damaged file is silent",
        _COMPARING,
        'fault(f"{path} of',
        'str(f"{path} of',
        _TESTS + "test_what_is_damaged_or_missing_is_said_and_the_rest_is_compared",
    ),
    Fault(
        "compare: any curve will do",
        _COMPARING,
        "if not columns <= set(rows[0]):",
        "if False:",
        _TESTS + "test_what_is_damaged_or_missing_is_said_and_the_rest_is_compared",
    ),
    Fault("compare: writes over any file", _COMPARING, "        _refuse_foreign(html)\n", "", _NAMED),
    Fault("compare: no bound", _COMPARING, "*list(experiments)[:n]]", "*experiments]", _ALL),
    Fault("compare: the oldest first", _EXPERIMENTS, "--sort=-committerdate", "--sort=committerdate", _ALL),
    Fault("compare: the queue is an experiment", _EXPERIMENTS, "[0-9a-f]{2}/[0-9a-f]{38}", "[^/]+(?:/[^/]+)?", _ALL),
    Fault("compare: experiments alone have names", _EXPERIMENTS, " or _commit(root, name)", "", _NAMED),
    Fault(
        "git: a file that is not there shifts the others",
        _GIT,
        "            found.append(None)\n            continue\n",
        "            continue\n",
        _TESTS + "test_files_are_read_out_of_commits_whatever_is_in_them",
    ),
    Fault("kept models: only what is there answers", _KEPT, "if record is None:", "if True:", _REPLACED),
    Fault(
        "kept models: the one that is there is put aside",
        _KEPT,
        "if not (path / layout.CONFIG).is_file() and",
        "if",
        _REPLACED,
    ),
    Fault(
        "kept models: known by the name of a temporary folder",
        _KEPT,
        'place = Path(temporary, "models", path.name)',
        'place = Path(temporary, "models")',
        _REPLACED,
    ),
    Fault("kept models: without a tokenizer", _KEPT, " or not tokenizer.is_dir())", ")", _REPLACED),
    Fault("kept models: any tokenizer", _KEPT, "(own != record.current_tokenizer or", "(False or", _OWN),
    Fault("kept models: says nothing", _KEPT, '"\\n".join(said)', '""', _REPLACED),
    Fault(
        "kept models: half a folder is a folder",
        "niels_gpt/pipeline/dvc_cache.py",
        "if not all(file.is_file() for file in files.values()):",
        "if False:",
        _KEPT_TESTS + "test_what_is_not_recorded_whole_in_the_cache_is_not_there",
    ),
    Fault(
        "export: out of the cache",
        _CLI,
        "if not (Path(model) / layout.CONFIG).is_file():",
        "if False:",
        _KEPT_TESTS + "test_an_export_is_of_what_is_there",
    ),
    Fault("preset: no copy", _CLI, "if text != current and (kept :=", "if False and (kept :=", _PRESET),
    Fault("preset: a copy of what git has", _PRESETS, " == committed(Path(), file):", " is None:", _PRESET),
    Fault("preset: one copy for all", _PRESETS, "        number += 1\n", "        break\n", _PRESET),
    Fault(
        "preset: the same copy again",
        _PRESETS,
        "            return copy\n        number",
        "            pass\n        number",
        _PRESET,
    ),
    Fault(
        "summary: no baseline is offered",
        "niels_gpt/pipeline/reproduction.py",
        "offer_baseline(changed(root, LOCK, METRICS))",
        "offer_baseline([])",
        _BASELINE,
    ),
    Fault(
        "summary: files that git does not know are none",
        _GIT,
        "--untracked-files=all",
        "--untracked-files=no",
        _BASELINE,
    ),
    Fault(
        "make baseline: whatever is staged",
        "Makefile",
        '"Baseline of this machine" -- dvc.lock metrics params.yaml',
        '"Baseline of this machine"',
        _BASELINE,
    ),
    Fault(
        "save: over anything",
        "niels_gpt/talk/terminal.py",
        "if path.is_file() and path.read_bytes()",
        "if False and path.read_bytes()",
        _SAVED,
    ),
    Fault("save: never twice", "niels_gpt/talk/terminal.py", "!= self._saved.get(path):", "is not None:", _SAVED),
)
