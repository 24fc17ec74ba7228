"""Tests of duplicates: every kind is found, none is on both sides of a split, and no other document is moved."""

import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from niels_gpt.cli.app import app
from niels_gpt.cli.inspect import side_by_side
from niels_gpt.data.corpus.parts import open_texts, transcript
from niels_gpt.data.corpus.sketch import containment, grams, sketch_texts, words_of
from niels_gpt.data.corpus.split import Bonds, Drawn, components, split_by_hash, split_groups, split_rows
from niels_gpt.data.corpus.split_files import read_bonds, split_source
from niels_gpt.data.types import Document
from niels_gpt.duplicates.pairs import Pairs, find_pairs
from niels_gpt.pipeline.results import read_metrics
from stages import duplicates, index
from tests.in_process import run_in_process, write_source
from tests.planted_duplicates import WORDS, chat, decide, note, parameters, sentence, write_notes
from tests.token_caches import files

DOCUMENTS = 200
KNOWN = (12604066041185269969, 18489738710531883, [6898274617049433136, 17115695660682983172])


def reordered(text: str, rng: random.Random) -> str:
    paragraphs = text.split("\n\n")
    rng.shuffle(paragraphs)
    return "\n\n".join(paragraphs)


def edited(text: str, rng: random.Random) -> str:
    """Replace one word in ten."""
    words = text.split(" ")
    for place in rng.sample(range(len(words)), len(words) // 10):
        words[place] = rng.choice(WORDS)
    return " ".join(words)


def quoted(text: str, rng: random.Random) -> str:
    """Return a text of some thousand other words that quotes this one."""
    around = [note(rng) for _ in range(8)]
    around.insert(rng.randint(0, 8), "> " + text.replace("\n", "\n> "))
    return "\n\n".join(around)


KINDS: dict[str, Callable[[str, random.Random], str]] = {
    "exact": lambda text, rng: f"{text}\n",
    "reordered": reordered,
    "edited": edited,
    "quoted": quoted,
}


def sketches_of(*texts: str) -> list[tuple[int, int, int, np.ndarray]]:
    """Return for each text its digest, the digest of its words, the scale and the hashes."""
    found = sketch_texts(texts)
    hashes = np.split(found.hashes, found.starts[1:-1])
    return list(zip(found.text.tolist(), found.words.tolist(), found.scale.tolist(), hashes, strict=True))


def pairs_among(folder: Path, *sources: Sequence[str], near: float | None = 0.5, hashes: int = 1) -> Pairs:
    batches = [[sketch_texts(some) for some in (texts[:7], texts[7:]) if some] for texts in sources]
    return find_pairs(batches, near=near, hashes=hashes, scratch=folder / "scratch")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_planted_duplicates_are_found_and_unrelated_texts_are_not_joined(kind: str, tmp_path: Path) -> None:
    rng = random.Random(0)
    texts = [note(rng) for _ in range(DOCUMENTS)]
    copies = [KINDS[kind](text, rng) for text in texts]
    found = {tuple(pair) for pair in pairs_among(tmp_path, texts, copies).documents.tolist()}
    planted = {(i, DOCUMENTS + i) for i in range(DOCUMENTS)}
    assert len(found & planted) >= 0.95 * DOCUMENTS
    assert len(found - planted) <= 0.01 * DOCUMENTS * (2 * DOCUMENTS - 1)


def test_pairs_do_not_depend_on_how_many_files_they_are_sorted_in(tmp_path: Path) -> None:
    rng = random.Random(1)
    texts = [note(rng) for _ in range(20)]
    texts += [edited(text, rng) for text in texts] + [texts[0]] * 9
    texts = [f"{text} as it is so often said here" for text in texts]
    one, many = (pairs_among(tmp_path / str(hashes), texts, hashes=hashes) for hashes in (1, 40 << 21))
    assert np.array_equal(one.documents, many.documents)
    assert np.array_equal(one.containment, many.containment)
    assert np.array_equal(one.copies, many.copies)
    assert len(one.documents) >= 29
    assert len(one.copies) == 9


def test_a_template_of_many_documents_makes_few_pairs_and_one_cluster(tmp_path: Path) -> None:
    rng = random.Random(2)
    template = note(rng)
    days = [f"{template} {number} {rng.choice(WORDS)}" for number in range(300)]
    found = pairs_among(tmp_path, days).documents
    assert len(found) <= 5 * len(days)
    ids, first = components(found)
    assert ids.tolist() == list(range(300))
    assert set(first.tolist()) == {0}


def test_a_phrase_in_common_joins_nothing_and_equal_words_join_whatever_their_number(tmp_path: Path) -> None:
    rng = random.Random(3)
    phrase = " ".join(WORDS[:8])
    texts = [f"{phrase} {i} {i + 1}" for i in range(5)] + ["Yes, I do.", "yes i do", "!!!", "???", *map(str, range(5))]
    assert pairs_among(tmp_path / "a", texts).documents.tolist() == [[5, 6]]
    long = [f"{phrase} {note(rng)}" for _ in range(5)]
    assert pairs_among(tmp_path / "b", long).documents.tolist() == []


def test_copies_are_within_one_source_and_paired_with_the_first(tmp_path: Path) -> None:
    first, second = ["a b", "c", " a b\n", "A b", "a b"], ["c", "c"]
    assert pairs_among(tmp_path / "a", first, second, near=None).copies.tolist() == [[0, 2], [0, 4], [5, 6]]
    assert pairs_among(tmp_path / "b", first, second, near=None).documents.tolist() == []


# Sketches


def test_a_sketch_is_of_words_and_the_same_in_any_company() -> None:
    texts = [
        "Hello, World! Nice_day 3",
        "hello world\n\nnice_DAY — 3",
        "",
        "!",
        "ßa 𝔘 中文字",
        "x",
        note(random.Random(4)),
    ]
    together = sketches_of(*texts)
    assert together[0][1] == together[1][1]
    assert together[0][0] != together[1][0]
    for text, (*each, hashes) in zip(texts, together, strict=True):
        ((*alone, own),) = sketches_of(f"\n{text} ")
        assert alone == each
        assert np.array_equal(own, hashes)
        assert np.array_equal(own, np.unique(own))
    assert [len(hashes) for *_, hashes in together[:6]] == [2, 2, 0, 0, 3, 1]
    assert np.diff(words_of(texts).before)[:6].tolist() == [4, 4, 0, 0, 5, 1]
    # Thai, CJK, CJK of the second plane after a letter, and mathematical letters, which form one word.
    edges = ["\u0e01\u0e02", "\uf900\ufad9", "x\U00020000", "\U0001d518\U0001d519"]
    assert np.diff(words_of(edges).before).tolist() == [2, 2, 2, 1]


def test_hashes_are_the_same_on_every_machine() -> None:
    ((text, words, _, hashes),) = sketches_of("the quick brown fox")
    assert (text, words, hashes.tolist()) == KNOWN


def test_sketches_of_unlike_scale_are_compared_at_the_coarser() -> None:
    rng = random.Random(5)
    text = " ".join(note(rng).split()[:100])
    longer = " ".join([note(rng), text, *(note(rng) for _ in range(20))])
    (*_, fine, a), (*_, coarse, b) = sketches_of(text, longer)
    assert fine < coarse
    assert containment(a, fine, b, coarse) >= 0.95
    assert containment(b, coarse, a, fine) == containment(a, fine, b, coarse)
    assert len(b) < len(longer.split()) / 6


def test_grams_stay_within_a_text() -> None:
    words = words_of(["a b c d", "b c", "a b c"])
    hashes, starts, before = grams(words, 3)
    assert before.tolist() == [0, 2, 2, 3]
    assert starts.tolist() == [0, 1, 6]
    assert hashes[0] == hashes[2]
    short, _, before = grams(words, 3, short=True)
    assert before.tolist() == [0, 2, 3, 4]
    assert len(set(short.tolist())) == 3


# Sides


def test_everything_that_is_joined_has_one_name() -> None:
    rng = random.Random(6)
    tied = [(rng.randrange(300), rng.randrange(300)) for _ in range(150)] + [(i, i + 1) for i in range(400, 600)]
    names = {number: {number} for pair in tied for number in pair}
    for a, b in tied:
        joined = names[a] | names[b]
        for number in joined:
            names[number] = joined
    ids, first = components(np.array(tied))
    assert dict(zip(ids.tolist(), first.tolist(), strict=True)) == {n: min(names[n]) for n in sorted(names)}


# 20 rows as a source has them: their own splits, and trees of three.
TWENTY: Any = SimpleNamespace(
    rows=20, column=lambda name: ["train", "val"] * 10, keys=lambda: [str(i // 3) for i in range(20)]
)


def split_listed(by: Any, bonds: Bonds) -> tuple[list[int], list[int]]:
    rule = None if by == "given" else Drawn(val_frac=0.3, seed=5)
    return split_source(TWENTY, by, rule, bonds)


def test_without_duplicates_a_split_is_what_it_was() -> None:
    assert split_listed("document", Bonds()) == split_rows(20, val_frac=0.3, seed=5)
    assert split_listed("tree", Bonds()) == split_groups([str(i // 3) for i in range(20)], val_frac=0.3, seed=5)
    assert split_listed("given", Bonds()) == (list(range(0, 20, 2)), list(range(1, 20, 2)))


def test_a_cluster_is_one_unit_and_a_tree_with_it() -> None:
    joined = Bonds(joined=np.array([[0, 7], [0, 19], [3, 4]]))
    for seed in range(20):
        rule = Drawn(val_frac=0.3, seed=seed)
        _, val = split_source(TWENTY, "document", rule, joined)
        assert len({0, 7, 19} & set(val)) in (0, 3)
        assert len({3, 4} & set(val)) in (0, 2)
        _, val = split_source(TWENTY, "tree", rule, joined)
        assert len({0, 1, 2, 6, 7, 8, 18, 19} & set(val)) in (0, 8)
        assert val


def test_another_sources_decision_holds_for_the_whole_unit_and_what_is_out_is_in_neither() -> None:
    rows = [np.array([row]) for row in (4, 9, 10)]
    moved = Bonds(train=rows[0], val=rows[1], out=rows[2])
    train, val = split_listed("tree", moved)
    assert {3, 4, 5} <= set(train)
    assert {9, 11} <= set(val)
    assert sorted(train + val) == [row for row in range(20) if row != 10]
    train, val = split_listed("given", Bonds(out=rows[2]))
    assert (len(train), len(val)) == (9, 10)


# Stages


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_planted(rng: random.Random, *, planted: bool = True) -> list[set[tuple[str, int]]]:
    """Write four sources of 100 texts each, split in every way; return the groups of similar ones as (source, row)."""
    texts = {name: [note(rng) for _ in range(100)] for name in ("large", "notes", "wiki", "trees")}
    groups = []
    for number in range(40) if planted else ():
        kind, at = [*KINDS.values()][number % 4], [2 * number, 2 * number + 1]
        (a, b), source, other = at, *rng.sample(sorted(texts), 2)
        texts[source][b] = kind(texts[source][a], rng)  # one copy in the same source, one in another
        texts[other][a] = KINDS["edited"](texts[source][a], rng)
        groups.append({(source, a), (source, b), (other, a)})
    splits = ["val" if rng.random() < 0.2 else "train" for _ in range(100)]
    write_source("wiki", [Document(str(i), text, splits[i]) for i, text in enumerate(texts["wiki"])], part_rows=30)
    for name in ("large", "notes"):
        write_source(name, [Document(str(i), text) for i, text in enumerate(texts[name])], part_rows=30)
    write_source("trees", [chat(text, i, i // 3) for i, text in enumerate(texts["trees"])], part_rows=30)
    return groups


def straddling(groups: list[set[tuple[str, int]]], sides: dict[str, dict[str, set[int]]]) -> list[Any]:
    def on(side: str, group: set[tuple[str, int]]) -> bool:
        return any(row in sides[name][side] for name, row in group)

    return [group for group in groups if on("train", group) and on("val", group)]


@pytest.mark.slow
def test_no_planted_duplicate_straddles_a_split_whatever_the_seed(here: Path) -> None:
    groups = write_planted(random.Random(7))
    params = [parameters(seed=seed) for seed in range(5)]
    held_out = set()
    for each in params:
        sides = decide(each)
        assert straddling(groups, sides) == []
        for tree in range(34):
            rows = set(range(3 * tree, min(100, 3 * tree + 3)))
            assert not (rows & sides["trees"]["train"] and rows & sides["trees"]["val"])
        assert all(5 <= len(own["val"]) <= 60 for own in sides.values()), {
            n: len(own["val"]) for n, own in sides.items()
        }
        held_out.add(frozenset(sides["notes"]["val"]))
    assert len(held_out) == 5
    off = decide(parameters(**{"duplicates.near": None}))
    assert len(straddling(groups, off)) > 5


@pytest.mark.slow
def test_bytes_do_not_show_how_many_worked_on_them(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "FEW_BYTES", 0)
    write_planted(random.Random(8))
    found = []
    for workers in (1, 3):
        params = parameters(**{"runtime.workers": workers})
        decide(params)
        run_in_process("index", index.main, params)
        found.append(files(Path("cache")) | files(Path("metrics")))
    assert found[0] == found[1]


@pytest.mark.slow
def test_where_nothing_is_alike_duplicate_handling_changes_no_byte_of_a_split(here: Path) -> None:
    write_planted(random.Random(9), planted=False)
    params = parameters()
    on = decide(params)
    before = files(Path("cache/split"))
    rule = Drawn(val_frac=0.2, seed=1)
    assert on["notes"]["val"] == set(split_rows(100, val_frac=0.2, seed=1)[1])
    assert on["trees"]["val"] == set(split_groups([f"{i // 3}" for i in range(100)], val_frac=0.2, seed=1)[1])
    assert on["large"]["val"] == set(split_by_hash([str(i) for i in range(100)], rule)["val"].tolist())
    assert not any(path.endswith("npy") for path in before if "/large/" in path)
    assert decide(parameters(**{"duplicates": {"exact": "keep", "near": None}})) == on
    assert files(Path("cache/split")) == before


@pytest.mark.slow
def test_a_new_text_in_one_source_changes_only_sources_with_duplicates_in_it(here: Path) -> None:
    """The splits of all other sources need not be made again."""
    write_planted(random.Random(10), planted=False)
    params = parameters()
    texts = [note(random.Random(i)) for i in range(6)]
    write_source("notes", [Document(str(i), text) for i, text in enumerate(texts[:3])])

    def found(large: list[str]) -> dict[str, dict[str, bytes]]:
        write_source("large", [Document(str(i), text) for i, text in enumerate(large)])
        run_in_process("duplicates", duplicates.main, params)
        return {name: files(Path("cache/duplicates", name)) for name in params.sources}

    before, after = found(texts[3:]), found([*texts[4:], texts[0]])
    assert {name for name in before if after[name] != before[name]} == {"large", "notes"}
    assert found([*texts[4:], texts[0], texts[3]])["notes"] == after["notes"]


@pytest.mark.slow
def test_equal_texts_are_used_once_unless_they_are_to_be_kept(here: Path) -> None:
    text, other = note(random.Random(12)), note(random.Random(13))
    notes = [text, f" {text}\n", "x", "x", text]
    write_notes([1, 2], notes=notes, wiki=[other, other, other], large=[text, text])
    sides = decide(parameters())
    assert {1, 3, 4} & (sides["notes"]["train"] | sides["notes"]["val"]) == set()
    assert {0, 2} <= sides["notes"]["train"] | sides["notes"]["val"]
    assert {0, 1, 2} & (sides["wiki"]["train"] | sides["wiki"]["val"]) == {1}
    assert 1 not in sides["large"]["train"] | sides["large"]["val"]
    counts = json.loads(Path("cache/duplicate_pairs/counts.json").read_text())["notes"]
    assert (counts["documents"], counts["exact"], counts["left_out"]) == (25, 3, 3)
    kept = decide(parameters(**{"duplicates.exact": "keep"}))
    assert len(kept["notes"]["train"]) + len(kept["notes"]["val"]) == 25
    assert {0, 1, 2} & kept["wiki"]["val"] == {1, 2}
    assert 0 not in kept["wiki"]["train"]
    without = decide(parameters(**{"duplicates.near": None}))
    assert {0, 1, 2} & (without["wiki"]["train"] | without["wiki"]["val"]) == {1}


@pytest.mark.slow
def test_a_held_out_row_of_a_sources_own_split_stays_and_others_follow_it(here: Path) -> None:
    rng = random.Random(14)
    held_out, trained = note(rng), note(rng)
    like = [edited(held_out, rng), edited(trained, rng)]
    for seed in range(5):
        write_notes([0], wiki=[held_out, like[0], trained], notes=like, large=like)
        params = parameters(seed=seed)
        sides = decide(params)
        assert 0 in sides["wiki"]["val"]
        assert 1 not in sides["wiki"]["train"] | sides["wiki"]["val"]
        assert 2 in sides["wiki"]["train"]
        for name in ("notes", "large"):
            assert 0 in sides[name]["val"]
            assert 1 in sides[name]["train"]


@pytest.mark.slow
def test_the_first_source_decides_and_chats_follow(here: Path) -> None:
    """Sources decide in the order of their names, texts before chats."""
    rng = random.Random(15)
    shared, two = [note(rng) for _ in range(10)], [note(rng) for _ in range(10)]
    for seed in range(5):
        write_notes(large=shared, notes=[*shared[::-1], *two])
        both = [*shared, *two[::-1], *(note(rng) for _ in range(10))]
        write_source("trees", [chat(text, i, i) for i, text in enumerate(both)])
        sides = decide(parameters(seed=seed))
        own = set(split_by_hash([str(i) for i in range(30)], Drawn(val_frac=0.2, seed=seed))["val"].tolist())
        assert sides["large"]["val"] == own
        assert {9 - row for row in sides["notes"]["val"] if row < 10} == {row for row in own if row < 10}
        assert {row for row in sides["trees"]["val"] if row < 10} == {row for row in own if row < 10}
        assert {29 - row for row in sides["trees"]["val"] if 10 <= row < 20} == {
            row for row in sides["notes"]["val"] if 10 <= row < 20
        }


def test_bonds_of_other_texts_are_refused(here: Path) -> None:
    write_notes()
    decide(parameters())
    write_notes(notes=["another"])
    with pytest.raises(ValueError, match=r"cache/raw/notes is not what cache/duplicates/notes was made of"):
        read_bonds(Path("cache/duplicates/notes"), open_texts(Path("cache/raw/notes")))


def test_a_split_that_duplicates_leave_nothing_for_says_so(here: Path) -> None:
    write_notes()
    write_source("notes", [Document(str(i), "the same") for i in range(5)])
    with pytest.raises(
        ValueError,
        match=r"1 document to train on and 0 to hold out.*; too many repeat each other \(`niels-gpt inspect dup",
    ):
        decide(parameters())


# Overlap


@pytest.mark.slow
def test_overlap_compares_held_out_text_with_all_training_text(here: Path) -> None:
    rng = random.Random(16)
    words = [f"w{number:03d}" for number in range(300)]
    # The wiki's training text, a note and a chat share 20 words each with its held-out text. The first shares another
    # 12, which are too few.
    write_notes([0], wiki=[" ".join(words[:100]), " ".join([*words[:20], "and", *words[30:42]])])
    write_source("notes", [Document(str(i), " ".join(words[50:70]) if i == 1 else note(rng)) for i in range(20)])
    write_source("trees", [chat(" ".join(words[80:]) if i < 2 else note(rng), i, i) for i in range(20)])
    params = parameters(**{"duplicates": {"exact": "keep", "near": None}})
    sides = decide(params)
    assert 1 in sides["notes"]["train"]
    assert {0, 1} & sides["trees"]["train"]
    run_in_process("index", index.main, params)
    found = read_metrics(Path("metrics/data.json"))
    assert {*found} == {"large", "notes", "wiki", "trees"}
    wiki = found["wiki"]
    assert (wiki["documents"], wiki["held_out_runs"]) == (22, 88)
    assert wiki["runs_in_train"] == round((8 + 8 + 8) / 88, 6)
    assert wiki["characters_in_train"] == round(3 * (20 * 5 - 1) / (100 * 5 - 1), 6)
    assert found["large"]["runs_in_train"] == found["notes"]["characters_in_train"] == 0


# Inspection


@pytest.mark.slow
def test_inspect_duplicates_shows_pairs_with_what_they_share(here: Path) -> None:
    rng = random.Random(17)
    text = "\n".join(sentence(rng) for _ in range(9))
    write_notes(notes=[f"# One\n{text}", f"# Two\n{text}"], large=[f"{text}\n\x07{sentence(rng)}"])
    params = parameters()
    decide(params)
    Path("params.yaml").write_text(json.dumps(params.model_dump()))

    def said(*arguments: str) -> list[str]:
        result = CliRunner().invoke(app, ["inspect", "documents", "--duplicates", *arguments], env={"COLUMNS": "90"})
        assert result.exit_code == (0 if "none" not in arguments else 1), result.output
        return result.output.splitlines()

    lines = said()
    assert lines[0] == "3 pairs, 2 of them across sources"
    heads = [line for line in lines if line.startswith("---")]
    assert heads[0].startswith("--- large 0 | notes 0: ")
    assert heads[-1].startswith("--- notes 0 | notes 1: ")
    assert all(line.endswith("% of the smaller") for line in heads)
    assert max(map(len, lines[2:])) <= 90
    assert sum(line.startswith("= ") for line in lines) == 27
    assert "# One" in lines[-1]
    assert "# Two" in lines[-1]
    assert not any("\x07" in line for line in lines)
    assert said("trees") == ["0 pairs of trees, 0 of them across sources"]
    assert len([line for line in said("--n", "1", "notes") if line.startswith("---")]) == 1
    (line,) = said("none")
    assert "no duplicates of a source 'none'; known sources: large, notes, trees, wiki" in line
    shutil.rmtree("cache/duplicate_pairs")
    (line,) = said("none")
    assert "there are no cache/duplicate_pairs yet: run `dvc repro duplicates` first" in line


def test_long_lines_and_many_are_cut() -> None:
    lines = list(side_by_side("a " * 50 + "\n" + "\n".join(map(str, range(30))), "b", width=60))
    assert len(lines) == 13
    assert lines[-1] == "  ..."
    assert max(map(len, lines)) <= 60
    assert lines[0].startswith("  a a a")
    assert "... | b" in lines[0]


def test_a_chat_reads_like_a_transcript() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert transcript(messages) == "user: a\nassistant: b\n"
