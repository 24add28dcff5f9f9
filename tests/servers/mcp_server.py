"""A server made with the SDK, over stdio or, where a port is given, over HTTP."""

import os
import sys
from typing import Any, TypedDict

import anyio
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError

server = MCPServer("workshop", instructions="Count before you cut.")
cancelled = anyio.Event()


class Board(TypedDict):
    wood: str
    length: float


@server.tool()
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool(structured_output=False)
def same(agent: str, context: str, self: str = "", more: Any = None) -> str:
    """Say what was given."""
    return repr((agent, context, self, more))


@server.tool(structured_output=False)
def picture() -> list[Any]:
    """Draw."""
    return ["a picture", Image(data=b"\x89PNG", format="png")]


@server.tool()
def board() -> Board:
    """Take a board."""
    return {"wood": "oak", "length": 1.5}


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("the saw is blunt")


@server.tool()
def refuse() -> str:
    """Refuse by the protocol."""
    raise MCPError(-32050, "no entry")


@server.tool()
async def count(to: int, context: Context[Any, Any]) -> str:
    """Count aloud."""
    for number in range(1, to + 1):
        await context.report_progress(number, to, f"at {number}")
    return "counted"


@server.tool()
async def hang(context: Context[Any, Any]) -> str:
    """Do not answer."""
    await context.report_progress(0)
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        cancelled.set()
        raise
    return ""


@server.tool()
async def was_cancelled() -> str:
    """Wait until a hanging call is cancelled."""
    await cancelled.wait()
    return "cancelled"


@server.tool()
def die() -> str:
    """End the process."""
    sys.stderr.write("out of wood\n")
    sys.stderr.flush()
    os._exit(3)


@server.tool()
def pid() -> str:
    """Tell the process's id."""
    return str(os.getpid())


@server.tool()
def header(name: str, context: Context[Any, Any]) -> str:
    """Tell a header of the request."""
    assert context.headers is not None
    return str(context.headers.get(name))


@server.tool(structured_output=False)
def much() -> str:
    """Say much."""
    return "m" * 2**22


@server.tool()
async def grow(context: Context[Any, Any]) -> str:
    """Bring one more tool."""
    server.add_tool(lambda: "planed", name="plane", description="Plane.")
    await context.notify_tools_changed()
    return "grown"


if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run()
