"""Keeps large answers of tools in files; the model gets their beginning, and a tool to read on."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Final, Self

import msgspec

from agentgraph.config import positive
from agentgraph.context import RunContext
from agentgraph.errors import ConfigError
from agentgraph.messages import Part, TextPart, ToolCall, ToolResponse, sound
from agentgraph.nodes.hooks.hook import AgentParts
from agentgraph.nodes.tool import Tool, ToolError
from agentgraph.nodes.tool_request import ToolHandler, ToolRequest
from agentgraph.threads import ThreadCall

__all__ = ["LargeResults"]

log: logging.Logger = logging.getLogger("agentgraph")

_READ: Final = "read_result"


class LargeResults:
    """Writes large answers of tools to files below a folder.

        ReactAgent("clerk", model, tools, hooks=[LargeResults("/var/lib/clerk/results")])

    Where the text of an answer has more than `over` characters, it is written to a file, and the model gets its first
    `head` characters, its length and the file's path, in the state too. With the tool `read_result`, which comes with
    this hook, it reads pieces of at most `page` characters. Images and files of the answer stay with it. Answers of
    `exclude_tools` stay as they are, and so do those of tools that return directly: they are for the user.

    The files lie in a folder for each thread, or for each run without one; `await hook.delete(thread_id)` removes it.
    Whatever a tool, a thread or a call is called, no file is written outside of `folder`, and no path outside of it is
    read. A path holds a digest of what was answered, so that only who was told it knows it; a call that is made again
    with the same outcome comes to the same file. Where a file cannot be written, the answer stays whole and a warning
    tells so. Files are read and written in worker threads.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        over: int = 40_000,
        head: int = 2_000,
        page: int = 20_000,
        exclude_tools: Collection[str] = (),
        name: str = "LargeResults",
    ) -> None:
        if not str(folder):
            raise ConfigError("LargeResults(folder) must name a folder")
        positive("LargeResults(over=...)", over, whole=True, needed=True)
        positive("LargeResults(page=...)", page, whole=True, needed=True)
        if not isinstance(head, int) or not 0 <= head < over:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"LargeResults(head=...) is a number of characters less than over={over}; found {head!r}")
        if isinstance(exclude_tools, str):
            raise ConfigError(f"LargeResults(exclude_tools=...) is a list of names; found {exclude_tools!r}")
        self.name = name
        self.folder: Path = Path(folder).absolute()
        self._over = over
        self._head = head
        self._page = page
        self._exclude = {*exclude_tools, _READ}
        self.tools: tuple[Tool, ...] = (Tool(self._read, name=_READ),)

    def bind(self, agent: AgentParts) -> Self:
        """Itself. Warns of excluded tools that the agent has not."""
        agent.tell_unknown("LargeResults(exclude_tools=...)", sorted(self._exclude))
        return self

    async def wrap_tool(self, request: ToolRequest, call: ToolHandler) -> ToolResponse:
        """Call on, and write what comes back to a file where it is too large."""
        response = await call(request)
        returns_direct = request.tool is not None and request.tool.return_direct
        if returns_direct or request.call.name in self._exclude or len(response.text) <= self._over:
            return response
        text = sound(response.text)
        try:
            # a thread of its own: whoever has its turn among them may wait for a permit that this call holds
            path = await ThreadCall(in_turn=False).run(self._write, _folder_of(request.run), request.call, text)
        except OSError:
            log.warning("hook %r: the answer of %r could not be written", self.name, request.call.name, exc_info=True)
            return response
        told = (
            f"{text[: self._head]}\n\n[this answer has {len(text):,} characters, of which these are the first "
            f"{self._head:,}; it is kept in {path!r}: read on with {_READ}]"
        )
        content: Any = told
        if not isinstance(response.content, str):
            others: list[Part] = [part for part in response.content if not isinstance(part, TextPart)]
            content = [TextPart(told), *others] if others else told
        return msgspec.structs.replace(response, content=content)

    async def delete(self, thread_id: str) -> None:
        """Remove the files of a thread. After cancellation they may be there in part."""
        await ThreadCall(in_turn=False).run(self._remove, _named("thread", thread_id))

    def _write(self, folder: str, call: ToolCall, text: str) -> str:
        path = f"{folder}/{_plain(call.name)}-{_digest(f'{call.id} {text}', 24)}.txt"
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.parent.resolve().is_relative_to(self.folder.resolve()):
            raise OSError(f"{file.parent} is a link that leads out of {self.folder}")
        made = file.with_name(f".{os.urandom(6).hex()}")
        try:
            with made.open("w", encoding="utf-8", newline="") as out:
                out.write(text)
            made.replace(file)  # whole or not at all, also where two do so at once
        finally:
            made.unlink(missing_ok=True)
        return path

    def _remove(self, folder: str) -> None:
        shutil.rmtree(self.folder / folder, ignore_errors=True)

    def _read(
        self,
        path: str,
        offset: Annotated[int, msgspec.Meta(ge=0)] = 0,
        limit: Annotated[int, msgspec.Meta(ge=1)] | None = None,
    ) -> str:
        """Read a piece of an answer that was too large, and so is kept in a file.

        Args:
            path: The path that the answer named.
            offset: The character to begin with.
            limit: How many characters to read, at most.
        """
        text = self._text_of(path)
        if offset >= len(text):
            raise ToolError(f"{path!r} has {len(text):,} characters; offset={offset} is beyond its end")
        end = min(offset + min(limit or self._page, self._page), len(text))
        more = f"go on with offset={end}" if end < len(text) else "this is its end"
        return f"{text[offset:end]}\n\n[characters {offset:,} to {end:,} of {len(text):,}; {more}]"

    def _text_of(self, path: str) -> str:
        root = self.folder.resolve()
        try:
            file = (root / path).resolve()
            if file.is_relative_to(root) and file.is_file():
                with file.open(encoding="utf-8", newline="") as kept:
                    return kept.read()
        except (OSError, ValueError):  # a name that is too long, or has a NUL
            pass
        # the same for what is elsewhere and for what is not: nobody learns which files there are
        raise ToolError(f"there is no result {path!r}; give the path as the answer named it")

    def __repr__(self) -> str:
        return f"<LargeResults {str(self.folder)!r} over={self._over}>"


def _folder_of(run: RunContext[Any]) -> str:
    thread_id = run.config.thread_id
    return _named("run", run.run_id) if thread_id is None else _named("thread", thread_id)


def _named(kind: str, id: str) -> str:
    return f"{kind}-{_plain(id)}-{_digest(id, 12)}"


def _plain(name: str) -> str:
    """A part of a file's name, on any system: what it stands for is told apart by a digest."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:40]


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:length]
