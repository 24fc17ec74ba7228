"""Index of a synthetic vault with planted sentences: seconds, memory, disk, time to trace them, and how many are found.

Run: python -m bench.trace 1 16 256                 vaults of so many MB
     python -m bench.trace VAULT=FOLDER ...         the questions of tests/find_questions.tsv about folders of notes
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pydivsufsort  # noqa: F401  # before the baseline of memory

from niels_gpt.rng import numpy_generator
from niels_gpt.trace.index import TEXT, Row, SourceIndex, write_index
from niels_gpt.trace.library import Library, Span

QUESTIONS = Path("tests/find_questions.tsv")
PLANTED = 500
REPLY_WORDS = 150  # about 200 tokens


class Vault:
    """Notes of about 2 kB, one sentence per line, with word frequencies of a language (Zipf)."""

    def __init__(self, megabytes: int) -> None:
        chance = self.chance = numpy_generator(megabytes)
        syllables = [a + b for a in "bdfghklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "ol")]
        lengths = chance.integers(1, 5, 50_000)
        self.words = ["".join(syllables[n] for n in chance.integers(0, len(syllables), length)) for length in lengths]
        self.cumulative = np.cumsum(1 / (2.7 + chance.permutation(len(self.words))))
        self.notes = megabytes * 500
        self.planted = [self.sentence(int(n)) for n in chance.integers(8, 41, PLANTED)]
        self.where = {int(note): text for note, text in zip(chance.permutation(self.notes), self.planted, strict=False)}
        self.places: dict[str, tuple[str, int]] = {}
        self.made_s = 0.0  # CPU time of making the text

    def draw(self, n: int) -> list[str]:
        drawn = np.searchsorted(self.cumulative, self.chance.random(n) * self.cumulative[-1])
        return [self.words[word] for word in drawn]

    def sentence(self, words: int) -> str:
        return " ".join(self.draw(words)).capitalize()

    def rows(self) -> Iterator[Row]:
        for note in range(self.notes):
            begun = time.process_time()
            words = self.draw(280)
            lines = [" ".join(words[first : first + 12]) + "." for first in range(0, len(words), 12)]
            if text := self.where.get(note):
                line = int(self.chance.integers(len(lines)))
                lines[line] += f" {text}."
                self.places[text] = (f"{note}.md", line + 1)
            row = Row(f"{note}.md", "\n".join(lines), trained=True)
            self.made_s += time.process_time() - begun
            yield row


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(megabytes: int) -> None:
    vault = Vault(megabytes)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        before, begun = peak_bytes(), time.process_time()
        words = write_index(folder, vault.rows())
        made, memory = time.process_time() - begun - vault.made_s, peak_bytes() - before
        size, disk = (folder / TEXT).stat().st_size, sum(file.stat().st_size for file in folder.iterdir())
        library = Library([SourceIndex("vault", folder, None)])
        clocks, right, false = [], 0, 0
        for text in vault.planted:
            rest = vault.sentence(max(1, REPLY_WORDS - text.count(" ")))
            begun, cpu = time.perf_counter(), time.process_time()
            spans = library.trace(f"{rest}. {text}.")
            clocks.append((1000 * (time.perf_counter() - begun), 1000 * (time.process_time() - cpu)))
            found = [span for span in spans if text in span.text]
            right += len(found) == 1 and [(p.file, p.line) for p in found[0].places] == [vault.places[text]]
            false += sum(map(false_places, spans))
    wall, cpu = (statistics.median(clock) for clock in zip(*clocks, strict=True))
    print(
        f"{size / 1e6:.1f} MB, {words:,} words: index {made:.1f} s of CPU, peak memory "
        f"{memory / size:.1f} bytes/byte, disk {disk / size:.2f} bytes/byte; trace {wall:.1f} ms "
        f"({cpu:.1f} of CPU); {right} of {PLANTED} planted sentences at their place, {false} false places"
    )


def false_places(span: Span) -> int:
    """Count positions whose line lacks the span's first words; context is cut after 300 characters."""
    begins = span.text.split("\n")[0][:40]
    return sum(begins not in place.context and len(place.context) < 300 for place in span.places)


def ask(vault: str, root: Path) -> None:
    asked = [line.split("\t")[1:] for line in QUESTIONS.read_text().splitlines() if line.startswith(f"{vault}\t")]
    with tempfile.TemporaryDirectory() as folder:
        files = sorted(root.rglob("*.md"))
        texts = (path.read_text(encoding="utf-8", errors="replace") for path in files)
        write_index(
            Path(folder), [Row(f.relative_to(root).as_posix(), t, True) for f, t in zip(files, texts, strict=True)]
        )
        library, begun = Library([SourceIndex(vault, Path(folder), root)]), time.perf_counter()
        found = {question: [one.file for one in library.find(question, limit=3)] for _, question in asked}
        each = (time.perf_counter() - begun) / len(asked)
    missed = [question for file, question in asked if file not in found[question]]
    print(f"{vault}: {len(asked) - len(missed)} of {len(asked)} in the first three, {1000 * each:.1f} ms a question")
    for question in missed:
        print(f"  missed: {question}")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        if "=" in argument:
            ask(argument.partition("=")[0], Path(argument.partition("=")[2]))
        elif len(sys.argv) == 2:
            measure(int(argument))
        else:  # one process each, for its own peak memory
            subprocess.run([sys.executable, "-m", "bench.trace", argument], check=True)
