"""Ray cluster of one or two nodes on loopback, in network and PID namespaces of its own.

No traffic leaves this machine, and no process outlives the cluster.

Run: python -m tests.ray_cluster NODES COMMAND...   (with RAY_ADDRESS in the command's environment)
"""

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

ADDRESS = "127.0.0.1:6399"
# All nodes and drivers share one token; without the mode, a driver is refused.
AUTHENTICATION = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "of-this-cluster-alone"}
_ISOLATED = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]


def why_not() -> str | None:
    """Return why such a cluster cannot run here; None if it can."""
    try:
        import ray  # noqa: F401
    except ImportError:
        return "ray is not installed: parts were not given to a cluster"
    if shutil.which("unshare") is None or subprocess.call([*_ISOLATED, "true"], stderr=subprocess.DEVNULL):
        return "namespaces of one's own are not allowed here: parts were not given to a cluster"
    return None


def run_in_cluster(nodes: int, *command: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    here = [sys.executable, "-m", "tests.ray_cluster", str(nodes), *command]
    return subprocess.run([*_ISOLATED, *here], capture_output=True, text=True, timeout=timeout, check=False)


def _raise_loopback() -> None:
    """Bring up the loopback interface, which is down in a new network namespace (SIOCSIFFLAGS with IFF_UP)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x1))


def _start_node(*options: str) -> subprocess.Popen[str]:
    node = subprocess.Popen(
        [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert node.stdout is not None
    said = []
    for line in node.stdout:
        said.append(line)
        if "Ray runtime started" in line:
            threading.Thread(target=node.stdout.read, daemon=True).start()
            return node
    raise RuntimeError("".join(said))


def main(nodes: int, command: list[str]) -> int:
    _raise_loopback()
    os.environ.update(AUTHENTICATION, RAY_ADDRESS=ADDRESS)
    port = ADDRESS.partition(":")[2]
    head = ["--head", f"--port={port}", "--node-ip-address=127.0.0.1", "--include-dashboard=false", "--num-cpus=1"]
    started = [_start_node(*head)]
    for i in range(1, nodes):
        started.append(_start_node(f"--address={ADDRESS}", f"--node-ip-address=127.0.0.{i + 1}", "--num-cpus=1"))
    return subprocess.run(command, check=False).returncode  # exiting as PID 1 ends all others in the namespace


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
