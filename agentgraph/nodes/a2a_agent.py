"""A remote agent, called over the A2A protocol.

The rules:
- What a server was asked is followed to its end, over lost connections: a task is asked for again by its id, and a
  message is never sent twice where it is known to have begun a task.
- Who leaves before the end (cancelled, out of time) tells the server so.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Final, Self, cast
from urllib.parse import urlsplit

import anyio
import httpx
import msgspec
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientError, A2AClientTimeoutError, AgentCardResolutionError
from a2a.server.tasks.task_manager import append_artifact_to_task
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskNotFoundError,
    TaskState,
    TaskStatus,
    UnsupportedOperationError,
)
from a2a.types import Part as A2aPart
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from a2a.utils.errors import A2AError
from google.protobuf.json_format import ParseError

from agentgraph.checkpoint.protocol import Checkpointer
from agentgraph.compiled import CompiledGraph, RunStream, run_sync
from agentgraph.config import RunConfig, positive
from agentgraph.context import RunContext
from agentgraph.errors import AgentGraphError, ConfigError, InputError
from agentgraph.events import Custom, ModelDelta
from agentgraph.graph import StateGraph
from agentgraph.messages import NO_OUTPUT, AssistantMessage, InstructionMessage, UserMessage, new_id
from agentgraph.messages import Message as OurMessage
from agentgraph.node import END, START, Updates, as_mapping
from agentgraph.nodes.a2a_parts import as_parts, data_in, data_part, files_in, text_in, text_part
from agentgraph.nodes.agent_tool import agent_tool
from agentgraph.nodes.limiter import Limiter
from agentgraph.nodes.result import OUTPUT, AgentResult, as_given, as_result
from agentgraph.nodes.tool import Tool
from agentgraph.strategies import UNSET, Messages, Replace
from agentgraph.tasks import all_ended
from agentgraph.threads import ThreadCall

__all__ = ["A2aAgent", "A2aConnectionError", "A2aError", "A2aTimeoutError"]

log: logging.Logger = logging.getLogger("agentgraph")

_GOODBYE_SECONDS = 5.0
_RECONNECTS = 8
_POLL_SECONDS = (0.2, 5.0)
"""How long to wait before a task is asked for again: at first, and at most."""

_BINDINGS: Final = ("JSONRPC", "HTTP+JSON")
_ASKS: Final = (TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED)
_BAD: Final = (TaskState.TASK_STATE_FAILED, TaskState.TASK_STATE_REJECTED, TaskState.TASK_STATE_CANCELED)
_ENDED: Final = (TaskState.TASK_STATE_COMPLETED, *_BAD)


@functools.cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()


class A2aError(AgentGraphError):
    """A remote agent failed, or refused.

    `agent` is its name, `task_id` its task's, where there was one, and `state` the task's state: "failed".
    """

    def __init__(self, message: str, *, agent: str, task_id: str | None = None, state: str | None = None) -> None:
        super().__init__(f"remote agent {agent!r}: {message}")
        self.agent = agent
        self.task_id = task_id
        self.state = state


class A2aConnectionError(A2aError, ConnectionError):
    """A remote agent cannot be reached, or was lost. A node's `Retry` tries it again."""


class A2aTimeoutError(A2aError, TimeoutError):
    """A remote agent has not come to its end in time. It was told to stop."""


class _Reply(msgspec.Struct, frozen=True):
    """What a message has led to: the end of the task, or its question."""

    state: str
    task_id: str
    context_id: str
    message_id: str
    text: str
    data: list[Any]

    @property
    def asks(self) -> bool:
        return self.state in ("input-required", "auth-required")


class A2aAgent:
    """An agent that runs elsewhere and is called over A2A: as an agent, as a node of a graph, as a tool.

        remote = A2aAgent("https://weather.example", name="weather")
        result = await remote.run("How is it in Bern?")

    `agent` is its URL, below which its card lies at `/.well-known/agent-card.json`, or the URL of the card (which ends
    with .json), or the card. The card is asked for at the first call, and once. `name` is what errors, events and
    graphs call it, in place of the card's name or the URL's host; `description` is for those that choose among agents.

    What was said in the conversation since its last answer is sent, in one message, with its images and files; what was
    before is known there, by the context id, which goes with the answers (`message.metadata["a2a"]`). So a conversation
    goes on as one of a `ReactAgent`: on a thread with a `checkpointer`, or where the messages are given back. What is
    answered is a message with the text of the task's artifacts, or of its last status; `output` is the data among them,
    if any, else the text. While it comes, readers get it as `ModelDelta`s, and what is said of the work as `Custom`s.

    Where the remote agent asks something ("input required", "auth required") the run asks: an interrupt, whose value
    has "agent", "question", "data" and "state". Its answer, a text or any value, is sent as the task's next message. A
    failed, rejected or cancelled task is an `A2aError`.

    `timeout`: seconds from a message to its answer, 300 by default; None: no limit. Then, and when the run is
    cancelled, the remote task is cancelled too. `connect_timeout`: seconds to be connected in. `headers` go with each
    request, to the URL's host only: a card that names another, or one without TLS, is refused. With `http_client`, an
    `httpx.AsyncClient`, its own settings hold, and it stays open. In an `async with` block connections are kept between
    calls.

    Raises `ConfigError` for options that cannot be meant.
    """

    def __init__(
        self,
        agent: str | AgentCard,
        *,
        name: str | None = None,
        description: str | None = None,
        headers: Mapping[str, str] | None = None,
        http_client: httpx.AsyncClient | None = None,
        timeout: float | None = 300.0,
        connect_timeout: float = 30.0,
        output_key: str | None = None,
        checkpointer: Checkpointer | None = None,
    ) -> None:
        if isinstance(agent, str) and not (urlsplit(agent).scheme in ("http", "https") and urlsplit(agent).netloc):
            raise ConfigError(f"A2aAgent takes the URL of an agent, 'https://...', or its card; found {agent!r:.80}")
        if headers and http_client is not None:
            raise ConfigError("A2aAgent: an http_client has headers of its own: httpx.AsyncClient(headers=...)")
        positive("A2aAgent(timeout=...)", timeout)
        positive("A2aAgent(connect_timeout=...)", connect_timeout, needed=True)
        self._url = agent if isinstance(agent, str) else None
        self._card = agent if isinstance(agent, AgentCard) else None
        self.name: str = name or (agent.name if isinstance(agent, AgentCard) else urlsplit(agent).netloc)
        self._description = description
        self._headers = dict(headers or {})
        self._http_client = http_client
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._pool: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._checkpointer = checkpointer
        self.output_key = output_key
        strategies: Any = {"messages": Messages(), "input": Replace(), output_key or OUTPUT: Replace()}
        self.graph: StateGraph[dict[str, Any]] = StateGraph(strategies=strategies)
        self.graph.add_node("remote", self._answer)
        self.graph.add_edge(START, "remote").add_edge("remote", END)

    @property
    def description(self) -> str:
        """What it is for: as given, or as its card says, once that is known."""
        return self._description or (self._card.description if self._card is not None else "")

    @functools.cached_property
    def app(self) -> CompiledGraph[dict[str, Any]]:
        """The compiled graph, made at the first use."""
        return self.graph.compile(name=self.name, checkpointer=self._checkpointer)

    @property
    def plan(self) -> Any:
        """By this the agent is a graph as a node of another one."""
        return self.app.plan

    async def run(self, input: Any, config: RunConfig | None = None, *, context: Any = None) -> AgentResult:
        """Answer `input`: a text, a message, a list of messages, or a state; see `ReactAgent.run`.

        Raises `A2aError`. After cancellation the server has been told to stop.
        """
        given = as_given(input)
        return self._result(await self.app.invoke(given, config, context=context), given)

    def run_sync(self, input: Any, config: RunConfig | None = None, *, context: Any = None) -> AgentResult:
        """`run` for code without an event loop. Raises `SyncInLoopError` where one runs in this thread."""
        return run_sync(lambda: self.run(input, config, context=context), "run_sync()", "await agent.run(...)")

    def stream(
        self, input: Any, config: RunConfig | None = None, *, context: Any = None, buffer: int = 256
    ) -> RunStream[AgentResult]:
        """Answer `input`, and read what happens: see `CompiledGraph.stream`. Its `result` is an `AgentResult`."""
        given = as_given(input)
        run = self.app.stream(given, config, context=context, buffer=buffer)

        async def told(start: Callable[[], Any]) -> AgentResult:
            return self._result(await start(), given)

        return run.within(told)

    def as_tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
        return_direct: bool = False,
        max_parallel: int | Limiter | None = None,
    ) -> Tool:
        """This agent as a tool for another, each call a conversation of its own: see `ReactAgent.as_tool`."""
        return agent_tool(
            self,
            name=name,
            description=description,
            timeout=timeout,
            return_direct=return_direct,
            max_parallel=max_parallel,
        )

    async def __call__(
        self,
        state: Any,
        run: RunContext[Any],
        /,
        *,
        input: Mapping[str, str] | None = None,
        output: Mapping[str, str] | None = None,
    ) -> Updates:
        """Run as a node of another graph: see `CompiledGraph.__call__`."""
        updates = await self.app(state, run, input=input, output=output)
        return Updates({k: v for k, v in update.items() if k != OUTPUT} for update in updates)

    async def card(self) -> AgentCard:
        """The remote agent's card. Raises `A2aConnectionError` where it cannot be had."""
        if self._card is None:
            async with self._http() as client:
                await self._fetch(client)
        return cast("AgentCard", self._card)

    async def __aenter__(self) -> Self:
        """Keep connections between calls, in this event loop, until the block is left."""
        if self._pool is not None:
            raise RuntimeError(f"the block of remote agent {self.name!r} has been entered already")
        self._pool = await self._new_http()
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.aclose()

    def _result(self, ended: Any, given: Any) -> AgentResult:
        return as_result(ended, given, self.output_key or OUTPUT)

    async def _answer(self, state: Any, run: RunContext[Any]) -> Mapping[str, Any]:
        """The node: what the last message has led to, over all questions to the end."""
        given = as_mapping(state)
        messages: list[OurMessage] = list(given.get("messages") or ())
        asked: list[OurMessage] = []
        if not messages and (spoken := given.get("input")):
            messages = asked = [spoken if isinstance(spoken, UserMessage) else UserMessage(spoken)]
        parts, context_id = self._told_and_known(messages)
        if not parts:
            raise InputError(f"node {run.node!r} has nothing to say to remote agent {self.name!r}: no message, no text")
        reply = _Reply(**await run.once("reply", lambda: self._first(parts, context_id, run)))
        answers = 0
        while reply.asks:
            question = {"agent": self.name, "question": reply.text, "data": reply.data, "state": reply.state}
            answer = run.interrupt(question)
            answers += 1
            task = (reply.task_id, reply.context_id)
            reply = _Reply(**await run.once(f"reply {answers}", lambda: self._next(task, answer, run)))  # noqa: B023  # awaited here
        told = {"agent": self.name, "context_id": reply.context_id, "task_id": reply.task_id}
        message = AssistantMessage(reply.text, finish_reason="stop", id=reply.message_id, metadata={"a2a": told})
        output = reply.text if not reply.data else reply.data[0] if len(reply.data) == 1 else reply.data
        return {"messages": [*asked, message], self.output_key or OUTPUT: output}

    def _told_and_known(self, messages: Sequence[OurMessage]) -> tuple[list[A2aPart], str]:
        """What was said since the remote agent's last answer, and by what it knows this conversation, if it does."""
        new: list[list[A2aPart]] = []
        for message in reversed(messages):
            told = cast("dict[str, Any]", message.metadata.get("a2a") or {})
            if told.get("agent") == self.name:
                return [part for parts in reversed(new) for part in parts], str(told.get("context_id", ""))
            if isinstance(message, (UserMessage, InstructionMessage, AssistantMessage)):
                new.append(as_parts(message))
        return [part for parts in reversed(new) for part in parts], ""

    async def _first(self, parts: list[A2aPart], context_id: str, run: RunContext[Any]) -> dict[str, Any]:
        """Begin a task, or go on with the one that this node has begun before it was interrupted."""
        attempt = 0
        while True:
            begun = run.recorded(f"task {attempt}")
            async with self._talk(run) as talk:
                if begun is UNSET:
                    await talk.send(parts, context_id, "", attempt)
                else:
                    await talk.follow(str(begun))
                if begun is UNSET or not (talk.is_gone or talk.state == TaskState.TASK_STATE_CANCELED):
                    return talk.reply()
            attempt += 1

    async def _next(self, task: tuple[str, str], answer: Any, run: RunContext[Any]) -> dict[str, Any]:
        """Answer the task's question, unless it has gone on without."""
        parts = [text_part(answer)] if isinstance(answer, str) else [data_part(answer)]
        async with self._talk(run) as talk:
            task_id, context_id = task
            await talk.look(task_id)
            if talk.is_gone:
                raise A2aError(
                    "it does not know the task any more that it has asked in", agent=self.name, task_id=task_id
                )
            if talk.state in _ASKS:
                await talk.send(parts, context_id, task_id)
            elif talk.state not in _ENDED:
                await talk.follow(task_id)
            return talk.reply()

    @asynccontextmanager
    async def _talk(self, run: RunContext[Any]) -> AsyncGenerator[_Talk]:
        """A block in which the remote agent is talked to. Left before the end, it is told to stop."""
        talk: _Talk | None = None
        try:
            async with self._http() as http, asyncio.timeout(self._timeout):
                card = self._card or await self._fetch(http)
                talk = _Talk(self.name, self._client(http, card), card.capabilities.streaming, run)
                try:
                    yield talk
                except (asyncio.CancelledError, TimeoutError):
                    with anyio.move_on_after(_GOODBYE_SECONDS, shield=True):
                        await talk.stop()
                    raise
                finally:
                    await talk.close()
        except AgentGraphError:
            raise
        except TimeoutError as error:
            seconds = f"no answer within {self._timeout or 0:g} s; it was told to stop"
            raise A2aTimeoutError(seconds, agent=self.name, task_id=talk.task_id if talk else None) from error
        except (A2AError, httpx.HTTPError) as error:
            raise self._told(error, talk) from error
        except (ParseError, ValueError) as error:  # of another version, or nothing that the protocol knows
            task_id = talk.task_id if talk is not None else None
            raise A2aError(f"what it said is not valid: {error}", agent=self.name, task_id=task_id) from error

    def _told(self, error: Exception, talk: _Talk | None) -> A2aError:
        task_id = talk.task_id if talk is not None else None
        where = f" ({self._url})" if self._url else ""
        if isinstance(error, AgentCardResolutionError):
            return A2aConnectionError(f"its card cannot be had: {error}", agent=self.name)
        if isinstance(error, (A2AClientTimeoutError, httpx.HTTPError)) or _is_lost(error):
            return A2aConnectionError(
                f"it was lost, or cannot be reached{where}: {error}", agent=self.name, task_id=task_id
            )
        return A2aError(f"it refused: {error}", agent=self.name, task_id=task_id)

    @asynccontextmanager
    async def _http(self) -> AsyncGenerator[httpx.AsyncClient]:
        if self._http_client is not None:
            yield self._http_client
        elif self._pool is not None and self._loop is asyncio.get_running_loop():
            yield self._pool
        else:
            async with await self._new_http() as client:
                yield client

    async def _new_http(self) -> httpx.AsyncClient:
        tls = await ThreadCall().run(_tls)  # it reads the certificates
        timeout = httpx.Timeout(self._connect_timeout, read=None, pool=None)  # what an answer may take says `timeout`
        return httpx.AsyncClient(headers=self._headers, timeout=timeout, verify=tls)

    async def _fetch(self, http: httpx.AsyncClient) -> AgentCard:
        url = cast("str", self._url)
        base, path = (url, AGENT_CARD_WELL_KNOWN_PATH) if not url.endswith(".json") else url.rsplit("/", 1)
        try:
            async with asyncio.timeout(self._connect_timeout):
                card = await A2ACardResolver(http, base, path).get_agent_card()
        except TimeoutError:
            raise A2aConnectionError(
                f"its card cannot be had from {url}: no answer within {self._connect_timeout:g} s", agent=self.name
            ) from None
        except AgentCardResolutionError as error:
            raise A2aConnectionError(f"its card cannot be had: {error}", agent=self.name) from error
        if self._headers:
            self._check_hosts(url, card)
        self._card = card
        return card

    def _check_hosts(self, url: str, card: AgentCard) -> None:
        """Raise `A2aError` where the headers would go elsewhere than to whom they are meant for, or in the clear."""
        own = urlsplit(url)
        for interface in card.supported_interfaces:
            parts = urlsplit(interface.url)
            if interface.protocol_binding in _BINDINGS and (
                parts.hostname != own.hostname or (own.scheme == "https" and parts.scheme != "https")
            ):
                raise A2aError(
                    f"the card from {url} names {interface.url!r}, which the headers are not meant for; look at the "
                    f"card, and give it itself: A2aAgent(card)",
                    agent=self.name,
                )

    def _client(self, http: httpx.AsyncClient, card: AgentCard) -> Client:
        config = ClientConfig(httpx_client=http, supported_protocol_bindings=list(_BINDINGS))
        config.polling = not card.capabilities.streaming
        try:
            return ClientFactory(config).create(card)
        except ValueError as error:
            raise A2aError(f"its card names no binding that is known here: {error}", agent=self.name) from error

    def __repr__(self) -> str:
        return f"<A2aAgent {self.name} {self._url or 'by its card'}>"


class _Talk:
    """One exchange with a server: what it has said of the task so far."""

    def __init__(self, agent: str, client: Client, streams: bool, run: RunContext[Any]) -> None:
        self._agent = agent
        self._client = client
        self._streams = streams
        self._run = run
        self._task = Task()
        self._said: Message | None = None
        self._told = ""
        self._message_id = new_id()
        self._lost = 0
        self._sending: asyncio.Task[None] | None = None
        self._answered = asyncio.Event()
        self.is_gone = False
        """The server does not know the task any more."""

    @property
    def task_id(self) -> str:
        return self._task.id

    @property
    def state(self) -> int:
        return TaskState.TASK_STATE_COMPLETED if self._said is not None else self._task.status.state

    async def send(self, parts: list[A2aPart], context_id: str, task_id: str, attempt: int | None = None) -> None:
        """Send a message, and follow what comes of it. The id of a task that it begins is recorded at once."""
        message = Message(message_id=new_id(), role=Role.ROLE_USER, parts=parts, context_id=context_id, task_id=task_id)
        self._task.status.CopyFrom(TaskStatus())
        sending = self._sending = asyncio.create_task(self._hear(SendMessageRequest(message=message), attempt))
        await asyncio.wait((sending,))
        try:
            sending.result()
        except (A2AError, httpx.HTTPError) as error:
            if not (self._answered.is_set() and self.task_id and _is_lost(error)):
                raise
        if self._said is None and not self._is_settled:
            await self.follow(self.task_id)
        await self._look_for_artifacts()

    async def _look_for_artifacts(self) -> None:
        """Some servers tell of the end alone, and have the answer with the task."""
        if self._said is None and self.state == TaskState.TASK_STATE_COMPLETED and not self._task.artifacts:
            with suppress(TaskNotFoundError):
                await self.look(self.task_id)

    async def _hear(self, request: SendMessageRequest, attempt: int | None) -> None:
        async with aclosing(_closable(self._client.send_message(request))) as events:
            async for event in events:
                await self._take(event)
                self._answered.set()
                if attempt is not None and self.task_id and self._run.keeps:
                    id = self.task_id
                    await self._run.once(f"task {attempt}", lambda: id)  # noqa: B023  # awaited here
                if self.state == TaskState.TASK_STATE_AUTH_REQUIRED:  # it may wait for that with the stream open
                    break

    async def follow(self, task_id: str) -> None:
        """Ask for a task until it has ended or asks; over lost connections, too."""
        wait, most = _POLL_SECONDS
        while True:
            try:
                await self.look(task_id)
                if self.is_gone or self._is_settled:
                    return
                if self._streams:
                    request = SubscribeToTaskRequest(id=task_id)
                    async with aclosing(_closable(self._client.subscribe(request))) as events:
                        async for event in events:
                            self._lost = 0
                            await self._take(event)
                    if self._is_settled:
                        await self._look_for_artifacts()
                        return
            except (A2AError, httpx.HTTPError) as error:
                self._lost += 1
                # a subscription is refused where the task has just ended
                passes = _is_lost(error) or isinstance(error, UnsupportedOperationError)
                if not passes or self._lost > _RECONNECTS:
                    raise
            await asyncio.sleep(wait)
            wait = min(most, wait * 1.5)

    async def look(self, task_id: str) -> None:
        """Ask how it is with a task, once."""
        try:
            task = await self._client.get_task(GetTaskRequest(id=task_id))
        except TaskNotFoundError:
            if self._task.id:
                raise
            self.is_gone = True
            return
        await self._take(StreamResponse(task=task))

    async def stop(self) -> None:
        """Tell the server that nobody waits any more. What has just been sent has its task's id in a moment."""
        if self._sending is not None and not self.task_id:
            answered = asyncio.create_task(self._answered.wait())
            try:
                await asyncio.wait((self._sending, answered), return_when=asyncio.FIRST_COMPLETED)
            finally:
                answered.cancel()
                await all_ended((answered,))
        if self.task_id and not self._is_settled:
            with suppress(A2AError, httpx.HTTPError):
                await self._client.cancel_task(CancelTaskRequest(id=self.task_id))

    async def close(self) -> None:
        """Nothing is read any more."""
        if self._sending is not None:
            self._sending.cancel()
            await all_ended((self._sending,))

    @property
    def _is_settled(self) -> bool:
        return self.state in _ENDED or self.state in _ASKS

    async def _take(self, event: StreamResponse) -> None:
        if event.HasField("message"):
            self._said = event.message
        elif event.HasField("task"):
            self._task.CopyFrom(event.task)
        elif event.HasField("status_update"):
            update = event.status_update
            self._task.id, self._task.context_id = update.task_id, update.context_id
            self._task.status.CopyFrom(update.status)
        elif event.HasField("artifact_update"):
            update = event.artifact_update
            self._task.id, self._task.context_id = update.task_id, update.context_id
            append_artifact_to_task(self._task, update)
        self._run.heartbeat()
        if self._run.has_reader:
            await self._tell(event)

    async def _tell(self, event: StreamResponse) -> None:
        status = event.status_update.status if event.HasField("status_update") else None
        if status is not None and status.HasField("message") and status.state == TaskState.TASK_STATE_WORKING:
            text = text_in(status.message.parts)
            await self._run.emit(Custom(data={"agent": self._agent, "state": "working", "text": text}))
        text = self._text()
        if self._said is None and not event.HasField("artifact_update") and self.state not in _ENDED:
            return
        if not text.startswith(self._told):  # something was replaced: what readers have is not the answer
            self._message_id, self._told = new_id(), ""
        if len(text) > len(self._told):
            await self._run.emit(ModelDelta(message_id=self._message_id, text=text[len(self._told) :]))
            self._told = text

    def _text(self) -> str:
        """The answer's text so far."""
        if self._said is not None:
            return "\n".join(filter(None, (text_in(self._said.parts), *files_in(self._said.parts))))
        told = ["\n".join(filter(None, (text_in(a.parts), *files_in(a.parts)))) for a in self._task.artifacts]
        text = "\n\n".join(filter(None, told))
        return text or (text_in(self._task.status.message.parts) if self.state in _ENDED else "")

    def reply(self) -> dict[str, Any]:
        """What it has come to: the fields of a `_Reply`, to be stored. Raises `A2aError` where that is no good end."""
        state = TaskState.Name(cast("Any", self.state)).removeprefix("TASK_STATE_").lower().replace("_", "-")
        status = self._task.status.message
        if self.state in _BAD:
            why = text_in(status.parts) or "it said no more"
            raise A2aError(f"its task {state}: {why}", agent=self._agent, task_id=self.task_id, state=state)
        said = self._said
        if self.state in _ASKS:
            text, data = text_in(status.parts), data_in(status.parts)
        else:
            parts = said.parts if said is not None else [part for a in self._task.artifacts for part in a.parts]
            text, data = self._text(), data_in(parts) or (data_in(status.parts) if said is None else [])
            text = text or "\n".join(msgspec.json.encode(value, order="sorted").decode() for value in data) or NO_OUTPUT
        return {
            "state": state,
            "task_id": self.task_id,
            "context_id": said.context_id if said is not None else self._task.context_id,
            "message_id": self._message_id,
            "text": text,
            "data": data,
        }


async def _closable(events: AsyncIterator[StreamResponse]) -> AsyncGenerator[StreamResponse]:
    """The SDK's stream, closed when this is."""
    try:
        async for event in events:
            yield event
    finally:
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()


def _is_lost(error: Exception) -> bool:
    """Whether an error is of the connection, and not what the server says."""
    cause = error.__cause__
    return isinstance(error, httpx.HTTPError) or (
        isinstance(error, A2AClientError)
        and isinstance(cause, httpx.HTTPError)
        and (not isinstance(cause, httpx.HTTPStatusError) or cause.response.status_code >= 500)
    )
