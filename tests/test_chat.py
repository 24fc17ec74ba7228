"""Tests of the chat transcript: rendering, tags, and extraction of replies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from niels_gpt import chat_format, chat_template
from niels_gpt.tokenizer.tokenizers import ByteTokenizer


def test_transcript_ends_with_the_prompt_and_does_not_double_it() -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    expected = "system: be brief\nuser: hi\nassistant: "
    assert chat_format.format_chat(messages) == expected
    assert chat_format.format_chat([*messages, {"role": "assistant", "content": ""}]) == expected
    assert chat_format.format_chat([]) == "assistant: "


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(ValueError, match="message 0"):
        chat_format.format_chat([{"role": "User", "content": "x"}])


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("user: hi\nassistant: hello\nuser: bye", "hello"),
        ("user: hi\nassistant: one\nuser: two\nassistant: three", "three"),
        ("user: hi\nassistant: one\nuser: two\nassistant: ", "one"),
        ("user: hi\nassistant: he said user: no\nand more", "he said user: no\nand more"),
        ("user: hi\nassistant: a\nUser: not a tag\nuser:neither", "a\nUser: not a tag\nuser:neither"),
        ("user: hi\nassistant: ", ""),
        ("assistant: from the first line\nsystem: x", "from the first line"),
    ],
)
def test_the_reply_is_cut_at_exact_tags(text: str, reply: str) -> None:
    assert chat_format.extract_assistant_reply(text) == reply


@pytest.mark.parametrize(
    "text", ["", "user: only", "no tag at all", "Assistant: hi", "an assistant: hi", "assistant:hi"]
)
def test_a_text_without_an_assistant_tag_has_no_reply(text: str) -> None:
    with pytest.raises(ValueError, match="no assistant tag in the text"):
        chat_format.extract_assistant_reply(text)


@pytest.mark.slow
@given(st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=1).filter(lambda s: s.strip() == s))
def test_a_one_line_reply_survives(reply: str) -> None:
    text = chat_format.format_chat([{"role": "user", "content": "q"}]) + reply + "\nuser: next"
    assert chat_format.extract_assistant_reply(text) == reply.strip()


def test_template_is_role_content_eot_and_the_reply_comes_back() -> None:
    tok = ByteTokenizer()
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    assert chat_template.format_chat(tok, messages) == [257, *b"hi", 259, 258, *b"yo", 259]
    prompt = chat_template.format_prompt(tok, messages[:1])
    assert prompt == [257, *b"hi", 259, 258]
    assert chat_template.extract_assistant_reply(tok, [*prompt, *b"reply", 259, 257]) == list(b"reply")
    assert chat_template.extract_assistant_reply(tok, [*prompt, *b"unfinished"]) == list(b"unfinished")
    assert chat_template.extract_assistant_reply(tok, [258, *b"one", 259, *prompt, *b"two", 256, 104]) == list(b"two")
    with pytest.raises(ValueError, match="role must be one of"):
        chat_template.format_chat(tok, [{"role": "robot", "content": ""}])


@pytest.mark.parametrize(
    ("ids", "reply"),
    [
        ([], []),
        ([104], []),
        ([257, 104], []),  # an unterminated user turn
        ([257, 104, 259], []),
        ([256, 257, 259], []),
        ([258], []),  # a prompt without a reply
        ([258, 259], []),
        ([258, 258, 259, 259], []),
        ([258, 104, 259, 257, 105, 259, 258], []),  # an earlier reply does not answer the last question
        ([258, 104, 257], [104]),  # cut off by the next role
        ([258, 104, 259, 105], [104]),
    ],
)
def test_the_reply_is_the_last_assistant_turn_or_empty(ids: list[int], reply: list[int]) -> None:
    found = chat_template.extract_assistant_reply(ByteTokenizer(), ids)
    assert found == reply
    assert isinstance(found, list)
