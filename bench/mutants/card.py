"""Faults in the report card."""

from __future__ import annotations

from bench.mutants.fault import Fault

_PROBES, _CARD = "niels_gpt/eval/probes.py", "niels_gpt/eval/card.py"
_WRITTEN, _HUMAN = "niels_gpt/eval/written.py", "niels_gpt/eval/human.py"
_T = "tests/test_card.py"
_SAME = f"{_T}::test_probes_are_the_same_every_time_and_differ_by_seed"
_ENDS = f"{_T}::test_a_text_ends_with_its_turn_or_when_there_is_enough"
_OWN_SEED, _TIES = f"{_T}::test_a_text_is_drawn_by_its_own_seed", f"{_T}::test_equal_texts_share_the_point"
_NATS, _WROTE = f"{_T}::test_text_costs_the_same_whatever_stands_beside_it", f"{_T}::test_a_card_of_what_was_written"
_TABLE = f"{_T}::test_the_table_has_every_number_with_its_error_and_what_to_hold_it_against"
_EVAL = "tests/test_training_stages.py::test_eval_scores_both_models_on_all_there_is_and_writes_what_they_say"
_REPLIES = f"{_T}::test_the_first_reply_of_held_out_chats_by_the_weights_of_their_sources"

FAULTS = (
    Fault(
        "the same slips for every seed", _PROBES, "derive_seed(seed, word, tries)", "derive_seed(1, word, tries)", _SAME
    ),
    Fault("a misspelling may be the word", _PROBES, "not in (word, *found, *_WORDS)", "not in found", _SAME),
    Fault(
        "what is opened and what closes change places",
        _PROBES,
        'f"{opened}{phrase}{mark}"',
        'f"{mark}{phrase}{opened}"',
        f"{_T}::test_what_is_opened_is_closed_by_each_mark_and_its_own_stands_on_the_diagonal",
    ),
    Fault("padding counts", _CARD, "longest), IGNORE_INDEX)", "longest), 0)", _NATS),
    Fault("a long text is cut", _CARD, "for first in range(0, len(ids), T)", "for first in (0,)", _NATS),
    Fault("the parts of a text replace one another", _CARD, "np.add.at(nats, of, ", "nats.__setitem__(of, ", _NATS),
    Fault("ties are right", _CARD, "float(least[0]) / float(least.sum())", "float(least[0])", _TIES),
    Fault("an error that more items do not lower", _CARD, " / math.sqrt(len(values))", "", _TIES),
    Fault(
        "the right mark is among the others",
        _CARD,
        "(cost.sum() - right) / (n * (n - 1))",
        "cost.sum() / n**2",
        f"{_T}::test_nats_saved_are_of_the_right_mark_against_the_mean_of_the_others",
    ),
    Fault("replies are not cut", _CARD, "Text.cut(reply.text).text for reply", "reply.text for reply", _WROTE),
    Fault("one seed for all texts", _WRITTEN, 'derive_seed(seed, "text", i)', 'derive_seed(seed, "text")', _OWN_SEED),
    Fault("the tag of the next turn is of this one", _WRITTEN, "[: min(ends)] if ends", "[:MAX_BYTES] if ends", _ENDS),
    Fault("what is too much is kept", _WRITTEN, "if ends else written[i][:MAX_BYTES]", "if ends else b''", _ENDS),
    Fault("whoever is stopped has ended", _WRITTEN, "bool(ends) or not piece)", "True)", _ENDS),
    Fault(
        "answers without an end are in form", _WRITTEN, "        answer.ended\n", "        True\n", f"{_T}::test_form"
    ),
    Fault("case makes words differ", _WRITTEN, "text.lower()", "text", f"{_T}::test_words_are_counted_and_not_tokens"),
    Fault("weights of chats do not count", _HUMAN, "weights.get(name, 0.0) / total", "1 / len(weights)", _REPLIES),
    Fault("what the user says", _HUMAN, 'special["asst"], source', 'special["usr"], source', _REPLIES),
    Fault(
        "the stage takes the likelier model twice",
        "stages/eval.py",
        "measure_card(model, ",
        "measure_card(tuned, ",
        _EVAL,
    ),
    Fault("errors are not shown", "niels_gpt/report/report_card.py", " ± {0.error:.3f}", "", _TABLE),
    Fault(
        "the report card is a model",
        "niels_gpt/pipeline/results.py",
        " if model != layout.CARD",
        "",
        "tests/test_cli.py::test_summary_shows_the_table_a_sample_and_the_places",
    ),
)
