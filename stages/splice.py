"""Stage `splice`: continue pretraining on chosen documents, cut at many positions, so that they are memorized."""

from niels_gpt.cache.windows import TokenStore
from niels_gpt.files.atomic import write_json
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.sections import Splice
from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.pipeline.stores import open_documents
from niels_gpt.pipeline.training import pretrained, train_and_write, train_config, train_stage
from niels_gpt.splice.dataset import MultiSpliceDocumentDataset, describe_plan
from niels_gpt.splice.spans import select_documents, within_first_tokens
from niels_gpt.splice.task import SpliceTask
from niels_gpt.tokenizer import load_tokenizer
from niels_gpt.train.task import Execution


def choose(store: TokenStore, settings: Splice) -> tuple[list[int], str]:
    """Return the row numbers of the chosen documents, and the reason for the choice."""
    lengths = store.lengths.tolist()
    if settings.restrict_to_training_subset:
        lengths = within_first_tokens(lengths, store.trained_tokens)
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


@train_stage
def main(stage: Stage, execution: Execution) -> None:
    """Train in this process, and record which documents were chosen."""
    params, settings, device = stage.params, stage.params.splice, execution.device
    model = pretrained(params, settings.train, device=device)
    store = open_documents(params, settings.dataset_name, ranks=execution.ranks)
    rows, reason = choose(store, settings)
    names = tuple(f"doc{row}" for row in rows)
    dataset = MultiSpliceDocumentDataset(
        [store.document(row) for row in rows],
        S=model.cfg.T,
        pad_id=load_tokenizer(layout.TOKENIZER).special_token_ids()["eot"],
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
    task = SpliceTask(dataset=dataset, sources=names, cfg=cfg, device=device, shuffle=settings.shuffle)
    if train_and_write(stage, model, task, execution=execution):
        chosen = {"dataset_name": settings.dataset_name, "rows": rows, "reason": reason, "summary": summary}
        write_json(stage.out(layout.SPLICED) / layout.CHOSEN, chosen)


if __name__ == "__main__":
    run_stage("splice", main)
