"""Faults in what is written to disk and read back: checkpoints, run folders, whole files, splits, indices, mixes."""

from bench.mutants.fault import Fault

_CHECKPOINT, _ATOMIC, _STATE = "niels_gpt/checkpoint.py", "niels_gpt/files/atomic.py", "niels_gpt/train/state.py"
_INTEGRITY, _MANIFEST = "niels_gpt/cache/integrity.py", "niels_gpt/cache/manifest.py"
_SPLITS = "niels_gpt/data/splits.py"
_CHECKSUMS = "niels_gpt/files/checksums.py"
_FLIPPED = "tests/test_checkpoint.py::test_a_flipped_bit_anywhere_in_a_checkpoint_is_refused_by_name"
_PLAIN = "tests/test_checkpoint.py::test_a_plain_dict_of_torch_loads_and_its_values_are_never_others"
_ROUND_TRIP = "tests/test_checkpoint.py::test_round_trip_with_and_without_the_optimizer"
_FOREIGN = "tests/test_checkpoint.py::test_weights_that_are_not_those_of_their_config_are_refused_by_name"
_KILLED = (
    "tests/test_checkpoint.py::test_a_writer_killed_at_any_instant_leaves_the_old_or_the_new_and_no_part_of_either"
)
_RENAMED = "tests/test_checkpoint.py::test_a_finished_folder_is_renamed_not_copied_and_nothing_of_the_old_one_stays"
_ON_DISK = "tests/test_checkpoint.py::test_a_file_has_reached_the_disk_when_it_takes_its_name"
_ROWS = "tests/test_integrity.py::test_rows_and_offsets_that_are_not_those_written_are_refused_by_name"
_OFFSETS = "tests/test_integrity.py::test_offsets_fit_their_tokens_or_are_refused_whatever_bit_is_flipped"
_MIXES = "tests/test_integrity.py::test_a_mix_with_a_letter_changed_opens_as_before_or_is_refused_in_a_sentence"
_TOKENS = "tests/test_integrity.py::test_a_changed_token_file_or_chat_is_refused_before_a_token_is_read"

FAULTS = (
    Fault(
        "the seal is not compared",
        _CHECKPOINT,
        "if seal != _MARK + digest.hexdigest().encode():",
        "if not seal.startswith(_MARK):",
        _FLIPPED,
    ),
    Fault(
        "a state is loaded unchecked",
        _CHECKPOINT,
        "        _check_seal(Path(path))\n",
        "",
        "tests/test_checkpoint.py::test_a_flipped_bit_anywhere_in_a_state_is_refused_and_says_what_to_delete",
    ),
    Fault(
        "the comment hashed with the rest",
        _CHECKPOINT,
        "path.stat().st_size - _SEAL_BYTES",
        "path.stat().st_size",
        _ROUND_TRIP,
    ),
    Fault("no seal is written", _CHECKPOINT, "            _seal(temporary)\n", "", _FLIPPED),
    Fault("zip checksums ignored", _CHECKPOINT, "damaged = archive.testzip() or next(", "damaged = next(", _PLAIN),
    Fault(
        "a folder mark in a zip ignored",
        _CHECKPOINT,
        " or next((m.filename for m in archive.infolist() if m.external_attr), None)",
        "",
        _PLAIN,
    ),
    Fault(
        "pickles run",
        _CHECKPOINT,
        "weights_only=True)",
        "weights_only=False)",
        "tests/test_checkpoint.py::test_what_is_no_checkpoint_is_refused_and_runs_nothing",
    ),
    Fault(
        "the optimizer is always left out",
        _CHECKPOINT,
        "None if optimizer is None else optimizer.state_dict()",
        "None",
        _ROUND_TRIP,
    ),
    Fault("the step is lost", _CHECKPOINT, 'int(stored["step"])', "0", _ROUND_TRIP),
    Fault(
        "dropout of a model to train further ignored",
        _CHECKPOINT,
        'config if dropout is None else {**config, "dropout": dropout}',
        "config",
        _FOREIGN,
    ),
    Fault(
        "weights of another shape: a traceback",
        _CHECKPOINT,
        "except (RuntimeError, ValueError, ",
        "except (ValueError, ",
        _FOREIGN,
    ),
    Fault(
        "no config.json beside a checkpoint",
        _CHECKPOINT,
        '    write_json(path.with_name("config.json"), dict(config))\n',
        "",
        _ROUND_TRIP,
    ),
    Fault(
        "a full disk in torch's words alone",
        _CHECKPOINT,
        "except (RuntimeError, OSError) as error:",
        "except OSError as error:",
        "tests/test_checkpoint.py::test_a_full_disk_keeps_the_last_checkpoint",
    ),
    Fault("no fsync", _ATOMIC, "        os.fsync(f.fileno())\n", "        pass\n", _ON_DISK),
    Fault(
        "a file copied, not renamed", _ATOMIC, "os.replace(temporary, path)", "shutil.copy(temporary, path)", _ON_DISK
    ),
    Fault(
        "a folder copied, not renamed",
        _ATOMIC,
        "        temporary.rename(path)\n",
        "        shutil.copytree(temporary, path)\n",
        f"{_RENAMED} {_KILLED}",
    ),
    Fault(
        "the old folder stays beside the new",
        _ATOMIC,
        "        temporary.rename(path)\n        discard(old)\n",
        "        temporary.rename(path)\n",
        _RENAMED,
    ),
    Fault(
        "the old folder is deleted before the new one comes",
        _ATOMIC,
        "            path.rename(old)\n",
        "            shutil.rmtree(path)\n",
        _KILLED,
    ),
    Fault("an old folder under a name that nobody cleans up", _ATOMIC, '.name}.old")', '.name[1:]}.old")', _KILLED),
    Fault(
        "a failed write published",
        _ATOMIC,
        "        name_file(error, path)\n        raise\n    finally:\n        discard(temporary)\n",
        "        name_file(error, path)\n        raise\n    finally:\n        publish(temporary, path)\n",
        "tests/test_checkpoint.py::test_a_failed_write_leaves_the_old_file_and_no_other",
    ),
    Fault("JSON in the order of its making", _ATOMIC, "sort_keys=True", "sort_keys=False", _ON_DISK),
    Fault(
        "a run's folder held by two",
        _STATE,
        "fcntl.LOCK_EX | fcntl.LOCK_NB)\n            except BlockingIOError as error:",
        "fcntl.LOCK_SH | fcntl.LOCK_NB)\n            except BlockingIOError as error:",
        "tests/test_checkpoint.py::test_a_second_process_on_the_same_run_is_refused",
    ),
    Fault(
        "a killed writer's file stays",
        _STATE,
        'self.path.glob(".*.tmp*")',
        'self.path.glob("*.tmp")',
        f"tests/test_checkpoint.py::test_what_a_killed_writer_left_is_gone_once_the_folder_is_held {_KILLED}",
    ),
    Fault(
        "the oldest runs are kept",
        _STATE,
        "st_mtime, reverse=True)",
        "st_mtime)",
        "tests/test_checkpoint.py::test_pruning_keeps_the_newest_and_those_in_use",
    ),
    Fault(
        "a run that is held is deleted",
        _STATE,
        "            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)\n            size",
        "            size",
        "tests/test_checkpoint.py::test_pruning_keeps_the_newest_and_those_in_use",
    ),
    Fault(
        "unfinished runs are deleted unasked",
        _STATE,
        'and (unfinished or (folder / "finished").is_file())',
        "",
        "tests/test_checkpoint.py::test_finished_runs_are_deleted_others_only_when_asked_and_none_that_is_held",
    ),
    Fault(
        "files told apart by size alone",
        _CHECKSUMS,
        'path.stat().st_size != file["bytes"] or sha256_file(path) != file["sha256"]',
        'path.stat().st_size != file["bytes"]',
        _ROWS,
    ),
    Fault("a missing file passes", _CHECKSUMS, 'bad[file["path"]] = "missing"', "pass", _ROWS),
    Fault(
        "a changed folder passes",
        _SPLITS,
        "    if bad:\n        raise Damaged(folder",
        "    if False:\n        raise Damaged(folder",
        _ROWS,
    ),
    Fault(
        "documents other than those split",
        _SPLITS,
        'if facts.get("texts_sha256") != texts.digest:',
        "if False:",
        "tests/test_integrity.py::test_a_tokenizer_is_not_trained_on_rows_or_documents_that_changed",
    ),
    Fault(
        "val rows are the train rows",
        _SPLITS,
        'np.load(folder / f"{split}.npy")',
        'np.load(folder / "train.npy")',
        "tests/test_integrity.py::test_train_and_val_are_read_each_from_its_file",
    ),
    Fault("offsets that fall back", _INTEGRITY, "(starts[1:] <= starts[:-1]).any() or ", "", _OFFSETS),
    Fault("offsets that stand still", _INTEGRITY, "starts[1:] <= starts[:-1]", "starts[1:] < starts[:-1]", _OFFSETS),
    Fault("an offset at the end of the file", _INTEGRITY, "starts[-1] >= tokens", "starts[-1] > tokens", _OFFSETS),
    Fault("offsets that do not begin at 0", _INTEGRITY, "starts[0] != 0 or ", "", _OFFSETS),
    Fault(
        "a damaged npy in numpy's words",
        _INTEGRITY,
        "    except Exception as error:  # on",
        "    except TypeError as error:  # on",
        _OFFSETS,
    ),
    Fault(
        "a key gone from a mix: a traceback",
        "niels_gpt/files/descriptions.py",
        "except (LookupError, ",
        "except (",
        _MIXES,
    ),
    Fault("a changed token file passes", _MANIFEST, 'return "changed"', "return None", _TOKENS),
    Fault("a missing token file passes", _MANIFEST, 'return "missing"', "return None", _ROWS),
    Fault(
        "ids beyond the vocabulary pass",
        _MANIFEST,
        ".max()) >= vocab_size",
        ".max()) > vocab_size",
        "tests/test_integrity.py::test_an_id_that_the_model_has_not_is_refused_and_the_last_one_it_has_is_not",
    ),
    Fault(
        "documents to splice unchecked",
        "niels_gpt/splice/documents.py",
        '        check_files(files, vocab_size=manifest["vocab_size"], ranks=ranks)\n',
        "",
        "tests/test_integrity.py::test_documents_to_learn_by_heart_are_read_from_files_as_written",
    ),
    Fault(
        "offsets to splice by unchecked", "niels_gpt/splice/documents.py", "documents=True", "documents=False", _ROWS
    ),
)
