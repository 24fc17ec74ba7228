"""Sources with planted duplicates, and helpers to split them."""

import random
from collections.abc import Sequence
from pathlib import Path

from niels_gpt.data.corpus.parts import open_texts
from niels_gpt.data.corpus.split_files import read_split
from niels_gpt.data.types import Chat, Document
from niels_gpt.pipeline.params import Params
from stages import duplicates, split
from tests.in_process import run_in_process, tiny_params, write_source

WORDS = [
    f"{a}{b}{c}"
    for a in ["b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v"]
    for b in "aeiou"
    for c in ("n", "ra", "sto", "mi")
]


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(6, 16))).capitalize() + "."


def note(rng: random.Random) -> str:
    """Return paragraphs of sentences, about 60 to 600 words in all."""
    paragraphs = [" ".join(sentence(rng) for _ in range(rng.randint(2, 5))) for _ in range(rng.randint(3, 10))]
    return "\n\n".join(paragraphs)


def parameters(**values: object) -> Params:
    budget = {"max_train_tokens": None, "max_val_tokens": None}
    common: dict[str, object] = {"use": "text", "remote": "store", "budget": budget, "load": {"kind": "roam"}}

    def source(name: str, rule: dict[str, object]) -> dict[str, object]:
        return {**common, "input": f"data/{name}", "val_name": f"val_{name}", "split": rule}

    seed = values.pop("seed", 1)
    drawn = {"val_frac": 0.2, "seed": seed}
    hub = {"kind": "wikitext", "dataset": None, "config": "c", "revision": None}
    trees: dict[str, object] = {"kind": "oasst1", "dataset": None, "revision": None, "english_only": True}
    trees |= {"max_messages": 32, "seed": 1, "max_trees": None}
    return tiny_params(
        {
            "sources": {
                "large": source("large", {"by": "hash", **drawn}),
                "notes": source("notes", {"by": "document", **drawn}),
                "wiki": source("wiki", {"by": "given"}) | {"load": hub},
                "trees": source("trees", {"by": "tree", **drawn}) | {"use": "chat", "load": trees},
            },
            "p_train": {"large": 1.0, "notes": 1.0, "wiki": 1.0},
            "p_val": {"wiki": 1.0},
            "p_sft": {"trees": 1.0},
            "splice.dataset_name": "notes",
            **values,
        }
    )


def chat(text: str, number: int, tree: int) -> Chat:
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": sentence(random.Random(number))}]
    return Chat(id=f"thread {number}", messages=messages, group=f"tree {tree}")


def decide(params: Params) -> dict[str, dict[str, set[int]]]:
    """Run the duplicates and split stages; return the rows on each side (train, val) of every source."""
    run_in_process("duplicates", duplicates.main, params)
    for name in params.sources:
        run_in_process("split", split.main, params, name)
    return {name: sides_of(name, params) for name in params.sources}


def sides_of(name: str, params: Params) -> dict[str, set[int]]:
    texts = open_texts(Path("cache/raw", name))
    splits = read_split(Path("cache/split", params.sources[name].use, name), texts)
    found: dict[str, set[int]] = {"train": set(), "val": set()}
    first = 0
    for own in splits.by_part(texts):
        with own.reading() as (_, sides):
            for side, rows in sides.items():
                found[side] |= {first + row for row in rows.tolist()}
        first += own.part.rows
    return found


def write_notes(held_out: Sequence[int] = (19,), **texts: Sequence[str]) -> None:
    """Write `texts`, then 20 unrelated ones, to each source; the wiki's rows `held_out` are marked as val."""
    rng = random.Random(11)
    for name in ("large", "notes", "wiki"):
        own = [*texts.get(name, ()), *(note(rng) for _ in range(20))]
        splits = ["val" if name == "wiki" and i in held_out else "train" for i in range(len(own))]
        write_source(name, [Document(str(i), text, splits[i]) for i, text in enumerate(own)])
    write_source("trees", [chat(note(rng), i, i) for i in range(20)])
