"""Faults in what is told of a run while it goes: logs into runs, runs into cards, and who is told."""

from bench.mutants.fault import Fault

RUNS, CARDS, WATCH = "niels_gpt/report/runs.py", "niels_gpt/report/cards.py", "niels_gpt/pipeline/watch.py"
PAGE = "niels_gpt/report/web/page.js"
_RUNS, _WATCH = "tests/test_runs.py::test_", "tests/test_watch.py::test_"
_BROWSER = f"{_WATCH}in_a_browser_runs_appear_and_grow"

FAULTS = (
    Fault(
        "half a line is taken for a whole one",
        RUNS,
        'new[: new.rfind(b"\\n") + 1]',
        "new",
        f"{_RUNS}half_a_line_waits_for_its_other_half",
    ),
    Fault(
        "what a resumed run logs again is there twice",
        RUNS,
        "[point for point in self.points if point.step <= line.first_step]",
        "self.points",
        f"{_RUNS}a_resumed_run_goes_on_and_what_comes_again_is_not_there_twice",
    ),
    Fault(
        "a run that reports less often after it was resumed keeps what it takes back",
        RUNS,
        "line.step <= self.step or line.first_step != self.first_step",
        "line.step <= self.step",
        f"{_RUNS}a_resumed_run_goes_on_and_what_comes_again_is_not_there_twice",
    ),
    Fault(
        "points taken back are no new revision",
        RUNS,
        "            self.revision = next(revisions)\n",
        "",
        f"{_RUNS}a_resumed_run_goes_on_and_what_comes_again_is_not_there_twice",
    ),
    Fault(
        "a run that begins anew replaces the one that ended",
        RUNS,
        "(same[-1].finished and line.first_step == 0)",
        "False",
        f"{_RUNS}a_run_that_begins_anew_is_the_same_one_until_it_has_ended",
    ),
    Fault(
        "all lines are of the last run",
        RUNS,
        "if run.fingerprint == line.run]",
        "if run.fingerprint]",
        f"{_RUNS}runs_that_write_at_once_are_kept_apart",
    ),
    Fault(
        "another file in a log's place is gone on with",
        RUNS,
        "not head.startswith(self._head) or ",
        "",
        f"{_RUNS}a_log_that_was_deleted_or_begun_anew_is_read_from_its_start",
    ),
    Fault(
        "a log that was cut is waited for",
        RUNS,
        " or f.seek(0, os.SEEK_END) < self._offset",
        "",
        f"{_RUNS}a_log_that_was_deleted_or_begun_anew_is_read_from_its_start",
    ),
    Fault(
        "what is no file is read as a log",
        RUNS,
        " if path.is_file()]\n        self._logs",
        "]\n        self._logs",
        f"{_RUNS}a_log_that_was_deleted_or_begun_anew_is_read_from_its_start",
    ),
    Fault("the oldest run first", RUNS, "-run.time", "run.time", f"{_RUNS}the_run_heard_of_last_comes_first"),
    Fault(
        "a run is never silent",
        CARDS,
        "now > run.silent_from",
        "now < run.time",
        f"{_RUNS}a_card_tells_how_far_a_run_is_and_whether_it_still_goes",
    ),
    Fault(
        "the time left stands still",
        CARDS,
        "run.seconds_left - (now - run.time)",
        "run.seconds_left",
        f"{_RUNS}a_card_tells_how_far_a_run_is_and_whether_it_still_goes",
    ),
    Fault(
        "the lowest validation is the last",
        CARDS,
        "min(losses, key=lambda step: losses[step])",
        "max(losses)",
        f"{_RUNS}a_card_tells_how_far_a_run_is_and_whether_it_still_goes",
    ),
    Fault(
        "a page is sent everything each time",
        CARDS,
        "points=run.points[since:]",
        "points=run.points",
        f"{_WATCH}a_page_is_sent_what_it_does_not_have",
    ),
    Fault(
        "a loss that is no number is sent as one",
        CARDS,
        "not isinstance(value, float) or math.isfinite(value)",
        "True",
        f"{_RUNS}a_card_has_what_is_new_alone_and_no_number_that_json_has_not",
    ),
    Fault(
        "points of an old revision count",
        WATCH,
        "have.get((run.name, run.revision), 0)",
        "{name: n for (name, _), n in have.items()}.get(run.name, 0)",
        f"{_WATCH}a_page_is_sent_what_it_does_not_have",
    ),
    Fault(
        "anybody may read the runs",
        WATCH,
        "[Middleware(Gate, body_bytes=0)]",
        "[]",
        f"{_WATCH}it_is_read_by_its_own_page_and_by_nobody_else",
    ),
    Fault(
        "the page keeps points that were taken back",
        PAGE,
        "known && known.revision === card.revision",
        "known",
        _BROWSER,
    ),
    Fault("shares of the machine are not percent", PAGE, "value(point) * times)", "value(point))", _BROWSER),
    Fault("nothing says what to do before the first run", PAGE, "answer.runs.length > 0", "true", _BROWSER),
)
