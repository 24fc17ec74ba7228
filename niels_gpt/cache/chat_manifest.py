"""The manifest of the chats: their files with size and sha256, which fine-tuning checks before it reads a token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from niels_gpt.cache.manifest import Listed, check_files
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.files.descriptions import described_by, read_meta
from niels_gpt.files.ranks import ALONE, Ranks


@dataclass(frozen=True)
class Chats:
    """Every chat source's examples, by the source's name."""

    train: dict[str, SFTExampleDataset]
    val: dict[str, SFTExampleDataset]
    val_names: dict[str, str]


def open_chats(
    path: str | Path, *, names: Sequence[str], T: int, device: str, root: Path, ranks: Ranks = ALONE
) -> Chats:
    """Open the chat caches that a chat mix names, once each file is known to be the one it was made of."""
    with described_by(path):
        mix = read_meta(path)
        files = [file for name in names for file in mix["sources"][name]["files"]]
        listed = [Listed(file["path"], root / file["path"], file["bytes"], file["sha256"]) for file in files]
        check_files(listed, vocab_size=mix["vocab_size"], ranks=ranks)
        return _open_chats(mix, names=names, T=T, device=device, root=root)


def _open_chats(mix: Mapping[str, Any], *, names: Sequence[str], T: int, device: str, root: Path) -> Chats:
    sources = {name: mix["sources"][name] for name in names}

    def datasets(split: str, device: str) -> dict[str, SFTExampleDataset]:
        return {
            name: SFTExampleDataset(
                root / source["folder"] / f"{split}_tokens.bin",
                root / source["folder"] / f"{split}_idx.npy",
                T=T,
                device=device,
                eot_id=mix["special_token_ids"]["eot"],
                asst_id=mix["special_token_ids"]["asst"],
            )
            for name, source in sources.items()
        }

    val_names = {name: source["val_name"] for name, source in sources.items()}
    # The trainer brings batches to the device by itself.
    return Chats(train=datasets("train", "cpu"), val=datasets("val", device), val_names=val_names)
