"""The reasoning node: messages in, one assistant message out."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, ClassVar, Literal, cast

import msgspec

from agentgraph import telemetry
from agentgraph.context import RunContext
from agentgraph.errors import ConfigError, InputError, unknown
from agentgraph.events import HistoryRepaired, ModelDelta
from agentgraph.messages import (
    AssistantMessage,
    InstructionMessage,
    Message,
    Part,
    RewriteMessages,
    SystemMessage,
    TextPart,
    ToolCall,
    Usage,
    UserMessage,
    new_id,
    sound,
)
from agentgraph.models.by_name import as_model, provider_of
from agentgraph.models.protocol import ChatModel, Delta, ModelError, ModelRequest, ModelResponse, ToolSpec
from agentgraph.node import as_mapping
from agentgraph.nodes.chain import callables, compose
from agentgraph.nodes.chunks import ChunkInterceptor, generators, intercepted, no_delta, no_response, whole
from agentgraph.nodes.history import NOTHING_CHECKED, Checked, sound_message
from agentgraph.nodes.names import clean_name
from agentgraph.nodes.output import OutputError, OutputFormat
from agentgraph.nodes.template import TemplateRenderer, render, values_for
from agentgraph.nodes.tool import Tool, as_tools, tools_of_run

__all__ = ["Advisor", "LlmNode", "LlmRequest", "ModelCall", "ModelInterceptor", "failed_answer", "is_failed_answer"]

log: logging.Logger = logging.getLogger("agentgraph")


class LlmRequest(ModelRequest, frozen=True, kw_only=True):
    """What a node's interceptors get: a model's request, to which they may add tools of their own."""

    dynamic_tools: Sequence[Tool] = ()
    """Further tools, told to the model and to the run's tool node. Where a name is taken, that tool stays."""
    model: ChatModel | None = None
    """Which model to ask: another one for this call."""
    run: RunContext[Any] | None = None
    """The node's run, to emit events, ask or record something."""


ModelCall = Callable[[ModelRequest], Awaitable[ModelResponse]]
"""The model call that an interceptor wraps: what is further inside, the model innermost."""

ModelInterceptor = Callable[[LlmRequest, ModelCall], Awaitable[ModelResponse]]
"""`async def (request, call) -> response`: may change the request, answer itself, or call on several times."""

Advisor = Callable[[LlmRequest], LlmRequest | Awaitable[LlmRequest]]
"""`def (request) -> request`, sync (it must not block) or async: prepares the request, and no more."""

_LOGGED_REASONING = 1000
"""How many characters of a model's reasoning a line of the log has at most."""

_CHECKED = "_checked"
"""Under this in `run.scratch`: the conversation that was last found valid, and has no instruction to fill in."""

_Interceptor = Callable[[ModelRequest, ModelCall], Awaitable[ModelResponse]]


class LlmNode:
    """Asks a model with the conversation in `state["messages"]`, and adds its answer to it.

    `model` is a client, or its name: "openai:gpt-4.1-mini", see `agentgraph.models.model`. The key needs the `Messages`
    strategy. Where it has no messages, `state["input"]` becomes the user's. `system_prompt` goes first; `instruction`
    is a template, filled in with the state, that belongs to the request and is not kept. `tools` are what the model may
    call, besides those in `run.scratch["tools"]`; it never runs one. `options` go to the provider as they are; `tools:
    []` among them hides all tools. The answer is written to `messages`, what it took to `_token_usage`, and its text to
    `output_key`. With `output_type` (a type that msgspec or pydantic knows) the answer must be JSON that fits, with
    `output_schema` (a JSON schema) it must be JSON; `output_key` gets the value. One that is wrong may be mended by the
    model, once.
    `advisors` prepare the request, one after the other, and `interceptors` wrap the call, the first outermost.
    `chunk_interceptors` stand between the model's stream and all that gets its pieces, the first outermost; they may
    change, drop and add pieces or stop the stream, and the message is what they let through. With `stream` the pieces
    are told as events while they arrive. `on_error="message"` turns a failed call into an assistant message that starts
    with `Exception: `. `log` tells of each call in the log named "agentgraph": round, finish reason, the first 200
    characters of the text, and of the reasoning the first 1,000.
    """

    needs: ClassVar[Mapping[str, str]] = {"messages": "the conversation"}
    """State keys whose strategy must keep what is there, and what they hold: `compile()` checks it."""

    def __init__(
        self,
        model: ChatModel | str,
        *,
        agent_name: str | None = None,
        system_prompt: str | None = None,
        instruction: str | None = None,
        template_renderer: TemplateRenderer = render,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        options: Mapping[str, Any] | None = None,
        output_key: str | None = None,
        output_schema: Mapping[str, Any] | None = None,
        output_type: Any = None,
        advisors: Sequence[Advisor] = (),
        interceptors: Sequence[ModelInterceptor] = (),
        chunk_interceptors: Sequence[ChunkInterceptor] = (),
        stream: bool = True,
        on_error: Literal["raise", "message"] = "raise",
        log: bool = False,
    ) -> None:
        model = as_model(model)
        if not isinstance(model, ChatModel):  # pyright: ignore[reportUnnecessaryIsInstance]  # users without a checker
            raise ConfigError(f"LlmNode needs a model with generate() and stream(), found {model!r:.80}")
        if on_error not in ("raise", "message"):
            raise ConfigError(f"LlmNode(on_error=...): {unknown('choice', on_error, ('raise', 'message'))}")
        self.model: ChatModel = model
        self.agent_name = agent_name
        self.system_prompt = system_prompt
        self.instruction = instruction
        self.tools: tuple[Tool, ...] = as_tools(tools, "LlmNode")
        self.options: dict[str, Any] = dict(options or {})
        self.output_key = output_key
        self.output: OutputFormat | None = OutputFormat.of(output_type, output_schema)
        self._render = template_renderer
        self._advisors: tuple[Advisor, ...] = callables(advisors, "LlmNode", "advisor", "a function of (request)")
        # what they get is an LlmRequest, what they call takes any request: one type will do inside
        self._interceptors = cast("tuple[_Interceptor, ...]", callables(interceptors, "LlmNode"))
        self.chunk_interceptors: tuple[ChunkInterceptor, ...] = generators(chunk_interceptors, "LlmNode")
        self.streams = stream
        self._on_error = on_error
        self._log = log

    async def __call__(self, state: Any, run: RunContext[Any]) -> Mapping[str, Any]:
        """Ask once. Raises `InputError` where there is nothing to ask, `ModelError` where the call failed."""
        given = as_mapping(state)
        round_ = run.next_iteration()
        conversation, changed = await self._conversation(given, run)
        asked = self._request(conversation.messages, given, run)
        asking = _Asking(self, run, conversation)

        async def ask() -> tuple[AssistantMessage, Usage | None]:
            request = asked
            for advisor in self._advisors:
                request = await _advised(advisor, request)
            answer = await self._answer(request, compose(self._interceptors, asking.ask), asking)
            return answer, asking.usage

        usage: Usage | None
        try:
            # what was answered is not asked again, should the process die before the step is stored
            answer, usage = await (run.once("answer", ask) if run.keeps else ask())
            value = self._value(answer)
        except Exception as error:
            usage = asking.usage
            if self._on_error == "raise":
                raise
            log.warning("node %r: the model call failed, and is told as a message", run.node, exc_info=error)
            answer = failed_answer(error)
            value = answer.text
        if self._log:
            name = self.agent_name or run.node
            if reasoning := "\n".join(part.text for part in answer.reasoning if part.text):
                log.info("%s: round %d, reasoning: %.*r", name, round_, _LOGGED_REASONING, reasoning)
            log.info("%s: round %d, %s: %.200r", name, round_, answer.finish_reason, answer.text)
        update: dict[str, Any] = {"messages": [*changed, answer]}
        if usage is not None:
            update["_token_usage"] = usage
        if self.output_key is not None and not answer.tool_calls:
            update[self.output_key] = value
        return update

    async def _answer(self, request: LlmRequest, call: ModelCall, asking: _Asking) -> AssistantMessage:
        """The answer. One whose form is wrong goes back to the model, once."""
        answer = asking.arrived(await call(request))
        try:
            self._value(answer)
        except OutputError as error:
            wrong = UserMessage(f"{error}. Answer again, with nothing but JSON that fits.")
            request = msgspec.structs.replace(request, messages=[*request.messages, answer, wrong])
            answer = asking.arrived(await call(request))
            self._value(answer)
        return answer

    def _value(self, answer: AssistantMessage) -> Any:
        """What the answer stands for: its text, or what the output's form makes of it. Raises `OutputError`."""
        plain = self.output is None or answer.tool_calls or is_failed_answer(answer)
        return answer.text if plain or self.output is None else self.output.parse(answer.text)

    async def _conversation(self, given: Mapping[str, Any], run: RunContext[Any]) -> tuple[Checked, list[Any]]:
        """The conversation to send, and the update that makes the state's messages the same."""
        messages: list[Message] = list(given.get("messages") or ())
        changed: list[Any] = []
        if _says_nothing(messages):
            spoken = given.get("input")
            if spoken in (None, "", []):
                raise InputError(
                    f"node {run.node!r} has nothing to ask: the state has neither messages nor input; "
                    f'invoke with {{"messages": [UserMessage("...")]}}'
                )
            if not isinstance(spoken, (UserMessage, InstructionMessage)):
                spoken = UserMessage(cast("list[Part]", spoken) if isinstance(spoken, list) else str(spoken))
            messages.append(spoken)
            changed.append(spoken)
        scratch = run.scratch
        known: Checked = scratch.get(_CHECKED, NOTHING_CHECKED).beginning(messages)
        filled_in = False
        for place in range(len(messages) - 1, len(known.messages) - 1, -1):
            message = messages[place]
            if isinstance(message, InstructionMessage) and not message.rendered:
                messages[place] = self._rendered(message, given, run)
                changed = [messages[place]]
                filled_in = True
                break
        conversation, repairs = known.extended(messages)
        if not filled_in:  # else another one may stand before it: what is known has none
            scratch[_CHECKED] = conversation
        if _says_nothing(conversation.messages):
            raise InputError(f"node {run.node!r} has nothing to ask: {'; '.join(repairs)}; no message is left to send")
        if repairs:
            log.warning("node %r repaired the conversation: %s", run.node, "; ".join(repairs))
            if run.has_reader:
                await run.emit(HistoryRepaired(repairs=repairs))
            changed = [RewriteMessages([m.id for m in messages], conversation.messages)]
        return conversation, changed

    def _rendered(
        self, message: InstructionMessage, given: Mapping[str, Any], run: RunContext[Any]
    ) -> InstructionMessage:
        lists = getattr(self._render, "takes_lists", False)
        text = self._render(message.text, values_for(given, run.config.metadata, lists=lists))
        return msgspec.structs.replace(message, text=text, rendered=True)

    def _request(self, messages: list[Message], given: Mapping[str, Any], run: RunContext[Any]) -> LlmRequest:
        systems = [m for m in messages if type(m) is SystemMessage]  # in a long conversation this is what a round costs
        spoken: list[Message] = [m for m in messages if type(m) is not SystemMessage] if systems else messages[:]
        if self.system_prompt is not None:
            systems.insert(0, SystemMessage(self.system_prompt))
        if len(systems) > 1:
            log.warning("node %r sends %d system messages; they are joined into one, in order", run.node, len(systems))
        system = SystemMessage("\n\n".join(s.text for s in systems)) if systems else None
        if self.instruction is not None:
            # with the turn's question, not at the end: there it would come anew after each tool's answer
            spoken.insert(_last_spoken(spoken) + 1, self._rendered(InstructionMessage(self.instruction), given, run))
        native = self.output is not None and getattr(self.model, "native_output_schema", False)
        if self.output is not None and not native:
            spoken = _with_format(spoken, self.output.prompt())
        return LlmRequest(
            messages=spoken,
            system=system,
            tools=_offered([t.spec for t in self.tools], tools_of_run(run).values()),
            output_schema=self.output.schema if native and self.output is not None else None,
            options=self.options.copy(),
            context={**run.config.metadata, **given},
            message_id=new_id(),
            model=self.model,
            run=run,
        )

    def __repr__(self) -> str:
        return f"<LlmNode {self.agent_name or ''} {self.model.name} tools={[t.name for t in self.tools]}>"


class _Asking:
    """The model calls of one round: what they took, and their answers made fit for the conversation."""

    __slots__ = ("_conversation", "_node", "_renamed", "_run", "_told", "usage")

    def __init__(self, node: LlmNode, run: RunContext[Any], conversation: Checked) -> None:
        self.usage: Usage | None = None
        self._node = node
        self._run = run
        self._conversation = conversation
        self._told: set[str] = set()
        self._renamed: dict[str, str] = {}

    async def ask(self, request: ModelRequest) -> ModelResponse:
        """Ask the model: what interceptors wrap, and may do several times."""
        run = self._run
        request = self._final(request)
        model = getattr(request, "model", None) or self._node.model
        stream = self._node.streams and bool(run.config.metadata.get("stream", True))
        listeners = telemetry.listeners()
        if listeners is None:
            response = await self._asked(model, request, stream=stream)
        else:
            with self._operation(listeners, model, request, stream=stream) as operation:
                response = await self._asked(model, request, stream=stream)
                operation.answered(response.message, response.message.usage)
        usage = response.message.usage
        if usage is not None:
            run.add_usage(usage)
            self.usage = usage if self.usage is None else self.usage + usage
        if response.message.id != request.message_id:
            message = msgspec.structs.replace(response.message, id=request.message_id)
            response = msgspec.structs.replace(response, message=message)
        return response

    def _final(self, request: ModelRequest) -> ModelRequest:
        """The request as the model gets it: with its tools, and an id that no reader has been told of."""
        changes: dict[str, Any] = {}
        if isinstance(request, LlmRequest) and request.dynamic_tools:
            run, tools = self._run, as_tools(request.dynamic_tools, "LlmRequest(dynamic_tools=...)")
            run.scratch["tools"] = {**tools_of_run(run), **{t.name: t for t in tools}}
            changes["tools"] = _offered(request.tools, tools)
        output = self._node.output if request.output_schema is not None else None
        asked = getattr(request, "model", None) or self._node.model
        if output is not None and not getattr(asked, "native_output_schema", False):
            # another model than the node's own, which takes no schema: the form is asked for in words
            changes["messages"] = _with_format(request.messages, output.prompt())
            changes["output_schema"] = None
        if request.options.get("tools") == []:
            changes["tools"] = []
            changes["options"] = {k: v for k, v in request.options.items() if k != "tools"}
        if request.message_id is None or request.message_id in self._told:
            changes["message_id"] = new_id()
        request = msgspec.structs.replace(request, **changes) if changes else request
        self._told.add(request.message_id or "")
        return request

    async def _asked(self, model: ChatModel, request: ModelRequest, *, stream: bool) -> ModelResponse:
        interceptors = self._node.chunk_interceptors
        if interceptors:
            deltas = model.stream(request) if stream else whole(model, request)
            deltas = intercepted(deltas, interceptors, request, model.name, self._run.heartbeat)
            response = await self._streamed(model, request, deltas, tell=stream)
        elif stream:
            response = await self._streamed(model, request, model.stream(request))
        else:
            response = await model.generate(request)
        return no_response(model.name, response)

    def _operation(
        self, listeners: telemetry.Listeners, model: ChatModel, request: ModelRequest, *, stream: bool
    ) -> telemetry.Operation:
        return telemetry.chat(
            listeners,
            model=model.name,
            provider=provider_of(model),
            base_url=getattr(model, "base_url", None),
            thread_id=self._run.config.thread_id,
            options=request.options,
            stream=stream,
            as_json=request.output_schema is not None,
            system=request.system,
            messages=request.messages,
            tools=request.tools,
        )

    async def _streamed(
        self, model: ChatModel, request: ModelRequest, given: AsyncGenerator[Delta, None], *, tell: bool = True
    ) -> ModelResponse:
        run = self._run
        response: ModelResponse | None = None
        begun = False
        try:
            async with aclosing(given) as deltas:
                async for delta in deltas:
                    if not isinstance(delta, Delta):  # pyright: ignore[reportUnnecessaryIsInstance]  # a user's model
                        raise no_delta(model.name, delta)
                    response = delta.response or response
                    says = tell and (delta.text or delta.reasoning or delta.index is not None)
                    begun = begun or bool(says)
                    if says and run.has_reader:
                        await run.emit(
                            ModelDelta(
                                message_id=request.message_id or "",
                                text=sound(delta.text),
                                reasoning=sound(delta.reasoning),
                                index=delta.index,
                                call_id=delta.call_id and self._call_id(sound(delta.call_id)),
                                name=delta.name and sound(delta.name),
                                arguments=sound(delta.arguments),
                            )
                        )
                    else:
                        run.heartbeat()
            if response is None:
                raise ModelError(f"model {model.name!r} ended its stream without an answer")
        except Exception as error:
            if begun:
                with suppress(AttributeError):  # of a class with slots
                    error.begun = True  # pyright: ignore[reportAttributeAccessIssue]  # on any class
            raise
        return response

    def arrived(self, response: ModelResponse) -> AssistantMessage:
        """The answer as it may join the conversation: sound text, ids that nothing there has, names as tools have them.

        Servers repeat the ids of calls, or send none; models make up tools such as "multi_tool_use.parallel", and
        providers refuse every later request with such a name in its history. Raises `ModelError` where there is no
        answer.
        """
        if not isinstance(response, ModelResponse):  # pyright: ignore[reportUnnecessaryIsInstance]  # an interceptor's
            raise TypeError(f"an interceptor must return a ModelResponse, found {type(response).__name__}")
        answer = sound_message(response.message)
        if not (answer.text.strip() or answer.tool_calls):
            through = ", or none that its chunk interceptors let through" if self._node.chunk_interceptors else ""
            raise ModelError(
                f"model {self._node.model.name!r} gave no answer: neither text nor a tool call{through} "
                f"(finish reason: {answer.finish_reason})"
            )
        if answer.id not in self._told and any(m.id == answer.id for m in self._conversation.messages):
            answer = msgspec.structs.replace(answer, id=new_id())
        if not answer.tool_calls:
            return answer
        seen: set[str] = set()
        calls: list[ToolCall] = []
        for call in answer.tool_calls:
            id = self._call_id(call.id)
            if not id or id in seen:
                id = f"call_{new_id()}"
            seen.add(id)
            name = call.name if self._has_tool(call.name) else clean_name(call.name)
            same = (id, name) == (call.id, call.name)
            calls.append(call if same else msgspec.structs.replace(call, id=id, name=name))
        return answer if calls == answer.tool_calls else msgspec.structs.replace(answer, tool_calls=calls)

    def _has_tool(self, name: str) -> bool:
        return name in tools_of_run(self._run) or any(tool.name == name for tool in self._node.tools)

    def _call_id(self, id: str) -> str:
        """The id that a call of this answer has here: another one where the conversation has it already."""
        return self._renamed.setdefault(id, f"call_{new_id()}") if self._conversation.has_call(id) else id


async def _advised(advisor: Advisor, request: LlmRequest) -> LlmRequest:
    prepared = advisor(request)
    if inspect.isawaitable(prepared):
        prepared = await prepared
    if not isinstance(prepared, LlmRequest):  # pyright: ignore[reportUnnecessaryIsInstance]  # users without a checker
        raise TypeError(f"an advisor must return the request, changed or not; {advisor!r:.80} gave {prepared!r:.80}")
    return prepared


def _offered(specs: list[ToolSpec], tools: Iterable[Tool]) -> list[ToolSpec]:
    """The tools that a model is told of: these, and further ones whose names are free."""
    names = {s.name for s in specs}
    return [*specs, *(t.spec for t in tools if t.name not in names)]


def failed_answer(error: Exception) -> AssistantMessage:
    """What stands in the conversation for an answer that could not be had."""
    text = sound(f"Exception: {str(error) or type(error).__name__}")
    return AssistantMessage(text, finish_reason="error", metadata={"error": type(error).__name__})


def is_failed_answer(message: AssistantMessage) -> bool:
    """Whether `failed_answer` has made it. By its metadata: a model may well begin a text with "Exception: "."""
    return message.finish_reason == "error" and "error" in message.metadata


def _says_nothing(messages: Sequence[Message]) -> bool:
    return all(isinstance(m, SystemMessage) for m in messages)


def _last_spoken(messages: Sequence[Message]) -> int:
    """The place of the last user or instruction message; -1 where there is none."""
    places = range(len(messages) - 1, -1, -1)
    return next((i for i in places if isinstance(messages[i], (UserMessage, InstructionMessage))), -1)


def _with_format(messages: list[Message], text: str) -> list[Message]:
    """The messages with the output format at the end of the last user or instruction message, unless it is there."""
    place = _last_spoken(messages)
    if place < 0:
        return [*messages, UserMessage(text)]
    message = messages[place]
    if text in message.text:
        return messages
    if not isinstance(message, UserMessage):
        changed: Message = msgspec.structs.replace(message, text=f"{message.text}\n\n{text}")
    elif isinstance(message.content, str):
        changed = msgspec.structs.replace(message, content=f"{message.content}\n\n{text}")
    else:
        changed = msgspec.structs.replace(message, content=[*message.content, TextPart(text)])
    return [*messages[:place], changed, *messages[place + 1 :]]
