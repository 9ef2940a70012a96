"""Names of the servers of this library that a request has passed through.

A server adds its name to the header of the requests that it forwards, and refuses a request with
its own name. A row of its configuration then leads back to it, for example if it was started with
the `OPENAI_BASE_URL` that is meant for its clients.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from msgspec.structs import replace

from vibe_llms.providers.transport import Outgoing

#: Header with the names of servers, the first one first.
HEADER = "x-vibe-llms-servers"
#: Maximum number of servers that a request passes through.
MOST_SERVERS = 16
_NAME = re.compile(r"[0-9a-f]{1,64}")
#: Servers that the current request has passed through, including this one. Tasks and runs that it
#: starts copy the context.
_PASSED: ContextVar[tuple[str, ...]] = ContextVar("passed_servers", default=())


def read_servers(text: str) -> Sequence[str]:
    """Return the names in the header; invalid ones are left out.

    >>> read_servers("0a1b, 2c3d, ../x")
    ['0a1b', '2c3d']
    """
    names = (one.strip() for one in text.split(","))
    return [name for name in names if _NAME.fullmatch(name)]


@contextmanager
def passing(servers: Sequence[str]) -> Iterator[None]:
    """Name these servers in the requests to providers within the block."""
    token = _PASSED.set(tuple(servers))
    try:
        yield
    finally:
        _PASSED.reset(token)


def name_servers(outgoing: Outgoing) -> Outgoing:
    """Return the request with the header, if it has passed through a server."""
    if not (passed := _PASSED.get()):
        return outgoing
    return replace(outgoing, headers={**outgoing.headers, HEADER: ", ".join(passed)})
