"""Talking to a model in the terminal, taking it away, and what is said before there is one."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from niels_gpt.checkpoint import save_checkpoint
from niels_gpt.cli import app
from niels_gpt.config import ModelConfig, to_dict
from niels_gpt.export import export_model, export_transformers, model_card
from niels_gpt.generate import Sampling
from niels_gpt.model.gpt import GPT
from niels_gpt.talk import Said, Talker, _Turn, open_talker
from niels_gpt.terminal import Conversation, converse
from niels_gpt.tokenizer import ByteTokenizer, describe
from niels_gpt.train.state import RunFolder, RunState

CFG = ModelConfig(V=260, T=32, C=24, L=2, H=3, d_ff=48, dropout=0.0)


def talker(renderer: str = "chat_tokens") -> Talker:
    torch.manual_seed(0)
    model = GPT(CFG)
    for parameter in model.parameters():  # biases and norms too, so that a mix-up of them would show
        torch.nn.init.normal_(parameter, std=0.3)
    return Talker("tiny", model, ByteTokenizer(), renderer)  # type: ignore[arg-type]


def test_a_transcript_ends_where_the_next_turn_begins() -> None:
    turn = _Turn(ends_at_a_tag=True)
    pieces = ["hel", "lo\n", "use", "less\nus", "er", ": no"]
    assert [turn.add(piece) for piece in pieces] == ["hel", "lo", "", "\nuseless", "", ""]
    assert turn.over
    held = _Turn(ends_at_a_tag=True)
    assert held.add("so\nsys") + held.rest("") == "so\nsys"
    assert _Turn(ends_at_a_tag=False).add("a\nuser: b") == "a\nuser: b"


def test_each_model_is_asked_in_its_own_way() -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert talker("transcript").prompt(messages) == list(b"user: hi\nassistant: ")
    assert talker().prompt(messages) == [257, *b"hi", 259, 258]
    said = list(talker().reply(messages, sampling=Sampling(0.8, 50), max_new_tokens=7, seed=3))
    assert sum(piece.tokens for piece in said) <= 7
    again = talker().reply(messages, sampling=Sampling(0.8, 50), max_new_tokens=7, seed=3)
    assert "".join(piece.text for piece in said) == "".join(piece.text for piece in again)


def test_a_conversation_resets_saves_and_survives_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    class Interrupted(Talker):
        def reply(self, *_: object, **__: object) -> Iterator[Said]:
            yield Said("half an ", 2)
            raise KeyboardInterrupt

    whole = talker()
    conversation = Conversation(Interrupted(**vars(whole)), sampling=Sampling(), max_new_tokens=5, seed=0)
    lines, shown = iter(["/system be brief", "hello", "/save a.jsonl", "/nonsense", "/reset", "/quit"]), []
    converse(conversation, read=lambda: next(lines), show=shown.append)
    text = "".join(shown)
    assert "half an  [stopped]" in text
    assert text.count("/reset forgets") == 2
    assert json.loads((tmp_path / "a.jsonl").read_text())["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "half an"},
    ]
    assert conversation.messages == [{"role": "system", "content": "be brief"}]

    def ended() -> str:
        raise EOFError

    converse(conversation, read=ended, show=shown.append)


def write_project(root: Path) -> Talker:
    """The parts of a finished run that the commands read."""
    whole = talker()
    for name in ("pretrain", "sft"):
        save_checkpoint(root / f"models/{name}/best.pt", whole.model, None, 1, to_dict(CFG))
    config = {**to_dict(CFG), "renderer": "chat_tokens"}
    (root / "models/sft/config.json").write_text(json.dumps(config))
    (root / "cache/tokenizer").mkdir(parents=True)
    (root / "cache/tokenizer/tokenizer.json").write_text(json.dumps(describe(ByteTokenizer(), "byte")))
    return whole


def test_an_export_loads_back_bit_equal_and_its_card_names_the_data(tmp_path: Path) -> None:
    whole = write_project(tmp_path)
    shards = [{"path": "x", "sha256": "ab" * 32, "bytes": 20}]
    mix = {"sources": {"wiki": {"train": {"shards": shards, "tokens": 10}}}}
    chat_mix = {"sources": {"dolly": {"files": [{"sha256": "cd" * 32}]}}}
    params = {key: {} for key in ("model", "tokenizer", "p_sft", "train", "sft")} | {"p_train": {"wiki": 0.5}}
    scores = {"sft": {"val_wiki": {"nats": 1.0, "bits_per_byte": 2.0}}}
    card = model_card(whole, mix=mix, chat_mix=chat_mix, params=params, metrics=scores)
    assert "ab" * 32 in card
    assert "cd" * 32 in card
    assert "| wiki | 0.5 | 10 |" in card
    export_model(whole, tmp_path / "out", tokenizer=tmp_path / "cache/tokenizer", card=card)
    again = open_talker(tmp_path / "out", device="cpu")
    assert again.renderer == "chat_tokens"
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name


def test_transformers_computes_the_same_logits(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: its form was not tried")
    whole = talker()
    export_transformers(whole, tmp_path / "hf", card="")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    x = torch.randint(0, 256, (2, 30))
    with torch.no_grad():
        ours = whole.model.eval()(x)
        torch.testing.assert_close(theirs(x).logits, ours, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["chat"], "no model in models/sft yet: run `dvc repro` first"),
        (["chat", "--model", "nowhere"], "no model in nowhere yet"),
        (["sample", "x"], "no model in models/pretrain yet"),
        (["serve"], "no model in models/sft yet"),
        (["export", "away"], "no model in models/sft yet"),
        (["doctor"], "no params.yaml here"),
        (["inspect", "mix"], "no params.yaml here"),
        (["inspect", "documents", "wiki"], "run `dvc repro` first"),
    ],
)
def test_without_a_run_every_command_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert sentence in result.output
    assert "Traceback" not in result.output
    assert not list(tmp_path.iterdir())


def test_chat_and_sample_speak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["chat", "--max-tokens", "3"], input="hello\n/quit\n")
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(app, ["sample", "Once", "--max-tokens", "3"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("Once")


def test_a_taken_name_and_a_taken_port_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["export", "models"])
    assert result.exit_code == 1
    assert "models is there already: give the name of a new folder" in result.output
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = CliRunner().invoke(app, ["serve", "--port", str(taken.getsockname()[1])])
    assert result.exit_code == 1
    assert "choose another with --port" in result.output
    (tmp_path / "models/sft/best.pt").write_bytes(b"not a checkpoint")
    result = CliRunner().invoke(app, ["chat"])
    assert result.exit_code == 1
    assert "is not a checkpoint of this project, or is damaged" in result.output


def test_gc_frees_finished_runs_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("finished", "stopped", "held"):
        folder = RunFolder(tmp_path / "checkpoints" / name)
        with folder.locked():
            folder.save(RunState(step=1, model={"w": torch.ones(1000)}, optimizer={}))
        if name != "stopped":
            folder.finish()
    with RunFolder(tmp_path / "checkpoints/held").locked():
        assert "1 runs deleted" in CliRunner().invoke(app, ["gc"]).output
    left = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert left == {"stopped", "held"}
    assert "2 runs deleted" in CliRunner().invoke(app, ["gc", "--all"]).output
