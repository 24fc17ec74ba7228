"""Tests of `niels-gpt benchmark` and of lm-eval against the server: both must give the model's own scores."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from niels_gpt.cli import benchmark
from niels_gpt.eval.card import minimal_pairs, text_nats
from niels_gpt.rng import uniform_numbers
from niels_gpt.talk.export.folders import export_transformers
from niels_gpt.talk.server.app import build_app
from tests.servers import EOT, serving, tiny_talker

PAIRS = [{"sentence_good": good, "sentence_bad": bad} for _, good, bad in minimal_pairs()]
EQUAL = [pair for pair in PAIRS if len(pair["sentence_good"]) == len(pair["sentence_bad"])]


def write_sets(folder: Path, sets: dict[str, list[dict[str, Any]]]) -> str:
    for name, rows in sets.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def test_scores_are_those_of_the_report_card_whatever_the_batch() -> None:
    talker = tiny_talker(slots=5)
    texts = [text for pair in PAIRS[:12] for text in pair.values()]
    found = benchmark.score(talker, [([EOT], list(text.encode())) for text in texts])
    nats = text_nats(talker.model, talker.tokenizer, texts, T=64, B=64)
    assert [-logprob for logprob, _ in found] == pytest.approx(nats, abs=1e-5 * 64)
    assert not any(greedy for _, greedy in found)
    assert talker.engine.add([1], benchmark_sampling()) is not None  # slots are free again


def benchmark_sampling() -> Any:
    from niels_gpt.inference.sampling import GREEDY

    return GREEDY


def test_a_continuation_is_greedy_where_each_token_is_the_most_probable_and_long_texts_lose_their_beginning() -> None:
    talker = tiny_talker(slots=2)
    prompt = list(b"The river")
    with torch.inference_mode():
        best = int(talker.model(torch.tensor([prompt]))[0, -1].argmax())
    (first, greedy), (_, other) = benchmark.score(talker, [(prompt, [best]), (prompt, [(best + 1) % 250])])
    assert (greedy, other) == (True, False)
    long = list(b"x" * 100) + prompt
    whole, cut = benchmark.score(talker, [(long, [best]), (long[-63:], [best])])
    assert whole == cut
    assert first != cut[0]
    everything = benchmark.score(talker, [([EOT], list(b"y" * 100))])[0][0]
    assert everything == pytest.approx(benchmark.score(talker, [([121], list(b"y" * 63))])[0][0], abs=1e-4)


def test_rows_of_llm_foundry_become_those_of_lm_eval(tmp_path: Path) -> None:
    rows = {
        "piqa": {"query": "Question: How do I dry a boot?\n", "choices": ["In the sun.", "In soup."], "gold": 0},
        "arc_easy": {"query": "Question: What floats?", "choices": ["a stone", "a cork", "a nail"], "gold": 1},
        "lambada_openai": {"context": "He went down to the", "continuation": "harbour"},
        "winogrande": {
            "context_options": ["Maren asked Marie for tar because Maren", "Maren asked Marie for tar because Marie"],
            "continuation": "had none left.",
            "gold": 0,
        },
    }
    expected = {
        "piqa": {"goal": "How do I dry a boot?", "sol1": "In the sun.", "sol2": "In soup.", "label": 0},
        "arc_easy": {
            "question": "What floats?",
            "choices": {"text": ["a stone", "a cork", "a nail"], "label": ["A", "B", "C"]},
            "answerKey": "B",
        },
        "lambada_openai": {"text": "He went down to the harbour"},
        "winogrande": {
            "sentence": "Maren asked Marie for tar because _ had none left.",
            "option1": "Maren",
            "option2": "Marie",
            "answer": "1",
        },
    }
    for name, row in rows.items():
        write_sets(tmp_path, {f"{name}.jsonl": [row, expected[name]]})
        assert benchmark.read_sets(name, tmp_path) == {name: [expected[name]] * 2}


def test_errors_name_the_file_or_the_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"has neither blimp.jsonl nor blimp/\*.jsonl: download the set"):
        benchmark.read_sets("blimp", tmp_path)
    write_sets(tmp_path, {"blimp/a.jsonl": PAIRS[:2], "blimp/b.jsonl": [{"sentence_good": "x"}], "piqa.jsonl": []})
    with pytest.raises(ValueError, match=r"b.jsonl has a row that is not one of blimp"):
        benchmark.read_sets("blimp", tmp_path)
    with pytest.raises(ValueError, match=r"piqa.jsonl is empty"):
        benchmark.read_sets("piqa", tmp_path)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(ValueError, match=r"needs lm-eval .*: `pip install 'niels_gpt\[benchmark\]'` installs it"):
        benchmark.make_tasks("blimp", str(tmp_path))


@pytest.mark.slow
def test_a_model_that_knows_nothing_is_right_by_chance_and_a_constant_one_never(tmp_path: Path) -> None:
    """Both texts of a pair have the same length, since a model that knows nothing prefers the shorter one."""
    letters = iter(["abcdefghijklmnopqrst"[int(20 * number)] for number in uniform_numbers((8000,), seed=1)])
    words = ["".join(next(letters) for _ in range(10)) for _ in range(800)]
    random = [{"sentence_good": good, "sentence_bad": bad} for good, bad in zip(words[::2], words[1::2], strict=True)]
    folder = write_sets(tmp_path, {"blimp/noise.jsonl": random, "blimp/own.jsonl": EQUAL})
    talker = tiny_talker(slots=32)
    noise, own = benchmark.make_tasks("blimp", folder)
    found = benchmark.evaluate(talker, [noise])
    assert found["blimp_noise"]["acc,none"] == pytest.approx(0.5, abs=0.08)  # three standard errors
    for parameter in talker.model.parameters():
        parameter.data.zero_()
    found = benchmark.evaluate(talker, [own])
    assert found["blimp_own"]["acc,none"] == 0
    line, mean, published = benchmark.result_lines("blimp", found)
    assert line.split() == ["blimp_own", "acc", "0.000", "±", "0.000", f"{len(EQUAL)}", "items"]
    assert mean.split() == ["mean", "of", "1", "paradigms", "acc", "0.000"]
    assert published == "published: n-gram 0.612, LSTM 0.698, GPT-2 0.830"


@pytest.mark.slow
def test_lm_eval_against_the_server_is_equal_to_direct_scoring(tmp_path: Path) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    talker = tiny_talker(slots=3)
    export_transformers(talker, tmp_path / "hf")  # lm-eval tokenizes by itself
    question = {"goal": "Boots?", "sol1": "In sun.", "sol2": "In the soup.", "label": 0}
    folder = write_sets(tmp_path, {"blimp/own.jsonl": PAIRS[:30:3], "piqa.jsonl": [question] * 2})
    tasks = [*benchmark.make_tasks("blimp", folder), *benchmark.make_tasks("piqa", folder)]
    with serving(build_app(tiny_talker(slots=3), card={})) as address:
        found = simple_evaluate(
            "local-completions",
            model_args={
                "base_url": f"{address}/v1/completions",
                "model": "tiny",
                "tokenizer": str(tmp_path / "hf"),
                "max_length": 64,
            },
            batch_size=8,
            tasks=tasks,
            task_manager=TaskManager(include_defaults=False),
            bootstrap_iters=0,
        )
    samples = [sample for task in ("blimp_own", "piqa") for sample in found["samples"][task]]
    asked = [tuple(arguments) for sample in samples for arguments in sample["arguments"]]
    theirs = [tuple(answer) for sample in samples for [answer] in sample["resps"]]
    assert len(asked) == 24
    ours = benchmark.score(talker, [(list(context.encode()) or [EOT], list(text.encode())) for context, text in asked])
    assert [float(logprob) for logprob, _ in theirs] == pytest.approx([logprob for logprob, _ in ours], abs=1e-5)
    direct = benchmark.evaluate(talker, tasks)
    assert {task: found["results"][task]["acc,none"] for task in direct} == {
        task: numbers["acc,none"] for task, numbers in direct.items()
    }
