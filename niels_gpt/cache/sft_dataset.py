"""Fine-tuning dataset: whole chats with targets on the assistant's tokens; and opening the caches of a chat mix."""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch

from niels_gpt.cache.formats import ANSWER_IDS, TOKEN_DTYPE, read_offsets
from niels_gpt.cache.windows import Mix, TokenFile, raise_problems
from niels_gpt.chat_template import supervised
from niels_gpt.files.checks import changed_files, described_by, read_meta
from niels_gpt.files.ranks import ALONE, Ranks
from niels_gpt.model.targets import IGNORE_INDEX
from niels_gpt.tokenizer.vocabulary import token_dtype


class SFTExampleDataset:
    """Dataset of the chats in one token file, each cut to T+1 tokens and read on request.

    An answer stands between `asst_id`, one id or several in a row, and `eot_id`. If `asst_id` is None, these marks and
    the type of the ids are those of `meta`, by default of the meta.json next to the file.
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
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        end_id, dtype = eot_id, TOKEN_DTYPE
        if asst_id is None:
            beside = Path(tokens_path).with_name("meta.json")
            meta = meta or read_meta(beside, required=["vocab_size", "special_token_ids"])
            dtype, (asst_id, end_id) = token_dtype(meta["vocab_size"]), _answer_ids(meta)
        self._asst, self._end = asst_id, end_id
        self._tokens = TokenFile.whole(tokens_path, dtype)
        self._starts, self._lengths = read_offsets(idx_path, tokens=len(self._tokens))
        self.lengths = np.minimum(self._lengths, T + 1)  # of what the model sees of each example
        self._T, self._device, self._eot = T, device, eot_id

    def __len__(self) -> int:
        return len(self._starts)

    def document(self, row: int) -> np.ndarray:
        """Return the ids of an example that the model sees."""
        return self.whole(row)[: self._T + 1]

    def whole(self, row: int) -> np.ndarray:
        start = int(self._starts[row])
        return self._tokens[start : start + int(self._lengths[row])]

    def get_batch(self, *, B: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (x, y, y_masked) of B random examples, each `(B, T)` int64; see `examples`."""
        return self.examples(torch.randint(0, len(self), (B,), generator=generator).numpy())

    def examples(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (x, y, y_masked) of these examples, each `(B, T)` int64: one chat per row, from its start.

        Rows are padded with `eot_id`. y_masked is y with IGNORE_INDEX at all positions but the assistant's.
        """
        ids, learned = self._read(rows, width=self._T + 1)
        sequence = torch.from_numpy(ids.astype(np.int64)).to(self._device)
        masked = sequence.where(torch.from_numpy(learned).to(self._device), IGNORE_INDEX)
        return sequence[:, :-1], sequence[:, 1:], masked[:, 1:]

    def targets(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of supervised targets of each of these examples, without building tensors."""
        return self._read(rows)[1][:, 1:].sum(axis=1)

    def packs(self) -> list[np.ndarray]:
        """Return the examples grouped by best fit into rows of at most T+1 tokens; each example is in one row."""
        return best_fit(self.lengths, room=self._T + 1)

    def packed(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (x, y_masked, segment_ids), each `(T,)` int64, of one row that has these examples one after another.

        The first token of a chat is no target, so nothing is learned across chats. Padding is a segment of its own.
        """
        (ids, learned), lengths = self._read(rows), self.lengths[rows]
        segments = np.full(self._T + 1, len(rows), dtype=np.int64)
        segments[: lengths.sum()] = np.repeat(np.arange(len(rows)), lengths)
        inside = np.arange(ids.shape[1]) < lengths[:, None]
        sequence, masked = np.full_like(segments, self._eot), np.full_like(segments, IGNORE_INDEX)
        sequence[: lengths.sum()] = ids[inside]
        masked[: lengths.sum()] = np.where(learned, ids.astype(np.int64), IGNORE_INDEX)[inside]
        return torch.from_numpy(sequence[:-1]), torch.from_numpy(masked[1:]), torch.from_numpy(segments[:-1])

    def answered(self) -> "SFTExampleDataset":
        """Return the dataset without the examples that have no supervised target within T+1 tokens."""
        some = np.array_split(np.arange(len(self)), 1 + len(self) // 1024)  # in turn, which bounds the memory
        there, kept = np.concatenate([self.targets(rows) for rows in some]) > 0, copy(self)
        kept._starts, kept._lengths, kept.lengths = self._starts[there], self._lengths[there], self.lengths[there]
        return kept

    def _read(self, rows: np.ndarray, *, width: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return ids `(B, width)` and the mask of supervised tokens; the default width is the longest example's."""
        lengths = self.lengths[rows]
        inside = np.arange(width or int(lengths.max(initial=0))) < lengths[:, None]
        ids = np.full(inside.shape, self._eot, dtype=self._tokens.dtype)
        ids[inside] = np.concatenate((np.empty(0, dtype=ids.dtype), *map(self.document, rows.tolist())))
        return ids, supervised(ids, asst_id=self._asst, eot_id=self._end) & inside


def best_fit(lengths: np.ndarray, *, room: int) -> list[np.ndarray]:
    """Return the indices of the items of each row of at most `room` tokens.

    Best fit: longest first, each item into the fullest row that still has room for it.
    """
    rows: list[list[int]] = []
    spare: list[tuple[int, int]] = []  # (room left, row), sorted
    for item in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[item])
        place = bisect_left(spare, (length, 0))
        left, row = spare.pop(place) if place < len(spare) else (room, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(item)
        insort(spare, (left - length, row))
    return [np.array(row) for row in rows]


def _answer_ids(meta: Mapping[str, Any]) -> tuple[tuple[int, ...], int]:
    """Return the ids before an answer and the id after it, which a meta.json or the chat mix names."""
    special = meta["special_token_ids"]
    found = meta.get(ANSWER_IDS) or {"begin": [special["asst"]], "end": special["eot"]}
    return tuple(map(int, found["begin"])), int(found["end"])


def open_chats(
    path: str | Path, *, names: Sequence[str], T: int, device: str, ranks: Ranks = ALONE
) -> Mix[SFTExampleDataset]:
    """Return the datasets of the sources `names` of a chat mix, after checking the hashes of their files.

    Chats without an answer within T tokens are left out.
    """
    with described_by(path):
        mix = read_meta(path)
        sources = {name: mix["sources"][name] for name in names}
        files = [file for source in sources.values() for file in source["files"]]
        raise_problems(changed_files(ranks.files(files), root=Path()), ranks=ranks)

        def dataset(name: str, split: str, device: str) -> SFTExampleDataset:
            paths = (Path(sources[name]["folder"], f"{split}_{end}") for end in ("tokens.bin", "idx.npy"))
            eot_id = mix["special_token_ids"]["eot"]
            found = SFTExampleDataset(*paths, T=T, device=device, eot_id=eot_id, meta=mix).answered()
            if not len(found):
                raise ValueError(
                    f"{name}: no chat for {split} has an answer within model.T = {T} tokens: raise model.T"
                )
            return found

        return Mix(
            vocab_size=mix["vocab_size"],
            train={name: dataset(name, "train", "cpu") for name in sources},  # the trainer copies batches itself
            val={name: dataset(name, "val", device) for name in sources},
            val_names={name: source["val_name"] for name, source in sources.items()},
        )
