"""The power is cut: what a run has written to its file is replayed up to each of its writes, and has to be usable.

The writes are those of the real saver, recorded by strace. Three things may have reached the disk when it goes dark:
all that was written, all but half of the last write, and only what was synced (whatever else was written is lost).
"""

import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from agentgraph.checkpoint import SqliteSaver, spans

RUN = """
import asyncio, os, sys
from agentgraph.checkpoint import Entry, Span, SqliteSaver

async def turns(first, last):
    async with SqliteSaver(sys.argv[1]) as saver:
        info = await saver.claim("thread", "graph", "me", 0)
        for seq in range(first, last + 1):
            durable = seq % 3 == 0
            entry = Entry(seq, 0, "step", "", b"head", b"%d " % seq * 150, full=seq == 1)
            await saver.append("thread", info.epoch, [entry], lease=0, status="running", durable=durable)
            os.write(1, b"%d %d." % (seq, durable))
            if seq == 5:
                other = await saver.claim("other", "graph", "me", 0)
                await saver.append("other", other.epoch, [Entry(1, 0, "step", "", b"", bytes(20_000))], lease=0)
                await saver.delete("other")
                await saver.vacuum()

asyncio.run(turns(1, 8))
asyncio.run(turns(9, 12))
"""
CALL = re.compile(r'\d+ +(\w+)\((?:AT_FDCWD<[^>]*>, )?(?:(\d+)<(.*?)>|"(.*?)")(?:, (.*))?')


class Event(NamedTuple):
    """One thing that happened to a file, or something that the run said."""

    what: str
    path: str
    data: bytes = b""
    at: int = 0


def record(folder: Path) -> list[Event]:
    """Run it, and tell what it wrote."""
    traced, log = folder / "traced", folder / "log"
    traced.mkdir()
    calls = "trace=pwrite64,write,ftruncate,fsync,fdatasync,unlink"
    strace = [shutil.which("strace") or "", "-f", "-y", "-xx", "-s", "10000000", "-e", calls, "-o", str(log)]
    done = subprocess.run(
        [*strace, sys.executable, "-c", RUN, str(traced / "runs.db")], capture_output=True, text=True, check=False
    )
    if done.returncode and "ptrace" in done.stderr.lower():
        pytest.skip(f"strace may not trace here: {done.stderr:.200}")
    assert done.returncode == 0, done.stderr
    return list(parsed(log.read_text(), str(traced)))


def parsed(log: str, folder: str) -> Iterator[Event]:
    for line in log.splitlines():
        found = CALL.match(line)
        if not found:
            continue
        call, number, path, name, rest = found.groups()
        path = bytes.fromhex((path or name).replace("\\x", "")).decode() if "\\x" in (path or name) else path or name
        text = re.match(r'"((?:\\x..)*)"', rest or "")
        data = bytes.fromhex(text[1].replace("\\x", "")) if text else b""
        if call == "write" and number == "1":
            yield Event("said", "", data)
        elif path.startswith(folder) and not path.endswith("-shm"):
            if call in ("pwrite64", "write"):
                assert text is not None
                at = re.match(r", \d+, (\d+)", (rest or "")[text.end() :])
                assert at is not None, line[-100:]
                yield Event("write", path, data, int(at[1]))
            elif call == "ftruncate":
                yield Event("truncate", path, at=int((rest or "").split(")")[0]))
            elif call in ("fsync", "fdatasync"):
                yield Event("sync", path)
            elif call == "unlink":
                yield Event("unlink", path)


class Disk:
    """Files as they are after some events, and as they were when they were last synced."""

    def __init__(self) -> None:
        self.written: dict[str, bytes] = {}
        self.synced: dict[str, bytes] = {}

    def happens(self, event: Event) -> None:
        name = Path(event.path).name
        content = self.written.get(name, b"")
        if event.what == "write":
            padded = content.ljust(event.at, b"\0")
            self.written[name] = padded[: event.at] + event.data + padded[event.at + len(event.data) :]
        elif event.what == "truncate":
            self.written[name] = content[: event.at].ljust(event.at, b"\0")
        elif event.what == "sync" and name in self.written:
            self.synced[name] = content
        elif event.what == "unlink":
            self.written.pop(name, None)
            self.synced.pop(name, None)


async def last_entry(folder: Path, files: dict[str, bytes]) -> int:
    """The last entry in a store of these files, which must be whole and go on."""
    for old in list(folder.iterdir()):  # noqa: ASYNC240  # nothing else is at work
        old.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    async with SqliteSaver(folder / "runs.db") as saver:
        info = await saver.thread("thread")
        found = await saver.read("thread", spans(info.lines, info.line, info.last)) if info else []
        assert [entry.seq for entry in found] == list(range(1, len(found) + 1))
        assert all(entry.data == b"%d " % entry.seq * 150 for entry in found)
        claimed = await saver.claim("thread", "graph", "another", 0)
        assert claimed is not None
        assert claimed.last == len(found)
        await saver.append("thread", claimed.epoch, [found[0]] if found else [], lease=0, durable=True)
        return len(found)


@pytest.mark.skipif(not shutil.which("strace"), reason="the writes of a run are recorded by strace, which is not here")
def test_a_store_opens_and_goes_on_wherever_its_writes_were_cut(tmp_path: Path) -> None:
    async def cut_everywhere(replay: Path) -> int:
        cuts = said = durable = 0
        disk = Disk()
        for event in record(tmp_path):
            if event.what == "said":
                said, is_durable = map(int, event.data[:-1].split())
                durable = said if is_durable else durable
            if event.what == "write":
                half = Disk()
                half.written = dict(disk.written)
                half.happens(event._replace(data=event.data[: len(event.data) // 2]))
                assert await last_entry(replay, half.written) >= said
            disk.happens(event)
            if event.what != "said":
                assert await last_entry(replay, disk.written) >= said
            if event.what in ("said", "sync", "unlink"):
                assert await last_entry(replay, disk.synced) >= durable
            cuts += event.what == "write"
        assert (said, durable) == (12, 12)
        return cuts

    memory = Path("/dev/shm")  # noqa: S108  # syncing takes no time there
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as replay:
        assert asyncio.run(cut_everywhere(Path(replay))) > 40
