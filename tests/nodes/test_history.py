"""What goes to the model is valid for the strictest provider, whatever conversation was given."""

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from agentgraph import END, START, InputError, StateGraph
from agentgraph.events import HistoryRepaired
from agentgraph.messages import (
    AssistantMessage,
    InstructionMessage,
    Message,
    ReasoningPart,
    RemoveMessage,
    RewriteMessages,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
    encode,
)
from agentgraph.nodes import LlmNode, ReactAgent, tool
from agentgraph.nodes.history import NOT_FINISHED, NOTHING_CHECKED, repair
from agentgraph.strategies import Messages, Reduce
from agentgraph.testing import FunctionModel, ScriptedModel


def refuse_constant(text: str) -> Any:
    raise ValueError(text)


def faults_of(messages: list[Message]) -> list[str]:
    """What the strictest provider would refuse in a conversation."""
    faults: list[str] = []
    seen: set[str] = set()
    for place, message in enumerate(messages):
        if isinstance(message, AssistantMessage) and not message.tool_calls and not message.text.strip():
            faults.append(f"{place}: an empty assistant message")
        if isinstance(message, AssistantMessage) and message.tool_calls:
            following = messages[place + 1] if place + 1 < len(messages) else None
            answered = following.responses if isinstance(following, ToolResponseMessage) else []
            if [(c.id, c.name) for c in message.tool_calls] != [(r.id, r.name) for r in answered]:
                faults.append(f"{place}: calls and answers do not fit")
            for call in message.tool_calls:
                if not call.id or call.id in seen:
                    faults.append(f"{place}: the call id {call.id!r} is not unique")
                seen.add(call.id)
                try:
                    arguments = json.loads(call.arguments or "{}", parse_constant=refuse_constant)
                except (ValueError, RecursionError):
                    arguments = None
                if not isinstance(arguments, dict):
                    faults.append(f"{place}: arguments {call.arguments!r:.80}")
        if isinstance(message, ToolResponseMessage):
            before = messages[place - 1] if place else None
            if not isinstance(before, AssistantMessage) or not before.tool_calls:
                faults.append(f"{place}: answers without calls")
            faults += [f"{place}: an empty answer" for r in message.responses if not r.content]
    if len({m.id for m in messages}) < len(messages):
        faults.append("two messages have one id")
    try:
        encode(messages)
    except UnicodeEncodeError:
        faults.append("half a surrogate pair")
    return faults


texts = st.sampled_from(["", " ", "hello", "nǐ hǎo 😀", "half \ud83d", "\udc00"])
call_ids = st.sampled_from(["a", "b", "c", "a_2", ""])
arguments = st.sampled_from(
    ["", " ", "{}", '{"x": 1}', "[1]", '"{}"', '{"x": NaN}', "{x", '{"x":' + "[" * 3000, '{"x": "\\ud83d"}', "\ud83d"]
)
mendable = st.sampled_from(
    ['{"x": "a\nb"}', '"{\\"x\\": 1}"', "null", '{"x": 1e999}', '{"x": 123456789012345678901234567890, "y": "\t"}']
)
calls = st.builds(ToolCall, call_ids, st.sampled_from(["look", "write"]), arguments | mendable)
contents = st.one_of(texts, st.lists(st.builds(TextPart, texts), max_size=2))
responses = st.builds(ToolResponse, call_ids, st.sampled_from(["look", "write"]), contents, st.booleans())
any_message = st.one_of(
    st.builds(SystemMessage, text=texts),
    st.builds(UserMessage, content=contents),
    st.builds(InstructionMessage, text=texts, rendered=st.booleans()),
    st.builds(AssistantMessage, text=texts, reasoning=st.lists(st.builds(ReasoningPart, texts), max_size=1)),
    st.builds(AssistantMessage, text=texts, tool_calls=st.lists(calls, max_size=3)),
    st.builds(ToolResponseMessage, responses=st.lists(responses, max_size=3)),
)
conversations = st.lists(any_message, max_size=8)


@hypothesis_settings(max_examples=60)
@given(conversations)
def test_any_conversation_becomes_valid_for_the_strictest_provider(messages: list[Message]) -> None:
    assert faults_of(repair(messages)[0]) == []


@hypothesis_settings(max_examples=60)
@given(conversations)
def test_repairing_is_told_exactly_where_something_changes_and_is_done_after_once(messages: list[Message]) -> None:
    once, told = repair(messages)
    assert bool(told) == (once != messages)
    assert repair(once) == (once, [])


@hypothesis_settings(max_examples=40)
@given(conversations)
def test_what_users_and_systems_said_stays_in_order_and_nothing_is_changed_in_place(messages: list[Message]) -> None:
    before = copy.deepcopy(messages)
    spoken = [m.id for m in messages if not isinstance(m, AssistantMessage | ToolResponseMessage)]
    repaired, _ = repair(messages)
    assert [m.id for m in repaired if not isinstance(m, AssistantMessage | ToolResponseMessage)] == spoken
    assert messages == before


@hypothesis_settings(max_examples=40)
@given(conversations)
def test_a_fault_at_the_end_changes_nothing_of_what_is_valid_before_it(messages: list[Message]) -> None:
    valid, _ = repair(messages)
    repaired, told = repair([*valid, AssistantMessage()])
    assert (repaired, len(told)) == (valid, 1)


@hypothesis_settings(max_examples=60)
@given(st.lists(conversations, max_size=3))
def test_a_conversation_that_grows_is_repaired_as_if_it_had_been_whole(parts: list[list[Message]]) -> None:
    checked = NOTHING_CHECKED
    for part in parts:
        grown = [*checked.messages, *part]
        checked, told = checked.beginning(grown).extended(grown)
        assert (checked.messages, told) == repair(grown)
        calls = {c.id for m in checked.messages if isinstance(m, AssistantMessage) for c in m.tool_calls}
        assert {id for id in (*"abc", "a_2", "b_2", "call_2") if checked.has_call(id)} <= calls
        assert all(checked.has_call(id) for id in calls)


def test_what_is_known_of_a_conversation_does_not_tell_what_another_one_added_to_it() -> None:
    start: list[Message] = [UserMessage("go")]
    known, _ = NOTHING_CHECKED.beginning(start).extended(start)
    ask = AssistantMessage(tool_calls=[ToolCall("a", "look")])
    longer, _ = known.extended([*start, ask, ToolResponseMessage([ToolResponse("a", "look", "seen")])])
    assert longer.has_call("a")
    assert not known.has_call("a")
    assert known.beginning([UserMessage("another")]).messages == []


def test_a_valid_conversation_comes_back_as_the_very_same_messages() -> None:
    messages: list[Message] = [
        SystemMessage(text="s"),
        UserMessage(content="q"),
        AssistantMessage(text="let me see", tool_calls=[ToolCall("a", "look", '{"x": 1}'), ToolCall("b", "look")]),
        ToolResponseMessage(responses=[ToolResponse("a", "look", "1"), ToolResponse("b", "look", "2", is_error=True)]),
        AssistantMessage(text="done"),
    ]
    repaired, told = repair(messages)
    assert told == []
    assert all(a is b for a, b in zip(repaired, messages, strict=True))


@pytest.mark.case("D2")
def test_an_answer_that_came_after_the_next_user_message_stands_directly_after_its_call() -> None:
    ask = AssistantMessage(tool_calls=[ToolCall("a", "look")])
    answer = ToolResponseMessage(responses=[ToolResponse("a", "look", "found")])
    repaired, told = repair([UserMessage("1"), ask, UserMessage("2"), answer])
    assert repaired[1:3] == [ask, answer]
    assert isinstance(repaired[3], UserMessage)
    assert told == [f"brought the answers to message {ask.id!r} to directly after it"]


def test_a_call_without_an_answer_is_answered_as_not_finished_in_its_place() -> None:
    ask = AssistantMessage(tool_calls=[ToolCall("a", "look"), ToolCall("b", "write")])
    answer = ToolResponseMessage(responses=[ToolResponse("b", "write", "written")])
    repaired, told = repair([UserMessage("1"), ask, answer, UserMessage("2")])
    assert repaired[2] == msgspec.structs.replace(
        answer, responses=[ToolResponse("a", "look", NOT_FINISHED, is_error=True), *answer.responses]
    )
    assert told == ["answered call 'a' of 'look' as not finished"]


def test_one_message_for_each_answer_becomes_one_message_with_all() -> None:
    ask = AssistantMessage(tool_calls=[ToolCall("a", "look"), ToolCall("b", "look")])
    one, two = (ToolResponseMessage(responses=[ToolResponse(i, "look", i)]) for i in "ab")
    repaired, told = repair([ask, two, one])
    assert repaired == [ask, msgspec.structs.replace(two, responses=[*one.responses, *two.responses])]
    assert told


def test_answers_to_two_messages_in_one_message_are_parted_under_two_ids() -> None:
    first, second = (AssistantMessage(tool_calls=[ToolCall(i, "look")]) for i in "ab")
    both = ToolResponseMessage(responses=[ToolResponse("a", "look", "1"), ToolResponse("b", "look", "2")])
    repaired, _ = repair([first, second, both])
    assert [m.text for m in repaired if isinstance(m, ToolResponseMessage)] == ["1", "2"]
    assert faults_of(repaired) == []


@pytest.mark.case("A15")
def test_equal_ids_pair_within_their_own_message_and_are_made_unique_in_call_and_answer() -> None:
    turns: list[Message] = []
    for text in ("1", "2"):
        turns.append(AssistantMessage(tool_calls=[ToolCall("a", "look"), ToolCall("a", "look")]))
        answers = [ToolResponse("a", "look", f"{text}.{k}") for k in (0, 1)]
        turns.append(ToolResponseMessage(responses=answers))
    repaired, _ = repair(turns)
    found = [r for m in repaired if isinstance(m, ToolResponseMessage) for r in m.responses]
    assert [(r.id, r.text) for r in found] == [("a", "1.0"), ("a_2", "1.1"), ("a_3", "2.0"), ("a_4", "2.1")]


def test_an_answer_gets_the_name_of_its_call() -> None:
    ask = AssistantMessage(tool_calls=[ToolCall("a", "look")])
    repaired, told = repair([ask, ToolResponseMessage([ToolResponse("a", "", "found")], id="answers")])
    assert repaired[1] == ToolResponseMessage([ToolResponse("a", "look", "found")], id="answers")
    assert told == [f"made the answers to message {ask.id!r} fit its calls"]


def test_an_unanswered_call_does_not_take_the_answer_of_a_later_one_with_its_id() -> None:
    first, second = (AssistantMessage(tool_calls=[ToolCall("a", "look")]) for _ in range(2))
    repaired, _ = repair([first, UserMessage("?"), second, ToolResponseMessage([ToolResponse("a", "look", "found")])])
    assert [m.text for m in repaired if isinstance(m, ToolResponseMessage)] == [NOT_FINISHED, "found"]


@pytest.mark.case("D17")
def test_messages_that_say_nothing_are_left_out_and_empty_answers_get_a_text() -> None:
    ask = AssistantMessage(tool_calls=[ToolCall("a", "look")])
    silent = AssistantMessage(reasoning=[ReasoningPart("hm")])
    repaired, told = repair([ask, ToolResponseMessage([ToolResponse("a", "look", "")]), silent, AssistantMessage(" ")])
    assert len(repaired) == 2
    assert isinstance(repaired[1], ToolResponseMessage)
    assert repaired[1].text == "(no output)"
    assert len(told) == 3


@pytest.mark.case("D16")
def test_half_a_surrogate_pair_becomes_the_replacement_character_and_sound_text_stays() -> None:
    ask = AssistantMessage("😀 \ud83d", tool_calls=[ToolCall("a", "look", '{"q": "\udc00"}')])
    answer = ToolResponseMessage([ToolResponse("a", "look", [TextPart("NUL \0 \ud83d")])])
    repaired, _ = repair([UserMessage("lone \ud83d"), ask, answer, UserMessage("sound 😀")])
    sent = encode(repaired).decode()
    assert sent.count("\ufffd") == 4
    assert sent.count("😀") == 2
    assert "NUL \\u0000" in sent


def test_an_id_with_half_a_surrogate_pair_is_mended_in_call_and_answer_alike() -> None:
    ask = AssistantMessage(tool_calls=[ToolCall("id \ud83d", "look", "{}")])
    repaired, told = repair(
        [ask, ToolResponseMessage([ToolResponse("id \ud83d", "look", "a cat")]), UserMessage("And?")]
    )
    assert isinstance(repaired[0], AssistantMessage)
    assert isinstance(repaired[1], ToolResponseMessage)
    assert repaired[0].tool_calls[0].id == repaired[1].responses[0].id == "id \ufffd"
    assert repaired[1].text == "a cat"
    assert len(told) == 2


def test_thousands_of_open_brackets_are_no_arguments_and_no_failure() -> None:
    ask = AssistantMessage(tool_calls=[ToolCall("a", "look", '{"q": ' + "[" * 200_000)])
    repaired, told = repair([ask, ToolResponseMessage([ToolResponse("a", "look", "invalid JSON")])])
    assert isinstance(repaired[0], AssistantMessage)
    assert repaired[0].tool_calls[0].arguments == "{}"
    assert len(told) == 1


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ('{"text": "two\nlines"}', '{"text":"two\\nlines"}'),
        ('"{\\"text\\": \\"encoded twice\\"}"', '{"text":"encoded twice"}'),
        ({"text": "an object"}, '{"text":"an object"}'),
        ('{"text": "half \\ud83d"}', '{"text":"half \ufffd"}'),
        ("null", "{}"),
        ("  ", "{}"),
    ],
)
async def test_arguments_that_a_tool_takes_are_the_same_for_the_model_as_a_json_object(written: Any, sent: str) -> None:
    got: list[str] = []

    @tool
    async def write(text: str = "nothing") -> str:
        """Write."""
        got.append(text)
        return "written"

    async with ScriptedModel([[ToolCall("a", "write", written)], "done"]) as model:
        await ReactAgent("clerk", model, [write], stream=False).run("go")
        assert faults_of(model.requests[1].messages) == []
    ask = model.requests[1].messages[1]
    assert isinstance(ask, AssistantMessage)
    assert ask.tool_calls[0].arguments == sent
    assert got == [json.loads(sent).get("text", "nothing")]


class Looked(str):
    """A text that counts how often somebody looks whether it is sound."""

    __slots__ = ("times",)

    def isascii(self) -> bool:
        self.times = getattr(self, "times", 0) + 1
        return super().isascii()


async def test_in_a_run_of_many_rounds_each_message_is_checked_once() -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    texts = [Looked(f"{n}") for n in range(3)]
    model = ScriptedModel([*[[ToolCall(f"c{n}", "look")] for n in range(5)], "done"])
    await ReactAgent("clerk", model, [look], stream=False).run([UserMessage(t) for t in texts])
    assert [t.times for t in texts] == [1, 1, 1]


async def test_what_a_node_breaks_between_two_rounds_is_repaired_wherever_it_stands() -> None:
    ask = AssistantMessage(id="ask", tool_calls=[ToolCall("a", "look"), ToolCall("b", "look")])
    answers = ToolResponseMessage([ToolResponse(i, "look", "seen") for i in "ab"], id="answers")

    async def breaks(state: dict[str, Any]) -> dict[str, Any]:
        again = [msgspec.structs.replace(m, id=f"{m.id} again") for m in (ask, answers)]
        fewer = msgspec.structs.replace(answers, responses=answers.responses[:1])
        return {"messages": [[fewer, UserMessage("?")], [*again, UserMessage("!")]][state["n"]], "n": 1}

    graph = StateGraph(strategies={"messages": Messages(), "n": Reduce(int.__add__)})
    graph.add_node("llm", LlmNode(model := ScriptedModel(["one", "two", "three"]))).add_node("breaks", breaks)
    graph.add_edge(START, "llm").add_edge("breaks", "llm")
    graph.add_conditional_edges("llm", lambda state: END if len(model.requests) == 3 else "breaks", ["breaks", END])
    state = (await graph.compile().invoke({"messages": [UserMessage("go"), ask, answers], "n": 0})).state
    assert [faults_of(r.messages) for r in model.requests] == [[], [], []]
    assert faults_of(state["messages"]) == []
    found = [r.id for m in state["messages"] if isinstance(m, ToolResponseMessage) for r in m.responses]
    assert found == ["a", "b", "a_2", "b_2"]


async def test_where_repairing_leaves_nothing_to_send_the_error_says_so() -> None:
    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("llm", LlmNode(FunctionModel(lambda _: "asked")))
    graph.add_edge(START, "llm").add_edge("llm", END)
    orphan = ToolResponseMessage([ToolResponse("a", "look", "found")])
    for messages in ([orphan], [SystemMessage(text="Be kind."), orphan]):
        with pytest.raises(InputError, match=r"nothing to ask: left out an answer to call 'a'.*no message is left"):
            await graph.compile().invoke({"messages": messages})


@pytest.mark.case("F13")
async def test_a_node_repairs_its_state_once_and_tells_it_in_an_event() -> None:
    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("first", LlmNode(ScriptedModel(["one"])))
    graph.add_node("second", LlmNode(ScriptedModel(["two"])))
    graph.add_edge(START, "first").add_edge("first", "second").add_edge("second", END)
    broken = [UserMessage("1"), AssistantMessage(tool_calls=[ToolCall("a", "look")]), UserMessage("2")]
    async with graph.compile().stream({"messages": broken}) as stream:
        told = [event async for event in stream if isinstance(event, HistoryRepaired)]
    assert [(e.path, e.repairs) for e in told] == [(("first",), ["answered call 'a' of 'look' as not finished"])]
    messages = stream.result.state["messages"]
    assert [type(m).__name__[0] for m in messages] == ["U", "A", "T", "U", "A", "A"]


@pytest.mark.case("H8")
async def test_the_next_request_after_invalid_arguments_holds_valid_ones() -> None:
    @tool
    async def look(q: str) -> str:
        """Look."""
        raise AssertionError("ran")

    async with ScriptedModel([[ToolCall("a", "look", "{'q': lamps\"}")], "sorry"]) as model:
        result = await ReactAgent("clerk", model, [look]).run("go")
        assert faults_of(model.requests[1].messages) == []
    answer = result.messages[2]
    assert isinstance(answer, ToolResponseMessage)
    assert answer.responses[0].is_error
    assert "not valid JSON" in answer.text


# --- conversations that were cut


def long_conversation(rounds: int, huge: int = 0) -> list[Message]:
    """System, user, then rounds of two calls and their answers (one of them `huge`), an answer, and a question."""
    messages: list[Message] = [SystemMessage("be brief", id="s"), UserMessage("first", id="u0")]
    for n in range(rounds):
        calls = [ToolCall(f"a{n}", "look", "{}"), ToolCall(f"b{n}", "look", "{}")]
        answers = [ToolResponse(f"a{n}", "look", "x" * huge or "short"), ToolResponse(f"b{n}", "look", "y")]
        messages += [
            AssistantMessage(tool_calls=calls, id=f"c{n}"),
            ToolResponseMessage(answers, id=f"r{n}"),
            AssistantMessage("so", id=f"t{n}"),
            UserMessage(f"question {n}", id=f"u{n + 1}"),
        ]
    return messages


async def asked_after(cut: list[Any], messages: list[Message]) -> list[Message]:
    """What a model gets to see after a node has written `cut` to these messages."""
    model = ScriptedModel(["fine"])
    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("cut", lambda state: {"messages": cut}).add_node("llm", LlmNode(model))
    graph.add_edge(START, "cut").add_edge("cut", "llm").add_edge("llm", END)
    await graph.compile().invoke({"messages": messages})
    system = model.requests[0].system
    return [*([system] if system else []), *model.requests[0].messages]


@pytest.mark.case("D5")
@pytest.mark.parametrize("kept", range(1, 40))
async def test_a_history_cut_to_its_last_messages_splits_no_pair_and_doubles_nothing(kept: int) -> None:
    messages = long_conversation(10)[:40]
    rewrite = RewriteMessages([m.id for m in messages], [messages[1], *messages[max(2, 40 - kept) :]])
    asked = await asked_after([rewrite], messages)
    assert faults_of(asked) == []
    assert [m.text for m in asked].count("first") == 1


@pytest.mark.case("D12")
@given(st.sets(st.integers(2, 12)), st.booleans())
@hypothesis_settings(max_examples=60, deadline=None)
async def test_whatever_remove_markers_take_away_the_request_is_valid(places: set[int], ends_in_answers: bool) -> None:
    messages = long_conversation(3, huge=2_000)
    if ends_in_answers:
        messages = messages[:-2]
    removed = [RemoveMessage(messages[p].id) for p in sorted(places) if p < len(messages) - 1]
    asked = await asked_after([*removed], messages)
    assert faults_of(asked) == []
    assert (asked[0].text, isinstance(asked[0], SystemMessage)) == ("be brief", True)
    last = next(m for m in reversed(messages) if isinstance(m, UserMessage))
    if RemoveMessage(last.id) not in removed:
        assert last in asked
