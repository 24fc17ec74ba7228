"""Storage for many large files in a local folder or a bucket (fsspec URL); files are written atomically."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from niels_gpt.files.atomic import atomic_path, discard, sweep

_SCRATCH = "niels_gpt-"  # prefix of local copies in the system's temporary folder


@dataclass(frozen=True)
class Store:
    """Folder or bucket of files. `root` is a path or a URL such as s3://bucket/folder; instances can be pickled."""

    root: str

    @property
    def is_remote(self) -> bool:
        return "://" in self.root

    def below(self, *names: str) -> "Store":
        return Store("/".join((self.root.rstrip("/") or "/", *names)))

    def place(self, file: str) -> str:
        """Return the full path or URL of a file."""
        return f"{self.root.rstrip('/')}/{file}"

    def path(self, file: str) -> Path:
        assert not self.is_remote, f"{self.root} is no folder"
        return Path(self.root, file)

    def size(self, file: str) -> int | None:
        """Return the size of a file in bytes, or None if it does not exist."""
        try:
            if not self.is_remote:
                return self.path(file).stat().st_size
            return int(_file_system(self.root).info(self.place(file))["size"])
        except FileNotFoundError:
            return None

    def read(self, file: str) -> bytes | None:
        """Return the contents of a small file, or None if it does not exist."""
        try:
            if not self.is_remote:
                return self.path(file).read_bytes()
            return bytes(_file_system(self.root).cat_file(self.place(file)))
        except FileNotFoundError:
            return None

    @contextmanager
    def reading(self, file: str) -> Iterator[Path]:
        """Yield a local path: the file itself, or a copy of a remote one (one GET) that is deleted after the block."""
        if not self.is_remote:
            yield self.path(file)
            return
        with tempfile.TemporaryDirectory(prefix=_SCRATCH) as folder:
            copy = Path(folder, Path(file).name)
            self.fetch(file, copy)
            yield copy

    def fetch(self, file: str, to: Path) -> None:
        """Copy a file of a bucket to a local path, atomically."""
        with atomic_path(to) as temporary:
            try:
                _file_system(self.root).get_file(self.place(file), str(temporary))
            except FileNotFoundError:
                raise FileNotFoundError(f"{self.place(file)} is missing") from None

    @contextmanager
    def writing(self, file: str) -> Iterator[Path]:
        """Yield a temporary path to write to; the file appears in the store if the block ends without an error."""
        if not self.is_remote:
            with atomic_path(self.path(file)) as temporary:
                yield temporary
            return
        with tempfile.TemporaryDirectory(prefix=_SCRATCH) as folder:
            path = Path(folder, Path(file).name)
            yield path
            _file_system(self.root).put_file(str(path), self.place(file))

    def files(self) -> dict[str, int]:
        """Return {name: size in bytes} of all files here, for cleaning up.

        Which parts are done is decided by their records (jobs/engine.py), never by a listing.
        """
        if self.is_remote:
            system = _file_system(self.root)
            found = system.find(self.root, detail=True) if system.exists(self.root) else {}
            start = len(system._strip_protocol(self.root).rstrip("/")) + 1
            return {name[start:]: int(info["size"]) for name, info in sorted(found.items())}
        root = Path(self.root)
        paths = sorted(path for path in root.rglob("*") if path.is_file())
        return {path.relative_to(root).as_posix(): path.stat().st_size for path in paths}

    def remove(self, file: str = "") -> None:
        """Delete a file, or everything if no name is given; do nothing if it does not exist."""
        if not self.is_remote:
            discard(self.path(file))
            return
        system, place = _file_system(self.root), self.place(file).rstrip("/")
        if system.exists(place):
            system.rm(place, recursive=not file)

    def sweep(self) -> None:
        """Delete temporary files of killed writers; buckets have none, since objects appear whole."""
        if not self.is_remote:
            sweep(Path(self.root))


@cache
def _file_system(url: str) -> Any:
    """Return fsspec's file system for a URL, without a listings cache since other processes write there too."""
    import fsspec

    try:
        return fsspec.core.url_to_fs(url, use_listings_cache=False)[0]
    except (ImportError, ValueError) as error:
        kind = url.partition("://")[0]
        raise ValueError(
            f"{url} cannot be used ({error}): a folder, or the URL of a service whose fsspec package is installed, "
            f"is needed{' (for s3: pip install niels_gpt[s3])' if kind == 's3' else ''}"
        ) from error
