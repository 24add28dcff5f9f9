"""Several models in place of one: where a provider fails, the next is asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from types import TracebackType
from typing import Any, Self, cast

import msgspec

from agentgraph.config import is_transient
from agentgraph.errors import ConfigError
from agentgraph.models.by_name import as_model, provider_of
from agentgraph.models.errors import AuthenticationError, BadRequestError
from agentgraph.models.protocol import ChatModel, Delta, ModelError, ModelRequest, ModelResponse

__all__ = ["FallbackModel", "failure_note", "fallback_rule", "named", "provider_failed"]

_MAY_PASS = (408, 409)


def provider_failed(error: Exception) -> bool:
    """Tell whether another provider may do better.

    So it is after a rate limit, an overload, a timeout, a server's error, a connection that broke, and an answer
    that is none; not after a request that is refused as wrong, or a key that is.
    """
    if isinstance(error, ModelError):
        refused = isinstance(error, (BadRequestError, AuthenticationError))
        return not refused or error.status_code in _MAY_PASS
    return is_transient(error)


class FallbackModel:
    """Asks the first model; where that fails, the next, and so on.

    `on` tells after which errors: exception types, or a function of the error; None: see `provider_failed`. What
    an answer says is never a reason. In a stream another model is asked only as long as no piece of the answer has
    gone out; later, the error is raised with the text so far as its `partial`. Where all fail, the last one's error
    is raised, and its notes tell of the others. The answer's `metadata["model"]` is the `name` of the model that
    gave it, `metadata["response_model"]` what the server called it, where that differs. Models may be given by their
    names. Closing it closes all of them. A use::

        async with FallbackModel("openai:gpt-4.1", "anthropic:claude-sonnet-4-5") as model:
            agent = ReactAgent("clerk", model)
    """

    def __init__(
        self,
        first: ChatModel | str,
        *others: ChatModel | str,
        on: Callable[[Exception], bool] | type[Exception] | tuple[type[Exception], ...] | None = None,
    ) -> None:
        self.models: tuple[ChatModel, ...] = tuple(as_model(m) for m in (first, *others))
        for model in self.models:
            if not isinstance(model, ChatModel):  # pyright: ignore[reportUnnecessaryIsInstance]  # users without a checker
                raise ConfigError(f"FallbackModel needs models with generate() and stream(), found {model!r:.80}")
        self._wants = fallback_rule(on, "FallbackModel")

    @property
    def name(self) -> str:
        """The names of all models, in order."""
        return " or ".join(m.name for m in self.models)

    @property
    def provider(self) -> str:
        """The provider that all models have in common, else "fallback"; for telemetry."""
        providers = {provider_of(m) for m in self.models}
        return providers.pop() if len(providers) == 1 else "fallback"

    @property
    def native_output_schema(self) -> bool:
        """Whether all of the models take a schema as such."""
        return all(getattr(m, "native_output_schema", False) for m in self.models)

    def __repr__(self) -> str:
        return f"FallbackModel({', '.join(repr(m) for m in self.models)})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all models that can be closed, also where one of them fails to."""
        async with AsyncExitStack() as stack:
            for model in reversed(self.models):
                close = getattr(model, "aclose", None)
                if close is not None:
                    stack.push_async_callback(close)

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Ask until one answers. See `ChatModel.generate`."""
        failed: list[str] = []
        while True:
            model = self.models[len(failed)]
            try:
                return named(await model.generate(request), model)
            except Exception as error:
                failed.append(self._next(error, failed))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        """Ask until one answers, and yield that answer's pieces. See `ChatModel.stream`."""
        failed: list[str] = []
        while True:
            model = self.models[len(failed)]
            said: list[str] = []
            told = ended = False
            try:
                async with aclosing(model.stream(request)) as deltas:
                    async for delta in deltas:
                        said.append(delta.text)
                        told = told or bool(delta.text or delta.reasoning) or delta.index is not None
                        if delta.response is None:
                            yield delta
                        else:
                            ended = True
                            yield msgspec.structs.replace(delta, response=named(delta.response, model))
                if not ended:
                    raise ModelError(f"model {model.name!r} ended its stream without an answer")
                return
            except Exception as error:
                if told and isinstance(error, ModelError):
                    error.partial = error.partial or "".join(said)
                    error.retried = True  # readers have seen a part: a second try from outside would double it
                failed.append(self._next(error, failed, final=told))

    def _next(self, error: Exception, failed: list[str], *, final: bool = False) -> str:
        """The note that stands for an error after which the next model is asked; else raises it, with all notes."""
        model = self.models[len(failed)]
        if not final and len(failed) + 1 < len(self.models) and self._wants(error):
            return failure_note(model, error)
        for note in failed:
            error.add_note(note)
        raise error


def failure_note(model: ChatModel, error: Exception) -> str:
    """What the error of a model that was asked later tells of this one."""
    return f"before it, model {model.name!r} failed: {type(error).__name__}: {error}"


def fallback_rule(on: Any, owner: str) -> Callable[[Exception], bool]:
    """After which errors `owner` asks another model, by its option `on`. Raises `ConfigError` for what is no rule."""
    if on is None:
        return provider_failed
    kinds = cast("tuple[Any, ...]", on if isinstance(on, tuple) else (on,))
    if all(isinstance(kind, type) for kind in kinds):
        return lambda error: isinstance(error, kinds)
    if isinstance(on, tuple) or not callable(on):
        raise ConfigError(f"{owner}(on=...) must be exception types, or a function of the error; found {on!r}")
    return cast("Callable[[Exception], bool]", on)


def named(response: ModelResponse, model: ChatModel) -> ModelResponse:
    """The answer, whose metadata tells which model has given it."""
    message = response.message
    told = message.metadata.get("model")
    metadata = {**message.metadata, "model": model.name}
    if told not in (None, "", model.name):
        metadata.setdefault("response_model", told)
    return msgspec.structs.replace(response, message=msgspec.structs.replace(message, metadata=metadata))
