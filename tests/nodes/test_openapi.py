"""Tools of an OpenAPI document call a real server: what it gets, and what the model is told."""

import asyncio
import base64
import json
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

import httpx
import httpx2
import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from agentgraph import END, START, ConfigError, StateGraph
from agentgraph.messages import AssistantMessage, FilePart, ImagePart, ToolCall, ToolResponse, ToolResponseMessage
from agentgraph.nodes import ReactAgent, ToolError, ToolNode
from agentgraph.nodes.openapi import EMPTY, OpenApiTools
from agentgraph.strategies import Messages
from agentgraph.testing import ScriptedModel

Schema = dict[str, Any]


@dataclass
class Got:
    """One request, as it came over the wire."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return parse_qsl(self.query, keep_blank_values=True, strict_parsing=bool(self.query))


@dataclass
class Api:
    """A server that keeps what it gets, and answers as `answer` says."""

    url: str = ""
    requests: list[Got] = field(default_factory=list[Got])
    answer: Callable[[], Response] = lambda: Response(b'{"ok": true}', media_type="application/json")
    before: Callable[[], Any] | None = None

    @property
    def last(self) -> Got:
        return self.requests[-1]


def app_of(current: Callable[[], Api]) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        api, request = current(), Request(scope, receive)
        path, query = request.scope["raw_path"].decode(), request.scope["query_string"].decode()
        body = await request.body()
        api.requests.append(Got(request.method, path, query, dict(request.headers), body))
        if api.before is not None:
            await api.before()
        await api.answer()(scope, receive, send)

    return answer


def server_of(app: ASGIApp) -> uvicorn.Server:
    return uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1))


_now = Api()
"""What the tests' common server, in a thread of its own, works for at the moment."""


@pytest.fixture(autouse=True, scope="module")
def common_server() -> Iterator[None]:
    server = server_of(app_of(lambda: _now))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        _now.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        yield
        server.should_exit = True
        thread.join(10)


@asynccontextmanager
async def served() -> AsyncGenerator[Api]:
    global _now  # noqa: PLW0603
    _now = Api(_now.url)
    yield _now


@asynccontextmanager
async def served_in_this_loop() -> AsyncGenerator[Api]:
    """A server of the test's own, whose `before` may wait for what the test does."""
    api = Api()
    server = server_of(app_of(lambda: api))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        api.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield api
        finally:
            server.should_exit = True
            await serving


def document(operation: Any, method: str = "get", path: str = "/do", **more: Any) -> Schema:
    """A document with one operation, `do`."""
    return {"openapi": "3.1.0", "paths": {path: {method: {"operationId": "do", **operation}}}, **more}


def taking(*parameters: Schema, path: str = "/do") -> Schema:
    """A document whose operation takes these parameters, of the query unless they say another place."""
    return document({"parameters": [{"in": "query", "schema": {}, **p} for p in parameters]}, path=path)


def posting(media: str, schema: Any, *, required: bool = True, **more: Any) -> Schema:
    """A document whose operation takes this body."""
    return document({"requestBody": {"required": required, "content": {media: {"schema": schema, **more}}}}, "post")


async def asked(tools: OpenApiTools, *calls: tuple[str, Any]) -> list[ToolResponse]:
    """What a tool node answers to these calls."""
    graph: StateGraph[Any] = StateGraph(strategies={"messages": Messages()})
    graph.add_node("tools", ToolNode([*tools]))
    graph.add_edge(START, "tools").add_edge("tools", END)
    made = [ToolCall(f"c{n}", name, json.dumps(arguments)) for n, (name, arguments) in enumerate(calls)]
    result = await graph.compile().invoke({"messages": [AssistantMessage(tool_calls=made)]})
    return result.state["messages"][-1].responses


async def said(api: Api, given: Any, arguments: Any = None, **options: Any) -> ToolResponse:
    """What a call of the document's operation is answered."""
    async with OpenApiTools(given, base_url=api.url, **options) as tools:
        return (await asked(tools, ("do", arguments or {})))[0]


# --- an agent and its API


async def test_an_agent_calls_an_api_and_answers_with_what_it_got() -> None:
    pet = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
    add = {"requestBody": {"required": True, "content": {"application/json": {"schema": pet}}}}
    shop = {"name": "shop", "in": "path", "required": True, "schema": {"type": "integer"}}
    given = document({**add, "parameters": [shop]}, "post", "/shops/{shop}/pets")
    model = ScriptedModel([[ToolCall("c1", "do", '{"shop": 7, "name": "Rex"}')], "Rex is in."])
    async with served() as api, OpenApiTools(given, base_url=f"{api.url}/v1/") as tools:
        result = await ReactAgent("clerk", model, [*tools]).run("Add Rex to shop 7")
    assert result.text == "Rex is in."
    answered = result.messages[2]
    assert isinstance(answered, ToolResponseMessage)
    assert answered.responses[0].content == '{"ok":true}'
    assert (api.last.method, api.last.path, api.last.body) == ("POST", "/v1/shops/7/pets", b'{"name":"Rex"}')
    assert api.last.headers["content-type"] == "application/json"
    assert api.last.headers["accept"] == "application/json, */*;q=0.5"


async def test_calls_beside_each_other_share_one_client() -> None:
    async with served() as api, OpenApiTools(taking({"name": "n"}), base_url=api.url) as tools:
        answers = await asked(tools, *[("do", {"n": n}) for n in range(5)])
    assert [a.content for a in answers] == ['{"ok":true}'] * 5
    assert sorted(got.query for got in api.requests) == [f"n={n}" for n in range(5)]


async def test_a_document_is_fetched_without_the_apis_credentials_and_says_where_the_api_is() -> None:
    given = {**taking({"name": "q"}), "servers": [{"url": "/v2"}]}
    async with served() as api:
        api.answer = lambda: Response(json.dumps(given), media_type="application/json")
        async with OpenApiTools(f"{api.url}/docs/openapi.json", headers={"X-Key": "k"}, auth=("u", "p")) as tools:
            await asked(tools, ("do", {"q": "a"}))
    fetched, called = api.requests
    assert (fetched.path, "x-key" in fetched.headers, "authorization" in fetched.headers) == (
        "/docs/openapi.json",
        False,
        False,
    )
    assert (called.path, called.headers["x-key"]) == ("/v2/do", "k")
    assert called.headers["authorization"] == f"Basic {base64.b64encode(b'u:p').decode()}"


async def test_a_document_that_cannot_be_fetched_is_told_without_the_urls_query() -> None:
    async with served() as api:
        api.answer = lambda: Response("no", 404)
        with pytest.raises(ConfigError, match=r"/x\.json cannot be fetched: status 404") as raised:
            async with OpenApiTools(f"{api.url}/x.json?key=secret"):
                pass
    async with served_in_this_loop() as api:
        pass
    with pytest.raises(ConfigError, match="cannot be fetched: ConnectError") as again:
        async with OpenApiTools(f"{api.url}/x.json?key=secret"):
            pass
    assert "secret" not in f"{raised.value}{again.value}"


# --- parameters

COLORS = ["blue", "a,b", "x&y=z|w%"]
POINT = {"x": 1, "y": "a b"}


@pytest.mark.parametrize(
    ("style", "value", "wanted"),
    [
        ({}, "a b&c=d", "q=a%20b%26c%3Dd"),
        ({}, "", "q="),
        ({}, 5.0, "q=5"),
        ({}, 1.5, "q=1.5"),
        ({}, True, "q=true"),
        ({}, COLORS, "q=blue&q=a%2Cb&q=x%26y%3Dz%7Cw%25"),
        ({"explode": False}, COLORS, "q=blue,a%2Cb,x%26y%3Dz%7Cw%25"),
        ({}, POINT, "x=1&y=a%20b"),
        ({"explode": False}, POINT, "q=x,1,y,a%20b"),
        ({"style": "spaceDelimited"}, [1, 2], "q=1%202"),
        ({"style": "pipeDelimited"}, [1, 2], "q=1%7C2"),
        ({"style": "pipeDelimited", "explode": True}, [1, 2], "q=1&q=2"),
        ({"style": "deepObject", "explode": True}, POINT, "q%5Bx%5D=1&q%5By%5D=a%20b"),
        (
            {"style": "deepObject"},
            {"a": {"b": [1, {"c": "d"}]}},
            "q%5Ba%5D%5Bb%5D%5B0%5D=1&q%5Ba%5D%5Bb%5D%5B1%5D%5Bc%5D=d",
        ),
        ({"style": "deepObject"}, ["a", "b"], "q%5B0%5D=a&q%5B1%5D=b"),
        ({}, [[1], {"a": 2}], "q=%5B1%5D&q=%7B%22a%22%3A2%7D"),
        ({}, [], ""),
        ({}, {}, ""),
        ({}, None, ""),
        ({"allowReserved": True}, "/a?b&c#d", "q=/a?b%26c%23d"),
        ({"content": {"application/json": {}}}, POINT, "q=%7B%22x%22%3A1%2C%22y%22%3A%22a%20b%22%7D"),
    ],
)
async def test_a_query_parameter_is_written_in_its_style(style: Schema, value: Any, wanted: str) -> None:
    async with served() as api:
        await said(api, taking({"name": "q", **style}), {"q": value})
    assert api.last.query == wanted


@pytest.mark.parametrize(
    ("style", "value", "wanted"),
    [
        ({}, "a/b", "a%2Fb"),
        ({}, "a b?c#d%2F;é", "a%20b%3Fc%23d%252F%3B%C3%A9"),
        ({}, ["a", "b,c"], "a,b%2Cc"),
        ({}, POINT, "x,1,y,a%20b"),
        ({"explode": True}, POINT, "x=1,y=a%20b"),
        ({"style": "label"}, 5, ".5"),
        ({"style": "label"}, ["a", "b"], ".a,b"),
        ({"style": "label", "explode": True}, ["a", "b"], ".a.b"),
        ({"style": "label", "explode": True}, POINT, ".x=1.y=a%20b"),
        ({"style": "matrix"}, 5, ";id=5"),
        ({"style": "matrix"}, ["a", "b"], ";id=a,b"),
        ({"style": "matrix", "explode": True}, ["a", "b"], ";id=a;id=b"),
        ({"style": "matrix"}, POINT, ";id=x,1,y,a%20b"),
        ({"style": "matrix", "explode": True}, POINT, ";x=1;y=a%20b"),
    ],
)
async def test_a_path_parameter_is_written_in_its_style(style: Schema, value: Any, wanted: str) -> None:
    parameter = {"name": "id", "in": "path", "required": True, **style}
    async with served() as api:
        await said(api, taking(parameter, path="/pets/{id}/photo"), {"id": value})
    assert api.last.path == f"/pets/{wanted}/photo"


@pytest.mark.parametrize("value", ["..", ".", "", "a/../../admin", "..\\x", [], ["a", ""], {"a": ".."}])
async def test_a_value_that_would_make_another_path_is_not_sent(value: Any) -> None:
    async with served() as api:
        answer = await said(
            api, taking({"name": "id", "in": "path", "required": True}, path="/pets/{id}"), {"id": value}
        )
    assert api.requests == []
    assert answer.is_error
    assert "tool 'do', argument 'id': a part of the path must not" in answer.text


async def test_two_values_of_one_segment_cannot_make_dots_of_it_together() -> None:
    parts = [{"name": n, "in": "path", "required": True} for n in "ab"]
    async with served() as api:
        answer = await said(api, taking(*parts, path="/x/{a}{b}"), {"a": ".", "b": "."})
    assert (answer.is_error, api.requests) == (True, [])


@pytest.mark.parametrize(
    ("style", "value", "wanted"),
    [
        ({}, "a b, c", "a b, c"),
        ({}, 7, "7"),
        ({}, ["a", "b"], "a,b"),
        ({}, POINT, "x,1,y,a b"),
        ({"explode": True}, POINT, "x=1,y=a b"),
    ],
)
async def test_a_header_is_written_in_its_style(style: Schema, value: Any, wanted: str) -> None:
    async with served() as api:
        await said(api, taking({"name": "X-Trace", "in": "header", **style}), {"X-Trace": value})
    assert api.last.headers["x-trace"] == wanted


@pytest.mark.parametrize("value", ["a\r\nX-Admin: 1", "a\nb", "é", " a", "\0"])
async def test_a_header_that_would_break_the_request_is_not_sent(value: str) -> None:
    async with served() as api:
        answer = await said(api, taking({"name": "X-Trace", "in": "header"}), {"X-Trace": value})
    assert (api.requests, answer.is_error) == ([], True)
    assert "a header takes ASCII text without line breaks or outer spaces" in answer.text


async def test_cookies_join_the_clients_own() -> None:
    given = taking({"name": "theme", "in": "cookie"}, {"name": "tags", "in": "cookie"})
    async with served() as api, httpx.AsyncClient(cookies={"session": "s"}) as client:
        await said(api, given, {"theme": "a; b", "tags": ["x", "y"]}, client=client)
    assert api.last.headers["cookie"] == "session=s; theme=a%3B%20b; tags=x%2Cy"


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PATHS = TEXTS.filter(lambda t: t and not any(p in (".", "..") for p in t.replace("\\", "/").split("/")))
HEADERS = st.from_regex(r"[!-~]([ -~\t]{0,10}[!-~])?", fullmatch=True)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(PATHS, TEXTS, st.lists(TEXTS, min_size=1, max_size=3), TEXTS, HEADERS), min_size=3, max_size=3)
)
async def test_the_server_gets_exactly_the_values_that_were_given(cases: list[Any]) -> None:
    places = [
        {"name": "p", "in": "path", "required": True},
        {"name": "q"},
        {"name": "many"},
        {"name": "deep", "style": "deepObject"},
        {"name": "X-H", "in": "header"},
        {"name": "c", "in": "cookie"},
    ]
    async with served() as api, OpenApiTools(taking(*places, path="/a/{p}/b"), base_url=api.url) as tools:
        for path, text, many, deep, header in cases:
            await tools["do"](**{"p": path, "q": text, "many": many, "deep": {text: deep}, "X-H": header, "c": text})
            segments = [unquote(s) for s in api.last.path.split("/")]
            assert segments == ["", "a", path, "b"]
            assert api.last.pairs == [("q", text), *(("many", m) for m in many), (f"deep[{text}]", deep)]
            assert api.last.headers["x-h"] == header
            assert unquote(api.last.headers["cookie"].removeprefix("c=")) == text


# --- bodies


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.dictionaries(
            TEXTS,
            st.recursive(st.none() | st.booleans() | st.integers(-(2**70), 2**70) | TEXTS, st.lists, max_leaves=4),
        ),
        min_size=3,
        max_size=3,
    )
)
async def test_a_json_body_arrives_as_it_was_given(bodies: list[Any]) -> None:
    given = posting("application/vnd.pets+json", {"type": "object"})
    async with served() as api, OpenApiTools(given, base_url=api.url) as tools:
        for body in bodies:
            await tools["do"](body=body)
            assert json.loads(api.last.body) == body
            assert api.last.headers["content-type"] == "application/vnd.pets+json"


FORM: Schema = {"type": "object", "properties": {"a": {}, "list": {"type": "array"}, "o": {}, "deep": {}}}


async def test_a_form_is_written_as_its_encoding_says() -> None:
    encoding = {"deep": {"style": "deepObject", "explode": True}, "list": {"style": "form", "explode": False}}
    given = posting("application/x-www-form-urlencoded", FORM, encoding=encoding)
    values = {"a": "b&c d", "list": ["x", "y"], "o": {"k": 1}, "deep": {"k": "v"}}
    async with served() as api:
        await said(api, given, values)
    assert api.last.body == b"a=b%26c%20d&list=x,y&o=%7B%22k%22%3A1%7D&deep%5Bk%5D=v"
    assert api.last.headers["content-type"] == "application/x-www-form-urlencoded"


async def test_a_multipart_body_has_a_part_for_each_value_and_bytes_come_in_base64() -> None:
    properties = {"name": {}, "tags": {"type": "array"}, "more": {}, "photo": {"type": "string", "format": "binary"}}
    given = posting("multipart/form-data", {"type": "object", "properties": properties})
    photo = base64.b64encode(b"\x00\xff").decode()
    async with served() as api:
        await said(api, given, {"name": "Rex", "tags": ["a", "b"], "more": {"k": 1}, "photo": photo})
        bad = await said(api, given, {"photo": "no base64!"})
    boundary = api.last.headers["content-type"].partition("boundary=")[2].encode()
    parts = api.last.body.split(b"--" + boundary)[1:-1]
    assert [part.rpartition(b"\r\n\r\n")[2].rstrip(b"\r\n") for part in parts] == [
        b"Rex",
        b"a",
        b"b",
        b'{"k":1}',
        b"\x00\xff",
    ]
    assert b'name="photo"; filename="photo"' in parts[4]
    assert (len(api.requests), bad.text) == (1, "tool 'do': expected bytes in base64, found 'no base64!'")


async def test_several_files_are_several_parts() -> None:
    files: Any = {"type": "array", "items": {"type": "string", "contentMediaType": "application/octet-stream"}}
    given = posting("multipart/form-data", {"type": "object", "properties": {"files": files}})
    async with served() as api:
        await said(api, given, {"files": ["AAA=", "AQE="]})
    assert api.last.body.count(b'name="files"; filename="files"') == 2
    assert b"\r\n\r\n\x01\x01\r\n" in api.last.body


async def test_text_and_bytes_are_sent_as_they_are() -> None:
    async with served() as api:
        await said(api, posting("text/plain", {"type": "string"}), {"body": "é\n"})
        text = api.last
        await said(api, posting("application/octet-stream", {}), {"body": base64.b64encode(b"\x00\xff").decode()})
    assert (text.body, text.headers["content-type"]) == ("é\n".encode(), "text/plain; charset=utf-8")
    assert (api.last.body, api.last.headers["content-type"]) == (b"\x00\xff", "application/octet-stream")


NEEDS_A: Schema = {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}, "b": {}}}


async def test_a_body_that_may_be_left_out_is_left_out_as_a_whole() -> None:
    given = posting("application/json", NEEDS_A, required=False)
    async with served() as api:
        whole = await said(api, given)
        half = await said(api, given, {"b": 1})
    assert (whole.is_error, len(api.requests), api.last.body) == (False, 1, b"")
    assert half.text == "invalid arguments for tool 'do': 'a' missing"


async def test_a_body_that_must_be_there_is_an_empty_object_where_nothing_is_given() -> None:
    async with served() as api:
        await said(api, posting("application/json", {"type": "object", "properties": {"a": {}}}))
    assert api.last.body == b"{}"


# --- arguments that do not do

ORDER: Schema = {
    "type": "object",
    "required": ["count"],
    "properties": {
        "count": {"type": "integer", "minimum": 1},
        "size": {"type": "string", "enum": ["s", "m"]},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"price": {"type": "number"}}}},
        "cost": {"type": "number", "multipleOf": 0.01},
        "pick": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
    },
}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "'count' missing"),
        ({"count": "many"}, "expected integer, found 'many' - at `$.count`"),
        ({"count": 0}, "0 is less than the minimum of 1 - at `$.count`"),
        ({"count": True}, "expected integer, found True - at `$.count`"),
        ({"count": 1, "size": "xl"}, "expected one of 's', 'm', found 'xl' - at `$.size`"),
        ({"count": 1, "sise": "s"}, "unknown argument 'sise'; did you mean 'size'?"),
        ({"count": 1, "lines": [{"price": "a"}]}, "expected number, found 'a' - at `$.lines[0].price`"),
        ({"count": 1, "cost": 0.005}, "0.005 is not a multiple of 0.01 - at `$.cost`"),
        (
            {"count": 1, "pick": "x"},
            'expected a value that fits [{"type": "integer"}, {"type": "boolean"}], found \'x\'',
        ),
        ({"count": 1, "Authorization": "Bearer x"}, "unknown argument 'Authorization'"),
        ({"count": 0, "size": "xl"}, "0 is less than the minimum of 1 - at `$.count`; expected one of 's', 'm'"),
    ],
)
async def test_arguments_that_do_not_fit_are_not_sent_and_the_model_is_told_where(arguments: Schema, told: str) -> None:
    async with served() as api:
        answer = await said(api, posting("application/json", ORDER), arguments)
    assert api.requests == []
    assert answer.is_error
    assert answer.text.startswith("invalid arguments for tool 'do': ")
    assert told in answer.text


async def test_harmless_slips_are_mended() -> None:
    arguments = {"count": "3", "size": None, "lines": '[{"price": 1}]', "cost": 19.99}
    async with served() as api:
        await said(api, posting("application/json", ORDER), arguments)
    assert json.loads(api.last.body) == {"count": 3, "lines": [{"price": 1}], "cost": 19.99}


async def test_a_null_that_the_schema_takes_is_sent() -> None:
    given = posting("application/json", {"type": "object", "properties": {"owner": {"type": ["string", "null"]}}})
    async with served() as api:
        await said(api, given, {"owner": None})
    assert api.last.body == b'{"owner":null}'


async def test_no_default_is_sent_that_was_not_given() -> None:
    async with served() as api:
        await said(api, taking({"name": "limit", "schema": {"type": "integer", "default": 20}}))
    assert api.last.query == ""


# --- what the user fixes


async def test_what_is_fixed_is_sent_and_cannot_be_set_by_the_model() -> None:
    key = {"type": "apiKey", "in": "query", "name": "key"}
    given: Any = {**taking({"name": "team"}, {"name": "q"}), "components": {"securitySchemes": {"k": key}}}
    given["paths"]["/do"]["get"] |= {"security": [{"k": []}]}
    async with served() as api:
        await said(api, given, {"q": "a"}, fixed={"team": "red", "key": "secret"})
        refused = await said(api, given, {"q": "a", "team": "blue"}, fixed={"team": "red"})
    assert (len(api.requests), api.last.query) == (1, "team=red&q=a&key=secret")
    assert "unknown argument 'team'" in refused.text


async def test_an_api_key_in_a_header_is_sent_only_where_the_document_asks_for_it() -> None:
    keys: Any = {"k": {"type": "apiKey", "in": "header", "name": "X-API-Key"}}
    given: Schema = {**taking(), "components": {"securitySchemes": keys}, "security": [{"k": []}]}
    given["paths"]["/open"] = {"get": {"operationId": "open", "security": []}}
    async with served() as api, OpenApiTools(given, base_url=api.url, fixed={"x-api-key": "secret"}) as tools:
        await asked(tools, ("do", {}))
        await asked(tools, ("open", {}))
    assert [got.headers.get("x-api-key") for got in api.requests] == ["secret", None]


async def test_a_fixed_property_goes_into_the_body() -> None:
    async with served() as api:
        await said(api, posting("application/json", NEEDS_A), {"b": 1}, fixed={"a": "mine"})
    assert json.loads(api.last.body) == {"a": "mine", "b": 1}


async def test_the_users_headers_and_auth_go_with_each_request() -> None:
    given = posting("application/json", {"type": "object", "properties": {"a": {}}})
    headers = {"X-Team": "red", "accept": "application/xml", "Content-Type": "text/html"}
    async with served() as api:
        await said(api, given, {"a": 1}, headers=headers, auth=("u", "p"))
    assert (api.last.headers["x-team"], api.last.headers["accept"]) == ("red", "application/xml")
    assert api.last.headers["content-type"] == "application/json"
    assert api.last.headers["authorization"].startswith("Basic ")


async def test_a_client_of_the_users_gives_its_base_url_and_headers_and_stays_open() -> None:
    async with served() as api, httpx.AsyncClient(base_url=f"{api.url}/v3", headers={"x-team": "red"}) as client:
        given = {**taking({"name": "q"}), "servers": [{"url": "https://elsewhere.example"}]}
        async with OpenApiTools(given, client=client) as tools:
            await asked(tools, ("do", {"q": "a"}))
        assert not client.is_closed
    assert (api.last.path, api.last.headers["x-team"]) == ("/v3/do", "red")


async def test_a_client_of_httpx2_does_as_well() -> None:
    properties = {"name": {}, "photo": {"type": "string", "format": "binary"}}
    given = posting("multipart/form-data", {"type": "object", "properties": properties})
    client: Any = httpx2.AsyncClient(headers={"x-team": "red"})
    async with served() as api, client:
        answer = await said(api, given, {"name": "Rex", "photo": "AAA="}, client=client)
        sent = api.last
        failed = await said(Api("http://127.0.0.1:1"), given, {"name": "Rex"}, client=client)
    assert (answer.content, sent.headers["x-team"], b"Rex" in sent.body) == ('{"ok":true}', "red", True)
    assert failed.text.startswith("do: POST http://127.0.0.1:1/do: ConnectError")


async def test_a_servers_variables_are_filled_in() -> None:
    async with served() as api:
        host = api.url.removeprefix("http://")
        servers = [
            {
                "url": "{scheme}://" + host + "/{base}",
                "variables": {"scheme": {"default": "http"}, "base": {"default": "a"}},
            }
        ]
        given = {**taking({"name": "q"}), "servers": servers}
        async with OpenApiTools(given, server_variables={"base": "b"}) as tools:
            await asked(tools, ("do", {}))
    assert api.last.path == "/b/do"


async def test_an_operations_own_server_comes_first() -> None:
    async with served() as api:
        given = document({"servers": [{"url": f"{api.url}/mine"}]}, servers=[{"url": "https://elsewhere.example"}])
        async with OpenApiTools(given) as tools:
            await asked(tools, ("do", {}))
    assert api.last.path == "/mine/do"


# --- answers

PNG = b"\x89PNG\r\n"


@pytest.mark.parametrize(
    ("body", "media", "wanted"),
    [
        (b'{"a": [1, null]}', "application/json; charset=utf-8", {"a": [1, None]}),
        (b'"text"', "application/problem+json", "text"),
        (b"{broken", "application/json", "{broken"),
        ("é".encode("latin-1"), "text/plain; charset=latin-1", "é"),
        (b"<a/>", "application/xml", "<a/>"),
        (PNG, "image/png", ImagePart(data=PNG, media_type="image/png")),
        (b"<svg/>", "image/svg+xml", "<svg/>"),
        (b"%PDF\xff", "application/pdf", FilePart(data=b"%PDF\xff", media_type="application/pdf", name="r.pdf")),
        (b"plain", "", "plain"),
        (b"\xff\x00", "", FilePart(data=b"\xff\x00", media_type="application/octet-stream", name="r.pdf")),
        (b"", "application/json", EMPTY),
    ],
)
async def test_an_answer_is_what_its_type_says(body: bytes, media: str, wanted: Any) -> None:
    headers = {"content-disposition": 'attachment; filename="r.pdf"'} | ({"content-type": media} if media else {})
    async with served() as api, OpenApiTools(taking(), base_url=api.url) as tools:
        api.answer = lambda: Response(body, headers=headers)
        assert await tools["do"]() == wanted


async def test_an_image_reaches_the_model_as_an_image_and_no_content_as_a_text() -> None:
    async with served() as api, OpenApiTools(taking(), base_url=api.url) as tools:
        api.answer = lambda: Response(PNG, media_type="image/png")
        image = await asked(tools, ("do", {}))
        api.answer = lambda: Response(status_code=204)
        nothing = await asked(tools, ("do", {}))
    assert image[0].content == [ImagePart(data=PNG, media_type="image/png")]
    assert (nothing[0].content, nothing[0].is_error) == (EMPTY, False)


async def test_an_error_of_the_server_is_told_with_status_and_body() -> None:
    async with served() as api:
        api.answer = lambda: Response(b'{"detail": "no such pet"}', 404, media_type="application/json")
        answer = await said(api, taking({"name": "q"}, path="/pets"), {"q": "secret"})
    assert answer.is_error
    assert answer.text == f'do: GET {api.url}/pets: status 404 Not Found: {{"detail": "no such pet"}}'


async def test_a_long_error_is_shortened_and_says_how_much_was_cut() -> None:
    async with served() as api:
        api.answer = lambda: Response("x" * 5000, 500)
        answer = await said(api, taking())
        bounded = await said(api, taking(), max_bytes=3000)
        api.answer = lambda: Response(b"\xff" * 10, 500, media_type="application/zip")
        binary = await said(api, taking())
    assert answer.text.endswith("x [cut: the first 2,000 of 5,000 characters]")
    assert bounded.text.endswith("x [cut: the first 2,000 of more than 3,000 characters]")
    assert len(answer.text) < 2200
    assert binary.text.endswith("status 500 Internal Server Error: (10 bytes of application/zip)")


async def test_a_large_answer_is_read_up_to_the_bound_and_says_so() -> None:
    async with served() as api:
        api.answer = lambda: Response("[" + "1," * 5000 + "1]", media_type="application/json")
        text = await said(api, taking(), max_bytes=100)
        api.answer = lambda: Response(PNG * 100, media_type="image/png")
        image = await said(api, taking(), max_bytes=100)
    assert text.content == "[" + "1," * 49 + "1" + "\n[cut: the first 100 bytes of a larger answer]"
    assert image.text == "the call succeeded, but its answer (image/png) is larger than 100 bytes: not read"


async def test_a_redirect_is_not_followed_and_no_credentials_go_elsewhere() -> None:
    async with served() as api:
        other = api.url.replace("127.0.0.1", "localhost")
        api.answer = lambda: Response(status_code=307, headers={"location": f"{other}/in?token=secret"})
        answer = await said(api, taking(), headers={"X-Key": "k"})
    assert len(api.requests) == 1
    assert answer.text == (
        f"do: GET {api.url}/do: status 307 Temporary Redirect: a redirect to {other}/in, which is not followed"
    )


@pytest.mark.parametrize("location", ["http://[bad", "http://user:secret@127.0.0.1/x?key=secret"])
async def test_a_redirect_is_told_without_secrets_wherever_it_leads(location: str) -> None:
    async with served() as api:
        api.answer = lambda: Response(status_code=302, headers={"location": location})
        answer = await said(api, taking())
    assert answer.is_error
    assert "status 302 Found: a redirect to " in answer.text
    assert "secret" not in answer.text


async def test_a_timeout_that_is_not_this_ones_own_comes_out_as_itself() -> None:
    class Slow(httpx.Auth):
        def auth_flow(self, request: httpx.Request) -> Any:
            raise TimeoutError("no token in time")

    async with served() as api:
        answer = await said(api, taking(), auth=Slow(), timeout=None)
    assert answer.text == "TimeoutError: no token in time"


async def test_an_answer_that_nests_too_deep_to_decode_is_a_text() -> None:
    deep = b"[" * 50_000
    async with served() as api, OpenApiTools(taking(), base_url=api.url) as tools:
        api.answer = lambda: Response(deep, media_type="application/json")
        assert await tools["do"]() == deep.decode()


async def test_a_server_that_cannot_be_reached_is_told_without_any_value() -> None:
    async with served_in_this_loop() as api:
        pass
    given = taking({"name": "q"}, {"name": "id", "in": "path", "required": True}, path="/pets/{id}")
    base = api.url.replace("http://", "http://user:secret@")
    async with OpenApiTools(given, base_url=base, fixed={"id": "secret"}) as tools:
        (answer,) = await asked(tools, ("do", {"q": "secret"}))
    assert answer.text.startswith(f"do: GET {api.url}/pets/{{id}}: ConnectError")
    assert "secret" not in answer.text


async def test_a_server_that_does_not_answer_is_told_with_the_time() -> None:
    over = asyncio.Event()
    async with served_in_this_loop() as api:
        api.before = over.wait
        answer = await said(api, taking(), timeout=0.02)
        over.set()
    assert answer.text == f"do: GET {api.url}/do: no whole answer within 0.02 s"


async def test_a_timeout_of_the_users_client_is_told_too() -> None:
    over = asyncio.Event()
    async with served_in_this_loop() as api, httpx.AsyncClient(timeout=0.02) as client:
        api.before = over.wait
        answer = await said(api, taking(), client=client)
        over.set()
    assert answer.text == f"do: GET {api.url}/do: ReadTimeout"


async def test_a_run_that_is_cancelled_leaves_no_request_behind() -> None:
    arrived, over = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        arrived.set()
        await over.wait()

    async with served_in_this_loop() as api, OpenApiTools(taking(), base_url=api.url) as tools:
        api.before = wait
        run = asyncio.create_task(asked(tools, ("do", {})))
        await arrived.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        over.set()


async def test_a_tool_that_outlives_its_block_says_so() -> None:
    async with served() as api:
        async with OpenApiTools(taking(), base_url=api.url) as tools:
            pass
        (answer,) = await asked(tools, ("do", {}))
    assert answer.text == f"ConfigError: do: GET {api.url}/do: called outside of the block of its OpenApiTools"
    assert repr(tools) == "<OpenApiTools 1 tools closed>"


async def test_an_error_of_the_users_auth_comes_out_as_itself() -> None:
    class Broken(httpx.Auth):
        def auth_flow(self, request: httpx.Request) -> Any:
            raise KeyError("no token")

    async with served() as api:
        answer = await said(api, taking(), auth=Broken())
    assert answer.text == "KeyError: 'no token'"


async def test_wrong_arguments_raise_a_tool_error_for_programs_too() -> None:
    async with served() as api, OpenApiTools(posting("application/json", NEEDS_A), base_url=api.url) as tools:
        with pytest.raises(ToolError, match="'a' missing"):
            await tools["do"](b=1)
