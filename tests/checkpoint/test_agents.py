"""Agents whose runs are kept: what was answered is not asked again, and the next turn's history is valid."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict

import msgspec
import pytest

from agentgraph import END, START, Command, RunConfig, RunContext, StateGraph
from agentgraph.checkpoint import Checkpointer, spans
from agentgraph.events import ModelDelta, NodeFinished
from agentgraph.messages import AssistantMessage, Message, ToolCall, ToolResponse, ToolResponseMessage, UserMessage
from agentgraph.models import ModelRequest
from agentgraph.nodes import Answer, LlmNode, LlmRequest, ReactAgent, ToolContext, ToolRequest, tool
from agentgraph.strategies import Append, Messages, RemoveMessage
from agentgraph.testing import FunctionModel
from agentgraph.testing.scripted import Answer as Said

T = RunConfig(thread_id="t")
STRICT = RunConfig(thread_id="t", durability="sync")


def refuse_unpaired(messages: Sequence[Message]) -> None:
    """What strict providers do: each call is answered directly after it, and nothing else is."""
    open_calls: list[str] = []
    for message in messages:
        if isinstance(message, ToolResponseMessage):
            assert [r.id for r in message.responses] == open_calls, "answers that fit no calls"
            open_calls = []
            continue
        assert not open_calls, f"calls without an answer: {open_calls}"
        if isinstance(message, AssistantMessage):
            open_calls = [c.id for c in message.tool_calls]
    assert not open_calls


class Strict(FunctionModel):
    """Says the steps of a script in turn, and refuses what strict providers refuse."""

    def __init__(self, *steps: Said) -> None:
        said = iter(steps)

        def answer(request: ModelRequest) -> Said:
            refuse_unpaired(request.messages)
            return next(said)

        super().__init__(answer)


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"c{k}", name) for k, name in enumerate(names)]


def answers(messages: Sequence[Any]) -> list[tuple[str, str, bool]]:
    found = [m for m in messages if isinstance(m, ToolResponseMessage)]
    return [(r.id, r.text, r.is_error) for m in found for r in m.responses]


def kinds(messages: Sequence[Any]) -> list[str]:
    return [m.text if isinstance(m, UserMessage) else type(m).__name__ for m in messages]


async def die(app: Any, saver: Checkpointer, at: asyncio.Event, *, answered: int) -> None:
    """Run until `at` and so many answers are stored, and then be fenced off, as by who takes over a dead process."""
    run = asyncio.create_task(app.invoke({"messages": [UserMessage("Go!")]}, STRICT))
    await at.wait()
    while True:
        info = await saver.thread("t")
        assert info is not None
        entries = await saver.read("t", spans(info.lines, info.line, info.last))
        if sum(e.key.startswith("tools:") and e.key.endswith("(answer)") for e in entries) == answered:
            break
        await asyncio.sleep(0)
    assert info.status == "running"
    # another one's claim, which nobody gives back, is what the death of a process leaves
    await saver.release("t", info.epoch)
    taken = await saver.claim("t", info.graph, "the next process", 60)
    assert taken is not None
    run.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await run
    await saver.release("t", taken.epoch)


class Bench:
    """Two tools, of which the second waits until it is let go, and what has run."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    def tools(self) -> list[Any]:
        @tool
        async def quick(context: ToolContext) -> Answer:
            """Quick."""
            self.ran.append("quick")
            context.update(log=["quick"])
            return Answer("quick is done", metadata={"took": 1})

        @tool
        async def slow(context: ToolContext) -> str:
            """Slow."""
            self.ran.append("slow")
            context.update(log=["slow"])
            self.reached.set()
            await self.go.wait()
            return "slow is done"

        return [quick, slow]

    def agent(self, model: Any, saver: Checkpointer, **options: Any) -> ReactAgent:
        return ReactAgent("clerk", model, self.tools(), checkpointer=saver, strategies={"log": Append()}, **options)


async def test_a_second_turn_knows_the_first_also_in_an_agent_made_anew(saver: Checkpointer) -> None:
    model = Strict(calls("quick"), "Done.", "You asked for quick.")
    first = await Bench().agent(model, saver).run("Be quick!", T)
    second = await Bench().agent(model, saver).run("What did I ask?", T)
    assert (first.text, second.text) == ("Done.", "You asked for quick.")
    assert kinds(model.requests[-1].messages) == [
        "Be quick!", "AssistantMessage", "ToolResponseMessage", "AssistantMessage", "What did I ask?"
    ]  # fmt: skip
    assert second.messages == [*first.messages, *second.messages[4:]]


@pytest.mark.case("D11")
@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("how", ["cancelled", "killed"])
async def test_after_a_run_was_cut_off_a_new_message_is_asked_with_what_had_ended(
    saver: Checkpointer, how: str, parallel: bool
) -> None:
    model = Strict(calls("quick", "slow"), "Sorry.")
    bench = Bench()
    agent = bench.agent(model, saver, parallel=parallel)
    if how == "killed":
        await die(agent.app, saver, bench.reached, answered=1)
    else:
        run = asyncio.create_task(agent.run("Go!", T))
        await bench.reached.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    result = await Bench().agent(model, saver).run("Stop that.", T)
    assert kinds(result.messages) == [
        "Go!",
        "AssistantMessage",
        "ToolResponseMessage",
        "Stop that.",
        "AssistantMessage",
    ]
    assert answers(result.messages) == [
        ("c0", "quick is done", False),
        ("c1", "this call did not finish: its run was ended before", True),
    ]
    assert (bench.ran, result.state["log"], model.requests[1].messages) == (
        ["quick", "slow"], ["quick"], result.messages[:-1]
    )  # fmt: skip


@pytest.mark.case("D11")
@pytest.mark.parametrize("how", ["cancelled", "killed"])
async def test_a_run_that_was_cut_off_goes_on_with_the_call_that_had_not_ended(saver: Checkpointer, how: str) -> None:
    model = Strict(calls("quick", "slow"), "Both done.")
    bench = Bench()
    agent = bench.agent(model, saver)
    again = Bench()
    again.go.set()
    if how == "killed":
        await die(agent.app, saver, bench.reached, answered=1)
        (resumed,) = await again.agent(model, saver).app.resume_pending()
        assert resumed.result is not None
        state = resumed.result.state
    else:
        run = asyncio.create_task(agent.run("Go!", T))
        await bench.reached.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        state = (await again.agent(model, saver).run(None, T)).state
    assert answers(state["messages"]) == [("c0", "quick is done", False), ("c1", "slow is done", False)]
    assert state["messages"][2].metadata["answers"] == {"c0": {"took": 1}}
    assert (bench.ran, again.ran, state["log"]) == (["quick", "slow"], ["slow"], ["quick", "slow"])
    assert len(model.requests) == 2


@pytest.mark.case("F9")
@pytest.mark.case("A17")
async def test_after_a_turn_that_return_direct_ended_the_model_is_asked_again(saver: Checkpointer) -> None:
    @tool(return_direct=True)
    async def form() -> str:
        """A form."""
        return "the form"

    model = Strict(calls("form"), "Filled in.")

    def agent() -> ReactAgent:
        return ReactAgent("clerk", model, [form], checkpointer=saver)

    first = await agent().run("A form, please.", T)
    assert (first.text, len(model.requests)) == ("the form", 1)
    second = await agent().run("Here it is.", T)
    assert (second.text, len(model.requests)) == ("Filled in.", 2)


async def test_whether_a_call_ends_the_turn_is_recorded_with_its_answer(saver: Checkpointer) -> None:
    """The tool may be gone when the run goes on, or not direct any more."""
    reached = asyncio.Event()

    @tool(return_direct=True)
    async def form() -> str:
        """A form."""
        return "the form"

    @tool(return_direct=True)
    async def waits(context: ToolContext) -> str:
        """Wait."""
        reached.set()
        if context.run.context != "go":
            await asyncio.Event().wait()
        return "waited"

    model = Strict(calls("form", "waits"))
    run = asyncio.create_task(ReactAgent("clerk", model, [form, waits], checkpointer=saver).run("Go!", T))
    await reached.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    agent = ReactAgent("clerk", model, [waits], checkpointer=saver)
    result = await agent.run(None, T, context="go")
    assert (result.text, len(model.requests)) == ("the form\nwaited", 1)


@pytest.mark.case("F13")
async def test_after_a_stream_was_left_between_the_calls_and_their_answers_the_next_turn_is_valid(
    saver: Checkpointer,
) -> None:
    model = Strict(calls("quick", "slow"), "Sorry.")
    bench = Bench()
    async with bench.agent(model, saver).stream("Go!", T) as events:
        async for event in events:
            if isinstance(event, NodeFinished) and event.path == ("llm",):
                break
    result = await bench.agent(model, saver).run("Stop that.", T)
    assert (result.text, kinds(result.messages)[0], kinds(result.messages)[-2]) == ("Sorry.", "Go!", "Stop that.")


async def test_a_model_that_was_cut_off_is_asked_again_and_one_that_answered_is_not(saver: Checkpointer) -> None:
    reached = asyncio.Event()
    asked: list[str] = []

    async def answer(request: ModelRequest) -> str:
        asked.append("asked")
        if len(asked) == 1:
            reached.set()
            await asyncio.Event().wait()
        return "Answered."

    def agent() -> ReactAgent:
        return ReactAgent("clerk", FunctionModel(answer), checkpointer=saver)

    run = asyncio.create_task(agent().run("Go!", T))
    await reached.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert (await agent().run(None, T)).text == "Answered."
    assert len(asked) == 2


async def test_an_answer_that_was_recorded_before_its_router_failed_is_not_asked_for_again(
    saver: Checkpointer,
) -> None:
    model = Strict("Expensive.")
    broken = True

    class State(TypedDict):
        messages: Annotated[list[Any], Messages()]

    def router(state: State) -> str:
        if broken:
            raise RuntimeError("no route")
        return END

    def app() -> Any:
        graph = StateGraph(State)
        graph.add_node("llm", LlmNode(model))
        graph.add_edge(START, "llm")
        graph.add_conditional_edges("llm", router, [END])
        return graph.compile(checkpointer=saver)

    with pytest.raises(RuntimeError, match="no route"):
        await app().invoke({"messages": [UserMessage("Go!")]}, T)
    broken = False
    result = await app().invoke(None, T)
    assert (result.state["messages"][-1].text, len(model.requests)) == ("Expensive.", 1)


# --- tools that ask ---


def asking(ran: list[str]) -> list[Any]:
    @tool
    async def pay(amount: int, context: ToolContext) -> str:
        """Pay."""
        ran.append(f"pay {amount}")
        yes = context.interrupt({"pay": amount})
        ran.append(f"paid {amount}")
        context.update(log=[f"{amount} {yes}"])
        return f"paid {amount}: {yes}"

    @tool
    async def look(context: ToolContext) -> str:
        """Look."""
        ran.append("look")
        context.update(log=["look"])
        return "seen"

    return [pay, look]


PAY = [ToolCall("a", "pay", '{"amount": 1}'), ToolCall("b", "look"), ToolCall("c", "pay", '{"amount": 2}')]


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("together", [True, False])
async def test_calls_that_ask_are_answered_one_by_one_or_together_and_their_siblings_run_once(
    saver: Checkpointer, together: bool, parallel: bool
) -> None:
    ran: list[str] = []
    model = Strict(PAY, "Paid.")

    def agent() -> ReactAgent:
        return ReactAgent(
            "clerk", model, asking(ran), checkpointer=saver, strategies={"log": Append()}, parallel=parallel
        )

    paused = await agent().run("Pay.", T)
    asked = {q.value["pay"]: q for q in paused.interrupts}
    assert (paused.status, list(asked), sorted(ran)) == ("interrupted", [1, 2], ["look", "pay 1", "pay 2"])
    if together:
        result = await agent().run(Command(resume={asked[1].id: "yes", asked[2].id: "no"}), T)
        assert sorted(ran[3:]) == ["paid 1", "paid 2", "pay 1", "pay 2"]
    else:
        half = await agent().run(Command(resume={asked[2].id: "no"}), T)
        assert (half.interrupts, ran[3:]) == ((asked[1],), ["pay 2", "paid 2"])
        result = await agent().run(Command(resume={asked[1].id: "yes"}), T)
        assert ran[5:] == ["pay 1", "paid 1"]
    assert answers(result.messages) == [("a", "paid 1: yes", False), ("b", "seen", False), ("c", "paid 2: no", False)]
    assert result.state["log"] == ["1 yes", "look", "2 no"]


async def test_a_new_message_answers_calls_that_ask_as_not_done(saver: Checkpointer) -> None:
    ran: list[str] = []
    model = Strict(PAY, "Not paid.")
    agent = ReactAgent("clerk", model, asking(ran), checkpointer=saver, strategies={"log": Append()})
    await agent.run("Pay.", T)
    result = await agent.run("Never mind.", T)
    assert [(id, error) for id, _, error in answers(result.messages)] == [("a", True), ("b", False), ("c", True)]
    assert (result.status, result.interrupts, result.state["log"]) == ("done", (), ["look"])
    assert "paid 1" not in ran


async def test_a_new_message_goes_on_where_the_calls_that_ask_were_removed_by_hand(saver: Checkpointer) -> None:
    agent = ReactAgent("clerk", Strict(PAY, "Not paid."), asking([]), checkpointer=saver, strategies={"log": Append()})
    paused = await agent.run("Pay.", T)
    await agent.app.update_state(T, {"messages": RemoveMessage(paused.messages[-1].id)})
    result = await agent.run("Never mind.", T)
    assert [type(m) for m in result.messages] == [UserMessage, UserMessage, AssistantMessage]


async def test_an_interceptor_asks_for_each_call_by_itself(saver: Checkpointer) -> None:
    ran: list[str] = []

    async def approve(request: ToolRequest, call: Callable[[ToolRequest], Any]) -> ToolResponse:
        if request.run.interrupt({"run": request.call.name}) != "yes":
            return ToolResponse(request.call.id, request.call.name, "denied", is_error=True)
        return await call(request)

    @tool
    async def work(context: ToolContext) -> str:
        """Work."""
        ran.append(context.call_id)
        return "worked"

    model = Strict(calls("work", "work", "work"), "Done.")

    def agent() -> ReactAgent:
        return ReactAgent("clerk", model, [work], tool_interceptors=[approve], checkpointer=saver)

    ids = [q.id for q in (await agent().run("Go!", T)).interrupts]
    assert (len(set(ids)), ran) == (3, [])
    await agent().run(Command(resume={ids[2]: "yes"}), T)
    assert ran == ["c2"]
    result = await agent().run(Command(resume={ids[0]: "no", ids[1]: "yes"}), T)
    assert ran == ["c2", "c1"]
    assert answers(result.messages) == [("c0", "denied", True), ("c1", "worked", False), ("c2", "worked", False)]


async def test_an_interceptor_and_its_tool_that_ask_the_same_each_get_an_answer_of_their_own(
    saver: Checkpointer,
) -> None:
    async def approve(request: ToolRequest, call: Callable[[ToolRequest], Any]) -> ToolResponse:
        first = request.run.interrupt("sure?")
        response = await call(request)
        return msgspec.structs.replace(response, content=f"{first} {response.text}")

    @tool
    async def ask(context: ToolContext) -> str:
        """Ask."""
        return str(context.interrupt("sure?"))

    model = Strict(calls("ask"), "Done.")
    agent = ReactAgent("clerk", model, [ask], tool_interceptors=[approve], checkpointer=saver)
    await agent.run("Go!", T)
    second = await agent.run(Command(resume="the interceptor's"), T)
    assert second.status == "interrupted"
    result = await agent.run(Command(resume="the tool's"), T)
    assert answers(result.messages) == [("c0", "the interceptor's the tool's", False)]


# --- agents inside tools ---


class Inside:
    """An agent that a tool runs within the run: it works twice, and the second time it waits or asks."""

    def __init__(self, *, asks: bool = False) -> None:
        self.ran: list[str] = []
        self.asked: list[str] = []
        self.reached = asyncio.Event()
        self.go = asyncio.Event()
        self.asks = asks

    def agent(self, saver: Checkpointer, model: Any) -> ReactAgent:
        async def inner_answer(request: ModelRequest) -> Said:
            refuse_unpaired(request.messages)
            topic = request.messages[0].text
            done = sum(isinstance(m, ToolResponseMessage) for m in request.messages)
            self.asked.append(f"{topic} {done}")
            if done == 2:
                return f"{topic} is done"
            return [ToolCall(f"{done}", "work", f'{{"topic": "{topic}", "n": {done}}}')]

        @tool
        async def work(topic: str, n: int, context: ToolContext) -> str:
            """Work."""
            self.ran.append(f"{topic} {n}")
            if n == 1 and self.asks:
                return f"{topic} {context.interrupt(topic)}"
            if n == 1:
                self.reached.set()
                await self.go.wait()
            return "worked"

        inner = ReactAgent("inner", FunctionModel(inner_answer), [work])

        @tool
        async def delegate(topic: str, context: ToolContext) -> str:
            """Delegate."""
            self.ran.append(f"delegate {topic}")
            updates = await inner.app({"messages": [UserMessage(topic)]}, context.run)
            return str([m for u in updates for m in u.get("messages", ())][-1].text)

        return ReactAgent("outer", model, [delegate], checkpointer=saver)


BOTH = [ToolCall("a", "delegate", '{"topic": "sun"}'), ToolCall("b", "delegate", '{"topic": "moon"}')]


@pytest.mark.parametrize("how", ["cancelled", "killed"])
async def test_an_agent_inside_a_tool_goes_on_where_it_stood(saver: Checkpointer, how: str) -> None:
    model = Strict(BOTH[:1], "All done.")
    first, again = Inside(), Inside()
    again.go.set()
    app = first.agent(saver, model).app
    if how == "killed":
        await die(app, saver, first.reached, answered=0)
        await again.agent(saver, model).app.resume_pending()
    else:
        run = asyncio.create_task(app.invoke({"messages": [UserMessage("Go!")]}, T))
        await first.reached.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await again.agent(saver, model).app.invoke(None, T)
    found = await app.state(T)
    assert found is not None
    assert answers(found.state["messages"]) == [("a", "sun is done", False)]
    assert (first.ran, first.asked) == (["delegate sun", "sun 0", "sun 1"], ["sun 0", "sun 1"])
    assert (again.ran, again.asked) == (["delegate sun", "sun 1"], ["sun 2"])


@pytest.mark.case("J6")
async def test_two_calls_of_one_inner_agent_are_two_conversations_that_ask_each_for_itself(
    saver: Checkpointer,
) -> None:
    model = Strict(BOTH, "All done.")
    inside = Inside(asks=True)
    paused = await inside.agent(saver, model).run("Go!", T)
    asked = {q.value: q for q in paused.interrupts}
    assert list(asked) == ["sun", "moon"]
    half = await inside.agent(saver, model).run(Command(resume={asked["moon"].id: "rises"}), T)
    assert half.interrupts == (asked["sun"],)
    result = await inside.agent(saver, model).run(Command(resume={asked["sun"].id: "sets"}), T)
    assert answers(result.messages) == [("a", "sun is done", False), ("b", "moon is done", False)]
    assert [inside.ran.count(r) for r in ("sun 0", "moon 0", "sun 1", "moon 1")] == [1, 1, 2, 2]
    assert sorted(inside.asked) == [f"{topic} {k}" for topic in ("moon", "sun") for k in range(3)]


@pytest.mark.case("J6")
async def test_two_calls_of_an_agent_with_threads_of_their_own_are_two_conversations(saver: Checkpointer) -> None:
    def say(request: ModelRequest) -> str:
        return " ".join(m.text for m in request.messages if isinstance(m, UserMessage))

    inner = ReactAgent("inner", FunctionModel(say), checkpointer=saver)

    @tool
    async def delegate(topic: str, context: ToolContext) -> str:
        """Delegate."""
        own = RunConfig(thread_id=f"{context.run.config.thread_id}/{topic}")
        return (await inner.run(topic, own)).text

    model = Strict(BOTH, "Done.", [msgspec.structs.replace(c, id=f"{c.id}2") for c in BOTH], "Done.")
    agent = ReactAgent("outer", model, [delegate], checkpointer=saver)
    await agent.run("Go!", T)
    result = await agent.run("And again!", T)
    assert [text for _, text, _ in answers(result.messages)] == ["sun", "moon", "sun sun", "moon moon"]


@pytest.mark.case("J17")
async def test_a_child_that_is_called_by_hand_has_a_line_of_its_own_or_none(saver: Checkpointer) -> None:
    class Log(TypedDict):
        log: Annotated[list[str], Append()]

    def one(name: str, fn: Any) -> StateGraph[Log]:
        graph = StateGraph(Log)
        graph.add_node(name, fn)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
        return graph

    configs: list[RunConfig] = []

    async def child(state: Log, run: RunContext[Any]) -> dict[str, Any]:
        configs.append(run.config)
        return {"log": [f"child {len(state['log'])}"]}

    kept = one("child", child).compile(name="kept", checkpointer=saver)

    async def node(state: Log) -> dict[str, Any]:
        first = await kept.invoke({}, RunConfig(thread_id="child"))
        second = await kept.invoke({})
        return {"log": [*first.state["log"][-1:], *second.state["log"]]}

    parent = one("node", node).compile(name="parent", checkpointer=saver)
    config = RunConfig(thread_id="t", tags=("parent's",), recursion_limit=1, metadata={"a": 1})
    await parent.invoke({}, config)
    result = await parent.invoke({}, config)
    assert result.state["log"] == ["child 0", "child 0", "child 1", "child 0"]
    alone = await kept.state(RunConfig(thread_id="child"))
    assert alone is not None
    assert alone.state["log"] == ["child 0", "child 1"]
    assert [c.kind for c in await parent.history(T)] == ["step", "input", "step", "input"]
    assert [(c.tags, c.recursion_limit, dict(c.metadata)) for c in configs] == [((), 100, {})] * 4
    names = [i.thread_id for i in await saver.threads()]
    assert [n for n in names if n in ("child", "t")] == ["child", "t"]


@pytest.mark.case("J17")
async def test_a_child_called_by_hand_that_asks_does_not_pause_the_parent(saver: Checkpointer) -> None:
    async def ask(state: Any, run: RunContext[Any]) -> dict[str, Any]:
        return {"said": run.interrupt("sure?")}

    graph: StateGraph[Any] = StateGraph(dict)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", END)
    kept = graph.compile(name="kept", checkpointer=saver)

    async def node(state: Any) -> dict[str, Any]:
        return {"child": (await kept.invoke({}, RunConfig(thread_id="child"))).status}

    outer: StateGraph[Any] = StateGraph(dict)
    outer.add_node("node", node)
    outer.add_edge(START, "node")
    outer.add_edge("node", END)
    result = await outer.compile(checkpointer=saver).invoke({}, T)
    assert (result.status, result.state["child"]) == ("done", "interrupted")
    answered = await kept.invoke(Command(resume="yes"), RunConfig(thread_id="child"))
    assert answered.state["said"] == "yes"


# --- what an agent's state holds ---


class Weather(msgspec.Struct):
    place: str
    degrees: float


async def test_a_value_of_the_output_type_is_kept_as_what_it_is(saver: Checkpointer) -> None:
    model = Strict('{"place": "Oslo", "degrees": -3.5}', '{"place": "Rome", "degrees": 20}')

    def agent() -> ReactAgent:
        return ReactAgent("clerk", model, output_type=Weather, output_key="weather", checkpointer=saver)

    first = await agent().run("Oslo?", T)
    assert first.output == Weather("Oslo", -3.5)
    found = await agent().app.state(T)
    assert found is not None
    assert found.state["weather"] == Weather("Oslo", -3.5)
    assert (await agent().run("Rome?", T)).state["weather"] == Weather("Rome", 20)


async def test_a_tool_that_an_interceptor_brought_is_told_of_as_unknown_when_a_restart_has_lost_it(
    saver: Checkpointer,
) -> None:
    reached = asyncio.Event()

    @tool
    async def extra() -> str:
        """Extra."""
        reached.set()
        await asyncio.Event().wait()
        return "never"

    @tool
    async def own() -> str:
        """Own."""
        return "own"

    async def bring(request: LlmRequest, call: Any) -> Any:
        return await call(msgspec.structs.replace(request, dynamic_tools=[extra]))

    model = Strict(calls("extra"), "I see.")

    def agent() -> ReactAgent:
        return ReactAgent("clerk", model, [own], interceptors=[bring], checkpointer=saver)

    run = asyncio.create_task(agent().run("Go!", T))
    await reached.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    result = await agent().run(None, T)
    assert result.text == "I see."
    ((_, told, is_error),) = answers(result.messages)
    assert is_error
    assert "unknown tool 'extra'" in told
    assert "'own'" in told


@pytest.mark.case("D16")
async def test_text_that_is_not_sound_is_stored_and_the_next_turn_works(saver: Checkpointer) -> None:
    @tool
    async def echo(text: str) -> str:
        """Echo."""
        return f"{text} \ud83d \x00"

    model = Strict([ToolCall("c0", "echo", '{"text": "\\ud83d\\ude00"}')], "Fine.", "Fine again.")
    agent = ReactAgent("clerk", model, [echo], checkpointer=saver)
    await agent.run("half \udc00 a pair", T)
    again = ReactAgent("clerk", model, [echo], checkpointer=saver)
    result = await again.run("Next.", T)
    assert result.text == "Fine again."
    assert kinds(result.messages)[0] == "half \ufffd a pair"
    assert answers(result.messages) == [("c0", "\U0001f600 \ufffd \x00", False)]


async def test_an_agent_as_a_node_that_was_cut_off_goes_on_or_leaves_a_valid_conversation(
    saver: Checkpointer,
) -> None:
    model = Strict(calls("quick", "slow"), "Sorry.")
    bench = Bench()

    class State(TypedDict):
        messages: Annotated[list[Any], Messages()]
        log: Annotated[list[str], Append()]

    def app() -> Any:
        graph = StateGraph(State)
        inner = ReactAgent("clerk", model, bench.tools(), strategies={"log": Append()})
        graph.add_node("agent", inner)
        graph.add_edge(START, "agent")
        graph.add_edge("agent", END)
        return graph.compile(checkpointer=saver)

    run = asyncio.create_task(app().invoke({"messages": [UserMessage("Go!")]}, T))
    await bench.reached.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    result = await app().invoke({"messages": [UserMessage("Stop that.")]}, T)
    assert answers(result.state["messages"])[0] == ("c0", "quick is done", False)
    assert (result.state["messages"][-1].text, result.state["log"], bench.ran) == (
        "Sorry.",
        ["quick"],
        ["quick", "slow"],
    )


@pytest.mark.case("G11")
async def test_a_stream_that_was_left_in_the_middle_of_an_answer_leaves_no_half_message(saver: Checkpointer) -> None:
    model = Strict("one two three four five six", "All of it.")

    def agent() -> ReactAgent:
        return ReactAgent("clerk", model, checkpointer=saver)

    async with agent().stream("Count!", T, buffer=1) as events:
        async for event in events:
            if isinstance(event, ModelDelta) and "three" in event.text:
                break
    found = await agent().app.state(T)
    assert found is not None
    assert (kinds(found.state["messages"]), found.next) == (["Count!"], ("llm",))
    assert kinds((await agent().run("Again!", T)).messages) == ["Count!", "Again!", "AssistantMessage"]


@pytest.mark.case("J13")
async def test_many_runs_of_one_agent_at_once_see_nothing_of_each_other(saver: Checkpointer) -> None:
    async def answer(request: ModelRequest) -> Said:
        await asyncio.sleep(0)
        assert isinstance(request, LlmRequest)
        who = request.messages[0].text
        assert [t.name for t in request.tools] == [f"tool_{who}"]
        last = request.messages[-1]
        return f"{who}: {last.text}" if isinstance(last, ToolResponseMessage) else calls(f"tool_{who}")

    async def bring(request: LlmRequest, call: Any) -> Any:
        who = request.messages[0].text

        @tool(name=f"tool_{who}")
        async def own(context: ToolContext) -> str:
            """Own."""
            await asyncio.sleep(0)
            config = context.run.config
            return f"{config.thread_id} {context.run.context} {config.tags}"

        return await call(msgspec.structs.replace(request, dynamic_tools=[own]))

    agent = ReactAgent("clerk", FunctionModel(answer), interceptors=[bring], checkpointer=saver)
    names = [str(k) for k in range(100)]
    results = await asyncio.gather(
        *(agent.run(n, RunConfig(thread_id=n, tags=(n,)), context=f"context {n}") for n in names)
    )
    assert [r.text for r in results] == [f"{n}: {n} context {n} ('{n}',)" for n in names]
    with pytest.raises(AttributeError, match="is shared between runs"):
        agent.app.mine = 1
    states = [await agent.app.state(RunConfig(thread_id=n)) for n in names]
    assert [s and s.state["messages"][-1].text for s in states] == [r.text for r in results]
