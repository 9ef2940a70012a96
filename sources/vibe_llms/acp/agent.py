"""`AcpAgent`: the methods of the protocol that work with sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from weakref import WeakValueDictionary

from msgspec import Raw

from vibe_llms.acp.client import SessionClient
from vibe_llms.acp.home import Home
from vibe_llms.acp.options import LaunchOptions
from vibe_llms.acp.peer import Empty, Method, Peer, Reply
from vibe_llms.acp.prompts import read_prompt_blocks
from vibe_llms.acp.requests import (
    LIST,
    NEW_SESSION,
    OPTION,
    PROMPT,
    SESSION,
    STORED_SESSION,
    ClientAbilities,
    NewSessionParams,
    StoredSessionParams,
    check_folder,
)
from vibe_llms.acp.rpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    NOT_FOUND,
    RpcError,
    quote,
    read_params,
)
from vibe_llms.acp.sessions import FOLDER_TAG, AcpSession, produce_options, produce_tag
from vibe_llms.acp.updates import ListResult, PromptResult, SessionResult, SessionRow
from vibe_llms.agents.definitions import survey_names
from vibe_llms.base.exceptions import (
    ConfigurationError,
    ConversationNotFound,
    ModelNotFound,
    PackageMissing,
)
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.messages.events import Notice
from vibe_llms.session.core import Session
from vibe_llms.storage.interfaces import Archive, Summary

#: Sessions on a page of a list.
_PAGE = 50


class AcpAgent:
    """The sessions of a client, and the methods that open, list, use and close them."""

    def __init__(
        self,
        peer: Peer,
        abilities: ClientAbilities,
        options: LaunchOptions,
        report: Callable[[str], object],
    ) -> None:
        self.methods: Mapping[str, Method] = {
            "session/new": self._begin,
            "session/load": self._load,
            "session/resume": self._resume,
            "session/list": self._list,
            "session/close": self._close,
            "session/delete": self._delete,
            "session/prompt": self._prompt,
            "session/cancel": self._cancel,
            "session/set_config_option": self._choose,
        }
        self._peer = peer
        self._abilities = abilities
        self._options = options
        self._report = report
        self._home: Home | None = None
        self._sessions: dict[str, AcpSession] = {}
        #: One operation at a time opens, closes or deletes a session.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def interrupt(self) -> None:
        """End all turns; what has arrived is stored."""
        await asyncio.gather(*(one.cancel() for one in [*self._sessions.values()]))

    async def close(self) -> None:
        """Close all sessions, and what they share."""
        sessions, self._sessions = self._sessions, {}
        try:
            await asyncio.gather(*(one.close() for one in sessions.values()))
        finally:
            if self._home is not None:
                await self._home.close()

    async def _begin(self, params: Raw) -> Reply:
        given = read_params(params, NEW_SESSION)
        given.check()
        client = self._produce_client()
        agent = self._options.agent or ""

        async def begin(session: Session, ensembles: Sequence[str]) -> tuple[Conversation, str]:
            options = produce_options(session, agent, ensembles)
            tags = [produce_tag(given.cwd)]
            return await session.begin(self._options.model, tags=tags, **options), agent

        opened = await self._open(client, given, begin)
        client.session = opened.conversation.identity
        self._sessions[client.session] = opened
        result = SessionResult(session_id=client.session, config_options=opened.choices)
        return Reply(result, then=client.release)

    async def _load(self, params: Raw) -> Reply:
        return await self._reopen(params, replays=True)

    async def _resume(self, params: Raw) -> Reply:
        return await self._reopen(params, replays=False)

    async def _reopen(self, params: Raw, *, replays: bool) -> Reply:
        given = read_params(params, STORED_SESSION)
        given.check()
        identity = given.session_id
        async with self._lock(identity):
            opened = self._sessions.get(identity)
            if opened is not None and opened.busy:
                raise RpcError(
                    INVALID_REQUEST,
                    f"a turn of the session {quote(identity)} is running; cancel it, or wait",
                )
            if opened is None or opened.conversation.history.stored:
                if opened is not None:
                    # The client may have changed its servers.
                    del self._sessions[identity]
                    await opened.close()
                opened = await self._open_stored(given)
                self._sessions[identity] = opened
            if replays:
                opened.client.release()
                await opened.replay()
        return Reply(SessionResult(config_options=opened.choices), then=opened.client.release)

    async def _open_stored(self, given: StoredSessionParams) -> AcpSession:
        home, client = self._access_home(), self._produce_client()
        await _require_stored(home.archive, given.session_id)
        client.session = given.session_id
        stored = (await home.archive.restore(given.session_id)).details.agent

        async def resume(session: Session, ensembles: Sequence[str]) -> tuple[Conversation, str]:
            agent = stored if stored in survey_names(session.configuration) else ""
            if not stored:
                agent = self._options.agent or ""
            options = produce_options(session, agent, ensembles)
            try:
                return await session.resume(given.session_id, **options), agent
            except ModelNotFound as error:
                model = self._options.model or (await session.find_model())[0]
                client.show(Notice("model", f"{error}; {model} answers instead"))
                return await session.resume(given.session_id, model=model, **options), agent

        return await self._open(client, given, resume)

    async def _open(
        self,
        client: SessionClient,
        given: NewSessionParams,
        open_conversation: Callable[[Session, Sequence[str]], Awaitable[tuple[Conversation, str]]],
    ) -> AcpSession:
        """Open a session and its conversation, with the tools of the client's servers.

        `open_conversation` returns the conversation and the name of its agent. Without the package
        for servers, it is called without them, and the client is told so.
        """
        session, rows = self._access_home().open(client, given)
        own = self._options.ensembles
        async with AsyncExitStack() as stack:
            stack.push_async_callback(session.close)
            ensembles = (*own, *rows)
            try:
                conversation, agent = await open_conversation(session, ensembles)
            except (PackageMissing, ConfigurationError) as error:
                if not rows:
                    raise
                notice = f"the editor's MCP servers are left out: {error}"
                client.show(Notice("ensemble", notice))
                ensembles = own
                conversation, agent = await open_conversation(session, ensembles)
            stack.pop_all()
        return AcpSession(
            client,
            session,
            conversation,
            folder=given.cwd,
            ensembles=ensembles,
            agent=agent,
            servers=rows,
        )

    async def _list(self, params: Raw) -> Reply:
        given = read_params(params, LIST)
        if given.cwd is not None:
            check_folder(given.cwd)
        home = self._access_home()
        tag = "" if given.cwd is None else produce_tag(given.cwd)
        try:
            found = await home.archive.survey(limit=_PAGE + 1, tag=tag, after=given.cursor or "")
        except ConversationNotFound as error:
            raise RpcError(
                INVALID_PARAMS, f"the cursor {quote(given.cursor or '')} is not valid; start again"
            ) from error
        rows = [_describe(one) for one in found[:_PAGE] if not one.problem]
        more = found[_PAGE - 1].identity if len(found) > _PAGE else None
        return Reply(ListResult(rows, more))

    async def _close(self, params: Raw) -> Reply:
        identity = read_params(params, SESSION).session_id
        async with self._lock(identity):
            opened = self._access(identity)
            del self._sessions[identity]
            await opened.close()
        return Reply(Empty())

    async def _delete(self, params: Raw) -> Reply:
        identity = read_params(params, SESSION).session_id
        home = self._access_home()
        async with self._lock(identity):
            if (opened := self._sessions.pop(identity, None)) is not None:
                await opened.close()
            await home.remove(identity)
        return Reply(Empty())

    async def _prompt(self, params: Raw) -> Reply:
        given = read_params(params, PROMPT)
        opened = self._access(given.session_id)
        return Reply(PromptResult(await opened.prompt(read_prompt_blocks(given.prompt))))

    async def _cancel(self, params: Raw) -> Reply:
        await self._access(read_params(params, SESSION).session_id).cancel()
        return Reply(Empty())

    async def _choose(self, params: Raw) -> Reply:
        given = read_params(params, OPTION)
        opened = self._access(given.session_id)
        await opened.choose(given.config_id, given.value)
        return Reply(SessionResult(config_options=opened.choices))

    def _access(self, identity: str) -> AcpSession:
        opened = self._sessions.get(identity)
        if opened is None:
            raise RpcError(
                NOT_FOUND,
                f"session {quote(identity)} is not open; open it with session/load or session/new",
            )
        return opened

    def _access_home(self) -> Home:
        if self._home is None:
            self._home = Home()
        return self._home

    def _produce_client(self) -> SessionClient:
        return SessionClient(self._peer, self._abilities, self._report)

    def _lock(self, identity: str) -> asyncio.Lock:
        return self._locks.setdefault(identity, asyncio.Lock())


async def _require_stored(archive: Archive, identity: str) -> None:
    """Raise `RpcError` unless this is the whole identity of a stored conversation."""
    try:
        found = await archive.resolve(identity)
    except ConversationNotFound:
        found = ""
    if found != identity:
        raise RpcError(NOT_FOUND, f"session {quote(identity)} not found; see session/list")


def _describe(summary: Summary) -> SessionRow:
    folders = (one.removeprefix(FOLDER_TAG) for one in summary.tags if one.startswith(FOLDER_TAG))
    return SessionRow(
        session_id=summary.identity,
        cwd=next(folders, str(Path.home())),
        title=summary.title or None,
        updated_at=summary.updated.isoformat(),
    )
