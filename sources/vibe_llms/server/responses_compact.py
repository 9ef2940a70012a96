"""Compaction in Responses: `POST /v1/responses/compact`, and items that carry a compaction.

Source: the types of openai 3.57.0, `types/responses/compacted_response.py` and
`response_compaction_item.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

from msgspec.structs import replace

from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.identities import produce_identity
from vibe_llms.server.compactions import ClientCompaction, CompactionSigner, is_own
from vibe_llms.server.context_orders import ContextOrder
from vibe_llms.server.responses_items import survey_tools
from vibe_llms.server.responses_replies import PREFIX, Item, describe_usage
from vibe_llms.server.responses_requests import ResponseRequest

_Json: TypeAlias = Mapping[str, Any]


def find_compaction(items: Sequence[_Json]) -> int | None:
    """Return the index of the last item with a compaction of this server, or None."""
    for place in range(len(items) - 1, -1, -1):
        content, kind = items[place].get("encrypted_content"), str(items[place].get("type"))
        if "compaction" in kind and isinstance(content, str) and is_own(content):
            return place
    return None


def read_compaction(
    request: ResponseRequest, place: int, signer: CompactionSigner
) -> tuple[ResponseRequest, Sequence[Canister]]:
    """Return a request without the items up to a compaction, and the messages in their place.

    Items that add tools stay.
    """
    items = request.items
    content = str(items[place]["encrypted_content"])
    messages = signer.read(content, f"input[{place}].encrypted_content")
    tools = [one for one in items[:place] if [*survey_tools([one])] and "output" not in one["type"]]
    return replace(request, input=[*map(dict, (*tools, *items[place + 1 :]))]), messages


def has_trigger(request: ResponseRequest) -> bool:
    """Return True if a request asks for a compaction in place of a reply."""
    return bool(request.items) and request.items[-1].get("type") == "compaction_trigger"


def order_compaction(request: ResponseRequest, signer: CompactionSigner) -> ContextOrder:
    """Return the order of a compaction in place of a reply."""
    repeated = [request.instructions] if request.instructions else []
    return ContextOrder(compacts=True, forced=True, only=True, repeated=repeated, signer=signer)


def describe_compaction(compaction: ClientCompaction) -> Item:
    """Return the item that carries a compaction."""
    return {
        "type": "compaction",
        "id": f"cmp_{produce_identity()}",
        "encrypted_content": compaction.opaque,
    }


def describe_compacted(compaction: ClientCompaction) -> Item:
    """Return a compacted response; one item carries all that stays."""
    return {
        "id": PREFIX + produce_identity(),
        "object": "response.compaction",
        "created_at": int(datetime.now(UTC).timestamp()),
        "output": [describe_compaction(compaction)],
        "usage": describe_usage(compaction.usage),
    }
