"""Limits on the messages, parts, tools, and characters of a request."""

from __future__ import annotations

from collections.abc import Sized

from msgspec import Struct

from vibe_llms.server.failures import Rejected
from vibe_llms.server.settings import ServerSettings

#: Members of messages and parts that contain parts; arguments and schemas are not counted.
_CONTAINERS = frozenset(
    {
        *("attachments", "content", "custom_content", "output", "source", "summary"),
        *("tool_calls", "tools"),
    }
)


def check_counts(request: object, settings: ServerSettings) -> None:
    """Raise `Rejected` for too many messages, parts of messages, or tools, in any dialect.

    The error names the member and the limit.
    """
    for member in ("messages", "input"):
        messages = getattr(request, member, None)
        if isinstance(messages, list):
            _check(member, "messages", messages, settings.request_messages, "request-messages")
            parts = count_items(messages, settings.request_parts + len(messages) + 1)
            if parts - len(messages) > settings.request_parts:
                raise refuse_many(member, "parts", settings.request_parts, "request-parts")
    tools = getattr(request, "tools", None)
    if isinstance(tools, list):
        _check("tools", "tools", tools, settings.request_tools, "request-tools")


def check_characters(count: int, settings: ServerSettings) -> None:
    """Raise `Rejected` for messages with too many characters in total."""
    if count > settings.request_characters:
        most, key = settings.request_characters, "request-characters"
        raise refuse_many(None, "characters of text", most, key, f"{count:,}")


def count_items(value: object, most: int) -> int:
    """Return the number of messages and parts in a value; counting stops at `most`.

    >>> count_items([{"content": ["a", "b"], "input": [1, 2, 3]}], 100)
    3
    """
    count, waiting = 0, [value]
    while waiting and count < most:
        match waiting.pop():
            case list() as items:
                count += len(items)
                waiting.extend(items)
            case dict() as table:
                waiting.extend(table[name] for name in _CONTAINERS.intersection(table))
            case Struct() as struct:
                names = _CONTAINERS.intersection(struct.__struct_fields__)
                waiting.extend(getattr(struct, name) for name in names)
    return count


def _check(member: str, what: str, found: Sized, most: int, key: str) -> None:
    if len(found) > most:
        raise refuse_many(member, what, most, key, f"{len(found):,}")


def refuse_many(
    member: str | None, what: str, most: int, key: str, found: str = "more"
) -> Rejected:
    """Return the error for a request with too many of something; `key` is the setting."""
    return Rejected(
        f"{found} {what}, and the limit is {most:,} ({key})",
        status=413,
        code="request_too_large",
        param=member,
    )
