"""Faults in niels-gpt init: what is found in a folder, what is planned for it, what is written and what is not."""

from __future__ import annotations

from bench.mutants.fault import Fault

_SURVEY, _SIZING = "niels_gpt/data/survey.py", "niels_gpt/train/sizing.py"
_STARTING, _TEXT = "niels_gpt/pipeline/starting.py", "niels_gpt/pipeline/params_text.py"
_INIT, _GIT = "niels_gpt/pipeline/init.py", "niels_gpt/pipeline/git.py"
_LEFTOVERS = "niels_gpt/pipeline/leftovers.py"


def _test(*names: str) -> str:
    return " ".join(f"tests/test_init.py::test_{name}" for name in names)


_RULES = _test("what_is_planned_obeys_every_rule_whatever_the_text_and_the_time")
_LARGER = _test("more_time_and_more_text_make_a_larger_model_and_no_text_a_larger_one_than_it_can_feed")
_PIECES = _test("a_vocabulary_is_no_larger_than_a_text_has_pieces_for")
_REASONS = _test("reasons_stand_in_the_file_and_nothing_of_the_samples_text_does")
_NAMES = _test("names_are_made_of_folders_and_never_used_twice")
_SMALL = _test("a_source_too_small_for_a_window_is_refused_with_what_to_do")
_HELD_OUT = _test("few_documents_are_split_at_their_ends_and_many_are_held_out_whole")
_MUCH = _test("of_much_text_some_is_read_and_the_rest_reckoned")
_FOUND = _test("a_folder_is_told_by_kind_size_language_and_encoding")
_TABLES = _test("tables_that_cannot_be_read_are_left_out_where_there_is_other_text")
_REFUSED = _test("what_is_no_folder_of_text_is_refused_in_a_sentence_and_nothing_is_written")
_TWICE = _test("folders_that_would_be_read_twice_or_told_to_others_are_refused")
_WHAT_TO_DO = _test("without_git_or_dvc_or_with_changes_of_ones_own_it_says_what_to_do")
_WRITES = _test("it_writes_and_commits_params_yaml_alone_and_keeps_the_one_before")
_GONE = _test("what_cache_holds_of_other_sources_goes_and_the_rest_stays")
_LOST = _test("what_dvc_does_not_have_stays")
_AT_WORK = _test("while_dvc_is_at_work_nothing_is_written")
_HOOK = _test("where_git_refuses_the_file_is_as_it_was")
_MACHINE = _test("how_a_run_is_executed_here_stays_as_it_was_and_chats_are_counted")
_SPEED = _test("real_steps_correct_what_a_matrix_product_promised")

FAULTS = (
    Fault(
        "what was not read is not reckoned",
        _SURVEY,
        "for file in group) / read if read",
        "for file in []) + 1 if read",
        _MUCH,
    ),
    Fault("copies count", _SURVEY, " and digest not in known", "", _FOUND),
    Fault("tables are not tried", _SURVEY, "None, tuple(_broken_tables(path, readable))", "None, ()", _TABLES),
    Fault("noise is text", _SURVEY, "> 0.1 * len(start)", "> 9 * len(start)", _REFUSED),
    Fault("a text is read as often as time allows", _SIZING, "_OF_MOST_EPOCHS = 0.75", "_OF_MOST_EPOCHS = 2.0", _RULES),
    Fault("any text feeds any model", _SIZING, "if text_bytes >= size.least_text", "if True", _LARGER),
    Fault("more pieces than there are", _SIZING, "found = 0.8 *", "found = 80 *", _PIECES),
    Fault("characters need no pieces", _SIZING, "+ 1.5 * characters", "", _PIECES),
    Fault("hours are of two", _STARTING, "hours * 3600 - reading", "hours * 7200", _RULES),
    Fault("a window need not fit", _STARTING, "min(tokens) >= 1.5 * (T + 1)", "True", _SMALL),
    Fault("two of a name", _STARTING, "used = {*names, *taken}", "used = {*taken}", _NAMES),
    Fault("a word of YAML is a name", _STARTING, " or name in WORDS", "", _NAMES),
    Fault("one long text is held out whole", _STARTING, "survey.longest <= 0.25", "survey.longest <= 25", _HELD_OUT),
    Fault("reasons of other values stay", _TEXT, "while setting.reason and", "while False and", _REASONS),
    Fault(
        "changes are overwritten",
        _GIT,
        'if ask_git(root, "status",',
        'if False and ask_git(root, "status",',
        _WHAT_TO_DO,
    ),
    Fault("all that is staged is committed", _GIT, '"--only", "--", str(file))', '"-a")', _WRITES),
    Fault(
        "tracked text is private", _GIT, 'if ask_git(root, "ls-files"', 'if False and ask_git(root, "ls-files"', _TWICE
    ),
    Fault("a refused commit leaves its file", _INIT, "        if before is not None:\n", "        if False:\n", _HOOK),
    Fault("one folder by two names", _INIT, "if real == other_real:", "if path == other:", _TWICE),
    Fault("how it runs here is forgotten", _INIT, "if key in _OF_THE_MACHINE", "if not _OF_THE_MACHINE", _MACHINE),
    Fault("what is left over stays", _LEFTOVERS, "            discard(path)\n", "            pass\n", _GONE),
    Fault("what DVC does not have goes, too", _LEFTOVERS, "if cache.has(path):", "if True:", _LOST),
    Fault("what is in use goes, too", _LEFTOVERS, "if name not in known and ", "if ", _GONE),
    Fault("what DVC keeps folders by goes", _LEFTOVERS, ' and re.fullmatch(r"[a-z0-9_]+", name)', "", _GONE),
    Fault("while DVC works, too", _INIT, "with without_dvc(Path()):", "if True:", _AT_WORK),
    Fault("real steps are not asked", _INIT, "    if speed:\n", "    if False:\n", _SPEED),
)
