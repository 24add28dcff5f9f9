"""What a tool's signature and docstring say to the model, and what the model's arguments become."""

import datetime as dt
import functools
import json
import subprocess
import sys
import types
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum, Flag, IntEnum
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    ParamSpec,
    Required,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    cast,
)

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import ConfigError
from agentgraph.messages import ToolCall
from agentgraph.models.closed_schema import kinds, strict_for_openai
from agentgraph.models.content import is_strict
from agentgraph.nodes import Tool, ToolContext, tool
from agentgraph.nodes.arguments import ArgumentsError


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Point(msgspec.Struct):
    x: int
    y: float = 0.0


@dataclass
class Order:
    items: list[str]


def properties(made: Tool) -> dict[str, Any]:
    return made.parameters["properties"]


def required(made: Tool) -> list[str]:
    return made.parameters.get("required", [])


def keywords(made: Tool, arguments: Any) -> dict[str, Any]:
    positional, by_name = made.arguments(arguments)
    assert positional == []
    return by_name


def refusal(made: Tool, arguments: Any) -> str:
    with pytest.raises(ArgumentsError) as caught:
        made.arguments(arguments)
    return str(caught.value)


def loaded(source: str, name: str = "tools_of_a_test", **names: Any) -> dict[str, Any]:
    """A module's names, after it has been imported from this source."""
    module = types.ModuleType(name)
    module.__dict__.update(names)
    sys.modules[name] = module
    try:
        exec(compile(source, f"{name}.py", "exec"), module.__dict__)  # noqa: S102
    finally:
        del sys.modules[name]
    return module.__dict__


TEXT_OR_NULL = {"anyOf": [{"type": "string"}, {"type": "null"}]}


def optional(a: str | None = None): ...
def nullable(a: int | None): ...
def number(a: int = 3): ...
def ratio(a: float = 0.5): ...
def flag(a: bool = False): ...
def literal(a: Literal["a", "b"]): ...
def enum(a: Color = Color.RED): ...
def enums(a: list[Color]): ...
def optional_enum(a: Color | None = None): ...
def union(a: Union[int, str]): ...
def bounds(a: Annotated[int, msgspec.Meta(ge=1, le=9)]): ...
def told(a: Annotated[int, "how many"]): ...
def keyword_only(*, a: int = 3): ...
def any_default(a: Any = object()): ...  # noqa: B008
def untyped(a): ...  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
def texts(a: list[str] | None = None): ...
def table(a: dict[str, int]): ...
def struct(a: Point): ...
def dataclass_(a: Order): ...
def struct_default(a: Point = Point(1)): ...  # noqa: B008
def anything(a: object): ...
def moment(a: dt.datetime | None = None): ...
def moments(a: list[Annotated[dt.time, "when"]]): ...


TABLE: list[tuple[Callable[..., Any], dict[str, Any], bool]] = [
    (optional, TEXT_OR_NULL | {"default": None}, False),
    (nullable, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, True),
    (number, {"type": "integer", "default": 3}, False),
    (ratio, {"type": "number", "default": 0.5}, False),
    (flag, {"type": "boolean", "default": False}, False),
    (literal, {"enum": ["a", "b"]}, True),
    (enum, {"enum": ["blue", "red"], "default": "red"}, False),
    (enums, {"type": "array", "items": {"enum": ["blue", "red"]}}, True),
    (optional_enum, {"anyOf": [{"enum": ["blue", "red"]}, {"type": "null"}], "default": None}, False),
    (union, {"anyOf": [{"type": "integer"}, {"type": "string"}]}, True),
    (bounds, {"type": "integer", "minimum": 1, "maximum": 9}, True),
    (told, {"type": "integer", "description": "how many"}, True),
    (keyword_only, {"type": "integer", "default": 3}, False),
    (any_default, {}, False),
    (untyped, {}, True),
    (texts, {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None}, False),
    (table, {"type": "object", "additionalProperties": {"type": "integer"}}, True),
    (struct, {"$ref": "#/$defs/Point"}, True),
    (dataclass_, {"$ref": "#/$defs/Order"}, True),
    (anything, {}, True),
    (
        moment,
        {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}], "default": None},
        False,
    ),
    (moments, {"type": "array", "items": {"type": "string", "format": "time"}}, True),
    (struct_default, {"$ref": "#/$defs/Point", "default": {"x": 1, "y": 0.0}}, False),
]


@pytest.mark.case("H2")
@pytest.mark.case("H12")
@pytest.mark.parametrize(("fn", "schema", "is_required"), TABLE, ids=lambda v: getattr(v, "__name__", ""))
def test_each_kind_of_parameter_has_its_exact_schema(
    fn: Callable[..., Any], schema: dict[str, Any], is_required: bool
) -> None:
    made = Tool(fn)
    assert properties(made) == {"a": schema}
    assert required(made) == (["a"] if is_required else [])
    assert json.loads(msgspec.json.encode(made.parameters)) == made.parameters


def test_types_of_the_users_own_stand_in_the_definitions() -> None:
    assert Tool(struct).parameters["$defs"] == {
        "Point": {
            "title": "Point",
            "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"type": "number", "default": 0.0}},
            "required": ["x"],
        }
    }


def test_a_tool_without_parameters_takes_an_empty_object() -> None:
    def ping(): ...

    assert Tool(ping).parameters == {"type": "object", "properties": {}}


T = TypeVar("T")
P = ParamSpec("P")


class Access(Flag):
    READ = 1
    WRITE = 2


class Level(IntEnum):
    LOW = 1


class Pair(NamedTuple):
    x: int
    y: str = "y"


class Options(TypedDict, total=False):
    a: Required[int]
    b: str


class Box(msgspec.Struct, Generic[T]):
    value: T


class Cat(msgspec.Struct, tag=True):
    lives: int = 9


class Dog(msgspec.Struct, tag=True):
    name: str


class Tree(msgspec.Struct):
    children: list["Tree"] = []


@dataclass
class Branch:
    twigs: list["Branch"] = field(default_factory=list["Branch"])


UserId = NewType("UserId", int)

KINDS: list[tuple[Any, Any, Any]] = [
    (dt.datetime, "2026-01-02T03:04:05Z", dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)),
    (dt.date, "2026-01-02", dt.date(2026, 1, 2)),
    (dt.time, "03:04:05", dt.time(3, 4, 5)),
    (dt.timedelta, "P1D", dt.timedelta(days=1)),
    (Decimal, "1.50", Decimal("1.50")),
    (uuid.UUID, "12345678123456781234567812345678", uuid.UUID("12345678123456781234567812345678")),
    (bytes, "aGk=", b"hi"),
    (bytearray, "aGk=", bytearray(b"hi")),
    (Access, 2, Access.WRITE),
    (Level, 1, Level.LOW),
    (Pair, [1], Pair(1)),
    (Options, {"a": 1}, {"a": 1}),
    (Box[int], {"value": 1}, Box(1)),
    (Box[list[Cat]], {"value": [{"type": "Cat"}]}, Box([Cat()])),
    (Cat | Dog, {"type": "Dog", "name": "Rex"}, Dog("Rex")),
    (Tree, {"children": [{}]}, Tree([Tree()])),
    (Branch, {"twigs": [{}]}, Branch([Branch()])),
    (Literal["a", 1] | None, 1, 1),
    (UserId, 3, 3),
    (set[int], [1, 1], {1}),
    (frozenset[str], ["a"], frozenset(["a"])),
    (tuple[int, str], [1, "a"], (1, "a")),
    (tuple[int, ...], [1, 2], (1, 2)),
    (dict[int, Point], {"1": {"x": 2}}, {1: Point(2)}),
    (int | str | None, None, None),
    (int, 10**30, 10**30),
]


@pytest.mark.parametrize(("annotation", "given", "value"), KINDS, ids=lambda v: str(v)[:30])
def test_each_type_that_msgspec_knows_is_described_and_read(annotation: Any, given: Any, value: Any) -> None:
    def f(a: Any): ...

    f.__annotations__["a"] = annotation
    made = Tool(f)
    assert made.parameters["required"] == ["a"]
    for text in (json.dumps({"a": given}), json.dumps(json.dumps({"a": given}))):
        found = keywords(made, text)["a"]
        assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("annotation", "why"),
    [
        (Callable[[int], int], "Callable.* is not supported"),
        (complex, "complex.* is not supported"),
        (Point | Order, "all Struct types must be tagged|more than one"),
        (Annotated[str, msgspec.Meta(ge=3)], "Can only set `ge` on a numeric type"),
    ],
)
def test_what_has_no_schema_is_refused_in_a_line_that_says_why(annotation: Any, why: str) -> None:
    def f(a: Any): ...

    f.__annotations__["a"] = annotation
    with pytest.raises(ConfigError, match=rf"^tool 'f', parameter 'a': its type has no JSON schema: .*({why}).*$"):
        Tool(f)


def test_typed_keywords_are_converted_and_the_wrong_ones_told() -> None:
    def f(**scores: int): ...

    assert keywords(Tool(f), '{"a": "1", "b": 2}') == {"a": 1, "b": 2}
    assert "Expected `int`, got `str`" in refusal(Tool(f), '{"a": "one"}')


def test_keywords_unpacked_from_a_typed_dict_are_parameters_of_their_own() -> None:
    class More(TypedDict):
        a: int
        b: NotRequired[Annotated[str, "a text"]]

    def f(**more: Unpack[More]): ...

    made = Tool(f)
    assert properties(made) == {"a": {"type": "integer"}, "b": {"type": "string", "description": "a text"}}
    assert required(made) == ["a"]
    assert keywords(made, '{"a": 1}') == {"a": 1}
    assert keywords(made, '{"a": 1, "b": null}') == {"a": 1}
    assert "unknown argument 'c'" in refusal(made, '{"a": 1, "c": 2}')


def test_keywords_unpacked_behind_postponed_annotations_are_required_or_not_as_they_say() -> None:
    names = loaded(
        "from __future__ import annotations\n"
        "from typing import NotRequired, Required, TypedDict, Unpack\n"
        "from agentgraph.nodes import tool\n"
        "class All(TypedDict):\n"
        "    a: int\n"
        "    b: NotRequired[str]\n"
        "class Some(TypedDict, total=False):\n"
        "    a: Required[int]\n"
        "    b: str\n"
        "@tool\n"
        "def f(**more: Unpack[All]): ...\n"
        "@tool\n"
        "def g(**more: Unpack[Some]): ...\n"
    )
    for made in (names["f"], names["g"]):
        assert (list(properties(made)), required(made)) == (["a", "b"], ["a"])


def test_keywords_whose_type_cannot_be_described_or_found_are_refused() -> None:
    names = loaded(
        "from __future__ import annotations\n"
        "from typing import TypedDict, Unpack\n"
        "class Lost(TypedDict):\n"
        "    a: Nowhere\n"
        "def f(**more: Unpack[Lost]): ...\n"
        "def g(**more: complex): ...\n"
    )
    with pytest.raises(ConfigError, match=r"tool 'f', parameter 'more': its type cannot be resolved: .*Nowhere"):
        Tool(names["f"])
    with pytest.raises(ConfigError, match=r"tool 'g', parameter 'more': its type <class 'complex'> has no JSON schema"):
        Tool(names["g"])


def test_names_that_no_argument_can_have_are_refused() -> None:
    Form = TypedDict("Form", {"first-name": str})

    def f(**more: Unpack[Form]): ...
    def g(*, __secret: int): ...

    with pytest.raises(ConfigError, match="tool 'f', parameter 'more': 'first-name' of Form is no name"):
        Tool(f)
    with pytest.raises(ConfigError, match=r"tool 'g', parameter '__secret': .* two underscores"):
        Tool(g)


def test_a_default_that_json_does_not_know_stands_in_no_schema() -> None:
    def f(
        most: float = float("inf"),
        grades: tuple[float, ...] = (float("nan"),),
        part: Annotated[float, pydantic.Field(le=1)] = float("inf"),
    ): ...

    assert [p.get("default", "none") for p in properties(Tool(f)).values()] == ["none"] * 3


@pytest.mark.case("H3")
def test_defaults_stand_in_the_schema_and_variadic_keywords_do_not() -> None:
    def f(a: int, b: int = 5, *, c: int = 3, **kw: Any): ...

    made = Tool(f)
    assert made.parameters == {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": "integer", "default": 5},
            "c": {"type": "integer", "default": 3},
        },
        "required": ["a"],
    }
    assert keywords(made, '{"a": 1, "more": [2]}') == {"a": 1, "more": [2]}


@pytest.mark.case("H12")
def test_variadic_positionals_are_refused_at_decoration() -> None:
    with pytest.raises(ConfigError, match=r"tool 'f', parameter 'names'.*take a list instead"):

        @tool
        def f(*names: str): ...


@pytest.mark.case("H4")
@pytest.mark.parametrize(("arguments", "result"), [("{}", "none"), ('{"q": "x"}', "x"), ('{"q": null}', "none")])
def test_an_annotated_optional_is_described_and_may_be_left_out(arguments: str, result: str) -> None:
    @tool
    def f(q: Annotated[Optional[str], "my text"] = None) -> str:  # noqa: UP045
        return q or "none"

    assert properties(f) == {"q": TEXT_OR_NULL | {"description": "my text", "default": None}}
    assert required(f) == []
    assert f(**keywords(f, arguments)) == result


GOOGLE = """Find things.

Looks everywhere.

Args:
    query: what to find
    limit (int): how many at most

Returns:
    What was found.
"""
NUMPY = """Find things.

Looks everywhere.

Parameters
----------
query : str
    what to find
limit : int
    how many at most

Returns
-------
str
    What was found.
"""
SPHINX = """Find things.

Looks everywhere.

:param query: what to find
:param limit: how many at most
:returns: What was found.
"""


@pytest.mark.case("H12")
@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_docstrings_of_three_styles_describe_tool_and_parameters(doc: str) -> None:
    def find(query: str, limit: int = 10): ...

    find.__doc__ = doc
    made = Tool(find)
    assert made.description == "Find things.\n\nLooks everywhere."
    assert properties(made) == {
        "query": {"type": "string", "description": "what to find"},
        "limit": {"type": "integer", "description": "how many at most", "default": 10},
    }


@pytest.mark.case("H12")
def test_annotated_text_beats_the_docstring() -> None:
    @tool
    def f(a: Annotated[int, "by text"], b: Annotated[int, msgspec.Meta(description="by meta")], c: int):
        """Do it.

        Args:
            a: by docstring
            b: by docstring
            c: by docstring
        """

    assert [p["description"] for p in properties(f).values()] == ["by text", "by meta", "by docstring"]


def test_an_enum_keeps_its_own_description_unless_the_parameter_has_one() -> None:
    class Size(Enum):
        """How big."""

        S = "s"

    def f(a: Size, b: Annotated[Size, "the other"]): ...

    described = [p["description"] for p in properties(Tool(f)).values()]
    assert described == ["How big.", "the other"]


@pytest.mark.case("H1")
@pytest.mark.case("H11")
def test_postponed_annotations_give_the_true_types() -> None:
    names = loaded(
        "from __future__ import annotations\n"
        "from agentgraph.nodes import ToolContext, tool\n"
        "@tool\n"
        "def f(a: str, whatever: ToolContext, b: int | None = None): ...\n"
    )
    f = cast("Tool", names["f"])
    assert properties(f) == {
        "a": {"type": "string"},
        "b": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
    }
    assert f.context_name == "whatever"


CONTEXTS = [
    "ToolContext",
    "nodes.ToolContext",
    "agentgraph.nodes.ToolContext",
    "ToolContext | None",
    "None | ToolContext",
    "Optional[ToolContext]",
    "typing.Optional['ToolContext']",
    "Annotated[ToolContext, 'of the call']",
]


@pytest.mark.case("H11")
@pytest.mark.parametrize("annotation", CONTEXTS)
def test_a_context_imported_for_type_checkers_only_is_found_by_its_name(annotation: str) -> None:
    names = loaded(
        "from __future__ import annotations\n"
        "from agentgraph.nodes import tool\n"
        "@tool\n"
        f"def f(a: int, c: {annotation}): ...\n"
    )
    f = cast("Tool", names["f"])
    assert f.context_name == "c"
    assert list(properties(f)) == ["a"]


@pytest.mark.case("H11")
@pytest.mark.parametrize("annotation", [ToolContext, Optional[ToolContext], Annotated[ToolContext, "it"]])  # noqa: UP045
def test_a_context_is_found_under_any_name_and_form(annotation: Any) -> None:
    def f(a: int, state: Any = None): ...

    f.__annotations__["state"] = annotation
    made = Tool(f)
    assert made.context_name == "state"
    assert list(properties(made)) == ["a"]


def test_a_text_that_speaks_of_the_context_does_not_make_a_parameter_one() -> None:
    names = loaded(
        "from __future__ import annotations\n"
        "from typing import Annotated\n"
        "from agentgraph.nodes import tool\n"
        "@tool\n"
        "def f(a: Annotated[str, 'the ToolContext, as text']): ...\n"
    )
    f = cast("Tool", names["f"])
    assert f.context_name is None
    assert list(properties(f)) == ["a"]


def test_the_model_cannot_give_the_context() -> None:
    def f(c: ToolContext, **kw: Any): ...

    assert "unknown argument 'c'" in refusal(Tool(f), '{"c": "forged"}')


def test_two_contexts_are_refused() -> None:
    def f(a: ToolContext, b: ToolContext): ...

    with pytest.raises(ConfigError, match="tool 'f', parameter 'b': one parameter takes the ToolContext"):
        Tool(f)


def test_a_context_that_cannot_be_given_by_name_is_refused() -> None:
    def f(c: ToolContext, /): ...

    with pytest.raises(ConfigError, match=r"tool 'f', parameter 'c': .* it is given by name"):
        Tool(f)


@pytest.mark.case("H11")
def test_a_type_local_to_a_function_is_found() -> None:
    names = loaded(
        "from __future__ import annotations\n"
        "from typing import Literal\n"
        "from agentgraph.nodes import Tool, ToolNode, tool\n"
        "def make():\n"
        "    Mode = Literal['fast', 'slow']\n"
        "    def f(mode: Mode): ...\n"
        "    return tool(f), tool(name='f')(f), Tool(f), ToolNode([f]).tools['f'], within(f)\n"
        "def within(fn):\n"
        "    Mode = int\n"
        "    return tool(fn)\n"
    )
    for made in names["make"]():
        assert properties(made) == {"mode": {"enum": ["fast", "slow"]}}


def test_of_types_local_to_functions_the_nearest_is_meant() -> None:
    names = loaded(
        "from __future__ import annotations\n"
        "from agentgraph.nodes import tool\n"
        "def outer():\n"
        "    Mode = Other = int\n"
        "    def inner():\n"
        "        Mode = str\n"
        "        def f(a: Mode, b: Other): ...\n"
        "        return tool(f)\n"
        "    return inner()\n"
    )
    assert properties(names["outer"]()) == {"a": {"type": "string"}, "b": {"type": "integer"}}


def test_a_function_of_the_same_name_in_another_module_is_not_asked_for_local_types() -> None:
    first = loaded("from __future__ import annotations\ndef make():\n    def f(a: Mode): ...\n    return f\n")
    second = loaded(
        "from agentgraph.nodes import tool\ndef make(fn):\n    Mode = int\n    return tool(fn)\n", "another_module"
    )
    with pytest.raises(ConfigError, match="'Mode' cannot be resolved"):
        second["make"](first["make"]())


@pytest.mark.case("H11")
def test_types_resolve_in_the_functions_own_module_not_in_that_of_the_caller() -> None:
    names = loaded("from __future__ import annotations\nnumber = int\ndef f(a: number): ...\n")
    number = str
    made = tool(names["f"])
    assert number is str
    assert properties(made) == {"a": {"type": "integer"}}


@pytest.mark.case("H11")
def test_a_type_defined_further_down_is_found() -> None:
    names = loaded(
        "from __future__ import annotations\n"
        "import enum\n"
        "from agentgraph.nodes import tool\n"
        "@tool\n"
        "def f(a: Mode): ...\n"
        "class Mode(enum.Enum):\n"
        "    FAST = 'fast'\n"
    )
    assert properties(names["f"]) == {"a": {"enum": ["fast"]}}


def test_a_type_that_is_still_to_come_when_the_node_is_made_is_told_then() -> None:
    source = (
        "from __future__ import annotations\n"
        "from agentgraph.nodes import ToolNode, tool\n"
        "@tool\n"
        "def f(a: Mode): ...\n"
        "ToolNode([f])\n"
        "Mode = int\n"
    )
    with pytest.raises(ConfigError, match=r"tool 'f', parameter 'a': its type 'Mode' cannot be resolved"):
        loaded(source)


@pytest.mark.case("H11")
def test_a_type_that_never_comes_is_told_when_the_tool_is_decorated() -> None:
    source = (
        "from __future__ import annotations\n"
        "from typing import TYPE_CHECKING\n"
        "from agentgraph.nodes import tool\n"
        "if TYPE_CHECKING:\n"
        "    from somewhere import Mode\n"
        "@tool\n"
        "def f(a: Mode): ...\n"
        "reached = True\n"
    )
    with pytest.raises(ConfigError, match=r"tool 'f', parameter 'a': its type 'Mode' cannot be resolved"):
        loaded(source)


def test_an_unresolved_name_inside_a_users_type_is_told_at_decoration() -> None:
    names = loaded(
        "from __future__ import annotations\n"
        "import msgspec\n"
        "class P(msgspec.Struct):\n"
        "    c: Nowhere\n"
        "def f(a: P): ...\n"
    )
    with pytest.raises(ConfigError, match=r"tool 'f', parameter 'a'.*Nowhere"):
        tool(names["f"])


class Opaque: ...


def test_a_type_without_a_schema_is_refused_naming_tool_and_parameter() -> None:
    def f(a: int, b: list[Opaque]): ...

    with pytest.raises(ConfigError, match=r"tool 'f', parameter 'b': its type has no JSON schema"):
        Tool(f)


@pytest.mark.case("H11")
def test_methods_are_tools_without_their_self() -> None:
    class Shop:
        def __init__(self, stock: int) -> None:
            self.stock = stock

        def count(self, item: str, context: ToolContext) -> str:
            """Count an item."""
            return f"{self.stock} {item} {context}"

    made = Tool(Shop(3).count)
    assert (made.name, made.description, list(properties(made))) == ("count", "Count an item.", ["item"])
    assert made.context_name == "context"
    assert made(**keywords(made, '{"item": "eggs"}'), context="c") == "3 eggs c"


def twice(n: int) -> int:
    return 2 * n


@pytest.mark.case("H11")
def test_a_decorated_method_is_a_tool_of_each_instance() -> None:
    class Shop:
        def __init__(self, stock: int) -> None:
            self.stock = stock

        @tool(timeout=3)
        def count(self, item: str) -> str:
            """Count an item."""
            return f"{self.stock} {item}"

        double = tool(twice)

    assert Shop(0).double(4) == 8
    one, two = Shop(1).count, Shop(2).count
    assert list(properties(one)) == ["item"]
    assert (one.timeout, two.description) == (3, "Count an item.")
    assert (one(**keywords(one, '{"item": "egg"}')), two(item="eggs")) == ("1 egg", "2 eggs")


def test_static_methods_and_class_methods_are_tools() -> None:
    class Shop:
        @staticmethod
        def add(a: int) -> int:
            return a + 1

        @classmethod
        def name(cls, a: int) -> str:
            return f"{cls.__name__}{a}"

        @staticmethod
        @tool
        def twice(a: int) -> int:
            return a * 2

    for made, result in ((tool(Shop.add), 8), (tool(Shop.name), "Shop7"), (Shop.twice, 14), (Shop().twice, 14)):
        assert list(properties(made)) == ["a"]
        assert made(**keywords(made, '{"a": 7}')) == result


@pytest.mark.case("H11")
def test_what_a_partial_has_fixed_is_hidden_and_cannot_be_given() -> None:
    def search(query: str, key: str, limit: int = 5, **more: Any) -> str:
        """Search the web.

        Args:
            query: what for
        """
        return f"{query} {key} {limit} {more}"

    made = Tool(functools.partial(search, key="secret"))
    assert (made.name, made.description) == ("search", "Search the web.")
    assert list(properties(made)) == ["query", "limit"]
    assert properties(made)["query"]["description"] == "what for"
    assert made(**keywords(made, '{"query": "q"}')) == "q secret 5 {}"
    assert "unknown argument 'key'" in refusal(made, '{"query": "q", "key": "forged"}')


def test_what_a_partial_has_fixed_by_position_is_hidden_too() -> None:
    def search(key: str, query: str, limit: int = 5) -> str:
        return f"{key} {query} {limit}"

    made = Tool(functools.partial(functools.partial(search, "secret"), limit=1))
    assert list(properties(made)) == ["query"]
    assert made(**keywords(made, '{"query": "q"}')) == "secret q 1"
    assert "unknown argument 'key'" in refusal(made, '{"query": "q", "key": "forged"}')


def test_a_wrapper_that_passes_on_its_parameters_by_type_is_read_as_what_it_wraps() -> None:
    def timed(fn: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(fn)
        def inner(*args: P.args, **kwargs: P.kwargs) -> T:
            return fn(*args, **kwargs)

        return inner

    @tool
    @timed
    @functools.lru_cache
    def twice_as(a: int, ctx: ToolContext | None = None) -> int:
        return 2 * a

    assert (list(properties(twice_as)), twice_as.context_name) == (["a"], "ctx")
    assert twice_as(**keywords(twice_as, '{"a": 4}')) == 8


def test_a_class_method_is_refused_where_it_does_not_have_its_class_yet() -> None:
    told = r"(shout|whisper) is a class method: make the tool below the class, of Class.method"
    with pytest.raises(ConfigError, match=told):

        class Loud:  # pyright: ignore[reportUnusedClass]
            @classmethod
            @cast("Any", tool)
            def shout(cls, a: int): ...

    with pytest.raises(ConfigError, match=told):

        class Low:  # pyright: ignore[reportUnusedClass]
            @cast("Any", tool)
            @classmethod
            def whisper(cls, a: int): ...


@pytest.mark.case("H11")
def test_wrapped_functions_are_read_as_what_they_wrap() -> None:
    def noted(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        return wrapper

    names = loaded(
        "from __future__ import annotations\n"
        "Number = int\n"
        "@noted\n"
        "def f(a: Number, ctx: ToolContext = None):\n"
        "    'Do it.'\n"
        "    return a + 1\n",
        noted=noted,
    )
    made = Tool(names["f"])
    assert (made.name, made.description, properties(made)) == ("f", "Do it.", {"a": {"type": "integer"}})
    assert made.context_name == "ctx"
    assert made(**keywords(made, '{"a": 1}')) == 2


def test_objects_that_can_be_called_are_tools() -> None:
    class Search:
        """Search the web."""

        async def __call__(self, query: str) -> str:
            """Search.

            Args:
                query: what for
            """
            return query

    made = Tool(Search())
    assert (made.name, made.description, made.is_async) == ("Search", "Search the web.", True)
    assert properties(made) == {"query": {"type": "string", "description": "what for"}}


def test_positional_only_parameters_are_passed_by_position() -> None:
    def f(a: int, b: int = 5, /, c: int = 7) -> tuple[int, int, int]:
        return a, b, c

    made = Tool(f)
    for arguments, result in (('{"a": 1, "c": 2}', (1, 5, 2)), ('{"b": 3, "a": 1}', (1, 3, 7))):
        positional, by_name = made.arguments(arguments)
        assert f(*positional, **by_name) == result


def test_a_function_whose_parameters_cannot_be_read_is_refused() -> None:
    with pytest.raises(ConfigError, match="tool 'max': the parameters"):
        Tool(max)


@pytest.mark.case("H5")
@pytest.mark.parametrize("arguments", ["", "   ", "null", '""', '"null"', None, {}, "{}", '"{}"'])
def test_no_arguments_do_where_none_are_required(arguments: Any) -> None:
    def ping(): ...
    def find(query: str): ...

    assert keywords(Tool(ping), ToolCall("1", "ping", arguments).arguments) == {}
    assert "'query' missing" in refusal(Tool(find), arguments)


@pytest.mark.case("H7")
def test_invalid_json_is_told_with_its_position_and_not_as_truncated() -> None:
    def act(action: str): ...

    answer = refusal(Tool(act), '{"action": listt_windows"}')
    assert "not valid JSON" in answer
    assert "byte 11" in answer
    assert "truncated" not in answer


def slips(tags: list[str], opts: dict[str, int], raw: str, n: int = 3, m: Optional[int] = 9): ...  # noqa: UP045


GIVEN = {"tags": ["a"], "opts": {"k": 1}, "raw": "r"}


@pytest.mark.case("H14")
@pytest.mark.parametrize(
    ("slip", "mended"),
    [
        ({}, {}),
        ({"tags": '["x", "y"]'}, {"tags": ["x", "y"]}),
        ({"tags": ' ["x"]'}, {"tags": ["x"]}),
        ({"opts": '{"k": 2}'}, {"opts": {"k": 2}}),
        ({"n": "7"}, {"n": 7}),
        ({"m": "null"}, {"m": None}),
        ({"m": None}, {"m": None}),
        ({"raw": "[1]"}, {"raw": "[1]"}),
        ({"raw": '{"a": 1}'}, {"raw": '{"a": 1}'}),
        ({"raw": "null"}, {"raw": "null"}),
        ({"raw": "7"}, {"raw": "7"}),
    ],
)
@pytest.mark.parametrize("form", ["text", "object", "encoded twice"])
def test_harmless_slips_are_mended(slip: dict[str, Any], mended: dict[str, Any], form: str) -> None:
    given = GIVEN | slip
    text = json.dumps(given)
    arguments = {"text": text, "object": given, "encoded twice": json.dumps(text)}[form]
    assert keywords(Tool(slips), arguments) == GIVEN | mended


def test_a_decimal_keeps_its_digits_whatever_else_has_to_be_mended() -> None:
    def f(price: Decimal, n: int, **more: float): ...
    def g(prices: list[Decimal], rest: Any = None): ...

    exact = Decimal("12345678901234567.10")
    given = keywords(Tool(f), '{"price": 12345678901234567.10, "n": "7", "more": 1.50}')
    assert (str(given["price"]), given["n"], given["more"]) == (str(exact), 7, 1.5)
    assert keywords(Tool(g), '{"prices": "[12345678901234567.10]", "rest": [1.50]}') == {
        "prices": [exact],
        "rest": [1.5],
    }


@pytest.mark.case("H14")
def test_null_for_what_has_a_default_leaves_it_to_the_function() -> None:
    def f(n: int = 3) -> int:
        return n

    made = Tool(f)
    assert made(**keywords(made, '{"n": null}')) == 3


@pytest.mark.case("H14")
@pytest.mark.parametrize(
    ("arguments", "path", "expectation"),
    [
        ("[1, 2]", "array", "expected a JSON object"),
        ("7", "a number", "expected a JSON object"),
        ("true", "a boolean", "expected a JSON object"),
        ('"x"', "not valid JSON", "invalid"),
        (json.dumps(GIVEN | {"n": float("nan")}), "`$.n`", "expected a finite number"),
        (json.dumps(GIVEN | {"opts": {"k": float("inf")}}), "`$.opts.k`", "expected a finite number"),
        (json.dumps(GIVEN | {"n": "x"}).replace('"x"', "1e999"), "`$.n`", "expected a finite number, got Infinity"),
        (json.dumps(GIVEN | {"n": "seven"}), "`$.n`", "Expected `int`"),
        (json.dumps(GIVEN | {"tags": "[1"}), "`$.tags`", "Expected `array`"),
        (json.dumps(GIVEN | {"tags": [1]}), "`$.tags[0]`", "Expected `str`"),
        (json.dumps(GIVEN | {"raw": None}), "`$.raw`", "Expected `str`"),
        (json.dumps(GIVEN | {"tag": 1}), "'tag'", "did you mean 'tags'?"),
    ],
)
def test_what_cannot_be_mended_is_told_with_path_and_expectation(arguments: str, path: str, expectation: str) -> None:
    answer = refusal(Tool(slips), arguments)
    assert path in answer
    assert expectation in answer
    assert "'slips'" in answer


def test_a_value_that_is_none_of_several_is_told_with_those_that_there_are() -> None:
    class Cat(msgspec.Struct, tag="cat"): ...

    class Dog(msgspec.Struct, tag="dog"): ...

    class Box(msgspec.Struct):
        pets: list[Cat | Dog]
        by_name: dict[str, Literal["x", "y"]] = {}

    def f(size: Literal[1, 2], box: Box | None = None): ...

    slips: list[tuple[Any, str]] = [
        ({"size": 3}, "Invalid enum value 3 - at `$.size`; expected one of 1, 2"),
        (
            {"size": 1, "box": {"pets": [{"type": "cow"}]}},
            "'cow' - at `$.box.pets[0].type`; expected one of 'cat', 'dog'",
        ),
        (
            {"size": 1, "box": {"pets": [], "by_name": {"a": "z"}}},
            "'z' - at `$.box.by_name[...]`; expected one of 'x', 'y'",
        ),
    ]
    for slip, told in slips:
        assert refusal(Tool(f), slip).endswith(told)


@pytest.mark.case("H14")
def test_a_text_that_python_reads_as_no_number_is_none() -> None:
    def f(a: float, b: list[float] = []): ...  # noqa: B006

    for slip, place in (({"a": "nan"}, "a"), ({"a": "1", "b": ["2", "-inf"]}, "b[1]"), ({"a": float("nan")}, "a")):
        answer = refusal(Tool(f), slip)
        assert "expected a finite number, got" in answer
        assert f"at `$.{place}`" in answer


def test_null_for_an_optional_field_of_an_object_is_as_if_it_were_not_given() -> None:
    def f(
        points: list[Point], pet: Cat | Dog, either: list[list[Point] | str], by_name: dict[str, Point] | None = None
    ): ...

    slip: dict[str, Any] = {
        "points": [{"x": "1", "y": None}],
        "pet": {"type": "Cat", "lives": None},
        "by_name": {"a": {"x": 2, "y": None}},
        "either": [[{"x": 3, "y": None}], "a"],
    }
    expected = {"points": [Point(1)], "pet": Cat(), "by_name": {"a": Point(2)}, "either": [[Point(3)], "a"]}
    assert keywords(Tool(f), json.dumps(slip)) == expected
    slip["points"][0]["x"] = None
    assert "Expected `int`, got `null` - at `$.points[0].x`" in refusal(Tool(f), json.dumps(slip))


def test_what_nests_too_deep_is_told_like_any_other_wrong_text() -> None:
    def f(a: list[Any]): ...

    for text in ("[" * 100_000, '{"a": ' * 100_000):
        assert "not valid JSON: maximum recursion depth exceeded" in refusal(Tool(f), text)
    assert "Expected `array`, got `str` - at `$.a`" in refusal(Tool(f), json.dumps({"a": "[" * 100_000}))


def test_an_error_in_a_types_own_code_is_told_to_the_model() -> None:
    class Even(msgspec.Struct):
        n: int

        def __post_init__(self) -> None:
            raise KeyError(self.n)

    def f(a: Even): ...

    assert refusal(Tool(f), '{"a": {"n": 3}}') == "invalid arguments for tool 'f': KeyError: 3"


def test_a_text_within_bounds_is_not_taken_for_a_container() -> None:
    def f(a: Annotated[str, msgspec.Meta(min_length=5)]): ...

    assert keywords(Tool(f), '{"a": "[1, 2]"}') == {"a": "[1, 2]"}


@pytest.mark.case("H14")
def test_json_text_is_decoded_only_where_nothing_but_a_container_is_taken() -> None:
    def f(point: Point | None, either: str | list[int], anything: Any): ...

    text = json.dumps({"point": '{"x": 1}', "either": "[1]", "anything": "[1]"})
    assert keywords(Tool(f), text) == {"point": Point(1), "either": "[1]", "anything": "[1]"}


def test_arguments_become_the_types_of_the_parameters() -> None:
    def f(point: Point, color: Color, by_number: dict[int, str], data: bytes): ...

    arguments = '{"point": {"x": 1}, "color": "blue", "by_number": {"1": "a"}, "data": "aGk="}'
    expected = {"point": Point(1), "color": Color.BLUE, "by_number": {1: "a"}, "data": b"hi"}
    assert keywords(Tool(f), arguments) == expected
    assert keywords(Tool(f), json.dumps(arguments)) == expected


@pytest.mark.case("D16")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [(r'{"a": "\ud83d\ude00"}', "😀"), (r'{"a": "x\ud83d"}', "x�"), ('{"a": "x\ud83d"}', "x�"), ('{"a": "é"}', "é")],
    ids=["a pair", "a half as an escape", "a half as it is", "sound"],
)
def test_surrogate_pairs_are_joined_and_lone_halves_replaced(arguments: str, text: str) -> None:
    def f(a: str): ...
    def g(**kw: Any): ...

    assert keywords(Tool(f), arguments) == {"a": text}
    assert keywords(Tool(g), '{"x": "\\ud83d", "\\ud83d": [1]}') == {"x": "�", "�": [1]}


def test_line_breaks_inside_a_text_are_taken() -> None:
    def f(code: str): ...

    assert keywords(Tool(f), '{"code": "a\nb\tc"}') == {"code": "a\nb\tc"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(["a", "b", "c", "zz"]), JSON, max_size=4) | JSON)
def test_any_json_gives_arguments_that_fit_or_an_answer_that_names_the_tool(value: Any) -> None:
    def f(a: int, b: list[str] | None = None, c: str = "c"): ...

    try:
        given = keywords(Tool(f), json.dumps(value))
    except ArgumentsError as error:
        assert "'f'" in str(error)  # noqa: PT017
        return
    assert set(given) <= {"a", "b", "c"}
    assert type(given["a"]) is int
    assert given.get("b") is None or all(type(t) is str for t in given["b"])
    assert type(given.get("c", "c")) is str


@settings(max_examples=60)
@given(st.text() | st.binary().map(lambda b: b.decode("utf-8", "surrogateescape")))
def test_any_text_gives_arguments_or_an_answer(text: str) -> None:
    def f(**kw: Any): ...

    try:
        assert isinstance(keywords(Tool(f), text), dict)
    except ArgumentsError as error:
        str(error).encode()


# -- pydantic


class Item(pydantic.BaseModel):
    """A thing to buy."""

    name: str
    price: Annotated[float, pydantic.Field(gt=0)]
    color: Color = Color.RED
    parts: list["Item"] = []
    count: int = 1

    @pydantic.field_validator("name")
    @classmethod
    def has_letters(cls, name: str) -> str:
        if not name.isalpha():
            raise ValueError("a name has letters only")
        return name


@pydantic.dataclasses.dataclass
class Size:
    width: int
    height: pydantic.PositiveInt = 1


@dataclass
class Basket:
    item: Item
    note: str = ""


class Cow(pydantic.BaseModel):
    kind: Literal["cow"]
    milk: int = 0


class Hen(pydantic.BaseModel):
    kind: Literal["hen"]
    eggs: int = 0


Text = pydantic.RootModel[str]
EGG = {"name": "egg", "price": 1.5}
AN_EGG = Item(name="egg", price=1.5)


def of_type(annotation: Any, *default: Any, **options: Any) -> Tool:
    def f(a: Any): ...

    f.__annotations__["a"] = annotation
    f.__defaults__ = default
    return Tool(f, **options)


FARM = Annotated[Cow | Hen, pydantic.Field(discriminator="kind")]
AT_LEAST_ONE = Annotated[int, pydantic.Field(ge=1)]
READ: list[tuple[Any, Any, Any]] = [
    (Item, EGG, AN_EGG),
    (Item, EGG | {"price": "1.5"}, AN_EGG),
    (Item, json.dumps(EGG), AN_EGG),
    (Item, EGG | {"count": None, "parts": [EGG | {"color": None}]}, AN_EGG.model_copy(update={"parts": [AN_EGG]})),
    (list[Item], [EGG], [AN_EGG]),
    (list[Item], json.dumps([EGG]), [AN_EGG]),
    (Item | None, EGG, AN_EGG),
    (Item | None, None, None),
    (Item | None, "null", None),
    (dict[str, Item], {"e": EGG}, {"e": AN_EGG}),
    (Basket, {"item": EGG, "note": None}, Basket(AN_EGG)),
    (Size, {"width": "2"}, Size(2)),
    (FARM, {"kind": "hen", "eggs": None}, Hen(kind="hen")),
    (list[Cow | Hen], [{"kind": "hen", "eggs": None}], [Hen(kind="hen")]),
    (AT_LEAST_ONE, "7", 7),
    (Union[AT_LEAST_ONE, None], "null", None),
    (Text, "[1]", Text("[1]")),
    (pydantic.RootModel[list[int]], "[1]", pydantic.RootModel[list[int]]([1])),
]


@pytest.mark.parametrize(("annotation", "given", "value"), READ, ids=str)
@pytest.mark.parametrize("form", ["text", "object", "encoded twice"])
def test_pydantic_types_are_read_by_pydantic_and_slips_are_mended(
    annotation: Any, given: Any, value: Any, form: str
) -> None:
    text = json.dumps({"a": given})
    arguments = {"text": text, "object": {"a": given}, "encoded twice": json.dumps(text)}[form]
    assert keywords(of_type(annotation), arguments) == {"a": value}


REFUSED: list[tuple[Any, Any, str]] = [
    (Item, {"name": "egg"}, "Field required - at `$.a.price`"),
    (Item, None, "Input should be an object - at `$.a`"),
    (
        list[Item],
        [EGG, {"name": "3", "price": 0}],
        "Value error, a name has letters only - at `$.a[1].name`; Input should be greater than 0 - at `$.a[1].price`",
    ),
    (dict[str, Item], {"e": EGG | {"count": "x"}}, "unable to parse string as an integer - at `$.a.e.count`"),
    (Item | None, EGG | {"price": -1}, "Input should be greater than 0 - at `$.a.price`"),
    (Basket, {"item": EGG | {"parts": [{}]}}, "Field required - at `$.a.item.parts[0].name`"),
    (Size, {"width": 1, "height": 0}, "Input should be greater than 0 - at `$.a.height`"),
    (AT_LEAST_ONE, 0, "Input should be greater than or equal to 1 - at `$.a`"),
    (list[Cow | Hen], [{"kind": "hen", "eggs": "x"}], "as an integer - at `$.a[0].eggs`"),
    (FARM, {"kind": "ox"}, "expected tags: 'cow', 'hen'"),
    (Item, EGG | {"price": float("nan")}, "expected a finite number, got NaN - at `$.a.price`"),
]


@pytest.mark.parametrize(("annotation", "given", "told"), REFUSED, ids=str)
def test_what_pydantic_refuses_is_told_with_its_path(annotation: Any, given: Any, told: str) -> None:
    answer = refusal(of_type(annotation), json.dumps({"a": given}))
    assert answer.startswith("invalid arguments for tool 'f': ")
    assert told in answer
    assert "pydantic" not in answer


def test_faults_of_several_pydantic_parameters_are_told_at_once() -> None:
    def f(a: Item, b: Size, c: int): ...

    answer = refusal(Tool(f), '{"a": {"name": "x"}, "b": {}, "c": 1}')
    assert answer.endswith("Field required - at `$.a.price`; Field required - at `$.b.width`")
    assert "'a', 'b', 'c' missing" in refusal(Tool(f), "{}")
    assert "unknown argument 'd'" in refusal(Tool(f), '{"a": {}, "b": {}, "c": 1, "d": 2}')


def test_the_schemas_of_pydantic_stand_in_place_with_enums_inline() -> None:
    def f(a: Item, b: Annotated[int, pydantic.Field(ge=1, description="how many")] = 2): ...

    made = Tool(f)
    assert properties(made) == {
        "a": {"$ref": "#/$defs/Item"},
        "b": {"type": "integer", "minimum": 1, "description": "how many", "default": 2},
    }
    assert required(made) == ["a"]
    item = made.parameters["$defs"]["Item"]
    assert item["description"] == "A thing to buy."
    assert item["properties"]["parts"]["items"] == {"$ref": "#/$defs/Item"}
    assert item["properties"]["color"] == {"enum": ["red", "blue"], "type": "string", "default": "red"}


def test_texts_and_defaults_of_pydantic_parameters_stand_in_the_schema() -> None:
    def f(a: Annotated[Item, "what"], b: Item = AN_EGG, c: Item | None = None):
        """Buy.

        Args:
            b: what else
        """

    found = properties(Tool(f))
    assert found["a"] == {"$ref": "#/$defs/Item", "description": "what"}
    assert found["b"]["description"] == "what else"
    assert found["b"]["default"] == {"name": "egg", "price": 1.5, "color": "red", "parts": [], "count": 1}
    assert found["c"]["default"] is None
    assert keywords(Tool(f), json.dumps({"a": EGG, "b": None})) == {"a": AN_EGG}


def test_types_of_one_name_in_pydantic_and_msgspec_get_two_names() -> None:
    class Mine:
        class Item(msgspec.Struct):
            z: int

        class Cow(msgspec.Struct):
            moo: int

    def f(a: Item, b: Mine.Item, c: Annotated[Cow | Hen, pydantic.Field(discriminator="kind")], d: Mine.Cow): ...

    made = Tool(f)
    names = {name: schema.get("$ref") for name, schema in properties(made).items()}
    assert names == {"a": "#/$defs/Item_2", "b": "#/$defs/Item", "c": None, "d": "#/$defs/Cow"}
    definitions = made.parameters["$defs"]
    assert definitions.keys() == {"Item", "Item_2", "Cow", "Cow_2", "Hen"}
    assert definitions["Item_2"]["properties"]["parts"]["items"] == {"$ref": "#/$defs/Item_2"}
    assert properties(made)["c"]["discriminator"]["mapping"]["cow"] == "#/$defs/Cow_2"
    assert list(definitions["Cow"]["properties"]) == ["moo"]


def test_pydantic_parameters_may_stand_anywhere_in_the_signature() -> None:
    def f(a: Item, b: int = 5, /, *, ctx: ToolContext, c: Item | None = None, **more: Any) -> Any:
        return a, b, c, more

    made = Tool(f)
    positional, by_name = made.arguments(json.dumps({"a": EGG, "c": EGG, "d": 1}))
    assert f(*positional, ctx=cast("Any", None), **by_name) == (AN_EGG, 5, AN_EGG, {"d": 1})


def test_a_pydantic_model_is_found_behind_postponed_annotations_and_may_come_later() -> None:
    names = loaded(
        "from __future__ import annotations\n"
        "from pydantic import BaseModel\n"
        "from agentgraph.nodes import tool\n"
        "@tool\n"
        "def f(a: list[Later]): ...\n"
        "class Later(BaseModel):\n"
        "    n: int\n"
    )
    assert keywords(names["f"], '{"a": [{"n": 1}]}') == {"a": [names["Later"](n=1)]}


def test_an_error_in_a_validator_is_told_to_the_model() -> None:
    class Broken(pydantic.BaseModel):
        n: int

        @pydantic.field_validator("n")
        @classmethod
        def breaks(cls, n: int) -> int:
            raise AttributeError(f"it broke at {n}")

    answer = refusal(of_type(Broken), '{"a": {"n": 1}}')
    assert answer == "invalid arguments for tool 'f': AttributeError: it broke at 1"


class Unfinished(pydantic.BaseModel):
    other: "Nowhere"  # pyright: ignore[reportUndefinedVariable]  # noqa: F821


class WithModel(msgspec.Struct):
    item: Item


@pytest.mark.parametrize(
    ("annotation", "why"),
    [
        (Unfinished, "not fully defined"),
        (tuple[Item, Point], "Unable to generate pydantic-core schema for .*Point"),
        (WithModel, "Item.* is not supported"),
        (Annotated[list[Item], msgspec.Meta(min_length=1)], "say it by pydantic.Field"),
    ],
    ids=str,
)
def test_what_pydantic_cannot_describe_is_refused_naming_the_parameter(annotation: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"^tool 'f', parameter 'a': its type has no JSON schema: .*{why}.*$"):
        of_type(annotation)


def test_a_field_in_the_place_of_a_default_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tool 'f', parameter 'a': a Field is no default; write Annotated"):
        of_type(int, pydantic.Field(3, ge=1))


def test_pydantic_is_not_loaded_for_tools_that_have_nothing_of_it() -> None:
    code = """
import sys
from agentgraph.nodes import tool
@tool(strict=True)
def f(a: int, b: list[str] | None = None): ...
assert f.arguments('{"a": "1"}') == ([], {"a": 1})
assert "pydantic" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_bounds_that_only_pydantic_reads_are_refused_where_it_is_not_loaded() -> None:
    code = """
import sys
from typing import Annotated
import annotated_types
from agentgraph import ConfigError
from agentgraph.nodes import tool
try:
    @tool
    def f(a: Annotated[int, annotated_types.Ge(1)]): ...
except ConfigError as error:
    assert "tool 'f', parameter 'a': its type has no JSON schema: pydantic, which reads" in str(error)
else:
    raise AssertionError
assert "pydantic" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# -- strict


OPEN = [Pair, tuple[int, str], dict[int, Point], dict[str, Item]]


@pytest.mark.parametrize("annotation", [kind for kind, *_ in (*KINDS, *READ)], ids=lambda v: str(v)[:40])
def test_all_types_but_the_open_ones_can_be_strict(annotation: Any) -> None:
    if annotation in OPEN:
        with pytest.raises(ConfigError, match="tool 'f', parameter 'a': cannot be strict"):
            of_type(annotation, strict=True)
        return
    schema = strict_for_openai(of_type(annotation, None, strict=True).parameters)
    assert is_strict(schema)
    assert schema["required"] == ["a"]
    assert "null" in kinds(schema["properties"]["a"], schema.get("$defs", {}))


@pytest.mark.parametrize(
    ("annotation", "why"),
    [
        (dict[str, int], "'a': cannot be strict: it takes an object with any keys$"),
        (Any, "'a': cannot be strict: it takes any value$"),
        (list[tuple[int, str]], "'a': cannot be strict: .* items each have a type of their own$"),
        (list[Box[dict[str, int]]], "'a': cannot be strict: it takes an object with any keys - at `\\$.a.value`$"),
        (pydantic.JsonValue, "'a': cannot be strict: it takes any value$"),
    ],
    ids=str,
)
def test_a_parameter_that_no_provider_takes_strictly_is_refused_at_definition(annotation: Any, why: str) -> None:
    of_type(annotation)
    with pytest.raises(ConfigError, match=f"^tool 'f', parameter {why}"):
        of_type(annotation, strict=True)


def test_a_strict_type_that_comes_later_is_checked_when_it_is_there() -> None:
    names = loaded(
        "from __future__ import annotations\n"
        "from agentgraph.nodes import tool\n"
        "@tool(strict=True)\n"
        "def f(a: Later): ...\n"
        "Later = dict\n"
    )
    with pytest.raises(ConfigError, match="tool 'f', parameter 'a': cannot be strict"):
        _ = names["f"].spec


class Price(msgspec.Struct):
    most: int = 10


class Filter(msgspec.Struct):
    max_price: int = 10
    prices: list[Price] = []
    by_shop: dict[str, Price] = {}
    free: dict[str, Any] = {}
    anything: Any = None
    inner: "Filter | None" = None


class Opened(TypedDict, total=False):
    at: int


@dataclass
class Closed:
    at: int = 3


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"filter": {"maxPrice": 3}}, "unknown key 'maxPrice'; did you mean 'max_price'? known: 'max_price', 'prices'"),
        ({"filter": {"prices": [{}, {"least": 3}]}}, "unknown key 'least'; known: 'most' - at `$.filter.prices[1]`"),
        ({"filter": {"by_shop": {"a": {"least": 3}}}}, "known: 'most' - at `$.filter.by_shop.a`"),
        ({"filter": {"inner": {"inner": {"x": 1}}}}, "- at `$.filter.inner.inner`"),
        ({"when": {"on": 3}}, "unknown key 'on'; known: 'at' - at `$.when`"),
        ({"then": {"on": 3}}, "unknown key 'on'; known: 'at' - at `$.then`"),
        ({"filter": '{"maxPrice": 3}'}, "unknown key 'maxPrice'"),
        ({"filter": {"max_price": 3, "free": {"any": {"thing": 1}}, "anything": {"x": [{"y": 1}]}}}, None),
        ({"filter": {"inner": {"by_shop": {"any": {"most": 1}}}}, "when": {"at": 5}}, None),
    ],
)
def test_a_key_that_a_nested_type_does_not_have_is_told_and_not_dropped(
    given: dict[str, Any], told: str | None
) -> None:
    @tool
    async def search(filter: Filter | None = None, when: Opened | None = None, then: Closed | None = None) -> None: ...

    if told is None:
        search.arguments(json.dumps(given))
        return
    with pytest.raises(ArgumentsError) as caught:
        search.arguments(json.dumps(given))
    assert told in str(caught.value)
