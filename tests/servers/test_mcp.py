"""Tools of MCP servers: the reference servers, one made with the SDK, and one that does what none should."""

import asyncio
import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, TypedDict

import httpx2
import mcp.client.stdio
import pytest

from agentgraph import END, START, CompiledGraph, StateGraph
from agentgraph.errors import ConfigError
from agentgraph.events import ToolFinished, ToolProgress
from agentgraph.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    TextPart,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
)
from agentgraph.nodes import ReactAgent, ToolError, ToolNode, tool
from agentgraph.nodes.mcp import McpError, McpTools
from agentgraph.strategies import Messages
from agentgraph.testing import ScriptedModel

HERE = Path(__file__).parent
Start = Callable[[], AbstractContextManager[str]]


class State(TypedDict):
    messages: Annotated[list[Message], Messages()]


def acting(tools: McpTools, **options: Any) -> CompiledGraph[Any]:
    graph = StateGraph(State)
    graph.add_node("tools", ToolNode(tools, **options))
    graph.add_edge(START, "tools").add_edge("tools", END)
    return graph.compile()


def asking(name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"messages": [AssistantMessage(tool_calls=[ToolCall("c1", name, json.dumps(arguments))])]}


async def called(tools: McpTools, name: str, /, **arguments: Any) -> ToolResponse:
    """The answer of one call, through a tool node."""
    result = await acting(tools).invoke(asking(name, **arguments))
    last = result.state["messages"][-1]
    assert isinstance(last, ToolResponseMessage)
    return last.responses[0]


async def cancelled_when_it_hangs(tools: McpTools) -> None:
    """Call `hang`, and end the run as soon as the server has told that it is at it."""
    async with acting(tools).stream(asking("hang")) as events:
        async for event in events:
            if isinstance(event, ToolProgress):
                return


@pytest.fixture(params=["stdio", "http"])
def reference(request: pytest.FixtureRequest) -> McpTools:
    """The reference server, over both transports."""
    if request.param == "http":
        return McpTools(url=request.getfixturevalue("everything_url"))
    node, script = request.getfixturevalue("everything")
    return McpTools(command=node, args=[str(script)])


def shop() -> McpTools:
    """A server made with the SDK, over stdio."""
    return McpTools(command=sys.executable, args=[str(HERE / "mcp_server.py")])


@pytest.fixture(params=["stdio", "http"])
def either_shop(request: pytest.FixtureRequest) -> McpTools:
    """A server made with the SDK, over both transports."""
    return shop() if request.param == "stdio" else McpTools(url=request.getfixturevalue("workshop_url"))


class Started(logging.Handler):
    """Hears a server without an SDK say on its stderr that it has started."""

    def __init__(self) -> None:
        super().__init__()
        self._said = asyncio.Event()
        self._pid = 0

    def emit(self, record: logging.LogRecord) -> None:
        if found := re.search(r"started as (\d+)", record.getMessage()):
            self._pid = int(found[1])
            self._said.set()

    async def pid(self) -> int:
        """That of the next one to start, or of one that has not been asked for."""
        await self._said.wait()
        self._said.clear()
        return self._pid


@pytest.fixture
def started(caplog: pytest.LogCaptureFixture) -> Generator[Started]:
    handler, log = Started(), logging.getLogger("agentgraph")
    log.addHandler(handler)
    with caplog.at_level(logging.DEBUG, "agentgraph"):
        yield handler
    log.removeHandler(handler)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK does not wait for seconds before it ends a process, and before it kills it."""
    monkeypatch.setattr(mcp.client.stdio, "PROCESS_TERMINATION_TIMEOUT", 0.05)
    monkeypatch.setattr(mcp.client.stdio, "FORCE_KILL_TIMEOUT", 0.05)


def raw(*habits: str, command: str | Path = sys.executable, **options: Any) -> McpTools:
    """A server without an SDK, over stdio."""
    return McpTools(command=command, args=[str(HERE / "mcp_raw_server.py"), *habits], **options)


def names(tools: McpTools) -> list[str]:
    return [each.name for each in tools]


async def test_an_agent_calls_the_tools_of_the_reference_server(reference: McpTools) -> None:
    @tool
    def double(number: int) -> int:
        return 2 * number

    model = ScriptedModel(
        [[ToolCall("c1", "get-sum", '{"a": 2, "b": 3}'), ToolCall("c2", "double", '{"number": 5}')], "10"]
    )
    async with reference as tools:
        result = await ReactAgent("clerk", model, [*tools, double]).run("Twice 2 + 3?")
    assert result.messages[2].text == "The sum of 2 and 3 is 5.\n10"
    spec = next(spec for spec in model.requests[0].tools if spec.name == "get-sum")
    assert spec.description == "Returns the sum of two numbers"
    assert spec.parameters["required"] == ["a", "b"]


async def test_an_agent_calls_a_reference_server_in_python() -> None:
    asked = {"source_timezone": "Europe/Zurich", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    async with McpTools(command=sys.executable, args=["-m", "mcp_server_time"]) as tools:
        answer = await called(tools, "convert_time", **asked)
    assert json.loads(answer.text)["target"]["timezone"] == "Asia/Tokyo"


async def test_structured_content_is_told_to_the_model_and_kept_for_programs(reference: McpTools) -> None:
    async with reference as tools:
        result = await acting(tools).invoke(asking("get-structured-content", location="Chicago"))
    message = result.state["messages"][-1]
    structured = message.metadata["answers"]["c1"]["structured_content"]
    assert structured["conditions"]
    assert json.loads(message.responses[0].text) == structured


async def test_images_and_resources_become_parts(reference: McpTools) -> None:
    async with reference as tools:
        picture = await called(tools, "get-tiny-image")
        links = await called(tools, "get-resource-links", count=1)
        blob = await called(tools, "get-resource-reference", resourceType="Blob")
    image = picture.content[1]
    assert isinstance(image, ImagePart)
    assert image.data is not None
    assert image.data.startswith(b"\x89PNG")
    assert "demo://resource/dynamic/blob/1: Blob Resource 1: Resource 1: " in links.text
    assert any(isinstance(part, FilePart) and part.data for part in blob.content)


async def test_a_reader_sees_the_servers_progress_before_the_answer(reference: McpTools) -> None:
    told: list[Any] = []
    async with reference as tools:
        asked = asking("trigger-long-running-operation", duration=0.03, steps=3)
        async with acting(tools).stream(asked) as events:
            async for event in events:
                if isinstance(event, ToolProgress):
                    told.append((event.progress, event.total))
                elif isinstance(event, ToolFinished):
                    told.append(event.outcome)
    assert told == [(1, 3), (2, 3), (3, 3), "ok"]


async def test_arguments_reach_the_server_as_the_model_sent_them(workshop_url: str) -> None:
    async with McpTools(url=workshop_url) as tools:
        answer = await called(tools, "same", agent="smith", context="room", self="me", more={"a": [1, None]})
    assert answer.text == "('smith', 'room', 'me', {'a': [1, None]})"


async def test_a_tool_that_fails_gives_an_error_answer(workshop_url: str) -> None:
    async with McpTools(url=workshop_url) as tools:
        answer = await called(tools, "fail")
    assert answer.is_error
    assert answer.text == "Error executing tool fail: the saw is blunt"


async def test_an_error_of_the_protocol_names_server_and_tool(workshop_url: str) -> None:
    async with McpTools(url=workshop_url) as tools:
        answer = await called(tools, "refuse")
    assert answer.is_error
    assert answer.text == "McpError: MCP server 'workshop', tool 'refuse': no entry"


async def test_parts_and_structured_values_of_a_server_made_with_the_sdk(workshop_url: str) -> None:
    async with McpTools(url=workshop_url) as tools:
        assert tools.instructions == "Count before you cut."
        picture = await called(tools, "picture")
        board = await called(tools, "board")
    assert picture.content == [TextPart("a picture"), ImagePart(data=b"\x89PNG", media_type="image/png")]
    assert json.loads(board.text) == {"wood": "oak", "length": 1.5}


async def test_a_readers_progress_has_the_servers_words(either_shop: McpTools) -> None:
    told: list[Any] = []
    async with either_shop as tools, acting(tools).stream(asking("count", to=50)) as events:
        async for event in events:
            if isinstance(event, ToolProgress):
                told.append((event.progress, event.total, event.text))  # noqa: PERF401  # what came before a failure, too
    assert told == [(number, 50, f"at {number}") for number in range(1, 51)]


async def test_a_cancelled_call_is_cancelled_at_the_server_and_the_session_goes_on(either_shop: McpTools) -> None:
    async with either_shop as tools:
        before = await called(tools, "pid")
        await cancelled_when_it_hangs(tools)
        async with asyncio.timeout(5):
            assert (await called(tools, "was_cancelled")).text == "cancelled"
        assert (await called(tools, "pid")).text == before.text


async def test_the_server_is_told_which_request_was_cancelled() -> None:
    async with raw() as tools:
        await cancelled_when_it_hangs(tools)
        await cancelled_when_it_hangs(tools)
        told = json.loads((await called(tools, "cancelled")).text)
    assert len(set(told)) == 2


async def test_a_call_that_takes_too_long_is_cancelled_at_the_server_too() -> None:
    async with raw() as tools:
        result = await acting(tools, timeout=0.05).invoke(asking("hang"))
        assert "timed out after 0.05 s" in result.state["messages"][-1].text
        assert len(json.loads((await called(tools, "cancelled")).text)) == 1


async def test_a_death_during_a_call_is_told_and_the_next_call_starts_the_server_again() -> None:
    async with raw() as tools:
        before = await called(tools, "pid")
        answer = await called(tools, "die")
        assert answer.is_error
        for words in ("'raw'", "'die'", "died", "not known", "out of wood"):
            assert words in answer.text
        after = await called(tools, "pid")
    assert after.text.isdigit()
    assert after.text != before.text


async def test_calls_after_a_death_share_one_new_start() -> None:
    async with raw() as tools:
        await called(tools, "die")
        calls = [ToolCall(str(number), "pid") for number in range(4)]
        result = await acting(tools).invoke({"messages": [AssistantMessage(tool_calls=calls)]})
    pids = [response.text for response in result.state["messages"][-1].responses]
    assert len(set(pids)) == 1
    assert pids[0].isdigit()


async def test_a_death_ends_every_call_under_way_and_nothing_else() -> None:
    async with raw() as tools:
        calls = [ToolCall("c1", "hang"), ToolCall("c2", "die")]
        result = await acting(tools).invoke({"messages": [AssistantMessage(tool_calls=calls)]})
        assert [r.is_error for r in result.state["messages"][-1].responses] == [True, True]
        assert (await called(tools, "ok")).text == "well"


async def test_a_server_that_does_not_start_again_is_told_to_each_call_until_it_does(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    async with raw(command=python) as tools:
        python.unlink()
        await called(tools, "die")
        for _ in range(2):
            answer = await called(tools, "ok")
            assert answer.is_error
            assert "McpError: MCP server 'raw' cannot be started: [Errno 2] No such file" in answer.text
        python.symlink_to(sys.executable)
        assert (await called(tools, "ok")).text == "well"


@pytest.mark.usefixtures("impatient")
async def test_a_new_start_that_hangs_is_given_up(tmp_path: Path) -> None:
    async with raw("once", str(tmp_path / "started"), start_timeout=2) as tools:
        await called(tools, "die")
        answer = await called(tools, "ok")
        assert "MCP server 'raw' cannot be started: no answer within 2 s" in answer.text


@pytest.mark.usefixtures("impatient")
async def test_a_call_that_waits_for_a_new_start_may_be_cancelled(tmp_path: Path, started: Started) -> None:
    async with raw("once", str(tmp_path / "started")) as tools:
        first = await started.pid()
        await called(tools, "die")
        calling = asyncio.create_task(called(tools, "ok"))
        second = await started.pid()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert not is_gone(second)
    assert is_gone(first)
    assert is_gone(second)


async def test_a_server_that_dies_between_two_calls_is_started_again_before_the_next() -> None:
    async with raw() as tools, raw() as other, asyncio.timeout(5):
        os.kill(int((await called(tools, "pid")).text), signal.SIGKILL)
        while "lost" not in repr(tools):
            await called(other, "ok")  # meanwhile the event loop hears of it
        assert (await called(tools, "ok")).text == "well"


async def test_a_server_over_http_that_was_started_anew_gets_a_new_session(mortal_everything: Start) -> None:
    async with AsyncExitStack() as stack:
        with mortal_everything() as url:
            tools = await stack.enter_async_context(McpTools(url=url))
            assert (await called(tools, "echo", message="a")).text == "Echo: a"
        away = await called(tools, "echo", message="b")
        assert away.is_error
        assert "'mcp-servers/everything', tool 'echo'" in away.text
        with mortal_everything():
            answers = [await called(tools, "echo", message="c") for _ in range(2)]
            assert answers[1].text == "Echo: c"


async def test_a_session_that_the_server_has_forgotten_is_told_and_opened_anew(mortal_everything: Start) -> None:
    async with AsyncExitStack() as stack:
        with mortal_everything() as url:
            tools = await stack.enter_async_context(McpTools(url=url))
        with mortal_everything():
            answer = await called(tools, "echo", message="a")
            assert "the session is over, and the next call begins a new one" in answer.text
            assert (await called(tools, "echo", message="b")).text == "Echo: b"


async def test_a_server_over_http_that_dies_during_a_call_is_told(workshop: Start) -> None:
    async with AsyncExitStack() as stack:
        with workshop() as url:
            tools = await stack.enter_async_context(McpTools(url=url))
            answer = await called(tools, "die")
            assert answer.is_error
            for words in ("'workshop'", "'die'", "died or was lost", "not known"):
                assert words in answer.text
        with workshop():
            assert (await called(tools, "add", a=1, b=2)).text == "3"


async def test_all_pages_of_the_tools_are_listed_and_may_be_chosen_from() -> None:
    async with raw(prefix="raw_", include=["ok", "hang", "blob"], exclude=["hang"]) as tools:
        assert names(tools) == ["raw_ok", "raw_blob"]
        assert (await called(tools, "raw_ok")).text == "well"
    async with raw() as tools:
        assert len(tools) == 10


async def test_two_servers_with_the_same_tools_stand_side_by_side() -> None:
    async with raw(prefix="a_") as first, raw(prefix="b_") as second:
        node = ToolNode([*first, *second])
        assert {"a_ok", "b_ok"} <= set(node.tools)


@pytest.mark.parametrize("options", [{"include": ["hong"]}, {"exclude": ["hong"]}], ids=str)
async def test_choosing_a_tool_that_the_server_does_not_have_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="unknown tool 'hong'; did you mean 'hang'"):
        async with raw(**options):
            pass


async def test_resources_and_sound_become_parts() -> None:
    async with raw() as tools:
        link = await called(tools, "linked")
        blob = await called(tools, "blob")
    assert link.content == "file:///cut/list.pdf: list: to cut"
    pdf = FilePart(data=b"%PDF", media_type="application/pdf", name="list.pdf")
    assert blob.content == [pdf, FilePart(data=b"%PDF", media_type="audio/wav"), TextPart("a note")]


@pytest.mark.parametrize("name", ["bad_image", "bad_answer"])
async def test_an_answer_that_breaks_the_protocol_is_told(name: str) -> None:
    async with raw() as tools:
        answer = await called(tools, name)
        assert answer.is_error
        assert answer.text.startswith(f"McpError: MCP server 'raw', tool '{name}': the answer is not valid: ")
        assert (await called(tools, "ok")).text == "well"


async def test_the_list_follows_an_older_server() -> None:
    async with raw() as tools, asyncio.timeout(5):
        await called(tools, "grow")
        while "grown" not in names(tools):
            await called(tools, "ok")  # by its answer the server has had its turn


async def test_the_list_follows_a_newer_server(either_shop: McpTools) -> None:
    async with either_shop as tools, asyncio.timeout(5):
        await called(tools, "grow")
        while "plane" not in names(tools):
            await called(tools, "pid")
        assert (await called(tools, "plane")).text == "planed"


async def test_a_large_answer_comes_whole(workshop_url: str) -> None:
    async with McpTools(url=workshop_url) as tools:
        assert len((await called(tools, "much")).text) == 2**22


async def test_a_tools_name_is_one_that_providers_take_and_the_server_is_called_by_its_own() -> None:
    async with raw("dotted", include=["fs.read", "fs/read"], prefix="my ") as tools:
        assert names(tools) == ["my_fs_read", "my_fs_read_2"]
        assert (await called(tools, "my_fs_read_2")).text == "well"


async def test_pages_without_end_are_told() -> None:
    with pytest.raises(McpError, match="its pages of tools have no end: '2' comes a second time"):
        async with raw("endless"):
            pass


async def test_refresh_lists_the_tools_anew() -> None:
    async with raw("quiet") as tools:
        await called(tools, "grow")
        assert "grown" not in names(tools)
        await tools.refresh()
        assert "grown" in names(tools)


async def test_tools_that_cannot_be_listed_anew_stay_as_they_were(caplog: pytest.LogCaptureFixture) -> None:
    async with raw("fussy") as tools:
        await called(tools, "grow")
        with pytest.raises(McpError, match="MCP server 'raw' cannot list its tools: not now"):
            await tools.refresh()
        assert (await called(tools, "ok")).text == "well"
    assert "has changed its tools, and cannot list them: not now" in caplog.text


async def test_garbage_on_a_servers_stdout_is_passed_over() -> None:
    async with raw("noisy") as tools:
        assert [(await called(tools, "ok")).text for _ in range(3)] == ["well"] * 3


async def test_a_command_that_is_not_there_is_told_by_name() -> None:
    with pytest.raises(McpError, match=r"MCP server 'no-such-server --fast' cannot be started: .*No such file") as told:
        async with McpTools(command="no-such-server", args=["--fast"]):
            pass
    assert told.value.server == "no-such-server --fast"


async def test_a_server_that_ends_at_once_is_told_with_the_end_of_its_stderr() -> None:
    code = "import sys; sys.exit('x' * 9000 + 'no token: set WOOD_TOKEN')"
    with pytest.raises(McpError, match=r"^MCP server 'shop' .*cannot be started: .*no token: set WOOD_TOKEN$") as told:
        async with McpTools(command=sys.executable, args=["-c", code], name="shop"):
            pass
    assert len(str(told.value)) < 12_000


@pytest.mark.usefixtures("impatient")
async def test_a_server_that_hangs_at_its_start_is_ended_and_told() -> None:
    with pytest.raises(McpError, match=r"no answer within 1 s; it last said: started as") as told:
        async with raw("slow", start_timeout=1):
            pass
    assert is_gone(int(str(told.value).split()[-1]))


async def test_an_address_where_nobody_is_is_told_without_its_secrets() -> None:
    with pytest.raises(McpError, match=r"'http://127.0.0.1:9/mcp' cannot be reached: .*failed") as told:
        async with McpTools(url="http://me:word@127.0.0.1:9/mcp?key=word"):
            pass
    assert "word" not in str(told.value)


async def test_an_address_without_such_a_server_is_told_with_its_status(everything_url: str) -> None:
    with pytest.raises(McpError, match=r"cannot be reached: .*it last said: HTTP 404 Not Found"):
        async with McpTools(url=everything_url.replace("/mcp", "/none")):
            pass


async def test_the_process_has_ended_after_the_block() -> None:
    async with raw() as tools:
        pid = int((await called(tools, "pid")).text)
        assert not is_gone(pid)
    assert is_gone(pid)


@pytest.mark.usefixtures("impatient")
async def test_a_process_that_does_not_end_is_killed() -> None:
    async with raw("deaf") as tools:
        pid = int((await called(tools, "pid")).text)
    assert is_gone(pid)


async def test_an_error_in_the_block_comes_out_as_itself_and_the_process_ends() -> None:
    pids: list[int] = []

    async def fail() -> None:
        async with raw() as tools:
            pids.append(int((await called(tools, "pid")).text))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await fail()
    assert is_gone(pids[0])


@pytest.mark.usefixtures("impatient")
async def test_a_start_that_is_cancelled_leaves_nothing(started: Started) -> None:
    starting = asyncio.create_task(raw("slow").__aenter__())
    pid = await started.pid()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert is_gone(pid)


async def test_the_block_may_be_left_in_another_task_than_it_was_entered_in() -> None:
    tools = raw()
    await asyncio.create_task(tools.__aenter__())
    assert (await asyncio.create_task(called(tools, "ok"))).text == "well"
    await asyncio.create_task(tools.__aexit__(None, None, None))


async def test_blocks_may_be_left_in_any_order() -> None:
    first, second = raw(), raw()
    await first.__aenter__()
    await second.__aenter__()
    await first.__aexit__(None, None, None)
    assert (await called(second, "ok")).text == "well"
    await second.__aexit__(None, None, None)


async def test_another_event_loop_is_refused() -> None:
    async with raw() as tools:
        with pytest.raises(
            ToolError, match="MCP server 'raw' belongs to the event loop in which its block was entered"
        ):
            await asyncio.to_thread(asyncio.run, called(tools, "ok"))


async def test_tools_are_there_within_the_block_only() -> None:
    tools = raw()
    with pytest.raises(RuntimeError, match="inside its `async with` block only"):
        list(tools)
    async with tools:
        agent = ReactAgent("clerk", ScriptedModel([[ToolCall("c1", "ok")]]), [*tools])
        with pytest.raises(RuntimeError, match="has been entered already"):
            await tools.__aenter__()
    with pytest.raises(ToolError, match="inside its `async with` block only"):
        await agent.run("Well?")


async def test_a_block_may_be_entered_again() -> None:
    tools = raw()
    for _ in range(2):
        async with tools:
            assert (await called(tools, "ok")).text == "well"


async def test_environment_and_folder_are_the_servers_own(
    everything: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "1")
    node, script = everything
    async with McpTools(command=node, args=[str(script)], env={"WOOD": "oak"}, cwd=tmp_path) as tools:
        env = json.loads((await called(tools, "get-env")).text)
    assert env["WOOD"] == "oak"
    assert "MY_SECRET" not in env


async def test_headers_go_with_every_request(workshop_url: str) -> None:
    async with McpTools(url=workshop_url, headers={"x-wood": "oak"}) as tools:
        assert (await called(tools, "header", name="x-wood")).text == "oak"


async def test_a_client_of_the_callers_own_is_used_and_stays_open(workshop_url: str) -> None:
    async with httpx2.AsyncClient(headers={"x-wood": "ash"}) as client:
        async with McpTools(url=workshop_url, http_client=client) as tools:
            assert (await called(tools, "header", name="x-wood")).text == "ash"
        assert not client.is_closed


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"command": "a", "url": "http://a"},
        {"command": "a", "headers": {"b": "c"}},
        {"url": "http://a", "args": ["b"]},
        {"url": "http://a", "headers": {"b": "c"}, "http_client": object()},
        {"command": ["a", "b"]},
        {"url": 5},
        {"command": "a", "args": "b c"},
        {"command": "a", "args": 5},
        {"command": "a", "args": ["b", 5]},
        {"command": "a", "env": ["B"]},
        {"command": "a", "env": {"B": 5}},
        {"url": "http://a", "headers": ["b"]},
        {"command": "a", "include": "b"},
        {"command": "a", "start_timeout": 0},
        {"command": "a", "type": "http"},
        {"url": "http://a", "type": "sse"},
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="McpTools"):
        McpTools(**options)


@pytest.mark.parametrize(
    "options", [{"command": "a", "type": "stdio"}, {"url": "http://a", "type": "http"}, {"url": "http://a"}]
)
def test_a_configurations_type_is_taken(options: dict[str, Any]) -> None:
    McpTools(**options)


def test_the_sdk_is_an_extra_that_is_asked_for_where_it_is_imported() -> None:
    code = """
import sys
sys.modules["mcp"] = None
try:
    import agentgraph.nodes.mcp
except ImportError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert 'pip install "agentgraph-engine[mcp]"' in run.stdout


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
