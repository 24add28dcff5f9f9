"""What tools return, and what becomes of it: the content of an answer."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, MappingView, Sequence
from pathlib import PurePath
from typing import Any, cast

import msgspec

from agentgraph.messages import NO_OUTPUT, FilePart, ImagePart, Part, TextPart, sound
from agentgraph.nodes.result import AgentResult

__all__ = ["Answer", "content_of"]


class Answer(msgspec.Struct, frozen=True):
    """What a tool may return instead of its bare content, together with state updates."""

    content: Any
    """A text, parts, or any value with a JSON form."""
    update: Mapping[str, Any] | None = None
    """Written to the state, after what the tool wrote by its context."""
    metadata: Mapping[str, Any] | None = None
    """Kept with the answers, for programs: `message.metadata["answers"][call_id]`."""


def content_of(value: Any, name: str) -> str | list[Part]:
    """What a tool returned as an answer's content, never empty. Raises `TypeError` for what has no JSON form."""
    if isinstance(value, AgentResult):  # of an agent that the tool has run: what it said, not all that it holds
        value = value.text
    if isinstance(value, str):
        text = sound(value if type(value) is str else str.__str__(value))
        return text if text and not text.isspace() else NO_OUTPUT
    if type(value) in _PLAIN:
        return _encoder.encode(value).decode()
    if value is None:
        return NO_OUTPUT
    items = cast("Sequence[Any]", value if isinstance(value, (list, tuple)) else [value])
    if any(isinstance(i, _PARTS) for i in items):
        return [part for i in items for part in _parts_of(i, name)]
    # the order of a set is another one in each process
    encoder = _sorting_encoder if isinstance(value, (set, frozenset)) else _encoder
    try:
        try:
            return encoder.encode(value).decode()
        except (UnicodeEncodeError, UnicodeDecodeError):
            return _encoder.encode(_sound_all(msgspec.to_builtins(value, str_keys=True, enc_hook=_as_builtin))).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        kind = type(cast("Any", value)).__name__
        raise TypeError(f"tool {name!r} returned a {kind}, which has no JSON form: {error}") from error


def _parts_of(value: Any, name: str) -> list[Part]:
    """One of several results of which some are parts."""
    if isinstance(value, TextPart):
        return [TextPart(sound(value.text))]
    if isinstance(value, _PARTS):
        return [value]
    content = content_of(value, name)
    return [TextPart(content)] if isinstance(content, str) else content


def _sound_all(value: Any) -> Any:
    if isinstance(value, str):
        return sound(value)
    if isinstance(value, dict):
        return {sound(str(k)): _sound_all(v) for k, v in cast("dict[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_sound_all(v) for v in cast("list[Any]", value)]
    return value


def _as_builtin(value: Any) -> Any:
    """What msgspec does not encode by itself."""
    if value is None or type(value) in (list, tuple, dict):  # it does, but for keys
        raise TypeError(f"a {type(value).__name__} is no key of a JSON object")
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    if isinstance(value, (Sequence, MappingView)):
        return list(cast("Iterable[Any]", value))
    dump = getattr(value, "model_dump", None)  # pydantic
    if callable(dump) and not isinstance(value, type):
        return dump(mode="json")
    if type(value).__module__.partition(".")[0] == "pydantic":
        return sys.modules["pydantic_core"].to_jsonable_python(value)
    raise TypeError(f"nothing to make of a {type(value).__name__}")


_encoder = msgspec.json.Encoder(enc_hook=_as_builtin)

_sorting_encoder = msgspec.json.Encoder(enc_hook=_as_builtin, order="deterministic")

_PLAIN = (int, float, bool)

_PARTS = (TextPart, ImagePart, FilePart)
