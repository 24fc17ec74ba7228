"""Faults in what several hosts do together, and in a model that is shared out among ranks."""

from __future__ import annotations

from bench.mutants.fault import Fault

_FOUND = "tests/test_hosts.py::test_hosts_find_each_other_by_the_environment"
_WRONG = "tests/test_hosts.py::test_what_is_wrong_in_the_environment_is_named"
_COMMANDS = "tests/test_hosts.py::test_each_host_has_its_command"
_NAMED = "tests/test_hosts.py::test_who_has_other_inputs_is_named_with_them"
_SIGNS = "tests/test_hosts.py::test_a_host_that_fails_or_falls_silent_is_missed"
_REFUSED = "tests/test_hosts.py::test_other_parameters_on_a_host_are_refused_by_name"
_KILLED = "tests/test_hosts.py::test_a_host_that_is_killed_ends_the_run_and_the_rerun_is_that_of_two_processes"
_SHARED = "tests/test_sharded.py::test_a_model_that_is_shared_out_trains_as_by_data_parallelism"
_STEP, _STATE = "niels_gpt/train/sharded_step.py", "niels_gpt/train/sharded_state.py"
_HOSTS, _BEAT = "niels_gpt/pipeline/hosts.py", "niels_gpt/pipeline/heartbeat.py"

FAULTS = (
    Fault("all stages at one port", _HOSTS, "port + STAGES.index(stage))", "port)", _FOUND),
    Fault("hosts are numbered from 1", _HOSTS, "most=hosts - 1)", "most=hosts)", _WRONG),
    Fault(
        "a second host without a count",
        _HOSTS,
        'if environment.get("NODE_RANK", "0") not in ("", "0"):',
        "if False:",
        _WRONG,
    ),
    Fault("no address asked for", _HOSTS, 'if not environment.get("MASTER_ADDR", "").strip():', "if False:", _WRONG),
    Fault(
        "dvc on a second host",
        "niels_gpt/pipeline/training.py",
        "rendezvous is not None and rendezvous.host > 0:",
        "rendezvous is not None and rendezvous.host > 1:",
        _COMMANDS,
    ),
    Fault("ranks outlive their launcher", _HOSTS, "os.kill(os.getpid(), signal.SIGKILL)", "return", _KILLED),
    Fault("other values are let pass", "niels_gpt/pipeline/agreement.py", "if here != there:", "if False:", _NAMED),
    Fault(
        "other files are let pass",
        "niels_gpt/pipeline/agreement.py",
        "if first.get(key) != other.get(key))",
        "if key not in first)",
        _NAMED,
    ),
    Fault(
        "hosts are not compared",
        "niels_gpt/pipeline/training.py",
        "        check_agreement(stage, ranks, device=device)\n",
        "",
        _REFUSED,
    ),
    Fault(
        "hosts check a part of their files",
        "niels_gpt/files/ranks.py",
        "files[self.local_rank :: self.local_size]",
        "files[self.rank :: self.size]",
        "tests/test_hosts.py::test_every_host_checks_all_its_files",
    ),
    Fault("a failure is not heard", _BEAT, "if word == _FAILED:", "if False:", _SIGNS),
    Fault("silence is not noticed", _BEAT, "self._round - at > _SILENT_S", "at - self._round > _SILENT_S", _SIGNS),
    Fault("a host that is done is missed", _BEAT, 'not in ("", _DONE)', 'not in ("",)', _SIGNS),
    Fault("a lost store is not noticed", _BEAT, "now - self._round > _SILENT_S", "self._round > now", _SIGNS),
    # a model shared out
    Fault(
        "ranks begin with weights of their own",
        _STEP,
        "distributed.broadcast(parameter.detach(), src=0)",
        "pass",
        _SHARED,
    ),
    Fault(
        "gradients stay with their rank",
        _STEP,
        "set_requires_gradient_sync(last)",
        "set_requires_gradient_sync(0)",
        _SHARED,
    ),
    Fault("best is last", _STEP, "self._fill_whole(run.best_model)", "self._fill_whole(self._parameters)", _SHARED),
    Fault(
        "moments are lost by ranks",
        _STEP,
        "        load_optimizer_state(self._optimizers, run.optimizer)\n",
        "",
        "tests/test_sharded.py::test_two_ranks_checkpoint_goes_on_with_three "
        "tests/test_sharded.py::test_a_whole_checkpoint_goes_on_shared_out",
    ),
    Fault(
        "half a state is gone on from",
        "niels_gpt/train/state.py",
        "if not (path / mark).is_file():",
        "if False:",
        "tests/test_sharded.py::test_a_save_that_was_cut_short_is_not_gone_on_from",
    ),
    Fault(
        "states in parts pile up",
        "niels_gpt/train/state.py",
        "if path != newest:",
        "if False:",
        "tests/test_sharded.py::test_one_state_is_kept_and_it_has_a_part_of_every_rank",
    ),
    Fault(
        "a whole state is kept beside its successor",
        "niels_gpt/train/state.py",
        "        self._state.unlink(missing_ok=True)\n",
        "",
        "tests/test_sharded.py::test_a_whole_checkpoint_goes_on_shared_out",
    ),
    Fault(
        "torch's own error of a damaged part",
        _STATE,
        "_FAILURES = (Exception, dcp.CheckpointException)",
        "_FAILURES = (Exception,)",
        "tests/test_sharded.py::test_a_damaged_part_is_refused_by_name",
    ),
    Fault(
        "muon is shared out",
        _STEP,
        'if cfg.optimizer != "adamw":',
        "if False:",
        "tests/test_sharded.py::test_muon_is_refused",
    ),
)
