"""S3 server on loopback with a public and a private bucket, and a log of its requests."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
_SCRIPT = """
import logging, sys
logging.basicConfig(filename=sys.argv[1], level=logging.INFO)
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=True)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


@dataclass(frozen=True)
class S3:
    address: str
    log: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**KEYS, "AWS_ENDPOINT_URL": self.address}

    def client(self) -> Any:
        import boto3

        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        return boto3.client("s3", endpoint_url=self.address, **keys)

    def objects(self, bucket: str) -> dict[str, bytes]:
        client = self.client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
        return {key: client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}

    def requests(self) -> list[tuple[str, str]]:
        """Return (method, path) of every request so far."""
        return re.findall(r'"(GET|PUT|POST|HEAD|DELETE) (\S+) HTTP', self.log.read_text())


@contextmanager
def running_s3(folder: Path) -> Iterator[S3]:
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "s3.log"
    with subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, str(log)],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as server:
        assert server.stdout is not None
        port = next(line.strip() for line in server.stdout if line.strip().isdigit())  # it prints other lines, too
        s3 = S3(f"http://127.0.0.1:{port}", log)
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            try:
                for bucket in ("public", "private"):
                    s3.client().create_bucket(Bucket=bucket)
                break
            except Exception:  # not listening yet
                time.sleep(0.1)
        yield s3
        assert server.stdin is not None
        server.stdin.close()
        server.wait(timeout=120)
