"""The prompt is stored while the request is on its way, and before anything of the reply shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.exceptions import StorageError
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.turn_storage import TurnStorage
from vibe_llms.messages.canisters import Canister, UserCanister
from vibe_llms.messages.events import (
    Event,
    MessageFailedEvent,
    MessageStartedEvent,
    NoticeEvent,
    TurnEndedEvent,
)
from vibe_llms.opening import open_session
from vibe_llms.providers.scripted.scripts import Part, Script, ScriptedReply
from vibe_llms.session.core import Session
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.testing import fake_server
from vibe_llms.testing.server import FakeServer


def answer(*texts: str) -> Script:
    """One reply after the other."""
    return Script(tuple(ScriptedReply(parts=(Part(text=(text,)),)) for text in texts))


MODEL = "anthropic/claude-sonnet-5-5"


class SlowArchive(DirectoryArchive):
    """An archive whose next append waits for `gate`, and may fail then."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, StorageSettings(durability="fast"))
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None

    async def append(
        self, identity: str, canisters: Sequence[Canister], *, after: str | None
    ) -> tuple[tuple[Canister, ...], Any]:
        """Append once the gate is open."""
        await self.gate.wait()
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        return await super().append(identity, canisters, after=after)


class Rig:
    """A conversation with one turn behind it, and what its next turn shows."""

    def __init__(self, server: FakeServer, session: Session, archive: SlowArchive) -> None:
        self.server, self.session, self.archive = server, session, archive
        self.events: list[Event] = []
        self.conversation: Conversation

    async def begin(self) -> None:
        self.conversation = await self.session.begin(MODEL)
        await self.conversation.converse("First")
        self.archive.gate.clear()

    def converse(self) -> asyncio.Task[Any]:
        return asyncio.ensure_future(
            self.conversation.converse("Second", event_handler=self.events.append)
        )

    async def answered(self) -> None:
        """Wait until the server has answered the second request."""
        async with asyncio.timeout(10):
            while len(self.server.received) < 2:
                await asyncio.sleep(0.002)

    @property
    def shown(self) -> list[Event]:
        """What the reader has seen of the reply."""
        return [e for e in self.events if not isinstance(e, (NoticeEvent, TurnEndedEvent))]

    async def texts(self) -> list[str]:
        restored = await self.archive.restore(self.conversation.identity)
        return [getattr(canister, "text", "") for canister in restored.canisters]


@asynccontextmanager
async def begun(folder: Path) -> AsyncIterator[Rig]:
    """A conversation whose next message will not be stored before the gate is opened."""
    archive = SlowArchive(folder / "archive")
    async with (
        fake_server(answer("One.", "Two.", "Three.")) as server,
        open_session(
            configuration=server.configuration, keys=server.keys, archive=archive
        ) as session,
    ):
        rig = Rig(server, session, archive)
        await rig.begin()
        yield rig


async def check_overlap(tmp_path: Path) -> None:
    async with begun(tmp_path) as rig:
        turn = rig.converse()
        await rig.answered()
        try:
            # Long enough for a reply on this machine to arrive.
            await asyncio.sleep(0.1)
            assert rig.shown == []
        finally:
            rig.archive.gate.set()
        assert (await turn).text == "Two."
        assert isinstance(rig.shown[0], MessageStartedEvent)
        assert await rig.texts() == ["First", "One.", "Second", "Two."]


async def test_nothing_is_shown_before_the_prompt_is_stored(tmp_path: Path) -> None:
    await check_overlap(tmp_path)


async def test_showing_the_reply_too_early_would_be_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forget_to_wait(self: TurnStorage) -> str:
        return self._history.identity

    monkeypatch.setattr(TurnStorage, "await_kept", forget_to_wait)
    with pytest.raises(AssertionError):
        await check_overlap(tmp_path)


async def test_a_prompt_that_cannot_be_stored_ends_the_turn_unanswered(tmp_path: Path) -> None:
    async with begun(tmp_path) as rig:
        rig.archive.failure = StorageError("the disk is full")
        turn = rig.converse()
        await rig.answered()
        rig.archive.gate.set()
        with pytest.raises(StorageError, match="the disk is full"):
            await turn
        assert list(map(type, rig.shown)) == [MessageStartedEvent, MessageFailedEvent]
        assert await rig.texts() == ["First", "One."]
        assert (await rig.conversation.converse("Again")).text == "Three."
        assert await rig.texts() == ["First", "One.", "Again", "Three."]


async def test_a_cancel_keeps_the_prompt_that_is_being_stored(tmp_path: Path) -> None:
    async with begun(tmp_path) as rig:
        turn = rig.converse()
        await rig.answered()
        turn.cancel()
        rig.archive.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await turn
        assert list(map(type, rig.shown)) == [MessageStartedEvent, MessageFailedEvent]
        assert (await rig.texts())[:3] == ["First", "One.", "Second"]


async def test_a_reply_belongs_to_the_fork_that_keeps_its_prompt(tmp_path: Path) -> None:
    async with begun(tmp_path) as rig:
        former = rig.conversation.identity
        # As another process would.
        rig.archive.append_now(former, (UserCanister.from_text("Elsewhere"),), None)
        rig.archive.gate.set()
        assert (await rig.converse()).text == "Two."
        assert rig.conversation.identity != former
        assert {event.conversation for event in rig.shown} == {rig.conversation.identity}
        assert await rig.texts() == ["First", "One.", "Second", "Two."]


async def test_a_model_that_does_not_wait_is_asked_after_the_prompt_is_stored(
    tmp_path: Path,
) -> None:
    async with begun(tmp_path) as rig:
        model: Any = rig.conversation.model
        model.awaits_kept = False
        turn = rig.converse()
        await asyncio.sleep(0.1)
        assert len(rig.server.received) == 1
        rig.archive.gate.set()
        assert (await turn).text == "Two."
