"""Tests of splice datasets and P(z): golden vectors, the properties behind them, and models trained on spans."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from niels_gpt.config import ModelConfig, TrainConfig
from niels_gpt.leak import MemorizeRules
from niels_gpt.leak.memorized import (
    document_log_pz,
    document_stats,
    log_pz,
    pz_stats,
    pz_windows,
    suffix_positions,
    token_log_probs,
)
from niels_gpt.leak.page import samples_needed
from niels_gpt.model.blocks import CausalSelfAttention
from niels_gpt.model.gpt import GPT
from niels_gpt.model.loss import loss_fn
from niels_gpt.splice import (
    MultiSpliceDocumentDataset,
    SpliceDocumentDataset,
    edge_weights,
    make_example,
    quantile_indices,
    quotas,
    rank_indices,
    select_documents,
    training_subset,
    validation_grid,
)
from niels_gpt.splice.dataset import Example, epoch_order
from niels_gpt.splice.task import SpliceTask, masked_targets
from niels_gpt.train.loop import Hooks, train
from niels_gpt.train.meter import StepReport
from niels_gpt.train.state import RunState

PAD = 99
CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "golden_splice.json").read_text())


def of_kind(*kinds: str) -> list[Any]:
    return [pytest.param(c["inputs"], c["expect"], id=c["id"]) for c in CASES if c["kind"] in kinds]


def check_example(example: Any, expected: dict[str, Any]) -> None:
    for key, value in expected.items():
        got = example["position_ids" if key == "positions" else key]
        assert got.tolist() == ([bool(x) for x in value] if key == "loss_mask" else value), key


def dataset(inputs: dict[str, Any]) -> MultiSpliceDocumentDataset:
    arguments = {key: value for key, value in inputs.items() if key not in ("docs", "epoch", "pad_id")}
    return MultiSpliceDocumentDataset(inputs["docs"], pad_id=PAD, **arguments)


@pytest.mark.parametrize(("inputs", "expect"), of_kind("single", "multi"))
def test_golden_enumeration(inputs: dict[str, Any], expect: dict[str, Any]) -> None:
    if expect["count"] == 0:
        with pytest.raises(ValueError, match=r"no valid span|slide needs"):
            dataset(inputs)
        return
    ds = dataset(inputs)
    epoch = inputs.get("epoch", 0)
    assert len(ds) == expect["count"]
    assert ds.triples(epoch).tolist() == expect["triples"]
    assert ds.triples(epoch).dtype == np.int64
    summary = ds.summary()
    for key in ("valid_docs", "starts_per_doc", "quotas", "K_per_doc"):
        if key in expect:
            assert summary[key] == expect[key], key
    for wanted in expect.get("examples", []) if epoch == 0 else []:
        check_example(ds[expect["triples"].index([wanted[key] for key in ("doc_idx", "t", "s")])], wanted)


@pytest.mark.parametrize(("inputs", "expect"), of_kind("construct"))
def test_golden_examples(inputs: dict[str, Any], expect: dict[str, Any]) -> None:
    check_example(make_example(**inputs), expect)


@pytest.mark.parametrize(("inputs", "expect"), of_kind("count"))
def test_golden_counts_without_a_list(inputs: dict[str, Any], expect: dict[str, Any]) -> None:
    inputs = dict(inputs)
    assert len(SpliceDocumentDataset(np.arange(inputs.pop("L")), pad_id=PAD, **inputs)) == expect["count"]


@pytest.mark.parametrize(("inputs", "expect"), of_kind("compact"))
def test_golden_compact_rows(inputs: dict[str, Any], expect: dict[str, Any]) -> None:
    ds = SpliceDocumentDataset(
        inputs["docs"][0],
        S=inputs["S"],
        pad_id=PAD,
        content_start_mode="slide_within",
        content_length=inputs["content_length"],
    )
    index = ds.triples().tolist().index([0, inputs["t"], inputs["s"]])
    batch = ds.batch([index])
    for key, value in expect.items():
        assert batch[key][0].tolist() == ([bool(x) for x in value] if key == "loss_mask" else value), key


@pytest.mark.parametrize(("inputs", "expect"), of_kind("edge_weights"))
def test_golden_edge_weights(inputs: dict[str, Any], expect: dict[str, Any]) -> None:
    weights = edge_weights(inputs["L"], inputs["content_length"], inputs["alpha"])
    np.testing.assert_allclose(weights, expect["w"], rtol=1e-11)


@pytest.mark.parametrize(("inputs", "expect"), of_kind("quota"))
def test_golden_quotas(inputs: dict[str, Any], expect: dict[str, Any]) -> None:
    assert quotas(**inputs) == expect["quotas"]


@pytest.mark.parametrize(("inputs", "expect"), of_kind("quantile"))
def test_golden_quantiles(inputs: dict[str, Any], expect: dict[str, Any]) -> None:
    assert quantile_indices(**inputs).tolist() == expect["indices"]


@pytest.mark.parametrize(("inputs", "expect"), of_kind("validation_grid"))
def test_golden_validation_grids(inputs: dict[str, Any], expect: dict[str, Any]) -> None:
    assert [list(pair) for pair in validation_grid(**inputs)] == expect["pairs"]


@pytest.mark.parametrize(("inputs", "expect"), of_kind("select"))
def test_golden_selection(inputs: dict[str, Any], expect: dict[str, Any]) -> None:
    if "raises" in expect:
        with pytest.raises(ValueError, match=expect["message_contains"]):
            select_documents(**inputs)
    else:
        assert select_documents(**inputs) == (expect["rows"], expect["reason"])


@pytest.mark.parametrize(("inputs", "expect"), of_kind("subset"))
def test_golden_subsets(inputs: dict[str, Any], expect: dict[str, Any]) -> None:
    if "raises" in expect or not expect["eligible_rows"]:
        with pytest.raises(ValueError, match=r"initial_batch_size|no document ends within"):
            training_subset(**inputs)
    else:
        assert training_subset(**inputs) == (expect["cutoff_tokens"], expect["eligible_rows"])


@pytest.mark.parametrize(("inputs", "expect"), of_kind("subset_boundary"))
def test_golden_subset_boundary(inputs: dict[str, Any], expect: dict[str, Any]) -> None:
    lengths, cutoff = inputs["lengths"], inputs["cutoff_tokens"]
    assert training_subset(lengths, S=cutoff)[1] == expect["eligible_rows"]


@pytest.mark.parametrize(("inputs", "expect"), of_kind("shard"))
def test_golden_shards_are_every_nth(inputs: dict[str, Any], expect: dict[str, Any]) -> None:
    """Ranks share an epoch in the order of its permutation; those of the golden file, in the listed order."""
    triples, world = inputs["triples"], inputs["world_size"]
    order = epoch_order(len(triples), seed=1, epoch=0).tolist()
    assert sorted(order) == list(range(len(triples)))
    for rank, expected in enumerate(expect["per_rank"]):
        mine = rank_indices(len(triples), seed=1, epoch=0, rank=rank, world_size=world).tolist()
        assert [triples[order.index(index)] for index in mine] == expected
    with pytest.raises(ValueError, match=rf"rank must be in 0\.\.{world - 1}"):
        rank_indices(len(triples), seed=1, epoch=0, rank=world, world_size=world)


@pytest.mark.parametrize(("inputs", "expect"), of_kind("pz_windows"))
def test_golden_windows(inputs: dict[str, Any], expect: dict[str, Any]) -> None:
    starts = pz_windows(**inputs).tolist()
    assert (len(starts), starts[:3], starts[-1:]) == (expect["count"], expect["first"], expect["last"])


@pytest.mark.parametrize(("inputs", "expect"), of_kind("pz_positions"))
def test_golden_positions(inputs: dict[str, Any], expect: dict[str, Any]) -> None:
    positions = suffix_positions(**inputs)
    assert (positions[0], positions[-1], len(positions)) == (expect["first"], expect["last"], expect["count"])


@pytest.mark.parametrize(("inputs", "expect"), of_kind("pz_value"))
def test_golden_pz(inputs: dict[str, Any], expect: dict[str, Any]) -> None:
    value = log_pz(
        torch.tensor(inputs["logits"]),
        torch.tensor(inputs["tokens"]),
        prompt_tokens=inputs["prompt_tokens"],
        temperature=inputs["temperature"],
        top_k=inputs["top_k"],
    )
    assert value.dtype == torch.float64
    assert float(value) == pytest.approx(-math.inf if expect["log_pz"] is None else expect["log_pz"], abs=1e-9)
    assert math.exp(value) == pytest.approx(expect["pz"], abs=1e-9)


@pytest.mark.parametrize(("inputs", "expect"), of_kind("pz_n"))
def test_golden_samples_needed(inputs: dict[str, Any], expect: dict[str, Any]) -> None:
    assert samples_needed(**inputs) == expect["n"]


@pytest.mark.parametrize(("inputs", "expect"), of_kind("pz_underflow"))
def test_golden_underflow(inputs: dict[str, Any], expect: dict[str, Any]) -> None:
    n, nll = inputs["suffix_tokens"], inputs["nll_per_token"]
    other = math.log(1 - math.exp(-nll))
    logits = torch.tensor([[-nll, other]]).expand(n + 1, 2)
    value = float(log_pz(logits, torch.zeros(n + 1, dtype=torch.int64), prompt_tokens=1))
    assert value == pytest.approx(expect["log_pz"], rel=1e-6)
    assert math.exp(value) == pytest.approx(expect["pz_float64"], rel=1e-4)


@pytest.mark.parametrize(("inputs", "expect"), of_kind("raises"))
def test_golden_refusals(inputs: dict[str, Any], expect: dict[str, Any]) -> None:
    assert expect["raises"] == "ValueError"
    with pytest.raises(ValueError, match=r"must be|no valid span"):
        MultiSpliceDocumentDataset(inputs.get("docs", [list(range(9))]), S=8, pad_id=PAD, **without_docs(inputs))


def without_docs(inputs: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in inputs.items() if key != "docs"}


REFUSALS = [
    ({"content_stride": 0}, "content_stride must be greater than or equal to 1"),
    ({"offset_stride": 0}, "offset_stride must be greater than or equal to 1"),
    ({"min_copy_len": 1}, "min_copy_len must be greater than or equal to 2"),
    ({"alpha": 0.5, "suffix_starts": True}, "exclude each other"),
    ({"alpha": -1.0}, "alpha must be"),
    ({"alpha": 0.5, "content_start_mode": "slide_within"}, "goes with content_start_mode coverage_balanced"),
    ({"mode": "slide", "S": 20}, "slide needs documents of S=20"),
    ({"mode": "shuffle"}, "mode must be '"),
    ({"content_start_mode": "middle"}, "content_start_mode must be '"),
    ({"offset_bound": "none"}, "offset_bound must be '"),
    ({"jitter_mode": "none"}, "jitter_mode must be '"),
    ({"balance_tau": math.inf}, "balance_tau must be a finite"),
    ({"min_copy_len": 10}, "no valid span"),
    ({"epoch_length": 0}, "epoch_length must be at least 1"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSALS)
def test_refusals_say_what_to_do(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiSpliceDocumentDataset([list(range(9))], pad_id=PAD, **{"S": 8, **arguments})


rules = st.fixed_dictionaries(
    {
        "S": st.integers(4, 12),
        "content_start_mode": st.sampled_from(["anchor_start", "slide_within", "cyclic_roll", "coverage_balanced"]),
        "content_length": st.none() | st.integers(2, 14),
        "content_stride": st.integers(1, 4),
        "offset_stride": st.integers(1, 3),
        "offset_bound": st.sampled_from(["tight", "loose"]),
        "min_copy_len": st.integers(2, 4),
    }
)


LONG = {"S": 4, "content_length": 14, "content_stride": 1, "offset_stride": 1, "min_copy_len": 2}  # longer than a frame


@pytest.mark.slow
@example({**LONG, "content_start_mode": "slide_within", "offset_bound": "tight"}, 15)
@example({**LONG, "content_start_mode": "coverage_balanced", "offset_bound": "loose"}, 15)
@given(rules, st.integers(1, 15))
def test_pairs_computed_by_number_equal_those_of_plain_loops(arguments: dict[str, Any], L: int) -> None:
    S, K, least = arguments["S"], arguments["content_length"] or 10**9, arguments["min_copy_len"]
    mode, loose = arguments["content_start_mode"], arguments["offset_bound"] == "loose"
    expected = []
    for t in range(0, 1 if mode == "anchor_start" else L, arguments["content_stride"]):
        span = min(K, L if mode == "cyclic_roll" else L - t, S)
        if mode == "coverage_balanced":
            if min(K, S, L) == span and span >= least:
                expected.append([0, t, S - span])
        elif span >= least:
            last = S - least if loose else S - span
            expected += [[0, t, s] for s in range(0, last + 1, arguments["offset_stride"])]
    if not expected:
        with pytest.raises(ValueError, match="no valid span"):
            SpliceDocumentDataset(np.arange(L), pad_id=PAD, **arguments)
        return
    ds = SpliceDocumentDataset(np.arange(L), pad_id=PAD, **arguments)
    assert ds.triples().tolist() == expected
    frame, compact = (ds.batch(range(len(ds)), layout=layout) for layout in ("frame", "compact"))
    for row in range(len(ds)):
        one = ds[row]
        n, s, t = int(one["copy_len"]), int(one["s"]), int(one["t"])
        document = [(t + i) % L for i in range(n)]
        assert one["tokens"].tolist() == [PAD] * s + document + [PAD] * (S - s - n)
        assert compact["tokens"][row, :n].tolist() == document
        assert compact["position_ids"][row, :n].tolist() == list(range(s, s + n))
        supervised = one["loss_mask"].nonzero().flatten().tolist()
        wanted = [s + i for i in range(n - 1) if document[i] != L - 1 or mode != "cyclic_roll"]
        assert supervised == wanted
        assert compact["loss_mask"][row].nonzero().flatten().tolist() == [i - s for i in wanted]
        assert all(one["targets"][i] == one["tokens"][i + 1] for i in supervised)
        assert torch.equal(frame["tokens"][row], one["tokens"])


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 60), st.floats(0, 2))
def test_quotas_sum_to_the_epoch_and_differ_from_the_share_by_less_than_one(
    lengths: list[int], E: int, tau: float
) -> None:
    shares = quotas(lengths, balance_mode="by_temperature", balance_tau=tau, epoch_length=E)
    weights = [length**tau for length in lengths]
    assert sum(shares) == E
    assert all(abs(q - E * w / sum(weights)) < 1 + 1e-6 for q, w in zip(shares, weights, strict=True))


@given(st.integers(1, 40), st.integers(1, 80))
def test_quantiles_spread_evenly(n: int, Q: int) -> None:
    indices = quantile_indices(n, Q)
    assert (np.diff(indices) >= 0).all()
    counts = np.bincount(indices, minlength=n)
    assert len(counts) == n
    assert counts.max() - counts.min() <= 1
    np.testing.assert_array_equal(indices, quantile_indices(n, Q, np.ones(n)))


@given(st.integers(1, 100), st.integers(0, 5), st.integers(1, 7), st.integers(0, 9))
def test_ranks_share_one_permutation_of_each_epoch(n: int, epoch: int, world: int, seed: int) -> None:
    parts = [rank_indices(n, seed=seed, epoch=epoch, rank=rank, world_size=world) for rank in range(world)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(n))
    whole = rank_indices(n, seed=seed, epoch=epoch, rank=0, world_size=1)
    for rank, part in enumerate(parts):
        assert part.tolist() == whole[rank::world].tolist()
    if n > 20:
        assert whole.tolist() != rank_indices(n, seed=seed + 1, epoch=epoch, rank=0, world_size=1).tolist()
        assert whole.tolist() != rank_indices(n, seed=seed, epoch=epoch + 1, rank=0, world_size=1).tolist()


def test_jitter_visits_every_position_over_the_epochs_and_reports_when_it_cannot() -> None:
    for jitter_mode in ("uniform", "low_discrepancy"):
        ds = SpliceDocumentDataset(
            np.arange(20), S=8, pad_id=PAD, content_length=5, offset_jitter=2, jitter_mode=jitter_mode
        )
        places = {(t, s) for epoch in range(12) for _, t, s in ds.triples(epoch).tolist()}
        assert places == {(t, s) for t in range(16) for s in (1, 2, 3)}
    assert SpliceDocumentDataset(np.arange(20), S=8, pad_id=PAD, offset_jitter=2).summary()["jitter_is_inert"]


def test_a_large_sweep_is_counted_not_listed() -> None:
    ds = SpliceDocumentDataset(np.arange(4096), S=4096, pad_id=0, content_start_mode="slide_within")
    assert len(ds) == 4096 * 4097 // 2 - 4096
    _, t, s = ds.batch([len(ds) - 1])["doc_idx"], *(ds.batch([len(ds) - 1])[key] for key in ("t", "s"))
    assert (int(t), int(s)) == (4094, 4094)


def test_memory_mapped_documents_are_only_sliced(tmp_path: Path) -> None:
    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "doc.bin")
    doc = np.memmap(tmp_path / "doc.bin", dtype=np.uint16, mode="r")
    batch = MultiSpliceDocumentDataset([doc[:400], doc[400:]], S=16, pad_id=0).batch([0, 500])
    assert batch["tokens"][1].tolist() == list(range(int(batch["t"][1]) + 400, int(batch["t"][1]) + 416))


def test_statistics_of_known_windows() -> None:
    starts = pz_windows(200, chunk_size=20, cursor_inc_tokens=10)
    logs = np.where(starts < 100, 0.0, -200.0)
    stats = document_stats(starts, logs, MemorizeRules(chunk_size=20, prompt_tokens=10), L=200)
    assert stats["num_windows"] == 19
    assert stats["median_pz"] == 1.0
    assert stats["mean_pz"] == pytest.approx(10 / 19)
    assert stats["median_pz_by_third"] == {"head": 1.0, "middle": pytest.approx(0.5), "tail": pytest.approx(0.0)}
    assert stats["fraction_at_least"]["0.5"] == pytest.approx(10 / 19)
    assert stats["found_in_n_samples"]["1"] == pytest.approx(10 / 19)
    assert stats["token_coverage"] == pytest.approx(100 / 200)


MODEL = ModelConfig(V=12, T=32, C=48, L=2, H=2, d_ff=96, dropout=0.0)


def test_golden_attention_mask() -> None:
    (case,) = [c for c in CASES if c["kind"] == "attention"]
    segments = torch.tensor([case["inputs"]["segment_ids"]])
    positions = CausalSelfAttention(MODEL).positions(None, segments)
    assert positions is not None
    assert positions.mask is not None
    assert positions.mask[0, 0].int().tolist() == case["expect"]["allowed"]


def test_golden_loss_is_over_tokens_not_rows() -> None:
    (case,) = [c for c in CASES if c["kind"] == "loss_reduce"]
    losses, mask = torch.tensor(case["inputs"]["loss"]), torch.tensor(case["inputs"]["loss_mask"]).bool()
    # With two ids, logits of 0 for the target and log(exp(loss) - 1) for the other give exactly this loss in nats.
    logits = torch.stack((torch.zeros_like(losses), torch.log(torch.expm1(losses))), dim=-1)
    batch = Example(targets=torch.zeros_like(mask, dtype=torch.int64), loss_mask=mask)
    assert float(loss_fn(logits, masked_targets(batch))) == pytest.approx(case["expect"]["loss"], rel=1e-5)


def test_compact_and_frame_are_the_same_to_the_model() -> None:
    torch.manual_seed(0)
    model = GPT(MODEL)
    ds = SpliceDocumentDataset(
        torch.randint(0, 10, (20,)).numpy(), S=32, pad_id=11, content_start_mode="slide_within", content_length=9
    )
    indices, losses, grads = [0, 7, 100, len(ds) - 1], [], []
    for layout in ("frame", "compact"):
        batch = ds.batch(indices, layout=layout)
        segments = batch["segment_ids"] if layout == "frame" else None
        logits = model(batch["tokens"], position_ids=batch["position_ids"], segment_ids=segments)
        losses.append(logits[batch["loss_mask"]])
        y = masked_targets(batch)
        model.zero_grad()
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten()).backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(losses[0], losses[1], atol=1e-5, rtol=1e-5)
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_a_spans_offset_does_not_change_its_logits_and_padding_has_no_gradient() -> None:
    torch.manual_seed(0)
    model = GPT(MODEL)
    document = torch.randint(0, 10, (9,)).numpy()
    logits = []
    for s in (0, 7, 23):
        example = make_example([document], 0, 0, s, S=32, pad_id=11)
        out = model(example["tokens"][None], segment_ids=example["segment_ids"][None])
        logits.append(out[0, s : s + 9])
        model.zero_grad()
        # Gradient of the embedded tokens only: through the head, which shares the weight, every id has a gradient.
        h = model.embed(example["tokens"][None]).detach().requires_grad_()
        hidden = model.hidden(h, segment_ids=example["segment_ids"][None])
        y = masked_targets(example)[None]
        loss = torch.nn.functional.cross_entropy(model.logits(hidden).flatten(0, 1), y.flatten())
        (grad,) = torch.autograd.grad(loss, h)
        assert (grad[0, :s] == 0).all()
        assert (grad[0, s + 9 :] == 0).all()
        assert (grad[0, s : s + 8] != 0).any()
    for shifted in logits[1:]:
        torch.testing.assert_close(shifted, logits[0], atol=1e-5, rtol=1e-5)


def trained_on(
    docs: list[np.ndarray], *, steps: int, lr: float = 1e-2, model: ModelConfig = MODEL, **rules: Any
) -> tuple[GPT, RunState]:
    cfg = TrainConfig(
        total_steps=steps, B=16, base_lr=lr, min_lr=lr / 10, warmup_steps=10, eval_every=steps, p_train={}, p_val={}
    )
    ds = MultiSpliceDocumentDataset(docs, S=model.T, pad_id=11, **rules)
    task = SpliceTask(dataset=ds, sources=tuple(f"doc{i}" for i in range(len(docs))), cfg=cfg, device="cpu")
    torch.manual_seed(0)
    network = GPT(model)
    return network, train(network, task)


def median_pz(model: GPT, document: np.ndarray) -> float:
    rules = MemorizeRules(chunk_size=20, prompt_tokens=10, cursor_inc_tokens=2)
    return float(np.median(np.exp(document_log_pz(model, document, rules)[1])))


@pytest.mark.slow
def test_three_documents_are_memorized_and_one_that_was_not_trained_on_is_not() -> None:
    rng = np.random.default_rng(0)
    docs = [rng.integers(0, 10, 60) for _ in range(4)]
    model, run = trained_on(docs[:3], steps=100, suffix_starts=True)
    # Over 8 seeds: `own` at least 0.04, `other` at most 1e-18, the last loss 0.28 of the first.
    assert run.losses[-1] < 0.6 * run.losses[0]
    assert set(run.drawn_rows) == {"doc0", "doc1", "doc2"}
    assert set(run.validations[-1]) == {"step", "val_loss", "doc0", "doc1", "doc2"}
    own = [median_pz(model, doc) for doc in docs[:3]]
    other = median_pz(model, docs[3])
    assert min(own) > 1e-3
    assert other < 1e-9


def test_without_suffix_starts_no_window_that_begins_in_the_last_K_is_trained_on_as_it_is_measured() -> None:
    """P(z) scores a token with the context from the window's start up to it.

    Spans of coverage_balanced begin at L-K at the latest, so the tokens that later windows score are never a target
    with so little context.
    """
    L, K, chunk, prompt = 90, 32, 20, 8
    starts = pz_windows(L, chunk_size=chunk, cursor_inc_tokens=1).tolist()
    for suffix_starts in (False, True):
        ds = SpliceDocumentDataset(np.arange(L), S=K, pad_id=PAD, suffix_starts=suffix_starts, min_copy_len=chunk)
        epoch = ds.batch(range(len(ds)))
        trained = {
            (
                int(epoch["targets"][row, i]),
                int(i) + 1,
            )  # (position in the document, which is its id here; tokens before it)
            for row, i in epoch["loss_mask"].nonzero()
        }
        seen = {w: sum((w + i + 1, i + 1) in trained for i in suffix_positions(chunk, prompt)) for w in starts}
        assert seen == {w: chunk - prompt if suffix_starts or w <= L - K else 0 for w in starts}


def test_speed_counts_the_tokens_of_the_spans_not_of_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()  # 1 s between any two readings of the clock
    monkeypatch.setattr("niels_gpt.train.meter.time", SimpleNamespace(perf_counter=lambda: float(next(seconds))))
    ds = SpliceDocumentDataset(np.arange(10), S=8, pad_id=11, content_length=4)
    cfg = TrainConfig(total_steps=4, B=3, eval_every=4, p_train={}, p_val={})
    task = SpliceTask(dataset=ds, sources=("a",), cfg=cfg, device="cpu")
    reports: list[StepReport] = []
    train(GPT(replace(MODEL, T=8)), task, hooks=Hooks(report=reports.append, log_every=2))
    assert reports[0].tokens_per_second == 2 * 3 * 4


def test_epochs_follow_each_other_and_every_pair_comes_once_an_epoch() -> None:
    ds = SpliceDocumentDataset(np.arange(10), S=8, pad_id=11, content_length=4)
    task = SpliceTask(dataset=ds, sources=("a",), cfg=TrainConfig(total_steps=9, B=3), device="cpu")
    seen = [(t, s) for n in range(7) for _, t, s, _ in task._examples(n).tolist()]
    assert len(seen) == 21
    for epoch in range(3):
        assert sorted(seen[7 * epoch : 7 * epoch + 7]) == [(t, 4) for t in range(7)]
    assert seen[:7] != seen[7:14]
    assert task.batch(2).tensors["position_ids"].shape == (3, task.T) == (3, 4)
    assert "a[" in task.describe(0)


def test_the_summary_counts_what_an_epoch_holds() -> None:
    """Unvisited starts, targets per frame and positions of jitter are those of the enumerated epoch."""
    cases: list[dict[str, Any]] = [
        {"content_length": 4},
        {"content_length": 4, "epoch_length": 9},
        {"content_length": 4, "alpha": 1.0, "epoch_length": 12},
        {"content_length": 5, "content_start_mode": "cyclic_roll"},
        {"content_length": 5, "content_start_mode": "slide_within", "offset_bound": "loose", "epoch_length": 40},
        {"content_length": 5, "offset_jitter": 2},
        {"suffix_starts": True, "offset_jitter": 3},
        {"offset_jitter": 3},
        {"balance_mode": "by_document", "content_length": 6},
    ]
    for rules in cases:
        ds = MultiSpliceDocumentDataset([np.arange(n) for n in (30, 1, 12)], S=8, pad_id=PAD, **rules)
        summary, triples = ds.summary(), ds.triples()
        frames = ds.batch(range(len(ds)), layout="frame")
        for i in range(3):
            visited = set(triples[triples[:, 0] == i, 1].tolist())
            assert summary["unvisited_starts"][i] == summary["starts_per_doc"][i] - len(visited), rules
            assert summary["quotas"][i] == int((triples[:, 0] == i).sum())
        assert summary["supervised_tokens_per_frame"] == pytest.approx(
            float(frames["loss_mask"].sum(dim=1).float().mean())
        ), rules
        flush = 8 - frames["copy_len"] - frames["s"]
        moved = int(flush.max()) if ds.rules.balanced else 0
        assert summary["effective_jitter"] == moved, rules
        assert summary["jitter_is_inert"] == (bool(ds.rules.offset_jitter) and not moved)
        assert (summary["valid_docs"], summary["epoch_length"]) == ([0, 2], len(ds))
        assert (summary["K_per_doc"][1], summary["doc_lengths"]) == (None, [30, 1, 12])


def test_a_long_epoch_is_counted_as_exactly_as_a_short_one() -> None:
    ds = SpliceDocumentDataset(np.arange(40), S=8, pad_id=PAD, content_length=4, epoch_length=1_200_000)
    assert ds.summary()["unvisited_starts"] == [0]
    assert ds.summary()["supervised_tokens_per_frame"] == 3.0


def test_a_document_without_a_span_has_no_loss_to_validate_and_spoils_no_mean() -> None:
    ds = MultiSpliceDocumentDataset([np.arange(10), np.array([3])], S=8, pad_id=11, content_length=4)
    task = SpliceTask(dataset=ds, sources=("a", "b"), cfg=TrainConfig(total_steps=1, B=2), device="cpu")
    torch.manual_seed(0)
    losses = task.validate(GPT(replace(MODEL, T=8)))
    assert set(losses) == {"val_loss", "a"}
    assert losses["val_loss"] == losses["a"] > 0


def test_validation_is_the_loss_of_the_grid() -> None:
    document = np.random.default_rng(0).integers(0, 10, 20)
    ds = SpliceDocumentDataset(document, S=8, pad_id=11, content_length=6)
    task = SpliceTask(dataset=ds, sources=("a",), cfg=TrainConfig(total_steps=1, B=2), device="cpu")
    torch.manual_seed(0)
    model = GPT(replace(MODEL, T=8))
    expected = []
    for t, s in validation_grid(20, 8, 6):
        example = make_example([document], 0, t, s, S=8, pad_id=11, content_length=6)
        logits = model(example["tokens"][None], segment_ids=example["segment_ids"][None])
        expected.append(loss_fn(logits, masked_targets(example)[None]).item())
    assert len(expected) == 9
    assert task.validate(model)["val_loss"] == pytest.approx(sum(expected) / 9, rel=1e-5)


def test_windows_are_scored_alike_one_by_one_and_in_batches_of_any_size() -> None:
    torch.manual_seed(0)
    model, document = GPT(MODEL), np.random.default_rng(0).integers(0, 12, 50)
    for top_k in (None, 5):
        rules = MemorizeRules(chunk_size=20, prompt_tokens=7, cursor_inc_tokens=3, top_k=top_k, B=4)
        starts, logs = document_log_pz(model, document, rules)
        assert starts.tolist() == list(range(0, 31, 3))
        for start, value in zip(starts.tolist(), logs.tolist(), strict=True):
            x = torch.from_numpy(document[start : start + 20])
            alone = log_pz(model.eval()(x[None])[0], x, prompt_tokens=7, top_k=top_k)
            assert value == pytest.approx(alone.item(), rel=1e-4), (start, top_k)
    assert np.isneginf(logs).any()  # the top 5 of 12 ids do not contain every suffix


@pytest.mark.parametrize("L", [1, 2, 33, 49, 75])
def test_every_token_is_scored_after_at_least_half_a_context_where_there_is_so_much(L: int) -> None:
    torch.manual_seed(0)
    model, document = GPT(MODEL).eval(), np.random.default_rng(1).integers(0, 12, L)
    log_probs, most_probable = token_log_probs(model, document)
    assert len(log_probs) == len(most_probable) == L
    assert np.isnan(log_probs[0])
    assert most_probable[0] == document[0]
    half = MODEL.T // 2
    with torch.no_grad():
        scores = {
            start: model(torch.from_numpy(document[None, start : start + MODEL.T]))[0].double().log_softmax(dim=-1)
            for start in range(0, L, half)
        }
    for i in range(1, L):
        # Windows begin at every half context; the last one with half a context before the token scores it.
        start = (i - half) // half * half if i >= MODEL.T else 0
        expected = scores[start][i - start - 1]
        assert log_probs[i] == pytest.approx(float(expected[document[i]]), abs=1e-5), i
        assert most_probable[i] == int(expected.argmax())


def test_thresholds_count_what_reaches_them_and_chances_grow_with_samples() -> None:
    p = np.array([1.0, 0.9, 0.5, 0.1, 0.01, 1e-3, 1e-30])
    stats = pz_stats(np.log(p))
    sevenths = {"0.001": 6, "0.01": 5, "0.1": 4, "0.5": 3, "0.9": 2}
    # exp(log p) may round to just below p, so the thresholds are tested with slightly larger values.
    assert pz_stats(np.log(p * (1 + 1e-12)))["fraction_at_least"] == {t: n / 7 for t, n in sevenths.items()}
    for n in (1, 10, 100, 1000):
        exact = np.mean([1.0, *(-np.expm1(n * np.log1p(-p[1:])))])
        assert stats["found_in_n_samples"][str(n)] == pytest.approx(exact, rel=1e-9)
    assert (stats["max_pz"], stats["median_pz"]) == (1.0, pytest.approx(0.1))
    assert stats["mean_log_pz"] == pytest.approx(np.log(p).mean())
    assert "doc_len" not in stats


def test_coverage_counts_suffixes_of_windows_that_reach_the_threshold() -> None:
    starts, logs, rules = np.array([0, 4, 20]), np.log([0.5, 0.49, 0.9]), MemorizeRules(chunk_size=10, prompt_tokens=6)
    for more, covered in ((1e-12, 8), (0.1, 12)):
        stats = document_stats(starts, logs + more, rules, L=40)
        assert stats["token_coverage"] == covered / 40


def test_rows_are_credited_to_their_documents() -> None:
    ds = MultiSpliceDocumentDataset([np.arange(30), np.arange(5)], S=8, pad_id=11, content_length=4)
    task = SpliceTask(dataset=ds, sources=("a", "b"), cfg=TrainConfig(total_steps=1, B=len(ds)), device="cpu")
    assert task.batch(0).rows == dict(zip(("a", "b"), ds.quotas, strict=True))
    assert ds.quotas[0] > ds.quotas[1] > 0
    plain = replace(task, shuffle=False)
    starts, shuffled = (some._examples(0)[:, 1].tolist() for some in (plain, task))
    assert starts == ds.triples()[:, 1].tolist() != shuffled


def test_a_threshold_that_is_met_exactly_counts() -> None:
    for threshold in (1e-3, 0.01, 0.1, 0.5, 0.9):
        log_p = math.log(threshold)
        met = [x for x in (log_p, math.nextafter(log_p, 0), math.nextafter(log_p, -9)) if np.exp(x) == threshold]
        for value in met:  # whose exp is the threshold itself
            assert pz_stats([value])["fraction_at_least"][f"{threshold:g}"] == 1.0
    assert pz_stats([math.log(0.5)])["fraction_at_least"]["0.5"] == 1.0


def test_a_stride_loses_the_tail_unless_it_is_asked_for() -> None:
    def starts(**rules: Any) -> list[list[int]]:
        ds = SpliceDocumentDataset(np.arange(11), S=8, pad_id=PAD, content_length=4, content_stride=4, **rules)
        return [[t, s] for _, t, s in ds.triples().tolist()]

    assert starts() == [[0, 4], [4, 4]]
    assert starts(include_tail=True) == [[0, 4], [4, 4], [7, 4]]
    assert starts(suffix_starts=True) == [[0, 4], [4, 4], [8, 5]]
    assert starts(suffix_starts=True, include_tail=True, min_copy_len=3) == [[0, 4], [4, 4], [7, 4], [8, 5]]
    assert starts(suffix_starts=True, include_tail=True, min_copy_len=4) == [[0, 4], [4, 4], [7, 4]]


def test_bounds_on_lengths_are_inclusive_and_ties_go_to_the_lower_row() -> None:
    lengths = [5, 9, 7, 9, 0, 7]
    for mode, rows in (("first", [1, 2, 3]), ("longest", [1, 3, 2]), ("shortest", [2, 5, 1])):
        assert select_documents(lengths, n=3, mode=mode, min_len=7, max_len=9) == (rows, "policy")
    assert select_documents(lengths, n=2, mode="longest", min_len=5, max_len=7)[0] == [2, 5]


def test_temperature_divides_the_logits_and_ties_with_the_k_th_stay() -> None:
    logits, tokens = torch.tensor([[0.0, 1.0, 1.0, 3.0]] * 3), torch.tensor([0, 1, 3])
    for temperature in (0.5, 2.0):
        expected = (logits[0].double() / temperature).log_softmax(dim=-1)[[1, 3]].sum()
        assert float(log_pz(logits, tokens, prompt_tokens=1, temperature=temperature)) == pytest.approx(float(expected))
    two = float(log_pz(logits, tokens, prompt_tokens=1, top_k=2))  # three ids remain: 1 and 2 are equally probable
    assert two == pytest.approx(float(logits[0, 1:].double().log_softmax(dim=-1)[[0, 2]].sum()))
    assert float(log_pz(logits, tokens, prompt_tokens=1, top_k=1)) == -math.inf
