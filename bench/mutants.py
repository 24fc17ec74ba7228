"""`python -m bench.mutants [-n 300] [--seed 0] [WORD ...]`: run the tests against random one-line mutants of the code.

`make mutants` first records, with pytest-cov, which quick test executes which line. Then n mutants are sampled from
the syntax trees of MODULES (with a WORD in their path), each to be run against MOST_TESTS of the tests that execute its
line, and a survivor against all of them. It is noticed when one fails or hangs that passes on the code as it is.
Strings are not mutated: most are messages. Nor are Triton's kernels.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from coverage import CoverageData

ROOT = Path(__file__).resolve().parent.parent
MODULES = re.compile(
    r"data/(corpus|readers|secrets)/|duplicates/(sides|pairs)|cache/(windows|sft_)|tokenizer/|model/(?!.*triton)"
    r"|train/|inference/|talk/(server|export)/|pipeline/(stage|code)\.py|cli/(init|plan)\.py"
)
MOST_TESTS, PATIENCE_S = 60, 240  # tests tried first; seconds until a run counts as hanging
SWAPS = """Lt LtE, LtE Lt, Gt GtE, GtE Gt, Eq NotEq, NotEq Eq, In NotIn, NotIn In, Is IsNot, IsNot Is, And Or, Or And,
    Add Sub, Sub Add, Mult Add, Div Mult, FloorDiv Mult, Mod FloorDiv, Pow Mult, BitAnd BitOr, BitOr BitAnd"""
SWAPPED: dict[str, type[Any]] = {a: getattr(ast, b) for a, b in (pair.split() for pair in SWAPS.split(","))}


class Mutant(NamedTuple):
    """The bytes [start, end) of a file become `new`; tests that execute one of `lines` may notice."""

    file: str
    lines: range
    start: int
    end: int
    new: str


def replacement(node: ast.AST) -> str | None:
    """Return what may stand in place of a node: another operator or constant, or nothing where it is a statement."""
    new = None
    match node:
        case ast.Compare(left, [op, *ops], right):
            new = ast.unparse(ast.Compare(left, [SWAPPED[type(op).__name__](), *ops], right))
        case ast.BinOp(left, op, right) if type(op).__name__ in SWAPPED:
            new = f"({ast.unparse(ast.BinOp(left, SWAPPED[type(op).__name__](), right))})"
        case ast.BoolOp(op, values):
            new = f"({ast.unparse(ast.BoolOp(SWAPPED[type(op).__name__](), values))})"
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            new = f"({ast.unparse(operand)})"
        case ast.Constant(bool() | int() | float() as value):
            new = repr(not value if isinstance(value, bool) else value + 1 if value % 1 == 0 else value * 2)
        case ast.Return(ast.AST() as value) if ast.unparse(value) != "None":
            new = "return None"
        case ast.Raise() | ast.AugAssign() | ast.Expr(ast.Call()) | ast.Assign([ast.Attribute() | ast.Subscript()]):
            new = "pass"
    return new


def mutants(file: Path) -> Iterator[Mutant]:
    """Yield all mutants of a file. Assertions, `frozen=` and `strict=` among them, annotations and f-strings stay."""
    source = file.read_bytes()
    starts = [0, *accumulate(map(len, source.splitlines(keepends=True)))]
    queue: list[tuple[Any, int]] = [(ast.parse(source), 1)]
    while queue:
        node, first = queue.pop()
        first = node.lineno if isinstance(node, ast.stmt) else first  # lines of statements are recorded
        spared = [getattr(node, name, None) for name in ("annotation", "returns")]
        spared += [word for word in getattr(node, "keywords", []) if word.arg in ("frozen", "strict")]
        children = [child for child in ast.iter_child_nodes(node) if child not in spared]
        queue += [(child, first) for child in children if not isinstance(child, ast.Assert | ast.JoinedStr)]
        condition: Any = getattr(node, "test", None)
        for at, new in ((node, replacement(node)), (condition, condition and f"(not ({ast.unparse(condition)}))")):
            if new is not None:
                start, end = starts[at.lineno - 1] + at.col_offset, starts[at.end_lineno - 1] + at.end_col_offset
                yield Mutant(str(file.relative_to(ROOT)), range(first, at.end_lineno + 1), start, end, new)


def tests_of(mutant: Mutant, record: CoverageData, *, every: bool) -> list[str]:
    """Return tests that execute a mutant; of what runs on import, and so in no test, those that enter its module."""
    lines = record.contexts_by_lineno(str(ROOT / mutant.file))
    found = {test for line in mutant.lines for test in lines.get(line, [])} - {""}
    found = found or {test for tests in lines.values() for test in tests} - {""}
    if every:
        return sorted({test.rpartition("|")[0] for test in found})
    # Of 4 files at most, since collecting is slow. Their other tests count, too: only the first that needs a shared
    # fixture is recorded as executing it.
    files = tuple(file for file, _ in Counter(test.partition("::")[0] for test in found).most_common(4))
    of = [{t.rpartition("|")[0] for t in tests if t.startswith(files)} for tests in (found, record.measured_contexts())]
    return [t for some in (of[0], of[1] - of[0]) for t in random.sample(sorted(some), min(len(some), MOST_TESTS // 2))]


def run_tests(tests: list[str], folder: Path, *more: str) -> None:
    """Run tests in a copy of the project, and exit with pytest's code."""
    os.setsid()  # so that what tests start ends with them
    torch.set_num_threads(1)
    os.chdir(folder)
    sys.path[:0] = [str(folder)]
    os.environ |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}  # bytecode is dated to the second
    sys.dont_write_bytecode = True
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    options = ["-qx", "-m", "not dag", "-o", f"cache_dir={folder}-cache", f"--basetemp={folder}-tests"]
    sys.exit(int(pytest.main([*options, *more, *tests])))


def exit_code(tests: list[str], folder: Path, *more: str, patience_s: float) -> int | None:
    """Run tests in a fork of this process, which has torch in memory; return pytest's exit code, None if they hang."""
    child = get_context("fork").Process(target=run_tests, args=(tests, folder, *more))
    child.start()
    child.join(patience_s)
    hangs = child.is_alive()
    with suppress(ProcessLookupError):
        os.killpg(child.pid or 0, signal.SIGKILL)
    child.join()
    return None if hangs else child.exitcode


def noticed(mutant: Mutant, tests: list[str], folder: Path, *, patience_s: float = PATIENCE_S) -> bool:
    """Return whether tests fail for a mutant, and not without it.

    Without it the test that failed must pass; if none could be collected, they must be; if they hang, all must pass.
    """
    if not tests:
        return False
    file = folder / mutant.file
    source = file.read_bytes()
    shutil.rmtree(f"{folder}-cache", ignore_errors=True)
    file.write_bytes(source[: mutant.start] + mutant.new.encode() + source[mutant.end :])
    code = exit_code(tests, folder, patience_s=patience_s)
    file.write_bytes(source)
    if code == 1:
        tests = list(json.loads(Path(f"{folder}-cache/v/cache/lastfailed").read_text(encoding="utf-8")))
    only = ["--collect-only"] if code not in (1, None) else []
    return code != 0 and exit_code(tests, folder, *only, patience_s=patience_s) == 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("-n", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    files = [file for file in sorted(ROOT.glob("niels_gpt/**/*.py")) if MODULES.search(str(file))]
    every = [mutant for file in files if any(w in str(file) for w in args.words or [""]) for mutant in mutants(file)]
    chosen = random.Random(args.seed).sample(every, min(args.n, len(every)))
    record = CoverageData(str(ROOT / "logs/mutants.coverage"))
    record.read()
    left_out, survivors = {".venv", "cache", "models", "logs"}, 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        folder = Path(scratch, "copy")
        shutil.copytree(ROOT, folder, ignore=lambda at, _: left_out if at == str(ROOT) else ())
        for mutant in chosen:
            old = (folder / mutant.file).read_bytes()[mutant.start : mutant.end].decode()
            killed = noticed(mutant, tests_of(mutant, record, every=False), folder) or noticed(
                mutant, tests_of(mutant, record, every=True), folder, patience_s=5 * PATIENCE_S
            )
            survivors += not killed
            change = " ".join(f"{mutant.file}:{mutant.lines.start}: {old} -> {mutant.new}".split())
            print("noticed " if killed else "SURVIVED", change[:200], flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} noticed ({1 - survivors / len(chosen):.1%}), of {len(every):,}")


if __name__ == "__main__":
    main()
