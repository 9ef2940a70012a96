"""The program: its options, its token, and what it says where there is no cage."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import Any

import pytest

from vibe_llms.base.meta import CONVERSATION_KEY
from vibe_llms.interpreter import __main__ as program
from vibe_llms.interpreter.server import Interpreter, produce_server, sweep_while
from vibe_llms.interpreter.settings import Limits


async def ask(app: Any, **headers: str) -> int:
    statuses: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    named = [(name.encode(), value.encode()) for name, value in headers.items()]
    await app({"type": "http", "headers": named}, receive, send)
    return statuses[0]


async def test_only_who_has_the_token_is_let_in() -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    guarded = program.guard(app, "right")
    assert await ask(guarded, authorization="Bearer right") == 200
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "right"}):
        assert await ask(guarded, **headers) == 401
    # What starts and ends the application has no headers.
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await guarded({"type": "lifespan"}, None, send)
    assert sent


@pytest.mark.parametrize("spaces", [True, False])
@pytest.mark.parametrize("port", [None, 0])
def test_options_become_limits(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spaces: bool,
    port: int | None,
) -> None:
    made: list[Any] = []

    class Recorded(Interpreter):
        def __init__(self, limits: Limits, **options: Any) -> None:
            super().__init__(limits, **options)
            made.append((limits, options))

    def run(work: Any) -> None:
        work.close()

    options = ["interpreter", "--call-seconds", "7", "--kernels", "2", "--memory-bytes", "9"]
    options += [] if port is None else ["--http", str(port)]
    monkeypatch.setattr(sys, "argv", options if spaces else [*options, "--cage", "none"])
    monkeypatch.setattr(program, "Interpreter", Recorded)
    monkeypatch.setattr(program, "adopt_orphans", lambda: None)
    monkeypatch.setattr(program, "find_obstacle", lambda: "")
    monkeypatch.setattr(program, "sweep_while", lambda _, work: work)
    monkeypatch.setattr(asyncio, "run", run)
    program.main()
    ((limits, given),) = made
    assert (limits.call_seconds, limits.kernels, limits.memory_bytes) == (7, 2, 9)
    assert limits.most_cpu_seconds == 17
    assert given == {"spaces": spaces, "shared": port is not None}


def test_without_namespaces_it_does_not_start_unless_the_cage_is_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["interpreter"])
    monkeypatch.setattr(program, "find_obstacle", lambda: "this system gives none")
    with pytest.raises(
        SystemExit, match=r'cage is not available here: this system gives none.*cage = "none"'
    ):
        program.main()


@pytest.mark.parametrize("token", ["", "of-mine"])
async def test_over_http_it_says_where_it_is_and_its_token_unless_it_was_given(
    capsys: pytest.CaptureFixture[str], token: str
) -> None:
    interpreter = Interpreter(Limits(), spaces=True, shared=True)
    serving = asyncio.create_task(
        sweep_while(interpreter.kernels, program._serve_http(interpreter, 0, token))
    )
    reported = ""
    async with asyncio.timeout(60):
        while "headers" not in reported:
            await asyncio.sleep(0.02)
            reported += capsys.readouterr().err
        (address,) = re.findall(r'url = "http://127\.0\.0\.1:(\d+)/mcp"', reported)
        _, writer = await asyncio.open_connection("127.0.0.1", int(address))
        writer.close()
    assert ("of-mine" in reported) is False
    assert (program.TOKEN_VARIABLE in reported) == bool(token)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def test_a_client_of_the_official_package_sees_and_calls_the_tools() -> None:
    from mcp import Client

    interpreter = Interpreter(Limits(start_seconds=60), spaces=True, shared=False)
    try:
        async with Client(produce_server(interpreter)) as client:
            execute, restart = (await client.list_tools()).tools
            assert (execute.name, restart.name) == ("execute_code", "restart")
            assert execute.annotations is not None
            assert execute.annotations.read_only_hint is False
            assert execute.annotations.open_world_hint is False
            assert "30 s, 512 MB" in (execute.description or "")
            meta: Any = {CONVERSATION_KEY: "a"}
            code = "open('a.bin','wb').write(bytes(2)); open('b.png','wb').write(b'P'); "
            code += "open('c.txt','w').write('c'); import sys; sys.stderr.write('e'); None"
            result = await client.call_tool("execute_code", {"code": code}, meta=meta)
            kinds = [block.type for block in result.content]
            assert sorted(kinds) == ["image", "resource", "resource", *["text"] * 4]
            wrong = await client.call_tool("execute_code", {"code": "1/0"}, meta=meta)
            assert wrong.is_error
    finally:
        await interpreter.kernels.close()
