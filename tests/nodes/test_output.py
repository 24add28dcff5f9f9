"""Answers of a given form: what the model is told, what its text becomes, and a second try where it is wrong."""

import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import msgspec
import pydantic
import pytest
import typing_extensions

from agentgraph import END, START, ConfigError, StateGraph
from agentgraph.messages import AssistantMessage, InstructionMessage, TextPart, ToolCall, Usage, UserMessage
from agentgraph.models import ModelRequest
from agentgraph.nodes import LlmNode, OutputError, ReactAgent, tool
from agentgraph.nodes.output import OutputFormat
from agentgraph.strategies import Messages
from agentgraph.testing import ScriptedModel


class Person(msgspec.Struct):
    name: str
    age: Annotated[int, msgspec.Meta(ge=0)]


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int = 0


class Place(TypedDict):
    name: str
    at: Point


class Native(ScriptedModel):
    native_output_schema = True


ADA = '{"name": "Ada", "age": 36}'


async def output_of(output_type: Any, *answers: str) -> Any:
    async with ScriptedModel(answers) as model:
        return (await ReactAgent("reader", model, output_type=output_type).run("Who?")).output


@pytest.mark.case("H17")
@pytest.mark.parametrize(
    "answer",
    [
        ADA,
        f"\n {ADA}\n",
        f"```json\n{ADA}\n```",
        f"```\n{ADA}\n```\n",
        f"```json\r\n{ADA}\r\n```",
        f"```json\n{ADA}",
        f"```{ADA}```",
        f"```json {ADA} ```",
    ],
)
async def test_an_answer_becomes_a_value_of_the_type_whatever_fence_is_round_it(answer: str) -> None:
    assert await output_of(Person, answer) == Person("Ada", 36)


@pytest.mark.case("H17")
async def test_a_fence_inside_a_text_field_stays() -> None:
    text = "```python\nprint(1)\n```"
    answer = msgspec.json.encode({"name": text, "age": 1}).decode()
    assert await output_of(Person, f"```json\n{answer}\n```") == Person(text, 1)


@pytest.mark.case("H17")
@pytest.mark.parametrize(
    ("output_type", "answer", "value"),
    [
        (list[int], "[1, 2]", [1, 2]),
        (Literal["yes", "no"], '"no"', "no"),
        (int | str, '"7"', "7"),
        (Person | None, "null", None),
        (dict[str, float], '{"a": 1}', {"a": 1.0}),
        (Colour, '"red"', Colour.RED),
        (bool, "```\ntrue\n```", True),
        (Point, '{"x": 1}', Point(1)),
        (list[Place], '[{"name": "a", "at": {"x": 1, "y": 2}}]', [{"name": "a", "at": Point(1, 2)}]),
    ],
)
async def test_a_value_is_of_the_type_also_where_that_is_no_object(output_type: Any, answer: str, value: Any) -> None:
    assert await output_of(output_type, answer) == value


@pytest.mark.case("H17")
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (f"Sure: {ADA}", "JSON is malformed"),
        (f"{ADA}\n{ADA}", "trailing characters"),
        ('{"name": "Ada"}', "missing required field `age`"),
        ('{"name": "Ada", "age": -1}', r"Expected `int` >= 0 - at `$.age`"),
    ],
)
async def test_a_wrong_answer_goes_back_once_with_what_is_wrong_and_is_not_kept(wrong: str, reason: str) -> None:
    async with ScriptedModel([wrong, ADA]) as model:
        result = await ReactAgent("reader", model, output_type=Person).run("Who?")
    assert result.output == Person("Ada", 36)
    assert [m.text for m in result.messages] == ["Who?", ADA]
    *_, answered, told = model.requests[1].messages
    assert (answered.text, reason in told.text) == (wrong, True)


async def test_the_type_str_is_the_text_itself() -> None:
    async with ScriptedModel(["plain text"]) as model:
        result = await ReactAgent("reader", model, output_type=str).run("Who?")
    assert result.output == "plain text"
    assert [m.text for m in model.requests[0].messages] == ["Who?"]


async def test_thousands_of_open_brackets_are_a_wrong_answer_like_any_other() -> None:
    assert await output_of(list[Any], "[" * 200_000, "[1]") == [1]


@pytest.mark.case("H17")
async def test_after_the_second_wrong_answer_an_error_has_the_text() -> None:
    async with ScriptedModel(["first", "second"]) as model:
        with pytest.raises(OutputError, match="does not fit the output format") as caught:
            await ReactAgent("reader", model, output_type=Person).run("Who?")
    assert caught.value.text == "second"


@pytest.mark.parametrize("stream", [True, False])
async def test_both_tries_count_into_the_usage(stream: bool) -> None:
    tries = [AssistantMessage(text, usage=Usage(10, 5)) for text in ("wrong", ADA)]
    async with ScriptedModel(tries) as model:
        result = await ReactAgent("reader", model, output_type=Person, stream=stream).run("Who?")
    assert result.usage == Usage(20, 10, calls=2)
    assert result.state["_token_usage"] == Usage(20, 10, calls=2)


async def test_a_call_of_a_tool_is_no_output_and_is_not_parsed() -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "Ada is 36"

    async with ScriptedModel([[ToolCall("a", "look")], ADA]) as model:
        assert (await ReactAgent("reader", model, [look], output_type=Person).run("Who?")).output == Person("Ada", 36)


async def request_for(input: dict[str, Any], *, native: bool = False, **options: Any) -> ModelRequest:
    model = (Native if native else ScriptedModel)([ADA])
    graph = StateGraph(strategies={"messages": Messages()})
    graph.add_node("llm", LlmNode(model, output_type=Person, **options))
    graph.add_edge(START, "llm").add_edge("llm", END)
    await graph.compile().invoke(input)
    return model.requests[0]


PROMPT = OutputFormat.of(Person, None)


@pytest.mark.parametrize(
    "last", [UserMessage("Who?"), UserMessage([TextPart("Who?")]), InstructionMessage("Who is {{x}}?", rendered=True)]
)
async def test_the_format_stands_at_the_end_of_the_last_user_or_instruction_message(last: Any) -> None:
    assert PROMPT is not None
    request = await request_for({"messages": [UserMessage("first"), last]})
    assert [type(m) for m in request.messages] == [UserMessage, type(last)]
    assert request.messages[0].text == "first"
    assert request.messages[1].text.endswith(PROMPT.prompt())
    assert request.output_schema is None


async def test_the_format_is_not_said_twice() -> None:
    assert PROMPT is not None
    said = UserMessage(f"Who?\n{PROMPT.prompt()}\nThanks.")
    assert (await request_for({"messages": [said]})).messages == [said]


async def test_the_format_in_an_instruction_of_the_node_keeps_its_braces() -> None:
    request = await request_for({"messages": [UserMessage("Who?")]}, instruction="About {{lamps}}.")
    assert request.messages[0].text == "Who?"
    assert request.messages[1].text.startswith("About {lamps}.\n\nAnswer with JSON")
    assert '"required":["name","age"]' in request.messages[1].text


async def test_the_format_is_a_message_of_its_own_where_the_user_said_nothing() -> None:
    request = await request_for({"messages": [AssistantMessage("It was Ada, 36.")]})
    assert [type(m) for m in request.messages] == [AssistantMessage, UserMessage]


async def test_a_model_that_takes_a_schema_gets_it_natively_instead() -> None:
    request = await request_for({"messages": [UserMessage("Who?")]}, native=True)
    assert [m.text for m in request.messages] == ["Who?"]
    assert request.output_schema == msgspec.json.schema(Person)


async def test_a_schema_gives_plain_json() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    async with ScriptedModel(['{"a": 1}']) as model:
        result = await ReactAgent("reader", model, output_schema=schema, output_key="found").run("What?")
    assert (result.output, result.state["found"]) == ({"a": 1}, {"a": 1})


def test_a_type_and_a_schema_together_are_refused_where_they_are_given() -> None:
    with pytest.raises(ConfigError, match="not both"):
        LlmNode(ScriptedModel([]), output_type=Person, output_schema={})


def test_a_type_without_a_schema_is_refused_where_it_is_given() -> None:
    with pytest.raises(ConfigError, match="has no JSON schema"):
        LlmNode(ScriptedModel([]), output_type=test_the_format_is_not_said_twice)


def test_a_type_that_cannot_be_resolved_is_refused_where_it_is_given() -> None:
    unresolved = dataclass(type("Unresolved", (), {"__annotations__": {"x": "Nowhere"}}))
    with pytest.raises(ConfigError, match="has no JSON schema: name 'Nowhere' is not defined"):
        LlmNode(ScriptedModel([]), output_type=unresolved)


# --- pydantic ---

T = TypeVar("T")


class Friend(pydantic.BaseModel):
    name: str
    age: Annotated[int, pydantic.Field(ge=0)] = pydantic.Field(alias="years")
    friends: list["Friend"] = []

    @pydantic.field_validator("name")
    @classmethod
    def has_no_digits(cls, name: str) -> str:
        if any(map(str.isdigit, name)):
            raise ValueError("a name has no digits")
        return name


class Boxed(pydantic.BaseModel, Generic[T]):
    value: T


@pydantic.dataclasses.dataclass
class Pair:
    x: int
    y: pydantic.PositiveInt


@dataclass
class Team:
    lead: Friend | None
    best: Pair | None = None


class Spot(typing_extensions.TypedDict):
    at: Annotated[int, pydantic.Field(gt=3)]


class Row(NamedTuple):
    friend: Friend


GRACE = '{"name": "Grace", "years": 40}'


@pytest.mark.parametrize(
    ("output_type", "answer", "value"),
    [
        (Friend, f"```json\n{GRACE}\n```", Friend(name="Grace", years=40)),
        (list[Friend], f"[{GRACE}]", [Friend(name="Grace", years=40)]),
        (Friend | None, "null", None),
        (Boxed[int], '{"value": 3}', Boxed[int](value=3)),
        (Pair, '{"x": 1, "y": 2}', Pair(1, 2)),
        (Team, f'{{"lead": {GRACE}}}', Team(Friend(name="Grace", years=40))),
        (Spot, '{"at": 4}', {"at": 4}),
        (Row, f"[{GRACE}]", Row(Friend(name="Grace", years=40))),
        (pydantic.PositiveInt, "7", 7),
        (pydantic.TypeAdapter(dict[str, int]), '{"a": 1}', {"a": 1}),
    ],
    ids=str,
)
async def test_what_pydantic_reads_becomes_its_value(output_type: Any, answer: str, value: Any) -> None:
    assert await output_of(output_type, answer) == value


@pytest.mark.parametrize(
    ("output_type", "wrong", "reason", "right"),
    [
        (Friend, '{"name": "Ada"}', "Field required - at `$.years`; it was", GRACE),
        (Friend, '{"name": "A1", "years": 1}', "Value error, a name has no digits - at `$.name`; it was", GRACE),
        (
            Friend,
            '{"name": 1, "years": 1, "friends": [{"name": "x", "years": -1}]}',
            "at `$.name`; Input should be greater than or equal to 0 - at `$.friends[0].years`",
            GRACE,
        ),
        (Friend, f"Sure: {GRACE}", "Invalid JSON: expected value at line 1 column 1; it was", GRACE),
        (Friend, "[" * 200_000, "recursion limit exceeded", GRACE),
        (Pair, '{"x": 1, "y": 0}', "Input should be greater than 0 - at `$.y`", '{"x": 1, "y": 1}'),
        (list[Spot], '[{"at": 1}]', "Input should be greater than 3 - at `$[0].at`", "[]"),
    ],
)
async def test_what_pydantic_refuses_goes_back_once_with_what_is_wrong(
    output_type: Any, wrong: str, reason: str, right: str
) -> None:
    async with ScriptedModel([wrong, right]) as model:
        result = await ReactAgent("reader", model, output_type=output_type).run("Who?")
    assert result.output == pydantic.TypeAdapter(output_type).validate_json(right)
    told = model.requests[1].messages[-1].text
    assert reason in told
    assert "pydantic.dev" not in told


async def test_a_second_answer_that_pydantic_refuses_is_an_error_with_the_text() -> None:
    async with ScriptedModel(["first", "second"]) as model:
        with pytest.raises(OutputError, match="does not fit the output format: Invalid JSON") as caught:
            await ReactAgent("reader", model, output_type=Friend).run("Who?")
    assert caught.value.text == "second"


async def test_the_schema_of_a_pydantic_model_is_the_one_that_it_says_itself() -> None:
    model = Native([GRACE])
    await ReactAgent("reader", model, output_type=Friend).run("Who?")
    assert model.requests[0].output_schema == Friend.model_json_schema()


def test_a_pydantic_model_without_a_schema_is_refused_where_it_is_given() -> None:
    class Silent(pydantic.BaseModel):
        other: "Nowhere"  # pyright: ignore[reportUndefinedVariable]  # noqa: F821

    with pytest.raises(ConfigError, match=r"Silent.* has no JSON schema: .*not fully defined"):
        LlmNode(ScriptedModel([]), output_type=Silent)


def test_pydantic_is_not_loaded_for_what_is_none_of_its_types() -> None:
    code = """
import sys
from dataclasses import dataclass
from agentgraph.nodes.output import OutputFormat
@dataclass
class Point:
    x: int
assert OutputFormat.of(list[Point], None).parse('[{"x": 1}]') == [Point(1)]
assert "pydantic" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
