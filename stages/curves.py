"""Stage `curves`: metrics, learning curves and samples of the pretrained model, from its history."""

from pathlib import Path

from niels_gpt.pipeline import layout
from niels_gpt.pipeline.results import is_left_out, write_metrics
from niels_gpt.pipeline.stage import Stage, leave_out, run_stage
from niels_gpt.report.history import History
from niels_gpt.report.tables import format_samples, loss_curve, mix_shares, summarise, validations_by_source, write_tsv
from niels_gpt.tokenizer import load_tokenizer


def write_curves(stage: Stage, trained: str) -> None:
    """Write the metrics of the training stage `trained`; empty files if params.yaml disables it."""
    model, metrics = layout.MODEL_OF[trained], f"{layout.METRICS}/{trained}"
    if is_left_out(model):
        ends = (".json", ".tsv", "_val.tsv", "_sources.tsv", "_mix.tsv", "_samples.md")
        leave_out(stage, *(Path(f"{metrics}{end}") for end in ends))
        return
    run, tokenizer = History.read(model / layout.HISTORY), load_tokenizer(layout.TOKENIZER)
    summary = summarise(run)
    write_metrics(stage.out(f"{metrics}.json"), summary)
    write_tsv(stage.out(f"{metrics}.tsv"), loss_curve(run))
    write_tsv(stage.out(f"{metrics}_val.tsv"), run.validations)
    write_tsv(stage.out(f"{metrics}_sources.tsv"), validations_by_source(run))
    write_tsv(stage.out(f"{metrics}_mix.tsv"), mix_shares(run))
    samples = [(f"step {sample['step']}", tokenizer.decode(sample["ids"])) for sample in run.samples]
    page = format_samples({"What the model wrote as it was trained": samples})
    stage.out(f"{metrics}_samples.md").write_text(page, encoding="utf-8")
    final = f"loss {summary['loss']:.4f}, validation {summary['val_loss']:.4f}"
    stage.say(f"{trained}: {summary['steps']:,} steps, {final}")


def main(stage: Stage) -> None:
    """Write the metrics of `train`; those of `sft` are written by `eval`, those of `splice` by `memorize`."""
    write_curves(stage, "train")


if __name__ == "__main__":
    run_stage("curves", main)
