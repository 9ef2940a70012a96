"""The endpoints `/health`, `/ready` and `/metrics`."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from vibe_llms.exceptions import StorageError, StorageUnavailable
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import Exchange
from vibe_llms.server.failures import Rejected
from vibe_llms.server.metrics import MEDIA_TYPE


class ServerState(Struct, frozen=True):
    """The server answers."""

    status: Literal["ok"] = "ok"


async def show_health(_: ServerCore, exchange: Exchange) -> None:
    """Say that the process answers."""
    await exchange.reply(msgspec.json.encode(ServerState()))


async def show_readiness(core: ServerCore, exchange: Exchange) -> None:
    """Say that new requests are taken; 503 while the storage is away, and while the server ends."""
    if core.ending:
        raise Rejected("the server is shutting down", status=503, code="shutting_down")
    try:
        await core.spaces.watch.check()
    except StorageError as error:
        raise StorageUnavailable(str(error)) from error
    await exchange.reply(msgspec.json.encode(ServerState()))


async def show_metrics(core: ServerCore, exchange: Exchange) -> None:
    """Count requests, turns and tokens, in the text format of Prometheus."""
    metrics = core.metrics.render(await core.spaces.count_runs(), core.spaces.ended_runs)
    await exchange.reply(metrics, media_type=MEDIA_TYPE)
