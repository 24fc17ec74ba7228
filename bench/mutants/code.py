"""Faults in what a stage's code is taken to say, and in what is recorded as the same."""

from bench.mutants.fault import Fault

CODE, _TESTS = "niels_gpt/pipeline/code.py", "tests/test_code.py::"
_PINNED = _TESTS + "test_a_fingerprint_is_the_same_under_every_version_of_python"
_TO_THE_BYTE = _TESTS + "test_code_that_is_as_it_was_to_the_byte_is_not_parsed_again"
_EXPLAINED = _TESTS + "test_what_explains_the_code_is_not_in_its_fingerprint"
_EVERYTHING = _TESTS + "test_everything_else_is"
_FOLLOWED = _TESTS + "test_imports_are_followed_into_packages_and_functions_and_not_beyond_what_is_neutral"
_OWN_KIND = _TESTS + "test_a_loaders_code_is_in_the_record_of_its_kind_alone"
_HELD = _TESTS + "test_a_stage_holds_to_the_recorded_code"
_SAME = _TESTS + "test_what_differs_in_more_than_its_code_runs_again"

FAULTS = (
    Fault("an edit counts for nothing", CODE, " and sha256_file(file) == then[file] for", " for", _TO_THE_BYTE),
    Fault(
        "a record is believed", CODE, "_untouched([str(record), *recorded])", "_untouched([*recorded])", _TO_THE_BYTE
    ),
    Fault(
        "an edit of a page's script runs nothing again",
        CODE,
        "dict(sorted((modules | inlined).items()))",
        "dict(sorted(modules.items()))",
        _TESTS + "test_what_a_page_has_inside_is_part_of_the_code_that_writes_it",
    ),
    Fault(
        "an edit of a page's script runs every stage again",
        CODE,
        "        if module in files\n",
        "",
        _TESTS + "test_what_a_page_has_inside_is_part_of_the_code_that_writes_it",
    ),
    Fault("docstrings count", CODE, 'parts["body"] = parts["body"][1:]', "pass", _EXPLAINED),
    Fault("constants do not count", CODE, 'return f"{type(node).__name__} {node!r}"', 'return ""', _EVERYTHING),
    Fault(
        "kinds of numbers do not count",
        CODE,
        'f"{type(node).__name__} {node!r}"',
        'f"{float(node) if type(node) is int else node!r}"',
        _EVERYTHING,
    ),
    Fault("where a name is used counts", CODE, '("ctx", ', "(", _PINNED),
    Fault(
        "the empty end of a format counts",
        CODE,
        "if isinstance(node, ast.JoinedStr):",
        "if False:",
        _PINNED,
        survives="only Python 3.12.0 and 3.12.1 write one",
    ),
    Fault(
        "imports in functions are not followed",
        CODE,
        "in _run(_parsed(source)):",
        "in _parsed(source).body:",
        _FOLLOWED,
    ),
    Fault("what a type checker reads is followed", CODE, '== "TYPE_CHECKING":', '== "X":', _FOLLOWED),
    Fault("packages on the way do not count", CODE, "for i in range(1, len(parts) + 1)]", "for i in ()]", _FOLLOWED),
    Fault("neutral modules count", CODE, "or _is_neutral(name) or", "or", _FOLLOWED),
    Fault(
        "one loader rests on another",
        "niels_gpt/data/chat.py",
        'KIND = "chat"\n',
        'import niels_gpt.data.text\n\nKIND = "chat"\n',
        _OWN_KIND,
    ),
    Fault(
        "code that has changed is run",
        CODE,
        "    if changed:\n        raise ValueError(f\"{', '.join(changed)} changed since",
        "    if False:\n        raise ValueError(f\"{', '.join(changed)} changed since",
        _HELD,
    ),
    Fault("code imported late is not looked at", CODE, "in _imported_files() - imported if", "in () if", _HELD),
    Fault(
        "whatever changed is recorded as the same",
        "niels_gpt/pipeline/same.py",
        'all(dep.startswith(f"{layout.CODE}/") for dep in deps)',
        "True",
        _SAME,
    ),
)
