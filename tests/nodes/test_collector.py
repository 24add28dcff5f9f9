"""Whatever order calls finish in, their updates come out in call order."""

import threading
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph.nodes import ToolStateCollector

ENDS = ("close", "discard", "open")


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[list[int]], list[str], list[int]]:
    """How many writes each call makes, how it ends, and the order in which all of that happens."""
    writes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))
    values = [[100 * call + k for k in range(count)] for call, count in enumerate(writes)]
    ends = [draw(st.sampled_from(ENDS)) for _ in writes]
    turns = [call for call, count in enumerate(writes) for _ in range(count + 1)]
    return values, ends, draw(st.permutations(turns))


@settings(max_examples=60)
@given(plans())
def test_updates_come_by_call_index_whatever_the_order_of_writing_and_ending(
    plan: tuple[list[list[int]], list[str], list[int]],
) -> None:
    values, ends, turns = plan
    collector = ToolStateCollector()
    calls = {index: collector.open(index) for index in dict.fromkeys(turns)}
    left = [list(v) for v in values]
    for index in turns:
        if left[index]:
            assert calls[index].write({"log": left[index].pop(0)})
        elif ends[index] != "open":
            getattr(calls[index], ends[index])()
            assert not calls[index].write({"log": "late"})
    kept = [{"log": v} for own, end in zip(values, ends, strict=True) if end == "close" for v in own]
    assert collector.updates() == kept


def test_a_closed_list_keeps_what_it_has_and_a_discarded_one_nothing() -> None:
    collector = ToolStateCollector()
    closed, discarded = collector.open(1), collector.open(0)
    for call in (closed, discarded):
        call.write({"a": 1})
    closed.close()
    discarded.discard()
    discarded.close()
    closed.close()
    assert (closed.kept, discarded.kept) == (({"a": 1},), ())
    assert collector.updates() == [{"a": 1}]
    closed.discard()
    assert collector.updates() == []


def test_nothing_of_an_open_list_is_told() -> None:
    collector = ToolStateCollector()
    call = collector.open(0)
    call.write({"a": 1})
    assert collector.updates() == []
    call.close()
    assert collector.updates() == [{"a": 1}]


def test_opening_a_call_anew_discards_what_its_first_attempt_wrote() -> None:
    collector = ToolStateCollector()
    first = collector.open(0)
    first.write({"a": 1})
    second = collector.open(0)
    assert not first.write({"a": 3})
    second.write({"a": 2})
    second.close()
    assert collector.updates() == [{"a": 2}]


def test_a_write_from_a_thread_is_there_whole_or_not_at_all() -> None:
    collector = ToolStateCollector()
    call = collector.open(0)
    started = threading.Event()
    taken: list[dict[str, Any]] = []

    def write() -> None:
        for k in range(100_000):
            if not call.write(update := {"k": k}):
                return
            taken.append(update)
            started.set()

    thread = threading.Thread(target=write)
    thread.start()
    started.wait()
    call.close()
    thread.join()
    assert not call.write({"k": -1})
    kept = collector.updates()
    assert kept == taken[: len(kept)]
    assert len(taken) - len(kept) <= 1


def test_a_list_and_a_collector_tell_their_state() -> None:
    collector = ToolStateCollector()
    call = collector.open(0)
    call.write({"a": 1})
    assert repr(call) == "<CallUpdates open [{'a': 1}]>"
    call.close()
    assert repr(collector) == "<ToolStateCollector {0: <CallUpdates closed [{'a': 1}]>}>"
