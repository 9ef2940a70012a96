"""Limits on the messages, parts, tools and values of a request."""

from __future__ import annotations

from collections.abc import Sized

from msgspec import Struct

from vibe_llms.server.failures import Rejected
from vibe_llms.server.settings import ServerSettings


def check_counts(request: object, settings: ServerSettings) -> None:
    """Raise `Rejected` for a request with too many messages, parts of messages, or tools.

    It names the member and the limit. The members are those of all dialects.
    """
    for member in ("messages", "input"):
        messages = getattr(request, member, None)
        if isinstance(messages, list):
            _check(member, "messages", messages, settings.request_messages, "request-messages")
            parts = count_items(messages, settings.request_parts + len(messages) + 1)
            if parts - len(messages) > settings.request_parts:
                raise _too_many(member, "parts", settings.request_parts, "request-parts")
    tools = getattr(request, "tools", None)
    if isinstance(tools, list):
        _check("tools", "tools", tools, settings.request_tools, "request-tools")


def count_items(value: object, most: int) -> int:
    """Return how many items the lists in a value have together; it stops counting at `most`.

    >>> count_items([["a", "b"], {"c": ["d"]}], 100), count_items([[0] * 100], 10) >= 10
    (5, True)
    """
    count, waiting = 0, [value]
    while waiting and count < most:
        match waiting.pop():
            case list() as items:
                count += len(items)
                waiting.extend(items)
            case dict() as table:
                waiting.extend(table.values())
            case Struct() as struct:
                waiting.extend(getattr(struct, name) for name in struct.__struct_fields__)
    return count


def _check(member: str, what: str, found: Sized, most: int, key: str) -> None:
    if len(found) > most:
        raise _too_many(member, what, most, key, f"{len(found):,}")


def _too_many(member: str, what: str, most: int, key: str, found: str = "more") -> Rejected:
    return Rejected(
        f"{member}: {found} {what}, and {most:,} are allowed ({key})",
        status=413,
        code="request_too_large",
        param=member,
    )
