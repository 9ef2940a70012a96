"""The messages that continue a compacted conversation where its original messages are missing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec.structs import replace

from vibe_llms.conversations.context_view import ContextView
from vibe_llms.conversations.digests import without_originals, without_pointer
from vibe_llms.messages.canisters import Canister, DigestCanister
from vibe_llms.messages.contents import (
    Content,
    MediaContent,
    Reference,
    TextualContent,
    text_of,
)
from vibe_llms.providers.interfaces import Loader


async def export_messages(
    history: Sequence[Canister],
    load: Loader,
    strip: Callable[[Sequence[Canister]], Iterable[Canister]],
    *,
    hidden: Collection[str],
    tainted: bool,
) -> Sequence[Canister]:
    """Return messages that make the same request as a history, without what its digest leaves out.

    They contain their texts and media, and only what `strip` leaves. The digest names no files that
    only `hidden` tools used. A history that is `tainted` by untrusted text stays so.
    """
    view = ContextView()
    shown = await load_contents(view.apply(history), load)
    digest = view.digest
    if digest is None:
        return [*strip(shown)]
    messages = [
        replace(one, contents=(TextualContent(without_pointer(text_of(one.contents), one)),))
        if one.identity in digest.shortened and one.contents
        else one
        for one in shown
    ]
    place = next((i for i, one in enumerate(messages) if one.identity == digest.identity), None)
    if place is not None:
        # The heading comes first.
        text = without_originals(text_of(messages[place].contents[1:]), history, hidden)
        messages[place] = DigestCanister(
            (TextualContent(text),), policy=digest.policy, trusted=not tainted
        )
    stripped = [*strip(messages)]
    for number, one in enumerate(stripped):
        if isinstance(one, DigestCanister):
            kept = tuple(each.identity for each in stripped[:number])
            stripped[number] = replace(
                one,
                first=kept[0] if kept else "",
                last=kept[-1] if kept else "",
                kept=kept,
                pinned=tuple(each.identity for each in stripped if each.identity in digest.pinned),
            )
    return stripped


async def load_contents(messages: Sequence[Canister], load: Loader) -> list[Canister]:
    """Return messages with the texts and media that they have by reference."""
    references = [
        data
        for one in messages
        for content in one.contents
        if isinstance(data := getattr(content, "data", None), Reference)
    ]
    if not references:
        return [*messages]
    loaded = await load(references)

    def fill(content: Content) -> Content:
        match content:
            case TextualContent(data=Reference(hash=digest)):
                return replace(content, data=loaded[digest].decode("utf-8", "replace"))
            case _ if isinstance(content, MediaContent) and isinstance(content.data, Reference):
                return replace(content, data=loaded[content.data.hash])
            case _:
                return content

    return [
        replace(one, contents=tuple(map(fill, one.contents))) if one.contents else one
        for one in messages
    ]
