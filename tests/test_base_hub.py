"""Tests of importing a base from a hub on loopback, through the unmodified client in a separate process."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from niels_gpt.base.importing import import_base
from tests.hub.fixture import ROOT, HubHandle, running_hub
from tests.hub.server import Hub
from tests.tiny_base import write_folder

pytestmark = pytest.mark.dag
CLIENT = """
import json, sys
from pathlib import Path
from niels_gpt.base.importing import import_base
for name, revision, out in json.loads(sys.argv[1]):
    try:
        print(json.dumps(import_base(name, Path(out), local=False, revision=revision)))
    except RuntimeError as error:
        print(json.dumps(str(error)))
"""
NAME = "someone/tiny"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubHandle]:
    root = tmp_path_factory.mktemp("models")
    write_folder(root / NAME)
    (root / NAME / "pytorch_model.bin").write_bytes(b"weights in a format that runs code")
    with running_hub(root) as running:
        yield running


def imported(hub: HubHandle, home: Path, *wanted: tuple[str, str, str], **environment: str) -> list:
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, json.dumps(wanted)],
        env=hub.environment(home) | environment,
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=600,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_model_of_the_hub_is_the_one_in_its_folder_and_pinned_by_its_commit(hub: HubHandle, tmp_path: Path) -> None:
    commit = Hub(hub.root).commit(NAME)
    for kind, more in (("drop", {"at": 100}), ("status", {"code": 503})):
        hub.fault("GET", r"model\.safetensors$", kind, **more)
    found, absent, other = imported(
        hub,
        tmp_path / "home",
        (NAME, commit, str(tmp_path / "base")),
        ("someone/absent", commit, str(tmp_path / "b")),
        (NAME, "0" * 40, str(tmp_path / "c")),
    )
    local = import_base(str(hub.root / NAME), tmp_path / "local", local=True)
    assert found == local | {"from": NAME, "revision": commit}
    assert (tmp_path / "base/best.pt").read_bytes() == (tmp_path / "local/best.pt").read_bytes()
    assert absent.startswith("model someone/absent: there is no such model: check the id")
    assert other.startswith(f"model {NAME}: it has no such revision: give the full sha of one of its commits")
    assert not hub.bytes_sent("pytorch_model.bin")
    offline = imported(
        hub,
        tmp_path / "home",
        (NAME, commit, str(tmp_path / "d")),
        (NAME, "0" * 40, str(tmp_path / "e")),
        HF_HUB_OFFLINE="1",
    )
    assert offline[0] == found
    assert f"model {NAME} at {'0' * 40} is not in the local cache, and HF_HUB_OFFLINE is set" in offline[1]
