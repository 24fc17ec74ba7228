"""Tests of exports with a pretrained model's tokenizer: it is exported as imported, and can be imported again."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from niels_gpt.base.importing import pre_tokenizer_name, write_tokenizer_from_gguf
from niels_gpt.config import ModelConfig
from niels_gpt.files.atomic import write_json
from niels_gpt.model.gpt import GPT
from niels_gpt.talk.export.folders import export_model, export_transformers, write_card
from niels_gpt.talk.export.gguf import export_gguf
from niels_gpt.talk.talker import Talker, open_talker
from niels_gpt.tokenizer import HFTokenizer
from niels_gpt.tokenizer.tokenizers import write_tokenizer_meta
from tests.tiny_base import CHAT, LINE, SMOLLM2_TEMPLATE

CORPUS = (Path(__file__).parent.parent / "data/primer.txt").read_text().split("\n\n<dialogue>\n\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tokenizer in transformers' form, of a model with some unused vocabulary entries."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=names, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    made.add_tokens(["<think>"])
    folder = tmp_path_factory.mktemp("tokenizer")
    made.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(SMOLLM2_TEMPLATE)
    tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **tokens})
    write_tokenizer_meta(folder, vocab_size=416)
    return folder


@pytest.fixture(scope="module")
def talker(folder: Path) -> Talker:
    torch.manual_seed(1)
    tokenizer = HFTokenizer(folder / "tokenizer.json", vocab_size=416)
    cfg = ModelConfig(
        V=416, T=64, C=16, L=1, H=4, kv_heads=2, d_ff=32, dropout=0.0, norm="rms", bias=False, activation="swiglu"
    )
    return Talker("tuned", GPT(cfg), tokenizer, "chatml", slots=1)


@pytest.mark.slow
def test_transformers_gets_the_files_as_they_came_and_asks_the_same(
    talker: Talker, folder: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    export_transformers(talker, tmp_path / "out")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "out"))
    asked = theirs.apply_chat_template(CHAT[:3], add_generation_prompt=True)["input_ids"]
    assert asked == talker.chat.prompt(CHAT[:3])
    stops = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert (stops["bos_token_id"], stops["eos_token_id"], stops["pad_token_id"]) == (1, [2, 0], 2)
    assert json.loads((tmp_path / "out/config.json").read_text())["eos_token_id"] == 2


def test_a_gguf_file_has_the_vocabulary_of_which_the_same_tokenizer_is_made(talker: Talker, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    export_gguf(talker, tmp_path / "out", precision="f16")
    fields = gguf.GGUFReader(tmp_path / "out/model.gguf").fields
    assert fields["tokenizer.ggml.pre"].contents() == "smollm"
    assert fields["tokenizer.ggml.tokens"].contents()[-1] == "[PAD415]"
    ids = [fields[f"tokenizer.ggml.{name}_token_id"].contents() for name in ("bos", "eos", "eot", "padding")]
    assert ids == [1, 2, 2, 2]
    metadata = {name: field.contents() for name, field in fields.items()}
    again = write_tokenizer_from_gguf(metadata, tmp_path / "again")
    ours = talker.tokenizer
    assert isinstance(ours, HFTokenizer)
    assert again.vocab_size == ours.vocab_size == 416
    assert again.control == ours.control
    assert again.chat_template == ours.chat_template
    assert [again.piece(i) for i in range(416)] == [ours.piece(i) for i in range(416)]
    for text in (*CORPUS[:40], "<|im_end|> 2024", "<think>"):
        assert again.encode(text) == ours.encode(text)
    modelfile = (tmp_path / "out/Modelfile").read_text()
    assert f'SYSTEM """{LINE}"""' in modelfile
    assert 'PARAMETER stop "<|im_end|>"' in modelfile
    assert "{{ end }}<|im_start|>assistant\n" in modelfile


def test_an_export_in_our_own_form_answers_as_before(talker: Talker, folder: Path, tmp_path: Path) -> None:
    export_model(talker, tmp_path / "out", tokenizer=folder)
    write_card(tmp_path / "out", "", None)
    opened = open_talker(tmp_path / "out", device="cpu")
    assert (opened.renderer, opened.tokenizer.vocab_size) == ("chatml", 416)
    assert opened.chat.prompt(CHAT[:3]) == talker.chat.prompt(CHAT[:3])


def test_pre_tokenizers_of_published_files_have_a_name(talker: Talker) -> None:
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    qwen = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    steps = [{**split, "pattern": {"Regex": qwen}}, level]
    assert pre_tokenizer_name({"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}) == "qwen2"
    assert pre_tokenizer_name({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}}) == "gpt-2"
    with pytest.raises(ValueError, match="no name for the pre-tokenizer"):
        pre_tokenizer_name({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [level]}})
