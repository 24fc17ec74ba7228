"""Test of the choice of the text field of a row."""

import pytest

from niels_gpt.data.fineweb_edu import select_text_field


def test_select_text_field() -> None:
    assert select_text_field({"id": "x", "text": "t"}) == "t"
    assert select_text_field({"n": 1, "content": "c", "other": "o"}) == "c"
    assert select_text_field({"text": None, "content": "c"}) == "c"
    with pytest.raises(ValueError, match=r"\['n', 'tags'\]"):
        select_text_field({"n": 1, "tags": ["a"]})
