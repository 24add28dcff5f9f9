"""`tool_mode="json"`: tools for a model that knows none, by a schema for its reply and worked examples."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgraph.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    Usage,
    UserMessage,
)
from agentgraph.models import Delta, ModelRequest, OpenAIChat, ToolSpec
from agentgraph.models.assemble import ChatAssembler
from agentgraph.models.json_mode import JsonModeAssembler
from agentgraph.testing import TranscriptServer, serve_transcript

PRICE = ToolSpec(
    "price",
    "Looks up\n  a price.",
    {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
)
NOW = ToolSpec("now", "Tells the time", {})
ASK = ModelRequest(messages=[UserMessage("What does a lamp cost?")], tools=[PRICE, NOW])
TURN: list[Message] = [
    UserMessage("What does a lamp cost?"),
    AssistantMessage("", tool_calls=[ToolCall("1", "price", '{"item": "lamp"}')]),
    ToolResponseMessage([ToolResponse("1", "price", "40 euros")]),
]
USAGE = {"prompt_tokens": 9, "completion_tokens": 4}


def whole(reply: str, finish: str = "stop") -> bytes:
    message = {"role": "assistant", "content": reply}
    return msgspec.json.encode({"choices": [{"message": message, "finish_reason": finish}], "usage": USAGE})


def streamed(*pieces: str, finish: str = "stop") -> bytes:
    chunks: list[dict[str, Any]] = [{"choices": [{"delta": {"content": p}}]} for p in pieces]
    chunks += [{"choices": [{"delta": {}, "finish_reason": finish}]}, {"choices": [], "usage": USAGE}]
    return b"".join(b"data: " + json.dumps(c).encode() + b"\n\n" for c in chunks) + b"data: [DONE]\n\n"


@asynccontextmanager
async def served(*responses: bytes, **options: Any) -> AsyncGenerator[tuple[TranscriptServer, OpenAIChat]]:
    """A server that answers with these, and a model that asks it."""
    async with serve_transcript(*responses) as server:
        model = OpenAIChat("m", base_url=server.base_url, tool_mode="json", **options)
        async with model:
            yield server, model


async def sent(request: ModelRequest, **options: Any) -> dict[str, Any]:
    """The body that goes out for a request."""
    async with served(streamed('{"answer": ""}'), **options) as (server, model):
        [_ async for _ in model.stream(request)]
    body = server.requests[0].json
    assert not body.keys() & {"tools", "tool_choice", "parallel_tool_calls"}
    return body


async def schema(request: ModelRequest, **options: Any) -> dict[str, Any]:
    return (await sent(request, **options))["response_format"]["json_schema"]["schema"]


async def forms(request: ModelRequest, **options: Any) -> list[str]:
    """What a reply may be, in order."""
    told = await schema(request, **options)
    return [name for form in told.get("anyOf", [told]) for name in form["required"]]


async def answered(reply: str, finish: str = "stop", request: ModelRequest = ASK) -> AssistantMessage:
    """The message that a reply becomes, streamed or not, and told in deltas."""
    pieces = [reply[i : i + 3] for i in range(0, len(reply), 3)]
    async with served(whole(reply, finish), streamed(*pieces, finish=finish)) as (_, model):
        one = (await model.generate(request)).message
        *deltas, last = [d async for d in model.stream(request)]
    assert last.response is not None
    other = last.response.message
    assert "".join(d.text for d in deltas) == other.text == one.text
    assert [(c.name, c.arguments) for c in one.tool_calls] == [(c.name, c.arguments) for c in other.tool_calls]
    assert [ToolCall(d.call_id or "", d.name or "", d.arguments) for d in deltas if d.name] == other.tool_calls
    assert (one.finish_reason, one.usage) == (other.finish_reason, other.usage)
    return one


# -- what is asked


async def test_a_reply_is_calls_of_known_tools_or_an_answer() -> None:
    calls, answer = (await schema(ASK))["anyOf"]
    assert answer["properties"] == {"answer": {"type": "string", "maxLength": 1000}}
    items = calls["properties"]["tool_calls"]
    assert (items["minItems"], items["maxItems"]) == (1, 8)
    price, now = items["items"]["anyOf"]
    assert price["properties"]["name"] == {"const": "price"}
    assert price["properties"]["arguments"]["properties"] == {"item": {"type": "string", "maxLength": 1000}}
    assert now["properties"]["arguments"] == {"type": "object", "properties": {}}
    assert all(s["additionalProperties"] is False for s in (calls, answer, price, now))


async def test_the_tools_stand_in_the_system_prompt_after_the_callers_own() -> None:
    system = SystemMessage("You are a clerk.")
    first, *_ = (await sent(msgspec.structs.replace(ASK, system=system)))["messages"]
    assert first["role"] == "system"
    assert first["content"].startswith("You are a clerk. You reply in JSON.\nTools:\n")
    assert '- price: Looks up a price. Arguments: {"item": {"type": "string"}}\n' in first["content"]
    assert "- now: Tells the time. Arguments: {}\n" in first["content"]


async def test_worked_examples_come_before_the_conversation() -> None:
    _, *messages = (await sent(ASK))["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant"] * (len(messages) // 2) + ["user"]
    assert messages[1]["content"] == '{"answer": "Hi, how can I help you?"}'
    assert json.loads(messages[3]["content"])["tool_calls"][0]["name"] == "count_letters"
    assert messages[-1]["content"] == "What does a lamp cost?"


async def test_calls_and_results_of_the_conversation_are_told_without_tool_roles() -> None:
    called = AssistantMessage("", tool_calls=[ToolCall("2", "now", "")])
    failed = ToolResponseMessage([ToolResponse("2", "now", "no clock", is_error=True)])
    told = [*TURN, AssistantMessage("40."), UserMessage("When?"), called, failed]
    request = msgspec.structs.replace(ASK, messages=told)
    messages = (await sent(request))["messages"][-7:]
    assert [(m["role"], m["content"]) for m in messages] == [
        ("user", "What does a lamp cost?"),
        ("assistant", '{"tool_calls": [{"name": "price", "arguments": {"item": "lamp"}}]}'),
        ("user", "Result of price: 40 euros"),
        ("assistant", '{"answer": "40."}'),
        ("user", "When?"),
        ("assistant", '{"tool_calls": [{"name": "now", "arguments": {}}]}'),
        ("user", "Error of now: no clock"),
    ]


async def test_an_image_in_a_tools_answer_is_kept() -> None:
    seen = ToolResponseMessage([ToolResponse("1", "price", [TextPart("Here."), ImagePart(url="https://x/y.png")])])
    last = (await sent(msgspec.structs.replace(ASK, messages=[*TURN[:2], seen])))["messages"][-1]
    assert [p["type"] for p in last["content"]] == ["text", "image_url"]


async def test_without_tools_the_conversation_is_told_without_tool_roles_and_no_schema_is_asked_for() -> None:
    body = await sent(ModelRequest(messages=[*TURN, AssistantMessage("40.")]))
    assert "response_format" not in body
    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "user", "assistant"]
    assert body["messages"][-1]["content"] == "40."


async def test_after_results_an_answer_is_at_hand() -> None:
    assert await forms(ASK) == ["tool_calls", "answer"]
    assert await forms(msgspec.structs.replace(ASK, messages=TURN)) == ["answer", "tool_calls"]


@pytest.mark.parametrize(
    ("choice", "first", "later"),
    [
        ("auto", ["tool_calls", "answer"], ["answer", "tool_calls"]),
        ("none", ["answer"], ["answer"]),
        ("required", ["tool_calls"], ["answer", "tool_calls"]),  # required in each round would never end
        ("now", ["tool_calls"], ["answer", "tool_calls"]),
    ],
)
async def test_a_choice_of_tools_holds_in_a_turns_first_round(choice: str, first: list[str], later: list[str]) -> None:
    request = msgspec.structs.replace(ASK, tool_choice=choice)
    assert await forms(request) == first
    assert await forms(msgspec.structs.replace(request, messages=TURN)) == later


async def test_a_named_tool_is_the_only_one_that_may_be_called() -> None:
    told = await schema(msgspec.structs.replace(ASK, tool_choice="now", parallel_tool_calls=False))
    items = told["properties"]["tool_calls"]
    assert items["items"]["properties"]["name"] == {"const": "now"}
    assert items["maxItems"] == 1


async def test_after_so_many_rounds_only_an_answer_is_accepted_until_the_user_speaks() -> None:
    rounds = [*TURN, *TURN[1:]]
    request = msgspec.structs.replace(ASK, messages=rounds)
    assert await forms(request, json_rounds=3) == ["answer", "tool_calls"]
    assert await forms(request, json_rounds=2) == ["answer"]
    later = msgspec.structs.replace(ASK, messages=[*rounds, AssistantMessage("40."), UserMessage("And now?")])
    assert await forms(later, json_rounds=2) == ["tool_calls", "answer"]


class Money(msgspec.Struct):
    amount: float
    notes: list[str] = []


class Bill(msgspec.Struct):
    total: Money


async def test_definitions_of_tools_and_answer_are_told_apart() -> None:
    pay = ToolSpec("pay", "Pays.", msgspec.json.schema(Bill))
    told = await schema(msgspec.structs.replace(ASK, tools=[pay], output_schema=msgspec.json.schema(Money)))
    calls, answer = told["anyOf"]
    arguments = calls["properties"]["tool_calls"]["items"]["properties"]["arguments"]
    assert arguments == {"$ref": "#/$defs/pay.Bill"}
    assert answer["properties"]["answer"] == {"$ref": "#/$defs/answer.Money"}
    assert told["$defs"].keys() == {"pay.Bill", "pay.Money", "answer.Money"}
    assert told["$defs"]["pay.Bill"]["properties"]["total"] == {"$ref": "#/$defs/pay.Money"}


async def test_strings_and_lists_get_bounds_where_they_have_none() -> None:
    fields: dict[str, Any] = {
        "free": {"type": "string"},
        "short": {"type": "string", "maxLength": 3},
        "one": {"type": "string", "enum": ["a"]},
        "maybe": {"type": ["string", "null"]},
        "list": {"type": "array", "items": {"type": "string"}},
        "long": {"type": "array", "minItems": 30},
        "type": {"type": "integer"},
        "items": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    }
    tool = ToolSpec("t", "", {"type": "object", "properties": fields})
    told = await schema(msgspec.structs.replace(ASK, tools=[tool], tool_choice="required"))
    bounded = told["properties"]["tool_calls"]["items"]["properties"]["arguments"]["properties"]
    text = {"type": "string", "maxLength": 1000}
    assert bounded == {
        **fields,
        "free": text,
        "maybe": {"type": ["string", "null"], "maxLength": 1000},
        "list": {"type": "array", "items": text, "maxItems": 20},
        "long": {"type": "array", "minItems": 30, "maxItems": 30},
        "items": {"anyOf": [text, {"type": "null"}]},
    }


# -- what comes back


async def test_an_answer_is_plain_text() -> None:
    message = await answered('{"answer": "A lamp costs\\n\\"40\\" \\u20ac \\ud83d\\ude00."}')
    assert message.text == 'A lamp costs\n"40" € \U0001f600.'
    assert (message.tool_calls, message.finish_reason, message.usage) == ([], "stop", Usage(9, 4))


async def test_a_call_is_an_ordinary_tool_call() -> None:
    message = await answered('{"tool_calls": [{"name": "price", "arguments": {"item": "lämp"}}]}')
    (call,) = message.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("price", {"item": "lämp"})
    assert call.id
    assert (message.text, message.finish_reason) == ("", "tool_calls")


async def test_two_calls_in_one_reply_are_two_with_ids_of_their_own() -> None:
    one, two = (json.dumps({"name": "price", "arguments": {"item": item}}) for item in ("lamp", "chair"))
    calls = (await answered(f'{{"tool_calls": [{one}, {two}]}}')).tool_calls
    assert [(c.name, c.arguments) for c in calls] == [("price", '{"item": "lamp"}'), ("price", '{"item": "chair"}')]
    assert len({c.id for c in calls}) == 2


async def test_a_call_that_a_reply_repeats_is_made_once() -> None:
    one = '{"name": "price", "arguments": {"item": "lamp"}}'
    assert len((await answered(f'{{"tool_calls": [{one}, {one}, {one}]}}')).tool_calls) == 1


@pytest.mark.parametrize(
    "reply",
    [
        '```json\n{"tool_calls": [{"name": "now", "arguments": {}}]}\n```',
        '  {"tool_calls": [{"name": "now"}]}  and more',
        '{"tool_call": {"name": "now", "arguments": null}}',
        '{"name": "now", "arguments": "{}"}',
        '{"tool_calls": [{"name": "now", "arguments": ""}, {"name": 7}, "now"]}',
    ],
)
async def test_a_server_that_enforces_no_schema_is_understood_where_it_is_clear(reply: str) -> None:
    assert [(c.name, c.arguments) for c in (await answered(reply)).tool_calls] == [("now", "{}")]


@pytest.mark.parametrize("reply", ["40 euros.", "[1, 2]", '{"text": "Hi"}', '{"tool_calls": []}', "", "{", "null"])
async def test_any_other_reply_stands_as_text(reply: str) -> None:
    message = await answered(reply)
    assert (message.text, message.tool_calls) == (reply, [])


async def test_an_answer_cut_by_the_output_limit_keeps_its_text() -> None:
    message = await answered('{"answer": "A lamp costs \\u20', finish="length")
    assert (message.text, message.finish_reason) == ("A lamp costs ", "length")


async def test_a_call_cut_by_the_output_limit_is_none() -> None:
    message = await answered('{"tool_calls": [{"name": "price", "argu', finish="length")
    assert (message.tool_calls, message.finish_reason) == ([], "length")


async def test_an_answer_beside_calls_is_their_text() -> None:
    message = await answered('{"answer": "Let me see.", "tool_calls": [{"name": "now", "arguments": {}}]}')
    assert (message.text, [c.name for c in message.tool_calls]) == ("Let me see.", ["now"])


@pytest.mark.parametrize("value", [{"amount": 40.0}, [1, 2], 7, None, "lamp"])
async def test_an_answer_of_another_type_is_its_json(value: Any) -> None:
    message = await answered(json.dumps({"answer": value}))
    assert (message.text if isinstance(value, str) else json.loads(message.text)) == value


async def test_an_answers_text_is_told_while_it_comes() -> None:
    body = streamed('{"ans', 'wer": "', "A la", "mp costs", " 4\\", 'n0."', "}")
    async with served(body) as (_, model):
        deltas = [d.text async for d in model.stream(ASK) if d.text]
    assert deltas == ["A la", "mp costs", " 4", "\n0."]


@pytest.mark.parametrize("reply", ["[" * 5_000, '{"answer": ' * 5_000])
async def test_a_model_that_goes_on_with_brackets_until_it_is_stopped_has_said_just_that(reply: str) -> None:
    assert (await answered(reply)).text == reply


async def test_arguments_with_brackets_without_end_are_empty() -> None:
    message = await answered(json.dumps({"tool_calls": [{"name": "now", "arguments": "[" * 5_000}]}))
    assert [(c.name, c.arguments) for c in message.tool_calls] == [("now", "{}")]


async def test_a_backslash_that_is_no_escape_stands_for_itself() -> None:
    assert (await answered(r'{"answer": "C:\data\new"}')).text == "C:\\data\new"


async def test_of_an_answer_that_is_given_twice_the_first_holds_for_it_has_been_told() -> None:
    assert (await answered('{"answer": "yes", "answer": "no"}')).text == "yes"


async def test_calls_are_told_when_they_are_whole() -> None:
    body = streamed('{"tool_calls": [{"name": "now", "argu', 'ments": {}}, {"name": "price", "arguments": {"a": 1}}]}')
    async with served(body) as (_, model):
        deltas = [d async for d in model.stream(ASK) if d.response is None]
    assert [(d.index, d.name, d.arguments) for d in deltas] == [(0, "now", "{}"), (1, "price", '{"a": 1}')]


def deltas_of(reply: str, cuts: list[int]) -> list[Delta]:
    assembler = JsonModeAssembler(ChatAssembler("m", lambda: "new"), lambda: "new")
    pieces = [reply[a:b] for a, b in zip([0, *cuts], [*cuts, len(reply)], strict=True)]
    chunks = [streamed(piece).split(b"\n\n")[0] + b"\n\n" for piece in pieces]
    deltas = [d for chunk in [*chunks, b"data: [DONE]\n\n"] for d in assembler.feed(chunk)]
    return deltas + assembler.finish()


@given(st.text(max_size=20), st.booleans(), st.sampled_from([None, 1]), st.data())
def test_any_answer_comes_out_as_it_went_in_wherever_it_was_cut(
    text: str, ascii_only: bool, indent: int | None, data: st.DataObject
) -> None:
    reply = json.dumps({"answer": text}, ensure_ascii=ascii_only, indent=indent)
    cuts = data.draw(st.lists(st.integers(0, len(reply)), max_size=8).map(sorted))
    *deltas, last = deltas_of(reply, cuts)
    assert last.response is not None
    assert last.response.message.text == "".join(d.text for d in deltas) == text


@given(st.text('{}[]":,\\u0dansweroltc_', max_size=40), st.integers(0, 40))
def test_whatever_comes_the_deltas_make_up_the_text(reply: str, cut: int) -> None:
    *deltas, last = deltas_of(reply, [min(cut, len(reply))])
    assert last.response is not None
    assert "".join(d.text for d in deltas) == last.response.message.text
