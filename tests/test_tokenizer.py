from __future__ import annotations

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
