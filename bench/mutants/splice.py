"""Faults in splice and P(z): which documents, which spans, how often, what is learned, and how that is measured."""

from bench.mutants.fault import Fault

_DATASET, _SPANS = "niels_gpt/splice/dataset.py", "niels_gpt/splice/spans.py"
_QUOTAS, _SELECTION = "niels_gpt/splice/quotas.py", "niels_gpt/splice/selection.py"
_EXAMPLE, _TASK, _SHARDING = "niels_gpt/splice/example.py", "niels_gpt/splice/task.py", "niels_gpt/splice/sharding.py"
_PZ, _PAGE = "niels_gpt/eval/memorization.py", "niels_gpt/report/memorization.py"
_STAGE, _MEASURE, _PLANNED = "stages/splice.py", "stages/memorize.py", "niels_gpt/splice/plan.py"
_T, _D = "tests/test_splice.py", "tests/test_dag_splice.py"
_ENUMERATION, _LOOPS = f"{_T}::test_golden_enumeration", f"{_T}::test_pairs_by_number_are_those_of_plain_loops"
_SELECT, _SUBSET = f"{_T}::test_golden_selection", f"{_T}::test_golden_subsets"
_STRIDE = f"{_T}::test_a_stride_loses_the_tail_unless_it_is_asked_for"
_BOUNDS = f"{_T}::test_bounds_on_lengths_are_inclusive_and_ties_go_to_the_lower_row"
_SUMMARY = f"{_T}::test_the_summary_counts_what_an_epoch_holds"
_RANKS = f"{_T}::test_ranks_share_one_permutation_of_each_epoch"
_EPOCHS = f"{_T}::test_epochs_follow_each_other_and_every_pair_comes_once_an_epoch"
_WINDOWS = f"{_T}::test_windows_are_scored_alike_one_by_one_and_in_batches_of_any_size"
_TOKENS = f"{_T}::test_every_token_is_scored_after_at_least_half_a_context_where_there_is_so_much"
_GRID = f"{_T}::test_validation_is_the_loss_of_the_grid"
_CHANCES = f"{_T}::test_thresholds_count_what_reaches_them_and_chances_grow_with_samples"
_STATISTICS = f"{_T}::test_statistics_of_known_windows"
_COVERAGE = f"{_T}::test_coverage_counts_suffixes_of_windows_that_reach_the_threshold"
_SAID = f"{_D}::test_the_splice_stage_says_what_an_epoch_consists_of"
_PLAN = f"{_D}::test_the_plan_names_what_is_not_trained_on_and_jitter_without_room"
_BUDGET = f"{_D}::test_only_documents_within_the_budget_of_pretraining_are_chosen_when_that_is_asked"
_MEASURED = f"{_D}::test_memorize_measures_the_pretrained_model_and_the_last_step_of_splice"
_CUT = f"{_T}::test_temperature_divides_the_logits_and_ties_with_the_k_th_stay"
_STRIP = f"{_D}::test_a_strip_shows_the_highest_of_the_windows_over_a_token"
_SHOWN = f"{_D}::test_the_page_shows_hostile_text_as_text"

FAULTS = (
    Fault(
        "the last start is lost",
        _SPANS,
        "np.arange(0, self.L - K + 1, rules.content_stride)",
        "np.arange(0, self.L - K, rules.content_stride)",
        _LOOPS,
    ),
    Fault(
        "suffix starts ignored",
        _SPANS,
        "        if rules.suffix_starts:\n",
        "        if False:\n",
        f"{_T}::test_without_suffix_starts_no_window_that_begins_in_the_last_K_is_trained_on_as_it_is_measured",
    ),
    Fault(
        "suffix spans shorter than allowed",
        _SPANS,
        "self.L - rules.min_copy_len + 1, rules.content_stride)\n            starts",
        "self.L, rules.content_stride)\n            starts",
        _STRIDE,
    ),
    Fault("the tail ignored", _SPANS, "if rules.include_tail and", "if False and", _STRIDE),
    Fault(
        "adaptive_k ignored",
        _SPANS,
        "(rules.balanced and not rules.adaptive_k and rules.content_length is not None)",
        "False",
        _ENUMERATION,
    ),
    Fault(
        "loose is tight",
        _SPANS,
        'if rules.offset_bound == "tight" else',
        'if True or rules.offset_bound == "tight" else',
        _LOOPS,
    ),
    Fault("offset_stride ignored", _SPANS, "room // rules.offset_stride + 1", "room + 1", _LOOPS),
    Fault(
        "flush left", _SPANS, "return t, self.rules.S - self.spans[which]", "return t, 0 * self.spans[which]", _LOOPS
    ),
    Fault(
        "content longer than the frame",
        _SPANS,
        "wanted = self.rules, min(self.rules.content_length or self.rules.S, self.rules.S)",
        "wanted = self.rules, self.rules.content_length or self.rules.S",
        _LOOPS,
    ),
    Fault(
        "alpha with suffix starts accepted",
        _SPANS,
        "if self.alpha and self.suffix_starts:",
        "if False:",
        f"{_T}::test_refusals_say_what_to_do",
    ),
    Fault(
        "a validation grid without its end",
        _SPANS,
        "sorted({0, (last + 1) // 2, last})",
        "sorted({0, (last + 1) // 2})",
        f"{_T}::test_golden_validation_grids",
    ),
    Fault(
        "tau ignored",
        _QUOTAS,
        '{"by_temperature": balance_tau,',
        '{"by_temperature": 1.0,',
        f"{_T}::test_golden_quotas",
    ),
    Fault(
        "what is left over goes to the last",
        _QUOTAS,
        "key=lambda i: (-remainders[i], i)",
        "key=lambda i: (-remainders[i], -i)",
        f"{_T}::test_golden_quotas",
    ),
    Fault("quotas rounded down", _QUOTAS, "        whole[i] += 1\n", "        pass\n", f"{_T}::test_golden_quotas"),
    Fault(
        "quantiles from the left edge",
        _QUOTAS,
        "return (2 * k + 1) * n // (2 * Q)",
        "return 2 * k * n // (2 * Q)",
        f"{_T}::test_golden_quantiles",
    ),
    Fault(
        "alpha ignored",
        _QUOTAS,
        "np.maximum(distance, 1)) ** alpha",
        "np.maximum(distance, 1)) ** 0",
        f"{_T}::test_golden_edge_weights",
    ),
    Fault(
        "the longest is the shortest",
        _SELECTION,
        '{"first": 0, "longest": -1, "shortest": 1}',
        '{"first": 0, "longest": 1, "shortest": -1}',
        _SELECT,
    ),
    Fault("min_doc_length excluded", _SELECTION, "lengths[row] >= min_len", "lengths[row] > min_len", _BOUNDS),
    Fault("max_doc_length ignored", _SELECTION, "lengths[row] <= max_len", "True", _BOUNDS),
    Fault("doc_index over the thresholds", _SELECTION, "if doc_index in allowed:", "if doc_index in filled:", _SELECT),
    Fault("empty documents chosen", _SELECTION, "enumerate(lengths) if length > 0]", "enumerate(lengths)]", _SELECT),
    Fault("strict_num_docs ignored", _SELECTION, "if strict_num_docs or len", "if len", _SELECT),
    Fault(
        "random the same for every dataset",
        _SELECTION,
        "hashlib.blake2b(dataset_name.encode(), digest_size=8)",
        'hashlib.blake2b(b"", digest_size=8)',
        _SELECT,
    ),
    Fault(
        "a document beyond the cutoff is eligible",
        _SELECTION,
        "if end <= cutoff:",
        "if end - length < cutoff:",
        _SUBSET,
    ),
    Fault("validation sequences not reserved", _SELECTION, "sequences -= num_validation_sequences", "pass", _SUBSET),
    Fault("every epoch in the same order", _SHARDING, '"splice epoch", epoch)', '"splice epoch", 0)', _RANKS),
    Fault("the same order for every seed", _SHARDING, "derive_seed(seed,", "derive_seed(0,", _RANKS),
    Fault(
        "ranks read the same",
        _SHARDING,
        "[rank::world_size]",
        "[::world_size]",
        f"{_RANKS} {_T}::test_golden_shards_are_every_nth",
    ),
    Fault(
        "a quota is a position too far",
        _DATASET,
        "first = int(self._ends[i]) - self.quotas[i]",
        "first = int(self._ends[i]) - self.quotas[i] + 1",
        _ENUMERATION,
    ),
    Fault("by_document counts pairs", _DATASET, "[longest if by_document else pairs[i]", "[pairs[i]", _ENUMERATION),
    Fault(
        "jitter the same in every epoch",
        _DATASET,
        "return (indices + epoch) % places",
        "return indices % places",
        f"{_T}::test_jitter_visits_every_place_over_the_epochs_and_says_when_it_cannot",
    ),
    Fault(
        "jitter beyond the frame's room",
        _DATASET,
        "places = np.minimum(self.rules.offset_jitter, room) + 1",
        "places = np.full_like(room, self.rules.offset_jitter) + 1",
        _SUMMARY,
    ),
    Fault(
        "unvisited starts not counted",
        _DATASET,
        "[len(spans.starts) - self._visited(i) for",
        "[0 * self._visited(i) for",
        _SUMMARY,
    ),
    Fault("inert jitter unsaid", _DATASET, "bool(self.rules.offset_jitter) and not any(jitter)", "False", _SUMMARY),
    Fault(
        "a roll's joint counted as a target",
        _DATASET,
        "copied - 1 - (triples[:, 1] + copied > lengths)",
        "copied - 1",
        _SUMMARY,
    ),
    Fault(
        "the last token of a span is a target",
        _EXAMPLE,
        "(columns < (at + copy_lens - 1)[:, None])",
        "(columns < (at + copy_lens)[:, None])",
        _LOOPS,
    ),
    Fault(
        "a loss at a roll's joint",
        _EXAMPLE,
        "        loss_mask &= columns != joints[:, None]\n",
        "        pass\n",
        _LOOPS,
    ),
    Fault(
        "filler in the span's segment",
        _EXAMPLE,
        "segment_ids = (columns >= at[:, None])",
        "segment_ids = (columns >= 0 * at[:, None])",
        f"{_T}::test_golden_examples",
    ),
    Fault(
        "compact rows lose their places",
        _EXAMPLE,
        "np.minimum(s[:, None] + columns, S - 1)",
        "np.minimum(0 * s[:, None] + columns, S - 1)",
        _LOOPS,
    ),
    Fault(
        "shuffle ignored",
        _TASK,
        "if self.shuffle else np.arange(N)",
        "if False else np.arange(N)",
        f"{_EPOCHS} {_T}::test_rows_are_credited_to_their_documents",
    ),
    Fault(
        "an epoch is drawn as the first",
        _TASK,
        "_order(N, self.cfg.seed, epoch)",
        "_order(N, self.cfg.seed, 0)",
        _EPOCHS,
    ),
    Fault(
        "rows credited to the wrong document",
        _TASK,
        "dict(zip(self.names, counts",
        "dict(zip(self.names[::-1], counts",
        f"{_T}::test_rows_are_credited_to_their_documents",
    ),
    Fault(
        "validation on one document",
        _TASK,
        "for i in self.dataset.valid_docs:",
        "for i in self.dataset.valid_docs[:1]:",
        f"{_T}::test_three_documents_are_learned_and_told_from_one_that_was_not_there",
    ),
    Fault(
        "validation without its mask",
        _TASK,
        "y = masked_targets(grid)[rows].to(self.device)",
        'y = grid["targets"][rows].to(self.device)',
        _GRID,
    ),
    Fault(
        "one token of the prompt scored",
        _PZ,
        "return range(prompt_tokens - 1, chunk_size - 1)",
        "return range(prompt_tokens - 2, chunk_size - 1)",
        f"{_T}::test_golden_positions",
    ),
    Fault(
        "the last window is lost",
        _PZ,
        "max(0, L - chunk_size + 1)",
        "max(0, L - chunk_size)",
        f"{_T}::test_golden_windows",
    ),
    Fault("temperature ignored", _PZ, ".double() / temperature", ".double()", _CUT),
    Fault(
        "top_k not passed on",
        _PZ,
        "prompt_tokens=prompt_tokens, top_k=top_k)",
        "prompt_tokens=prompt_tokens)",
        _WINDOWS,
    ),
    Fault("ties with the k-th ruled out", _PZ, "scored < kth", "scored <= kth", _CUT),
    Fault(
        "P(z) of some windows twice", _PZ, "starts[first : first + B]]", "starts[:B][: len(starts) - first]]", _WINDOWS
    ),
    Fault(
        "a token scored with the next one's score",
        _PZ,
        "own[skip - 1 :]",
        "own[skip:] if len(own) > skip else own[skip - 1 :]",
        _TOKENS,
    ),
    Fault(
        "tokens scored after a quarter of a context",
        _PZ,
        "skip = T // 2 if start else 1",
        "skip = T // 4 if start else 1",
        _TOKENS,
    ),
    Fault(
        "thresholds excluded",
        _PZ,
        "(p >= t).mean()",
        "(p > t).mean()",
        f"{_T}::test_a_threshold_that_is_met_exactly_counts",
    ),
    Fault("one sample for all counts", _PZ, "-np.expm1(n * np.log1p", "-np.expm1(np.log1p", _CHANCES),
    Fault(
        "thirds by tokens of the document",
        _PZ,
        "third = np.minimum(2, 3 * places // max(1, int(places.max()) + 1))",
        "third = np.minimum(2, 3 * places // max(1, int(places.max()) * 2))",
        _STATISTICS,
    ),
    Fault(
        "the prompt counts as covered",
        _PZ,
        "covered[start + prompt_tokens : start + chunk_size]",
        "covered[start : start + chunk_size]",
        _COVERAGE,
    ),
    Fault(
        "the coverage threshold ignored",
        _PZ,
        "if value >= math.log(threshold):",
        "if value >= math.log(0.5):",
        _COVERAGE,
    ),
    Fault(
        "names of documents unescaped", _PAGE, "<h2>{escape(document.name)}</h2>", "<h2>{document.name}</h2>", _SHOWN
    ),
    Fault(
        "the first token unescaped",
        _PAGE,
        """title="no context">{escape(text)}""",
        """title="no context">{text}""",
        _SHOWN,
    ),
    Fault("text unescaped", _PAGE, 'class="s{shade}">{escape(text)}</span>', 'class="s{shade}">{text}</span>', _SHOWN),
    Fault(
        "strips show the last P(z), not the highest",
        _PAGE,
        "np.maximum(suffix, pz, out=suffix)",
        "suffix[:] = pz",
        _STRIP,
    ),
    Fault("quotas unsaid", _PLANNED, "{quota:,} examples an epoch", "{starts:,} examples an epoch", _SAID),
    Fault("a quota of 0 unsaid", _PLANNED, "        if not quota:\n", "        if False:\n", _PLAN),
    Fault(
        "inert jitter unsaid by the stage", _PLANNED, '    if summary["jitter_is_inert"]:\n', "    if False:\n", _PLAN
    ),
    Fault(
        "the budget of pretraining ignored", _STAGE, "if settings.restrict_to_training_subset:", "if False:", _BUDGET
    ),
    Fault(
        "a document beyond the budget is eligible",
        _SELECTION,
        "if row in eligible else 0",
        "if eligible else 0",
        _BUDGET,
    ),
    Fault("epoch_length not passed on", _STAGE, "epoch_length=settings.epoch_length,", "epoch_length=None,", _SAID),
    Fault(
        "memorize measures the best, not the last",
        _MEASURE,
        "layout.SPLICED / layout.LAST",
        "layout.SPLICED / layout.BEST",
        _MEASURED,
    ),
    Fault(
        "before is after",
        _MEASURE,
        '"before": load_model(layout.PRETRAINED / layout.BEST, device)',
        '"before": load_model(layout.SPLICED / layout.BEST, device)',
        _MEASURED,
    ),
    Fault(
        "only one document together", _PZ, "for document in documents])", "for document in documents[:1]])", _MEASURED
    ),
    Fault("curves of the windows' ends", _PZ, '{"start": self.starts,', '{"start": self.starts + 1,', _MEASURED),
)
