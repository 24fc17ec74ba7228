"""Tests of every field of the API with any value: no server error, and no effect on another client.

The fields come from the JSON schemas of the requests, so that new ones are tested, too.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from niels_gpt.talk.server.app import Limits, build_app
from niels_gpt.talk.server.schema import ChatRequest, CompletionRequest, TokenizeRequest
from tests.servers import CHAT, TEXT, TOKENIZE, assert_refused, expected, serving, streamed, tiny_talker

TOKENS = 8
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
# Around the limits of float32, float64, int32 and int64.
_EDGES = (0, 5e-324, 1e-46, 1e-38, 1, 3e38, 1e39, 1e308, 2**31, 2**63, 10**30)
EDGES = [*_EDGES, *(-edge for edge in _EDGES), float("nan"), float("inf")]


def values(schema: dict[str, Any], known: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Generate values that a schema allows, and numbers and lengths on both sides of its bounds."""
    if "$ref" in schema:
        return values(known[schema["$ref"].rpartition("/")[2]], known)
    if "anyOf" in schema:
        return st.one_of(*(values(one, known) for one in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    if "type" not in schema:  # any value is accepted and ignored
        return ANYTHING
    makers = {"number": numbers, "integer": numbers, "string": texts, "array": lists, "object": objects}
    kind = schema["type"]
    return makers[kind](schema, known) if kind in makers else {"boolean": st.booleans(), "null": st.none()}[kind]


def numbers(schema: dict[str, Any], known: dict[str, Any]) -> st.SearchStrategy[float]:
    bounds = [schema[name] for name in ("minimum", "maximum", "exclusiveMaximum") if name in schema]
    near = [bound + step for bound in bounds for step in (-1, 0, 1)]
    return (st.floats(0, 2) if schema["type"] == "number" else st.integers(0, 300)) | st.sampled_from([*near, *EDGES])


def texts(schema: dict[str, Any], known: dict[str, Any]) -> st.SearchStrategy[str]:
    edge = schema.get("maxLength", 99)
    return st.text(max_size=20) | st.sampled_from(["x" * edge, "x" * (edge + 1)])


def lists(schema: dict[str, Any], known: dict[str, Any]) -> st.SearchStrategy[list[Any]]:
    inner = values(schema["items"], known)
    return st.lists(inner, max_size=schema.get("maxItems", 8) + 1) | inner.map(lambda one: [one] * 100)


def objects(schema: dict[str, Any], known: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Generate the required fields and one or two others, some of any value; or a mapping with keys like token ids."""
    if "properties" not in schema:
        keys = st.integers(-1, 300).map(str) | st.text(max_size=5)
        return st.dictionaries(keys, values(schema["additionalProperties"], known), max_size=9)
    each = {name: values(one, known) for name, one in schema["properties"].items()}
    required = st.fixed_dictionaries({name: each[name] for name in schema.get("required", [])})
    fields = [value.map(lambda given, name=name: {name: given}) for name, value in each.items()]
    fields.append(st.dictionaries(st.sampled_from(sorted(each)), ANYTHING, min_size=1, max_size=1))
    one = st.one_of(*fields)
    return st.builds(lambda first, *more: {**first, **more[0], **more[1]}, required, one, one | st.just({}))


KINDS = {
    CHAT: (ChatRequest, {"messages": [{"role": "user", "content": "x"}]}),
    TEXT: (CompletionRequest, {"prompt": "x"}),
    TOKENIZE: (TokenizeRequest, {"prompt": "x"}),
}


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Generate a path and a body; half of the bodies have valid required fields and fail only if another is invalid."""
    path = draw(st.sampled_from(sorted(KINDS)))
    kind, enough = KINDS[path]
    schema = kind.model_json_schema()
    body = draw(objects(schema, schema.get("$defs", {})))
    return path, {**body, **enough, "model": "tiny"} if draw(st.booleans()) else body


@contextmanager
def a_neighbour(address: str) -> Iterator[list[str]]:
    """Yield the list of answers to a client that streams one after another while the block runs."""
    ended, texts = threading.Event(), []

    def stream() -> None:
        while not ended.is_set():
            texts.append(streamed(address, "neighbour", tokens=TOKENS))

    thread = threading.Thread(target=stream)
    thread.start()
    try:
        yield texts
    finally:
        ended.set()
        thread.join()


@pytest.mark.slow
def test_no_value_of_any_field_is_an_error_of_the_server_or_harms_a_neighbour() -> None:
    app, statuses = build_app(tiny_talker(slots=24), card={}, limits=Limits(new_tokens=TOKENS)), set()
    with serving(app) as address, httpx.Client(base_url=address, timeout=60) as client:

        @settings(max_examples=80, suppress_health_check=list(HealthCheck), database=None)
        @given(requests())
        @example((CHAT, {"messages": [{"role": "user", "content": "a"}]}))
        @example((TEXT, {"prompt": "a"}))
        @example((TOKENIZE, {"prompt": "a"}))
        @example((CHAT, {"model": 1}))
        @example((TEXT, {"model": 1}))
        @example((TOKENIZE, {"model": 1}))
        def send(request: tuple[str, dict[str, Any]]) -> None:
            path, body = request
            answer = client.post(path, content=json.dumps(body).encode())  # with NaN and Infinity as Python writes them
            statuses.add((path, answer.status_code))
            if answer.status_code != 200:
                assert_refused(answer, 404 if "there is no model" in answer.text else 400, "")
            elif answer.headers["content-type"].startswith("text/event-stream"):
                assert '"error"' not in answer.text.replace('\\"', "")

        with a_neighbour(address) as texts:
            send()
    assert set(texts) == {expected("neighbour", tokens=TOKENS)}
    assert {(path, status) for path in (CHAT, TEXT, TOKENIZE) for status in (200, 400)} <= statuses
