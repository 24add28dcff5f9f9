"""A model that chooses the tools that another one is told of."""

import logging
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import ConfigError, RunConfig
from agentgraph.checkpoint import MemorySaver
from agentgraph.events import ModelDelta
from agentgraph.messages import AssistantMessage, ToolCall, Usage, UserMessage
from agentgraph.models import ModelError, ModelRequest, ModelResponse
from agentgraph.nodes import LlmRequest, ModelCall, ReactAgent, Tool, tool
from agentgraph.nodes.interceptors import ToolSelection
from agentgraph.testing import ScriptedModel

NAMES = ["add", "book", "call", "draw"]


def made(name: str) -> Tool:
    async def fn() -> str:
        return f"{name} done"

    return Tool(fn, name=name, description=f"Can {name}.")


TOOLS = [made(name) for name in NAMES]


def offered(model: ScriptedModel) -> list[list[str]]:
    return [[spec.name for spec in request.tools] for request in model.requests]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_model_sees_the_tools_that_were_chosen_in_their_own_order(stream: bool) -> None:
    async with ScriptedModel(['{"tools": ["draw", "book"]}']) as small, ScriptedModel(["done"]) as model:
        agent = ReactAgent("clerk", model, TOOLS, interceptors=[ToolSelection(small)], stream=stream)
        await agent.run("Draw a book.")
    assert offered(model) == [["book", "draw"]]
    (asked,) = small.requests
    assert asked.tools == []
    assert "- book: Can book.\n" in asked.messages[0].text
    assert "User: Draw a book." in asked.messages[0].text


@pytest.mark.parametrize(
    "answer",
    [
        '["book"]',
        '```json\n{"tools": ["book"]}\n```',
        'Sure: {"tools": ["book", "fly", 3]}.',
        '{"tools": ["book", "book"]}',
    ],
)
async def test_an_answer_in_another_form_is_read(answer: str) -> None:
    async with ScriptedModel([answer]) as small, ScriptedModel(["done"]) as model:
        await ReactAgent("clerk", model, TOOLS, interceptors=[ToolSelection(small)]).run("go")
    assert offered(model) == [["book"]]


@pytest.mark.parametrize(
    "answer",
    [
        "I like books.",
        "{",
        '{"tools": ["fly"]}',
        '{"tools": "book"}',
        "3",
        '{"names": []}',
        ModelError("down"),
        KeyError("x"),
    ],
)
async def test_a_bad_answer_or_a_failed_call_leaves_all_tools(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedModel([answer]) as small, ScriptedModel(["done"]) as model:
        with caplog.at_level(logging.WARNING, "agentgraph"):
            result = await ReactAgent("clerk", model, TOOLS, interceptors=[ToolSelection(small)]).run("go")
    assert (result.text, offered(model)) == ("done", [NAMES])
    assert "ToolSelection" in caplog.text


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        st.text(),
        st.recursive(st.none() | st.text() | st.integers(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)),
    )
)
async def test_no_answer_breaks_the_call(answer: Any) -> None:
    text = answer if isinstance(answer, str) and answer.strip() else msgspec.json.encode(answer).decode()
    model = ScriptedModel(["done"])
    await ReactAgent("clerk", model, TOOLS, interceptors=[ToolSelection(ScriptedModel([text]))]).run("go")
    assert offered(model) in ([NAMES], [[]])


async def test_an_answer_that_names_no_tool_leaves_those_that_are_always_there() -> None:
    async with ScriptedModel(['{"tools": []}']) as small, ScriptedModel(["done"]) as model:
        selection = ToolSelection(small, always=["call", TOOLS[0]])
        await ReactAgent("clerk", model, TOOLS, interceptors=[selection]).run("go")
    assert offered(model) == [["add", "call"]]
    assert "Can call" not in small.requests[0].messages[0].text


async def test_no_more_are_taken_than_most() -> None:
    async with ScriptedModel(['["draw", "call", "add"]']) as small, ScriptedModel(["done"]) as model:
        selection = ToolSelection(small, most=2, always=["book"])
        await ReactAgent("clerk", model, TOOLS, interceptors=[selection]).run("go")
    assert offered(model) == [["book", "call", "draw"]]


async def test_where_there_are_no_more_tools_than_most_nobody_is_asked() -> None:
    async with ScriptedModel([]) as small, ScriptedModel(["done"]) as model:
        await ReactAgent("clerk", model, TOOLS, interceptors=[ToolSelection(small, most=4)]).run("go")
    assert offered(model) == [NAMES]


async def test_it_is_asked_once_a_turn_and_called_tools_stay() -> None:
    turns = [[ToolCall("c1", "book")], [ToolCall("c2", "draw")], "done", "done again"]
    async with ScriptedModel(['["book"]', '["add"]']) as small, ScriptedModel(turns) as model:
        agent = ReactAgent("clerk", model, TOOLS, interceptors=[ToolSelection(small)], checkpointer=MemorySaver())
        result = await agent.run("go", RunConfig(thread_id="t"))
        await agent.run("and on", RunConfig(thread_id="t"))
    # the second call is of a tool that the model was not told of: it runs, and is there from then on
    assert offered(model) == [["book"], ["book"], ["book", "draw"], ["add"]]
    assert [m.text for m in result.messages] == ["go", "", "book done", "", "draw done", "done"]


async def test_tools_of_the_run_are_chosen_from_too() -> None:
    async def bring(request: LlmRequest, call: ModelCall) -> ModelResponse:
        return await call(msgspec.structs.replace(request, dynamic_tools=TOOLS[2:]))

    turns = [[ToolCall("c1", "draw")], "done"]
    async with ScriptedModel(['["draw"]']) as small, ScriptedModel(turns) as model:
        agent = ReactAgent("clerk", model, TOOLS[:2], interceptors=[bring, ToolSelection(small)])
        result = await agent.run("go")
    assert offered(model) == [["draw"], ["draw"]]
    assert result.messages[2].text == "draw done"


async def test_without_a_model_the_agents_own_chooses_and_readers_see_only_the_answer() -> None:
    steps = [AssistantMessage('["add"]', usage=Usage(7, 1)), AssistantMessage("done", usage=Usage(5, 1))]
    model = ScriptedModel(steps)
    async with ReactAgent("clerk", model, TOOLS, interceptors=[ToolSelection()]).stream("go") as stream:
        told = [e.text async for e in stream if isinstance(e, ModelDelta)]
    assert told == ["done"]
    assert offered(model) == [[], ["add"]]
    assert stream.result.usage == Usage(12, 2, calls=2)


async def test_a_model_that_takes_a_schema_gets_it() -> None:
    class Native(ScriptedModel):
        native_output_schema = True

    async with Native(['{"tools": ["add"]}']) as small, ScriptedModel(["done"]) as model:
        await ReactAgent("clerk", model, TOOLS, interceptors=[ToolSelection(small, options={"temperature": 0})]).run(
            "go"
        )
    (asked,) = small.requests
    assert asked.output_schema is not None
    assert asked.output_schema["properties"]["tools"]["items"]["enum"] == NAMES
    assert (asked.options, "JSON schema" in asked.messages[0].text) == ({"temperature": 0}, False)


async def test_hidden_tools_and_no_tools_need_no_choice() -> None:
    async with ScriptedModel([]) as small, ScriptedModel(["one", "two"]) as model:
        await ReactAgent("clerk", model, TOOLS, interceptors=[ToolSelection(small)], options={"tools": []}).run("go")
        await ReactAgent("clerk", model, interceptors=[ToolSelection(small)]).run("go")
    assert offered(model) == [[], []]


async def test_what_was_said_before_is_shown_with_the_question() -> None:
    @tool
    async def secret() -> str:
        """Tell a secret."""
        return "x" * 5000

    history = [UserMessage("Draw a cat."), AssistantMessage("Here it is."), UserMessage("Again, of a dog.")]
    async with ScriptedModel(['["draw"]']) as small, ScriptedModel(["done"]) as model:
        await ReactAgent("clerk", model, [*TOOLS, secret], interceptors=[ToolSelection(small)]).run(history)
    asked: ModelRequest = small.requests[0]
    assert "User: Draw a cat.\nAssistant: Here it is.\nUser: Again, of a dog." in asked.messages[0].text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"most": 0}, "must be a positive whole number"),
        ({"always": "add"}, "tools come in a list"),
        ({"model": "nano"}, "provider"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ToolSelection(**options)
