"""Agents over A2A on loopback: ours called by the official SDK's client and by ours, and others' servers by ours."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn
from a2a.client import Client, ClientConfig, create_client
from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from fasta2a import FastA2A, Worker  # pyright: ignore[reportMissingTypeStubs]
from fasta2a.broker import InMemoryBroker  # pyright: ignore[reportMissingTypeStubs]
from fasta2a.storage import InMemoryStorage  # pyright: ignore[reportMissingTypeStubs]
from starlette.applications import Starlette
from starlette.authentication import SimpleUser
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from agentgraph import END, START, Command, RunConfig, RunResult, StateGraph
from agentgraph.checkpoint import MemorySaver
from agentgraph.errors import ConfigError, InputError
from agentgraph.events import Custom, Event, ModelDelta, ToolStarted
from agentgraph.messages import AssistantMessage, FilePart, ImagePart, TextPart, ToolCall, UserMessage
from agentgraph.models import Delta, ModelRequest, ModelResponse
from agentgraph.nodes import ReactAgent, ToolContext, tool
from agentgraph.nodes.a2a import A2aAgent, A2aConnectionError, A2aError, A2aTimeoutError, a2a_app, agent_card
from agentgraph.nodes.a2a_parts import data_in, data_part, text_in
from agentgraph.nodes.flows import SequentialAgent
from agentgraph.strategies import Messages, Replace
from agentgraph.testing import FunctionModel, ScriptedModel

LONG = "The answer is long enough to be told in several pieces, one behind the other, until it has ended."


@asynccontextmanager
async def listening(make: Callable[[str], ASGIApp]) -> AsyncGenerator[str]:
    """A web application on a real server; gives its URL."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(make(url), log_level="error", timeout_graceful_shutdown=5))
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        try:
            yield url
        finally:
            server.should_exit = True
            await serving
            # sse_starlette has one of these for a thread, and leaves it to the end of the loop
            watchers = [t for t in asyncio.all_tasks() if "_shutdown_watcher" in repr(t.get_coro())]
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)


def served(agent: Any, input: Callable[[UserMessage], Any] | None = None, **options: Any) -> Any:
    return listening(lambda url: a2a_app(agent, url, input=input, **options))


@asynccontextmanager
async def sdk_client(url: str, **options: Any) -> AsyncGenerator[Client]:
    """The official SDK's client."""
    async with httpx.AsyncClient(verify=False) as http:  # noqa: S501  # no TLS here
        yield await create_client(url, ClientConfig(httpx_client=http, **options))


def said(*parts: Part | str, task_id: str = "", context_id: str = "") -> SendMessageRequest:
    given = [Part(text=part) if isinstance(part, str) else part for part in parts]
    message = Message(message_id="m1", role=Role.ROLE_USER, parts=given, task_id=task_id, context_id=context_id)
    return SendMessageRequest(message=message)


async def heard(client: Client, request: SendMessageRequest) -> list[StreamResponse]:
    return [event async for event in client.send_message(request)]


async def task_of(client: Client, events: list[StreamResponse]) -> Task:
    first = events[0]
    id = first.task.id if first.HasField("task") else first.status_update.task_id
    return await client.get_task(GetTaskRequest(id=id))


def state_of(task: Task) -> str:
    return TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower()


def asking(saver: MemorySaver | None = None) -> ReactAgent:
    """An agent whose tool asks."""

    @tool
    async def book(context: ToolContext) -> str:
        """Book a table."""
        return f"booked: {context.interrupt({'for': 'how many?'})!r}"

    model = FunctionModel(
        lambda r: r.messages[-1].text if r.messages[-1].text.startswith("booked") else [ToolCall("c1", "book")]
    )
    return ReactAgent("booker", model, [book], checkpointer=saver)


class Silent:
    """A model that says a word and falls silent."""

    def __init__(self) -> None:
        self.began, self.closed = asyncio.Event(), asyncio.Event()

    def agent(self, saver: MemorySaver | None = None) -> ReactAgent:
        @tool
        async def wait() -> str:
            self.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.closed.set()
            return ""

        model = FunctionModel(lambda r: [ToolCall("c1", "wait")])
        return ReactAgent("silent", model, [wait], checkpointer=saver, tool_timeout=None)


# served


async def test_the_card_tells_who_is_served() -> None:
    @tool
    def book() -> None:
        """Book a table."""

    agent = ReactAgent("clerk", ScriptedModel([]))
    card = agent_card(agent, "http://127.0.0.1:1", description="Books.", version="2.0", skills=[book])
    async with listening(lambda url: a2a_app(agent, card)) as url, httpx.AsyncClient() as http:
        told = (await http.get(f"{url}/.well-known/agent-card.json")).json()
    assert (told["name"], told["description"], told["version"]) == ("clerk", "Books.", "2.0")
    assert [(s["id"], s["description"]) for s in told["skills"]] == [("book", "Book a table.")]
    assert [i["protocolBinding"] for i in told["supportedInterfaces"]] == ["JSONRPC", "HTTP+JSON", "JSONRPC"]
    assert told["capabilities"]["streaming"] is True


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("streaming", [True, False])
async def test_the_sdks_client_gets_an_agents_answer(binding: str, streaming: bool) -> None:
    model = ScriptedModel([LONG])
    async with (
        served(ReactAgent("clerk", model)) as url,
        sdk_client(url, supported_protocol_bindings=[binding], streaming=streaming) as client,
    ):
        events = await heard(client, said("What is it?"))
        task = await task_of(client, events)
    assert state_of(task) == "completed"
    assert [(a.artifact_id, text_in(a.parts)) for a in task.artifacts] == [("answer", LONG)]
    assert [m.text for m in model.requests[0].messages] == ["What is it?"]
    if streaming:
        pieces = [e.artifact_update for e in events if e.HasField("artifact_update")]
        assert len(pieces) > 1
        assert [p.append for p in pieces] == [False] + [True] * (len(pieces) - 1)
        assert [p.last_chunk for p in pieces] == [False] * (len(pieces) - 1) + [True]
        assert "".join(text_in(p.artifact.parts) for p in pieces) == LONG


async def test_what_was_said_before_a_tools_call_gives_way_to_the_answer() -> None:
    @tool
    async def look() -> str:
        return "found"

    def answer(request: ModelRequest) -> Any:
        if request.messages[-1].text == "found":
            return "It is there."
        return msgspec.structs.replace(message, tool_calls=[ToolCall("c1", "look")])

    message = AssistantMessage("I look for it, wait a moment. " * 3)
    async with served(ReactAgent("clerk", FunctionModel(answer), [look])) as url, sdk_client(url) as client:
        events = await heard(client, said("Where?"))
        task = await task_of(client, events)
    assert any("wait a moment" in text_in(e.artifact_update.artifact.parts) for e in events)
    assert [text_in(a.parts) for a in task.artifacts] == ["It is there."]


async def test_a_context_is_a_thread() -> None:
    model = ScriptedModel(["One.", "Two.", "Other."])
    agent = ReactAgent("clerk", model, checkpointer=MemorySaver())
    async with served(agent) as url, sdk_client(url) as client:
        for text, context in (("a", "x"), ("b", "x"), ("c", "y")):
            await heard(client, said(text, context_id=context))
    asked = [[m.text for m in r.messages] for r in model.requests]
    assert asked == [["a"], ["a", "One.", "b"], ["c"]]
    found = await agent.app.state(RunConfig(thread_id="x"))
    assert found is not None


async def test_images_files_and_data_reach_the_agent() -> None:
    seen: list[Any] = []

    def answer(request: ModelRequest) -> str:
        message = request.messages[-1]
        assert isinstance(message, UserMessage)
        seen.append(message.content)
        return "Seen."

    parts = (
        "Look:",
        Part(raw=b"\x89PNG", media_type="image/png"),
        Part(url="https://files.example/a.pdf", media_type="application/pdf", filename="a.pdf"),
        data_part({"n": 3, "x": 0.5}),
    )
    async with served(ReactAgent("clerk", FunctionModel(answer))) as url, sdk_client(url) as client:
        await heard(client, said(*parts))
    assert seen == [
        [
            TextPart("Look:"),
            ImagePart(data=b"\x89PNG", media_type="image/png"),
            FilePart(url="https://files.example/a.pdf", media_type="application/pdf", name="a.pdf"),
            TextPart('{"n":3,"x":0.5}'),
        ]
    ]


async def test_an_output_comes_as_data_too() -> None:
    class Person(msgspec.Struct):
        name: str
        age: int

    text = '{"name": "Ada", "age": 36}'
    async with (
        served(ReactAgent("reader", ScriptedModel([text]), output_type=Person)) as url,
        sdk_client(url) as client,
    ):
        (artifact,) = (await task_of(client, await heard(client, said("Who?")))).artifacts
    assert text_in(artifact.parts) == text
    assert data_in(artifact.parts) == [{"name": "Ada", "age": 36}]


async def test_a_message_that_says_nothing_is_rejected() -> None:
    async with served(ReactAgent("clerk", ScriptedModel([]))) as url, sdk_client(url) as client:
        task = await task_of(client, await heard(client, said(Part(text=""))))
    assert state_of(task) == "rejected"


async def test_a_failure_fails_the_task_and_tells_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    agent = ReactAgent("clerk", ScriptedModel([ValueError("the password is 1234")]))
    async with served(agent) as url, sdk_client(url) as client:
        task = await task_of(client, await heard(client, said("Go.")))
    assert state_of(task) == "failed"
    assert text_in(task.status.message.parts) == "The agent failed: ValueError."
    assert "the password is 1234" in caplog.text


async def test_a_failure_is_told_as_the_server_says() -> None:
    agent = ReactAgent("clerk", ScriptedModel([ValueError("no paper")]))
    async with served(agent, error_text=str) as url, sdk_client(url) as client:
        task = await task_of(client, await heard(client, said("Go.")))
    assert text_in(task.status.message.parts) == "no paper"


async def test_a_question_asks_for_input_and_the_next_message_of_the_task_answers_it() -> None:
    async with served(asking(MemorySaver())) as url, sdk_client(url) as client:
        events = await heard(client, said("A table."))
        task = await task_of(client, events)
        assert state_of(task) == "input_required"
        assert text_in(task.status.message.parts) == '{"for":"how many?"}'
        assert data_in(task.status.message.parts)[0]["value"] == {"for": "how many?"}
        await heard(client, said("four", task_id=task.id, context_id=task.context_id))
        task = await task_of(client, events)
    assert state_of(task) == "completed"
    assert [text_in(a.parts) for a in task.artifacts] == ["booked: 'four'"]


async def test_an_answer_may_be_data() -> None:
    async with served(asking(MemorySaver())) as url, sdk_client(url) as client:
        events = await heard(client, said("A table."))
        task = await task_of(client, events)
        await heard(client, said(data_part({"people": 4}), task_id=task.id))
        task = await task_of(client, events)
    assert [text_in(a.parts) for a in task.artifacts] == ["booked: {'people': 4}"]


async def test_several_questions_are_answered_by_their_ids() -> None:
    async def ask(state: Any, run: Any) -> Any:
        return {run.node: run.interrupt(f"{run.node}?")}

    graph = StateGraph(strategies={"messages": Messages(), "left": Replace(), "right": Replace()})
    for name in ("left", "right"):
        graph.add_node(name, ask)
        graph.add_edge(START, name).add_edge(name, END)
    async with served(graph.compile(checkpointer=MemorySaver())) as url, sdk_client(url) as client:
        events = await heard(client, said("Go."))
        task = await task_of(client, events)
        ids = {d["value"]: d["id"] for d in data_in(task.status.message.parts)}
        await heard(client, said("yes", task_id=task.id))
        task = await task_of(client, events)
        assert state_of(task) == "input_required"
        assert text_in(task.status.message.parts).startswith("Several questions are open")
        await heard(client, said(data_part({"answers": {"none": 1}}), task_id=task.id))
        assert "There is no question 'none'." in text_in((await task_of(client, events)).status.message.parts)
        await heard(client, said(data_part({"answers": {ids["left?"]: 1}}), task_id=task.id))
        assert state_of(await task_of(client, events)) == "input_required"
        await heard(client, said("2", task_id=task.id))
        task = await task_of(client, events)
    assert data_in(task.artifacts[0].parts) == [{"left": 1, "right": "2"}]


async def test_a_question_that_was_left_behind_is_not_answered() -> None:
    async with served(asking(MemorySaver())) as url, sdk_client(url) as client:
        events = await heard(client, said("A table."))
        task = await task_of(client, events)
        await heard(client, said("booked elsewhere", context_id=task.context_id))
        await heard(client, said("four", task_id=task.id))
        task = await task_of(client, events)
    assert state_of(task) == "failed"


async def test_an_agent_that_keeps_no_threads_cannot_ask(caplog: pytest.LogCaptureFixture) -> None:
    async with served(asking()) as url, sdk_client(url) as client:
        task = await task_of(client, await heard(client, said("A table.")))
    assert state_of(task) == "failed"
    assert "give it a checkpointer" in caplog.text


async def test_a_stop_before_a_node_goes_on_with_the_next_message() -> None:
    agent = ReactAgent("clerk", ScriptedModel(["Hello."]))
    app = agent.graph.compile(checkpointer=MemorySaver(), interrupt_before=["llm"])
    async with served(app) as url, sdk_client(url) as client:
        events = await heard(client, said("Hi."))
        task = await task_of(client, events)
        assert state_of(task) == "input_required"
        await heard(client, said("go on", task_id=task.id))
        task = await task_of(client, events)
    assert [text_in(a.parts) for a in task.artifacts] == ["Hello."]


async def test_a_task_that_is_cancelled_ends_its_run() -> None:
    silent = Silent()
    async with served(silent.agent()) as url, sdk_client(url) as client:
        sending = asyncio.create_task(heard(client, said("Go.", context_id="x")))
        await silent.began.wait()
        (task,) = (await client.list_tasks(ListTasksRequest(context_id="x"))).tasks
        cancelled = await client.cancel_task(CancelTaskRequest(id=task.id))
        assert silent.closed.is_set()
        events = await sending
    assert state_of(cancelled) == "canceled"
    assert events[-1].status_update.status.state == TaskState.TASK_STATE_CANCELED


async def test_a_task_that_waits_for_an_answer_can_be_cancelled() -> None:
    async with served(asking(MemorySaver())) as url, sdk_client(url) as client:
        task = await task_of(client, await heard(client, said("A table.")))
        assert state_of(await client.cancel_task(CancelTaskRequest(id=task.id))) == "canceled"


async def test_the_servers_end_ends_the_runs() -> None:
    silent = Silent()
    async with served(silent.agent()) as url, sdk_client(url) as client:
        request = said("Go.")
        request.configuration.return_immediately = True
        sending = asyncio.create_task(heard(client, request))
        await silent.began.wait()
        sending.cancel()
        await asyncio.wait([sending])
    assert silent.closed.is_set()


async def test_what_is_told_of_the_work_is_the_tasks_state() -> None:
    @tool
    async def look() -> str:
        return "found"

    agent = ReactAgent("clerk", ScriptedModel([[ToolCall("c1", "look")], "There."]), [look])

    def tell(event: Event) -> str | None:
        return f"I use {event.name}" if isinstance(event, ToolStarted) else None

    async with served(agent, tell=tell) as url, sdk_client(url) as client:
        events = await heard(client, said("Where?"))
    told = [text_in(e.status_update.status.message.parts) for e in events if e.HasField("status_update")]
    assert "I use look" in told


async def test_a_graph_without_messages_is_served_by_functions() -> None:
    async def double(state: Any) -> Any:
        return {"n": state["n"] * 2}

    graph = StateGraph(strategies={"n": Replace()})
    graph.add_node("double", double)
    graph.add_edge(START, "double").add_edge("double", END)
    app = graph.compile()
    with pytest.raises(ConfigError, match="no 'messages'; say by input="):
        a2a_app(app, "http://x")

    def output(result: RunResult[Any]) -> str:
        return f"{result.state['n']}"

    async with (
        served(app, input=lambda message: {"n": int(message.text)}, output=output) as url,
        sdk_client(url) as client,
    ):
        task = await task_of(client, await heard(client, said("21")))
    assert [text_in(a.parts) for a in task.artifacts] == ["42"]


async def test_a_question_outlives_the_server_with_a_store_of_its_own() -> None:
    saver, store = MemorySaver(), InMemoryTaskStore()
    async with served(asking(saver), task_store=store) as url, sdk_client(url) as client:
        events = await heard(client, said("A table."))
        task = await task_of(client, events)
    async with served(asking(saver), task_store=store) as url, sdk_client(url) as client:
        await heard(client, said("four", task_id=task.id))
        task = await task_of(client, events)
    assert [text_in(a.parts) for a in task.artifacts] == ["booked: 'four'"]


async def test_a_flow_is_served_and_a_remote_agent_is_part_of_one() -> None:
    poet = ReactAgent("poet", FunctionModel(lambda r: f"On {r.messages[-1].text}"))
    critic = ReactAgent("critic", FunctionModel(lambda r: f"{r.messages[-1].text}: good"))
    async with served(critic) as there:
        flow = SequentialAgent("studio", [poet, A2aAgent(there, name="critic")])
        async with served(flow) as url, sdk_client(url) as client:
            task = await task_of(client, await heard(client, said("lamps")))
    assert [text_in(a.parts).split("\n")[:2] for a in task.artifacts] == [["lamps", "On lamps"]]


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda: a2a_app(ReactAgent("a", ScriptedModel([])), "localhost:1"), "found 'localhost:1'"),
        (lambda: a2a_app(StateGraph(), "http://x"), "call compile"),
        (lambda: a2a_app(3, "http://x"), "found 3"),
        (lambda: A2aAgent("localhost:1"), "found 'localhost:1'"),
        (lambda: A2aAgent("http://x", timeout=0), "timeout"),
        (lambda: A2aAgent("http://x", headers={"a": "b"}, http_client=httpx.AsyncClient()), "headers of its own"),
    ],
)
def test_an_option_that_cannot_be_meant_is_an_error(make: Any, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        make()


# called


@pytest.mark.parametrize("pooled", [True, False])
async def test_a_remote_agent_runs_as_an_agent_does(pooled: bool) -> None:
    model = ScriptedModel(["One.", "Two."])
    async with served(ReactAgent("clerk", model, checkpointer=MemorySaver())) as url:
        remote = A2aAgent(url, name="remote")
        if pooled:
            async with remote:
                first = await remote.run("a")
                second = await remote.run([*first.messages, UserMessage("b")])
        else:
            first = await remote.run("a")
            second = await remote.run([*first.messages, UserMessage("b")])
    assert (first.text, first.output, first.status) == ("One.", "One.", "done")
    assert [m.text for m in second.messages] == ["a", "One.", "b", "Two."]
    assert [[m.text for m in r.messages] for r in model.requests] == [["a"], ["a", "One.", "b"]]


async def test_a_thread_here_is_a_context_there() -> None:
    model = ScriptedModel(["One.", "Two.", "Other."])
    async with served(ReactAgent("clerk", model, checkpointer=MemorySaver())) as url:
        remote = A2aAgent(url, checkpointer=MemorySaver())
        for text, thread in (("a", "x"), ("b", "x"), ("c", "y")):
            await remote.run(text, RunConfig(thread_id=thread))
    assert [[m.text for m in r.messages] for r in model.requests] == [["a"], ["a", "One.", "b"], ["c"]]


async def test_the_pieces_that_readers_get_are_the_answer() -> None:
    async with served(ReactAgent("clerk", ScriptedModel([LONG]))) as url:
        async with A2aAgent(url).stream("What?") as events:
            pieces = [event async for event in events if isinstance(event, ModelDelta)]
        result = events.result
    assert len(pieces) > 1
    assert "".join(p.text for p in pieces) == result.text == LONG
    assert result.message is not None
    assert {p.message_id for p in pieces} == {result.message.id}


async def test_a_remote_agent_is_a_node_and_a_tool() -> None:
    async with served(ReactAgent("poet", FunctionModel(lambda r: f"On {r.messages[-1].text}"))) as url:
        remote = A2aAgent(url, name="poet", description="Writes poems.")
        graph = StateGraph(strategies={"topic": Replace(), "talk": Messages()})
        graph.add_node("write", remote, input={"topic": "input"}, output={"messages": "talk"})
        graph.add_edge(START, "write").add_edge("write", END)
        state = (await graph.compile().invoke({"topic": "lamps"})).state
        model = ScriptedModel([[ToolCall("c1", "poet", '{"task": "chairs"}')], "Done."])
        result = await ReactAgent("clerk", model, [remote.as_tool()]).run("Go.")
    assert [m.text for m in state["talk"]] == ["lamps", "On lamps"]
    assert model.requests[0].tools[0].description == "Writes poems."
    assert result.messages[2].text == "On chairs"


@pytest.mark.parametrize("as_tool", [True, False])
async def test_a_question_there_is_a_question_here(as_tool: bool) -> None:
    async with served(asking(MemorySaver())) as url:
        remote = A2aAgent(url, name="booker", checkpointer=MemorySaver())
        agent: Any = remote
        if as_tool:
            model = ScriptedModel([[ToolCall("c1", "booker", '{"task": "A table."}')], "Done."])
            agent = ReactAgent("clerk", model, [remote.as_tool()], checkpointer=MemorySaver())
        thread = RunConfig(thread_id="t")
        paused = await agent.run("A table.", thread)
        assert paused.status == "interrupted"
        (question,) = paused.interrupts
        assert question.value["agent"] == "booker"
        assert question.value["question"] == '{"for":"how many?"}'
        done = await agent.run(Command[str](resume={question.id: {"people": 4}}), thread)
    assert done.status == "done"
    assert done.messages[2 if as_tool else -1].text == "booked: {'people': 4}"


async def test_a_run_that_goes_on_after_its_questions_answer_sends_nothing_twice() -> None:
    asked: list[str] = []

    def noted(message: UserMessage) -> Any:
        asked.append(message.text)
        return {"messages": [message]}

    async with served(asking(MemorySaver()), input=noted) as url:
        remote = A2aAgent(url, checkpointer=MemorySaver())
        thread = RunConfig(thread_id="t")
        paused = await remote.run("A table.", thread)
        await remote.run(Command[str](resume={paused.interrupts[0].id: "four"}), thread)
    assert asked == ["A table.", "four"]


async def test_a_cancelled_run_cancels_the_remote_task() -> None:
    silent = Silent()
    async with served(silent.agent()) as url:
        running = asyncio.create_task(A2aAgent(url).run("Go."))
        await silent.began.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert silent.closed.is_set()


async def test_a_remote_agent_that_takes_too_long_is_told_to_stop() -> None:
    silent = Silent()
    async with served(silent.agent()) as url:
        with pytest.raises(A2aTimeoutError, match=r"no answer within 0\.3 s; it was told to stop"):
            await A2aAgent(url, timeout=0.3).run("Go.")
        assert silent.closed.is_set()


async def test_a_remote_failure_is_an_error_with_its_text() -> None:
    agent = ReactAgent("clerk", ScriptedModel([ValueError("no paper")]))
    async with served(agent, error_text=str) as url:
        with pytest.raises(A2aError, match="remote agent 'clerk': its task failed: no paper") as caught:
            await A2aAgent(url, name="clerk").run("Go.")
    assert caught.value.state == "failed"
    assert caught.value.task_id


async def test_a_server_that_is_not_there_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    with pytest.raises(A2aConnectionError, match=f"its card cannot be had: .*{url}"):
        await A2aAgent(url).run("Go.")
    with pytest.raises(A2aConnectionError, match="cannot be reached"):
        await A2aAgent(agent_card(ReactAgent("a", ScriptedModel([])), url)).run("Go.")


async def test_headers_go_to_no_other_host_than_the_cards() -> None:
    card = agent_card(ReactAgent("a", ScriptedModel([])), "http://elsewhere.example")
    async with listening(lambda url: a2a_app(ReactAgent("a", ScriptedModel([])), card)) as url:
        with pytest.raises(A2aError, match="which the headers are not meant for"):
            await A2aAgent(url, headers={"authorization": "secret"}).run("Go.")


async def test_a_conversation_without_words_is_an_error() -> None:
    with pytest.raises(InputError, match="nothing to say to remote agent"):
        await A2aAgent("http://127.0.0.1:1").run([])


# other people's servers


class Other(AgentExecutor):
    """An agent as others write them with the SDK: by `script`."""

    def __init__(self, script: Any) -> None:
        self._script = script
        self.cancelled: list[str] = []

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await self._script(
            context, event_queue, TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        )

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.cancelled.append(context.task_id or "")
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()


def other(executor: Other, *, streaming: bool = True, version: str = "1.0") -> Any:
    def make(url: str) -> Starlette:
        card = agent_card(executor, url, name="other", description="Another.")
        card.capabilities.streaming = streaming
        del card.supported_interfaces[1:]
        card.supported_interfaces[0].protocol_version = version
        handler = DefaultRequestHandler(executor, InMemoryTaskStore(), card)
        routes = [*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True)]

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncGenerator[None]:
            yield
            await handler.aclose()

        return Starlette(routes=routes, lifespan=lifespan)

    return listening(make)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_task_of_another_server_is_followed_to_its_end(streaming: bool, version: str) -> None:
    async def script(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        assert context.message is not None
        await queue.enqueue_event(new_task_from_user_message(context.message))
        await updater.start_work(updater.new_agent_message([Part(text="Thinking")]))
        await updater.add_artifact([Part(text="Hello "), Part(text=context.get_user_input())], name="response")
        await updater.add_artifact([Part(url="https://x.example/a.pdf", filename="a.pdf")], name="file")
        await updater.complete()

    async with other(Other(script), streaming=streaming, version=version) as url:
        async with A2aAgent(url).stream("Ada") as events:
            told = [event.data async for event in events if isinstance(event, Custom)]
        assert events.result.text == "Hello Ada\n\n[a.pdf: https://x.example/a.pdf]"
    if streaming:
        assert told[0]["text"] == "Thinking"


async def test_a_server_that_answers_by_a_bare_message_is_understood() -> None:
    async def script(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        await queue.enqueue_event(updater.new_agent_message([Part(text="Hello.")]))

    async with other(Other(script)) as url:
        result = await A2aAgent(url).run("Hi.")
    assert result.text == "Hello."


async def test_an_answer_in_the_last_status_is_one() -> None:
    async def script(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        assert context.message is not None
        await queue.enqueue_event(new_task_from_user_message(context.message))
        await updater.complete(updater.new_agent_message([Part(text="Hello.")]))

    async with other(Other(script)) as url:
        assert (await A2aAgent(url).run("Hi.")).text == "Hello."


@pytest.mark.parametrize("streaming", [True, False])
async def test_another_servers_task_is_cancelled_with_the_run(streaming: bool) -> None:
    began = asyncio.Event()

    async def script(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        assert context.message is not None
        await queue.enqueue_event(new_task_from_user_message(context.message))
        began.set()
        await asyncio.Event().wait()

    executor = Other(script)
    async with other(executor, streaming=streaming) as url:
        running = asyncio.create_task(A2aAgent(url).run("Go."))
        await began.wait()
        running.cancel()
        await asyncio.wait([running])
    assert len(executor.cancelled) == 1


class Network(httpx.AsyncBaseTransport):
    """A network in which one stream is cut after its first piece, and `for_good` nothing comes through after that."""

    def __init__(self, *, for_good: bool) -> None:
        self._real = httpx.AsyncHTTPTransport(verify=False)
        self._for_good = for_good
        self.cut = asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.cut.is_set() and self._for_good:
            raise httpx.ConnectError("no route", request=request)
        response = await self._real.handle_async_request(request)
        if "event-stream" not in response.headers.get("content-type", "") or self.cut.is_set():
            return response
        self.cut.set()
        return httpx.Response(response.status_code, headers=response.headers, stream=Cut(response.stream, request))

    async def aclose(self) -> None:
        await self._real.aclose()


class Cut(httpx.AsyncByteStream):
    def __init__(self, stream: Any, request: httpx.Request) -> None:
        self._stream, self._request = stream, request

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        async for piece in self._stream:
            yield piece
            raise httpx.ReadError("cut", request=self._request)

    async def aclose(self) -> None:
        await self._stream.aclose()


class Patient(Other):
    """An agent that answers when it may; and what it was asked."""

    def __init__(self) -> None:
        super().__init__(self._script)
        self.may, self.began = asyncio.Event(), asyncio.Event()
        self.asked: list[str] = []

    async def _script(self, context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        assert context.message is not None
        self.asked.append(context.get_user_input())
        await queue.enqueue_event(new_task_from_user_message(context.message))
        self.began.set()
        await self.may.wait()
        await updater.add_artifact([Part(text="Here it is.")], name="response")
        await updater.complete()


async def test_a_lost_connection_is_taken_up_again_and_nothing_is_sent_twice() -> None:
    executor = Patient()
    network = Network(for_good=False)
    async with other(executor) as url, httpx.AsyncClient(transport=network) as http:
        running = asyncio.create_task(A2aAgent(url, http_client=http).run("Go."))
        await network.cut.wait()
        executor.may.set()
        assert (await running).text == "Here it is."
    assert executor.asked == ["Go."]


async def test_a_run_that_has_lost_its_server_goes_on_with_the_task_that_it_began(monkeypatch: Any) -> None:
    monkeypatch.setattr("agentgraph.nodes.a2a_agent._POLL_SECONDS", (0.01, 0.01))
    executor = Patient()
    saver, thread = MemorySaver(), RunConfig(thread_id="t")
    async with other(executor) as url:
        async with httpx.AsyncClient(transport=Network(for_good=True)) as http:
            with pytest.raises(A2aConnectionError, match="it was lost"):
                await A2aAgent(url, name="other", http_client=http, checkpointer=saver).run("Go.", thread)
        executor.may.set()
        result = await A2aAgent(url, name="other", checkpointer=saver).run(None, thread)
    assert result.text == "Here it is."
    assert executor.asked == ["Go."]


async def test_a_run_that_was_cancelled_sends_its_message_anew_when_it_goes_on() -> None:
    executor = Patient()
    thread = RunConfig(thread_id="t")
    async with other(executor) as url:
        remote = A2aAgent(url, checkpointer=MemorySaver())
        running = asyncio.create_task(remote.run("Go.", thread))
        await executor.began.wait()
        running.cancel()
        await asyncio.wait([running])
        executor.may.set()
        assert (await remote.run(None, thread)).text == "Here it is."
    assert executor.asked == ["Go.", "Go."]
    assert len(executor.cancelled) == 1


async def test_a_text_that_is_replaced_begins_a_new_message_for_readers() -> None:
    async def script(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        assert context.message is not None
        await queue.enqueue_event(new_task_from_user_message(context.message))
        await updater.add_artifact([Part(text="Wait")], "a")
        await updater.add_artifact([Part(text="Here")], "a")
        await updater.add_artifact([Part(text=" it is")], "a", append=True)
        await updater.complete()

    async with other(Other(script)) as url, A2aAgent(url).stream("Go.") as events:
        pieces = [event async for event in events if isinstance(event, ModelDelta)]
    assert [p.text for p in pieces] == ["Wait", "Here", " it is"]
    assert len({p.message_id for p in pieces}) == 2
    assert events.result.message is not None
    assert events.result.message.id == pieces[-1].message_id


async def test_two_that_speak_at_once_do_not_mix_in_the_answer() -> None:
    first, second = asyncio.Event(), asyncio.Event()

    class Speaking(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
            mine, other = (first, second) if self.name == "a" else (second, first)
            for word in range(20):
                yield Delta(f"{self.name}{word} and more ")
                mine.set()
                await other.wait()
            yield Delta(response=ModelResponse(message=AssistantMessage(f"{self.name} has ended")))

    graph = StateGraph(strategies={"messages": Messages()})
    for name in ("a", "b"):
        graph.add_node(name, ReactAgent(name, Speaking([], name=name)))
        graph.add_edge(START, name).add_edge(name, END)
    async with served(graph.compile()) as url, sdk_client(url) as client:
        events = await heard(client, said("Go."))
        task = await task_of(client, events)
    pieces = [text_in(e.artifact_update.artifact.parts) for e in events if e.HasField("artifact_update")]
    assert len({piece[0] for piece in pieces[:-1]}) == 1
    assert [text_in(a.parts) for a in task.artifacts] == ["b has ended"]


class Named(BaseHTTPMiddleware):
    """Takes the name in a header for the user's."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        if name := request.headers["x-user"]:
            request.scope["user"] = SimpleUser(name)
        return await call_next(request)


async def test_users_do_not_get_at_each_others_threads() -> None:
    agent = ReactAgent(
        "clerk", FunctionModel(lambda r: " ".join(m.text for m in r.messages)), checkpointer=MemorySaver()
    )

    def make(url: str) -> Starlette:
        app = a2a_app(agent, url)
        app.add_middleware(Named)
        return app

    answers: list[str] = []
    async with listening(make) as url:
        turns = [("ada", "x", "one"), ("bob", "x", "two"), ("ada", "x", "three"), ("", "ada/x", "four")]
        for user, context, text in turns:
            async with httpx.AsyncClient(headers={"x-user": user}) as http:
                client = await create_client(url, ClientConfig(httpx_client=http))
                task = await task_of(client, await heard(client, said(text, context_id=context)))
                answers.append(text_in(task.artifacts[0].parts))
    assert answers == ["one", "two", "one one three", "four"]


class Zoned(InMemoryStorage[list[Any]]):
    """With times as the protocol has them: those of fasta2a's own storage have no zone, and the SDK reads none such."""

    async def submit_task(self, *args: Any, **options: Any) -> Any:
        return zoned(await super().submit_task(*args, **options))

    async def update_task(self, *args: Any, **options: Any) -> Any:
        return zoned(await super().update_task(*args, **options))


def zoned(task: Any) -> Any:
    task["status"]["timestamp"] += "Z"
    return task


class Echo(Worker[list[Any]]):
    """What works in a server of fasta2a, which has nothing of the SDK."""

    async def run_task(self, params: Any) -> None:
        task = await self.storage.load_task(params["id"])
        assert task is not None
        text = "".join(part.get("text", "") for part in task.get("history", [])[-1]["parts"])
        artifact: Any = {"artifact_id": "a", "parts": [{"kind": "text", "text": f"You said: {text}"}]}
        await self.storage.update_task(task["id"], state="completed", new_artifacts=[artifact])

    async def cancel_task(self, params: Any) -> None: ...
    def build_message_history(self, history: Any) -> list[Any]:
        return []

    def build_artifacts(self, result: Any) -> list[Any]:
        return []


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # of fasta2a itself
async def test_a_server_that_others_wrote_without_the_sdk_is_called() -> None:
    storage, broker = Zoned(), InMemoryBroker()
    worker = Echo(storage=storage, broker=broker)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncGenerator[None]:
        async with app.task_manager, worker.run():
            yield

    def make(url: str) -> ASGIApp:
        return FastA2A(storage=storage, broker=broker, url=url, name="echo", lifespan=lifespan)

    async with listening(make) as url:
        remote = A2aAgent(url, name="echo")
        first = await remote.run("Hello.")
        second = await remote.run([*first.messages, UserMessage("Again.")])
    assert [m.text for m in second.messages] == ["Hello.", "You said: Hello.", "Again.", "You said: Again."]
    contexts = {m.metadata["a2a"]["context_id"] for m in second.messages if m.metadata}
    assert len(contexts) == 1


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b'{"result": {"task": {"status": 3}}}', b'{"error": {"code": -32603}}']
)
async def test_a_server_that_does_not_speak_the_protocol_is_a_clear_error(body: bytes) -> None:
    async def answer(request: Request) -> Response:
        return Response(body)

    def make(url: str) -> ASGIApp:
        card = agent_card(ReactAgent("a", ScriptedModel([])), url)
        return Starlette(routes=[*create_agent_card_routes(card), Route("/", answer, methods=["POST"])])

    async with listening(make) as url:
        with pytest.raises(A2aError, match=r"remote agent 'odd': (it refused|what it said is not valid)"):
            await A2aAgent(url, name="odd").run("Go.")


async def test_a_card_that_is_none_is_a_clear_error() -> None:
    async with listening(lambda url: Starlette()) as url:
        with pytest.raises(A2aConnectionError, match=r"its card cannot be had: .*404"):
            await A2aAgent(url).run("Go.")


async def test_an_answer_of_data_alone_is_told_in_words_too() -> None:
    async def script(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        assert context.message is not None
        await queue.enqueue_event(new_task_from_user_message(context.message))
        if context.get_user_input() == "data":
            await updater.add_artifact([data_part({"n": 1})])
        await updater.complete()

    async with other(Other(script)) as url:
        with_data = await A2aAgent(url).run("data")
        without = await A2aAgent(url).run("nothing")
    assert (with_data.text, with_data.output) == ('{"n":1}', {"n": 1})
    assert without.text == "(no output)"


async def test_a_node_of_a_kept_graph_asks_as_often_as_it_is_asked_and_in_the_same_words() -> None:
    async def script(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        assert context.message is not None
        answers.append(context.get_user_input())
        if context.current_task is None:
            await queue.enqueue_event(new_task_from_user_message(context.message))
        if len(answers) < 3:
            await updater.requires_input(updater.new_agent_message([Part(text="And?")]))
            return
        await updater.add_artifact([Part(text=" ".join(answers))])
        await updater.complete()

    answers: list[str] = []
    async with other(Other(script)) as url:
        graph = StateGraph(strategies={"messages": Messages()})
        graph.add_node("remote", A2aAgent(url, name="other"))
        graph.add_edge(START, "remote").add_edge("remote", END)
        app, thread = graph.compile(checkpointer=MemorySaver()), RunConfig(thread_id="t")
        result = await app.invoke({"messages": [UserMessage("one")]}, thread)
        for answer in ("two", "three"):
            assert result.status == "interrupted"
            result = await app.invoke(Command[str](resume={result.interrupts[0].id: answer}), thread)
    assert result.status == "done"
    assert result.state["messages"][-1].text == "one two three"


async def test_a_login_that_is_done_elsewhere_is_asked_for_while_the_agent_waits() -> None:
    logged_in = asyncio.Event()

    async def script(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        assert context.message is not None
        await queue.enqueue_event(new_task_from_user_message(context.message))
        await updater.requires_auth(updater.new_agent_message([Part(text="Log in at https://login.example")]))
        await logged_in.wait()
        await updater.start_work()
        await updater.complete(updater.new_agent_message([Part(text="Welcome.")]))

    thread = RunConfig(thread_id="t")
    async with other(Other(script)) as url:
        remote = A2aAgent(url, checkpointer=MemorySaver())
        paused = await remote.run("Go.", thread)
        (question,) = paused.interrupts
        assert (question.value["state"], question.value["question"]) == (
            "auth-required",
            "Log in at https://login.example",
        )
        async with sdk_client(url) as client:
            (task,) = (await client.list_tasks(ListTasksRequest())).tasks
            async for _ in client.subscribe(SubscribeToTaskRequest(id=task.id)):
                logged_in.set()
        result = await remote.run(Command[str](resume={question.id: "done"}), thread)
    assert result.text == "Welcome."
