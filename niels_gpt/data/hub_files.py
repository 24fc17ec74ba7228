"""The files that a dataset consists of, each to be read by itself: for datasets too large for one process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from niels_gpt.data.hub import builder_of, check_reachable, count_reads, is_local, is_offline, retried


def dataset_files(path: str, name: str | None, *, split: str, revision: str | None) -> list[str]:
    """The files that a split of a dataset consists of, in its own order, as URLs or paths; none where they are of a
    form that cannot be opened one by one."""
    import datasets

    options = {"revision": revision} if revision and not is_local(path) else {}
    if is_local(path):
        name = name if (Path(path) / "README.md").is_file() else None
    elif is_offline():  # the client's cache has rows, not files
        return []
    else:
        check_reachable(path)
    builder = retried(lambda: datasets.load_dataset_builder(path, name, **options), path=path, name=name)
    found = (builder.config.data_files or {}).get(split, [])
    return [str(file) for file in found] if all(builder_of(str(file)) for file in found) else []


def open_files(files: Sequence[str], *, path: str, **options: Any) -> Any:
    """Some files of a dataset as a stream of rows."""
    import datasets

    builder = builder_of(files[0])
    count_reads()
    return retried(
        lambda: datasets.load_dataset(builder, data_files=list(files), split="train", streaming=True, **options),
        path=path,
    )
