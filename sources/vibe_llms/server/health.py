"""The endpoints `/health`, `/ready` and `/metrics`."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import StorageError, StorageUnavailable
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.failures import Rejected
from vibe_llms.server.metrics import MEDIA_TYPE


class ServerState(Struct, frozen=True):
    """Status of the server."""

    status: Literal["ok"] = "ok"


async def show_health(_: ServerCore, exchange: HttpExchange) -> None:
    """Report that the process responds."""
    await exchange.reply(msgspec.json.encode(ServerState()))


async def show_readiness(core: ServerCore, exchange: HttpExchange) -> None:
    """Report readiness; 503 while the storage is unavailable or the server shuts down."""
    if core.ending:
        raise Rejected("the server is shutting down", status=503, code="shutting_down")
    try:
        await core.spaces.watch.check()
    except StorageError as error:
        raise StorageUnavailable(str(error)) from error
    await exchange.reply(msgspec.json.encode(ServerState()))


async def show_metrics(core: ServerCore, exchange: HttpExchange) -> None:
    """Report counts of requests, turns, and tokens in the Prometheus text format."""
    metrics = core.metrics.render(await core.spaces.count_runs(), core.spaces.ended_runs)
    await exchange.reply(metrics, media_type=MEDIA_TYPE)
