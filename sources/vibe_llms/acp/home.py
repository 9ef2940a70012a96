"""`Home`: what all sessions of the agent share, and how one is opened."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from vibe_llms.acp.client import SessionClient
from vibe_llms.acp.questions import produce_approver, produce_elicitor
from vibe_llms.acp.requests import SSE, STDIO, NewSessionParams, ServerParams
from vibe_llms.base.configuration import LOCAL, Configuration, load_configuration
from vibe_llms.base.exceptions import ConversationNotFound
from vibe_llms.conversations.hosts import ENSEMBLES
from vibe_llms.messages.events import Event, NoticeEvent
from vibe_llms.providers.breakers import Breakers
from vibe_llms.providers.limits import Limiters
from vibe_llms.session.core import Session
from vibe_llms.session.parts import LIMIT_WINDOWS, SessionParts
from vibe_llms.storage.backends import open_backend

_MCP = "vibe_llms.ensembles.mcp"
_ODD = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_NAME = 40
#: A variable without a value, whose default is the text `$`: what clients send is not expanded.
_DOLLAR = "${VIBE_LLMS_ACP_UNSET:-$}"


class Home:
    """The storage and the limits of the user, shared by the sessions of this process.

    Each session of the protocol has a `Session` of its own: its approvals, its questions and its
    servers are not those of another.
    """

    def __init__(self) -> None:
        self.configuration = load_configuration()
        self._backend = open_backend(self.configuration)
        self._limiters = Limiters(LIMIT_WINDOWS.find(self._backend))
        self._breakers = Breakers()
        self.archive = self._backend.open_archive(LOCAL, self.configuration.places)

    def open(
        self, client: SessionClient, params: NewSessionParams
    ) -> tuple[Session, Sequence[str]]:
        """Open a session; return it, and the rows of the client's servers in its configuration."""
        configuration, rows = self._configure(params)

        def notify(event: Event) -> None:
            if isinstance(event, NoticeEvent):
                client.show(event.notice)

        parts = SessionParts(
            configuration=configuration,
            archive=self._backend.open_archive(LOCAL, configuration.places),
            event_handler=notify,
            approver=produce_approver(client),
            elicitor=produce_elicitor(client),
            backend=self._backend,
            limiters=self._limiters,
            breakers=self._breakers,
        )
        return Session(parts), rows

    async def remove(self, conversation: str) -> None:
        """Delete a stored conversation and its runs; nothing happens if there is none."""
        from vibe_llms.runs.core import forget_runs

        await forget_runs(self._backend, [conversation])
        with suppress(ConversationNotFound):
            await self.archive.remove(conversation)

    async def close(self) -> None:
        """Close what the sessions shared."""
        await self._limiters.close()
        await self.archive.close()
        await self._backend.close()

    def _configure(self, params: NewSessionParams) -> tuple[Configuration, Sequence[str]]:
        # Read again for each session, because the user may have changed it.
        places = self.configuration.places
        configuration = load_configuration(places)
        taken = {row.name for row in configuration.rows(ENSEMBLES)}
        rows: dict[str, Mapping[str, Any]] = {}
        for server in params.mcp_servers or ():
            rows[_find_name(server.name, {*taken, *rows})] = _produce_row(server, params.cwd)
        if rows:
            configuration = load_configuration(places, overrides={ENSEMBLES: rows})
        return configuration, [*rows]


def _find_name(name: str, taken: Collection[str]) -> str:
    """Return a name for the row of a client's server.

    It is not that of another row, whose rules would then hold for the server.
    """
    plain = _ODD.sub("-", name)[:_LONGEST_NAME].strip("-") or "server"
    if not plain[0].isalpha():
        plain = f"server-{plain}"
    number, found = 1, plain
    while found in taken:
        number += 1
        found = f"{plain}-{number}"
    return found


def _produce_row(server: ServerParams, folder: str) -> Mapping[str, Any]:
    """Return the row of a client's server, which works in the folder of the session."""
    if server.type == STDIO:
        return {
            "module": _MCP,
            "command": [_literal(one) for one in (server.command, *server.args)],
            "environment": {one.name: _literal(one.value) for one in server.env},
            "folder": _literal(folder),
            "roots": [folder],
        }
    return {
        "module": _MCP,
        "url": _literal(server.url),
        "transport": "sse" if server.type == SSE else "http",
        "headers": {one.name: _literal(one.value) for one in server.headers},
        "roots": [folder],
    }


def _literal(text: str) -> str:
    return text.replace("${", f"{_DOLLAR}{{")
