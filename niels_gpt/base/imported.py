"""An imported base: the folder that `importing.py` writes, checked before training starts from it."""

from dataclasses import dataclass, replace
from pathlib import Path

from niels_gpt.config import ModelConfig, Renderer
from niels_gpt.files.checks import Damaged, changed_files, name_all, read_meta
from niels_gpt.tokenizer.tokenizers import load_tokenizer, tokenizer_sha256

WEIGHTS, CONFIG, ORIGIN, TOKENIZER, LICENCE = "best.pt", "config.json", "origin.json", "tokenizer", "LICENSE.txt"
UNKNOWN = "licence unknown"


@dataclass(frozen=True)
class ImportedBase:
    """Base in a folder; `cfg.T` is the context length it was trained for."""

    folder: Path
    cfg: ModelConfig
    renderer: Renderer

    def config(self, *, T: int, dropout: float) -> ModelConfig:
        """Return the configuration of a model that starts from this base, with its own context length and dropout."""
        if T > self.cfg.T:
            raise ValueError(f"model.T is {T}, and the base was trained for {self.cfg.T} tokens: lower it")
        return replace(self.cfg, T=T, dropout=dropout)

    def check(self, tokenizer: Path) -> None:
        """Raise `Damaged` if a file is not the one that was imported, or if `tokenizer` is not the base's."""
        bad = changed_files(read_meta(self.folder / ORIGIN, required=["files"])["files"], root=self.folder)
        if bad:
            raise Damaged(self.folder, f"is not the base that was imported: {name_all(bad)}")
        own, used = (tokenizer_sha256(load_tokenizer(each)) for each in (self.folder / TOKENIZER, tokenizer))
        if own != used:
            raise Damaged(tokenizer, f"is not the tokenizer of the base in {self.folder}: they do not belong together")


def is_imported(folder: Path) -> bool:
    """Return whether a folder holds a base, and not only the mark that there is none."""
    return (folder / CONFIG).is_file()


@dataclass(frozen=True)
class Provenance:
    """Name, licence and files of a base; they go with every export of a model that starts from it."""

    name: str  # with its commit, if it came from the hub
    licence: str | None
    text: bytes | None  # of the licence
    sha256: dict[str, str]  # of each file that was imported


def provenance_of(folder: Path) -> Provenance | None:
    """Return where the base in a folder came from and its licence; None if the folder holds no base."""
    if not is_imported(folder):
        return None
    origin = read_meta(folder / ORIGIN, required=["from", "revision", "sha256", "licence"])
    # The path of a folder or file is the owner's business; its name is enough.
    name = f"{origin['from']}@{origin['revision']}" if origin["revision"] else Path(origin["from"]).name
    text = folder / LICENCE
    licence = None if origin["licence"] == UNKNOWN else origin["licence"]
    return Provenance(name, licence, text.read_bytes() if text.is_file() else None, origin["sha256"])


def open_base(folder: Path) -> ImportedBase:
    """Read the description of an imported base."""
    config = read_meta(folder / CONFIG, required=["renderer"])
    renderer: Renderer = config.pop("renderer")
    return ImportedBase(folder, ModelConfig.from_dict(config), renderer)
