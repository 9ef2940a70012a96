"""The events of a run, read back as those of its turn."""

from __future__ import annotations

from pathlib import Path

from vibe_llms import InvocationContext, Invoker, open_session
from vibe_llms.runs.events import (
    CallEnded,
    CallProgress,
    CallStarted,
    MessageDelta,
    MessageStarted,
    RunNotice,
)
from vibe_llms.runs.recorder import translate
from vibe_llms.runs.replay import Replay

SCRIPT = """
[[replies]]
[[replies.parts]]
reasoning = "First the mailbox."
[[replies.parts]]
invocation = "tidy"
[[replies.parts]]
invocation = "fail"
[[replies]]
[[replies.parts]]
text = "It is tidy."
"""
SHOWN = (MessageStarted, MessageDelta, CallStarted, CallProgress, CallEnded, RunNotice)


def tidy(context: InvocationContext) -> str:
    context.report_progress("looking", done=1, total=2)
    return "tidied"


def fail() -> str:
    raise ValueError("no mailbox")


async def test_what_is_read_back_is_what_was_recorded(tmp_path: Path) -> None:
    (tmp_path / "tidy.toml").write_text(SCRIPT)
    settings = {"providers": {"scripted": {"scripts": {"tidy": str(tmp_path / "tidy.toml")}}}}
    tools = [Invoker.from_function(one, approval="allow") for one in (tidy, fail)]
    async with open_session(home=tmp_path, configuration=settings, invokers=tools) as session:
        conversation = await session.begin("scripted/tidy", invokers=tools)
        run = await session.start(conversation, "Tidy the mailbox.")
        recorded = [event async for _, event in run.events()]
        replay = Replay(run)
        events = [await replay.read(event) for event in recorded]
    shown = [event for event in recorded if isinstance(event, SHOWN)]
    assert {CallStarted, CallProgress, CallEnded, MessageDelta} <= {type(one) for one in shown}
    assert [translate(event) for event in events if event is not None] == shown
    deltas = {one.message for one in shown if isinstance(one, MessageDelta)}
    assert replay.shown == deltas
