"""Stage `train`: pretrain on the mix, with validation; an interrupted run resumes from its checkpoint."""

from __future__ import annotations

from niels_gpt.pipeline import layout
from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.pipeline.training import (
    execution_of,
    first_model,
    open_pretraining,
    train_and_write,
    trained_by_ranks,
    trained_teacher,
)
from niels_gpt.train.task import check_memory


def main(stage: Stage) -> None:
    """Pretrain a new model or tune the base, in this process or in one process per rank."""
    if trained_by_ranks(stage):
        return
    with execution_of(stage) as execution:
        device = execution.device
        task, model_cfg = open_pretraining(stage.params, device=device, ranks=execution.ranks)
        # Before allocating the model.
        check_memory(model_cfg, B=task.cfg.B, execution=execution, frozen=task.cfg.freeze_blocks)
        teacher = trained_teacher(stage, task, model_cfg, execution=execution)
        model = first_model(model_cfg, seed=task.cfg.seed, device=device)
        train_and_write(stage, model, task, task.cfg, execution=execution, out=layout.PRETRAINED, teacher=teacher)


if __name__ == "__main__":
    run_stage("train", main)
