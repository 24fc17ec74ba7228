"""splice: the pretrained model goes on, on chosen documents at many places, so that it knows them by heart."""

from __future__ import annotations

from niels_gpt.atomic import write_json
from niels_gpt.checkpoint import load_model
from niels_gpt.device import prepare_device
from niels_gpt.splice.dataset import MultiSpliceDocumentDataset
from niels_gpt.splice.documents import TokenStore
from niels_gpt.splice.selection import select_documents, training_subset
from niels_gpt.splice.task import SpliceTask
from niels_gpt.tokenizer import load_tokenizer
from stages.params import Splice
from stages.stage import Stage, run_stage
from stages.training import train_and_write, train_config, trained_by_ranks


def choose(store: TokenStore, settings: Splice, *, S: int) -> tuple[list[int], str]:
    """Rows of the store, and why these."""
    lengths = store.lengths.tolist()
    if settings.restrict_to_training_subset:
        subset = settings.training_subset.model_dump()
        eligible = set(training_subset(lengths, S=S, **subset)[1])
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


def main(stage: Stage) -> None:
    if trained_by_ranks(stage):
        return
    params, settings = stage.params, stage.params.splice
    if settings.dataset_name not in params.sources:
        raise ValueError(f"splice.dataset_name is {settings.dataset_name!r}, not one of {sorted(params.sources)}")
    device = prepare_device(params.runtime.device, threads=params.runtime.threads)
    tokenizer = load_tokenizer("cache/tokenizer")
    model = load_model("models/pretrain/best.pt", device, dropout=params.model.dropout)
    T = model.cfg.T
    store = TokenStore(f"cache/tokens/{settings.dataset_name}")
    rows, reason = choose(store, settings, S=T)
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
    lengths = ", ".join(f"row {row} of {n} tokens" for row, n in zip(rows, summary["doc_lengths"], strict=True))
    stage.say(f"{settings.dataset_name} ({reason}): {lengths}")
    stage.say(f"{len(dataset):,} examples an epoch, {summary['supervised_tokens_per_frame']:.0f} targets in each")
    if summary["jitter_is_inert"]:
        stage.say("offset_jitter does nothing here: spans fill the frame (K = S); lower content_length to give it room")
    names = tuple(f"doc{row}" for row in rows)
    p = {name: quota / len(dataset) for name, quota in zip(names, dataset.quotas, strict=True)}
    cfg = train_config(settings.train, p_train=p, p_val={})
    task = SpliceTask(dataset=dataset, names=names, cfg=cfg, device=device, shuffle=settings.shuffle)
    if train_and_write(stage, model, task, cfg, tokenizer=tokenizer, device=device, out="models/splice"):
        chosen = {"dataset_name": settings.dataset_name, "rows": rows, "reason": reason, "summary": summary}
        write_json(stage.out("models/splice") / "documents.json", chosen)


if __name__ == "__main__":
    run_stage("splice", main)
