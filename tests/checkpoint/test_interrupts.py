"""Questions: a run stops at them, and goes on with their answers, in this process or in another."""

import asyncio
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest

from agentgraph import END, START, Command, CompiledGraph, Interrupt, RunConfig, RunContext, Send, StateGraph
from agentgraph.checkpoint import Checkpointer, MemorySaver
from agentgraph.errors import GraphError, ResumeError
from agentgraph.events import InterruptRaised, RunFinished
from agentgraph.strategies import Append

T = RunConfig(thread_id="t")


class Log(TypedDict):
    log: Annotated[list[str], Append()]


def beside(saver: Checkpointer | None, **nodes: Any) -> CompiledGraph[Log]:
    """Nodes that run beside each other."""
    graph = StateGraph(Log)
    for name, fn in nodes.items():
        graph.add_node(name, fn)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return graph.compile(checkpointer=saver)


def asks(what: str) -> Any:
    async def node(state: Any, run: RunContext[Any]) -> dict[str, Any]:
        return {"log": [f"{what}: {run.interrupt(what)}"]}

    return node


async def test_an_answer_comes_back_where_it_was_asked_for(saver: Checkpointer) -> None:
    paused = await beside(saver, ask=asks("sure?")).invoke({"log": ["in"]}, T)
    assert (paused.status, paused.state["log"]) == ("interrupted", ["in"])
    (question,) = paused.interrupts
    assert (question.value, question.node) == ("sure?", ("ask",))
    found = await beside(saver, ask=asks("sure?")).state(T)
    assert found is not None
    assert (found.status, found.interrupts, found.next) == ("paused", paused.interrupts, ("ask",))
    ended = await beside(saver, ask=asks("sure?")).invoke(Command(resume={question.id: "yes"}), T)
    assert (ended.status, ended.state["log"]) == ("done", ["in", "sure?: yes"])


@pytest.mark.parametrize("answer", [None, False, "", [], {"a": 1}])
async def test_any_value_is_an_answer(saver: Checkpointer, answer: Any) -> None:
    app = beside(saver, ask=asks("q"))
    (question,) = (await app.invoke({}, T)).interrupts
    assert (await app.invoke(Command(resume={question.id: answer}), T)).state["log"] == [f"q: {answer}"]


async def test_one_open_question_takes_a_bare_answer(saver: Checkpointer) -> None:
    app = beside(saver, ask=asks("q"))
    await app.invoke({}, T)
    assert (await app.invoke(Command(resume=None), T)).state["log"] == ["q: None"]


@pytest.mark.case("F4")
async def test_of_two_questions_in_a_row_each_is_asked_once_and_the_sibling_runs_once(saver: Checkpointer) -> None:
    ran: list[str] = []

    async def two(state: Any, run: RunContext[Any]) -> dict[str, Any]:
        ran.append("two")
        drawn = await run.once("draw", lambda: ran.append("draw") or "drawn")
        first = run.interrupt("first?")
        await run.once("between", lambda: ran.append("between"))
        return {"log": [f"{drawn} {first} {run.interrupt('second?')}"]}

    async def sibling(state: Any) -> dict[str, Any]:
        ran.append("sibling")
        return {"log": ["sibling"]}

    def app() -> CompiledGraph[Log]:
        return beside(saver, two=two, sibling=sibling)

    asked: list[Any] = []
    result = await app().invoke({}, T)
    while result.interrupts:
        (question,) = result.interrupts
        asked.append(question.value)
        result = await app().invoke(Command(resume={question.id: len(asked)}), T)
    assert asked == ["first?", "second?"]
    assert result.state["log"] == ["drawn 1 2", "sibling"]
    assert ran == ["two", "draw", "sibling", "two", "between", "two"]


@pytest.mark.case("F5")
async def test_one_bare_answer_to_two_questions_is_an_error_that_lists_them_and_consumes_nothing(
    saver: Checkpointer,
) -> None:
    app = beside(saver, a=asks("a?"), b=asks("b?"))
    ids = [q.id for q in (await app.invoke({}, T)).interrupts]
    for resume, told in (
        ("yes", "one bare answer fits none"),
        ({ids[0]: 1, "a@nonsense": 2}, "no open question 'a@non"),
    ):
        with pytest.raises(ResumeError, match=told) as caught:
            await app.invoke(Command(resume=resume), T)
        assert all(id in str(caught.value) for id in ids)
    found = await app.state(T)
    assert found is not None
    assert (found.status, [q.id for q in found.interrupts]) == ("paused", ids)
    result = await app.invoke(Command(resume=dict.fromkeys(ids, "x")), T)
    assert result.state["log"] == ["a?: x", "b?: x"]


async def test_an_answer_that_was_given_does_not_do_again(saver: Checkpointer) -> None:
    app = beside(saver, ask=asks("q"))
    (question,) = (await app.invoke({}, T)).interrupts
    await app.invoke(Command(resume={question.id: 1}), T)
    (again,) = (await app.invoke({}, T)).interrupts
    assert again.id != question.id
    with pytest.raises(ResumeError, match="no open question"):
        await app.invoke(Command(resume={question.id: 1}), T)


async def test_several_questions_are_answered_one_by_one_and_those_that_are_open_are_not_asked_again(
    saver: Checkpointer,
) -> None:
    ran: list[str] = []

    def ask(name: str) -> Any:
        async def node(state: Any, run: RunContext[Any]) -> dict[str, Any]:
            ran.append(name)
            return {"log": [f"{name} {run.interrupt(name)}"]}

        return node

    app = beside(saver, a=ask("a"), b=ask("b"), c=ask("c"))
    questions = {q.value: q.id for q in (await app.invoke({}, T)).interrupts}
    first = await app.invoke(Command(resume={questions["b"]: 2}), T)
    assert [q.id for q in first.interrupts] == [questions["a"], questions["c"]]
    last = await app.invoke(Command(resume={questions["a"]: 1, questions["c"]: 3}), T)
    assert last.state["log"] == ["a 1", "b 2", "c 3"]
    assert ran == ["a", "b", "c", "b", "a", "c"]


async def test_sends_to_one_node_ask_each_for_itself(saver: Checkpointer) -> None:
    async def ask(state: Any, run: RunContext[Any]) -> dict[str, Any]:
        return {"log": [f"{state['k']} {run.interrupt('the same?')}"]}

    graph = StateGraph(Log)
    graph.add_node("ask", ask)
    graph.add_conditional_edges(START, lambda s: [Send("ask", {"k": k}) for k in range(3)], ["ask"])
    graph.add_edge("ask", END)
    app = graph.compile(checkpointer=saver)
    ids = [q.id for q in (await app.invoke({}, T)).interrupts]
    assert len(set(ids)) == 3
    await app.invoke(Command(resume={ids[2]: "z"}), T)
    result = await app.invoke(Command(resume={ids[0]: "x", ids[1]: "y"}), T)
    assert result.state["log"] == ["0 x", "1 y", "2 z"]


@pytest.mark.case("F6")
async def test_two_answers_to_one_question_from_one_checkpoint_are_two_forks(saver: Checkpointer) -> None:
    app = beside(saver, ask=asks("sure?"))
    paused = await app.invoke({}, T)
    (question,) = paused.interrupts
    at = RunConfig(thread_id="t", checkpoint_id=paused.checkpoint_id)
    yes = await app.invoke(Command(resume={question.id: True}), at)
    no = await app.invoke(Command(resume={question.id: False}), at)
    assert (yes.state["log"], no.state["log"]) == (["sure?: True"], ["sure?: False"])
    for ended in (yes, no):
        found = await app.state(RunConfig(thread_id="t", checkpoint_id=ended.checkpoint_id))
        assert found is not None
        assert found.state == ended.state


@pytest.mark.case("F7")
async def test_of_two_subgraphs_that_ask_the_one_that_is_answered_goes_on(saver: Checkpointer) -> None:
    ran: list[str] = []

    def inner(name: str) -> CompiledGraph[Log]:
        async def before(state: Any) -> dict[str, Any]:
            ran.append(f"{name} before")
            return {"log": [f"{name} before"]}

        async def ask(state: Any, run: RunContext[Any]) -> dict[str, Any]:
            ran.append(f"{name} ask")
            answer = run.interrupt(name)
            return {"log": [f"{name} {answer}"]}

        graph = StateGraph(Log)
        graph.add_node("before", before)
        graph.add_node("ask", ask)
        graph.add_edge(START, "before")
        graph.add_edge("before", "ask")
        graph.add_edge("ask", END)
        return graph.compile()

    def app() -> CompiledGraph[Log]:
        return beside(saver, one=inner("one"), two=inner("two"))

    questions = {q.value: q for q in (await app().invoke({}, T)).interrupts}
    assert questions["one"].node == ("one", "ask")
    waiting = await app().invoke(Command(resume={questions["two"].id: "2"}), T)
    assert waiting.interrupts == (questions["one"],)
    result = await app().invoke(Command(resume={questions["one"].id: "1"}), T)
    assert result.state["log"] == ["one before", "one 1", "two before", "two 2"]
    assert (sorted(ran[:4]), ran[4:]) == (["one ask", "one before", "two ask", "two before"], ["two ask", "one ask"])


@pytest.mark.case("F17")
@pytest.mark.parametrize("nested", [False, True])
async def test_a_fork_before_a_question_asks_anew_and_leaves_the_old_line_alone(
    saver: Checkpointer, nested: bool
) -> None:
    drawn: list[int] = []

    async def ask(state: Any, run: RunContext[Any]) -> dict[str, Any]:
        number = await run.once("draw", lambda: drawn.append(0) or len(drawn))
        return {"log": [f"{number} {run.interrupt('sure?')}"]}

    async def say(state: Any) -> dict[str, Any]:
        return {"log": ["said"]}

    graph = StateGraph(Log)
    graph.add_node("say", say)
    graph.add_node("ask", beside(None, ask=ask) if nested else ask)
    graph.add_node("act", say)
    graph.add_edge(START, "say")
    graph.add_edge("say", "ask")
    graph.add_edge("ask", "act")
    graph.add_edge("act", END)
    app = graph.compile(checkpointer=saver)
    (question,) = (await app.invoke({}, T)).interrupts
    ended = await app.invoke(Command(resume={question.id: "yes"}), T)
    assert ended.state["log"] == ["said", "1 yes", "said"]
    old = await app.history(T)
    before = next(c for c in old if c.ran == ("say",) and c.kind == "step")
    fork = await app.invoke(None, RunConfig(thread_id="t", checkpoint_id=before.checkpoint_id))
    (anew,) = fork.interrupts
    assert anew.id != question.id
    assert (await app.invoke(Command(resume={anew.id: "no"}), T)).state["log"] == ["said", "2 no", "said"]
    history = await app.history(T)
    assert [c.parent_id for c in history if c.checkpoint_id == fork.checkpoint_id] == [before.checkpoint_id]
    assert await app.history(RunConfig(thread_id="t", checkpoint_id=ended.checkpoint_id)) == old


async def test_an_answer_that_does_not_fit_may_be_given_again(saver: Checkpointer) -> None:
    class Decision(msgspec.Struct):
        do: Literal["go", "stop"]
        times: int = 1

    async def ask(state: Any, run: RunContext[Any]) -> dict[str, Any]:
        decision = run.interrupt("what?", schema=Decision)
        return {"log": [f"{decision.do} {decision.times}"]}

    app = beside(saver, ask=ask)
    (question,) = (await app.invoke({}, T)).interrupts
    (again,) = (await app.invoke(Command(resume={question.id: {"do": "jump"}}), T)).interrupts
    assert (again.id, again.error) == (question.id, "Invalid enum value 'jump' - at `$.do`")
    ended = await app.invoke(Command(resume={question.id: {"do": "go", "times": 2}}), T)
    assert ended.state["log"] == ["go 2"]


@pytest.mark.may_block  # asyncio's debug mode reads the source of what it tells of
async def test_a_bad_answer_to_a_worker_thread_is_put_away_in_the_event_loop() -> None:
    loop = asyncio.get_running_loop()

    def ask(state: Any, run: RunContext[Any]) -> dict[str, Any]:
        for _ in range(20):  # until the run's writer has nothing to do
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()
        return {"log": [str(run.interrupt("how many?", schema=int))]}

    app = beside(MemorySaver(), ask=ask)
    loop.set_debug(True)  # refuses what other threads may not do to it
    await app.invoke({}, T)
    (again,) = (await app.invoke(Command(resume="x"), T)).interrupts
    assert again.error == "Expected `int`, got `str`"
    assert (await app.invoke(Command(resume=3), T)).state["log"] == ["3"]


async def test_an_answer_to_something_that_is_not_asked_any_more_is_not_used(saver: Checkpointer) -> None:
    shown = ["delete a?", "delete b?"]

    async def ask(state: Any, run: RunContext[Any]) -> dict[str, Any]:
        return {"log": [str(run.interrupt(shown[0]))]}

    app = beside(saver, ask=ask)
    (question,) = (await app.invoke({}, T)).interrupts
    shown.pop(0)
    (other,) = (await app.invoke(Command(resume={question.id: "yes"}), T)).interrupts
    assert (other.value, other.id != question.id) == ("delete b?", True)


async def test_an_error_handler_that_asks_the_same_gets_an_answer_of_its_own(saver: Checkpointer) -> None:
    async def ask(state: Any, run: RunContext[Any]) -> None:
        run.interrupt("go on?")
        raise RuntimeError("no")

    async def handle(state: Any, error: Exception, run: RunContext[Any]) -> dict[str, Any]:
        return {"log": [f"handler: {run.interrupt('go on?')}"]}

    graph = StateGraph(Log)
    graph.add_node("ask", ask, on_error=handle)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", END)
    app = graph.compile(checkpointer=saver)
    await app.invoke({}, T)
    second = await app.invoke(Command(resume="node's"), T)
    assert len(second.interrupts) == 1
    assert (await app.invoke(Command(resume="its own"), T)).state["log"] == ["handler: its own"]


async def test_the_same_question_twice_in_a_row_is_two_questions(saver: Checkpointer) -> None:
    async def ask(state: Any, run: RunContext[Any]) -> dict[str, Any]:
        return {"log": [f"{run.interrupt('sure?')} {run.interrupt('sure?')}"]}

    app = beside(saver, ask=ask)
    await app.invoke({}, T)
    second = await app.invoke(Command(resume="first"), T)
    assert len(second.interrupts) == 1
    assert (await app.invoke(Command(resume="second"), T)).state["log"] == ["first second"]


async def test_a_loop_asks_each_time_anew(saver: Checkpointer) -> None:
    async def ask(state: Any, run: RunContext[Any]) -> dict[str, Any]:
        return {"log": [run.interrupt("more?")]}

    inner = StateGraph(Log)
    inner.add_node("ask", ask)
    inner.add_edge(START, "ask")
    inner.add_conditional_edges("ask", lambda s: "ask" if s["log"][-1] == "more" else END, ["ask", END])
    app = beside(saver, inner=inner.compile())
    ids: list[str] = []
    result = await app.invoke({}, T)
    for answer in ("more", "more", "enough"):
        ids.append(result.interrupts[0].id)
        result = await app.invoke(Command(resume=answer), T)
    assert (result.state["log"], len(set(ids))) == (["more", "more", "enough"], 3)


async def test_a_new_input_on_a_paused_thread_leaves_the_question_behind(saver: Checkpointer) -> None:
    async def other(state: Log) -> dict[str, Any]:
        return {"log": ["other"]}

    app = beside(saver, ask=asks("q"), other=other)
    await app.invoke({"log": ["one"]}, T)
    paused = await app.invoke({"log": ["two"]}, T)
    assert paused.state["log"] == ["one", "other", "two"]
    assert len(paused.interrupts) == 1


async def test_going_on_without_an_answer_asks_the_same_and_runs_nothing(saver: Checkpointer) -> None:
    ran: list[str] = []

    async def ask(state: Any, run: RunContext[Any]) -> dict[str, Any]:
        ran.append("ask")
        return {"log": [run.interrupt("q")]}

    app = beside(saver, ask=ask)
    first = await app.invoke({}, T)
    second = await app.invoke(None, T)
    assert (second.interrupts, ran) == (first.interrupts, ["ask"])


async def test_questions_in_threads_and_in_groups_are_answered_too(saver: Checkpointer) -> None:
    def blocking(state: Any, run: RunContext[Any]) -> dict[str, Any]:
        return {"log": [f"thread {run.interrupt('thread?')}"]}

    async def group(state: Any, run: RunContext[Any]) -> dict[str, Any]:
        async def ask(what: str) -> str:
            await asyncio.sleep(0)
            return str(run.part(what).interrupt(what))

        async with asyncio.TaskGroup() as tasks:
            both = [tasks.create_task(ask(w)) for w in ("left", "right")]
        return {"log": [" ".join(t.result() for t in both)]}

    app = beside(saver, blocking=blocking, group=group)
    result = await app.invoke({}, T)
    while result.interrupts:
        result = await app.invoke(Command(resume={q.id: str(q.value).upper() for q in result.interrupts}), T)
    assert result.state["log"] == ["thread THREAD?", "LEFT RIGHT"]


@pytest.mark.parametrize("how", [None, "answer"])
async def test_a_stop_before_or_after_a_node_is_passed_once(saver: Checkpointer, how: str | None) -> None:
    ran: list[str] = []

    def say(name: str) -> Any:
        async def node(state: Any) -> dict[str, Any]:
            ran.append(name)
            return {"log": [name]}

        return node

    graph = StateGraph(Log)
    for name, before in (("a", START), ("b", "a"), ("c", "b")):
        graph.add_node(name, say(name))
        graph.add_edge(before, name)
    graph.add_edge("c", END)
    app = graph.compile(checkpointer=saver, interrupt_before=["b"], interrupt_after=["b", "c"])
    seen: list[tuple[Any, ...]] = []
    result = await app.invoke({}, T)
    while result.interrupts:
        (stop,) = result.interrupts
        seen.append((stop.node, stop.value, list(ran)))
        result = await app.invoke(None if how is None else Command(resume={stop.id: None}), T)
    assert seen == [(("b",), None, ["a"]), (("b",), None, ["a", "b"])]
    assert (result.status, ran) == ("done", ["a", "b", "c"])


@pytest.mark.case("F12")
async def test_a_thread_paused_before_a_node_goes_on_in_a_changed_graph_or_says_what_is_missing(
    saver: Checkpointer,
) -> None:
    class Old(TypedDict):
        log: Annotated[list[str], Append()]
        gone: str

    class New(TypedDict):
        log: Annotated[list[str], Append()]
        fresh: Annotated[list[str], Append()]

    def build(state: Any, last: str) -> CompiledGraph[Any]:
        graph = StateGraph(state)
        graph.add_node("first", lambda s: {"log": ["first"], **({"gone": "x"} if state is Old else {})})
        graph.add_node(last, lambda s: {"log": ["last"], **({} if state is Old else {"fresh": [str(s["fresh"])]})})
        graph.add_edge(START, "first")
        graph.add_edge("first", last)
        graph.add_edge(last, END)
        return graph.compile(checkpointer=saver, interrupt_before=[last])

    await build(Old, "last").invoke({}, T)
    with pytest.raises(ResumeError, match=r"goes on in 'last', and this graph has no such node; it has 'first', 'end'"):
        await build(New, "end").invoke(None, T)
    found = await build(Old, "last").state(T)
    assert found is not None
    assert (found.status, found.next) == ("paused", ("last",))
    result = await build(New, "last").invoke(None, T)
    assert (result.status, result.state) == ("done", {"log": ["first", "last"], "fresh": ["[]"]})


def test_stops_name_nodes_that_are_there() -> None:
    graph = StateGraph(Log)
    graph.add_node("search", lambda s: {})
    graph.add_edge(START, "search")
    graph.add_edge("search", END)
    with pytest.raises(GraphError, match="interrupt_before: unknown node 'serach'; did you mean 'search'"):
        graph.compile(interrupt_before=["serach"])


async def test_a_reader_is_told_of_questions_once(saver: Checkpointer) -> None:
    app = beside(saver, a=asks("a?"), b=asks("b?"))

    async def told(given: Any) -> list[str]:
        async with app.stream(given, T) as events:
            return [
                str(e.value) if isinstance(e, InterruptRaised) else e.status
                async for e in events
                if isinstance(e, (InterruptRaised, RunFinished))
            ]

    assert await told({}) == ["a?", "b?", "interrupted"]
    found = await app.state(T)
    assert found is not None
    assert await told(Command(resume={q.id: 1 for q in found.interrupts})) == ["done"]


async def test_without_a_checkpointer_a_question_ends_the_run_as_asked() -> None:
    result = await beside(None, ask=asks("q")).invoke({}, T)
    assert result.interrupts == (Interrupt("ask", "q", ("ask",)),)
