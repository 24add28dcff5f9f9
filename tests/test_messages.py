"""Messages: immutable, told apart in JSON by their role, and read back as they were."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    InstructionMessage,
    Message,
    MessageError,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    Usage,
    UserMessage,
    convert,
    decode,
    encode,
    sound,
)

ONE_OF_EACH: list[tuple[str, Message]] = [
    ("system", SystemMessage(text="be brief")),
    ("user", UserMessage(content="hello")),
    ("instruction", InstructionMessage(text="answer {question}")),
    ("assistant", AssistantMessage(text="hi")),
    ("tool", ToolResponseMessage(responses=[ToolResponse("c1", "add", "3")])),
]

# what JSON can carry: no lone halves of surrogate pairs
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
META = st.dictionaries(TEXT, JSON, max_size=2)
DATA = st.none() | st.binary(max_size=20)
PARTS = st.one_of(
    st.builds(TextPart, TEXT),
    st.builds(ImagePart, url=st.none() | TEXT, data=DATA, media_type=TEXT),
    st.builds(FilePart, url=st.none() | TEXT, data=DATA, media_type=TEXT, name=st.none() | TEXT),
)
CONTENT = TEXT | st.lists(PARTS, max_size=3)
COUNT = st.none() | st.integers(0, 10**9)
USAGE = st.builds(Usage, COUNT, COUNT, COUNT, COUNT, st.integers(0, 99))
REASONING = st.builds(ReasoningPart, TEXT, st.none() | TEXT, st.none() | META)
CALLS = st.builds(ToolCall, TEXT, TEXT, TEXT)
MESSAGES = st.one_of(
    st.builds(SystemMessage, id=TEXT, metadata=META, text=TEXT),
    st.builds(UserMessage, id=TEXT, metadata=META, content=CONTENT),
    st.builds(InstructionMessage, id=TEXT, metadata=META, text=TEXT, rendered=st.booleans()),
    st.builds(
        AssistantMessage,
        id=TEXT,
        metadata=META,
        text=TEXT,
        tool_calls=st.lists(CALLS, max_size=3),
        reasoning=st.lists(REASONING, max_size=2),
        finish_reason=st.none() | TEXT,
        usage=st.none() | USAGE,
    ),
    st.builds(
        ToolResponseMessage,
        id=TEXT,
        metadata=META,
        responses=st.lists(st.builds(ToolResponse, TEXT, TEXT, CONTENT, st.booleans()), max_size=3),
    ),
)


@given(st.lists(MESSAGES, max_size=4))
@settings(max_examples=60)
def test_messages_come_back_from_json_as_they_were(messages: list[Message]) -> None:
    assert decode(encode(messages)) == messages


@given(st.lists(MESSAGES, max_size=4))
@settings(max_examples=30)
def test_messages_come_back_from_plain_lists_and_dicts_as_they_were(messages: list[Message]) -> None:
    assert convert(json.loads(encode(messages))) == messages


@pytest.mark.parametrize(("role", "message"), ONE_OF_EACH)
def test_the_role_tells_the_messages_apart(role: str, message: Message) -> None:
    (said,) = json.loads(encode([message]))
    assert said["role"] == role
    assert said["id"] == message.id
    (back,) = decode(encode([message]))
    assert (type(back), back) == (type(message), message)


@pytest.mark.parametrize(("role", "message"), ONE_OF_EACH)
def test_a_message_cannot_be_changed(role: str, message: Any) -> None:
    with pytest.raises(AttributeError):
        message.id = "other"
    with pytest.raises(AttributeError):
        message.note = role


def test_each_message_gets_an_id_of_its_own() -> None:
    made = [UserMessage(content="same").id for _ in range(100)]
    assert len(set(made)) == 100
    assert all(len(id) == 24 for id in made)


def test_messages_do_not_share_their_metadata() -> None:
    one, other = UserMessage(content="a"), UserMessage(content="b")
    one.metadata["seen"] = True
    assert other.metadata == {}


def test_images_and_files_stand_as_base64_in_json() -> None:
    message = UserMessage(content=[ImagePart(data=b"\x00\xff"), FilePart(url="https://x/y.pdf")], id="m1")
    (said,) = json.loads(encode([message]))
    assert said["content"] == [{"type": "image", "data": "AP8="}, {"type": "file", "url": "https://x/y.pdf"}]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (UserMessage(content="plain"), "plain"),
        (UserMessage(content=[TextPart("see "), ImagePart(url="u"), TextPart("this")]), "see this"),
        (UserMessage(content=[ImagePart(url="u")]), ""),
        (ToolResponseMessage(responses=[]), ""),
        (ToolResponseMessage(responses=[ToolResponse("1", "f", "a"), ToolResponse("2", "f", [TextPart("b")])]), "a\nb"),
    ],
    ids=str,
)
def test_the_text_of_a_message_leaves_other_parts_out(message: UserMessage | ToolResponseMessage, text: str) -> None:
    assert message.text == text


# what is no message


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ('[{"role": "wizard", "text": "x"}]', "$[0].role"),
        ('[{"role": "system", "text": "x"}, {"role": "wizard"}]', "$[1].role"),
        ('[{"role": "system", "text": 7}]', "$[0].text"),
        ('[{"role": "user", "content": [{"type": "text", "text": []}]}]', "$[0].content[0].text"),
        ('[{"role": "user", "content": [{"type": "smell"}]}]', "$[0].content[0].type"),
        ('[{"role": "user", "content": "x", "id": 7}]', "$[0].id"),
        (
            '[{"role": "assistant", "tool_calls": [{"id": "1", "name": "f", "arguments": {}}]}]',
            "tool_calls[0].arguments",
        ),
        ('[{"role": "tool", "responses": [{"id": "1", "name": "f", "content": null}]}]', "responses[0].content"),
        ('[{"role": "system"}]', "$[0]"),
        ('[{"text": "x"}]', "$[0]"),
        ('["text"]', "$[0]"),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_its_path(data: str, path: str) -> None:
    with pytest.raises(MessageError) as decoded:
        decode(data)
    with pytest.raises(MessageError) as converted:
        convert(json.loads(data))
    assert path in str(decoded.value)
    assert path in str(converted.value)


def test_an_unknown_role_is_named() -> None:
    with pytest.raises(MessageError, match="wizard"):
        decode('[{"role": "wizard"}]')


@pytest.mark.parametrize(
    "data", ["", "[", '{"role": "user", "content": "x"}', "null", b"\xff", '["\ud800"]'], ids=ascii
)
def test_what_is_no_list_of_messages_is_an_error(data: str | bytes) -> None:
    with pytest.raises(MessageError, match="no list of messages"):
        decode(data)


@pytest.mark.parametrize("data", [None, {"role": "user"}, object(), [object()]], ids=str)
def test_converting_what_is_no_list_of_messages_is_an_error(data: Any) -> None:
    with pytest.raises(MessageError, match="no list of messages"):
        convert(data)


# usage


def test_the_usage_of_two_calls_is_their_sum() -> None:
    one = Usage(input_tokens=10, output_tokens=5, cached_tokens=3)
    other = Usage(input_tokens=1, output_tokens=2, reasoning_tokens=1)
    assert one + other == Usage(11, 7, 3, 1, calls=2)
    assert (one + other).total_tokens == 18


def test_what_no_call_told_stays_unknown() -> None:
    total = Usage() + Usage()
    assert (total.input_tokens, total.total_tokens, total.calls) == (None, None, 2)


@given(USAGE, USAGE, USAGE)
@settings(max_examples=60)
def test_the_order_of_adding_usages_does_not_matter(a: Usage, b: Usage, c: Usage) -> None:
    assert (a + b) + c == a + (b + c) == (c + b) + a


def test_a_message_is_replaced_by_a_changed_copy() -> None:
    message = InstructionMessage(text="answer {question}", id="m1")
    filled = msgspec.structs.replace(message, text="answer this", rendered=True)
    assert (filled.id, filled.text, filled.rendered, message.rendered) == ("m1", "answer this", True, False)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("plain", "plain"),
        ("naïve \U0001f600", "naïve \U0001f600"),
        ("\ud83d\ude00", "\U0001f600"),
        ("a\ud83d", "a\ufffd"),
    ],
    ids=ascii,
)
def test_sound_text_joins_surrogate_pairs_and_marks_halves(text: str, made: str) -> None:
    assert sound(text) == made
    assert sound(made) == made
