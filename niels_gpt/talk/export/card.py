"""Model card of an export: scores, hashes, and licences of the sources."""

import json
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

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

_TRANSFORMERS = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({folder})
model = AutoModelForCausalLM.from_pretrained({folder})
prompt = tokenizer.apply_chat_template(
    [{{"role": "user", "content": "Hello"}}], add_generation_prompt=True, return_tensors="pt"
)
answer = model.generate(**prompt, max_new_tokens=64)
print(tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))
```"""
_GGUF = """\
```bash
llama-cli -m model.gguf --jinja
ollama create {folder} -f Modelfile && ollama run {folder}
```"""


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
    cfg = talker.model.cfg
    size = f"T={cfg.T}, C={cfg.C}, L={cfg.L}, H={cfg.H}, d_ff={cfg.d_ff}, V={cfg.V}"
    # The hub and `import_base` look for the licence in a YAML header.
    header = [] if base is None or base.licence is None else ["---", f"license: {base.licence}", "---", ""]
    lines = [
        *header,
        f"# {talker.name}",
        "",
        f"A GPT of {talker.model.parameter_count():,} parameters ({size}), trained by niels_gpt.",
        f"Chat format: {'a text transcript' if talker.renderer == 'transcript' else 'chat tokens'}.",
        "",
        "## Use it",
        "",
        _usage(talker, form, folder),
        "",
        "## Trained on",
        "",
        "| source | weight in the mix | training tokens | files | sha256 | licence |",
        "|---|---|---|---|---|---|",
    ]
    sources = params["sources"]
    found = {name: licence_of(source["input"], source["load"].get("dataset")) for name, source in sources.items()}
    licences = defaultdict(lambda: UNSAID, {name: licence.replace("|", "\\|") for name, licence in found.items()})
    for name, source in mix["sources"].items():
        parts, tokens = source["train"]["parts"], source["train"]["tokens"]
        row = f"| {name} | {params['p_train'].get(name, 0)} | {tokens:,} | {len(parts)} | {_hashes(parts)} |"
        lines.append(f"{row} {licences[name]} |")
    for name, source in chat_mix["sources"].items() if talker.renderer != "transcript" else ():
        files = source["files"]
        row = f"| {name} (chats) | {params['p_sft'].get(name, 0)} | | {len(files)} | {_hashes(files)} |"
        lines.append(f"{row} {licences[name]} |")
    lines += ["", *_derived(base)]
    scores = [f"| {' | '.join(row[:4])} |" for row in (HEAD, *score_rows(metrics))]
    lines += ["", "## Scores on held-out text", "", scores[0], "|---|---|---|---|", *scores[1:]]
    lines += ["", "## Private text in it", "", *_private(talker.name, private, leaks)]
    lines += ["", _vocabulary(params["tokenizer"])] if private else []
    shown = {key: params[key] for key in ("model", "tokenizer", "p_train", "p_sft", "train", "sft")}
    lines += ["", "## Parameters", "", "```json", json.dumps(shown, indent=2), "```", ""]
    return "\n".join(lines)


def _derived(base: Provenance | None) -> list[str]:
    """Return what the card says about the licence of the weights, and the files of the base they were tuned from."""
    if base is None:
        return ["The weights have no licence of their own: those of the sources apply."]
    where = " (LICENSE)" if base.text is not None else ""
    return [
        f"The weights are derived from the pretrained model {base.name}: its licence, {base.licence or UNSAID}{where}, "
        "applies besides those of the sources.",
        "",
        f"| file of {base.name} | sha256 |",
        "|---|---|",
        *(f"| {file} | `{sha256}` |" for file, sha256 in base.sha256.items()),
    ]


def _usage(talker: Talker, form: Form, folder: str) -> str:
    if form == "transformers":
        return _TRANSFORMERS.format(folder=json.dumps(folder))
    folder = shlex.quote(folder)
    if form == "gguf":
        return _GGUF.format(folder=folder)
    ways = [f"niels-gpt chat --model {folder}", f"niels-gpt serve --model {folder}    # a web page, and OpenAI's API"]
    if talker.renderer == "transcript":
        ways.insert(0, f'niels-gpt sample "Once upon" --model {folder}')
    return "\n".join(["```bash", *ways, "```"])


def _hashes(files: Sequence[Mapping[str, str]]) -> str:
    return " ".join(f"`{file['sha256']}`" for file in files)


def _private(model: str, private: Sequence[str], leaks: Mapping[str, Mapping[str, Any]] | None) -> list[str]:
    if not private:
        return ["None: it was trained on public sources only."]
    if leaks is None:
        return [f"It was trained on private text ({', '.join(private)}). Extraction was not measured."]
    by_source = {name: {model: stats} for name, stats in leaks.items()}
    rows = [f"| {' | '.join(row)} |" for row in (LEAKED, *leak_rows(by_source))]
    return [verdict(by_source, model), "", rows[0], "|---" * len(LEAKED) + "|", *rows[1:]]


def _vocabulary(tokenizer: Mapping[str, Any]) -> str:
    """Return a sentence on what the vocabulary can reveal of private text."""
    if tokenizer["kind"] == "byte":
        return "The vocabulary is bytes: it contains no words."
    if tokenizer["kind"] == "hf":
        return "The vocabulary is that of the pretrained model: it was made without the private text."
    if (least := tokenizer.get("min_documents", 5)) == 1:
        return "The vocabulary may contain any word of the private text, including names."
    return f"No vocabulary entry is a word that occurs in fewer than {least} private documents and in no public source."
