"""Tests of stored sources: DVC keeps the manifests; the parts are in a folder or a bucket and are made once."""

import json
import re
import shutil
from pathlib import Path

import pytest

from niels_gpt.cache.windows import Places, check_files, listed_files
from niels_gpt.files.checks import read_meta
from niels_gpt.files.store import Store
from niels_gpt.pipeline.stage import sentence_with_remedy
from tests.conftest import Repo
from tests.s3 import S3

pytestmark = pytest.mark.dag

STORED: dict[str, object] = {
    "p_sft": {},
    "sft.run": False,
    "parts.text_bytes": 1000,
    "runtime.workers": 2,
    "sources.wiki.load.stored": True,
    "sources.roam.load.stored": True,
    "sources.wiki.split": {"by": "hash", "val_frac": 0.3, "seed": 3},
    "sources.roam.split": {"by": "hash", "val_frac": 0.3, "seed": 3},
}
TOKENS = "tokenize@roam"


def without_chats(repo: Repo) -> None:
    file = repo.path / "params.yaml"
    text = file.read_text()
    file.write_text(text[: text.index("  dolly15k:\n")] + text[text.index("\np_sft:") :])


def to_do(output: str) -> dict[str, tuple[int, int]]:
    """Return {stage: (parts to do, all parts)} as printed by the stages."""
    return {stage: (int(a), int(b)) for stage, a, b in re.findall(r"(\S+): (\d+) of (\d+) parts to do", output)}


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_store_outlives_kills_experiments_and_clones(fresh_repo: Repo, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    stores = {"store": str(lake / "public"), "private": str(lake / "private")}
    fresh_repo.set_all({**STORED, "runtime.stores": stores})
    without_chats(fresh_repo)
    fresh_repo.commit("stored")
    built = fresh_repo.run("dvc", "repro", TOKENS).stdout
    assert built.count(f"-> {lake}/private/") == 2
    assert built.count("(which `dvc push` does not carry)") == 3  # the third is the text of wiki
    fresh_repo.commit("built")
    whole, manifests = files(lake), files(fresh_repo.path / "cache/manifests")
    assert {"/".join(path.split("/")[:3]) for path in whole} == {
        *(f"private/{what}/roam" for what in ("texts", "tokens")),
        "public/texts/wiki",
    }
    for source in ("roam", "wiki"):
        assert not list(fresh_repo.path.glob(f"cache/*/{source}/**/part-*"))

    # A changed parameter makes a new folder; with the old value nothing runs again.
    fresh_repo.set(sources__roam__split__seed=4)
    assert "tokenize@roam" in fresh_repo.repro(TOKENS)
    assert set(whole) < set(files(lake))
    fresh_repo.run("git", "checkout", "params.yaml")
    assert fresh_repo.repro(TOKENS) == []
    assert files(fresh_repo.path / "cache/manifests") == manifests

    # After a kill, a run makes only the missing and damaged parts, and removes temporary files.
    (token_folder,) = (lake / "private/tokens/roam").glob(json.loads(manifests["roam.json"])["at"].split("/")[-1])
    records = sorted((token_folder / "done").glob("*.json"))
    assert len(records) > 2
    records[0].unlink()
    (token_folder / "train/.part-00000.bin.tmp999999999").write_bytes(b"half")
    for path in token_folder.rglob(f"{records[1].stem}.bin"):
        path.write_bytes(path.read_bytes()[:-2])
    run = fresh_repo.run("dvc", "repro", "--force", "--single-item", "tokenize@roam")
    assert to_do(run.stdout) == {"tokenize@roam": (2, len(records))}

    # An experiment in a copy of the checkout uses the same store; so does a fresh clone, which makes no part again.
    fresh_repo.run("dvc", "exp", "run", "--temp", "-S", "sources.roam.split.seed=4", TOKENS)
    clone = Repo(tmp_path / "clone")
    fresh_repo.run("git", "clone", "-q", str(fresh_repo.path), str(clone.path))
    run = clone.run("dvc", "repro", TOKENS)
    done = {stage: done for stage, (done, _) in to_do(run.stdout).items() if stage.endswith(("@roam", "@wiki"))}
    stages = {"load@roam", "load@wiki", "tokenize@roam"}
    assert done == dict.fromkeys(stages, 0)
    assert files(clone.path / "cache/manifests") == manifests
    now = files(lake)
    assert {path: now[path] for path in whole} == whole
    assert not [path for path in now if ".tmp" in path]

    # Damaged files are found, deleted and made again; folders that no manifest names can be pruned.
    victim = next(path for path in token_folder.rglob("*.bin"))
    data = bytearray(victim.read_bytes())
    data[0] ^= 1
    victim.write_bytes(data)
    found = fresh_repo.run("niels-gpt", "store", "--delete", check=False)
    assert found.returncode == 1
    assert f"{victim}: changed" in found.stdout
    assert "dvc repro --force --single-item tokenize@roam" in found.stderr
    run = fresh_repo.run("dvc", "repro", "--force", "--single-item", "tokenize@roam")
    assert to_do(run.stdout) == {"tokenize@roam": (1, len(records))}
    assert "match their manifests" in fresh_repo.run("niels-gpt", "store").stdout

    stale = lake / "public/tokens/wiki/0123"
    shutil.copytree(token_folder, stale)
    assert str(stale) in fresh_repo.run("niels-gpt", "store", "--prune").stdout
    assert stale.is_dir()
    fresh_repo.run("niels-gpt", "store", "--prune", "--delete")
    assert not stale.exists()
    assert set(files(lake)) >= set(whole)


def test_each_stage_reads_each_part_in_a_bucket_once_and_dvc_never_does(
    fresh_repo: Repo, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every part of text is read twice: to find duplicates, and to encode it."""
    stores = {"store": "s3://public/lake", "private": "s3://private/lake"}
    fresh_repo.set_all({**STORED, "runtime.stores": stores})
    without_chats(fresh_repo)
    fresh_repo.run("dvc", "repro", "tokenize@wiki", TOKENS)
    read = sorted(path for kind, path in s3.requests() if kind == "GET" and path.endswith(".parquet"))
    public, private = s3.objects("public"), s3.objects("private")
    before = len(s3.requests())
    assert {key.split("/")[2] for key in public} == {"wiki"}
    assert {key.split("/")[2] for key in private} == {"roam"}
    secret = {body for key, body in private.items() if key.endswith((".parquet", ".bin"))}
    assert secret
    assert not set(public.values()) & secret
    parquet = {f"/{bucket}/{key}" for bucket, found in (("public", public), ("private", private)) for key in found}
    texts = sorted(path for path in parquet if path.endswith(".parquet"))
    assert len(texts) > 4
    assert read == sorted([*texts, *texts])
    assert fresh_repo.repro("tokenize@wiki", TOKENS) == []
    assert len(s3.requests()) == before

    # Training fetches every token file once; a file with a changed byte is refused by name.
    tokens = sorted(path for path in parquet if path.endswith(".bin"))
    key = next(key for key in public if key.endswith(".bin"))
    body = bytearray(public[key])
    body[0] ^= 1
    manifests = {name: read_meta(fresh_repo.path / f"cache/manifests/{name}.json") for name in ("wiki", "roam")}
    urls = {"wiki": Store(stores["store"]), "roam": Store(stores["private"])}
    places = Places(fresh_repo.path / "cache/tokens/text", urls, copies=tmp_path / "fetched")
    files = list(listed_files(manifests, places, documents=False))
    s3.client().put_object(Bucket="public", Key=key, Body=bytes(body))
    with pytest.raises(ValueError, match=re.escape(f"s3://public/{key} (changed)")) as refused:
        check_files(files)
    monkeypatch.chdir(fresh_repo.path)
    assert "niels-gpt store" in sentence_with_remedy(refused.value)
    s3.client().put_object(Bucket="public", Key=key, Body=public[key])
    shutil.rmtree(places.copies)
    start = len(s3.requests())
    for _ in range(2):
        check_files(files)
    fetched = [path for kind, path in s3.requests()[start:] if kind == "GET" and path.endswith(".bin")]
    assert sorted(fetched) == tokens
