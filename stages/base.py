"""Stage `base`: import the pretrained model that training starts from, if params.yaml names one."""

from niels_gpt.base.importing import import_base
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.stage import Stage, leave_out, run_stage


def main(stage: Stage) -> None:
    """Import the base, or write an empty output if `base.from` is null."""
    settings = stage.params.base
    if settings.name is None:
        leave_out(stage, layout.BASE)
        return
    origin = import_base(settings.name, stage.out(layout.BASE), local=settings.local, revision=settings.revision)
    stage.say(f"{origin['family']}, {origin['parameters']:,} parameters, {origin['licence']} -> {layout.BASE}")


if __name__ == "__main__":
    run_stage("base", main)
