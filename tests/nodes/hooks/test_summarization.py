"""Summarization: a summary takes the place of old messages, in the state."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agentgraph import END, START, Command, ConfigError, RunConfig, StateGraph
from agentgraph.checkpoint import MemorySaver
from agentgraph.events import Custom, HistoryRepaired, ModelDelta
from agentgraph.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    Usage,
    UserMessage,
)
from agentgraph.models import ModelError, ModelRequest
from agentgraph.nodes import ReactAgent, tool
from agentgraph.nodes.hooks import Summarization
from agentgraph.nodes.tokens import approximate_tokens
from agentgraph.strategies import Messages
from agentgraph.testing import FunctionModel, ScriptedModel, check_request

SUMMARY = "A summary of the conversation up to here"


def texts(messages: Sequence[Message]) -> list[str]:
    return [m.text for m in messages]


def pair(id: str, text: str = "found") -> list[Message]:
    return [
        AssistantMessage(id=f"a{id}", tool_calls=[ToolCall(id, "find", '{"q": "x"}')]),
        ToolResponseMessage(id=f"t{id}", responses=[ToolResponse(id, "find", text)]),
    ]


def chat(turns: int) -> list[Message]:
    messages: list[Message] = []
    for turn in range(turns):
        messages += [UserMessage(f"question {turn}", id=f"u{turn}"), AssistantMessage(f"answer {turn}", id=f"s{turn}")]
    return messages


def summarizer(text: str = "All of it.") -> FunctionModel:
    return FunctionModel(lambda request: text, name="summarizer")


def strict(text: str = "Well.") -> FunctionModel:
    def answer(request: ModelRequest) -> str:
        check_request(request)
        return text

    return FunctionModel(answer, name="strict")


# --- what takes whose place ---


@pytest.mark.case("D5")
async def test_a_history_of_forty_messages_is_cut_without_splitting_a_call_from_its_answer() -> None:
    history = [UserMessage("Find it all.", id="first"), *[m for i in range(19) for m in pair(f"c{i}")], *chat(1)[:1]]
    assert len(history) == 40
    for keep in range(1, 30):
        hook = Summarization(summarizer(), when=("messages", 40), keep=("messages", keep))
        model = strict()
        result = await ReactAgent("clerk", model, hooks=[hook]).run(history)
        first, summary, *kept, last, answer = result.messages
        assert first == history[0]
        assert summary.text == f"{SUMMARY} ({39 - len([*kept, last])} messages):\n\nAll of it."
        assert [*kept, last] == history[-len([*kept, last]) :]
        assert keep <= len([*kept, last]) <= keep + 1
        assert answer.text == "Well."


async def test_system_messages_stay_first_and_whole() -> None:
    history = [SystemMessage("Be brief."), *chat(6), UserMessage("Go on.")]
    hook = Summarization(summarizer(), when=("messages", 10), keep=("messages", 3))
    model = strict()
    result = await ReactAgent("clerk", model, hooks=[hook]).run(history)
    assert texts(result.messages[:2]) == ["Be brief.", "question 0"]
    assert model.requests[0].system == SystemMessage("Be brief.", id=model.requests[0].system.id)  # pyright: ignore[reportOptionalMemberAccess]


async def test_the_users_last_message_stays_however_long_the_turn_is() -> None:
    history = [*chat(3), UserMessage("Find it.", id="last"), *[m for i in range(8) for m in pair(f"c{i}")]]
    hook = Summarization(summarizer(), when=("messages", 20), keep=("messages", 4))
    result = await ReactAgent("clerk", strict(), hooks=[hook]).run(history)
    assert [m.id for m in result.messages if isinstance(m, UserMessage)][::2] == ["u0", "last"]
    assert [m.id for m in result.messages[3:-1]] == ["ac6", "tc6", "ac7", "tc7"]


async def test_where_the_users_first_message_is_also_the_last_it_is_not_doubled() -> None:
    history = [UserMessage("Find it.", id="only"), *[m for i in range(8) for m in pair(f"c{i}")]]
    hook = Summarization(summarizer(), when=("messages", 10), keep=("messages", 2))
    result = await ReactAgent("clerk", strict(), hooks=[hook]).run(history)
    assert [m.id for m in result.messages[:1]] == ["only"]
    assert [m.text[: len(SUMMARY)] for m in result.messages[1:2]] == [SUMMARY]
    assert [m.id for m in result.messages[2:-1]] == ["ac7", "tc7"]


async def test_without_keep_first_the_summary_stands_for_the_first_message_too() -> None:
    hook = Summarization(summarizer(), when=("messages", 5), keep=("messages", 1), keep_first=False)
    result = await ReactAgent("clerk", strict(), hooks=[hook]).run([*chat(4), UserMessage("And?")])
    assert texts(result.messages) == [f"{SUMMARY} (8 messages):\n\nAll of it.", "And?", "Well."]


async def test_below_the_limit_nothing_is_summarized() -> None:
    hook = Summarization(ScriptedModel([]), when=("messages", 10), keep=("messages", 2))
    result = await ReactAgent("clerk", strict(), hooks=[hook]).run(chat(5)[:-1])
    assert texts(result.messages) == [*texts(chat(5)[:-1]), "Well."]


async def test_calls_that_a_stopped_run_left_open_are_answered_before_the_cut() -> None:
    open_call = AssistantMessage(tool_calls=[ToolCall("c1", "find"), ToolCall("c2", "find")])
    history = [*chat(4), open_call, UserMessage("Go on.")]
    hook = Summarization(summarizer(), when=("messages", 5), keep=("messages", 2))
    result = await ReactAgent("clerk", strict(), hooks=[hook]).run(history)
    assert isinstance(result.messages[3], ToolResponseMessage)
    assert result.messages[2].id == open_call.id


async def test_what_a_sibling_has_added_meanwhile_stays() -> None:
    async def note(state: Any) -> dict[str, Any]:
        return {"messages": [UserMessage("A note.", id="note")]}

    hook = Summarization(summarizer(), when=("messages", 5), keep=("messages", 1))
    agent = ReactAgent("clerk", strict(), hooks=[hook])
    agent.graph.add_node("note", note).add_edge(START, "note").add_edge("note", END)
    result = await agent.run([*chat(4), UserMessage("Go on.")])
    assert [m.id for m in result.messages].count("note") == 1
    assert texts(result.messages)[1].startswith(SUMMARY)


# --- when, and how much stays ---


async def test_a_limit_in_tokens_is_one_of_the_given_counter() -> None:
    def words(messages: Sequence[Message]) -> int:
        return sum(len(m.text.split()) for m in messages)

    history = [*chat(10), UserMessage("one two three")]
    hook = Summarization(summarizer(), when=("tokens", 43), keep=("tokens", 11), count=words)
    result = await ReactAgent("clerk", strict(), hooks=[hook]).run(history)
    assert texts(result.messages[2:-1]) == ["question 8", "answer 8", "question 9", "answer 9", "one two three"]
    rarely = Summarization(ScriptedModel([]), when=("tokens", 44), keep=("tokens", 11), count=words)
    assert len((await ReactAgent("clerk", strict(), hooks=[rarely]).run(history)).messages) == 22


async def test_what_the_provider_counted_counts_where_it_is_more() -> None:
    def answer(request: ModelRequest) -> AssistantMessage:
        check_request(request)
        asked.append(len(request.messages))
        # a long system prompt and many tools, of which the counter knows nothing
        return AssistantMessage("Well.", usage=Usage(500 + 100 * len(request.messages), 10))

    asked: list[int] = []
    hook = Summarization(
        summarizer(), when=("tokens", 1200), keep=("messages", 2), count=lambda messages: 100 * len(messages)
    )
    agent = ReactAgent("clerk", FunctionModel(answer), hooks=[hook], checkpointer=MemorySaver())
    for turn in range(9):
        await agent.run(f"turn {turn}", RunConfig(thread_id="t"))
    assert asked == [1, 3, 5, 4, 6, 4, 6, 4, 6]


async def test_a_share_is_one_of_the_models_window() -> None:
    history = [*chat(10), UserMessage("Go on.")]
    size = approximate_tokens(history)
    for share, summarized in ((0.5, True), (0.51, False)):
        model = summarizer()
        hook = Summarization(model, when=("share", share), keep=("share", 0.2), window=2 * size)
        await ReactAgent("clerk", strict(), hooks=[hook]).run(history)
        assert bool(model.requests) is summarized


async def test_a_model_may_know_its_window_itself() -> None:
    class Small(FunctionModel):
        context_window = 100

    model = Small(lambda request: "well")
    hook = Summarization(when=("share", 0.5), keep=("messages", 2))
    result = await ReactAgent("clerk", model, hooks=[hook]).run([*chat(10), UserMessage("Go on.")])
    assert result.messages[1].text.startswith(SUMMARY)


@pytest.mark.parametrize("limit", [("messages", 8), ("tokens", 60)])
async def test_any_of_several_limits_is_enough(limit: Any) -> None:
    hook = Summarization(summarizer(), when=[("messages", 1000), limit], keep=("messages", 2))
    result = await ReactAgent("clerk", strict(), hooks=[hook]).run([*chat(6), UserMessage("Go on.")])
    assert result.messages[1].text.startswith(SUMMARY)


async def test_messages_to_keep_that_are_too_large_by_themselves_are_fewer() -> None:
    history: list[Message] = [UserMessage("Find it.")]
    for i in range(6):
        history += pair(f"c{i}", "word " * 200)
    hook = Summarization(summarizer(), when=("tokens", 1000), keep=("messages", 12))
    result = await ReactAgent("clerk", strict(), hooks=[hook]).run(history)
    assert [m.id for m in result.messages[2:-1]] == ["ac4", "tc4", "ac5", "tc5"]
    assert approximate_tokens(result.messages) < 1000


async def test_where_what_stays_is_too_long_by_itself_it_is_not_summarized_each_round() -> None:
    @tool
    async def find(q: str) -> str:
        return "word " * 20

    summarizing = summarizer()
    script: list[Any] = [[ToolCall(f"c{i}", "find", '{"q": "x"}')] for i in range(40)]
    hook = Summarization(summarizing, when=("tokens", 1000), keep=("messages", 2))
    async with ScriptedModel([*script, "Done."]) as model:
        agent = ReactAgent("clerk", model, [find], hooks=[hook])
        await agent.run("word " * 1000, RunConfig(recursion_limit=200))
    assert 5 <= len(summarizing.requests) <= 20


# --- what the summarizing model reads ---


async def test_the_summarizing_model_reads_the_old_messages_and_no_others() -> None:
    history = [UserMessage("Find it.", id="first"), *pair("c1", "x" * 100_000), *chat(2), UserMessage("And now?")]
    model = summarizer()
    hook = Summarization(
        model, when=("messages", 5), keep=("messages", 3), prompt="Sum it up.", options={"max_tokens": 9}
    )
    await ReactAgent("clerk", strict(), hooks=[hook]).run(history)
    (request,) = model.requests
    assert request.system is not None
    assert (request.system.text, request.options) == ("Sum it up.", {"max_tokens": 9})
    (message,) = request.messages
    assert 'Assistant calls find({"q": "x"})\n\nAnswer of find: xxx' in message.text
    assert "characters left out" in message.text
    assert len(message.text) < 5000
    assert "User: question 0\n\nAssistant: answer 0" in message.text
    assert "question 1" not in message.text
    assert "Find it." not in message.text


async def test_a_summary_of_a_summary_is_made_of_the_whole_first_one() -> None:
    answers = iter(["The password is swordfish. " * 400, "second", "third"])
    model = FunctionModel(lambda request: next(answers))
    hook = Summarization(model, when=("messages", 9), keep=("messages", 2))
    agent = ReactAgent("clerk", strict(), hooks=[hook], checkpointer=MemorySaver())
    thread = RunConfig(thread_id="t")
    for turn in range(12):
        await agent.run(f"turn {turn}", thread)
    result = await agent.run("turn 12", thread)
    assert len(model.requests) == 3
    assert ("The password is swordfish. " * 400).strip() in model.requests[1].messages[0].text
    assert "<earlier_summary>\nsecond\n</earlier_summary>" in model.requests[2].messages[0].text
    summaries = [m for m in result.messages if SUMMARY in m.text]
    assert texts(summaries) == [f"{SUMMARY} ({summaries[0].metadata['summary_of']} messages):\n\nthird"]
    assert len(result.messages) + summaries[0].metadata["summary_of"] - 1 == 26


async def test_what_is_too_long_for_one_call_is_read_in_parts_each_with_the_summary_so_far() -> None:
    answers = iter(["one", "two", "three"])
    model = FunctionModel(lambda request: next(answers))
    history: list[Message] = [UserMessage("Read."), *[UserMessage(f"{i} " + "word " * 450) for i in range(6)]]
    hook = Summarization(model, when=("messages", 6), keep=("messages", 1), most=1200)
    result = await ReactAgent("clerk", strict(), hooks=[hook]).run(history)
    assert result.messages[1].text.endswith("\n\nthree")
    assert ["earlier_summary" in r.messages[0].text for r in model.requests] == [False, True, True]
    assert all(approximate_tokens(r.messages) < 1300 for r in model.requests)
    assert "<earlier_summary>\ntwo\n" in model.requests[2].messages[0].text


async def test_without_a_model_of_its_own_the_agents_summarizes() -> None:
    async with ScriptedModel(["All of it.", "Well."]) as model:
        hook = Summarization(when=("messages", 5), keep=("messages", 1))
        result = await ReactAgent("clerk", model, hooks=[hook]).run([*chat(4), UserMessage("Go on.")])
    assert texts(result.messages[1:]) == [f"{SUMMARY} (7 messages):\n\nAll of it.", "Go on.", "Well."]


async def test_one_hook_serves_several_agents() -> None:
    hook = Summarization(when=("messages", 5), keep=("messages", 1))
    for said in ("one", "two"):
        model = ScriptedModel([said, "Well."])
        result = await ReactAgent(said, model, hooks=[hook]).run([*chat(4), UserMessage("Go on.")])
        assert result.messages[1].text.endswith(f"\n\n{said}")


# --- usage, events, failures ---


async def test_what_a_summary_takes_counts_into_the_runs_usage() -> None:
    model = ScriptedModel(
        [AssistantMessage("All.", usage=Usage(100, 10)), AssistantMessage("Well.", usage=Usage(20, 3))]
    )
    hook = Summarization(when=("messages", 5), keep=("messages", 1))
    result = await ReactAgent("clerk", model, hooks=[hook]).run([*chat(4), UserMessage("Go on.")])
    assert result.usage == result.state["_token_usage"] == Usage(120, 13, calls=2)


async def test_readers_are_told_that_it_was_summarized_and_not_the_summary_itself() -> None:
    hook = Summarization(summarizer("Secret."), when=("messages", 5), keep=("messages", 1))
    agent = ReactAgent("clerk", strict(), hooks=[hook])
    async with agent.stream([*chat(4), UserMessage("Go on.")]) as events:
        seen = [event async for event in events]
    assert [e.data for e in seen if isinstance(e, Custom)] == [{"hook": "Summarization", "summarized": 7, "kept": 1}]
    assert "".join(e.text for e in seen if isinstance(e, ModelDelta)) == "Well."


@pytest.mark.parametrize("fault", [ModelError("the server is full"), RuntimeError("a bug"), AssistantMessage(" ")])
async def test_a_failed_summary_leaves_the_conversation_and_the_run_goes_on(
    fault: Any, caplog: pytest.LogCaptureFixture
) -> None:
    history = [*chat(4), UserMessage("Go on.")]
    hook = Summarization(ScriptedModel([fault]), when=("messages", 5), keep=("messages", 1))
    agent = ReactAgent("clerk", strict(), hooks=[hook])
    with caplog.at_level(logging.WARNING, "agentgraph"):
        async with agent.stream(history) as events:
            told = [event.data async for event in events if isinstance(event, Custom)]
    result = events.result
    assert result.messages[:-1] == history
    assert result.text == "Well."
    assert "the conversation stays as it was" in caplog.text
    assert [list(data) for data in told] == [["hook", "failed"]]


async def test_after_failures_it_is_tried_ever_more_rarely_and_again_in_the_next_turn() -> None:
    @tool
    async def find(q: str) -> str:
        return "found"

    def fail(request: ModelRequest) -> str:
        tried.append(len(model.requests))
        raise ModelError("full")

    tried: list[int] = []
    script: list[Any] = [[ToolCall(f"c{i}", "find", '{"q": "x"}')] for i in range(20)]
    hook = Summarization(FunctionModel(fail), when=("messages", 3), keep=("messages", 2))
    async with ScriptedModel([*script, "Done.", "Again."]) as model:
        agent = ReactAgent("clerk", model, [find], hooks=[hook], checkpointer=MemorySaver())
        await agent.run("Find it.", RunConfig(thread_id="t", recursion_limit=200))
        assert tried == [2, 4, 8, 16]
        await agent.run("And?", RunConfig(thread_id="t"))
    assert tried[4:] == [21]


async def test_after_a_success_failures_are_counted_anew() -> None:
    @tool
    async def find(q: str) -> str:
        return "found"

    tried: list[int] = []
    steps = iter([ModelError("full"), "one", ModelError("full"), "two"])

    def summarize(request: ModelRequest) -> str:
        tried.append(len(model.requests))
        step = next(steps)
        if isinstance(step, ModelError):
            raise step
        return step

    script: list[Any] = [[ToolCall(f"c{i}", "find", '{"q": "x"}')] for i in range(9)]
    hook = Summarization(FunctionModel(summarize), when=("messages", 7), keep=("messages", 2))
    async with ScriptedModel([*script, "Done."]) as model:
        await ReactAgent("clerk", model, [find], hooks=[hook]).run("Find it.", RunConfig(recursion_limit=200))
    assert tried == [3, 5, 7, 9]


async def test_a_summary_is_never_taken_for_the_users_first_message() -> None:
    model = summarizer("one")
    first = Summarization(model, when=("messages", 5), keep=("messages", 1), keep_first=False)
    result = await ReactAgent("clerk", strict(), hooks=[first]).run([*chat(4), UserMessage("Go on.")])
    then = Summarization(summarizer("two"), when=("messages", 5), keep=("messages", 1))
    result = await ReactAgent("clerk", strict(), hooks=[then]).run([*result.messages, *chat(2), UserMessage("And?")])
    assert texts(result.messages) == ["Go on.", f"{SUMMARY} (13 messages):\n\ntwo", "And?", "Well."]


async def test_a_failed_summary_counts_what_its_parts_have_taken() -> None:
    model = ScriptedModel([AssistantMessage("one", usage=Usage(100, 10)), ModelError("full")])
    history: list[Message] = [UserMessage("Read."), *[UserMessage("word " * 450) for _ in range(4)]]
    hook = Summarization(model, when=("messages", 4), keep=("messages", 1), most=1200)
    result = await ReactAgent("clerk", strict(), hooks=[hook]).run(history)
    assert result.usage == result.state["_token_usage"] == Usage(100, 10)


async def test_the_call_that_makes_a_summary_has_a_span_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", tracers)
    hook = Summarization(summarizer(), when=("messages", 5), keep=("messages", 1))
    await ReactAgent("clerk", strict(), hooks=[hook]).run([*chat(4), UserMessage("Go on.")])
    assert [span.name for span in exporter.get_finished_spans() if span.name.startswith("chat")] == [
        "chat summarizer",
        "chat strict",
    ]
    tracers.shutdown()


# --- threads ---


async def test_a_run_that_failed_behind_a_summary_goes_on_without_another() -> None:
    summarizing = summarizer()
    model = ScriptedModel([ModelError("full"), "Well.", "Again."])
    hook = Summarization(summarizing, when=("messages", 7), keep=("messages", 2))
    agent = ReactAgent("clerk", model, hooks=[hook], checkpointer=MemorySaver())
    thread = RunConfig(thread_id="t")
    with pytest.raises(ModelError):
        await agent.run([*chat(4), UserMessage("Go on.")], thread)
    result = await agent.run(None, thread)
    assert texts(result.messages)[1].startswith(SUMMARY)
    assert result.text == "Well."
    assert (await agent.run("And?", thread)).text == "Again."
    assert len(summarizing.requests) == 1


async def test_a_thread_keeps_the_summary_and_another_process_goes_on_from_it() -> None:
    saver = MemorySaver()
    thread = RunConfig(thread_id="t")

    def made() -> ReactAgent:
        hook = Summarization(model, when=("messages", 7), keep=("messages", 2))
        return ReactAgent("clerk", strict(), hooks=[hook], checkpointer=saver)

    model = summarizer()
    for turn in range(4):
        await made().run(f"turn {turn}", thread)
    assert len(model.requests) == 1
    result = await made().run("turn 4", thread)
    assert len(model.requests) == 1
    assert texts(result.messages)[:2] == ["turn 0", f"{SUMMARY} (4 messages):\n\nAll of it."]
    found = await made().app.state(thread)
    assert found is not None
    assert result.messages == found.state["messages"]


async def test_a_run_that_was_paused_and_goes_on_elsewhere_summarizes_once() -> None:
    saver = MemorySaver()
    thread = RunConfig(thread_id="t")
    model = summarizer()

    def made(*script: Any) -> ReactAgent:
        hook = Summarization(model, when=("messages", 7), keep=("messages", 2))
        agent = ReactAgent("clerk", ScriptedModel(script), hooks=[hook], checkpointer=saver)

        async def confirm(state: Any, run: Any) -> dict[str, Any]:
            run.interrupt("sure?")
            return {}

        agent.graph.add_node("confirm", confirm)
        agent.graph.add_edge(START, "confirm").add_edge("confirm", END)
        return agent

    first = await made("Well.").run([*chat(4), UserMessage("Go on.")], thread)
    assert first.status == "interrupted"
    done = await made("Well.").run(Command(resume={first.interrupts[0].id: True}), thread)
    assert done.status == "done"
    assert len(model.requests) == 1
    assert sum(SUMMARY in m.text for m in done.messages) == 1


async def test_an_agent_that_is_a_node_summarizes_the_outer_graphs_conversation() -> None:
    hook = Summarization(summarizer(), when=("messages", 5), keep=("messages", 1))
    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("clerk", ReactAgent("clerk", strict(), hooks=[hook]))
    graph.add_edge(START, "clerk").add_edge("clerk", END)
    result = await graph.compile().invoke({"messages": [*chat(4), UserMessage("Go on.")]})
    assert texts(result.state["messages"])[1:] == [f"{SUMMARY} (7 messages):\n\nAll of it.", "Go on.", "Well."]


# --- at every budget ---


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """Turns of a question and rounds of calls, some of whose calls or answers are missing; ends in a question."""
    messages: list[Message] = [SystemMessage("Be brief.")] if draw(st.booleans()) else []
    number = 0
    for turn in range(draw(st.integers(1, 4))):
        messages.append(UserMessage(f"question {turn}", id=f"u{turn}"))
        for calls in draw(st.lists(st.integers(1, 3), max_size=4)):
            ids = [f"c{number + k}" for k in range(calls)]
            number += calls
            messages.append(AssistantMessage(tool_calls=[ToolCall(id, "find", "{}") for id in ids]))
            answered = [id for id in ids if draw(st.integers(0, 9))]
            if answered:
                texts_ = draw(st.lists(st.integers(0, 800), min_size=len(answered), max_size=len(answered)))
                responses = [ToolResponse(i, "find", "x" * n or "-") for i, n in zip(answered, texts_, strict=True)]
                messages.append(ToolResponseMessage(responses))
        messages.append(AssistantMessage(f"answer {turn}"))
    return [*messages, UserMessage("last", id="last")] if draw(st.booleans()) else messages[:-1]


sizes = st.one_of(st.tuples(st.just("tokens"), st.integers(1, 900)), st.tuples(st.just("messages"), st.integers(1, 30)))


@pytest.mark.case("D12")
@settings(max_examples=60, deadline=None)
@given(histories(), sizes, sizes, st.booleans())
async def test_at_every_budget_the_conversation_is_valid_and_keeps_the_users_last_message(
    history: list[Message], when: Any, keep: Any, keep_first: bool
) -> None:
    if when[0] == keep[0] and keep[1] >= when[1]:
        keep = (keep[0], max(1, when[1] - 1))
        when = (when[0], keep[1] + 1)
    model = strict()
    hook = Summarization(summarizer(), when=when, keep=keep, keep_first=keep_first)
    async with ReactAgent("clerk", model, hooks=[hook]).stream(history) as events:
        told = [event async for event in events]
    if any(isinstance(event, Custom) for event in told):  # then nothing is left for the node to repair
        assert not any(isinstance(event, HistoryRepaired) for event in told)
    result = events.result
    asked = [m for m in history if isinstance(m, UserMessage)]
    ids = [m.id for m in result.messages]
    assert ids.count(asked[-1].id) == 1
    assert len(set(ids)) == len(ids)
    assert ids.count(asked[0].id) == 1 or not keep_first
    systems = [isinstance(m, SystemMessage) for m in result.messages]
    assert systems == sorted(systems, reverse=True)
    assert sum(systems) == isinstance(history[0], SystemMessage)
    assert model.requests[0].messages[-1].id == history[-1].id or isinstance(history[-1], AssistantMessage)


# --- options ---


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"when": ("tokns", 5)}, r"when=.*'tokns'.*'tokens'"),
        ({"when": "tokens"}, r"when=.*found 'tokens'"),
        ({"when": []}, r"when=.*empty"),
        ({"when": ("tokens", 0)}, r"when=.*positive.*found \('tokens', 0\)"),
        ({"when": ("messages", 2.5)}, r"whole number of messages; found \('messages', 2\.5\)"),
        ({"when": ("share", 1.5)}, r"at most 1; found \('share', 1\.5\)"),
        ({"keep": 20}, r"keep=.*found 20"),
        ({"window": 0}, r"window=.*found 0"),
        ({"most": 0}, r"most=.*found 0"),
        ({"prompt": ""}, r"prompt=.*empty"),
    ],
)
def test_an_option_that_does_not_do_is_named(options: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Summarization(**options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"when": ("share", 0.8)}, "'clerk'.*window, which is not known"),
        ({"when": ("messages", 10), "keep": ("messages", 10)}, "keep=.*less than when="),
        ({"when": ("share", 0.5), "keep": ("tokens", 500), "window": 1000}, "keep=.*less than when="),
    ],
)
def test_options_that_do_not_fit_an_agent_are_told_when_it_is_made(options: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ReactAgent("clerk", ScriptedModel([]), hooks=[Summarization(**options)])
