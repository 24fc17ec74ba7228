"""Faults in what trains, validates and measures a model, and in the model's own fast paths."""

from __future__ import annotations

from bench.mutants.fault import Fault

_BEST = "tests/test_train.py::test_the_best_model_is_that_of_the_lowest_validation_as_it_was_then"
_SAMPLES = "tests/test_train.py::test_samples_are_of_validations_1_2_4_8_and_the_last"
_PACE = "tests/test_train.py::test_checkpoints_and_reports_come_when_asked_for"
_SIGNAL = "tests/test_train.py::test_a_signal_ends_the_step_at_hand_saves_and_the_run_goes_on_from_there"
_LONG_RUN = "tests/test_train.py::test_metrics_of_a_long_run_are_means_of_what_lies_between_the_points"
_LOG_LINE = "tests/test_train.py::test_a_log_line_tells_a_person_what_the_file_tells_a_program"
_TEXT_BATCH = "tests/test_train.py::test_text_batches_are_a_function_of_seed_and_step"
_CHAT_BATCH = "tests/test_train.py::test_chat_batches_are_a_function_of_seed_and_step"
_CHAT_ROWS = "tests/test_train.py::test_chats_are_validated_on_so_many_as_was_asked_for"
_FINE_TUNING = "tests/test_train.py::test_fine_tuning_learns_the_answers_and_shows_what_is_forgotten"
_BEST_AND_LAST = "tests/test_training_stages.py::test_best_and_last_are_the_models_of_those_steps"
_START = "tests/test_training_stages.py::test_fine_tuning_starts_from_the_best_model"
_MASKED = "tests/test_training_stages.py::test_a_mask_of_documents_reaches_training_fine_tuning_and_every_score"
_EVAL = "tests/test_training_stages.py::test_eval_scores_both_models_on_all_there_is_and_writes_what_they_say"
_HISTORY = "tests/test_training_stages.py::test_a_history_reads_back_as_it_was_written_and_a_damaged_one_is_named"
_STOPPED = "tests/test_training_stages.py::test_a_stopped_stage_publishes_nothing_says_how_to_go_on_and_goes_on"
_EVALUATE = "tests/test_eval.py::test_evaluate_is_the_mean_loss_without_dropout_and_leaves_the_mode_alone"
_MODE = "tests/test_eval.py::test_a_mode_is_put_back_and_gradients_are_taken_again_after_an_error"
_CHAT_SCORE = "tests/test_eval.py::test_chats_are_scored_by_what_the_assistant_says"
_DOCUMENTS = "tests/test_document_mask.py::test_a_document_begins_where_its_offset_says_and_nowhere_else"
_MASKED_RUN = "tests/test_document_mask.py::test_training_and_validation_see_one_document_at_a_time"
_METER = "tests/test_step.py::test_the_time_of_validations_is_left_but_is_no_training"
_NO_UNITS = "tests/test_step.py::test_a_cpu_without_bf16_units_is_one_sentence_and_computes_all_the_same"
_MUON_STEP = "tests/test_step.py::test_muon_takes_a_step_of_the_size_of_adamws_against_its_momentum"
_BY_GROUP = "tests/test_train.py::test_every_group_has_its_multiple_of_rate_and_decay"
_MUON_ALIKE = "tests/test_step.py::test_matrices_of_one_shape_move_by_their_own_gradients"
_RECORDED = "tests/test_step.py::test_a_recorded_step_trains_as_a_plain_one_and_goes_on"
_TENSORS = "tests/test_train.py::test_a_graphs_rates_are_tensors_of_their_own"
_MOMENTUM = "tests/test_step.py::test_a_step_takes_the_momentum_of_its_number"
_LR_GIVEN = "tests/test_step.py::test_a_step_takes_the_learning_rate_it_is_given"
_ONE_LOSS = "tests/test_step.py::test_head_and_loss_in_one_equal_logits_and_cross_entropy"
_DECODER = "tests/test_generate.py::test_cached_logits_equal_uncached_ones_however_the_tokens_come"

FAULTS = (
    # the loop
    Fault(
        "best = worst", "niels_gpt/train/loop.py", "val_loss < run.best_val_loss", "val_loss > run.best_val_loss", _BEST
    ),
    Fault(
        "of equals the last is best",
        "niels_gpt/train/loop.py",
        "val_loss < run.best_val_loss",
        "val_loss <= run.best_val_loss",
        _BEST,
    ),
    Fault(
        "best model not a copy",
        "niels_gpt/train/loop.py",
        "copy.deepcopy(step.weights())",
        "step.weights()",
        _BEST,
    ),
    Fault(
        "best step is the one before",
        "niels_gpt/train/loop.py",
        "run.best_step = val_loss, run.step",
        "run.best_step = val_loss, run.step - 1",
        _BEST,
    ),
    Fault(
        "the end is not validated",
        "niels_gpt/train/loop.py",
        "validating = last or run",
        "validating = run",
        "tests/test_train.py::test_a_run_is_validated_at_its_end_whatever_the_interval",
    ),
    Fault(
        "rows are not added up",
        "niels_gpt/train/loop.py",
        "run.drawn_rows[name] += rows",
        "run.drawn_rows[name] = rows",
        _PACE,
    ),
    Fault(
        "lr of the next step",
        "niels_gpt/train/loop.py",
        "lr = scheduled_lr(cfg, run.step)",
        "lr = scheduled_lr(cfg, run.step + 1)",
        _PACE,
    ),
    Fault(
        "a loss that is no number goes on",
        "niels_gpt/train/loop.py",
        "if not math.isfinite(loss):",
        "if False:",
        "tests/test_train.py::test_a_loss_that_is_no_number_stops_with_step_and_lr_and_saves_nothing_bad",
    ),
    Fault(
        "nobody asks whether to stop",
        "niels_gpt/train/loop.py",
        "read_losses()\n                stopping = ranks.any(hooks.should_stop(), device=execution.device)",
        "read_losses()\n                stopping = False",
        _SIGNAL,
    ),
    Fault(
        "a sample at every validation",
        "niels_gpt/train/loop.py",
        "return n & (n - 1) == 0",
        "return True",
        _SAMPLES,
    ),
    Fault(
        "the end is not sampled", "niels_gpt/train/loop.py", "if run.step == cfg.total_steps or _is", "if _is", _SAMPLES
    ),
    Fault(
        "samples by step, not by validation",
        "niels_gpt/train/loop.py",
        "_is_power_of_two(len(run.validations))",
        "_is_power_of_two(run.step)",
        "tests/test_step.py::test_reports_tell_speed_use_and_time_left",
    ),
    Fault(
        "a log line repeats the sample before",
        "niels_gpt/train/meter.py",
        'bool(run.samples) and run.samples[-1]["step"] == run.step',
        "bool(run.samples) and validated",
        _SAMPLES,
    ),
    # the run
    Fault("SIGTERM unhandled", "niels_gpt/train/run.py", "    signal.signal(signal.SIGTERM, handle)\n", "", _SIGNAL),
    Fault("SIGINT unhandled", "niels_gpt/train/run.py", "    signal.signal(signal.SIGINT, handle)\n", "", _SIGNAL),
    Fault(
        "a second Ctrl-C is lost",
        "niels_gpt/train/run.py",
        "        signal.signal(signal.SIGINT, signal.default_int_handler)\n",
        "",
        "tests/test_train.py::test_a_second_ctrl_c_is_a_plain_one",
    ),
    Fault(
        "never resumed",
        "niels_gpt/train/run.py",
        "from_first(_newest(checkpoints, model, execution))",
        "from_first(None)",
        _SIGNAL,
    ),
    Fault("nothing saved", "niels_gpt/train/run.py", "update, save=save", "update", _SIGNAL),
    Fault(
        "rate measured before bf16 is settled",
        "niels_gpt/train/run.py",
        'if cfg.precision == "bf16":',
        "if False:",
        _NO_UNITS,
    ),
    # the stages
    Fault(
        "best.pt = last.pt",
        "niels_gpt/pipeline/training.py",
        "    model.load_state_dict(run.best_model)\n",
        "",
        _BEST_AND_LAST,
    ),
    Fault(
        "best.pt tells the last step",
        "niels_gpt/pipeline/training.py",
        "model, None, run.best_step",
        "model, None, run.step",
        _BEST_AND_LAST,
    ),
    Fault(
        "a stopped stage ends well",
        "niels_gpt/pipeline/training.py",
        "        sys.exit(130)\n    if ranks",
        "        sys.exit(0)\n    if ranks",
        _STOPPED,
    ),
    Fault(
        "a run is finished before its model is published",
        "niels_gpt/pipeline/stage.py",
        "        changed = inputs.differences(",
        "        for act in stage.on_success:\n            act()\n        changed = inputs.differences(",
        "tests/test_stage.py",
    ),
    Fault(
        "ranks are left training by a kill",
        "niels_gpt/pipeline/hosts.py",
        "                launched.terminate()\n                launched.wait()\n",
        "                launched.kill()\n",
        "tests/test_step.py::test_a_stage_of_several_processes_that_is_killed_saves_and_leaves_none",
    ),
    Fault(
        "a GPU that is not there is taken",
        "niels_gpt/device.py",
        "if int(number or 0) >= counts.get(kind, 0):",
        "if not counts.get(kind, 0):",
        "tests/test_doctor.py::test_a_gpu_beyond_those_there_are_is_not_taken",
    ),
    Fault(
        "the second GPU is not the current one",
        "niels_gpt/device.py",
        "        torch.cuda.set_device(device)",
        "        pass",
        "tests/test_doctor.py::test_a_gpu_beyond_those_there_are_is_not_taken",
    ),
    Fault(
        "a stopped stage publishes",
        "niels_gpt/pipeline/training.py",
        "if run.step < cfg.total_steps:",
        "if run.step < 0:",
        _STOPPED,
    ),
    Fault(
        "a rank starts ranks",
        "niels_gpt/pipeline/training.py",
        'if "RANK" in os.environ:',
        "if False:",
        "tests/test_training_stages.py::test_processes_that_help_write_nothing",
    ),
    Fault(
        "further training starts from last.pt",
        "niels_gpt/pipeline/training.py",
        "layout.PRETRAINED / layout.BEST, device",
        "layout.PRETRAINED / layout.LAST, device",
        _START,
    ),
    Fault(
        "further training has always the model's dropout",
        "niels_gpt/pipeline/training.py",
        "params.model.dropout if settings.dropout is None else settings.dropout",
        "params.model.dropout",
        "tests/test_training_stages.py::test_further_training_has_the_models_dropout_or_its_own",
    ),
    Fault(
        "sft rendered as text",
        "stages/sft.py",
        'renderer="chat_tokens"',
        'renderer="transcript"',
        "tests/test_training_stages.py::test_a_model_says_how_chats_are_put_to_it",
    ),
    Fault(
        "p_val ignored by train",
        "niels_gpt/pipeline/pretraining.py",
        "mix_probabilities(params.p_val",
        "mix_probabilities(params.p_train",
        _BEST_AND_LAST,
    ),
    Fault(
        "document_mask ignored in train",
        "niels_gpt/pipeline/pretraining.py",
        "documents=params.train.document_mask",
        "documents=False",
        _MASKED,
    ),
    Fault(
        "document_mask ignored in sft",
        "stages/sft.py",
        "documents=params.train.document_mask",
        "documents=False",
        _MASKED,
    ),
    Fault(
        "document_mask ignored in eval",
        "stages/eval.py",
        "documents=stage.params.train.document_mask",
        "documents=False",
        _MASKED,
    ),
    Fault("eval takes last.pt", "stages/eval.py", "folder / layout.BEST", "folder / layout.LAST", _EVAL),
    Fault(
        "answers of the pretrained model scored",
        "stages/eval.py",
        "score_chats(tuned, examples",
        "score_chats(pretrained, examples",
        _EVAL,
    ),
    # tasks and batches
    Fault(
        "p_val ignored",
        "niels_gpt/train/pretraining.py",
        "self.cfg.p_val[name] * loss",
        "loss / len(losses)",
        "tests/test_train.py::test_validation_weighs_its_sources_by_p_val",
    ),
    Fault(
        "p_sft ignored in validation",
        "niels_gpt/train/chats.py",
        "sum(self.cfg.p_train[name] * loss for name, loss in losses.items())",
        "sum(losses.values()) / len(losses)",
        _FINE_TUNING,
    ),
    Fault("every batch is one", "niels_gpt/train/pretraining.py", '"batch", n)', '"batch", 0)', _TEXT_BATCH),
    Fault(
        "chat batches have no seed",
        "niels_gpt/train/chats.py",
        'derive_seed(self.cfg.seed, "chat batch", n)',
        'derive_seed(0, "chat batch", n)',
        _CHAT_BATCH,
    ),
    Fault(
        "questions are learned",
        "niels_gpt/train/chats.py",
        "x, _, y = (torch.cat(tensors)",
        "x, y, _ = (torch.cat(tensors)",
        _CHAT_BATCH,
    ),
    Fault(
        "a chat's sample begins a token early",
        "niels_gpt/train/chats.py",
        "x[0, : first + 1]",
        "x[0, :first]",
        "tests/test_train.py::test_a_sample_of_chats_begins_where_the_assistant_is_to_speak",
    ),
    Fault(
        "chats validated on too few",
        "niels_gpt/train/chats.py",
        "limit = self.cfg.eval_steps * self.cfg.B",
        "limit = self.cfg.eval_steps",
        _CHAT_ROWS,
    ),
    Fault(
        "validation windows without a seed",
        "niels_gpt/train/pretraining.py",
        'derive_seed(self.cfg.seed, "validation")',
        "0",
        "tests/test_train.py::test_equal_seeds_are_validated_on_equal_windows_and_others_on_others",
    ),
    Fault(
        "documents unmasked in training",
        "niels_gpt/train/pretraining.py",
        "segments = gather_segments(self.train, own, T=self.T)",
        "segments = None",
        _MASKED_RUN,
    ),
    Fault(
        "an error of the feed waits for ever",
        "niels_gpt/train/feed.py",
        "            put(error)",
        "            ready.put(error)",
        "tests/test_step.py::test_a_feed_that_nobody_reads_any_more_ends_its_thread",
    ),
    Fault(
        "an error of the feed is an end",
        "niels_gpt/train/feed.py",
        "                raise batch",
        "                return",
        "tests/test_step.py::test_batches_come_in_order_and_an_error_on_the_way_comes_through",
    ),
    # windows and documents
    Fault(
        "a document begun at the window's start counts",
        "niels_gpt/cache/windows.py",
        "start + 1, start + T)",
        "start, start + T)",
        _DOCUMENTS,
    ),
    Fault(
        "a document at the window's end is missed",
        "niels_gpt/cache/windows.py",
        "start + 1, start + T)",
        "start + 1, start + T - 1)",
        _DOCUMENTS,
    ),
    Fault(
        "every window has the documents of the first array",
        "niels_gpt/cache/windows.py",
        "_between(self.documents[i], ",
        "_between(self.documents[0], ",
        _DOCUMENTS,
    ),
    Fault(
        "rows of sources mixed up",
        "niels_gpt/batching.py",
        "out[rows] = segments",
        "out[: len(segments)] = segments",
        "tests/test_document_mask.py::test_rows_of_several_sources_keep_their_own_documents",
    ),
    Fault(
        "offsets unchecked",
        "niels_gpt/cache/manifest.py",
        'for file in (part, part["offsets"]) if documents else (part,):',
        "for file in (part,):",
        "tests/test_document_mask.py::test_offsets_that_are_not_those_of_the_mix_are_refused_by_name",
    ),
    # scores
    Fault(
        "evaluate = 0",
        "niels_gpt/eval/held_out.py",
        "losses[name] = total / eval_steps",
        "losses[name] = 0.0",
        _EVALUATE,
    ),
    Fault("dropout while evaluating", "niels_gpt/eval/held_out.py", "    model.eval()\n", "", _EVALUATE),
    Fault("mode not put back", "niels_gpt/eval/held_out.py", "model.train(was_training)", "model.train()", _EVALUATE),
    Fault(
        "gradients while evaluating",
        "niels_gpt/eval/held_out.py",
        "with torch.inference_mode():",
        "with torch.enable_grad():",
        _MODE,
    ),
    Fault(
        "documents unmasked in evaluate",
        "niels_gpt/eval/held_out.py",
        "gather_segments({name: stream}, draw, T=T)",
        "None",
        _MASKED_RUN,
    ),
    Fault(
        "documents unmasked in a score",
        "niels_gpt/eval/held_out.py",
        "segments = stream.segments(windows, T)",
        "segments = None",
        "tests/test_document_mask.py::test_a_score_is_of_one_document_at_a_time",
    ),
    Fault(
        "bits by tokens",
        "niels_gpt/eval/held_out.py",
        "text_bytes += int(lengths.sum())",
        "text_bytes += len(targets)",
        f"{_CHAT_SCORE} tests/test_eval.py::test_an_end_of_text_counts_in_nats_but_has_no_bytes",
    ),
    Fault(
        "a cap on chats is passed",
        "niels_gpt/eval/held_out.py",
        "tokens >= max_tokens",
        "tokens > max_tokens",
        "tests/test_eval.py::test_a_cap_on_chats_ends_after_the_batch_that_reaches_it",
    ),
    Fault(
        "a cap takes the first windows",
        "niels_gpt/eval/held_out.py",
        "np.linspace(0, len(starts) - 1, wanted)",
        "np.arange(wanted)",
        "tests/test_eval.py::test_a_cap_scores_fewer_windows_spread_over_the_stream",
    ),
    # optimizer, schedule, precision
    Fault(
        "decay on biases",
        "niels_gpt/config.py",
        "Groups(1.0, 1.0, 1.0, 0.0)",
        "Groups(1.0, 1.0, 1.0, 1.0)",
        "tests/test_step.py::test_decay_shrinks_matrices_and_leaves_biases_and_norms",
    ),
    Fault(
        "one rate for all groups",
        "niels_gpt/train/optimizer.py",
        'lr * group.get("lr_scale", 1.0)',
        "lr",
        _BY_GROUP,
    ),
    Fault(
        "one decay for all groups",
        "niels_gpt/train/optimizer.py",
        "cfg.weight_decay * getattr(cfg.decay_scale, name)",
        "cfg.weight_decay",
        _BY_GROUP,
    ),
    Fault(
        "a head of its own is a matrix",
        "niels_gpt/train/optimizer.py",
        'return "head" if "lm_head" in name else "matrices"',
        'return "matrices"',
        _BY_GROUP,
    ),
    Fault(
        "a state numbers parameters otherwise",
        "niels_gpt/train/optimizer.py",
        '"matrices", "head", "vectors")',
        '"matrices", "vectors", "head")',
        "tests/test_train.py::test_a_state_numbers_parameters_through_the_matrices_and_then_the_rest",
    ),
    Fault(
        "a graph does not see the learning rate",
        "niels_gpt/train/optimizer.py",
        "        group[key].fill_(value)",
        "        group[key] = value",
        _TENSORS,
    ),
    Fault(
        "no decay by Muon",
        "niels_gpt/train/optimizer.py",
        '1 - lr * group["weight_decay"]',
        "1",
        "tests/test_step.py::test_decay_shrinks_matrices_and_leaves_biases_and_norms",
    ),
    Fault(
        "Muon in bf16 on a CPU",
        "niels_gpt/train/optimizer.py",
        "wide.float()",
        "wide.bfloat16()",
        "tests/test_step.py::test_a_float32_run_on_a_cpu_multiplies_nothing_but_float32",
    ),
    Fault(
        "Muon without Nesterov",
        "niels_gpt/train/optimizer.py",
        "updates.append(parameter.grad.lerp(mean, momentum))",
        "updates.append(mean)",
        _MUON_STEP,
    ),
    Fault(
        "Muon looks ahead by what it forgets",
        "niels_gpt/train/optimizer.py",
        "parameter.grad.lerp(mean, momentum)",
        "parameter.grad.lerp(mean, 1 - momentum)",
        _MUON_STEP,
    ),
    Fault(
        "Muon's momentum is what it forgets",
        "niels_gpt/train/optimizer.py",
        "lerp_(parameter.grad, 1 - momentum)",
        "lerp_(parameter.grad, momentum)",
        _MUON_STEP,
    ),
    Fault(
        "Muon's steps by the short side",
        "niels_gpt/train/optimizer.py",
        "0.2 * max(shape)",
        "0.2 * min(shape)",
        _MUON_STEP,
    ),
    Fault(
        "Muon forgets its momentum",
        "niels_gpt/train/optimizer.py",
        "        if not state:\n            state",
        "        if True:\n            state",
        _MUON_STEP,
    ),
    Fault(
        "matrices that go together share a length",
        "niels_gpt/train/optimizer.py",
        "x.norm(dim=(1, 2), keepdim=True)",
        "x.norm()",
        "tests/test_step.py::test_matrices_that_go_together_come_out_as_each_alone",
    ),
    Fault(
        "matrices of one shape are exchanged",
        "niels_gpt/train/optimizer.py",
        "torch._foreach_add_(alike, ",
        "torch._foreach_add_(alike[::-1], ",
        _MUON_ALIKE,
    ),
    Fault(
        "a graph does not see Muon's momentum",
        "niels_gpt/train/optimizer.py",
        '                _set(group, "momentum", momentum)',
        '                group["momentum"] = momentum',
        _TENSORS,
    ),
    Fault(
        "rates are other tensors after a state was read",
        "niels_gpt/train/optimizer.py",
        "            group.update(before)",
        "            pass",
        _TENSORS,
    ),
    Fault(
        "a graph's warm-up stays in Muon's momentum",
        "niels_gpt/train/optimizer.py",
        "    for optimizer in optimizers:\n        for state in optimizer.state.values():",
        "    for optimizer in optimizers[:1]:\n        for state in optimizer.state.values():",
        _RECORDED,
    ),
    Fault(
        "a graph's warm-up stays in a state that goes on",
        "niels_gpt/train/graph_step.py",
        "            load_optimizer_state(self._optimizers, self._state)",
        "            pass",
        _RECORDED,
    ),
    Fault(
        "Muon records no graph",
        "niels_gpt/train/step.py",
        "if execution.cuda and execution.ranks.size == 1:",
        'if execution.cuda and execution.ranks.size == 1 and cfg.optimizer == "adamw":',
        "tests/test_step.py::test_a_gpu_alone_records_its_steps_whatever_the_optimizer",
    ),
    Fault(
        "a run that goes on counts its steps anew",
        "niels_gpt/train/loop.py",
        "step(batch, lr=lr, n=run.step)",
        "step(batch, lr=lr, n=run.step - steps.start)",
        "tests/test_step.py::test_every_recipe_resumes_to_the_bit",
    ),
    Fault(
        "momentum of the run's end",
        "niels_gpt/train/plain_step.py",
        "scheduled_momentum(self._cfg, n)",
        "scheduled_momentum(self._cfg, self._cfg.total_steps)",
        _MOMENTUM,
    ),
    Fault(
        "Muon takes the embedding",
        "niels_gpt/train/optimizer.py",
        'if "tok_emb" in name:',
        "if False:",
        "tests/test_step.py::test_muon_moves_the_matrices_of_the_blocks_and_adamw_the_rest",
    ),
    Fault(
        "four steps of Newton and Schulz too few",
        "niels_gpt/train/optimizer.py",
        "_NEWTON_SCHULZ_STEPS = 5",
        "_NEWTON_SCHULZ_STEPS = 1",
        "tests/test_step.py::test_an_orthogonal_update_keeps_the_directions_and_evens_out_their_lengths",
    ),
    Fault(
        "the learning rate stays",
        "niels_gpt/train/optimizer.py",
        "    else:\n        group[key] = value",
        "    else:\n        pass",
        _LR_GIVEN,
    ),
    Fault(
        "a state is worked on",
        "niels_gpt/train/optimizer.py",
        "copy.deepcopy(state[str(i)])",
        "state[str(i)]",
        "tests/test_train.py::test_what_a_state_holds_is_not_touched_by_the_run_that_goes_on_from_it",
    ),
    Fault(
        "grad_clip ignored",
        "niels_gpt/train/plain_step.py",
        "self._model.parameters(), self._cfg.grad_clip",
        "self._model.parameters(), 1e9",
        "tests/test_step.py::test_gradients_are_clipped_to_the_norm_that_was_asked_for",
    ),
    Fault(
        "stream in float32 under bf16",
        "niels_gpt/model/precision.py",
        'return torch.bfloat16 if precision == "bf16" else torch.float32',
        "return torch.float32",
        "tests/test_step.py::test_a_bf16_step_multiplies_nothing_but_bf16",
    ),
    Fault(
        "torch left to find out about bf16",
        "niels_gpt/model/precision.py",
        "torch.backends.mkldnn.enabled = False",
        "torch.backends.mkldnn.enabled",
        _NO_UNITS,
    ),
    Fault(
        "a warning of bf16 is not heard",
        "niels_gpt/model/precision.py",
        "return not caught",
        "return True",
        "tests/test_step.py::test_a_chip_is_one_for_bf16_when_torch_says_so_and_multiplies_without_a_warning",
    ),
    # what is said of a run
    Fault(
        "validation counts as training",
        "niels_gpt/train/meter.py",
        "now - self._last - self._pause",
        "now - self._last",
        _METER,
    ),
    Fault(
        "a pause counts for ever",
        "niels_gpt/train/meter.py",
        "= now, run.step, 0.0",
        "= now, run.step, self._pause",
        _METER,
    ),
    Fault(
        "time left is that of the whole run",
        "niels_gpt/train/meter.py",
        "pace * (self._cfg.total_steps - run.step)",
        "pace * self._cfg.total_steps",
        _METER,
    ),
    Fault(
        "a line of a log follows half a line",
        "niels_gpt/train/log.py",
        'self._before = "\\n" if _ends_within_a_line(path) else ""',
        'self._before = ""',
        "tests/test_train.py::test_a_log_that_ends_within_a_line_is_gone_on_with_on_a_new_one",
    ),
    Fault(
        "the mean validation loss counts as a source",
        "niels_gpt/train/meter.py",
        'losses.pop("val_loss", None)',
        'losses.get("val_loss", None)',
        _METER,
    ),
    Fault(
        "a curve's points are means to the end",
        "niels_gpt/report/curves.py",
        "run.losses[first : first + every]",
        "run.losses[first:]",
        _LONG_RUN,
    ),
    Fault(
        "what was drawn is what was asked",
        "niels_gpt/report/curves.py",
        '"drawn": run.drawn_rows[name] / rows',
        '"drawn": p',
        _LONG_RUN,
    ),
    Fault(
        "the first validation is reported",
        "niels_gpt/report/curves.py",
        'run.validations[-1]["val_loss"]',
        'run.validations[0]["val_loss"]',
        _LONG_RUN,
    ),
    Fault(
        "curves of another model",
        "stages/curves.py",
        "layout.MODEL_OF[stage.key]",
        'layout.MODEL_OF["train"]',
        "tests/test_training_stages.py::test_fine_tuning_validates_by_p_sft_and_shows_the_text_by_p_vals_sources",
    ),
    Fault(
        "a damaged history goes on",
        "stages/curves.py",
        "    with described_by(path):\n",
        "    if path:\n",
        _HISTORY,
    ),
    Fault(
        "sources of a history in alphabetical order",
        "niels_gpt/report/history.py",
        "json.dumps(asdict(self))",
        "json.dumps(asdict(self), sort_keys=True)",
        _HISTORY,
    ),
    Fault(
        "pretraining imports chats",
        "niels_gpt/train/pretraining.py",
        "from niels_gpt.eval.held_out import evaluate\n",
        "from niels_gpt.eval.chats import mean_chat_loss\nfrom niels_gpt.eval.held_out import evaluate\n",
        "tests/test_training_stages.py::test_pretraining_runs_no_code_of_chats_or_of_pages",
    ),
    Fault(
        "rows of the first batch",
        "niels_gpt/train/pretraining.py",
        "draw = self._draw(n)\n        ids",
        "draw = self._draw(0)\n        ids",
        "tests/test_train.py::test_rows_say_where_a_batch_comes_from",
    ),
    Fault("a log is begun anew", "niels_gpt/train/log.py", 'open("a"', 'open("w"', _LOG_LINE),
    Fault("hours are lost", "niels_gpt/files/progress.py", "divmod(minutes, 60)", "(0, minutes)", _LOG_LINE),
    # the model's own paths
    Fault(
        "targets that do not count have gradients",
        "niels_gpt/model/loss.py",
        "logits.copy_(grad.mul_(counted[:, None]))",
        "logits.copy_(grad)",
        _ONE_LOSS,
    ),
    Fault(
        "a loss's weight is not passed back",
        "niels_gpt/model/loss.py",
        "grad_weight * grads[0]",
        "grad_weight",
        _ONE_LOSS,
    ),
    Fault(
        "a decoder begins at position 0 again",
        "niels_gpt/model/decoder.py",
        "self._rotations[start:end, None]",
        "self._rotations[: end - start, None]",
        _DECODER,
    ),
    Fault(
        "a kernel takes the weights of any linear layer",
        "niels_gpt/model/kernels/choice.py",
        "type(linear) is nn.Linear",
        "isinstance(linear, nn.Linear)",
        "tests/test_kernels.py",
    ),
    Fault(
        "biases and norms are multiplied, too",
        "niels_gpt/model/size.py",
        "if isinstance(layer, nn.Linear)",
        'if hasattr(layer, "weight")',
        "tests/test_model.py::test_the_size_of_a_configuration_is_that_of_its_model",
    ),
    Fault("a decoder's tokens see each other's future", "niels_gpt/model/decoder.py", ".tril(start)", "", _DECODER),
    Fault(
        "segments see one another",
        "niels_gpt/model/positions.py",
        "causal & (segment_ids[:, :, None] == segment_ids[:, None, :])",
        "causal.expand(len(segment_ids), T, T)",
        _MASKED_RUN,
    ),
)
