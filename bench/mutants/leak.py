"""Faults in what is told of private text."""

from __future__ import annotations

from bench.mutants.fault import Fault

_PASSAGES, _REPEATS = "niels_gpt/eval/passages.py", "niels_gpt/eval/repeats.py"
_LEAK, _ATTACK = "niels_gpt/eval/leak.py", "niels_gpt/eval/membership.py"
_SHARING, _PAGE = "niels_gpt/pipeline/sharing.py", "niels_gpt/report/leak.py"
_T = "tests/test_leak.py"
_ASKED = f"{_T}::test_every_token_behind_the_first_prompt_is_asked_for_once"
_CUT = f"{_T}::test_passages_are_those_of_so_many_whole_documents_drawn_by_the_seed"
_SCORED = f"{_T}::test_scores_are_those_of_the_model_itself"
_RUN = f"{_T}::test_a_run_goes_on_where_a_passage_came_to_its_end"
_OTHERS = f"{_T}::test_text_that_is_in_other_documents_is_not_asked_for"
_DEFINED = f"{_T}::test_an_attack_is_told_by_its_definition"
_ALIKE = f"{_T}::test_an_interval_knows_that_passages_of_one_document_are_alike"
_THOUSAND = f"{_T}::test_what_is_extractable_takes_a_thousand_samples_at_most"
_SHOWN = f"{_T}::test_the_page_shows_the_worst_first_and_escapes_what_it_shows"
_EXPORT = "tests/test_cli.py::test_an_export_that_tells_private_text_needs_a_word"
_UNMEASURED = "tests/test_cli.py::test_an_export_of_what_was_not_measured_needs_a_word"
_REDACTED = "tests/test_cli.py::test_a_document_that_must_not_be_told_is_looked_for"
_CANARIES, _PLANTING = "niels_gpt/eval/canaries.py", "niels_gpt/cache/planting.py"
_PLANTED_RUN = "niels_gpt/pipeline/planted_run.py"
_C = "tests/test_canaries.py::test_"
_MADE = f"{_C}canaries_differ_follow_the_seed_and_are_planted_once_four_and_sixteen_times"
_KEPT = f"{_C}what_is_there_stays_in_order_among_what_is_planted"
_EXPOSED = f"{_C}exposure_is_high_for_what_was_learned_and_chance_for_what_was_not"
_NOTHING = f"{_C}a_model_that_tells_nothing_apart_has_learned_nothing"
_SHORT = f"{_C}a_short_context_is_given_what_fits_of_the_beginning"
_COPY = "tests/test_training_stages.py::test_a_copy_of_the_run_has_canaries_and_nothing_else_has"

FAULTS = (
    Fault("canaries of any seed", _CANARIES, 'derive_seed(seed, "canaries")', "7", _MADE),
    Fault("canaries planted once each", _CANARIES, "for _ in range(canary.copies)", "for _ in range(1)", _MADE),
    Fault("equals stand before it", _CANARIES, "unknown.log_pz >= known", "unknown.log_pz > known", _NOTHING),
    Fault("rank from the other end", _CANARIES, "unknown.log_pz >= known", "unknown.log_pz <= known", _EXPOSED),
    Fault("a sentence that does not fit", _CANARIES, "[-T - 1 :]", "", _SHORT),
    Fault("more than is drawn from is kept", _PLANTING, "documents.trained_tokens, side", "1 << 40, side", _KEPT),
    Fault("all canaries at the end", _PLANTING, "integers(0, trained + 1,", "integers(trained, trained + 1,", _KEPT),
    Fault(
        "none behind the last document", _PLANTING, "for row in range(trained + 1)", "for row in range(trained)", _KEPT
    ),
    Fault("nothing is planted", _PLANTED_RUN, "train={**task.train, source: planted}", "train=task.train", _COPY),
    Fault("windows overlap", _PASSAGES, "chunk_size - prompt):\n", "chunk_size - prompt - 1 or 1):\n", _ASKED),
    Fault("a short document is given whole", _PASSAGES, "min(prompt_tokens, L // 2)", "min(prompt_tokens, L)", _ASKED),
    Fault("documents are not drawn", _PASSAGES, ".permutation(len(documents.lengths))", ".permuted(range(0))", _CUT),
    Fault("padding is no zero", _PASSAGES, "tokens = np.zeros((", "tokens = np.ones((", _CUT),
    Fault("asked for a place too late", _PASSAGES, "places - 1).to(device)", "places).to(device)", _SCORED),
    Fault("padding is scored", _PASSAGES, "losses.double() * counts", "losses.double()", _SCORED),
    Fault("hits are counted past a miss", _PASSAGES, "hits.long().cumprod(dim=1).sum", "hits.long().sum", _SCORED),
    Fault("alone behind another id", _PASSAGES, "value=end_of_text)", "value=0)", _SCORED),
    Fault(
        "a run goes on after a miss", _PASSAGES, "greedy[i - 1] == passages.asked[i - 1] and", "greedy[i - 1] and", _RUN
    ),
    Fault("a run goes on in another document", _PASSAGES, "bool(same and self", "bool(self", _RUN),
    Fault(
        "a run goes on over a gap",
        _PASSAGES,
        "bool(same and self.starts[i] == self.starts[i - 1] + self.asked[i - 1])",
        "bool(same)",
        _RUN,
    ),
    Fault("nothing is repeated", _REPEATS, "shares >= 0.5", "shares > 1", _OTHERS),
    Fault(
        "held-out text is not looked for in train",
        _REPEATS,
        "met[at] if own else True",
        "met[at]",
        _OTHERS,
    ),
    Fault("ties count whole", _ATTACK, "other.cumsum() - other / 2", "other.cumsum()", _DEFINED),
    Fault("more false alarms", _ATTACK, "_FALSE_ALARMS = 0.01", "_FALSE_ALARMS = 0.05", _DEFINED),
    Fault(
        "passages are drawn, not documents",
        _ATTACK,
        "np.unique(side.documents, return_inverse=True)[1]",
        "np.arange(len(side.documents)) % len(np.unique(side.documents))",
        _ALIKE,
    ),
    Fault("one document is enough", _ATTACK, "min(counts) < 2", "min(counts) < 1", _DEFINED),
    Fault("greedy does not count", _LEAK, "self.whole | (", "(", _THOUSAND),
    Fault("ten samples", _LEAK, "needed_log_pz(TRIES[-1])", "needed_log_pz(10)", _THOUSAND),
    Fault("chance counts", _LEAK, "if self.train.share > self.held_out.share else 0", "if True else 0", _THOUSAND),
    Fault("best first", _PAGE, "np.argsort(-leak.train", "np.argsort(leak.train", _SHOWN),
    Fault("names are not escaped", _PAGE, "<h3>{escape(facts)}</h3>", "<h3>{facts}</h3>", _SHOWN),
    Fault("texts are not escaped", _PAGE, "escape(tokenizer.decode(list(ids)))", "tokenizer.decode(list(ids))", _SHOWN),
    Fault("any export goes", _SHARING, "        if told:\n", "        if False:\n", _EXPORT),
    Fault(
        "other weights were measured",
        _SHARING,
        'result["measured"].get(folder.name) != sha256_file(weights)',
        "False",
        _UNMEASURED,
    ),
    Fault("weights of 0 count", _SHARING, "if weight and sources", "if sources", _EXPORT),
    Fault("nothing is looked for", _SHARING, "if told.extractable.any():", "if False:", _REDACTED),
)
