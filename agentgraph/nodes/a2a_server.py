"""An agent served over the A2A protocol: its card, what runs it, and the web application.

The rules:
- A task's run is one task of the event loop, and ends before its execution does: cancelled by the client, by the
  server's end or by itself, nothing of it is left, and it tells the client of nothing any more.
- After a state that ends a task nothing is told of it: the SDK refuses that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, cast
from urllib.parse import quote, urlsplit

import msgspec
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Message, Task, TaskState, TaskStatus
from a2a.types import Part as A2aPart
from starlette.applications import Starlette

from agentgraph.config import RunConfig
from agentgraph.context import Interrupt
from agentgraph.errors import ConfigError, listed
from agentgraph.events import Event, ModelDelta, NodeFinished, plain
from agentgraph.messages import AssistantMessage, ToolResponseMessage, UserMessage
from agentgraph.node import Command, as_mapping
from agentgraph.nodes.a2a_parts import as_user_message, data_in, data_part, text_part
from agentgraph.nodes.tool import Tool
from agentgraph.tasks import all_ended

__all__ = ["A2aExecutor", "a2a_app", "agent_card"]

log: logging.Logger = logging.getLogger("agentgraph")

_PIECE = 32
"""How many characters a piece of a streamed answer has at least: each costs a copy of the task."""

_ANSWER = "answer"
"""The id and the name of the artifact that is the agent's answer."""


def agent_card(
    agent: Any,
    url: str,
    *,
    name: str | None = None,
    description: str | None = None,
    version: str = "1.0.0",
    skills: Iterable[AgentSkill | Tool] = (),
) -> AgentCard:
    """What the world is told of an agent that is served at `url`.

    `name` and `description` are the agent's own, if not given; `skills` are what it can do, for those that choose among
    agents: the SDK's `AgentSkill`s, or tools, whose names and descriptions are told. Without any, the agent is its one
    skill. The card names both of HTTP's bindings, JSON-RPC and REST, in version 1.0 of the protocol, and JSON-RPC in
    0.3. It is the SDK's own object: what else there is to say (a provider, security schemes) is set on it.

    Raises `ConfigError` for a `url` that is none.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(f"agent_card(url=...) is where clients reach the agent, 'https://...'; found {url!r:.80}")
    name = name or getattr(agent, "name", "") or "agent"
    description = description or getattr(agent, "description", "") or f"The agent {name}."
    told = [_skill(skill) for skill in skills]
    bindings = (("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3"))
    return AgentCard(
        name=name,
        description=description,
        version=version,
        supported_interfaces=[AgentInterface(url=url, protocol_binding=b, protocol_version=v) for b, v in bindings],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain", "application/json", "image/*"],
        default_output_modes=["text/plain", "application/json"],
        skills=told or [AgentSkill(id=name, name=name, description=description, tags=["agent"])],
    )


def _skill(skill: AgentSkill | Tool) -> AgentSkill:
    if isinstance(skill, Tool):
        return AgentSkill(id=skill.name, name=skill.name, description=skill.description or skill.name, tags=["tool"])
    return skill


def a2a_app(
    agent: Any,
    card: AgentCard | str,
    *,
    task_store: TaskStore | None = None,
    config: RunConfig | None = None,
    context: Callable[[RequestContext], Any] | None = None,
    thread_id: Callable[[str, RequestContext], str] | None = None,
    input: Callable[[UserMessage], Any] | None = None,
    output: Callable[[Any], Any] | None = None,
    tell: Callable[[Event], str | None] | None = None,
    error_text: Callable[[Exception], str] | None = None,
) -> Starlette:
    """An agent as a web application that speaks A2A: for uvicorn and the like.

        uvicorn.run(a2a_app(agent, "http://localhost:8000"), port=8000)

    `agent`: a `ReactAgent`, a flow or a compiled graph. `card`: what `agent_card` makes, or the URL alone. Its URL's
    path is where both bindings are served; the card is at `/.well-known/agent-card.json`. `task_store` is where the SDK
    keeps tasks, in this process if not given. The other options are those of `A2aExecutor`. The application's lifespan
    ends what is under way, with the server.

    Raises `ConfigError` for what cannot be served.
    """
    executor = A2aExecutor(
        agent,
        config=config,
        context=context,
        thread_id=thread_id,
        input=input,
        output=output,
        tell=tell,
        error_text=error_text,
    )
    if isinstance(card, str):
        card = agent_card(agent, card)
    handler = DefaultRequestHandler(executor, task_store or InMemoryTaskStore(), card)
    path = urlsplit(card.supported_interfaces[0].url).path.rstrip("/")

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await handler.aclose()

    return Starlette(
        routes=[
            *create_agent_card_routes(card),
            *create_jsonrpc_routes(handler, path or "/", enable_v0_3_compat=True),
            *create_rest_routes(handler, path_prefix=path),
        ],
        lifespan=lifespan,
    )


class A2aExecutor(AgentExecutor):
    """Runs an agent for the SDK's server: for those who put their own together.

    A message becomes a user's message, or what `input` makes of it; the answer is the result's text, with its `output`
    as data where that is no text, or what `output(result)` gives: a text, or a value for data. The run's thread is the
    message's context id, below the name of the user where one is authenticated; `thread_id(context_id, request)` names
    another. Without a checkpointer each message is a conversation of its own. `config` is that of each run, but for its
    thread, and `context(request)` gives the caller's own object.

    What the model says is told while it says it. `tell(event)` may give words for other events, which the client gets
    as the state of its task. A question ends the request as "input required"; the next message of the task answers it:
    one open question by its text or its data, several by data `{"answers": {id: answer}}`. What fails, fails the task,
    with `error_text(error)`, which names only the error's type unless it is given; the log has it all.
    """

    def __init__(
        self,
        agent: Any,
        *,
        config: RunConfig | None = None,
        context: Callable[[RequestContext], Any] | None = None,
        thread_id: Callable[[str, RequestContext], str] | None = None,
        input: Callable[[UserMessage], Any] | None = None,
        output: Callable[[Any], Any] | None = None,
        tell: Callable[[Event], str | None] | None = None,
        error_text: Callable[[Exception], str] | None = None,
    ) -> None:
        if not hasattr(agent, "stream") or not hasattr(agent, "plan"):
            told = "; call compile() on it first" if hasattr(agent, "compile") else ""
            raise ConfigError(f"A2A: an agent is a ReactAgent, a flow or a compiled graph, found {agent!r:.80}{told}")
        if input is None and not agent.plan.schema.knows("messages"):
            raise ConfigError("A2A: the graph's state has no 'messages'; say by input= what a message is to it")
        self._agent = agent
        self._app: Any = getattr(agent, "app", agent)
        self._config = config or RunConfig()
        self._context = context
        self._thread_id = thread_id or _thread_of
        self._input = input or _messages
        self._output = output or _output_of
        self._tell = tell
        self._error_text = error_text or _error_text
        self._runs: dict[str, _Run] = {}

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Run the agent on the request's message, to its answer, its question, or its error."""
        task_id = context.task_id or ""
        updater = TaskUpdater(event_queue, task_id, _context_id(context))
        work = asyncio.create_task(self._work(context, event_queue, updater), name=f"A2A task {task_id}")
        run = self._runs[task_id] = _Run(work)
        try:
            await asyncio.wait((work,))
            if work.cancelled():
                with suppress(RuntimeError):  # it had come to its end just before
                    await updater.cancel()
            else:
                work.result()
        finally:
            work.cancel()
            await all_ended((work,))
            del self._runs[task_id]
            run.over.set()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """End the task's run; it has ended when this returns."""
        run = self._runs.get(context.task_id or "")
        if run is None:  # it waits for an answer
            await TaskUpdater(event_queue, context.task_id or "", _context_id(context)).cancel()
            return
        run.work.cancel()
        await run.over.wait()

    async def _work(self, context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        request, task = cast("Message", context.message), context.current_task
        is_answer = task is not None and task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        if task is None:
            status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
            await queue.enqueue_event(
                Task(id=updater.task_id, context_id=updater.context_id, status=status, history=[request])
            )
        message = as_user_message(request)
        if message is None:
            await updater.reject(updater.new_agent_message([text_part("The message says nothing.")]))
            return
        await updater.start_work()
        try:
            config = msgspec.structs.replace(self._config, thread_id=self._thread_id(updater.context_id, context))
            given: Any = self._input(message)
            if is_answer:
                given = await self._resumed(request, message, config)
            if isinstance(given, _Unclear):
                await self._ask(updater, given.questions, given.why)
                return
            result = await self._run(given, config, context, updater)
        except Exception as error:
            log.exception("A2A task %s: the agent failed", updater.task_id)
            await self._fail(updater, self._error_text(error))
            return
        if result is None:
            return
        if result.status == "interrupted" and self._app.keeper is not None:
            await self._ask(updater, result.interrupts)
        elif result.status == "interrupted":
            log.error("A2A task %s: the agent asks, and keeps no threads: give it a checkpointer", updater.task_id)
            await self._fail(updater, "The agent has a question, and cannot wait for its answer.")
        else:
            await self._fail(updater, "The server stopped the agent before its end.")

    async def _run(self, given: Any, config: RunConfig, context: RequestContext, updater: TaskUpdater) -> Any:
        """Run, and tell of it. None where that came to a good end, and has been told."""
        answer = _Answer(updater)
        own = None if self._context is None else self._context(context)
        async with self._agent.stream(given, config, context=own) as events:
            async for event in events:
                await answer.take(event)
                if self._tell is not None and (text := self._tell(event)):
                    await updater.start_work(updater.new_agent_message([text_part(text)]))
        result = events.result
        if result.status != "done":
            return result
        await answer.end(self._output(result))
        await updater.complete()
        return None

    async def _resumed(self, request: Message, message: UserMessage, config: RunConfig) -> Any:
        """What goes on with the thread: answers to its open questions, by their ids."""
        found = await self._app.state(config)
        questions: tuple[Interrupt, ...] = () if found is None else found.interrupts
        values = data_in(request.parts)
        if not questions:
            if found is not None and found.next:
                return None  # it has stopped before a node, and asked nothing
            raise LookupError("the question that this message answers is not open any more")
        ids = {question.id for question in questions}
        named: Any = (
            cast("dict[str, Any]", values[0]).get("answers") if values and isinstance(values[0], dict) else None
        )
        if isinstance(named, dict):
            answers = cast("dict[str, Any]", named)
            if answers and answers.keys() <= ids:
                return Command[str](resume=answers)
            return _Unclear(questions, f"There is no question {listed(sorted(answers.keys() - ids))}.")
        if len(ids) > 1:
            return _Unclear(questions, "Several questions are open: answer by data, {'answers': {id: answer}}.")
        return Command[str](resume={ids.pop(): values[0] if values else message.content})

    async def _ask(self, updater: TaskUpdater, questions: Iterable[Interrupt], why: str = "") -> None:
        parts = [text_part(why)] if why else []
        for question in questions:
            shown = plain(question.value)
            text = shown if isinstance(shown, str) else msgspec.json.encode(shown).decode()
            data = {"id": question.id, "value": shown}
            if question.error:
                text, data["error"] = f"{text}\n{question.error}", question.error
            parts += [text_part(text), data_part(data)]
        told = parts or [text_part("The agent has stopped, and goes on with the next message.")]
        await updater.requires_input(updater.new_agent_message(told))

    async def _fail(self, updater: TaskUpdater, text: str) -> None:
        await updater.failed(updater.new_agent_message([text_part(text)]))

    def __repr__(self) -> str:
        return f"<A2aExecutor {self._agent!r} running={len(self._runs)}>"


class _Run:
    """One execution under way."""

    def __init__(self, work: asyncio.Task[None]) -> None:
        self.work = work
        self.over = asyncio.Event()


class _Unclear(msgspec.Struct, frozen=True):
    """An answer that cannot be given to a question."""

    questions: tuple[Interrupt, ...]
    why: str


class _Answer:
    """The artifact that is the agent's answer: what one message says, piece by piece, until another one takes over."""

    def __init__(self, updater: TaskUpdater) -> None:
        self._updater = updater
        self._message = ""
        self._path: tuple[str, ...] | None = None
        self._ignored: set[str] = set()
        self._sent = ""
        self._held = ""

    async def take(self, event: Event) -> None:
        if isinstance(event, NodeFinished) and event.path == self._path:
            self._path = None
        if not isinstance(event, ModelDelta) or not event.text or event.message_id in self._ignored:
            return
        if event.message_id != self._message:
            if self._path is not None and self._path != event.path:  # another node speaks at the same time
                self._ignored.add(event.message_id)
                return
            self._message, self._path = event.message_id, event.path
            self._sent = self._held = ""
        if len(self._held) >= _PIECE:  # something is held back, to be told as the last piece
            await self._add([text_part(self._held)], last=False)
            self._sent += self._held
            self._held = ""
        self._held += event.text

    async def end(self, output: Any) -> None:
        """Tell the rest, or in the place of all that was told what it has come to."""
        text, *rest = cast("tuple[Any, ...]", output if isinstance(output, tuple) else (output,))
        parts: list[A2aPart] = []
        if isinstance(text, str) and text == self._sent + self._held:
            parts += [text_part(self._held)] if self._held else []
        else:
            self._sent = ""
            parts += [text_part(text)] if isinstance(text, str) and text else []
        if not isinstance(text, str) and text is not None:
            parts.append(data_part(text))
        parts += [data_part(value) for value in rest]
        if parts:
            await self._add(parts, last=True)

    async def _add(self, parts: list[A2aPart], *, last: bool) -> None:
        await self._updater.add_artifact(parts, _ANSWER, _ANSWER, append=bool(self._sent), last_chunk=last)


def _context_id(request: RequestContext) -> str:
    """The task's; a message that names the task alone has a new one, by which nothing is known."""
    task = request.current_task
    return task.context_id if task is not None else request.context_id or ""


def _thread_of(context_id: str, request: RequestContext) -> str:
    user = request.call_context.user
    if not user.is_authenticated:
        return context_id.replace("%", "%25").replace("/", "%2F")  # else it could name a user's thread
    # quoted: of no two users and contexts the threads may be the same
    return f"{quote(user.user_name, safe='')}/{context_id}"


def _messages(message: UserMessage) -> dict[str, Any]:
    return {"messages": [message]}


def _output_of(result: Any) -> Any:
    """The answer's text, and behind it the output where that is more than the text; or a graph's state."""
    text = getattr(result, "text", None)
    if text is not None:
        return text if result.output is None or isinstance(result.output, str) else (text, result.output)
    state: Mapping[str, Any] = as_mapping(result.state)
    messages: list[Any] = list(state.get("messages") or ())
    for message in reversed(messages):
        if isinstance(message, (AssistantMessage, ToolResponseMessage)):
            return message.text
    return {key: value for key, value in state.items() if not key.startswith("_") and key != "messages"}


def _error_text(error: Exception) -> str:
    return f"The agent failed: {type(error).__name__}."
