"""Tests of the primer's dialogues as chats: parsing, and the same train/validation split as the primer's text."""

import shutil
from pathlib import Path

import pytest

from niels_gpt.chat_format import parse_chat
from niels_gpt.data.corpus.parts import open_texts, read_contents
from niels_gpt.data.corpus.split_files import read_split
from niels_gpt.data.dialogues import Settings, chats
from niels_gpt.data.primer import DIALOGUE_DELIM
from niels_gpt.data.types import Request
from niels_gpt.pipeline.params import Params, parse_params
from stages import load, split
from tests.conftest import ROOT, with_values
from tests.in_process import no_duplicates, run_in_process

SAMPLE = (ROOT / "params.yaml").read_text()
ALIKE = ("sources.primer", "sources.dialogues")


def test_turns_of_a_transcript_become_messages() -> None:
    text = "system: be brief\nuser: a list: \n\n- one\nassistant: he said user: no\nUsers: many\n \n"
    text += "user: and?\nassistant: ok"
    assert [(message["role"], message["content"]) for message in parse_chat(text)] == [
        ("system", "be brief"),
        ("user", "a list: \n\n- one"),
        ("assistant", "he said user: no\nUsers: many"),
        ("user", "and?"),
        ("assistant", "ok"),
    ]


@pytest.mark.parametrize(
    ("dialogue", "sentence"),
    [
        ("user: hi", "the assistant says nothing there, so there is nothing to learn: take it out"),
        ("user: hi\nbot: ho", "the assistant says nothing there"),
        ("user: hi\nassistant: \nuser: ho", "the assistant says nothing there"),
        ("bot: hi\nassistant: ho", "a turn begins with 'system: ', 'user: ', 'assistant: ', and not with 'bot: hi'"),
        ("A note.\nuser: hi\nassistant: ho", "and not with 'A note.'"),
        ("user: hi\nassistant: ho\nUser: and?\nassistant: ha", "and not with 'User: '"),
        ("user: hi\nassistant: ho\nuser:and?\nassistant: ha", "and not with 'user:'"),
        ("user: hi\nassistant: ho\nuser: and?\nassistant:", "and not with 'assistant:'"),
        ("user : hi\nassistant: ho", "and not with 'user : '"),
    ],
)
def test_an_invalid_dialogue_is_named(dialogue: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "p.txt"
    file.write_text(DIALOGUE_DELIM.join(["user: a\nassistant: b", " \n", dialogue]))
    with pytest.raises(ValueError, match=r"p\.txt, dialogue 2: ") as error:
        list(chats(Settings(DIALOGUE_DELIM), Request(str(file), None, None, 1.0)))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_utf_8_is_read_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.txt").write_bytes("user: Smørrebrød?\nassistant: Rugbrød.".encode("latin-1"))
    (chat,) = chats(Settings("---"), Request(str(tmp_path / "p.txt"), None, None, 1.0))
    assert [message["content"] for message in chat.messages] == ["Smørrebrød?", "Rugbrød."]
    assert "p.txt is not UTF-8: read as cp1252" in capsys.readouterr().out


# The train/validation split.


def transcript(messages: list[dict[str, str]]) -> str:
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages)


def halves(name: str, params: Params) -> dict[str, set[str]]:
    """Run the load and split stages of a source; return {"train": dialogues, "val": dialogues}."""
    run_in_process("load", load.main, params, name)
    no_duplicates(name, params)
    run_in_process("split", split.main, params, name)
    texts = open_texts(Path("cache/raw", name))
    splits = read_split(Path("cache/split", params.sources[name].use, name), texts)
    found: dict[str, set[str]] = {"train": set(), "val": set()}
    for part in splits.by_part(texts):
        with part.reading() as (path, sides):
            for half, rows in sides.items():
                if name in params.chats:
                    found[half] |= {transcript(messages) for group in read_contents(path, rows) for messages in group}
                else:
                    found[half] |= {text for group in read_contents(path, rows) for text in group}
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "text_bytes"),
    [
        (None, None),  # the sample's rule
        ({"by": "document", "val_frac": 0.3, "seed": 7}, 5000),
        ({"by": "hash", "val_frac": 0.3, "seed": 7}, 5000),
    ],
)
def test_the_primer_and_the_dialogues_hold_out_the_same_dialogues(
    rule: dict[str, object] | None, text_bytes: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    shutil.copy(ROOT / "data/primer.txt", "data/primer.txt")
    changes: dict[str, object] = {} if rule is None else {f"{key}.split": rule for key in ALIKE}
    if text_bytes is not None:
        changes["parts.text_bytes"] = text_bytes
        text = Path("data/primer.txt").read_text()
        Path("data/primer.txt").write_text(text.replace(DIALOGUE_DELIM, f"{DIALOGUE_DELIM} {DIALOGUE_DELIM}", 9))
    params, _ = parse_params(with_values(SAMPLE, changes))
    as_text, as_chats = halves("primer", params), halves("dialogues", params)
    assert as_chats == as_text
    assert len(as_text["train"]) + len(as_text["val"]) == 175
    assert not as_text["val"] & as_chats["train"]
    assert not as_chats["val"] & as_text["train"]


def test_an_invalid_split_is_reported_once_and_another_file_may_have_another_split() -> None:
    with pytest.raises(ValueError, match="split") as error:
        parse_params(with_values(SAMPLE, {"sources.primer.split.val_frac": 2}))
    assert "is not that of" not in str(error.value)
    parse_params(with_values(SAMPLE, {"sources.dialogues.input": "data/mine.txt", "sources.dialogues.split.seed": 7}))
