"""Instructions: what `{name}` stands for, and what braces that are no such place become."""

import json
import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph.messages import (
    AssistantMessage,
    TextPart,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from agentgraph.nodes import TemplateError
from agentgraph.nodes.template import escape, render, values_for


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("no place", "no place"),
        ("Hello {name}, {name}!", "Hello Ada, Ada!"),
        ("{n} and {none}", "3 and None"),
        ("{{name}}", "{name}"),
        ("{{{name}}}", "{Ada}"),
        ("{ name }", "{ name }"),
        ("{name.upper} {name[0]} {name!r} {0}", "{name.upper} {name[0]} {name!r} {0}"),
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
        ('{"who": {name}}', '{"who": Ada}'),
        ('{{"a": {{"b": 1}}}} for {name}', '{"a": {"b": 1}} for Ada'),
        ('{"a": {"b": {"c": {}}}}', '{"a": {"b": {"c": {}}}}'),
        ("{ {{x}} }}", "{ {x} }}"),
        ("} and {", "} and {"),
        ("{}", "{}"),
        ("a }} b", "a } b"),
    ],
)
def test_a_template_becomes_its_text(template: str, text: str) -> None:
    assert render(template, {"name": "Ada", "n": 3, "none": None}) == text


@settings(max_examples=60)
@given(st.text("{}ab \n", max_size=30))
def test_escaped_text_comes_back_as_it_was(text: str) -> None:
    assert render(escape(text), {}) == text


@settings(max_examples=60)
@given(
    st.recursive(
        st.integers() | st.booleans(), lambda inner: st.dictionaries(st.text(string.ascii_letters), inner, max_size=3)
    )
)
def test_json_in_an_instruction_stays_as_it_is(value: Any) -> None:
    assert render(json.dumps(value), {}) == json.dumps(value)


def test_a_value_with_braces_is_not_filled_in_again() -> None:
    assert render("{first}", {"first": "{second} }}", "second": "leak"}) == "{second} }}"


def test_a_name_that_is_not_there_is_an_error_with_the_nearest_one() -> None:
    with pytest.raises(TemplateError, match=r"unknown value 'qestion'; did you mean 'question'.*\{\{qestion\}\}"):
        render("{qestion}", {"question": "?"})


def test_messages_lists_and_the_engines_own_keys_are_left_out() -> None:
    state = {"messages": [UserMessage("hi")], "notes": ["a"], "_token_usage": 3, "topic": "lamps"}
    assert values_for(state, {"user": "Ada", "ids": [1], "_own": 1}) == {"user": "Ada", "topic": "lamps"}


def test_a_message_stands_for_its_text_and_nothing_else_with_a_text_does() -> None:
    class Page:
        text = "the whole page"

    page = Page()
    values = values_for(
        {
            "question": UserMessage([TextPart("why"), TextPart("?")]),
            "answer": AssistantMessage("because"),
            "found": ToolResponseMessage([ToolResponse("a", "look", "1"), ToolResponse("b", "look", "2")]),
            "page": page,
        },
        {},
    )
    assert values == {"question": "why?", "answer": "because", "found": "1\n2", "page": page}


def test_the_state_comes_before_the_metadata() -> None:
    assert values_for({"user": "of the state"}, {"user": "of the run"}) == {"user": "of the state"}
