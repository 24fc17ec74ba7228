"""Faults in duplicates: sketches, pairs of them, which side each document is on, and the overlap that is left."""

from bench.mutants.fault import Fault

_SKETCH, _PAIRS = "niels_gpt/data/sketch.py", "niels_gpt/data/pairs.py"
_SPLIT, _SPLITS = "niels_gpt/data/split.py", "niels_gpt/data/splits.py"
_DECIDED, _OVERLAP, _SKETCHES = (
    "niels_gpt/data/duplicates.py",
    "niels_gpt/data/overlap.py",
    "niels_gpt/data/sketches.py",
)
_T = "tests/test_duplicates.py::test_"
_PLANTED = f"{_T}planted_duplicates_are_found_and_unrelated_texts_are_not_joined"
_PIECES = f"{_T}pairs_do_not_depend_on_how_many_files_they_are_sorted_in"
_TEMPLATE = f"{_T}a_template_of_many_documents_makes_few_pairs_and_one_cluster"
_PHRASE = f"{_T}a_phrase_in_common_joins_nothing_and_equal_words_join_whatever_their_number"
_COPIES = f"{_T}copies_are_of_one_source_and_told_with_the_first"
_COMPANY = f"{_T}a_sketch_is_of_words_and_the_same_in_any_company"
_KNOWN = f"{_T}hashes_are_the_same_on_every_machine"
_COARSER = f"{_T}sketches_of_unlike_scale_are_compared_at_the_coarser"
_GRAMS = f"{_T}grams_stay_within_a_text"
_NAMES = f"{_T}everything_that_is_joined_has_one_name"
_UNIT = f"{_T}a_cluster_is_one_unit_and_a_tree_with_it"
_MOVED = f"{_T}another_sources_decision_holds_for_the_whole_unit_and_what_is_out_is_in_neither"
_STRADDLES = f"{_T}no_planted_duplicate_straddles_a_split_whatever_the_seed"
_SAME = f"{_T}where_nothing_is_alike_every_split_has_the_bytes_that_it_had"
_ONCE = f"{_T}equal_texts_are_used_once_unless_they_are_to_be_kept"
_STAYS = f"{_T}a_held_out_row_of_a_sources_own_split_stays_and_others_follow_it"
_FIRST = f"{_T}the_first_source_decides_and_chats_follow"
_REFUSED = f"{_T}bonds_of_other_texts_are_refused"
_MEASURED = f"{_T}overlap_is_of_held_out_text_with_all_that_is_trained_on"
_SHOWN = f"{_T}inspect_duplicates_shows_pairs_with_what_they_share"

FAULTS = (
    Fault("case counts", _SKETCH, "[text.casefold() for text in texts]", "[text for text in texts]", _COMPANY),
    Fault("a character of Chinese is no word", _SKETCH, "kinds[first : last + 1] *= _A_WORD", "pass", _COMPANY),
    Fault("space around a text counts", _SKETCH, "text.strip().encode", "text.encode", _COMPANY),
    Fault(
        "runs of words go on into the next text",
        _SKETCH,
        "many = np.maximum(count - n + 1, ",
        "many = np.maximum(count, ",
        _GRAMS,
    ),
    Fault("other hashes", _SKETCH, "np.uint64(0x94D049BB133111EB)", "np.uint64(0x94D049BB133111ED)", _KNOWN),
    Fault("a word's order does not count", _SKETCH, "rolled * _NEXT + padded", "rolled + padded", _KNOWN),
    Fault("every scale is the finest", _SKETCH, "scale = min(_COARSEST, ", "scale = min(0, ", _COARSER),
    Fault(
        "scales are not made alike", _SKETCH, "scale = max(a_scale, b_scale)", "scale = min(a_scale, b_scale)", _COARSER
    ),
    Fault("of the larger text", _SKETCH, "shared / min(len(a), len(b))", "shared / max(len(a), len(b))", _PLANTED),
    Fault(
        "a phrase is enough",
        _SKETCH,
        "_SHARED_HASHES, _SHARED_SHINGLES = 4, 8",
        "_SHARED_HASHES, _SHARED_SHINGLES = 1, 1",
        _PHRASE,
    ),
    Fault("the first of a run is forgotten", _PAIRS, "(place == self.first) | (self.last", "(self.last", _PIECES),
    Fault("the last of a run are forgotten", _PAIRS, "| (self.last - place < _BEFORE)", "| False", _PIECES),
    Fault(
        "pairs are met twice",
        _PAIRS,
        "np.flatnonzero(self.new & (np.arange(len(self.first)) - self.first >= back))",
        "np.flatnonzero(np.arange(len(self.first)) - self.first >= back)",
        _PIECES,
        survives="a pair that is met more often is only compared once more",
    ),
    Fault("all with all", _PAIRS, "_BEFORE = 3 ", "_BEFORE = 300 ", _TEMPLATE),
    Fault(
        "copies of all sources",
        _PAIRS,
        "texts.put(batch.text ^ own, documents)",
        "texts.put(batch.text, documents)",
        _COPIES,
    ),
    Fault(
        "what has no words is alike",
        _PAIRS,
        "words.put(batch.words[size > 0], documents[size > 0])",
        "words.put(batch.words, documents)",
        _PHRASE,
    ),
    Fault(
        "nothing is compared",
        _PAIRS,
        "return likely[shares >= least], shares[shares >= least]",
        "return likely, shares",
        _PHRASE,
    ),
    Fault(
        "a chain is not followed", _SPLIT, "new = new[new]\n        if np.array_equal(new, names)", "if True", _NAMES
    ),
    Fault(
        "clusters are torn",
        _SPLIT,
        "return [one.get(name, name) for name in names] if one else names",
        "return names",
        _UNIT,
    ),
    Fault("nobody follows", _SPLIT, "        if sides:\n", "        if False:\n", _MOVED),
    Fault("what is out stays in", _SPLIT, "    if len(bonds.out):\n", "    if False:\n", _MOVED),
    Fault(
        "moved rows stay where a hash has them",
        _SPLITS,
        "    if any(map(len, split.moved.values())):\n",
        "    if False:\n",
        _STRADDLES,
    ),
    Fault("what is out of a hashed source stays", _SPLITS, 'np.setdiff1d(own, moved["out"])', "own", _ONCE),
    Fault(
        "texts that changed are taken", _SPLITS, 'if facts.get("texts_sha256") != texts.digest:', "if False:", _REFUSED
    ),
    Fault("trees are torn by duplicates", _DECIDED, 'if source.by in ("tree", "hash"):', "if False:", _STRADDLES),
    Fault(
        "the last given side holds",
        _DECIDED,
        'for side in ("train", "val") for group, split in said',
        'for side in ("val", "train") for group, split in said',
        _STAYS,
    ),
    Fault(
        "sources with a split of their own come when they come",
        _DECIDED,
        "given_first = sorted(sources, key=lambda source: source.rule is not None)",
        "given_first = list(sources)",
        _STAYS,
        survives="their sides are known before the first source is asked",
    ),
    Fault("the first source does not decide", _DECIDED, "group not in sides and group in waiting", "False", _FIRST),
    Fault(
        "a hashed source does not follow",
        _DECIDED,
        'sides.setdefault(group, "val" if place in held_out',
        'sides.__setitem__(group, "val" if place in held_out',
        _STAYS,
    ),
    Fault(
        "only rows in clusters move, not their trees",
        _DECIDED,
        "moved[sides[by_key[key]]].append(row)",
        'moved["train"].append(row)',
        _STRADDLES,
    ),
    Fault(
        "training keeps what is like a held-out row",
        _DECIDED,
        'if split == "train" and sides.get(groups[row]) == "val"}',
        "if False}",
        _STAYS,
    ),
    Fault("all copies are out", _DECIDED, "out.update(useful[1:])", "out.update(useful)", _ONCE),
    Fault(
        "a copy in training is the one that stays",
        _DECIDED,
        'useful.sort(key=lambda row: said[row] != "val")',
        "pass",
        _ONCE,
    ),
    Fault("copies are kept", "stages/duplicates.py", 'once=rules.exact == "once"', "once=False", _ONCE),
    Fault("copies are never kept", "stages/duplicates.py", 'once=rules.exact == "once"', "once=True", _ONCE),
    Fault(
        "empty lists are written",
        "stages/split.py",
        "{side: rows for side, rows in listed.items() if len(rows)}",
        "dict(listed)",
        _SAME,
    ),
    Fault(
        "a chat has no roles",
        _SKETCHES,
        "f\"{message['role']}: {message['content']}\\n\"",
        "f\"{message['content']}\\n\"",
        f"{_T}a_chat_reads_like_a_transcript",
    ),
    Fault(
        "overlap with held-out text",
        _OVERLAP,
        '_runs(item, "train") if len(wanted)',
        '_runs(item, "val") if len(wanted)',
        _MEASURED,
    ),
    Fault(
        "overlap of the last word is not seen",
        _OVERLAP,
        "words.ends[found + RUN - 1]",
        "words.ends[found + RUN - 2]",
        _MEASURED,
    ),
    Fault("runs of twelve words", _OVERLAP, "RUN = 13", "RUN = 12", _MEASURED),
    Fault(
        "pairs of other sources are shown",
        "niels_gpt/pipeline/duplicate_pairs.py",
        "np.flatnonzero((of == names.index(source)).any(axis=1))",
        "np.arange(len(pairs))",
        _SHOWN,
    ),
    Fault(
        "pairs across sources come last",
        "niels_gpt/pipeline/duplicate_pairs.py",
        "np.argsort(~across, kind",
        "np.argsort(across, kind",
        _SHOWN,
    ),
    Fault(
        "control characters are shown",
        "niels_gpt/pipeline/inspection.py",
        "typer.echo(visible(line))",
        "typer.echo(line)",
        _SHOWN,
    ),
)
