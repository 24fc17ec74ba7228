"""Stage `sft`: supervised fine-tuning of the pretrained model on chats, with loss on assistant tokens only."""

from dataclasses import replace

from niels_gpt.cache.sft_dataset import open_chats
from niels_gpt.data.corpus.mix import mix_probabilities
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.pipeline.training import pretrained, text_task, train_and_write, train_stage
from niels_gpt.rng import derive_seed
from niels_gpt.train.chats import ChatTask
from niels_gpt.train.task import Execution


@train_stage
def main(stage: Stage, execution: Execution) -> None:
    """Fine-tune in this process; validate on chats and on text."""
    params, device, ranks = stage.params, execution.device, execution.ranks
    p_sft = mix_probabilities(params.p_sft, params.chats, name="p_sft")
    model = pretrained(params, params.sft, device=device)
    T = model.cfg.T
    text = text_task(params, params.sft, T=T, device=device, ranks=ranks)
    chats = open_chats(layout.CHAT_MIX, names=list(p_sft), T=T, device=device, ranks=ranks)
    cfg, replay = replace(text.cfg, p_train=p_sft), None
    if rows := min(round(cfg.replay * cfg.B), cfg.B - 1):
        replay = replace(text, cfg=replace(text.cfg, B=rows, seed=derive_seed(cfg.seed, "replay")))
    task = ChatTask(train=chats.train, val=chats.val, text=text, cfg=cfg, replay=replay)
    execution.say(f"{task.padding():.1%} padding in rows of chats; {task.replayed} of {cfg.B} rows are replayed text")
    train_and_write(stage, model, task, execution=execution)


if __name__ == "__main__":
    run_stage("sft", main)
