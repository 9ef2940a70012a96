"""The server: a kernel for each conversation, over standard streams and HTTP, and nothing left."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.models import model_of, says
from vibe_llms import open_session
from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import EnsembleFailed
from vibe_llms.base.meta import CONVERSATION_KEY
from vibe_llms.conversations.hosts import EnsembleConfiguration
from vibe_llms.ensembles.mcp.ensemble import McpEnsemble
from vibe_llms.interpreter.processes import survey_tree
from vibe_llms.interpreter.server import Interpreter
from vibe_llms.interpreter.settings import Limits
from vibe_llms.invocation.approval import ApprovalRequest, Decision, Gatekeeper
from vibe_llms.invocation.invokers import InvocationContext
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.messages.canisters import InvocationCanister, ResultCanister
from vibe_llms.messages.contents import FileContent, ImageContent, TextualContent
from vibe_llms.testing import Part, ScriptedReply

LIMITS = Limits(start_seconds=60, grace_seconds=3, kernels=2)


def calls(code: str, tool: str = "execute_code") -> ScriptedReply:
    arguments = {"code": code} if code else {}
    return ScriptedReply(parts=(Part(invocation=f"python/{tool}", arguments=arguments),))


async def approve(_: ApprovalRequest) -> Decision:
    return Decision.ALLOW


@asynccontextmanager
async def interpret(*, shared: bool = False, **limits: Any) -> AsyncIterator[Interpreter]:
    values = {name: getattr(LIMITS, name) for name in LIMITS.__struct_fields__}
    interpreter = Interpreter(Limits(**{**values, **limits}), spaces=True, shared=shared)
    sweeping = asyncio.create_task(interpreter.kernels.sweep())
    try:
        yield interpreter
    finally:
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)
        await interpreter.kernels.close()


async def say(interpreter: Interpreter, conversation: str, code: str) -> str:
    meta = {CONVERSATION_KEY: conversation} if conversation else {}
    result = await interpreter.call("execute_code", {"code": code}, meta)
    return "\n".join(getattr(block, "text", block.type) for block in result.content)


async def test_conversations_and_their_forks_do_not_see_each_other() -> None:
    async with open_session(approver=approve) as session:
        first = await session.begin(
            model_of(calls("x = 1"), calls("x"), says("Done."), calls("x"), says("Done.")),
            ensembles=["python"],
        )
        second = await session.begin(model_of(calls("x"), says("Done.")), ensembles=["python"])
        turn = await first.converse("Go.")
        results = [one for one in turn.canisters if isinstance(one, ResultCanister)]
        assert [one.text for one in results] == ["[no output]", "1"]
        (other,) = (
            one
            for one in (await second.converse("Go.")).canisters
            if isinstance(one, ResultCanister)
        )
        assert other.failed
        assert "NameError" in other.text


async def test_the_shipped_row_asks_and_never_reads_only() -> None:
    asked: list[str] = []

    async def refuse(request: ApprovalRequest) -> Decision:
        asked.append(request.invocation.name)
        return Decision.DENY

    async with open_session(approver=refuse) as session:
        conversation = await session.begin(
            model_of(calls("1"), calls("", "restart"), says("Done.")), ensembles=["python"]
        )
        await conversation.converse("Go.")
    assert asked == ["python/execute_code", "python/restart"]


async def test_pictures_and_files_are_contents() -> None:
    code = (
        "open('a.png', 'wb').write(b'PNG'); open('b.csv', 'w').write('1,2'); "
        "open('c.bin', 'wb').write(bytes(9)); import sys; sys.stderr.write('oh'); None"
    )
    async with open_session(approver=approve) as session:
        conversation = await session.begin(
            model_of(calls(code), says("Done.")), ensembles=["python"], save=False
        )
        turn = await conversation.converse("Go.")
    (result,) = (one for one in turn.canisters if isinstance(one, ResultCanister))
    assert result.contents[1:] == (
        TextualContent("[the code wrote a.png, 3 bytes]"),
        ImageContent(b"PNG", "image/png"),
        TextualContent("[the code wrote b.csv, 3 bytes]"),
        TextualContent("1,2", "text/csv"),
        TextualContent("[the code wrote c.bin, 9 bytes]"),
        FileContent(bytes(9), "application/octet-stream", name="c.bin"),
    )
    assert result.contents[0] == TextualContent("[stderr]\noh")


async def test_one_kernel_too_many_ends_the_one_that_was_used_longest_ago() -> None:
    async with interpret() as interpreter:
        for name in ("a", "b"):
            await say(interpreter, name, "x = 1")
        assert await say(interpreter, "b", "x") == "1"
        assert "NameError" in await say(interpreter, "c", "x")
        reported = await say(interpreter, "a", "x")
        assert reported.startswith(
            "[a new interpreter; the previous one was stopped: other conversations needed its slot]"
        )
        assert "NameError" in reported


async def test_where_all_kernels_are_busy_a_call_fails_at_once() -> None:
    async with interpret(kernels=1) as interpreter:
        busy = asyncio.create_task(say(interpreter, "a", "import time; time.sleep(2); 7"))
        await asyncio.sleep(0.1)
        assert "busy; try again" in await say(interpreter, "b", "1")
        # In the same conversation calls wait for each other.
        assert await say(interpreter, "a", "2") == "2"
        assert await busy == "7"


async def test_an_idle_kernel_is_ended_and_that_is_reported() -> None:
    async with interpret(idle_seconds=0.3) as interpreter:
        await say(interpreter, "a", "x = 1")
        async with asyncio.timeout(30):
            while interpreter.kernels._slots:
                await asyncio.sleep(0.05)
        assert "it was idle for too long" in await say(interpreter, "a", "1")


async def test_a_restart_forgets_everything() -> None:
    async with interpret() as interpreter:
        await say(interpreter, "a", "x = 1; open('a.txt', 'w').close()")
        await interpreter.call("restart", {}, {CONVERSATION_KEY: "a"})
        reported = await say(interpreter, "a", "import os; print(os.path.exists('a.txt')); x")
        assert reported.startswith("False")
        assert "NameError" in reported
        assert "a new interpreter" not in reported


async def test_what_a_limit_ended_is_reported_again_with_the_next_call() -> None:
    async with interpret() as interpreter:
        assert "it exited" in await say(interpreter, "a", "import os; os._exit(1)")
        reported = await say(interpreter, "a", "1")
        assert reported == "[a new interpreter; the previous one was stopped: it exited]\n1"


async def test_strangers_who_share_an_address_share_no_kernel() -> None:
    async with interpret(shared=True) as interpreter:
        await say(interpreter, "", "x = 1")
        assert "NameError" in await say(interpreter, "", "x")
        assert interpreter.kernels._slots == {}
    async with interpret() as interpreter:
        await say(interpreter, "", "x = 1")
        assert await say(interpreter, "", "x") == "1"


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("execute_code", {}, "`code` is missing"),
        ("execute_code", {"code": 1}, "`code` is missing"),
        ("nonesuch", {}, "Tool 'nonesuch' not found"),
    ],
)
async def test_a_wrong_call_is_a_failed_result(
    name: str, arguments: dict[str, Any], words: str
) -> None:
    interpreter = Interpreter(LIMITS, spaces=True, shared=False)
    result = await interpreter.call(name, arguments, {})
    assert result.is_error
    assert words in result.content[0].text  # type: ignore[union-attr]


async def test_a_kernel_that_does_not_start_is_a_failed_result() -> None:
    async with interpret(start_seconds=0.01) as interpreter:
        assert "could not be started: it did not start in time" in await say(interpreter, "a", "1")


async def test_a_cancelled_call_is_interrupted_and_the_next_one_answered() -> None:
    async with interpret() as interpreter:
        await say(interpreter, "a", "x = 1")
        call = asyncio.create_task(say(interpreter, "a", "import time; time.sleep(60)"))
        await asyncio.sleep(0.3)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert await say(interpreter, "a", "x") == "1"


def produce_ensemble(**settings: Any) -> McpEnsemble:
    configuration = load_configuration()
    row = {**configuration.row("ensembles", "python").settings, "open-seconds": 60, **settings}
    return McpEnsemble("python", EnsembleConfiguration(configuration, row))


#: The interpreter on a system that refuses namespaces.
NO_NAMESPACES = (
    "import os, sys\n"
    "from vibe_llms.interpreter import linux, seccomp\n"
    "linux.gain_no_rights()\n"
    "seccomp.filter_calls()\n"
    "os.execv(sys.executable, [sys.executable, '-P', '-m', 'vibe_llms.interpreter'])\n"
)


async def invoke(ensemble: McpEnsemble, code: str, conversation: str = "c") -> InvocationOutput:
    (invoker, _) = ensemble.invokers
    invocation = InvocationCanister(name=invoker.name, arguments="{}")
    context = InvocationContext(conversation, invocation, lambda *_, **__: None)
    return await invoker.invoke(f'{{"code": "{code}"}}', context)


@pytest.mark.parametrize("killed", ["server", "guardian"])
@pytest.mark.parametrize("caged", [True, False])
async def test_a_server_that_is_killed_leaves_neither_kernels_nor_folders(
    killed: str, caged: bool
) -> None:
    ensemble = produce_ensemble(cage="required" if caged else "none")
    await ensemble.open()
    try:
        assert (await invoke(ensemble, "1")).text.endswith("1")
        server = ensemble._connection._server
        assert server is not None
        # The server is the child of the two processes of its guardian.
        tree = [one.identity for one in survey_tree(server._process.pid)][2:]
        assert len(tree) == 4
        names = [
            word.decode()
            for identity in tree
            for word in Path(f"/proc/{identity}/cmdline").read_bytes().split(b"\0")
        ]
        (folder,) = {
            found[0] for name in names if (found := re.findall(r'"folder":"([^"]+)"', name))
        }
        assert Path(folder).is_dir()
        os.kill(tree[0] if killed == "server" else server._process.pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            while any(Path(f"/proc/{one}/cwd").exists() for one in tree) or Path(folder).exists():
                await asyncio.sleep(0.05)
    finally:
        await ensemble.close()


async def test_without_namespaces_it_does_not_open_and_says_what_to_do() -> None:
    ensemble = produce_ensemble(command=[sys.executable, "-c", NO_NAMESPACES])
    with pytest.raises(
        EnsembleFailed,
        match=r'cage is not available here: .*cannot create namespaces.* cage = "none"',
    ):
        await ensemble.open()


@pytest.mark.parametrize("namespaces", [True, False])
async def test_without_a_cage_the_question_says_so_before_and_the_result_after(
    namespaces: bool,
) -> None:
    command = {} if namespaces else {"command": [sys.executable, "-c", NO_NAMESPACES]}
    ensemble = produce_ensemble(cage="none", **command)
    asked: list[str] = []

    async def approve(request: ApprovalRequest) -> Decision:
        asked.append(request.reason)
        return Decision.ALLOW

    await ensemble.open()
    try:
        (execute, _) = ensemble.invokers
        assert execute.sends
        call = InvocationCanister(name=execute.name, arguments='{"code": "1"}')
        assert await Gatekeeper(approve).admit(call, execute) == ""
        assert "it runs without a cage: its code can use the network" in asked[0]
        reported = (await invoke(ensemble, "1")).text
        assert reported.startswith("[no cage here: code can reach the network")
        assert (await invoke(ensemble, "1")).text == "1"
    finally:
        await ensemble.close()


async def test_over_http_it_answers_requests_with_the_token() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "vibe_llms.interpreter", "--http", "0", "--kernels", "1"),
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(60):
            url = re.findall(r'"(http[^"]+)"', (await process.stderr.readline()).decode())[0]
            token = re.findall(r"(Bearer [^\"]+)\"", (await process.stderr.readline()).decode())[0]

        def reach(**headers: str) -> McpEnsemble:
            row = {"url": url, "headers": headers, "open-seconds": 60, "list-seconds": 60}
            return McpEnsemble("far", EnsembleConfiguration(load_configuration(), row))

        ensemble = reach(authorization=token)
        await ensemble.open()
        await invoke(ensemble, "x = 1", "a")
        assert (await invoke(ensemble, "x", "a")).text == "1"
        assert "NameError" in (await invoke(ensemble, "x", "b")).text
        await ensemble.close()
        stranger = reach(authorization="Bearer wrong")
        with pytest.raises(Exception, match="error response"):
            await stranger.open()
        await stranger.close()
    finally:
        process.terminate()
        await process.communicate()
