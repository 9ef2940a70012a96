"""The endpoints `GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

import msgspec

from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import Exchange
from vibe_llms.server.failures import Rejected
from vibe_llms.server.spaces import UserSpace

PREFIX = "/v1/models/"


async def list_models(_: ServerCore, exchange: Exchange, space: UserSpace) -> None:
    """The models that the user may name."""
    rows = [_describe(name) for name in await space.survey_models()]
    await exchange.reply(msgspec.json.encode({"object": "list", "data": rows}))


async def show_model(_: ServerCore, exchange: Exchange, space: UserSpace) -> None:
    """One model."""
    name = exchange.path.removeprefix(PREFIX)
    if name not in await space.survey_models():
        raise Rejected(f"there is no model {name!r}", status=404, code="model_not_found")
    await exchange.reply(msgspec.json.encode(_describe(name)))


def _describe(name: str) -> dict[str, object]:
    owner = name.partition("/")[0] if "/" in name else "vibe-llms"
    return {"id": name, "object": "model", "created": 0, "owned_by": owner}
