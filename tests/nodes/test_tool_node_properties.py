"""Any calls whatever, against a reference: what each is answered and writes, when it starts, and how all of it ends.

The reference (`foretell`) is plain arithmetic, without tasks, threads or a clock. What is compared with it really runs,
under a clock that jumps. No two calls ever end at the same instant: each takes whole slices and a few grains of its
own, and grains of two calls never add up to the same. So the reference need not know in which order asyncio wakes
tasks that are due at once.
"""

from __future__ import annotations

import asyncio
import gc
import operator
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentgraph import END, START, CompiledGraph, RunResult, StateGraph, threads
from agentgraph.errors import RunEndedError
from agentgraph.events import ToolFinished, ToolStarted
from agentgraph.messages import NO_OUTPUT, AssistantMessage, ToolCall, ToolResponse
from agentgraph.nodes import Answer, Tool, ToolContext, ToolError, ToolHandler, ToolNode, ToolRequest
from agentgraph.strategies import Append, LastWrite, Merge, Messages, Reduce
from agentgraph.testing import JumpingLoop

State = dict[str, Any]

MOST_CALLS = 5
SLICE = 8**MOST_CALLS
"""Seconds that are more than all the grains of a run together."""


# --- what is asked

Kind = Literal["async", "thread", "unknown", "wrong", "answered", "broken"]
"""Of a call: its tool runs on the loop or in a thread; there is none; its arguments do not fit; or an interceptor
answers, or raises, in the tool's place."""

ENDS: dict[str, str | None] = {  # how a tool may end, and the answer's text; None where the node has none
    "value": "value",
    "number": "17",
    "nothing": NO_OUTPUT,
    "answer": "with more",
    "odd": "TypeError: tool 'act' returned a object, which has no JSON form",
    "error": "ValueError: boom",
    "refusal": "no",
    "own timeout": "TimeoutError: db said no",
    "stray cancel": "CancelledError, though nothing had cancelled it; mine",
    "group": "ValueError: boom; ToolError: no",
    "lone in a group": "no",
    "question": None,
    "question in a group": None,
    "fatal": None,
    "fatal in a group": None,
}
GOOD = ("value", "number", "nothing", "answer")
QUESTIONS = ("question", "question in a group")
FATAL = ("fatal", "fatal in a group")

OnCancel = Literal["obey", "linger", "fail", "refuse"]
"""What an async tool does at its cancellation: end by it, take its time and return a value, or raise something else."""


@dataclass(frozen=True)
class Attempt:
    seconds: int
    end: str


@dataclass(frozen=True)
class Call:
    kind: Kind
    waits: int
    """Seconds in which an interceptor does nothing yet; they count for no timeout."""
    attempts: tuple[Attempt, Attempt]
    """The second is what happens where the interceptor tries again."""
    timeout: int | None
    on_cancel: OnCancel
    lingers: int


@dataclass(frozen=True)
class Plan:
    calls: tuple[Call, ...]
    most: int | None
    """Calls at once; None: all."""
    timeout: int | None
    retries: bool
    read: bool
    """Whether somebody reads the events."""
    cancel_at: float | None


@dataclass(frozen=True)
class Theme:
    """What to draw plans from: any would seldom bring together what matters together."""

    kinds: tuple[Kind, ...] = ("async", "async", "thread", "thread", "unknown", "wrong", "answered", "broken")
    ends: tuple[str, ...] = tuple(ENDS)
    on_cancel: tuple[OnCancel, ...] = ("obey", "linger", "fail", "refuse")
    cancelled: bool = False
    read: tuple[bool, ...] = (False, True)


THEMES = {
    "any": Theme(),
    "quiet": Theme(ends=(*GOOD, "error", "refusal"), kinds=("async", "thread", "answered")),
    "questions": Theme(ends=(*QUESTIONS, "value"), kinds=("async", "thread")),
    "failing": Theme(ends=(*FATAL, "value", "error"), kinds=("async", "async", "thread"), on_cancel=("linger", "obey")),
    "cancelled": Theme(
        ends=("fatal", "value", "error"), kinds=("async",), on_cancel=("linger",), cancelled=True, read=(False,)
    ),
}


@st.composite
def plans(draw: st.DrawFn, theme: Theme) -> Plan:
    calls: list[Call] = []
    for grain in (8**i for i in range(draw(st.integers(1, MOST_CALLS)))):
        attempts: list[Attempt] = []
        for _ in range(2):
            end, slices = draw(st.sampled_from(theme.ends)), draw(st.integers(0, 3))
            attempts.append(Attempt(slices * SLICE + grain if slices or end in FATAL else 0, end))
        calls.append(
            Call(
                kind=draw(st.sampled_from(theme.kinds)),
                waits=draw(st.sampled_from([0, 0, SLICE + grain])),
                attempts=(attempts[0], attempts[1]),
                timeout=draw(st.none() | st.integers(1, 2).map(lambda n, grain=grain: n * SLICE + 2 * grain)),
                on_cancel=draw(st.sampled_from(theme.on_cancel)),
                lingers=draw(st.integers(1, 2)) * SLICE + grain,
            )
        )
    cancel_at = st.integers(0, 8).map(lambda n: n * SLICE + 0.5)
    return Plan(
        calls=tuple(calls),
        most=draw(st.none() | st.integers(1, MOST_CALLS)),
        timeout=draw(st.none() | st.integers(1, 3).map(lambda n: n * SLICE)),
        retries=draw(st.booleans()),
        read=draw(st.sampled_from(theme.read)),
        cancel_at=draw(cancel_at if theme.cancelled else st.none() | st.none() | cancel_at),
    )


# --- the reference


@dataclass
class Try:
    """What a tool sees of one attempt."""

    begins: float
    ends: float
    told: bool = False
    """Whether its token is cancelled in the end."""
    late: bool = False
    """Whether it was its own timeout that ended it."""
    taken: list[bool] = field(default_factory=list[bool])
    """Whether what it writes at its end is taken; empty where it does not come to that."""


@dataclass
class Fate:
    """What becomes of one call."""

    begins: float
    ends: float
    tries: list[Try] = field(default_factory=list[Try])
    answer: tuple[bool, str] | None = None
    """Whether it is an error, and how its text begins."""
    outcome: str = "ok"
    updates: list[State] = field(default_factory=list[State])
    metadata: Any = None
    asks: bool = False
    fatal: bool = False


@dataclass
class Foretold:
    """What is to come of a run. `outcome` is how it ends, for a fatal error by whose it is."""

    outcome: Literal["done", "interrupted", "cancelled"] | int
    fates: list[Fate]
    """Of the calls that begin, in call order."""
    ends: float

    def events(self) -> list[tuple[str, str, float]]:
        """What readers are told of the calls that are answered: which, how it ended, and its seconds."""
        return [
            (f"c{i}", fate.outcome, fate.ends - fate.begins)
            for i, fate in enumerate(self.fates)
            if fate.answer is not None
        ]

    def answers(self) -> list[tuple[bool, str]]:
        return [fate.answer for fate in self.fates if fate.answer is not None]

    def questions(self) -> list[str]:
        return [f"c{i}?" for i, fate in enumerate(self.fates) if fate.asks]

    def state(self) -> State:
        state: State = initial()
        for update in (u for fate in self.fates for u in fate.updates):
            log: Any = update.get("log", [])
            state["log"] = state["log"] + (log if isinstance(log, list) else [log])
            state["files"] = state["files"] | update.get("files", {})
            state["last"] = update.get("last", state["last"])
            state["total"] += update.get("total", 0)
        return state


def foretell(plan: Plan, most: int | None) -> Foretold:
    failed_at = min((fate.ends for fate in schedule(plan, most, None) if fate.fatal), default=None)
    fates = schedule(plan, most, failed_at)
    ends = max(fate.ends for fate in fates)
    if plan.cancel_at is not None and plan.cancel_at < ends:
        if failed_at is None or plan.cancel_at < failed_at:
            fates = schedule(plan, most, plan.cancel_at)
        # else it comes while those linger that the failing call has cancelled: they are waited for, and it goes on
        return Foretold("cancelled", fates, max(fate.ends for fate in fates))
    for i, fate in enumerate(fates):
        if fate.fatal:
            return Foretold(i, fates, ends)
    return Foretold("interrupted" if any(fate.asks for fate in fates) else "done", fates, ends)


def schedule(plan: Plan, most: int | None, cut: float | None) -> list[Fate]:
    """The calls that begin before the cut: each, in call order, takes the permit that is free first."""
    free: list[float] = [0] * (most or len(plan.calls))
    fates: list[Fate] = []
    for i in range(len(plan.calls)):
        begins = min(free)
        if cut is not None and begins >= cut:
            break
        fates.append(live(plan, i, begins, cut))
        free[free.index(begins)] = fates[-1].ends
    return fates


def live(plan: Plan, i: int, begins: float, cut: float | None) -> Fate:
    """One call, from its permit on."""
    call, fate = plan.calls[i], Fate(begins, begins + plan.calls[i].waits)
    if cut is not None and fate.ends >= cut:
        fate.ends = cut
    elif call.kind in ("unknown", "wrong"):
        fate.outcome = "error"
        fate.answer = (True, "unknown tool 'nobody'" if call.kind == "unknown" else "invalid arguments for tool 'act")
    elif call.kind in ("answered", "broken"):
        fate.ends += call.attempts[0].seconds
        if cut is not None and fate.ends > cut:
            fate.ends = cut
        else:
            fate.outcome = "ok" if call.kind == "answered" else "error"
            fate.answer = (False, "instead") if call.kind == "answered" else (True, "KeyError: 'lost'")
    else:
        for k in range(2 if plan.retries else 1):
            if fate.fatal or fate.asks or (fate.answer is not None and not fate.answer[0]):
                break
            if cut is not None and fate.ends >= cut:
                break
            attempt(plan, i, k, fate, cut)
    return fate


def attempt(plan: Plan, i: int, k: int, fate: Fate, cut: float | None) -> None:
    """One attempt of a call at a tool, from where the call has got to."""
    call, begins = plan.calls[i], fate.ends
    natural = begins + call.attempts[k].seconds
    limit = call.timeout or plan.timeout
    due = None if limit is None else begins + limit
    cancels = sorted(t for t in (due, cut) if t is not None and t < natural)
    fate.answer, fate.updates, fate.metadata = None, [], None
    if not cancels:
        fate.ends = natural
        fate.tries.append(Try(begins, natural, taken=[True]))
        conclude(call.attempts[k].end, i, k, fate)
        return
    first, late = cancels[0], cancels[0] == due
    fate.ends, taken = first, [False] if call.kind == "thread" else []
    if call.kind == "async" and call.on_cancel == "linger":
        again = min((t for t in (due, cut) if t is not None and t > first), default=None)
        fate.ends = first + call.lingers
        if again is not None and again < fate.ends:
            fate.ends = again
        else:
            taken = [not late]  # by the run that fails or is cancelled the writes are not looked at any more
    fate.tries.append(Try(begins, fate.ends, told=True, late=late, taken=taken))
    if late and (cut is None or fate.ends < cut):
        left = "left running, and its result is thrown away" if call.kind == "thread" else "stopped"
        fate.outcome = "timeout"
        fate.answer = (True, f"tool 'act{i}' timed out after {limit:g} s and was {left}")


def conclude(end: str, i: int, k: int, fate: Fate) -> None:
    """An attempt ends in its own time, and as it likes."""
    fate.outcome = "ok" if end in GOOD else "error"
    fate.fatal, fate.asks = end in FATAL, end in QUESTIONS
    text = ENDS[end]
    if text is not None:
        fate.answer = (end not in GOOD, text.replace("'act'", f"'act{i}'"))
    if end in GOOD:
        fate.updates = [begun(i, k), ended(i, k)]
    if end == "answer":
        fate.updates.append(MORE)
        fate.metadata = {"try": k}


def initial() -> State:
    return {"log": ["old"], "files": {"old": -1}, "last": -1, "total": 100}


def begun(i: int, k: int) -> State:
    return {"log": [f"c{i} begins try {k}"], "files": {f"c{i}": k}}


def ended(i: int, k: int) -> State:
    return {"log": f"c{i} ends try {k}", "last": i, "total": 1}


MORE: State = {"log": ["one", "two"], "total": 10}


# --- what really runs


class NappingLoop(JumpingLoop):
    """Lets its time jump also while threads are at work, if all of them nap. Otherwise no time passes at all."""

    def __init__(self) -> None:
        self._napping: list[ToolContext] = []
        self._alarms: dict[threading.Event, asyncio.TimerHandle] = {}
        super().__init__()

    def nap(self, seconds: float, context: ToolContext) -> None:
        """In a thread: let so much of the loop's time pass."""
        alarm = threading.Event()

        def lie_down() -> None:
            self._napping.append(context)
            self._alarms[alarm] = self.call_later(seconds, wake)

        def wake() -> None:
            self._napping.remove(context)
            alarm.set()

        self.call_soon_threadsafe(lie_down)
        alarm.wait()

    @property
    def held(self) -> bool:
        awaited = sum(not context.cancellation.cancelled for context in self._napping)
        return threads.awaited_calls(self) > awaited

    def pass_time(self, seconds: float, *, jumped: bool = False) -> None:
        if jumped:
            super().pass_time(seconds, jumped=True)

    def timers(self) -> list[asyncio.TimerHandle]:
        """Those that are set, but for the alarms of naps."""
        scheduled: list[asyncio.TimerHandle] = getattr(self, "_scheduled", [])
        return [t for t in scheduled if not t.cancelled() and t not in self._alarms.values()]

    def wake_all(self) -> None:
        for alarm, timer in self._alarms.items():
            timer.cancel()
            alarm.set()


@dataclass
class Seen:
    """What a tool saw of one attempt."""

    begins: float
    context: ToolContext
    told_in_time: bool = True
    taken: list[bool] = field(default_factory=list[bool])
    over: threading.Event = field(default_factory=threading.Event)


class Stage:
    """The tools and interceptors of a plan, and what they saw."""

    def __init__(self, plan: Plan, loop: NappingLoop) -> None:
        self.plan = plan
        self.loop = loop
        self.seen: list[list[Seen]] = [[] for _ in plan.calls]
        self.fatal: dict[int, BaseException] = {}

    def tools(self) -> list[Tool]:
        made: list[Tool] = []
        for i, call in enumerate(self.plan.calls):
            act = self.act_in_thread if call.kind == "thread" else self.act
            made.append(Tool(partial(act, i), name=f"act{i}", description="", timeout=call.timeout))
        return made

    async def act(self, i: int, n: int, context: ToolContext) -> Any:
        k, seen = self.begin(i, context)
        call = self.plan.calls[i]
        try:
            if seconds := call.attempts[k].seconds:
                await asyncio.sleep(seconds)
            return self.end(i, k, seen)
        except asyncio.CancelledError as error:
            if error.args == ("mine",):
                raise
            seen.told_in_time = context.cancellation.cancelled
            if call.on_cancel == "linger":
                await asyncio.sleep(call.lingers)
                self.write(seen, ended(i, k))
                return "swallowed"
            if call.on_cancel == "fail":
                raise ValueError("in clean-up") from None
            if call.on_cancel == "refuse":
                raise ToolError("in clean-up", always_raise=True) from None
            raise
        finally:
            seen.over.set()

    def act_in_thread(self, i: int, n: int, context: ToolContext) -> Any:
        k, seen = self.begin(i, context)
        try:
            if seconds := self.plan.calls[i].attempts[k].seconds:
                self.loop.nap(seconds, context)
            return self.end(i, k, seen)
        finally:
            seen.over.set()

    def begin(self, i: int, context: ToolContext) -> tuple[int, Seen]:
        seen = Seen(self.loop.time(), context)
        assert not context.cancellation.cancelled
        self.seen[i].append(seen)
        k = len(self.seen[i]) - 1
        context.update(**begun(i, k))
        return k, seen

    def write(self, seen: Seen, update: State) -> None:
        try:
            seen.context.update(**update)
        except RunEndedError:
            seen.taken.append(False)
            raise
        seen.taken.append(True)

    def end(self, i: int, k: int, seen: Seen) -> Any:
        self.write(seen, ended(i, k))
        end = self.plan.calls[i].attempts[k].end
        fatal = ToolError("it ends here", always_raise=True)
        match end:
            case "value":
                return "value"
            case "number":
                return 17
            case "nothing":
                return ""
            case "answer":
                return Answer("with more", update=MORE, metadata={"try": k})
            case "odd":
                return object()
            case "error":
                raise ValueError("boom")
            case "refusal":
                raise ToolError("no")
            case "own timeout":
                raise TimeoutError("db said no")
            case "stray cancel":
                raise asyncio.CancelledError("mine")
            case "group":
                raise ExceptionGroup("two", [ValueError("boom"), ToolError("no")])
            case "lone in a group":
                raise ExceptionGroup("one", [ToolError("no")])
            case "question":
                return seen.context.interrupt(f"c{i}?")
            case "question in a group":
                try:
                    return seen.context.interrupt(f"c{i}?")
                except BaseException as asked:
                    raise BaseExceptionGroup("asked", [asked]) from None
            case "fatal":
                self.fatal[i] = fatal
                raise fatal
            case _:
                self.fatal[i] = fatal
                raise ExceptionGroup("two", [ValueError("boom"), fatal])

    async def wait(self, request: ToolRequest, call: ToolHandler) -> ToolResponse:
        if seconds := self.plan.calls[request.index].waits:
            await asyncio.sleep(seconds)
        return await call(request)

    async def in_place(self, request: ToolRequest, call: ToolHandler) -> ToolResponse:
        planned = self.plan.calls[request.index]
        if planned.kind not in ("answered", "broken"):
            return await call(request)
        if seconds := planned.attempts[0].seconds:
            await asyncio.sleep(seconds)
        if planned.kind == "broken":
            raise KeyError("lost")
        return ToolResponse("some id", "some name", "instead")


async def again(request: ToolRequest, call: ToolHandler) -> ToolResponse:
    answer = await call(request)
    return await call(request) if answer.is_error else answer


def asking(plan: Plan) -> State:
    calls: list[ToolCall] = []
    for i, call in enumerate(plan.calls):
        arguments = '{"n": "soon"}' if call.kind == "wrong" else '{"n": 1}'
        calls.append(ToolCall(f"c{i}", "nobody" if call.kind == "unknown" else f"act{i}", arguments))
    return {"messages": [AssistantMessage(id="asks", tool_calls=calls)], **initial()}


@dataclass
class Told:
    """What came of a run."""

    stage: Stage
    outcome: Any = None
    ends: float = 0
    state: State = field(default_factory=State)
    questions: list[Any] = field(default_factory=list[Any])
    started: list[str] = field(default_factory=list[str])
    finished: list[tuple[str, str, float]] = field(default_factory=list[tuple[str, str, float]])


def run(plan: Plan, **options: Any) -> Told:
    """Run a plan, wake all threads that were left behind, and wait for them. Nothing may be left."""
    with asyncio.Runner(loop_factory=NappingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, NappingLoop)
        stage = Stage(plan, loop)
        told = runner.run(enact(plan, stage, options))
        assert asyncio.all_tasks(loop) == set()
        assert threads.awaited_calls(loop) == 0
        assert loop.timers() == []
        loop.wake_all()
        for seen in (s for tries in stage.seen for s in tries):
            assert seen.over.wait(10)
    assert threads._turns._busy == 0  # pyright: ignore[reportPrivateUsage]  # nobody else asks
    return told


async def enact(plan: Plan, stage: Stage, options: Any) -> Told:
    interceptors = [stage.wait, again, stage.in_place] if plan.retries else [stage.wait, stage.in_place]
    app = app_of(ToolNode(stage.tools(), timeout=plan.timeout, interceptors=interceptors, **options))
    told = Told(stage)
    running = asyncio.ensure_future(read(app, plan, told) if plan.read else app.invoke(asking(plan)))
    alarm = None if plan.cancel_at is None else stage.loop.call_at(plan.cancel_at, running.cancel)
    await asyncio.wait([running])
    told.ends = stage.loop.time()
    if alarm is not None:
        alarm.cancel()
    if running.cancelled():
        told.outcome = "cancelled"
    elif error := running.exception():
        told.outcome = error
    else:
        told.outcome, told.state = running.result().status, running.result().state
        told.questions = [question.value for question in running.result().interrupts]
    return told


async def read(app: CompiledGraph[State], plan: Plan, told: Told) -> RunResult[State]:
    async with app.stream(asking(plan)) as events:
        async for event in events:
            if isinstance(event, ToolStarted):
                told.started.append(event.call_id)
            elif isinstance(event, ToolFinished):
                told.finished.append((event.call_id, event.outcome, event.seconds))
    return events.result


def app_of(node: ToolNode) -> CompiledGraph[State]:
    strategies = {
        "messages": Messages(), "log": Append(), "files": Merge(), "last": LastWrite(), "total": Reduce(operator.add)
    }  # fmt: skip
    graph = StateGraph(strategies=strategies)
    graph.add_node("tools", node).add_edge(START, "tools").add_edge("tools", END)
    return graph.compile()


def compare(plan: Plan, told: Told, foretold: Foretold) -> None:
    """What came of a run is what was foretold."""
    outcome = foretold.outcome
    assert told.outcome is told.stage.fatal[outcome] if isinstance(outcome, int) else told.outcome == outcome
    assert told.ends == foretold.ends
    assert told.questions == (foretold.questions() if outcome == "interrupted" else [])
    tries = [fate.tries for fate in foretold.fates] + [[]] * (len(plan.calls) - len(foretold.fates))
    assert [[s.begins for s in seen] for seen in told.stage.seen] == [[t.begins for t in ts] for ts in tries]
    for expected, seen in zip(chain(*tries), chain(*told.stage.seen), strict=True):
        assert seen.context.cancellation.cancelled == expected.told
        assert seen.told_in_time or not expected.late
        assert seen.taken == expected.taken
    if plan.read and outcome in ("done", "interrupted"):
        assert told.started == [call.id for call in asking(plan)["messages"][0].tool_calls]
        assert sorted(told.finished) == foretold.events()
    if outcome == "interrupted":
        assert told.state == asking(plan) | {"messages": told.state["messages"][:1]}
    elif outcome == "done":
        messages = told.state["messages"]
        assert told.state == foretold.state() | {"messages": messages}
        asked, answered = messages
        answers: list[ToolResponse] = answered.responses
        assert [(a.id, a.name) for a in answers] == [(c.id, c.name) for c in asked.tool_calls]
        expected = foretold.answers()
        assert [(a.is_error, a.text[: len(t)]) for a, (_, t) in zip(answers, expected, strict=True)] == expected
        kept = {f"c{i}": fate.metadata for i, fate in enumerate(foretold.fates) if fate.metadata is not None}
        assert answered.metadata == ({"answers": kept} if kept else {})


@pytest.mark.usefixtures("nothing_blocks")
@pytest.mark.parametrize("theme", THEMES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_calls_come_out_as_the_reference_says_serially_and_in_parallel(theme: str, data: st.DataObject) -> None:
    plan = data.draw(plans(THEMES[theme]))
    serial, foretold = run(plan, parallel=False), foretell(plan, 1)
    compare(plan, serial, foretold)
    parallel = run(plan, max_parallel=plan.most)
    compare(plan, parallel, foretell(plan, plan.most))
    if serial.outcome == parallel.outcome == "done":
        assert msgspec.json.encode(serial.state) == msgspec.json.encode(parallel.state)


def test_a_cancellation_that_comes_while_a_failed_runs_calls_still_end_goes_on_outwards() -> None:
    fatal, long = Attempt(SLICE, "fatal"), Attempt(5 * SLICE, "value")
    calls = [
        Call("async", 0, (attempt, attempt), timeout=None, on_cancel="linger", lingers=2 * SLICE)
        for attempt in (fatal, long)
    ]
    plan = Plan(tuple(calls), most=None, timeout=None, retries=False, read=False, cancel_at=2 * SLICE)
    told = run(plan, max_parallel=None)
    compare(plan, told, foretell(plan, None))
    assert (told.outcome, told.ends) == ("cancelled", 3 * SLICE)


@pytest.mark.parametrize("most", [None, 20])
def test_of_many_calls_of_which_a_third_time_out_nothing_is_left(most: int | None) -> None:
    kinds: list[Kind] = ["async", "async", "thread", "thread", "thread", "async"]
    late, good = Attempt(2 * SLICE, "value"), Attempt(0, "answer")
    calls = [
        Call(kinds[i % 6], 0, (good if i % 3 else late, good), timeout=None, on_cancel="obey", lingers=0)
        for i in range(300)
    ]
    plan = Plan(tuple(calls), most=most, timeout=SLICE, retries=False, read=False, cancel_at=None)
    told = run(plan, max_parallel=most)
    compare(plan, told, foretell(plan, most))
    assert sum("timed out" in answer.text for answer in told.state["messages"][1].responses) == 100


@pytest.mark.parametrize("gives", [ValueError("too long"), "no response"])
async def test_a_call_that_its_interceptor_makes_fail_writes_nothing(gives: Any) -> None:
    async def note(context: ToolContext) -> Answer:
        context.update(log="noted")
        return Answer("noted", update={"total": 1}, metadata={"try": 1})

    async def judge(request: ToolRequest, call: ToolHandler) -> Any:
        await call(request)
        if isinstance(gives, Exception):
            raise gives
        return gives

    asks = AssistantMessage(tool_calls=[ToolCall("c0", "note", "")])
    state = (await app_of(ToolNode([note], interceptors=[judge])).invoke({"messages": [asks], **initial()})).state
    answered = state["messages"][-1]
    assert answered.responses[0].is_error
    assert (state["log"], state["total"], answered.metadata) == (["old"], 100, {})


class Held:
    """A value of the state, of which it can be told whether anything still holds it."""


async def returns() -> str:
    return "done"


async def fails() -> None:
    raise ValueError("boom")


def fails_in_a_thread() -> None:
    raise ValueError("boom")


async def never_ends() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("calls", [1, 8])
@pytest.mark.parametrize("act", [returns, fails, fails_in_a_thread, never_ends])
async def test_what_a_run_held_is_free_as_soon_as_it_has_ended(act: Callable[[], Any], calls: int) -> None:
    app, held = app_of(ToolNode([Tool(act, name="act", timeout=0.01 if act is never_ends else 60)])), Held()
    free = weakref.ref(held)
    asks = AssistantMessage(tool_calls=[ToolCall(f"c{i}", "act", "") for i in range(calls)])
    gc.disable()
    try:
        await app.invoke({"messages": [asks], **initial(), "last": held})
        del held
        await asyncio.sleep(0)
        assert free() is None
    finally:
        gc.enable()
