"""Tests of several processes on one job: each reads, trains on, validates and hashes its share; all agree."""

import copy
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_gpt.cache.windows import Places, TokenFile, TokenStream, open_mix
from niels_gpt.config import ModelConfig, TrainConfig
from niels_gpt.files import checks
from niels_gpt.files.atomic import write_json
from niels_gpt.files.ranks import Ranks, joined_ranks
from niels_gpt.model.gpt import GPT
from niels_gpt.rng import set_seed
from niels_gpt.splice.dataset import MultiSpliceDocumentDataset
from niels_gpt.splice.task import SpliceTask
from niels_gpt.train.loop import Hooks, train
from niels_gpt.train.pretraining import PretrainTask
from niels_gpt.train.state import RunState
from niels_gpt.train.task import Execution, Task
from tests.conftest import ROOT, run_python
from tests.tiny_training import (
    CONFIG,
    CUT,
    DRY,
    FROZEN,
    RECIPE,
    SHORT_BF16,
    STREAMS,
    TASK,
    TINY_V2,
    V2,
    V2_RECIPE,
    V3,
    chat_task,
)
from tests.token_caches import write_parts


def test_ranks_share_rows_without_overlap() -> None:
    for B, size in ((8, 2), (7, 3), (5, 5)):
        rows = [n for rank in range(size) for n in range(B)[Ranks(rank, size).rows(B)]]
        assert rows == list(range(B))
    with pytest.raises(ValueError, match=r"lower runtime\.nproc"):
        Ranks(0, 9).rows(8)


def tasks(folder: Path, *, B: int) -> dict[str, Task]:
    """Return one task of every kind; the first spliced document has one span to validate on, which one rank takes."""
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 250, length).astype("<u2") for length in (DRY.T, 70, 45)]
    spans = MultiSpliceDocumentDataset(documents, S=DRY.T, pad_id=259, offset_jitter=3, min_copy_len=4)
    chats = chat_task(folder)
    texts = {"text": STREAMS, "documents": CUT}
    return {
        **{name: replace(TASK, train=mix, val=mix, cfg=text_config(B)) for name, mix in texts.items()},
        "chats": replace(chats, cfg=replace(chats.cfg, B=B, eval_steps=5)),
        "spans": SpliceTask(dataset=spans, sources=("a", "b", "c"), cfg=replace(CONFIG, B=B), device="cpu"),
    }


def text_config(B: int) -> Any:
    return replace(CONFIG, B=B, p_val={"wiki": 0.4, "roam": 0.6})


STEPS, STOPPED = 8, 5  # both within the momentum warm-up
RECIPES: dict[str, tuple[ModelConfig, TrainConfig]] = {
    name: (shape, replace(text_config(7), **{"total_steps": STEPS, **changes}))
    for name, shape, changes in (
        ("muon", DRY, {"optimizer": "muon", **RECIPE}),
        ("v2", V2, {**V2_RECIPE, "total_steps": STEPS}),
        ("v2 in bf16", TINY_V2, {**V2_RECIPE, **SHORT_BF16}),
        ("v3 frozen", V3, {**V2_RECIPE, **FROZEN, "total_steps": STEPS}),
    )
}


@pytest.mark.parametrize(("B", "size"), [(7, 2), (7, 3), (3, 3)])
def test_the_rows_of_all_ranks_are_the_batch_and_each_counts_the_targets_of_all(
    B: int, size: int, tmp_path: Path
) -> None:
    for name, task in tasks(tmp_path, B=B).items():
        for n in (0, 3, 50):
            whole = task.batch(n)
            parts = [task.batch(n, Ranks(rank, size).rows(B)) for rank in range(size)]
            assert {part.B for part in parts} <= {B // size, -(-B // size)}
            for key, value in whole.tensors.items():
                assert torch.equal(torch.cat([part.tensors[key] for part in parts]), value), (name, key)
            assert torch.cat([part.row_numbers for part in parts]).tolist() == list(range(B))
            for part in (whole, *parts):
                assert int(part.targets) == int((whole.y != -100).sum()), name
                assert part.rows == whole.rows


def test_a_rank_reads_no_file_but_those_of_its_own_rows(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.bin" for i in range(40)]
    for i, path in enumerate(paths):
        np.full(50, i, dtype="<u2").tofile(path)
    stream = {"wiki": TokenStream([TokenFile.whole(path) for path in paths])}
    cfg = replace(CONFIG, p_train={"wiki": 1.0})
    task = PretrainTask(train=stream, val=stream, cfg=cfg, T=DRY.T, device="cpu")
    whole, rows = task.batch(5), Ranks(1, 2).rows(cfg.B)
    own = set(whole.x[rows, 0].tolist())
    assert len(own) < len(set(whole.x[:, 0].tolist()))
    for i in set(range(40)) - own:
        paths[i].unlink()
    assert torch.equal(task.batch(5, rows).x, whole.x[rows])
    with pytest.raises(FileNotFoundError, match=r"\.bin"):
        task.batch(5)


TWO_RANKS = """
import sys
from pathlib import Path
from tests.forked_ranks import fork_ranks
from tests.test_ranks import work
print(fork_ranks(2, lambda rank: work(Path(sys.argv[1]))))
"""
A_RANK_THAT_DIES = """
from niels_gpt.files.ranks import joined_ranks
with joined_ranks("cpu") as ranks:
    if ranks.rank == 1:
        raise ValueError("rank 1 has had enough")
    ranks.exchange(0)
"""


def work(folder: Path) -> None:
    """Read, validate and train as one of the ranks, and write the results to rank_N.json."""
    torch.set_num_threads(1)
    hashed: list[str] = []
    real = checks.sha256_file

    def noting(path: str | Path) -> str:
        hashed.append(Path(path).name)
        return real(path)

    with pytest.MonkeyPatch.context() as patch, joined_ranks("cpu") as ranks:
        patch.setattr(checks, "sha256_file", noting)
        open_mix(folder / "mix.json", places=Places(folder), documents=True, ranks=ranks)
        with pytest.raises(ValueError, match="differs from what the mix was made of") as refused:
            open_mix(folder / "damaged.json", places=Places(folder), ranks=ranks)
        set_seed(1)
        model = GPT(DRY)
        validated = tasks(folder / str(ranks.rank), B=3)
        validations = {name: task.validate(model, ranks) for name, task in validated.items()}
        set_seed(1 + ranks.rank)  # all ranks must start with the weights of rank 0
        cfg = text_config(7)
        task, execution = replace(TASK, cfg=cfg, val=TASK.train), Execution(ranks=ranks, micro_batch_tokens=64)
        run = train(GPT(DRY), task, execution=execution)
        recipes = {name: straight_and_resumed(name, ranks) for name in RECIPES}
    fields = ("losses", "validations", "samples", "best_step", "best_val_loss")
    found = {"hashed": hashed, "refused": str(refused.value), "validations": validations, "recipes": recipes}
    found["run"] = {key: getattr(run, key) for key in fields}
    (folder / f"rank_{ranks.rank}.json").write_text(json.dumps(found))


def straight_and_resumed(name: str, ranks: Ranks) -> dict[str, Any]:
    shape, cfg = RECIPES[name]
    task = replace(TASK, cfg=cfg, val=TASK.train)

    def trained(state: RunState | None = None, stop_after: int | None = None) -> tuple[RunState, dict[str, Any]]:
        set_seed(1 + ranks.rank)
        model, done = GPT(shape), list[Any]()
        hooks = Hooks(progress=done.append, should_stop=lambda: len(done) == stop_after)
        state = train(model, task, state=state, hooks=hooks, execution=Execution(ranks=ranks))
        weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        return copy.deepcopy(state), {"losses": state.losses, "weights": sha256(weights).hexdigest()}

    half, _ = trained(stop_after=STOPPED)
    return {"step": half.step, "straight": trained()[1], "resumed": trained(state=half)[1]}


def write_mixes(folder: Path) -> None:
    """Write mix.json of five token files and their offsets, and damaged.json, whose hashes of two files are wrong."""
    parts = {
        split: [(np.full(40, i), np.arange(0, 40, 10)) for i in range(n)] for split, n in (("train", 4), ("val", 1))
    }
    source = write_parts(folder / "wiki", parts)
    write_json(folder / "mix.json", {"vocab_size": 260, "sources": {"wiki": source}})
    for i in (1, 2):
        source["train"]["parts"][i]["sha256"] = "0"
    write_json(folder / "damaged.json", {"vocab_size": 260, "sources": {"wiki": source}})


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Mapping[str, Any]]]:
    """Return the folder of a job of two processes and the results of each."""
    folder = tmp_path_factory.mktemp("ranks")
    write_mixes(folder)
    done = run_python(TWO_RANKS, str(folder))
    assert done.stdout == "[0, 0]\n", done.stderr
    return folder, [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.slow
def test_two_processes_train_and_validate_as_one_does(two_ranks: tuple[Path, list[Mapping[str, Any]]]) -> None:
    _, (first, second) = two_ranks
    assert first["run"] == second["run"]
    set_seed(1)
    cfg = text_config(7)
    alone = train(GPT(DRY), replace(TASK, cfg=cfg, val=STREAMS))
    run = first["run"]
    np.testing.assert_allclose(run["losses"], alone.losses, rtol=2e-5)
    assert [row["step"] for row in run["validations"]] == [row["step"] for row in alone.validations]
    for ours, theirs in zip(run["validations"], alone.validations, strict=True):
        assert ours == pytest.approx(theirs, rel=2e-5)
    assert run["best_step"] == alone.best_step


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_two_processes_train_by_any_recipe_as_one_does_and_resume_bit_for_bit(
    name: str, two_ranks: tuple[Path, list[Mapping[str, Any]]]
) -> None:
    """The recipes have a momentum warm-up, rates by group and a linear decay; the run is stopped in the warm-up."""
    _, (first, second) = two_ranks
    found, (shape, cfg) = first["recipes"][name], RECIPES[name]
    assert found == second["recipes"][name]
    assert found["step"] == STOPPED
    assert found["resumed"] == found["straight"]
    set_seed(1)
    alone = train(GPT(shape), replace(TASK, cfg=cfg, val=STREAMS))
    rtol = 0.02 if cfg.precision == "bf16" else 1e-4
    np.testing.assert_allclose(found["straight"]["losses"], alone.losses, rtol=rtol)


@pytest.mark.slow
def test_ranks_that_share_a_validation_get_the_numbers_of_one_process(
    two_ranks: tuple[Path, list[Mapping[str, Any]]], tmp_path: Path
) -> None:
    """This also holds where a rank has no row: in the last batch of chats, and in a document with one span."""
    _, (first, second) = two_ranks
    assert first["validations"] == second["validations"]
    set_seed(1)
    model = GPT(DRY)
    for name, task in tasks(tmp_path, B=3).items():
        alone = task.validate(model)
        assert len(set(alone.values())) > 1
        assert first["validations"][name] == pytest.approx(alone, rel=1e-6), name


@pytest.mark.slow
def test_a_job_hashes_every_file_once_and_all_its_ranks_refuse_a_changed_one(
    two_ranks: tuple[Path, list[Mapping[str, Any]]],
) -> None:
    folder, (first, second) = two_ranks
    shards = [f"train_{i}.bin" for i in range(4)] + ["val_0.bin"]
    hashed = [*first["hashed"], *second["hashed"]]
    offsets = [name.replace(".bin", ".idx.npy") for name in shards]
    assert sorted(hashed) == sorted([*shards, *offsets, *shards])  # shards of both mixes, but offsets of the first only
    assert abs(len(first["hashed"]) - len(second["hashed"])) <= 2
    assert first["refused"] == second["refused"]
    with pytest.raises(ValueError, match="differs from what the mix was made of") as refused:
        open_mix(folder / "damaged.json", places=Places(folder))
    for sentence in (first["refused"], str(refused.value)):
        assert [name for name in shards if f"{name} (changed)" in sentence] == ["train_1.bin", "train_2.bin"]


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_run_with_its_error(tmp_path: Path) -> None:
    """The ranks are started by torchrun; test_base_stages.py tests that ranks started so work together."""
    (tmp_path / "dies.py").write_text(A_RANK_THAT_DIES)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launch, str(tmp_path / "dies.py")],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode != 0
    assert "rank 1 has had enough" in done.stderr
