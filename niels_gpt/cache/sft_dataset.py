"""Fine-tuning dataset: whole chats with targets on the assistant's tokens; and opening the caches of a chat mix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from niels_gpt.cache.formats import ANSWER_IDS, TOKEN_DTYPE, named_dtype, read_offsets
from niels_gpt.cache.manifest import Listed, check_files
from niels_gpt.cache.windows import TokenFile
from niels_gpt.chat_template import supervised
from niels_gpt.files.checks import described_by, read_meta
from niels_gpt.files.ranks import ALONE, Ranks
from niels_gpt.model.targets import IGNORE_INDEX
from niels_gpt.tokenizer.vocabulary import token_dtype


class SFTExampleDataset:
    """Dataset of the chats in one token file, each cut to T+1 tokens and read on request.

    An answer stands between `asst_id`, one id or several in a row, and `end_id` (None: `eot_id`). If `asst_id` is None,
    all three and the type of the ids are read from the meta.json next to the file.
    """

    def __init__(
        self,
        tokens_path: str | Path,
        idx_path: str | Path,
        *,
        T: int,
        device: str,
        eot_id: int,
        asst_id: int | Sequence[int] | None = None,
        end_id: int | None = None,
        dtype: np.dtype = TOKEN_DTYPE,
    ) -> None:
        path = Path(tokens_path).with_name("meta.json")
        meta = read_meta(path) if asst_id is None and path.is_file() else {}
        if "token_dtype" in meta:
            dtype = named_dtype(meta["token_dtype"])
        self._tokens = TokenFile.whole(tokens_path, dtype)
        self._starts, self._lengths = read_offsets(idx_path, tokens=len(self._tokens))
        self._T, self._device, self._eot = T, device, eot_id
        if asst_id is None:
            if not path.is_file():
                raise ValueError(f"{path} is missing, which names the assistant's id: build the cache, or give asst_id")
            if ANSWER_IDS not in meta:
                meta = read_meta(path, required=["special_token_ids.asst"])
            asst_id, end_id = answer_ids(meta)
        self._asst, self._end = asst_id, eot_id if end_id is None else end_id

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each example that the model sees, at most T+1."""
        return np.minimum(self._lengths, self._T + 1)

    def document(self, row: int) -> np.ndarray:
        """Return the ids of an example, cut to T+1."""
        return self.whole(row, at_most=self._T + 1)

    def whole(self, row: int, *, at_most: int | None = None) -> np.ndarray:
        """Return the ids of an example, without the limit of T+1 tokens; `at_most` sets another."""
        start, length = int(self._starts[row]), int(self._lengths[row])
        return self._tokens[start : start + (length if at_most is None else min(length, at_most))]

    def get_batch(self, *, B: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (x, y, y_masked) of B random examples, each `(B, T)` int64; see `examples`."""
        rows = torch.randint(0, len(self), (B,), generator=generator).numpy()
        return self.examples(rows)

    def examples(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (x, y, y_masked) of these examples, each `(B, T)` int64: one chat per row, from its start.

        Rows are padded with `eot_id`. y_masked is y with IGNORE_INDEX at all positions but the assistant's.
        """
        ids, learned = self._read(rows)
        sequence = np.full((len(rows), self._T + 1), self._eot, dtype=np.int64)
        sequence[:, : ids.shape[1]] = ids
        masked = np.full_like(sequence, IGNORE_INDEX)
        masked[:, : ids.shape[1]][learned] = ids[learned]
        whole, targets = torch.from_numpy(sequence).to(self._device), torch.from_numpy(masked).to(self._device)
        return whole[:, :-1], whole[:, 1:], targets[:, 1:]

    def targets(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of supervised targets of each of these examples, without building tensors."""
        return self._read(rows)[1][:, 1:].sum(axis=1)

    def _read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ids `(B, n)`, n being the longest example's length, and the mask of supervised tokens."""
        lengths = np.minimum(self._lengths[rows], self._T + 1)
        inside = np.arange(int(lengths.max(initial=0))) < lengths[:, None]
        ids = np.full(inside.shape, self._eot, dtype=self._tokens.dtype)
        ids[inside] = np.concatenate((np.empty(0, dtype=ids.dtype), *map(self.document, rows.tolist())))
        return ids, supervised(ids, asst_id=self._asst, eot_id=self._end) & inside


def answer_ids(meta: Mapping[str, Any]) -> tuple[tuple[int, ...], int]:
    """Return the ids before an answer and the id after it, which a meta.json or the chat mix names."""
    special = meta["special_token_ids"]
    found = meta.get(ANSWER_IDS) or {"begin": [special["asst"]], "end": special["eot"]}
    return tuple(map(int, found["begin"])), int(found["end"])


@dataclass(frozen=True)
class Chats:
    """Datasets of all chat sources by name; `val_names` are the names of the validation sets in metrics."""

    train: dict[str, SFTExampleDataset]
    val: dict[str, SFTExampleDataset]
    val_names: dict[str, str]


def open_chats(
    path: str | Path, *, names: Sequence[str], T: int, device: str, root: Path, ranks: Ranks = ALONE
) -> Chats:
    """Return the datasets of the sources `names` of a chat mix, after checking the hashes of their files."""
    with described_by(path):
        mix = read_meta(path)
        files = [file for name in names for file in mix["sources"][name]["files"]]
        listed = [Listed(file["path"], root / file["path"], file["bytes"], file["sha256"]) for file in files]
        check_files(listed, vocab_size=mix["vocab_size"], ranks=ranks)
        return _open_chats(mix, names=names, T=T, device=device, root=root)


def _open_chats(mix: Mapping[str, Any], *, names: Sequence[str], T: int, device: str, root: Path) -> Chats:
    sources = {name: mix["sources"][name] for name in names}
    asst_id, end_id = answer_ids(mix) if sources else (None, None)

    def datasets(split: str, device: str) -> dict[str, SFTExampleDataset]:
        return {
            name: SFTExampleDataset(
                root / source["folder"] / f"{split}_tokens.bin",
                root / source["folder"] / f"{split}_idx.npy",
                T=T,
                device=device,
                eot_id=mix["special_token_ids"]["eot"],
                asst_id=asst_id,
                end_id=end_id,
                dtype=token_dtype(mix["vocab_size"]),
            )
            for name, source in sources.items()
        }

    val_names = {name: source["val_name"] for name, source in sources.items()}
    # Training batches stay on the CPU: the trainer copies them to the device itself.
    return Chats(train=datasets("train", "cpu"), val=datasets("val", device), val_names=val_names)
