"""Tests of dvc push and pull against a real S3 API: private objects go to the private bucket only."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.conftest import Repo
from tests.s3 import S3

pytestmark = pytest.mark.dag


def hashes(repo: Repo) -> dict[str, set[str]]:
    """Return the hashes of every output that DVC keeps and of the files in it, by the output's path."""
    found: dict[str, set[str]] = {}
    for stage in yaml.safe_load((repo.path / "dvc.lock").read_text())["stages"].values():
        for out in stage.get("outs", []):
            object_file = repo.path / ".dvc/cache/files/md5" / out["md5"][:2] / out["md5"][2:]
            if out["path"].startswith("metrics/") and out["path"].endswith((".json", ".tsv", "pz")):
                continue  # git keeps these
            inside = json.loads(object_file.read_text()) if out["md5"].endswith(".dir") else []
            found[out["path"]] = {out["md5"].removesuffix(".dir"), *(file["md5"] for file in inside)}
    return found


def objects(s3: S3, bucket: str) -> set[str]:
    """Return the hashes of the objects in a bucket; DVC names objects by their hash."""
    return {"".join(key.split("/")[-2:]).removesuffix(".dir") for key in s3.objects(bucket)}


def test_public_and_private_go_their_own_ways_and_come_back(built_repo: Repo, s3: S3, tmp_path: Path) -> None:
    for remote, bucket in (("store", "public"), ("private", "private")):
        built_repo.run("dvc", "remote", "modify", remote, "url", f"s3://{bucket}/dvc")
        built_repo.run("dvc", "remote", "modify", remote, "endpointurl", s3.address)
    built_repo.commit("s3")
    built_repo.run("dvc", "push")
    public, private = objects(s3, "public"), objects(s3, "private")
    kept = hashes(built_repo)
    private_outs = (
        "models/",
        "metrics/",
        "cache/code",
        "cache/duplicate",
        "cache/evaluation",
        "cache/index",
        "cache/tokenizer",
        "cache/mix",
        "cache/quotes",
        "cache/chat_mix",
    )
    secret = {path for path in kept if "roam" in path or path.startswith(private_outs)}
    assert {"cache/raw/roam", "models/sft", "metrics/report.html"} <= secret
    assert {"cache/raw/wiki", "cache/tokens/text/wiki"} <= set(kept) - secret
    # Two sources may be split alike: a file of row numbers that a public source has, too, is no secret.
    common = set().union(*(kept[path] for path in set(kept) - secret))
    for path, md5 in kept.items():
        if path in secret:
            assert md5 <= private, path
            assert not (md5 - common) & public, path
        else:
            assert md5 <= public, path

    run = built_repo.run("git", "clone", "-q", str(built_repo.path), str(tmp_path / "clone"))
    clone = Repo(tmp_path / "clone")
    clone.run("dvc", "pull")
    assert run.returncode == 0
    for name in ("models/sft/best.pt", "cache/mix.json", "metrics/samples.md"):
        assert (clone.path / name).read_bytes() == (built_repo.path / name).read_bytes()
    assert clone.repro() == []
    shutil.rmtree(clone.path)
