"""Context editing: the request is shortened, the state stays whole."""

import json
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import ConfigError, RunConfig
from agentgraph.checkpoint import MemorySaver
from agentgraph.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    TextPart,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from agentgraph.models import ModelRequest
from agentgraph.nodes import ReactAgent, tool
from agentgraph.nodes.interceptors import ContextEditing
from agentgraph.nodes.tokens import approximate_tokens
from agentgraph.strategies import Messages, RemoveMessage
from agentgraph.testing import FunctionModel, ScriptedModel, check_request


def asked(*calls: str, arguments: str = "{}") -> AssistantMessage:
    return AssistantMessage(tool_calls=[ToolCall(id, "read", arguments) for id in calls])


def answered(*answers: tuple[str, str]) -> ToolResponseMessage:
    return ToolResponseMessage([ToolResponse(id, "read", text) for id, text in answers])


def talk(*texts: str) -> list[Message]:
    """A question, and a call with an answer for each text."""
    messages: list[Message] = [UserMessage("Read.")]
    for number, text in enumerate(texts):
        messages += [asked(f"c{number}"), answered((f"c{number}", text))]
    return messages


def answers(messages: list[Message]) -> list[str]:
    return [r.text for m in messages if isinstance(m, ToolResponseMessage) for r in m.responses]


def edited(messages: Sequence[Message], **options: Any) -> list[Message]:
    return ContextEditing(**options).edited(ModelRequest(messages=cast("list[Message]", messages)))


# --- what is left out ---


async def test_old_answers_are_left_out_of_the_request_only() -> None:
    @tool
    async def read(page: int) -> str:
        return f"page {page} " * 1000

    script: list[Any] = [[ToolCall(f"c{i}", "read", json.dumps({"page": i}))] for i in range(5)]
    async with ScriptedModel([*script, "Done."]) as model:
        agent = ReactAgent("clerk", model, [read], interceptors=[ContextEditing(over=4000, keep=2)])
        result = await agent.run("Read.")
    sent = answers(model.requests[-1].messages)
    assert sent[:3] == ["[this answer of 7,000 characters was left out here; call the tool again if it is needed]"] * 3
    assert sent[3:] == ["page 3 " * 1000, "page 4 " * 1000]
    assert answers(result.messages) == [f"page {i} " * 1000 for i in range(5)]


def test_a_request_that_is_small_enough_stays_the_same_object() -> None:
    messages = talk("a" * 500, "b" * 500)
    assert edited(messages, over=100_000) is messages


def test_no_more_is_left_out_than_has_to_be() -> None:
    messages = talk(*["word " * 400] * 10)
    size = approximate_tokens(messages)
    sent = answers(edited(messages, over=size - 500, at_least=1, keep=0))
    assert [text.startswith("[this answer") for text in sent] == [True] * 2 + [False] * 8


def test_while_the_talk_grows_the_beginning_of_the_request_stays_the_same_for_many_rounds() -> None:
    editing = ContextEditing(over=8000, keep=1)
    beginnings: set[int] = set()
    changes = 0
    for rounds in range(20, 60):
        sent = answers(editing.edited(ModelRequest(messages=talk(*["word " * 400] * rounds))))
        left_out = sum(text.startswith("[this answer") for text in sent)
        changes += left_out not in beginnings
        beginnings.add(left_out)
    assert changes <= 12  # a quarter of 8,000 tokens is five answers


def test_the_system_message_and_the_tools_count_too() -> None:
    messages = talk("word " * 400, "word " * 400)
    size = approximate_tokens(messages)
    editing = ContextEditing(over=size + 50, keep=1)
    request = ModelRequest(messages=messages)
    assert editing.edited(request) is messages
    with_tools = msgspec.structs.replace(request, tools=[tool(talk_about).spec] * 5)
    assert answers(editing.edited(with_tools))[0].startswith("[this answer of 2,000 characters")


async def talk_about(subject: str, length: int, style: str = "plain") -> str:
    """Talk about a subject at some length, in a style that is plain unless told otherwise."""
    return subject


def test_answers_that_are_shorter_than_the_note_stay() -> None:
    messages = talk("yes", "word " * 1000, "no")
    assert answers(edited(messages, over=200, keep=0)) == [
        "yes",
        "[this answer of 5,000 characters was left out here; call the tool again if it is needed]",
        "no",
    ]


def test_answers_of_excluded_tools_are_never_touched() -> None:
    messages = [
        UserMessage("Go."),
        AssistantMessage(tool_calls=[ToolCall("c1", "plan"), ToolCall("c2", "read")]),
        ToolResponseMessage([ToolResponse("c1", "plan", "p" * 9000), ToolResponse("c2", "read", "r" * 9000)]),
    ]
    sent = answers(edited(messages, over=100, keep=0, longest=500, exclude_tools=["plan"]))
    assert sent[0] == "p" * 9000
    assert len(sent[1]) < 200


def test_with_clear_inputs_the_arguments_of_calls_that_lose_their_answers_go_too() -> None:
    messages: list[Message] = [
        UserMessage("Go."),
        asked("c1", arguments='{"text": "' + "x" * 3000 + '"}'),
        answered(("c1", "word " * 500)),
        asked("c2", arguments='{"text": "kept"}'),
        answered(("c2", "word " * 500)),
    ]
    sent = edited(messages, over=800, keep=1, clear_inputs=True)
    check_request(ModelRequest(messages=sent))
    calls = [c.arguments for m in sent if isinstance(m, AssistantMessage) for c in m.tool_calls]
    assert calls == ["{}", '{"text": "kept"}']


def test_what_the_cleared_inputs_took_counts_as_left_out() -> None:
    messages: list[Message] = [UserMessage("Go.")]
    for id in ("c1", "c2"):
        messages += [asked(id, arguments='{"text": "' + "word " * 1000 + '"}'), answered((id, "word " * 100))]
    over = approximate_tokens(messages) - 1000
    sent = answers(edited(messages, over=over, keep=0, at_least=1, clear_inputs=True))
    assert [text.startswith("[this answer") for text in sent] == [True, False]


def test_a_note_of_ones_own_tells_how_much_was_left_out() -> None:
    messages = talk("word " * 1000)
    assert answers(edited(messages, over=100, keep=0, note="({size} weg)")) == ["(5,000 characters weg)"]


def test_images_of_an_answer_are_left_out_with_its_text_and_told() -> None:
    parts = [TextPart("a map"), ImagePart(url="http://x/1.png"), ImagePart(url="http://x/2.png")]
    messages = [UserMessage("Go."), asked("c1"), ToolResponseMessage([ToolResponse("c1", "read", [*parts])])]
    assert answers(edited(messages, over=500, keep=0))[0].startswith(
        "[this answer of 5 characters and 2 images or files"
    )


# --- what is shortened ---


@pytest.mark.case("D12")
def test_a_huge_answer_is_shortened_with_a_note_of_how_much() -> None:
    huge = "head" + "x" * 2_000_000 + "tail"
    (sent,) = answers(edited(talk(huge), over=None, longest=1000))
    assert sent.startswith("head")
    assert sent.endswith("tail")
    left_out = 2_000_008 - (len(sent) - len("\n[... 1,999,046 characters left out ...]\n"))
    assert f"[... {left_out:,} characters left out ...]" in sent
    assert len(sent) <= 1000


def test_answers_to_keep_are_shortened_where_they_alone_are_too_large() -> None:
    sent = edited(talk("a " * 50_000, "b " * 100_000, "short"), over=5000, keep=3)
    assert approximate_tokens(sent) <= 5000
    first, second, third = answers(sent)
    assert first.startswith("a a")
    assert second.startswith("b b")
    assert "characters left out" in first
    assert "characters left out" in second
    assert third == "short"


def test_images_stay_where_the_text_of_their_answer_is_shortened() -> None:
    image = ImagePart(url="http://x/1.png")
    messages = [
        UserMessage("Go."),
        asked("c1"),
        ToolResponseMessage([ToolResponse("c1", "read", [TextPart("x" * 900), image])]),
    ]
    sent = edited(messages, over=None, longest=200)[2]
    assert isinstance(sent, ToolResponseMessage)
    text, kept = sent.responses[0].content
    assert isinstance(text, TextPart)
    assert len(text.text) <= 200
    assert kept == image


def test_what_is_too_large_without_any_answer_is_sent_as_it_is() -> None:
    messages: list[Message] = [UserMessage("word " * 5000)]
    assert edited(messages, over=100) == messages


# --- always valid ---

sizes = st.lists(st.integers(0, 6000), min_size=1, max_size=3)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Turns of a question and rounds of calls; ends in answers or in a question."""
    messages: list[Message] = []
    number = 0
    for turn in range(draw(st.integers(1, 3))):
        messages.append(UserMessage(f"question {turn}"))
        for round_ in draw(st.lists(sizes, max_size=4)):
            ids = [f"c{number + k}" for k in range(len(round_))]
            number += len(round_)
            messages += [
                asked(*ids, arguments='{"q": "what"}'),
                answered(*((id, "x" * n or "-") for id, n in zip(ids, round_, strict=True))),
            ]
        messages.append(AssistantMessage(f"answer {turn}"))
    messages.pop()
    return messages


@pytest.mark.case("D12")
@settings(max_examples=60, deadline=None)
@given(
    conversations(),
    st.integers(1, 6000),
    st.integers(0, 4),
    st.one_of(st.none(), st.integers(100, 4000)),
    st.booleans(),
)
def test_at_every_budget_the_request_is_valid_and_only_answers_are_changed(
    messages: list[Message], over: int, keep: int, longest: int | None, clear_inputs: bool
) -> None:
    editing = ContextEditing(over=over, keep=keep, longest=longest, clear_inputs=clear_inputs)
    before = list(messages)
    sent = editing.edited(ModelRequest(messages=messages))
    check_request(ModelRequest(messages=sent))
    assert messages == before
    assert [m.id for m in sent] == [m.id for m in messages]
    for given_, made in zip(messages, sent, strict=True):
        if isinstance(given_, UserMessage) or not (clear_inputs or isinstance(given_, ToolResponseMessage)):
            assert made == given_
    assert sum(len(m.text) for m in sent) <= sum(len(m.text) for m in messages)
    smallest = approximate_tokens(edited(messages, over=1, keep=0))
    if over >= smallest and keep == 0:
        assert approximate_tokens(sent) <= over


@pytest.mark.case("D12")
async def test_after_remove_markers_the_request_is_valid_too() -> None:
    model = FunctionModel(lambda request: check_request(request) or "well")
    agent = ReactAgent("clerk", model, interceptors=[ContextEditing(over=500, keep=0)])
    messages = [*talk("word " * 400, "word " * 400), UserMessage("And?")]
    for gone in messages[1:-1]:
        left = Messages().merge(messages, RemoveMessage(gone.id))
        assert (await agent.run(left)).text == "well"


# --- in an agent ---


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("place", ["interceptors", "hooks"])
async def test_a_second_turn_is_shortened_again_and_the_thread_keeps_all(stream: bool, place: str) -> None:
    @tool
    def read(page: int) -> str:
        return "word " * 1000

    script: list[Any] = [
        [ToolCall("c1", "read", '{"page": 1}')],
        "One.",
        [ToolCall("c2", "read", '{"page": 2}')],
        "Two.",
    ]
    options: Any = {place: [ContextEditing(over=1000, keep=1)]}
    thread = RunConfig(thread_id="t")
    async with ScriptedModel(script) as model:
        agent = ReactAgent("clerk", model, [read], stream=stream, checkpointer=MemorySaver(), **options)
        await agent.run("Read page 1.", thread)
        result = await agent.run("Read page 2.", thread)
    assert [len(text) for text in answers(model.requests[1].messages)] == [
        len(answers(edited(talk("word " * 1000), over=1000, keep=1))[0])
    ]
    assert answers(model.requests[-1].messages)[0].startswith("[this answer of 5,000 characters")
    assert answers(result.messages) == ["word " * 1000] * 2


# --- options ---


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"over": 0}, r"over=.*found 0"),
        ({"over": None}, "does nothing without longest"),
        ({"keep": -1}, r"keep=.*found -1"),
        ({"at_least": 0}, r"at_least=.*found 0"),
        ({"longest": 5}, r"longest=.*from 100; found 5"),
        ({"exclude_tools": "read"}, r"exclude_tools=.*list of names; found 'read'"),
        ({"note": ""}, r"note=.*must not be empty"),
    ],
)
def test_an_option_that_does_not_do_is_named(options: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ContextEditing(**options)


def test_an_excluded_tool_that_is_not_there_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    ReactAgent("clerk", ScriptedModel([]), [talk_about], interceptors=[ContextEditing(exclude_tools=["talk_abuot"])])
    assert "'talk_abuot'" in caplog.text
    assert "talk_about" in caplog.text
