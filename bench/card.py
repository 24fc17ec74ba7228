"""Spread of the report card's numbers: over seeds of its misspellings and of what a model writes, over seeds of
training, and between models that are known to differ.

Run: python -m bench.card            in a checkout where `dvc repro` has run; about five minutes

Small models are trained on the text of that run: for 0, 100 and 400 steps, two widths, three seeds. A number separates
two kinds of models if their means differ by more than twice the spread over training seeds.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from unittest import mock

import numpy as np

from niels_gpt.cache.sft_dataset import open_chats
from niels_gpt.cache.windows import open_mix
from niels_gpt.checkpoint import load_model
from niels_gpt.eval import card as probes
from niels_gpt.eval.card import Card, blind_card, measure_card
from niels_gpt.eval.generations import held_out_replies, known_words
from niels_gpt.model.gpt import GPT
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import Params, read_params
from niels_gpt.pipeline.stores import token_places
from niels_gpt.pipeline.training import open_pretraining
from niels_gpt.rng import derive_seed, set_seed
from niels_gpt.tokenizer import load_tokenizer
from niels_gpt.tokenizer.pretrained import renderer_for
from niels_gpt.train.loop import train

PROBE_SEEDS, TRAINING_SEEDS = range(1, 6), (1, 2, 3)
VOWELS, CONSONANTS = "aeiou", "bdfgklmnprstv"
KINDS = {"untrained": (0, 64), "100 steps": (100, 64), "400 steps": (400, 64), "400 steps, half as wide": (400, 32)}


def misspelt(seed: int) -> list[probes.Choice]:
    """Return the choices of `spelling` with other misspellings; those of probes.tsv are from seed 1."""
    choices, found = probes.spelling_choices(), []
    words = [text.split()[0] for text in probes.probe_texts("words")]
    for (right, *_), word in zip(choices, words, strict=True):
        wrong: dict[str, None] = {}
        for tries in count():
            slip = with_a_slip(word, derive_seed(seed, word, tries))
            if slip not in words:
                wrong[slip] = None
            if len(wrong) == 3:
                break
        found.append((right, *(right.replace(word, slip) for slip in wrong)))
    return found


def with_a_slip(word: str, draw: int) -> str:
    """Return the word with two letters swapped or one replaced, as `draw` decides; it may equal the word."""
    draw, swapped = divmod(draw, 2)
    draw, at = divmod(draw, len(word) - 2)
    at += 1
    if swapped:
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    kind = VOWELS if word[at] in VOWELS else CONSONANTS
    return word[:at] + kind[draw % len(kind)] + word[at + 1 :]


def trained(params: Params, *, steps: int, width: int, seed: int) -> GPT:
    task, cfg = open_pretraining(params, device="cpu")
    task = replace(task, cfg=replace(task.cfg, total_steps=max(1, steps), eval_every=max(1, steps), seed=seed))
    set_seed(derive_seed(seed, "init"))
    model = GPT(replace(cfg, C=width, d_ff=4 * width))
    if steps:
        train(model, task)
    return model


def row(name: str, cards: Sequence[Card]) -> str:
    """Return a table row: the mean over cards, and their standard deviation."""
    shown = []
    for key in ("words", "spelling", "grammar", "closing", "form", "length", "repetition", "distinct"):
        values = [card[key].value for card in cards if key in card]
        shown.append(
            f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"
            if len(values) > 1
            else f"{values[0]:.3f}"
            if values
            else ""
        )
    return f"| {name} | {' | '.join(shown)} |"


def main() -> None:
    params, tokenizer = read_params()[0], load_tokenizer(layout.TOKENIZER)
    T = params.model.T
    chats = open_chats(layout.CHAT_MIX, names=list(params.chats), T=T, device="cpu")
    replies = held_out_replies(chats.val, tokenizer, weights=params.p_sft, at_most=64)
    mix = open_mix(layout.MIX, places=token_places(params))
    known = known_words((stream.arrays for stream in mix.train.values()), tokenizer)
    read = (chats.train[name] for name, weight in params.p_sft.items() if weight)
    of_chats = known_words((map(of.whole, range(len(of))) for of in read), tokenizer)

    def card(model: GPT, renderer: str, seed: int = probes.SEED, *, tuned: bool = False) -> Card:
        asked = {"known": known | of_chats if tuned else known, "replies": replies, "T": T, "B": 64, "seed": seed}
        with mock.patch.object(probes, "spelling_choices", return_value=misspelt(seed)):
            return measure_card(model, tokenizer, renderer=renderer, **asked)  # type: ignore[arg-type]

    print("| model | words | spelling | grammar | closing | form | length | repetition | distinct |")
    print("|---|---|---|---|---|---|---|---|---|")
    print(row("by chance", [blind_card(tokenizer)]), flush=True)
    for name, folder in {"pretrain": layout.PRETRAINED, "sft": layout.TUNED}.items():
        tuned = folder == layout.TUNED
        renderer = renderer_for(tokenizer, chats=tuned)
        model = load_model(folder / layout.BEST, "cpu")
        cards = [card(model, renderer, seed, tuned=tuned) for seed in PROBE_SEEDS]
        print(row(f"{name}, seeds of misspellings and texts", cards), flush=True)
    for name, (steps, width) in KINDS.items():
        models = (trained(params, steps=steps, width=width, seed=seed) for seed in TRAINING_SEEDS)
        print(row(f"{name}, seeds of training", [card(model, "transcript") for model in models]), flush=True)


if __name__ == "__main__":
    main()
