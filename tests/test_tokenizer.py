"""Tests of tokenizers: round trips, special tokens, loading, and training."""

import hashlib
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from niels_gpt.cache.meta import read_meta
from niels_gpt.cli.inspect import count_ids, tokenizer_lines
from niels_gpt.data.corpus.parts import open_texts
from niels_gpt.data.corpus.split_files import read_split, sampled_texts
from niels_gpt.data.types import Document
from niels_gpt.files.atomic import publish, write_json
from niels_gpt.pipeline.params import parse_params
from niels_gpt.pipeline.sections import SentencePiece
from niels_gpt.pipeline.stage import Inputs, Stage
from niels_gpt.tokenizer import SPECIAL_TOKENS, SentencePieceTokenizer, decode, encode, load_tokenizer, training
from niels_gpt.tokenizer.tokenizers import PART_CHARACTERS, ByteTokenizer, describe, write_tokenizer
from niels_gpt.tokenizer.training import train_sentencepiece
from niels_gpt.tokenizer.vocabulary import Tokenizer
from stages import split as split_stage
from stages import tokenizer as tokenizer_stage
from tests.in_process import no_duplicates, write_source

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
    tokenizer = ByteTokenizer()
    for text in (*SPECIAL_TOKENS, "".join(SPECIAL_TOKENS), f"a {SPECIAL_TOKENS[3]}"):
        expected = list(text.encode())
        assert encode(text).tolist() == tokenizer.encode(text) == expected
        assert tokenizer.encode_batch([text])[0].tolist() == expected


def test_load_tokenizer_by_folder_and_by_file_and_refuses_what_is_none(tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer.json", describe(ByteTokenizer()))
    assert isinstance(load_tokenizer(tmp_path), ByteTokenizer)
    assert isinstance(load_tokenizer(tmp_path / "tokenizer.json"), ByteTokenizer)
    (tmp_path / "tokenizer.json").write_text('{"kind": "runes"}')
    with pytest.raises(ValueError, match="runes"):
        load_tokenizer(tmp_path)
    for damaged in ("{", "[]", "[" * 100_000):
        (tmp_path / "tokenizer.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"tokenizer\.json (is not valid JSON|holds no JSON object)"):
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


# Trained tokenizers


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
def test_a_trained_tokenizer_is_lossless(trained: SentencePieceTokenizer, text: str) -> None:
    ids = trained.encode(text)
    assert trained.decode(ids) == text
    assert trained.encode_batch([text, "x", text])[2].tolist() == ids
    assert not set(ids) & set(trained.special_token_ids().values())
    assert int(trained.token_bytes()[ids].sum()) == len(text.encode())


def test_a_tokenizer_that_its_meta_does_not_describe_is_refused(
    trained: SentencePieceTokenizer, tmp_path: Path
) -> None:
    model = Path(trained.model_path).read_bytes()
    facts = read_meta_of(write_tokenizer(tmp_path / "spm", model=model), tmp_path / "spm")
    assert facts["kind"] == "sentencepiece"
    assert facts["tokenizer_sha256"] == hashlib.sha256(model).hexdigest()
    assert read_meta_of(write_tokenizer(tmp_path / "byte", model=None), tmp_path / "byte")["kind"] == "byte"
    for place in range(0, len(model), len(model) // 40):
        flipped = bytearray(model)
        flipped[place] ^= 4
        (tmp_path / "spm/spm.model").write_bytes(flipped)
        with pytest.raises(ValueError, match=r"spm\.model is not the tokenizer that .*meta\.json describes"):
            load_tokenizer(tmp_path / "spm")
    (tmp_path / "spm/meta.json").write_text('{"kind": ')
    with pytest.raises(ValueError, match=r"meta\.json (is not valid JSON|holds no JSON object)"):
        load_tokenizer(tmp_path / "spm")
    (tmp_path / "spm/meta.json").unlink()  # without it, only an unreadable model is refused
    (tmp_path / "spm/spm.model").write_bytes(model[:-100])
    with pytest.raises(ValueError, match=r"spm\.model is not a SentencePiece model"):
        load_tokenizer(tmp_path / "spm")


def read_meta_of(tokenizer: Tokenizer, folder: Path) -> dict[str, Any]:
    """Return meta.json after checking that it describes the tokenizer, and that the tokenizer beside it opens."""
    facts = read_meta(folder / "meta.json")
    assert facts["vocab_size"] == tokenizer.vocab_size == load_tokenizer(folder).vocab_size
    assert facts["special_token_ids"] == tokenizer.special_token_ids()
    return facts


PARAMS = parse_params((Path(__file__).parent.parent / "params.yaml").read_text())[0]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Write what `load` and `split` make of the sample's sources, and return the training texts by source."""
    monkeypatch.chdir(tmp_path)
    given = {"split": PARAMS.sources["wiki"].split}
    params = PARAMS.model_copy(
        update={"sources": {name: source.model_copy(update=given) for name, source in PARAMS.sources.items()}}
    )
    train = {}
    for number, name in enumerate(sorted(PARAMS.texts)):
        rows = [
            Document(id=str(i), text=f"{name} row {i} bread" * (number + 1), split="train")
            if i % 3
            else Document(id=str(i), text=f"zebra{i} " * 40, split="val")
            for i in range(90)
        ]
        write_source(name, rows, part_rows=40)
        no_duplicates(name, params)
        splitting = Stage(name="split", key=name, params=params, inputs=Inputs({}, {}))
        split_stage.main(splitting)
        publish(splitting.out(f"cache/split/text/{name}"), Path("cache/split/text", name))
        train[name] = [row.text for row in rows if row.split == "train"]
    return train


def sample(sample_bytes: int, seed: int = 1) -> list[str]:
    texts = {name: open_texts(Path("cache/raw", name)) for name in PARAMS.texts}
    sources = {name: (found, read_split(Path("cache/split/text", name), found)) for name, found in texts.items()}
    return [text for _, text in sampled_texts(sources, sample_bytes=sample_bytes, seed=seed)]


def test_the_tokenizer_never_sees_a_row_that_is_held_out(corpus: dict[str, list[str]]) -> None:
    assert sample(10**9) == [text for name in sorted(corpus) for text in corpus[name]]
    pieces = SentencePiece(kind="sentencepiece", corpus="cache/split/text", vocab_size=300, sample_bytes=10**9, seed=1)
    params = PARAMS.model_copy(update={"tokenizer": pieces})
    run = Stage(name="tokenizer", key="", params=params, inputs=Inputs({}, {}))
    tokenizer_stage.main(run)
    trained = load_tokenizer(run.out("cache/tokenizer"))
    assert trained.vocab_size == 300
    spelt = b" ".join(trained.piece(i) for i in range(260, 300))
    assert b"bread" in spelt
    assert b"zebra" not in spelt


def test_the_sample_is_seeded_and_has_the_requested_size_and_every_source(corpus: dict[str, list[str]]) -> None:
    everything = sum(open_texts(Path("cache/raw", name)).text_bytes for name in corpus)
    chosen = sample(everything // 4)
    taken = {name: [text for text in chosen if text in texts] for name, texts in corpus.items()}
    assert [text for name in sorted(corpus) for text in taken[name]] == chosen  # in order, and nothing else
    assert {name: len(texts) for name, texts in taken.items()} == dict.fromkeys(corpus, 15)  # a quarter of 60 rows
    assert sample(everything // 4) == chosen
    assert sample(everything // 4, seed=2) != chosen
    assert len(sample(1)) == len(corpus)  # at least one row of each source


@pytest.mark.slow
def test_equal_text_gives_an_equal_model() -> None:
    assert train_sentencepiece(CORPUS, vocab_size=700) == train_sentencepiece(iter(CORPUS), vocab_size=700)


@pytest.mark.slow
def test_scores_are_rounded_so_that_sums_over_a_part_are_exact_in_float32() -> None:
    """This holds for any corpus, although scores of very rare entries have no lower bound before rounding."""
    proto = ModelProto.FromString(train_sentencepiece(CORPUS[:80], vocab_size=450))
    texts = [piece for piece in proto.pieces if piece.type == ModelProto.SentencePiece.NORMAL]
    drawn = random.Random(5)
    given = [0.0, -0.1, -21.99, -22.0, -22.01, -31.0, -1e3, *(-40 * drawn.random() for _ in texts)]
    for piece, score in zip(texts, given, strict=False):
        piece.score = score
    rounded = ModelProto.FromString(training._rounded(ModelProto.FromString(proto.SerializeToString())))
    lowest = min(piece.score for piece in rounded.pieces)
    assert lowest == -22.0
    for before, after in zip(proto.pieces, rounded.pieces, strict=True):
        assert (before.piece, before.type) == (after.piece, after.type)
        assert (after.score * 2**11).is_integer()
        assert abs(after.score - max(before.score, -22.0)) <= 2**-12
    # An unknown character is 10 below the lowest entry, and 256 of them sum to at most 2^24 steps of 2^-11.
    assert PART_CHARACTERS * (10 - lowest) * 2**11 <= 2**24
    for piece in ModelProto.FromString(train_sentencepiece(CORPUS[:80], vocab_size=450)).pieces:
        assert (piece.score * 2**11).is_integer()


def test_characters_are_entries_until_one_in_two_thousand_is_left_to_bytes() -> None:
    plain = [re.sub("[^a-z\n]+", " ", text.lower()) for text in CORPUS]
    letters = sum(map(len, plain))
    often, seldom = round(0.0006 * letters), round(0.00005 * letters)  # 12 and 1 of 20,000 characters
    text = [*plain, "\u4e2d" * often, "\u0436" * seldom, "\u0439" * seldom]
    proto = ModelProto.FromString(train_sentencepiece(text, vocab_size=600))
    spelt = "".join(piece.piece for piece in proto.pieces if piece.type == ModelProto.SentencePiece.NORMAL)
    assert [character in spelt for character in "az\u4e2d\u0436\u0439"] == [True, True, True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("word", ["zebra", "\u4e2d\u6587\u65e5\u672c", "\U0001f956\U0001f469\U0001f600\U0001f411"])
def test_a_text_is_learned_from_however_long_it_is(word: str, tmp_path: Path) -> None:
    (tmp_path / "spm.model").write_bytes(train_sentencepiece([*CORPUS, word * 3000], vocab_size=600))
    tokenizer = SentencePieceTokenizer(tmp_path / "spm.model")
    assert len(tokenizer.encode(word * 40)) <= 40


@pytest.mark.slow
def test_the_trainer_does_not_stop_at_a_nul() -> None:
    dotted = [text.replace(" ", " \0", 3) for text in CORPUS[:80]]
    assert train_sentencepiece(dotted, vocab_size=450) == train_sentencepiece(CORPUS[:80], vocab_size=450)


@pytest.mark.parametrize(
    ("vocab_size", "sentence"),
    [
        (60_000, "the corpus allows at most [0-9,]+ entries"),
        (270, "need [0-9,]+; set it higher"),
        (70_000, "vocab_size must be less than or equal to 65536"),
        (5, "vocab_size must be greater than or equal to 262"),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_refused_with_one_that_does(vocab_size: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        train_sentencepiece(CORPUS, vocab_size=vocab_size)


def test_the_largest_vocabulary_named_does_fit() -> None:
    with pytest.raises(ValueError, match="at most") as error:
        train_sentencepiece(CORPUS, vocab_size=60_000)
    largest = int(re.search(r"at most ([0-9,]+) entries", str(error.value))[1].replace(",", ""))  # type: ignore[index]
    assert train_sentencepiece(CORPUS, vocab_size=largest)


def test_the_report_counts_bytes_and_shows_how_a_line_is_cut(trained: SentencePieceTokenizer) -> None:
    ids = trained.encode_batch(CORPUS[:50])
    halves = [("a.bin", np.concatenate(ids[:20])), ("b.bin", np.concatenate(ids[20:]))]
    counts = count_ids(halves, V=trained.vocab_size)
    assert np.array_equal(counts, count_ids([("all.bin", np.concatenate(ids))], V=trained.vocab_size))
    with pytest.raises(ValueError, match=rf"^b\.bin has ids at or above V={trained.vocab_size}$"):
        count_ids([halves[0], ("b.bin", np.array([trained.vocab_size], dtype=np.uint16))], V=trained.vocab_size)
    page = "\n".join(tokenizer_lines(trained, {"primer": counts}, line="niels ⛵"))
    tokens, used = sum(map(len, ids)), len(np.unique(np.concatenate(ids)))
    bytes_per_token = sum(len(t.encode()) for t in CORPUS[:50]) / tokens
    assert bytes_per_token > 1.5
    row = next(line.split() for line in page.splitlines() if line.startswith("primer"))
    assert row == ["primer", f"{tokens:,}", f"{bytes_per_token:.3f}", f"{used:,}"]
    assert "<E2>" in page
    longest = sorted((trained.piece(i) for i in range(trained.vocab_size)), key=len)[-1].decode()
    line = next(line for line in page.splitlines() if line.startswith("longest entries: "))
    first = line.removeprefix("longest entries: ").split(" ")[0]
    assert len(first) == len(f"[{longest}]")
