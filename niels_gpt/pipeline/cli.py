"""niels-gpt: what a person does with the pipeline beside `dvc repro`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from niels_gpt.files.atomic import atomic_path
from niels_gpt.files.sentences import EXPECTED, read_text, sentence, visible

if TYPE_CHECKING:  # torch takes over a second to import: only commands that need it do
    from niels_gpt.pipeline.mistakes import Problem
    from niels_gpt.talk.talker import Talker

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="A small GPT from your own text, every byte of it accounted for."
)

PRESETS = Path("presets")
PARAMS = Path("params.yaml")

ModelFolder = Annotated[
    str, typer.Option("--model", help="a folder with a model: models/sft, models/pretrain, an export")
]
Temperature = Annotated[float, typer.Option(min=0, help="0 always takes the likeliest token; 1 takes chances")]
TopK = Annotated[int, typer.Option(min=1, help="draw from so many of the likeliest tokens")]
TopP = Annotated[
    float, typer.Option(min=0.01, max=1, help="and of those from the fewest that make up this probability")
]
MaxTokens = Annotated[int, typer.Option(min=1, help="the longest answer, in tokens")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="the same seed, the same words")]


@contextmanager
def _one_sentence() -> Iterator[None]:
    """What went wrong in one sentence, and a non-zero exit."""
    try:
        yield
    except (typer.Exit, typer.Abort, BrokenPipeError):  # how a command ends, and `| head`
        raise
    except EXPECTED as error:
        typer.echo(f"ERROR: {sentence(error)}", err=True)
        raise typer.Exit(1) from error


def _talker(folder: str, device: str = "auto") -> Talker:
    from niels_gpt.device import prepare_device
    from niels_gpt.talk.talker import open_talker

    return open_talker(folder, device=prepare_device(device, threads=0))


def _params() -> dict[str, Any]:
    """params.yaml as the stages read it, as plain values."""
    from niels_gpt.pipeline.params import read_params

    return read_params(PARAMS)[1]


def _params_and_problems() -> tuple[dict[str, Any], tuple[Problem, ...]]:
    """params.yaml as far as it can be read, and everything that is wrong in it."""
    from niels_gpt.pipeline.mistakes import ParamsError

    try:
        return _params(), ()
    except ParamsError as error:
        return error.raw, error.problems


@app.callback()
def _group() -> None:
    """Keeps `niels-gpt COMMAND` a group however many commands there are."""


@app.command()
def preset(name: Annotated[str, typer.Argument(help="a file in presets/, without .yaml: sample, v0")]) -> None:
    """Write a preset's values into params.yaml. Your comments stay where they are."""
    from niels_gpt.pipeline.presets import apply_preset

    chosen = PRESETS / f"{name}.yaml"
    if not chosen.is_file():
        known = (
            ", ".join(sorted(path.stem for path in PRESETS.glob("*.yaml"))) or "none: run this in the project's folder"
        )
        raise typer.BadParameter(f"there is no preset {name!r}; there are: {known}")
    with _one_sentence():
        from niels_gpt.pipeline.params import parse_params
        from niels_gpt.pipeline.yaml12 import parse_yaml

        wanted = read_text(chosen)
        parse_params(wanted, name=str(chosen))
        current = read_text(PARAMS) if PARAMS.is_file() else ""
        try:
            parse_yaml(current, name=str(PARAMS))
        except ValueError as error:
            raise ValueError(f"{error}; mend it, or delete it to have the preset alone") from error
        with atomic_path(PARAMS) as temporary:
            temporary.write_text(apply_preset(current, wanted), encoding="utf-8")
    typer.echo(f"{PARAMS} now holds {chosen}; `dvc params diff` shows what changed, `dvc repro` runs it")


@app.command()
def chat(
    model: ModelFolder = "models/sft",
    temperature: Temperature = 0.8,
    top_k: TopK = 50,
    top_p: TopP = 1.0,
    max_tokens: MaxTokens = 200,
    seed: Seed = 0,
) -> None:
    """Talk to the model. Answers stream; Ctrl-C ends one, /reset, /system and /save do what they say."""
    from niels_gpt.generate import Sampling
    from niels_gpt.talk.terminal import Conversation, converse

    with _one_sentence():
        talker = _talker(model)
        sampling = Sampling(temperature, top_k, top_p)
        conversation = Conversation(talker, sampling=sampling, max_new_tokens=max_tokens, seed=seed)
        converse(conversation, read=lambda: input("> "), show=lambda text: print(text, end="", flush=True))


@app.command()
def sample(
    prompt: Annotated[str, typer.Argument(help="the text to go on from")],
    model: ModelFolder = "models/pretrain",
    temperature: Temperature = 0.8,
    top_k: TopK = 50,
    top_p: TopP = 1.0,
    max_tokens: MaxTokens = 200,
    seed: Seed = 0,
) -> None:
    """Let the model go on from a text."""
    with _one_sentence():
        try:
            prompt.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                "the text to go on from is not UTF-8: set the terminal to UTF-8 and give it again"
            ) from error
        talker = _talker(model)
        from niels_gpt.generate import Sampling, stream_ids, stream_text
        from niels_gpt.rng import make_generator

        steps = stream_ids(
            talker.model,
            [talker.tokenizer.encode(prompt)],
            max_new_tokens=max_tokens,
            sampling=Sampling(temperature, top_k, top_p),
            stop=talker.tokenizer.special_token_ids()["eot"],
            generators=[make_generator(seed)],
        )
        print(prompt, end="", flush=True)
        for text in stream_text(talker.tokenizer, (token for (token,) in steps if token is not None)):
            print(text, end="", flush=True)
        print()


@app.command()
def serve(
    model: ModelFolder = "models/sft",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one")] = 8000,
) -> None:
    """A web page to chat with, and the same model for OpenAI's clients (base_url http://127.0.0.1:PORT/v1)."""
    with _one_sentence():
        talker = _talker(model)
        from niels_gpt.talk.server.app import build_app
        from niels_gpt.talk.server.connection import listen, make_server

        listening = listen(port)
        typer.echo(f"http://127.0.0.1:{listening.getsockname()[1]} (Ctrl-C ends)")
        sys.stdout.flush()
        make_server(build_app(talker, card=_card(talker))).run(sockets=[listening])


def _card(talker: Talker) -> dict[str, str]:
    cfg = talker.model.cfg
    card = {
        "model": talker.name,
        "parameters": f"{talker.model.parameter_count():,}",
        "context": f"{cfg.T} tokens",
        "vocabulary": f"{cfg.V:,}",
        "chats as": "tokens of their own" if talker.renderer == "chat_tokens" else "a text transcript",
    }
    scores = Path("metrics/eval.json")
    if scores.is_file():
        try:
            table = json.loads(scores.read_text(encoding="utf-8")).get(talker.name, {})
            card |= {f"bits a byte on {name}": f"{score['bits_per_byte']:.3f}" for name, score in table.items()}
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{scores} is damaged ({error}): `dvc repro` writes it anew") from error
    return card


@app.command()
def doctor(
    speed: Annotated[bool, typer.Option(help="also measure how long a run will take here, in ten seconds")] = True,
) -> None:
    """What a run needs, whether it is there, and how long it will take on this machine."""
    with _one_sentence():
        params, problems = _params_and_problems()
        for problem in problems:
            typer.echo(f"BAD  {visible(problem.sentence)}")
        from niels_gpt.pipeline.doctor import examine, seconds_to_train

        bad = len(problems)
        for finding in examine(params, folder=Path(), wrong=[problem.path for problem in problems]):
            bad += finding.fix is not None
            typer.echo(f"{'ok  ' if finding.fix is None else 'BAD '} {finding.what}")
            if finding.fix:
                typer.echo(f"     -> {finding.fix}")
        if speed and not bad:
            for stage, seconds in seconds_to_train(params).items():
                typer.echo(f"ok   {stage} will take about {_duration(seconds)} here (without compiling)")
        if bad:
            raise typer.Exit(1)


@app.command()
def check() -> None:
    """Everything that is wrong in params.yaml and in the files it names, at once, before DVC stumbles over it."""
    with _one_sentence():
        from niels_gpt.data.files import check_input

        params, problems = _params_and_problems()
        faults = [visible(problem.sentence) for problem in problems]
        if not problems:
            sources = [*params["sources"].values(), *params["chats"].values()]
            inputs = {source["input"] for source in sources if source["load"].get("dataset") is None}
            faults += [fault for path in sorted(inputs) if Path(path).exists() for fault in check_input(path)]
        for fault in faults:
            typer.echo(f"ERROR: {fault}", err=True)
        if faults:
            raise typer.Exit(1)


@app.command()
def mend() -> None:
    """After an interruption: put back or take away what DVC left half-written. Otherwise nothing is touched."""
    from niels_gpt.pipeline.dvc_files import mend as mend_files

    with _one_sentence():
        if not Path("dvc.yaml").is_file():
            raise ValueError("there is no dvc.yaml here: run this in the project's folder")
        for sentence in mend_files(Path()) or ["nothing to mend"]:
            typer.echo(sentence)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@app.command()
def export(
    folder: Annotated[str, typer.Argument(help="a new folder to write to")],
    model: ModelFolder = "models/sft",
    transformers: Annotated[bool, typer.Option(help="in the form that the transformers library loads")] = False,
) -> None:
    """The model to take away: safetensors, config, tokenizer, and a card with data, parameters and hashes."""
    with _one_sentence():
        if not folder.isprintable():
            raise ValueError(f"{folder!r} is no name for a folder: give one of printable characters")
        if Path(folder).exists():
            raise ValueError(f"{folder} is there already: give the name of a new folder")
        talker = _talker(model, "cpu")
        from niels_gpt.pipeline.results import read_result
        from niels_gpt.talk.export import export_model, export_transformers, model_card
        from niels_gpt.talk.talker import TOKENIZER

        card = model_card(
            talker,
            mix=read_result("cache/mix.json"),
            chat_mix=read_result("cache/chat_mix.json"),
            params=_params(),
            metrics=read_result("metrics/eval.json"),
        )
        with atomic_path(Path(folder)) as temporary:
            if transformers:
                export_transformers(talker, temporary, card=card)
            else:
                export_model(talker, temporary, tokenizer=TOKENIZER, card=card)
    typer.echo(f"{folder} holds {talker.name}, {talker.model.parameter_count():,} parameters")


@app.command()
def gc(
    all_runs: Annotated[bool, typer.Option("--all", help="also runs that were stopped and could go on")] = False,
) -> None:
    """Delete the checkpoints of finished runs; their models are in models/ and in DVC's cache."""
    from niels_gpt.train.state import delete_runs

    with _one_sentence():
        try:
            count, size = delete_runs(Path("checkpoints"), unfinished=all_runs)
        except OSError as error:
            raise ValueError(f"checkpoints/ could not be cleared: {sentence(error)}") from error
    typer.echo(f"{count} runs deleted, {size / 2**20:.1f} MiB freed")


tokenizer_app = typer.Typer(no_args_is_help=True, help="Look at the tokenizer.")
app.add_typer(tokenizer_app, name="tokenizer")


@tokenizer_app.callback()
def _tokenizer_group() -> None:
    """Keeps `niels-gpt tokenizer COMMAND` a group."""


@tokenizer_app.command()
def report(
    line: Annotated[
        str, typer.Option(help="a line to show cut into tokens")
    ] = "niels bakes rye bread, 3.5 kg of it 🥖",
) -> None:
    """Bytes a token by source, how much of the vocabulary is used, the longest pieces, and how a line is cut."""
    from niels_gpt.cache.mmap import open_tokens
    from niels_gpt.tokenizer import load_tokenizer
    from niels_gpt.tokenizer.report import format_report, report_source

    with _one_sentence():
        files = sorted(Path("cache/tokens").glob("*/train_tokens.bin"))
        if not files:
            raise ValueError("there are no tokens yet: run `dvc repro mix` first")
        chosen = load_tokenizer("cache/tokenizer")
        sources = {path.parent.name: report_source(chosen, open_tokens(path), name=str(path)) for path in files}
        typer.echo(format_report(chosen, sources, line=line))


inspect_app = typer.Typer(no_args_is_help=True, help="Look at what the model is trained on.")
app.add_typer(inspect_app, name="inspect")


@inspect_app.callback()
def _inspect_group() -> None:
    """Keeps `niels-gpt inspect COMMAND` a group."""


@inspect_app.command("documents")
def inspect_documents(
    source: Annotated[str, typer.Argument(help="a source of params.yaml")],
    n: Annotated[int, typer.Option(min=1, help="how many")] = 5,
) -> None:
    """The first documents of a source as they were loaded: name, size, how they begin."""
    from itertools import islice

    import numpy as np

    from niels_gpt.data.documents import FILE_NAME, count_rows, read_column, read_texts

    with _one_sentence():
        folder = Path("cache/raw") / source
        if not (folder / FILE_NAME).is_file():
            known = (
                ", ".join(sorted(path.name for path in Path("cache/raw").glob("*"))) or "none; run `dvc repro` first"
            )
            raise ValueError(f"no documents of a source {source!r} are there; there are those of: {known}")
        rows = np.arange(min(n, count_rows(folder)))
        texts = (text for group in read_texts(folder, rows) for text in group)
        typer.echo(f"{count_rows(folder):,} documents in {source}")
        for name, text in zip(islice(read_column(folder, "id"), len(rows)), texts, strict=False):
            begins = visible(" ".join(text.split())[:160])
            typer.echo(f"--- {visible(name)} ({len(text.encode('utf-8')):,} bytes)\n{begins}")


@inspect_app.command("mix")
def inspect_mix() -> None:
    """The weights of the mix, the tokens there are, and how often a run goes over each source."""
    with _one_sentence():
        from niels_gpt.pipeline.results import read_result

        params, mix = _params(), read_result("cache/mix.json")
        total = sum(params["p_train"].values())
        seen = params["train"]["total_steps"] * params["train"]["B"] * params["model"]["T"]
        typer.echo(f"{'source':<12}{'weight':>8}{'share':>8}{'tokens':>14}{'times over':>12}")
        for name, source in mix["sources"].items():
            tokens = source["train"]["tokens"]
            weight = params["p_train"].get(name, 0.0)
            times = seen * weight / total / tokens if tokens else 0.0
            typer.echo(f"{name:<12}{weight:>8g}{weight / total:>8.3f}{tokens:>14,}{times:>12.2f}")


@inspect_app.command("batch")
def inspect_batch(
    step: Annotated[int, typer.Option(min=0, help="of the run: batch n is the same every time")] = 0,
    rows: Annotated[int, typer.Option(min=1, help="how many rows to show")] = 4,
    color: Annotated[bool, typer.Option(help="ends of documents in colour; without it, as <eot>")] = True,
) -> None:
    """A training batch as the model sees it: every row with its source, and where documents end."""
    with _one_sentence():
        from niels_gpt.pipeline.results import read_result

        params, _ = _params(), read_result("cache/mix.json")
        from niels_gpt.batching import draw_rows, gather_rows
        from niels_gpt.cache.manifest import open_mix
        from niels_gpt.data.mix import mix_probabilities
        from niels_gpt.rng import derive_seed, make_generator
        from niels_gpt.tokenizer import load_tokenizer

        mix, T = open_mix("cache/mix.json", root=Path()), params["model"]["T"]
        p = mix_probabilities(params["p_train"], params["sources"], name="p_train")
        streams = {name: mix.train[name] for name in p}
        generator = make_generator(derive_seed(params["train"]["seed"], "batch", step))
        draw = draw_rows(streams, p=p, B=params["train"]["B"], T=T, generator=generator)
        tokenizer = load_tokenizer("cache/tokenizer")
        eot = tokenizer.special_token_ids()["eot"]
        end = "\033[1;33m<eot>\033[0m" if color else "<eot>"
        for row, ids in enumerate(gather_rows(streams, draw, T=T).tolist()[:rows]):
            name, window = draw.names[int(draw.choices[row])], int(draw.windows[row])
            parts: list[list[int]] = [[]]
            for token in ids:
                if token == eot:
                    parts.append([])
                else:
                    parts[-1].append(token)
            typer.echo(
                f"--- row {row}: {name}, window {window}\n{end.join(visible(tokenizer.decode(part)) for part in parts)}"
            )


@inspect_app.command("sft")
def inspect_sft(
    n: Annotated[int, typer.Option(min=1, help="how many chats of each source")] = 3,
    color: Annotated[bool, typer.Option(help="colour what is learned; without it, it stands in «»")] = True,
) -> None:
    """Chats as the model sees them, cut at T, with the tokens it is trained to say marked."""
    with _one_sentence():
        from niels_gpt.pipeline.results import read_result

        T, names = read_result("models/pretrain/config.json")["T"], list(read_result("cache/chat_mix.json")["sources"])

        import numpy as np

        from niels_gpt.cache.manifest import open_chats
        from niels_gpt.model.targets import IGNORE_INDEX
        from niels_gpt.report.chats import mark_chat
        from niels_gpt.tokenizer import load_tokenizer

        tokenizer = load_tokenizer("cache/tokenizer")
        chats = open_chats("cache/chat_mix.json", names=names, T=T, device="cpu", root=Path())
        for name, examples in chats.train.items():
            for row in range(min(n, len(examples))):
                x, y, masked = (tensor[0].tolist() for tensor in examples.examples(np.array([row])))
                learned = [False, *(target != IGNORE_INDEX for target in masked)]
                typer.echo(f"--- {name} {row}\n{mark_chat(tokenizer, [x[0], *y], learned, color=color)}\n")


@app.command()
def summary() -> None:
    """The last evaluation, a sample, and where everything lies."""
    with _one_sentence():
        from niels_gpt.pipeline.results import read_result

        missing = [path for path in _SUMMARISED if not Path(path).is_file()]
        if missing:
            raise ValueError(f"{', '.join(missing)} not there yet: run `dvc repro` first")
        scores, trained = read_result("metrics/eval.json"), read_result("metrics/train.json")
        question, _, answer = read_text("metrics/samples.md").split("\n## ")[-1].partition("\n")
        typer.echo(f"\n{'model':<10}{'held out':<12}{'nats/token':>12}{'bits/byte':>12}{'tokens':>12}")
        for model, table in scores.items():
            for stream, score in table.items():
                numbers = f"{score['nats']:>12.4f}{score['bits_per_byte']:>12.4f}{score['tokens']:>12,}"
                typer.echo(f"{model:<10}{stream:<12}{numbers}")
        mix = ", ".join(f"{source} {share['drawn']:.3f}" for source, share in trained["mix"].items())
        typer.echo(f"\n{trained['parameters']:,} parameters, {trained['tokens']:,} tokens seen, drawn from {mix}")
        typer.echo(visible(f"\nAsked: {question}\n\n{answer.strip()}\n"))
        for line in _reproduction():
            typer.echo(line)
        for what, where in _PLACES:
            typer.echo(f"{what:<9}{where}")


_SUMMARISED = ("metrics/eval.json", "metrics/train.json", "metrics/samples.md")
_PLACES = (
    ("models", "models/pretrain/ and models/sft/ (best.pt, last.pt, config.json)"),
    ("metrics", "metrics/train.json, sft.json, eval.json, and curves in metrics/*.tsv"),
    ("report", "metrics/report.html, all of it on one page; samples alone in metrics/samples.md"),
    ("talk", "`niels-gpt chat`, or `niels-gpt serve` for a web page"),
    ("tokens", "cache/pretrain/ and cache/sft/, listed with their sha256 in cache/mix.json and chat_mix.json"),
    ("run logs", "logs/*.jsonl (times and speed, not tracked)"),
)


def _reproduction() -> list[str]:
    """What of the last run is as committed; nothing where that cannot be known (no git, no commit, half a dvc.lock)."""
    import subprocess

    from niels_gpt.pipeline.reproduction import compare_runs
    from niels_gpt.pipeline.yaml12 import parse_yaml

    try:
        done = subprocess.run(["git", "show", "HEAD:./dvc.lock"], capture_output=True, check=True, timeout=30)
        locks = done.stdout.decode("utf-8"), read_text("dvc.lock")
        committed, now = (parse_yaml(text, name="dvc.lock") for text in locks)
        return [*compare_runs(now, committed), ""]
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError, AttributeError):
        return []
