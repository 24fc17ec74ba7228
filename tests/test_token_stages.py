"""Tests of the stages `tokenize` and `cache`, run on outputs of `load`, `split` and `tokenizer`."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_gpt.cache.meta import read_meta, sha256_file
from niels_gpt.cache.pretrain_dataset import PretrainTokenStreamDataset
from niels_gpt.cache.sft_dataset import open_chats
from niels_gpt.cache.windows import Places, open_mix
from niels_gpt.chat_template import format_chat
from niels_gpt.data.types import Chat, Document
from niels_gpt.files.atomic import publish
from niels_gpt.pipeline.params import Params, parse_params
from niels_gpt.pipeline.stage import Inputs, Stage
from niels_gpt.tokenizer.tokenizers import write_tokenizer
from stages import cache as cache_stage
from stages import split as split_stage
from stages import tokenize
from tests.conftest import ROOT, with_values
from tests.in_process import no_duplicates, write_source
from tests.token_caches import TOK, chats, documents_of

TEXTS = [f"document {i} " * (1 + i % 4) for i in range(20)]
PART_ROWS = 8  # makes three parts; the last has no validation rows
TRAIN, VAL = [i for i in range(20) if i % 5], list(range(0, 20, 5))
# Rows 3 and 5 have no answer within T = 24.
EXCHANGES = [
    [{"role": "user", "content": "q" * (40 if i in (3, 5) else 3)}, {"role": "assistant", "content": f"answer {i}"}]
    for i in range(20)
]
SEEDS_META = "dataset_name dataset_config split_rule seed token_dtype tokenizer_sha256 vocab_size special_token_ids"


@cache
def parameters(**values: object) -> Params:
    """Return the sample's parameters with some values changed; every source uses its own split (`by: given`)."""
    small = {
        "model.T": 24,
        "memorize.chunk_size": 4,
        "memorize.prompt_tokens": 2,
        "leak.chunk_size": 4,
        "leak.prompt_tokens": 2,
        "runtime.workers": 1,
    }
    text = with_values((ROOT / "params.yaml").read_text(), {**small, **values})
    params = parse_params(text)[0]
    given = {"split": params.sources["wiki"].split}
    sources = {name: source.model_copy(update=given) for name, source in params.sources.items()}
    return params.model_copy(update={"sources": sources})


def run(main: Callable[[Stage], None], name: str, key: str, params: Params, *outs: str) -> None:
    stage = Stage(name=name, key=key, params=params, inputs=Inputs({}, {}))
    main(stage)
    for out in outs:
        publish(stage.out(out), Path(out))


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the outputs of the stages before these; return the working folder."""
    monkeypatch.chdir(tmp_path)
    write_tokenizer(Path("cache/tokenizer"), model=None)
    params = parameters()
    splits = ["val" if i in VAL else "train" for i in range(20)]
    for name, source in params.sources.items():
        facts = {"dataset": f"hub/{name}", "config": "c", "revision": "r"}
        if source.use == "text":
            texts = [Document(id=str(i), text=f"{name} {TEXTS[i]}", split=split) for i, split in enumerate(splits)]
            write_source(name, texts, part_rows=PART_ROWS, **facts)
        else:
            exchanges = [Chat(id=str(i), messages=EXCHANGES[i], split=split) for i, split in enumerate(splits)]
            write_source(name, exchanges, part_rows=PART_ROWS, **facts)
        no_duplicates(name, params)
        run(split_stage.main, "split", name, params, f"cache/split/{source.use}/{name}")
    return tmp_path


def tokenize_texts(params: Params, name: str) -> Path:
    run(tokenize.main, "tokenize", name, params, f"cache/tokens/text/{name}", f"cache/manifests/{name}.json")
    return Path("cache/tokens/text", name)


def documents(name: str, split: str) -> list[list[str]]:
    """Return the documents of each token file in a source's manifest."""
    parts = read_meta(f"cache/manifests/{name}.json")[split]["parts"]
    return [documents_of(Path("cache/tokens/text", name), part) for part in parts]


def by_part(name: str, numbers: list[int]) -> list[list[str]]:
    """Return the texts with these numbers, grouped by part of the source."""
    parts = [[i for i in numbers if i // PART_ROWS == part] for part in range(3)]
    return [[f"{name} {TEXTS[i]}" for i in part] for part in parts if part]


def tokenize_chats(params: Params, name: str) -> Path:
    run(tokenize.main, "tokenize", name, params, f"cache/tokens/chat/{name}", f"cache/manifests/{name}.json")
    return Path("cache/tokens/chat", name)


def test_every_row_comes_out_in_its_split_and_every_file_is_named_with_its_hash(rows: Path) -> None:
    params = parameters()
    for name in params.texts:
        out = tokenize_texts(params, name)
        for split, numbers in (("train", TRAIN), ("val", VAL)):
            assert documents(name, split) == by_part(name, numbers)  # each part of text makes one token file
            files = [part["file"] for part in read_meta(f"cache/manifests/{name}.json")[split]["parts"]]
            assert files == [f"{split}/part-{part:05d}.bin" for part in sorted({i // PART_ROWS for i in numbers})]
        meta = read_meta(out / "meta.json")
        assert {*SEEDS_META.split(), "train_tokens", "val_tokens", "shard_bytes"} <= set(meta)
        assert meta["shard_bytes"] == max(path.stat().st_size for path in out.rglob("*.bin"))
        assert (meta["dataset_name"], meta["dataset_config"], meta["dataset_revision"]) == (f"hub/{name}", "c", "r")
        assert meta["split_rule"] == "given"
        assert meta["train_tokens"] == sum(len(f"{name} {TEXTS[i]}") + 1 for i in TRAIN)
        assert str(rows) not in json.dumps(meta)
    for name in params.chats:
        tokenize_chats(params, name)
    run(cache_stage.main, "cache", "", params, "cache/mix.json", "cache/chat_mix.json")

    def named(path: Path, file: dict[str, Any]) -> Path:
        assert path.stat().st_size == file["bytes"]
        assert sha256_file(path) == file["sha256"]
        return path

    listed = {
        named(Path("cache/tokens/text", name, file["file"]), file)
        for name, source in read_meta("cache/mix.json")["sources"].items()
        for split in ("train", "val")
        for part in source[split]["parts"]
        for file in (part, part["offsets"])
    }
    assert listed == {path for path in Path("cache/tokens/text").rglob("*.*") if path.name != "meta.json"}
    chat_files = {
        named(Path(file["path"]), file)
        for source in read_meta("cache/chat_mix.json")["sources"].values()
        for file in source["files"]
    }
    assert chat_files == {path for path in Path("cache/tokens/chat").glob("*/*") if path.name != "meta.json"}
    assert set(open_mix("cache/mix.json", places=Places(Path("cache/tokens/text"))).train) == set(params.texts)
    opened = open_chats("cache/chat_mix.json", names=list(params.chats), T=24, device="cpu")
    assert {name: len(dataset) for name, dataset in opened.train.items()} == dict.fromkeys(params.chats, 15)


def test_budgets_end_at_a_documents_end_each_for_its_split(rows: Path) -> None:
    sizes = {
        split: [len(f"roam {TEXTS[i]}") + 1 for i in numbers] for split, numbers in (("train", TRAIN), ("val", VAL))
    }
    budgets = {"train": sum(sizes["train"][:4]), "val": sum(sizes["val"][:3]) - 1}  # just enough, and one token too few
    values = {f"sources.roam.budget.max_{split}_tokens": budget for split, budget in budgets.items()}
    out = tokenize_texts(parameters(**values), "roam")
    assert documents("roam", "train") == [[f"roam {TEXTS[i]}" for i in TRAIN[:4]]]
    assert documents("roam", "val") == [[f"roam {TEXTS[i]}" for i in VAL[:2]]]
    meta = read_meta(out / "meta.json")
    assert (meta["train_tokens"], meta["val_tokens"]) == (budgets["train"], sum(sizes["val"][:2]))
    for split in ("train", "val"):
        sentence = rf"no document for {split} within its budget: raise budget\.max_{split}_tokens"
        with pytest.raises(ValueError, match=sentence):
            tokenize_texts(parameters(**{f"sources.roam.budget.max_{split}_tokens": 5, "model.T": 4}), "roam")


@pytest.mark.parametrize("budget", [None, 100])
def test_the_dataset_of_shards_reads_what_the_stage_wrote_up_to_its_budget(rows: Path, budget: int | None) -> None:
    params = parameters(**{f"sources.roam.budget.max_{split}_tokens": budget for split in ("train", "val")})
    out, mixed = tokenize_texts(params, "roam"), read_meta("cache/manifests/roam.json")
    for split in ("train", "val"):
        dataset = PretrainTokenStreamDataset(out / split, T=8, device="cpu")
        x, y = dataset.get_batch(B=5000, generator=torch.Generator().manual_seed(0))
        expected: set[tuple[int, ...]] = set()
        for part in mixed[split]["parts"]:
            ids = np.fromfile(out / part["file"], "<u2")[: part["tokens"]].tolist()
            expected |= {tuple(ids[i : i + 9]) for i in range(len(ids) - 8)}
        assert set(map(tuple, torch.cat((x, y[:, -1:]), dim=1).tolist())) == expected


def test_chats_without_an_answer_within_the_context_are_encoded_and_left_out_by_the_dataset(rows: Path) -> None:
    """They are encoded, too, so that another model.T needs no new encoding."""
    params = parameters()
    for name, source in params.sources.items():
        (tokenize_chats if source.use == "chat" else tokenize_texts)(params, name)
    out = Path("cache/tokens/chat/dolly15k")
    assert chats(out, "train") == [format_chat(TOK, EXCHANGES[i]) for i in TRAIN]
    assert chats(out, "val") == [format_chat(TOK, EXCHANGES[i]) for i in VAL]
    run(cache_stage.main, "cache", "", params, "cache/mix.json", "cache/chat_mix.json")
    for T, without in ((24, {3, 5}), (64, set())):
        opened = open_chats("cache/chat_mix.json", names=["dolly15k"], T=T, device="cpu")
        for dataset, numbers in ((opened.train["dolly15k"], TRAIN), (opened.val["dolly15k"], VAL)):
            whole = [format_chat(TOK, EXCHANGES[i]) for i in numbers if i not in without]
            assert [dataset.whole(row).tolist() for row in range(len(dataset))] == whole
    with pytest.raises(ValueError, match=r"dolly15k: no chat for train has an answer within model\.T = 4 tokens"):
        open_chats("cache/chat_mix.json", names=["dolly15k"], T=4, device="cpu")


def test_a_budget_ends_before_the_first_chat_that_exceeds_it(rows: Path) -> None:
    sizes = [len(format_chat(TOK, EXCHANGES[i])) for i in TRAIN]
    for budget, count in ((sum(sizes[:4]), 4), (sum(sizes[:4]) - 1, 3)):
        out = tokenize_chats(parameters(**{"sources.dolly15k.budget.max_train_tokens": budget}), "dolly15k")
        assert chats(out, "train") == [format_chat(TOK, EXCHANGES[i]) for i in TRAIN[:count]]
    assert chats(out, "val") == [format_chat(TOK, EXCHANGES[i]) for i in VAL]
    with pytest.raises(ValueError, match=r"no chat for train has an answer within its budget: add chats, or raise"):
        tokenize_chats(parameters(**{"sources.dolly15k.budget.max_train_tokens": 1}), "dolly15k")


def test_chats_without_an_answer_are_dropped_and_counted(rows: Path) -> None:
    silent = [{"role": "user", "content": "hm"}]
    exchanges = [
        Chat(id=str(i), messages=silent if i in (3, 5) else EXCHANGES[i], split="val" if i in VAL else "train")
        for i in range(20)
    ]
    params = parameters()
    write_source("dolly15k", exchanges, dataset="hub/dolly15k", config="c", revision="r")
    no_duplicates("dolly15k", params)
    run(split_stage.main, "split", "dolly15k", params, "cache/split/chat/dolly15k")
    out = tokenize_chats(params, "dolly15k")
    meta = read_meta(out / "meta.json")
    assert set(SEEDS_META.split()) <= set(meta)
    counts = [meta[f"{split}_{what}"] for split in ("train", "val") for what in ("examples", "dropped")]
    assert counts == [15, 1, 3, 1]


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("cache/raw/roam/manifest.json", "{", "is not valid JSON"),
        ("cache/raw/roam/manifest.json", "{}", "lacks name, parts"),
        ("cache/split/text/roam/split.json", "[]", "holds no JSON object"),
        ("cache/tokenizer/tokenizer.json", '{"kind": "byte"}', "is not the tokenizer that"),
        ("cache/tokenizer/meta.json", '{"kind"', "is not valid JSON"),
    ],
)
def test_a_damaged_input_is_named(rows: Path, file: str, text: str, sentence: str) -> None:
    Path(file).write_text(text)
    with pytest.raises(ValueError, match=sentence) as error:
        tokenize_texts(parameters(), "roam")
    assert file in str(error.value)


def test_a_damaged_token_file_or_manifest_is_named(rows: Path) -> None:
    params = parameters()
    for name in params.texts:
        tokenize_texts(params, name)
    for name in params.chats:
        tokenize_chats(params, name)
    run(cache_stage.main, "cache", "", params, "cache/mix.json", "cache/chat_mix.json")
    whole = Path("cache/manifests/roam.json").read_bytes()
    for data, sentence in ((b"{", "is not valid JSON"), (b'{"train": {}}', "lacks tokenizer_sha256")):
        Path("cache/manifests/roam.json").write_bytes(data)
        with pytest.raises(ValueError, match=sentence) as error:
            run(cache_stage.main, "cache", "", params)
        assert "cache/manifests/roam.json" in str(error.value)
    Path("cache/manifests/roam.json").write_bytes(whole)
    Path("cache/tokens/text/roam/val/part-00001.bin").write_bytes(b"odd")
    with pytest.raises(ValueError, match=r"cache/tokens/text/roam/val/part-00001\.bin \(changed\)"):
        open_mix("cache/mix.json", places=Places(Path("cache/tokens/text")))
