"""Tests of training on several hosts: two checkouts on this machine, each with its own torchrun."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest

from niels_gpt.files.ranks import Ranks
from niels_gpt.pipeline import hosts
from niels_gpt.pipeline.hosts import Rendezvous, disagreement, find_rendezvous
from niels_gpt.pipeline.stage import Inputs, Stage, read_inputs
from niels_gpt.pipeline.training import execution_of, join_training, train_stage
from niels_gpt.report.history import History
from niels_gpt.train.task import Execution
from tests.conftest import ROOT, Repo, run_python
from tests.forked_ranks import fork_ranks
from tests.in_process import tiny_params
from tests.watchdog import watchdog

FOUND = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"}


def test_hosts_find_each_other_by_environment_variables() -> None:
    assert find_rendezvous({}, "train") is None
    assert find_rendezvous({"NNODES": "1", "NODE_RANK": "0", "MASTER_ADDR": "x"}, "train") is None
    found = find_rendezvous(FOUND, "train")
    assert found == Rendezvous(hosts=2, host=1, address="10.0.0.7", port=29500)
    assert found.arguments()[:5] == [
        "--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.7", "--master-port=29500", "--rdzv-backend=static"
    ]  # fmt: skip
    ports = [find_rendezvous(FOUND, stage).port for stage in hosts.STAGES]  # type: ignore[union-attr]
    assert len(set(ports)) == 3


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"NNODES": "two"}, "NNODES is 'two': give the number of hosts"),
        ({"NNODES": "0"}, "NNODES is '0': give the number of hosts"),
        ({"NNODES": ""}, "NODE_RANK is 1, but NNODES is 1"),
        ({"NODE_RANK": ""}, "NODE_RANK is not set: several hosts .* need this host's number, 0 to 1"),
        ({"NODE_RANK": "2"}, "NODE_RANK is '2': give this host's number, 0 to 1"),
        ({"NODE_RANK": "-1"}, "NODE_RANK is '-1'"),
        ({"MASTER_ADDR": " "}, "MASTER_ADDR is not set: give host 0's name or address"),
        ({"MASTER_PORT": ""}, "MASTER_PORT is not set: several hosts .* need a free port of host 0"),
        ({"MASTER_PORT": "80"}, "MASTER_PORT is '80': give a free port of host 0, 1024 to 65533"),
        ({"MASTER_PORT": "65534"}, "MASTER_PORT is '65534'"),
    ],
)
def test_an_invalid_environment_variable_is_named(changed: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}"):
        find_rendezvous({**FOUND, **changed}, "train")


def not_here(stage: Stage, execution: Execution) -> None:
    pytest.fail("trained in this process")


def test_each_host_has_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(name="train", key="", params=tiny_params(), inputs=Inputs({}, {}))
    for name in (*FOUND, "RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="NNODES is not set: `niels-gpt join` is for hosts other than host 0"):
        join_training("train")
    for name, value in {**FOUND, "MASTER_ADDR": "no.such.invalid"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"NODE_RANK is 1, and `dvc repro` is for host 0: run `niels-gpt join train`"):
        train_stage(not_here)(stage)
    monkeypatch.setenv("NODE_RANK", "0")
    with pytest.raises(ValueError, match="NODE_RANK is 0, so this is host 0: run `dvc repro` here"):
        join_training("train")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        with pytest.raises(ValueError, match=r"port \d+ of this host is taken .* set another MASTER_PORT"):
            train_stage(not_here)(stage)


def test_an_unknown_address_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"MASTER_ADDR is 'no\.such\.invalid', and there is no such host"):
        Rendezvous(2, 1, "no.such.invalid", 29500).wait_for_first()


def test_hosts_with_other_inputs_are_named_with_the_differences() -> None:
    mix, code = "a" * 64, "b" * 64
    first = {"train.B": "8", "train.base_lr": "0.1", "p_val": "1" * 50, "cache/mix.json": mix, "x.py": code}
    assert disagreement([first, first, first]) == ""
    other = {**first, "train.B": "4", "p_val": "2" * 50, "cache/mix.json": code, "new.py": mix}
    del other["x.py"]
    said = disagreement([first, {**first, "torch": '"2.12.0"'}, first, other])
    assert said.startswith(
        'host 1 differs in torch ("2.12.0" instead of nothing); '
        "host 3 differs in train.B (4 instead of 8), p_val, cache/mix.json, x.py, new.py: give every host"
    )


SILENT = """
import os, signal, sys
from datetime import timedelta
import torch
from niels_gpt.files import ranks
from tests.forked_ranks import fork_ranks

def work(rank):
    with ranks.joined_ranks("cpu") as joined:
        other = joined.exchange(os.getpid())[1]
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        try:
            joined.sum(torch.ones(1))
        finally:
            os.kill(other, signal.SIGKILL)

ranks.TIMEOUT = timedelta(seconds=2)
print(fork_ranks(2, work, hosts=2))
"""


@pytest.mark.slow
def test_a_rank_that_falls_silent_is_given_up_by_the_others() -> None:
    done = run_python(SILENT, env={**os.environ, **GLOO})
    assert done.stdout == f"[1, {-signal.SIGKILL}]\n", done.stderr
    assert "timed out" in done.stderr.lower()


STARTER = """
import subprocess, time
from niels_gpt.pipeline.hosts import end_with_parent
subprocess.Popen(["sh", "-c", "echo started; exec sleep 600"], start_new_session=True, preexec_fn=end_with_parent)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a process with its parent")
def test_a_process_in_a_session_of_its_own_ends_with_a_killed_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", STARTER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with parent, watchdog(60):
        assert parent.stdout is not None
        assert parent.stdout.readline() == "started\n"
        parent.kill()
        assert parent.stdout.read() == ""  # end of file: the child, which held the pipe as well, has ended


def test_every_host_checks_all_its_files() -> None:
    files = list("abcde")
    for host in range(2):
        ranks = [Ranks(2 * host + i, 4, local_rank=i, local_size=2) for i in range(2)]
        assert sorted(file for rank in ranks for file in rank.files(files)) == files


@dataclass(frozen=True)
class Hosts:
    """Two checkouts that run one stage together."""

    first: Repo
    second: Repo
    port: int

    @contextmanager
    def started(self) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str]]]:
        """Start the second host and, once it waits, the first; yield the processes of the first and the second."""
        where = {"NNODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)} | GLOO
        second = self.second.start("niels-gpt", "join", "train", env={**where, "NODE_RANK": "1"})
        first = None
        try:
            assert second.stdout is not None
            assert "train: host 1 of 2 waits for host 0 at 127.0.0.1" in second.stdout.readline()
            first = self.first.start("python", "-m", "stages.train", env={**where, "NODE_RANK": "0"})
            yield first, second
        finally:
            for process in filter(None, (first, second)):
                process.kill()  # its ranks end with it
                process.wait()

    def run(self) -> list[tuple[int, str]]:
        """Return (exit code, output) of the first and the second host."""
        with self.started() as processes:
            said = [process.communicate(timeout=600)[0] for process in processes]
        return [(process.returncode, text) for process, text in zip(processes, said, strict=True)]


GLOO = {"GLOO_SOCKET_IFNAME": "lo0" if os.uname().sysname == "Darwin" else "lo"}


def forget(repo: Repo) -> None:
    for folder in ("models/pretrain", "checkpoints", "logs"):
        shutil.rmtree(repo.path / folder, ignore_errors=True)


def written(repo: Repo) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (repo.path / "models/pretrain").iterdir()}


@pytest.fixture(scope="module")
def pair(built_template: Repo, tmp_path_factory: pytest.TempPathFactory) -> Hosts:
    path = tmp_path_factory.mktemp("hosts")
    repos = [Repo(path / name) for name in ("first", "second")]
    for repo in repos:
        shutil.copytree(built_template.path, repo.path, symlinks=True)
        repo.set(runtime__checkpoint_every=10, runtime__log_every=20)
        forget(repo)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = min(free.getsockname()[1], 65000)
    return Hosts(*repos, port=port)


@pytest.mark.dag
def test_other_parameters_on_a_host_are_refused_by_name(pair: Hosts) -> None:
    """Both hosts refuse, before they open any file; ranks started without torchrun are enough to test that."""
    params, mix = (pair.second.path / name for name in ("params.yaml", "cache/mix.json"))
    before = [path.read_bytes() for path in (params, mix)]
    pair.second.set(train__base_lr=0.5)
    mix.write_bytes(before[1] + b" ")
    paths = [str(repo.path) for repo in (pair.first, pair.second)]
    done = pair.first.run("python", "-m", "tests.test_hosts", *paths, check=False, env={"PYTHONPATH": str(ROOT)} | GLOO)
    params.write_bytes(before[0])
    mix.write_bytes(before[1])
    refused = "ValueError: host 1 differs in train.base_lr (0.5 instead of 0.008), cache/mix.json: give every host"
    assert done.stderr.count(refused) == 2, done.stderr
    assert done.stdout == "[1, 1]\n"


def agree(rank: int) -> None:
    os.chdir(sys.argv[1 + rank])
    parameters, inputs = read_inputs("train", "")
    with execution_of(Stage(name="train", key="", params=parameters, inputs=inputs)):
        pass


@pytest.mark.dag
def test_a_host_that_is_killed_ends_the_run_and_the_rerun_is_that_of_two_processes(
    pair: Hosts, built_template: Repo
) -> None:
    gate = pair.first.path / "logs/train.jsonl"  # a FIFO: rank 0 blocks at its first report until it is read
    gate.parent.mkdir(exist_ok=True)
    os.mkfifo(gate)
    with pair.started() as (first, second):
        while not list(pair.first.path.glob("checkpoints/*/state.pt")):
            assert first.poll() is None, first.communicate()[0]
            time.sleep(0.02)
        os.kill(second.pid, signal.SIGKILL)  # only this process: its ranks must end by themselves
        reader = os.open(gate, os.O_RDWR)
        said, _ = first.communicate(timeout=600)
        os.close(reader)
    gate.unlink()
    assert first.returncode == 1
    assert "failed" in said
    assert "run again on all hosts to resume from the last checkpoint" in said
    assert not (pair.first.path / "models/pretrain").exists()

    lock = (pair.second.path / "dvc.lock").read_bytes()
    (code, said), (other_code, other_said) = pair.run()
    assert (code, other_code) == (0, 0), said + other_said
    assert "resuming after step 10" in said
    assert "in each of 2 processes" in said
    assert (pair.second.path / "dvc.lock").read_bytes() == lock
    for path in ("models/pretrain", "checkpoints", "logs/train.jsonl"):  # only host 0 writes these
        assert not (pair.second.path / path).exists()
    by_hosts = written(pair.first)

    forget(pair.second)
    pair.second.set(runtime__nproc=2)
    assert "in each of 2 processes" in pair.second.stage("train").stdout
    assert written(pair.second) == by_hosts
    history = "models/pretrain/history.json"
    alone, together = (History.read(repo.path / history) for repo in (built_template, pair.first))
    np.testing.assert_allclose(together.losses[:10], alone.losses[:10], rtol=1e-5)


if __name__ == "__main__":
    print(fork_ranks(2, agree, hosts=2))
