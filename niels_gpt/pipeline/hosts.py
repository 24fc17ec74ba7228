"""Training on several hosts: rendezvous, processes, and the check that all have the same inputs.

Every host starts torchrun with a static rendezvous, where NODE_RANK decides which host is 0, so that rank 0, which
writes, is on the host where DVC runs. (With a dynamic rendezvous, the lowest address gets rank 0.) Host 0 runs `dvc
repro`, the others `niels-gpt join`.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from niels_gpt.files.checks import read_meta
from niels_gpt.files.ranks import Ranks
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.stage import Stage, digest
from niels_gpt.report.page import leaves

# Check, before the first step, that all hosts of a run have the same parameters, code and data.
#
# A batch consists of rows from all hosts, so rows from different data would go unnoticed.

# Runtime settings that decide when ranks wait for each other: ranks that differ in them would deadlock.
_IN_STEP = ("micro_batch_tokens", "log_every", "checkpoint_every")
_SHOWN = 40  # characters; of longer values, such as hashes, only the name is reported


def check_agreement(stage: Stage, ranks: Ranks, *, device: str) -> None:
    """Raise on every rank if a host's inputs differ from host 0's; only the first rank of each host prints why."""
    if ranks.size == 1:
        return
    facts = ranks.exchange(_facts(stage, device) if ranks.local_rank == 0 else {})
    if sentence := disagreement([of_host for of_host in facts if of_host]):
        if ranks.local_rank:
            sys.exit(1)
        raise ValueError(sentence)


def disagreement(facts: Sequence[Mapping[str, str]]) -> str:
    """Return what differs on each host from host 0, given the facts of all hosts in order; empty if nothing."""
    found = []
    for host, other in enumerate(facts):
        names = []
        for key in {**facts[0], **other}:
            here, there = facts[0].get(key, "nothing"), other.get(key, "nothing")
            if here != there:
                short = max(len(here), len(there)) <= _SHOWN
                names.append(f"{key} ({there} instead of {here})" if short else key)
        found += [f"host {host} differs in {', '.join(names)}"] if names else []
    hosts = "; ".join(found)
    return hosts and (
        f"{hosts}: give every host the same commit, params.yaml, torch and data (`dvc pull`, or one disk for all), "
        "then run again on all hosts"
    )


def _facts(stage: Stage, device: str) -> dict[str, str]:
    """Return values as JSON, and hashes of the stage's inputs; of its code, one hash per module."""
    values = {f"runtime.{name}": getattr(stage.params.runtime, name) for name in _IN_STEP}
    # Another version of torch rounds differently, and may use another protocol. The suffix after + is its build.
    values |= {"torch": torch.__version__.partition("+")[0], "device": device.partition(":")[0]}
    facts = {key: json.dumps(value) for key, value in (values | dict(leaves(stage.inputs.params))).items()}
    for dep in map(Path, stage.inputs.deps):
        # All bytes are hashed, since another host's copy has another mtime.
        facts |= read_meta(dep) if dep.is_relative_to(layout.CODE) else {str(dep): digest(dep, whole=True)}
    return facts


# Training stages. Each has its own port, so that a host that joins the next stage does not connect to the previous one.
STAGES = tuple(layout.MODEL_OF)
# Seconds that host 0 waits for the others once it starts its ranks. They wait for it without a limit, since it may have
# hours of loading to do before.
_JOIN_WITHIN_S = 1800
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Rendezvous:
    """Number of hosts, index of this one, and the address at which host 0 listens."""

    hosts: int
    host: int
    address: str
    port: int

    def arguments(self) -> list[str]:
        """Return the arguments for torchrun."""
        return [
            f"--nnodes={self.hosts}",
            f"--node-rank={self.host}",
            f"--master-addr={self.address}",
            f"--master-port={self.port}",
            "--rdzv-backend=static",
            f"--rdzv-conf=timeout={_JOIN_WITHIN_S}",
        ]

    def check_port(self) -> None:
        """Raise a ValueError if the port is taken; called on host 0."""
        try:
            socket.create_server(("", self.port)).close()
        except OSError as error:
            advice = "set another MASTER_PORT on all hosts"
            raise ValueError(f"port {self.port} of this host is taken by another process: {advice}") from error

    def wait_for_first(self) -> None:
        """Wait, without a limit, until host 0 listens; called on the other hosts."""
        while True:
            try:
                socket.create_connection((self.address, self.port), timeout=5).close()
                return
            except socket.gaierror as error:
                raise ValueError(
                    f"MASTER_ADDR is {self.address!r}, and there is no such host ({error.strerror}): give host 0's "
                    "name or address as this host reaches it"
                ) from error
            except OSError:
                time.sleep(1)


def find_rendezvous(environment: Mapping[str, str], stage: str) -> Rendezvous | None:
    """Return the rendezvous from NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT; None for a single host."""
    hosts = _number(environment, "NNODES", "the number of hosts", least=1) if environment.get("NNODES") else 1
    if hosts == 1:
        if environment.get("NODE_RANK", "0") not in ("", "0"):
            raise ValueError(f"NODE_RANK is {environment['NODE_RANK']}, but NNODES is 1: set it to the number of hosts")
        return None
    host = _number(environment, "NODE_RANK", f"this host's number, 0 to {hosts - 1}", least=0, most=hosts - 1)
    if not environment.get("MASTER_ADDR", "").strip():
        raise ValueError("MASTER_ADDR is not set: give host 0's name or address as the other hosts reach it")
    most = 65535 - len(STAGES) + 1
    port = _number(environment, "MASTER_PORT", f"a free port of host 0, 1024 to {most}", least=1024, most=most)
    return Rendezvous(hosts, host, environment["MASTER_ADDR"].strip(), port + STAGES.index(stage))


def _number(environment: Mapping[str, str], name: str, meaning: str, *, least: int, most: int | None = None) -> int:
    text = environment.get(name, "").strip()
    if not text:
        raise ValueError(f"{name} is not set: several hosts (NNODES) need {meaning}")
    if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
        raise ValueError(f"{name} is {text!r}: give {meaning}")
    return int(text)


def run_ranks(stage: Stage, rendezvous: Rendezvous | None) -> None:
    """Run this host's processes of a stage under torchrun and wait for them; global rank 0 writes everything.

    When a process fails, torchrun stops the others on its host, and their closed connections stop those on other hosts.
    A host that no longer responds is given up after the timeout of the process group.
    """
    name, nproc = stage.name, stage.params.runtime.nproc
    threads = str(stage.params.runtime.threads or max(1, (os.cpu_count() or 1) // nproc))
    arguments = ["--standalone"]
    if rendezvous is not None:
        arguments = rendezvous.arguments()
        here, place = f"host {rendezvous.host} of {rendezvous.hosts}", f"{rendezvous.address}, port {rendezvous.port}"
        if rendezvous.host == 0:
            rendezvous.check_port()
            stage.say(f"{here} waits for the others at {place}: there, `niels-gpt join {name}`")
        else:
            stage.say(f"{here} waits for host 0 at {place} (Ctrl-C stops it)")
            rendezvous.wait_for_first()
    launch = ["-m", "torch.distributed.run", *arguments, f"--nproc-per-node={nproc}", "-m", f"stages.{name}"]
    # In a new session, so that torchrun receives a Ctrl-C or kill once, from here. It forwards the signal to the
    # ranks, which save a checkpoint.
    with subprocess.Popen(
        [sys.executable, *launch],
        env={**os.environ, "OMP_NUM_THREADS": threads},
        start_new_session=True,
        preexec_fn=end_with_parent,  # noqa: PLW1509  # safe: one system call, library already loaded
    ) as torchrun:
        try:
            code = torchrun.wait()
        except KeyboardInterrupt:
            torchrun.terminate()
            torchrun.wait()
            sys.exit(130)
    if code and rendezvous is None:
        raise RuntimeError(f"one of {nproc} processes failed; see its output above")
    if code:
        raise RuntimeError(
            "a process here or on another host failed; see its output above, or there; run again on all hosts to "
            "resume from the last checkpoint"
        )


def end_with_parent() -> None:
    """Have Linux kill this process when its parent dies, even by SIGKILL.

    The stage is torchrun's parent, and torchrun the ranks'. Ranks run in their own session and would otherwise keep
    training. Other systems have no such call.
    """
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
