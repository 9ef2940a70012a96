"""T8 with the other interfaces: an interrupted turn of parallel calls is followed by another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.interfaces import ANTHROPIC, CHAT, INTERFACES, RESPONSES, Interface
from tests.providers.anthropic.test_interruptions import check_interruptions
from vibe_llms.exceptions import ProviderError
from vibe_llms.providers.openai.framing import History

OTHERS = [one for one in INTERFACES.values() if one is not ANTHROPIC]


@pytest.mark.storm
@pytest.mark.parametrize("interface", OTHERS, ids=lambda one: one.row)
async def test_a_turn_interrupted_at_any_step_is_followed_by_another(
    interface: Interface, tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    seeds = rounds(1, 200)
    with interface.produce_server() as server:
        await check_interruptions(
            server, tmp_path / "archive", seeds, every=seeds > 1, interface=interface
        )


@pytest.mark.parametrize("interface", [CHAT, RESPONSES], ids=lambda one: one.row)
async def test_calls_that_are_left_unanswered_would_be_found_out(
    interface: Interface, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = History._add_reply

    def add_carelessly(self: Any, canister: Any, piece: Any, call: str) -> None:
        add(self, canister, piece, call)
        self._open.calls.clear()

    monkeypatch.setattr(History, "_add_reply", add_carelessly)
    with interface.produce_server() as server, pytest.raises((AssertionError, ProviderError)):
        await check_interruptions(server, tmp_path / "archive", 2, interface=interface)
