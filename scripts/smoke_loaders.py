"""Print two samples from every loader, over the network. Run: python -m scripts.smoke_loaders"""

import os
import sys
from collections.abc import Iterator
from itertools import islice

from niels_gpt.data.dolly import iter_dolly_sft
from niels_gpt.data.fineweb_edu import iter_fineweb_edu
from niels_gpt.data.gutenberg import iter_gutenberg
from niels_gpt.data.hub import HubError
from niels_gpt.data.oasst1 import iter_oasst1_sft
from niels_gpt.data.types import ChatSample, PretrainSample
from niels_gpt.data.wikitext import iter_wikitext


def samples() -> Iterator[PretrainSample | ChatSample]:
    """Yield samples, opening loaders one by one, so that the first failure ends the run."""
    yield from iter_fineweb_edu(take=2, shuffle_buffer_size=100)
    yield from iter_wikitext(take=2)
    yield from iter_gutenberg(take=2, shuffle_buffer_size=10)
    yield from iter_dolly_sft(take=2)
    yield from islice(iter_oasst1_sft(take_trees=2), 2)  # a tree has several threads


def main() -> int:
    try:
        for sample in samples():
            if isinstance(sample, ChatSample):
                print(f"[{sample.source}] {sample.meta}")
                for message in sample.messages:
                    print(f"    {message.role}: {message.content[:80]!r}")
            else:
                print(f"[{sample.source}] {sample.text[:80]!r}")
    except (HubError, ValueError, OSError) as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # does not wait for a stream that was left early: see niels_gpt/pipeline/stage.py
