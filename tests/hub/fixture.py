"""The loopback hub in a separate process: on a thread of its client it would add hangs of its own."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent


class HubHandle:
    def __init__(self, url: str, root: Path) -> None:
        self.url, self.root = url, root

    def fault(self, method: str, pattern: str, kind: str, **more: Any) -> None:
        self._post("/_fault", {"method": method, "pattern": pattern, "kind": kind, **more})

    def reset(self) -> None:
        self._post("/_reset", {})

    def log(self) -> list[dict[str, Any]]:
        with urllib.request.urlopen(self.url + "/_log", timeout=120) as reply:
            entries: list[dict[str, Any]] = json.load(reply)
        return entries

    def bytes_sent(self, pattern: str) -> int:
        return sum(entry["sent"] for entry in self.log() if pattern in entry["path"])

    def environment(self, home: Path) -> dict[str, str]:
        """Return the environment of a client process that caches in `home` and contacts no host but this hub."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "DVC_")) and "proxy" not in k.lower()}
        return kept | {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_UPDATE_DOWNLOAD_COUNTS": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DOWNLOAD_TIMEOUT": "2",
            "HF_HUB_ETAG_TIMEOUT": "2",
            "NO_PROXY": "127.0.0.1",
            "PYTHONPATH": str(ROOT),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def _post(self, path: str, body: dict[str, Any]) -> None:
        request = urllib.request.Request(self.url + path, data=json.dumps(body).encode(), method="POST")
        urllib.request.urlopen(request, timeout=120).close()


@contextmanager
def running_hub(root: Path) -> Iterator[HubHandle]:
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.hub.server", str(root)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        yield HubHandle(server.stdout.readline().strip(), root)
    finally:
        server.terminate()
        server.wait(timeout=120)
