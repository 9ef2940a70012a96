"""Lists that are longer than a response: pages of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from msgspec import Meta, Struct

from vibe_llms.server.failures import Rejected

T = TypeVar("T")


class PageQuery(Struct):
    """A part of a list: so many after the one that has the id `after`."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    after: str = ""


def take_page(
    items: Sequence[T], query: PageQuery, identify: Callable[[T], str]
) -> tuple[Sequence[T], bool]:
    """A page of a list, and whether more follow."""
    start = 0
    if query.after:
        places = [place for place, one in enumerate(items, 1) if identify(one) == query.after]
        if not places:
            raise refuse_after(query)
        start = places[0]
    page = items[start : start + query.limit]
    return page, len(items) > start + len(page)


def refuse_after(query: PageQuery) -> Rejected:
    """The refusal of a page after something that the list does not have."""
    return Rejected(f"the list has no {query.after!r}", status=404, code="not_found", param="after")
