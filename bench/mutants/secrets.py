"""Faults in what is looked for as a secret, in what is done about it, and in what a run will see."""

from bench.mutants.fault import Fault

_SECRETS, _DIGITS = "niels_gpt/data/secrets.py", "niels_gpt/data/check_digits.py"
_SCREEN, _LOADING, _STAGE = "niels_gpt/data/screening.py", "niels_gpt/data/loading.py", "stages/load.py"
_EPOCHS = "niels_gpt/data/epochs.py"
_T = "tests/test_secrets.py::test_"
_PEM, _CUT_PEM = f"{_T}a_private_key_is_found_to_its_end", f"{_T}private_keys_that_are_cut_have_headers_or_short_lines"
_CUT_PEM += "_are_found"
_LINES, _PROSE = f"{_T}the_value_of_a_line_that_names_a_password_is_found", f"{_T}prose_and_placeholders_are_left_alone"
_LONG, _TIME = f"{_T}a_password_is_masked_to_its_end_however_long_it_is", f"{_T}time_grows_with_the_text_and_no_faster"
_CARDS, _IBANS = (
    f"{_T}card_numbers_are_found_by_prefix_length_and_check_digit {_T}other_long_numbers_are_no_cards",
    f"{_T}ibans_are_found_by_country_length_and_check_digits",
)
_KEYS = f"{_T}keys_of_services_are_found_by_their_form {_T}a_part_of_a_key_is_none_and_a_longer_word_is_none"
_ONCE, _ROWS = f"{_T}a_load_that_was_interrupted_counts_every_secret_once", f"{_T}rows_are_kept_masked_or_dropped"
_DEFAULT = f"{_T}private_text_is_masked_unless_it_is_said_and_public_text_is_not"
_AROUND = f"{_T}what_stands_around_secrets_stays_and_masking_twice_changes_nothing"
_TOLD = f"{_T}the_first_are_named_and_all_are_counted_and_no_secret_is_told"
_CUT = f"{_T}no_cut_goes_through_a_secret"
_DRAWN = "tests/test_epochs.py::test_epochs_are_what_is_drawn_by_what_there_is"

FAULTS = (
    # What is found
    Fault("a key in a longer word", _SECRETS, 'r"(?<![A-Za-z0-9])(?:"', 'r"(?:"', _KEYS),
    Fault("a key that goes on", _SECRETS, 'r")(?![A-Za-z0-9])"', 'r")"', _KEYS),
    Fault("short keys are not looked at", _SECRETS, "_SHORTEST_KEY = 16", "_SHORTEST_KEY = 64", _KEYS),
    Fault("the foot of a block stays", _SECRETS, "end = body.end()", "end = body.end() - 9", _PEM),
    Fault("a block without its foot", _SECRETS, "(_WHOLE, _NARROW, _CUT_OFF)", "(_WHOLE, _NARROW)", _PEM),
    Fault("a block of short lines", _SECRETS, "(_WHOLE, _NARROW, _CUT_OFF)", "(_WHOLE, _CUT_OFF)", _CUT_PEM),
    Fault("a block without its head", _SECRETS, "for foot in _FOOT.finditer(text):", "for foot in ():", _CUT_PEM),
    Fault(
        "whoever writes of keys has one",
        _SECRETS,
        "body)) >= 32",
        "body)) >= 0",
        f"{_T}who_only_writes_about_private_keys_has_none",
    ),
    Fault("names in small letters alone", _SECRETS, "lower = text.lower()", "lower = text", _LINES),
    Fault("letters that grow shift what follows", _SECRETS, "if len(lower) != len(text):", "if False:", _LONG),
    Fault(
        "the end of a long value stays",
        _SECRETS,
        "(_IN_QUERY if in_query else _WORD).match",
        're.compile(r"\S{,200}").match',
        _LONG,
    ),
    Fault("any key", _SECRETS, 'if anchor != "key" or', "if True or", _PROSE),
    Fault(
        "placeholders are secrets",
        _SECRETS,
        "return not value or bool(_PLACEHOLDER.match(value))",
        "return not value",
        _PROSE,
    ),
    Fault("words of prose are secrets", _SECRETS, " or _PROSE.fullmatch(bare)", "", _PROSE),
    Fault(
        "a link is cut short", _SECRETS, "[^\\s&)\\]#]*", "\\S*", f"{_T}a_token_in_a_link_is_masked_and_the_link_stays"
    ),
    Fault("names are read again and again", _SECRETS, "end = found[1]", "end = place + 1", _TIME),
    Fault("what overlaps is two", _SECRETS, "if secrets and start < secrets[-1].end:", "if False:", _AROUND),
    Fault("lines from zero", _SECRETS, "line + 1))", "line))", _LINES),
    Fault("a cut in a secret", _SECRETS, "place = secret.end", "pass", _CUT),
    Fault(
        "a cut between name and password", _SECRETS, "secret.start - _NAME_BEFORE < place", "secret.start < place", _CUT
    ),
    Fault("no check digit of cards", _DIGITS, "return known and _luhn(digits)", "return bool(known)", _CARDS),
    Fault("any prefix", _DIGITS, "and re.match(prefix, digits)", "", _CARDS),
    Fault("a part of a number is a card", _SECRETS, "if not inside and not (", "if not (", _CARDS),
    Fault("no check digits of IBANs", _DIGITS, "% 97 == 1", "% 97 >= 0", _IBANS),
    Fault(
        "an IBAN that goes on",
        _SECRETS,
        "if length and not text[start + length : start + length + 1].isalnum():",
        "if length:",
        _IBANS,
    ),
    Fault("one letter of a length", _DIGITS, '"22:BG BH CR DE', '"22:BG BH CR', _IBANS),
    # What is done about it
    Fault("masked is kept", _SCREEN, 'yield row if self._on_secret == "keep" else clean', "yield row", _ROWS),
    Fault("dropped is kept", _SCREEN, 'and self._on_secret == "drop":', "and False:", _ROWS),
    Fault("fail goes on", _SCREEN, 'and self._on_secret == "fail":', "and False:", _ROWS),
    Fault(
        "the first message alone",
        _SCREEN,
        "for message in row.messages]\n    kinds",
        "for message in row.messages][:1]\n    kinds",
        f"{_T}every_message_of_a_chat_is_looked_at",
    ),
    Fault("all are named", _SCREEN, "*other.first)[:NAMED]", "*other.first)", _TOLD),
    Fault(
        "counted again after an interruption",
        _LOADING,
        "        screen.take()  # told by the records",
        "        pass",
        _ONCE,
    ),
    Fault("forgotten after an interruption", _LOADING, "        found += Findings.of_record(record)\n", "", _ONCE),
    Fault("dropped at the end, not counted", _LOADING, "(found + screen.rest()).record()", "found.record()", _ONCE),
    Fault("dropped, counted where the file ends", _SCREEN, "self._dropped += found", "self._passed += found", _ONCE),
    Fault(
        "private text is kept",
        "niels_gpt/pipeline/sources.py",
        '"mask" if self.private',
        '"keep" if self.private',
        _DEFAULT,
    ),
    Fault(
        "public text is private",
        "niels_gpt/pipeline/sources.py",
        "return self.remote != layout.PUBLIC",
        "return True",
        _DEFAULT,
    ),
    Fault(
        "nothing is told",
        _STAGE,
        "        stage.say(line)\n    if not any",
        "        str(line)\n    if not any",
        _DEFAULT,
    ),
    Fault(
        "kept is not told",
        _SCREEN,
        "        if not total:",
        '        if not total or on_secret == "keep":',
        f"{_TOLD} {_DEFAULT}",
    ),
    Fault(
        "a manifest that shows what was asked",
        _STAGE,
        'source.load.model_dump(exclude={"on_secret"})',
        "source.load.model_dump()",
        f"{_T}text_without_secrets_is_the_same_whatever_is_done_about_them",
    ),
    Fault(
        "the tail begins in a secret",
        "niels_gpt/data/text.py",
        "cut = outside_secrets(document.text, round(",
        "cut = max(0, round(",
        f"{_T}where_a_held_out_tail_would_begin_in_a_secret_it_begins_behind_it",
    ),
    # What a run will see
    Fault("epochs of all that is drawn", _EPOCHS, "shares.get(name, 0.0) * drawn)", "drawn)", _DRAWN),
    Fault(
        "epochs by weight, not by share",
        _EPOCHS,
        'shares = mix_probabilities(weights, tokens, name="p_train")',
        "shares = weights",
        _DRAWN,
    ),
    Fault(
        "a bound that is met is broken",
        _EPOCHS,
        "if exposure.epochs > most",
        "if exposure.epochs >= most",
        "tests/test_epochs.py::test_only_a_source_that_is_read_more_often_than_the_bound_is_named",
    ),
    Fault(
        "one bound for all",
        "niels_gpt/train/scaling_law.py",
        "if below is None or parameters < below",
        "if below is None",
        "tests/test_epochs.py::test_the_bound_is_that_of_the_runs",
    ),
    Fault(
        "doctor does not count tokens",
        "niels_gpt/pipeline/doctor.py",
        "if file.is_file() else {}\n    for name, source",
        "if False else {}\n    for name, source",
        "tests/test_epochs.py::test_doctor_tells_epochs_of_text_that_lies_there_and_of_tokens_that_were_counted",
    ),
)
