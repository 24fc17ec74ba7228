"""The splice and memorize stages, and the pages they write."""

from __future__ import annotations

import json

import numpy as np
import pytest

from niels_gpt.memorization_page import DocumentResult, render_page, render_strips
from niels_gpt.tokenizer import ByteTokenizer
from tests.conftest import Repo


@pytest.mark.dag
def test_stages_measure_before_and_after_and_refuse_what_makes_no_sense(built_repo: Repo) -> None:
    metrics = json.loads((built_repo.path / "metrics/memorize.json").read_text())
    chosen = json.loads((built_repo.path / "models/splice/documents.json").read_text())
    assert len(chosen["rows"]) == 3
    assert set(metrics["documents"]) == {f"doc{row}" for row in chosen["rows"]}
    assert metrics["distribution"] == "full softmax"
    for document in metrics["documents"].values():
        assert set(document) == {"before", "after"}
        assert set(document["after"]["median_pz_by_third"]) == {"head", "middle", "tail"}
    together = metrics["together"]
    assert together["after"]["mean_log_pz"] > together["before"]["mean_log_pz"]
    for row in chosen["rows"]:
        lines = (built_repo.path / f"metrics/pz/doc{row}.tsv").read_text().splitlines()
        assert lines[0] == "start\tpz_before\tpz_after"
        assert len(lines) == 1 + metrics["documents"][f"doc{row}"]["after"]["num_windows"]
    page = (built_repo.path / "metrics/memorize.html").read_text()
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert (built_repo.path / "metrics/memorize.svg").read_text().startswith("<svg")

    for change, message in (
        ({"splice.spans.alpha": 0.5}, "alpha and suffix_starts exclude each other"),
        ({"splice.restrict_to_training_subset": True}, "restrict_to_training_subset needs shuffle: false"),
        ({"splice.dataset_name": "nowhere"}, "splice.dataset_name is 'nowhere', not one of"),
        ({"splice.min_doc_length": 10**9}, "only 0 of 3 documents match"),
        ({"memorize.prompt_tokens": 16}, "prompt_tokens=16 must be shorter than chunk_size=16"),
    ):
        original = (built_repo.path / "params.yaml").read_text()
        built_repo.set_all(change)
        done = built_repo.stage("splice")
        assert done.returncode == 1, done.stdout
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        (built_repo.path / "params.yaml").write_text(original)
    built_repo.set(memorize__chunk_size=33)
    done = built_repo.stage("memorize")
    assert "chunk_size=33 does not fit the model's T=32" in done.stderr


def test_the_page_shows_hostile_text_as_text() -> None:
    text = "<img src=x onerror=alert(1)> naïve & 🌊"
    tokens = np.frombuffer(text.encode(), np.uint8)
    n = len(tokens)
    result = DocumentResult(
        name="<b>doc</b>",
        tokens=tokens,
        starts=np.array([0, 10]),
        pz=np.array([0.9, 0.1]),
        log_probs=np.linspace(-12, 0, n),
        likeliest=np.full(n, ord('"')),
    )
    page = render_page([result], ByteTokenizer(), window={"chunk_size": 20, "prompt_tokens": 10})
    assert "<img" not in page
    assert "<b>" not in page
    assert "🌊" in page
    assert "\ufffd" not in page
    assert page.count('title="p = ') == n - 1
    assert 'title="no context"' in page
    strip = render_strips([result], chunk_size=20, prompt_tokens=10)
    assert "rgba(8,48,107,0.90)" in strip
    assert "rgba(8,48,107,0.10)" in strip
