"""The calls of one message under way: their permits, deadlines, answers and records. A `ToolNode` makes one a message.

The rules of this file:
- Every call gets exactly one answer, in call order; nothing but its own answer and updates comes of a call.
- A call's time counts from when it has its permits: its message's, its tool's, the node's `Limiter` (see limiter.py).
  It takes them all at once, before anything is told of it; one that waits holds none.
- At its timeout its token is cancelled, then the call itself; what it gives back afterwards, or wrote, is thrown away,
  and so is its swallowing of the cancellation.
- A failing call is an answer, not the run's failure, but for `ToolError(always_raise=True)`, an error processor that
  raises, KeyboardInterrupt and SystemExit. Then the other calls are cancelled and waited for, and the first such
  error in call order comes out as itself.
- A cancellation that comes from outside always goes on outwards, also where a tool swallowed it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import msgspec

from agentgraph import telemetry
from agentgraph.context import Interrupt, Interrupted, RunContext
from agentgraph.errors import unknown
from agentgraph.events import ToolFinished, ToolStarted, shown
from agentgraph.messages import AssistantMessage, ToolCall, ToolResponse, ToolResponseMessage
from agentgraph.node import Updates
from agentgraph.nodes.answer import Answer, content_of
from agentgraph.nodes.arguments import ArgumentsError
from agentgraph.nodes.chain import compose
from agentgraph.nodes.collector import CallUpdates, ToolStateCollector
from agentgraph.nodes.deadlines import Deadlines
from agentgraph.nodes.limiter import Hold, Limiter, Loan
from agentgraph.nodes.tool import Tool, ToolContext, ToolError, ToolTimeoutError, ToolUpdate, tools_of_run
from agentgraph.nodes.tool_request import ErrorProcessor, LastAttempt, ToolInterceptor, ToolRequest
from agentgraph.strategies import UNSET
from agentgraph.tasks import NotAllWellError, run_all
from agentgraph.threads import ThreadCall

__all__ = ["Acting", "Batch", "leaves"]

log: logging.Logger = logging.getLogger("agentgraph")

_ANSWER = "(answer)"
"""What a call's answer is recorded under."""

_AROUND = "(interceptors)"
"""The part of a call that what wraps it may use."""


class Acting(Protocol):
    """What a batch needs of its node: see `ToolNode`."""

    tools: dict[str, Tool]
    agent_name: str | None
    limiter: Limiter | None
    max_parallel: int | None
    timeout: float | None
    interceptors: tuple[ToolInterceptor, ...]
    error_processor: ErrorProcessor
    tool_context: dict[str, Any]
    log: bool

    async def find(self, name: str, run: RunContext[Any]) -> Tool | None:
        """The tool by that name."""
        ...

    def limits(self, tool: Tool | None) -> tuple[Limiter, ...]:
        """Whose permits a call of this tool needs."""
        ...

    def known(self, run: RunContext[Any]) -> list[str]:
        """The names of all tools."""
        ...


class Batch:
    """The calls of one message, under way."""

    def __init__(self, node: Acting, asked: AssistantMessage, state: Any, run: RunContext[Any]) -> None:
        self.collector: ToolStateCollector = ToolStateCollector()
        self.questions: dict[int, tuple[Interrupt, ...]] = {}
        self.metadata: dict[int, Any] = {}
        self._node = node
        self._asked = asked
        self._calls = asked.tool_calls
        self._cut = asked.finish_reason == "length"
        self._state = state
        self._run = run
        self._tools: dict[int, Tool | None] = {}
        self._direct: dict[int, bool] = {}
        """Of calls that ended in an earlier run: whether the agent may stop after them."""
        self._outcomes: dict[int, str] = {}
        self._fatal: list[BaseException] = []
        self._listeners = telemetry.listeners()
        self._deadlines = Deadlines()
        self.loan: Loan | None = None
        self._holds: dict[int, Hold] | None = None
        self._message: Limiter | None = None
        self._task = _current_task()
        self._cancelling = self._task.cancelling()
        self._broken = False
        self._handler = compose(node.interceptors, self._execute)

    def recall(self, indexes: Sequence[int], responses: list[ToolResponse | None]) -> list[int]:
        """Put in what these calls have answered before the run was interrupted; the indexes of the others.

        A call that has asked something, and has no answer yet, is not run either: it asks the same again.
        """
        rest: list[int] = []
        for index in indexes:
            call = self._calls[index]
            part = self._run.part(call.id)
            kept = part.recorded(_ANSWER)
            if kept is not UNSET:
                responses[index], updates, metadata, self._direct[index] = kept
                mine = self.collector.open(index)
                for update in updates:
                    mine.write(ToolUpdate(update, call.name))
                mine.close()
                if metadata is not None:
                    self.metadata[index] = metadata
            elif asked := (*part.open_questions(), *part.part(_AROUND).open_questions()):
                self.questions[index] = asked
            else:
                rest.append(index)
        return rest

    async def _record(self, index: int, response: ToolResponse) -> None:
        """Keep what a call has come to, so that it is not made again, whatever happens."""
        updates = [dict(update) for update in self.collector.kept(index)]
        direct = self._returns_direct(index, response)
        kept = (response, updates, self.metadata.get(index), direct)
        await self._run.part(response.id).once(_ANSWER, lambda: kept)

    def complete(
        self, given: AssistantMessage, answered: ToolResponseMessage | None, responses: list[ToolResponse]
    ) -> Updates:
        """The message with all answers, and what the calls have written to the state."""
        metadata = dict(answered.metadata) if answered is not None else {}
        metadata.pop("finish_reason", None)
        if self.metadata:
            own = {self._calls[i].id: self.metadata[i] for i in sorted(self.metadata)}
            metadata["answers"] = {**metadata.get("answers", {}), **own}
        for index, response in enumerate(responses):
            if not self._returns_direct(index, response):
                break
        else:
            metadata["finish_reason"] = "return_direct"
        # the id follows from the message that asked: whoever runs these calls again makes the same message
        id = f"{given.id}-answers" if answered is None else answered.id
        message = ToolResponseMessage(responses, id=id, metadata=metadata)
        messages = [message] if self._asked is given else [self._asked, message]
        return Updates([{"messages": messages}, *self.collector.updates()])

    async def run(self, indexes: Sequence[int], responses: list[ToolResponse | None]) -> None:
        """Run the calls at these indexes, and put their answers into `responses`."""
        most = self._node.max_parallel or len(indexes)
        if len(indexes) == 1 or most == 1:
            for index in indexes:
                responses[index] = await self._one(index)
            return
        permits: asyncio.Semaphore | None = None
        if len(indexes) > most:
            if self._may_wait(indexes):
                self._message = Limiter.of_message(most)
            else:
                permits = asyncio.Semaphore(most)

        async def beside(index: int) -> ToolResponse | None:
            try:
                return await self._one(index)
            except BaseException:
                self._broken = True
                raise

        async def permitted(index: int, permits: asyncio.Semaphore) -> ToolResponse | None:
            async with permits:
                if self._broken:  # the failing call's permit comes here before its cancellation does
                    raise asyncio.CancelledError
                return await beside(index)

        def start(k: int) -> Coroutine[Any, Any, ToolResponse | None]:
            return beside(indexes[k]) if permits is None else permitted(indexes[k], permits)

        try:
            answers = await run_all(len(indexes), start)
        except NotAllWellError as ended:
            errors = [e for t in ended.tasks if not t.cancelled() and (e := t.exception()) is not None]
            if not errors:
                raise asyncio.CancelledError from None
            first, *others = errors
            for other in others:
                first.add_note(f"also failed: {type(other).__name__}: {shown(other, str)}")
            raise first from None
        for index, answer in zip(indexes, answers, strict=True):
            responses[index] = answer

    def _may_wait(self, indexes: Sequence[int]) -> bool:
        """Whether one of these calls may have to wait for a `Limiter`, though by a tool that is not yet known."""
        node, calls = self._node, self._calls
        if node.limiter is not None or node.interceptors:
            return True
        return any((t := node.tools.get(calls[i].name)) is None or t.limiter is not None for i in indexes)

    def _one(self, index: int) -> Coroutine[Any, Any, ToolResponse | None]:
        """One call, from its permits to its answer; None where it asks something."""
        node = self._node
        tool = node.tools.get(self._calls[index].name)
        if tool is None or tool.limiter is not None or self._message is not None or node.limiter or node.interceptors:
            return self._limited(index, tool)
        return self._permitted(index, tool, None)

    async def _limited(self, index: int, tool: Tool | None) -> ToolResponse | None:
        node, call = self._node, self._calls[index]
        failure: BaseException | None = None
        try:
            await self._permit(index, tool)
            if tool is None:
                try:
                    tool = await node.find(call.name, self._run)
                except (Exception, Interrupted, asyncio.CancelledError, BaseExceptionGroup) as error:
                    failure = error  # raised again where the call's own are looked at
                    if self._stopped(0):
                        raise asyncio.CancelledError from failure
                else:
                    await self._permit(index, tool)
            return await self._permitted(index, tool, failure)
        finally:
            failure = None  # else it and this frame hold each other
            if self._holds is not None and (hold := self._holds.get(index)) is not None:
                hold.end()

    async def _permit(self, index: int, tool: Tool | None) -> None:
        """Wait for what a call of this tool needs, with nothing of it in hand."""
        limiters = self._node.limits(tool)
        if self._holds is None:
            if not limiters and self._message is None:
                return
            self._holds = {}
            self.loan = Loan.from_enclosing()
        hold = self._holds.get(index)
        if hold is None:
            if not limiters and self._message is None:
                return
            hold = self._holds[index] = Hold(self.loan, self._message)
        elif hold.ready and hold.limiters == limiters:
            return
        async with self._run.waiting():
            await hold.take(limiters)
        if self._broken:  # the failing call's permit comes here before its cancellation does
            raise asyncio.CancelledError
        if limiters:
            hold.enclose()

    async def _permitted(self, index: int, tool: Tool | None, failure: BaseException | None) -> ToolResponse | None:
        """One call that has its permits, from its start to its answer. `failure`: why its tool was not found."""
        node, run, call = self._node, self._run, self._calls[index]
        began: float | None = None
        if run.has_reader:
            began = asyncio.get_running_loop().time()
            await run.emit(ToolStarted(call_id=call.id, name=call.name, arguments=call.arguments))
        response: Any = None
        part: RunContext[Any] | None = None
        last = LastAttempt()
        try:
            if failure is not None:
                raise failure
            self._tools[index] = tool
            if node.interceptors:
                part = run.part(call.id).part(_AROUND)  # what they ask and record is the call's own, not the tool's
            response = await self._handler(ToolRequest(call, tool, self._state, part or run, index, last))
        except Interrupted as asked:
            self.questions[index] = asked.interrupts
        except (Exception, asyncio.CancelledError) as error:  # an interceptor's, or one that must fail the run
            failure = error
        except BaseExceptionGroup as group:  # a tool's own task has asked
            asked, rest = group.split(Interrupted)
            if asked is None or rest is not None:
                raise
            questions = [q for leaf in leaves(asked) for q in cast("Interrupted", leaf).interrupts]
            self.questions[index] = tuple(questions)
        try:
            if self._stopped(0):  # also where an interceptor has swallowed it
                raise asyncio.CancelledError from failure
            if failure is not None and any(failure is f for f in self._fatal):
                raise failure
            if index in self.questions:
                return None
            if failure is None and not isinstance(response, ToolResponse):
                failure = TypeError(f"an interceptor returned {type(response).__name__}, and no ToolResponse")
            if failure is not None:
                self.collector.open(index)  # in place of what its tool has written
                self.metadata.pop(index, None)
                response = await self._failed(failure, call, index)
            if response.id != call.id or response.name != call.name:
                response = msgspec.structs.replace(response, id=call.id, name=call.name)
            if node.interceptors:
                response = msgspec.structs.replace(response, content=content_of(response.content, call.name))
            if run.keeps:
                await self._record(index, response)
            if began is not None or node.log:
                await self._tell(index, response, began)
            return response
        finally:
            failure = last.error = None  # else they and this frame hold each other
            if part is not None:
                part.close("the call has ended")

    def _stopped(self, cancelling: int) -> bool:
        """Whether this call has to end: the run was cancelled, or another call has failed it.

        The call's own task alone does not tell: before Python 3.13 it looks cancelled for good once a TaskGroup in
        it has failed.
        """
        if self._task.cancelling() > self._cancelling:
            return True
        return self._broken and _current_task().cancelling() > cancelling

    async def _tell(self, index: int, response: ToolResponse, began: float | None) -> None:
        outcome = self._outcomes.get(index, "error") if response.is_error else "ok"
        if self._node.log:
            who = self._node.agent_name or self._run.node
            # as reprs: a model may write line breaks into a name too
            log.info("%s: tool %.80r (%.80r) %s: %.200r", who, response.name, response.id, outcome, response.text)
        if began is not None:
            seconds = asyncio.get_running_loop().time() - began
            await self._run.emit(
                ToolFinished(
                    call_id=response.id, name=response.name, outcome=outcome, content=response.content, seconds=seconds
                )
            )

    async def _execute(self, request: ToolRequest) -> ToolResponse:
        """Call the tool: what interceptors wrap, and may do several times."""
        call, tool, index = request.call, request.tool, request.index
        self._outcomes.pop(index, None)
        self.metadata.pop(index, None)
        request.last.error = None
        if tool is not self._tools[index]:
            await self._permit(index, tool)
            self._tools[index] = tool
        if tool is None:
            known = self._node.known(request.run)
            return ToolResponse(call.id, call.name, unknown("tool", call.name, known), is_error=True)
        try:
            positional, keywords = tool.arguments(call.arguments)
        except ArgumentsError as error:
            request.last.error = error
            text = self._cut_off(call) if self._cut and not _is_json(call.arguments) else str(error)
            return ToolResponse(call.id, call.name, text, is_error=True)
        if self._cut and index == len(self._calls) - 1 and not call.arguments and tool.parameters.get("properties"):
            return ToolResponse(call.id, call.name, self._cut_off(call), is_error=True)
        updates = self.collector.open(index)
        context: ToolContext | None = None
        if tool.context_name is not None:
            extras = self._node.tool_context
            context = ToolContext(self._run, request.state, call.id, call.name, extras, updates)
            keywords = {**keywords, tool.context_name: context}
        limit = tool.timeout if tool.timeout is not None else self._node.timeout
        try:
            if self._listeners is None:
                value = await self._within(limit, tool, positional, keywords, context)
                response = self._answer(call, index, value, updates)
            else:
                with telemetry.execute_tool(self._listeners, tool=tool, call=call) as operation:
                    try:
                        value = await self._within(limit, tool, positional, keywords, context)
                    except _TimedOut:
                        operation.timed_out()
                        raise
                    response = self._answer(call, index, value, updates)
                    operation.returned(response.content)
        except _TimedOut as late:
            updates.discard()
            self._outcomes[index] = "timeout"
            timeout = ToolTimeoutError(call.name, limit or 0, thread_runs=late.thread_runs)
            request.last.error = timeout
            return ToolResponse(call.id, call.name, str(timeout), is_error=True)
        except Exception as error:
            updates.discard()
            request.last.error = error
            response = await self._failed(error, call, index)
        finally:
            if context is not None:
                context.end()
        updates.close()
        return response

    async def _within(
        self,
        limit: float | None,
        tool: Tool,
        positional: Sequence[Any],
        keywords: Mapping[str, Any],
        context: ToolContext | None,
    ) -> Any:
        """What the tool returned. Raises what it raised, or `_TimedOut`."""
        task = _current_task()
        cancelling = task.cancelling()
        # whoever has its turn among the threads may wait for what this call has
        in_turn = tool.limiter is None and self._node.limiter is None
        thread = None if tool.is_async else ThreadCall(in_turn=in_turn)
        deadline = None if limit is None else self._deadlines.start(limit, task, context)
        failure: BaseException | None = None
        value: Any = None
        try:
            if thread is None:
                value = await tool.fn(*positional, **keywords)
            else:
                value = await thread.run(tool.fn, *positional, **keywords)
                if inspect.isawaitable(value):
                    value = await value
        except BaseException as error:  # raised again below, unless our own timeout was the cause
            failure = error
        late = False
        if deadline is not None:
            self._deadlines.stop(deadline)
            if late := deadline.expired:
                task.uncancel()
        try:
            if isinstance(failure, (KeyboardInterrupt, SystemExit)):
                raise failure
            cancelled = isinstance(failure, asyncio.CancelledError)
            stopped = self._stopped(cancelling)
            if late and not stopped:
                raise _TimedOut(thread_runs=thread is not None and thread.running) from failure
            if stopped or (cancelled and task.cancelling() > cancelling):  # the latter: by an interceptor
                if context is not None:
                    context.end(cancel="it was cancelled")
                raise asyncio.CancelledError from failure
            if cancelled:
                text = f"CancelledError, though nothing had cancelled it; {failure}"
                raise StrayCancelError(text.rstrip("; ")) from failure
            if failure is not None:
                raise failure
            return value
        finally:
            failure = None  # else it and this frame hold each other

    def _cut_off(self, call: ToolCall) -> str:
        return (
            f"this call of {call.name!r} was cut off by the output limit and did not run; "
            f"call it again, with shorter arguments"
        )

    def _answer(self, call: ToolCall, index: int, value: Any, updates: CallUpdates) -> ToolResponse:
        if not isinstance(value, Answer):
            return ToolResponse(call.id, call.name, content_of(value, call.name))
        content = content_of(value.content, call.name)
        if value.update is not None:
            if not isinstance(value.update, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"Answer(update=...) must be a dict of state keys, found {value.update!r:.80}")
            updates.write(ToolUpdate(value.update, call.name))
        if value.metadata is not None:
            if not isinstance(value.metadata, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"Answer(metadata=...) must be a dict, found {value.metadata!r:.80}")
            self.metadata[index] = dict(value.metadata)
        return ToolResponse(call.id, call.name, content)

    async def _failed(self, error: BaseException, call: ToolCall, index: int) -> ToolResponse:
        """The answer that tells the model of an error. Raises one that must fail the run."""
        self._outcomes[index] = "error"
        told_of = list(leaves(error))
        asked = [e for e in told_of if isinstance(e, ToolError)]
        for told in asked:
            if told.always_raise:
                raise told
        if len(told_of) == len(asked) == 1:
            try:
                content = self._node.error_processor(asked[0], call)
                if inspect.isawaitable(content):
                    content = await content
            except Exception as fatal:
                self._fatal.append(fatal)
                raise
        else:
            content = "; ".join(map(_told, told_of))
        return ToolResponse(call.id, call.name, content_of(content, call.name), is_error=True)

    def close(self) -> None:
        """All calls have ended. Lets go of what holds the batch in turn, so that nothing waits for the collector."""
        self._deadlines.close()
        self._fatal.clear()
        del self._handler

    def _returns_direct(self, index: int, response: ToolResponse) -> bool:
        """Whether the agent may stop after this call."""
        if response.is_error:
            return False
        if index in self._direct:
            return self._direct[index]
        name = response.name
        tool = self._tools.get(index) or self._node.tools.get(name) or tools_of_run(self._run).get(name)
        return tool is not None and tool.return_direct


class _TimedOut(BaseException):
    """A call reached its timeout. No `Exception`: it is told apart from what the tool raised."""

    def __init__(self, *, thread_runs: bool) -> None:
        super().__init__()
        self.thread_runs = thread_runs


class StrayCancelError(Exception):
    """A tool raised `CancelledError`, and nobody had cancelled it: its error like any other."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group, at any depth; the error itself where it is none."""
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from leaves(inner)
    else:
        yield error


def _told(error: BaseException) -> str:
    """An error for the model: type and text."""
    if isinstance(error, StrayCancelError):
        return str(error)
    text = shown(error, str)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _current_task() -> asyncio.Task[Any]:
    return asyncio.current_task()  # pyright: ignore[reportReturnType]  # never None in a coroutine; a cast is a call


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, TypeError):
        return False
    return True
