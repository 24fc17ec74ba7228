"""The probes of the report card: texts to choose between, questions to answer, openings to go on from.

Written for this project, and the same for every run: words and sentences stand here, and what is random in them is a
hash of one seed. Nothing here knows a tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass

from niels_gpt.rng import derive_seed

SEED = 1
_WRONG = 3  # misspellings of a word
_VOWELS, _CONSONANTS = "aeiou", "bdfgklmnprstv"

# Half of them common, half rare.
_WORD_LIST = """
morning evening weather mountain winter summer garden window kitchen village country history science language machine
mother brother children doctor teacher picture letter number question answer reason century minute friend animal island
forest valley bridge castle church market station engine captain soldier kingdom president council silver bottle
lighthouse carpenter orchestra umbrella parliament mathematics telescope vegetable harvest skeleton cathedral volcano
laboratory elephant butterfly chocolate avalanche philosophy architect calendar dictionary furniture geography hurricane
instrument landscape microscope neighbour orchard passenger reservoir sculpture territory universe vocabulary wilderness
expedition manuscript thunder blanket feather alphabet newspaper breakfast sentence musician railway leather
"""
_WORDS = _WORD_LIST.split()
_WORD_IN = ("It was the {} again.", "He saw a {} there.", "And then the {} came.", "No {} was found.")

MARKS = {'"': '"', "(": ")", "[": "]"}
_MARKED_IN = (
    "The second line, {}, was hard to read.",
    "On the door it said {} in large letters.",
    "She added {} at the end of the page.",
    "Below the map was {} in red.",
)
_MARKED = (
    "the water is cold",
    "see the other side",
    "not before noon",
    "two of them",
    "the old road",
    "as far as we know",
)
_MARKED_TEXTS = 12  # of all that these make

QUESTIONS = (
    "Hello!",
    "Who are you?",
    "What can you do?",
    "Why is the sea salt?",
    "How do I boil an egg?",
    "What is a good name for a cat?",
    "How many days does a week have?",
    "What should I cook tonight?",
    "why do leaves turn red",
    "Can you tell me a short story?",
    "I cannot sleep. What helps?",
    "What is the moon made of?",
    "how do i tie a knot",
    "Where does bread come from?",
    "Explain what a neural network is.",
    "Is it going to rain?",
    "What did you do today?",
    "Why do cats purr?",
    "Give me one piece of advice.",
    "What is your favourite book?",
    "How far away is the sun?",
    "My plant is dying. What did I do wrong?",
    "What is two and two?",
    "Thank you, that was kind.",
)

OPENINGS = (
    "The house by the river",
    "In the first year of the war",
    "It was late in the evening when",
    "The city has a long history of",
    "A good loaf of bread",
    "She was born in",
    "Nobody knows why the",
    "The train to the north",
    "After the storm, the",
    "Most of the book is about",
    "When the engine stopped,",
    "The second album of the band",
)


@dataclass(frozen=True)
class Choice:
    """Texts that differ in one place, of which the first is right."""

    texts: tuple[str, ...]


@dataclass(frozen=True)
class Marked:
    """A text with every mark that may open in it (by row), and every mark that may close (by column)."""

    texts: tuple[tuple[str, ...], ...]


def spelling(seed: int = SEED) -> list[Choice]:
    """A word against misspellings of it that are as long, in the same sentence."""
    return [
        Choice(tuple(_WORD_IN[i % len(_WORD_IN)].format(it) for it in (word, *_misspelt(word, seed))))
        for i, word in enumerate(_WORDS)
    ]


def closing(seed: int = SEED) -> list[Marked]:
    """What was opened is closed by its own mark, and by each of the others."""
    made = [
        Marked(tuple(tuple(sentence.format(f"{opened}{phrase}{mark}") for mark in MARKS.values()) for opened in MARKS))
        for sentence in _MARKED_IN
        for phrase in _MARKED
    ]
    return sorted(made, key=lambda marked: derive_seed(seed, marked.texts[0][0]))[:_MARKED_TEXTS]


def _misspelt(word: str, seed: int) -> list[str]:
    found: list[str] = []
    tries = 0
    while len(found) < _WRONG:
        wrong = _with_a_slip(word, derive_seed(seed, word, tries))
        tries += 1
        if wrong not in (word, *found, *_WORDS):
            found.append(wrong)
    return found


def _with_a_slip(word: str, draw: int) -> str:
    """Two letters change places, or one becomes another of its kind; the first stays."""
    draw, swapped = divmod(draw, 2)
    draw, at = divmod(draw, len(word) - 2)
    at += 1
    if swapped:
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    kind = _VOWELS if word[at] in _VOWELS else _CONSONANTS
    return word[:at] + kind[draw % len(kind)] + word[at + 1 :]
