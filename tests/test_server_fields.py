"""Tests of every field of the API with the real client: each test fails if its field is ignored."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import torch

from niels_gpt.talk.server.access import Access
from niels_gpt.talk.server.app import Limits, build_app
from niels_gpt.talk.server.schema import ChatRequest, parse_request
from tests.servers import (
    EOT,
    LIMITS,
    ask,
    assert_refused,
    connect,
    expected,
    for_ever,
    openai_client,
    post,
    post_head,
    serving,
    tiny_talker,
    wait_until,
)
from tests.talkers import saying

if TYPE_CHECKING:
    import openai


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(build_app(tiny_talker(), card={}, limits=LIMITS)) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> "openai.OpenAI":
    return openai_client(address)


@pytest.fixture(scope="module")
def said(client: "openai.OpenAI") -> Any:
    def said(content: str = "hello", **fields: object) -> str:
        answer = client.chat.completions.create(**ask(content, **{"max_tokens": 60, **fields}))  # type: ignore[call-overload]
        text: str = answer.choices[0].message.content
        return text

    return said


@pytest.mark.slow
def test_penalties_and_filters_reach_the_sampler(said: Any) -> None:
    greedy = said(temperature=0)
    assert len(set(greedy)) < len(greedy), "a text without repetitions would show nothing"
    assert said(extra_body={"min_p": 1.0}) == greedy != said()
    for penalty in ({"presence_penalty": 2}, {"frequency_penalty": 2}, {"extra_body": {"repetition_penalty": 9.0}}):
        assert said(temperature=0, **penalty) != greedy, penalty
    assert said(logit_bias={"97": 100}) == "a" * 60
    assert said(logit_bias={str(EOT): 100}) == ""
    assert said(seed=2) != said(seed=1) == said(seed=1)
    assert said(extra_body={"top_k": None}) != said()  # all tokens, not 50


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_answer_and_never_shows_a_part_of_itself(client: "openai.OpenAI", stream: bool) -> None:
    whole = expected("hello", tokens=60)
    for stops in ([whole[20:23]], [whole[30:33], whole[10:14]], ["never", whole[40:41]]):
        ends = min(whole.find(stop) for stop in stops if stop in whole)
        given = stops[0] if len(stops) == 1 else stops
        answer = client.chat.completions.create(**ask("hello", max_tokens=60, stop=given, stream=stream))  # type: ignore[call-overload]
        if stream:
            parts = list(answer)
            assert "".join(part.choices[0].delta.content or "" for part in parts) == whole[:ends]
            assert parts[-1].choices[0].finish_reason == "stop"
        else:
            assert answer.choices[0].message.content == whole[:ends]
            assert answer.choices[0].finish_reason == "stop"
            assert answer.usage.completion_tokens < 60
    almost = [whole[20:22] + "\0never"]  # starts like the text, but never completes: held-back text is returned
    answer = client.chat.completions.create(**ask("hello", max_tokens=60, stop=almost))  # type: ignore[call-overload]
    assert answer.choices[0].message.content == whole


def test_several_choices_are_several_answers(client: "openai.OpenAI") -> None:
    answer = client.chat.completions.create(**ask("hello", n=3))  # type: ignore[call-overload]
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert texts[0] == expected("hello")
    assert len(set(texts)) == 3
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (8, 60)
    streamed = ["", "", ""]
    for part in client.chat.completions.create(**ask("hello", n=3, stream=True)):  # type: ignore[call-overload]
        streamed[part.choices[0].index] += part.choices[0].delta.content or ""
    assert streamed == texts


def test_log_probabilities_are_the_models_own(client: "openai.OpenAI") -> None:
    talker = tiny_talker()
    prompt = talker.chat.prompt([{"role": "user", "content": "hello"}])
    asked = ask("hello", logprobs=True, top_logprobs=3, temperature=2.0)
    whole = client.chat.completions.create(**asked)  # type: ignore[call-overload]
    entries = whole.choices[0].logprobs.content
    ids = [entry.bytes[0] for entry in entries]
    assert bytes(ids).decode(errors="replace") == whole.choices[0].message.content
    with torch.inference_mode():
        logits = talker.model.logits(talker.model.hidden(talker.model.embed(torch.tensor([prompt + ids]))))[0]
    own = logits[len(prompt) - 1 : -1].log_softmax(dim=-1)
    for entry, id, row in zip(entries, ids, own, strict=True):
        assert entry.logprob == pytest.approx(float(row[id]), abs=1e-4)
        top = row.topk(3)
        assert [other.logprob for other in entry.top_logprobs] == pytest.approx(top.values.tolist(), abs=1e-4)
        assert [other.bytes[0] for other in entry.top_logprobs if other.bytes] == [
            i for i in top.indices.tolist() if i < 256
        ]
    streamed = [
        entry
        for part in client.chat.completions.create(**asked, stream=True)  # type: ignore[call-overload]
        for entry in (part.choices[0].logprobs.content if part.choices[0].logprobs else [])
    ]
    assert [entry.bytes for entry in streamed] == [entry.bytes for entry in entries]
    assert client.chat.completions.create(**ask("hello")).choices[0].logprobs is None  # type: ignore[call-overload]
    plain = client.completions.create(model="tiny", prompt=prompt, max_tokens=5, seed=1, logprobs=2)
    assert plain.choices[0].logprobs is not None
    assert [len(top) for top in plain.choices[0].logprobs.top_logprobs or []] == [2] * 5
    assert len(plain.choices[0].logprobs.token_logprobs or []) == len(plain.choices[0].logprobs.text_offset or []) == 5


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_returned_without_top_logprobs(client: "openai.OpenAI", stream: bool) -> None:
    """`logprobs` alone returns those of the generated tokens, as `top_logprobs` does, with an empty list for each."""

    def entries(**more: Any) -> list[Any]:
        answer = client.chat.completions.create(**ask("hello", logprobs=True, stream=stream, **more))  # type: ignore[call-overload]
        parts = [part.choices[0] for part in answer] if stream else [answer.choices[0]]
        return [entry for part in parts if part.logprobs for entry in part.logprobs.content]

    plain, asked = entries(), entries(top_logprobs=2)
    assert len(plain) == len(asked) == 20
    assert [entry.bytes for entry in plain] == [entry.bytes for entry in asked]
    assert [entry.logprob for entry in plain] == pytest.approx([entry.logprob for entry in asked], abs=1e-5)
    assert all(entry.logprob < 0 for entry in plain)
    assert [len(entry.top_logprobs) for entry in plain + asked] == [0] * 20 + [2] * 20
    assert [len(entry.top_logprobs) for entry in entries(top_logprobs=0)] == [0] * 20
    text = {"model": "tiny", "prompt": "abc", "max_tokens": 5, "seed": 1}
    none, some = (client.completions.create(**text, logprobs=top).choices[0].logprobs for top in (0, 1))  # type: ignore[call-overload]
    assert none.token_logprobs == pytest.approx(some.token_logprobs, abs=1e-5)
    assert [len(top) for top in none.top_logprobs + some.top_logprobs] == [0] * 5 + [1] * 5
    assert client.completions.create(**text).choices[0].logprobs is None  # type: ignore[call-overload]


@pytest.mark.parametrize("stream", [False, True])
def test_a_clients_stop_strings_are_added_to_those_of_the_roles(stream: bool) -> None:
    """A transcript ends where the next turn begins, whatever stop strings a client adds."""
    app = build_app(saying("transcript", b"go\nuser: "), card={})

    def said(**more: Any) -> tuple[str, str]:
        body = ask("x", model="saying", temperature=0, stream=stream, **{"max_tokens": 30, **more})
        answer = post(app, body)
        assert answer.status_code == 200, answer.text
        if not stream:
            choice = answer.json()["choices"][0]
            return choice["message"]["content"], choice["finish_reason"]
        parts = [json.loads(line[6:])["choices"][0] for line in answer.text.split("\n\n") if line.startswith("data: {")]
        return "".join(part["delta"].get("content", "") for part in parts), parts[-1]["finish_reason"]

    assert said() == ("go", "stop")
    assert said(stop="o") == ("g", "stop")
    assert said(stop=["never", "g"]) == ("", "stop")
    assert said(stop=["never", "r: g"]) == ("go", "stop"), "the roles' own still end it"
    assert said(stop=["o\nus"]) == ("g", "stop")
    assert said(max_tokens=1, stop=["never"]) == ("g", "length")


def test_usage_is_counted_in_both_forms(client: "openai.OpenAI") -> None:
    asked = ask("hello", stream=True, stream_options={"include_usage": True})
    *parts, last = client.chat.completions.create(**asked)  # type: ignore[call-overload]
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (8, 20, 28)
    assert all(part.usage is None and "usage" in part.model_fields_set for part in parts)  # null in each, like OpenAI
    plain = client.chat.completions.create(**ask("hello", stream=True))  # type: ignore[call-overload]
    assert not any("usage" in part.model_fields_set for part in plain)


@pytest.mark.slow
def test_content_in_parts_and_the_developer_role_are_supported(said: Any) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    assert said(messages=[{"role": "user", "content": parts}]) == said("hello")
    chats = [
        [{"role": role, "content": "be brief"}, {"role": "user", "content": "hello"}]
        for role in ("system", "developer")
    ]
    assert said(messages=chats[0]) == said(messages=chats[1]) != said("hello")


@pytest.mark.parametrize(
    "field",
    [
        {"tools": []},
        {"tool_choice": "none"},
        {"functions": []},
        {"response_format": {"type": "json_object"}},
        {"store": True},
        {"reasoning_effort": "low"},
        {"service_tier": "auto"},
        {"modalities": ["text"]},
        {"prediction": {}},
        {"audio": {}},
        {"best_of": 2},
        {"nonsense": 1},
        {"messages": [{"role": "user", "content": "x", "name": "me"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"stop": ""},
        {"stop": ["a", "b", "c", "d", "e"]},
        {"n": 9},
        {"top_logprobs": 3},
        {"logit_bias": {"hello": 1}},
        {"logit_bias": {"260": 1}},
        {"logit_bias": {"1": 101}},
        {"presence_penalty": 3},
        {"temperature": 2.1},
        {"min_p": 2},
    ],
    ids=lambda field: json.dumps(field)[:40],
)
def test_what_is_not_honoured_is_refused_by_name(address: str, field: dict[str, Any]) -> None:
    answer = httpx.post(f"{address}/v1/chat/completions", json=ask("x", **field), timeout=60)
    assert_refused(answer, 400, next(iter(field)))


@pytest.mark.slow
def test_labels_that_clients_send_by_default_change_nothing(said: Any) -> None:
    labels = {"user": "me", "metadata": {"a": "b"}, "safety_identifier": "x", "parallel_tool_calls": True}
    assert said(temperature=2, **labels) == said(temperature=2)


@pytest.mark.slow
def test_text_goes_on_from_a_text_from_several_and_from_ids(client: "openai.OpenAI") -> None:
    from openai import BadRequestError

    def texts(prompt: Any, **more: Any) -> list[str]:
        answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=12, seed=1, **more)
        assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
        return [choice.text for choice in answer.choices]

    one, other = texts("abc")[0], texts("xyz")[0]
    assert one != other
    assert texts(["abc", "xyz"]) == [one, other]
    assert texts(list(b"abc")) == [one]
    assert texts([list(b"abc"), list(b"xyz")]) == [one, other]
    assert texts(["abc", "xyz"], n=2)[::2] == [one, other]
    assert texts("abc", stop=one[4:7]) == [one[: one.find(one[4:7])]]
    parts = client.completions.create(model="tiny", prompt="abc", max_tokens=12, seed=1, stream=True)
    assert "".join(part.choices[0].text for part in parts) == one
    for prompt, words in (
        ("", "empty"),
        ("x" * 65, "65 characters do not fit the context of 64"),
        ([1] * 65, "65 tokens do not fit"),
        ([1, 260], "0 to 259"),
    ):
        with pytest.raises(BadRequestError, match=words):
            texts(prompt)
    assert texts("abc", echo=True) == ["abc" + one]
    assert texts("abc", echo=True, stop=["b", one[4:7]]) == ["abc" + one[: one.find(one[4:7])]]


def test_a_chat_longer_than_the_context_forgets_whole_turns_and_says_so(client: "openai.OpenAI") -> None:
    turns = [
        {"role": role, "content": f"{role} {i} " + "x" * 20} for i in range(8) for role in ("user", "assistant")
    ] + [{"role": "user", "content": "hello"}]
    for stream in (False, True):
        answer = client.chat.completions.create(**ask("", messages=turns, stream=stream))  # type: ignore[call-overload]
        first = next(iter(answer)) if stream else answer
        assert first.model_extra["forgotten_messages"] == 16
    assert answer is not None
    whole = client.chat.completions.create(**ask("", messages=turns))  # type: ignore[call-overload]
    assert whole.choices[0].message.content == expected("hello")
    assert whole.usage.prompt_tokens == 8  # the tokens that the model has read
    assert "forgotten_messages" not in client.chat.completions.create(**ask("hello")).model_extra  # type: ignore[call-overload]


def counted(client: httpx.Client) -> dict[str, float]:
    """Return the values of /metrics by name."""
    lines = client.get("/metrics").text.splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


@pytest.mark.slow
def test_every_refusal_is_counted_by_its_status() -> None:
    talker = tiny_talker(slots=1)
    app = build_app(talker, card={}, limits=Limits(body_bytes=9000, new_tokens=10**9, queue=1), access=Access(key="k"))
    with serving(app) as address, httpx.Client(base_url=address, timeout=60) as client:
        client.headers["authorization"] = "Bearer k"
        chat, body = "/v1/chat/completions", for_ever(stream=True)
        head = post_head(address, len(body)).replace(b"Host", b"Authorization: Bearer k\r\nHost")

        def refused(status: int, method: str, path: str, **how: Any) -> None:
            before = counted(client)
            assert client.request(method, path, **how).status_code == status
            after = counted(client)
            more = {name: after[name] - before.get(name, 0) for name in after if "requests_total" in name}
            # The other request, with status 200, is the one to /metrics that returned `before`.
            assert {name: n for name, n in more.items() if n} == {
                f'niels_gpt_requests_total{{status="{status}"}}': 1,
                'niels_gpt_requests_total{status="200"}': 1,
            }

        refused(400, "POST", chat, content=b"{")
        refused(400, "POST", chat, json=ask("x", nonsense=1))
        refused(400, "POST", "/v1/completions", json={"prompt": ["a"] * 2})
        refused(401, "GET", "/card", headers={"authorization": "Bearer other"})
        refused(403, "GET", "/card", headers={"host": "rebound.example"})
        refused(404, "GET", "/nowhere")
        refused(404, "POST", chat, json=ask("x", model="other"))
        refused(405, "GET", chat)
        refused(413, "POST", chat, content=b" " * 9001)
        refused(415, "POST", chat, content=b"{}", headers={"content-type": "text/plain"})
        with connect(address) as first, connect(address) as second:
            for n, one in enumerate((first, second)):
                one.sendall(head + body)
                wait_until(lambda n=n: counted(client)["niels_gpt_answers_waiting"] == n)  # type: ignore[misc]
                wait_until(lambda: counted(client)["niels_gpt_answers_under_way"] == 1)
            refused(503, "POST", chat, json=ask("x"))
        wait_until(lambda: counted(client)["niels_gpt_answers_under_way"] == 0)
        talker.model.tok_emb.weight.data.fill_(float("nan"))
        refused(500, "POST", chat, json=ask("x"))
        # The server closes the connection after an error. A client that is not told would get a reset on its next
        # request.
        assert client.post(chat, json=ask("x")).headers["connection"] == "close"


def test_tokens_health_and_metrics(address: str) -> None:
    with httpx.Client(base_url=address, timeout=60) as client:
        assert client.post("/tokenize", json={"prompt": "abc"}).json() == {
            "count": 3,
            "max_model_len": 64,
            "tokens": [97, 98, 99],
        }
        chat = client.post("/tokenize", json={"messages": [{"role": "user", "content": "hello"}]}).json()
        assert chat["count"] == 8
        assert_refused(client.post("/tokenize", json={}), 400, "either `prompt` or `messages`")
        assert client.get("/health").json() == {"status": "ok"}

        before = counted(client)
        client.post("/v1/chat/completions", json=ask("hello"))
        client.post("/v1/chat/completions", json=ask("hello", nonsense=1))
        after = counted(client)
        for name, more in (
            ("niels_gpt_generated_tokens_total", 20),
            ("niels_gpt_prompt_tokens_total", 8),
            ("niels_gpt_first_text_seconds_count", 1),
            ('niels_gpt_requests_total{status="400"}', 1),
        ):
            assert after[name] - before.get(name, 0) == more, name
        took = after["niels_gpt_first_text_seconds_sum"] - before.get("niels_gpt_first_text_seconds_sum", 0)
        assert 0 < took < 600  # a duration, not the time of a clock
        assert after["niels_gpt_answers_under_way"] == after["niels_gpt_answers_waiting"] == 0


@pytest.mark.slow
def test_a_key_is_required_if_one_is_set() -> None:
    with serving(build_app(tiny_talker(), card={}, limits=LIMITS, access=Access(key="s3cret"))) as address:
        for headers in (
            {},
            {"authorization": "Bearer other"},
            {"authorization": "s3cret"},
            {"authorization": "Basic s3cret"},
        ):
            for path in ("/card", "/v1/models", "/metrics"):
                assert_refused(httpx.get(address + path, headers=headers), 401, "needs an API key")
        assert httpx.get(f"{address}/").status_code == httpx.get(f"{address}/health").status_code == 200
        client = openai_client(address, key="s3cret")
        assert [model.id for model in client.models.list()] == ["tiny"]


def test_other_machines_are_answered_only_with_a_key() -> None:
    with pytest.raises(ValueError, match="needs a key: put one into a file and give --api-key FILE"):
        Access(others=True)
    for key in ("", " ", "kéy", "a\nb"):
        with pytest.raises(ValueError, match="printable ASCII"):
            Access(key=key)
    app = build_app(tiny_talker(), card={}, limits=LIMITS, access=Access(others=True, key="k"))
    with serving(app) as address, httpx.Client(base_url=address, timeout=60) as client:
        key = {"authorization": "Bearer k", "host": "my.machine:8000"}
        assert client.get("/card", headers=key).status_code == 200
        assert client.get("/card", headers={**key, "origin": "http://my.machine:8000"}).status_code == 200
        assert_refused(client.get("/card", headers={**key, "origin": "http://other.example"}), 403, "Origin")


def test_a_flood_of_headers_is_cut_and_others_are_answered(address: str) -> None:
    with connect(address) as connection:
        connection.sendall(f"GET /card HTTP/1.1\r\nHost: {address[7:]}\r\n".encode())
        came = b""
        try:
            for i in range(200):
                connection.sendall(f"x-{i}: {'y' * 2000}\r\n".encode())
            came = connection.recv(65536)
        except (TimeoutError, ConnectionError):
            pass
        assert b"200 OK" not in came
    assert httpx.get(f"{address}/card", timeout=60).status_code == 200
    assert post(build_app(tiny_talker(), card={}), ask("hello")).status_code == 200


@pytest.mark.parametrize(
    ("field", "low", "high"),
    [
        ("presence_penalty", -2, 2),
        ("frequency_penalty", -2, 2),
        ("repetition_penalty", 0.01, 100),
        ("n", 1, 8),
        ("top_logprobs", 0, 20),
        ("seed", 0, 2**63 - 1),
    ],
)
def test_a_field_takes_both_ends_of_its_range_and_nothing_beyond(field: str, low: float, high: float) -> None:
    def parsed(value: float) -> ChatRequest:
        asked = {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, field: value}
        return parse_request(ChatRequest, json.dumps(asked).encode())

    for value in (low, high):
        assert getattr(parsed(value), field) == value
    step = 1 if isinstance(low, int) and field not in ("presence_penalty", "frequency_penalty") else 0.001
    for value in (low - step, high + step):
        with pytest.raises(ValueError, match=field):
            parsed(value)
