"""Filling in an instruction: `{name}` by a state value. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol, get_args

from agentgraph.errors import AgentGraphError, unknown
from agentgraph.messages import Message

__all__ = ["TemplateError", "TemplateRenderer", "escape", "names_of", "render", "values_for"]

_BRACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}|\{\{|[{}]")
_MESSAGES: tuple[type[Message], ...] = get_args(Message)


class TemplateError(AgentGraphError, ValueError):
    """A template asks for a value that is not there, or is none."""


class TemplateRenderer(Protocol):
    """Fills in a template's text with values. Must not change them.

    One that has a true `takes_lists` gets the state's lists too; others do not, see `values_for`.
    """

    def __call__(self, template: str, values: Mapping[str, Any], /) -> str:
        """Return the text. Raises what it likes where a value is missing."""
        ...


def render(template: str, values: Mapping[str, Any]) -> str:
    """The default renderer: `{name}` stands for a value's text, `{{` and `}}` for braces.

    Only names: neither attributes nor items of a value can be reached. Braces round anything else stay as they
    are, also where two of them end together (`{"a": {"b": 1}}`). Raises `TemplateError` for a name that is not
    there.
    """
    made: list[str] = []
    opened: list[str] = []  # braces that stand for themselves, as they were written
    place = 0
    while (match := _BRACE.search(template, place)) is not None:
        made.append(template[place : match.start()])
        place = match.end()
        name, brace = match.group(1), match.group()
        if name is not None:
            if name not in values:
                raise TemplateError(
                    f"the instruction has an {unknown('value', name, values)}; write {{{{{name}}}}} for the text itself"
                )
            made.append(str(values[name]))
            continue
        made.append(brace[0])
        if brace != "}":
            opened.append(brace)
        elif opened and opened[-1] == "{":
            opened.pop()
        elif template.startswith("}", place):
            place += 1
            if opened:
                opened.pop()
    made.append(template[place:])
    return "".join(made)


def names_of(template: str) -> list[str]:
    """The names that `render` asks a template's values for."""
    return list(dict.fromkeys(match.group(1) for match in _BRACE.finditer(template) if match.group(1) is not None))


def escape(text: str) -> str:
    """The text with its braces doubled, so that `render` gives it back as it is."""
    return text.replace("{", "{{").replace("}", "}}")


def values_for(state: Mapping[str, Any], metadata: Mapping[str, Any], *, lists: bool = False) -> dict[str, Any]:
    """What a template may name: metadata and state, without `messages`, the engine's own keys and, as a rule, lists.

    A message stands for its text.
    """
    values: dict[str, Any] = {}
    for key, value in (*metadata.items(), *state.items()):
        if key == "messages" or key.startswith("_") or (isinstance(value, list) and not lists):
            continue
        values[key] = value.text if isinstance(value, _MESSAGES) else value
    return values
