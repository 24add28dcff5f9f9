"""Jinja2 for instructions with conditions and loops. An extra: `pip install "agentgraph-engine[jinja]"`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

try:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError as _absent:
    raise ImportError('agentgraph.nodes.jinja needs Jinja2: pip install "agentgraph-engine[jinja]"') from _absent

from agentgraph.nodes.template import TemplateError, TemplateRenderer

__all__ = ["jinja"]


class _Jinja:
    takes_lists: ClassVar[bool] = True

    def __call__(self, template: str, values: Mapping[str, Any], /) -> str:
        try:
            return _compiled(template).render(values)
        except jinja2.TemplateError as error:
            line = getattr(error, "lineno", None)
            where = f" (line {line})" if line else ""
            raise TemplateError(f"the instruction cannot be filled in: {error.message}{where}") from error

    def __repr__(self) -> str:
        return "agentgraph.nodes.jinja.jinja"


jinja: TemplateRenderer = _Jinja()
"""Fills in a Jinja2 template: `LlmNode(..., template_renderer=jinja)`.

Its values are metadata and state, lists too, without `messages`. A name that is not there is a `TemplateError`, and so
is a template that is none. It runs in Jinja's sandbox: it may use what values have that is public, but reaches nothing
of Python's own, and changes no list or dict. Nothing is escaped.
"""

# what is filled in is a prompt, not HTML
_environment = ImmutableSandboxedEnvironment(
    undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=True
)


@lru_cache(128)
def _compiled(template: str) -> jinja2.Template:
    return _environment.from_string(template)
