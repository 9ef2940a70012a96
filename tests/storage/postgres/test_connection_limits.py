"""What a connection is made with, and how long its server may say nothing; no server is asked."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from vibe_llms.base.exceptions import StorageUnavailable
from vibe_llms.storage.postgres.connections import (
    _limit,
    connection_options,
    find_silence_seconds,
    is_read_only,
)
from vibe_llms.storage.postgres.settings import PostgresSettings

KEPT_ALIVE = {
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 15_000,
}


@pytest.mark.parametrize(
    ("dsn", "seconds", "own"),
    [
        ("host=here", 0.5, {"connect_timeout": 2}),
        ("host=here", 7.4, {"connect_timeout": 7}),
        ("host=here keepalives_idle=9", 5, {"connect_timeout": 5, "keepalives_idle": None}),
        ("postgresql://here/one?tcp_user_timeout=1", 5, {"tcp_user_timeout": None}),
    ],
)
def test_a_host_that_vanishes_is_noticed_unless_the_connection_string_says_otherwise(
    dsn: str, seconds: float, own: Mapping[str, int | None]
) -> None:
    settings = PostgresSettings(dsn=dsn, connect_seconds=seconds, statement_seconds=2)
    expected = {"connect_timeout": 5, "application_name": "vibe-llms", **KEPT_ALIVE, **own}
    assert connection_options(dsn, settings) == {
        key: value for key, value in expected.items() if value is not None
    }
    assert find_silence_seconds(settings) == 2 + seconds


@pytest.mark.parametrize(
    ("states", "read_only"),
    [
        ({}, False),
        ({b"in_hot_standby": b"off"}, False),
        ({b"in_hot_standby": b"on"}, True),
        ({b"default_transaction_read_only": b"on", b"in_hot_standby": b"off"}, True),
    ],
)
def test_a_standby_is_read_only(states: Mapping[bytes, bytes], read_only: bool) -> None:
    connection: Any = SimpleNamespace(pgconn=SimpleNamespace(parameter_status=states.get))
    assert is_read_only(connection) is read_only


def test_a_server_may_say_nothing_for_so_long_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def work() -> Generator[Any, Any, str]:
        given: list[Any] = []
        while len(given) < 3:
            given.append((yield len(given)))
        return str(given)

    limited = _limit(work(), 10)
    assert next(limited) == 0
    now += 10
    # Nothing was ready, but the time is not over.
    assert limited.send(0) == 1
    now += 100
    # Something is ready now, so the time begins again.
    assert limited.send(1) == 2
    now += 10
    with pytest.raises(StopIteration) as ended:
        limited.send(2)
    assert ended.value.value == "[0, 1, 2]"
    limited = _limit(work(), 10)
    next(limited)
    now += 10.5
    with pytest.raises(StorageUnavailable, match="has not answered for 10 s"):
        limited.send(0)
