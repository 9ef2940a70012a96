"""Stores the messages of one turn, and reports its notices."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from vibe_llms.base.futures import finish
from vibe_llms.conversations.calls import is_tainted
from vibe_llms.conversations.dispatcher import Dispatcher
from vibe_llms.conversations.history import History
from vibe_llms.conversations.settings import (
    ConversationSettings,
    TurnMemo,
    TurnRecord,
    TurnState,
)
from vibe_llms.messages.canisters import Canister, DigestCanister
from vibe_llms.messages.events import Notice, NoticeEvent


class TurnNotices:
    """A function that passes notices of one turn to its event handler."""

    def __init__(self, history: History, memo: TurnMemo, dispatcher: Dispatcher) -> None:
        self._history = history
        self._memo = memo
        self._dispatcher = dispatcher

    def __call__(self, notice: Notice) -> None:
        """Show a notice; those on conversions are shown once."""
        if notice.subject == "conversion":
            self.once(notice)
        else:
            self._show(notice)

    def once(self, notice: Notice) -> None:
        """Show a notice if this conversation has not shown it yet."""
        if (shown := (notice.canister, notice.text)) not in self._memo.shown:
            self._memo.shown.add(shown)
            self._show(notice)

    def _show(self, notice: Notice) -> None:
        self._dispatcher(NoticeEvent(notice=notice, conversation=self._history.identity))


class TurnStorage:
    """The messages that one turn adds, and their storage.

    `added` are the prompt and all that follows it, `digests` those that were made before. `start`
    is the number of earlier messages in the history. `pending` is the prompt while it is being
    stored.
    """

    def __init__(
        self,
        history: History,
        settings: ConversationSettings,
        record: TurnRecord | None,
        notify: TurnNotices,
    ) -> None:
        self._history = history
        self._record = record
        self._notify = notify
        self._revive, self._claims = settings.revive, settings.claims
        state = TurnState() if record is None else record.state
        self.state = replace(state, vouched=state.vouched | settings.vouched)
        self.start = len(history.canisters)
        self.added: list[Canister] = []
        self.digests: list[Canister] = []
        self.pending: Sequence[Canister] = ()
        self._keeping: asyncio.Task[None] | None = None
        #: True if the history before this turn is tainted; None until it is needed.
        self._begun_tainted: bool | None = None

    @property
    def storing(self) -> bool:
        """True while the prompt is being stored, concurrently with the request."""
        return self._keeping is not None

    async def begin(self, said: Sequence[Canister], *, concurrently: bool) -> None:
        """Store the prompt, `concurrently` with the request if the model allows it.

        No part of the reply is shown or stored before that, and no tool runs: see adr/0051.
        """
        if self._history.archive is None or not concurrently:
            await self.keep(said)
            return
        self.pending = said
        self._keeping = asyncio.ensure_future(self.keep(said))

    async def await_kept(self) -> str:
        """Wait until the prompt is stored; return the conversation's identity."""
        if self._keeping is not None:
            await asyncio.shield(self._keeping)
        return self._history.identity

    async def finish(self) -> None:
        """Wait until the prompt is stored, even if the wait is cancelled."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            try:
                await finish(keeping)
            finally:
                self.pending = ()

    async def keep(self, canisters: Sequence[Canister]) -> None:
        """Store messages of the turn."""
        await self._store(canisters)
        self.added += canisters

    async def keep_digest(self, digest: DigestCanister) -> None:
        """Store a digest, before the prompt or after the last message."""
        await self._store([digest])
        if self.added:
            self.added.append(digest)
        else:
            self.digests.append(digest)
            self.start = len(self._history.canisters)

    def taint(self, added: Sequence[Canister]) -> TurnState:
        """Return the state of the turn after more messages; a tainted turn stays tainted."""
        vouched = self.state.vouched
        if self._begun_tainted is None:
            before = self._history.canisters[: self.start]
            self._begun_tainted = is_tainted(before, vouched=vouched, claims=self._claims)
        tainted = (
            self.state.tainted
            or self._begun_tainted
            or is_tainted(added, vouched=vouched, claims=False)
        )
        return replace(self.state, tainted=tainted)

    async def _store(self, canisters: Sequence[Canister]) -> None:
        if self._record is None:
            await self._history.append(canisters, self._notify, revive=self._revive)
        else:
            await finish(self._store_recorded(self._record, canisters))

    async def _store_recorded(self, record: TurnRecord, canisters: Sequence[Canister]) -> None:
        await record.flush()
        if (state := self.taint([*self.added, *canisters])) != record.state:
            await record.record_state(state)
            self.state = state
        await self._history.append(canisters, self._notify, confirm=record.confirm)
        record.report_kept(canisters)
