"""Faults in the engine: how rows are read, moved, drawn for, and kept apart; and in what a chat forgets."""

from __future__ import annotations

from bench.mutants.fault import Fault

_ENGINE, _SLOTS = "niels_gpt/inference/engine.py", "niels_gpt/inference/slots.py"
_DRAW, _PENALTIES = "niels_gpt/inference/sampling.py", "niels_gpt/inference/penalties.py"
_DECODER = "niels_gpt/model/decoder.py"
_RECORDED, _NOISE = "niels_gpt/inference/recorded.py", "niels_gpt/inference/noise.py"
_MEMORY, _TALKER = "niels_gpt/talk/memory.py", "niels_gpt/talk/talker.py"
_TERMINAL, _APP = "niels_gpt/talk/terminal.py", "niels_gpt/talk/server/app.py"

_T = "tests/test_inference.py::test_"
_UNCACHED = f"{_T}cached_and_uncached_text_are_equal_far_past_the_context"
_ONE_DRAW = f"{_T}a_draw_is_that_of_one_row_by_itself"
_GOLDEN = f"{_T}text_for_a_generator_is_that_of_a_plain_loop"
_WRITTEN_OUT = f"{_T}penalties_biases_and_min_p_are_those_written_out"
_ADJUSTED = f"{_T}adjusted_logits_are_those_written_out"
_BITS = f"{_T}at_one_bucket_what_a_row_gets_is_the_same_to_the_bit_whoever_is_beside_it"
_BESIDE = f"{_T}rows_of_different_settings_side_by_side_get_what_each_gets_alone"
_GRAPHS = f"{_T}recorded_graphs_write_what_the_decoder_writes"
_NEW = f"{_T}the_next_turn_reads_only_what_is_new"
_SLIDING = f"{_T}sliding_keeps_half_and_reads_it_once"
_MIXED = f"{_T}rows_that_come_and_go_are_never_mixed_up"
_LOGPROBS = f"{_T}log_probabilities_are_the_models_own"
_FORGETS = "tests/test_talk.py::test_a_chat_forgets_its_oldest_turns_whole"

FAULTS = (
    # Recorded graphs.
    Fault(
        "a step begun for one row is another's",
        _RECORDED,
        "self._draw, self._expected = draw, None",
        "self._draw = draw",
        f"{_T}a_step_begun_for_one_row_is_not_taken_for_anothers",
    ),
    Fault(
        "what was begun counts whatever is wanted",
        _RECORDED,
        "if given != self._expected:",
        "if self._expected is None:",
        _GRAPHS,
    ),
    Fault("a step ahead draws with the same noise", _RECORDED, "FAR if key else 0", "0 if key else 0", _GRAPHS),
    Fault("a step ahead stays where it was", _RECORDED, "[place is not None for place", "[False for place", _GRAPHS),
    Fault("what is filled up with is read", _RECORDED, "*[self._T] * rest", "*[start] * rest", _GRAPHS),
    Fault("settings of rows that are gone", _RECORDED, "self._settings.copy_(draw.settings)", "pass", _GRAPHS),
    Fault("a row that is read is another", _RECORDED, "[row] * self._n", "[0] * self._n", _GRAPHS),
    Fault(
        "all ids have one number",
        _NOISE,
        "mixed(keys + ids)",
        "mixed(keys) + 0 * ids",
        f"{_T}seeded_noise_is_exponential_and_is_made_of_seed_draw_and_id_alone",
    ),
    Fault(
        "a draw is as the one before",
        _NOISE,
        "        self._key = following(self._key)\n",
        "",
        f"{_T}seeded_noise_is_exponential_and_is_made_of_seed_draw_and_id_alone",
    ),
    Fault(
        "a seed is no number of its own beside a generator",
        _NOISE,
        "torch.where(keys == 0,",
        "torch.where(keys != 0,",
        f"{_T}rows_with_a_seed_and_with_a_generator_draw_side_by_side",
    ),
    Fault(
        "the likeliest of a part are those of the first",
        _DRAW,
        "parts.shape[1] * _PART, _PART",
        "parts.shape[1]",
        f"{_T}the_likeliest_of_parts_are_those_of_the_whole",
    ),
    Fault(
        "matrices stay in float32",
        "niels_gpt/inference/steps.py",
        'return computing_in("bf16", self._device.type) if',
        "return nullcontext() if",
        f"{_T}in_bf16_an_engine_writes_what_autocast_writes",
    ),
    Fault(
        "a new key is turned the other way",
        "niels_gpt/model/kernels/decode_triton.py",
        "tl.where(d % 2 == 0, -sin, sin)",
        "tl.where(d % 2 == 1, -sin, sin)",
        "tests/test_kernels.py",
    ),
    Fault(
        "a new token does not see itself",
        "niels_gpt/model/kernels/decode_triton.py",
        "    seen = v.to(tl.float32)\n",
        "    seen = 0.0 * v.to(tl.float32)\n",
        "tests/test_kernels.py",
    ),
    # The draw.
    Fault(
        "the likeliest of more than k",
        _DRAW,
        "    return logits.topk(k, dim=-1)",
        "    return logits.topk(len(logits[0]))",
        _ONE_DRAW,
    ),
    Fault("noise of other ids", _DRAW, "noise(indices)", "noise(indices * 0)", _ONE_DRAW),
    Fault("top_p of part of the mass", _DRAW, "top_p * sums[:, -1:]", "top_p", _ONE_DRAW),
    Fault("a temperature is another's", _DRAW, "self._there[rows]", "self._there[: len(rows)]", _BESIDE),
    Fault("min_p does nothing", _DRAW, "weights < min_p", "weights < 0", _WRITTEN_OUT),
    Fault(
        "one k for all rows",
        _DRAW,
        "    return min(sampling.top_k, V)\n",
        "    return min(max(sampling.top_k, 50), V)\n",
        f"{_T}equal_logits_are_cut_off_as_for_a_row_by_itself {_ONE_DRAW}",
    ),
    Fault(
        "greedy rows draw",
        _DRAW,
        "greedy > 0",
        "greedy < 0",
        f"{_T}greedy_rows_take_the_likeliest_among_rows_that_draw",
    ),
    Fault(
        "logits that are no numbers are drawn from",
        _DRAW,
        ".masked_fill_(best.isnan(), -1)",
        "",
        f"{_T}a_model_whose_weights_are_no_numbers_says_so",
    ),
    # Penalties.
    Fault("what was read is not repetition", _PENALTIES, "read + written > 0", "written > 0", _ADJUSTED),
    Fault("what was written is not repetition", _PENALTIES, "read + written > 0", "read > 0", _ADJUSTED),
    Fault("a negative logit is raised", _PENALTIES, "logits * repetition", "logits / repetition", _ADJUSTED),
    Fault("presence counts", _PENALTIES, "presence * (written > 0)", "presence * written", _ADJUSTED),
    Fault("frequency does not count", _PENALTIES, "frequency * written", "frequency * (written > 0)", _ADJUSTED),
    Fault("biases are left out", _PENALTIES, " + bias\n", "\n", _ADJUSTED),
    Fault(
        "a bias outlives its row",
        _PENALTIES,
        'self._held["bias"][row], self._held["how"][row] = 0, self._numbers(_NONE)',
        "pass",
        f"{_T}a_slot_forgets_the_penalties_and_biases_of_the_row_before",
    ),
    Fault("penalties stay where they were", _PENALTIES, "held[[row, other]] = held[[other, row]]", "pass", _MIXED),
    # Slots.
    Fault(
        "one more is shared than is",
        _SLOTS,
        "if self.ids[i] != ids[i]), most)",
        "if self.ids[i] != ids[i]), most) + 1",
        _NEW,
    ),
    Fault("nothing is shared", _SLOTS, "most = min(self.read, len(ids) - 1)", "most = 0", _NEW),
    Fault(
        "ids not read are shared",
        _SLOTS,
        "        del slot.ids[slot.read :]\n",
        "        slot.read = len(slot.ids)\n",
        _NEW,
    ),
    Fault(
        "any free slot",
        _SLOTS,
        "max(self._free, key=lambda free: self._slots[free].shared(ids))",
        "self._free[-1]",
        _NEW,
    ),
    Fault(
        "rows stay where they are",
        _SLOTS,
        "if self.bucket == self._buckets[0] or self._smallest(len(self.places)) == self.bucket:",
        "if True:",
        f"{_T}a_step_computes_the_smallest_bucket",
    ),
    Fault("a moved row leaves its keys", _ENGINE, "self._steps.swap(*move, lengths=read)", "pass", _MIXED),
    Fault("a moved row leaves its penalties", _ENGINE, "self._penalties.swap(*move)", "pass", _MIXED),
    Fault("a swap loses the other's keys", _DECODER, "self._kv[row, :, : lengths[1]] = another", "pass", _MIXED),
    # Reading.
    Fault(
        "a full context keeps one id less",
        _ENGINE,
        "slot.ids[-self._row(place).keep :]",
        "slot.ids[1 - self._row(place).keep :]",
        _UNCACHED,
    ),
    Fault("sliding keeps all", _ENGINE, "keep or max(1, T // 2)", "keep or T", _SLIDING),
    Fault(
        "rows that wait are written to",
        _DECODER,
        "[self.T if start is None else start] for",
        "[0 if start is None else start] for",
        _MIXED,
    ),
    Fault(
        "keys are looked at one by one",
        _DECODER,
        "min(_whole(end, _BLOCK), self._end)",
        "end",
        _BITS,
    ),
    Fault(
        "neighbours' keys are seen",
        _DECODER,
        "self._places[:looked_at] <= places[:, None, :, None]",
        "self._places[:looked_at] <= looked_at",
        _BESIDE,
    ),
    Fault(
        "one new token sees one too few",
        _DECODER,
        "self._end - 1 - start, looked_at",
        "self._end - start, looked_at",
        _UNCACHED,
    ),
    Fault(
        "all rows share one noise",
        _ENGINE,
        "self._row(place).noise for place in self._draw",
        "self._row(places[0]).noise for place in self._draw",
        _BESIDE,
    ),
    Fault("rows that wait are drawn for", _ENGINE, "if wanted is None or handle in wanted]", "]", _MIXED),
    Fault(
        "log probabilities of what was drawn from",
        _ENGINE,
        "own = logits[asked].log_softmax(dim=-1)",
        "own = self._penalties.applied(logits)[asked].log_softmax(dim=-1)",
        _LOGPROBS,
    ),
    Fault(
        "log probabilities of another row",
        _ENGINE,
        "own = logits[asked]",
        "own = logits[: len(asked)].flip(0)",
        _LOGPROBS,
    ),
    # Readers of one engine.
    # What a chat forgets.
    Fault(
        "the system is forgotten",
        _MEMORY,
        "return Remembered([*system, *said[first:]]",
        "return Remembered([*said[first:]]",
        _FORGETS,
    ),
    Fault(
        "an answer is kept without its question", _MEMORY, ' if i and message["role"] == "user")]', " if i)]", _FORGETS
    ),
    Fault(
        "one turn more than fits",
        _MEMORY,
        "    first = begins[-kept]\n",
        "    first = begins[-min(kept + 1, len(begins))]\n",
        _FORGETS,
    ),
    Fault("no room for the answer", _TALKER, "room = T - min(max_new_tokens, T // 4)", "room = T", _FORGETS),
    Fault(
        "it forgets in silence",
        _TERMINAL,
        "if forgotten > self._forgotten:",
        "if False:",
        "tests/test_talk.py::test_a_chat_says_what_it_has_forgotten",
    ),
    Fault(
        "it says so again and again",
        _TERMINAL,
        "        self._forgotten = forgotten\n",
        "",
        "tests/test_talk.py::test_a_chat_says_what_it_has_forgotten",
    ),
)
