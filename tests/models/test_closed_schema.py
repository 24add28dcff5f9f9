"""Schemas as a server takes them that holds answers to them strictly."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import msgspec
import pytest

from agentgraph.models.closed_schema import closed


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
