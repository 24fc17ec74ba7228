"""Secrets of the sources as they lie: what `niels-gpt inspect secrets` shows."""

from __future__ import annotations

from collections.abc import Iterator

from niels_gpt.data.types import Request
from niels_gpt.files.store import Store
from niels_gpt.pipeline.inputs import located
from niels_gpt.pipeline.params import Params


def listed_secrets(params: Params, name: str | None) -> Iterator[str]:
    """Yield a line for each secret of a source, or of all of them, read anew, and how many there are."""
    from niels_gpt.data.loading import cut_source  # pyarrow, which a machine that only trains need not have
    from niels_gpt.data.screening import findings_of

    sources = {**params.sources, **params.chats}
    if name is not None and name not in sources:
        raise ValueError(f"there is no source {name!r}; there are: {', '.join(sources)}")
    for key in sources if name is None else [name]:
        source = sources[key]
        path, revision = located(source.input, source.settings())
        budget = params.sources[key].budget.tokens() if key in params.sources else None
        request = Request(path, revision, max_tokens=budget, patience_s=params.runtime.hub_patience_s)
        slices = cut_source(source.kind.name, source.settings(), request, store=Store(""), text_bytes=1 << 30)
        count = 0
        for place, around in (found for part in slices for row in part.rows() for found in findings_of(row)):
            count += 1
            yield f"{key}: {place}    {around}"
        yield f"{key}: {count:,} secrets (on_secret: {source.on_secret})"
