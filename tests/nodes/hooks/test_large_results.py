"""Large results: what is too large is kept in a file, and read in pieces."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from agentgraph import Command, ConfigError, RunConfig
from agentgraph.checkpoint import MemorySaver
from agentgraph.messages import ImagePart, Message, TextPart, ToolCall, ToolResponse, ToolResponseMessage
from agentgraph.nodes import AgentResult, ReactAgent, Tool, ToolContext, tool
from agentgraph.nodes.hooks import LargeResults
from agentgraph.testing import FunctionModel, ScriptedModel

HUGE = "".join(f"line {i}\n" for i in range(20_000))


@tool
async def search(q: str) -> str:
    """Search."""
    return HUGE if q == "all" else q


def asking(*queries: str, name: str = "search") -> list[ToolCall]:
    return [ToolCall(f"c{i}", name, json.dumps({"q": q})) for i, q in enumerate(queries)]


def reading(path: str, **more: Any) -> list[ToolCall]:
    return [ToolCall("r1", "read_result", json.dumps({"path": path, **more}))]


def answers(messages: list[Message]) -> list[str]:
    return [r.text for m in messages if isinstance(m, ToolResponseMessage) for r in m.responses]


def files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


async def read(hook: LargeResults, path: str, **more: Any) -> str:
    agent = ReactAgent("reader", ScriptedModel([reading(path, **more), "Done."]), hooks=[hook])
    return answers((await agent.run("Read.")).messages)[0]


async def ran(hook: LargeResults, tools: Any = (search,), calls: Any = None, **config: Any) -> AgentResult:
    agent = ReactAgent("clerk", ScriptedModel([calls or asking("all"), "Done."]), tools, hooks=[hook])
    return await agent.run("Search.", RunConfig(**config))


# --- what is kept ---


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("parallel", [True, False])
async def test_a_large_answer_is_kept_in_a_file_and_read_in_pieces(
    tmp_path: Path, stream: bool, parallel: bool
) -> None:
    def answer(request: Any) -> Any:
        last = request.messages[-1]
        if not isinstance(last, ToolResponseMessage):
            return asking("all", "small")
        text = last.responses[0].text
        if "it is kept in" in text:
            return reading(text.split("it is kept in '")[1].split("'")[0], offset=2000)
        seen.append(text)
        return "Done."

    seen: list[str] = []
    hook = LargeResults(tmp_path)
    agent = ReactAgent("clerk", FunctionModel(answer), [search], hooks=[hook], stream=stream, parallel=parallel)
    result = await agent.run("Search.")
    (file,) = files(tmp_path)
    assert file.read_text() == HUGE
    first, second, piece = answers(result.messages)
    assert first.startswith(HUGE[:2000] + f"\n\n[this answer has {len(HUGE):,} characters")
    assert second == "small"
    assert seen == [piece]
    assert piece == HUGE[2000:22000] + f"\n\n[characters 2,000 to 22,000 of {len(HUGE):,}; go on with offset=22000]"


async def test_what_is_small_enough_makes_no_file(tmp_path: Path) -> None:
    result = await ran(LargeResults(tmp_path / "results", over=len(HUGE)))
    assert answers(result.messages) == [HUGE]
    assert not (tmp_path / "results").exists()


async def test_pieces_joined_are_the_answer(tmp_path: Path) -> None:
    text = "é\r\n🎉\x00" * 9000
    hook = LargeResults(tmp_path, page=7000)

    async def speak(q: str) -> str:
        return text

    await ran(hook, [speak], asking("x", name="speak"))
    (file,) = files(tmp_path)
    pieces = [(await read(hook, str(file.relative_to(tmp_path)), offset=i)) for i in range(0, len(text), 7000)]
    assert "".join(piece.rpartition("\n\n[characters ")[0] for piece in pieces) == text
    assert pieces[-1].endswith("this is its end]")


async def test_images_stay_with_the_answer(tmp_path: Path) -> None:
    image = ImagePart(url="http://x/1.png")

    async def look(q: str) -> list[Any]:
        return [TextPart("x" * 50_000), image]

    result = await ran(LargeResults(tmp_path), [look], asking("x", name="look"))
    message = result.messages[2]
    assert isinstance(message, ToolResponseMessage)
    text, kept = message.responses[0].content
    assert kept == image
    assert isinstance(text, TextPart)
    assert len(text.text) < 3000


async def test_large_errors_are_kept_too_and_stay_errors(tmp_path: Path) -> None:
    async def fail(q: str) -> None:
        raise ValueError("x" * 50_000)

    result = await ran(LargeResults(tmp_path), [fail], asking("x", name="fail"))
    message = result.messages[2]
    assert isinstance(message, ToolResponseMessage)
    assert message.responses[0].is_error
    assert len(files(tmp_path)) == 1


async def test_answers_for_the_user_and_of_excluded_tools_stay_whole(tmp_path: Path) -> None:
    hook = LargeResults(tmp_path, exclude_tools=["search"])
    assert answers((await ran(hook)).messages) == [HUGE]
    direct = Tool(search.fn, name="tell", return_direct=True)
    agent = ReactAgent("clerk", ScriptedModel([asking("all", name="tell")]), [direct], hooks=[LargeResults(tmp_path)])
    assert (await agent.run("Search.")).text == HUGE
    assert files(tmp_path) == []


async def test_what_cannot_be_written_stays_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "results").write_text("no folder")
    with caplog.at_level(logging.WARNING, "agentgraph"):
        result = await ran(LargeResults(tmp_path / "results"))
    assert answers(result.messages) == [HUGE]
    assert "the answer of 'search' could not be written" in caplog.text


async def test_halves_of_surrogate_pairs_are_written_as_u_fffd(tmp_path: Path) -> None:
    class Half:
        async def wrap_tool(self, request: Any, call: Any) -> ToolResponse:
            return ToolResponse(request.call.id, request.call.name, "\ud83d" * 50_000)

    hooks = [LargeResults(tmp_path), Half()]
    await ReactAgent("clerk", ScriptedModel([asking("x"), "Done."]), [search], hooks=hooks).run("Search.")
    assert files(tmp_path)[0].read_text(encoding="utf-8") == "\ufffd" * 50_000


async def test_a_plain_def_tool_that_holds_a_permit_is_written_too(tmp_path: Path) -> None:
    @tool(max_parallel=1)
    def dig(q: str) -> str:
        return q * 50_000

    calls = [ToolCall(f"c{i}", "dig", json.dumps({"q": str(i)})) for i in range(6)]
    result = await ran(LargeResults(tmp_path), [dig], calls)
    assert sorted(f.read_text()[0] for f in files(tmp_path)) == list("012345")
    assert [text[0] for text in answers(result.messages)] == list("012345")


# --- where the files lie ---


@pytest.mark.parametrize("name", ["../../up", "/etc/passwd", "..", "a/b", "C:\\x", "\x00", "ü" * 300, "."])
async def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    root = tmp_path / "in" / "results"

    async def speak(q: str) -> str:
        return HUGE

    made = Tool(speak, name=name)
    await ran(LargeResults(root), [made], [ToolCall(name, name, '{"q": "x"}')], thread_id="t" + name.strip("\x00"))
    (file,) = files(tmp_path)
    assert file.is_relative_to(root)
    assert file.parent.parent == root
    assert file.read_text() == HUGE


async def test_threads_and_runs_have_folders_of_their_own(tmp_path: Path) -> None:
    hook = LargeResults(tmp_path)
    for config in ({"thread_id": "a"}, {"thread_id": "a"}, {"thread_id": "A/"}, {"run_id": "a"}):
        await ran(hook, **config)
    folders = sorted(p.name.rsplit("-", 1)[0] for p in {f.parent for f in files(tmp_path)})
    assert folders == ["run-a", "thread-A-", "thread-a"]
    assert len(files(tmp_path)) == 3  # the same call with the same outcome is the same file


async def test_a_call_id_that_comes_again_with_another_answer_has_another_file(tmp_path: Path) -> None:
    hook = LargeResults(tmp_path)

    async def speak(q: str) -> str:
        return q * 50_000

    for q in "ab":
        await ran(hook, [speak], [ToolCall("c1", "speak", json.dumps({"q": q}))], thread_id="t")
    assert sorted(f.read_text()[0] for f in files(tmp_path)) == ["a", "b"]


async def test_a_threads_files_can_be_removed(tmp_path: Path) -> None:
    hook = LargeResults(tmp_path)
    for thread in ("a", "b"):
        await ran(hook, thread_id=thread)
    await hook.delete("a")
    await hook.delete("never")
    assert [f.parent.name.rsplit("-", 1)[0] for f in files(tmp_path)] == ["thread-b"]


async def test_a_later_turn_on_the_thread_reads_what_an_earlier_one_has_kept(tmp_path: Path) -> None:
    saver = MemorySaver()
    thread = RunConfig(thread_id="t")

    def made(*script: Any) -> ReactAgent:
        return ReactAgent("clerk", ScriptedModel(script), [search], hooks=[LargeResults(tmp_path)], checkpointer=saver)

    first = await made(asking("all"), "Done.").run("Search.", thread)
    path = answers(first.messages)[0].split("it is kept in '")[1].split("'")[0]
    second = await made(reading(path, offset=100, limit=50), "Done.").run("Read on.", thread)
    assert answers(second.messages)[1].startswith(HUGE[100:150] + "\n\n[characters 100 to 150 of")
    assert len(answers(second.messages)[0]) < 3000  # what the thread keeps is the short one


async def test_what_was_answered_before_a_pause_is_not_asked_for_again_and_stays_short(tmp_path: Path) -> None:
    @tool
    async def confirm(q: str, context: ToolContext) -> str:
        return str(context.interrupt("sure?")) * 50_000

    made_calls: list[str] = []

    async def dig(q: str) -> str:
        made_calls.append(q)
        return HUGE

    def made(*script: Any) -> ReactAgent:
        hooks = [LargeResults(tmp_path)]
        return ReactAgent("clerk", ScriptedModel(script), [confirm, dig], hooks=hooks, checkpointer=saver)

    saver = MemorySaver()
    thread = RunConfig(thread_id="t")
    calls = [*asking("a", name="dig"), ToolCall("c9", "confirm", '{"q": "b"}')]
    paused = await made(calls).run("Dig.", thread)
    assert len(files(tmp_path)) == 1
    done = await made("Done.").run(Command(resume={paused.interrupts[0].id: "y"}), thread)
    assert [text[:4] for text in answers(done.messages)] == ["line", "yyyy"]
    assert all("it is kept in" in text for text in answers(done.messages))
    assert len(files(tmp_path)) == 2
    assert made_calls == ["a"]


async def test_calls_at_once_write_the_same_file_whole(tmp_path: Path) -> None:
    hook = LargeResults(tmp_path)
    await asyncio.gather(*(ran(hook, thread_id="t") for _ in range(8)))
    (file,) = files(tmp_path)
    assert file.read_text() == HUGE


# --- what is read ---


@pytest.mark.parametrize(
    "path", ["../secret.txt", "/etc/passwd", "link.txt", "folder/secret.txt", ".", "", "x\x00", "n" * 5000, "none.txt"]
)
async def test_paths_outside_of_the_folder_are_refused_as_if_there_were_none(tmp_path: Path, path: str) -> None:
    root = tmp_path / "results"
    root.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    (root / "folder").symlink_to(tmp_path)
    told = await read(LargeResults(root), path)
    assert told == f"there is no result {path!r}; give the path as the answer named it"


async def test_a_thread_folder_that_is_a_link_to_elsewhere_is_not_written_through(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    hook = LargeResults(root)
    await ran(hook, thread_id="t")
    folder = files(root)[0].parent
    folder.rename(elsewhere)
    for file in files(elsewhere):
        file.unlink()
    folder.symlink_to(elsewhere)
    assert answers((await ran(hook, thread_id="t")).messages) == [HUGE]
    assert files(elsewhere) == []


async def test_beyond_the_end_there_is_an_error_that_tells_the_length(tmp_path: Path) -> None:
    hook = LargeResults(tmp_path)
    await ran(hook)
    (file,) = files(tmp_path)
    path = str(file.relative_to(tmp_path))
    assert (await read(hook, path, offset=10**9)).endswith(
        f"has {len(HUGE):,} characters; offset=1000000000 is beyond its end"
    )
    assert "Expected `int` >= 0" in await read(hook, path, offset=-1)
    assert len(await read(hook, path, limit=10**9)) < 20_100


# --- options ---


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"folder": ""}, "must name a folder"),
        ({"folder": "x", "over": 0}, r"over=.*found 0"),
        ({"folder": "x", "over": 1000}, r"head=.*less than over=1000; found 2000"),
        ({"folder": "x", "page": None}, r"page=.*found None"),
        ({"folder": "x", "exclude_tools": "search"}, r"exclude_tools=.*found 'search'"),
    ],
)
def test_an_option_that_does_not_do_is_named(options: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        LargeResults(**options)


def test_an_excluded_tool_that_is_not_there_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    ReactAgent("clerk", ScriptedModel([]), [search], hooks=[LargeResults("x", exclude_tools=["serch"])])
    assert "'serch'" in caplog.text
    assert "read_result" in caplog.text
    assert caplog.text.count("not there yet") == 1
