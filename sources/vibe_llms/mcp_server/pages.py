"""Pages of a conversation: messages as texts, bounded in bytes, with a cursor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from vibe_llms.base.exceptions import RequestError
from vibe_llms.mcp_server.bounds import MOST_BYTES, cut_text, measure_text
from vibe_llms.messages.canisters import (
    Canister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    is_untrusted,
    role_of,
)
from vibe_llms.messages.contents import TextualContent, text_of
from vibe_llms.providers.interfaces import Loader
from vibe_llms.providers.pieces import with_texts

#: Bytes for the other members of a message.
_HEAD_BYTES = 256


class ReadMessage(Struct, kw_only=True):
    """A message of a conversation; `text` is what of it is on the page."""

    id: str
    role: Annotated[
        str, Meta(description="user, assistant, supervisor, invocation, result or document.")
    ]
    name: Annotated[str, Meta(description="Name of the tool of a call, or title of a document.")]
    text: str
    media: Annotated[int, Meta(description="Number of images and files, which are left out.")]
    untrusted: Annotated[bool, Meta(description="True if it has text of tools or documents.")]


class ConversationPage(Struct, kw_only=True):
    """Messages of a conversation in order. `cursor` is empty on the last page."""

    conversation: str
    name: str
    model: str
    total: Annotated[int, Meta(description="Number of all messages.")]
    messages: list[ReadMessage]
    cursor: Annotated[str, Meta(description="Pass it as `after` to read on.")]


async def read_page(
    canisters: Sequence[Canister], load: Loader, after: str, limit: int
) -> tuple[list[ReadMessage], str]:
    """Return the messages after a cursor, and the cursor of the next page; empty at the end.

    The cursor is the id of the last message, or if only a part of it was on the page, that and the
    number of characters.
    """
    place, offset = _find_place(canisters, after)
    messages: list[ReadMessage] = []
    left = MOST_BYTES
    while place < len(canisters) and len(messages) < limit:
        (canister,) = await with_texts(canisters[place : place + 1], load)
        whole = _find_text(canister)
        text, cut = cut_text(whole[offset:], max(left - _HEAD_BYTES, 1))
        if messages and cut and _fits(whole[offset : offset + MOST_BYTES + 1]):
            # It fits on the next page.
            break
        message = _describe(canister, text)
        messages.append(message)
        left -= measure_text(text) + measure_text(message.name) + _HEAD_BYTES
        if cut:
            return messages, f"{canister.identity}:{offset + len(text)}"
        place, offset = place + 1, 0
        if left <= _HEAD_BYTES:
            break
    last = canisters[place - 1].identity if place else ""
    return messages, last if place < len(canisters) else ""


def _find_place(canisters: Sequence[Canister], after: str) -> tuple[int, int]:
    """Return the index of the first message of a page, and the characters to skip in it."""
    if not after:
        return 0, 0
    identity, colon, skipped = after.partition(":")
    place = next((i for i, one in enumerate(canisters) if one.identity == identity), None)
    if place is None or (colon and not skipped.isdecimal()):
        raise RequestError(f"cursor {after!r} not found in this conversation; pass one of a page")
    return (place, int(skipped)) if colon else (place + 1, 0)


def _fits(text: str) -> bool:
    """Return True if a text fits on a page of its own."""
    return measure_text(text) <= MOST_BYTES - _HEAD_BYTES


def _find_text(canister: Canister) -> str:
    if isinstance(canister, InvocationCanister):
        return canister.arguments
    return text_of(canister.contents)


def _describe(canister: Canister, text: str) -> ReadMessage:
    match canister:
        case InvocationCanister(name=name) | DocumentCanister(title=name):
            pass
        case _:
            name = ""
    return ReadMessage(
        id=canister.identity,
        role=role_of(canister),
        name=name[:_HEAD_BYTES],
        text=text,
        media=sum(_is_medium(one) for one in canister.contents),
        untrusted=isinstance(canister, ResultCanister) or is_untrusted(canister),
    )


def _is_medium(content: object) -> bool:
    return hasattr(content, "mimetype") and not isinstance(content, TextualContent)
