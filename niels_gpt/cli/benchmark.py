"""niels-gpt benchmark: public evaluation sets, scored by lm-eval."""

import json
import logging
import os
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from niels_gpt.cli.export import ModelFolder, final_model, open_model
from niels_gpt.files.messages import progress, read_text

if TYPE_CHECKING:
    from niels_gpt.talk.talker import Talker

# Accuracy on all 67 paradigms, published with BLiMP (Warstadt et al. 2020).
ANCHORS = {"n-gram": 0.612, "LSTM": 0.698, "GPT-2": 0.830}
# lm-eval's names and files of tasks, which have the prompts; of BLiMP's there is one for each paradigm.
TASKS = {
    "blimp": "blimp/_template_yaml",
    "lambada_openai": "lambada/lambada_openai.yaml",
    "piqa": "piqa/piqa.yaml",
    "arc_easy": "arc/arc_easy.yaml",
    "winogrande": "winogrande/default.yaml",
}
Name = StrEnum("Name", list(TASKS))  # type: ignore[misc]  # mypy wants literal members
Row = dict[str, Any]


def benchmark(
    name: Annotated[Name, typer.Argument(help="the evaluation set")],
    source: Annotated[
        str | None, typer.Option("--from", help="folder with NAME.jsonl or NAME/*.jsonl, or a dataset on the hub")
    ] = None,
    model: ModelFolder = None,
) -> None:
    """Score the model on a public evaluation set with lm-eval (zero-shot), to compare with published models."""
    talker = open_model(model or final_model(), slots=32)
    results = evaluate(talker, make_tasks(name.value, source))
    typer.echo("\n".join(result_lines(name.value, results)))


def make_tasks(name: str, source: str | None) -> list[Any]:
    """Return lm-eval's tasks of an evaluation set, with data from a folder, a hub dataset, or lm-eval's own choice."""
    os.environ.setdefault("DISABLE_MULTIPROC", "1")  # of lm-eval's bootstrap
    try:
        import lm_eval.tasks
        from lm_eval.api.task import ConfigurableTask
        from lm_eval.tasks._yaml_loader import load_yaml
    except ImportError as error:
        install = "`pip install 'niels_gpt[benchmark]'` installs it"
        raise ValueError(f"benchmark needs lm-eval ({error}): {install}") from error
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    folder = Path(lm_eval.tasks.__file__).parent
    config = load_yaml(folder / TASKS[name], resolve_func=True)
    if name == "blimp":  # argmax takes the first of two equal ones, and a tie must count as wrong
        config |= {"doc_to_choice": "{{[sentence_bad, sentence_good]}}", "doc_to_target": 1}
    if source is None or not Path(source).is_dir():
        config |= {} if source is None else {"dataset_path": source}
        paradigms = sorted(path.stem for path in (folder / "blimp").glob("[!_]*.yaml"))
        names = [{"task": f"blimp_{it}", "dataset_name": it} for it in paradigms] if name == "blimp" else [{}]
        return [ConfigurableTask(config=config | it) for it in names]
    config |= dict.fromkeys(("training_split", "validation_split", "fewshot_split")) | {"test_split": "test"}
    from datasets import Dataset

    tasks = []
    for task, rows in read_sets(name, Path(source)).items():
        test = {"test": Dataset.from_list(rows)}
        tasks.append(ConfigurableTask(config=config | {"task": task, "custom_dataset": lambda test=test, **_: test}))
    return tasks


def read_sets(name: str, folder: Path) -> dict[str, list[Row]]:
    """Return {task: rows in lm-eval's columns} of an evaluation set in a folder, one task for each file."""
    file = folder / f"{name}.jsonl"
    files = [file] if file.is_file() else sorted((folder / name).glob("*.jsonl"))
    if not files:
        raise ValueError(f"{folder} has neither {name}.jsonl nor {name}/*.jsonl: download the set, or leave --from out")
    found = {}
    for file in files:
        lines = [line for line in read_text(file).splitlines() if line.strip()]
        try:
            found[name if file.stem == name else f"{name}_{file.stem}"] = [_row(name, json.loads(it)) for it in lines]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"{file} has a row that is not one of {name} ({error!r}): download it again") from error
        if not lines:
            raise ValueError(f"{file} is empty: download it again")
    return found


def _row(name: str, row: Row) -> Row:
    """Return a row in the columns of lm-eval's dataset, which it may have already, or else those of LLM Foundry."""
    if name == "blimp":
        return {key: row[key] for key in ("sentence_good", "sentence_bad")}
    if name == "lambada_openai" and "text" not in row:
        return {"text": f"{row['context']} {row['continuation']}"}
    if name in ("piqa", "arc_easy") and "query" in row:
        query, choices, gold = row["query"].removeprefix("Question: ").strip(), row["choices"], row["gold"]
        if name == "piqa":
            return {"goal": query, "sol1": choices[0], "sol2": choices[1], "label": gold}
        letters = [chr(ord("A") + i) for i in range(len(choices))]
        return {"question": query, "choices": {"text": choices, "label": letters}, "answerKey": letters[gold]}
    if name == "winogrande" and "context_options" in row:
        options = row["context_options"]
        shared = sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(*options, strict=False)))
        start = options[0].rfind(" ", 0, shared) + 1  # names may begin alike
        return {
            "sentence": f"{options[0][:start]}_ {row['continuation']}",
            "option1": options[0][start:],
            "option2": options[1][start:],
            "answer": str(row["gold"] + 1),
        }
    return row


def evaluate(talker: "Talker", tasks: Sequence[Any]) -> dict[str, Row]:
    """Return lm-eval's results by task, for a model scored by the inference engine."""
    from lm_eval import simple_evaluate
    from lm_eval.api.model import TemplateLM
    from lm_eval.tasks import TaskManager

    class Scorer(TemplateLM):
        """Model for lm-eval that scores continuations and generates nothing."""

        @property
        def eot_token_id(self) -> int:
            return talker.tokenizer.special_token_ids()["eot"]

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **more: Any) -> list[int]:
            return talker.tokenizer.encode(string)

        def _loglikelihood_tokens(
            self, requests: list[tuple[Any, list[int], list[int]]], **more: Any
        ) -> list[tuple[float, bool]]:
            return score(talker, [(context, continuation) for _, context, continuation in requests])

        loglikelihood_rolling = generate_until = None  # abstract in the base class; no task here calls them

    manager = TaskManager(include_defaults=False)
    found = simple_evaluate(Scorer(), tasks=list(tasks), task_manager=manager, bootstrap_iters=100, log_samples=False)
    return {task: {**numbers, "n": found["n-samples"][task]["effective"]} for task, numbers in found["results"].items()}


def score(talker: "Talker", pairs: Sequence[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
    """Return (log probability in nats, is it the greedy continuation?) of each (context, continuation) of ids.

    A pair longer than the context length loses its beginning.
    """
    from niels_gpt.inference.sampling import GREEDY

    T, found = talker.model.cfg.T, [(0.0, True)] * len(pairs)
    order = sorted(range(len(pairs)), key=lambda i: -sum(map(len, pairs[i])))  # similar lengths need little padding
    with progress(total=len(pairs), unit=" texts", title="scored") as bar:
        for first in range(0, len(order), talker.slots):
            rows = {}
            for i in order[first : first + talker.slots]:
                ids = [*pairs[i][0], *pairs[i][1]][-T:]
                rows[talker.engine.add(ids, GREEDY, top_logprobs=1, score_prompt=True)] = i
            for written in talker.engine.step():
                i = rows[written.row]
                tokens = written.prompt[1:][-len(pairs[i][1]) :]
                greedy = all(token.id == token.top_logprobs[0][0] for token in tokens)
                found[i] = sum(token.logprob or 0.0 for token in tokens), greedy
                talker.engine.drop(written.row)
            bar.update(len(rows))
    return found


def result_lines(name: str, results: dict[str, Row]) -> Iterable[str]:
    """Yield a line for each task and metric with its standard error, and for BLiMP the mean beside published models."""
    for task, numbers in results.items():
        for key, value in numbers.items():
            metric = key.removesuffix(",none")
            if metric == key or metric.endswith("_stderr"):
                continue
            error = numbers.get(f"{metric}_stderr,none")
            shown = f"{value:.3f}" + (f" ± {error:.3f}" if isinstance(error, float) else "")
            yield f"{task:<60} {metric:<12} {shown}   {numbers['n']:,} items"
    if name == "blimp":
        mean = sum(numbers["acc,none"] for numbers in results.values()) / len(results)
        yield f"{f'mean of {len(results)} paradigms':<60} {'acc':<12} {mean:.3f}"
        yield "published: " + ", ".join(f"{model} {anchor:.3f}" for model, anchor in ANCHORS.items())
