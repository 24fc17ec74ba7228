from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from niels_gpt.atomic import write_json
from niels_gpt.tokenizer import (
    SPECIAL_TOKENS,
    ByteTokenizer,
    SentencePieceTokenizer,
    decode,
    describe,
    encode,
    load_tokenizer,
)
from niels_gpt.tokenizer_report import format_report, report_source
from niels_gpt.tokenizer_training import train_sentencepiece

CORPUS = (Path(__file__).parent.parent / "data/primer.txt").read_text().split("\n\n<dialogue>\n\n")
TEXT = st.text(st.characters(codec="utf-8"))


@given(TEXT)
def test_bytes_round_trip(text: str) -> None:
    ids = encode(text)
    assert ids.dtype == torch.int64
    assert ids.tolist() == list(text.encode())
    assert decode(ids) == text
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode_batch([text])[0].tolist() == tokenizer.encode(text)


def test_decode_shows_what_is_not_utf8_and_refuses_what_is_no_byte() -> None:
    assert decode(torch.tensor([0x61, 0xFF, 0x62])) == "a\ufffdb"
    for bad in (torch.zeros(2, 2, dtype=torch.int64), torch.tensor([256]), torch.tensor([-1])):
        with pytest.raises(ValueError, match=r"1-D|0\.\.255"):
            decode(bad)


def test_the_pipelines_byte_tokenizer_carries_the_chat_tokens() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.vocab_size == 260
    assert tokenizer.special_token_ids() == {"sys": 256, "usr": 257, "asst": 258, "eot": 259}
    assert tokenizer.decode([104, 105, 259]) == "hi"
    assert tokenizer.token_bytes().tolist() == [1] * 256 + [0] * 4


def test_special_strings_in_text_stay_text() -> None:
    assert len(SPECIAL_TOKENS) == 4
    assert SPECIAL_TOKENS[3] == "<|ngpt_eot_84a5023f67d74cf29cc4001becde983c|>"
    assert max(ByteTokenizer().encode("".join(SPECIAL_TOKENS))) < 256


def test_load_tokenizer_by_folder_and_by_file_and_refuses_what_is_none(tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer.json", describe(ByteTokenizer(), "byte"))
    assert isinstance(load_tokenizer(tmp_path), ByteTokenizer)
    assert isinstance(load_tokenizer(tmp_path / "tokenizer.json"), ByteTokenizer)
    (tmp_path / "tokenizer.json").write_text('{"kind": "runes"}')
    with pytest.raises(ValueError, match="runes"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="does not describe"):
        load_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="holds no tokenizer"):
        load_tokenizer(tmp_path / "nothing")


@pytest.fixture(scope="module")
def spm_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import sentencepiece

    folder = tmp_path_factory.mktemp("spm")
    lines = (Path(__file__).parent.parent / "data/primer.txt").read_text().splitlines()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(lines),
        model_prefix=str(folder / "spm"),
        vocab_size=600,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        control_symbols=list(SPECIAL_TOKENS),
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return folder / "spm.model"


def test_sentencepiece_keeps_the_same_interface(spm_model: Path) -> None:
    tokenizer = load_tokenizer(spm_model.parent)
    assert isinstance(tokenizer, SentencePieceTokenizer)
    assert tokenizer.model_path == str(spm_model)
    text = "niels bakes bread , 日本語 and 🥖"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == tokenizer.decode(torch.tensor(ids)) == text
    assert tokenizer.encode_torch(text).tolist() == tokenizer.encode_batch([text])[0].tolist() == ids
    special = tokenizer.special_token_ids()
    assert set(special) == {"sys", "usr", "asst", "eot"}
    assert len(set(special.values())) == 4
    assert not set(special.values()) & set(tokenizer.encode(" ".join(SPECIAL_TOKENS)))
    assert int(tokenizer.token_bytes()[ids].sum()) == len(text.encode())
    assert np.all(tokenizer.token_bytes()[list(special.values())] == 0)


def test_a_foreign_sentencepiece_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spm.model").write_bytes(b"not a model")
    with pytest.raises(ValueError, match="not a SentencePiece model"):
        load_tokenizer(tmp_path)


# Trained


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> SentencePieceTokenizer:
    path = tmp_path_factory.mktemp("trained") / "spm.model"
    path.write_bytes(train_sentencepiece(CORPUS, vocab_size=700))
    return SentencePieceTokenizer(path)


HOSTILE = [
    "",
    " ",
    "\u2581",
    "a\u2581b \u2581\u2581",
    "\0",
    "<0x41>",
    "<unk>",
    "\r\n\t\x0b",
    "e\u0301",
    "🥖👩",
    "\ufeffx",
]


@given(st.one_of(TEXT, st.text("ab \u2581\n\0<>0x41|", max_size=20), st.sampled_from([*HOSTILE, *SPECIAL_TOKENS])))
def test_pieces_are_lossless(trained: SentencePieceTokenizer, text: str) -> None:
    ids = trained.encode(text)
    assert trained.decode(ids) == text
    assert trained.encode_batch([text, "x", text])[2].tolist() == ids
    assert not set(ids) & set(trained.special_token_ids().values())
    assert int(trained.token_bytes()[ids].sum()) == len(text.encode())


def test_equal_text_gives_an_equal_model() -> None:
    assert train_sentencepiece(CORPUS, vocab_size=700) == train_sentencepiece(iter(CORPUS), vocab_size=700)


@pytest.mark.parametrize(
    ("vocab_size", "sentence"),
    [
        (60_000, "the corpus has pieces for [0-9,]+ at the most"),
        (270, "need [0-9,]+; set it higher"),
        (70_000, "16-bit"),
        (5, "from 262"),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_refused_with_one_that_does(vocab_size: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        train_sentencepiece(CORPUS, vocab_size=vocab_size)


def test_the_largest_vocabulary_named_does_fit() -> None:
    with pytest.raises(ValueError, match="at the most") as error:
        train_sentencepiece(CORPUS, vocab_size=60_000)
    largest = int(re.search(r"for ([0-9,]+) at", str(error.value))[1].replace(",", ""))  # type: ignore[index]
    assert train_sentencepiece(CORPUS, vocab_size=largest)


def test_the_report_counts_bytes_and_shows_how_a_line_is_cut(trained: SentencePieceTokenizer) -> None:
    ids = trained.encode_batch(CORPUS[:50])
    report = report_source(trained, np.concatenate(ids))
    assert report.bytes_per_token == pytest.approx(sum(len(t.encode()) for t in CORPUS[:50]) / report.tokens)
    assert report.bytes_per_token > 1.5
    page = format_report(trained, {"primer": report}, line="niels ⛵")
    assert "primer" in page
    assert "<E2>" in page
