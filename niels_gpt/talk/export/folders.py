"""Exports as folders: in the project's own format, and for the transformers library; architectures for export."""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tokenizers
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers

from niels_gpt.base.family import SHAPE, Family, Form, as_halves, family_for
from niels_gpt.base.imported import Provenance
from niels_gpt.chat_template import ChatML
from niels_gpt.config import ModelConfig, Renderer, to_dict
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import write_sums
from niels_gpt.inference.sampling import SAMPLING
from niels_gpt.talk.talker import Talker
from niels_gpt.tokenizer.pretrained import HFTokenizer, byte_alphabet
from niels_gpt.tokenizer.tokenizers import PARTS, ByteTokenizer, SentencePieceTokenizer, tokenizer_files
from niels_gpt.tokenizer.vocabulary import BYTE_VALUES, SPECIAL_TOKENS, Tokenizer


def export_model(talker: Talker, folder: Path, *, tokenizer: Path) -> None:
    """Write model.safetensors, config.json and the tokenizer's files."""
    folder.mkdir(parents=True)
    weights = talker.model.state_dict()
    if talker.model.cfg.tied:
        del weights["lm_head.weight"]  # tied to the embedding
    save_weights(folder, weights)
    write_json(folder / "config.json", {**to_dict(talker.model.cfg), "renderer": talker.renderer})
    for file in tokenizer_files(tokenizer):
        shutil.copy(file, folder / file.name)


def write_card(folder: Path, card: str, base: Provenance | None) -> None:
    """Complete an export: write README.md, the licence of the base it started from, and SHA256SUMS."""
    (folder / "README.md").write_text(card, encoding="utf-8")
    if base is not None and base.text is not None:
        (folder / "LICENSE").write_bytes(base.text)
    write_sums(folder)


def save_weights(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    """Write model.safetensors."""
    file = folder / "model.safetensors"
    try:
        save_file({name: value.contiguous() for name, value in weights.items()}, file, metadata={"format": "pt"})
    except SafetensorError as error:  # hides the errno of a full disk
        raise OSError(f"{file} could not be written (is the disk full?): {error}") from error


Kind = Literal["text", "byte", "chat", "unknown"]


@dataclass(frozen=True)
class VocabularyEntry:
    """Vocabulary entry.

    `text` entries are chosen by a Unigram model, where `score` is the log probability; `byte` entries encode what no
    `text` entry covers. The other kinds have no bytes, and no text encodes to them.
    """

    kind: Kind
    name: str
    bytes: bytes
    score: float = 0.0


def pieces_of(tokenizer: Tokenizer) -> list[VocabularyEntry]:
    """Return the vocabulary entries in order of their ids."""
    if isinstance(tokenizer, ByteTokenizer):
        spelt = [VocabularyEntry("byte", f"<0x{byte:02X}>", bytes([byte])) for byte in range(BYTE_VALUES)]
        return spelt + [VocabularyEntry("chat", name, b"") for name in SPECIAL_TOKENS]
    assert isinstance(tokenizer, SentencePieceTokenizer)
    import sentencepiece

    model: Any = sentencepiece.SentencePieceProcessor(model_file=tokenizer.model_path)
    kinds: dict[Kind, Any] = {"byte": model.IsByte, "chat": model.IsControl, "unknown": model.IsUnknown}
    entries = []
    for id in range(tokenizer.vocab_size):
        kind: Kind = next((name for name, is_one in kinds.items() if is_one(id)), "text")
        entries.append(VocabularyEntry(kind, model.IdToPiece(id), tokenizer.piece(id), model.GetScore(id)))
    return entries


def jinja_template(renderer: Renderer) -> str:
    """Return the template of a model from scratch; with `add_generation_prompt` it renders the talker's prompts.

    transformers and llama.cpp render a chat to text and then encode the text, chat tokens included. `Talker.chat`
    encodes what people wrote as plain text, even the name of a chat token. A template cannot, and rejects such names.
    An empty last turn of the assistant in a transcript is the generation prompt: its tag is not written twice.
    """
    return Path(__file__).with_name(f"{renderer}.jinja").read_text("utf-8")


_NEVER = -1e6  # score of an entry that is listed only to keep its id, and never chosen


def export_transformers(talker: Talker, folder: Path) -> None:
    """Write a folder that AutoModelForCausalLM and AutoTokenizer load without custom code."""
    cfg = talker.model.cfg
    architecture = architecture_of(cfg, option="--transformers")
    folder.mkdir(parents=True)
    bos, eos, pad, eot = special_ids(talker)
    ends = {"bos_token_id": bos, "eos_token_id": eos}
    write_json(folder / "config.json", {**architecture.transformers_config(cfg), **ends})
    sampling = {"do_sample": True, "temperature": SAMPLING.temperature, "top_k": SAMPLING.top_k}
    stops = {**ends, "eos_token_id": [eos, eot]} if eos != eot else ends
    write_json(folder / "generation_config.json", {**stops, "pad_token_id": pad, **sampling})
    weights = architecture.weights_to(talker.model.state_dict(), cfg, "transformers")
    # Copied: safetensors rejects tensors that share memory.
    save_weights(folder, {name: value.clone() for name, value in weights.items()})
    if isinstance(talker.tokenizer, HFTokenizer):
        for name, data in talker.tokenizer.files.items():
            (folder / name).write_bytes(data)
    else:
        pieces = pieces_of(talker.tokenizer)
        (folder / "tokenizer.json").write_text(tokenizer_json(pieces), encoding="utf-8")
        write_json(
            folder / "tokenizer_config.json",
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": pieces[eot].name,
                "pad_token": pieces[eot].name,
                "model_max_length": cfg.T,
                "clean_up_tokenization_spaces": False,
            },
        )
        (folder / "chat_template.jinja").write_text(jinja_template(talker.renderer), encoding="utf-8")


def special_ids(talker: Talker) -> tuple[int, int, int, int]:
    """Return bos, eos (ends an answer), pad and eot (between documents); a pretrained model's stay as they were."""
    eot = talker.tokenizer.special_token_ids()["eot"]
    if not isinstance(talker.tokenizer, HFTokenizer):
        return eot, eot, eot, eot
    bos, pad = (talker.tokenizer.named_id(key) for key in ("bos_token", "pad_token"))
    eos = talker.chat.end if isinstance(talker.chat, ChatML) else eot
    return eot if bos is None else bos, eos, eot if pad is None else pad, eot


def tokenizer_json(pieces: list[VocabularyEntry]) -> str:
    """Return the tokenizer in the format of the `tokenizers` library: a Unigram model over bytes.

    Text is mapped to bytes in GPT-2's alphabet, and so are the vocabulary entries. Bytes are then ordinary entries.
    Unlike in the usual conversion of a SentencePiece model, a literal "▁", "<0x0A>" or "<unk>" in a text has no special
    meaning, and invalid UTF-8 decodes as in Python.
    """
    alphabet = byte_alphabet()
    # 10 below the lowest text score, so that a byte is used only where no entry fits: SentencePiece's penalty, too.
    for_bytes = min((piece.score for piece in pieces if piece.kind == "text"), default=0.0) - 10.0
    taken = {piece.bytes for piece in pieces if piece.kind == "text"}
    listed: list[tuple[str, float]] = []
    for piece in pieces:
        spelt = "".join(alphabet[byte] for byte in piece.bytes)
        if piece.kind == "text":
            listed.append((spelt, piece.score))
        elif piece.kind == "byte" and piece.bytes not in taken:
            listed.append((spelt, for_bytes))
        else:
            listed.append((piece.name, _NEVER))
    unknown = next((id for id, piece in enumerate(pieces) if piece.kind == "unknown"), None)
    made = tokenizers.Tokenizer(models.Unigram(listed, unknown, byte_fallback=False))
    parts = pre_tokenizers.Split(tokenizers.Regex(PARTS.pattern), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([parts, to_bytes])
    nothing = decoders.Replace(tokenizers.Regex("^<unk>$"), "")
    made.decoder = decoders.Sequence([nothing, decoders.ByteFallback(), decoders.ByteLevel()])
    special = [tokenizers.AddedToken(piece.name, normalized=False) for piece in pieces if piece.kind == "chat"]
    made.add_special_tokens(special)
    return str(made.to_str(pretty=True))


# Architectures of other libraries that compute the same function as a model of this project. A model with the portable
# block is a Llama or a Qwen3. One with the default block is a GPT-NeoX, in another layout of the weights: its RoPE
# rotates dimension i of a head with i + D/2, ours rotates neighbours (2i, 2i + 1), so the rows of the Q and K weights
# are permuted. Other options exist in no architecture that transformers or llama.cpp has.

_NEOX_SETTINGS = (
    *SHAPE,
    ("D", None, "rope.dimension_count"),
    ("rope_theta", "rotary_emb_base", "rope.freq_base"),
    ("norm_eps", "layer_norm_eps", "attention.layer_norm_epsilon"),
)
# Parts of our names of weights, and by form of theirs.
_NEOX_NAMES: dict[str, dict[Form, str]] = {
    "tok_emb": {"transformers": "gpt_neox.embed_in", "gguf": "token_embd"},
    "lm_head": {"transformers": "embed_out", "gguf": "output"},
    "ln_f": {"transformers": "gpt_neox.final_layer_norm", "gguf": "output_norm"},
    "blocks": {"transformers": "gpt_neox.layers", "gguf": "blk"},
    "ln1": {"transformers": "input_layernorm", "gguf": "attn_norm"},
    "ln2": {"transformers": "post_attention_layernorm", "gguf": "ffn_norm"},
    "attn.qkv": {"transformers": "attention.query_key_value", "gguf": "attn_qkv"},
    "attn.proj": {"transformers": "attention.dense", "gguf": "attn_output"},
    "mlp.fc1": {"transformers": "mlp.dense_h_to_4h", "gguf": "ffn_up"},
    "mlp.fc2": {"transformers": "mlp.dense_4h_to_h", "gguf": "ffn_down"},
}


def architecture_of(cfg: ModelConfig, *, option: str) -> "Family | NeoX":
    """Return the architecture to export a model as; raise a ValueError, naming the CLI `option`, if there is none."""
    family = family_for(cfg)
    if family is None and cfg.options:
        raise ValueError(
            f"GPT-NeoX does not support {', '.join(f'model.{name}' for name in cfg.options)}: export without {option}, "
            "or train with the model section of preset v1 or v3"
        )
    return family or NeoX()


class NeoX:
    """GPT-NeoX, as which a model with the default block is exported. The tied head is listed besides the embedding."""

    name = "gptneox"  # GGUF's architecture

    def transformers_config(self, cfg: ModelConfig) -> dict[str, Any]:
        return {
            **{theirs: getattr(cfg, ours) for ours, theirs, _ in _NEOX_SETTINGS if theirs},
            "architectures": ["GPTNeoXForCausalLM"],
            "model_type": "gpt_neox",
            "vocab_size": cfg.V,
            "hidden_act": "gelu",
            "rotary_pct": 1.0,
            "rope_parameters": {"rope_type": "default", "rope_theta": cfg.rope_theta, "partial_rotary_factor": 1.0},
            "use_parallel_residual": False,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "torch_dtype": "float32",
        }

    def gguf_fields(self, cfg: ModelConfig) -> dict[str, int | float | bool]:
        fields = {theirs: getattr(cfg, ours) for ours, _, theirs in _NEOX_SETTINGS}
        return {**fields, "use_parallel_residual": False, "vocab_size": cfg.V}

    def weights_to(
        self, state_dict: Mapping[str, torch.Tensor], cfg: ModelConfig, form: Form
    ) -> dict[str, torch.Tensor]:
        """Return the weights under the names of `form`; only in transformers, Q, K and V of a head are contiguous."""
        weights, D = {}, cfg.D
        for name, value in state_dict.items():
            theirs = re.sub("|".join(_NEOX_NAMES), lambda ours: _NEOX_NAMES[ours[0]][form], name)
            if ".attn.qkv." in name:
                q, k, v = value.chunk(3)
                heads = [part.unflatten(0, (cfg.H, D)) for part in (as_halves(q, D=D), as_halves(k, D=D), v)]
                weights[theirs] = torch.stack(heads, dim=1 if form == "transformers" else 0).flatten(0, 2)
            else:
                weights[theirs] = value
        return weights
