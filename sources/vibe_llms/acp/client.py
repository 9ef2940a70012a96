"""`SessionClient`: a client as one session sees it. It gets updates, and is asked questions."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Raw, Struct

from vibe_llms.acp.peer import Peer
from vibe_llms.acp.requests import ClientAbilities
from vibe_llms.acp.updates import OWN, SentText, SessionUpdate, ThoughtChunk, UpdateParams
from vibe_llms.messages.events import Notice
from vibe_llms.messages.identities import produce_identity


class SessionClient:
    """The client of one session; updates wait until `release`, when it knows the session."""

    def __init__(
        self, peer: Peer, abilities: ClientAbilities, report: Callable[[str], object]
    ) -> None:
        self.abilities = abilities
        #: Identity of the session; empty before it is known.
        self.session = ""
        self._peer = peer
        self._report = report
        self._held: list[SessionUpdate] | None = []

    def send(self, update: SessionUpdate) -> None:
        """Send an update."""
        if self._held is not None:
            self._held.append(update)
        else:
            self._peer.notify("session/update", UpdateParams(self.session, update))

    def release(self) -> None:
        """Send the updates that waited, and all further ones at once."""
        held, self._held = self._held, None
        for update in held or ():
            self.send(update)

    def show(self, notice: Notice) -> None:
        """Show a notice: as a thought, because the protocol has no notices, and on stderr."""
        text = f"note: {notice.text}"
        self._report(text)
        meta = {OWN: {"notice": notice.subject}}
        block = SentText(f"{text}\n")
        self.send(ThoughtChunk(message_id=produce_identity(), content=block, meta=meta))

    async def ask(self, method: str, params: Struct) -> Raw:
        """Send a request, and return its result."""
        return await self._peer.request(method, params)

    async def drain(self) -> None:
        """Wait while the client is too far behind."""
        await self._peer.drain()
