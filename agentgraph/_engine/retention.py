"""Removing old checkpoints.

The rules:
- What is kept can be read and continued as before: the oldest that is kept on each line gets the whole state.
- A pause and an update beside a step rest on the checkpoint of that step, which stays with them.
- A line of which nothing is kept is removed, and of others but the newest what comes after the last that is kept.
- The newest line stays the newest: a store takes that to be the one of the last entry that was written.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from agentgraph._engine.journal import Keeper, head_of
from agentgraph._engine.log import whole
from agentgraph.checkpoint.protocol import Entry, Span, ThreadInfo
from agentgraph.config import RunConfig
from agentgraph.messages import new_id

_ALL = 1 << 62
_RESTING = ("pause", "update")


async def prune_thread(keeper: Keeper, thread_id: str, keep: int | None, older_than: float | None) -> int:
    """Keep the newest `keep` checkpoints, those younger than `older_than` seconds, and what they rest on.

    Returns how many checkpoints were removed. Raises `ThreadBusyError` where a run is on the thread.
    """
    if await keeper.store.thread(thread_id) is None:  # to claim it would make it
        return 0
    config = RunConfig(thread_id=thread_id, if_busy="refuse", durability="sync")
    async with keeper.claimed(config, new_id()) as journal:
        info = journal.info
        every = [Span(one.line, 0, _ALL) for one in info.lines]
        checkpoints = sorted(await keeper.store.heads(thread_id, every, _ALL), key=lambda e: e.seq)
        kept = _kept(checkpoints, info.checkpoint, keep, older_than)
        whole_ones: list[Entry] = []
        drop: list[Span] = []
        for one in info.lines:
            own = [e.seq for e in kept.values() if e.line == one.line]
            if not own and one.line != info.line:
                drop.append(Span(one.line, 0, _ALL))
            if not own:
                continue
            first = min(own)
            if one.line != info.line:
                drop.append(Span(one.line, max(own), _ALL))
            if kept[first].kind in _RESTING:
                continue  # on a step of its parent's line, and on records of its own
            if any(e.seq < first for e in checkpoints if e.line == one.line) or one.parent is not None:
                whole_ones.append(await _whole(keeper, info, kept[first]))
                drop.append(Span(one.line, 0, first - 1))
        removed = sum(any(s.line == e.line and s.after < e.seq <= s.upto for s in drop) for e in checkpoints)
        if removed:
            whole_ones.sort(key=lambda e: e.seq)
            if whole_ones and whole_ones[-1].line != info.line:
                whole_ones += (await keeper.store.read(thread_id, [Span(info.line, 0, _ALL)]))[-1:]
            await keeper.store.append(thread_id, info.epoch, whole_ones, lease=keeper.lease, drop=drop, durable=True)
        return removed


def _kept(checkpoints: Sequence[Entry], stands: int, keep: int | None, older_than: float | None) -> dict[int, Entry]:
    """Those that stay, by number."""
    by_number = {e.seq: e for e in checkpoints}
    oldest = 0.0 if older_than is None else time.time() - older_than
    newest = checkpoints[-keep:] if keep is not None else checkpoints[-1:]
    kept = {e.seq: e for e in newest}
    if stands:  # on a line of which nothing but records is there yet it is not the newest
        kept[stands] = by_number[stands]
    if older_than is not None:
        kept |= {e.seq: e for e in checkpoints if head_of(e).at >= oldest}
    for entry in list(kept.values()):
        while entry.kind in _RESTING and (parent := by_number.get(head_of(entry).parent)) is not None:
            entry = kept[parent.seq] = parent  # noqa: PLW2901  # up to the step that it rests on
    return kept


async def _whole(keeper: Keeper, info: ThreadInfo, entry: Entry) -> Entry:
    """A checkpoint with the whole state, and all that it needs of what stands before it."""
    replayed = await keeper.replayed(info, entry.line, entry.seq)
    digest = keeper.plan.schema.digest()
    types = digest if replayed.types == digest else ""  # else a graph of the other types is to look at it again
    data = keeper.codec.encode(whole(replayed.position, replayed.state, replayed.aside, types), "the state")
    return msgspec.structs.replace(entry, data=data, full=True)
