"""Tests of token caches: budgets, shards, meta.json and the mix. (The seed's acceptance tests have their own files.)"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from niels_gpt.cache.build_cache import build_pretrain_cache, build_split_cache
from niels_gpt.cache.meta import describe_origin, read_meta, sha256_file
from niels_gpt.cache.windows import Places, open_mix
from niels_gpt.files.atomic import write_json
from niels_gpt.files.store import Store
from niels_gpt.pipeline.params import parse_params
from niels_gpt.pipeline.stage import Inputs, Stage
from niels_gpt.tokenizer.tokenizers import write_tokenizer
from stages import cache as cache_stage
from tests.conftest import ROOT
from tests.token_caches import TEXTS, TOK, documents, files, pretrain, tokens


def test_budgets_end_at_a_documents_end_and_fill_in_proportion(tmp_path: Path) -> None:
    out = pretrain(tmp_path / "c")
    meta = read_meta(out / "meta.json")
    assert 5000 - 110 <= meta["train_tokens"] <= 5000
    assert 500 - 110 <= meta["val_tokens"] <= 500
    assert len(tokens(out / "train")) == meta["train_tokens"]
    sizes = [p.stat().st_size for p in sorted((out / "train").glob("shard_*.bin"))]
    assert set(sizes[:-1]) == {1000}
    wanted = "dataset_name dataset_config split_rule seed token_dtype tokenizer_sha256 vocab_size special_token_ids"
    assert {*wanted.split(), "train_tokens", "val_tokens", "shard_bytes"} <= set(meta)
    assert meta["token_dtype"] == "uint16-le"
    assert str(tmp_path) not in json.dumps(meta)
    small = pretrain(tmp_path / "small", max_train_tokens=10**6, max_val_tokens=10**5)
    assert len(documents(small / "train")) + len(documents(small / "val")) == len(TEXTS)
    assert 0.05 < read_meta(small / "meta.json")["val_tokens"] / read_meta(small / "meta.json")["train_tokens"] < 0.2


def test_a_rebuild_leaves_no_stale_shard_and_a_failure_leaves_the_old_cache(tmp_path: Path) -> None:
    out = pretrain(tmp_path / "c")
    many = len(list((out / "train").glob("shard_*.bin")))
    pretrain(out, max_train_tokens=900)
    assert len(list((out / "train").glob("shard_*.bin"))) < many
    before = files(out)

    def broken():  # type: ignore[no-untyped-def]
        yield from TEXTS[:50]
        raise OSError("the line went dead")

    with pytest.raises(OSError, match="went dead"):
        build_pretrain_cache(
            broken(),
            out,
            tokenizer=TOK,
            max_train_tokens=9999,
            max_val_tokens=99,
            shard_bytes=1000,
            seed=1,
            shuffle_buffer=None,
        )
    assert files(out) == before
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_given_splits_are_kept_whole(tmp_path: Path) -> None:
    build_split_cache(
        {"train": TEXTS[:150], "val": TEXTS[150:]}, tmp_path / "c", tokenizer=TOK, shard_bytes=512, seed=None
    )
    assert documents(tmp_path / "c/train") == TEXTS[:150]
    assert documents(tmp_path / "c/val") == TEXTS[150:]


def test_meta_names_the_tokenizer_by_the_hash_of_its_file(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "t", model=None)
    expected = hashlib.sha256((tmp_path / "t/tokenizer.json").read_bytes()).hexdigest()
    assert read_meta(pretrain(tmp_path / "c") / "meta.json")["tokenizer_sha256"] == expected
    assert read_meta(tmp_path / "t/meta.json")["tokenizer_sha256"] == expected


def test_meta_says_where_the_text_came_from_and_how_it_was_split() -> None:
    facts = {"name": "web", "dataset": "hub/web", "config": "c", "revision": "r", "streaming": True}
    told = describe_origin(facts, {"by": "document", "seed": 9, "val_frac": 0.1})
    assert (told["dataset_name"], told["dataset_config"], told["dataset_revision"]) == ("hub/web", "c", "r")
    assert (told["split_rule"], told["seed"]) == ("document", 9)
    assert describe_origin({**facts, "dataset": "/home/me/web.jsonl"}, {"by": "given"})["dataset_name"] == "web.jsonl"
    told = describe_origin({**facts, "dataset": None, "config": None}, {"by": "given"})
    assert (told["dataset_name"], told["dataset_config"], told["seed"]) == ("web", None, None)


@pytest.mark.parametrize(
    ("texts", "budgets", "sentence"),
    [
        ([], (1000, 100), "notes has no document for its train split that fits a budget of 1,000 tokens"),
        (["x" * 5000] * 3, (1000, 100), "max_train_tokens"),
        (["only one"], (1000, 100), "notes has no document for its val split that fits a budget of 100 tokens"),
        (["x" * 200] * 3, (1000, 100), "max_val_tokens"),
    ],
)
def test_a_split_that_would_be_empty_is_refused(
    tmp_path: Path, texts: list[str], budgets: tuple[int, int], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        build_pretrain_cache(
            texts,
            tmp_path / "c",
            tokenizer=TOK,
            max_train_tokens=budgets[0],
            max_val_tokens=budgets[1],
            shard_bytes=1000,
            seed=1,
            shuffle_buffer=None,
            source_name="notes",
        )
    with pytest.raises(ValueError, match="notes has no text in its val split"):
        build_split_cache(
            {"train": TEXTS, "val": []}, tmp_path / "c", tokenizer=TOK, shard_bytes=1000, seed=1, source_name="notes"
        )
    assert not list(tmp_path.iterdir())


# The mix

PARAMS = parse_params((ROOT / "params.yaml").read_text())[0]


@pytest.fixture
def manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the manifests that `tokenize` makes for `cache`, of all sources of the sample; return the cache folder."""
    monkeypatch.chdir(tmp_path)
    shared = {"tokenizer_sha256": "a" * 64, "vocab_size": 260}
    for name in PARAMS.texts:
        split = {"tokens": 10, "parts": []}
        write_json(tmp_path / f"cache/manifests/{name}.json", {**shared, "train": split, "val": split})
    for name in PARAMS.chats:
        chats = {**shared, "special_token_ids": {}, "token_dtype": "uint16-le", "folder": "f", "files": []}
        write_json(tmp_path / f"cache/manifests/{name}.json", chats)
    return tmp_path / "cache"


def run_mix() -> Stage:
    stage = Stage(name="cache", key="", params=PARAMS, inputs=Inputs({}, {}))
    cache_stage.main(stage)
    return stage


def test_a_mix_names_every_source_once_and_what_they_share(manifests: Path) -> None:
    stage = run_mix()
    for name, sources in (("mix", PARAMS.texts), ("chat_mix", PARAMS.chats)):
        joined = read_meta(stage.out(f"cache/{name}.json"))
        assert (joined["tokenizer_sha256"], joined["vocab_size"]) == ("a" * 64, 260)
        assert {key: source["val_name"] for key, source in joined["sources"].items()} == {
            key: source.val_name for key, source in sources.items()
        }
        assert not any("tokenizer_sha256" in source for source in joined["sources"].values())


@pytest.mark.parametrize("names", [["wiki"], ["oasst1"], list(PARAMS.chats)])
def test_sources_of_different_tokenizers_are_not_mixed(manifests: Path, names: list[str]) -> None:
    for name in names:
        file = manifests / f"manifests/{name}.json"
        write_json(file, {**read_meta(file), "tokenizer_sha256": "b" * 64})
    with pytest.raises(ValueError, match="wiki were encoded by different tokenizers: encode them all again"):
        run_mix()


def test_a_damaged_manifest_is_named(manifests: Path) -> None:
    file = sorted((manifests / "manifests").iterdir())[-1]
    for text, sentence in (
        ('{"tokens', "is not valid JSON"),
        ("{}", "lacks tokenizer_sha256, vocab_size, train.tokens"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=sentence) as error:
            run_mix()
        assert str(file.relative_to(manifests.parent)) in str(error.value)


def test_every_bad_file_of_a_mix_is_listed_at_once(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    parts = []
    for name, ids in (("good", [1, 2, 3]), ("cut", [1, 2, 3]), ("gone", [5])):
        path = tmp_path / f"x/{name}.bin"
        np.array(ids, dtype="<u2").tofile(path)
        file = {"file": path.name, "bytes": path.stat().st_size, "sha256": sha256_file(path)}
        parts.append({**file, "tokens": len(ids), "documents": 1})
    (tmp_path / "x/gone.bin").unlink()
    (tmp_path / "x/cut.bin").write_bytes(b"\1")
    source = {"val_name": "v", "train": {"parts": parts}, "val": {"parts": []}}
    write_json(tmp_path / "mix.json", {"vocab_size": 260, "sources": {"x": source}})
    with pytest.raises(ValueError, match="differs from what the mix was made of") as error:
        open_mix(tmp_path / "mix.json", places=Places(tmp_path))
    for part in ("x/cut.bin (changed)", "x/gone.bin (missing)"):
        assert part in str(error.value)
    assert "x/good.bin" not in str(error.value)
    (tmp_path / "mix.json").write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        open_mix(tmp_path / "mix.json", places=Places(tmp_path))


def test_token_files_of_a_bucket_are_read_from_copies_and_others_where_they_are(tmp_path: Path) -> None:
    stores = {"far": Store("s3://bucket/tokens"), "near": Store(str(tmp_path / "store"))}
    places = Places(tmp_path / "beside", stores, copies=tmp_path / "copies")
    assert places.folder("own", {}) == (Store(f"{tmp_path}/beside/own"), tmp_path / "beside/own")
    assert places.folder("near", {"at": "run"}) == (Store(f"{tmp_path}/store/run"), tmp_path / "store/run")
    assert places.folder("far", {"at": "run"}) == (Store("s3://bucket/tokens/run"), tmp_path / "copies/run")
