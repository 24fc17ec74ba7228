"""niels-gpt doctor: what is missing is named, with what to do about it."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from niels_gpt.doctor import examine, seconds_to_train
from tests.conftest import ROOT, TINY, with_values


@pytest.fixture
def params(tmp_path: Path) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(with_values((ROOT / "presets/sample.yaml").read_text(), TINY))
    for source in (*values["sources"].values(), *values["chats"].values()):
        (tmp_path / source["input"]).mkdir(parents=True, exist_ok=True)
    return values


def fixes(params: dict[str, Any], folder: Path) -> dict[str, str]:
    return {finding.what: finding.fix for finding in examine(params, folder=folder) if finding.fix}


def test_a_folder_that_is_not_there_is_named(params: dict[str, Any], tmp_path: Path) -> None:
    assert not fixes(params, tmp_path)
    params["sources"]["roam"]["input"] = ".roam-data"
    assert fixes(params, tmp_path) == {
        "roam: .roam-data is not there": "put the text there, or take roam out of params.yaml"
    }


def test_no_network_is_named_for_each_dataset(
    params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as nobody:  # bound and not listening: connections are refused
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        params["sources"]["wiki"]["load"]["dataset"] = "a/b"
        (what, fix), *_ = fixes(params, tmp_path).items()
        assert what == "wiki: a/b from the hub"
        assert "127.0.0.1 cannot be reached" in fix


def test_a_full_disk_is_named(params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    ((what, fix),) = fixes(params, tmp_path).items()
    assert what.startswith("disk: 0.0 GiB free")
    assert "niels-gpt gc" in fix


def test_the_time_of_a_run_is_measured(params: dict[str, Any]) -> None:
    seconds = seconds_to_train({**params, "train": {**params["train"], "total_steps": 5}})
    assert set(seconds) == {"train", "sft"}
    assert all(value > 0 for value in seconds.values())
