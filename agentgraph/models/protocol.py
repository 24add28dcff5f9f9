"""What a model client is: the contract between nodes and providers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol, runtime_checkable

import msgspec

from agentgraph.errors import AgentGraphError
from agentgraph.messages import AssistantMessage, Message, SystemMessage, Usage

__all__ = ["ChatModel", "Delta", "ModelError", "ModelRequest", "ModelResponse", "ToolSpec"]


class ModelError(AgentGraphError):
    """A model call failed.

    `status_code` is the HTTP status, or the code that the provider gave inside a stream; `body` the provider's
    own text; `request_id` what its support asks for; `partial` the text that had arrived; `retried` tells that
    the client has already tried again, so that a node's `Retry` need not. `begun` tells that an `LlmNode` had let a
    part of the answer out, so that a second attempt would double it; it sets that on errors of any class.
    """

    def __init__(
        self,
        message: str,
        *,
        status_code: int | None = None,
        body: str | None = None,
        request_id: str | None = None,
        partial: str = "",
        retried: bool = False,
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.body = body
        self.request_id = request_id
        self.partial = partial
        self.retried = retried
        self.begun = False


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as the model is told of it. `parameters` is a JSON schema of type object.

    `strict` asks the provider to hold the model to the schema. The client sends the schema in the provider's own
    form of it, or raises `ConfigError` where there is none; where the provider knows no such thing, it is not sent.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    strict: bool = False


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a model. Immutable: change it by `msgspec.structs.replace`."""

    messages: list[Message]
    """The conversation, without system messages that `system` stands for."""
    system: SystemMessage | None = None
    tools: list[ToolSpec] = []
    """What the model may call; the model never runs one itself."""
    tool_choice: str | None = None
    """None: the provider's default; "auto", "required", "none", or a tool's name."""
    parallel_tool_calls: bool | None = None
    output_schema: dict[str, Any] | None = None
    """A JSON schema that the answer must fit, where the model takes one natively."""
    options: Mapping[str, Any] = {}
    """Passed to the provider untouched: `temperature`, `max_tokens`, and whatever else it knows."""
    context: Mapping[str, Any] = {}
    """State and metadata of the run, for interceptors; never sent."""
    message_id: str | None = None
    """The id that the answer shall have; a new one where None."""


class ModelResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer. `message.usage` is what the call took, where the server says."""

    message: AssistantMessage
    raw: Any = None
    """The provider's own response, where it came in one piece."""


class Delta(msgspec.Struct, frozen=True):
    """A piece of a streamed answer. The last one of a stream has `response`, and no other has.

    A piece of a tool call has `index` (which call; the answer has them in this order); its first piece has
    `call_id` and `name` too.
    """

    text: str = ""
    reasoning: str = ""
    index: int | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str = ""
    usage: Usage | None = None
    response: ModelResponse | None = None


@runtime_checkable
class ChatModel(Protocol):
    """A client of one model. Safe to share between tasks and runs.

    One that sends a request's `output_schema` as such has a true `native_output_schema`; for others it is put in
    the prompt.
    """

    @property
    def name(self) -> str:
        """The model's name, for messages and traces."""
        ...

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Ask once and return the whole answer.

        Raises `ModelError`. After cancellation the connection is closed or back in its pool.
        """
        ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        """Ask once and yield the answer's pieces as they arrive; the last has the whole in `response`.

        Raises `ModelError`, also where the stream ends before the answer did. Whoever leaves early closes the
        generator (`aclose`), which closes the connection.
        """
        ...
