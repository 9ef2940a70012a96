"""Review of changed tools of a client's servers, which are blocked until the user approves them.

`vibe-llms mcp approve` knows only the rows of the configuration, so the client asks here. See
adr/0030.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
from msgspec import Raw

from vibe_llms.acp.client import SessionClient
from vibe_llms.acp.questions import ask_permission
from vibe_llms.acp.updates import AskedCall, PermissionChoice, SentText, ToolContent
from vibe_llms.ensembles.pins import Definition, PinGuard, ToolChange
from vibe_llms.invocation.ensembles import Ensemble, OutsideEnsemble
from vibe_llms.messages.hidden import visible
from vibe_llms.messages.identities import produce_identity

_APPROVE, _KEEP = "approve", "keep"
_CHOICES = (
    PermissionChoice(_APPROVE, "Approve the new descriptions", "allow_always"),
    PermissionChoice(_KEEP, "Keep the tools blocked", "reject_once"),
)


async def review_changes(
    client: SessionClient, ensembles: Sequence[Ensemble], names: Collection[str], state: Path
) -> None:
    """Let the client ask about the changed tools of these ensembles; `state` has the approved ones.

    Nothing is asked if no tool has changed.
    """
    for ensemble in ensembles:
        if ensemble.name in names and isinstance(ensemble, OutsideEnsemble):
            guard = PinGuard(ensemble, state)
            if (changes := guard.changes) and await _approves(client, ensemble.name, changes):
                guard.pins.approve(changes)


async def _approves(client: SessionClient, name: str, changes: Sequence[ToolChange]) -> bool:
    texts = [f"{_draw(one.approved)}\n\nNow:\n\n{_draw(one.offered)}" for one in changes]
    call = AskedCall(
        tool_call_id=produce_identity(),
        title=f"Approve changed tools of {name}",
        kind="other",
        status="pending",
        content=[ToolContent(SentText(text)) for text in texts],
        raw_input=Raw(msgspec.json.encode({"changes": changes})),
    )
    return await ask_permission(client, call, _CHOICES) == _APPROVE


def _draw(definition: Definition) -> str:
    """Return a definition as text in which hidden characters can be seen."""
    return visible(msgspec.json.format(msgspec.json.encode(definition), indent=1).decode())
