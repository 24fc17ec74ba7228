"""Tests that the vocabulary reveals no rare words of private text, such as names."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from niels_gpt.data.types import Document
from niels_gpt.files.atomic import publish
from niels_gpt.pipeline.sections import SentencePiece
from niels_gpt.pipeline.stage import Inputs, Stage
from niels_gpt.talk.export.card import model_card
from niels_gpt.talk.export.folders import export_transformers
from niels_gpt.talk.export.gguf import export_gguf
from niels_gpt.tokenizer import SentencePieceTokenizer, load_tokenizer
from niels_gpt.tokenizer.tokenizers import ByteTokenizer, RareText
from niels_gpt.tokenizer.training import train_sentencepiece
from stages import split as split_stage
from stages import tokenizer as tokenizer_stage
from tests.conftest import ROOT
from tests.in_process import no_duplicates, tiny_params, write_source
from tests.talkers import certain_talker

WORDS = "the Marine tide rises in spring and Marines bake bread near a harbour while Annabel reads submarine books"
COMMON = [*WORDS.split(), *sorted(set(re.findall(r"[a-z]{4,}", (ROOT / "data/primer.txt").read_text())))[:750:5]]
# Names at the start of a line, after punctuation, possessive, in quotes, in a web address, and at the end. One is a
# number; "Marin" and "Anna" are parts of common words.
FORMS = [
    "{}: called.\n{} is here.",
    "- ({}) and/{}, then",
    "with {}'s bread, {}\u2019s tide",
    "\u201c{}\u201d said",
    "https://x.org/~{}?q={}",
    "we met {}",
]
NAMES = ["Quillfeather", "Marin", "Anna", "zorblatt", "Ødegård", "Иванова", "4711081547", "McWhirter", "Oe"]
CHINESE = ["王曉明", "田中太郎"]
SENTENCES = ["今天我們在港口讀書", "春天的麵包很好", "我們喜歡在春天讀書", "港口的麵包很好吃"]


def documents(holders: int, *, seed: int = 1) -> list[str]:
    """Return 60 notes of common words; each name occurs many times in `holders` of them, in every form."""
    rng = random.Random(seed)
    notes = [
        " ".join(rng.choices(COMMON, k=200)) + "\n" + "。".join(rng.choices(SENTENCES, k=8)) + f"\nnote {i}"
        for i in range(60)
    ]
    for name in NAMES:
        for at in rng.sample(range(60), holders):
            notes[at] += "\n" + "\n".join(form.replace("{}", name) for form in FORMS) * 4
    for name in CHINESE:
        for at in rng.sample(range(60), holders):
            notes[at] += f"\n我們和{name}在港口。{name}喜歡麵包" * 8
    return notes


def entries(model: bytes) -> list[str]:
    """Return the vocabulary entries with text, without the space mark."""
    return [p.piece.removeprefix("\u2581") for p in ModelProto.FromString(model).pieces if p.type == p.NORMAL]


def train(notes: list[str], *, vocab_size: int = 600, public: int = 0, min_documents: int = 5) -> bytes:
    """Train a tokenizer; the first `public` notes are public, the others private."""
    private = [i >= public for i in range(len(notes))]
    return train_sentencepiece(notes, vocab_size=vocab_size, private=private, min_documents=min_documents)


@pytest.fixture(scope="module")
def planted() -> bytes:
    return train(documents(4))


@pytest.mark.slow
def test_a_name_in_fewer_documents_than_asked_for_is_no_entry(planted: bytes) -> None:
    names = {*NAMES, *CHINESE}
    told = set(entries(train_sentencepiece(documents(4), vocab_size=600)))
    assert {"Quillfeather", "Marin", "4711081547", "王曉明"} <= told  # without the rule
    assert not names & set(entries(planted))
    assert not any(name in entry for name in names - {"Marin", "Anna"} for entry in entries(planted))
    assert len(names & set(entries(train(documents(5))))) > 6  # names in five documents are allowed


@pytest.mark.slow
@pytest.mark.parametrize("public", [0, 30])
def test_every_entry_is_public_or_in_enough_private_documents(public: int) -> None:
    """Occurrences are counted in the plain texts, document by document."""
    notes = documents(4, seed=public)
    for entry in entries(train(notes, public=public)):
        if len(entry) > 1 and any(map(str.isalnum, entry)):
            assert any(entry in note for note in notes[:public]) or sum(entry in note for note in notes[public:]) >= 5
            word = re.compile(rf"(?<![^\W_]){re.escape(entry)}(?![^\W_])")
            whole = [bool(word.search(note)) for note in notes]
            few_letters = entry.islower() and len(entry) == 2
            chinese = re.fullmatch(r"[\u4e00-\u9fff]+", entry)
            assert any(whole[:public]) or sum(whole) not in range(1, 5) or few_letters or chinese, entry


@pytest.mark.slow
def test_a_word_of_a_public_text_may_be_an_entry() -> None:
    notes = documents(4)
    at = next(i for i, note in enumerate(notes) if "Quillfeather" in note)
    notes.insert(0, notes.pop(at))
    assert "Quillfeather" in entries(train(notes, public=1))
    assert "Quillfeather" not in entries(train(notes))


def test_copies_of_a_document_count_once() -> None:
    rare = RareText([("we met Quillfeather", True)] * 9 + [(f"{i} bread", True) for i in range(5)], min_documents=5)
    assert rare.told_by("\u2581Quillfeather")
    assert rare.told_by("Quill")
    assert not rare.told_by("\u2581bread")
    assert not rare.told_by("rea")
    assert not rare.told_by("Q")
    assert not rare.told_by("--")


def test_a_rare_word_is_no_entry_though_others_contain_it_unless_it_is_two_small_letters() -> None:
    notes = [(f"the marina at {i} is lovely", True) for i in range(9)] + [("with marin and Ly, a ly", True)]
    rare = RareText(notes, min_documents=5)
    assert rare.told_by("\u2581marin")
    assert rare.told_by("Ly")
    assert not rare.told_by("ly")
    assert not rare.told_by("marina")


def test_a_nul_or_a_space_mark_hides_no_name() -> None:
    """The trainer reads a space mark as a space, and ignores a NUL."""
    rare = RareText([("Quill\0feather", True), ("a\u2581Marin\u2581b", True)], min_documents=2)
    assert rare.told_by("\u2581Quillfeather")
    assert rare.told_by("\u2581Marin")


@pytest.mark.slow
def test_the_vocabulary_has_the_size_asked_for_and_equal_texts_give_equal_bytes(planted: bytes) -> None:
    proto = ModelProto.FromString(planted)
    assert len(proto.pieces) == proto.trainer_spec.vocab_size == 600
    assert train(documents(4)) == planted
    assert {piece for piece in entries(train_sentencepiece(documents(4), vocab_size=600)) if len(piece) == 1} <= set(
        entries(planted)
    )


@pytest.mark.slow
def test_without_private_text_or_with_one_document_the_model_is_as_it_was() -> None:
    notes = documents(4)
    before = train_sentencepiece(notes, vocab_size=600)
    assert train(notes, public=len(notes)) == before
    assert train(notes, min_documents=1) == before


@pytest.mark.slow
def test_too_few_entries_are_refused_with_a_remedy() -> None:
    lines = r"vocab_size is 5,000: the corpus has [0-9,]+ entries that .*lower tokenizer\.min_documents, or add text"
    with pytest.raises(ValueError, match=lines) as error:
        train(documents(4), vocab_size=5000)
    most = int(re.search(r"has ([0-9,]+) entries", str(error.value))[1].replace(",", ""))  # type: ignore[index]
    assert len(ModelProto.FromString(train(documents(4), vocab_size=most)).pieces) == most
    with pytest.raises(ValueError, match=r"its characters and bytes alone need [0-9]+; set it higher"):
        train(documents(4), vocab_size=300)


@pytest.mark.slow
def test_no_export_contains_a_rare_name(planted: bytes, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="gguf is not installed: no GGUF was written")
    (tmp_path / "spm.model").write_bytes(planted)
    whole = certain_talker(SentencePieceTokenizer(tmp_path / "spm.model"))
    export_transformers(whole, tmp_path / "hf")
    export_gguf(whole, tmp_path / "away", precision="f16")
    theirs = json.loads((tmp_path / "hf/tokenizer.json").read_text())["model"]["vocab"]
    field = gguf.GGUFReader(tmp_path / "away/model.gguf").fields["tokenizer.ggml.tokens"]
    written = [bytes(field.parts[i]).decode() for i in field.data]
    assert len(theirs) == len(written) == 600
    # The vocabulary for transformers may write each byte as one character, as GPT-2 does.
    spelt = set("".join(map(chr, [*range(33, 127), *range(161, 173), *range(174, 256)])))
    for name in (*NAMES, *CHINESE):
        forms = {name, "".join(_as_gpt2(byte, spelt) for byte in name.encode())}
        for vocabulary in ([piece for piece, _ in theirs], written):
            assert not forms & {piece.strip("\u2581\u0120 ") for piece in vocabulary}, name


def _as_gpt2(byte: int, spelt: set[str]) -> str:
    others = [value for value in range(256) if chr(value) not in spelt]
    return chr(byte) if chr(byte) in spelt else chr(256 + others.index(byte))


@pytest.mark.slow
@pytest.mark.parametrize("remote", ["private", "store"])
def test_a_source_is_private_by_its_remote(remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    params = tiny_params()
    notes = params.sources["roam"].model_copy(update={"remote": remote, "split": params.sources["wiki"].split})
    pieces = SentencePiece(
        kind="sentencepiece", corpus="cache/split/text", vocab_size=600, sample_bytes=10**9, seed=1, min_documents=5
    )
    params = params.model_copy(update={"sources": {"roam": notes}, "tokenizer": pieces})
    rows = [Document(id=str(i), text=text, split="train") for i, text in enumerate(documents(4))]
    write_source("roam", [*rows, Document(id="last", text="bread", split="val")], part_rows=40)
    no_duplicates("roam", params)
    splitting = Stage(name="split", key="roam", params=params, inputs=Inputs({}, {}))
    split_stage.main(splitting)
    publish(splitting.out("cache/split/text/roam"), Path("cache/split/text/roam"))
    run = Stage(name="tokenizer", key="", params=params, inputs=Inputs({}, {}))
    tokenizer_stage.main(run)
    trained = load_tokenizer(run.out("cache/tokenizer"))
    assert (b"Quillfeather" in {trained.piece(i).strip() for i in range(600)}) == (remote == "store")
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    assert "sources.${key}.remote" in stages["split"]["do"]["params"]  # the tokenizer depends on the splits
    assert "sources" not in stages["tokenizer"]["params"]


def card(tokenizer: dict[str, object], private: list[str]) -> str:
    empty: dict[str, dict[str, object]] = {key: {} for key in ("model", "p_train", "p_sft", "train", "sft", "sources")}
    mixes: dict[str, Any] = {"mix": {"sources": {}}, "chat_mix": {"sources": {}}, "metrics": {}}
    params = {**empty, "tokenizer": tokenizer}
    whole = certain_talker(ByteTokenizer())
    return model_card(whole, form="plain", folder="x", params=params, private=private, leaks=None, **mixes)


def test_the_card_says_what_the_vocabulary_can_tell() -> None:
    pieces = {"kind": "sentencepiece", "vocab_size": 600}
    few = "No vocabulary entry is a word that occurs in fewer than 5 private documents and in no public source."
    assert few in card({**pieces, "min_documents": 5}, ["roam"])
    assert few not in card({**pieces, "min_documents": 5}, [])
    assert "may contain any word of the private text" in card({**pieces, "min_documents": 1}, ["roam"])
    assert few in card(pieces, ["roam"])
    assert "The vocabulary is bytes" in card({"kind": "byte"}, ["roam"])
