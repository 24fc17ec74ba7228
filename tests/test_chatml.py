"""Tests of ChatML: prompts, examples, masks and stops of models with their own tokenizer and chat template."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from niels_gpt.cache.build_cache import build_sft_cache
from niels_gpt.cache.sft_dataset import SFTExampleDataset, open_chats
from niels_gpt.cache.token_parts import describe_chats, describe_tokenizer, write_sft_files
from niels_gpt.chat_format import chat_key
from niels_gpt.chat_template import ChatML, chat_renderer, format_prompt, supervised
from niels_gpt.cli.inspect import mark_chat
from niels_gpt.config import ModelConfig
from niels_gpt.duplicates.quoted import quoted_chats
from niels_gpt.eval.generations import generate_reply, held_out_replies, question_prompt
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import list_files
from niels_gpt.inference.engine import Token
from niels_gpt.inference.sampling import Sampling
from niels_gpt.leak.passages import DocumentList, find_sentences
from niels_gpt.model.gpt import GPT
from niels_gpt.model.targets import IGNORE_INDEX
from niels_gpt.talk.talker import Talker
from niels_gpt.tokenizer import HFTokenizer
from niels_gpt.tokenizer.pretrained import renderer_for
from niels_gpt.tokenizer.tokenizers import ByteTokenizer
from stages.cache import join_manifests
from tests.tiny_base import CHAT, LINE, SMOLLM2_TEMPLATE

CORPUS = (Path(__file__).parent.parent / "data/primer.txt").read_text().split("\n\n<dialogue>\n\n")
SYSTEM = {"role": "system", "content": "Be brief."}
GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([*CORPUS, "assistant\n"] * 3, trainer)
    folder = tmp_path_factory.mktemp("chatml")
    made.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(SMOLLM2_TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> HFTokenizer:
    return HFTokenizer(folder / "tokenizer.json")


@pytest.fixture(scope="module")
def chat(tokenizer: HFTokenizer) -> ChatML:
    return ChatML(tokenizer)


def with_template(folder: Path, tmp_path: Path, template: str | None) -> HFTokenizer:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    if template is not None:
        write_json(tmp_path / "tokenizer_config.json", {"chat_template": template})
    return HFTokenizer(tmp_path / "tokenizer.json")


def by_jinja(tokenizer: HFTokenizer, messages: list[dict[str, str]], *, prompt: bool) -> list[int]:
    """Return the ids of transformers' apply_chat_template: the rendered text, encoded with its control tokens."""
    from jinja2 import Environment

    text = Environment(trim_blocks=True, lstrip_blocks=True).from_string(tokenizer.chat_template or "")
    rendered = text.render(messages=messages, add_generation_prompt=prompt)
    return Tokenizer.from_file(tokenizer.model_path).encode(rendered, add_special_tokens=False).ids


def test_ids_are_those_of_the_models_own_template(tokenizer: HFTokenizer, chat: ChatML) -> None:
    for messages in ([CHAT[0]], CHAT[:3], [SYSTEM, *CHAT[:3]], [{"role": "user", "content": " \n x"}], [SYSTEM]):
        assert chat.prompt(messages) == by_jinja(tokenizer, messages, prompt=True)
    for messages in (CHAT, [SYSTEM, *CHAT]):
        assert chat.example(messages) == by_jinja(tokenizer, messages, prompt=False)
    assert LINE in tokenizer.decode(chat.prompt(CHAT[:1]))
    assert LINE not in tokenizer.decode(chat.prompt([SYSTEM, *CHAT[:1]]))


_CONTENT = st.one_of(st.text(max_size=20), st.text("\n <|im_startend>asn", max_size=20), st.just("<|im_end|>"))


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), _CONTENT), min_size=1, max_size=5))
def test_no_content_becomes_a_control_token_and_answers_alone_are_learned(
    tokenizer: HFTokenizer, chat: ChatML, turns: list[tuple[str, str]]
) -> None:
    messages = [{"role": role, "content": content} for role, content in turns]
    ids = chat.example(messages)
    count = len(turns) + (turns[0][0] != "system")
    assert ids.count(chat.end) == ids.count(chat.answer[0]) == count
    inside = supervised(np.array([ids]), asst_id=chat.answer, eot_id=chat.end)[0]
    learned = [id for id, is_learned in zip(ids, inside, strict=True) if is_learned]
    expected: list[int] = []
    for role, content in turns:
        expected += [*tokenizer.encode(content), chat.end] if role == "assistant" else []
    assert learned == expected
    text, lengths = chat.contents(np.array(ids))
    if turns[0] != ("system", LINE):
        assert text == "".join(content for _, content in turns)
        assert int(lengths.sum()) == len(text.encode())


def test_a_reply_ends_at_any_control_token(chat: ChatML, tokenizer: HFTokenizer) -> None:
    ids = chat.example(CHAT)
    assert tokenizer.decode(chat.reply(ids)) == "On Sundays, early."
    assert tokenizer.decode(chat.reply(ids, first=True)) == "Niels bakes bread."
    assert chat.reply([*chat.prompt(CHAT[:1]), *tokenizer.encode("yes"), 0, 9]) == tokenizer.encode("yes")
    assert chat.reply(tokenizer.encode("assistant\nno")) == []


def test_a_template_decides_the_system_line_and_must_be_chatml(folder: Path, tmp_path: Path) -> None:
    plain = ChatML(with_template(folder, tmp_path, None))
    assert plain.prompt(CHAT[:1]) == [
        1,
        *plain._tokenizer.encode("user\nWho bakes?"),
        2,
        *plain._tokenizer.encode("\n"),
        *plain.answer,
    ]
    without = ChatML(with_template(folder, tmp_path, plain.template))
    assert without.prompt(CHAT[:1]) == plain.prompt(CHAT[:1])
    for template in (
        "{% for m in messages %}[INST]{{ m['content'] }}[/INST]{% endfor %}",
        SMOLLM2_TEMPLATE.replace("'<|im_end|>' + '\n'", "'<|im_end|>'"),
        SMOLLM2_TEMPLATE.replace("assistant\n' }}{% endif", "assistant\n<think>' }}{% endif"),
    ):
        with pytest.raises(ValueError, match=r"chat template of .* is not ChatML"):
            ChatML(with_template(folder, tmp_path, template)).prompt(CHAT)
    for template in ("{% for", "{{ raise_exception('no') }}", "{{ messages.append(1) }}"):
        with pytest.raises(ValueError, match=r"chat template of .* cannot be rendered"):
            ChatML(with_template(folder, tmp_path, template)).prompt(CHAT)


def test_each_model_has_the_format_of_its_tokenizer(tokenizer: HFTokenizer, folder: Path, tmp_path: Path) -> None:
    assert (renderer_for(tokenizer), renderer_for(tokenizer, chats=False)) == ("chatml", "chatml")
    assert (renderer_for(ByteTokenizer()), renderer_for(ByteTokenizer(), chats=False)) == ("chat_tokens", "transcript")
    described = json.loads((folder / "tokenizer.json").read_text())
    for token in described["added_tokens"][1:]:
        token["content"] = token["content"].replace("im", "header")
    described["model"]["vocab"] = {
        entry: id for entry, id in described["model"]["vocab"].items() if not entry.startswith("<|im")
    }
    write_json(tmp_path / "tokenizer.json", described)
    other = HFTokenizer(tmp_path / "tokenizer.json")
    assert renderer_for(other, chats=False) == "transcript"
    with pytest.raises(ValueError, match=r"has no tokens <\|im_start\|> and <\|im_end\|>"):
        chat_renderer(other)
    with pytest.raises(ValueError, match="role must be one of"):
        chat_renderer(tokenizer).prompt([{"role": "tool", "content": "x"}])


def test_datasets_learn_answers_by_the_ids_that_their_manifest_names(
    tokenizer: HFTokenizer, chat: ChatML, tmp_path: Path
) -> None:
    build_sft_cache([CHAT, [SYSTEM, *CHAT]] * 4, tmp_path / "own", tokenizer=tokenizer, val_frac=0.25, seed=1, T=200)
    paths = [tmp_path / "own" / name for name in ("train_tokens.bin", "train_idx.npy")]
    found = SFTExampleDataset(*paths, T=200, device="cpu", eot_id=0)
    x, _, masked = found.examples(np.array([0]))
    answers = [*tokenizer.encode("Niels bakes bread."), 2, *tokenizer.encode("On Sundays, early."), 2]
    assert masked[masked != IGNORE_INDEX].tolist() == answers
    assert int(found.targets(np.array([0]))[0]) == len(answers)
    assert int(x[0, -1]) == 0  # padding: the end-of-text id, which no chat contains

    folder, rows = tmp_path / "chats", [np.array(chat.example(CHAT), dtype=tokenizer.dtype)] * 3
    folder.mkdir()
    write_sft_files(folder, {"train": rows, "val": rows}, tokenizer=tokenizer, T=200)
    files = list_files(folder, "*_*.*", published=str(folder))
    manifest = {**describe_tokenizer(tokenizer), **describe_chats(tokenizer), "folder": str(folder), "files": files}
    write_json(tmp_path / "mix.json", join_manifests({"own": manifest}, {"own": "val_own"}))
    opened = open_chats(tmp_path / "mix.json", names=["own"], T=200, device="cpu")
    targets = opened.val["own"].examples(np.array([0]))[2]
    assert targets[targets != IGNORE_INDEX].tolist() == answers
    (reply,) = held_out_replies(opened.val, tokenizer, weights={"own": 1.0}, at_most=1)
    assert (reply.text, reply.ended) == ("Niels bakes bread.", True)
    text = "".join(message["content"] for message in CHAT)
    start = text.index("bread")
    marks, _ = quoted_chats(opened.val["own"], {chat_key(text): [(start, start + 5)]}, tokenizer)
    quoted = [id for id, mark in zip(chat.example(CHAT), marks[0], strict=True) if mark]
    assert tokenizer.decode(quoted).strip(" .") == "bread"
    learned = [False, *(targets[0] != IGNORE_INDEX).tolist()]
    shown = mark_chat(
        tokenizer, [*chat.example(CHAT), 0, 0], [*learned, False][: len(chat.example(CHAT)) + 2], color=False
    )
    assert "<im_start>user\nWho bakes?<im_end>" in shown
    assert "«Niels bakes bread.<im_end>»" in shown


def test_chats_of_models_from_scratch_name_no_other_ids() -> None:
    assert describe_chats(ByteTokenizer()) == {}


def test_the_sentences_of_a_chat_are_its_contents(tokenizer: HFTokenizer, chat: ChatML) -> None:
    said = {"role": "user", "content": "The door code of the boathouse is seven green herons."}
    found = list(find_sentences(DocumentList([chat.example([said])]), tokenizer))
    assert found == ["The door code of the boathouse is seven green herons"]


def answering(tokenizer: HFTokenizer, monkeypatch: pytest.MonkeyPatch, ids: list[int]) -> Talker:
    """Return a talker whose engine generates these ids."""
    model = GPT(ModelConfig(V=tokenizer.vocab_size, T=64, C=8, L=1, H=2, d_ff=8))
    talker = Talker("x", model, tokenizer, "chatml", slots=1)
    written = iter(ids)

    def step(rows: object = None) -> list[Token]:
        return [Token(0, next(written))]

    monkeypatch.setattr(talker.engine, "step", step)
    monkeypatch.setattr(talker.engine, "add", lambda *_, **__: 0)
    monkeypatch.setattr(talker.engine, "drop", lambda *_: None)
    return talker


@pytest.mark.parametrize("end", [0, 1, 2])
def test_an_answer_stops_at_the_end_of_its_turn(
    tokenizer: HFTokenizer, monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    talker = answering(tokenizer, monkeypatch, [*tokenizer.encode("Bread. <|im_end|>"), end, 300])
    assert "".join(talker.reply(CHAT[:1], sampling=GREEDY, max_new_tokens=50, seed=1)) == "Bread. <|im_end|>"
    assert talker.chat.stop_texts == ()
    assert talker.chat.prompt(CHAT[:1]) == ChatML(tokenizer).prompt(CHAT[:1])


def test_questions_and_replies_use_the_format_of_the_model(tokenizer: HFTokenizer) -> None:
    question: Mapping[str, str] = {"role": "user", "content": "Who?"}
    assert question_prompt(tokenizer, "Who?", "chatml") == ChatML(tokenizer).prompt([question])
    assert question_prompt(ByteTokenizer(), "Who?", "chat_tokens") == format_prompt(ByteTokenizer(), [question])
    model = GPT(ModelConfig(V=tokenizer.vocab_size, T=128, C=8, L=1, H=2, d_ff=8))
    assert isinstance(generate_reply(model, [question], tokenizer, max_new_tokens=4, sampling=GREEDY), str)
