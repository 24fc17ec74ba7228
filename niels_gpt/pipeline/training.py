"""Code shared by the training stages: from parameters and caches to a folder with a model and its history."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path

from niels_gpt.base.imported import is_imported, open_base
from niels_gpt.cache.windows import check_lengths, open_mix
from niels_gpt.checkpoint import load_model, save_checkpoint
from niels_gpt.config import ModelConfig, TrainConfig, to_dict
from niels_gpt.data.corpus.mix import mix_probabilities
from niels_gpt.device import machine_name
from niels_gpt.files.atomic import write_json
from niels_gpt.files.ranks import ALONE, Ranks, joined_ranks
from niels_gpt.model.gpt import GPT
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.hosts import check_agreement, end_with_parent, find_rendezvous, run_ranks
from niels_gpt.pipeline.params import Params, read_params
from niels_gpt.pipeline.repository import current_commit, recorded
from niels_gpt.pipeline.sections import Further, Pretraining
from niels_gpt.pipeline.stage import Inputs, Stage, leave_out, project_root
from niels_gpt.pipeline.stores import token_places
from niels_gpt.pipeline.trial import stage_device
from niels_gpt.report.history import History
from niels_gpt.rng import derive_seed, set_seed
from niels_gpt.tokenizer import load_tokenizer
from niels_gpt.tokenizer.pretrained import renderer_for
from niels_gpt.train.loop import Hooks, run_training
from niels_gpt.train.meter import RunLog
from niels_gpt.train.pretraining import PretrainTask
from niels_gpt.train.state import RunFolder, RunState
from niels_gpt.train.task import Execution, Task, check_memory


def train_config(settings: Pretraining, *, p_train: Mapping[str, float], p_val: Mapping[str, float]) -> TrainConfig:
    """Return the training configuration of a section of params.yaml, with these sampling probabilities."""
    return TrainConfig(p_train=p_train, p_val=p_val, **settings.model_dump(exclude={"dropout", "run"}))


def pretrained(params: Params, settings: Further, *, device: str) -> GPT:
    """Load the pretrained model, with the dropout for further training."""
    dropout = params.model.dropout if settings.dropout is None else settings.dropout
    return load_model(layout.PRETRAINED / layout.BEST, device, dropout=dropout)


def train_stage(train: Callable[[Stage, Execution], None]) -> Callable[[Stage], None]:
    """Make the `main` of a training stage of `train`, which trains in one process.

    If `runtime.nproc` or the number of hosts is above 1, `main` starts ranks: processes that run the stage again. If
    params.yaml disables the stage, its output is empty.
    """

    @wraps(train)
    def main(stage: Stage) -> None:
        if not getattr(getattr(stage.params, stage.name), "run", True):
            leave_out(stage, layout.MODEL_OF[stage.name])
            return
        if "RANK" in os.environ:
            end_with_parent()
        elif (rendezvous := find_rendezvous(os.environ, stage.name)) or stage.params.runtime.nproc > 1:
            if rendezvous is not None and rendezvous.host > 0:
                here = f"run `niels-gpt join {stage.name}` here"
                raise ValueError(f"NODE_RANK is {rendezvous.host}, and `dvc repro` is for host 0: {here}")
            stage_device(stage)  # the ranks trust what this finds
            run_ranks(stage, rendezvous)
            return
        with execution_of(stage) as execution:
            train(stage, execution)

    return main


def join_training(name: str) -> None:
    """Run this host's processes of a training that host 0 leads; they write nothing."""
    rendezvous = find_rendezvous(os.environ, name)
    if rendezvous is None:
        raise ValueError("NNODES is not set: `niels-gpt join` is for hosts other than host 0; see docs/scale.md")
    if rendezvous.host == 0:
        raise ValueError("NODE_RANK is 0, so this is host 0: run `dvc repro` here, and join from the others")
    stage = Stage(name=name, key="", params=read_params()[0], inputs=Inputs({}, {}))
    if not getattr(getattr(stage.params, name), "run", True):
        raise ValueError(f"{name}.run is false, so host 0 does not train it: there is nothing to join")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as in a stage: all ranks stop and save together
    run_ranks(stage, rendezvous)


@contextmanager
def execution_of(stage: Stage) -> Iterator[Execution]:
    """Yield how this process trains, as `runtime` says, joined with the other ranks.

    Ranks are joined before any file is opened, so that they share the reading from the first byte.
    """
    runtime = stage.params.runtime
    device = stage_device(stage)
    with joined_ranks(device) as ranks:
        check_agreement(stage, ranks, device=device)
        yield Execution(
            device=device,
            compile=runtime.compile,
            micro_batch_tokens=runtime.micro_batch_tokens,
            deterministic=runtime.deterministic,
            ranks=ranks,
            say=stage.say if ranks.first else lambda text: None,
        )


def trained_teacher(stage: Stage, task: PretrainTask, model_cfg: ModelConfig, *, execution: Execution) -> GPT | None:
    """Train or resume the teacher, a model of another seed, as `train.teacher` says; None if that is 0."""
    if not task.cfg.teacher:
        return None
    other = replace(task, cfg=replace(task.cfg, seed=derive_seed(task.cfg.seed, "teacher")))
    model = train_beside(stage, other, model_cfg, execution=execution, name="teacher")
    return model.eval()


def train_beside(stage: Stage, task: PretrainTask, model_cfg: ModelConfig, *, execution: Execution, name: str) -> GPT:
    """Pretrain a model that is no output of the stage, or resume it; return it with its best weights."""
    model = first_model(model_cfg, task.cfg, execution=execution)
    run = train_to_the_end(stage, model, task, execution=execution, name=name)
    assert run.best_model is not None, "a finished run has been validated"
    model.load_state_dict(run.best_model)
    return model


def train_and_write(stage: Stage, model: GPT, task: Task, *, execution: Execution, teacher: GPT | None = None) -> bool:
    """Train or resume, then write the stage's model: the last weights, those of the best validation, and the history.

    Return False on all data-parallel ranks except the first, which writes.
    """
    run = train_to_the_end(stage, model, task, execution=execution, name=stage.name, teacher=teacher)
    if not execution.ranks.first:
        return False
    assert run.best_model is not None, "a finished run has been validated"
    assert run.best_step is not None
    folder, config = stage.out(layout.MODEL_OF[stage.name]), to_dict(model.cfg)
    save_checkpoint(folder / layout.LAST, model, None, run.step, config)
    model.load_state_dict(run.best_model)
    save_checkpoint(folder / layout.BEST, model, None, run.best_step, config)
    renderer = renderer_for(load_tokenizer(layout.TOKENIZER), chats=stage.name == layout.TUNED.name)
    write_json(folder / layout.CONFIG, {**config, "renderer": renderer})
    history = History.of(run, task.cfg, T=task.T, parameters=model.parameter_count())
    history.write(folder / layout.HISTORY)
    return True


def train_to_the_end(
    stage: Stage, model: GPT, task: Task, *, execution: Execution, name: str, teacher: GPT | None = None
) -> RunState:
    """Train or resume under this name, and return the finished run; exit the process if training is stopped.

    The run is marked as finished when the stage has succeeded. If DVC has recorded its result since then, the stage
    runs again only by force (`dvc repro -f`), and the model is trained anew. If DVC was killed before it recorded the
    result, the finished run is reused.
    """
    cfg, runtime, inputs = task.cfg, stage.params.runtime, stage.inputs.fingerprint()
    check_memory(model.cfg, B=cfg.B, execution=execution, frozen=cfg.freeze_blocks)
    folder = project_root() / layout.CHECKPOINTS / (inputs if name == stage.name else f"{inputs}-{name}")
    log = project_root() / layout.LOGS / f"{name}.jsonl"
    decode = load_tokenizer(layout.TOKENIZER).decode
    ranks, say = execution.ranks, execution.say
    among = f"{execution.device} in each of {ranks.size} processes" if ranks.size > 1 else execution.device
    say(f"{model.parameter_count():,} parameters on {among}, {cfg.B * task.T:,} tokens/step")
    say("sampling " + ", ".join(f"{name} {p:.4f}" for name, p in cfg.p_train.items()))
    origin = {"commit": current_commit(project_root()), "machine": machine_name(execution.device)}
    origin["name"] = os.environ.get("DVC_EXP_NAME", "")  # given by `dvc exp run -n`, or made up by DVC
    hooks = Hooks(
        report=RunLog(log, run=folder.name, decode=decode, origin=origin),
        log_every=runtime.log_every,
        checkpoint_every=runtime.checkpoint_every,
    )
    record = recorded(Path(), stage.title)
    run = run_training(
        model, task, execution=execution, hooks=hooks, folder=folder, title=name, record=record, teacher=teacher
    )
    if not run.ended(cfg):
        say(f"stopped and saved after step {run.step} of {cfg.total_steps}; `dvc repro` resumes from there")
        sys.exit(130)
    if run.step < cfg.total_steps:
        say(f"ended after step {run.step}: {cfg.patience} validations were no better than that of step {run.best_step}")
    if ranks.first:
        stage.on_success.append(partial(RunFolder(folder).finish, record))
    return run


def first_model(cfg: ModelConfig, run: TrainConfig, *, execution: Execution) -> GPT:
    """Return the model that a run starts with, the base or random weights, after checking that training fits memory."""
    check_memory(cfg, B=run.B, execution=execution, frozen=run.freeze_blocks)
    if is_imported(layout.BASE):
        return load_model(layout.BASE / layout.BEST, execution.device, T=cfg.T, dropout=cfg.dropout)
    set_seed(derive_seed(run.seed, "init"))
    return GPT(cfg).to(execution.device)


def model_config(params: Params, *, V: int) -> ModelConfig:
    """Return the configuration of the model to train: the base's shape after checking the base, or that of params."""
    if not is_imported(layout.BASE):
        return ModelConfig.from_section(params.model.model_dump(), V=V)
    base = open_base(layout.BASE)
    base.check(layout.TOKENIZER)
    return base.config(T=params.model.T, dropout=params.model.dropout)


def open_pretraining(params: Params, *, device: str, ranks: Ranks = ALONE) -> tuple[PretrainTask, ModelConfig]:
    """Return the pretraining task, and the configuration of its model."""
    task = text_task(params, params.train, T=params.model.T, device=device, ranks=ranks)
    return task, model_config(params, V=load_tokenizer(layout.TOKENIZER).vocab_size)


def text_task(params: Params, settings: Pretraining, *, T: int, device: str, ranks: Ranks = ALONE) -> PretrainTask:
    """Return the task of training on text, with the settings of a section of params.yaml."""
    p_train = mix_probabilities(params.p_train, params.texts, name="p_train")
    p_val = mix_probabilities(params.p_val, params.texts, name="p_val")
    mix = open_mix(layout.MIX, places=token_places(params), documents=params.train.document_mask, ranks=ranks)
    train, val = {name: mix.train[name] for name in p_train}, {name: mix.val[name] for name in p_val}
    check_lengths({"train": train, "val": val}, T=T)
    cfg = train_config(settings, p_train=p_train, p_val=p_val)
    return PretrainTask(train=train, val=val, cfg=cfg, T=T, device=device)
