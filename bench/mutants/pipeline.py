"""The graph, what stages share, what DVC leaves half-written, and how a run is started."""

from bench.mutants.fault import Fault

STAGE, FILES, GRAPH = "niels_gpt/pipeline/stage.py", "niels_gpt/pipeline/dvc_files.py", "dvc.yaml"
_RAN = "tests/test_dvc_yaml.py::test_data_a_stage_opens_is_in_its_deps_and_nothing_else_is"
_CUT = "tests/test_dvc_files.py::test_a_lock_that_was_cut_anywhere_is_not_whole_or_lacks_whole_records_alone"
_BACK = "tests/test_dvc_files.py::test_a_broken_lock_comes_back_as_the_last_stage_found_it"
_APART = "tests/test_stage.py::test_runs_are_told_apart_by_what_is_declared_and_by_nothing_else"
_REMOTES = (
    "tests/test_dvc_yaml.py::test_what_is_made_of_a_source_goes_to_its_remote_and_what_is_made_of_all_to_no_public_one"
)
_OUTS = "tests/test_dvc_yaml.py::test_no_stage_declares_runtime_and_no_out_is_named_by_a_value"
_STOPPED = "tests/test_stage.py::test_a_stage_that_is_stopped_leaves_nothing"
_TOGETHER = "tests/test_stage.py::test_outputs_appear_together_at_the_end"
_CHANGED = "tests/test_stage.py::test_what_changed_while_a_stage_ran_is_named"
_PROCESS = "tests/test_stage.py::test_a_process_takes_its_stage_from_the_environment"
_SEEN = "tests/test_dvc_yaml.py::test_a_stage_sees_the_parameters_that_it_declares_and_no_others"
_TABLES = "tests/test_stage.py::test_chats_and_texts_are_looked_up_in_their_own_tables"

FAULTS = (
    # dvc.yaml
    Fault("sft does not declare model.dropout", GRAPH, "- model.dropout\n      - p_sft", "- p_sft", f"{_RAN} {_APART}"),
    Fault("sft does not declare p_val", GRAPH, "- p_val\n      - sft\n      - train.d", "- sft\n      - train.d", _RAN),
    Fault("sft does not declare train.document_mask", GRAPH, "      - train.document_mask\n", "", _RAN),
    Fault("sft does not declare p_sft", GRAPH, "- p_sft\n      - p_val\n      - sft", "- p_val\n      - sft", _RAN),
    Fault("splice does not declare model.dropout", GRAPH, "- model.dropout\n      - p_train", "- p_train", _RAN),
    Fault("tokenize_chat does not declare model.T", GRAPH, "      params:\n        - model.T\n", "", _RAN),
    Fault("load does not declare the source's load", GRAPH, "        - sources.${key}.load\n", "", _RAN),
    Fault("split_chat does not declare its rule", GRAPH, "      params:\n        - chats.${key}.split\n", "", _RAN),
    Fault("memorize declares nothing", GRAPH, "    params:\n      - memorize\n", "", _RAN),
    Fault(
        "train does not depend on the tokenizer",
        GRAPH,
        "cmd: python -m stages.train\n    deps:\n      - cache/mix.json\n      - cache/tokenizer\n",
        "cmd: python -m stages.train\n    deps:\n      - cache/mix.json\n",
        _RAN,
    ),
    Fault(
        "sft does not depend on the pretrained model",
        GRAPH,
        "cmd: python -m stages.sft\n    deps:\n      - cache/chat_mix.json\n      - cache/mix.json\n"
        "      - cache/tokenizer\n      - models/pretrain\n",
        "cmd: python -m stages.sft\n    deps:\n      - cache/chat_mix.json\n      - cache/mix.json\n"
        "      - cache/tokenizer\n",
        _RAN,
    ),
    Fault("eval does not depend on a curve", GRAPH, "      - metrics/sft_val.tsv\n", "", _RAN),
    Fault(
        "memorize does not depend on the spliced model",
        GRAPH,
        "      - models/splice\n      - cache/code",
        "      - cache/code",
        _RAN,
    ),
    Fault(
        "the tokenizer does not depend on its code",
        GRAPH,
        "      - cache/code/tokenizer.json\n",
        "",
        "tests/test_dvc_yaml.py::test_a_stage_depends_on_the_record_of_its_own_code",
    ),
    Fault(
        "a name in a command",
        GRAPH,
        "cmd: python -m stages.mix",
        "cmd: python -m stages.mix ${key}",
        "tests/test_dvc_yaml.py::test_no_parameter_reaches_the_shell",
    ),
    Fault("an out named by a value", GRAPH, "- cache/sft/${key}:", "- cache/${item.val_name}:", _OUTS),
    Fault(
        "runtime declared",
        GRAPH,
        "    params:\n      - memorize\n",
        "    params:\n      - memorize\n      - runtime\n",
        _OUTS,
    ),
    Fault(
        "tokens of a private source to the default remote",
        GRAPH,
        "- cache/tokens/${key}:\n            remote: ${item.remote}",
        "- cache/tokens/${key}",
        _REMOTES,
    ),
    Fault(
        "pages with private text to the public remote",
        GRAPH,
        "      - metrics/memorize.html\n",
        "      - metrics/memorize.html:\n          remote: store\n",
        _REMOTES,
    ),
    Fault("models to the public remote", ".dvc/config", "    remote = private\n", "    remote = store\n", _REMOTES),
    # What stages share
    Fault("SIGTERM unhandled", STAGE, "signal.signal(signal.SIGTERM, signal.default_int_handler)", "pass", _STOPPED),
    Fault("an interrupted stage ends well", STAGE, "code = 130", "code = 0", _STOPPED),
    Fault("a stage that failed ends well", STAGE, "code = 1\n", "code = 0\n", _PROCESS),
    Fault("any module as any stage", STAGE, 'if name.removesuffix("_chat") != module:', "if False:", _PROCESS),
    Fault(
        "a stage called from below is not found",
        STAGE,
        'address.rpartition(":")[2].partition("@")',
        'address.partition("@")',
        "tests/test_stage.py::test_a_stage_is_the_one_that_dvc_says",
    ),
    Fault(
        "the wrong table of sources",
        "niels_gpt/pipeline/graph.py",
        'return items.strip("${}") if',
        'return "sources" if',
        _TABLES,
    ),
    Fault("DVC_STAGE ignored", STAGE, 'os.environ.get("DVC_STAGE", module)', "module", _PROCESS),
    Fault("changed inputs are not noticed", STAGE, "        if changed:\n", "        if False:\n", _CHANGED),
    Fault("changed parameters are not noticed", STAGE, "pairs = [(self.params, other.params), ", "pairs = [", _CHANGED),
    Fault("changed files are not noticed", STAGE, ", (self.deps, other.deps)]", "]", _CHANGED),
    Fault(
        "a failed stage leaves its temporaries",
        STAGE,
        "            discard(temporary)\n",
        "            pass\n",
        _STOPPED,
    ),
    Fault("temporaries of killed runs stay", STAGE, "            discard(stale)\n", "            pass\n", _TOGETHER),
    Fault("every call another temporary", STAGE, "if final in self._outs:", "if False:", _TOGETHER),
    Fault(
        "another code, the same run", STAGE, "json.dumps([self.params, self.deps]", "json.dumps([self.params]", _APART
    ),
    Fault(
        "other parameters, the same run", STAGE, "json.dumps([self.params, self.deps]", "json.dumps([self.deps]", _APART
    ),
    Fault(
        "undeclared parameters seen",
        STAGE,
        'if name in declared or name in ("runtime", "input", "remote"):',
        "if True:",
        _SEEN,
    ),
    Fault("runtime unseen", STAGE, 'name in ("runtime", "input", "remote")', 'name in ("input", "remote")', _SEEN),
    Fault(
        "checkpoints in a throw-away copy",
        STAGE,
        'os.environ.get("DVC_ROOT", ".")',
        '"."',
        "tests/test_stage.py::test_checkpoints_are_kept_in_the_checkout_also_for_an_experiment_in_a_copy",
    ),
    Fault(
        "a starting stage keeps no lock",
        STAGE,
        "    keep_lock(Path())\n",
        "",
        "tests/test_dvc_files.py::test_a_stage_that_starts_keeps_the_lock",
    ),
    # What DVC leaves half-written
    Fault("a cut line is whole", FILES, 'if not text.endswith("\\n"):', "if not text:", _CUT),
    Fault("a record without its size is whole", FILES, '{"path", "md5", "size"}', '{"path", "md5"}', _CUT),
    Fault("a folder without its count is whole", FILES, '"nfiles" in file or', "True or", _CUT),
    Fault("a stage without outputs is whole", FILES, '*stage["outs"]]', '*stage.get("outs", [])]', _CUT),
    Fault("a broken lock is kept", FILES, "if text is None or not is_whole(text):", "if text is None:", _BACK),
    Fault(
        "an old copy before a new commit",
        FILES,
        "        in_order.reverse()\n",
        "        pass\n",
        "tests/test_dvc_files.py::test_a_lock_committed_since_is_preferred_to_an_older_copy",
    ),
    Fault("the commit before the copy", FILES, 'if head != f"# {', 'if head == f"# {', _BACK),
    Fault(
        "mended under DVC's hands",
        FILES,
        "fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        "tests/test_dvc_files.py::test_nothing_is_touched_while_dvc_is_at_work",
    ),
    Fault(
        "a merge overwritten",
        FILES,
        'line.startswith("<<<<<<< ")',
        "False",
        "tests/test_dvc_files.py::test_both_sides_of_a_merge_are_for_a_person_to_settle",
    ),
    Fault(
        "a broken rwlock stays",
        FILES,
        "    except ValueError:\n        return False\n",
        "    except ValueError:\n        return True\n",
        "tests/test_dvc_files.py::test_what_else_dvc_leaves_half_written_is_taken_away",
    ),
    Fault(
        "half-written entries of the cache of runs stay",
        FILES,
        'entry.name.startswith(".")',
        "False",
        "tests/test_dvc_files.py::test_what_else_dvc_leaves_half_written_is_taken_away",
    ),
    Fault(
        "empty folders of the cache of runs stay",
        FILES,
        "[folder] if half == entries else half",
        "half",
        "tests/test_dvc_files.py::test_what_else_dvc_leaves_half_written_is_taken_away",
    ),
    Fault(
        "mend keeps no copy",
        FILES,
        "        keep_lock(root)\n",
        "",
        "tests/test_dvc_files.py::test_a_mend_keeps_a_copy_too",
    ),
    Fault(
        "doctor does not look at DVC's files",
        "niels_gpt/pipeline/doctor.py",
        "for name in broken_files(folder):",
        "for name in ():",
        "tests/test_dvc_files.py::test_doctor_names_what_is_half_written",
    ),
    # How a run is started and taken back
    Fault(
        "make run does not mend",
        "Makefile",
        "\tniels-gpt mend\n",
        "",
        "tests/test_readme.py::test_make_run_mends_what_an_interruption_left_before_it_runs",
    ),
    Fault(
        "an undo that deletes the models",
        "README.md",
        "`git checkout params.yaml && dvc repro`",
        "`git checkout params.yaml dvc.lock && dvc checkout`",
        "tests/test_readme.py::test_every_command_in_the_text_is_run_or_is_known_to_be_run_elsewhere",
    ),
)
