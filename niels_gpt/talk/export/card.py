"""Model card of an export: scores, hashes, and licences of the sources."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from jinja2 import StrictUndefined, Template

from niels_gpt.base.imported import Provenance
from niels_gpt.data.readers.files import decode_text, read_bytes
from niels_gpt.leak.page import HEAD as LEAKED
from niels_gpt.leak.page import leak_rows, verdict
from niels_gpt.report.tables import HEAD, score_rows
from niels_gpt.talk.talker import Talker

# Licences of well-known Hugging Face datasets; others get a link to their page.
_PUBLISHED = {
    "HuggingFaceFW/fineweb-edu": "ODC-By 1.0",
    "Salesforce/wikitext": "CC BY-SA 3.0 and GFDL",
    "databricks/databricks-dolly-15k": "CC BY-SA 3.0",
    "OpenAssistant/oasst1": "Apache 2.0",
}
_NAMES = tuple(f"{name}{suffix}" for name in ("LICENSE", "LICENCE", "COPYING") for suffix in ("", ".txt", ".md"))
UNSAID = "not stated"


def licence_of(path: str, dataset: str | None) -> str:
    """Return the licence of a hub dataset, or the first line of the licence file next to a local source."""
    if dataset is not None:
        return _PUBLISHED.get(dataset, f"see https://huggingface.co/datasets/{dataset}")
    place = Path(path)
    # The source's folder and its parents, but not the working folder, whose licence is the program's.
    above = [] if place.is_absolute() or ".." in place.parts else list(place.parents)[:-1]
    for folder in (place, *above):
        for file in (folder / name for name in _NAMES):
            if file.is_file():
                lines = decode_text(read_bytes(str(file)))[0].splitlines()
                return next((line.strip("#* \t") for line in lines if line.strip("#* \t")), UNSAID)[:80]
    return UNSAID


Form = Literal["plain", "transformers", "gguf"]


def model_card(
    talker: Talker,
    *,
    form: Form,
    folder: str,
    mix: dict[str, Any],
    chat_mix: dict[str, Any],
    params: dict[str, Any],
    metrics: dict[str, Any],
    private: Sequence[str],
    leaks: Mapping[str, Mapping[str, Any]] | None,
    base: Provenance | None = None,
) -> str:
    """Return the model card in Markdown: names, numbers and hashes, but no training text.

    `form` and `folder` determine the usage example. `leaks` has the leak statistics of each private source, and is None
    if they were not measured.
    """
    sources = params["sources"]
    found = {name: licence_of(source["input"], source["load"].get("dataset")) for name, source in sources.items()}
    shown = {key: params[key] for key in ("model", "tokenizer", "p_train", "p_sft", "train", "sft")}
    by_source = {name: {talker.name: stats} for name, stats in (leaks or {}).items()}
    text = Path(__file__).with_name("card.md.jinja").read_text("utf-8")
    template = Template(text, trim_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined)
    return template.render(
        talker=talker,
        cfg=talker.model.cfg,
        form=form,
        folder=json.dumps(folder) if form == "transformers" else shlex.quote(folder),
        mix=mix,
        chat_mix=chat_mix,
        params=params,
        parameters=json.dumps(shown, indent=2),
        min_documents=params["tokenizer"].get("min_documents", 5),
        licences={name: licence.replace("|", "\\|") for name, licence in found.items()},
        unsaid=UNSAID,
        scores_head=HEAD[:4],
        scores=score_rows(metrics),
        private=private,
        leaks=leaks,
        leaked_head=LEAKED,
        leaked=leak_rows(by_source),
        verdict=verdict(by_source, talker.name),
        base=base,
    )
