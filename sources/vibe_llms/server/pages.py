"""Pagination of lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from msgspec import Meta, Struct

from vibe_llms.server.failures import Rejected

T = TypeVar("T")


class PageQuery(Struct):
    """A page of a list: at most `limit` items after the one with the id `after`."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    after: str = ""


def take_page(
    items: Sequence[T], query: PageQuery, identify: Callable[[T], str]
) -> tuple[Sequence[T], bool]:
    """Return a page of a list, and True if more items follow."""
    start = 0
    if query.after:
        places = [place for place, one in enumerate(items, 1) if identify(one) == query.after]
        if not places:
            raise refuse_after(query)
        start = places[0]
    page = items[start : start + query.limit]
    return page, len(items) > start + len(page)


def refuse_after(query: PageQuery) -> Rejected:
    """Return the error for a page that follows an unknown item."""
    return Rejected(
        f"{query.after!r} not found in the list", status=404, code="not_found", param="after"
    )
