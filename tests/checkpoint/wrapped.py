"""A saver inside another, which tests make slow, let fail, or look at."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from agentgraph.checkpoint import Checkpointer, Entry, Line, Span, ThreadInfo


async def _nothing() -> None: ...


class Wrapped:
    """Awaits what `hooks` has for an operation before it, and keeps what was appended."""

    def __init__(self, inner: Checkpointer) -> None:
        self.inner = inner
        self.hooks: dict[str, Callable[[], Awaitable[None]]] = {}
        """By the operation's name; "write" for `append` and `release`."""
        self.appended: list[list[Entry]] = []
        """The entries of each append that the store has taken."""
        self.dropped: list[Span] = []
        self.read_entries = 0
        """How many entries were read with their data."""
        self.renewals: list[float] = []

    async def _before(self, *names: str) -> None:
        for name in names:
            await self.hooks.get(name, _nothing)()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None: ...

    async def claim(self, thread_id: str, graph: str, owner: str, lease: float) -> ThreadInfo | None:
        await self._before("claim")
        found = await self.inner.claim(thread_id, graph, owner, lease)
        await self._before("claimed")
        return found

    async def append(
        self,
        thread_id: str,
        epoch: int,
        entries: Sequence[Entry],
        *,
        lease: float | None,
        status: str | None = None,
        drop: Sequence[Span] = (),
        new_line: Line | None = None,
        durable: bool = False,
    ) -> None:
        await self._before("append", "write")
        await self.inner.append(
            thread_id, epoch, entries, lease=lease, status=status, drop=drop, new_line=new_line, durable=durable
        )
        self.appended.append(list(entries))
        self.dropped += drop
        await self._before("appended")

    async def renew(self, thread_id: str, epoch: int, lease: float) -> None:
        await self._before("renew")
        self.renewals.append(lease)
        await self.inner.renew(thread_id, epoch, lease)

    async def release(self, thread_id: str, epoch: int, status: str | None = None) -> None:
        await self._before("release", "write")
        await self.inner.release(thread_id, epoch, status)

    async def thread(self, thread_id: str) -> ThreadInfo | None:
        return await self.inner.thread(thread_id)

    async def threads(
        self, *, graph: str | None = None, status: str | None = None, after: str = "", limit: int = 100
    ) -> list[ThreadInfo]:
        return await self.inner.threads(graph=graph, status=status, after=after, limit=limit)

    async def read(self, thread_id: str, within: Sequence[Span]) -> list[Entry]:
        await self._before("read")
        found = await self.inner.read(thread_id, within)
        self.read_entries += len(found)
        return found

    async def heads(self, thread_id: str, within: Sequence[Span], limit: int) -> list[Entry]:
        return await self.inner.heads(thread_id, within, limit)

    async def delete(self, thread_id: str) -> None:
        await self.inner.delete(thread_id)
