"""Faults in how token files are read, and in what several processes of one job share."""

from __future__ import annotations

from bench.mutants.fault import Fault

_RANKS, _FILES, _WINDOWS = "niels_gpt/files/ranks.py", "niels_gpt/cache/token_files.py", "niels_gpt/cache/windows.py"
_READ = "tests/test_pretrain_window_sampling.py::test_windows_and_documents_of_files_are_those_of_arrays"
_OPENED = "tests/test_pretrain_window_sampling.py::test_a_file_is_opened_when_a_window_falls_into_it_and_no_sooner"
_MANY = "tests/test_pretrain_window_sampling.py::test_a_thousand_token_files_train_where_256_may_be_open"
_T = "tests/test_ranks.py"
_ROWS = f"{_T}::test_ranks_share_rows_without_overlap"
_BATCH = f"{_T}::test_the_rows_of_all_ranks_are_the_batch_and_each_counts_the_targets_of_all"
_OWN = f"{_T}::test_a_rank_reads_no_file_but_those_of_its_own_rows"
_AS_ONE = f"{_T}::test_two_processes_train_and_validate_as_one_does"
_BY_MUON = f"{_T}::test_two_processes_train_by_muon_as_one_does_and_go_on_to_the_bit"
_VALIDATED = f"{_T}::test_ranks_that_share_a_validation_get_the_numbers_of_one_process"
_HASHED = f"{_T}::test_a_job_hashes_every_file_once_and_all_its_ranks_refuse_a_changed_one"
_STAGES = "tests/test_training_stages.py::test_ranks_of_a_stage_share_the_files_that_are_hashed"

FAULTS = (
    # token files
    Fault(
        "a file's length is its size",
        _FILES,
        "        return self.tokens\n",
        "        return count_tokens(self.path)\n",
        _READ,
    ),
    Fault("a file stays open", _FILES, "        os.close(descriptor)\n", "        pass\n", _MANY),
    Fault(
        "a file that was cut passes",
        _FILES,
        "if len(data) < size:",
        "if not data:",
        "tests/test_pretrain_window_sampling.py::test_a_file_that_was_cut_while_it_was_in_use_is_named",
    ),
    Fault(
        "offsets before a mark are missed",
        _FILES,
        "bisect_left(marks, start) - 1)",
        "bisect_left(marks, start))",
        _READ,
    ),
    Fault(
        "offsets behind a mark are missed",
        _FILES,
        "bisect_left(marks, stop) * _EVERY",
        "(bisect_left(marks, stop) - 1) * _EVERY",
        _READ,
    ),
    Fault(
        "offsets read from the header on",
        _FILES,
        "header_bytes + _OFFSET_BYTES * first",
        "_OFFSET_BYTES * first",
        _READ,
    ),
    Fault(
        "an offset at the end of a window counts",
        _FILES,
        ": bisect_left(numbers, stop)]",
        ": bisect_left(numbers, stop + 1)]",
        _READ,
    ),
    Fault("windows of one T serve another", _WINDOWS, "if T not in self._ends:", "if not self._ends:", _READ),
    Fault(
        "all files are opened for their length",
        _WINDOWS,
        "[len(array) for array in arrays]",
        "[len(array[: 1 << 40]) for array in arrays]",
        _OPENED,
    ),
    # what ranks share
    Fault("ranks share rows", _RANKS, "slice(n * self.rank // self.size, ", "slice(0, ", _ROWS),
    Fault("more ranks than rows", _RANKS, "if self.size > B:", "if self.size > 2 * B:", _ROWS),
    Fault(
        "a rank reads the whole batch",
        "niels_gpt/train/pretraining.py",
        "gather_rows(self.train, own, T=self.T)",
        "gather_rows(self.train, draw, T=self.T)[rows]",
        _OWN,
    ),
    Fault(
        "a rank's targets are its own",
        "niels_gpt/train/pretraining.py",
        "first, targets = rows.indices(self.cfg.B)[0], self.cfg.B * self.T",
        "first, targets = rows.indices(self.cfg.B)[0], y.numel()",
        _BATCH,
    ),
    Fault(
        "rows numbered from a rank's first",
        "niels_gpt/train/task.py",
        "torch.arange(first, first + len(x), ",
        "torch.arange(len(x), ",
        _BATCH,
    ),
    Fault(
        "a rank counts its own rows alone",
        "niels_gpt/train/pretraining.py",
        "Batch.of(x, y, draw.counts(), ",
        "Batch.of(x, y, own.counts(), ",
        _BATCH,
    ),
    Fault(
        "chats of others uncounted",
        "niels_gpt/train/chats.py",
        "targets += int(self.train[name].targets(np.delete(examples, own)).sum())",
        "pass",
        _BATCH,
    ),
    Fault(
        "chats shared within each source",
        "niels_gpt/train/chats.py",
        "            passed += len(examples)\n",
        "",
        _BATCH,
    ),
    Fault(
        "what a chat's last token teaches",
        "niels_gpt/cache/sft_dataset.py",
        "self._read(rows)[1][:, 1:].sum(axis=1)",
        "self._read(rows)[1][:, :-1].sum(axis=1)",
        _BATCH,
    ),
    Fault(
        "every rank trains on the whole batch",
        "niels_gpt/train/loop.py",
        "rows=own_rows)",
        "rows=slice(None))",
        _AS_ONE,
    ),
    Fault(
        "a part of a validation weighs as all",
        "niels_gpt/eval/held_out.py",
        "total += share * mean_loss(",
        "total += mean_loss(",
        _VALIDATED,
    ),
    Fault(
        "parts of a validation weigh the same",
        "niels_gpt/eval/held_out.py",
        "share = len(range(B)[rows]) / B",
        "share = 1 / ranks.size",
        _VALIDATED,
    ),
    Fault(
        "chats validated by one rank",
        "niels_gpt/eval/chats.py",
        "parts = ranks.exchange((",
        "parts = Ranks().exchange((",
        _VALIDATED,
    ),
    Fault(
        "a chat that counts for nothing counts",
        "niels_gpt/eval/chats.py",
        "found if len(own) else found[:0]",
        "found",
        _VALIDATED,
    ),
    Fault(
        "a span that counts for nothing counts",
        "niels_gpt/splice/task.py",
        "share = len(triples[rows]) / len(triples)",
        "share = max(1, len(triples[rows])) / len(triples)",
        _VALIDATED,
    ),
    Fault(
        "ranks have a momentum of their own",
        "niels_gpt/train/plain_step.py",
        "scheduled_momentum(self._cfg, n)",
        "scheduled_momentum(self._cfg, n + 9 * self._execution.ranks.rank)",
        _BY_MUON,
    ),
    Fault(
        "ranks that go on forget Muon's momentum",
        "niels_gpt/train/optimizer.py",
        "for i, optimizer in enumerate(optimizers):\n        groups, kept",
        "for i, optimizer in enumerate(optimizers[:1]):\n        groups, kept",
        _BY_MUON,
    ),
    Fault(
        "ranks keep what they found",
        "niels_gpt/cache/manifest.py",
        "found = ranks.exchange({file.place: fault for file in own if (fault := file.fault(vocab_size=vocab_size))})",
        "found = [{file.place: fault for file in own if (fault := file.fault(vocab_size=vocab_size))}]",
        _HASHED,
    ),
    Fault(
        "every rank hashes every file",
        "niels_gpt/cache/manifest.py",
        "own = ranks.files(files)",
        "own = files",
        _HASHED,
    ),
    Fault("a mix is opened alone", "niels_gpt/pipeline/pretraining.py", ", ranks=ranks)", ")", _STAGES),
    Fault("fine-tuning opens the mix alone", "stages/sft.py", "document_mask, ranks=ranks)", "document_mask)", _STAGES),
    Fault("fine-tuning opens its chats alone", "stages/sft.py", "root=Path(), ranks=ranks)", "root=Path())", _STAGES),
    Fault("documents to splice opened alone", "stages/splice.py", ", ranks=execution.ranks)", ")", _STAGES),
)
