"""Documents/s from a loopback hub through the loader into parquet, beside plain iteration over the same dataset.

Run: python -m bench.load
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.rounds import median_ratio, medians, print_result, seconds_in_turns
from tests.hub.fixture import running_hub
from tests.hub.repositories import make_large_fineweb

MEGABYTES = 100


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_large_fineweb(root / "hub/HuggingFaceFW/fineweb-edu", megabytes=MEGABYTES)
        with running_hub(root / "hub") as hub:
            os.environ.update(hub.environment(root / "home"))  # before `datasets` reads it
            measure(root)


def measure(root: Path) -> None:
    from niels_gpt.data.corpus.parts import DOCUMENT_SCHEMA, write_rows
    from niels_gpt.data.fineweb_edu import DATASET, iter_fineweb_edu
    from niels_gpt.data.hub import load_dataset
    from niels_gpt.data.streaming import parquet_options
    from niels_gpt.data.types import Document

    counts: dict[str, int] = {}

    def plain() -> None:
        parquet = parquet_options(DATASET, columns=("text", "id", "url", "score"))
        dataset = load_dataset(DATASET, "CC-MAIN-2024-10", split="train", streaming=True, **parquet)
        counts["plain"] = sum(1 for _ in dataset.shuffle(seed=42, buffer_size=1000, max_buffer_input_shards=1))

    def load() -> None:
        pages = iter_fineweb_edu(shuffle_buffer_size=1000)
        documents = (Document(id=page.meta["id"], text=page.text) for page in pages)
        counts["load"] = write_rows(root / "part.parquet", DOCUMENT_SCHEMA, documents)[0]

    ways: dict[str, Callable[[], object]] = {"load": load, "plain iteration": plain}
    seconds = seconds_in_turns(ways, rounds=3, calls=1)
    assert counts["plain"] == counts["load"], counts
    rates = {name: counts["load"] / value for name, value in medians(seconds).items()}
    print_result(
        f"documents of a {MEGABYTES} MB file on a loopback hub",
        rates,
        unit="documents/s",
        ratio=median_ratio(seconds["plain iteration"], seconds["load"]),
    )


if __name__ == "__main__":
    main()
