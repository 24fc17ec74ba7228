"""In-process tests of train, sft, curves and eval on hand-made caches: what they start from, write and measure."""

import json
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from niels_gpt.cache import windows
from niels_gpt.cache.formats import write_token_file
from niels_gpt.cache.sft_dataset import open_chats
from niels_gpt.cache.token_parts import describe_tokenizer, write_sft_files
from niels_gpt.cache.windows import Places, open_mix
from niels_gpt.chat_format import chat_key
from niels_gpt.chat_template import format_chat
from niels_gpt.checkpoint import load_checkpoint, load_model, save_checkpoint
from niels_gpt.config import Renderer, to_dict
from niels_gpt.duplicates.quoted import quoted_chats, quoted_stream
from niels_gpt.eval.card import measure_card
from niels_gpt.eval.chats import score_chats
from niels_gpt.eval.generations import generate_reply, held_out_replies, known_words
from niels_gpt.eval.held_out import evaluate, score_stream
from niels_gpt.files import checks
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import Damaged, list_files, sha256_file
from niels_gpt.files.ranks import Ranks
from niels_gpt.generate import generate
from niels_gpt.inference.sampling import Sampling
from niels_gpt.leak.measure import make_canaries, planted_texts
from niels_gpt.model.gpt import GPT
from niels_gpt.pipeline import hosts, private_text, training
from niels_gpt.pipeline.code import code_of
from niels_gpt.pipeline.layout import EVALUATED
from niels_gpt.pipeline.params import Params, parse_params
from niels_gpt.pipeline.results import read_metrics
from niels_gpt.pipeline.stage import Inputs, Stage
from niels_gpt.report.history import History
from niels_gpt.report.tables import read_tsv
from niels_gpt.rng import derive_seed, make_generator
from niels_gpt.tokenizer.tokenizers import ByteTokenizer
from niels_gpt.train import task as memory
from niels_gpt.train.chats import ChatTask
from niels_gpt.train.pretraining import PretrainTask
from niels_gpt.train.state import RunFolder, RunState
from niels_gpt.train.task import Execution
from stages import cache as cache_stage
from stages import curves, leak, memorize, sft, splice, tokenizer, train
from stages import eval as eval_stage
from tests.conftest import ROOT, TINY, with_values
from tests.in_process import own_signals

# Trained on lower-case letters only, a model gets worse at digits and capitals: the best validation is the first.
TEXTS = {"wiki": "abcdefgh", "roam": "STUVWXYZ", "primer": "01234567"}
CHATS = {"dolly15k": "yes", "oasst1": "%%", "dialogues": "&&"}
QUOTED = {"wiki": {"part-00000/1": [[2, 7]], "part-00000/4": [[0, 9]]}, "dolly15k": {chat_key("?yes"): [[1, 3]]}}
VALUES: dict[str, object] = {
    **TINY,
    "p_train.wiki": 1.0,
    "p_train.roam": 0.0,
    "p_train.primer": 0.0,
    "p_val.wiki": 0.0,
    "p_val.roam": 3.0,
    "p_val.primer": 1.0,
    "p_sft.dolly15k": 0.7,
    "p_sft.oasst1": 0.1,
    "p_sft.dialogues": 0.2,
    "train.total_steps": 12,
    "train.eval_every": 4,
    "train.base_lr": 0.02,
    "train.average": 0.0,
    "sft.replay": 0.0,
    "sft.total_steps": 1,
    "sft.warmup_steps": 1,  # the only step then has a learning rate of 0
    "eval.max_new_tokens": 2,
}
VOCABULARY = ByteTokenizer()
PLACES = Places(Path("cache/tokens/text"))


def parameters(**changes: object) -> Params:
    """Return the parameters with `changes` by dotted name, with __ for the dot."""
    values = {**VALUES, **{name.replace("__", "."): value for name, value in changes.items()}}
    return parse_params(with_values((ROOT / "params.yaml").read_text(), values))[0]


def run_here(main: Callable[[Stage], None], name: str, params: Params, *, key: str = "") -> None:
    """Run a stage as under DVC, but in this process and in the current folder."""
    declared = Inputs(params={"stage": name, **json.loads(params.model_dump_json())}, deps={})
    stage = Stage(name=name, key=key, params=params, inputs=declared)
    main(stage)
    stage.publishing.close()


def write_texts(name: str, letters: str) -> None:
    """Write cache/tokens/text/NAME, documents of a few letters that each end with the eot token, and its manifest."""
    folder, dice = Path("cache/tokens/text", name), np.random.default_rng(len(letters))

    def described(file: str) -> dict[str, Any]:
        return {"file": file, "bytes": (folder / file).stat().st_size, "sha256": sha256_file(folder / file)}

    manifest: dict[str, Any] = {**describe_tokenizer(VOCABULARY), "tokenizer_sha256": "0"}
    for split in ("train", "val"):
        (folder / split).mkdir(parents=True)
        documents = [
            np.append(np.frombuffer("".join(dice.choice(list(letters), 9)).encode(), np.uint8), 259) for _ in range(30)
        ]
        ids, idx = f"{split}/part-00000.bin", f"{split}/part-00000.idx.npy"
        count, tokens = write_token_file(folder / ids, folder / idx, documents)
        part = {**described(ids), "documents": count, "tokens": tokens, "offsets": described(idx)}
        manifest[split] = {"tokens": tokens, "parts": [part]}
    write_json(Path("cache/manifests", f"{name}.json"), manifest)


RENDERERS: dict[str, Renderer] = {"pretrain": "transcript", "sft": "chat_tokens"}


def write_chats(name: str, answer: str) -> None:
    folder = Path("cache/tokens/chat", name)
    folder.mkdir(parents=True)
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]
    ids = np.array(format_chat(VOCABULARY, turns), dtype="<u2")
    splits = {"train": [ids] * 6, "val": [ids] * 3}
    write_sft_files(folder, splits, tokenizer=VOCABULARY, T=32)
    manifest = {
        **describe_tokenizer(VOCABULARY),
        "tokenizer_sha256": "0",
        "folder": str(folder),
        "files": list_files(folder, "*_*.*", published=str(folder)),
    }
    write_json(Path("cache/manifests", f"{name}.json"), manifest)


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make caches and train models on them; return their folder."""
    path = tmp_path_factory.mktemp("layout")
    params = parameters()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.delenv("DVC_ROOT", raising=False)
        run_here(tokenizer.main, "tokenizer", params)
        for name, letters in TEXTS.items():
            write_texts(name, letters)
        for name, answer in CHATS.items():
            write_chats(name, answer)
        run_here(cache_stage.main, "cache", params)
        with own_signals():
            run_training_stages(params)
        write_json(Path("metrics/data.json"), {})
        write_json(Path("cache/quotes.json"), {name: QUOTED.get(name, {}) for name in (*TEXTS, *CHATS)})
        write_json(Path("metrics/leak.json"), {"sources": {}, "canaries": None})
    return path


def run_training_stages(params: Params) -> None:
    for name, main in (("train", train.main), ("sft", sft.main)):
        run_here(main, name, params)
    run_here(curves.main, "curves", params)


@pytest.fixture
def here(layout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change into a copy of the layout, and yield its path."""
    shutil.copytree(layout, tmp_path / "layout")
    monkeypatch.chdir(tmp_path / "layout")
    monkeypatch.delenv("DVC_ROOT", raising=False)
    with own_signals():
        yield tmp_path / "layout"


def weights(path: str) -> dict[str, torch.Tensor]:
    return load_checkpoint(path, "cpu")[1]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[key], b[key]) for key in a)


def validation(model_path: str, params: Params, *, documents: bool = False) -> dict[str, float]:
    """Return the validation losses that `train` must have measured with these weights."""
    held_out = open_mix("cache/mix.json", places=PLACES, documents=documents).val
    losses = evaluate(
        load_model(model_path, "cpu"),
        {name: held_out[name] for name in ("primer", "roam")},
        eval_steps=params.train.eval_steps,
        B=params.train.B,
        T=params.model.T,
        device="cpu",
        generator=make_generator(derive_seed(params.train.seed, "validation")),
    )
    return {**losses, "val_loss": 0.75 * losses["roam"] + 0.25 * losses["primer"]}


def test_best_and_last_are_the_models_of_those_steps(here: Path) -> None:
    params, rows = parameters(), read_tsv(Path("metrics/train_val.tsv"))
    assert [row["step"] for row in rows] == [4, 8, 12]
    assert rows[0]["val_loss"] < rows[1]["val_loss"] < rows[2]["val_loss"]
    for file, step, row in (("best", 4, rows[0]), ("last", 12, rows[2])):
        path = f"models/pretrain/{file}.pt"
        assert load_checkpoint(path, "cpu")[3] == step
        measured = validation(path, params)
        assert {name: row[name] for name in measured} == pytest.approx(measured, rel=1e-4)
    summary = read_metrics(Path("metrics/train.json"))
    assert (summary["best_step"], summary["best_val_loss"]) == (4, pytest.approx(rows[0]["val_loss"]))
    assert summary["val_loss"] == pytest.approx(rows[2]["val_loss"])
    assert list(summary["mix"]) == ["wiki"]
    assert abs(rows[2]["roam"] - rows[2]["primer"]) > 1e-3


@pytest.mark.slow
def test_pretraining_runs_no_code_of_chats_or_of_pages() -> None:
    """An edit of a chat template or of a report must not train a model again."""
    code = {stage: set(code_of(stage, ROOT)) for stage in ("train", "sft", "splice")}
    foreign = {f"niels_gpt/{name}.py" for name in FOREIGN}
    assert all((ROOT / file).is_file() for file in foreign)
    assert not (code["train"] | code["splice"]) & foreign
    shown = {file for files in code.values() for file in files if file.startswith(SHOWN)}
    assert shown == {"niels_gpt/report/history.py"}  # writes the history that they read


SHOWN = ("niels_gpt/report/", "niels_gpt/talk/")
FOREIGN = (
    "chat_format",
    "chat_template",
    "cache/sft_dataset",
    "eval/chats",
    "train/chats",
)


@pytest.mark.slow
def test_a_history_reads_back_as_it_was_written_and_a_damaged_one_is_named(here: Path) -> None:
    path = Path("models/pretrain/history.json")
    history = History.read(path)
    assert (len(history.losses), history.T, history.best_step) == (12, 32, 4)
    assert [list(row) for row in history.validations] == [["step", "val_loss", "primer", "roam"]] * 3
    history.write(Path("again.json"))
    assert Path("again.json").read_bytes() == path.read_bytes()
    for damage in (b"", b"[]", b"{}", b"\xff", path.read_bytes()[:-9], path.read_bytes().replace(b'"B"', b'"b"')):
        path.write_bytes(damage)
        with pytest.raises(Damaged, match=r"models/pretrain/history\.json is not the history of a run"):
            run_here(curves.main, "curves", parameters())


def test_fine_tuning_starts_from_the_best_model(here: Path) -> None:
    """Its one step has a learning rate of 0, so that it ends with the weights it began with."""
    start = weights("models/sft/last.pt")
    assert same(start, weights("models/pretrain/best.pt"))
    assert not same(start, weights("models/pretrain/last.pt"))


def test_fine_tuning_validates_by_p_sft_and_shows_the_text_by_p_vals_sources(here: Path) -> None:
    run_here(lambda stage: curves.write_curves(stage, "sft"), "eval", parameters())  # as the eval stage does
    (row,) = read_tsv(Path("metrics/sft_val.tsv"))
    assert set(row) == {"step", "val_loss", *CHATS, "roam", "primer"}
    mixed = 0.7 * row["dolly15k"] + 0.1 * row["oasst1"] + 0.2 * row["dialogues"]
    assert row["val_loss"] == pytest.approx(mixed)
    assert abs(row["dolly15k"] - row["oasst1"]) > 1e-3
    text = validation("models/pretrain/best.pt", parameters(train__eval_steps=2, train__B=4))
    assert {name: row[name] for name in ("roam", "primer")} == pytest.approx(
        {name: text[name] for name in ("roam", "primer")}, rel=1e-4
    )


@pytest.mark.slow
def test_fine_tuning_replays_pretraining_text_in_its_share_of_the_rows(here: Path) -> None:
    run_here(train.main, "train", parameters())
    run_here(sft.main, "sft", parameters(sft__replay=0.5, sft__B=4, sft__total_steps=3))
    drawn = History.read(Path("models/sft/history.json")).drawn_rows
    assert drawn["wiki"] == 2 * 3
    assert sum(drawn.values()) == 4 * 3


@pytest.mark.slow
def test_a_teacher_is_trained_once_and_the_model_learns_from_it(here: Path) -> None:
    run_here(train.main, "train", parameters())
    plain = load_model("models/pretrain/best.pt", "cpu").state_dict()
    taught = parameters(train__teacher=0.5)
    for _ in range(2):
        run_here(train.main, "train", taught)
        assert len(list(Path("checkpoints").glob("*-teacher"))) == 1
    weights = load_model("models/pretrain/best.pt", "cpu").state_dict()
    assert not torch.equal(weights["tok_emb.weight"], plain["tok_emb.weight"])
    logged = [json.loads(line) for line in Path("logs/teacher.jsonl").read_text().splitlines()]
    assert max(line["step"] for line in logged) == 12
    assert len({line["run"] for line in logged}) == 1


def test_a_model_folder_names_its_chat_renderer(here: Path) -> None:
    for name, renderer in (("pretrain", "transcript"), ("sft", "chat_tokens")):
        config = json.loads(Path(f"models/{name}/config.json").read_text())
        assert (config["renderer"], config["V"], config["T"]) == (renderer, 260, 32)


@pytest.mark.slow
def test_a_copy_of_the_run_has_canaries_and_nothing_else_has(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[PretrainTask] = []
    beside = private_text.train_beside

    def noted(stage: Stage, task: PretrainTask, *rest: Any, **more: Any) -> GPT:
        trained.append(task)
        return beside(stage, task, *rest, **more)

    monkeypatch.setattr(private_text, "train_beside", noted)
    params = parameters(p_train__roam=2.0, p_train__wiki=1.0, leak__canaries=3)
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    stage = Stage("leak", "", params, Inputs(params={"of": "leak"}, deps={}))
    found = private_text.measure_planted_run(stage)
    assert (found["source"], list(found["by_copies"])) == ("roam", ["1", "4", "16"])
    own, mix = trained[0].train, open_mix("cache/mix.json", places=PLACES).train
    sentences = planted_texts(make_canaries(3, seed=params.leak.seed))
    assert len(own["roam"]) == len(mix["roam"]) + sum(len(sentence) + 1 for sentence in sentences)  # one token per byte
    assert len(own["wiki"]) == len(mix["wiki"])
    for act in stage.on_success:
        act()
    after = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    assert {path: after[path] for path in before} == before
    for secret in {sentence.split()[-1] for sentence in sentences}:
        ids = np.frombuffer(secret.encode(), np.uint8).astype("<u2").tobytes()
        assert not [path for path, data in after.items() if secret.encode() in data or ids in data]
    assert not list(here.glob("checkpoints/canaries-*"))


def test_canaries_are_planted_in_private_text_alone(here: Path) -> None:
    stage = Stage("leak", "", parameters(leak__canaries=3), Inputs(params={"of": "leak"}, deps={}))
    with pytest.raises(ValueError, match=r"leak\.canaries: no source with a weight in p_train is private"):
        private_text.measure_planted_run(stage)


@pytest.mark.slow
@pytest.mark.parametrize("mask", [False, True])
def test_a_mask_of_documents_reaches_training_fine_tuning_and_every_score(here: Path, mask: bool) -> None:
    params = parameters(train__document_mask=mask, train__total_steps=1, train__warmup_steps=1, train__eval_every=1)
    run_training_stages(params)
    run_here(eval_stage.main, "eval", params)
    measured = {documents: validation("models/pretrain/last.pt", params, documents=documents) for documents in (0, 1)}
    assert abs(measured[0]["roam"] - measured[1]["roam"]) > 1e-5
    (trained_row,), (tuned_row,) = (read_tsv(Path(f"metrics/{name}_val.tsv")) for name in ("train", "sft"))
    assert trained_row["roam"] == pytest.approx(measured[mask]["roam"], rel=1e-6)
    fewer = parameters(train__eval_steps=2, train__B=4)
    assert tuned_row["roam"] == pytest.approx(validation("models/sft/last.pt", fewer, documents=mask)["roam"], rel=1e-6)
    scores = read_metrics(Path("metrics/eval.json"))
    for documents in (False, True):
        held_out = open_mix("cache/mix.json", places=PLACES, documents=documents)
        for model in ("pretrain", "sft"):
            score = score_stream(
                load_model(f"models/{model}/best.pt", "cpu"),
                held_out.val["roam"],
                token_bytes=VOCABULARY.token_bytes(),
                T=32,
                B=params.eval.B,
                device="cpu",
                max_tokens=params.eval.max_tokens,
            )
            expected = score.stats({})
            close = scores[model][held_out.val_names["roam"]] == pytest.approx(expected, rel=1e-6)
            assert close == (documents == mask), (model, documents)


@pytest.mark.slow
def test_training_is_masked_when_it_is_asked_for(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    real = PretrainTask.batch

    def noted(self: PretrainTask, n: int, rows: slice):  # type: ignore[no-untyped-def]
        batch = real(self, n, rows)
        seen.append("segment_ids" in batch.tensors and bool(batch.tensors["segment_ids"].any()))
        return batch

    monkeypatch.setattr(PretrainTask, "batch", noted)
    for mask in (False, True):
        run_here(
            train.main, "train", parameters(train__document_mask=mask, train__total_steps=1, train__warmup_steps=1)
        )
    assert seen == [False, True]


@pytest.mark.slow
def test_eval_scores_both_models_on_all_there_is_and_writes_what_they_say(here: Path) -> None:
    params = parameters()
    tuned, last = load_model("models/sft/best.pt", "cpu"), Path("models/sft/last.pt").read_bytes()
    with torch.no_grad():
        tuned.tok_emb.weight.mul_(3)
    save_checkpoint("models/sft/best.pt", tuned, None, 1, to_dict(tuned.cfg))
    assert Path("models/sft/last.pt").read_bytes() == last
    run_here(eval_stage.main, "eval", params)
    scores = read_metrics(Path("metrics/eval.json"))
    held_out = open_mix("cache/mix.json", places=PLACES)
    chats = open_chats("cache/chat_mix.json", names=list(CHATS), T=32, device="cpu")
    text_names, chat_names = set(held_out.val_names.values()), set(chats.val_names.values())
    assert set(scores["pretrain"]) == text_names
    assert set(scores["sft"]) == text_names | chat_names
    how = {"token_bytes": VOCABULARY.token_bytes(), "B": params.eval.B}
    for model, stage in ((load_model("models/pretrain/best.pt", "cpu"), "pretrain"), (tuned, "sft")):
        for name, stream in held_out.val.items():
            quoted, counts = quoted_stream(stream, QUOTED.get(name, {}), VOCABULARY)
            score = score_stream(
                model, stream, T=32, device="cpu", max_tokens=params.eval.max_tokens, quoted=quoted, **how
            )
            expected = score.stats(counts)
            assert scores[stage][held_out.val_names[name]] == pytest.approx(expected, rel=1e-6)
    for name, examples in chats.val.items():
        marks, counts = quoted_chats(examples, QUOTED.get(name, {}), VOCABULARY)
        told = score_chats(tuned, examples, max_tokens=params.eval.max_tokens, quoted=marks, **how)
        assert scores["sft"][chats.val_names[name]] == pytest.approx(told.stats(counts), rel=1e-6)
    quoted_scores = [
        scores["sft"][names[name]] for names, name in ((held_out.val_names, "wiki"), (chats.val_names, "dolly15k"))
    ]
    assert [(score["quoted_tokens"], score["quotes"], score["quoted_documents"]) for score in quoted_scores] == [
        (14, 2, 2),
        (6, 3, 3),
    ]
    replies = held_out_replies(chats.val, VOCABULARY, weights=params.p_sft, at_most=64)
    read = known_words((stream.arrays for stream in held_out.train.values()), VOCABULARY)
    taught = known_words(([of.whole(row) for row in range(len(of))] for of in chats.train.values()), VOCABULARY)
    assert not taught <= read
    known = {"pretrain": read, "sft": read | taught}
    models = {"pretrain": load_model("models/pretrain/best.pt", "cpu"), "sft": tuned}
    for name, renderer in RENDERERS.items():
        asked: dict[str, Any] = {"known": known[name], "replies": replies, "T": 32, "B": params.eval.B}
        card = measure_card(models[name], VOCABULARY, renderer=renderer, **asked)
        assert scores["card"][name] == pytest.approx({key: it.value for key, it in card.items()}, rel=1e-5)
    rows = json.loads(EVALUATED.read_text())["card"]
    assert any(f"{scores['card']['sft']['spelling']:.3f} ± 0.0" in cell for row in rows for cell in row)
    page = Path("metrics/samples.md").read_text()
    prompt, question, settings = params.eval.prompts[0], params.eval.questions[0], params.eval
    written = generate(
        load_model("models/pretrain/best.pt", "cpu"),
        prompt,
        max_new_tokens=2,
        temperature=settings.temperature,
        top_k=settings.top_k,
        tokenizer=VOCABULARY,
        generator=make_generator(derive_seed(settings.seed, "sample", 0)),
    )
    said = generate_reply(
        tuned,
        [{"role": "user", "content": question}],
        VOCABULARY,
        max_new_tokens=2,
        sampling=Sampling(settings.temperature, settings.top_k),
        generator=make_generator(derive_seed(settings.seed, "reply", 0)),
    )
    for text in (prompt, question, written.strip(), said.strip()):
        assert all(line.strip() in page for line in text.splitlines())


@pytest.mark.slow
def test_a_stopped_stage_publishes_nothing_says_how_to_go_on_and_goes_on(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = {path.name: path.read_bytes() for path in Path("models/pretrain").iterdir()}
    shutil.rmtree("checkpoints")
    shutil.rmtree("models")
    real, signals = PretrainTask.batch, {7: signal.SIGTERM}

    def batch(self: PretrainTask, n: int, rows: slice):  # type: ignore[no-untyped-def]
        if n in signals:
            signal.raise_signal(signals.pop(n))
        return real(self, n, rows)

    monkeypatch.setattr(PretrainTask, "batch", batch)
    with pytest.raises(SystemExit) as leaving:
        run_here(train.main, "train", parameters())
    assert leaving.value.code == 130
    assert "train: stopped and saved after step 8 of 12; `dvc repro` resumes from there" in capsys.readouterr().out
    assert not Path("models/pretrain").exists()
    run_here(train.main, "train", parameters())
    assert "resuming after step 8" in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in Path("models/pretrain").iterdir()} == whole


@dataclass(frozen=True)
class Deaf(Ranks):
    """One of two ranks, which gets its own value in place of the other's."""

    def exchange(self, value):  # type: ignore[no-untyped-def]
        return [value, value]


def run_to_success(params: Params) -> None:
    """Run `train` as under DVC, up to where DVC records the result."""
    declared = Inputs(params={"forced": True, **json.loads(params.model_dump_json())}, deps={})
    stage = Stage(name="train", key="", params=params, inputs=declared)
    train.main(stage)
    stage.publishing.close()
    for act in stage.on_success:
        act()


@pytest.mark.slow
def test_a_forced_run_trains_anew_and_one_that_was_never_recorded_does_not(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lock = (
        "schema: '2.0'\nstages:\n  train:\n    cmd: x\n    outs:\n    - {{path: models/pretrain, md5: {}, size: 1}}\n"
    )
    params, going_on = parameters(), "resuming after step 12 from"
    Path("dvc.lock").write_text(lock.format("an-older-one"))
    first = weights("models/pretrain/last.pt")
    for record, forced in (
        ("an-older-one", False),  # nothing is there yet
        ("an-older-one", False),  # DVC was killed before it wrote its record
        ("this-one", True),
        ("this-one", True),  # the same weights give the same record: forced again
    ):
        Path("dvc.lock").write_text(lock.format(record))
        there = bool(list(Path("checkpoints").glob("*/finished")))
        capfd.readouterr()
        shutil.rmtree("models/pretrain")  # as DVC does
        run_to_success(params)
        assert (going_on in capfd.readouterr().out) == (there and not forced)
        assert same(first, weights("models/pretrain/last.pt"))


def test_a_forced_run_that_is_killed_is_taken_up_where_it_was(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        folder.save(RunState(step=9, model={}, optimizer={}))
        folder.finish("before")
        folder.forget_recorded("before")
        assert folder.load() is not None
        folder.forget_recorded("recorded")
        assert folder.load() is None
        folder.save(RunState(step=4, model={}, optimizer={}))
    with folder.locked():  # after a kill
        folder.forget_recorded("recorded")
        state = folder.load()
        assert state is not None
        assert state.step == 4
        folder.finish("recorded")
        folder.forget_recorded("recorded")
        assert folder.load() is None


def test_a_training_that_cannot_fit_is_refused_before_a_batch_or_a_model_is_made(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "GPT", lambda cfg: pytest.fail("a model was built"))
    with pytest.raises(ValueError, match=r"training needs at least [\d,.]+ GiB of memory \(weights and optimizer"):
        run_here(train.main, "train", parameters(model__L=1024, model__C=65536, model__d_ff=2**18))
    monkeypatch.setattr(ChatTask, "batch", lambda *_: pytest.fail("a batch was made"))
    monkeypatch.setattr(memory, "device_memory", lambda device: 1 << 30)
    with pytest.raises(ValueError, match=r"and cpu has 1\.0 GiB: lower model\.L"):
        run_here(sft.main, "sft", parameters(sft__B=2**20))


@pytest.mark.parametrize(("stage", "files"), [(train, "mix"), (sft, "mix chat_mix"), (splice, "manifests/wiki")])
def test_ranks_of_a_stage_share_the_files_that_are_hashed(
    stage: ModuleType, files: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each listed file is hashed by one of the ranks; they run up to where they would train together."""
    hashed: list[str] = []
    real = checks.file_problem
    for module in (checks, windows):
        monkeypatch.setattr(
            module, "file_problem", lambda path, **listed: hashed.append(str(path)) or real(path, **listed)
        )
    monkeypatch.setattr(splice, "choose", lambda store, settings: ([0], "it is the first"))
    monkeypatch.setattr(splice, "describe_plan", lambda summary, names: sys.exit(0))
    for module in (train, sft):
        monkeypatch.setattr(module, "train_and_write", lambda *_, **__: sys.exit(0))
    name = stage.__name__.removeprefix("stages.")
    for rank in (0, 1):
        monkeypatch.setattr(
            training, "execution_of", lambda _, rank=rank: nullcontext(Execution(ranks=Deaf(rank, 2, rank, 2)))
        )
        with pytest.raises(SystemExit):
            run_here(stage.main, name, parameters(train__document_mask=True, splice__dataset_name="wiki"))
    listed = "".join(Path(f"cache/{file}.json").read_text() for file in files.split())
    assert len(hashed) == len(set(hashed)) == listed.count('"sha256"') > 1


def test_a_stage_starts_its_ranks_and_a_rank_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """With RANK in the environment, this process is one of the ranks that were started, and starts none."""
    started: list[list[str]] = []
    trained: list[Stage] = []
    monkeypatch.setattr(hosts.subprocess, "Popen", lambda command, **_: started.append(command) or Ended())
    monkeypatch.setattr(training, "execution_of", lambda _: nullcontext(Execution()))
    stage = Stage(name="train", key="", params=parameters(runtime__nproc=3), inputs=Inputs({}, {}))
    training.train_stage(lambda stage, _: trained.append(stage))(stage)
    assert [started[0][1:], len(started)] == [
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", "-m", "stages.train"], 1
    ]  # fmt: skip
    monkeypatch.setattr(Ended, "code", 1)
    with pytest.raises(RuntimeError, match="one of 3 processes failed"):
        training.train_stage(lambda stage, _: trained.append(stage))(stage)
    assert not trained
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(training, "end_with_parent", lambda: None)  # would kill the test process when its parent ends
    training.train_stage(lambda stage, _: trained.append(stage))(stage)
    monkeypatch.delenv("RANK")
    one = Stage(name="train", key="", params=parameters(), inputs=Inputs({}, {}))
    training.train_stage(lambda stage, _: trained.append(stage))(one)
    assert (trained, len(started)) == ([stage, one], 2)


class Ended(nullcontext):  # type: ignore[type-arg]
    code = 0

    def __enter__(self) -> "Ended":
        return self

    def wait(self) -> int:
        return self.code


@pytest.mark.parametrize(("own", "expected"), [(None, 0.2), (0.0, 0.0), (0.3, 0.3)])
def test_further_training_has_the_models_dropout_or_its_own(here: Path, own: float | None, expected: float) -> None:
    values = {"model.dropout": 0.2, "sft.dropout": own, "splice.train.dropout": own}
    params, _ = parse_params(with_values((ROOT / "params.yaml").read_text(), values))
    for settings in (params.sft, params.splice.train):
        found = training.pretrained(params, settings, device="cpu")
        assert found.cfg.dropout == expected
        assert same(found.state_dict(), weights("models/pretrain/best.pt"))


@pytest.mark.parametrize("name", ["eval", "leak", "memorize"])
def test_weights_of_another_run_are_refused_by_name(here: Path, name: str) -> None:
    main, file = {
        "eval": (eval_stage.main, "sft/best.pt"),
        "leak": (leak.main, "sft/best.pt"),
        "memorize": (memorize.main, "splice/last.pt"),
    }[name]
    shutil.copytree("models/pretrain", "models/splice", dirs_exist_ok=True)
    path, whole = Path("models", file), load_model("models/pretrain/best.pt", "cpu").cfg
    for foreign, said in (
        (replace(whole, V=whole.V - 5), "a vocabulary of 255"),
        (replace(whole, T=16), "a context of 16"),
    ):
        save_checkpoint(path, GPT(foreign), None, 1, to_dict(foreign))
        with pytest.raises(Damaged, match=rf"models/{file} has {said}, and this run has \d+: it is of another run"):
            run_here(main, name, parameters(memorize__run=True))
