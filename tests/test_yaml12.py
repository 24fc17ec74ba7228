"""Tests that params.yaml means the same to the stages as to DVC."""

import math

import pytest
from dvc.utils.serialize import parse_yaml as dvc_parse_yaml
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from niels_gpt.pipeline.yaml_files import parse_yaml

# fmt: off
SCALARS = [
    "1", "-1", "+1", "0", "010", "0o17", "0x1F", "0b101", "1_000", "1e-05", "1e-5", "3e-4", "1E5", "1.5", ".5",
    "-.5", "5.", "1.5e3", "1_0.5", ".inf", "-.inf", ".nan", "true", "True", "TRUE", "false", "no", "yes", "on",
    "off", "y", "n", "null", "Null", "NULL", "~", "None", "12:30", "1:30", "87e0914", "0e1", "0.1.2", "1e",
    "08", "09", "-0x1F", "abc", '"1e-5"', "'010'", "-0", "+.5", "1e+3", "0o8", "0b2", "0xG", "_1", "1_", "e5",
    "1.e5",
]
# fmt: on


def dvc_reads(text: str) -> object:
    return dvc_parse_yaml(text, "params.yaml")["x"]


def same(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("scalar", SCALARS)
def test_a_scalar_reads_as_dvc_reads_it(scalar: str) -> None:
    text = f"x: {scalar}\n"
    assert same(parse_yaml(text, name="t")["x"], dvc_reads(text))


@pytest.mark.slow
@given(st.from_regex(r"[-+]?[0-9._eExob]{1,8}", fullmatch=True))
def test_whatever_looks_like_a_number_reads_as_dvc_reads_it(scalar: str) -> None:
    text = f"x: {scalar}\n"
    try:
        expected = dvc_reads(text)
    except Exception:  # DVC itself cannot read it, so no stage will ever see it
        return
    assert same(parse_yaml(text, name="t")["x"], expected), (scalar, expected)


def test_dvc_parses_in_c() -> None:
    """In Python, parsing takes a third of an idle `dvc repro`; in C, the tests above compare with what DVC runs."""
    assert YAML(typ="safe").Parser is not YAML(typ="safe", pure=True).Parser


def test_collections_and_empty_values() -> None:
    assert parse_yaml("x: [a, 1]\ny:\n", name="t") == {"x": ["a", 1], "y": None}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\na: 2\n", 'line 2, column 1: found duplicate key "a"$'),
        ("a:\n  b: {x: 1}\n  b: {x: 2}\n", 'line 3, column 3: found duplicate key "b"$'),
        ("a: [1\n", "line 2, column 1"),
        ("a:\n\tb: 1\n", "line 2, column 1: found character .* cannot start any token"),
        ("a:\n  b: 1\n c: 2\n", "line 3, column 2"),
        ('a: "x\nb: 1\n', "line 3, column 1: found unexpected end of stream"),
        ("a: b: c\n", "line 1, column 5: mapping values are not allowed"),
        ("a: &a [1]\nb: *c\n", "line 2, column 4: found undefined alias"),
        ("a: \0\n", "#x0000"),
        ("a: 1\n---\nb: 2\n", "another document"),
        ("a: !!int foo\n", "'foo'"),
        ("a: !!python/name:os.system\n", "could not determine a constructor"),
    ],
)
@pytest.mark.parametrize("in_c", [True, False])
def test_broken_yaml_gets_a_place(text: str, sentence: str, in_c: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_c:  # as where ruamel's C parser is not available
        monkeypatch.setattr("ruamel.yaml.main.CParser", None)
    with pytest.raises(ValueError, match=sentence) as error:
        parse_yaml(text, name="params.yaml")
    assert str(error.value).startswith("params.yaml ")
    assert "\n" not in str(error.value)


def test_aliases_are_as_good_as_what_they_stand_for() -> None:
    text = "a: &a {x: [1, 2]}\nb: *a\nc: [*a, *a]\n"
    assert parse_yaml(text, name="t") == dvc_parse_yaml(text, "t")
    merged = "a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\n"
    assert parse_yaml(merged, name="t") == dvc_parse_yaml(merged, "t") == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}
