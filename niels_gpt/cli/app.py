"""niels-gpt: the commands that users type besides `dvc repro`."""

import os
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated

import typer

from niels_gpt.cli import console, inspect
from niels_gpt.cli.benchmark import benchmark
from niels_gpt.cli.compare import compare
from niels_gpt.cli.export import ModelFolder, export, final_model, open_model
from niels_gpt.cli.find import find, open_notes, served_notes
from niels_gpt.cli.init import init
from niels_gpt.cli.new import new, upgrade
from niels_gpt.cli.run import params_and_problems, print_problems, run
from niels_gpt.cli.store import store
from niels_gpt.cli.summary import introduction, model_facts, summary_lines, temperature_of
from niels_gpt.cli.track import Service, send_curves
from niels_gpt.files.atomic import write_text
from niels_gpt.files.messages import read_text, visible
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import parse_params, read_params
from niels_gpt.pipeline.repository import mend
from niels_gpt.pipeline.yaml_files import parse_yaml

_ABOUT = "Train a small GPT on your own text, and use it."
app = typer.Typer(cls=console.Commands, add_completion=False, no_args_is_help=True, help=_ABOUT)

TopK = Annotated[int, typer.Option(min=1, help="sample from the k most probable tokens")]
TopP = Annotated[
    float, typer.Option(min=0.01, max=1, help="nucleus sampling: smallest set of tokens with this total probability")
]
MaxTokens = Annotated[int, typer.Option(min=1, help="maximum length of an answer, in tokens")]
Bf16 = Annotated[bool, typer.Option("--bf16", help="compute in bfloat16: half the memory, and faster on a GPU")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="random seed; the same seed gives the same text")]


@app.callback()
def begin(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=console.show_version, help="print the version and exit")
    ] = False,
) -> None:
    """Prepare stdout and stderr before any command runs."""
    console.print_any_text()


@app.command(cls=console.PresetCommand)
def preset(name: Annotated[str, typer.Argument(help="a file in presets/, without .yaml")]) -> None:
    """Write a preset's values into params.yaml, keeping comments in sections with the preset's keys."""
    chosen = layout.PRESETS / f"{name}.yaml"
    if not chosen.is_file():
        known = ", ".join(console.known_presets(layout.PRESETS)) or "none: run this in the project's folder"
        raise typer.BadParameter(f"there is no preset {name!r}; there are: {known}")
    wanted = console.read_preset(layout.PRESETS, name)
    parse_params(wanted, name=str(chosen))
    current = read_text(layout.PARAMS) if layout.PARAMS.is_file() else ""
    try:
        parse_yaml(current, name=str(layout.PARAMS))
    except ValueError as error:
        raise ValueError(f"{error}; fix it, or delete it to use the preset alone") from error
    if name != "sample" and (kept_own := console.keep_own_sources(wanted, current)) != wanted:
        parse_params(wanted := kept_own, name=str(chosen))
        typer.echo("your own sources stay, with the preset's public text beside them")
    text = console.apply_preset(current, wanted)
    if text != current and (kept := console.keep_copy(layout.PARAMS)) is not None:
        typer.echo(f"{layout.PARAMS} as it was is kept as {kept}: `mv {kept} {layout.PARAMS}` restores it")
    write_text(layout.PARAMS, text)
    typer.echo(f"{layout.PARAMS} now holds {chosen}; `dvc params diff` shows what changed, `dvc repro` runs it")


@app.command()
def params() -> None:
    """Print all parameters as YAML with their help: those of params.yaml, and the defaults of keys left out."""
    found, raw = read_params()
    typer.echo(console.with_settings("{}", console.explained(raw, type(found))), nl=False)


@app.command()
def chat(
    model: ModelFolder = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 is greedy; default: by the report card")] = None,
    top_k: TopK = 50,
    top_p: TopP = 1.0,
    max_tokens: MaxTokens = 200,
    seed: Seed = 0,
    bf16: Bf16 = False,
    notes: Annotated[bool, typer.Option("--notes", help="show what a question finds in your notes")] = False,
) -> None:
    """Chat with the model in the terminal (Ctrl-C stops an answer; commands: /reset, /system, /trace, /save, /quit)."""
    from niels_gpt.inference.sampling import Sampling
    from niels_gpt.talk.terminal import Conversation, converse, line_reader

    talker = open_model(model or final_model(), bf16=bf16)
    sampling = Sampling(temperature_of(talker.name) if temperature is None else temperature, top_k, top_p)
    opened = cache(open_notes)
    if notes:
        opened()  # refuses before the chat begins
    conversation = Conversation(
        talker, sampling=sampling, max_new_tokens=max_tokens, seed=seed, open_notes=opened, show_notes=notes
    )
    converse(conversation, read=line_reader(), show=lambda text: print(visible(text), end="", flush=True))


@app.command()
def sample(
    prompt: Annotated[str, typer.Argument(help="text to continue")],
    model: ModelFolder = None,
    temperature: Annotated[float, typer.Option(min=0, help="sampling temperature; 0 is greedy")] = 0.8,
    top_k: TopK = 50,
    top_p: TopP = 1.0,
    max_tokens: MaxTokens = 200,
    seed: Seed = 0,
    bf16: Bf16 = False,
) -> None:
    """Continue a text, by default with the pretrained model."""
    talker = open_model(model or str(layout.PRETRAINED), bf16=bf16)
    from niels_gpt.inference.sampling import Sampling
    from niels_gpt.talk.terminal import CUT

    if cut := talker.beyond(talker.tokenizer.encode(prompt)):
        typer.echo(CUT.format(cut), err=True, nl=False)
    sampling = Sampling(temperature, top_k, top_p)
    texts = talker.continuation(prompt, sampling=sampling, max_new_tokens=max_tokens, seed=seed)
    print(prompt, end="", flush=True)
    for text in texts:
        print(visible(text), end="", flush=True)
    print()


@app.command()
def serve(
    model: ModelFolder = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one")] = 8000,
    host: Annotated[
        str, typer.Option(help="IPv4 address to listen on, 0.0.0.0 for all; any but 127.0.0.1 needs an API key")
    ] = "127.0.0.1",
    api_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="file with the API key of clients; or set NIELS_GPT_API_KEY")
    ] = None,
    origin: Annotated[list[str] | None, typer.Option(help="origin whose pages may use the API; repeatable")] = None,
    slots: Annotated[int, typer.Option(min=1, max=1024, help="answers generated in one batch")] = 16,
    bf16: Bf16 = False,
    share_sources: Annotated[
        bool, typer.Option("--share-sources", help="with --host: clients may search private text")
    ] = False,
) -> None:
    """Serve a chat page and an OpenAI-compatible API (base_url http://127.0.0.1:PORT/v1)."""
    from niels_gpt.talk.server.access import Access, listen, make_server

    key = os.environ.get("NIELS_GPT_API_KEY") if api_key is None else read_text(Path(api_key)).strip()
    access = Access(others=host != "127.0.0.1", key=key, origins=tuple(origin or ()))
    # Leave one core to the clients: waiting threads spin, and under other load 8 clients then get fewer tokens/s
    # than 1 (docs/performance.md).
    talker = open_model(model or final_model(), slots=slots, bf16=bf16, threads=max(1, (os.cpu_count() or 1) - 1))
    from niels_gpt.talk.server.app import build_app

    notes = served_notes(private=share_sources or not access.others)
    card, about, listening = model_facts(talker), introduction(talker), listen(port, host)
    typer.echo(f"http://{host}:{listening.getsockname()[1]} (Ctrl-C stops it)")
    make_server(build_app(talker, card=card, access=access, notes=notes, about=about)).run(sockets=[listening])


@app.command()
def doctor(
    fix: Annotated[bool, typer.Option("--fix", help="first repair or delete files that DVC left half-written")] = False,
    params_only: Annotated[bool, typer.Option("--params", help="check only params.yaml and files it names")] = False,
    speed: Annotated[bool, typer.Option(help="also measure how long a run takes here, in 10 s to a minute")] = True,
) -> None:
    """Check what a run needs, and estimate its duration on this machine and its final loss."""
    if fix:
        if not layout.DAG.is_file():
            raise ValueError("there is no dvc.yaml here: run this in the project's folder")
        for sentence in mend(Path()) or ["nothing to fix"]:
            typer.echo(sentence)
    if params_only:
        raise typer.Exit(print_problems())
    params, problems = params_and_problems()
    for problem in problems:
        typer.echo(f"BAD  {visible(problem.sentence)}")
    from niels_gpt.cli.doctor import examine, examine_speed

    bad = bool(problems)
    for finding in examine(params, wrong=[problem.path for problem in problems]):
        bad |= finding.fix is not None
        typer.echo(f"{'BAD ' if finding.fix else 'note' if finding.advice else 'ok  '} {finding.what}")
        if to_do := finding.fix or finding.advice:
            typer.echo(f"     -> {to_do}")
    for finding in examine_speed(params) if speed and not bad else ():
        typer.echo(f"ok   {finding.what}")
    raise typer.Exit(bad)


app.command()(export)
Training = StrEnum("Training", list(layout.MODEL_OF))  # type: ignore[misc]  # mypy wants literal members


@app.command()
def join(stage: Annotated[Training, typer.Argument(help="the stage that host 0 runs with `dvc repro`")]) -> None:
    """Help host 0 train: run this on every other host, with NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT set."""
    # Set before torch is imported: it would print a stack trace when host 0's store, which ends first, is gone.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from niels_gpt.pipeline.training import join_training

    join_training(stage.value)


for command in (benchmark, compare, find, init, new, upgrade, run, store):
    app.command(context_settings={"ignore_unknown_options": command is run})(command)  # options of `run` are DVC's
app.add_typer(inspect.app, name="inspect")


@app.command()
def report(
    file: Annotated[Path, typer.Argument(help="HTML file to write; replaces an earlier report")] = Path("report.html"),
    text: Annotated[bool, typer.Option("--text", help="print the results only; write no page")] = False,
    live: Annotated[bool, typer.Option("--live", help="serve a page of all runs in logs/ as they train")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="with --live; 0 takes a free one")] = 8001,
    to: Annotated[Service | None, typer.Option("--to", help="send curves to it; with --live, until Ctrl-C")] = None,
) -> None:
    """Write the results of the last run as one HTML page, serve a live page, or send the curves to a tracker."""
    if to is not None:
        send_curves(to, live=live)
    elif live:
        from niels_gpt.cli.report import build_watch
        from niels_gpt.talk.server.access import listen, make_server

        listening = listen(port)
        typer.echo(f"http://127.0.0.1:{listening.getsockname()[1]} (Ctrl-C stops it)")
        make_server(build_watch(layout.LOGS)).run(sockets=[listening])
    else:
        typer.echo("\n".join(summary_lines()))
        if not text:
            from niels_gpt.cli.report import write_report

            write_report(file)
            typer.echo(f"page     {file}: open it in a browser")
