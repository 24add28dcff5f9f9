"""What a run tells while it goes: one tagged union of immutable msgspec Structs.

Every event has the run's id, a sequence number without gaps (from 1), the path of the node it comes from
(subgraphs included; empty for the run itself) and the time. These four are filled in when the event is
emitted. An event encodes to JSON as it is: `msgspec.json.encode(event)`; `decode` reads it back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Union, cast

import msgspec

from agentgraph.messages import Usage, sound

__all__ = [
    "CheckpointWritten",
    "Custom",
    "Event",
    "HistoryRepaired",
    "InterruptRaised",
    "ModelDelta",
    "NodeFinished",
    "NodeStarted",
    "RunFailed",
    "RunFinished",
    "RunStarted",
    "StateUpdate",
    "StepStarted",
    "ToolFinished",
    "ToolProgress",
    "ToolStarted",
    "decode",
    "encode",
]


class _Base(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    run_id: str = ""
    seq: int = 0
    path: tuple[str, ...] = ()
    time: float = 0.0
    """Seconds since the epoch, when it was emitted."""


class RunStarted(_Base, frozen=True, tag="run_started"):
    """The run begins. `thread_id` is the conversation it belongs to, if any."""

    thread_id: str | None = None


class RunFinished(_Base, frozen=True, tag="run_finished"):
    """The run ended; always its last event. `status` is that of `RunResult`."""

    status: str
    steps: int
    """Steps that the run took, those of its subgraphs included."""
    usage: Usage | None = None


class RunFailed(_Base, frozen=True, tag="run_failed"):
    """The run ended by an error; always its last event. The exception itself is raised to the reader."""

    error_type: str
    message: str


class StepStarted(_Base, frozen=True, tag="step_started"):
    """A superstep begins: `nodes` run at once. `step` counts from 1, in each graph for itself."""

    step: int
    nodes: list[str]


class NodeStarted(_Base, frozen=True, tag="node_started"):
    """A node begins an attempt (from 1)."""

    step: int
    attempt: int = 1


class NodeFinished(_Base, frozen=True, tag="node_finished"):
    """A node ended. `error` tells how, where it failed (type and text)."""

    step: int
    error: str | None = None


class StateUpdate(_Base, frozen=True, tag="state_update"):
    """A node's update, as it was merged. Values with no JSON form stand as their `repr`."""

    update: dict[str, Any]


class CheckpointWritten(_Base, frozen=True, tag="checkpoint"):
    """A step of the outermost graph is written to the thread, or on its way there (see `RunConfig.durability`)."""

    checkpoint_id: str
    step: int


class ModelDelta(_Base, frozen=True, tag="model_delta"):
    """A piece of a model's answer, as it arrives. `message_id` is that of the message it becomes.

    A piece of a tool call has `index` (which call of the message) and `arguments`, and with its first piece
    `call_id` and `name`.
    """

    message_id: str
    text: str = ""
    reasoning: str = ""
    index: int | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str = ""


class ToolStarted(_Base, frozen=True, tag="tool_started"):
    """A tool call begins. `arguments` is the JSON text as the model sent it."""

    call_id: str
    name: str
    arguments: str = ""


class ToolProgress(_Base, frozen=True, tag="tool_progress"):
    """What a tool reports while it runs: a share done, a text, or any JSON value in `data`."""

    call_id: str
    name: str
    progress: float | None = None
    total: float | None = None
    text: str = ""
    data: Any = None


class ToolFinished(_Base, frozen=True, tag="tool_finished"):
    """A tool call ended. `outcome` is "ok", "error", "timeout" or "cancelled"; `seconds` how long it ran."""

    call_id: str
    name: str
    outcome: str
    content: Any = ""
    seconds: float = 0.0


class HistoryRepaired(_Base, frozen=True, tag="history_repaired"):
    """A conversation was not valid and has been made so, in the state too. `repairs` says what was done."""

    repairs: list[str]


class InterruptRaised(_Base, frozen=True, tag="interrupt"):
    """A node asks and waits: the run ends as interrupted once its siblings are done."""

    id: str
    value: Any = None
    error: str = ""
    """What was wrong with the answer that it was given, where it has to be answered again."""


class Custom(_Base, frozen=True, tag="custom"):
    """What a node emits of its own: any JSON value."""

    data: Any


Event = Union[
    RunStarted,
    RunFinished,
    RunFailed,
    StepStarted,
    NodeStarted,
    NodeFinished,
    StateUpdate,
    CheckpointWritten,
    ModelDelta,
    ToolStarted,
    ToolProgress,
    ToolFinished,
    HistoryRepaired,
    InterruptRaised,
    Custom,
]

_decoder = msgspec.json.Decoder(Event)
_encoder = msgspec.json.Encoder()


def encode(event: Event) -> bytes:
    """The event as a JSON object."""
    return msgspec.json.encode(event)


def plain(value: Any) -> Any:
    """The value as an event may carry it: as it is where it has a JSON form, else with `repr` for what has none."""
    try:
        msgspec.json.encode(value)
    except Exception:  # of whatever kind: a value of any type may come here
        try:
            return _mended(value)
        except Exception:  # it holds itself, or is too deep
            return shown(value)
    return value


def encodable(event: Any) -> Any:
    """The event, with what has no JSON form made `plain`."""
    try:
        _encoder.encode(event)
    except Exception:  # of whatever kind: anybody's values may be in it
        return msgspec.structs.replace(event, **{f: plain(getattr(event, f)) for f in event.__struct_fields__})
    return event


def shown(value: object, form: Callable[[Any], str] = repr) -> str:
    """`form(value)`, and a text in its place where that fails or cannot be encoded."""
    try:
        return sound(str.__str__(form(value)))
    except Exception:
        return f"<{type(value).__name__} that cannot be shown>"


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return sound(str.__str__(value))
    if isinstance(value, dict):
        items = ((_mended(k), k, _mended(v)) for k, v in cast("dict[Any, Any]", value).items())
        return {key if isinstance(key, str) else shown(k): v for key, k, v in items}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_mended(item) for item in cast("list[Any]", value)]
    try:
        made = msgspec.to_builtins(value, str_keys=True, enc_hook=shown)
        if isinstance(made, (str, dict, list)):
            return _mended(made)
        msgspec.json.encode(made)
    except Exception:
        return shown(value)
    return made


def decode(data: bytes | str) -> Event:
    """An event from its JSON form. Raises `msgspec.ValidationError` naming the path of what does not fit."""
    return _decoder.decode(data)
