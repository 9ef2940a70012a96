"""Agents and models over HTTP: what a user may name, with abilities and prices."""

from __future__ import annotations

import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.raw_server import RawServer
from tests.field.upstream import respond
from tests.server.conftest import Served, serving
from vibe_llms.messages.costs import find_prices
from vibe_llms.providers import local_servers

AGENTS = {
    "poet": {
        "description": "Answers in verse.",
        "supervisor": "The secret of the house is in line four.",
        "model": "quick",
        "ensembles": ["documents"],
        "optional-ensembles": ["*"],
        "memory": False,
    },
    "plain": {"collections": ["papers"]},
    "lost": {"model": "a-model-of-no-server"},
    "translator": {"prompt": "To $language: $input"},
}
HAIKU = "claude-haiku-4-5"
TABLES: dict[str, Any] = {
    "agents": AGENTS,
    "aliases": {"quick": f"anthropic/{HAIKU}"},
    "ensembles": {"documents": {"module": "vibe_llms.documents.ensemble"}},
    "providers": {"anthropic": {"known-models": [HAIKU]}},
}


async def test_models_have_abilities_and_prices(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-a")
    async with serving(home, **TABLES, offline=True) as served, served.http() as client:
        listed = (await client.get("/api/models")).json()
        agents = (await client.get("/api/agents")).json()["agents"]
        names = {one["id"] for one in (await client.get("/v1/models")).json()["data"]}
    models = {one["id"]: one for one in listed["models"]}
    assert {*models, *(one["id"] for one in agents)} == names
    assert (listed["default"] in models, listed["note"]) == (True, "")
    alias, direct = models["quick"], models[f"anthropic/{HAIKU}"]
    assert alias == {**direct, "id": "quick"}
    abilities = direct["abilities"]
    assert (abilities["context_tokens"], abilities["tools"]) == (200_000, "native")
    assert {"image", "application/pdf"} <= {*abilities["accepts"]}
    assert abilities["controls"]["reasoning-tokens"] == {
        "minimum": 0.0,
        "maximum": 63_999.0,
        "choices": [],
        "sure": True,
    }
    # One dollar and five dollars per million tokens, by the vendor's list.
    prices = {name: Decimal(price) for name, price in direct["prices"].items()}
    assert prices == {"input": 1, "cache_read": Decimal("0.1"), "output": 5}
    demo = models["scripted/demo"]
    assert (demo["prices"], demo["own_key"]) == (None, False)


async def test_without_the_package_there_are_no_prices(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-a")
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    find_prices.cache_clear()
    async with serving(home, **TABLES, offline=True) as served, served.http() as client:
        models = (await client.get("/api/models")).json()["models"]
    assert len(models) > 1
    assert {one["prices"] for one in models} == {None}


async def test_agents_have_the_abilities_of_their_models_and_no_secrets(home: Path) -> None:
    async with serving(home, **TABLES) as served, served.http("ada") as client:
        response = await client.get("/api/agents")
        default = (await client.get("/api/models")).json()
    agents = {one["id"]: one for one in response.json()["agents"]}
    assert {*agents} == {"general", "poet", "plain", "lost"}
    poet, plain, lost = agents["poet"], agents["plain"], agents["lost"]
    assert (poet["model"], poet["description"]) == (f"anthropic/{HAIKU}", "Answers in verse.")
    assert (poet["ensembles"], poet["optional_ensembles"]) == (["documents"], [])
    assert poet["memory"] is False
    assert "secret of the house" not in response.text
    assert (plain["model"], plain["collections"]) == (default["default"], ["papers"])
    assert plain["abilities"] is not None
    assert "no key is set" in default["note"]
    assert (lost["model"], lost["abilities"], lost["prices"]) == (
        "a-model-of-no-server",
        None,
        None,
    )


async def test_models_for_callers_keys_say_so(home: Path) -> None:
    providers = {"anthropic": {"credential": "caller", "known-models": [HAIKU]}}
    async with serving(home, providers=providers) as served, served.http() as client:
        without = (await client.get("/api/models")).json()["models"]
        headers = {"x-provider-key": "sk-ant-b"}
        with_key = (await client.get("/api/models", headers=headers)).json()["models"]
        after = (await client.get("/api/models")).json()["models"]
    mine = [
        next(one for one in found if one["id"] == f"anthropic/{HAIKU}")
        for found in (without, with_key, after)
    ]
    assert [one["own_key"] for one in mine] == [True] * 3
    assert [one["abilities"] is None for one in mine] == [True, False, True]


async def test_a_window_that_was_learned_is_shown(served: Served) -> None:
    async with served.http() as client:
        before = await _find_window(client)
        with served.running._core.spaces.enter("local") as space:
            windows = space.session.windows
            assert windows.path is not None
            windows.path.parent.mkdir(parents=True, exist_ok=True)
            windows.path.write_text(
                '{"windows": [{"row": "scripted", "model": "demo", "tokens": 4321, '
                f'"declared": {before if before else "null"}}}]}}'
            )
        after = await _find_window(client)
    assert (before != 4321, after) == (True, 4321)


async def _find_window(client: Any) -> int | None:
    listed = (await client.get("/api/models")).json()["models"]
    demo = next(one for one in listed if one["id"] == "scripted/demo")
    window: int | None = demo["abilities"]["context_tokens"]
    return window


async def test_the_default_model_of_a_local_server_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_servers, "SEARCH_SECONDS", 20.0)
    body = b'{"object":"list","data":[{"id":"qwen3"}]}'
    async with RawServer(respond(200, "application/json", body)) as upstream:
        row = {"base-url": f"{upstream.url}/v1"}
        tables: dict[str, Any] = {"local-servers": True, "providers": {"vllm": row}}
        async with serving(home, **tables) as served, served.http() as client:
            answer = (await client.get("/api/models")).json()
            assert answer["default"] == "vllm/qwen3"
            assert "vllm/qwen3 answers, from the server at http://127.0.0.1" in answer["note"]
            assert "vllm/qwen3" in {one["id"] for one in answer["models"]}
    assert {one.partition(b" HTTP")[0] for one in upstream.requests} == {b"GET /v1/models"}
