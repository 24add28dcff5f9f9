"""Agents beside each other, and what becomes of their answers."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import Command, ConfigError, ConflictError, RecursionLimitError, RunConfig
from agentgraph.checkpoint import MemorySaver
from agentgraph.events import ModelDelta
from agentgraph.messages import AssistantMessage, Message, ToolCall, Usage, UserMessage
from agentgraph.models import ModelRequest
from agentgraph.nodes import ReactAgent, ToolContext, tool
from agentgraph.nodes.flows import FlowError, LoopAgent, ParallelAgent, SequentialAgent
from agentgraph.nodes.hooks import Todo, TodoList
from agentgraph.strategies import Append
from agentgraph.testing import FunctionModel, ScriptedModel

T = RunConfig(thread_id="t")


def texts(messages: list[Message]) -> list[str]:
    return [m.text for m in messages]


def says(name: str, *steps: Any) -> ReactAgent:
    return ReactAgent(name, ScriptedModel(steps))


def never(name: str, ended: asyncio.Event | None = None) -> ReactAgent:
    """An agent whose model never answers; `ended` tells that it was stopped."""

    async def wait(request: ModelRequest) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            if ended is not None:
                ended.set()
        raise AssertionError(request)

    return ReactAgent(name, FunctionModel(wait))


@tool
async def ask(context: ToolContext) -> str:
    """Ask."""
    return str(context.interrupt("well?"))


def asks(name: str, *then: str) -> ReactAgent:
    return ReactAgent(name, ScriptedModel([[ToolCall(f"c-{name}", "ask")], *then]), [ask])


# --- merging ---


@pytest.mark.parametrize(
    ("merge", "output", "text"),
    [
        ("dict", {"a": "yes", "b": "no"}, "a: yes\n\nb: no"),
        ("list", ["yes", "no"], "a: yes\n\nb: no"),
        ("text", "a: yes\n\nb: no", "a: yes\n\nb: no"),
        ("/".join, "a/b", "a/b"),
        (lambda made: {"n": len(made)}, {"n": 2}, '{"n":2}'),  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    ],
)
async def test_outputs_are_merged_as_told(merge: Any, output: Any, text: str) -> None:
    flow = ParallelAgent("p", [says("a", "yes"), says("b", "no")], merge=merge, output_key="all")
    result = await flow.run("go")
    assert (result.output, result.state["all"], result.text) == (output, output, text)
    assert texts(result.messages) == ["go", text]


async def test_a_function_that_merges_may_be_async_and_gets_typed_outputs() -> None:
    class Vote(msgspec.Struct):
        yes: bool

    async def count(made: Mapping[str, Vote]) -> int:
        await asyncio.sleep(0)
        return sum(vote.yes for vote in made.values())

    agents = {
        n: ReactAgent(n, ScriptedModel([f'{{"yes": {v}}}']), output_type=Vote)
        for n, v in (("a", "true"), ("b", "false"))
    }
    flow = ParallelAgent("p", agents, merge=count, checkpointer=MemorySaver())
    assert (await flow.run("go", T)).output == 1


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(4)))
def test_the_order_of_answers_is_that_in_which_the_agents_were_given(order: list[int]) -> None:
    async def run() -> Any:
        turns = [asyncio.Event() for _ in range(5)]
        turns[0].set()

        def in_turn(k: int) -> Callable[[ModelRequest], Any]:
            async def answer(_: ModelRequest) -> str:
                await turns[order[k]].wait()
                turns[order[k] + 1].set()
                return str(k)

            return answer

        agents = [
            ReactAgent(f"a{k}", FunctionModel(in_turn(k)), output_key=f"k{k}", strategies={"log": Append()})
            for k in range(4)
        ]
        return (await ParallelAgent("p", agents, merge="list").run("go")).output

    assert asyncio.run(run()) == ["0", "1", "2", "3"]


@pytest.mark.parametrize(("conversation", "told"), [("shared", ["before", "x", "go"]), ("separate", ["go"])])
async def test_no_agent_sees_another_one_and_each_what_it_was_told(conversation: Any, told: list[str]) -> None:
    models = [ScriptedModel([str(k)]) for k in range(2)]
    agents = {f"a{k}": ReactAgent("a", m) for k, m in enumerate(models)}
    first = ParallelAgent("p", agents, conversation=conversation)
    before = [*(await says("x", "x").run("before")).messages]
    await first.run([*before, UserMessage("go")])
    assert [texts(m.requests[0].messages) for m in models] == [told, told]


async def test_two_agents_that_write_one_replaced_key_are_an_error_that_names_both() -> None:
    agents = [ReactAgent(n, ScriptedModel(["x"]), output_key="draft") for n in ("a", "b")]
    with pytest.raises(ConflictError, match="'a' and 'b' both wrote key 'draft'"):
        await ParallelAgent("p", agents).run("go")


async def test_agents_beside_each_other_may_each_have_a_to_do_list() -> None:
    def plans(name: str) -> ReactAgent:
        plan = ToolCall(f"c-{name}", "write_todos", f'{{"todos": [{{"content": "{name}"}}]}}')
        return ReactAgent(name, ScriptedModel([[plan], "done"]), hooks=[TodoList()])

    result = await ParallelAgent("p", [plans("a"), plans("b")]).run("go")
    assert (result.text, result.state["todos"]) == ("a: done\n\nb: done", [Todo("b")])


async def test_what_agents_add_to_a_key_is_added_in_their_order() -> None:
    @tool
    async def note(text: str, context: ToolContext) -> str:
        """Note."""
        context.update(notes=[text])
        return "noted"

    agents = [
        ReactAgent(
            n,
            ScriptedModel([[ToolCall("c", "note", f'{{"text": "{n}"}}')], "done"]),
            [note],
            strategies={"notes": Append()},
        )
        for n in ("a", "b")
    ]
    assert (await ParallelAgent("p", agents).run("go")).state["notes"] == ["a", "b"]


async def test_the_next_turn_on_a_thread_merges_only_its_own_answers() -> None:
    flow = ParallelAgent("p", [says("a", "1", "3"), says("b", "2", "4")], merge="list", checkpointer=MemorySaver())
    await flow.run("go", T)
    result = await flow.run("again", T)
    assert result.output == ["3", "4"]
    assert texts(result.messages) == ["go", "a: 1\n\nb: 2", "again", "a: 3\n\nb: 4"]


# --- limits, errors, the first one ---


async def test_so_many_agents_work_at_once() -> None:
    now, most = 0, 0

    async def answer(_: ModelRequest) -> str:
        nonlocal now, most
        now += 1
        most = max(most, now)
        for _turn in range(10):
            await asyncio.sleep(0)
        now -= 1
        return "x"

    agents = [ReactAgent(f"a{k}", FunctionModel(answer)) for k in range(6)]
    assert len((await ParallelAgent("p", agents, max_parallel=2, merge="list").run("go")).output) == 6
    assert most == 2


async def test_an_agent_that_fails_fails_the_flow_with_its_own_error_and_stops_the_others() -> None:
    stopped = asyncio.Event()
    with pytest.raises(ValueError, match="boom"):
        await ParallelAgent("p", [never("a", stopped), says("b", ValueError("boom"))]).run("go")
    assert stopped.is_set()


async def test_what_others_made_is_kept_if_so_told(caplog: pytest.LogCaptureFixture) -> None:
    flow = ParallelAgent("p", [says("a", ValueError("boom")), says("b", "fine")], on_error="keep", merge="dict")
    result = await flow.run("go")
    assert (result.output, result.text) == ({"b": "fine"}, "fine")
    assert result.state["errors"] == {"a": "ValueError: boom"}
    assert "without agent 'a'" in caplog.text


@pytest.mark.parametrize("until", ["all", "first"])
async def test_where_all_fail_that_is_an_error_that_names_them(until: Any) -> None:
    agents = [says("a", ValueError("boom")), says("b", KeyError("bang"))]
    with pytest.raises(FlowError, match=r"no agent has answered: a: ValueError: boom; b: KeyError: 'bang'"):
        await ParallelAgent("p", agents, on_error="keep", until=until).run("go")


@pytest.mark.parametrize("until", ["all", "first"])
async def test_the_runs_limit_of_steps_is_never_kept_quiet(until: Any) -> None:
    flow = ParallelAgent("p", [says("a", "x"), says("b", "y")], on_error="keep", until=until)
    with pytest.raises(RecursionLimitError):
        await flow.run("go", RunConfig(recursion_limit=1))


async def test_the_first_answer_ends_the_others_before_the_flow_goes_on() -> None:
    stopped = asyncio.Event()

    def merge(made: Mapping[str, Any]) -> Any:
        assert stopped.is_set()
        return dict(made)

    result = await ParallelAgent("p", [never("slow", stopped), says("fast", "me")], until="first", merge=merge).run(
        "go"
    )
    assert result.output == {"fast": "me"}


async def test_a_loop_may_be_first() -> None:
    loop = LoopAgent("loop", says("inner", "one"), items=["x"])
    result = await ParallelAgent("p", [loop, never("slow")], until="first").run("go")
    assert (result.text, result.output) == ("one", "one")
    assert not {"round", "item"} & result.state.keys()


async def test_an_agent_that_fails_before_the_first_answer_fails_the_flow_or_not_as_told() -> None:
    go = asyncio.Event()

    async def late(_: ModelRequest) -> str:
        await go.wait()
        return "late"

    async def fails(_: ModelRequest) -> str:
        go.set()
        raise ValueError("boom")

    failing = ReactAgent("fails", FunctionModel(fails))
    kept = ParallelAgent("p", [ReactAgent("late", FunctionModel(late)), failing], until="first", on_error="keep")
    assert (await kept.run("go")).text == "late"
    with pytest.raises(ValueError, match="boom"):
        await ParallelAgent("p", [never("late"), failing], until="first").run("go")


async def test_a_race_that_is_cancelled_leaves_nobody_at_work() -> None:
    ended = [asyncio.Event(), asyncio.Event()]
    began = asyncio.Event()

    async def wait(_: ModelRequest) -> str:
        began.set()
        await asyncio.Event().wait()
        return "never"

    flow = ParallelAgent("p", [never("a", ended[0]), ReactAgent("b", FunctionModel(wait))], until="first")
    run = asyncio.create_task(flow.run("go"))
    await began.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert ended[0].is_set()


async def test_what_was_first_is_not_asked_again_when_the_flow_goes_on() -> None:
    model = ScriptedModel(["me"])
    tries: list[int] = []

    def merge(made: Mapping[str, Any]) -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("boom")
        return str(made)

    flow = ParallelAgent(
        "p", [never("slow"), ReactAgent("fast", model)], until="first", merge=merge, checkpointer=MemorySaver()
    )
    with pytest.raises(ValueError, match="boom"):
        await flow.run("go", T)
    assert (await flow.run(None, T)).output == "{'fast': 'me'}"
    assert len(model.requests) == 1


# --- questions, events, drawing ---


async def test_questions_in_branches_are_answered_one_by_one_and_what_ended_is_not_run_again() -> None:
    model = ScriptedModel(["quick"])
    flow = ParallelAgent(
        "p", [asks("a", "A"), ReactAgent("b", model), asks("c", "C")], merge="list", checkpointer=MemorySaver()
    )
    paused = await flow.run("go", T)
    first, second = paused.interrupts
    assert [q.node for q in paused.interrupts] == [("a", "tools"), ("c", "tools")]
    paused = await flow.run(Command(resume={second.id: "2"}), T)
    assert paused.interrupts == (first,)
    result = await flow.run(Command(resume={first.id: "1"}), T)
    assert result.output == ["A", "quick", "C"]
    assert len(model.requests) == 1


async def test_a_race_waits_for_an_answer_only_where_nobody_has_answered() -> None:
    flow = ParallelAgent("p", [asks("a", "A"), says("b", "B")], until="first", checkpointer=MemorySaver())
    assert (await flow.run("go", T)).text == "B"
    flow = ParallelAgent("p", [asks("a", "A"), asks("b", "B")], until="first", checkpointer=MemorySaver())
    paused = await flow.run("go", RunConfig(thread_id="u"))
    _, second = paused.interrupts
    result = await flow.run(Command(resume={second.id: "2"}), RunConfig(thread_id="u"))
    assert (result.status, result.text) == ("done", "B")


@pytest.mark.parametrize(("until", "over"), [("all", ()), ("first", ("race",))])
async def test_a_branchs_events_have_its_path(until: Any, over: tuple[str, ...]) -> None:
    both = asyncio.Barrier(2)

    async def answer(_: ModelRequest) -> str:
        await both.wait()
        return "x"

    flow = ParallelAgent("p", [ReactAgent(n, FunctionModel(answer)) for n in ("a", "b")], until=until)
    async with flow.stream("go") as stream:
        paths = {e.path async for e in stream if e.path[len(over) :][-1:] == ("llm",)}
    assert paths == {(*over, "a", "llm"), (*over, "b", "llm")}


async def test_deltas_of_branches_can_be_told_apart() -> None:
    flow = ParallelAgent("p", [says("a", "one two"), says("b", "three four")])
    said: dict[tuple[str, ...], str] = {}
    async with flow.stream("go") as stream:
        async for event in stream:
            if isinstance(event, ModelDelta):
                said[event.path] = said.get(event.path, "") + event.text
    assert said == {("a", "llm"): "one two", ("b", "llm"): "three four"}


async def test_usage_of_branches_is_summed_once_those_in_flows_in_flows_too() -> None:
    def spends(name: str, tokens: int) -> ReactAgent:
        answer = AssistantMessage(name, usage=Usage(input_tokens=tokens, output_tokens=1))
        return ReactAgent(name, ScriptedModel([answer]))

    inner = ParallelAgent("inner", [spends("b", 20), spends("c", 300)])
    result = await ParallelAgent("p", [spends("a", 1), SequentialAgent("s", [inner])]).run("go")
    assert result.usage == Usage(input_tokens=321, output_tokens=3, calls=3)
    assert result.state["_token_usage"] == result.usage


def test_its_branches_are_drawn_and_so_is_a_race() -> None:
    drawn = ParallelAgent("p", [says("a"), says("b")]).app.mermaid()
    for line in ('n0[["a"]]', "start --> n0", "start --> n1", 'n1 -->|"join"| n2', "n2 --> end_"):
        assert line in drawn
    assert '"race"' in ParallelAgent("p", [says("a"), says("b")], until="first").app.mermaid()


def test_options_that_cannot_be_meant_are_refused() -> None:
    for options, told in (
        ({"merge": "dcit"}, "did you mean 'dict'"),
        ({"max_parallel": 0}, "max_parallel"),
        ({"until": "fist"}, "did you mean 'first'"),
        ({"on_error": "keeep"}, "did you mean 'keep'"),
    ):
        with pytest.raises(ConfigError, match=told):
            ParallelAgent("p", [says("a")], **options)  # pyright: ignore[reportArgumentType]
