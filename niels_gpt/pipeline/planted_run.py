"""A copy of pretraining with canaries in its private text, to measure how well such a run memorizes.

It is trained on temporary copies, and only numbers remain: none of the user's files and none of the pipeline's models
contains a canary. It does not include fine-tuning.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from niels_gpt.cache.token_parts import encode_documents
from niels_gpt.leak.canaries import REFERENCES, exposure_stats, make_canaries, measure_exposure, plant, planted_texts
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import Params
from niels_gpt.pipeline.stage import Stage, project_root
from niels_gpt.pipeline.stores import open_documents
from niels_gpt.pipeline.training import execution_of, first_model, open_pretraining, train_to_the_end
from niels_gpt.tokenizer import load_tokenizer
from niels_gpt.tokenizer.vocabulary import token_dtype

NAME = "canaries"


def planted_source(params: Params) -> str:
    """Return the private source with the highest sampling weight in p_train."""
    drawn = {name: weight for name, weight in params.p_train.items() if weight and params.sources[name].private}
    if not drawn:
        raise ValueError(
            "leak.canaries: nothing that p_train draws is private, so there is nowhere to plant: set it to 0"
        )
    return max(sorted(drawn), key=drawn.__getitem__)


def measure_planted_run(stage: Stage) -> dict[str, Any]:
    """Train or resume the copy, and return the exposure of its canaries."""
    params, settings = stage.params, stage.params.leak
    source, tokenizer = planted_source(params), load_tokenizer(layout.TOKENIZER)
    canaries = make_canaries(settings.canaries, seed=settings.seed)
    checkpoints = project_root() / layout.CHECKPOINTS
    checkpoints.mkdir(exist_ok=True)
    with execution_of(stage) as execution, TemporaryDirectory(dir=checkpoints, prefix=f"{NAME}-") as copies:
        task, model_cfg = open_pretraining(params, device=execution.device)
        planted = plant(
            open_documents(params, source),
            list(encode_documents(tokenizer, planted_texts(canaries))),
            folder=Path(copies),
            seed=settings.seed,
            apart=params.train.document_mask,
            dtype=token_dtype(tokenizer.vocab_size),
        )
        task = replace(task, train={**task.train, source: planted})
        model = first_model(model_cfg, seed=task.cfg.seed, device=execution.device)
        run = train_to_the_end(stage, model, task, task.cfg, execution=execution, name=NAME)
    assert run.best_model is not None, "a finished run has been validated"
    model.load_state_dict(run.best_model)
    found = measure_exposure(model, tokenizer, canaries, seed=settings.seed, B=settings.B)
    return {"source": source, "references": REFERENCES, "by_copies": exposure_stats(found)}
