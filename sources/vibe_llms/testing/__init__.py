"""Test doubles and contract checks: scripted models, a fake server, and `check_` functions.

>>> import asyncio
>>> events = []
>>> model = scripted_model(["Hel", "lo"], event_handler=events.append)
>>> (reply,) = asyncio.run(model.converse([UserCanister.from_text("Hi")]))
>>> reply.text
'Hello'
>>> check_events(events, turn=False)
"""

from __future__ import annotations

from collections.abc import Sequence

from vibe_llms.base.configuration import StreamSettings
from vibe_llms.base.network.offline import forbid_requests, requests_forbidden
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.events import EventHandler, ignore_events
from vibe_llms.providers.scripted.client import ScriptedClient, ScriptedModel
from vibe_llms.providers.scripted.scripts import Improvisation, Part, Script, ScriptedReply
from vibe_llms.testing.archive import check_archive
from vibe_llms.testing.budgets import check_budget_store
from vibe_llms.testing.events import check_events
from vibe_llms.testing.memory import check_memory_store
from vibe_llms.testing.providers import check_provider
from vibe_llms.testing.runs import check_run_store
from vibe_llms.testing.server import FakeServer, Received, fake_server

__all__ = [
    "FakeServer",
    "Improvisation",
    "Part",
    "Received",
    "Script",
    "ScriptedModel",
    "ScriptedReply",
    "UserCanister",
    "check_archive",
    "check_budget_store",
    "check_events",
    "check_memory_store",
    "check_provider",
    "check_run_store",
    "fake_server",
    "forbid_requests",
    "requests_forbidden",
    "scripted_model",
]


def scripted_model(
    script: Sequence[str] | ScriptedReply | Script | Improvisation,
    *,
    event_handler: EventHandler = ignore_events,
    name: str = "script",
    stream: StreamSettings = StreamSettings(),
    recording: bool = True,
    context_tokens: int | None = None,
) -> ScriptedModel:
    """Return a model that answers from a script, without a network.

    `script` is the chunks of a single reply, one reply, a script, or a function of the conversation
    and the tools that returns the reply. The model's `requests` hold the requests that it got,
    unless `recording` is off: each holds its whole history, which adds up over thousands of turns.
    With `context_tokens`, longer requests are refused, and replies report the tokens read.
    """
    client = ScriptedClient("scripted", event_handler, stream=stream, scripts={})
    if isinstance(script, ScriptedReply):
        script = Script((script,))
    elif isinstance(script, Sequence):
        script = Script((ScriptedReply.from_chunks(*script),))
    return ScriptedModel(client, name, script, recording=recording, context_tokens=context_tokens)
