"""Faults in what a request asks for: its fields, its rows of the engine, its text, the form of its answer."""

from __future__ import annotations

from bench.mutants.fault import Fault

_REQUEST, _SERVICE, _SCHEDULER, _REPLIES, _FORMS, _GATE = (
    f"niels_gpt/talk/server/{name}.py" for name in ("request", "service", "scheduler", "replies", "forms", "gate")
)
_TEXT, _CLI = "niels_gpt/talk/text.py", "niels_gpt/pipeline/cli.py"
_S, _F, _T = "tests/test_server.py::test_", "tests/test_server_fields.py::test_", "tests/test_talk.py::test_"
_DRAW, _REFUSED = f"{_F}penalties_and_filters_reach_the_draw", f"{_F}what_is_not_honoured_is_refused_by_name"
_STOP = f"{_F}a_stop_string_ends_the_answer_and_never_shows_a_part_of_itself"
_TOKENS = f"{_T}tokens_come_with_the_text_they_end_in"

FAULTS = (
    Fault("any field is let pass", _REQUEST, 'extra="forbid"', 'extra="ignore"', _REFUSED),
    Fault("null is a value", _REQUEST, "if item is not None}", "}", f"{_S}every_field_reaches_the_model"),
    Fault("every token is fifty", _REQUEST, "2**31 - 1} if every", "50} if every", _DRAW),
    Fault(
        "an empty chat is asked",
        _REQUEST,
        "messages: list[ChatMessage] = Field(min_length=1)",
        "messages: list[ChatMessage] = Field()",
        f"{_S}what_is_wrong_is_refused_in_a_sentence",
    ),
    Fault(
        "a developer is nobody",
        _REQUEST,
        '{"developer": "system"}',
        "{}",
        f"{_F}content_in_parts_and_a_developer_are_what_they_mean",
    ),
    Fault(
        "only the first part of a content",
        _REQUEST,
        "for part in content)",
        "for part in content[:1])",
        f"{_F}content_in_parts_and_a_developer_are_what_they_mean",
    ),
    Fault(
        "top_logprobs without logprobs",
        _REQUEST,
        "is not None and not self.logprobs:",
        "is not None and False:",
        _REFUSED,
    ),
    Fault("one stop string of several", _REQUEST, "else tuple(self.stop)", "else tuple(self.stop[:1])", _STOP),
    *(
        Fault(f"{name} does not reach the draw", _REQUEST, f"{name}=self.{name},", f"{name}=Sampling.{name},", test)
        for name, test in (
            ("temperature", f"{_S}every_field_reaches_the_model"),
            ("top_k", f"{_S}every_field_reaches_the_model"),
            ("top_p", f"{_S}every_field_reaches_the_model"),
            ("min_p", _DRAW),
            ("repetition_penalty", _DRAW),
            ("presence_penalty", _DRAW),
            ("frequency_penalty", _DRAW),
        )
    ),
    Fault("biases do not reach the draw", _REQUEST, "logit_bias=bias,", "logit_bias={},", _DRAW),
    Fault("a bias for no token", _SERVICE, "if token >= V]", "if token < 0]", _REFUSED),
    Fault(
        "max_tokens unbounded",
        _SERVICE,
        "asked.max_tokens or self._limits.new_tokens, self._limits.new_tokens)\n        said",
        "asked.max_tokens or self._limits.new_tokens, 10**30)\n        said",
        f"{_S}nobody_gets_more_than_the_limit",
    ),
    Fault(
        "max_completion_tokens ignored",
        _SERVICE,
        "min(asked.max_completion_tokens or asked.max_tokens",
        "min(asked.max_tokens",
        f"{_S}every_field_reaches_the_model",
    ),
    Fault(
        "every answer without a seed is the same",
        _SERVICE,
        "derive_seed(0, reply.id)",
        "derive_seed(0)",
        f"{_S}every_field_reaches_the_model",
    ),
    Fault(
        "choices are one answer",
        _SERVICE,
        'derive_seed(seed, "choice", n) if n else seed',
        "seed",
        f"{_F}several_choices_are_several_answers",
    ),
    Fault(
        "only the last message is put to the model",
        _SERVICE,
        "said = [message.model_dump() for message in asked.messages]",
        "said = [message.model_dump() for message in asked.messages[-1:]]",
        f"{_S}every_field_reaches_the_model",
    ),
    Fault(
        "the server forgets in silence",
        _SERVICE,
        '{"forgotten_messages": forgotten, "cut_tokens": cut}',
        '{"cut_tokens": cut}',
        f"{_F}a_chat_longer_than_the_context_forgets_whole_turns_and_says_so",
    ),
    Fault(
        "the server cuts a question in silence",
        _SERVICE,
        '{"forgotten_messages": forgotten, "cut_tokens": cut}',
        '{"forgotten_messages": forgotten}',
        "tests/test_server.py::test_a_question_beyond_the_context_says_what_was_not_read",
    ),
    Fault(
        "usage counts what was not read",
        _SERVICE,
        "prompts=[prompt[cut:]]",
        "prompts=[prompt]",
        "tests/test_server.py::test_a_question_beyond_the_context_says_what_was_not_read",
    ),
    Fault(
        "a prompt is cut",
        _SERVICE,
        "if len(ids) > cfg.T:",
        "if len(ids) > 10**9:",
        f"{_F}text_goes_on_from_a_text_from_several_and_from_ids",
    ),
    Fault(
        "any ids are a prompt",
        _SERVICE,
        "if not all(0 <= id < cfg.V for id in ids):",
        "if False:",
        f"{_F}text_goes_on_from_a_text_from_several_and_from_ids",
    ),
    Fault(
        "any model's name is answered to",
        _SERVICE,
        "        if name != self._talker.name:",
        "        if not name:",
        f"{_S}the_real_client_lists_asks_and_streams",
    ),
    Fault(
        "an answer in whatever form it was asked",
        _SERVICE,
        '        if content != "application/json":',
        '        if content == "":',
        f"{_S}what_cannot_be_read_or_is_not_there_is_refused_in_the_same_form",
    ),
    Fault(
        "nobody is told when to come again",
        _SERVICE,
        'headers={"Retry-After": str(RETRY_AFTER_S)}',
        "headers={}",
        f"{_S}many_clients_on_few_slots_are_answered_or_refused_and_never_mixed_up",
    ),
    Fault(
        "everybody may wait",
        _SCHEDULER,
        "if self._waiting and len(self._waiting) + len(orders) > self._most:",
        "if False:",
        f"{_S}more_than_there_are_slots_wait_and_more_than_may_wait_are_refused",
    ),
    Fault(
        "answers one after the other",
        _SCHEDULER,
        "len(self._rows) < self._slots:",
        "len(self._rows) < 1:",
        f"{_S}answers_are_written_together_so_that_short_ones_overtake_long_ones",
    ),
    Fault(
        "what nobody wants is written",
        _SCHEDULER,
        "            if not writing.answer.wanted:\n                self._drop(row)\n",
        "            pass\n",
        f"{_S}a_client_that_leaves_ends_its_answer",
    ),
    Fault(
        "an error of one ends the thread",
        _SCHEDULER,
        "                    self._post.add(writing.answer, error)\n                    writing.answer.leave()\n",
        "                    raise\n",
        f"{_S}an_error_belongs_to_who_asked_and_the_next_is_answered",
    ),
    Fault(
        "special tokens do not end an answer",
        _SCHEDULER,
        "if token.id in self._ends:",
        "if token.id == -1:",
        f"{_T}a_reply_ends_with_its_turn",
    ),
    Fault(
        "every answer was cut off",
        _SCHEDULER,
        'return self._end("stop", piece)',
        'return self._end("length", piece)',
        f"{_S}an_answer_says_whether_it_was_ended_or_cut_off",
    ),
    Fault(
        "tokens uncounted",
        _SCHEDULER,
        "        self._written += 1\n",
        "        self._written = 1\n",
        f"{_S}the_real_client_lists_asks_and_streams",
    ),
    Fault(
        "a stream without its last event",
        _REPLIES,
        '    yield "data: [DONE]\\n\\n"',
        '    yield ""',
        f"{_S}an_answer_says_whether_it_was_ended_or_cut_off",
    ),
    Fault(
        "a departed client of a stream still served",
        _REPLIES,
        "        finally:\n            self._answer.leave()\n",
        "        finally:\n            pass\n",
        f"{_S}a_client_that_leaves_ends_its_answer",
    ),
    Fault(
        "a departed client of a whole answer still served",
        _REPLIES,
        "            if await request.is_disconnected():",
        "            if request is None:",
        f"{_S}a_client_that_leaves_ends_its_answer",
    ),
    Fault(
        "usage is not told in a stream",
        _REPLIES,
        "        if usage:\n            yield reply.part([], usage=reply.usage)",
        "        if False:\n            yield reply.part([], usage=reply.usage)",
        f"{_F}usage_is_counted_in_both_forms",
    ),
    Fault(
        "parts of characters have one name",
        _FORMS,
        'return "bytes:" + "".join(f"\\\\x{byte:02x}" for byte in piece)',
        'return "?"',
        f"{_F}log_probabilities_are_the_models_own",
    ),
    Fault("part of a stop string is shown", _TEXT, "len(self._held) - self._may_begin()", "len(self._held)", _STOP),
    Fault(
        "the last stop string ends the answer", _TEXT, "certain = min(places) if", "certain = max(places) if", _TOKENS
    ),
    Fault(
        "what was held back is lost at the end",
        _TEXT,
        "return Piece(piece.text + text,",
        "return Piece(piece.text,",
        f"{_T}a_transcript_ends_where_the_next_turn_begins",
    ),
    Fault("tokens come before their text", _TEXT, "if end <= self._given)", ")", _TOKENS),
    Fault(
        "no key is asked for",
        _GATE,
        "if not _has_key(scope, self._access.key):",
        "if False:",
        f"{_F}a_key_is_asked_for_where_there_is_one",
    ),
    Fault(
        "any scheme is a bearer's",
        _GATE,
        'if scheme.lower() == "bearer"]',
        "]",
        f"{_F}a_key_is_asked_for_where_there_is_one",
    ),
    Fault(
        "others without a key",
        _GATE,
        "if self.others and self.key is None:",
        "if False:",
        f"{_F}other_machines_are_answered_with_a_key_alone",
    ),
    Fault(
        "others' pages are answered",
        _GATE,
        "        here = set(hosts)\n",
        '        here = set(hosts) | {"other.example"}\n',
        f"{_F}other_machines_are_answered_with_a_key_alone",
    ),
    Fault(
        "serve is for everybody",
        _CLI,
        '] = "127.0.0.1",',
        '] = "0.0.0.0",',
        f"{_T}serve_listens_on_this_machine_alone_until_it_is_interrupted",
    ),
)
