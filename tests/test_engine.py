"""Tests of the local engine (workers, retries, early exit), of the records of finished parts, and of stores."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from niels_gpt.files.checks import Damaged
from niels_gpt.files.store import Store
from niels_gpt.jobs.engine import LocalEngine, make_parts, read_record
from tests import part_work
from tests.conftest import ROOT
from tests.part_work import Piece, pieces
from tests.watchdog import watchdog


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return (
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z" if os.path.isdir("/proc") else True
    )


def pids(folder: Path) -> list[int]:
    return [int(text) for path in folder.glob("*.try*") if (text := path.read_text())]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_every_part_is_done_once_with_any_number_of_workers_and_in_any_order(tmp_path: Path, workers: int) -> None:
    items, ticks = pieces(tmp_path, 9), []
    random.Random(workers).shuffle(items)
    with watchdog():
        found = list(LocalEngine(workers).map(part_work.answer, items, tick=ticks.append))
    assert sorted((item.name, answer) for item, answer in found) == sorted((i.name, f"done {i.name}") for i in items)
    assert [item.tries() for item in items] == [1] * 9
    assert sum(ticks) == 9 * 7
    assert not any(lives(pid) for pid in pids(tmp_path) if pid != os.getpid())
    assert (os.getpid() in pids(tmp_path)) == (workers == 1)


def test_a_single_part_runs_in_this_process_and_no_parts_give_no_results(tmp_path: Path) -> None:
    (item,) = pieces(tmp_path, 1)
    assert list(LocalEngine(4).map(part_work.answer, [item], tick=bool)) == [(item, "done part-00000")]
    assert pids(tmp_path) == [os.getpid()]
    assert list(LocalEngine(4).map(part_work.answer, [], tick=bool)) == []


@pytest.mark.slow
def test_parts_whose_worker_was_killed_are_tried_again(tmp_path: Path) -> None:
    items = pieces(tmp_path, 5)
    with watchdog():
        found = dict(LocalEngine(2).map(part_work.killed_once, items, tick=bool))
    assert found == {item: f"done {item.name}" for item in items}
    assert [items[i].tries() for i in (1, 3)] == [2, 2]
    assert {items[i].tries() for i in (0, 2, 4)} <= {1, 2}  # parts in the pool of a killed worker are retried, too


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "why"),
    [
        (part_work.always_killed, r"its process was killed \(out of memory\? then lower runtime\.workers\)"),
        (part_work.no_disk, "the disk is away"),
    ],
)
def test_a_part_that_fails_three_times_is_named(tmp_path: Path, function: object, why: str) -> None:
    items = pieces(tmp_path, 4)
    with watchdog(), pytest.raises(RuntimeError, match=rf"^part-00001 failed 3 times; the last time: {why}$"):
        list(LocalEngine(2).map(function, items, tick=bool))  # type: ignore[arg-type]
    assert items[1].tries() == 3
    assert not any(map(lives, pids(tmp_path)))


def test_an_input_at_fault_is_not_tried_again_and_its_error_comes_whole(tmp_path: Path) -> None:
    items = pieces(tmp_path, 4)
    with watchdog(), pytest.raises(Damaged, match=r"^part-00001\.parquet is damaged$") as error:
        list(LocalEngine(2).map(part_work.damaged_input, items, tick=bool))
    assert error.value.paths == ("part-00001.parquet", "beside")
    assert items[1].tries() == 1


def test_an_error_that_cannot_be_sent_comes_as_a_sentence(tmp_path: Path) -> None:
    with (
        watchdog(),
        pytest.raises(RuntimeError, match=r"part-0000. failed 3 times; the last time: Odd: something odd$"),
    ):
        list(LocalEngine(2).map(part_work.odd_error, pieces(tmp_path, 2), tick=bool))


def test_leaving_early_ends_what_is_under_way(tmp_path: Path) -> None:
    asked: list[str] = []

    def items() -> Iterator[Piece]:
        for item in pieces(tmp_path, 9):
            asked.append(item.name)
            yield item

    results = LocalEngine(2).map(part_work.first_ends_when_another_has_begun, items(), tick=bool)
    with watchdog():
        assert next(results)[1] == "done"
        assert len(asked) <= 3  # a part is requested only when a worker is free
        (worker,) = pids(tmp_path)
        assert lives(worker)
        results.close()  # type: ignore[attr-defined]
    assert not lives(worker)


DRIVER = """
import sys
from pathlib import Path
from niels_gpt.jobs.engine import LocalEngine
from tests.part_work import first_ends_when_another_has_begun, pieces
list(LocalEngine(2).map(first_ends_when_another_has_begun, pieces(Path(sys.argv[1]), 3)[1:], tick=bool))
"""


@pytest.mark.slow
def test_workers_end_with_the_process_they_work_for_even_by_kill_9(tmp_path: Path) -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], cwd=ROOT)
    with watchdog():
        while len(pids(tmp_path)) < 2:
            assert driver.poll() is None
            time.sleep(0.02)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        while any(map(lives, pids(tmp_path))):
            time.sleep(0.02)


# Records


def made(tmp_path: Path, items: list[Piece], workers: int = 1) -> list[dict[str, object]]:
    return make_parts(LocalEngine(workers), part_work.write_file, items, store=Store(str(tmp_path / "store")))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_only_what_has_no_record_is_made(tmp_path: Path, workers: int) -> None:
    items, said = pieces(tmp_path, 4), []
    first = made(tmp_path, items[:2], workers)
    assert [record["files"] for record in first] == [[{"file": f"{i.name}.bin", "bytes": 10}] for i in items[:2]]
    store = Store(str(tmp_path / "store"))
    records = make_parts(LocalEngine(workers), part_work.write_file, items, store=store, say=said.append)
    assert records[:2] == first
    assert [item.tries() for item in items] == [1, 1, 1, 1]
    assert said == ["2 of 4 parts to do"]
    (tmp_path / f"store/done/{items[3].name}.json").unlink()
    assert made(tmp_path, items, workers) == records
    assert [item.tries() for item in items] == [1, 1, 1, 2]


DAMAGE = {
    "a file cut short": lambda store: (store / "part-00001.bin").write_text("part"),
    "a file gone": lambda store: (store / "part-00001.bin").unlink(),
    "a record cut short": lambda store: (store / "done/part-00001.json").write_text('{"files": ['),
    "a record of another kind": lambda store: (store / "done/part-00001.json").write_text("[1]"),
    "a record that vouches for nothing": lambda store: (store / "done/part-00001.json").write_text("{}"),
    "a record gone": lambda store: (store / "done/part-00001.json").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_part_that_is_not_whole_is_made_again(tmp_path: Path, damage: object) -> None:
    items = pieces(tmp_path, 3)
    before = made(tmp_path, items)
    damage(tmp_path / "store")  # type: ignore[operator]
    assert read_record(Store(str(tmp_path / "store")), "part-00001") is None
    assert made(tmp_path, items) == before
    assert [item.tries() for item in items] == [1, 2, 1]
    assert (tmp_path / "store/part-00001.bin").read_text() == "part-00001"


def test_no_more_is_made_than_is_enough(tmp_path: Path) -> None:
    items, store = pieces(tmp_path, 6), Store(str(tmp_path / "store"))

    def enough(records: object) -> bool:
        return len(records) >= 2  # type: ignore[arg-type]

    found = make_parts(LocalEngine(1), part_work.write_file, items, store=store, enough=enough)
    assert [record["files"][0]["file"] for record in found] == ["part-00000.bin", "part-00001.bin"]
    # The engine takes two parts before it starts any, to see whether there is more than one.
    assert [item.tries() for item in items] == [1, 1, 0, 0, 0, 0]
    again = make_parts(LocalEngine(2), part_work.write_file, items, store=store, enough=enough)
    assert again == found
    assert sum(item.tries() for item in items) == 2


def test_enough_is_called_at_most_twice_per_part(tmp_path: Path) -> None:
    """It is called when a part is done and at the end; checking all parts after each took minutes for a thousand."""
    items, asked = pieces(tmp_path, 60), []
    store = Store(str(tmp_path / "store"))
    for done in (0, 60):
        asked.clear()
        make_parts(
            LocalEngine(1), part_work.write_file, items, store=store, enough=lambda records: bool(asked.append(1))
        )
        assert len(asked) <= 2 * len(items), done


@pytest.mark.slow
def test_temporary_files_are_deleted_if_their_writer_is_dead_and_kept_if_it_lives(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    store = tmp_path / "store"
    for name in (f"train/.x.bin.tmp{dead.pid}", f".y.tmp{dead.pid}.old/z", f"train/.x.bin.tmp{os.getpid()}", ".x.tmp"):
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        (store / name).write_text("half")
    made(tmp_path, pieces(tmp_path, 1))
    kept = {path.relative_to(store).as_posix() for path in store.rglob("*") if path.is_file()}
    assert kept == {f"train/.x.bin.tmp{os.getpid()}", ".x.tmp", "part-00000.bin", "done/part-00000.json"}


# Stores


def write_half(store: Store) -> None:
    with store.writing("sub/a.bin") as path:
        path.write_text("half")
        raise OSError("away")


def test_a_file_is_in_a_store_whole_or_not_at_all(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "s"))
    assert (store.size("sub/a.bin"), store.read("sub/a.bin"), store.files()) == (None, None, {})
    with pytest.raises(OSError, match="away"):
        write_half(store)
    assert store.files() == {}
    with store.writing("sub/a.bin") as path:
        path.write_text("whole")
        assert store.size("sub/a.bin") is None
    assert (store.size("sub/a.bin"), store.read("sub/a.bin"), store.files()) == (5, b"whole", {"sub/a.bin": 5})
    with pytest.raises(OSError, match="away"):
        write_half(store)
    assert store.read("sub/a.bin") == b"whole"
    with store.reading("sub/a.bin") as path:
        assert path == tmp_path / "s/sub/a.bin"
    assert store.below("sub", "more") == Store(f"{tmp_path}/s/sub/more")
    assert store.below("sub").read("a.bin") == b"whole"
    assert store.place("sub/a.bin") == f"{tmp_path}/s/sub/a.bin"
    store.remove("nothing")
    store.remove("sub/a.bin")
    assert store.files() == {}
    store.remove()
    assert not (tmp_path / "s").exists()


def test_a_place_that_is_none_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"^nowhere://a/b cannot be used \(.*\): a folder, or the URL of a service"):
        Store("nowhere://a/b").size("c")
