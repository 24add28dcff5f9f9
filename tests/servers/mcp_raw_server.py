"""A server without an SDK, of the protocol's older kind: it can do what none should."""

import base64
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ["ok", "hang", "die", "pid", "cancelled", "grow", "linked", "blob", "bad_image", "bad_answer"]
told: list[int] = []
habits = set(sys.argv[1:])
if "dotted" in habits:
    NAMES.extend(["fs.read", "fs/read"])


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def tools(cursor: str | None) -> dict[str, Any]:
    """Two to a page."""
    start = int(cursor or 0)
    page = [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES[start : start + 2]]
    if "endless" in habits:
        return {"tools": page, "nextCursor": "2"}
    return {"tools": page} | ({"nextCursor": str(start + 2)} if start + 2 < len(NAMES) else {})


def call(id: int, name: str, meta: dict[str, Any]) -> dict[str, Any] | None:
    resource: dict[str, Any] = {"uri": "file:///cut/list.pdf", "mimeType": "application/pdf"}
    match name:
        case "hang":
            say(method="notifications/progress", params={"progressToken": meta["progressToken"], "progress": 0})
            return None
        case "die":
            os.write(2, b"out of wood")
            os._exit(3)
        case "cancelled":
            return {"content": [{"type": "text", "text": json.dumps(told)}]}
        case "grow":
            NAMES.append("grown")
            if "quiet" not in habits:
                say(method="notifications/tools/list_changed")
        case "pid":
            return {"content": [{"type": "text", "text": str(os.getpid())}]}
        case "linked":
            return {"content": [{"type": "resource_link", "name": "list", "description": "to cut", **resource}]}
        case "blob":
            blob = base64.b64encode(b"%PDF").decode()
            sound = {"type": "audio", "data": blob, "mimeType": "audio/wav"}
            text = {"type": "resource", "resource": {"uri": "file:///note", "text": "a note"}}
            return {"content": [{"type": "resource", "resource": {**resource, "blob": blob}}, sound, text]}
        case "bad_image":
            return {"content": [{"type": "image", "data": "abcde", "mimeType": "image/png"}]}
        case "bad_answer":
            return {"content": "none"}
        case _:
            pass
    return {"content": [{"type": "text", "text": "well"}]}


if "deaf" in habits:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.stderr.write(f"started as {os.getpid()}\n")
sys.stderr.flush()
if "once" in habits:
    if Path(sys.argv[2]).exists():
        habits.add("slow")
    Path(sys.argv[2]).touch()
if "slow" in habits:
    time.sleep(60)
for line in sys.stdin:
    request = json.loads(line)
    id, params = request.get("id"), request.get("params", {})
    if "noisy" in habits:
        os.write(1, b"Debugger listening...\n\xff\xfe\n{]\n\n")
    match request["method"]:
        case "initialize":
            about = {"name": "raw", "version": "1"}
            version = params["protocolVersion"]
            abilities = {"tools": {"listChanged": True}}
            say(id=id, result={"protocolVersion": version, "capabilities": abilities, "serverInfo": about})
        case "tools/list" if "fussy" in habits and "grown" in NAMES:
            say(id=id, error={"code": -32603, "message": "not now"})
        case "tools/list":
            say(id=id, result=tools(params.get("cursor")))
        case "tools/call":
            answer = call(id, params["name"], params.get("_meta", {}))
            if answer is not None:
                say(id=id, result=answer)
        case "notifications/cancelled":
            told.append(params["requestId"])
        case method if id is not None:
            say(id=id, error={"code": -32601, "message": f"no method {method}"})
        case _:
            pass
while "deaf" in habits:
    time.sleep(60)
