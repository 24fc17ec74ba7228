"""Faults in what is taken away: names and rows of weights, vocabularies, templates."""

from __future__ import annotations

from bench.mutants.fault import Fault

_NEOX = "niels_gpt/talk/export/neox.py"
_VOCABULARY = "niels_gpt/talk/export/vocabulary.py"
_CHAT = "niels_gpt/talk/export/chat.py"
_TRANSFORMERS = "niels_gpt/talk/export/transformers.py"
_GGUF = "niels_gpt/talk/export/gguf.py"

_T = "tests/test_export.py::"
_IDS = f"{_T}test_transformers_gives_the_ids_that_we_give"
_ANY = f"{_T}test_transformers_gives_the_ids_that_we_give_for_any_text"
_DECODED = f"{_T}test_transformers_decodes_any_ids_as_we_do"
_CHATS = f"{_T}test_a_chat_is_put_to_the_model_as_we_do"
_NAMES = f"{_T}test_the_name_of_a_chat_token_is_text_where_it_is_asked_to_be_and_else_refused"
_HELD = f"{_T}test_a_gguf_holds_what_llama_cpp_asks_for"
_OLLAMA = f"{_T}test_ollama_is_told_how_to_ask"
_LOGITS = "tests/test_talk.py::test_transformers_computes_the_same_logits"

FAULTS = (
    Fault(
        "neighbours stay neighbours",
        _NEOX,
        "torch.arange(0, cfg.D, 2), torch.arange(1, cfg.D, 2)",
        "torch.arange(cfg.D),",
        _LOGITS,
    ),
    Fault("heads by kind for transformers", _TRANSFORMERS, "heads.transpose(0, 1)", "heads", _LOGITS),
    Fault("bytes as dear as pieces", _VOCABULARY, "default=0.0) - 10.0", "default=0.0) + 10.0", _IDS),
    Fault(
        "a byte that a piece stands for has that piece's name",
        _TRANSFORMERS,
        " and piece.bytes not in taken",
        "",
        _IDS,
    ),
    Fault("names are pieces of a text", _TRANSFORMERS, "_NEVER = -1e6", "_NEVER = 0.0", _IDS),
    Fault("what is unknown has a text", _TRANSFORMERS, '"^<unk>$"', '"^<unknown>$"', _DECODED),
    Fault("tokenizer.json: texts in one part", _TRANSFORMERS, "PARTS.pattern", '"[\\\\s\\\\S]+"', _ANY),
    Fault(
        "scores as they were trained",
        "niels_gpt/tokenizer/training.py",
        "_rounded(model.getvalue())",
        "model.getvalue()",
        _ANY,
    ),
    Fault("templates: an end of turn too few", _CHAT, "message['content'] + 'EOT'", "message['content']", _CHATS),
    Fault(
        "templates: the assistant is asked twice",
        _CHAT,
        "message['content'] == ''",
        "message['content'] == ' '",
        _CHATS,
    ),
    Fault(
        "templates: names of chat tokens pass",
        _CHAT,
        "if name in message['content']",
        "if name == message['content']",
        _NAMES,
    ),
    Fault("templates: any role", _CHAT, "message['role'] not in ROLES or ", "", _NAMES),
    Fault(
        "an export for transformers is opened",
        "niels_gpt/talk/talker.py",
        'if "architectures" in config:',
        "if False:",
        f"{_T}test_an_export_for_others_is_not_opened_here",
    ),
    Fault(
        "sampling is left to transformers",
        _TRANSFORMERS,
        '"do_sample": True,',
        '"do_sample": False,',
        f"{_T}test_transformers_is_told_where_a_turn_ends_and_how_to_sample",
    ),
    Fault("gguf: vectors in f16", _GGUF, " and value.ndim > 1 else", " else", _HELD),
    Fault("gguf: a token in front of every text", _GGUF, "add_add_bos_token(False)", "add_add_bos_token(True)", _HELD),
    Fault(
        "gguf: any model",
        _GGUF,
        '    check_neox(cfg, option="--gguf")\n',
        "",
        f"{_T}test_what_a_gguf_cannot_hold_is_refused_by_name",
    ),
    Fault(
        "gguf: a traceback without the package",
        _GGUF,
        "except ImportError as error:",
        "except KeyError as error:",
        f"{_T}test_without_its_package_a_gguf_is_refused",
    ),
    Fault("Ollama: a transcript goes on for both", _GGUF, "for role in ROLES)]", "for role in ())]", _OLLAMA),
)
