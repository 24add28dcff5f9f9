"""Limits on how many calls are at work at once, in the whole process: `Limiter`, and the permits of one call.

The rules:
- A call takes all permits that it needs at once, or none: one that waits holds nothing. Which call goes next is decided
  in one place, under one lock: of those that wait, the first come whose permits are all free.
- A call in another one (a tool that runs an agent, at any depth, in the same task, in others, or in a worker thread
  with an event loop of its own) finds the enclosing one by a contextvar. As long as it has to wait for a `Limiter`, all
  that enclose it are lent: they hold none either. So whoever holds a permit waits for nobody, and nothing can deadlock;
  the price is that a call that waits in this way does not count meanwhile.
- What a node's calls have borrowed is given back when the last of the nodes in the enclosing call that borrowed has
  ended: it waits for the permits before it returns. One in that call that has to wait meanwhile ends that waiting, and
  the call stays lent.
- What is cancelled does not wait to give back: it leaves the request in the queue, and the enclosing call has its
  permits again as soon as they are free. Only until then may it be one too many, and only if it has outlived the
  cancellation of what ran in it (by a time limit of its own).
- A call that has ended holds nothing, waits for nothing, and lends nothing: also where a thread or a task that it left
  behind is still at work. What that one does counts as its own.
- A call that waits for its own message's `max_parallel` alone borrows nothing, and nobody borrows that permit: those
  that hold it are calls beside it.
- Giving back may come from anywhere, also from a coroutine that is dropped while this thread holds the lock. So it
  never waits for the lock: who holds it does it.
"""

# one machine in three classes, under one lock:
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from contextvars import ContextVar
from heapq import heappop, heappush

from agentgraph.config import positive
from agentgraph.threads import in_loop_thread

__all__ = ["Hold", "Limiter", "Loan", "limiter_of"]


class Limiter:
    """At most `most` calls at once of all tools, tool nodes and agents that have it, in the whole process.

    It may be shared between event loops and threads. Calls are served first come, first served, but for those that
    need another permit too that is not free. A call that waits for one inside it does not count meanwhile. A use::

        database = Limiter(3)
        reader, writer = Tool(read, max_parallel=database), Tool(write, max_parallel=database)
    """

    __slots__ = ("__weakref__", "_busy", "_private", "_queue", "_waiting", "most")

    def __init__(self, most: int) -> None:
        positive("Limiter(...)", most, whole=True, needed=True)
        self.most: int = most
        self._busy = 0
        self._waiting = 0
        self._private = False
        self._queue: list[_Entry] = []

    @classmethod
    def of_message(cls, most: int) -> Limiter:
        """The tool node's: for the calls of one message, which lend it to nobody."""
        made = cls(most)
        made._private = True
        return made

    @property
    def busy(self) -> int:
        """How many calls hold a permit."""
        return self._busy

    @property
    def waiting(self) -> int:
        """How many calls that need a permit wait."""
        return self._waiting

    def __repr__(self) -> str:
        return f"<Limiter {self._busy} of {self.most} busy, {self._waiting} waiting>"


def limiter_of(where: str, given: int | Limiter | None) -> Limiter | None:
    """The limiter itself, or one for a number. Raises `ConfigError` for what is neither."""
    if given is None or isinstance(given, Limiter):
        return given
    positive(where, given, whole=True)
    return Limiter(given)


_Entry = tuple[int, int, "Hold"]
"""A call's place in the queue of a limiter that was full: its turn, a number that tells its entries apart, itself."""

_NONE, _WAITING, _HELD, _LENT, _OVER = "holds none", "waits", "holds", "lent", "over"

_lock = threading.Lock()
_numbers = itertools.count()
_ended: deque[tuple[Hold, str]] = deque()
"""Calls that give back, and what they do then. Only who has the lock takes from it."""
_freed: list[Limiter] = []
"""Limiters whose queue there may be room for. Empty when nobody has the lock."""

_enclosing: ContextVar[Hold | None] = ContextVar("agentgraph_enclosing_call", default=None)


class Hold:
    """The permits of one call. Made by the tool node, which ends it with the call."""

    __slots__ = (
        "_before", "_borrowers", "_entry", "_loan", "_message", "_message_held", "_reclaims", "_state", "_ticket",
        "_woken", "limiters", "ready",
    )  # fmt: skip

    def __init__(self, loan: Loan | None, message: Limiter | None) -> None:
        self.limiters: tuple[Limiter, ...] = ()
        """What it was last told to take, beside the message's own."""
        self.ready: bool = False
        """Whether it has got that, and has not lost it but by lending."""
        self._loan = loan
        self._message = message
        self._message_held = False
        self._state = _NONE
        self._borrowers = 0
        self._reclaims = False
        self._ticket = 0
        self._entry: _Entry | None = None
        self._woken: asyncio.Future[None] | None = None
        self._before: Hold | None = None

    async def take(self, limiters: tuple[Limiter, ...]) -> None:
        """Give back all, and wait for these and the message's own. After cancellation none is held."""
        woken: asyncio.Future[None] | None = None
        self.ready = False
        with _lock:
            if _ended:
                _settle()
            if self._state != _NONE:
                self._leave(_NONE)
            self.limiters = limiters
            self._ticket = next(_numbers)
            if self._borrowers:
                self._state = _LENT
            elif (full := self._grab()) is not None:
                woken = asyncio.get_running_loop().create_future()
                self._wait(full, woken, reclaims=False)
            if _freed:
                _settle()
        if _ended:
            _serve_ended()
        if woken is not None:
            try:
                await woken
            except BaseException:  # also where the coroutine is dropped
                _ended.append((self, _NONE))
                _serve_ended()
                raise
        self.ready = True

    def enclose(self) -> None:
        """What runs in this context from now on runs inside this call."""
        before = _enclosing.get()
        if before is not self:
            self._before = before
            _enclosing.set(self)

    def end(self) -> None:
        """The call has ended. May come from anywhere."""
        if _enclosing.get() is self:  # a coroutine that is dropped ends in somebody else's context
            _enclosing.set(self._before)
        _ended.append((self, _OVER))
        _serve_ended()

    # all that follows is for who has the lock

    def _grab(self) -> Limiter | None:
        """Take all permits, or return a limiter that is full."""
        message = None if self._message_held else self._message
        if message is not None and message._busy >= message.most:
            return message
        for limiter in self.limiters:
            if limiter._busy >= limiter.most:
                return limiter
        if message is not None:
            message._busy += 1
            self._message_held = True
        for limiter in self.limiters:
            limiter._busy += 1
        self._state = _HELD
        return None

    def _wait(self, full: Limiter, woken: asyncio.Future[None] | None, *, reclaims: bool) -> None:
        self._state = _WAITING
        self._reclaims = reclaims
        self._woken = woken
        for limiter in self.limiters:
            limiter._waiting += 1
        self._stand_at(full)

    def _stand_at(self, full: Limiter) -> None:
        """Wait in the queue of this limiter, though others may be needed too."""
        self._entry = (self._ticket, next(_numbers), self)
        heappush(full._queue, self._entry)
        if full._private:
            return
        loan = self._loan
        while loan is not None and not loan.taken and loan.outer._state != _OVER:
            loan.taken = True
            loan.outer._borrowers += 1
            loan.outer._lend()
            loan = loan.outer._loan

    def _lend(self) -> None:
        if self._state == _HELD:
            self._free()
        elif self._state == _WAITING:  # for what is lent again before it has come
            _wake(self._stop_waiting())
        else:
            return
        self._state = _LENT

    def _leave(self, state: str) -> None:
        """Hold nothing, and wait for nothing."""
        if self._state == _OVER:
            return
        if self._state == _HELD:
            self._free()
        elif self._state == _WAITING:
            _wake(self._stop_waiting())  # a node in this call, if that was to give back
        if self._message is not None and self._message_held:
            self._message._busy -= 1
            self._message_held = False
            _freed.append(self._message)
        self._state = state

    def _free(self) -> None:
        for limiter in self.limiters:
            limiter._busy -= 1
        _freed.extend(self.limiters)

    def _stop_waiting(self) -> asyncio.Future[None] | None:
        """Take back the entry; returns whom to wake."""
        self._entry = None
        for limiter in self.limiters:
            limiter._waiting -= 1
        woken, self._woken = self._woken, None
        return woken

    def _serve(self) -> None:
        """The first in a queue: let it go on, or wait where it still has to."""
        full = self._grab()
        if full is not None:
            self._stand_at(full)
        elif not _wake(self._stop_waiting()) and not self._reclaims:
            self._leave(_NONE)  # its loop is closed

    def __repr__(self) -> str:
        return f"<Hold {self._state} {list(self.limiters)}>"


class Loan:
    """What the calls of one tool node may borrow: the permits of the call that the node runs in."""

    __slots__ = ("outer", "taken")

    def __init__(self, outer: Hold) -> None:
        self.outer: Hold = outer
        self.taken: bool = False

    @staticmethod
    def from_enclosing() -> Loan | None:
        """The loan of a node that runs in this context, if it runs in a call that has permits."""
        outer = _enclosing.get()
        return None if outer is None else Loan(outer)

    async def repay(self) -> None:
        """All calls of the node have ended: wait until the enclosing call has its permits again.

        It does not wait where another node in that call still borrows. After cancellation as `repay_later`.
        """
        if not self.taken:
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._repaid(woken):
            return
        await woken

    def repay_later(self) -> None:
        """The same without a wait: the enclosing call has its permits again as soon as they are free."""
        if self.taken:
            self._repaid(None)

    def _repaid(self, woken: asyncio.Future[None] | None) -> bool:
        with _lock:
            _settle()
            outer = self.outer
            self.taken = False
            outer._borrowers -= 1
            full = outer._grab() if not outer._borrowers and outer._state == _LENT else None
            if full is not None:
                outer._wait(full, woken, reclaims=True)
            _settle()
        _serve_ended()
        return full is None


def _settle() -> None:
    """Do what is to be done: give back what has ended, and serve the queues until nothing changes."""
    while _ended or _freed:
        if _ended:
            hold, state = _ended.popleft()
            hold._leave(state)
        else:
            limiter = _freed.pop()
            while limiter._queue and limiter._busy < limiter.most:
                entry = heappop(limiter._queue)
                if entry[2]._entry is entry:  # else it waits no more
                    entry[2]._serve()


def _serve_ended() -> None:
    """Give back what has ended, unless somebody has the lock, who does it then."""
    while _ended and _lock.acquire(blocking=False):
        try:
            _settle()
        finally:
            _lock.release()


def _wake(woken: asyncio.Future[None] | None) -> bool:
    """Let whoever waits for this go on. False where its event loop is closed."""
    if woken is None:
        return True
    loop = woken.get_loop()
    if in_loop_thread(loop):
        _come(woken)
        return True
    try:
        loop.call_soon_threadsafe(_come, woken)
    except RuntimeError:
        return False
    return True


def _come(woken: asyncio.Future[None]) -> None:
    if not woken.done():  # else whoever waited was cancelled
        woken.set_result(None)
