"""Instructions: what `{name}` stands for, and what braces that are no such place become."""

import json
import string
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import END, START, StateGraph
from agentgraph.messages import (
    AssistantMessage,
    InstructionMessage,
    TextPart,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from agentgraph.nodes import LlmNode, TemplateError
from agentgraph.nodes.jinja import jinja
from agentgraph.nodes.template import escape, render, values_for
from agentgraph.strategies import Append, Messages, Replace
from agentgraph.testing import ScriptedModel


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


# --- Jinja ---


async def test_jinja_fills_in_an_instruction_with_conditions_and_loops_over_lists_of_the_state() -> None:
    graph = StateGraph(strategies={"messages": Messages(), "notes": Append(), "topic": Replace()})
    template = "About {{ topic | upper }}:{% for note in notes if note %}\n- {{ note }}{% endfor %}\n"
    model = ScriptedModel(["ok"])
    graph.add_node("llm", LlmNode(model, instruction=template, template_renderer=jinja))
    graph.add_edge(START, "llm").add_edge("llm", END)
    asked = InstructionMessage("{% if topic %}{{ topic }}{% endif %}?")
    state = {"messages": [asked], "topic": UserMessage("lamps"), "notes": ["<b>", "", "{{ topic }}"]}
    await graph.compile(debug=True).invoke(state)
    texts = [m.text for m in model.requests[0].messages]
    assert texts == ["lamps?", "About LAMPS:\n- <b>\n- {{ topic }}\n"]


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{{ nme }}", "'nme' is undefined"),
        ("{{ person.age }}", "'dict object' has no attribute 'age'"),
        ("one\n{% if %}", r"Expected an expression, got 'end of statement block' \(line 2\)"),
        ("{{ name | loud }}", "No filter named 'loud'"),
        ("{{ name.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
        ("{{ question.__init__.__globals__ }}", "access to attribute '__init__' of 'UserMessage' object is unsafe"),
        ("{{ notes.append(1) }}", "access to attribute 'append' of 'list' object is unsafe"),
        ("{{ person.update(name=1) }}", "access to attribute 'update' of 'dict' object is unsafe"),
    ],
)
def test_what_jinja_cannot_or_must_not_do_is_an_error_that_says_so(template: str, told: str) -> None:
    values = {"name": "Ada", "person": {"name": "Ada"}, "notes": ["a"], "question": UserMessage("?")}
    with pytest.raises(TemplateError, match=f"the instruction cannot be filled in: {told}"):
        jinja(template, values)
    assert values["notes"] == ["a"]


def test_jinja_is_an_extra_that_is_asked_for_where_it_is_imported() -> None:
    code = """
import sys
sys.modules["jinja2"] = None
import agentgraph.nodes
try:
    import agentgraph.nodes.jinja
except ImportError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert 'pip install "agentgraph-engine[jinja]"' in run.stdout
