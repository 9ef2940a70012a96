"""The endpoints `GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

import msgspec

from vibe_llms.server.core import ServerCore
from vibe_llms.server.dialects import ANTHROPIC, Dialect
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.failures import Rejected
from vibe_llms.server.spaces import UserSpace

#: Placeholder for the creation time of a model, which is unknown.
_CREATED = "1970-01-01T00:00:00Z"


async def list_models(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """List the models that the user may name."""
    rows = [_describe(name, exchange.dialect) for name in await space.survey_models()]
    listed = {"object": "list", "data": rows, "has_more": False}
    if rows and exchange.dialect is ANTHROPIC:
        listed |= {"first_id": rows[0]["id"], "last_id": rows[-1]["id"]}
    await exchange.reply(msgspec.json.encode(listed))


async def show_model(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Show one model."""
    name = exchange.argument
    if name not in await space.survey_models():
        raise Rejected(f"model {name!r} not found", status=404, code="model_not_found")
    await exchange.reply(msgspec.json.encode(_describe(name, exchange.dialect)))


def _describe(name: str, dialect: Dialect) -> dict[str, object]:
    if dialect is ANTHROPIC:
        shown = {"display_name": name, "created_at": _CREATED, "lifecycle": "active"}
        return {"type": "model", "id": name, **shown}
    owner = name.partition("/")[0] if "/" in name else "vibe-llms"
    return {"id": name, "object": "model", "created": 0, "owned_by": owner}
