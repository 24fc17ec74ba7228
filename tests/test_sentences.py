"""Tests of error messages: one sentence that names the file."""

import errno
import os
from pathlib import Path

import pytest

from niels_gpt.files.atomic import atomic_path
from niels_gpt.files.messages import EXPECTED, name_file, read_text, sentence


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("two\n  lines"), "two lines"),
        (ValueError(), "ValueError"),
        (MemoryError(), "there is not enough memory: take a smaller B, T or model"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (OSError(errno.ENOSPC, "No space left on device", "a.bin"), "a.bin: No space left on device"),
        (OSError(errno.ENOENT, "No such file", b"\xff.md"), "\udcff.md: No such file"),
        (OSError(errno.EBADF, "Bad file", 3), "Bad file"),
        (OSError("a.bin could not be written"), "a.bin could not be written"),
        (OSError(errno.EROFS, "Read-only", "cache/raw/.wiki.tmp123/x.parquet"), "cache/raw/wiki/x.parquet: Read-only"),
        (OSError(errno.EROFS, "Read-only", ".params.yaml.tmp7"), "params.yaml: Read-only"),
    ],
)
def test_an_error_is_one_line_that_names_the_file(error: Exception, words: str) -> None:
    assert isinstance(error, EXPECTED)
    assert sentence(error) == words or (isinstance(error, MemoryError) and sentence(error).startswith(words))


def test_programming_errors_are_not_among_the_expected_ones() -> None:
    for fault in (KeyError, IndexError, TypeError, AttributeError, AssertionError, NameError):
        assert not issubclass(fault, EXPECTED)


def test_an_error_that_names_no_file_is_given_one_and_keeps_its_own() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    name_file(full, Path("cache/raw/wiki"))
    name_file(full, "another")
    assert sentence(full) == "cache/raw/wiki: No space left on device"
    told = OSError("told in words")
    name_file(told, "a")
    assert sentence(told) == "told in words"
    nothing = OSError(errno.ENOSPC, "No space left on device")
    name_file(nothing, "")
    assert sentence(nothing) == "No space left on device"


def test_a_write_that_fails_names_what_was_to_be_written(tmp_path: Path) -> None:
    def write() -> None:
        with atomic_path(tmp_path / "a.json") as temporary, open("/dev/full", "wb", buffering=0) as full:
            temporary.write_bytes(b"some")
            full.write(b"more")

    with pytest.raises(OSError, match="No space left") as error:
        write()
    assert sentence(error.value) == f"{tmp_path}/a.json: {os.strerror(errno.ENOSPC)}"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file") as error, atomic_path(tmp_path / "file/a.json"):
        pass
    assert "file: " in sentence(error.value)


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes(b"ab\xff")
    with pytest.raises(ValueError, match=r"a\.md is not UTF-8 text \(byte 3\)"):
        read_text(tmp_path / "a.md")
