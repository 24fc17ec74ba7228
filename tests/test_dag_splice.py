"""Tests of the splice and memorize stages and the pages they write."""

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_gpt.checkpoint import save_checkpoint
from niels_gpt.config import ModelConfig, to_dict
from niels_gpt.leak import MemorizeRules
from niels_gpt.leak.memorized import DocumentResult, document_log_pz, highest_by_token, render_page, render_strips
from niels_gpt.model.gpt import GPT
from niels_gpt.pipeline.params import Params
from niels_gpt.pipeline.results import read_metrics
from niels_gpt.pipeline.sections import Budget
from niels_gpt.pipeline.stores import open_documents
from niels_gpt.splice import MultiSpliceDocumentDataset
from niels_gpt.splice.dataset import describe_plan
from niels_gpt.tokenizer.tokenizers import ByteTokenizer
from stages import memorize, splice
from tests.conftest import Repo
from tests.in_process import make_caches, notes_params, run, run_in_process, tiny_params


@pytest.mark.dag
def test_stages_measure_before_and_after(built_repo: Repo) -> None:
    metrics = read_metrics(built_repo.path / "metrics/memorize.json")
    chosen = json.loads((built_repo.path / "models/splice/documents.json").read_text())
    assert len(chosen["rows"]) == 3
    documents = {document.pop("name"): document for document in metrics["documents"]}
    assert set(documents) == {f"doc{row}" for row in chosen["rows"]}
    assert metrics["distribution"] == "full softmax"
    for document in documents.values():
        assert set(document) == {"before", "after"}
        assert set(document["after"]["median_pz_by_third"]) == {"head", "middle", "tail"}
    together = metrics["together"]
    assert together["after"]["mean_log_pz"] > together["before"]["mean_log_pz"]
    for row in chosen["rows"]:
        lines = (built_repo.path / f"metrics/pz/doc{row}.tsv").read_text().splitlines()
        assert lines[0] == "start\tpz_before\tpz_after"
        assert len(lines) == 1 + documents[f"doc{row}"]["after"]["num_windows"]
    page = (built_repo.path / "metrics/memorize.html").read_text()
    assert "connect-src 'none'" in page  # browsers let it open no connection
    assert "<b>P(z)</b> is the probability" in page
    assert (built_repo.path / "metrics/memorize.svg").read_text().startswith("<svg")


NOTES = [" ".join(f"{word}{i}" for word in ("tide", "boat", "bread")[: 1 + i % 3] * 5) for i in range(12)]


@pytest.fixture
def spliced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Params]]:
    """Write notes to cache/ and an untrained model; yield a function that runs splice with changed parameters."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    make_caches(NOTES)
    torch.manual_seed(0)
    model = GPT(ModelConfig(V=260, T=32, C=16, L=1, H=2, d_ff=32, dropout=0.0))
    # Only best.pt is written: a stage that trained last.pt further by mistake would not find it.
    save_checkpoint("models/pretrain/best.pt", model, None, 1, to_dict(model.cfg))
    base = notes_params()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(**changes: Any) -> Params:
        params = base.model_copy(update={"splice": base.splice.model_copy(update=changes)})
        run_in_process("splice", splice.main, params)
        return params

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.slow
def test_the_splice_stage_says_what_an_epoch_consists_of(
    spliced: Callable[..., Params], capsys: pytest.CaptureFixture[str]
) -> None:
    spans = notes_params().splice.spans
    capsys.readouterr()
    spliced(
        min_doc_length=60,
        epoch_length=21,
        spans=spans.model_copy(update={"suffix_starts": False, "content_length": 30, "offset_jitter": 5}),
    )
    said = capsys.readouterr().out.replace("splice: ", "").splitlines()
    chosen = json.loads(Path("models/splice/documents.json").read_text())
    rows, lengths, quotas = chosen["rows"], chosen["summary"]["doc_lengths"], chosen["summary"]["quotas"]
    assert (len(rows), sum(quotas)) == (3, 21)
    assert said[0] == f"rows {rows[0]}, {rows[1]}, {rows[2]} of notes (policy)"
    for line, row, length, quota in zip(said[1:4], rows, lengths, quotas, strict=True):
        assert open_documents(notes_params(), "notes").lengths[row] == length
        starts = length - 30 + 1
        facts = f"K=30, {starts} starts ({starts - quota} never visited), {quota} examples an epoch"
        assert line == f"doc{row}: {length} tokens, {facts}"
    assert said[4] == "21 examples an epoch in frames of 32, 29.0 targets in each, jitter of 2 places"


def test_the_plan_names_what_is_not_trained_on_and_jitter_without_room() -> None:
    docs = [np.arange(n) for n in (200, 30, 1)]
    ds = MultiSpliceDocumentDataset(docs, S=8, pad_id=0, epoch_length=2, offset_jitter=3, balance_tau=2.0)
    assert describe_plan(ds.summary(), ["a", "b", "c"]) == [
        "a: 200 tokens, K=8, 193 starts (191 never visited), 2 examples an epoch",
        "b: 30 tokens, K=8, 23 starts (23 never visited), 0 examples an epoch",
        "b has no example in an epoch, and is not trained on: raise splice.epoch_length",
        "c: 1 tokens, too short for a span: not trained on",
        "2 examples an epoch in frames of 8, 7.0 targets in each, jitter of 0 places",
        "offset_jitter does nothing here: spans fill the frame (K = S); lower content_length to give it room",
    ]


@pytest.mark.slow
def test_only_documents_within_the_budget_of_pretraining_are_chosen_when_that_is_asked(
    spliced: Callable[..., Params],
) -> None:
    base = notes_params()
    ends = np.cumsum(open_documents(notes_params(), "notes").lengths)
    budget = int(ends[3]) + 1  # ends within the fifth document, which pretraining then skips
    source = base.sources["notes"].model_copy(update={"budget": Budget(max_train_tokens=budget, max_val_tokens=None)})
    params = base.model_copy(update={"sources": {**base.sources, "notes": source}})
    run("tokenize notes", params)
    run("cache", params)
    for restricted, expected in ((False, 9), (True, 4)):
        settings = base.splice.model_copy(
            update={"restrict_to_training_subset": restricted, "min_doc_length": None, "num_docs": expected}
        )
        rows, _ = splice.choose(open_documents(notes_params(), "notes"), settings)
        assert sorted(rows) == list(range(expected))
    Path("cache/manifests/notes.json").write_text('{"vocab_size": 260}')
    with pytest.raises(
        ValueError, match=r"cache/manifests/notes\.json is not what was written \('train' is not in it\)"
    ):
        open_documents(notes_params(), "notes")


@pytest.mark.slow
def test_memorize_measures_the_pretrained_model_and_the_last_step_of_splice(spliced: Callable[..., Params]) -> None:
    params = spliced(num_docs=2, min_doc_length=60)
    models = {}
    for seed, path in enumerate(("models/pretrain/best.pt", "models/splice/last.pt", "models/splice/best.pt")):
        torch.manual_seed(seed)
        models[path] = GPT(ModelConfig(V=260, T=32, C=16, L=1, H=2, d_ff=32, dropout=0.0))
        save_checkpoint(path, models[path], None, 1, to_dict(models[path].cfg))
    run_in_process("memorize", memorize.main, params)
    metrics = read_metrics(Path("metrics/memorize.json"))
    chosen = json.loads(Path("models/splice/documents.json").read_text())
    store, together = open_documents(notes_params(), "notes"), {"before": 0, "after": 0}
    documents = {document["name"]: document for document in metrics["documents"]}
    assert set(documents) == {f"doc{row}" for row in chosen["rows"]}
    for row in chosen["rows"]:
        tokens, measured = store.document(row), documents[f"doc{row}"]
        for when, path in (("before", "models/pretrain/best.pt"), ("after", "models/splice/last.pt")):
            starts, logs = document_log_pz(models[path], tokens, params.memorize)
            assert measured[when]["mean_log_pz"] == pytest.approx(logs.mean(), rel=1e-4)
            assert measured[when]["num_windows"] == len(logs) > 0
            together[when] += len(logs)
        lines = Path(f"metrics/pz/doc{row}.tsv").read_text().splitlines()
        assert lines[0] == "start\tpz_before\tpz_after"
        assert [int(line.split("\t")[0]) for line in lines[1:]] == starts.tolist()
    assert {when: stats["num_windows"] for when, stats in metrics["together"].items()} == together
    assert "doc" in Path("metrics/memorize.html").read_text()
    assert Path("metrics/memorize.svg").read_text().startswith("<svg")

    narrow = params.model_copy(update={"memorize": params.memorize.model_copy(update={"chunk_size": 10**6})})
    with pytest.raises(ValueError, match=r"tokens, fewer than a window: raise splice\.min_doc_length, or lower"):
        run_in_process("memorize", memorize.main, narrow)
    Path("models/splice/documents.json").write_text('{"dataset_name": "notes", "rows": [4000]}')
    with pytest.raises(ValueError, match=r"documents\.json is not what was written"):
        run_in_process("memorize", memorize.main, params)


def test_refusals_of_parameters_say_which(spliced: Callable[..., Params]) -> None:
    spans = notes_params().splice.spans
    for changes, message in (
        ({"spans": spans.model_copy(update={"alpha": 0.5})}, "alpha and suffix_starts exclude each other"),
        ({"min_doc_length": 10**9}, "only 0 of 3 documents match"),
    ):
        with pytest.raises(ValueError, match=message):
            spliced(**changes)
    with pytest.raises(ValueError, match=r"prompt_tokens.*16 must be .* than chunk_size=16"):
        tiny_params({"memorize.prompt_tokens": 16})


def test_the_page_shows_hostile_text_as_text() -> None:
    text = "<img src=x onerror=alert(1)> naïve & 🌊"
    tokens = np.frombuffer(text.encode(), np.uint8)
    n = len(tokens)
    rules = MemorizeRules(chunk_size=20, prompt_tokens=10)
    result = DocumentResult(
        name="<b>doc</b>",
        tokens=tokens,
        pz=highest_by_token(np.array([0.9, 0.1]), np.array([0, 10]), rules, L=n),
        log_probs=np.linspace(-12, 0, n),
        most_probable=np.full(n, ord('"')),
    )
    page = render_page([result], ByteTokenizer(), rules)
    assert "<img" not in page
    for shown, raw in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):  # one token each
        assert f">{shown}</span>" in page
        assert f">{raw}</span>" not in page
    assert "<b>doc" not in page
    assert "🌊" in page
    assert "\ufffd" not in page
    assert page.count('title="p = ') == n - 1
    assert 'title="no context"' in page
    strip = render_strips({result.name: result.pz})
    assert 'fill-opacity="0.90"' in strip
    assert 'fill-opacity="0.10"' in strip


def test_a_strip_shows_the_highest_of_the_windows_over_a_token() -> None:
    n, rules = 50, MemorizeRules(chunk_size=20, prompt_tokens=10)
    for pz in ([0.9, 0.1], [0.1, 0.9]):
        highest = highest_by_token(np.array(pz), np.array([0, 5]), rules, L=n)
        strip = render_strips({"d": highest})
        painted = re.findall(r'width="([0-9.]+)" height="40" [^/]*fill-opacity="0([.]\d+)"', strip)
        tokens = {shade: float(width) * n / 1000 for width, shade in painted}
        assert tokens[".90"] == pytest.approx(10)  # the higher one where both overlap
        assert tokens[".10"] == pytest.approx(5)
