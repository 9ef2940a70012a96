"""`python -m vibe_llms.interpreter`: the server, over standard streams or streamable HTTP."""

from __future__ import annotations

import argparse
import asyncio
import hmac
import os
import secrets
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from vibe_llms.base.meta import CAGE_VARIABLE
from vibe_llms.interpreter.cage import find_obstacle
from vibe_llms.interpreter.linux import adopt_orphans
from vibe_llms.interpreter.server import Interpreter, produce_server, sweep_while
from vibe_llms.interpreter.settings import Limits

HOST = "127.0.0.1"
TOKEN_VARIABLE = "VIBE_LLMS_INTERPRETER_TOKEN"  # noqa: S105  (a name, no secret)
_LIMITS = ("call_seconds", "cpu_seconds", "idle_seconds", "memory_bytes", "disk_bytes", "kernels")


def main() -> None:
    """Serve until standard input ends, or, with `--http`, until the program is ended."""
    options = _read_options()
    given = {name: value for name in _LIMITS if (value := getattr(options, name)) is not None}
    spaces = options.cage == "required"
    if spaces and (obstacle := find_obstacle()):
        sys.exit(
            f"the cage is not available here: {obstacle}. To run code without it, with access to "
            'the network and your files, set cage = "none" in the row of the ensemble, or use the '
            "option --cage none."
        )
    adopt_orphans()
    interpreter = Interpreter(Limits(**given), spaces=spaces, shared=options.http is not None)
    work = (
        _serve_streams(interpreter)
        if options.http is None
        else _serve_http(interpreter, options.http, os.environ.get(TOKEN_VARIABLE, ""))
    )
    asyncio.run(sweep_while(interpreter.kernels, work))


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="vibe_llms.interpreter", description=main.__doc__)
    parser.add_argument(
        "--http", type=int, metavar="PORT", help="serve streamable HTTP on this local port; 0: any"
    )
    parser.add_argument(
        "--cage",
        choices=("required", "none"),
        default=os.environ.get(CAGE_VARIABLE, "required"),
        help="run code in a cage; none: run it without one",
    )
    for name in _LIMITS:
        kind: Any = float if name.endswith("seconds") else int
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N")
    return parser.parse_args()


async def _serve_streams(interpreter: Interpreter) -> None:
    from mcp.server.stdio import stdio_server

    server = produce_server(interpreter)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


async def _serve_http(interpreter: Interpreter, port: int, token: str) -> None:
    import socket

    import uvicorn

    known = token or secrets.token_urlsafe(32)
    app = guard(produce_server(interpreter).streamable_http_app(host=HOST), known)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()
        shown = f"the value of {TOKEN_VARIABLE}" if token else known
        sys.stderr.write(
            f'url = "http://{HOST}:{listener.getsockname()[1]}/mcp"\n'
            f'headers = {{ authorization = "Bearer {shown}" }}\n'
        )
        sys.stderr.flush()
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
        await server.serve(sockets=[listener])


def guard(app: Any, token: str) -> Callable[..., Awaitable[None]]:
    """Wrap an application to require the token, since any local program can reach the port."""
    wanted = f"Bearer {token}".encode()

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))
        if scope["type"] == "http" and not hmac.compare_digest(
            headers.get(b"authorization", b""), wanted
        ):
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"a token is needed\n"})
            return
        await app(scope, receive, send)

    return guarded


if __name__ == "__main__":
    main()
