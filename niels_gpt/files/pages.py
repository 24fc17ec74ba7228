"""Resident pages of memory-mapped files, and how a process lets go of them."""

from __future__ import annotations

import mmap

import numpy as np


def release_pages(array: np.ndarray) -> None:
    """Let go of what was read of a mapped file; it stays in the kernel's cache, and reading it again costs no disk.

    A kernel that caches files in large pieces maps the whole piece around each number that is read. Random windows
    would so, after some hundred batches, have all of a corpus count as this process's memory.
    """
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and not array.flags.writeable:  # what was written to a private map would be lost
        base.madvise(mmap.MADV_DONTNEED)
