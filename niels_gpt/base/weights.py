"""Readers of pretrained weights, one tensor at a time: safetensors as transformers writes them, and GGUF."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


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
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    index = folder / INDEX
    if not index.is_file():
        raise ValueError(f"{folder} holds no {WEIGHTS}: take a folder in transformers' form with safetensors")
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
