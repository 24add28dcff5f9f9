"""What a tool's signature and docstring say to the model, and what the model's arguments become."""

import functools
import json
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Optional, Union, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import ConfigError
from agentgraph.messages import ToolCall
from agentgraph.nodes import Tool, ToolContext, tool
from agentgraph.nodes.signature import ArgumentsError


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
