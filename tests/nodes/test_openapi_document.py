"""What a model sees of an OpenAPI document: names, schemas, descriptions; and what is told where there is a fault."""

import itertools
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from agentgraph import ConfigError
from agentgraph.nodes.openapi import OpenApiTools, Operation

PETSHOP = Path(__file__).parent / "petshop.yaml"
Schema = dict[str, Any]


def document(paths: Schema, version: str = "3.1.0", **more: Any) -> Schema:
    return {"openapi": version, "servers": [{"url": "https://api.example"}], "paths": paths, **more}


def query(*parameters: Schema, version: str = "3.1.0", **more: Any) -> Schema:
    """A document with one operation, `find`, that takes these query parameters."""
    listed = [{"in": "query", "schema": {"type": "string"}, **p} for p in parameters]
    return document({"/find": {"get": {"operationId": "find", "parameters": listed}}}, version, **more)


def posting(schema: Any, version: str = "3.1.0", *, required: bool = True, schemas: Schema | None = None) -> Schema:
    """A document with one operation, `post`, that takes this JSON body."""
    body = {"required": required, "content": {"application/json": {"schema": schema}}}
    paths = {"/things/{id}": {"post": {"operationId": "post", "parameters": [ID], "requestBody": body}}}
    return document(paths, version, components={"schemas": schemas or {}})


ID: Schema = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}


@asynccontextmanager
async def opened(given: Any, **options: Any) -> AsyncGenerator[OpenApiTools]:
    async with OpenApiTools(given, **options) as tools:
        yield tools


async def schema_of(given: Any, **options: Any) -> Schema:
    """The schema of the document's only tool."""
    async with opened(given, **options) as tools:
        (tool,) = tools
        Draft202012Validator.check_schema(tool.parameters)
        return tool.parameters


async def faults_of(given: Any, **options: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        async with opened(given, **options):
            pass
    return str(raised.value)


# --- where a document comes from


@pytest.mark.parametrize("source", [PETSHOP, str(PETSHOP), PETSHOP.read_text(encoding="utf-8")])
async def test_a_yaml_document_is_read_from_a_path_or_a_text(source: Any) -> None:
    async with opened(source) as tools:
        names = [tool.name for tool in tools]
    assert names == ["pets_list", "addPet", "getPet", "delete_pets_petId", "uploadPhoto"]


async def test_a_document_may_be_json_text_on_one_line() -> None:
    async with opened(json.dumps(query({"name": "q"}))) as tools:
        assert [tool.name for tool in tools] == ["find"]


async def test_yaml_has_the_values_of_json_and_no_others() -> None:
    text = """
openapi: 3.1.0
servers: [{url: "https://api.example"}]
paths:
  /find:
    get:
      operationId: find
      parameters:
        - {name: "on", in: query, schema: {enum: [no, 2024-01-31, 1:30, yes, 12, 1.5, true, null]}}
"""
    schema = await schema_of(text)
    assert schema["properties"]["on"]["enum"] == ["no", "2024-01-31", "1:30", "yes", 12, 1.5, True, None]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"swagger": "2.0"}, "must be OpenAPI 3.0 or 3.1, found swagger '2.0'"),
        ({"openapi": "4.0"}, "found openapi '4.0'"),
        ([1], r"an OpenAPI document is an object, found [1]"),
        ("missing.yaml", "cannot be read"),
        ("a: [1\nb", "neither JSON nor YAML"),
        ({"openapi": "3.1.0", "paths": {"/a": 3}}, "path '/a': expected an object, found 3"),
        (document({}), "no operation of the OpenAPI document is taken"),
    ],
)
async def test_what_is_no_document_is_told(given: Any, told: str) -> None:
    assert told in await faults_of(given)


async def test_the_tools_are_not_there_before_the_block_and_the_block_is_entered_once() -> None:
    tools = OpenApiTools(query({"name": "q"}))
    with pytest.raises(ConfigError, match="async with OpenApiTools"):
        list(tools)
    async with tools:
        assert (len(tools), tools["find"].name) == (1, "find")
        with pytest.raises(KeyError, match="did you mean 'find'"):
            _ = tools["fin"]
    with pytest.raises(ConfigError, match="a second time"):
        async with tools:
            pass


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0},
        {"max_bytes": 0},
        {"include": "find"},
        {"include": 5},
        {"headers": ["a"]},
        {"fixed": ["a"]},
        {"server_variables": ["a"]},
        {"client": httpx.Client},
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(options: Any) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        OpenApiTools({}, **options)


# --- a whole document


async def test_a_whole_document_is_told_as_tools() -> None:
    async with opened(PETSHOP) as tools:
        for tool in tools:
            Draft202012Validator.check_schema(tool.parameters)
        assert tools["pets_list"].description == "List all pets\n\nThe newest come first."
        assert tools["pets_list"].parameters == {
            "type": "object",
            "properties": {
                "limit": {
                    "type": "integer",
                    "exclusiveMinimum": 0,
                    "maximum": 100,
                    "default": 20,
                    "description": "How many to return",
                },
                "status": {"type": "array", "items": {"type": "string", "enum": ["available", "pending", "sold"]}},
            },
        }
        added = tools["addPet"].parameters
        assert list(added["properties"]) == ["limit", "name", "status", "owner", "parents"]
        assert added["required"] == ["name"]
        assert added["properties"]["owner"] == {"type": ["string", "null"], "description": "Who has it"}
        assert added["properties"]["parents"] == {"type": "array", "items": {"$ref": "#/$defs/Pet"}}
        assert set(added["$defs"]) == {"Pet", "NewPet"}
        assert tools["getPet"].description == "Deprecated."
        assert list(tools["delete_pets_petId"].parameters["properties"]) == ["petId"]


# --- names


async def test_a_tools_name_is_one_that_providers_take_and_no_other_tool_has() -> None:
    long = "x" * 100
    paths = {
        "/a": {"get": {"operationId": "a.b c"}, "post": {"operationId": "a/b/c"}, "put": {}},
        "/a/{id}": {"parameters": [ID], "get": {"operationId": long}, "post": {"operationId": f"{long}2"}},
    }
    async with opened(document(paths)) as tools:
        names = [tool.name for tool in tools]
    assert names[:3] == ["a_b_c", "a_b_c_2", "put_a"]
    assert all(len(name) <= 64 for name in names)
    assert len(set(names)) == 5


async def test_a_tools_name_does_not_depend_on_what_else_is_included() -> None:
    paths = {"/a": {"get": {"operationId": "same"}}, "/b": {"get": {"operationId": "same"}}}
    async with opened(document(paths), include=["GET /b"]) as tools:
        assert [tool.name for tool in tools] == ["same_2"]


async def test_a_prefix_goes_before_each_name() -> None:
    async with opened(query({"name": "q"}), prefix="shop_") as tools:
        assert [tool.name for tool in tools] == ["shop_find"]


def is_deprecated(operation: Operation) -> bool:
    return operation.deprecated


@pytest.mark.parametrize("include", [["getPet"], ["GET /pets/{petId}"], is_deprecated])
async def test_include_takes_names_paths_or_a_function(include: Any) -> None:
    async with opened(PETSHOP, include=include) as tools:
        assert [tool.name for tool in tools] == ["getPet"]


async def test_a_function_that_includes_sees_method_path_tags_and_operation_id() -> None:
    seen: list[Operation] = []

    def is_seen(operation: Operation) -> bool:
        seen.append(operation)
        return True

    async with opened(PETSHOP, include=is_seen):
        pass
    first = seen[0]
    assert (first.name, first.method, first.path, first.operation_id, first.tags) == (
        "pets_list",
        "GET",
        "/pets",
        "pets/list",
        ("pets",),
    )


async def test_an_unknown_name_to_include_is_told_with_the_nearest() -> None:
    assert "unknown operation 'getPets'; did you mean 'getPet'?" in await faults_of(PETSHOP, include=["getPets"])


async def test_arguments_that_clash_end_in_their_places() -> None:
    body = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}, "n": {"type": "integer"}}}
    schema = await schema_of(posting(body))
    assert list(schema["properties"]) == ["id_path", "id_body", "n"]
    assert schema["required"] == ["id_path", "id_body"]


async def test_an_arguments_name_is_one_that_providers_take() -> None:
    schema = await schema_of(query({"name": "filter[a]"}, {"name": "$top"}, {"name": "a.b-c_d"}, {"name": "y" * 80}))
    assert list(schema["properties"])[:3] == ["filter_a", "top", "a.b-c_d"]
    assert len(list(schema["properties"])[3]) == 64


# --- schemas


async def test_a_parameters_description_default_enum_and_example_are_kept() -> None:
    node = {"name": "q", "description": "What", "deprecated": True, "example": "a"}
    schema = await schema_of(query({**node, "schema": {"type": "string", "enum": ["a", "b"], "default": "b"}}))
    assert schema["properties"]["q"] == {
        "type": "string",
        "enum": ["a", "b"],
        "default": "b",
        "description": "What (deprecated)",
        "deprecated": True,
        "examples": ["a"],
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "nullable": True, "enum": ["a"]}, {"type": ["string", "null"], "enum": ["a", None]}),
        (
            {"nullable": True, "description": "d", "oneOf": [{"type": "string"}, {"type": "integer"}]},
            {
                "description": "d",
                "anyOf": [{"oneOf": [{"type": "string"}, {"type": "integer"}]}, {"type": "null"}],
            },
        ),
        ({"type": "number", "minimum": 1, "exclusiveMinimum": True}, {"type": "number", "exclusiveMinimum": 1}),
        ({"type": "number", "maximum": 1, "exclusiveMaximum": False}, {"type": "number", "maximum": 1}),
        ({"type": "string", "example": "x", "xml": {"name": "y"}}, {"type": "string", "examples": ["x"]}),
        ({"type": "string", "x-internal": 1, "readOnly": False}, {"type": "string"}),
        ({"type": "array", "items": {"type": "string", "nullable": True}}, None),
    ],
)
async def test_a_schema_of_3_0_becomes_json_schema(old: Schema, new: Schema | None) -> None:
    schema = await schema_of(query({"name": "q", "schema": old}, version="3.0.3"))
    expected = new or {"type": "array", "items": {"type": ["string", "null"]}}
    assert schema["properties"]["q"] == expected


async def test_a_schema_of_3_1_stays_as_it_is() -> None:
    given = {"type": ["string", "null"], "exclusiveMinimum": 3, "examples": ["a"], "const": "a", "nullable": True}
    schema = await schema_of(query({"name": "q", "schema": given}))
    assert schema["properties"]["q"] == {k: v for k, v in given.items() if k != "nullable"}


async def test_what_stands_beside_a_reference_counts_in_3_1_and_only_describes_in_3_0() -> None:
    node = {"name": "q", "schema": {"$ref": "#/components/schemas/S", "description": "mine", "maxLength": 3}}
    schemas = {"S": {"type": "string", "description": "its"}}
    new = await schema_of(query(node, components={"schemas": schemas}))
    old = await schema_of(query(node, version="3.0.0", components={"schemas": schemas}))
    assert new["properties"]["q"] == {"type": "string", "description": "mine", "maxLength": 3}
    assert old["properties"]["q"] == {"type": "string", "description": "mine"}


async def test_a_recursive_schema_stays_a_definition() -> None:
    tree: Any = {"type": "object", "properties": {"value": {}, "children": {"type": "array", "items": {"$ref": TREE}}}}
    schema = await schema_of(
        posting({"type": "object", "properties": {"tree": {"$ref": TREE}}}, schemas={"Tree": tree})
    )
    assert schema["properties"]["tree"] == {"$ref": "#/$defs/Tree"}
    assert schema["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}


TREE = "#/components/schemas/Tree"


async def test_references_may_point_anywhere_in_the_document_and_at_references() -> None:
    node = {"name": "q", "schema": {"$ref": "#/paths/~1other/get/parameters/0/schema"}}
    other = {"get": {"parameters": [{"name": "o", "in": "query", "schema": {"$ref": "#/components/schemas/a~1b%20c"}}]}}
    given = query(node, components={"schemas": {"a/b c": {"$ref": "#/components/schemas/d"}, "d": {"type": "integer"}}})
    given["paths"]["/other"] = other
    schema = await schema_of(given, include=["find"])
    assert schema["properties"]["q"] == {"type": "integer"}


async def test_schemas_of_the_same_last_name_stay_two() -> None:
    inner: Any = {"type": "object", "properties": {"a": {"$ref": "#/components/schemas/x/$defs/T"}}}
    schemas: Any = {"T": inner, "x": {"$defs": {"T": {"type": "array", "items": {"type": "string"}}}}}
    body = {"type": "object", "properties": {"t": {"$ref": "#/components/schemas/T"}}}
    schema = await schema_of(posting(body, schemas=schemas))
    assert set(schema["$defs"]) == {"T", "T_2"}
    assert schema["$defs"]["T"]["properties"]["a"] == {"$ref": "#/$defs/T_2"}


async def test_what_only_an_answer_has_is_not_asked_for() -> None:
    nested: Any = {"type": "object", "required": ["at", "x"], "properties": {"at": {"readOnly": True}, "x": {}}}
    body: Any = {
        "type": "object",
        "required": ["id", "name"],
        "properties": {"id": {"type": "integer", "readOnly": True}, "name": {"type": "string"}, "nested": nested},
    }
    schema = await schema_of(posting(body))
    assert list(schema["properties"]) == ["id", "name", "nested"]  # the path's id
    assert schema["required"] == ["id", "name"]
    assert schema["properties"]["nested"] == {"type": "object", "required": ["x"], "properties": {"x": {}}}


NOT_PLAIN: list[Any] = [
    {"type": "array", "items": {"type": "string"}},
    {"type": "object", "additionalProperties": {"type": "string"}},
    {"type": "object", "properties": {"a": {}}, "additionalProperties": True},
    {"oneOf": [{"type": "object", "properties": {"a": {}}}, {"type": "object", "properties": {"b": {}}}]},
    {"type": "object", "properties": {"a": {}}, "minProperties": 1},
    {"type": "object"},
]


@pytest.mark.parametrize("body", NOT_PLAIN)
async def test_a_body_that_is_no_plain_object_is_one_argument(body: Schema) -> None:
    schema = await schema_of(posting(body))
    assert schema["properties"]["body"] == body
    assert schema["required"] == ["id", "body"]


async def test_a_body_that_extends_another_is_flat() -> None:
    schemas: Schema = {
        "Base": {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}},
        "More": {"allOf": [{"$ref": "#/components/schemas/Base"}, {"required": ["b"]}], "properties": {"b": {}}},
    }
    schema = await schema_of(posting({"$ref": "#/components/schemas/More"}, schemas=schemas))
    assert (list(schema["properties"]), schema["required"]) == (["id", "a", "b"], ["id", "a", "b"])


async def test_a_property_that_two_parts_describe_has_to_fit_both() -> None:
    parts: Any = [{"type": "object", "properties": {"a": {"type": "string"}}}, {"properties": {"a": {"maxLength": 3}}}]
    schema = await schema_of(posting({"allOf": parts}))
    assert schema["properties"]["a"] == {"allOf": [{"type": "string"}, {"maxLength": 3}]}


async def test_a_pattern_of_another_dialect_is_told_and_left_to_the_server() -> None:
    schema = await schema_of(query({"name": "q", "schema": {"type": "string", "pattern": r"^\p{Lu}"}}))
    assert schema["properties"]["q"] == {"type": "string", "description": r"(pattern: ^\p{Lu})"}


async def test_bodies_of_text_and_of_bytes_are_one_text() -> None:
    async with opened(PETSHOP) as tools:
        photo = tools["uploadPhoto"].parameters["properties"]["body"]
    assert photo == {
        "type": "string",
        "contentEncoding": "base64",
        "description": "application/octet-stream (bytes, in base64)",
    }
    given = posting({})
    request = given["paths"]["/things/{id}"]["post"]["requestBody"]
    request["content"] = {"text/csv": {"schema": {"type": "string", "maxLength": 9}}}
    request["description"] = "Rows"
    schema = await schema_of(given)
    assert schema["properties"]["body"] == {"type": "string", "maxLength": 9, "description": "Rows (text/csv)"}


# --- what the model does not see


async def test_headers_that_are_sent_anyway_are_no_arguments() -> None:
    names = ["X-Trace", "X-Team", "Authorization", "Content-Type", "Accept", "Cookie", "Host", "X-Client"]
    given = query(*[{"name": n, "in": "header", "required": True} for n in names])
    async with httpx.AsyncClient(headers={"x-client": "1"}) as client:
        schema = await schema_of(given, client=client, headers={"x-team": "red"})
    assert (list(schema["properties"]), schema["required"]) == (["X-Trace"], ["X-Trace"])


async def test_a_cookie_of_the_client_is_no_argument() -> None:
    given = query({"name": "session", "in": "cookie"}, {"name": "theme", "in": "cookie"})
    async with httpx.AsyncClient(cookies={"session": "s"}) as client:
        schema = await schema_of(given, client=client)
    assert list(schema["properties"]) == ["theme"]


async def test_the_documents_api_keys_are_no_arguments() -> None:
    keys = {
        "a": {"type": "apiKey", "in": "query", "name": "key"},
        "b": {"$ref": "#/components/securitySchemes/c"},
        "c": {"type": "apiKey", "in": "header", "name": "X-Key"},
    }
    given = query({"name": "key"}, {"name": "x-key", "in": "header"}, {"name": "q"})
    schema = await schema_of({**given, "components": {"securitySchemes": keys}})
    assert list(schema["properties"]) == ["q"]


async def test_what_is_fixed_is_no_argument() -> None:
    body: Any = {"type": "object", "required": ["team", "name"], "properties": {"team": {}, "name": {}}}
    schema = await schema_of(posting(body), fixed={"team": "red", "id": "7"})
    assert (list(schema["properties"]), schema["required"]) == (["name"], ["name"])


async def test_a_name_to_fix_that_nothing_takes_is_told() -> None:
    told = await faults_of(query({"name": "team"}), fixed={"tean": "red"})
    assert told == "OpenApiTools(fixed=...): unknown parameter 'tean'; did you mean 'team'? known: 'team'"


# --- faults


@pytest.mark.parametrize(
    ("parameter", "told"),
    [
        ({"in": "cellar"}, "'in' must be one of 'path', 'query', 'header', 'cookie', found 'cellar'"),
        (
            {"style": "simple"},
            "style must be one of 'form', 'spaceDelimited', 'pipeDelimited', 'deepObject' in a query",
        ),
        ({"schema": {"type": "int"}}, "no JSON schema at 'type': unknown type 'int'; did you mean 'integer'?"),
        ({"schema": {"type": "string", "required": True}}, "no JSON schema at 'required': True is not of type 'array'"),
        ({"schema": {"$ref": "#/components/nothing"}}, "'#/components/nothing' refers to nothing in the document"),
        ({"schema": {"$ref": "other.yaml#/A"}}, "'other.yaml#/A' refers to another document"),
        (
            {"schema": {"$ref": "#/components/schemas/Loop"}},
            "the reference '#/components/schemas/Loop' leads to itself",
        ),
        ({"schema": {"$dynamicRef": "#x"}}, "$dynamicRef is not supported"),
        ({"schema": {"type": "array", "items": 7}}, "expected an object, found 7"),
        ({"content": {"text/csv": {}}}, "content must be JSON, found 'text/csv'"),
        ({"in": "header", "name": "q\n"}, "no name for a header"),
        ({"in": "path"}, "is in the path, which does not name it"),
    ],
)
async def test_a_parameter_that_cannot_be_described_is_a_fault_with_its_place(parameter: Schema, told: str) -> None:
    schemas = {"Loop": {"$ref": "#/components/schemas/Loop"}}
    faults = await faults_of(query({"name": "q", **parameter}, components={"schemas": schemas}))
    assert "find (GET /find), parameter 'q" in faults
    assert told in faults


async def test_a_parameter_without_a_schema_and_a_path_without_its_parameter_are_faults() -> None:
    faults = await faults_of(document({"/a/{b}": {"get": {"parameters": [{"name": "q", "in": "query"}]}}}))
    assert "get_a_b (GET /a/{b}), parameter 'q': expected 'schema' or 'content', found neither" in faults
    assert "get_a_b (GET /a/{b}): the path names {b}, and no path parameter has that name" in faults


async def test_all_faults_of_all_operations_are_told_at_once_and_what_is_left_out_has_none() -> None:
    bad: Any = [{"name": "q", "in": "query", "schema": {"type": "int"}}, {"name": "r", "in": "query"}]
    paths: Any = {"/a": {"get": {"parameters": bad}}, "/b": {"get": {"parameters": bad}}, "/c": {"get": {}}}
    faults = await faults_of(document(paths))
    assert faults.startswith("the OpenAPI document has 4 faults (include=... leaves operations out):\n")
    assert [faults.count(f"{o}, parameter") for o in ("get_a (GET /a)", "get_b (GET /b)")] == [2, 2]
    async with opened(document(paths), include=["get_c"]) as tools:
        assert len(tools) == 1


async def test_a_fault_in_a_body_names_the_property() -> None:
    faults = await faults_of(posting({"type": "object", "properties": {"a": {"type": "text"}}}))
    assert "post (POST /things/{id}), body 'a': no JSON schema at 'type': unknown type 'text'" in faults


async def test_a_server_without_a_host_needs_a_base_url() -> None:
    given = {**query({"name": "q"}), "servers": [{"url": "/v1"}]}
    assert "the server '/v1' is no absolute http(s) URL: base_url=" in await faults_of(given)
    async with opened(given, base_url="https://api.example/v1") as tools:
        assert len(tools) == 1


async def test_a_servers_variable_must_have_one_of_its_values() -> None:
    told = await faults_of(PETSHOP, server_variables={"scheme": "ftp"})
    assert "server variable 'scheme': expected one of 'https', 'http', found 'ftp'" in told
    given = {**query({"name": "q"}), "servers": [{"url": "https://{region}.example"}]}
    assert "the variable 'region' has no value: server_variables={...}" in await faults_of(given)


@pytest.mark.parametrize("base", ["api.example", "ftp://api.example", "http://[bad", "//api.example"])
def test_a_base_url_must_be_an_http_url(base: str) -> None:
    with pytest.raises(ConfigError, match="is an absolute http"):
        OpenApiTools({}, base_url=base)


async def test_a_document_that_refers_to_itself_without_end_is_a_fault() -> None:
    text = """
openapi: 3.1.0
paths:
  /a:
    get:
      parameters:
        - {name: q, in: query, schema: &s {type: array, items: *s}}
"""
    assert "get_a (GET /a), parameter 'q': nests without end" in await faults_of(text, base_url="https://api.example")


WHOLE: Any = yaml.safe_load(PETSHOP.read_text(encoding="utf-8"))
ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, -1.5, "", "x", "#/paths", [], [1], ["x"], {}, {"x": 1}, {"$ref": "#/x"}, [{}], [[]]]
)


def changed(node: Any, way: Iterator[int], odd: Any) -> Any:
    """The document with one value, somewhere, replaced by something else."""
    step = next(way)
    if not isinstance(node, (dict, list)) or not node or step % 7 == 0:
        return odd
    if isinstance(node, list):
        items = cast("list[Any]", node)
        at = step % len(items)
        return [*items[:at], changed(items[at], way, odd), *items[at + 1 :]]
    fields = cast("dict[Any, Any]", node)
    key = [*fields][step % len(fields)]
    return {**fields, key: changed(fields[key], way, odd)}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(1, 1000), min_size=16, max_size=16), ODD), min_size=8, max_size=8))
async def test_whatever_is_wrong_with_a_document_is_a_config_error(changes: list[tuple[list[int], Any]]) -> None:
    for way, odd in changes:
        try:
            async with OpenApiTools(changed(WHOLE, itertools.chain(way, itertools.repeat(0)), odd)) as tools:
                for tool in tools:
                    Draft202012Validator.check_schema(tool.parameters)
        except ConfigError:
            pass


async def test_a_server_that_many_operations_share_is_one_fault_and_not_all_of_very_many_are_told() -> None:
    many: Schema = {f"/{n}": {"get": {}} for n in range(50)}
    assert "the OpenAPI document has 1 fault " in await faults_of({**document(many), "servers": [{"url": "/v1"}]})
    bad: Any = {f"/{n}": {"get": {"parameters": [{"name": "q", "in": "query"}]}} for n in range(50)}
    faults = await faults_of(document(bad))
    assert faults.startswith("the OpenAPI document has 50 faults ")
    assert faults.endswith("\n  and 20 more")


@pytest.mark.parametrize(
    ("media", "wanted"),
    [
        (["text/csv", "application/vnd.a+json", "application/json; charset=utf-8"], ["a"]),
        (["application/xml", "multipart/form-data; boundary=x"], ["a"]),
        (["*/*"], ["a"]),
        (["application/zip", "text/csv"], ["body"]),
    ],
)
async def test_of_several_bodies_the_one_that_a_model_writes_best_is_taken(media: list[str], wanted: list[str]) -> None:
    content: Schema = {m: {"schema": {"type": "object", "properties": {"a": {}}}} for m in media}
    schema = await schema_of(document({"/a": {"post": {"requestBody": {"content": content}}}}))
    assert list(schema["properties"]) == wanted
