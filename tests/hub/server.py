"""Loopback stand-in for the hub: enough of its protocol for the unmodified `datasets` client, with injected faults.

Serves ROOT/<org>/<name>/<files> on 127.0.0.1 only. As a program (`python -m tests.hub.server ROOT`) it prints its URL
and stops when its parent process ends; faults and the request log are controlled over HTTP.
"""

import hashlib
import json
import os
import re
import socket
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

MOVED = {"wikitext": "Salesforce/wikitext"}  # a former id, for which the real hub returns a 307
_ROUTE = re.compile(
    r"/(?:(?:api/)?datasets/|api/models/|(?=[^/]+/[^/]+/resolve/))"  # URLs of model files have no prefix
    r"((?:[^/]+/)?[^/]+?)(?:/(resolve|tree|revision|paths-info)/([^/]+)(?:/(.*))?)?"
)
Fault = dict[str, Any]


class Hub:
    """Served files, injected faults, and a log of the requests."""

    def __init__(self, root: Path, port: int = 0) -> None:
        self.root = root.resolve()
        self.log: list[dict[str, Any]] = []
        self.faults: list[Fault] = []
        self._etags: dict[tuple[str, int, int], str] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), type("H", (Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def fault(self, *, method: str, pattern: str, kind: str, times: int = 1, skip: int = 0, **more: Any) -> None:
        """Inject a fault into the next `times` matching requests (-1: all), after `skip` good ones.

        kind: status (code=, headers=) | drop (at=) reset mid-body | short (at=) clean close too early
        | stall (at=, delay=) | slow (delay=) before the headers
        """
        self.faults.append({"method": method, "pattern": pattern, "kind": kind, "times": times, "skip": skip, **more})

    def take_fault(self, method: str, path: str) -> Fault:
        with self._lock:
            for fault in self.faults:
                if fault["times"] and fault["method"] in (method, "*") and re.search(fault["pattern"], path):
                    if fault["skip"] > 0:
                        fault["skip"] -= 1
                        continue
                    fault["times"] -= 1
                    return fault
        return {}

    def files(self, repo: str) -> dict[str, Path]:
        base = self.root / repo
        return {p.relative_to(base).as_posix(): p for p in sorted(base.rglob("*")) if p.is_file()}

    def commit(self, repo: str) -> str:
        """Return the commit of the repository's current state: a hash of its file names and contents."""
        key = json.dumps([(name, self.etag(path)) for name, path in self.files(repo).items()])
        return hashlib.sha1(key.encode()).hexdigest()

    def etag(self, path: Path) -> str:
        status = path.stat()
        key = (str(path), status.st_size, status.st_mtime_ns)
        if key not in self._etags:
            with path.open("rb") as f:
                self._etags[key] = hashlib.file_digest(f, "sha256").hexdigest()
        return self._etags[key]


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    timeout = 60

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.route()

    def do_GET(self) -> None:
        self.route()

    def do_POST(self) -> None:
        self.route()

    def reply(self, status: int, body: Any = b"", headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for key, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
            **(headers or {}),
        }.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
        self.note(status, 0 if self.command == "HEAD" else len(data))

    def note(self, status: int, sent: int) -> None:
        if self.path.startswith("/_"):
            return
        entry = {"method": self.command, "path": self.path, "range": self.headers.get("Range")}
        self.hub.log.append({**entry, "status": status, "sent": sent})

    def refuse(self, status: int, code: str, message: str, **extra: str) -> None:
        headers = {
            "X-Error-Code": code,
            "X-Error-Message": message,
            **{k.replace("_", "-"): v for k, v in extra.items()},
        }
        self.reply(status, {"error": message}, headers)

    def route(self) -> None:  # noqa: PLR0911 (one return a route)
        hub, url = self.hub, urlsplit(self.path)
        path = unquote(url.path)
        body = self.rfile.read(min(1 << 20, int(self.headers.get("Content-Length") or 0)))
        if path.startswith("/_"):
            return self.control(path, body)
        fault = hub.take_fault(self.command, path)
        if fault.get("kind") == "slow":
            time.sleep(fault["delay"])
        if fault.get("kind") == "status":
            return self.reply(fault["code"], b"fault", fault.get("headers"))
        match = _ROUTE.fullmatch(path)
        if not match:  # telemetry and lookups that the client does not need
            return self.refuse(404, "NotFound", "not served here")
        repo, verb, revision, rest = match.groups()
        if repo in MOVED:
            return self.reply(307, b"", {"Location": self.path.replace(f"/{repo}", f"/{MOVED[repo]}", 1)})
        if not (hub.root / repo).is_dir():
            return self.refuse(404, "RepoNotFound", "Repository not found")
        sha, files = hub.commit(repo), hub.files(repo)
        if revision not in (None, "main", sha):
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if verb == "resolve":
            return self.resolve(sha, files.get(rest or ""), fault)
        if verb == "tree":
            return self.tree(
                files, (rest or "").strip("/"), deep=parse_qs(url.query).get("recursive", [""])[0].lower() == "true"
            )
        if verb == "paths-info":
            wanted = parse_qs(body.decode()).get("paths", [])
            return self.reply(200, [self.entry(name, files[name]) for name in wanted if name in files])
        siblings = [{"rfilename": name} for name in files]
        flags = {"private": False, "gated": False, "disabled": False, "tags": [], "downloads": 0, "likes": 0}
        return self.reply(200, {"_id": "0" * 24, "id": repo, "sha": sha, "siblings": siblings, **flags})

    def control(self, path: str, body: bytes) -> None:
        if path == "/_fault":
            self.hub.fault(**json.loads(body))
        elif path == "/_reset":
            self.hub.faults.clear()
            self.hub.log.clear()
        self.reply(200, list(self.hub.log) if path == "/_log" else {})

    def entry(self, name: str, path: Path) -> dict[str, Any]:
        return {"type": "file", "path": name, "size": path.stat().st_size, "oid": self.hub.etag(path)[:40]}

    def tree(self, files: dict[str, Path], prefix: str, *, deep: bool) -> None:
        start = prefix + "/" if prefix else ""
        entries: dict[str, dict[str, Any]] = {}
        for name, path in files.items():
            if not name.startswith(start):
                continue
            parts = name[len(start) :].split("/")
            for i in range(1, len(parts) if deep else min(2, len(parts))):
                folder = start + "/".join(parts[:i])
                oid = hashlib.sha1(folder.encode()).hexdigest()
                entries[folder] = {"type": "directory", "path": folder, "size": 0, "oid": oid}
            if deep or len(parts) == 1:
                entries[name] = self.entry(name, path)
        if prefix and not entries:
            return self.refuse(404, "EntryNotFound", f"{prefix} does not exist")
        return self.reply(200, list(entries.values()))

    def resolve(self, sha: str, path: Path | None, fault: Fault) -> None:
        if path is None:
            return self.refuse(404, "EntryNotFound", "Entry not found", X_Repo_Commit=sha)
        size = path.stat().st_size
        start, end, status = 0, size, 200
        if asked := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")):
            first, last = asked.groups()
            start, end = (int(first), min(int(last) + 1, size) if last else size) if first else (size - int(last), size)
            if start >= size:
                return self.reply(416, b"", {"Content-Range": f"bytes */{size}"})
            status = 206
        self.send_response(status)
        headers = {
            "X-Repo-Commit": sha,
            "ETag": f'"{self.hub.etag(path)}"',
            "Content-Length": str(end - start),
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        if status == 206:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return self.note(status, 0)
        broken = fault.get("kind") in ("drop", "stall", "short")
        sent = self.send_part(path, start, min(end, start + fault["at"]) if broken else end)
        self.note(status, sent)
        if fault.get("kind") == "stall":
            time.sleep(fault["delay"])
        if broken:
            self.break_off(abruptly=fault["kind"] == "drop")
        return None

    def send_part(self, path: Path, start: int, stop: int) -> int:
        sent = 0
        try:
            with path.open("rb") as f:
                f.seek(start)
                while start + sent < stop and (chunk := f.read(min(1 << 16, stop - start - sent))):
                    self.wfile.write(chunk)
                    sent += len(chunk)
        except OSError:  # the client disconnected; the log records the bytes sent
            return sent
        return sent

    def break_off(self, *, abruptly: bool) -> None:
        self.close_connection = True
        if abruptly:  # a reset instead of an orderly close
            self.wfile.flush()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


if __name__ == "__main__":
    print(Hub(Path(sys.argv[1])).url, flush=True)
    parent = os.getppid()
    while os.getppid() == parent:  # a parent that is killed cannot stop this process
        time.sleep(0.5)
