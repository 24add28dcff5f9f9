"""The rules of `Checkpointer` as tests: a store of threads that passes them all may keep runs.

A store of your own is tested by a class with one method, with pytest and any plugin that runs `async def` tests (each
method is a test), or without it (`asyncio.run(TestMyStore().run())`)::

    class TestMyStore(CheckpointerSuite):
        def saver(self):
            return MyStore("a place for tests")

No test waits for time to pass, and none minds what else is in the store: all names are new ones.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import msgspec

from agentgraph.checkpoint.protocol import Checkpointer, Entry, Line, Span, ThreadInfo, spans
from agentgraph.errors import FencedError

__all__ = ["CheckpointerSuite", "compare_with_model"]

E = TypeVar("E", bound=Exception)

_LONG = 3600.0
_OVER = 0.0
"""A lease that has run out when it begins."""


class CheckpointerSuite:
    """Tests of a store; a subclass says of which by `saver`."""

    def saver(self) -> Checkpointer:
        """A saver that is not open yet, of the same store at every call; it may be the same saver."""
        raise NotImplementedError("a subclass of CheckpointerSuite must have a method `saver`")

    async def run(self) -> None:
        """Run all tests in turn. Raises the first failure, with the test's name as a note."""
        for name in dir(self):
            if name.startswith("test_"):
                try:
                    await getattr(self, name)()
                except Exception as error:
                    error.add_note(f"in {type(self).__name__}.{name}")
                    raise

    # --- claims ---

    async def test_the_first_claim_makes_the_thread(self) -> None:
        async with self.saver() as saver:
            name = _name()
            _same(await saver.thread(name), None, "there is no thread before the first claim")
            made = _claimed(await saver.claim(name, "graph", "me", _LONG))
            told = (made.thread_id, made.graph, made.status, made.claimed, made.deaths, made.last, made.checkpoint)
            _same(told, (name, "graph", "new", True, 0, 0, 0), "a thread that was just made")
            _same((made.line, made.lines), (0, (Line(0),)), "a new thread has its first line only")
            _true(made.epoch > 0, f"an epoch is a positive number; found {made.epoch}")
            _true(0 < made.created <= made.changed, f"created and changed are seconds since 1970; found {made}")
            _same(await saver.thread(name), made, "`thread` tells what `claim` told")

    async def test_nobody_else_can_claim_a_thread_while_its_lease_lasts(self) -> None:
        async with self.saver() as saver:
            name = _name()
            mine = _claimed(await saver.claim(name, "graph", "me", _LONG))
            _same(await saver.claim(name, "graph", "another", _LONG), None, "a claim while another's lease lasts")
            _same(await saver.claim(name, "graph", "me", _LONG), None, "a claim by the same owner's name is one more")
            _same(await saver.thread(name), mine, "the thread after a claim that was refused")

    async def test_a_thread_whose_lease_ran_out_can_be_claimed_with_a_higher_epoch(self) -> None:
        async with self.saver() as saver:
            name = _name()
            first = _claimed(await saver.claim(name, "graph", "me", _OVER))
            _true(not first.claimed, "a lease of 0 is over at once")
            second = _claimed(await saver.claim(name, "other graph", "another", _LONG))
            _true(second.epoch > first.epoch, f"each claim raises the epoch; found {first.epoch}, then {second.epoch}")
            _same(second.graph, "graph", "the graph of a thread is the one that began it")

    async def test_a_claim_that_was_given_back_can_be_had_at_once(self) -> None:
        async with self.saver() as saver:
            name = _name()
            first = _claimed(await saver.claim(name, "graph", "me", _LONG))
            await saver.release(name, first.epoch, "paused")
            given = await _thread(saver, name)
            _same((given.claimed, given.status, given.epoch), (False, "paused", first.epoch), "a thread given back")
            second = _claimed(await saver.claim(name, "graph", "me", _LONG))
            _true(second.epoch > first.epoch, "each claim raises the epoch")
            await saver.release(name, second.epoch)
            _same((await _thread(saver, name)).status, "paused", "the status after a release that says none")

    async def test_append_and_renew_begin_the_lease_anew(self) -> None:
        async with self.saver() as saver:
            name = _name()
            epoch = _claimed(await saver.claim(name, "graph", "me", _OVER)).epoch
            await saver.append(name, epoch, [_record(1)], lease=_LONG)
            _same(await saver.claim(name, "graph", "another", _LONG), None, "a claim after an append with a lease")
            await saver.append(name, epoch, [_record(2)], lease=_OVER)
            epoch = _claimed(await saver.claim(name, "graph", "another", _OVER)).epoch
            await saver.renew(name, epoch, _LONG)
            _same(await saver.claim(name, "graph", "me", _LONG), None, "a claim after `renew`")
            await saver.renew(name, epoch, _OVER)
            _claimed(await saver.claim(name, "graph", "me", _LONG))

    async def test_an_append_without_a_lease_gives_the_claim_back(self) -> None:
        async with self.saver() as saver:
            name = _name()
            first = _claimed(await saver.claim(name, "graph", "me", _LONG))
            await saver.append(name, first.epoch, [_record(1)], lease=_LONG, status="running")
            await saver.append(name, first.epoch, [_record(2)], lease=None)
            given = await _thread(saver, name)
            _same((given.claimed, given.status, given.epoch), (False, "running", first.epoch), "a thread given back")
            second = _claimed(await saver.claim(name, "graph", "me", _LONG))
            _same((second.last, second.deaths), (2, 0), "the last entry, and deaths of a thread that was given back")

    async def test_of_many_claims_at_once_one_is_granted(self) -> None:
        async with self.saver() as saver:
            name = _name()
            claims = await asyncio.gather(*(saver.claim(name, "graph", f"owner {i}", _LONG) for i in range(20)))
            _same(sum(claim is not None for claim in claims), 1, "of 20 claims at once are granted")

    async def test_what_comes_with_an_older_epoch_is_refused_and_changes_nothing(self) -> None:
        async with self.saver() as saver:
            name = _name()
            old = _claimed(await saver.claim(name, "graph", "me", _OVER)).epoch
            await saver.append(name, old, [_step(1)], lease=_OVER)
            new = _claimed(await saver.claim(name, "graph", "another", _LONG))
            late = saver.append(
                name,
                old,
                [_step(1, data=b"late"), _step(2, line=1)],
                lease=_OVER,
                status="late",
                drop=[Span(0, 0, 9)],
                new_line=Line(1, 0, 1),
                durable=True,
            )
            fenced = await _refused(late, FencedError, "an append with an older epoch")
            _same((fenced.thread_id, fenced.epoch), (name, old), "the error's thread and epoch")
            await _refused(saver.renew(name, old, _OVER), FencedError, "a renewal with an older epoch")
            await _refused(saver.release(name, old, "late"), FencedError, "a release with an older epoch")
            await _refused(saver.append(name, new.epoch + 1, [], lease=_OVER), FencedError, "an epoch not given yet")
            _same(await _thread(saver, name), new, "the thread after what was refused")
            _same(await _read(saver, name), [_step(1)], "the entries after what was refused")

    async def test_a_claim_taken_over_while_the_thread_was_running_counts_as_a_death(self) -> None:
        async with self.saver() as saver:
            name = _name()
            info = _claimed(await saver.claim(name, "graph", "me", _OVER))
            for deaths in (1, 2, 3):
                await saver.append(name, info.epoch, [_record(deaths)], lease=_OVER, status="running")
                info = _claimed(await saver.claim(name, "graph", "me", _OVER))
                _same(info.deaths, deaths, "deaths, with nothing but records since")
            await saver.append(name, info.epoch, [_record(4), _step(5)], lease=_OVER)
            _same((await _thread(saver, name)).deaths, 0, "deaths after a checkpoint")

    async def test_a_claim_that_was_given_back_or_was_not_running_is_no_death(self) -> None:
        async with self.saver() as saver:
            name = _name()
            info = _claimed(await saver.claim(name, "graph", "me", _OVER))
            info = _claimed(await saver.claim(name, "graph", "me", _OVER))
            _same(info.deaths, 0, "deaths of a thread that never ran")
            await saver.append(name, info.epoch, [], lease=_OVER, status="running")
            await saver.release(name, info.epoch)
            info = _claimed(await saver.claim(name, "graph", "me", _OVER))
            _same((info.deaths, info.status), (0, "running"), "deaths after a release")
            await saver.append(name, info.epoch, [], lease=_OVER, status="paused")
            _same(_claimed(await saver.claim(name, "graph", "me", _OVER)).deaths, 0, "deaths of a paused thread")

    # --- entries ---

    async def test_entries_are_read_as_they_were_written_in_order(self) -> None:
        async with self.saver() as saver:
            name = _name()
            epoch = _claimed(await saver.claim(name, "graph", "me", _LONG)).epoch
            written = [
                Entry(1, 0, "input", "", b"head 1", b"data 1"),
                Entry(2, 0, "record", "node a/call 1", b"", b"data 2"),
                Entry(3, 0, "record", "", b"", b""),
                Entry(4, 0, "step", "", b"", b"data 4"),
                Entry(5, 0, "pause", "", b"head 5", b""),
                Entry(6, 0, "update", "", bytes(range(256)), bytes(range(256))),
            ]
            for part in (written[:1], written[1:4], [], written[4:]):
                await saver.append(name, epoch, part, lease=_LONG, status="running")
            _same(await _read(saver, name), written, "entries")
            _same(await saver.read(name, [Span(0, 1, 4)]), written[1:4], "entries with 1 < seq <= 4")
            _same(await saver.read(name, [Span(0, 4, 4)]), [], "entries of an empty span")
            _same(await saver.read(name, [Span(7, 0, 9)]), [], "entries of a line that is not there")
            info = await _thread(saver, name)
            _same((info.last, info.line, info.checkpoint), (6, 0, 6), "last, line, checkpoint")
            _same(info.status, "running", "the status as the last append that said one")

    async def test_the_newest_checkpoint_may_stand_before_records(self) -> None:
        async with self.saver() as saver:
            name = _name()
            epoch = _claimed(await saver.claim(name, "graph", "me", _LONG)).epoch
            await saver.append(name, epoch, [_record(1)], lease=_LONG)
            _same((await _thread(saver, name)).checkpoint, 0, "the checkpoint among records alone")
            await saver.append(name, epoch, [_step(2), _record(3), _record(4)], lease=_LONG)
            info = await _thread(saver, name)
            _same((info.last, info.checkpoint), (4, 2), "last and checkpoint")

    async def test_what_is_read_begins_at_the_newest_full_checkpoint(self) -> None:
        async with self.saver() as saver:
            name = _name()
            epoch = _claimed(await saver.claim(name, "graph", "me", _LONG)).epoch
            written = [_step(1, full=True), _step(2), _step(3, full=True), _record(4), _step(5), _step(6)]
            await saver.append(name, epoch, written, lease=_LONG)
            _same(await _read(saver, name), written[2:], "entries from the newest full one")
            _same(await saver.read(name, [Span(0, 0, 3)]), written[2:3], "entries up to the newest full one")
            _same(await saver.read(name, [Span(0, 0, 2)]), written[:2], "entries up to 2, from the full one before")
            _same(await saver.read(name, [Span(0, 3, 6)]), written[3:], "a span without a full one, whole")

    async def test_an_entry_whose_number_is_there_takes_its_place(self) -> None:
        async with self.saver() as saver:
            name = _name()
            epoch = _claimed(await saver.claim(name, "graph", "me", _LONG)).epoch
            await saver.append(name, epoch, [_step(1), _step(2), _record(3)], lease=_LONG)
            await saver.append(name, epoch, [_step(2, data=b"all of it", full=True)], lease=_LONG)
            _same(await _read(saver, name), [_step(2, data=b"all of it", full=True), _record(3)], "entries")
            info = await _thread(saver, name)
            _same((info.last, info.checkpoint), (3, 2), "last and checkpoint after an entry was replaced")

    async def test_an_append_that_fails_changes_nothing(self) -> None:
        async with self.saver() as saver:
            name = _name()
            epoch = _claimed(await saver.claim(name, "graph", "me", _LONG)).epoch
            await saver.append(name, epoch, [_step(1)], lease=_LONG)
            before = await _thread(saver, name)
            bad = saver.append(
                name,
                epoch,
                [_step(1, data=b"new"), _step(2), _step(3, line=9)],
                lease=_OVER,
                status="done",
                drop=[Span(0, 0, 1)],
                new_line=Line(1, 0, 1),
            )
            await _refused(bad, ValueError, "an append on a line that is not there")
            _same(await _thread(saver, name), before, "the thread after an append that failed")
            _same(await _read(saver, name), [_step(1)], "the entries after an append that failed")

    async def test_dropped_entries_are_gone_and_their_numbers_too(self) -> None:
        async with self.saver() as saver:
            name = _name()
            epoch = _claimed(await saver.claim(name, "graph", "me", _LONG)).epoch
            await saver.append(name, epoch, [_step(1), _step(2), _record(3), _step(4), _record(5)], lease=_LONG)
            await saver.append(
                name, epoch, [_step(2, data=b"2 again")], lease=_LONG, drop=[Span(0, 0, 2), Span(0, 3, 9)]
            )
            _same(await _read(saver, name), [_step(2, data=b"2 again"), _record(3)], "dropped first, then written")
            info = await _thread(saver, name)
            _same((info.last, info.checkpoint), (5, 2), "the last number that was given, and the newest checkpoint")
            await saver.append(name, epoch, [], lease=_LONG, drop=[Span(4, 0, 9)])
            _same(len(await _read(saver, name)), 2, "entries after a drop on a line that is not there")

    async def test_a_fork_has_its_parents_entries_up_to_a_point_and_then_its_own(self) -> None:
        async with self.saver() as saver:
            name = _name()
            epoch = _claimed(await saver.claim(name, "graph", "me", _LONG)).epoch
            await saver.append(name, epoch, [_step(1, full=True), _step(2), _record(3), _step(4)], lease=_LONG)
            await saver.append(name, epoch, [_record(5, line=1)], lease=_LONG, new_line=Line(1, 0, 2))
            fork = await _thread(saver, name)
            _same(fork.lines, (Line(0), Line(1, 0, 2)), "lines")
            _same((fork.line, fork.last, fork.checkpoint), (1, 5, 2), "a fork's checkpoint may be its parent's")
            within = spans(fork.lines, 1, 5)
            _same(await saver.read(name, within), [_step(1, full=True), _step(2), _record(5, line=1)], "a fork")
            await saver.append(name, epoch, [_step(6, line=1)], lease=_LONG)
            await saver.append(name, epoch, [_step(7, line=2, full=True)], lease=_LONG, new_line=Line(2, 1, 5))
            await saver.append(name, epoch, [_step(8), _step(9)], lease=_LONG)
            info = await _thread(saver, name)
            _same((info.line, info.checkpoint), (0, 9), "back on the first line")
            _same(
                await saver.read(name, spans(info.lines, 0, 9)),
                [_step(1, full=True), _step(2), _record(3), _step(4), _step(8), _step(9)],
                "the first line",
            )
            _same(await saver.read(name, spans(info.lines, 2, 9)), [_step(7, line=2, full=True)], "a full fork")
            _same(
                await saver.heads(name, spans(info.lines, 2, 9), 9),
                [_head(_step(7, line=2, full=True)), _head(_step(2)), _head(_step(1, full=True))],
                "the checkpoints of a fork of a fork",
            )

    async def test_heads_are_checkpoints_without_data_the_newest_first(self) -> None:
        async with self.saver() as saver:
            name = _name()
            epoch = _claimed(await saver.claim(name, "graph", "me", _LONG)).epoch
            steps = [_step(n, full=n == 3) if n % 2 else _record(n) for n in range(1, 10)]
            await saver.append(name, epoch, steps, lease=_LONG)
            heads = [_head(entry) for entry in reversed(steps) if entry.kind != "record"]
            _same(await saver.heads(name, [Span(0, 0, 9)], 100), heads, "all heads, also those before a full one")
            _same(await saver.heads(name, [Span(0, 0, 9)], 2), heads[:2], "the newest two heads")
            _same(await saver.heads(name, [Span(0, 1, 6)], 100), heads[2:4], "the heads with 1 < seq <= 6")
            _same(await saver.heads(name, [Span(0, 0, 9)], 0), [], "no heads")

    async def test_bytes_of_any_kind_and_size_come_back(self) -> None:
        async with self.saver() as saver:
            name = _name()
            epoch = _claimed(await saver.claim(name, "graph", "me", _LONG)).epoch
            large = bytes(range(256)) * 20_000
            written = [
                Entry(1, 0, "step", "", b"\0" * 5000, large),
                Entry(2, 0, "record", "k\0\u2028😀'\"", b"", large),
            ]
            await saver.append(name, epoch, written, lease=_LONG, durable=True)
            found = await _read(saver, name)
            _true(found == written, "5 MB of bytes, or a key with unusual signs, came back as something else")
            _same(await saver.heads(name, [Span(0, 0, 1)], 1), [_head(written[0])], "the head of a large checkpoint")

    # --- threads ---

    async def test_names_may_be_any_text(self) -> None:
        async with self.saver() as saver:
            start, graph = _name(), _name()
            odd = [
                "'; DROP TABLE threads; --",
                '"',
                "%_",
                "😀",
                "a\0b",
                "a\0c",
                " ",
                "\u2028",
                "É",
                "E\u0301",
                "/",
                "k" * 1000,
            ]
            names = sorted(start + name for name in odd)
            for name in names:
                info = _claimed(await saver.claim(name, graph, "me", _LONG))
                await saver.append(name, info.epoch, [_step(1, data=name.encode())], lease=_LONG)
            for name in names:
                _same(await _read(saver, name), [_step(1, data=name.encode())], f"the entries of thread {name!r}")
            found = [info.thread_id for info in await saver.threads(graph=graph)]
            _same(found, names, "names, in the order of their code points")

    async def test_threads_come_by_name_page_by_page(self) -> None:
        async with self.saver() as saver:
            start, graph = _name(), _name()
            names = [start + sign for sign in ("", "A", "Z", "a", "b", "z", "ß", "😀")]
            for name in reversed(names):
                _claimed(await saver.claim(name, graph, "me", _LONG))
            pages: list[list[str]] = []
            after = ""
            while page := await saver.threads(graph=graph, after=after, limit=3):
                pages.append([info.thread_id for info in page])
                after = pages[-1][-1]
            _same(pages, [names[:3], names[3:6], names[6:]], "pages of three")
            one = (await saver.threads(after=start, limit=1))[0]
            _same(one, await _thread(saver, names[1]), "what `threads` tells, without a filter")
            _same(await saver.threads(graph=graph, limit=0), [], "no threads")

    async def test_threads_are_filtered_by_graph_and_status(self) -> None:
        async with self.saver() as saver:
            start, here, there = _name(), _name(), _name()
            for number, (graph, status) in enumerate(
                [(here, "running"), (here, "done"), (there, "running"), (here, "running"), (here, "set aside")]
            ):
                info = _claimed(await saver.claim(f"{start}{number}", graph, "me", _LONG))
                await saver.append(info.thread_id, info.epoch, [], lease=_LONG, status=status)

            async def found(**filters: Any) -> list[str]:
                return [info.thread_id[len(start) :] for info in await saver.threads(**filters)]

            _same(await found(graph=here), ["0", "1", "3", "4"], "threads of a graph")
            _same(await found(graph=here, status="running"), ["0", "3"], "running threads of a graph")
            _same(await found(graph=here, status="running", after=f"{start}0"), ["3"], "those after the first")
            _same(await found(graph=here, status="set aside"), ["4"], "threads that were set aside")
            _same(await found(graph=here, status="paused"), [], "threads of a status that none has")
            _same(await found(status="running", after=start, limit=3), ["0", "2", "3"], "running ones of all graphs")

    async def test_a_thread_that_is_not_there_has_nothing(self) -> None:
        async with self.saver() as saver:
            name = _name()
            _same(await saver.thread(name), None, "no thread")
            _same(await saver.read(name, [Span(0, 0, 9)]), [], "no entries")
            _same(await saver.heads(name, [Span(0, 0, 9)], 9), [], "no heads")
            await _refused(saver.append(name, 1, [_step(1)], lease=_LONG), FencedError, "an append without a claim")
            await _refused(saver.renew(name, 1, _LONG), FencedError, "a renewal without a claim")
            await _refused(saver.release(name, 1), FencedError, "a release without a claim")
            await saver.delete(name)
            _same(await saver.thread(name), None, "no thread after all that")

    async def test_a_deleted_thread_is_gone_and_its_writer_fenced_off_for_good(self) -> None:
        async with self.saver() as saver:
            name, other = _name(), _name()
            epoch = _claimed(await saver.claim(name, "graph", "me", _LONG)).epoch
            await saver.append(name, epoch, [_step(1), _step(2, line=1)], lease=_LONG, new_line=Line(1, 0, 1))
            kept = _claimed(await saver.claim(other, "graph", "me", _LONG))
            await saver.append(other, kept.epoch, [_step(1)], lease=_LONG)
            await saver.delete(name)
            _same(await saver.thread(name), None, "a deleted thread")
            _same(await saver.read(name, [Span(0, 0, 9), Span(1, 0, 9)]), [], "the entries of a deleted thread")
            await _refused(saver.append(name, epoch, [_step(3)], lease=_LONG), FencedError, "a deleted thread's writer")
            again = _claimed(await saver.claim(name, "another graph", "another", _LONG))
            _same((again.graph, again.status, again.last), ("another graph", "new", 0), "a new thread by that name")
            _same(again.lines, (Line(0),), "the lines of a new thread by that name")
            _same(await _read(saver, name), [], "the entries of a new thread by that name")
            await _refused(saver.append(name, epoch, [_step(3)], lease=_LONG), FencedError, "the old thread's writer")
            _same(await _read(saver, other), [_step(1)], "the entries of another thread")

    # --- the store ---

    async def test_what_was_written_is_there_when_the_store_is_opened_again(self) -> None:
        name = _name()
        async with self.saver() as saver:
            epoch = _claimed(await saver.claim(name, "graph", "me", _LONG)).epoch
            await saver.append(name, epoch, [_step(1)], lease=_LONG, durable=True)
            await saver.append(name, epoch, [_step(2, line=1)], lease=_LONG, new_line=Line(1, 0, 1), status="running")
            before = await _thread(saver, name)
        async with self.saver() as saver:
            _same(await saver.thread(name), before, "the thread after the store was opened again")
            _same(await _read(saver, name), [_step(1), _step(2, line=1)], "its entries")
            await saver.append(name, epoch, [_step(3, line=1)], lease=_LONG)
            _same(await saver.claim(name, "graph", "another", _LONG), None, "a claim while the old lease lasts")

    async def test_two_savers_of_one_store_see_each_others_threads(self) -> None:
        name = _name()
        async with self.saver() as one, self.saver() as two:
            mine = _claimed(await one.claim(name, "graph", "one", _LONG))
            _same(await two.claim(name, "graph", "two", _LONG), None, "a claim while the other saver's lease lasts")
            await one.append(name, mine.epoch, [_step(1)], lease=_OVER)
            _same(await _read(two, name), [_step(1)], "what the other saver wrote")
            theirs = _claimed(await two.claim(name, "graph", "two", _LONG))
            await _refused(one.append(name, mine.epoch, [_step(2)], lease=_LONG), FencedError, "the older writer")
            await two.append(name, theirs.epoch, [_step(2)], lease=_LONG)
            _same(await _read(one, name), [_step(1), _step(2)], "what both wrote")

    async def test_fifty_threads_at_once_each_keep_their_own(self) -> None:
        async with self.saver() as saver:
            start = _name()

            async def turns(name: str) -> list[Entry]:
                for turn in range(4):
                    info = _claimed(await saver.claim(name, "graph", name, _LONG))
                    _same(info.last, turn * 2, f"the last entry of thread {name!r}")
                    for seq in (info.last + 1, info.last + 2):
                        entry = _step(seq, data=name.encode())
                        await saver.append(name, info.epoch, [entry], lease=_LONG, durable=seq % 3 == 0)
                    await saver.release(name, info.epoch, "done")
                return await _read(saver, name)

            names = [f"{start}{number:02}" for number in range(50)]
            for name, found in zip(names, await asyncio.gather(*map(turns, names)), strict=True):
                _same(found, [_step(seq, data=name.encode()) for seq in range(1, 9)], f"the entries of {name!r}")

    async def test_a_cancelled_append_is_there_wholly_or_not_at_all_and_the_store_works_on(self) -> None:
        async with self.saver() as saver:
            name, other = _name(), _name()
            epoch = _claimed(await saver.claim(name, "graph", "me", _LONG)).epoch
            beside = _claimed(await saver.claim(other, "graph", "me", _LONG)).epoch
            kept: list[Entry] = []
            for turns in range(12):
                pair = [_step(turns * 2 + 1, data=bytes(10_000)), _record(turns * 2 + 2)]
                task = asyncio.create_task(saver.append(name, epoch, pair, lease=_LONG))
                neighbour = asyncio.create_task(saver.append(other, beside, [_step(turns + 1)], lease=_LONG))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                await neighbour
                found = await _read(saver, name)
                _true(found in (kept, kept + pair), f"a cancelled append was stored in part: {found!r:.500}")
                kept = found
            await saver.append(name, epoch, [_step(99)], lease=_LONG)
            _same(await _read(saver, name), [*kept, _step(99)], "what was written after cancelled appends")
            _same(len(await _read(saver, other)), 12, "what a neighbour has written meanwhile")

    async def test_whatever_is_done_the_store_does_what_a_plain_model_does(self) -> None:
        async with self.saver() as saver:
            for seed in range(15):
                await compare_with_model(saver, random.Random(seed), 40)  # noqa: S311  # no secret


class _Kept(msgspec.Struct):
    """A thread in the model."""

    graph: str
    epoch: int = 0
    status: str = "new"
    lease: str = "back"
    """"lasts", "over" or given "back"."""
    deaths: int = 0
    last: int = 0
    line: int = 0
    lines: list[Line] = msgspec.field(default_factory=lambda: [Line(0)])
    entries: dict[int, Entry] = msgspec.field(default_factory=dict[int, Entry])

    def within(self, wanted: Sequence[Span]) -> list[Entry]:
        """The entries in these spans, by number."""
        held = {(s.line, seq) for s in wanted for seq in range(s.after + 1, s.upto + 1)}
        return [self.entries[seq] for seq in sorted(self.entries) if (self.entries[seq].line, seq) in held]


async def compare_with_model(saver: Checkpointer, draw: random.Random, operations: int) -> None:
    """Do random operations on three new threads of an open store, and on a model of them; compare what both tell.

    Raises `AssertionError` at the first difference, with all that was done before as a note.
    """
    graph = _name()
    kept: dict[str, _Kept] = {}
    epochs: dict[str, int] = {}
    done: list[str] = []
    try:
        for _ in range(operations):
            name = f"{graph} {draw.randrange(3)}"
            await _compare_one(saver, draw, graph, name, kept, epochs, done)
            thread = kept.get(name)
            told = await saver.thread(name)
            if thread is None:
                _same(told, None, f"thread {name!r}")
                continue
            if told is None:
                raise AssertionError(f"thread {name!r} is gone")
            own = spans(thread.lines, thread.line, thread.last)
            checkpoints = [entry for entry in thread.within(own) if entry.kind != "record"]
            _same(
                (told.epoch, told.status, told.claimed, told.deaths, told.last, told.line, told.checkpoint),
                (
                    thread.epoch,
                    thread.status,
                    thread.lease == "lasts",
                    thread.deaths,
                    thread.last,
                    thread.line,
                    checkpoints[-1].seq if checkpoints else 0,
                ),
                "epoch, status, claimed, deaths, last, line, checkpoint",
            )
            _same(told.lines, tuple(thread.lines), "lines")
            found = [info.thread_id for info in await saver.threads(graph=graph)]
            _same(found, sorted(kept), "threads of the graph")
    except Exception as error:
        error.add_note("what was done:\n" + "\n".join(done))
        raise


async def _compare_one(
    saver: Checkpointer,
    draw: random.Random,
    graph: str,
    name: str,
    kept: dict[str, _Kept],
    epochs: dict[str, int],
    done: list[str],
) -> None:
    """Do one random operation on the store and on the model."""
    thread = kept.get(name)
    lease, over = (_LONG, "lasts") if draw.random() < 0.3 else (_OVER, "over")
    status = draw.choice([None, "running", "running", "paused"])
    epoch = epochs.get(name, 1)
    is_newest = thread is not None and draw.random() < 0.85
    if not is_newest:
        epoch = draw.choice([epoch - 1, epoch + 1]) if thread else epoch
    what = draw.choice(["claim", "claim", "append", "append", "append", "append", "read", "heads", "other"])
    if what == "other":
        what = draw.choice(["renew", "release", "release", "delete"])
    if what == "claim":
        done.append(f"claim({name!r}, lease={lease})")
        info = await saver.claim(name, graph, "me", lease)
        if thread is not None and thread.lease == "lasts":
            _same(info, None, "a claim while a lease lasts")
            return
        made = _claimed(info)
        _true(made.epoch > epochs.get(name, 0), f"epoch {made.epoch} follows {epochs.get(name, 0)}")
        thread = kept.setdefault(name, _Kept(graph))
        thread.deaths += thread.lease == "over" and thread.status == "running"
        thread.epoch = epochs[name] = made.epoch
        thread.lease = over
    elif what == "append":
        term = (lease, over) if draw.random() < 0.8 else (None, "back")
        await _compare_append(saver, draw, name, epoch, thread, is_newest, term, status, done)
    elif what in ("renew", "release"):
        done.append(f"{what}({name!r}, {epoch}, {lease if what == 'renew' else status})")
        call = saver.renew(name, epoch, lease) if what == "renew" else saver.release(name, epoch, status)
        if thread is None or not is_newest:
            await _refused(call, FencedError, f"{what} with another epoch")
            return
        await call
        thread.lease = over if what == "renew" else "back"
        if what == "release":
            thread.status = status or thread.status
    elif what == "delete":
        done.append(f"delete({name!r})")
        await saver.delete(name)
        kept.pop(name, None)
    else:
        thread = thread or _Kept(graph)
        within = spans(thread.lines, draw.choice(thread.lines).line, draw.randint(0, thread.last + 1))
        found = thread.within(within)
        done.append(f"{what}({name!r}, {within})")
        if what == "read":
            first = max((at for at, entry in enumerate(found) if entry.full), default=0)
            _same(await saver.read(name, within), found[first:], "entries")
        else:
            limit = draw.choice([1, 2, 100])
            heads = [_head(entry) for entry in reversed(found) if entry.kind != "record"][:limit]
            _same(await saver.heads(name, within, limit), heads, f"heads, at most {limit}")


async def _compare_append(
    saver: Checkpointer,
    draw: random.Random,
    name: str,
    epoch: int,
    thread: _Kept | None,
    is_newest: bool,
    lease: tuple[float | None, str],
    status: str | None,
    done: list[str],
) -> None:
    thread = thread or _Kept("")
    new_line = None
    if draw.random() < 0.15:
        new_line = Line(len(thread.lines), draw.choice(thread.lines).line, draw.randint(0, thread.last))
    lines = [*thread.lines, new_line] if new_line else thread.lines
    seq = max(1, thread.last + (1 if draw.random() < 0.85 else draw.randint(-2, 1)))
    entries: list[Entry] = []
    for number in range(seq, seq + draw.choice([0, 1, 1, 2, 5])):
        line = draw.choice(lines).line if draw.random() < 0.2 else lines[-1].line
        data = draw.randbytes(draw.choice([0, 3, 300]))
        if draw.random() < 0.5:
            entries.append(Entry(number, line, "record", f"key {draw.randrange(9)}", b"", data))
        else:
            kind = draw.choice(["input", "step", "pause", "update"])
            entries.append(Entry(number, line, kind, "", draw.randbytes(5), data, draw.random() < 0.3))
    drop = [Span(draw.choice(lines).line, draw.randint(0, thread.last), draw.randint(0, thread.last + 2))]
    drop = drop if draw.random() < 0.2 else []
    done.append(f"append({name!r}, {epoch}, {entries}, lease={lease[0]}, {status=}, {drop=}, {new_line=})")
    call = saver.append(name, epoch, entries, lease=lease[0], status=status, drop=drop, new_line=new_line)
    if not is_newest:
        await _refused(call, FencedError, "an append with another epoch")
        return
    await call
    for entry in thread.within(drop):
        del thread.entries[entry.seq]
    thread.lines = list(lines)
    for entry in entries:
        thread.entries[entry.seq] = entry
        thread.last, thread.line = max(thread.last, entry.seq), entry.line
    if any(entry.kind != "record" for entry in entries):
        thread.deaths = 0
    thread.status = status or thread.status
    thread.lease = lease[1]


def _name() -> str:
    return f"suite {uuid.uuid4().hex} "


def _step(seq: int, *, line: int = 0, data: bytes = b"data", full: bool = False) -> Entry:
    return Entry(seq, line, "step", "", b"head %d" % seq, data, full)


def _record(seq: int, *, line: int = 0) -> Entry:
    return Entry(seq, line, "record", f"key {seq}", b"", b"value %d" % seq)


def _head(entry: Entry) -> Entry:
    return msgspec.structs.replace(entry, data=b"")


async def _thread(saver: Checkpointer, name: str) -> ThreadInfo:
    info = await saver.thread(name)
    if info is None:
        raise AssertionError(f"thread {name!r} is not there")
    return info


async def _read(saver: Checkpointer, name: str) -> list[Entry]:
    """What belongs to the line that was written to last."""
    info = await _thread(saver, name)
    return await saver.read(name, spans(info.lines, info.line, info.last))


def _claimed(info: ThreadInfo | None) -> ThreadInfo:
    if info is None:
        raise AssertionError("a claim was refused, and nobody's lease on the thread lasts")
    return info


def _same(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise AssertionError(f"{what}:\n  expected {expected!r:.2000}\n  found    {found!r:.2000}")


def _true(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


async def _refused(call: Awaitable[object], kind: type[E], what: str) -> E:
    try:
        await call
    except kind as error:
        return error
    raise AssertionError(f"{what} must be refused by {kind.__name__}; it was not")
