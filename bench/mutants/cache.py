"""Faults in what turns text into batches: token caches, streams, tokenizers, configurations, schedule, RoPE."""

from __future__ import annotations

from bench.mutants.fault import Fault

_BUILD = "niels_gpt/cache/build_cache.py"
_CLI = "niels_gpt/cache/cli.py"
_STREAMS = "niels_gpt/streams.py"
_BYTES, _PIECES = "niels_gpt/tokenizer/bytes.py", "niels_gpt/tokenizer/sentencepiece.py"
_TOKENIZER_FOLDER = "niels_gpt/tokenizer/folder.py"

_SEED = "tests/test_cache_determinism.py::test_the_seed_decides_the_order_of_texts_and_which_chats_are_held_out"
_BUFFER = (
    "tests/test_cache_determinism.py::test_a_shuffle_buffer_mixes_texts_as_far_as_it_reaches_and_none_keeps_their_order"
)
_BUDGETS = "tests/test_cache.py::test_budgets_end_at_a_documents_end_and_fill_in_proportion"
_EMPTY = "tests/test_cache.py::test_a_split_that_would_be_empty_is_refused"
_TOKENIZERS = "tests/test_cache.py::test_sources_of_different_tokenizers_are_not_mixed"
_ROUNDTRIP = "tests/test_sft_cache_roundtrip.py::test_a_cache_gives_back_what_went_in"
_GROUP = "tests/test_sft_cache_roundtrip.py::test_a_group_is_never_torn_apart"
_MASKS = "tests/test_sft_masking.py::test_masks_padding_and_truncation_agree_with_a_slow_reference"
_CHATS = "tests/test_sft_masking.py::test_a_batch_holds_whole_chats_of_the_cache"
_FLAGS = "tests/test_cache_cli.py::test_what_the_loaders_can_do_has_a_flag"
_GUTENBERG = (
    "tests/test_cache_cli.py::test_a_gutenberg_that_cannot_be_had_is_said_in_its_meta_and_is_no_failure "
    "tests/test_cache_cli.py::test_any_other_dataset_that_cannot_be_had_is_a_failure"
)
_LAYOUT = "tests/test_cache_cli.py::test_the_tokenizer_lies_in_the_layout"
_STAGES = (
    "tests/test_token_stages.py::test_every_row_comes_out_in_its_split_and_every_file_is_named_with_its_hash "
    "tests/test_token_stages.py::test_budgets_end_at_a_documents_end_each_for_its_split"
)
_STAGE_CHATS = "tests/test_token_stages.py::test_chats_without_an_answer_within_the_context_are_left_out_and_counted"
_EDIT = "tests/test_streams.py::test_an_edit_is_noticed_by_its_time_or_by_its_size"
_SEPARATOR = "tests/test_streams.py::test_another_separator_or_delimiter_is_noticed"
_WIKI = "tests/test_streams.py::test_other_wiki_documents_are_noticed"
_MISSING = "tests/test_streams.py::test_a_wiki_that_cannot_be_had_may_be_missing_like_any_other_source"
_DRAWS = "tests/test_batching.py::test_draws_are_the_seeds_to_the_bit"
_NO_SENSE = "tests/test_batching.py::test_what_makes_no_sense_is_refused"
_SAMPLE = (
    "tests/test_tokenizer.py::test_the_sample_is_as_large_as_asked_for_drawn_by_seed_and_of_every_source "
    "tests/test_tokenizer.py::test_the_tokenizer_never_sees_a_row_that_is_held_out"
)
_LOSSLESS = "tests/test_tokenizer.py::test_pieces_are_lossless"
_SPECIAL = "tests/test_tokenizer.py::test_special_strings_in_text_stay_text"
_REFUSED = "tests/test_tokenizer.py::test_a_tokenizer_that_its_meta_does_not_describe_is_refused"
_REQUIRED = "tests/test_config.py::test_every_size_but_the_derived_one_is_required"
_WEIGHTS = "tests/test_config.py::test_weights_become_probabilities_and_a_weight_of_0_no_source"
_LR = "tests/test_lr_schedule.py"
_FLOAT64 = "tests/test_model.py::test_rope_asked_for_float64_is_computed_in_it_to_the_end"

FAULTS = (
    # The builders
    Fault(
        "pretrain seed ignored",
        _BUILD,
        "_shuffled(texts, shuffle_buffer, seed)",
        "_shuffled(texts, shuffle_buffer, 0)",
        _SEED,
    ),
    Fault("shuffle buffer ignored", _BUILD, "if shuffle_buffer else iter(texts)", "if False else iter(texts)", _BUFFER),
    Fault(
        "shuffle buffer of one size",
        _BUILD,
        "_shuffled(texts, shuffle_buffer, seed)",
        "_shuffled(texts, 16, seed)",
        _BUFFER,
    ),
    Fault(
        "buffer drawn from its head", _BUILD, "torch.randint(0, buffer_size, (1,)", "torch.randint(0, 1, (1,)", _BUFFER
    ),
    Fault(
        "a text is lost in the buffer",
        _BUILD,
        "        yield buffer[place]\n        buffer[place] = text",
        "        buffer[place] = text\n        yield buffer[place]",
        _BUFFER,
    ),
    Fault("budget overrun", _BUILD, "<= budgets[split]:", "<= budgets[split] + 100:", _BUDGETS),
    Fault("val filled last", _BUILD, 'first = "val" if total and', 'first = "train" if total and', _BUDGETS),
    Fault("empty val accepted", _BUILD, '(budget or split == "train")', 'split == "train"', _EMPTY),
    Fault("empty given split accepted", _BUILD, "            if not writer.tokens:", "            if False:", _EMPTY),
    Fault(
        "sft seed ignored",
        _BUILD,
        "split_rows(count, val_frac=val_frac, seed=seed)",
        "split_rows(count, val_frac=val_frac, seed=0)",
        _SEED,
    ),
    Fault(
        "val_frac ignored",
        _BUILD,
        "split_rows(count, val_frac=val_frac, seed=seed)",
        "split_rows(count, seed=seed)",
        _FLAGS,
    ),
    Fault(
        "groups torn apart",
        _BUILD,
        "split_groups(names, val_frac=val_frac, seed=seed)",
        "split_rows(count, val_frac=val_frac, seed=seed)",
        _GROUP,
    ),
    Fault(
        "groups may be too few",
        _BUILD,
        "zip(examples, groups, strict=True)",
        "zip(examples, groups, strict=False)",
        _GROUP,
    ),
    Fault(
        "all chats in memory",
        _BUILD,
        "write_token_file(*every, rendered())",
        "write_token_file(*every, list(rendered()))",
        "tests/test_sft_cache_roundtrip.py::test_chats_are_read_once_and_none_is_held",
    ),
    Fault("all chats left on disk", _BUILD, "            path.unlink()", "            pass", _ROUNDTRIP),
    Fault(
        "train and val swapped",
        _BUILD,
        '(("train", train), ("val", val))}',
        '(("train", val), ("val", train))}',
        _ROUNDTRIP,
    ),
    Fault(
        "empty sft split accepted",
        _BUILD,
        'if not totals[f"{split}_examples"]:',
        "if False:",
        "tests/test_sft_cache_roundtrip.py::test_a_cache_that_would_be_empty_is_refused",
    ),
    Fault(
        "a failed build replaces the old cache",
        "niels_gpt/files/atomic.py",
        "    try:\n        yield temporary\n        publish(temporary, path)\n",
        "    try:\n        try:\n            yield temporary\n        finally:\n            publish(temporary, path)\n",
        "tests/test_cache.py::test_a_rebuild_leaves_no_stale_shard_and_a_failure_leaves_the_old_cache",
    ),
    Fault(
        "a built cache made a stub", _BUILD, 'if any(Path(out_dir).glob("train/shard_*.bin")):', "if False:", _GUTENBERG
    ),
    Fault("a stub does not say so", _BUILD, '"status": "not built",', "", _GUTENBERG),
    Fault("a kept tokenizer written over", _BUILD, "if file.parent.resolve() == out.resolve():", "if False:", _LAYOUT),
    # build-all
    Fault("an unreachable gutenberg fails", _CLI, "except HubError as error:", "except KeyError as error:", _GUTENBERG),
    Fault(
        "any failure is a stub",
        _CLI,
        "except HubError as error:",
        "except (HubError, ValueError) as error:",
        _GUTENBERG,
    ),
    Fault("include_system ignored", _CLI, "include_system=include_system)", "include_system=False)", _FLAGS),
    Fault("english_only ignored", _CLI, "english_only=english_only", "english_only=True", _FLAGS),
    Fault("max_messages ignored", _CLI, "max_messages=max_messages", "max_messages=32", _FLAGS),
    Fault("sft_context ignored", _CLI, "T=sft_context", "T=None", _FLAGS),
    Fault("sft_val_frac ignored", _CLI, "val_frac=sft_val_frac", "val_frac=0.1", _FLAGS),
    Fault("buffer of fineweb ignored", _CLI, "shuffle_buffer_size=shuffle_buffer,", "shuffle_buffer_size=1,", _FLAGS),
    Fault(
        "streaming always said",
        _CLI,
        "source_config=fineweb_config,\n            streaming=streaming,",
        "source_config=fineweb_config,\n            streaming=True,",
        _FLAGS,
    ),
    # Files
    Fault(
        "offsets are ends",
        "niels_gpt/cache/formats.py",
        "            offsets.append(total)\n",
        "            offsets.append(total + len(ids))\n",
        _ROUNDTRIP,
    ),
    Fault(
        "offsets of shards at zero",
        "niels_gpt/cache/shards.py",
        "self._offsets.append(self.tokens)",
        "self._offsets.append(0)",
        _BUDGETS,
    ),
    Fault(
        "shards twice as large",
        "niels_gpt/cache/shards.py",
        "shard_bytes // TOKEN_DTYPE.itemsize",
        "shard_bytes",
        _BUDGETS,
    ),
    Fault("a budget that just fits does not", "niels_gpt/cache/token_parts.py", 'side="right"', 'side="left"', _STAGES),
    Fault(
        "an odd file accepted",
        "niels_gpt/cache/token_files.py",
        "if size == 0 or size % TOKEN_DTYPE.itemsize:",
        "if size == 0:",
        "tests/test_pretrain_window_sampling.py::test_a_damaged_shard_is_refused_by_name",
    ),
    Fault(
        "an empty file accepted",
        "niels_gpt/cache/token_files.py",
        "if size == 0 or size % TOKEN_DTYPE.itemsize:",
        "if size % TOKEN_DTYPE.itemsize:",
        "tests/test_pretrain_window_sampling.py::test_a_damaged_shard_is_refused_by_name",
    ),
    Fault(
        "meta without its keys accepted",
        "niels_gpt/files/descriptions.py",
        "    if missing:",
        "    if False:",
        "tests/test_cache.py::test_a_damaged_manifest_is_named",
    ),
    Fault(
        "deep JSON is a traceback",
        "niels_gpt/files/descriptions.py",
        "except (ValueError, RecursionError) as error:",
        "except ValueError as error:",
        "tests/test_sft_cache_roundtrip.py::test_damaged_files_are_refused_by_name",
    ),
    Fault(
        "meta without the split's seed",
        "niels_gpt/cache/meta.py",
        '"seed": rule.get("seed"),',
        '"seed": None,',
        "tests/test_cache.py::test_meta_says_where_the_text_came_from_and_how_it_was_split",
    ),
    Fault(
        "meta without the config",
        "niels_gpt/cache/meta.py",
        '"dataset_config": source.get("config"),',
        '"dataset_config": None,',
        _STAGES,
    ),
    Fault(
        "every file has the first one's hash",
        "niels_gpt/files/checksums.py",
        '"sha256": sha256_file(path),',
        '"sha256": sha256_file(min(folder.glob(pattern))),',
        _STAGES,
    ),
    Fault(
        "documents without an end",
        "niels_gpt/cache/encoding.py",
        "yield np.concatenate((ids, eot))",
        "yield ids",
        _STAGES,
    ),
    Fault(
        "documents out of order",
        "niels_gpt/cache/encoding.py",
        "pending.popleft()",
        "pending.pop()",
        "tests/test_cache.py::test_given_splits_are_kept_whole",
    ),
    Fault("context one token short", "niels_gpt/cache/encoding.py", "ids[: T + 1]", "ids[:T]", _FLAGS),
    Fault("dropped chats not counted", "niels_gpt/cache/encoding.py", "dropped += 1", "dropped += 0", _STAGE_CHATS),
    Fault(
        "no hash of the tokenizer",
        "niels_gpt/cache/encoding.py",
        '"tokenizer_sha256": tokenizer_sha256(tokenizer),',
        '"tokenizer_sha256": None,',
        "tests/test_cache.py::test_meta_names_the_tokenizer_by_the_hash_of_its_file",
    ),
    Fault(
        "windows without the generator",
        "niels_gpt/cache/pretrain_dataset.py",
        "(B,), generator=generator)",
        "(B,))",
        "tests/test_pretrain_window_sampling.py::test_the_generator_decides_the_windows",
    ),
    Fault(
        "the last window never drawn",
        "niels_gpt/cache/pretrain_dataset.py",
        "self._stream.windows(self._T), (B,)",
        "self._stream.windows(self._T) - 1, (B,)",
        "tests/test_pretrain_window_sampling.py::test_every_window_is_equally_likely",
    ),
    Fault(
        "chats cut one short",
        "niels_gpt/cache/sft_dataset.py",
        "np.minimum(self._lengths[rows], self._T + 1)",
        "np.minimum(self._lengths[rows], self._T)",
        _MASKS,
    ),
    Fault(
        "padding is learned",
        "niels_gpt/cache/sft_dataset.py",
        "eot_id=self._eot) & inside",
        "eot_id=self._eot)",
        _MASKS,
    ),
    Fault(
        "the last chat never drawn",
        "niels_gpt/cache/sft_dataset.py",
        "torch.randint(0, len(self), (B,)",
        "torch.randint(0, len(self) - 1, (B,)",
        _CHATS,
    ),
    Fault(
        "the user's turn is learned",
        "niels_gpt/cache/sft_mask.py",
        "np.where(ids == asst_id, places + 1,",
        "np.where(ids != eot_id, places + 1,",
        _MASKS,
    ),
    Fault(
        "the end of the turn is not learned",
        "niels_gpt/cache/sft_mask.py",
        "inside[:, 1:] = np.maximum.accumulate(marks, axis=1)[:, :-1] & 1",
        "inside[:] = np.maximum.accumulate(marks, axis=1) & 1",
        _MASKS,
    ),
    # Stages
    Fault(
        "tokenizer trained on val rows",
        "niels_gpt/cache/corpus.py",
        'splits.split["train"]',
        'splits.split["val"]',
        _SAMPLE,
    ),
    Fault(
        "sample_bytes ignored",
        "niels_gpt/cache/corpus.py",
        "share = min(1.0, sample_bytes / sum(texts.text_bytes for texts, _ in sources.values()))",
        "share = 1.0",
        _SAMPLE,
    ),
    Fault("the sample's seed ignored", "niels_gpt/cache/corpus.py", "manual_seed(seed)", "manual_seed(0)", _SAMPLE),
    Fault("vocab_size ignored", "stages/tokenizer.py", "vocab_size=settings.vocab_size", "vocab_size=320", _SAMPLE),
    Fault(
        "context ignored for chats",
        "stages/tokenize.py",
        "special_token_ids(), T=T)",
        "special_token_ids(), T=None)",
        _STAGE_CHATS,
    ),
    Fault(
        "no chat left, no word",
        "stages/tokenize.py",
        'if not totals["train_examples"] or not totals["val_examples"]:',
        "if False:",
        _STAGE_CHATS,
    ),
    Fault(
        "val has train's budget",
        "stages/tokenize.py",
        '"val": budget.max_val_tokens',
        '"val": budget.max_train_tokens',
        _STAGES,
    ),
    Fault(
        "val named as train",
        "niels_gpt/cache/token_parts.py",
        'startswith(f"{split}/")',
        'startswith("train/")',
        _STAGES,
    ),
    Fault("different tokenizers mixed", "niels_gpt/cache/join.py", "    if differing:", "    if False:", _TOKENIZERS),
    Fault(
        "chats of another tokenizer",
        "stages/mix.py",
        "{key: chats[key] for key in identity}})",
        "identity})",
        _TOKENIZERS,
    ),
    # Streams and batches
    Fault(
        "no mtime",
        _STREAMS,
        '{"mtime_ns": status.st_mtime_ns, "size": status.st_size}',
        '{"size": status.st_size}',
        _EDIT,
    ),
    Fault(
        "no size",
        _STREAMS,
        '{"mtime_ns": status.st_mtime_ns, "size": status.st_size}',
        '{"mtime_ns": status.st_mtime_ns}',
        _EDIT,
    ),
    Fault("no delimiter", _STREAMS, '                "delimiter": cfg.delimiter,\n', "", _SEPARATOR),
    Fault(
        "no separator of wiki",
        _STREAMS,
        'docs[split])),\n                "sep": cfg.doc_separator,',
        "docs[split])),",
        _SEPARATOR,
    ),
    Fault(
        "no separator of roam", _STREAMS, 'chosen],\n                "sep": cfg.doc_separator,', "chosen],", _SEPARATOR
    ),
    Fault("no number of documents", _STREAMS, '                "n_docs": len(docs[split]),\n', "", _WIKI),
    Fault(
        "no number of characters", _STREAMS, '                "total_chars": sum(map(len, docs[split])),\n', "", _WIKI
    ),
    Fault("the delimiter ignored", _STREAMS, "delimiter=cfg.delimiter)", "delimiter=DIALOGUE_DELIM)", _SEPARATOR),
    Fault(
        "force_rebuild ignored",
        _STREAMS,
        "if not cfg.force_rebuild and",
        "if",
        "tests/test_streams.py::test_another_seed_or_fraction_or_force_rebuilds",
    ),
    Fault(
        "a cache without its length",
        _STREAMS,
        'if known == {**stream.meta, "bytes": len(data)}:',
        'if known and {**known, "bytes": 0} == {**stream.meta, "bytes": 0}:',
        "tests/test_streams.py::test_a_damaged_cache_is_rebuilt",
    ),
    Fault(
        "a required source may be missing",
        _STREAMS,
        "if cfg.allow_missing_sources and not required:",
        "if cfg.allow_missing_sources:",
        _MISSING,
    ),
    Fault(
        "a wiki out of reach never missing",
        _STREAMS,
        "except (OSError, HubError) as error:",
        "except FileNotFoundError as error:",
        _MISSING,
    ),
    Fault(
        "too short by one accepted",
        _STREAMS,
        "if len(data) < T + 1",
        "if len(data) < T",
        "tests/test_streams.py::test_short_streams_are_listed_with_their_lengths",
    ),
    Fault("sums far from 1", "niels_gpt/batching.py", "<= 1e-6 or", "<= 1e-5 or", _NO_SENSE),
    Fault(
        "negative probabilities",
        "niels_gpt/batching.py",
        "or min(p.values()) < 0:",
        "or min(p.values()) < -1:",
        _NO_SENSE,
    ),
    Fault(
        "sources not sorted",
        "niels_gpt/batching.py",
        "names = tuple(sorted(sources))",
        "names = tuple(sources)",
        _DRAWS,
    ),
    Fault(
        "bits in the other order",
        "niels_gpt/batching.py",
        "(bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF))",
        "(bits & np.uint64(0xFFFFFFFF), bits >> np.uint64(32))",
        _DRAWS,
    ),
    Fault(
        "targets not shifted",
        "niels_gpt/batching.py",
        "return rows[:, :-1], rows[:, 1:]",
        "return rows[:, :-1], rows[:, :-1]",
        _DRAWS,
    ),
    # Tokenizers
    Fault(
        "a special string becomes its id",
        _BYTES,
        '        return list(text.encode("utf-8"))',
        '        return [256 + SPECIAL_TOKENS.index(text)] if text in SPECIAL_TOKENS else list(text.encode("utf-8"))',
        _SPECIAL,
    ),
    Fault(
        "the same for a tensor",
        _BYTES,
        'text.encode("utf-8"), np.uint8).astype(np.int64)',
        "(b'' if text in SPECIAL_TOKENS else text.encode()), np.uint8).astype(np.int64)",
        _SPECIAL,
    ),
    Fault(
        "a damaged model loads",
        _TOKENIZER_FOLDER,
        "if known is not None and known != _sha256(file):",
        "if False:",
        _REFUSED,
    ),
    Fault(
        "a real space mark lost",
        _PIECES,
        "self._space_mark if part == _SPACE_MARK",
        "[] if part == _SPACE_MARK",
        _LOSSLESS,
    ),
    Fault(
        "chat tokens have bytes",
        _PIECES,
        "if self._spm.IsControl(id) or self._spm.IsUnknown(id):",
        "if self._spm.IsUnknown(id):",
        "tests/test_tokenizer.py::test_sentencepiece_keeps_the_same_interface",
    ),
    Fault(
        "ids above a byte decoded",
        _BYTES,
        "max(values) < BYTE_VALUES",
        "max(values) <= BYTE_VALUES",
        "tests/test_tokenizer.py::test_decode_shows_what_is_not_utf8_and_refuses_what_is_no_byte",
    ),
    Fault(
        "text normalised",
        "niels_gpt/tokenizer/training.py",
        'normalization_rule_name="identity"',
        'normalization_rule_name="nmt_nfkc"',
        _LOSSLESS,
    ),
    Fault("bytes not spelt", "niels_gpt/tokenizer/training.py", "byte_fallback=True", "byte_fallback=False", _LOSSLESS),
    Fault(
        "NUL given to the trainer",
        "niels_gpt/tokenizer/training.py",
        '.replace("\\0", "")',
        "",
        "tests/test_tokenizer.py::test_a_nul_ends_no_text_for_the_trainer",
    ),
    Fault(
        "chat tokens are text",
        "niels_gpt/tokenizer/training.py",
        "control_symbols=list(SPECIAL_TOKENS)",
        "user_defined_symbols=list(SPECIAL_TOKENS)",
        _LOSSLESS,
    ),
    # Numbers
    Fault(
        "sizes are guessed",
        "niels_gpt/config.py",
        "missing = sorted(_SIZES - set(values))",
        "missing = []",
        _REQUIRED,
    ),
    Fault(
        "D is required",
        "niels_gpt/config.py",
        "missing = sorted(_SIZES - set(values))",
        'missing = sorted((_SIZES | {"D"}) - set(values))',
        _REQUIRED,
    ),
    Fault(
        "a wrong D accepted",
        "niels_gpt/config.py",
        'if values.get("D", cfg.D) != cfg.D:',
        "if False:",
        "tests/test_config.py::test_a_dict_round_trips_and_a_wrong_d_is_refused",
    ),
    Fault(
        "an odd D accepted",
        "niels_gpt/config.py",
        "if self.D % 2:",
        "if False:",
        "tests/test_config.py::test_impossible_shapes_are_refused",
    ),
    Fault("weights not normalised", "niels_gpt/data/mix.py", "key: weight / total", "key: weight", _WEIGHTS),
    Fault("a weight of 0 drawn", "niels_gpt/data/mix.py", "if weight > 0}", "}", _WEIGHTS),
    Fault(
        "linear decay",
        "niels_gpt/lr_schedule.py",
        "0.5 * (1.0 + math.cos(math.pi * fallen))",
        "1.0 - fallen",
        _LR,
    ),
    Fault("a line is a cosine", "niels_gpt/lr_schedule.py", 'if schedule == "linear"', "if False", _LR),
    Fault(
        "the rate never stays", "niels_gpt/lr_schedule.py", "max(0.0, progress - flat) / (1.0 - flat)", "progress", _LR
    ),
    Fault("the way down is cut short", "niels_gpt/lr_schedule.py", " / (1.0 - flat)", "", _LR),
    Fault("a run's schedule is not asked", "niels_gpt/lr_schedule.py", "        schedule=cfg.schedule,\n", "", _LR),
    Fault("momentum jumps", "niels_gpt/lr_schedule.py", " * step / cfg.momentum_warmup", " * 0", _LR),
    Fault(
        "momentum rises from its end",
        "niels_gpt/lr_schedule.py",
        "_FIRST_MOMENTUM, _MOMENTUM = 0.85",
        "_FIRST_MOMENTUM, _MOMENTUM = 0.95",
        _LR,
    ),
    Fault("a run's rate never stays", "niels_gpt/lr_schedule.py", "        flat=cfg.flat,\n", "", _LR),
    Fault(
        "the least rate one step late",
        "niels_gpt/lr_schedule.py",
        "(total_steps - 1) - warmup_steps",
        "total_steps - warmup_steps",
        _LR,
    ),
    Fault(
        "warm-up one step early",
        "niels_gpt/lr_schedule.py",
        "base_lr * step / warmup_steps",
        "base_lr * (step + 1) / warmup_steps",
        _LR,
    ),
    Fault(
        "the rate rises again",
        "niels_gpt/lr_schedule.py",
        "min(1.0, (step - warmup_steps) / decay_steps)",
        "(step - warmup_steps) / decay_steps",
        _LR,
    ),
    Fault(
        "float64 angles in float32",
        "niels_gpt/model/rope.py",
        "exact = _at_least_float32(dtype)",
        "exact = torch.float32",
        _FLOAT64,
    ),
    Fault(
        "float64 turned in float32",
        "niels_gpt/model/rope.py",
        "exact = _at_least_float32(x.dtype)",
        "exact = torch.float32",
        _FLOAT64,
    ),
    Fault(
        "bf16 angles",
        "niels_gpt/model/rope.py",
        "exact = _at_least_float32(dtype)",
        "exact = dtype",
        "tests/test_model.py::test_rope_keeps_dtype_slices_a_longer_cache_and_refuses_an_odd_width",
    ),
    Fault(
        "angles in float64 for all",
        "niels_gpt/model/rope.py",
        "exact = _at_least_float32(dtype)",
        "exact = torch.float64",
        "tests/test_model.py::test_rope_angles_are_computed_in_float32_for_float32",
    ),
    Fault(
        "theta ignored",
        "niels_gpt/model/rope.py",
        "inv_freq = theta **",
        "inv_freq = 10000.0 **",
        "tests/test_model.py::test_rope_turns_adjacent_pairs_by_position_times_frequency",
    ),
)
