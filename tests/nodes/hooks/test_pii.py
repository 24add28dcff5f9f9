"""Personal data: what is found, what stands in its place, and that none of it gets through, however it is cut."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import END, START, RunConfig, StateGraph
from agentgraph.checkpoint import MemorySaver
from agentgraph.errors import ConfigError
from agentgraph.events import ModelDelta, ToolFinished, ToolStarted
from agentgraph.messages import (
    AssistantMessage,
    ImagePart,
    InstructionMessage,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolResponseMessage,
    UserMessage,
)
from agentgraph.models import Delta, ModelError, ModelRequest, ModelResponse
from agentgraph.nodes import ReactAgent, tool
from agentgraph.nodes.hooks import PiiRedaction
from agentgraph.strategies import Messages, Replace
from agentgraph.testing import ScriptedModel

THREAD = RunConfig(thread_id="t")
ALL = ("email", "credit_card", "iban", "phone", "us_ssn", "ip", "mac_address", "url")


class Cut:
    """A model that streams an answer in given pieces."""

    name = "cut"

    def __init__(self, pieces: list[str], reasoning: list[str] | None = None) -> None:
        self._pieces = pieces
        self._reasoning = reasoning or []

    async def generate(self, request: ModelRequest) -> ModelResponse:
        reasoning = [ReasoningPart("".join(self._reasoning))] if self._reasoning else []
        return ModelResponse(message=AssistantMessage("".join(self._pieces), reasoning=reasoning, finish_reason="stop"))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        for piece in self._reasoning:
            yield Delta(reasoning=piece)
        for piece in self._pieces:
            yield Delta(piece)
        yield Delta(response=await self.generate(request))


async def told(agent: ReactAgent, input: Any = "Go.") -> tuple[str, str]:
    """What a reader is told of the answer, and what the answer is."""
    async with agent.stream(input) as events:
        text = "".join([e.text for e in [e async for e in events] if isinstance(e, ModelDelta)])
    return text, events.result.text


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("bob@example.com", "email"),
        ("first.last+tag@mail.example.co.uk", "email"),
        ("jürgen@bücher.de", "email"),
        ("4111111111111111", "credit_card"),
        ("4111 1111 1111 1111", "credit_card"),
        ("5500-0000-0000-0004", "credit_card"),
        ("3782 822463 10005", "credit_card"),
        ("4111\xa01111\xa01111\xa01111", "credit_card"),
        ("DE89370400440532013000", "iban"),
        ("GB82 WEST 1234 5698 7654 32", "iban"),
        ("FR14 2004 1010 0505 0001 3M02 606", "iban"),
        ("+49 30 123456", "phone"),
        ("+1 (415) 555-2671", "phone"),
        ("123-45-6789", "us_ssn"),
        ("192.168.10.12", "ip"),
        ("2001:db8::8a2e:370:7334", "ip"),
        ("::ffff:192.0.2.128", "ip"),
        ("00:1a:2b:3c:4d:5e", "mac_address"),
        ("00-1A-2B-3C-4D-5E", "mac_address"),
        ("001a.2b3c.4d5e", "mac_address"),
        ("https://example.com/a?b=c#d", "url"),
        ("www.example.org/x", "url"),
    ],
)
@pytest.mark.parametrize("around", ["%s", "see %s.", "(%s), or", "id:%s\n", "is %s and 12 more", '"%s"', "é %s x"])
def test_what_is_personal_is_found_and_nothing_round_it(text: str, kind: str, around: str) -> None:
    hook = PiiRedaction(ALL)
    assert hook.found(around % text) == {kind: 1}
    assert hook.redacted(around % text) == around % f"[REDACTED_{kind.upper()}]"


@pytest.mark.parametrize(
    "text",
    [
        "bob@localhost, @bob, a@b",
        "4111111111111112",
        "x4111111111111111 and 4111111111111111x",
        "1111 2222 3333 4444",
        "order 1234567890123",
        "DE88370400440532013000",
        "XX89370400440532013000",
        "HELLO WORLD 2024 REPORT",
        "+49, +1 2, 555-2671",
        "000-12-3456, 123-45-67890, 1-123-45-6789, 123-45-6789-1, 923-45-6789",
        "1.2.3.4.5 and 300.1.1.1 and v1.2.3.4",
        "std::vector, a[::2], 12:30:45, ::",
        "00:1a:2b:3c:4d and 001a.2b3c",
        "http:// and https and www. and awww",
        "",
    ],
)
def test_what_only_looks_like_it_is_left(text: str) -> None:
    hook = PiiRedaction(ALL)
    assert hook.redacted(text) == text


def test_a_card_is_found_among_other_numbers() -> None:
    hook = PiiRedaction()
    assert hook.redacted("2 4111 1111 1111 1111 123") == "2 [REDACTED_CREDIT_CARD] 123"
    assert hook.redacted("12/26 4111-1111-1111-1111") == "12/26 [REDACTED_CREDIT_CARD]"
    assert hook.redacted("DE89 3704 0044 0532 0130 00 EUR 500") == "[REDACTED_IBAN] EUR 500"


def test_finds_that_overlap_are_one_of_the_longest_ones_kind() -> None:
    hook = PiiRedaction(ALL)
    assert hook.redacted("https://a.b/?m=bob@example.com&x=1 or") == "[REDACTED_URL] or"
    assert hook.redacted("http://192.168.10.12/") == "[REDACTED_URL]"


@pytest.mark.parametrize(
    ("kinds", "text", "instead"),
    [
        ({"email": "mask"}, "bob@example.com", "b***@example.com"),
        ({"credit_card": "mask"}, "4111 1111 1111 1111", "****1111"),
        ({"ip": "mask"}, "10.0.0.1", "****"),
        ({"email": "redact"}, "bob@example.com", "[REDACTED_EMAIL]"),
        ({"email": "block"}, "bob@example.com", "[REDACTED_EMAIL]"),
    ],
)
def test_each_strategy_has_a_form_of_its_own(kinds: Any, text: str, instead: str) -> None:
    assert PiiRedaction(kinds).redacted(text) == instead


def test_a_hash_is_the_same_for_the_same_data_and_depends_on_the_key() -> None:
    plain, keyed = PiiRedaction(strategy="hash"), PiiRedaction(strategy="hash", hash_key="secret")
    first = plain.redacted("4111 1111 1111 1111")
    assert re.fullmatch(r"\[CREDIT_CARD_[0-9a-f]{12}\]", first)
    assert first == plain.redacted("4111111111111111") != keyed.redacted("4111111111111111")
    assert plain.redacted("Bob@Example.com") == plain.redacted("bob@example.com")


def test_own_patterns_and_functions_look_at_one_line_at_a_time() -> None:
    def shouted(line: str) -> list[tuple[int, int]]:
        assert "\n" not in line
        return [(0, len(line))] if line.isupper() else []

    hook = PiiRedaction(patterns={"staff": r"^E-\d+", "shout": shouted})
    assert hook.redacted("E-1 and E-2\nE-3\r\nHEY YOU\nmail b@c.de") == (
        "[REDACTED_STAFF] and E-2\n[REDACTED_STAFF]\r\n[REDACTED_SHOUT]\nmail [REDACTED_EMAIL]"
    )


PARTS = (
    "bob@example.com", "a.b@x.co.uk", "@", "4111111111111111", "4111 1111 1111 1111 123", "3782 822463 10005",
    "DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432", "+49 30 1234567", "123-45-6789", "192.168.10.12",
    "1.2.3.4.5", "2001:db8::1", "id:2001:db8::1", "00:1a:2b:3c:4d:5e", "001a.2b3c.4d5e", "https://a.b/c?d=e",
    "http://1.2.3.4/", "www.x.org", "htt", "w", "\n", "\r\n", " ", "  ", ".", ",", "-", ":", "f", "DE", "89", "1", "é",
    "_", "the ", "ACME", "\xa0", "+", "E-123456", '"',
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(PARTS) | st.text("ab1 .:-@+\n", max_size=3), max_size=10).map("".join),
    st.lists(st.sampled_from(ALL), min_size=1, unique=True),
    st.booleans(),
)
async def test_however_a_text_is_cut_a_reader_is_told_what_the_whole_would_come_to(
    text: str, kinds: list[str], own: bool
) -> None:
    patterns = {"staff": r"E-\d{6}|the .*E"} if own else {}
    hook = PiiRedaction([*kinds, *patterns], patterns=patterns, on=["output"])
    wanted = hook.redacted(text)
    cuts = [[text[:k], text[k:]] for k in range(0, len(text) + 1, max(1, len(text) // 12))]
    for pieces in ([*text], *cuts):
        out = hook.wrap_chunks(_deltas(pieces), ModelRequest(messages=[]))
        assert "".join([d.text async for d in out]) == wanted


async def _deltas(pieces: list[str]) -> AsyncGenerator[Delta, None]:
    for piece in pieces:
        yield Delta(piece)


@pytest.mark.parametrize("stream", [True, False])
async def test_every_cut_of_an_answer_comes_to_the_same_for_readers_and_the_state(stream: bool) -> None:
    text = "Mail bob@example.com, card 4111 1111 1111 1111, from 10.0.0.1."
    wanted = "Mail [REDACTED_EMAIL], card [REDACTED_CREDIT_CARD], from [REDACTED_IP]."
    for k in range(len(text) + 1):
        agent = ReactAgent("clerk", Cut([text[:k], text[k:]]), hooks=[PiiRedaction()], stream=stream)
        assert await told(agent) == (wanted if stream else "", wanted)


async def test_what_cannot_become_a_find_is_told_at_once() -> None:
    hook, given = PiiRedaction(), ["He said ", "that ", "bob", "@example", ".com", " is ", "his."]
    out = [d.text async for d in hook.wrap_chunks(_deltas(given), ModelRequest(messages=[]))]
    assert out == ["He said ", "that ", "[REDACTED_EMAIL] is ", "his."]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_partial_text_of_an_error_is_what_readers_were_told(stream: bool) -> None:
    class Breaks(Cut):
        async def generate(self, request: ModelRequest) -> ModelResponse:
            raise ModelError("cut", partial="Write to bob@exam")

        async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
            yield Delta("Write to bob@exam")
            await self.generate(request)

    agent = ReactAgent("clerk", Breaks([]), hooks=[PiiRedaction()], stream=stream)
    with pytest.raises(ModelError) as caught:
        await agent.run("Go.")
    assert caught.value.partial == ("Write to " if stream else "")


async def test_reasoning_is_clean_too_and_only_what_was_changed_loses_its_signature() -> None:
    agent = ReactAgent("clerk", Cut(["Hi."], ["bob@exam", "ple.com asks"]), hooks=[PiiRedaction()])
    result = await agent.run("Go.")
    assert isinstance(result.message, AssistantMessage)
    assert [part.text for part in result.message.reasoning] == ["[REDACTED_EMAIL] asks"]
    signed = AssistantMessage("Hi.", reasoning=[ReasoningPart("He asks", signature="s")])
    kept = await ReactAgent("clerk", ScriptedModel([signed]), hooks=[PiiRedaction()]).run("Go.")
    assert isinstance(kept.message, AssistantMessage)
    assert kept.message.reasoning == signed.reasoning


async def test_what_the_user_says_is_replaced_in_the_state_before_the_model_sees_it() -> None:
    model = ScriptedModel(["One.", "Two."])
    agent = ReactAgent("clerk", model, hooks=[PiiRedaction()], checkpointer=MemorySaver())
    await agent.run(
        [UserMessage("I am bob@example.com"), UserMessage([TextPart("at 10.0.0.1"), ImagePart("u")])], THREAD
    )
    result = await agent.run("And ann@example.com?", THREAD)
    users = [m.content for m in result.messages if isinstance(m, UserMessage)]
    assert users == [
        "I am [REDACTED_EMAIL]",
        [TextPart("at [REDACTED_IP]"), ImagePart("u")],
        "And [REDACTED_EMAIL]?",
    ]
    for request in model.requests:
        assert b"example.com" not in msgspec.json.encode(request.messages)


async def test_an_input_key_and_what_fills_in_a_template_are_clean_in_the_request() -> None:
    model = ScriptedModel(["One."])
    agent = ReactAgent("clerk", model, instruction="Serve {who}.", hooks=[PiiRedaction()])
    result = await agent.run({"input": "I am bob@example.com", "who": "ann@example.com"})
    assert [m.text for m in model.requests[0].messages] == ["I am [REDACTED_EMAIL]", "Serve [REDACTED_EMAIL]."]
    assert result.state["input"] == "I am [REDACTED_EMAIL]"
    model = ScriptedModel(["One."])
    agent = ReactAgent("clerk", model, hooks=[PiiRedaction()], strategies={"who": Replace()})
    await agent.run({"messages": [InstructionMessage("Serve {who}.")], "who": "ann@example.com"})
    assert model.requests[0].messages[0].text == "Serve [REDACTED_EMAIL]."


async def test_arguments_and_results_of_tools_are_clean_for_everybody() -> None:
    seen: list[str] = []

    @tool
    async def send(to: str, lines: list[str]) -> str:
        """Send."""
        seen.extend([to, *lines])
        return f"{to} has 10.0.0.1"

    call = ToolCall("c1", "send", r'{"to": "bob\u0040example.com", "lines": ["card 4111111111111111", "ok"]}')
    agent = ReactAgent("clerk", ScriptedModel([[call], "Sent."]), [send], hooks=[PiiRedaction()])
    async with agent.stream("Go.") as events:
        all_told = [e async for e in events]
    assert seen == ["[REDACTED_EMAIL]", "card [REDACTED_CREDIT_CARD]", "ok"]
    deltas = "".join(e.arguments for e in all_told if isinstance(e, ModelDelta))
    started = next(e for e in all_told if isinstance(e, ToolStarted))
    finished = next(e for e in all_told if isinstance(e, ToolFinished))
    assert msgspec.json.decode(deltas) == {"to": seen[0], "lines": seen[1:]}
    assert started.arguments == deltas
    assert finished.content == "[REDACTED_EMAIL] has [REDACTED_IP]"
    replied = events.result.messages[2]
    assert isinstance(replied, ToolResponseMessage)
    assert replied.text == finished.content


async def test_keys_and_numbers_in_arguments_are_looked_at_too() -> None:
    call = ToolCall("c1", "note", '{"who": {"bob@example.com": [4111111111111111, 12, 1.5, null, true]}}')

    @tool
    async def note(who: dict[str, list[Any]]) -> str:
        """Note."""
        return "ok"

    agent = ReactAgent("clerk", ScriptedModel([[call], "Done."]), [note], hooks=[PiiRedaction()])
    asked = (await agent.run("Go.")).messages[1]
    assert isinstance(asked, AssistantMessage)
    assert msgspec.json.decode(asked.tool_calls[0].arguments) == {
        "who": {"[REDACTED_EMAIL]": ["[REDACTED_CREDIT_CARD]", 12, 1.5, None, True]}
    }


async def test_arguments_without_a_find_reach_the_tool_as_the_model_wrote_them() -> None:
    calls = [ToolCall("c1", "note", '{"text":  "é"}'), ToolCall("c2", "note"), ToolCall("c3", "note", '{"text": ')]

    @tool
    async def note(text: str = "") -> str:
        """Note."""
        return text

    agent = ReactAgent("clerk", ScriptedModel([calls, "Done."]), [note], hooks=[PiiRedaction()])
    asked = (await agent.run("Go.")).messages[1]
    assert isinstance(asked, AssistantMessage)
    assert [(c.id, c.name, c.arguments) for c in asked.tool_calls[:2]] == [
        (c.id, c.name, c.arguments) for c in calls[:2]
    ]


async def test_a_large_result_is_looked_through_in_pieces_while_others_go_on() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    @tool
    async def look() -> str:
        """Look."""
        return "from bob@example.com to 10.0.0.1, " * 10_000

    async with asyncio.TaskGroup() as group:
        busy = group.create_task(others())
        script: list[Any] = [[ToolCall("c1", "look", "{}")], "Done."]
        result = await ReactAgent("clerk", ScriptedModel(script), [look], hooks=[PiiRedaction()]).run("Go.")
        busy.cancel()
    assert result.messages[2].text == "from [REDACTED_EMAIL] to [REDACTED_IP], " * 10_000
    assert turns > 30


@pytest.mark.parametrize(
    ("on", "says"),
    [("input", ["u [REDACTED_IP]", "a 10.0.0.1", "t 10.0.0.1", "a 10.0.0.1"]),
     ("output", ["u 10.0.0.1", "a [REDACTED_IP]", "t 10.0.0.1", "a [REDACTED_IP]"]),
     ("tool", ["u 10.0.0.1", "a 10.0.0.1", "t [REDACTED_IP]", "a 10.0.0.1"])],
)  # fmt: skip
async def test_on_says_where(on: Any, says: list[str]) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "t 10.0.0.1"

    asks = AssistantMessage("a 10.0.0.1", tool_calls=[ToolCall("c1", "look", "{}")])
    agent = ReactAgent("clerk", ScriptedModel([asks, "a 10.0.0.1"]), [look], hooks=[PiiRedaction(on=[on])])
    assert [m.text for m in (await agent.run("u 10.0.0.1")).messages] == says


async def test_an_input_that_is_blocked_ends_the_turn_and_the_next_one_goes_on() -> None:
    model = ScriptedModel(["Hello."])
    hook = PiiRedaction({"email": "redact", "credit_card": "block"})
    agent = ReactAgent("clerk", model, hooks=[hook], checkpointer=MemorySaver())
    result = await agent.run("I am bob@example.com, 4111 1111 1111 1111", THREAD)
    assert isinstance(result.message, AssistantMessage)
    assert result.text == (
        "This was not processed, because it holds data of the kind 'credit_card'. Leave that out, and ask again."
    )
    assert (result.status, result.message.finish_reason, model.requests) == ("done", "content_filter", [])
    assert (await agent.run("Then hello.", THREAD)).text == "Hello."
    assert model.requests[0].messages[0].text == "I am [REDACTED_EMAIL], [REDACTED_CREDIT_CARD]"


async def test_an_input_key_that_is_blocked_ends_the_turn_too() -> None:
    agent = ReactAgent("clerk", ScriptedModel([]), hooks=[PiiRedaction(strategy="block")])
    result = await agent.run({"input": "I am bob@example.com"})
    assert [type(m) for m in result.messages] == [UserMessage, AssistantMessage]
    assert b"example.com" not in msgspec.json.encode(result.messages)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_is_blocked_ends_before_the_find_and_without_its_calls(stream: bool) -> None:
    said = AssistantMessage("Ask bob@example.com now", tool_calls=[ToolCall("c1", "look", "{}")])

    @tool
    async def look() -> str:
        """Look."""
        raise AssertionError

    hook = PiiRedaction({"url": "redact", "email": "block"})
    agent = ReactAgent("clerk", ScriptedModel([said]), [look], hooks=[hook], stream=stream)
    wanted = "Ask [The answer ends here, because it holds data of the kind 'email'.]"
    assert await told(agent) == (wanted if stream else "", wanted)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_with_blocked_arguments_is_not_made(stream: bool) -> None:
    calls = [ToolCall("c1", "send", '{"to": "ann"}'), ToolCall("c2", "send", '{"to": "bob@example.com"}')]

    @tool
    async def send(to: str) -> str:
        """Send."""
        raise AssertionError

    agent = ReactAgent("clerk", ScriptedModel([calls]), [send], hooks=[PiiRedaction(strategy="block")], stream=stream)
    async with agent.stream("Go.") as events:
        names = [e.name for e in [e async for e in events] if isinstance(e, ModelDelta) and e.index is not None]
    assert names == []
    assert events.result.text.startswith("[The answer ends here")
    assert len(events.result.messages) == 2


async def test_calls_that_hold_nothing_are_made_where_something_blocks() -> None:
    @tool
    async def send(to: str) -> str:
        """Send."""
        return f"{to} is bob@example.com"

    script: list[Any] = [[ToolCall("c1", "send", '{"to": "ann"}')], "Sent."]
    result = await ReactAgent("clerk", ScriptedModel(script), [send], hooks=[PiiRedaction(strategy="block")]).run("Go.")
    assert [m.text for m in result.messages[2:]] == [
        "What 'send' has answered is withheld, because it holds data of the kind 'email'.",
        "Sent.",
    ]


def test_a_kind_that_blocks_is_seen_inside_a_longer_find() -> None:
    hook = PiiRedaction({"url": "redact", "email": "block"})
    assert hook.found("https://a.b/?m=bob@example.com&x=1") == {"email": 1}


async def test_a_history_is_looked_at_once_and_again_where_it_was_rewritten() -> None:
    looked: list[str] = []

    def detect(line: str) -> list[tuple[int, int]]:
        looked.append(line)
        return []

    hook = PiiRedaction(["own"], patterns={"own": detect}, on=["input"])
    agent = ReactAgent("clerk", ScriptedModel(["One.", "Two.", "Three."]), hooks=[hook], checkpointer=MemorySaver())
    for text in ("a", "b", "c"):
        await agent.run(text, THREAD)
    assert looked == ["a", "b", "c"]


async def test_two_of_them_each_do_their_part() -> None:
    hooks = [PiiRedaction(["email"], name="mail"), PiiRedaction(["ip"], strategy="hash", name="net")]
    model = ScriptedModel(["bob@example.com at 10.0.0.1"])
    result = await ReactAgent("clerk", model, hooks=hooks).run("bob@example.com at 10.0.0.1")
    wanted = PiiRedaction(["ip"], strategy="hash").redacted("[REDACTED_EMAIL] at 10.0.0.1")
    assert [m.text for m in result.messages] == [wanted, wanted]


async def test_an_agent_in_another_ones_graph_looks_for_its_own_kinds() -> None:
    model = ScriptedModel(["well"])
    boss = ReactAgent("boss", ScriptedModel(["well"]), hooks=[PiiRedaction(["phone"])])
    boss.graph.add_node("clerk", ReactAgent("clerk", model, hooks=[PiiRedaction(["email"])]))
    boss.graph.add_edge("llm", "clerk").add_edge("clerk", END)
    await boss.run("I am bob@example.com.")
    assert model.requests[0].messages[0].text == "I am [REDACTED_EMAIL]."


async def test_an_agent_with_it_can_be_a_node_of_a_graph_that_is_kept() -> None:
    model = ScriptedModel(["bob@example.com"])
    graph = StateGraph[Any](strategies={"messages": Messages(), "topic": Replace()})
    graph.add_node("clerk", ReactAgent("clerk", model, hooks=[PiiRedaction()]), input={"topic": "input"},
                   output={"messages": "messages"})  # fmt: skip
    graph.add_edge(START, "clerk").add_edge("clerk", END)
    state = (await graph.compile(checkpointer=MemorySaver()).invoke({"topic": "ann@example.com"}, THREAD)).state
    assert model.requests[0].messages[0].text == "[REDACTED_EMAIL]"
    assert state["messages"][-1].text == "[REDACTED_EMAIL]"


async def test_a_text_without_an_end_takes_time_in_proportion() -> None:
    looked = 0

    def detect(line: str) -> list[tuple[int, int]]:
        nonlocal looked
        looked += len(line)
        return []

    hook = PiiRedaction(["own"], patterns={"own": detect})
    pieces = ["abcd"] * 10_000
    out = [d.text async for d in hook.wrap_chunks(_deltas(pieces), ModelRequest(messages=[]))]
    assert "".join(out) == "".join(pieces)
    assert looked < 10 * 40_000 + 1024 * 300


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: PiiRedaction(["emial"]), "did you mean 'email'"),
        (lambda: PiiRedaction("email"), "takes names"),
        (lambda: PiiRedaction([]), "takes names"),
        (lambda: PiiRedaction(strategy="hide"), "unknown strategy 'hide'"),  # pyright: ignore[reportArgumentType]
        (lambda: PiiRedaction({"email": "hide"}), "unknown strategy 'hide'"),  # pyright: ignore[reportArgumentType]
        (lambda: PiiRedaction(on=["inputs"]), "takes some of 'input'"),  # pyright: ignore[reportArgumentType]
        (lambda: PiiRedaction(on="input"), "takes some of 'input'"),  # pyright: ignore[reportArgumentType]
        (lambda: PiiRedaction(patterns={"a": "("}), "no regular expression"),
        (lambda: PiiRedaction(patterns={"a": 1}), "takes a regular expression"),  # pyright: ignore[reportArgumentType]
        (lambda: PiiRedaction(hash_key="x" * 65), "at most 64 bytes"),
    ],
)
def test_a_choice_that_there_is_not_is_an_error(make: Callable[[], Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        make()
