"""Names the servers of this library that a request has passed through.

A server adds itself to the header of the requests that it sends on, and refuses a request that has
its own name: a row of its configuration leads back to it, as it does where `OPENAI_BASE_URL` of its
clients is set where it starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from msgspec.structs import replace

from vibe_llms.providers.transport import Outgoing

#: Names of servers, the first one first.
HEADER = "x-vibe-llms-servers"
#: The most servers that a request passes through.
MOST_SERVERS = 16
_NAME = re.compile(r"[0-9a-f]{1,64}")
#: The servers that the request at hand has passed through, this one included. Tasks and runs that
#: it starts copy the context.
_PASSED: ContextVar[tuple[str, ...]] = ContextVar("passed_servers", default=())


def read_servers(text: str) -> Sequence[str]:
    """The names in the header; what is no name is left out.

    >>> read_servers("0a1b, 2c3d, ../x")
    ['0a1b', '2c3d']
    """
    names = (one.strip() for one in text.split(","))
    return [name for name in names if _NAME.fullmatch(name)]


@contextmanager
def passing(servers: Sequence[str]) -> Iterator[None]:
    """Within the block, requests to providers name these servers."""
    token = _PASSED.set(tuple(servers))
    try:
        yield
    finally:
        _PASSED.reset(token)


def name_servers(outgoing: Outgoing) -> Outgoing:
    """The request with the header, if it has passed through a server."""
    if not (passed := _PASSED.get()):
        return outgoing
    return replace(outgoing, headers={**outgoing.headers, HEADER: ", ".join(passed)})
