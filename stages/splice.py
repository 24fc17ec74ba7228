"""splice: continued pretraining on chosen documents, cut at many places, so that the model memorizes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from niels_gpt.cache.integrity import described_by
from niels_gpt.cache.meta import read_meta
from niels_gpt.checkpoint import load_model
from niels_gpt.device import prepare_device
from niels_gpt.files.atomic import write_json
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import Params, Splice
from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.pipeline.training import train_and_write, train_config, trained_by_ranks
from niels_gpt.splice.dataset import MultiSpliceDocumentDataset
from niels_gpt.splice.documents import TokenStore
from niels_gpt.splice.selection import select_documents, training_subset
from niels_gpt.splice.task import SpliceTask
from niels_gpt.tokenizer import load_tokenizer


def choose(store: TokenStore, settings: Splice, *, trained_tokens: int | None) -> tuple[list[int], str]:
    """Rows of the store, and why these; with `trained_tokens`, only of documents within so many first tokens."""
    lengths = store.lengths.tolist()
    if trained_tokens is not None:
        # Counted in sequences of one token: a budget of shards ends at a document's end, not at a frame's.
        eligible = set(training_subset(lengths, S=1, max_train_batches=trained_tokens, initial_batch_size=1)[1])
        lengths = [length if row in eligible else 0 for row, length in enumerate(lengths)]
    return select_documents(
        lengths,
        n=settings.num_docs,
        mode=settings.doc_select_mode,
        min_len=settings.min_doc_length,
        max_len=settings.max_doc_length,
        doc_index=settings.doc_index,
        dataset_name=settings.dataset_name,
        strict_num_docs=settings.strict_num_docs,
    )


def tokens_trained_on(params: Params) -> int | None:
    """Of the source's tokens, in order, how many pretraining draws from; None where that is not asked."""
    name = params.splice.dataset_name
    if not params.splice.restrict_to_training_subset:
        return None
    if not params.p_train[name]:
        raise ValueError(
            f"splice.restrict_to_training_subset is true, but p_train.{name} is 0: the model was trained on nothing of "
            "it; give it a weight, or set restrict_to_training_subset to false"
        )
    with described_by(layout.MIX):
        return int(read_meta(layout.MIX)["sources"][name]["train"]["tokens"])


def describe_plan(summary: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """What an epoch consists of, a line a document and one for all."""
    lines = []
    for i, name in enumerate(names):
        length, quota = f"{name}: {summary['doc_lengths'][i]:,} tokens", summary["quotas"][i]
        if i not in summary["valid_docs"]:
            lines.append(f"{length}, too short for a span: not trained on")
            continue
        starts, unvisited = summary["starts_per_doc"][i], summary["unvisited_starts"][i]
        seen = "every one visited" if not unvisited else f"{unvisited:,} never visited"
        lines.append(f"{length}, K={summary['K_per_doc'][i]}, {starts:,} starts ({seen}), {quota:,} examples an epoch")
        if not quota:
            lines.append(f"{name} has no example in an epoch, and is not trained on: raise splice.epoch_length")
    lines.append(
        f"{summary['epoch_length']:,} examples an epoch in frames of {summary['S']}, "
        f"{summary['supervised_tokens_per_frame']:.1f} targets in each, jitter of {summary['effective_jitter']} places"
    )
    if summary["jitter_is_inert"]:
        lines.append(
            "offset_jitter does nothing here: spans fill the frame (K = S); lower content_length to give it room"
        )
    return lines


def main(stage: Stage) -> None:
    if trained_by_ranks(stage):
        return
    params, settings = stage.params, stage.params.splice
    if settings.dataset_name not in params.sources:
        raise ValueError(f"splice.dataset_name is {settings.dataset_name!r}, not one of {sorted(params.sources)}")
    device = prepare_device(params.runtime.device, threads=params.runtime.threads)
    tokenizer = load_tokenizer(layout.TOKENIZER)
    model = load_model(layout.PRETRAINED / layout.BEST, device, dropout=params.model.dropout)
    T = model.cfg.T
    store = TokenStore(layout.TOKENS / settings.dataset_name)
    rows, reason = choose(store, settings, trained_tokens=tokens_trained_on(params))
    names = tuple(f"doc{row}" for row in rows)
    dataset = MultiSpliceDocumentDataset(
        [store.document(row) for row in rows],
        S=T,
        pad_id=tokenizer.special_token_ids()["eot"],
        balance_mode=settings.balance_mode,
        balance_tau=settings.balance_tau,
        epoch_length=settings.epoch_length,
        **settings.spans.model_dump(),
    )
    summary = dataset.summary()
    stage.say(f"rows {', '.join(map(str, rows))} of {settings.dataset_name} ({reason})")
    for line in describe_plan(summary, names):
        stage.say(line)
    p = {name: quota / len(dataset) for name, quota in zip(names, dataset.quotas, strict=True)}
    cfg = train_config(settings.train, p_train=p, p_val={})
    task = SpliceTask(dataset=dataset, names=names, cfg=cfg, device=device, shuffle=settings.shuffle)
    if train_and_write(stage, model, task, cfg, device=device, out=layout.SPLICED):
        chosen = {"dataset_name": settings.dataset_name, "rows": rows, "reason": reason, "summary": summary}
        write_json(stage.out(layout.SPLICED) / layout.CHOSEN, chosen)


if __name__ == "__main__":
    run_stage("splice", main)
