"""Stage `sft`: supervised fine-tuning of the pretrained model on chats, with loss on assistant tokens only."""

from dataclasses import replace

from niels_gpt.cache.sft_dataset import open_chats
from niels_gpt.cache.windows import open_mix
from niels_gpt.data.corpus.mix import mix_probabilities
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.pipeline.stores import token_places
from niels_gpt.pipeline.training import pretrained, train_and_write, train_config, train_stage
from niels_gpt.rng import derive_seed
from niels_gpt.train.chats import ChatTask
from niels_gpt.train.pretraining import PretrainTask
from niels_gpt.train.task import Execution


@train_stage
def main(stage: Stage, execution: Execution) -> None:
    """Fine-tune in this process; validate on chats and on text."""
    params, device, ranks = stage.params, execution.device, execution.ranks
    p_sft = mix_probabilities(params.p_sft, params.chats, name="p_sft")
    p_train = mix_probabilities(params.p_train, params.texts, name="p_train")
    p_val = mix_probabilities(params.p_val, params.texts, name="p_val")
    cfg = train_config(params.sft, p_train=p_sft, p_val=p_val)
    model = pretrained(params, params.sft, device=device)
    T = model.cfg.T
    mix = open_mix(layout.MIX, places=token_places(params), documents=params.train.document_mask, ranks=ranks)
    chats = open_chats(layout.CHAT_MIX, names=list(p_sft), T=T, device=device, ranks=ranks)
    train, val = {name: mix.train[name] for name in p_train}, {name: mix.val[name] for name in p_val}
    text = PretrainTask(train=train, val=val, cfg=cfg, T=T, device=device)
    replay = None
    if rows := min(round(cfg.replay * cfg.B), cfg.B - 1):
        replay = replace(text, cfg=replace(cfg, B=rows, p_train=p_train, seed=derive_seed(cfg.seed, "replay")))
    task = ChatTask(train=chats.train, val=chats.val, text=text, cfg=cfg, replay=replay)
    execution.say(f"{task.padding():.1%} padding in rows of chats; {task.replayed} of {cfg.B} rows are replayed text")
    train_and_write(stage, model, task, execution=execution)


if __name__ == "__main__":
    run_stage("sft", main)
