"""Tests of the loader of notes and of the checks of its input."""

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from niels_gpt.data import (
    DIALOGUE_DELIM,
    list_roam_paths,
    load_primer_text,
    load_texts,
    load_wikitext,
    split_primer_dialogues,
    split_roam_paths,
    wikitext,
)
from niels_gpt.data.corpus.parts import (
    CHAT_SCHEMA,
    DOCUMENT_SCHEMA,
    list_array,
    messages_array,
    number_array,
    read_column,
    read_contents,
    read_keys,
    text_array,
    write_rows,
)
from niels_gpt.data.corpus.split import split_groups, split_rows
from niels_gpt.data.roam import iter_roam
from niels_gpt.data.text import iter_text
from niels_gpt.data.types import Document, PretrainSample
from niels_gpt.data.wikitext import iter_articles, iter_wikitext
from niels_gpt.pipeline.external_checks import check_input
from tests.conftest import ROOT
from tests.watchdog import watchdog

SAMPLE = str(ROOT / "data/wikitext")


# Notes


def test_notes_are_found_recursively_in_sorted_order_without_hidden_ones(tmp_path: Path) -> None:
    for name in ("b.md", "a/z.md", "a/y.md", "c.txt", ".hidden.md", ".obsidian/x.md", "Ü.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    paths = list_roam_paths(str(tmp_path))
    assert paths == sorted(paths)
    assert [os.path.relpath(p, tmp_path) for p in paths] == ["a/y.md", "a/z.md", "b.md", "Ü.md"]
    assert all(os.path.isabs(p) for p in paths)


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/n.md").write_text("x")
    (tmp_path / "a/again").symlink_to(tmp_path / "a")
    (tmp_path / "up").symlink_to(tmp_path)
    assert [Path(p).name for p in list_roam_paths(str(tmp_path))] == ["n.md"]


def test_whatever_a_note_holds_it_loads(tmp_path: Path) -> None:
    contents = {
        "crlf.md": b"one\r\ntwo\r\n",
        "bom.md": b"\xef\xbb\xbfbom",
        "nul.md": b"a\x00b",
        "empty.md": b"",
        "latin1.md": "café".encode("latin-1"),
        "line.md": b"x" * 320_000,
    }
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    texts = dict(zip(sorted(contents), load_texts(list_roam_paths(str(tmp_path))), strict=True))
    assert texts["crlf.md"] == "one\r\ntwo\r\n"
    assert texts["bom.md"] == "\ufeffbom"
    assert texts["nul.md"] == "a\0b"
    assert texts["empty.md"] == ""
    assert texts["latin1.md"] == "caf\ufffd"
    assert len(texts["line.md"]) == 320_000


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix:
        here = os.open(path.parent, os.O_RDONLY)  # the path of a socket has a maximum length
        unix.bind(f"/proc/self/fd/{here}/{path.name}" if os.path.isdir("/proc/self/fd") else str(path))
        os.close(here)


def make_linked_folder(path: Path) -> None:
    elsewhere = path.parent.parent / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    (elsewhere / "n.md").write_text("a note that nobody watches")
    path.symlink_to(elsewhere)


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


NO_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "fifo": (make_fifo, "is a FIFO, no file: remove it"),
    "socket": (make_socket, "is a socket, no file: remove it"),
    "device": (link_to("/dev/zero"), "is a device, no file: remove it"),
    "nothing": (link_to("nowhere"), "is a link to nothing: fix or remove it"),
    "itself": (lambda path: path.symlink_to(path.name), "cannot be read .*: fix or remove it"),
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("name", ["x.md", "sub/x.md", ".hidden.md", "no ending"])
def test_special_files_and_broken_links_are_named_without_blocking(tmp_path: Path, kind: str, name: str) -> None:
    """Their names do not matter, since DVC reads every file of a folder that it watches."""
    make, sentence = NO_FILES[kind]
    notes = tmp_path / "notes"
    (notes / "sub").mkdir(parents=True)
    (notes / "a.md").write_text("a note")
    assert check_input(str(notes)) == []
    make(notes / name)
    with watchdog():
        (fault,) = check_input(str(notes))
        assert re.fullmatch(rf"{re.escape(str(notes / name))} {sentence}", fault)
        assert check_input(str(notes / name)) == [fault]
        if name.endswith("x.md"):
            for read in (lambda: list(iter_roam(str(notes))), lambda: load_texts(list_roam_paths(str(notes)))):
                with pytest.raises(ValueError, match=re.escape(str(notes / name))):
                    read()
        else:
            assert load_texts(list_roam_paths(str(notes))) == ["a note"]


def test_a_linked_folder_is_named_since_nobody_watches_it(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    (notes / "sub").mkdir(parents=True)
    for name in ("linked", "sub/linked", "sub/here"):
        make_linked_folder(notes / name) if "here" not in name else (notes / name).symlink_to(".")
    with watchdog():
        faults = check_input(str(notes))
    assert [fault.split(" is a linked folder, which DVC does not watch: ")[0] for fault in faults] == [
        str(notes / name) for name in ("linked", "sub/here", "sub/linked")
    ]
    assert str(tmp_path / "elsewhere") in faults[0]


def test_a_sound_input_has_no_faults(tmp_path: Path) -> None:
    """A link to the folder, links to files, and entries that neither DVC nor the loaders read are accepted."""
    real = tmp_path / "real"
    (real / ".git").mkdir(parents=True)
    (real / ".obsidian").mkdir()
    (tmp_path / "n.md").write_text("linked")
    (real / "n.md").symlink_to(tmp_path / "n.md")
    (real / "Ü [x].md").write_text("")
    make_fifo(real / ".git/fsmonitor")
    make_linked_folder(real / ".trash")
    (real / ".obsidian/plugins").symlink_to(tmp_path)
    (tmp_path / "notes").symlink_to(real)
    assert check_input(str(tmp_path / "notes")) == []
    assert check_input(str(real / "n.md")) == []


@pytest.mark.parametrize("folder", [True, False])
def test_a_name_that_is_not_utf_8_is_shown_by_its_bytes(tmp_path: Path, folder: bool) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xe9.md"
    try:
        os.mkdir(name) if folder else os.close(os.open(name, os.O_CREAT))
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    (fault,) = check_input(str(tmp_path))
    assert fault.startswith(rf"the name of {tmp_path}/caf\xe9.md is not UTF-8")
    assert fault.endswith("rename it")
    fault.encode("utf-8")  # it can be printed
    if not folder:
        with pytest.raises(ValueError, match=r"caf\\xe9\.md is not UTF-8"):
            list(iter_roam(str(tmp_path)))


def test_what_does_not_exist_is_named(tmp_path: Path) -> None:
    for read in (list_roam_paths, load_primer_text, lambda path: load_texts([path])):
        with pytest.raises(FileNotFoundError, match="none does not exist"):
            read(str(tmp_path / "none"))
    assert check_input(str(tmp_path / "none")) == [f"{tmp_path}/none does not exist"]


# Front matter

NOTE_LINES = st.lists(st.sampled_from(["---", "--- ", "----", " ---", "tags: a", "", "text", "..."]), max_size=9)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=NOTE_LINES, line_end=st.sampled_from(["\n", "\r\n"]), ended=st.booleans())
@example(lines=["text", "---", "tags: a", "---", "text"], line_end="\n", ended=True)
@example(lines=["---", "tags: a", "---", "text", "---", "b", "---"], line_end="\r\n", ended=False)
def test_front_matter_is_dropped_from_the_head_of_a_note_and_from_nowhere_else(
    lines: list[str], line_end: str, ended: bool, tmp_path: Path
) -> None:
    def written(lines: list[str]) -> str:
        return "".join(f"{line}{line_end}" for line in lines).removesuffix("" if ended else line_end)

    (tmp_path / "note.md").write_bytes(written(lines).encode())
    closed = lines[:1] == ["---"] and "---" in lines[1:]
    body = lines[lines.index("---", 1) + 1 :] if closed else lines
    for front_matter, kept in ((True, lines), (False, body)):
        (sample,) = iter_text(str(tmp_path / "note.md"), front_matter=front_matter)
        assert sample.text == written(kept)


# Arrays

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.slow
@given(st.lists(st.none() | TEXTS), st.lists(st.lists(st.fixed_dictionaries({"role": TEXTS, "content": TEXTS}))))
def test_arrays_from_buffers_equal_arrows_own(texts: list[str | None], chats: list[list[dict[str, str]]]) -> None:
    assert text_array(texts).equals(pa.array(texts, pa.string()))
    text_array(texts).validate(full=True)
    assert messages_array(chats).to_pylist() == chats
    assert messages_array(chats).type == CHAT_SCHEMA.field("messages").type
    numbers = np.arange(len(texts), dtype=np.uint64)[::-1]
    assert number_array(numbers).equals(pa.array(numbers))
    assert list_array([len(chat) for chat in chats], number_array(np.arange(sum(map(len, chats))))).validate() is None


# Files of documents


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "size", "groups"), [(9000, 3, [4096, 4096, 808]), (10, 1 << 20, [4, 4, 2]), (3, 5 << 20, [1, 1, 1])]
)
def test_a_row_group_ends_with_its_last_row_or_byte_and_any_rows_are_read_back(
    count: int, size: int, groups: list[int], tmp_path: Path
) -> None:
    rows = [Document(id=f"{i}", text=f"{i % 10}" * size, split="val" if i % 3 else None) for i in range(count)]
    told: list[int] = []
    path = tmp_path / "new/part.parquet"
    assert write_rows(path, DOCUMENT_SCHEMA, iter(rows), tick=told.append) == (count, count * size)
    assert told == [size] * count
    with pq.ParquetFile(path) as file:
        assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == groups
    assert read_column(path, "split") == [row.split for row in rows]
    assert read_keys(path) == [row.id for row in rows]
    for step in (1, 3, count - 1):
        chosen = np.arange(step - 1, count, step)
        assert [text for texts in read_contents(path, chosen) for text in texts] == [rows[i].text for i in chosen]
    assert list(read_contents(path, np.arange(0))) == []


# Splits


@given(n=st.integers(0, 200), val_frac=st.floats(0, 0.99), seed=st.integers(0, 2**63 - 1))
@example(n=30_000, val_frac=0.5, seed=2**40 + 7)
def test_a_split_follows_the_contract(n: int, val_frac: float, seed: int) -> None:
    train, val = split_rows(n, val_frac=val_frac, seed=seed)
    assert sorted(train + val) == list(range(n))
    if n < 2:
        assert val == []
    else:
        n_val = max(1, int(n * val_frac))
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
        assert set(val) == set(order[:n_val])
    assert split_rows(n, seed=seed) == split_rows(n, val_frac=0.1, seed=seed)


@pytest.mark.parametrize("val_frac", [-0.1, 1.0, 2.0])
def test_a_fraction_outside_0_and_1_is_refused(val_frac: float) -> None:
    with pytest.raises(ValueError, match="val_frac"):
        split_roam_paths(["a", "b"], val_frac=val_frac, seed=1)
    with pytest.raises(ValueError, match="val_frac"):
        split_primer_dialogues("a", val_frac=val_frac, seed=1)


def test_a_group_is_held_out_whole() -> None:
    groups = [f"tree {i // 3}" for i in range(60)]
    train, val = split_groups(groups, val_frac=0.3, seed=5)
    assert sorted(train + val) == list(range(60))
    assert not {groups[i] for i in train} & {groups[i] for i in val}
    assert len({groups[i] for i in val}) == 6
    assert split_groups(groups, val_frac=0.3, seed=6) != (train, val)


def test_primer_blocks_are_stripped_and_no_delimiter_stands_at_an_end() -> None:
    blocks = [f"user: q{i}\nassistant: a{i}" for i in range(10)]
    text = DIALOGUE_DELIM.join(["", *(f"\n{b}\n" for b in blocks), " \n", ""])
    train, val = split_primer_dialogues(text, val_frac=0.3, seed=7)
    parts = train.split(DIALOGUE_DELIM) + val.split(DIALOGUE_DELIM)
    assert sorted(parts) == sorted(blocks)
    assert len(val.split(DIALOGUE_DELIM)) == 3
    assert split_primer_dialogues("only one", val_frac=0.3, seed=7) == ("only one", "")


def test_primer_text_is_raw_and_utf8(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes(b"user: a\r\nassistant: \xc3\xa9\r\n")
    assert load_primer_text(str(path)) == "user: a\r\nassistant: é\r\n"
    path.write_bytes(b"\xff")
    with pytest.raises(ValueError, match="not UTF-8"):
        load_primer_text(str(path))


# WikiText


@pytest.mark.slow
def test_the_sample_loads_by_the_call_for_the_real_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = wikitext.load_dataset
    monkeypatch.setattr(wikitext, "load_dataset", lambda *a, **k: real(*a, **k, cache_dir=str(tmp_path)))
    docs = load_wikitext(path=SAMPLE)
    assert set(docs) == {"train", "val", "test"}
    assert all(line.strip() for lines in docs.values() for line in lines)
    assert docs["train"][0] == " = Barnacle goose = \n"
    streamed = list(iter_wikitext(path=SAMPLE, split="val", streaming=True))
    assert [sample.text for sample in streamed] == docs["val"]
    assert streamed[0].source == "wikitext"
    assert len(list(iter_wikitext(path=SAMPLE, split="validation", streaming=True, take=3))) == 3


def test_the_seeds_id_first_then_the_one_with_a_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def load(path: str, config: str, **_: Any) -> Any:
        asked.append(path)
        if "/" not in path:
            raise ValueError("Repository id must be 'namespace/name'")
        return {name: {"text": ["", " \n", f"{config} {name}"]} for name in ("train", "validation", "test")}

    monkeypatch.setattr(wikitext, "load_dataset", load)
    assert load_wikitext()["val"] == ["wikitext-103-raw-v1 validation"]
    assert asked == ["wikitext", "Salesforce/wikitext"]


def test_articles_are_cut_at_titles_not_at_sections() -> None:
    lines = [" preamble \n", " = One = \n", " text \n", " = = Section = = \n", " more", " = Two = \n", " x = y = z \n"]
    articles = list(iter_articles(PretrainSample(text=line, source="wikitext", meta={}) for line in lines))
    assert [a.meta["title"] for a in articles] == [None, "One", "Two"]
    assert articles[1].text == " = One = \n text \n = = Section = = \n more\n"
    assert "".join(a.text for a in articles) == "".join(line.rstrip("\n") + "\n" for line in lines)


# The bundled corpora


def test_the_sample_corpora_are_what_the_readme_says() -> None:
    notes = list((ROOT / "data/roam").rglob("*.md"))
    text = "".join(note.read_text() for note in notes)
    assert len(notes) >= 40
    assert len(text.encode()) >= 40_000
    assert text.count("[[") > 40
    assert "```" in text
    assert sum(note.read_text().startswith("---\n") for note in notes) > 20
    dialogues = load_primer_text(str(ROOT / "data/primer.txt")).split(DIALOGUE_DELIM)
    assert len(dialogues) >= 100
    assert sum(len(d.encode()) for d in dialogues) >= 25_000
    assert all(
        line.startswith(("system: ", "user: ", "assistant: ")) for d in dialogues for line in d.strip().split("\n")
    )
    articles = [path.read_text() for path in (ROOT / "data/wikitext").rglob("*.txt")]
    assert sum(len(a.encode()) for a in articles) >= 80_000
    assert all(line.startswith(" ") and line.endswith(" ") for a in articles for line in a.split("\n")[:-1])
