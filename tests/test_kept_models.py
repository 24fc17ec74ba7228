"""Tests that the previous model answers while a new one trains: from DVC's cache, by the hashes in dvc.lock."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from niels_gpt.cli.app import app
from niels_gpt.cli.export import answering_model
from niels_gpt.pipeline.repository import DvcCache
from tests.conftest import Repo
from tests.talkers import put, write_project


def put_folder(folder: Path) -> str:
    """Put a folder into the cache as DVC does: its files, and a listing named by its own hash; return that name."""
    entries = [{"md5": put(path.read_bytes()), "relpath": path.name} for path in sorted(folder.iterdir())]
    listing = json.dumps(entries).encode()
    name = f"{hashlib.md5(listing).hexdigest()}.dir"
    file = Path(".dvc/cache/files/md5", name[:2], name[2:])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(listing)
    return name


def write_lock(*, model: str, tokenizer: str, current: str | None = None) -> None:
    def file(path: str, md5: str) -> dict[str, object]:
        return {"path": path, "md5": md5, "size": 1, "nfiles": 1}

    stages = {
        "tokenizer": {"cmd": "x", "outs": [file("cache/tokenizer", current or tokenizer)]},
        "sft": {"cmd": "x", "deps": [file("cache/tokenizer", tokenizer)], "outs": [file("models/sft", model)]},
    }
    Path("dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change into a folder with a finished run, as DVC has recorded it; return the folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(DvcCache, "files", tmp_path / ".dvc/cache/files/md5")
    write_project(tmp_path)
    write_lock(model=put_folder(Path("models/sft")), tokenizer=put_folder(Path("cache/tokenizer")))
    return tmp_path


def sample(*, model: str = "models/sft") -> tuple[str, str]:
    result = CliRunner().invoke(app, ["sample", "Once", "--model", model, "--max-tokens", "8"])
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


@pytest.mark.slow
def test_a_model_that_is_being_replaced_answers_out_of_the_cache(project: Path) -> None:
    said, remarks = sample()
    assert remarks == ""
    shutil.rmtree("models/sft")
    for model in ("models/sft", "./models/sft/", str(project / "models/sft")):
        again, remarks = sample(model=model)
        assert again == said
        assert remarks.startswith(
            "models/sft does not exist (DVC removes a model before it trains the next): using the previous one"
        )
    shutil.rmtree("cache/tokenizer")
    assert sample()[0] == said
    with answering_model("models/sft") as (folder, _):
        assert folder.name == "sft"  # the name by which clients know the model
        assert folder.is_dir()
    assert not folder.exists()
    assert not Path("models/sft").exists()


def test_a_model_is_asked_with_the_tokenizer_that_it_was_trained_with(project: Path) -> None:
    said, _ = sample()
    own = put_folder(Path("cache/tokenizer"))
    Path("cache/tokenizer/tokenizer.json").write_text("{}")  # from a run in progress
    write_lock(model=put_folder(Path("models/sft")), tokenizer=own, current="0" * 32 + ".dir")
    again, remarks = sample()
    assert again == said
    assert remarks == f"models/sft uses the tokenizer it was trained with, {own[:8]} in DVC's cache\n"
    write_lock(model=put_folder(Path("models/sft")), tokenizer="1" * 32 + ".dir", current=own)
    result = CliRunner().invoke(app, ["sample", "Once", "--model", "models/sft"])
    assert result.exit_code == 1
    assert "was trained with another tokenizer" in result.output


def test_a_model_that_is_not_whole_in_the_cache_counts_as_missing(project: Path) -> None:
    shutil.move("models/sft", "mine")
    md5 = hashlib.md5(Path("mine/best.pt").read_bytes()).hexdigest()
    cached = Path(".dvc/cache/files/md5", md5[:2], md5[2:])
    cached.rename("aside")
    for model in ("models/sft", "models/pretrain/..", "models/splice"):
        result = CliRunner().invoke(app, ["chat", "--model", model])
        assert result.exit_code == 1
        assert "holds no model" in result.output
    Path("aside").rename(cached)
    for lock in ("", "half", "schema: '2.0'\nstages: {}\n"):
        Path("dvc.lock").write_text(lock)
        with answering_model("models/sft") as found:
            assert found == (Path("models/sft"), Path("cache/tokenizer"))
    with answering_model("mine") as found:
        assert found == (Path("mine"), Path("cache/tokenizer"))


def test_export_does_not_use_the_cache(project: Path) -> None:
    shutil.rmtree("models/sft")
    result = CliRunner().invoke(app, ["export", "away"])
    assert result.exit_code == 1
    assert "models/sft holds no model yet" in result.output
    assert not Path("away").exists()


@pytest.mark.dag
def test_dvcs_own_cache_has_the_model_that_dvc_removed(built_repo: Repo) -> None:
    ask = ("niels-gpt", "sample", "Once", "--model", "models/sft", "--max-tokens", "8")
    before = built_repo.run(*ask)
    shutil.rmtree(built_repo.path / "models/sft")
    shutil.rmtree(built_repo.path / "cache/tokenizer")
    after = built_repo.run(*ask)
    assert after.stdout == before.stdout
    assert "using the previous one" in after.stderr
