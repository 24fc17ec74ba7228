"""Tests of the vendored browser libraries: they match the record, have licences, and are in the package."""

import hashlib
import json
import tomllib
from pathlib import Path

from scripts.vendor import LIBRARIES, RECORD, VENDOR
from tests.conftest import ROOT

RECORDED = json.loads((ROOT / RECORD).read_text())


def test_the_files_are_those_of_the_record() -> None:
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (ROOT / VENDOR).iterdir()}
    del found[RECORD.name]
    assert found == {name: digest for entry in RECORDED.values() for name, digest in entry["files"].items()}


def test_the_record_matches_what_the_script_fetches_and_has_the_licences() -> None:
    assert {name: (entry["version"], entry["licence"]) for name, entry in RECORDED.items()} == {
        library.name: (library.version, library.licence) for library in LIBRARIES
    }
    for entry in RECORDED.values():
        assert entry["integrity"].startswith("sha512-")
        assert {"MIT": "Permission is hereby granted", "Apache-2.0": "Apache License"}[entry["licence"]] in entry[
            "licence_text"
        ]


def test_every_file_that_is_no_module_is_in_the_package() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    packed = {
        path
        for package, globs in patterns.items()
        for glob in globs
        for path in ROOT.joinpath(*package.split(".")).glob(glob)
        if path.is_file()
    }
    others = {path for path in (ROOT / "niels_gpt").rglob("*") if path.is_file() and not _is_python(path)}
    assert others == packed
    assert len(others) > 10


def _is_python(path: Path) -> bool:
    return path.suffix == ".py" or "__pycache__" in path.parts
