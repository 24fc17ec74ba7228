"""Client that reads every dataset while the hub fails, each time until the dataset is opened a second time.

`python -m tests.hub.reader` prints, as JSON, for each loader and kind of fault: a digest and the number of samples
received, the number received before each time the dataset was opened, and the error, if any. Only back-off pauses are
shortened.
"""

import hashlib
import json
import os
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import datasets
import datasets.utils.file_utils
import huggingface_hub.utils._http

from niels_gpt.data import hub
from niels_gpt.data.dolly import iter_dolly_sft
from niels_gpt.data.fineweb_edu import iter_fineweb_edu
from niels_gpt.data.wikitext import iter_wikitext

LOADERS: dict[str, Callable[[], Iterator[Any]]] = {
    "fineweb_edu": lambda: iter_fineweb_edu(shuffle_buffer_size=200),
    "wikitext": lambda: iter_wikitext(path="Salesforce/wikitext"),
    "dolly": lambda: iter_dolly_sft(shuffle=False),
}
FAULTS: dict[str, dict[str, Any]] = {
    "drop": {"kind": "drop", "at": 500},
    "short": {"kind": "short", "at": 300},
    "500": {"kind": "status", "code": 500},
    "404": {"kind": "status", "code": 404, "headers": {"X-Error-Code": "EntryNotFound"}},
}


def post(path: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(os.environ["HF_ENDPOINT"] + path, data=json.dumps(body).encode(), method="POST")
    urllib.request.urlopen(request, timeout=120).close()


def read(name: str, fault: dict[str, Any] | None) -> dict[str, Any]:
    opened: list[int] = []
    came: list[str] = []

    def load_dataset(*args: Any, **options: Any) -> Any:
        opened.append(len(came))
        if len(opened) == 2:
            post("/_reset", {})
        return REAL_LOAD(*args, **options)

    datasets.load_dataset = load_dataset
    shutil.rmtree(os.environ["HF_HOME"], ignore_errors=True)
    post("/_reset", {})
    if fault:
        # Some files of the stream arrive whole before it breaks off.
        skip = 3 if name == "fineweb_edu" else 0
        post("/_fault", {"method": "GET", "pattern": r"resolve/.*(parquet|jsonl)$", "times": -1, "skip": skip, **fault})
    error = None
    try:
        for sample in LOADERS[name]():
            came.append(repr(sample))
    except hub.HubError as refused:
        error = str(refused)
    digest = hashlib.sha256("\n".join(came).encode()).hexdigest()
    return {"digest": digest, "came": len(came), "opened": opened, "error": error}


REAL_LOAD = datasets.load_dataset
if __name__ == "__main__":
    brief = SimpleNamespace(sleep=lambda s: time.sleep(min(s, 0.02)), monotonic=time.monotonic, time=time.time)
    huggingface_hub.utils._http.time = brief  # type: ignore[assignment]
    datasets.utils.file_utils.time = brief  # type: ignore[assignment]
    hub.time = brief  # type: ignore[assignment]
    faults = {"none": None, **FAULTS}
    result = {name: {kind: read(name, fault) for kind, fault in faults.items()} for name in LOADERS}
    print(json.dumps(result), flush=True)
    os._exit(0)
