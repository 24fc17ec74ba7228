"""niels-gpt inspect: show what the model is trained on, and what it can start from."""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import groupby, zip_longest
from typing import Annotated

import click
import numpy as np
import typer

from niels_gpt.data.corpus.loading import Slice, cut_source
from niels_gpt.data.corpus.parts import MANIFEST, first_documents, open_texts, read_column, read_wording
from niels_gpt.data.secrets import findings_of
from niels_gpt.files.checks import Damaged, read_meta
from niels_gpt.files.messages import plural, visible
from niels_gpt.files.store import Store
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.external_checks import request_of
from niels_gpt.pipeline.params import Params, read_params
from niels_gpt.pipeline.results import read_result
from niels_gpt.pipeline.sections import BUNDLED
from niels_gpt.pipeline.stores import store_of
from niels_gpt.tokenizer.vocabulary import Tokenizer

_SHOWN = 12  # most lines shown of a pair of duplicates


def count_ids(files: Iterable[tuple[str, np.ndarray]], *, V: int) -> np.ndarray:
    """Return how often each id occurs in files, given as (name, ids): `(V,)`; one file is in memory at a time."""
    counts = np.zeros(V, dtype=np.int64)
    for name, ids in files:
        found = np.bincount(ids, minlength=V)
        if len(found) > V:
            raise Damaged(name, f"has ids at or above {V=}")
        counts += found
    return counts


def tokenizer_lines(tokenizer: Tokenizer, counts: Mapping[str, np.ndarray], *, line: str) -> Iterator[str]:
    """Yield token counts of each source, the longest vocabulary entries, and `line` cut into tokens."""
    yield f"V = {tokenizer.vocab_size:,}\n"
    yield f"{'source':<14}{'tokens':>14}{'bytes/token':>13}{'ids used':>10}"
    for name, of in counts.items():
        bytes_per_token = of @ tokenizer.token_bytes() / of.sum()
        yield f"{name:<14}{of.sum():>14,}{bytes_per_token:>13.3f}{(of > 0).sum():>10,}"
    pieces = sorted((tokenizer.piece(i) for i in range(tokenizer.vocab_size)), key=len, reverse=True)[:12]
    yield "\nlongest entries: " + " ".join(map(_show, pieces))
    ids = tokenizer.encode(line)
    yield f"\n{len(ids)} tokens: " + " ".join(_show(tokenizer.piece(i)) for i in ids)


def _show(piece: bytes) -> str:
    """Return a vocabulary entry in brackets with spaces and newlines marked, or as hex if it is not UTF-8."""
    try:
        text = piece.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(f"<{byte:02X}>" for byte in piece)
    return f"[{visible(text).replace(' ', '·').replace(chr(10), '⏎')}]"


def mark_chat(tokenizer: Tokenizer, ids: Sequence[int], learned: Sequence[bool], *, color: bool) -> str:
    """Return a chat as text without padding; trained tokens are green, or in «» without colour."""
    names = {id: f"<{name}>" for name, id in tokenizer.special_token_ids().items()}
    eot = tokenizer.special_token_ids()["eot"]
    end = min(len(ids), max(i for i, id in enumerate(ids) if id != eot) + 2)  # padding is eot, too: keep one
    on, off = ("\033[1;32m", "\033[0m") if color else ("«", "»")
    runs = groupby(range(end), key=learned.__getitem__)
    texts = ((is_learned, _text(tokenizer, [ids[i] for i in run], names)) for is_learned, run in runs)
    return "".join(f"{on}{text}{off}" if is_learned else text for is_learned, text in texts)


def _text(tokenizer: Tokenizer, ids: Iterable[int], names: Mapping[int, str]) -> str:
    runs = groupby(ids, key=names.__contains__)
    return "".join(
        "".join(names[id] for id in run) if is_named else visible(tokenizer.decode(run)) for is_named, run in runs
    )


def listed_secrets(params: Params, name: str | None) -> Iterator[str]:
    """Yield a line per secret in a source (None: in all), read anew from its input, and a line with their count."""
    if name is not None and name not in params.sources:
        raise ValueError(f"there is no source {name!r}; there are: {', '.join(params.sources)}")
    for key in params.sources if name is None else [name]:
        source = params.sources[key]
        request = request_of(source, patience_s=params.runtime.hub_patience_s)
        slices = cut_source(Slice(source.load.kind, source.load.settings(), request, Store(""), text_bytes=1 << 30))
        count = 0
        for place, around in (found for part in slices for row in part.rows() for found in findings_of(row)):
            count += 1
            yield f"{key}: {place}    {around}"
        yield f"{key}: {count:,} secrets (on_secret: {source.on_secret})"


def shown_pairs(params: Params, source: str | None, *, n: int) -> Iterator[str]:
    """Yield the number of near-duplicate pairs, then the first n side by side; pairs across sources come first."""
    if not (layout.PAIRS / "sources.json").is_file():
        raise ValueError(f"there are no {layout.PAIRS} yet: run `dvc repro duplicates` first")
    ranges = read_meta(layout.PAIRS / "sources.json")
    if source is not None and source not in ranges:
        raise ValueError(f"there are no duplicates of a source {source!r}; known sources: {', '.join(ranges)}")
    names = sorted(ranges, key=lambda name: ranges[name][0])
    pairs, shares = (np.load(layout.PAIRS / f"{name}.npy") for name in ("documents", "containment"))
    firsts = np.array([ranges[name][0] for name in names])
    of = np.searchsorted(firsts, pairs, side="right") - 1
    kept = np.arange(len(pairs)) if source is None else np.flatnonzero((of == names.index(source)).any(axis=1))
    across = of[kept, 0] != of[kept, 1]
    where = "" if source is None else f" of {source}"
    yield f"{len(kept):,} pairs{where}, {int(across.sum()):,} of them across sources"
    for pair in kept[np.argsort(~across, kind="stable")][:n]:
        (left, text), (right, other) = (
            _read(params, names[number], int(document - firsts[number]))
            for number, document in zip(of[pair], pairs[pair], strict=True)
        )
        yield f"--- {left} | {right}: {shares[pair]:.0%} of the smaller"
        yield from side_by_side(text, other, width=shutil.get_terminal_size().columns)


def _read(params: Params, name: str, row: int) -> tuple[str, str]:
    """Return (source and id, text) of a document."""
    texts = open_texts(layout.RAW / name, stored=store_of(params, name))
    for path, own in texts.by_part(np.array([row])):
        ((text,),) = read_wording(path, own)
        return f"{name} {read_column(path, 'id')[own[0]]}", text
    raise ValueError(f"{layout.PAIRS} does not match the loaded texts: run `dvc repro duplicates`")


def side_by_side(left: str, right: str, *, width: int) -> Iterator[str]:
    """Yield two texts in two columns of `width` characters in all: common lines first, marked "=", then the others."""
    a, b = ([" ".join(line.split()) for line in text.splitlines() if line.strip()] for text in (left, right))
    column = max(8, (width - 5) // 2)
    blocks = sorted(SequenceMatcher(a=a, b=b, autojunk=False).get_opcodes(), key=lambda block: block[0] != "equal")
    rows = [
        (kind, *lines)
        for kind, a_first, a_last, b_first, b_last in blocks
        for lines in zip_longest(a[a_first:a_last], b[b_first:b_last], fillvalue="")
    ]
    for kind, *lines in rows[:_SHOWN]:
        one, other = (line if len(line) <= column else f"{line[: column - 3]}..." for line in lines)
        yield f"{'=' if kind == 'equal' else ' '} {one:<{column}} | {other}".rstrip()
    if len(rows) > _SHOWN:
        yield "  ..."


app = typer.Typer(no_args_is_help=True, help="Show what the model is trained on, and what it can start from.")


@app.command("tokenizer")
def inspect_tokenizer(
    line: Annotated[str, typer.Option(help="line to cut into tokens")] = "niels bakes rye bread, 3.5 kg of it 🥖",
) -> None:
    """Show bytes per token and ids used by source, the longest vocabulary entries, and how a line is cut."""
    from niels_gpt.cache.windows import train_files
    from niels_gpt.pipeline.stores import token_places
    from niels_gpt.tokenizer import load_tokenizer

    params, mix = read_params()[0], read_result(layout.MIX)
    chosen, places = load_tokenizer(layout.TOKENIZER), token_places(params)
    counts = {
        name: count_ids(train_files(name, manifest, places=places, vocab_size=mix["vocab_size"]), V=chosen.vocab_size)
        for name, manifest in mix["sources"].items()
    }
    typer.echo("\n".join(tokenizer_lines(chosen, counts, line=line)))


@app.command("documents")
def inspect_documents(
    source: Annotated[str | None, typer.Argument(help="a source of params.yaml; or, of secrets and pairs, all")] = None,
    n: Annotated[int, typer.Option(min=1, help="number of documents or pairs")] = 5,
    duplicates: Annotated[bool, typer.Option("--duplicates", help="near-duplicate pairs side by side")] = False,
    secrets: Annotated[bool, typer.Option("--secrets", help="all secrets, masked, by document and line")] = False,
) -> None:
    """Show the first documents of a source as loaded: name, size, beginning; or its near duplicates or secrets."""
    if duplicates:
        typer.echo(visible("\n".join(shown_pairs(read_params()[0], source, n=n))))
    elif secrets:
        click.echo_via_pager(visible(line) + "\n" for line in listed_secrets(read_params()[0], source))
    else:
        typer.echo("\n".join(_first_documents(source, n)))


def _first_documents(source: str | None, n: int) -> Iterator[str]:
    if source is None or not (layout.RAW / source / MANIFEST).is_file():
        known = ", ".join(sorted(path.name for path in layout.RAW.glob("*"))) or "none yet; run `dvc repro` first"
        raise ValueError(f"{'name a source' if source is None else f'no source {source!r} is loaded'}; loaded: {known}")
    params = read_params()[0]
    if source in params.chats:
        raise ValueError(f"{source} is a source of chats: `niels-gpt inspect batch --sft` shows them")
    texts = open_texts(layout.RAW / source, stored=store_of(params, source) if source in params.sources else None)
    yield f"{plural(texts.rows, 'document')} in {source}"
    for name, text in first_documents(texts, n):
        yield f"--- {visible(name)} ({len(text.encode('utf-8')):,} bytes)\n{visible(' '.join(text.split())[:160])}"


@app.command("mix")
def inspect_mix() -> None:
    """Show each source's weight in the mix, its tokens, and its epochs in a run."""
    params, raw = read_params()
    read_result(layout.MIX)  # refuses without it
    from niels_gpt.cli.sizing import look_ahead  # imports torch

    ahead = look_ahead(raw)
    typer.echo(f"{'source':<12}{'weight':>8}{'share':>8}{'tokens':>14}{'epochs':>12}")
    for name, source in ahead.seen.items():
        weight = params.p_train.get(name, 0.0)
        typer.echo(f"{name:<12}{weight:>8g}{source.share:>8.3f}{source.tokens:>14,.0f}{source.epochs:>12.2f}")
    for sentence in ahead.too_often:
        typer.echo(f"note: {sentence}")


@app.command("batch")
def inspect_batch(
    step: Annotated[int, typer.Option(min=0, help="step of the run; its batch is always the same")] = 0,
    rows: Annotated[int, typer.Option("--rows", "--n", min=1, help="number of rows; with --sft, of each source")] = 4,
    color: Annotated[bool, typer.Option(help="colour ends of documents and trained tokens, else <eot> and «»")] = True,
    sft: Annotated[bool, typer.Option("--sft", help="chats of fine-tuning, cut at T, trained tokens marked")] = False,
) -> None:
    """Show a training batch as the model sees it: each row with its source and the ends of documents."""
    typer.echo("\n".join(_chats(rows, color=color) if sft else _rows(step, rows, color=color)))


def _rows(step: int, rows: int, *, color: bool) -> Iterator[str]:
    params, _ = read_params()[0], read_result(layout.MIX)
    from niels_gpt.pipeline.training import open_pretraining
    from niels_gpt.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(layout.TOKENIZER)
    eot = tokenizer.special_token_ids()["eot"]
    end = "\033[1;33m<eot>\033[0m" if color else "<eot>"
    task, _ = open_pretraining(params, device="cpu")
    for number, (source, window, ids) in enumerate(task.rows(step)[:rows]):
        yield f"--- row {number}: {source}, window {window}\n{_text(tokenizer, ids, {eot: end})}"


def _chats(rows: int, *, color: bool) -> Iterator[str]:
    T, names = read_result(layout.PRETRAINED / layout.CONFIG)["T"], list(read_result(layout.CHAT_MIX)["sources"])
    if not names:
        raise ValueError("params.yaml has no source of chats, so there are none to show")

    from niels_gpt.cache.sft_dataset import open_chats
    from niels_gpt.model.targets import IGNORE_INDEX
    from niels_gpt.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(layout.TOKENIZER)
    for name, examples in open_chats(layout.CHAT_MIX, names=names, T=T, device="cpu").train.items():
        for row in range(min(rows, len(examples))):
            x, y, masked = (tensor[0].tolist() for tensor in examples.examples(np.array([row])))
            learned = [False, *(target != IGNORE_INDEX for target in masked)]
            yield f"--- {name} {row}\n{mark_chat(tokenizer, [x[0], *y], learned, color=color)}\n"


_AT_THE_HUB = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": ("135 M parameters, answers chats", "apache-2.0"),
    "Qwen/Qwen3-0.6B-Base": ("0.6 B parameters", "apache-2.0"),
}


@app.command("bases")
def inspect_bases() -> None:
    """List pretrained models to start from: what to write as base.from in params.yaml, size, licence, what is here."""
    rows = [("from", "model", "size", "licence", "here"), *_bases()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    typer.echo("\nA hub id needs base.revision, a full commit sha. A folder or file is written as base.input, too.")
    if (file := layout.BASE / "origin.json").is_file():
        origin = read_meta(file, required=["from", "family", "parameters", "licence"])
        what = f"{origin['family']}, {origin['parameters']:,} parameters, {origin['licence']}"
        typer.echo(f"{layout.BASE} holds {origin['from']}: {what}")


def _bases() -> Iterator[tuple[str, ...]]:
    from niels_gpt.base.importing import BUNDLED_BYTES, INSTALL, bundled_file

    try:
        here = "installed" if bundled_file() else ""
    except ValueError:
        here = f"no: {INSTALL}"
    what, size = "SmolLM2-135M-Instruct in 4 bits, answers chats", f"{BUNDLED_BYTES / 1e6:,.0f} MB"
    yield BUNDLED, what, size, "apache-2.0", here
    cached = _cached_models()
    for name in dict.fromkeys([*_AT_THE_HUB, *cached]):
        what, licence = _AT_THE_HUB.get(name, ("", ""))
        size, here = cached.get(name, ("", "no: the import fetches it"))
        yield name, what, size, licence, here
    yield "FOLDER", "Llama or Qwen3 in transformers' form, with safetensors", "", "", ""
    yield "FILE.gguf", "Llama or Qwen3 as llama.cpp reads it", "", "", ""


def _cached_models() -> dict[str, tuple[str, str]]:
    """Return size and commits of the models in the hub's local cache that have safetensors."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repos = sorted(scan_cache_dir().repos, key=lambda repo: repo.repo_id)
    except CacheNotFound:
        return {}
    found = {}
    for repo in (repo for repo in repos if repo.repo_type == "model"):
        usable = [r for r in repo.revisions if any(file.file_name.endswith(".safetensors") for file in r.files)]
        if commits := ", ".join(sorted(revision.commit_hash for revision in usable)):
            found[repo.repo_id] = f"{repo.size_on_disk / 1e6:,.0f} MB", f"cached, revision {commits}"
    return found
