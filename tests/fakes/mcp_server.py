"""An MCP server without any package, over standard streams, that misbehaves as its argument says.

    python mcp_server.py [BEHAVIOUR]

It speaks the handshake of 2025-11-25 and offers `echo`, which returns its text, and `pid`. Besides
the behaviours there are `pages`, `endless-pages` and `empty-pages` of tools, and `fuzz`, which
writes a wrong line before the answer to the text `fuzz`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from typing import Any

#: What it can do wrong, and in which phase that is noticed: `open`, `call`, or not at all.
BEHAVIOURS = {
    "exits-0": "open",
    "exits-1": "open",
    "hangs-at-initialize": "open",
    "unknown-version": "open",
    "hangs-at-list": "open",
    "hangs-at-call": "call",
    "dies-at-call": "call",
    "answers-twice": "",
    "wrong-id": "call",
    "wrong-json": "call",
    "invalid-utf-8": "",
    "lone-surrogate": "",
    "half-a-line": "call",
    "long-line": "call",
    "endless-line": "call",
    "notifications": "",
    "stderr-flood": "",
    "closes-stdin": "call",
    "closes-stdout": "call",
    "ignores-eof": "",
    "ignores-sigterm": "",
    "grandchild": "",
    "daemon": "",
    "many-tools": "",
    "tasks": "",
    "big-schema": "",
    "recursive-schema": "",
}
LONG_BYTES = 50_000_000
NEVER_SECONDS = 3600

OPEN: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
BEHAVIOUR = sys.argv[1] if len(sys.argv) > 1 else ""


def send(message: Any) -> None:
    write(json.dumps(message).encode() + b"\n")


def write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def answer(request: Any, result: Any) -> None:
    send({"jsonrpc": "2.0", "id": request["id"], "result": result})


def sleep() -> None:
    time.sleep(NEVER_SECONDS)


def initialize(request: Any) -> None:
    if BEHAVIOUR == "hangs-at-initialize":
        sleep()
    known = request["params"]["protocolVersion"]
    version = "1999-12-31" if BEHAVIOUR == "unknown-version" else known
    info = {"name": "fake", "version": "1"}
    answer(request, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})


def list_tools(request: Any) -> None:
    schema = OPEN
    match BEHAVIOUR:
        case "hangs-at-list":
            sleep()
        case "recursive-schema":
            schema = {**OPEN, "$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
        case "big-schema":
            schema = {**OPEN, "description": "x" * 10_000_000}
    tools = [{"name": "echo", "inputSchema": schema}, {"name": "pid", "inputSchema": OPEN}]
    if BEHAVIOUR.endswith("pages"):
        answer(request, list_page(request.get("params", {}).get("cursor", "0"), tools))
        return
    if BEHAVIOUR == "tasks":
        for support in ("required", "optional"):
            execution = {"taskSupport": support}
            tools.append({"name": support, "inputSchema": OPEN, "execution": execution})
    if BEHAVIOUR == "many-tools":
        tools += [{"name": f"tool-{number}", "inputSchema": OPEN} for number in range(9_990)]
    answer(request, {"tools": tools})


def spoil(request: Any, result: Any) -> bytes:
    """A line that is wrong in a way that is chosen by chance, the same for the same request."""
    chance = random.Random(request["id"])
    good = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()
    match chance.randrange(8):
        case 0:
            line = chance.randbytes(chance.randrange(1, 400)).replace(b"\n", b"")
        case 1:
            line = good[: chance.randrange(1, len(good))]
        case 2:
            line = b"[" * chance.randrange(1, 100_000)
        case 3:
            line = b'{"jsonrpc": "2.0", "id": %b, "result": NaN}' % (
                b"9" * chance.randrange(1, 6000)
            )
        case 4:
            line = good.replace(b'"content"', chance.choice([b'"contents"', b'"\\ud800"', b'""']))
        case 5:
            line = json.dumps(
                chance.choice([[], {}, 1, None, "a", [{}], {"jsonrpc": "2.0"}])
            ).encode()
        case 6:
            line = chance.choice([b"\xef\xbb\xbf", b"\xff", b"\0", b"\xe2\x80\xa8"]) + good
        case _:
            spoiled = bytearray(good)
            for _ in range(chance.randrange(1, 6)):
                spoiled[chance.randrange(len(spoiled))] = chance.choice(range(32, 256))
            line = bytes(spoiled)
    return line + b"\n"


def list_page(cursor: str, tools: list[Any]) -> dict[str, Any]:
    """One page of the tools: of five, or of ever more."""
    page = int(cursor)
    if BEHAVIOUR == "empty-pages":
        return {"tools": [], "nextCursor": str(page + 1)}
    numbers = range(page * 10 - 2, page * 10 + 8)
    more = [{"name": f"tool-{number}", "inputSchema": OPEN} for number in numbers]
    last = page == 4 and BEHAVIOUR == "pages"
    found = tools + more[2:] if not page else more
    return {"tools": found} if last else {"tools": found, "nextCursor": str(page + 1)}


def call(request: Any) -> None:
    name = request["params"]["name"]
    text = request["params"].get("arguments", {}).get("text", "") if name == "echo" else os.getpid()
    result = {"content": [{"type": "text", "text": str(text)}]}
    match BEHAVIOUR:
        case "hangs-at-call":
            sleep()
        case "daemon" | "grandchild" if text == "hang":
            sleep()
        case "dies-at-call":
            os._exit(3)
        case "daemon" if text == "die":
            os._exit(3)
        case "answers-twice":
            answer(request, result)
        case "wrong-id":
            answer({"id": 999_999}, result)
            return
        case "wrong-json":
            write(b'{"jsonrpc": "2.0", "id": \n')
            return
        case "fuzz" if text == "fuzz":
            write(spoil(request, result))
        case "invalid-utf-8":
            write(b'\xff\xfe{"jsonrpc"\n')
        case "lone-surrogate":
            result = {"content": [{"type": "text", "text": f"{text}\ud800"}]}
        case "half-a-line":
            write(b'{"jsonrpc": "2.0", "id": ')
            sleep()
        case "long-line":
            answer(request, {"content": [{"type": "text", "text": "x" * LONG_BYTES}]})
            return
        case "endless-line":
            while True:
                write(b"x" * 65536)
        case "notifications":
            reported = {"level": "info", "data": "so"}
            line = {"jsonrpc": "2.0", "method": "notifications/message", "params": reported}
            data = json.dumps(line).encode() + b"\n"
            for _ in range(int(os.environ.get("NOTIFICATIONS", "1000")) // 100):
                write(data * 100)
        case "stderr-flood":
            for _ in range(int(os.environ.get("FLOOD_BYTES", "1000000")) // 65536 + 1):
                os.write(2, b"x" * 65535 + b"\n")
        case "closes-stdin":
            os.close(0)
            sleep()
        case "closes-stdout":
            os.close(1)
            sleep()
    answer(request, result)


def start_daemon() -> None:
    """A process that leaves our session, our streams, our environment, and us.

    It is ours by a word in its arguments only.
    """
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 256)
            code = f"import time; time.sleep({NEVER_SECONDS})"
            os.execve(sys.executable, [sys.executable, "-c", code, os.environ["FAMILY"]], {})
        os._exit(0)
    os.wait()


def serve() -> None:
    if BEHAVIOUR.startswith("exits-"):
        sys.stderr.write("I do not want to\n")
        sys.exit(int(BEHAVIOUR[-1]))
    if BEHAVIOUR == "ignores-sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if BEHAVIOUR == "grandchild":
        # It keeps our standard output open, and does not end when we do.
        subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({NEVER_SECONDS})"])
    if BEHAVIOUR == "daemon" and "FAMILY" in os.environ:
        start_daemon()
    handlers = {"initialize": initialize, "tools/list": list_tools, "tools/call": call}
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        handler = handlers.get(request["method"])
        if handler is None:
            error = {"code": -32601, "message": f"there is no {request['method']}"}
            send({"jsonrpc": "2.0", "id": request["id"], "error": error})
        else:
            handler(request)
    if BEHAVIOUR in ("ignores-eof", "ignores-sigterm"):
        sleep()


if __name__ == "__main__":
    serve()
