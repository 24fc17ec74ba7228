"""Export to a GGUF file, with tokenizer and chat template, for llama.cpp, Ollama and LM Studio."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jinja2 import Template

from niels_gpt.base.imported import Provenance
from niels_gpt.base.importing import pre_tokenizer_name
from niels_gpt.chat_format import ROLES
from niels_gpt.chat_template import ChatML
from niels_gpt.inference.sampling import SAMPLING
from niels_gpt.talk.export.folders import (
    VocabularyEntry,
    architecture_of,
    jinja_template,
    pieces_of,
    special_ids,
)
from niels_gpt.talk.talker import Talker
from niels_gpt.tokenizer.pretrained import HFTokenizer, byte_alphabet
from niels_gpt.tokenizer.vocabulary import SPECIAL_TOKENS

if TYPE_CHECKING:
    from gguf import GGUFWriter

Precision = Literal["f16", "f32", "q8_0"]

_FILE_TYPES: dict[Precision, int] = {"f32": 0, "f16": 1, "q8_0": 7}  # GGUF's numbers
_BLOCK = 32  # Q8_0 has one scale per 32 numbers of a row; matrices whose rows are no multiple of it stay in float16
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5  # GGUF's token types
_TOKEN_TYPES = {"text": 1, "unknown": 2, "chat": 3, "byte": 6}  # GGUF's: normal, unknown, control, byte
# llama.cpp's plamo2 rounds scores to steps of 1e-4. An entry of score -1000 costs as much as unknown text, which is
# encoded in bytes, and one of twice that or less is never chosen.
_STEP, _UNKNOWN_STEPS, _NEVER = 1e-4, 10_000_000, -1e4


def export_gguf(talker: Talker, folder: Path, *, precision: Precision, base: Provenance | None = None) -> None:
    """Write model.gguf, its matrices in `precision`, and a Modelfile for Ollama."""
    cfg = talker.model.cfg
    architecture = architecture_of(cfg, option="--gguf")
    try:
        from gguf import GGMLQuantizationType, GGUFWriter
        from gguf.quants import quantize
    except ImportError as error:
        raise ValueError("--gguf needs the package gguf: pip install 'niels_gpt[gguf]'") from error
    folder.mkdir(parents=True)
    writer = GGUFWriter(folder / "model.gguf", architecture.name)
    writer.add_name(talker.name)
    if base is not None:
        writer.add_base_model_count(1)
        writer.add_base_model_name(0, base.name)
        if base.licence is not None:
            writer.add_license(base.licence)
    writer.add_sampling_temp(SAMPLING.temperature)
    writer.add_sampling_top_k(SAMPLING.top_k or 0)
    writer.add_file_type(_FILE_TYPES[precision])
    adding: dict[type, Any] = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    for key, number in architecture.gguf_fields(cfg).items():
        adding[type(number)](f"{architecture.name}.{key}", number)
    if isinstance(talker.tokenizer, HFTokenizer):
        _add_pretrained(writer, talker, talker.tokenizer)
    else:
        _add_vocabulary(writer, pieces_of(talker.tokenizer), eot=talker.tokenizer.special_token_ids()["eot"])
        writer.add_chat_template(jinja_template(talker.renderer))
    for name, weight in architecture.weights_to(talker.model.state_dict(), cfg, "gguf").items():
        value = weight.detach().float().numpy()
        kind = GGMLQuantizationType[precision.upper()] if value.ndim > 1 else GGMLQuantizationType.F32
        if kind == GGMLQuantizationType.Q8_0 and value.shape[-1] % _BLOCK:
            kind = GGMLQuantizationType.F16
        writer.add_tensor(name, quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (folder / "Modelfile").write_text(_modelfile(talker), encoding="utf-8")


def _add_pretrained(writer: "GGUFWriter", talker: Talker, tokenizer: HFTokenizer) -> None:
    """Write a pretrained model's vocabulary, merges and chat template, as the model came with them."""
    model, added = tokenizer.described["model"], tokenizer.described["added_tokens"]
    entries = {id: (entry, _NORMAL) for entry, id in model["vocab"].items()}
    entries |= {token["id"]: (token["content"], _CONTROL if token["special"] else _USER_DEFINED) for token in added}
    listed = [entries.get(id, (f"[PAD{id}]", _UNUSED)) for id in range(tokenizer.vocab_size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer_name(tokenizer.described))
    writer.add_token_list([entry for entry, _ in listed])
    writer.add_token_types([kind for _, kind in listed])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])
    bos, eos, pad, _ = special_ids(talker)
    writer.add_bos_token_id(bos)
    writer.add_eos_token_id(eos)
    writer.add_eot_token_id(eos)
    writer.add_pad_token_id(pad)
    writer.add_add_bos_token(False)
    template = talker.chat.template if isinstance(talker.chat, ChatML) else tokenizer.chat_template
    if template is not None:
        writer.add_chat_template(template)


def _add_vocabulary(writer: "GGUFWriter", pieces: list[VocabularyEntry], *, eot: int) -> None:
    """Write the vocabulary for one of llama.cpp's tokenizers that never lose a byte.

    A byte vocabulary uses byte-level BPE without merges; SentencePiece uses PLaMo 2's, a Unigram model with byte
    fallback. (llama.cpp's `t5` has no byte fallback, and its `llama` merges entries instead of maximizing the score.)
    """
    if any(piece.kind == "text" for piece in pieces):
        writer.add_tokenizer_model("plamo2")
        writer.add_token_list([piece.bytes if piece.kind == "text" else piece.name.encode() for piece in pieces])
        writer.add_token_types([_TOKEN_TYPES[piece.kind] for piece in pieces])
        writer.add_token_scores(_steps(pieces))
    else:
        alphabet = byte_alphabet()
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")  # any pre-tokenizer will do, as there are no merges
        writer.add_token_list([alphabet[piece.bytes[0]] if piece.bytes else piece.name for piece in pieces])
        writer.add_token_types([_TOKEN_TYPES["text" if piece.bytes else piece.kind] for piece in pieces])
        writer.add_token_merges(["-- --"])  # at least one is required; no entry is named so
    writer.add_bos_token_id(eot)
    writer.add_eos_token_id(eot)
    writer.add_eot_token_id(eot)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)


def _steps(pieces: list[VocabularyEntry]) -> list[float]:
    """Return scores for plamo2, scaled by the largest power of two that keeps them above its unknown score."""
    lowest = -min(piece.score for piece in pieces if piece.kind == "text")
    stretch = _STEP * 2.0 ** math.floor(math.log2((_UNKNOWN_STEPS - 1) / lowest))
    return [piece.score * stretch if piece.kind == "text" else _NEVER for piece in pieces]


def _modelfile(talker: Talker) -> str:
    *tags, eot = SPECIAL_TOKENS
    template = Template(
        Path(__file__).with_name("Modelfile.jinja").read_text("utf-8"),
        block_start_string="[%",  # {{ }} are Ollama's own
        block_end_string="%]",
        variable_start_string="[[",
        variable_end_string="]]",
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return template.render(
        renderer=talker.renderer,
        system=talker.chat.system if isinstance(talker.chat, ChatML) else None,
        tags=dict(zip(ROLES, tags, strict=True)),
        eot=eot,
        sampling=SAMPLING,
        cfg=talker.model.cfg,
    )
