"""Stage `train`: pretrain on the mix, with validation; an interrupted run resumes from its checkpoint."""

from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.pipeline.training import first_model, open_pretraining, train_and_write, train_stage, trained_teacher
from niels_gpt.train.task import Execution


@train_stage
def main(stage: Stage, execution: Execution) -> None:
    """Pretrain a new model, or tune the base, in this process."""
    task, model_cfg = open_pretraining(stage.params, device=execution.device, ranks=execution.ranks)
    teacher = trained_teacher(stage, task, model_cfg, execution=execution)
    model = first_model(model_cfg, task.cfg, execution=execution)
    train_and_write(stage, model, task, execution=execution, teacher=teacher)


if __name__ == "__main__":
    run_stage("train", main)
