"""Stage `train`: pretrain on the mix, with validation; an interrupted run resumes from its checkpoint."""

from __future__ import annotations

from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.pipeline.training import first_model, open_pretraining, train_and_write, train_stage, trained_teacher
from niels_gpt.train.task import Execution, check_memory


def main(stage: Stage) -> None:
    """Pretrain."""
    train_stage(stage, pretrain)


def pretrain(stage: Stage, execution: Execution) -> None:
    """Pretrain a new model, or tune the base, in this process."""
    device = execution.device
    task, model_cfg = open_pretraining(stage.params, device=device, ranks=execution.ranks)
    # Before allocating the model.
    check_memory(model_cfg, B=task.cfg.B, execution=execution, frozen=task.cfg.freeze_blocks)
    teacher = trained_teacher(stage, task, model_cfg, execution=execution)
    model = first_model(model_cfg, seed=task.cfg.seed, device=device)
    train_and_write(stage, model, task, task.cfg, execution=execution, teacher=teacher)


if __name__ == "__main__":
    run_stage("train", main)
