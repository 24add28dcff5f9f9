"""What `check_request` refuses, and what it lets through."""

import pytest

from agentgraph.messages import (
    AssistantMessage,
    ImagePart,
    InstructionMessage,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from agentgraph.models import ModelError, ModelRequest
from agentgraph.testing import check_request

ASK = UserMessage("What?")


def calls(*ids: str, arguments: str = "") -> AssistantMessage:
    return AssistantMessage(tool_calls=[ToolCall(id, "find", arguments) for id in ids])


def answers(*ids: str, content: str = "found") -> ToolResponseMessage:
    return ToolResponseMessage([ToolResponse(id, "find", content) for id in ids])


@pytest.mark.parametrize(
    "messages",
    [
        [ASK],
        [ASK, ASK],
        [InstructionMessage("Do.", rendered=True)],
        [UserMessage([TextPart("This?"), ImagePart(url="http://x/1.png")])],
        [ASK, AssistantMessage("That."), ASK],
        [ASK, calls("c1", "c2", arguments='{"q": 1}'), answers("c1", "c2"), calls("c3"), answers("c3")],
    ],
)
def test_a_valid_request_is_let_through(messages: list[Message]) -> None:
    check_request(ModelRequest(messages=messages, system=SystemMessage("Be brief.")))


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([], "no message"),
        ([AssistantMessage("Hi."), ASK], "first message is a AssistantMessage"),
        ([ASK, AssistantMessage("Hi.")], "last message is the assistant's"),
        ([ASK, SystemMessage("Be brief."), ASK], "message 1 is a system message"),
        ([ASK, calls("c1"), ASK], r"message 2 stands where the answers to \['c1'\] belong"),
        ([ASK, answers("c1")], "message 1 answers calls, and none stand before it"),
        ([ASK, calls("c1"), answers("c1"), answers("c1")], "message 3 answers calls, and none"),
        ([ASK, calls("c1", "c2"), answers("c1")], r"answers \['c1'\], not \['c1', 'c2'\]"),
        ([ASK, calls("c1", "c2"), answers("c2", "c1")], r"answers \['c2', 'c1'\], not"),
        ([ASK, calls("c1"), answers("c1"), calls("c1"), answers("c1")], "'c1' of a call is empty or not unique"),
        ([ASK, calls(""), answers("")], "'' of a call is empty"),
        ([ASK, AssistantMessage(tool_calls=[ToolCall("c1", "a.b")]), answers("c1")], "the name of call 'c1': 'a.b'"),
        ([ASK, calls("c1", arguments="[1]"), answers("c1")], "'c1' are no JSON object"),
        ([ASK, calls("c1", arguments='{"a'), answers("c1")], "'c1' are no JSON object"),
        ([ASK, calls("c1"), answers("c1", content="")], "message 2 is empty"),
        ([UserMessage(" ")], "message 0 is empty"),
        ([ASK, AssistantMessage("\n"), ASK], "message 1 is empty"),
        ([UserMessage("\ud83d")], "message 0 has half a surrogate pair"),
    ],
)
def test_what_a_strict_provider_refuses_is_an_error_with_status_400(messages: list[Message], told: str) -> None:
    with pytest.raises(ModelError, match=told) as error:
        check_request(ModelRequest(messages=messages))
    assert error.value.status_code == 400
