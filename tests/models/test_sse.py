"""Server-sent events: the same events, wherever the bytes were cut and however lines end."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgraph.models.sse import SseDecoder, SseEvent

SSE = Path(__file__).parent.parent / "sse"

ODD = "a\u0085b\u2028c\u2029d\x0be\x0cf \U0001f600 é"
"""What `str.splitlines` takes for line ends, and characters of two to four bytes."""

STREAM = (
    "\ufeffdata: first\n\n"
    ": a comment\n\n"
    "\n\n\n"
    f"data: {json.dumps({'text': ODD}, ensure_ascii=False)}\n\n"
    "data:no space\n\n"
    "data:  two spaces\n\n"
    "data: line one\n: in between\ndata: line two\n\n"
    "event: error\ndata: {}\nid: 7\nretry: 10\nunknown: x\n\n"
    "data\n\n"
    "event: nothing\n\n"
    "data: [DONE]\n\n"
)
EVENTS = [
    SseEvent("first"),
    SseEvent(json.dumps({"text": ODD}, ensure_ascii=False)),
    SseEvent("no space"),
    SseEvent(" two spaces"),
    SseEvent("line one\nline two"),
    SseEvent("{}", "error"),
    SseEvent(""),
    SseEvent("[DONE]"),
]

LINE_ENDS = ["\n", "\r\n", "\r"]


def in_bytes(text: str, line_end: str) -> bytes:
    return text.replace("\n", line_end).encode()


def decode(*chunks: bytes) -> list[SseEvent]:
    decoder = SseDecoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


@pytest.mark.case("C7")
@pytest.mark.case("C11")
@pytest.mark.parametrize("line_end", LINE_ENDS)
def test_one_cut_at_any_byte_changes_nothing(line_end: str) -> None:
    body = in_bytes(STREAM, line_end)
    for cut in range(len(body) + 1):
        assert decode(body[:cut], body[cut:]) == EVENTS, f"cut after {body[:cut]!r}"


@pytest.mark.case("C7")
@pytest.mark.parametrize("line_end", LINE_ENDS)
@given(data=st.data())
def test_any_cuts_change_nothing(line_end: str, data: st.DataObject) -> None:
    body = in_bytes(STREAM, line_end)
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=40).map(sorted))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert decode(*pieces) == EVENTS


@pytest.mark.case("C11")
@pytest.mark.parametrize("line_end", LINE_ENDS)
def test_byte_by_byte_is_the_same(line_end: str) -> None:
    body = in_bytes(STREAM, line_end)
    assert decode(*(body[i : i + 1] for i in range(len(body)))) == EVENTS


@given(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])))
def test_any_text_on_a_line_comes_out_as_it_went_in(text: str) -> None:
    assert decode(f"data: {text}\n\n".encode()) == [SseEvent(text)]


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_at_all_are_decoded_alike_with_a_cut(body: bytes, cut: int) -> None:
    assert decode(body[:cut], body[cut:]) == decode(body)


def test_a_line_feed_in_the_next_chunk_belongs_to_the_carriage_return_before_it() -> None:
    assert decode(b"data: a\r", b"\n", b"data: b\r", b"\n\r", b"\n") == [SseEvent("a\nb")]


def test_an_event_comes_out_with_the_byte_that_ends_it() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\r\n") == []
    assert decoder.feed(b"\r") == [SseEvent("a")]


def test_an_event_without_its_blank_line_is_none() -> None:
    assert decode(b"data: whole\n\n", b"data: half\n") == [SseEvent("whole")]


def test_a_byte_order_mark_counts_only_at_the_start() -> None:
    assert decode("data: a\n\n\ufeffdata: b\n\n".encode()) == [SseEvent("a")]


def test_broken_utf8_is_replaced_and_harms_nothing_else() -> None:
    assert decode(b"data: a\xff\xc3b\n\ndata: c\n\n") == [SseEvent("a\ufffd\ufffdb"), SseEvent("c")]


@pytest.mark.parametrize("name", ["llamacpp-text.sse", "llamacpppython-text.sse", "aimock-openai-tool-calls-two.sse"])
def test_a_recorded_stream_is_the_same_in_pieces_of_any_size(name: str) -> None:
    body = (SSE / name).read_bytes()
    whole = decode(body)
    assert whole[-1] == SseEvent("[DONE]")
    for size in (1, 2, 3, 7, 64, 1000):
        assert decode(*(body[i : i + size] for i in range(0, len(body), size))) == whole
