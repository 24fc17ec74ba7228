"""Faults in stages that are left out, and in what is told before anything runs."""

from __future__ import annotations

from bench.mutants.fault import Fault

_OUT, _AROUND, _PARAMS = "tests/test_left_out.py::", "tests/test_surroundings.py::", "tests/test_params.py::"
_NOTHING = _OUT + "test_what_is_left_out_holds_nothing_and_what_follows_says_nothing_of_it"
_SAID = _OUT + "test_the_commands_take_the_pretrained_model_and_say_so"
_NOBODY = _OUT + "test_nobody_waits_for_a_stage_that_is_left_out"
_ALL = _AROUND + "test_check_tells_all_that_is_wrong_at_once_a_line_each"
_REMOTES = _AROUND + "test_remotes_are_those_of_the_checkout_and_of_the_machine"
_WATCHED = _AROUND + "test_what_dvc_watches_for_want_of_a_text_must_be_there_too"
_WORDS = _PARAMS + "test_what_is_wrong_is_said_in_one_sentence"
_FITS = _PARAMS + "test_what_nobody_uses_and_what_just_goes_is_not_refused"
_VALUES = _PARAMS + "test_a_value_of_a_stage_that_is_left_out_is_one_all_the_same"
_RULES, _CLI, _PLACES = (f"niels_gpt/pipeline/{name}.py" for name in ("rules", "cli", "surroundings"))

FAULTS = (
    # stages
    Fault("sft runs all the same", "stages/sft.py", "if not stage.params.sft.run:", "if False:", _NOTHING),
    Fault("splice runs all the same", "stages/splice.py", "if not stage.params.splice.run:", "if False:", _NOTHING),
    Fault("memorize runs all the same", "stages/memorize.py", "if not settings.run:", "if False:", _NOTHING),
    Fault("curves of a model that is not there", "stages/curves.py", "if is_left_out(model):", "if False:", _NOTHING),
    Fault("every model is there", "niels_gpt/pipeline/left_out.py", " if not is_left_out(folder)}", "}", _NOTHING),
    Fault(
        "an empty table in the report",
        "stages/eval.py",
        "tables.items() if table[1:]}",
        "tables.items()}",
        _OUT + "test_a_table_without_rows_is_not_in_the_report",
    ),
    Fault(
        "parameters of what was left out",
        "stages/eval.py",
        "REPORTED if tuned else REPORTED - TUNING",
        "REPORTED",
        _NOTHING,
    ),
    Fault("no mix without chats", "stages/mix.py", "if stage.params.chats:", "if True:", _NOTHING),
    Fault("no folder without chats", "stages/code.py", "for kept in layout.KEPT:", "for kept in ():", _NOTHING),
    Fault(
        "hosts wait for what nobody trains",
        "niels_gpt/pipeline/training.py",
        'name in ("sft", "splice") and',
        "False and",
        _NOBODY,
    ),
    Fault(
        "doctor times what nobody trains",
        "niels_gpt/pipeline/doctor.py",
        '("train",) if _left_out(params, "sft") else',
        "() or",
        _NOBODY,
    ),
    Fault(
        "doctor waits for a model",
        "niels_gpt/pipeline/doctor.py",
        "if model == layout.TUNED and _left_out",
        "if False and _left_out",
        _NOBODY,
    ),
    # commands
    Fault("always the tuned model", _CLI, "if not is_left_out(layout.TUNED):", "if True:", _SAID),
    Fault(
        "not a word of which model",
        _CLI,
        'typer.echo(f"there is no fine-tuned model',
        'str(f"there is no fine-tuned model',
        _SAID,
    ),
    Fault(
        "a prompt is called a question",
        "niels_gpt/pipeline/summary.py",
        '"Asked" if layout.TUNED.name in models else "Begun with"',
        '"Asked"',
        _SAID,
    ),
    Fault(
        "inspect sft without chats says nothing",
        "niels_gpt/pipeline/inspection.py",
        "if not names:",
        "if False:",
        _SAID,
    ),
    Fault("check: only params.yaml", _CLI, "found = [*problems, *around]", "found = [*problems]", _ALL),
    Fault("check: only what is around it", _CLI, "found = [*problems, *around]", "found = [*around]", _ALL),
    # rules
    Fault("rules of what is left out", _RULES, "if left_out or not all(", "if not all(", _FITS),
    Fault(
        "no rules of what is not trained", _RULES, 'stage, "run") is False for', 'stage, "run") is not True for', _WORDS
    ),
    Fault(
        "warm-up as long as the run refused",
        _RULES,
        "if warmup_steps > total_steps:",
        "if warmup_steps >= total_steps:",
        _FITS,
    ),
    Fault("any warm-up", _RULES, "if warmup_steps > total_steps:", "if False:", _WORDS),
    Fault("a rate that stays refused", _RULES, "if min_lr > base_lr:", "if min_lr >= base_lr:", _FITS),
    Fault("a rate may rise", _RULES, "if min_lr > base_lr:", "if False:", _WORDS),
    Fault("one length refused", _RULES, "longest < shortest:", "longest <= shortest:", _FITS),
    Fault("any window", _RULES, "chunk_size > longest:", "chunk_size > 2 * longest:", _WORDS),
    Fault(
        "a window as long as the documents refused", _RULES, "chunk_size > longest:", "chunk_size >= longest:", _FITS
    ),
    Fault(
        "a budget of a window less one", _RULES, "is not None and budget <= T:", "is not None and budget < T:", _WORDS
    ),
    Fault(
        "a budget of a window refused",
        _RULES,
        "is not None and budget <= T:",
        "is not None and budget <= T + 1:",
        _FITS,
    ),
    Fault("a budget of what is not drawn", _RULES, 'side == "val" or _at(raw, "p_train", name) != 0', "True", _FITS),
    Fault("memorize without splice", _RULES, "measured is not False and spliced is False", "False", _WORDS),
    Fault("sft without chats", _RULES, "if not chats and tuned is not False:", "if False:", _WORDS),
    Fault("chats without sft needed", _RULES, "if not chats and tuned is not False:", "if not chats:", _FITS),
    Fault(
        "weights that nobody uses needed",
        _RULES,
        "if not used and part == known and not any",
        "if False and not any",
        _FITS,
    ),
    Fault(
        "weights that nobody uses may be anything",
        _RULES,
        "if not used and part == known and not any(part.values()):",
        "if not used:",
        _VALUES,
    ),
    # what params.yaml names
    Fault("an input that is not there", _PLACES, "if not Path(file).exists():", "if False:", _ALL),
    Fault("an input that cannot be watched", _PLACES, "for fault in check_input(file))", "for fault in ())", _ALL),
    Fault(
        "an input of a wrong source",
        _PLACES,
        'if is_sound((*of, "input"), wrong):',
        "if is_sound(of, wrong):",
        _ALL,
    ),
    Fault("any remote", _PLACES, 'and source["remote"] not in known:', "and False:", _ALL),
    Fault("no remote of one's own", _PLACES, '[file, file.with_suffix(".local")]', "[file]", _REMOTES),
    Fault("no remote of the machine", _PLACES, "(system_config_dir(), global_config_dir())", "()", _REMOTES),
    Fault("a remote where there is no DVC", _PLACES, "if not file.is_file():", "if False:", _REMOTES),
    Fault(
        "a configuration that is none ends all",
        _PLACES,
        "except (configparser.Error, ValueError) as error:",
        "except configparser.NoOptionError as error:",
        _AROUND + "test_a_configuration_of_dvcs_that_is_none_hides_nothing_else",
    ),
    Fault("bytes need no file", _PLACES, '["kind"] == "byte":', '["kind"] == "bytes":', _WATCHED),
    Fault(
        "a file is told of for each reader",
        _PLACES,
        'inputs.setdefault(source["input"], (*of, "input"))',
        "inputs[f\"./{len(inputs)}/../{source['input']}\"] = (*of, 'input')",
        _AROUND + "test_a_file_that_two_read_is_told_of_once",
    ),
)
