"""The loop, exactly: golden losses, resume bit for bit, and what stops it."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from niels_gpt.cache.build_cache import build_sft_cache
from niels_gpt.cache.mmap import open_tokens
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.config import ModelConfig, TrainConfig
from niels_gpt.model.gpt import GPT
from niels_gpt.pages import release_pages
from niels_gpt.rng import set_seed
from niels_gpt.tokenizer import ByteTokenizer
from niels_gpt.train.loop import Hooks, train
from niels_gpt.train.meter import StepReport
from niels_gpt.train.metrics import loss_curve, mix_shares, summarise, validations_by_source
from niels_gpt.train.optimizer import build_optimizers
from niels_gpt.train.state import RunFolder, RunState
from niels_gpt.train.task import ChatTask, PretrainTask
from niels_gpt.tsv import read_tsv, write_tsv
from niels_gpt.windows import TokenStream

GOLDEN = Path(__file__).parent / "golden_losses.json"
MODEL = ModelConfig(V=260, T=32, C=32, L=2, H=2, d_ff=64, dropout=0.1)
STREAMS = {
    "wiki": TokenStream([np.frombuffer(b"the harbour lies still before the wind comes in . " * 40, np.uint8)]),
    "roam": TokenStream([np.frombuffer(b"- [ ] tar the boat\n- [x] bake bread\n" * 40, np.uint8)]),
}
CONFIG = TrainConfig(
    total_steps=30,
    base_lr=3e-3,
    warmup_steps=5,
    min_lr=3e-4,
    B=8,
    p_train={"wiki": 0.7, "roam": 0.3},
    p_val={"wiki": 1.0},
    eval_every=10,
    eval_steps=2,
)

TASK = PretrainTask(train=STREAMS, val={"wiki": STREAMS["wiki"]}, cfg=CONFIG, T=MODEL.T, device="cpu")


@pytest.fixture(autouse=True)
def one_thread():  # type: ignore[no-untyped-def]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run(state: RunState | None = None, hooks: Hooks | None = None) -> tuple[GPT, RunState]:
    set_seed(1)
    model = GPT(MODEL)
    return model, train(model, TASK, CONFIG, state=state, hooks=hooks)


def test_a_tiny_seeded_run_matches_the_golden_losses() -> None:
    """Other losses mean other numbers for everybody. To accept them: write them to the file, and say why in the log."""
    _, state = run()
    golden = json.loads(GOLDEN.read_text())
    np.testing.assert_allclose(state.losses, golden["losses"], rtol=1e-5)
    np.testing.assert_allclose([v["val_loss"] for v in state.validations], golden["val_losses"], rtol=1e-5)
    assert state.drawn_rows == golden["drawn_rows"]


@pytest.mark.parametrize("stop_at", [1, 7, 10, 23])
def test_stopped_and_resumed_equals_uninterrupted_bit_for_bit(stop_at: int, tmp_path: Path) -> None:
    whole, whole_state = run()
    folder, steps = RunFolder(tmp_path / "run"), iter(range(1000))
    with folder.locked():
        _, stopped = run(hooks=Hooks(should_stop=lambda: next(steps) == stop_at, save=folder.save))
        assert stopped.step == stop_at
        resumed, resumed_state = run(state=folder.load("cpu"), hooks=Hooks(save=folder.save))
    assert resumed_state.losses == whole_state.losses
    assert resumed_state.validations == whole_state.validations
    assert resumed_state.drawn_rows == whole_state.drawn_rows
    assert resumed_state.best_step == whole_state.best_step
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_finished_state_trains_no_further() -> None:
    model, state = run()
    before = copy.deepcopy(model.state_dict())
    again, same = run(state=state)
    assert same.step == CONFIG.total_steps
    assert all(torch.equal(before[key], value) for key, value in again.state_dict().items())


def test_checkpoints_and_reports_come_when_asked_for() -> None:
    saved: list[int] = []
    reports: list[StepReport] = []
    hooks = Hooks(save=lambda s: saved.append(s.step), report=reports.append, checkpoint_every=12, log_every=15)
    run(hooks=hooks)
    assert saved == [12, 24, 30]
    assert [r.step for r in reports] == [10, 15, 20, 30]
    assert [r.val_loss is not None for r in reports] == [True, False, True, True]
    assert sum(reports[-1].drawn_rows.values()) == CONFIG.total_steps * CONFIG.B


def test_a_loss_that_is_no_number_stops_with_step_and_lr_and_saves_nothing_bad() -> None:
    saved: list[int] = []
    set_seed(1)
    model = GPT(MODEL)
    with torch.no_grad():
        model.tok_emb.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match=r"became nan at step 0 with lr 0"):
        train(model, TASK, CONFIG, hooks=Hooks(save=lambda s: saved.append(s.step)))
    assert saved == []


def test_decay_is_on_matrices_only() -> None:
    model = GPT(MODEL)
    decayed, plain = build_optimizers(model, CONFIG)[0].param_groups
    assert decayed["weight_decay"] == CONFIG.weight_decay
    assert plain["weight_decay"] == 0
    assert all(p.dim() >= 2 for p in decayed["params"])
    assert len(decayed["params"]) + len(plain["params"]) == len(list(model.parameters()))


def test_metrics_say_what_was_drawn_and_nothing_of_time(tmp_path: Path) -> None:
    _, state = run()
    summary = summarise(state, CONFIG, parameters=5, T=32)
    assert summary["mix"]["roam"]["p"] == 0.3
    assert summary["mix"]["roam"]["rows"] + summary["mix"]["wiki"]["rows"] == 240
    assert summary["tokens"] == 30 * 8 * 32
    curve = loss_curve(state, CONFIG)
    assert [row["step"] for row in curve] == list(range(1, 31))
    write_tsv(tmp_path / "x.tsv", curve)
    lines = (tmp_path / "x.tsv").read_text().splitlines()
    assert lines[0] == "step\tloss\tlr"
    assert len(lines) == 31
    assert [row["step"] for row in read_tsv(tmp_path / "x.tsv")] == list(range(1, 31))
    shares = {(row["mix"], row["source"]): row["share"] for row in mix_shares(state, CONFIG)}
    assert shares["asked", "roam"] == 0.3
    assert shares["drawn", "roam"] + shares["drawn", "wiki"] == pytest.approx(1)
    by_source = validations_by_source(state)
    assert {row["source"] for row in by_source} == set(CONFIG.p_val)
    assert len(by_source) == len(state.validations) * len(CONFIG.p_val)


def chat_task(folder: Path) -> ChatTask:
    chats = [
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes" if i % 2 else "no"}]
        for i in range(20)
    ]
    datasets: dict[str, dict[str, SFTExampleDataset]] = {"train": {}, "val": {}}
    for name in ("dolly15k", "oasst1"):
        build_sft_cache(chats, folder / name, tokenizer=ByteTokenizer(), val_frac=0.2, seed=1)
        for split, table in datasets.items():
            paths = (folder / name / f"{split}_tokens.bin", folder / name / f"{split}_idx.npy")
            table[name] = SFTExampleDataset(*paths, T=MODEL.T, device="cpu", eot_id=259)
    cfg = replace(CONFIG, p_train={"dolly15k": 0.25, "oasst1": 0.75})
    return ChatTask(train=datasets["train"], val=datasets["val"], text=TASK, cfg=cfg, device="cpu")


def test_fine_tuning_learns_the_answers_and_shows_what_is_forgotten(tmp_path: Path) -> None:
    task = chat_task(tmp_path)
    set_seed(1)
    model = GPT(MODEL)
    state = train(model, task, task.cfg)
    assert set(state.drawn_rows) == {"dolly15k", "oasst1"}
    assert state.drawn_rows["oasst1"] > state.drawn_rows["dolly15k"]
    first, last = state.validations[0], state.validations[-1]
    assert set(last) == {"step", "val_loss", "dolly15k", "oasst1", "wiki"}
    assert last["val_loss"] < first["val_loss"]
    assert last["val_loss"] == pytest.approx(0.25 * last["dolly15k"] + 0.75 * last["oasst1"])


def test_what_was_read_of_token_files_is_let_go_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chats = chat_task(tmp_path)
    tables = {"text": STREAMS, "held-out text": TASK.val, "chats": chats.train, "held-out chats": chats.val}
    names = {id(source): name for name, table in tables.items() for source in table.values()}
    names |= {id(STREAMS["wiki"]): "text"}  # which is held out, too
    released: set[str] = set()
    for kind in (TokenStream, SFTExampleDataset):
        monkeypatch.setattr(kind, "release", lambda self: released.add(names[id(self)]))
    TASK.batch(0)
    assert released == {"text"}
    chats.batch(0)
    assert released == {"text", "chats"}
    released.clear()
    chats.validate(GPT(MODEL))
    assert released == {"text", "held-out chats"}


def test_pages_come_back_after_they_were_let_go_of_and_writes_are_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    np.arange(5000, dtype="<u2").tofile(path)
    tokens, private = open_tokens(path), np.memmap(path, dtype="<u2", mode="c")
    private[7] = 99
    view = tokens[1000:2000]
    for array in (tokens, view, private, np.arange(3)):
        release_pages(array)
    assert view.sum() == np.arange(1000, 2000).sum()
    assert private[7] == 99


def test_chat_batches_are_a_function_of_seed_and_step(tmp_path: Path) -> None:
    task = chat_task(tmp_path)
    for n in (0, 5):
        a, b = task.batch(n), task.batch(n)
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)
        assert sum(a.rows.values()) == CONFIG.B
        assert ((a.y == -100) | (a.y == torch.roll(a.x, -1, 1)) | (torch.arange(MODEL.T) == MODEL.T - 1)).all()
    assert not torch.equal(task.batch(0).x, task.batch(1).x)
