"""Tests of the byte streams of the specification: contents, metadata, and rebuilds after a change."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from niels_gpt import streams
from niels_gpt.data.hub import HubError
from niels_gpt.streams import StreamBuildConfig, build_sources

WIKI = {"train": ["one line of wiki " * 4] * 5, "val": ["held out " * 9], "test": []}


@pytest.fixture
def cfg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StreamBuildConfig:
    monkeypatch.setattr(streams, "load_wikitext", lambda: WIKI)
    (tmp_path / "notes").mkdir()
    for i in range(5):
        (tmp_path / f"notes/{i}.md").write_text(f"note {i} " * 10)
    (tmp_path / "primer.txt").write_text(
        "\n\n<dialogue>\n\n".join(f"user: {i}\nassistant: {i}{i}" * 3 for i in range(9))
    )
    return StreamBuildConfig(
        roam_root=str(tmp_path / "notes"), primer_path=str(tmp_path / "primer.txt"), cache_dir=str(tmp_path / "c")
    )


def test_streams_join_documents_and_are_cached(cfg: StreamBuildConfig) -> None:
    train, val = build_sources(cfg, T=16)
    assert set(train) == set(val) == {"wiki", "roam", "primer"}
    assert train["wiki"] == "\n\n".join(WIKI["train"]).encode()
    assert train["roam"].count(b"\n\n") == 3
    assert train["primer"].count(b"<dialogue>") == 7
    files = {path.name for path in Path(cfg.cache_dir).iterdir()}
    assert files == {f"{s}_{k}.{e}" for s in train for k in ("train", "val") for e in ("bin", "meta.json")}
    meta = json.loads((Path(cfg.cache_dir) / "roam_val.meta.json").read_text())
    assert meta["seed"] == 42
    assert meta["val_frac"] == 0.1


def test_meta_files_describe_their_sources(cfg: StreamBuildConfig) -> None:
    build_sources(cfg, T=16)
    metas = {path.name: json.loads(path.read_text()) for path in Path(cfg.cache_dir).glob("*.meta.json")}

    def stamp(path: str) -> dict[str, int]:
        return {"mtime_ns": Path(path).stat().st_mtime_ns, "size": Path(path).stat().st_size}

    for split, docs in (("train", WIKI["train"]), ("val", WIKI["val"])):
        wiki = metas[f"wiki_{split}.meta.json"]
        characters = sum(map(len, docs))
        expected = {"source": "wiki", "split": split, "n_docs": len(docs), "total_chars": characters, "sep": "\n\n"}
        assert expected.items() <= wiki.items()
        roam = metas[f"roam_{split}.meta.json"]
        assert {"source": "roam", "split": split, "sep": "\n\n"}.items() <= roam.items()
        assert roam["files"] == [{"path": file["path"], **stamp(file["path"])} for file in roam["files"]]
        primer = metas[f"primer_{split}.meta.json"]
        expected = {"source": "primer", "split": split, "path": cfg.primer_path, "delimiter": "\n\n<dialogue>\n\n"}
        assert (expected | stamp(cfg.primer_path)).items() <= primer.items()
    listed = [file["path"] for split in ("train", "val") for file in metas[f"roam_{split}.meta.json"]["files"]]
    assert sorted(listed) == sorted(str(path) for path in Path(cfg.roam_root).iterdir())


def stamps(cfg: StreamBuildConfig) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in Path(cfg.cache_dir).glob("*.bin")}


def test_unchanged_streams_are_not_rewritten(cfg: StreamBuildConfig) -> None:
    first = build_sources(cfg, T=16)
    before = stamps(cfg)
    assert build_sources(cfg, T=16) == first
    assert stamps(cfg) == before
    for note in Path(cfg.roam_root).iterdir():
        note.write_text("changed " * 20)
    again = build_sources(cfg, T=16)
    assert b"changed" in again[0]["roam"]
    after = stamps(cfg)
    assert after["wiki_train.bin"] == before["wiki_train.bin"]
    assert after["roam_train.bin"] != before["roam_train.bin"]


@pytest.mark.parametrize("change", [{"seed": 1}, {"roam_val_frac": 0.5}, {"force_rebuild": True}])
def test_another_seed_or_fraction_or_force_rebuilds(cfg: StreamBuildConfig, change: dict[str, float]) -> None:
    build_sources(cfg, T=16)
    before = stamps(cfg)["roam_train.bin"]
    build_sources(replace(cfg, **change), T=16)
    assert stamps(cfg)["roam_train.bin"] != before


@pytest.mark.parametrize("source", ["roam", "primer"])
@pytest.mark.parametrize("edit", ["same size", "same time"])
def test_an_edit_is_noticed_by_its_time_or_by_its_size(cfg: StreamBuildConfig, source: str, edit: str) -> None:
    train = build_sources(cfg, T=16)[0]
    for path in Path(cfg.roam_root).iterdir() if source == "roam" else [Path(cfg.primer_path)]:
        before = path.stat()
        text = path.read_text()
        path.write_text(text.replace("1", "7").replace("2", "7") if edit == "same size" else f"{text} more")
        later = before.st_mtime_ns + (1 if edit == "same size" else 0)
        os.utime(path, ns=(before.st_atime_ns, later))
        assert (path.stat().st_size == before.st_size) == (edit == "same size")
        assert (path.stat().st_mtime_ns == before.st_mtime_ns) == (edit == "same time")
    again = build_sources(cfg, T=16)[0]
    assert again[source] == build_sources(replace(cfg, force_rebuild=True), T=16)[0][source] != train[source]


def test_another_separator_or_delimiter_is_noticed(cfg: StreamBuildConfig) -> None:
    before = build_sources(cfg, T=16)[0]
    train = build_sources(replace(cfg, doc_separator="\n--\n"), T=16)[0]
    assert train["wiki"] == "\n--\n".join(WIKI["train"]).encode()
    assert train["roam"].count(b"\n--\n") == 3
    assert train["primer"] == before["primer"]
    assert build_sources(replace(cfg, delimiter="\nassistant: "), T=16)[0]["primer"] != before["primer"]


@pytest.mark.parametrize(
    "docs",
    [["another line of wiki " * 9] * 5, ["".join(WIKI["train"])[:40], "".join(WIKI["train"])[40:]]],
    ids=["as many documents of more characters", "fewer documents of as many characters"],
)
def test_other_wiki_documents_are_noticed(
    cfg: StreamBuildConfig, monkeypatch: pytest.MonkeyPatch, docs: list[str]
) -> None:
    build_sources(cfg, T=16)
    monkeypatch.setattr(streams, "load_wikitext", lambda: {**WIKI, "train": docs})
    assert build_sources(cfg, T=16)[0]["wiki"] == "\n\n".join(docs).encode()


@pytest.mark.parametrize(("file", "data"), [("bin", b"half"), ("meta.json", b'{"source": "wi')])
def test_a_damaged_cache_is_rebuilt(cfg: StreamBuildConfig, file: str, data: bytes) -> None:
    first = build_sources(cfg, T=16)
    (Path(cfg.cache_dir) / f"wiki_train.{file}").write_bytes(data)
    assert build_sources(cfg, T=16) == first


def test_only_enabled_sources_are_built(cfg: StreamBuildConfig) -> None:
    only = replace(cfg, enabled_sources=("roam",), required_sources=("roam",))
    assert set(build_sources(only, T=16)[0]) == {"roam"}
    with pytest.raises(ValueError, match="subset of enabled_sources"):
        build_sources(replace(cfg, enabled_sources=("roam",), required_sources=("wiki",)), T=16)
    with pytest.raises(ValueError, match="unknown sources"):
        build_sources(replace(cfg, enabled_sources=("wiki", "x"), required_sources=()), T=16)


def test_a_missing_source_is_named_unless_it_may_be_missing(cfg: StreamBuildConfig, tmp_path: Path) -> None:
    gone = replace(cfg, roam_root=str(tmp_path / "nowhere"))
    with pytest.raises(RuntimeError, match="'roam' is missing"):
        build_sources(gone, T=16)
    with pytest.raises(RuntimeError, match="'roam' is missing"):
        build_sources(replace(gone, allow_missing_sources=True), T=16)
    optional = replace(gone, allow_missing_sources=True, required_sources=("wiki", "primer"))
    assert set(build_sources(optional, T=16)[0]) == {"wiki", "primer"}
    (tmp_path / "empty").mkdir()
    with pytest.raises(RuntimeError, match="'roam' is missing"):
        build_sources(replace(cfg, roam_root=str(tmp_path / "empty")), T=16)
    with pytest.raises(RuntimeError, match="'primer' is missing"):
        build_sources(replace(cfg, primer_path=str(tmp_path / "none.txt")), T=16)


@pytest.mark.parametrize(
    "error", [HubError("wikitext: the hub cannot be reached"), ConnectionError("no route"), FileNotFoundError("none")]
)
def test_an_unavailable_wiki_may_be_missing_like_any_other_source(
    cfg: StreamBuildConfig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(streams, "load_wikitext", fail)
    with pytest.raises(RuntimeError, match=rf"required source 'wiki' is missing: {error}"):
        build_sources(replace(cfg, allow_missing_sources=True), T=16)
    optional = replace(cfg, required_sources=("roam", "primer"))
    with pytest.raises(RuntimeError, match=r"^source 'wiki' is missing: .* take it out of enabled_sources"):
        build_sources(optional, T=16)
    assert set(build_sources(replace(optional, allow_missing_sources=True), T=16)[0]) == {"roam", "primer"}


def test_one_note_leaves_no_validation_set(cfg: StreamBuildConfig) -> None:
    for i in range(1, 5):
        (Path(cfg.roam_root) / f"{i}.md").unlink()
    with pytest.raises(RuntimeError, match="validation"):
        build_sources(cfg, T=16)


def test_short_streams_are_listed_with_their_lengths(cfg: StreamBuildConfig) -> None:
    with pytest.raises(ValueError, match=r"too short for T=256.*wiki/val.: 81.*roam/val"):
        build_sources(cfg)
    assert len(build_sources(replace(cfg, enabled_sources=("wiki",), required_sources=()), T=80)[1]["wiki"]) == 81
    with pytest.raises(ValueError, match=r"too short for T=81 .*\{'wiki/val': 81\}"):
        build_sources(replace(cfg, enabled_sources=("wiki",), required_sources=()), T=81)


def test_singular_and_plural_builders_agree() -> None:
    assert streams.build_wiki_streams(["a", "b"], ["c"]) == (b"a\n\nb", b"c")
    assert streams.build_roam_streams(["ä"], []) == ("ä".encode(), b"")
    assert streams.build_primer_streams("x\r\n", "y") == (b"x\r\n", b"y")
