"""Files that a run has written: metrics with their details, other results, and stages that were left out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import check_keys, read_meta
from niels_gpt.pipeline import layout

_DETAILS = "details"


def write_metrics(path: Path, details: Any, **shown: float | None) -> None:
    """Write a file that DVC tracks as metrics: `dvc exp show` has a column for each number of `shown`, none for others.

    DVC shows every number in a mapping and nothing in a list, so the details are a list of one. In an output of another
    type they would have to leave git, or DVC would not save the stage's runs: a reverted value would run it again.
    """
    write_json(path, {**shown, _DETAILS: [details]})


def read_metrics(path: str | Path, *, required: Sequence[str] = ()) -> dict[str, Any]:
    """Read the details in a file of metrics; see `check_keys` for the syntax of `required`."""
    details = metric_details(read_meta(path))
    check_keys(details, required, path=path)
    return details


def metric_details(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return the details in a parsed file of metrics; that of a disabled stage is empty."""
    details: dict[str, Any] = metrics.get(_DETAILS, [metrics])[0]
    return details


_SCORE = ("*.*.nats", "*.*.bits_per_byte", "*.*.tokens")  # by model and validation set
_PART = ("train.tokens", "train.parts.[].sha256", "val.tokens")
_LEAK = (
    *("extractable_sentences", "extractable_passages", "attack"),
    *(f"sentences.{key}" for key in ("asked", "documents_asked", "held_out_reported", "longest_sampled_run_tokens")),
    *(f"{side}.{key}" for side in ("train", "held_out") for key in ("extractable", "passages", "longest_run_tokens")),
)
_WRITTEN = {  # the command that writes a file, and the keys it must have
    layout.SCORES: ("dvc repro", ()),
    layout.TRAINED: ("dvc repro curves", ("parameters", "tokens", "mix.*.drawn")),
    layout.LEAK: ("dvc repro leak", ("measured", *(f"sources.*.*.{key}" for key in _LEAK))),
    layout.MIX: ("dvc repro cache", ("vocab_size", *(f"sources.*.{key}" for key in _PART))),
    layout.CHAT_MIX: ("dvc repro cache", ("vocab_size", "sources.*.files.[].sha256")),
    layout.PRETRAINED / layout.CONFIG: ("dvc repro train", ("T",)),
}


def read_result(path: Path) -> dict[str, Any]:
    """Read a file of `_WRITTEN`, the scores without their report card; raise ValueError if missing or damaged."""
    made_by, required = _WRITTEN[path]
    if not path.is_file():
        raise ValueError(f"there is no {path} yet: run `{made_by}` first")
    result = read_metrics(path, required=required)
    return without_card(result) if path == layout.SCORES else result


def without_card(scores: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of models, without the report card and the compressors, after checking their keys."""
    models = {model: table for model, table in scores.items() if model not in (layout.CARD, *layout.YARDSTICKS)}
    check_keys(models, _SCORE, path=layout.SCORES)
    return models


def is_left_out(folder: Path) -> bool:
    """Return whether the stage that writes this folder was disabled."""
    return (folder / layout.LEFT_OUT).is_file()


def final_models() -> dict[str, Path]:
    """Return the folders of the models to report on by name: base, pretrained and fine-tuned, if enabled."""
    bases = [layout.BASE] if (layout.BASE / layout.CONFIG).is_file() else []
    return {folder.name: folder for folder in (*bases, layout.PRETRAINED, layout.TUNED) if not is_left_out(folder)}
