"""The trace of a run: each process that works on it continues the one that it was started in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.postgres import temporary_database
from tests.test_telemetry import Recording
from vibe_llms import Session, open_session
from vibe_llms.messages.tracing import Tracer
from vibe_llms.runs import MessageStarted, RunStatus

TALK = '[[replies]]\nwhen = ".*"\n[[replies.parts]]\ntext = "It is done."\n'
STALL = '[[replies]]\n[[replies.parts]]\ntext = "It "\n[[replies.parts]]\nstall = true\n'
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS = {b"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01".encode(), b"tracestate": b"vendor=1"}


@pytest.fixture(params=["sqlite", "postgres"])
def storage(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Where runs are kept: the tables of a configuration."""
    if request.param == "sqlite":
        yield {}
        return
    with temporary_database() as place:
        yield {"archive": {"module": "vibe_llms.storage.postgres", "dsn": place.dsn}}


def opened(
    home: Path, storage: dict[str, Any], tracer: Tracer | None, *, script: str = TALK
) -> AbstractAsyncContextManager[Session]:
    """A session that stands for a process; its model follows the script."""
    file = home / f"{len(script)}.toml"
    file.write_text(script)
    scripted = {"scripts": {"talk": str(file)}}
    return open_session(
        home=home, configuration={**storage, "providers": {"scripted": scripted}}, tracer=tracer
    )


async def test_a_process_that_claims_a_run_continues_its_trace(
    tmp_path: Path, storage: dict[str, Any]
) -> None:
    here, there = Recording(), Recording()
    async with (
        opened(tmp_path, storage, here.tracer) as session,
        opened(tmp_path, storage, there.tracer) as other,
    ):
        session.access_runs().worker.pause()
        other.access_runs().resume()
        with here.tracer.serve("POST", "/runs", HEADERS):
            run = await session.start(await session.begin("scripted/talk"), "Hello")
        await run.result()
        # No request is in its span.
        untraced = await session.start(await session.begin("scripted/talk"), "Hello")
        await untraced.result()
    (request,) = here.spans
    turn, alone = (one for one in there.spans if one.name == "invoke_agent")
    assert turn.context
    assert turn.parent
    assert request.context
    assert f"{turn.context.trace_id:032x}" == TRACE
    assert turn.parent.span_id == request.context.span_id
    assert turn.context.trace_state.get("vendor") == "1"
    assert not turn.links
    assert alone.parent is None


async def test_a_process_that_takes_a_run_over_continues_its_trace(
    tmp_path: Path, storage: dict[str, Any]
) -> None:
    here, there = Recording(), Recording()
    async with opened(tmp_path, storage, there.tracer) as other:
        async with opened(tmp_path, storage, here.tracer, script=STALL) as session:
            with here.tracer.serve("POST", "/runs", {}):
                run = await session.start(await session.begin("scripted/talk"), "Hello")
            async for _, event in run.events():
                if isinstance(event, MessageStarted):
                    break
        other.access_runs().resume()
        taken = await other.access_run(run.identity)
        await taken.result()
        assert (taken.record.status, taken.record.epoch) == (RunStatus.COMPLETED, 2)
    begun, continued = here.one("invoke_agent"), there.one("invoke_agent")
    request = here.one("POST /runs").context
    assert begun.parent
    assert continued.parent
    assert request
    assert begun.parent.span_id == continued.parent.span_id == request.span_id
    assert continued.parent.trace_id == request.trace_id


async def test_a_run_that_is_not_traced_keeps_nothing_of_it(
    tmp_path: Path, storage: dict[str, Any]
) -> None:
    around = Recording()
    async with opened(tmp_path, storage, None) as session:
        with around.tracer.serve("POST", "/runs", HEADERS):
            run = await session.start(await session.begin("scripted/talk"), "Hello")
        await run.result()
        assert not (await run.access()).recipe.parent
