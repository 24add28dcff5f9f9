"""A provider on loopback, in a process of its own, so that its work is not counted: it streams one long answer.

What stands before `/v1` in the URL says how. Nothing: as fast as it is read, each event an HTTP chunk of its own, as
servers send them. `/packed`: fifty events in an HTTP chunk. `/paced`: an event at a time. `/held`: half of them, and
the rest when it is told to.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

PACKED = 50
PAUSE = 0.04
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _event(delta: dict[str, str], finish: str | None = None) -> bytes:
    chunk = {
        "id": "chatcmpl-DPz0sUuTV5bRmqeQnWpK8vRA6z1nF",
        "object": "chat.completion.chunk",
        "created": 1796099489,
        "model": "gpt-4.1-mini-2025-04-14",
        "service_tier": "default",
        "system_fingerprint": "fp_3502f4eb73",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
        "usage": None,
    }
    return f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n".encode()


def _events(words: int) -> list[bytes]:
    role, word, end = _event({"role": "assistant", "content": ""}), _event({"content": " word"}), _event({}, "stop")
    return [role, *[word] * words, end, b"data: [DONE]\n\n"]


def _chunks(events: list[bytes], size: int = 1) -> bytes:
    chunks = [b"".join(events[start : start + size]) for start in range(0, len(events), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)


class _Answers:
    """Sends the answer, in the way that a request asks for."""

    def __init__(self, words: int) -> None:
        events = _events(words)
        self._each = [_chunks([event]) for event in events]
        self._fast = _chunks(events)
        self._packed = _chunks(events, PACKED)
        self._half = words // 2 + 1
        self.told = asyncio.Event()

    async def send(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(_HEAD)
        if b" /paced/" in head:
            for chunk in self._each:
                writer.write(chunk)
                await asyncio.sleep(PAUSE)
        elif b" /held/" in head:
            writer.write(b"".join(self._each[: self._half]))
            await self.told.wait()
            writer.write(b"".join(self._each[self._half :]))
        else:
            writer.write(self._packed if b" /packed/" in head else self._fast)
        writer.write(b"0\r\n\r\n")
        await writer.drain()


async def _serve(words: int) -> None:
    answers = _Answers(words)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))
                await answers.send(head, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):  # the last: this process ends
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=1_000)
    print(server.sockets[0].getsockname()[1], flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        answers.told.set()
        answers.told.clear()  # whoever waits now goes on, who comes later waits


class Server:
    """The server, as the measuring process sees it."""

    def __init__(self, port: int, process: subprocess.Popen[str]) -> None:
        self._port = port
        self._process = process

    def url(self, way: str = "") -> str:
        """The base URL for answers that are sent in this way."""
        return f"http://127.0.0.1:{self._port}{way}/v1"

    def tell(self) -> None:
        """Send the rest of what is held."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()


@contextmanager
def serving(words: int) -> Generator[Server]:
    """Serve answers of so many words, as long as the block lasts."""
    command = [sys.executable, "-m", "benchmarks.server", str(words)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Server(int(process.stdout.readline()), process)
        finally:
            process.communicate()  # the end of its input is its end


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
