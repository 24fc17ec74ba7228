"""Tests of the loaders over HTTP, through the unmodified client, against a hub on loopback."""

import hashlib
import json
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from niels_gpt.data.hub import HubError, stream_rows
from niels_gpt.files.atomic import write_json
from niels_gpt.tokenizer.tokenizers import ByteTokenizer, describe
from tests.conftest import ROOT, Repo, make_repo, run_forked, start_forking
from tests.hub.fixture import HubHandle, running_hub
from tests.hub.repositories import make_large_fineweb, make_repositories

pytestmark = pytest.mark.dag
HUB = {"dataset": None, "revision": None}
STREAM = {"split": "train", "shuffle_buffer": 200, "seed": 42, "max_documents": None, "bytes_per_token": 5.0}
NO_BUDGET = {"max_train_tokens": None, "max_val_tokens": None}
TEXTS = {
    "wiki": {**HUB, "kind": "wikitext", "dataset": "Salesforce/wikitext", "config": "wikitext-103-raw-v1"},
    "fineweb_edu": {
        **HUB,
        **STREAM,
        "kind": "fineweb_edu",
        "dataset": "HuggingFaceFW/fineweb-edu",
        "config": "CC-MAIN-2024-10",
    },
    "gutenberg": {**HUB, **STREAM, "kind": "gutenberg", "dataset": "nikolina-p/gutenberg_clean_en_splits"},
    "raw_gutenberg": {**HUB, **STREAM, "kind": "gutenberg", "dataset": "manu/project_gutenberg"},
}
CHATS = {
    "dolly15k": {
        **HUB,
        "kind": "dolly",
        "dataset": "databricks/databricks-dolly-15k",
        "include_system": False,
        "seed": 42,
        "max_documents": None,
    },
    "oasst1": {
        **HUB,
        "kind": "oasst1",
        "dataset": "OpenAssistant/oasst1",
        "english_only": True,
        "max_messages": 32,
        "seed": 42,
        "max_trees": None,
    },
}
NAMES = [*TEXTS, *CHATS]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubHandle]:
    root = tmp_path_factory.mktemp("hub")
    make_repositories(root)
    with running_hub(root) as handle:
        yield handle


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    """Return a checkout whose sources are the six hub datasets."""
    repo = make_repo(tmp_path_factory.mktemp("repo") / "repo")
    common = {"input": "data/no-input.md", "remote": "store"}
    by_document = {"by": "document", "val_frac": 0.1, "seed": 42}
    repo.set_all(
        {
            "sources": {
                name: {
                    **common,
                    "use": "chat" if name in CHATS else "text",
                    "val_name": f"val_{name}",
                    "load": load,
                    "split": {"by": "given"} if name == "wiki" else dict(by_document),
                    "budget": dict(NO_BUDGET),  # a copy: YAML would dump a shared one as an alias
                }
                for name, load in {**TEXTS, **CHATS}.items()
            },
            "p_train": dict.fromkeys(TEXTS, 1.0),
            "p_sft": dict.fromkeys(CHATS, 1.0),
            "splice.dataset_name": "wiki",
        }
    )
    assert repo.stage("code").returncode == 0
    return repo


def load_environment(repo: Repo, hub: HubHandle, name: str, home: Path) -> dict[str, str]:
    """Return the environment in which DVC runs the stage that loads `name`."""
    return hub.environment(home) | {"PYTHONPATH": str(repo.path), "DVC_STAGE": f"load@{name}"}


@cache
def forking(hub: HubHandle) -> tuple[str, Path]:
    """Start a server that forks processes with the client imported; return (its address, the client's folder)."""
    libraries = "datasets huggingface_hub pandas pyarrow.dataset pyarrow.parquet pydantic ruamel.yaml tqdm"
    home = hub.root.with_name("home")
    return start_forking(hub.environment(home) | {"PRELOADED": libraries}), home


def load(repo: Repo, hub: HubHandle, name: str) -> subprocess.CompletedProcess[str]:
    """Run the load stage after deleting its output and everything the client has stored."""
    address, home = forking(hub)
    for folder in (repo.path / "cache/raw" / name, home):
        shutil.rmtree(folder, ignore_errors=True)
    return run_forked(
        address, "python", "-m", "stages.load", cwd=repo.path, env=load_environment(repo, hub, name, home)
    )


def digests(repo: Repo, name: str) -> dict[str, str]:
    folder = repo.path / "cache/raw" / name
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def faultless(repo: Repo, hub: HubHandle) -> dict[str, dict[str, str]]:
    """Return the digests of what each load stage writes without faults."""
    hub.reset()
    result = {}
    for name in NAMES:
        done = load(repo, hub, name)
        assert done.returncode == 0, done.stderr
        result[name] = digests(repo, name)
    return result


@pytest.mark.parametrize(
    ("kind", "names", "more"),
    [
        ("drop", NAMES, {"at": 500}),
        # One source for each way of reading, because each stall takes 5 s.
        ("stall", ["wiki", "fineweb_edu", "dolly15k"], {"at": 300, "delay": 5}),
    ],
    ids=["drop", "stall"],
)
def test_a_second_load_is_byte_equal_also_after_a_passing_fault_and_records_the_commit(
    repo: Repo,
    hub: HubHandle,
    faultless: dict[str, dict[str, str]],
    kind: str,
    names: list[str],
    more: dict[str, object],
) -> None:
    for name in names:
        hub.reset()
        hub.fault("GET", r"resolve/.*(parquet|jsonl)$", kind, times=1, **more)
        done = load(repo, hub, name)
        assert done.returncode == 0, f"{name}: {done.stderr[-2000:]}"
        assert digests(repo, name) == faultless[name], name
        source = json.loads((repo.path / "cache/raw" / name / "manifest.json").read_text())
        assert len(source["revision"]) == 40
        assert source["streaming"] is (name in ("fineweb_edu", "gutenberg", "raw_gutenberg"))
        assert {entry["path"].split("/")[1] for entry in hub.log()} <= {"api", "datasets"}


def test_a_stream_that_breaks_off_is_never_taken_for_its_end(hub: HubHandle, tmp_path: Path) -> None:
    """A break that outlasts the client's own retries is resumed without loss; after a 404 it is an error."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.hub.reader"],
        cwd=ROOT,
        env=hub.environment(tmp_path / "home"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result) == {"fineweb_edu", "wikitext", "dolly"}
    for name, kinds in result.items():
        good = kinds.pop("none")
        lost = kinds.pop("404")
        assert good["came"] > 50
        assert good["error"] is None
        assert set(kinds) == {"drop", "short", "500"}
        for kind, broken in kinds.items():
            assert len(broken["opened"]) == 2, (name, kind)  # it broke off and was opened again
            assert (broken["digest"], broken["error"]) == (good["digest"], None), (name, kind)
        assert "does not have it (404)" in lost["error"]
        assert lost["came"] < good["came"]
    # Equal digests show that no row from before the break is repeated, provided that some came before it.
    assert 0 < result["fineweb_edu"]["drop"]["opened"][1] < 1600


@pytest.mark.parametrize(
    ("pattern", "fault", "sentences"),
    [
        (r"resolve/.*(parquet|jsonl)$", {"code": 404, "headers": {"X-Error-Code": "EntryNotFound"}}, ["404"]),
        (r"datasets/", {"code": 401, "headers": {"X-Error-Code": "GatedRepo"}}, ["gated or private", "hf auth login"]),
        (r"datasets/", {"code": 404, "headers": {"X-Error-Code": "RepoNotFound"}}, ["no such dataset", "check the id"]),
    ],
    ids=["404 file", "401", "404 repository"],
)
def test_a_lasting_fault_gives_an_error_message_and_no_file(
    repo: Repo, hub: HubHandle, pattern: str, fault: dict[str, object], sentences: list[str]
) -> None:
    for name in ("fineweb_edu", "dolly15k"):
        hub.reset()
        hub.fault("*", pattern, "status", times=-1, **fault)
        done = load(repo, hub, name)
        assert done.returncode == 1, done.stderr
        error = done.stderr.strip().splitlines()[-1]
        assert error.startswith(f"ERROR: load@{name}: dataset "), error
        assert (TEXTS | CHATS)[name]["dataset"] in error
        for sentence in sentences:
            assert sentence in error
        assert not (repo.path / "cache/raw" / name).exists()


def test_an_open_that_has_used_up_its_retries_is_not_retried() -> None:
    opened = []

    def open_rows() -> Iterator[Any]:
        opened.append(1)
        raise HubError("dataset a/b: gone after 4 attempts") from ConnectionError("reset")  # a transient error

    with pytest.raises(HubError, match="gone after 4 attempts"):
        list(stream_rows(open_rows, path="a/b"))
    assert len(opened) == 1


def test_a_stream_that_stalls_for_ever_is_given_up(repo: Repo, hub: HubHandle) -> None:
    text = (repo.path / "params.yaml").read_text()
    repo.set(runtime__hub_patience_s=6)
    hub.reset()
    hub.fault("GET", r"resolve/.*parquet$", "drop", times=-1, at=300)
    try:
        done = load(repo, hub, "fineweb_edu")
    finally:
        (repo.path / "params.yaml").write_text(text)
    assert done.returncode == 1
    assert "nothing came for 6 s" in done.stderr
    assert not (repo.path / "cache/raw/fineweb_edu").exists()


def test_a_misspelt_config_lists_the_existing_ones(repo: Repo, hub: HubHandle) -> None:
    text = (repo.path / "params.yaml").read_text()
    hub.reset()
    try:
        repo.set(sources__fineweb_edu__load__config="CC-MAIN-2042")
        done = load(repo, hub, "fineweb_edu")
        assert done.returncode == 1
        assert "sample-10BT" in done.stderr
        repo.set(sources__fineweb_edu__load__config="CC-MAIN-2024-10")
        repo.set(sources__fineweb_edu__load__revision="0123456789abcdef0123456789abcdef01234567")
        done = load(repo, hub, "fineweb_edu")
        assert done.returncode == 1
        assert "no such revision" in done.stderr
    finally:
        (repo.path / "params.yaml").write_text(text)


def client(hub: HubHandle, home: Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=hub.environment(home) | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


OFFLINE = """
from niels_gpt.data.dolly import iter_dolly_sft
from niels_gpt.data.fineweb_edu import iter_fineweb_edu
from niels_gpt.data.hub import HubError, cached_commit, resolve_revision
from niels_gpt.data.wikitext import iter_wikitext
dolly, wiki = "databricks/databricks-dolly-15k", "Salesforce/wikitext"
commit = resolve_revision(dolly, None)
print(len(commit), commit == resolve_revision(dolly, commit), commit == cached_commit(dolly))
print(resolve_revision(wiki, None, name="wikitext-103-raw-v1") == cached_commit(wiki, "wikitext-103-raw-v1"))
print(len(list(iter_dolly_sft(shuffle=False, revision=commit))), len(list(iter_wikitext(path=wiki))))
print(next(iter_fineweb_edu(shuffle=False)).text[:5] if cached_commit("HuggingFaceFW/fineweb-edu") else "not cached")
for ask in (lambda: next(iter_fineweb_edu()), lambda: list(iter_dolly_sft(shuffle=False, revision="0" * 40)),
            lambda: resolve_revision(dolly, "0" * 40), lambda: resolve_revision("a/b", None)):
    try: ask()
    except HubError as error: print("ERROR", error)
"""


def test_offline_cached_data_is_used_and_missing_data_is_reported(hub: HubHandle, tmp_path: Path) -> None:
    hub.reset()
    fill = (
        "from niels_gpt.data.dolly import iter_dolly_sft\n"
        "from niels_gpt.data.wikitext import iter_wikitext\n"
        "print(len(list(iter_dolly_sft(shuffle=False))), len(list(iter_wikitext(path='Salesforce/wikitext'))))"
    )
    filled = client(hub, tmp_path, fill)
    assert filled.returncode == 0, filled.stderr
    asked = len(hub.log())
    done = client(hub, tmp_path, OFFLINE, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert len(hub.log()) == asked  # no request was sent
    lines = done.stdout.splitlines()
    assert lines[:4] == ["40 True True", "True", filled.stdout.strip(), "not cached"]
    stream, other, other_again, unknown = lines[4:]
    assert "dataset HuggingFaceFW/fineweb-edu" in stream
    assert "not in the local cache, and HF_HUB_OFFLINE is set: unset it" in stream
    assert "the local cache has commit" in other
    assert other_again == other
    assert "dataset a/b is not in the local cache" in unknown


def test_an_unreachable_hub_is_reported_at_once(hub: HubHandle, tmp_path: Path) -> None:
    code = (
        "from niels_gpt.data.fineweb_edu import iter_fineweb_edu\n"
        "try: next(iter_fineweb_edu(take=1))\n"
        "except RuntimeError as error: print(error)\n"
    )
    with socket.socket() as nobody:  # bound and not listening: connections are refused
        nobody.bind(("127.0.0.1", 0))
        done = client(hub, tmp_path, code, HF_ENDPOINT=f"http://127.0.0.1:{nobody.getsockname()[1]}")
    assert done.returncode == 0, done.stderr
    assert "HuggingFaceFW/fineweb-edu: the hub at http://127.0.0.1:" in done.stdout
    assert "cannot be reached" in done.stdout
    assert "HF_HUB_OFFLINE=1" in done.stdout


def test_take_touches_only_the_shards_it_needs(hub: HubHandle, tmp_path: Path) -> None:
    code = (
        "from niels_gpt.data.fineweb_edu import iter_fineweb_edu\n"
        "print(len(list(iter_fineweb_edu(take=150, shuffle=%s, shuffle_buffer_size=100))))"
    )
    for shuffle in (False, True):
        hub.reset()
        done = client(hub, tmp_path / str(shuffle), code % shuffle)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == "150"
        # Only this dataset counts: a client that an earlier test left behind may still request another.
        paths = {entry["path"] for entry in hub.log() if re.search(r"fineweb-edu/.*parquet$", entry["path"])}
        sent = {path: hub.bytes_sent(path) for path in paths}
        footer = 65_536  # bytes read from the end of the first shard, for its columns
        assert sum(size > footer for size in sent.values()) == 1, sent
        assert len(sent) <= 2


def test_a_process_that_leaves_a_stream_early_ends_well(hub: HubHandle, tmp_path: Path) -> None:
    code = (
        "from niels_gpt.data.fineweb_edu import iter_fineweb_edu\n"
        "print(len(list(iter_fineweb_edu(take=5, shuffle=%s))))"
    )
    for shuffle in (False, True):
        for i in range(2):
            hub.reset()
            hub.fault("GET", "parquet$", "slow", times=-1, delay=0.15)
            done = client(hub, tmp_path / f"{shuffle}{i}", code % shuffle)
            assert done.returncode == 0, done.stderr
            assert done.stdout.strip() == "5"


def test_memory_stays_flat_on_a_large_shard(tmp_path: Path) -> None:
    make_large_fineweb(tmp_path / "root/HuggingFaceFW/fineweb-edu", megabytes=300)
    code = (
        "import resource, json\n"
        "import datasets, pyarrow.dataset\n"
        "from niels_gpt.data.fineweb_edu import iter_fineweb_edu\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "peaks = [peak()]\n"
        "for i, _ in enumerate(iter_fineweb_edu(shuffle_buffer_size=1000)):\n"
        "    if i in (60_000, 110_000): peaks.append(peak())\n"
        "print(json.dumps(peaks))"
    )
    with running_hub(tmp_path / "root") as hub:
        done = client(hub, tmp_path / "home", code)
    assert done.returncode == 0, done.stderr
    start, half_way, end = json.loads(done.stdout)
    assert end - start < 400
    assert end - half_way < 20


def test_the_smoke_script_prints_two_of_each_and_fails_on_the_first_fault(hub: HubHandle, tmp_path: Path) -> None:
    hub.reset()
    command = [sys.executable, "-m", "scripts.smoke_loaders"]
    done = subprocess.run(
        command, cwd=ROOT, env=hub.environment(tmp_path / "a"), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for name in ("fineweb_edu", "wikitext", "gutenberg", "dolly", "oasst1"):
        assert sum(line.startswith(f"[{name}] ") for line in lines) == 2, done.stdout
    threads = lines[next(i for i, line in enumerate(lines) if line.startswith("[oasst1] ")) :]
    turns = [line.split(":")[0] for line in threads if not line.startswith("[")]
    assert turns[:2] == ["    user", "    assistant"]
    assert set(turns) == {"    user", "    assistant"}
    assert max(len(line) for line in threads if not line.startswith("[")) == len("    assistant: ''") + 80
    hub.fault("*", "gutenberg", "status", times=-1, code=404, headers={"X-Error-Code": "RepoNotFound"})
    done = subprocess.run(
        command, cwd=ROOT, env=hub.environment(tmp_path / "b"), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode != 0
    assert "no such dataset" in done.stderr
    assert "[dolly]" not in done.stdout


def test_token_budgets_bound_what_is_fetched(repo: Repo, hub: HubHandle) -> None:

    text = (repo.path / "params.yaml").read_text()
    hub.reset()
    try:
        repo.set(sources__fineweb_edu__budget={"max_train_tokens": 4000, "max_val_tokens": 1000})
        done = load(repo, hub, "fineweb_edu")
    finally:
        (repo.path / "params.yaml").write_text(text)
    assert done.returncode == 0, done.stderr
    sizes = [len(t.as_py()) for t in pq.read_table(repo.path / "cache/raw/fineweb_edu/part-00000.parquet")["text"]]
    assert sum(sizes) >= 25_000
    assert sum(sizes[:-1]) < 25_000


def test_a_killed_fetch_starts_again_cleanly(
    repo: Repo, hub: HubHandle, faultless: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    hub.reset()
    hub.fault("GET", r"resolve/.*parquet$", "stall", times=-1, at=100, delay=20)
    shutil.rmtree(repo.path / "cache/raw/gutenberg", ignore_errors=True)
    process = subprocess.Popen(
        ["python", "-m", "stages.load"],
        cwd=repo.path,
        env=load_environment(repo, hub, "gutenberg", tmp_path),
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 600
    while not any(re.search(r"resolve/.*parquet$", entry["path"]) for entry in hub.log() if entry["method"] == "GET"):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert not (repo.path / "cache/raw/gutenberg").exists()
    hub.reset()
    done = load(repo, hub, "gutenberg")
    assert done.returncode == 0, done.stderr
    assert digests(repo, "gutenberg") == faultless["gutenberg"]
    assert not list((repo.path / "cache/raw").glob(".gutenberg.tmp*"))


def test_all_of_a_dataset_is_loaded_file_by_file_side_by_side(repo: Repo, hub: HubHandle) -> None:
    """Without a shuffle, a row limit or a budget, each file becomes one part, in order, for any number of workers."""
    hub.reset()
    before, found = (repo.path / "params.yaml").read_text(), {}
    files = sorted((hub.root / "HuggingFaceFW/fineweb-edu/data/CC-MAIN-2024-10").glob("*.parquet"))
    assert len(files) > 1
    try:
        for workers in (1, 2):
            repo.set(sources__fineweb_edu__load__shuffle_buffer=None, runtime__workers=workers)
            done = load(repo, hub, "fineweb_edu")
            assert done.returncode == 0, done.stderr
            found[workers] = digests(repo, "fineweb_edu")
    finally:
        (repo.path / "params.yaml").write_text(before)
    assert found[1] == found[2]
    assert [name for name in found[1] if name != "manifest.json"] == [
        f"part-{i:05d}.parquet" for i in range(len(files))
    ]
    for i, file in enumerate(files):
        rows = pq.read_table(repo.path / f"cache/raw/fineweb_edu/part-{i:05d}.parquet")
        assert rows["text"].to_pylist() == [text for text in pq.read_table(file)["text"].to_pylist() if text.strip()]
        assert rows["id"].to_pylist() == pq.read_table(file)["id"].to_pylist()


def test_build_all_builds_every_cache_and_names_what_failed(hub: HubHandle, tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer/tokenizer.json", describe(ByteTokenizer()))
    command = [sys.executable, "-m", "niels_gpt.cache.cli", "build-all", "--seed", "42", "--shuffle-buffer", "50"]
    command += ["--cache-dir", str(tmp_path / "c"), "--tokenizer", str(tmp_path / "tokenizer")]
    command += ["--max-train-tokens", "60000", "--max-val-tokens", "4000", "--shard-bytes", "20000"]
    notes = ["--roam-root", str(ROOT / "data/roam")]

    def run(home: str, *more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *more],
            cwd=ROOT,
            env=hub.environment(tmp_path / home),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    hub.reset()
    done = run("a", *notes)
    assert done.returncode == 0, done.stderr
    caches = [
        "pretrain/fineweb_edu",
        "pretrain/roam",
        "pretrain/wikitext",
        "pretrain/gutenberg",
        "sft/dolly15k",
        "sft/oasst1",
    ]
    for name in caches:
        assert (tmp_path / "c" / name / "meta.json").is_file(), name
    meta = json.loads((tmp_path / "c/pretrain/fineweb_edu/meta.json").read_text())
    assert meta["streaming"] is True
    assert 50_000 < meta["train_tokens"] <= 60_000

    hub.fault("*", "dolly", "status", times=-1, code=404, headers={"X-Error-Code": "RepoNotFound"})
    done = run("b", "--roam-root", str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert "2 caches were not built: pretrain/roam, sft/dolly15k" in done.stderr
    assert "sft/oasst1: built" in done.stdout
