"""Tests of niels-gpt doctor: it names what is missing, and says what to do about it."""

import copy
import os
import re
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

from niels_gpt.cli import sizing
from niels_gpt.cli.app import app
from niels_gpt.cli.doctor import examine
from niels_gpt.cli.sizing import model_config, seconds_to_train
from niels_gpt.config import ModelConfig
from niels_gpt.data import hub
from niels_gpt.device import prepare_device
from niels_gpt.model import size
from niels_gpt.model.gpt import GPT
from niels_gpt.model.size import Reading, expected_bits_per_byte, parameter_count
from niels_gpt.pipeline.params import complete
from niels_gpt.train.task import Execution, check_memory, least_memory
from tests.conftest import ROOT, TINY, with_values


@pytest.fixture(scope="module")
def tiny() -> dict[str, Any]:
    return complete(yaml.safe_load(with_values((ROOT / "params.yaml").read_text(), TINY)))


@pytest.fixture
def params(tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    values = copy.deepcopy(tiny)
    for source in values["sources"].values():
        (tmp_path / source["input"]).mkdir(parents=True, exist_ok=True)
    (tmp_path / values["base"]["input"]).touch()
    return values


def fixes(params: dict[str, Any]) -> dict[str, str]:
    return {finding.what: finding.fix for finding in examine(params) if finding.fix}


def online_at(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a process that started with HF_ENDPOINT and neither HF_HUB_OFFLINE nor a proxy."""
    monkeypatch.setattr(hub, "is_offline", lambda: False)
    monkeypatch.setattr(hub, "getproxies", dict)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)


@pytest.mark.slow
def test_a_folder_that_is_not_there_is_named(params: dict[str, Any], tmp_path: Path) -> None:
    assert not fixes(params)
    params["sources"]["roam"]["input"] = ".roam-data"
    assert fixes(params) == {
        "sources.roam.input is .roam-data, which does not exist": "put the text there, or remove the source"
    }


@pytest.mark.slow
def test_what_is_no_file_in_an_input_is_named(params: dict[str, Any], tmp_path: Path) -> None:
    """A FIFO or a linked folder is named before `dvc repro`, which would wait for a FIFO forever."""
    notes = params["sources"]["roam"]["input"]
    os.mkfifo(tmp_path / notes / "x.md")
    (tmp_path / notes / "more").symlink_to(tmp_path)
    found = fixes(params)
    assert found[f"{notes}/x.md is a FIFO, no file"] == "remove it"
    assert found[f"{notes}/more is a linked folder, which DVC does not watch"].startswith("put the folder itself")
    assert len(found) == 2


@pytest.mark.slow
def test_no_network_is_named_for_each_dataset(
    params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as nobody:  # bound but not listening: connections are refused
        nobody.bind(("127.0.0.1", 0))
        online_at(f"http://127.0.0.1:{nobody.getsockname()[1]}", monkeypatch)
        params["sources"]["wiki"]["load"]["dataset"] = "a/b"
        (what, fix), *_ = fixes(params).items()
        assert what == "wiki: a/b from the hub"
        assert re.match(
            r"the hub at http://127\.0\.0\.1:\d+ cannot be reached \(Connection refused\): connect, or", fix
        )


def test_the_disk_that_text_of_the_hub_needs_is_counted(
    params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "is_offline", lambda: True)
    monkeypatch.setattr(hub, "cached_commit", lambda *_: "abc")

    def disk() -> str:
        return next(finding.what for finding in examine(params) if finding.what.startswith("disk"))

    assert disk().endswith("about 0.1 GiB needed")
    source = params["sources"]["roam"]
    source["load"] = {"kind": "fineweb_edu", "dataset": "a/b", "config": "c", "bytes_per_token": 4.0}
    source["budget"] = {"max_train_tokens": 3 << 28, "max_val_tokens": 1 << 28}
    assert disk().endswith("about 16.1 GiB needed")  # 4 GiB of text and as much for tokens, both stored twice
    source["budget"]["max_val_tokens"] = None
    words = "about 0.1 GiB needed, plus 4 times the text of {}, whose size on the hub is unknown"
    assert disk().endswith(words.format("roam"))
    params["sources"]["wiki"]["load"]["dataset"] = "d/e"
    assert disk().endswith(words.format("wiki, roam"))


def test_a_full_disk_is_named(params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    ((what, fix),) = fixes(params).items()
    assert what.startswith("disk: 0.0 GiB free, about 0.1 GiB needed")
    assert "free 0.1 GiB" in fix
    assert "niels-gpt store --checkpoints" in fix


def test_the_time_of_a_run_is_measured(params: dict[str, Any]) -> None:
    seconds = seconds_to_train({**params, "train": {**params["train"], "total_steps": 5}})
    assert set(seconds) == {"train", "sft"}
    assert all(pace.seconds > 0 and 0 <= pace.busy < 1 for pace in seconds.values())


def test_a_busy_machine_is_told_from_a_slow_one(params: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU time tells them apart: a step takes 1 s of wall time but 0.5 s of CPU time, on two threads and on one."""
    clock = iter(range(10**6))
    shares = {1: 0.5, 2: 0.25}  # by number of threads: CPU time over the threads' wall time
    spent = {"wall": 0.0, "cpu": 0.0}

    def tick(*_: Any, **__: Any) -> torch.Tensor:
        next(clock)
        spent["wall"] += 1.0
        spent["cpu"] += threads[0] * shares[threads[0]]
        return torch.zeros(())

    threads = [2]
    monkeypatch.setattr(sizing, "build_step", lambda *_, **__: tick)
    monkeypatch.setattr(sizing.time, "perf_counter", lambda: spent["wall"])
    monkeypatch.setattr(sizing.time, "process_time", lambda: spent["cpu"])
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda n: threads.__setitem__(0, n))
    runtime = {**params["runtime"], "threads": 2}
    run = {**params, "train": {**params["train"], "total_steps": 5}, "runtime": runtime}
    pace = seconds_to_train(run, "train")["train"]
    assert pace.seconds == pytest.approx(5 * 0.5 / 1.8)  # two threads are 1.8 times as fast as one
    assert pace.busy == pytest.approx(1 - 0.5 / 1.8)
    assert threads == [2]
    assert str(pace) == "about 1 s on idle cores, 5 s while others take 72% of them"
    shares[2] = 0.9
    assert seconds_to_train(run, "train")["train"] == (5.0, 0.0)
    taught = {**run, "train": {**run["train"], "teacher": 0.5}}
    assert seconds_to_train(taught, "train")["train"].seconds == pytest.approx(12)  # its teacher is trained first


@pytest.mark.slow
def test_the_expected_final_loss_is_reported(params: dict[str, Any], tmp_path: Path) -> None:
    """The loss is predicted if there is enough text, and for the recipe whose runs were measured."""

    def told() -> str:
        *_, last, _ = (finding.what for finding in examine(params))
        return last

    params["sources"]["wiki"]["load"]["dataset"] = params["sources"]["roam"]["load"]["dataset"] = None
    params["p_train"] = {"wiki": 0.0, "roam": 1.0, "primer": 0.0}
    assert "too little to predict" in told()
    notes = tmp_path / params["sources"]["roam"]["input"] / "a.md"
    notes.write_bytes(b"x" * 10_000_000)
    assert "10.0 MB" not in told()  # a tenth is held out
    assert "9.0 MB of text and 0.0 M parameters are too little" in told()
    params["model"] |= {"T": 256, "C": 256, "L": 4, "d_ff": 1024, "H": 4}
    params["train"] |= {"total_steps": 1000, "B": 32, "optimizer": "muon"}
    parameters = parameter_count(model_config(params))
    read = 1000 * 32 * 256  # its tokens are bytes
    bits = expected_bits_per_byte(parameters, [Reading(9e6, read, in_epochs=True)], steps=1000)
    assert (
        f"9.0 MB of text and {parameters / 1e6:.1f} M parameters, expected loss about {bits:.2f} bits per byte"
        in told()
    )
    params["p_train"] |= {"wiki": 1.0}
    (tmp_path / params["sources"]["wiki"]["input"] / "a").write_bytes(b"x" * 400_000)
    halves = [Reading(size, read / 2, in_epochs=True) for size in (9e6, 4e5)]
    both = expected_bits_per_byte(parameters, halves, steps=1000)
    assert (
        f"9.4 MB of text and {parameters / 1e6:.1f} M parameters, expected loss about {both:.2f} bits per byte"
        in told()
    )
    assert round(both, 2) != round(bits, 2)
    params["p_train"] |= {"roam": 0.0}
    assert f"0.4 MB of text and {parameters / 1e6:.1f} M parameters are too little" in told()
    params["p_train"] |= {"wiki": 0.0, "roam": 1.0}
    params["sources"]["roam"]["budget"]["max_train_tokens"] = 2_000_000
    assert "2.0 MB of text" in told()
    params["train"]["optimizer"] = "adamw"
    assert "with preset v2's recipe, higher with this one" in told()
    params["sources"]["roam"]["budget"]["max_train_tokens"] = None
    notes.write_bytes(b"x" * 50_000_000)
    assert "extrapolated" in told()


def test_an_offline_run_needs_the_dataset_in_the_cache(
    params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cached_commit` is replaced here; tests/test_hub_loaders.py tests it with the real client of the hub."""
    monkeypatch.setattr(hub, "is_offline", lambda: True)
    monkeypatch.setattr(hub, "cached_commit", lambda *dataset: {("org/BigBooks", "v1"): "abc"}.get(dataset))
    params["sources"]["wiki"]["load"] |= {"dataset": "org/BigBooks", "config": "v2"}
    what = "wiki: org/BigBooks is not in the local cache, and HF_HUB_OFFLINE is set"
    assert "unset HF_HUB_OFFLINE once" in fixes(params)[what]
    params["sources"]["wiki"]["load"]["config"] = "v1"
    assert not fixes(params)


@pytest.mark.slow
def test_the_hub_is_asked_once_however_many_need_it(
    params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        online_at(f"http://127.0.0.1:{server.getsockname()[1]}", monkeypatch)
        for name in ("wiki", "oasst1"):
            params["sources"][name]["load"]["dataset"] = "a/b"
        assert not fixes(params)
        server.accept()[0].close()
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    online_at("http://127.0.0.1:port", monkeypatch)
    assert set(fixes(params)) == {"wiki: a/b from the hub", "oasst1: a/b from the hub"}


def test_checks_that_need_an_invalid_value_are_skipped_and_all_others_run(
    params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)  # fixed: other processes write to this disk
    whats = [finding.what for finding in examine(params)]
    starts = (
        "python",
        "computing on",
        "disk",
        "wiki:",
        "roam:",
        "primer:",
        "dolly15k:",
        "oasst1:",
        "dialogues:",
        "models/",
        "models/",
        "epochs:",
        "train:",
        "verdict:",
    )
    assert [what.startswith(start) for what, start in zip(whats, starts, strict=True)] == [True] * len(starts)
    for wrong, left_out in (
        ([()], [*starts[1:9], "epochs:", "train:", "verdict:"]),
        ([("runtime", "device")], ["computing on"]),
        ([("model", "C")], ["disk", "epochs:", "train:", "verdict:"]),
        ([("tokenizer",)], ["disk", "epochs:", "train:", "verdict:"]),
        ([("sources", "roam", "load", "kind")], ["disk", "roam:", "epochs:", "train:", "verdict:"]),
        ([("sources", "oasst1")], ["disk", "oasst1:", "epochs:", "train:", "verdict:"]),
        ([("p_train",), ("",)], ["epochs:", "train:", "verdict:"]),
    ):
        seen = [finding.what for finding in examine(params, wrong=wrong)]
        assert seen == [what for what in whats if not what.startswith(tuple(left_out) or ("?",))], wrong
    assert [f.what for f in examine({}, wrong=[("sources",), ("runtime",), ("model",), ("base",)])]
    assert [f.what for f in examine({"sources": 1}, wrong=[()])] == [whats[0], *whats[-5:-3]]


def test_sizes_are_counted(params: dict[str, Any], tmp_path: Path) -> None:
    roam = tmp_path / params["sources"]["roam"]["input"]
    (roam / "deep").mkdir()
    (roam / "deep/a.md").write_bytes(b"x" * 1_500_000)
    (roam / "b.md").write_bytes(b"x" * 1_000_000)
    whats = [finding.what for finding in examine(params)]
    assert "roam: data/roam (2.5 MB)" in whats
    cfg = ModelConfig.from_section(params["model"], V=260)
    weights = GPT(cfg).parameter_count()
    assert parameter_count(model_config(params)) == weights
    params["tokenizer"] = {"kind": "sentencepiece", "vocab_size": 1000}
    assert parameter_count(model_config(params)) == weights + (1000 - 260) * cfg.C


def test_parameters_of_many_blocks_are_counted_without_building_them(monkeypatch: pytest.MonkeyPatch) -> None:
    shape: dict[str, Any] = {"V": 50, "T": 8, "C": 8, "H": 2, "d_ff": 12, "dropout": 0.0}
    options: dict[str, Any] = {"value_residual": True, "qk_norm": True, "tied": False, "norm": "rms"}
    for more in ({}, options):
        for L in (1, 2, 5):
            cfg = ModelConfig(**shape, **more, L=L)
            assert parameter_count(cfg) == GPT(cfg).parameter_count()
    blocks: list[int] = []
    monkeypatch.setattr(size, "GPT", lambda cfg: blocks.append(cfg.L) or GPT(cfg))
    parameter_count(ModelConfig(**shape, L=1024))
    assert max(blocks) < 3


@pytest.mark.parametrize(
    ("changes", "least"),
    [
        ({"model": {"C": 2**18, "d_ff": 2**18}}, "weights and optimizer"),
        ({"model": {"L": 1024, "C": 65536, "d_ff": 2**18}}, "weights and optimizer"),
        ({"train": {"B": 2**20}, "model": {"T": 2**20}}, "the batch"),
        ({"train": {"B": 2**20}, "model": {"L": 1024, "T": 2048}}, "activations"),
    ],
)
def test_training_that_cannot_fit_is_reported_by_doctor_and_refused_before_a_model_is_built(
    changes: dict[str, Any], least: str, params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for section, values in changes.items():
        params[section] |= values
    monkeypatch.setattr(sizing, "GPT", lambda cfg: pytest.fail("a model was built"))
    bad = [finding for finding in examine(params) if finding.what.startswith("train: training needs")]
    (found,) = bad
    assert f"({least} " in found.what or f", {least} " in found.what
    assert found.fix is not None
    assert found.fix.startswith("lower model.L")
    execution = Execution(device="cpu")
    needed = least_memory(model_config(params), B=params["train"]["B"], execution=execution)
    assert max(needed, key=needed.__getitem__) in ("activations", least)
    with pytest.raises(ValueError, match=r"training needs at least [\d,.]+ GiB of memory .*, and cpu has"):
        check_memory(model_config(params), B=params["train"]["B"], execution=execution)


def test_what_may_fit_is_not_refused_and_smaller_pieces_need_less(params: dict[str, Any]) -> None:
    cfg = model_config(params)
    check_memory(cfg, B=params["train"]["B"], execution=Execution())
    whole = least_memory(cfg, B=100, execution=Execution())
    pieces = least_memory(cfg, B=100, execution=Execution(micro_batch_tokens=10 * cfg.T))
    assert whole["activations"] == 10 * pieces["activations"]
    one = least_memory(cfg, B=100, execution=Execution(micro_batch_tokens=1))
    assert whole["activations"] == 100 * one["activations"]  # a micro-batch has at least one row
    assert whole["weights and optimizer"] < 12 * GPT(cfg).parameter_count()
    assert whole["the batch"] == 100 * cfg.T * 8


def test_frozen_blocks_need_less_memory_and_a_third_matrix_needs_more(params: dict[str, Any]) -> None:
    cfg = replace(model_config(params), L=4)
    all_trained = least_memory(cfg, B=8, execution=Execution())
    frozen = least_memory(cfg, B=8, execution=Execution(), frozen=3)
    assert frozen["activations"] * 4 == all_trained["activations"]
    assert frozen["weights and optimizer"] < 0.6 * all_trained["weights and optimizer"]
    gated = least_memory(replace(cfg, activation="swiglu"), B=8, execution=Execution())
    assert all(gated[part] > all_trained[part] for part in ("activations", "weights and optimizer"))


def test_a_model_that_is_there_is_trained(params: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "models/sft").mkdir(parents=True)
    (tmp_path / "models/sft/best.pt").touch()
    whats = [finding.what for finding in examine(params)]
    assert whats[-5:-3] == ["models/pretrain: not trained yet; run `dvc repro`", "models/sft: trained"]


def test_a_gpu_beyond_those_there_are_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    chosen: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert prepare_device("cuda:1", threads=0) == "cuda:1"
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert prepare_device("cuda", threads=0) == "cuda:0"
    assert chosen == ["cuda:1", "cuda:0"]  # CUDA graphs, kernels and NCCL use the current device
    with pytest.raises(ValueError, match=r"'cuda:2' is not available here \(there is: cpu, cuda"):
        prepare_device("cuda:2", threads=0)


def test_a_device_that_is_not_there_is_named(params: dict[str, Any], tmp_path: Path) -> None:
    params["runtime"]["device"] = "tpu"
    assert "'tpu' is not available here" in fixes(params)["device tpu"]


@pytest.mark.slow
def test_check_names_what_dvc_would_hang_at_before_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values = {"sources.roam.input": "notes"}
    (tmp_path / "params.yaml").write_text(with_values((ROOT / "params.yaml").read_text(), values))
    for name in ("data/wikitext", "data/dolly", "data/oasst1", "notes"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data/primer.txt").write_text("dialogues")
    (tmp_path / "data/no-input.md").write_text("none")
    (tmp_path / "notes/a.md").write_text("a note")
    assert CliRunner().invoke(app, ["doctor", "--params"]).exit_code == 0
    os.mkfifo(tmp_path / "notes/x.md")
    (tmp_path / "notes/round").symlink_to(".")
    result = CliRunner().invoke(app, ["doctor", "--params"])
    assert result.exit_code == 1
    assert "notes/x.md" in result.stderr
    assert "notes/round is a linked folder" in result.stderr
    text = (tmp_path / "params.yaml").read_text()
    for right, wrong, said in (("text_bytes:", "text_bites:", "text_bites"), ("  H: 2\n", "  H: 5\n", "H=5")):
        (tmp_path / "params.yaml").write_text(text.replace(right, wrong))
        result = CliRunner().invoke(app, ["doctor", "--params"])
        assert result.exit_code == 1
        assert said in result.stderr
        assert "notes/round is a linked folder" in result.stderr  # reported as well
    assert "Traceback" not in result.stderr
