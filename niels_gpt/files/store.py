"""A store of many large files: a folder, or a bucket behind an fsspec URL. A file is in it whole or not at all."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from niels_gpt.files.atomic import atomic_path, discard, sweep

_SCRATCH = "niels_gpt-"  # of copies on this machine, in the system's folder for temporary files


@dataclass(frozen=True)
class Store:
    """`root` is a folder, or a URL such as s3://bucket/folder. Small enough to hand to another process or machine."""

    root: str

    @property
    def is_remote(self) -> bool:
        return "://" in self.root

    def below(self, *names: str) -> Store:
        return Store("/".join((self.root.rstrip("/") or "/", *names)))

    def place(self, file: str) -> str:
        """Where a file lies, to be shown."""
        return f"{self.root.rstrip('/')}/{file}"

    def path(self, file: str) -> Path:
        """Of a file in a folder."""
        assert not self.is_remote, f"{self.root} is no folder"
        return Path(self.root, file)

    def size(self, file: str) -> int | None:
        """In bytes; None where there is no such file."""
        try:
            if not self.is_remote:
                return self.path(file).stat().st_size
            return int(_file_system(self.root).info(self.place(file))["size"])
        except FileNotFoundError:
            return None

    def read(self, file: str) -> bytes | None:
        """A small file; None where there is none."""
        try:
            if not self.is_remote:
                return self.path(file).read_bytes()
            return bytes(_file_system(self.root).cat_file(self.place(file)))
        except FileNotFoundError:
            return None

    @contextmanager
    def reading(self, file: str) -> Iterator[Path]:
        """The file on this machine's disk: itself, or a copy for as long as the block lasts (one GET, not one for every
        piece that is read)."""
        if not self.is_remote:
            yield self.path(file)
            return
        with tempfile.TemporaryDirectory(prefix=_SCRATCH) as folder:
            copy = Path(folder, Path(file).name)
            self.fetch(file, copy)
            yield copy

    def fetch(self, file: str, to: Path) -> None:
        """Copy a file of a bucket to this machine's disk."""
        with atomic_path(to) as temporary:
            try:
                _file_system(self.root).get_file(self.place(file), str(temporary))
            except FileNotFoundError:
                raise FileNotFoundError(f"{self.place(file)} is missing") from None

    @contextmanager
    def writing(self, file: str) -> Iterator[Path]:
        """Write to the path this yields; the file is in the store when the block has ended well."""
        if not self.is_remote:
            with atomic_path(self.path(file)) as temporary:
                yield temporary
            return
        with tempfile.TemporaryDirectory(prefix=_SCRATCH) as folder:
            path = Path(folder, Path(file).name)
            yield path
            _file_system(self.root).put_file(str(path), self.place(file))

    def files(self) -> dict[str, int]:
        """{name: bytes} of all that lies here, for whoever cleans up. What was made is known from records, not from
        this."""
        if self.is_remote:
            system = _file_system(self.root)
            found = system.find(self.root, detail=True) if system.exists(self.root) else {}
            start = len(system._strip_protocol(self.root).rstrip("/")) + 1
            return {name[start:]: int(info["size"]) for name, info in sorted(found.items())}
        root = Path(self.root)
        paths = sorted(path for path in root.rglob("*") if path.is_file())
        return {path.relative_to(root).as_posix(): path.stat().st_size for path in paths}

    def remove(self, file: str = "") -> None:
        """A file, or without a name all of it; nothing where there is none."""
        if not self.is_remote:
            discard(self.path(file))
            return
        system, place = _file_system(self.root), self.place(file).rstrip("/")
        if system.exists(place):
            system.rm(place, recursive=not file)

    def sweep(self) -> None:
        """Delete what killed writers left half written. Buckets have no such thing: an object appears whole."""
        if not self.is_remote:
            sweep(Path(self.root))


@cache
def _file_system(url: str) -> Any:
    """What fsspec has for a URL. Without its cache of listings: others write here, too."""
    import fsspec

    try:
        return fsspec.core.url_to_fs(url, use_listings_cache=False)[0]
    except (ImportError, ValueError) as error:
        kind = url.partition("://")[0]
        raise ValueError(
            f"{url} cannot be used ({error}): a folder, or the URL of a service whose fsspec package is installed, "
            f"is needed{' (for s3: pip install niels_gpt[s3])' if kind == 's3' else ''}"
        ) from error
