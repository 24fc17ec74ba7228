"""Recall of the primer by a fine-tuned model: ten questions that it was trained on, its answers, and the primer's.

Run: python -m bench.primer [MODEL FOLDER]      models/sft by default; params.yaml says where the dialogues are
"""

import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import fmean

from bench.rounds import print_result
from niels_gpt.data.corpus.split import split_by_hash, split_rows
from niels_gpt.data.kinds import source_kinds
from niels_gpt.data.types import Chat, Request
from niels_gpt.inference.sampling import Sampling
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import read_params
from niels_gpt.pipeline.sections import Source
from niels_gpt.talk.talker import open_talker

QUESTIONS = 10
_WORD = re.compile(r"\w+(?:'\w+)*")


@dataclass(frozen=True)
class Exchange:
    """Beginning of a dialogue: the turns before the first answer (user, and system if there is one), and that answer.

    `number` counts dialogues from 1, as the load stage does."""

    number: int
    prompt: list[dict[str, str]]
    answer: str


def first_exchange(number: int, chat: Chat) -> Exchange:
    prompt = list(takewhile(lambda message: message["role"] != "assistant", chat.messages))
    return Exchange(number, prompt, chat.messages[len(prompt)]["content"])


def trained_exchanges(source: Source) -> list[Exchange]:
    """Return the exchanges of the training dialogues in file order, without dialogues that the assistant begins."""
    request = Request(source.input, revision=None, max_tokens=None, patience_s=0.0)
    chats, rule = list(source_kinds()[source.load.kind].read(source.load.settings(), request)), source.split
    if rule.by == "hash":
        rows = split_by_hash([chat.id for chat in chats], rule)["train"].tolist()
    else:
        rows = split_rows(len(chats), val_frac=rule.val_frac, seed=rule.seed)[0]
    found = [first_exchange(row + 1, chats[row]) for row in rows]
    return [exchange for exchange in found if any(message["role"] == "user" for message in exchange.prompt)]


def spread(exchanges: Sequence[Exchange], n: int) -> list[Exchange]:
    """Return n exchanges, or all, evenly spaced over the file from the first one on."""
    n = min(n, len(exchanges))
    return [exchanges[i * len(exchanges) // n] for i in range(n)]


def share_of_words(answer: str, wanted: str) -> float:
    """Return the share of the words of `wanted` that are in the answer.

    Words are lower-cased and counted as a multiset: a word that is wanted twice must occur twice. Neither their order
    nor further words matter."""
    said, words = (Counter(_WORD.findall(text.lower())) for text in (answer, wanted))
    return (said & words).total() / max(1, words.total())


def main() -> None:
    params, _ = read_params()
    folder = sys.argv[1] if len(sys.argv) > 1 else "models/sft"
    talker = open_talker(folder, device="cpu", tokenizer=layout.TOKENIZER)
    shares = {}
    for exchange in spread(trained_exchanges(params.chats["dialogues"]), QUESTIONS):
        said = talker.reply(
            exchange.prompt, sampling=Sampling(temperature=0), max_new_tokens=params.eval.max_new_tokens, seed=0
        )
        answer = "".join(said)
        share = share_of_words(answer, exchange.answer)
        shares[f"dialogue {exchange.number}"] = share
        for message in exchange.prompt:
            print(f"{message['role']}: {message['content']}")
        print(f"answered: {answer}\nprimer:   {exchange.answer}\n{share:.2f} of its words\n")
    mean = fmean(shares.values())
    print_result(f"words of the primer's answers in those of {folder}", shares, unit="of the words", mean=mean)


if __name__ == "__main__":
    main()
