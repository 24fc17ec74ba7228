"""Faults in parts of a source: where it is cut, what is held out, who works on it, records of it, and where it lies."""

from bench.mutants.fault import Fault

_LOADING, _TOKENS, _SPLIT = "niels_gpt/data/loading.py", "niels_gpt/cache/token_parts.py", "niels_gpt/data/split.py"
_LOCAL, _WORKER, _RECORDS = "niels_gpt/engine/local.py", "niels_gpt/engine/worker.py", "niels_gpt/engine/records.py"
_STORE, _PLACES, _RULES = "niels_gpt/files/store.py", "niels_gpt/pipeline/places.py", "niels_gpt/pipeline/rules.py"
_SHARE = "tests/test_parts.py::test_about_as_much_is_held_out_as_was_asked_for"
_ROW = "tests/test_parts.py::test_a_row_is_held_out_whatever_other_rows_there_are"
_TREES = "tests/test_parts.py::test_trees_of_chats_are_held_out_whole"
_SAMPLE = "tests/test_parts.py::test_a_tokenizers_sample_of_parts_has_nothing_that_is_held_out"
_CUT = "tests/test_parts.py::test_documents_are_never_cut_and_come_in_the_same_order_however_large_a_part_is"
_GOES_ON = "tests/test_parts.py::test_a_slice_that_was_interrupted_goes_on_behind_its_last_part"
_WHEREVER = "tests/test_parts.py::test_what_will_be_read_is_the_same_wherever_its_folder_lies"
_BUDGET = "tests/test_parts.py::test_a_budget_takes_whole_parts_in_order_and_the_last_up_to_a_documents_end"
_SHORT = "tests/test_parts.py::test_a_short_document_behind_the_one_that_is_too_long_is_not_taken"
_WORKERS = "tests/test_parts.py::test_bytes_do_not_show_how_many_worked_on_them"
_STORED = "tests/test_parts.py::test_a_stored_source_leaves_manifests_here_and_parts_in_its_store"
_APART = "tests/test_parts.py::test_stores_must_be_apart"
_ONCE = "tests/test_engine.py::test_every_part_is_done_once_whoever_does_it_and_in_whatever_order"
_KILLED = "tests/test_engine.py::test_parts_whose_worker_was_killed_are_tried_again"
_THREE = "tests/test_engine.py::test_a_part_that_fails_three_times_is_named"
_FINAL = "tests/test_engine.py::test_an_input_at_fault_is_not_tried_again_and_its_error_comes_whole"
_LEFT = "tests/test_engine.py::test_leaving_early_ends_what_is_under_way"
_ORPHANS = "tests/test_engine.py::test_workers_end_with_the_process_they_work_for_even_by_kill_9"
_MISSING = "tests/test_engine.py::test_only_what_has_no_record_is_made"
_WHOLE = "tests/test_engine.py::test_a_part_that_is_not_whole_is_made_again"
_GONE = "tests/test_engine.py::test_a_record_that_is_missing_at_the_end_is_an_error"
_ENOUGH = "tests/test_engine.py::test_no_more_is_made_than_is_enough"
_SWEPT = "tests/test_engine.py::test_what_dead_writers_left_goes_and_what_live_ones_write_stays"
_IN_STORE = "tests/test_engine.py::test_a_file_is_in_a_store_whole_or_not_at_all"
_STAGES = "tests/test_token_stages.py::test_every_row_comes_out_in_its_split_and_every_file_is_named_with_its_hash"

FAULTS = (
    # What is held out
    Fault("the seed of the hash ignored", _SPLIT, 'rule.seed.to_bytes(8, "big")', "bytes(8)", _ROW),
    Fault("another hash", _SPLIT, "digest_size=8", "digest_size=9", _ROW),
    Fault("val and train confused", _SPLIT, "np.flatnonzero(~held_out)", "np.flatnonzero(held_out)", _SHARE),
    Fault("trees torn", "niels_gpt/data/documents.py", "group or own for", "own for", _TREES),
    Fault("rows of the first part for all", "niels_gpt/data/splits.py", "] - first for name", "] for name", _STAGES),
    Fault(
        "the tokenizer sees what is held out",
        "niels_gpt/cache/corpus.py",
        'part_rows(splits.of_part(first, last), path)["train"]',
        'part_rows(splits.of_part(first, last), path)["val"]',
        _SAMPLE,
    ),
    Fault(
        "the sample is drawn by the split's own hash",
        "niels_gpt/cache/corpus.py",
        '[f"sample {keys[row]}" for row in train]',
        "[keys[row] for row in train]",
        _SAMPLE,
    ),
    # Cutting
    Fault("parts are not bounded", _LOADING, "if size >= text_bytes:", "if False:", _CUT),
    Fault("every part has the first one's name", _LOADING, "name = item.part(len(parts))", "name = item.part(0)", _CUT),
    Fault(
        "parts of one slice named as of another",
        _LOADING,
        'f"part-{self.number:05d}" + (f"-{piece:03d}" if piece else "")',
        'f"part-{self.number + piece:05d}"',
        _CUT,
    ),
    Fault(
        "what was read is read again",
        _LOADING,
        "in islice(rows, sum(part.rows for part in parts)):",
        "in ():",
        _GOES_ON,
    ),
    Fault(
        "a part that is done is not known",
        _LOADING,
        "        write_record(item.store",
        "        str(item.store",
        _GOES_ON,
    ),
    Fault("a digest of files shows where they lie", _LOADING, "os.path.relpath(file, root)", "file", _WHEREVER),
    Fault("a link to a folder is another folder", _LOADING, "os.path.realpath(", "os.path.abspath(", _WHEREVER),
    Fault("a digest of files without their names", _LOADING, "{os.path.relpath(file, root)} ", "", _WHEREVER),
    # Encoding
    Fault("a budget goes on behind a cut", _TOKENS, "        if tokens > room:", "        if False:", _SHORT),
    Fault("every part may use the whole budget", _TOKENS, "budget - total", "budget", _BUDGET),
    Fault("offsets of a part named as its tokens", _TOKENS, '"offsets": offsets}', '"offsets": ids}', _STAGES),
    Fault("parts beyond the budget published", _PLACES, "if file not in files:", "if False:", _WORKERS),
    # The engine
    Fault(
        "a killed part is forgotten",
        _LOCAL,
        "                    again.append(item)",
        "                    pass",
        _KILLED,
    ),
    Fault("tried for ever", "niels_gpt/engine/engine.py", "if tries == TRIES:", "if False:", _THREE),
    Fault("tried twice", "niels_gpt/engine/engine.py", "TRIES = 3", "TRIES = 2", _THREE),
    Fault("bad input tried again", "niels_gpt/engine/engine.py", "isinstance(fault, ValueError)", "False", _FINAL),
    Fault(
        "workers outlive the driver",
        _LOCAL,
        "(*busy.values(), *idle):\n            process.end()",
        "(*busy.values(), *idle):\n            pass",
        _LEFT,
    ),
    Fault("workers outlive a killed driver", _WORKER, "os._exit(0)", "return", _ORPHANS),
    Fault(
        "the last bytes are not told",
        _WORKER,
        '            outbox.send(("tick", unsent))\n            outbox.send(("done"',
        '            outbox.send(("done"',
        _ONCE,
    ),
    Fault(
        "a function that cannot be imported",
        _WORKER,
        "            tasks.put(error)",
        "            os._exit(3)",
        "tests/test_engine.py::test_a_function_that_workers_cannot_import_is_told_and_not_waited_for",
    ),
    Fault(
        "an error that cannot be sent",
        _WORKER,
        "        pickle.loads(pickle.dumps(error))",
        "        pass",
        "tests/test_engine.py::test_an_error_that_cannot_be_sent_comes_as_a_sentence",
    ),
    Fault(
        "damage from another process loses its paths",
        "niels_gpt/files/damage.py",
        "partial(Damaged, others=others), (path, what)",
        "Damaged, (path, what)",
        _FINAL,
    ),
    # Records and stores
    Fault(
        "done parts are made again",
        _RECORDS,
        "            if item.name in known:\n                continue\n",
        "",
        _MISSING,
    ),
    Fault("a cut file is believed", _RECORDS, 'store.size(file["file"]) == file["bytes"]', "True", _WHOLE),
    Fault(
        "a record that is none is a traceback", _RECORDS, "(ValueError, TypeError, LookupError)", "ValueError", _WHOLE
    ),
    Fault("a missing record passes", _RECORDS, "        if record is None:\n", "        if False:\n", _GONE),
    Fault(
        "more is made than is enough",
        _RECORDS,
        "            if are_enough():",
        "            if False:",
        _ENOUGH,
    ),
    Fault(
        "leftovers stay", _RECORDS, "    store.sweep()\n    known", "    known", _SWEPT, "the sweep at the end does it"
    ),
    Fault("what a live process writes is swept", "niels_gpt/files/atomic.py", "and not _lives(int(pid))", "", _SWEPT),
    Fault(
        "files are written in place",
        _STORE,
        "with atomic_path(self.path(file)) as temporary:",
        "with nullcontext(self.path(file)) as temporary:",
        _IN_STORE,
    ),
    Fault("a place that does not name what was made", _PLACES, "[*made_of, code]", "[code]", _STORED),
    Fault("private beside public", _RULES, "name != other and place.startswith(outer)", "False", _APART),
    Fault("stores compared as they are written", _RULES, "os.path.realpath(place)", "place", _APART),
    Fault(
        "a stored source without a store",
        _RULES,
        '_at(source, "stored") is True',
        "False",
        "tests/test_parts.py::test_a_stored_source_needs_a_store_of_its_remote",
    ),
    Fault(
        "a part that changed is read",
        "niels_gpt/data/parts.py",
        "if sha256_file(path) != part.sha256:",
        "if False:",
        "tests/test_integrity.py::test_a_tokenizer_is_not_trained_on_rows_or_documents_that_changed",
    ),
)
