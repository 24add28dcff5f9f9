"""Tools: their options, what their results become, and what a call gets to know of its run."""

import asyncio
import collections
import contextvars
import datetime as dt
import functools
import threading
import types
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, Flag, StrEnum
from pathlib import PurePosixPath
from typing import Any, cast

import msgspec
import pydantic
import pytest

from agentgraph import (
    END,
    START,
    CompiledGraph,
    ConfigError,
    RunConfig,
    RunEndedError,
    StateGraph,
)
from agentgraph.context import CancellationToken
from agentgraph.events import ToolProgress
from agentgraph.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    TextPart,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    Usage,
    UserMessage,
    encode,
)
from agentgraph.nodes import Answer, ReactAgent, Tool, ToolContext, ToolError, ToolHandler, ToolNode, ToolRequest, tool
from agentgraph.strategies import Append, Messages
from agentgraph.testing import ScriptedModel


def app_of(*tools: Tool | Callable[..., Any], **options: Any) -> CompiledGraph[dict[str, Any]]:
    graph = StateGraph(strategies={"messages": Messages(), "log": Append()})
    graph.add_node("tools", ToolNode(tools, **options))
    graph.add_edge(START, "tools")
    graph.add_edge("tools", END)
    return graph.compile()


def asking(*calls: tuple[str, str] | str) -> dict[str, Any]:
    """A state whose last message makes these calls: a tool's name, or name and arguments."""
    pairs = [(c, "") if isinstance(c, str) else c for c in calls]
    made = [ToolCall(f"c{i}", name, arguments) for i, (name, arguments) in enumerate(pairs)]
    return {"messages": [AssistantMessage(tool_calls=made)]}


def answers(state: dict[str, Any]) -> list[ToolResponse]:
    return next(m for m in state["messages"] if isinstance(m, ToolResponseMessage)).responses


async def answer_of(made: Tool | Callable[..., Any], arguments: str = "") -> ToolResponse:
    made = made if isinstance(made, Tool) else Tool(made)
    result = await app_of(made).invoke(asking((made.name, arguments)))
    return answers(result.state)[0]


def test_a_decorated_function_is_a_tool_with_the_functions_name_and_docstring() -> None:
    @tool
    async def search(query: str) -> str:
        """Search the web."""
        return query

    assert (search.name, search.description, search.timeout, search.return_direct) == (
        "search",
        "Search the web.",
        None,
        False,
    )
    assert search.is_async
    assert search.spec.parameters == search.parameters


def test_options_take_the_place_of_what_is_read() -> None:
    @tool(name="find", description="Find it.", timeout=3, return_direct=True)
    def search(query: str) -> str:
        """Search the web."""
        return query

    assert (search.name, search.description, search.timeout, search.return_direct) == ("find", "Find it.", 3, True)
    assert (search.spec.name, search.spec.description) == ("find", "Find it.")
    assert not search.is_async


async def test_calling_a_tool_calls_its_function() -> None:
    @tool
    async def double(a: int) -> int:
        return 2 * a

    assert await double(4) == 8


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), True, "5"])
def test_a_timeout_that_cannot_be_meant_is_refused(timeout: Any) -> None:
    def f(): ...

    with pytest.raises(ConfigError, match="tool 'f': timeout"):
        Tool(f, timeout=timeout)


def test_what_is_no_function_is_refused() -> None:
    for wrong in ("search", 7, None):
        with pytest.raises(ConfigError, match="function"):
            Tool(cast("Any", wrong))
        with pytest.raises(ConfigError, match="functions or Tool objects"):
            ToolNode([cast("Any", wrong)])


def test_a_tool_of_a_tool_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"<Tool f> is a tool already; .* made of its function, Tool\(it\.fn\)"):
        Tool(Tool(lambda: 1, name="f"))


@pytest.mark.parametrize("option", ["name", "description"])
def test_a_name_and_a_description_are_texts(option: str) -> None:
    def f(): ...

    with pytest.raises(ConfigError, match=f": {option} must be a text, found 5"):
        Tool(f, **{option: cast("Any", 5)})


@pytest.mark.parametrize("wrong", ["x", [("type", "object")], int, {"type": "string"}, {"a": {"type": "integer"}}, {}])
def test_parameters_that_are_no_schema_of_an_object_are_refused(wrong: Any) -> None:
    def f(**given: Any): ...

    with pytest.raises(ConfigError, match=r"tool 'f': parameters must be a JSON schema of type object.*found"):
        Tool(f, parameters=wrong)


def test_parameters_that_the_function_does_not_take_or_that_it_lacks_are_refused() -> None:
    def f(a: int): ...
    def g(b: int, context: ToolContext, a: int = 1): ...

    with pytest.raises(ConfigError, match="tool 'f', schema: unknown argument of the function 'b'; known: 'a'"):
        Tool(f, parameters={"type": "object", "properties": {"b": {}}})
    with pytest.raises(ConfigError, match="tool 'g': its schema does not name 'b', which the function needs"):
        Tool(g, parameters={"type": "object", "properties": {"a": {}}})


async def test_a_model_cannot_set_what_the_function_has_beside_a_schema_of_its_own() -> None:
    def f(a: int, user: str = "guest", *, key: str = "", **rest: Any) -> Any:
        return [a, user, key, rest]

    made = Tool(functools.partial(f, key="k"), parameters=SCHEMA)
    assert (await answer_of(made, '{"a": 1, "b": 2}')).content == '[1,"guest","k",{"b":2}]'
    for forged in ("user", "key"):
        told = (await answer_of(made, f'{{"a": 1, "{forged}": "root"}}')).text
        assert told == f"invalid arguments for tool 'f': unknown argument '{forged}'; known: 'a'"


def test_generators_are_refused() -> None:
    def pieces():
        yield 1

    async def later():
        yield 1

    for fn in (pieces, later, functools.partial(pieces)):
        with pytest.raises(ConfigError, match="generator"):
            Tool(fn)


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(ConfigError, match="lambda has no name"):
        Tool(lambda: 1)
    assert Tool(lambda: 1, name="one").name == "one"


def test_a_method_without_its_instance_is_refused_by_the_node() -> None:
    class Shop:
        @tool
        def count(self) -> int:
            return 1

    with pytest.raises(ConfigError, match="tool 'count' is a method and has no instance"):
        ToolNode([Shop.count])
    assert list(ToolNode([Shop().count]).tools) == ["count"]


async def test_a_decorated_method_runs_on_its_instance() -> None:
    class Shop:
        def __init__(self, stock: int) -> None:
            self.stock = stock

        @tool
        async def take(self, n: int, ctx: ToolContext) -> int:
            self.stock -= n
            ctx.update(log=ctx.call_id)
            return self.stock

    shop = Shop(10)
    result = await app_of(shop.take, parallel=False).invoke(asking(("take", '{"n": 3}'), ("take", '{"n": 4}')))
    assert [a.content for a in answers(result.state)] == ["7", "3"]
    assert result.state["log"] == ["c0", "c1"]


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


async def test_with_a_schema_of_its_own_a_tool_gets_the_arguments_as_they_are() -> None:
    @tool(parameters=SCHEMA)
    async def f(context: "ToolContext | None", **given: Any) -> Any:
        assert context is not None
        return [context.call_id, given]

    assert f.parameters == SCHEMA
    assert (await answer_of(f, '{"a": "1", "b": [2], "context": 5}')).content == '["c0",{"a":"1","b":[2]}]'
    assert "'a' missing" in (await answer_of(f, '{"b": 1}')).text
    assert "not valid JSON" in (await answer_of(f, '{"b"')).text


async def test_a_strict_tool_says_so_and_takes_null_for_what_it_was_not_given() -> None:
    class Place(msgspec.Struct):
        x: int
        y: int = 7

    @tool(strict=True)
    async def f(at: Place, n: int = 3, q: str | None = "q") -> Any:
        return [at, n, q]

    assert f.spec.strict
    assert not Tool(f.fn).spec.strict
    answer = await answer_of(f, '{"at": {"x": 1, "y": null}, "n": null, "q": null}')
    assert answer.content == '[{"x":1,"y":7},3,null]'


OPTIONAL = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": ["integer", "null"]}, "c": {"type": "integer"}},
    "required": ["c"],
}


async def test_a_strict_tool_with_a_schema_of_its_own_gets_no_null_that_the_schema_does_not_take() -> None:
    async def f(**given: Any) -> Any:
        return given

    call = '{"a": null, "b": null, "c": null}'
    assert (await answer_of(Tool(f, parameters=OPTIONAL, strict=True), call)).content == '{"b":null,"c":null}'
    assert (await answer_of(Tool(f, parameters=OPTIONAL), call)).content == '{"a":null,"b":null,"c":null}'


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"type": "object"}, "tool 'f': cannot be strict: it takes an object with any keys"),
        (
            {"type": "object", "properties": {"a": {"type": "array"}}},
            "tool 'f', parameter 'a': cannot be strict: it takes any value",
        ),
        ({"anyOf": [SCHEMA]}, "tool 'f': cannot be strict: the arguments are not one plain object"),
    ],
)
def test_a_schema_that_no_provider_takes_strictly_is_refused(parameters: Any, why: str) -> None:
    def f(**given: Any): ...

    Tool(f, parameters=parameters)
    with pytest.raises(ConfigError, match=why):
        Tool(f, parameters=parameters, strict=True)


async def test_a_plain_function_runs_in_a_thread_with_the_callers_contextvars() -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user")
    user.set("ada")

    def who() -> str:
        return f"{user.get()} {threading.current_thread() is threading.main_thread()}"

    assert (await answer_of(who)).content == "ada False"


async def test_what_a_plain_function_returns_to_be_awaited_is_awaited() -> None:
    async def inner() -> str:
        return "awaited"

    def outer() -> Awaitable[str]:
        return inner()

    assert (await answer_of(outer)).content == "awaited"


class Point(msgspec.Struct):
    x: int


@dataclass
class Order:
    items: list[str]


class Mood(StrEnum):
    GOOD = "good"


class Model(pydantic.BaseModel):
    n: int
    name: str = "it"


@pydantic.dataclasses.dataclass
class Shelf:
    models: list[Model]


@dataclass
class Row:
    model: Model
    ids: set[int]


class Weight(Enum):
    LIGHT = 1


class Lock(Flag):
    OPEN = 1
    LIT = 2


class Name(str):
    __slots__ = ()


class Ratio(float):
    __slots__ = ()


URL = pydantic.TypeAdapter(pydantic.HttpUrl).validate_python("https://example.com")
IMAGE = ImagePart(url="https://example.com/a.png")
FILE = FilePart(data=b"%PDF")

RESULTS: list[tuple[Any, Any]] = [
    ("text", "text"),
    (None, "(no output)"),
    ("", "(no output)"),
    (" \n", "(no output)"),
    ([], "[]"),
    ({}, "{}"),
    ({"a": [1, None]}, '{"a":[1,null]}'),
    ({1: "a"}, '{"1":"a"}'),
    (["a", "b"], '["a","b"]'),
    (0, "0"),
    (False, "false"),
    (1.5, "1.5"),
    (Point(1), '{"x":1}'),
    ([Point(1)], '[{"x":1}]'),
    (Order(["egg"]), '{"items":["egg"]}'),
    (Mood.GOOD, "good"),
    (Model(n=1), '{"n":1,"name":"it"}'),
    ({"all": [Model(n=1)]}, '{"all":[{"n":1,"name":"it"}]}'),
    (Shelf([Model(n=1)]), '{"models":[{"n":1,"name":"it"}]}'),
    (Row(Model(n=1), {2}), '{"model":{"n":1,"name":"it"},"ids":[2]}'),
    ([URL], '["https://example.com/"]'),
    (pydantic.SecretStr("key"), '"**********"'),
    (Weight.LIGHT, "1"),
    (Lock.OPEN | Lock.LIT, "3"),
    ({Mood.GOOD: Mood.GOOD}, '{"good":"good"}'),
    ([Name("Ada"), Ratio(0.5)], '["Ada",0.5]'),
    (b"hi", '"aGk="'),
    ({"c", "a", "b"}, '["a","b","c"]'),
    (frozenset([2, 1]), "[1,2]"),
    ((1, "a"), '[1,"a"]'),
    (collections.deque([1]), "[1]"),
    (range(3), "[0,1,2]"),
    ({"a": 1}.keys(), '["a"]'),
    ({"a": 1}.items(), '[["a",1]]'),
    (types.MappingProxyType({"a": 1}), '{"a":1}'),
    (collections.Counter("aa"), '{"a":2}'),
    (PurePosixPath("/a/b"), '"/a/b"'),
    (dt.date(2026, 1, 2), '"2026-01-02"'),
    ([Decimal("1.50"), 10**30], '["1.50",1000000000000000000000000000000]'),
    (float("nan"), "null"),
    (Name("text"), "text"),
    (TextPart("hi"), [TextPart("hi")]),
    (IMAGE, [IMAGE]),
    ([TextPart("hi"), IMAGE, FILE], [TextPart("hi"), IMAGE, FILE]),
    (["look:", IMAGE], [TextPart("look:"), IMAGE]),
    (("look:", IMAGE), [TextPart("look:"), IMAGE]),
    ([IMAGE, {"width": 5}, [FILE]], [IMAGE, TextPart('{"width":5}'), FILE]),
]


@pytest.mark.case("D17")
@pytest.mark.parametrize(("value", "content"), RESULTS, ids=lambda v: repr(v)[:30])
async def test_each_kind_of_result_becomes_content_that_is_not_empty(value: Any, content: Any) -> None:
    async def give() -> Any:
        return value

    answer = await answer_of(give)
    assert answer == ToolResponse("c0", "give", content)
    assert type(answer.content) in (str, list)


class Holder(pydantic.BaseModel, arbitrary_types_allowed=True):
    it: object


def circle() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


@pytest.mark.case("D17")
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (object(), "object"),
        ({(1, 2): 3}, "dict"),
        ([object()], "list"),
        (circle(), "list"),
        (print, "builtin"),
        ((n for n in [1]), "generator"),
        (Model, "ModelMetaclass"),
        (Holder(it=object()), "Holder"),
        (1j, "complex"),
        ([IMAGE, object()], "object"),
    ],
    ids=["object", "key", "inside", "circle", "function", "generator", "class", "pydantic", "complex", "parts"],
)
async def test_a_result_without_a_json_form_is_an_error_answer_naming_tool_and_type(value: Any, kind: str) -> None:
    async def odd(ctx: ToolContext) -> Any:
        ctx.update(log="discarded")
        return value

    result = await app_of(odd).invoke(asking("odd"))
    (answer,) = answers(result.state)
    assert (answer.id, answer.is_error) == ("c0", True)
    assert "tool 'odd' returned a " + kind in answer.text
    assert "no JSON form" in answer.text
    assert result.state["log"] == []


@pytest.mark.parametrize("key", [(1, 2), None], ids=["tuple", "none"])
async def test_a_key_that_json_does_not_know_is_told_as_one(key: Any) -> None:
    async def odd() -> Any:
        return {"a": [{key: 3}]}

    text = (await answer_of(odd)).text
    assert text.endswith(
        f"tool 'odd' returned a dict, which has no JSON form: a {type(key).__name__} is no key of a JSON object"
    )


class Note(msgspec.Struct):
    text: str


@pytest.mark.case("D16")
@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("a\ud83d\0", "a�\0"),
        ("\ud83d\ude00", "😀"),
        ("sound é 😀", "sound é 😀"),
        ({"k\udc00": ["a\ud83d"]}, '{"k�":["a�"]}'),
        (Note("a\ud83d"), '{"text":"a�"}'),
        ([Model(n=1, name="a\ud83d")], '[{"n":1,"name":"a�"}]'),
        (TextPart("a\ud83d"), [TextPart("a�")]),
        (["a\ud83d", IMAGE], [TextPart("a�"), IMAGE]),
    ],
    ids=["half", "pair", "sound", "dict", "struct", "pydantic", "part", "text among parts"],
)
async def test_lone_surrogates_in_a_result_are_replaced_and_all_of_it_encodes(value: Any, content: Any) -> None:
    async def give() -> Any:
        return value

    answer = await answer_of(give)
    assert answer.content == content
    assert encode([ToolResponseMessage([answer])])


@pytest.mark.case("D16")
async def test_lone_surrogates_in_an_error_are_replaced() -> None:
    async def fail() -> None:
        raise ValueError("a\ud83d")

    async def refuse() -> None:
        raise ToolError("a\ud83d")

    assert (await answer_of(fail)).content == "ValueError: a�"
    assert (await answer_of(refuse)).content == "a�"


async def test_an_answer_carries_content_updates_and_metadata() -> None:
    async def look(ctx: ToolContext) -> Answer:
        ctx.update(log="by context")
        return Answer({"n": 1}, update={"log": "by answer"}, metadata={"source": "map"})

    result = await app_of(look).invoke(asking("look"))
    assert answers(result.state) == [ToolResponse("c0", "look", '{"n":1}')]
    assert result.state["log"] == ["by context", "by answer"]
    message = result.state["messages"][-1]
    assert message.metadata["answers"] == {"c0": {"source": "map"}}


async def test_an_answer_without_content_is_not_empty() -> None:
    async def note() -> Answer:
        return Answer(None, update={"log": "x"})

    assert (await answer_of(note)).content == "(no output)"


@pytest.mark.parametrize("option", ["update", "metadata"])
async def test_an_answer_whose_update_or_metadata_is_no_dict_is_an_error_answer(option: str) -> None:
    async def note() -> Answer:
        return Answer("ok", **{option: cast("Any", ["log"])})

    answer = await answer_of(note)
    assert answer.is_error
    assert f"Answer({option}=...) must be a dict" in answer.text


async def test_a_call_knows_its_state_its_run_its_call_and_the_nodes_extras() -> None:
    seen: dict[str, Any] = {}

    async def look(a: int, ctx: ToolContext) -> None:
        seen.update(id=ctx.call_id, name=ctx.name, extras=dict(ctx.extras), context=ctx.run.context)
        seen.update(tags=ctx.run.config.tags, log=ctx.state["log"], same=ctx.state is ctx.state)
        ctx.state["log"] = ["changed"]

    app = app_of(look, tool_context={"db": "it"})
    given = {**asking(("look", '{"a": 1}')), "log": ["old"]}
    result = await app.invoke(given, RunConfig(tags=("t",)), context="caller's")
    assert seen == {
        "id": "c0",
        "name": "look",
        "extras": {"db": "it"},
        "context": "caller's",
        "tags": ("t",),
        "log": ["old"],
        "same": False,
    }
    assert result.state["log"] == ["old"]


async def test_updates_of_a_failed_call_are_thrown_away() -> None:
    async def half(ctx: ToolContext) -> None:
        ctx.update(log="written")
        raise ValueError("then failed")

    result = await app_of(half).invoke(asking("half"))
    assert result.state["log"] == []


async def test_a_state_key_may_have_any_name() -> None:
    async def name(ctx: ToolContext) -> None:
        ctx.update(self=1, keys=2)

    graph = StateGraph(strategies={"messages": Messages(), "self": Append(), "keys": Append()})
    graph.add_node("tools", ToolNode([name]))
    graph.add_edge(START, "tools").add_edge("tools", END)
    state = (await graph.compile().invoke(asking("name"))).state
    assert (state["self"], state["keys"]) == ([1], [2])


AFTER: dict[str, Callable[[ToolContext], Any]] = {
    "update": lambda ctx: ctx.update(log="late"),
    "emit": lambda ctx: ctx.emit({"late": True}),
    "progress": lambda ctx: ctx.progress(1.0),
    "interrupt": lambda ctx: ctx.interrupt("late"),
}


@pytest.mark.parametrize("does", AFTER)
@pytest.mark.parametrize("ends", ["well", "by an error"])
async def test_after_its_call_a_context_touches_nothing_of_the_run(does: str, ends: str) -> None:
    left: list[ToolContext] = []

    async def leak(ctx: ToolContext) -> None:
        left.append(ctx)
        if ends != "well":
            raise ValueError

    async def later() -> None:
        with pytest.raises(RunEndedError, match=r"tool 'leak' .*, but its call 'c0' has ended"):
            AFTER[does](left[0])

    result = await app_of(leak, later, parallel=False).invoke(asking("leak", "later"))
    assert answers(result.state)[1].text == "(no output)"
    assert result.state["log"] == []
    assert repr(left[0]) == "<ToolContext leak c0 ended>"


RUN_AFTER: dict[str, Callable[[ToolContext], Any]] = {
    "emit": lambda ctx: ctx.run.emit({"late": True}),
    "add_usage": lambda ctx: ctx.run.add_usage(Usage(1, 1)),
    "next_iteration": lambda ctx: ctx.run.next_iteration(),
    "scratch": lambda ctx: ctx.run.scratch,
    "interrupt": lambda ctx: ctx.run.interrupt("late"),
    "part": lambda ctx: ctx.run.part("late"),
}


@pytest.mark.parametrize("does", RUN_AFTER)
async def test_after_its_call_the_run_of_a_context_is_over_and_that_of_others_is_not(does: str) -> None:
    left: list[ToolContext] = []

    async def leak(ctx: ToolContext) -> None:
        left.append(ctx)

    async def later(ctx: ToolContext) -> str:
        with pytest.raises(RunEndedError, match=r"attempt has ended: call 'c0' of tool 'leak' has ended"):
            RUN_AFTER[does](left[0])
        await ctx.run.emit({"on": "time"})
        return str(ctx.run.usage)

    result = await app_of(leak, later, parallel=False).invoke(asking("leak", "later"))
    assert answers(result.state)[1].text == "None"


async def test_a_thread_that_was_left_behind_stops_nothing_by_the_tokens_it_can_reach() -> None:
    loop, timed_out, tried = asyncio.get_running_loop(), threading.Event(), asyncio.Event()
    tokens: list[CancellationToken] = []

    def stuck(ctx: ToolContext) -> None:
        timed_out.wait(10)
        for token in (ctx.cancellation, ctx.run.cancellation):
            tokens.append(token)
            token.cancel("by the one left behind")
        loop.call_soon_threadsafe(tried.set)

    async def later(ctx: ToolContext) -> str:
        timed_out.set()
        await tried.wait()
        return f"{ctx.cancellation.cancelled} {ctx.run.config.recursion_limit}"

    result = await app_of(Tool(stuck, timeout=0.02), later, parallel=False).invoke(asking("stuck", "later"))
    assert [a.text[:20] for a in answers(result.state)] == ["tool 'stuck' timed o", "False 100"]
    assert [t.reason for t in tokens] == ["it timed out after 0.02 s"] * 2


async def test_a_tool_that_cancels_its_own_token_stops_no_other_call() -> None:
    async def gives_up(ctx: ToolContext) -> str:
        ctx.run.cancellation.cancel("enough")
        return str(ctx.cancellation.cancelled)

    async def goes_on(ctx: ToolContext) -> str:
        return str(ctx.cancellation.cancelled)

    result = await app_of(gives_up, goes_on, parallel=False).invoke(asking("gives_up", "goes_on"))
    assert [a.text for a in answers(result.state)] == ["True", "False"]


async def test_what_a_call_records_once_is_its_own_and_holds_when_it_is_made_again() -> None:
    made: list[str] = []

    async def buy(ctx: ToolContext) -> str:
        def pay() -> str:
            made.append(ctx.call_id)
            return f"receipt {len(made)}"

        return await ctx.run.once("pay", pay)

    async def again(request: ToolRequest, call: ToolHandler) -> ToolResponse:
        await call(request)
        return await call(request)

    result = await app_of(buy, parallel=False, interceptors=[again]).invoke(asking("buy", "buy"))
    assert [a.text for a in answers(result.state)] == ["receipt 1", "receipt 2"]
    assert made == ["c0", "c1"]


async def test_a_task_that_a_tool_leaves_behind_cannot_write_any_more() -> None:
    go = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    async def write(ctx: ToolContext) -> None:
        await go.wait()
        ctx.update(log="late")

    async def leak(ctx: ToolContext) -> str:
        tasks.append(asyncio.create_task(write(ctx)))
        return "left"

    result = await app_of(leak).invoke(asking("leak"))
    go.set()
    with pytest.raises(RunEndedError):
        await tasks[0]
    assert result.state["log"] == []


async def test_the_token_of_a_call_that_ended_well_is_not_cancelled_but_one_asked_for_later_is() -> None:
    contexts: list[ToolContext] = []
    tokens: list[Any] = []

    async def leak(ctx: ToolContext) -> None:
        contexts.append(ctx)
        tokens.append(ctx.cancellation)

    async def quiet(ctx: ToolContext) -> None:
        contexts.append(ctx)

    await app_of(leak, quiet).invoke(asking("leak", "quiet"))
    assert not tokens[0].cancelled
    assert contexts[0].cancellation is tokens[0]
    assert contexts[1].cancellation.cancelled


async def test_a_thread_reports_its_progress_and_blocks_until_it_is_taken() -> None:
    def count(ctx: ToolContext) -> str:
        for n in range(3):
            ctx.progress(n, total=3, text=f"at {n}", data={"n": n})
        return "done"

    async with app_of(count).stream(asking("count"), buffer=1) as events:
        reports = [e async for e in events if isinstance(e, ToolProgress)]
    assert [(r.call_id, r.name, r.progress, r.total, r.text, r.data) for r in reports] == [
        ("c0", "count", n, 3, f"at {n}", {"n": n}) for n in range(3)
    ]


async def test_a_tool_asks_by_interrupting_past_except_exception_and_the_others_finish_first() -> None:
    ended: list[str] = []

    go = asyncio.Event()

    async def ask(ctx: ToolContext) -> str:
        if ctx.call_id == "c0":
            await go.wait()  # the first to be called is the last to ask
        go.set()
        try:
            return ctx.interrupt({"may": "I?"})
        except Exception:
            return "swallowed"

    async def work() -> str:
        await go.wait()
        ended.append("work")
        return "done"

    result = await app_of(ask, work).invoke(asking("ask", "work", "ask"))
    assert result.status == "interrupted"
    assert [(i.id, i.value, i.node) for i in result.interrupts] == [
        ("tools:c0", {"may": "I?"}, ("tools",)),
        ("tools:c2", {"may": "I?"}, ("tools",)),
    ]
    assert ended == ["work"]
    assert len(result.state["messages"]) == 1


async def test_a_plain_function_may_ask_too_and_so_may_a_task_of_a_tool() -> None:
    def in_thread(ctx: ToolContext) -> Any:
        return ctx.interrupt("from a thread")

    async def in_task(ctx: ToolContext) -> None:
        async def ask() -> None:
            ctx.interrupt("from a task")

        async with asyncio.TaskGroup() as group:
            group.create_task(ask())

    result = await app_of(in_thread, in_task).invoke(asking("in_thread", "in_task"))
    assert [i.value for i in result.interrupts] == ["from a thread", "from a task"]


async def test_a_message_among_a_tools_updates_follows_the_answers() -> None:
    async def remark(ctx: ToolContext) -> str:
        ctx.update(messages=UserMessage("by the way"))
        return "said"

    state = (await app_of(remark).invoke(asking("remark"))).state
    assert [type(m).__name__ for m in state["messages"]] == ["AssistantMessage", "ToolResponseMessage", "UserMessage"]


async def test_a_tool_that_returns_what_an_agent_came_to_has_said_what_the_agent_said() -> None:
    async def ask(context: ToolContext) -> object:
        return await ReactAgent("inner", ScriptedModel(["hello"])).run("say hello")

    assert (await app_of(ask).invoke(asking("ask"))).state["messages"][-1].text == "hello"
