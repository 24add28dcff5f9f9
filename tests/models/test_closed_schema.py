"""Schemas as a server takes them that holds answers to them strictly."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import msgspec
import pytest

from agentgraph.models.closed_schema import (
    OpenSchemaError,
    closed,
    kinds,
    strict_for_anthropic,
    strict_for_openai,
)
from agentgraph.models.content import is_strict


class Point(msgspec.Struct):
    """A place."""

    x: int
    y: float | None = None


class Tree(msgspec.Struct):
    children: list["Tree"]


class Cat(msgspec.Struct, tag=True):
    name: str


class Dog(msgspec.Struct, tag=True):
    owner: Cat


@dataclass
class Order:
    size: Literal["small", "large"]
    places: list[Point]
    pet: Cat | Dog
    count: Annotated[int, msgspec.Meta(ge=1, le=9, description="How many.")] = 1
    paid: bool = False
    at: Annotated[str, msgspec.Meta(max_length=5)] = ""


def objects(node: Any) -> list[dict[str, Any]]:
    """All schemas of objects in a schema."""
    if isinstance(node, list):
        return [o for item in cast("list[Any]", node) for o in objects(item)]
    if not isinstance(node, dict):
        return []
    fields = cast("dict[str, Any]", node)
    inner = [o for value in fields.values() for o in objects(value)]
    return [fields, *inner] if fields.get("type") == "object" else inner


def test_each_object_is_closed_and_keeps_its_properties() -> None:
    schema = closed(msgspec.json.schema(Order))
    assert schema is not None
    found = objects(schema)
    assert {o["title"] for o in found} == {"Order", "Point", "Cat", "Dog"}
    assert all(o["additionalProperties"] is False for o in found)
    point = schema["$defs"]["Point"]
    assert point == {
        "title": "Point",
        "description": "A place.",
        "type": "object",
        "properties": {
            "x": {"type": "integer"},
            "y": {"anyOf": [{"type": "number"}, {"type": "null"}], "description": "(default: null)"},
        },
        "required": ["x"],
        "additionalProperties": False,
    }


def test_bounds_are_told_in_the_description() -> None:
    schema = closed(msgspec.json.schema(Order))
    assert schema is not None
    properties = schema["$defs"]["Order"]["properties"]
    assert properties["count"] == {
        "type": "integer",
        "description": "How many. (minimum: 1, maximum: 9, default: 1)",
    }
    assert properties["at"]["description"] == '(maxLength: 5, default: "")'
    assert properties["size"] == {"enum": ["large", "small"]}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"oneOf": [{"type": "string"}, {"const": 1}]}, {"anyOf": [{"type": "string"}, {"const": 1}]}),
        ({"allOf": [{"type": "string"}]}, {"allOf": [{"type": "string"}]}),
        ({"type": "string", "format": "uri"}, {"type": "string", "format": "uri"}),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        ({"type": "string", "format": "byte"}, {"type": "string", "description": '(format: "byte")'}),
        (
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
        ),
        (
            {"type": "array", "items": {"type": "string"}, "minItems": 2},
            {"type": "array", "items": {"type": "string"}, "description": "(minItems: 2)"},
        ),
    ],
)
def test_a_schema_is_told_in_words_that_are_taken(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    assert closed(schema) == expected


@pytest.mark.parametrize("type_", [dict[str, int], tuple[int, str], Any, Tree, list[Any], list[dict[str, Point]]])
def test_what_cannot_be_closed_without_loss_is_not(type_: Any) -> None:
    assert closed(msgspec.json.schema(type_)) is None


def test_the_schema_that_was_given_is_not_changed() -> None:
    schema = msgspec.json.schema(Order)
    closed(schema)
    assert schema == msgspec.json.schema(Order)


# -- OpenAI's form


def test_openai_gets_all_properties_required_and_the_optional_ones_nullable() -> None:
    schema = strict_for_openai(msgspec.json.schema(Order))
    assert is_strict(schema)
    properties = schema["$defs"]["Order"]["properties"]
    assert list(properties) == schema["$defs"]["Order"]["required"]
    assert properties["paid"] == {"description": "(default: false)", "anyOf": [{"type": "boolean"}, {"type": "null"}]}
    assert properties["count"] == {
        "description": "How many. (default: 1)",
        "anyOf": [{"type": "integer", "minimum": 1, "maximum": 9}, {"type": "null"}],
    }
    assert properties["size"] == {"type": "string", "enum": ["large", "small"]}
    assert schema["$defs"]["Point"]["properties"]["y"]["anyOf"] == [{"type": "number"}, {"type": "null"}]


def test_openai_gets_recursive_types_and_anthropic_does_not() -> None:
    schema = msgspec.json.schema(Tree)
    assert is_strict(strict_for_openai(schema))
    with pytest.raises(OpenSchemaError, match="its type 'Tree' is recursive") as caught:
        strict_for_anthropic(schema)
    assert caught.value.path == ("children",)


def test_a_reference_of_which_more_is_said_becomes_a_copy_that_says_it() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/P", "description": "Where."}, "b": {"$ref": "#/$defs/P"}},
        "required": ["a"],
        "$defs": {"P": {"type": "object", "properties": {}, "description": "A place."}},
    }
    place: dict[str, Any] = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    for form, b in (
        (strict_for_openai, {"anyOf": [{"$ref": "#/$defs/P"}, {"type": "null"}]}),
        (closed, {"$ref": "#/$defs/P"}),
    ):
        out = form(schema)
        assert out is not None
        assert out["properties"] == {"a": {"description": "Where.", **place}, "b": b}
        assert out["$defs"] == {"P": {"description": "A place.", **place}}


def test_a_recursive_reference_of_which_more_is_said_ends() -> None:
    node = {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#/$defs/N", "description": "The next."}, {"type": "null"}]}},
    }
    schema = strict_for_openai({"$ref": "#/$defs/N", "description": "The first.", "$defs": {"N": node}})
    assert is_strict(schema)
    assert schema["$defs"]["N"]["properties"]["next"]["anyOf"][0] == {"$ref": "#/$defs/N"}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"enum": ["a", None]}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"const": 1}, {"type": "integer", "const": 1}),
        ({"enum": [True]}, {"type": "boolean", "enum": [True]}),
        ({"type": "string", "format": "uri"}, {"type": "string", "description": '(format: "uri")'}),
        ({"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^a"}),
        ({"type": "string", "pattern": "^(?!a)"}, {"type": "string", "description": '(pattern: "^(?!a)")'}),
        ({"type": "string", "minLength": 1}, {"type": "string", "description": "(minLength: 1)"}),
        ({"type": "number", "multipleOf": 2}, {"type": "number", "multipleOf": 2}),
        ({"allOf": [{"type": "string"}], "description": "It."}, {"type": "string", "description": "It."}),
        (
            {"type": "array", "items": {"type": "null"}, "minItems": 2, "uniqueItems": True},
            {"type": "array", "items": {"type": "null"}, "minItems": 2, "description": "(uniqueItems: true)"},
        ),
    ],
)
def test_openai_is_told_by_keywords_what_it_reads_and_in_words_the_rest(
    schema: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert strict_for_openai(schema) == expected


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (msgspec.json.schema(dict[str, int]), "an object with any keys"),
        ({"type": "object"}, "an object with any keys"),
        ({"type": "object", "properties": {}, "additionalProperties": True}, "an object with any keys"),
        ({"type": "object", "properties": {}, "patternProperties": {"^a": {}}}, "an object with any keys"),
        (msgspec.json.schema(tuple[int, str]), "items each have a type of their own"),
        (msgspec.json.schema(Any), "any value"),
        (msgspec.json.schema(list[Any]), "any value"),
        ({"allOf": [{"type": "string"}, {"minLength": 2}]}, "several schemas at once"),
        ({"type": "object", "properties": {}, "anyOf": [{"required": ["a"]}]}, "several schemas at once"),
        ({"$ref": "#/$defs/Gone"}, "refers to '#/$defs/Gone'"),
        ({"$ref": "#"}, "refers to '#'"),
    ],
)
def test_a_schema_that_has_no_strict_form_is_refused_with_the_reason(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(OpenSchemaError) as caught:
        strict_for_openai({"type": "object", "properties": {"a": {"type": "array", "items": schema}}})
    assert why in str(caught.value)
    assert caught.value.path == ("a",)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, {"any"}),
        (True, {"any"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"enum": ["a", 1, None]}, {"string", "integer", "null"}),
        ({"anyOf": [{"$ref": "#/$defs/P"}, {"type": "null"}]}, {"object", "null"}),
        ({"allOf": [{"type": "string"}]}, {"string"}),
        ({"$ref": "#/$defs/Loop"}, {"array"}),
    ],
)
def test_the_kinds_of_values_that_a_schema_takes_are_known(schema: Any, expected: set[str]) -> None:
    definitions = {"P": {"type": "object"}, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "array"}]}}
    assert kinds(schema, definitions) == expected
