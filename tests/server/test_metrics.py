"""What the server counts: requests, tokens, errors, refusals and runs, and no content."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.conftest import Served, serving

CHAT = "/v1/chat/completions"
SECRET = "the-horse-of-Troy"
SCRIPTS = {
    "counted": (
        '[[replies]]\nparts = [{ text = "Yes." }]\n'
        "usage = { uncached_input_tokens = 30, cache_read_tokens = 12, output_tokens = 5 }\n"
    ),
    "failing": '[[replies]]\nparts = [{ error = "overloaded" }]\n',
}


def scripted(home: Path) -> dict[str, Any]:
    home.mkdir(exist_ok=True)
    for name, script in SCRIPTS.items():
        (home / f"{name}.toml").write_text(script)
    scripts = {name: str(home / f"{name}.toml") for name in SCRIPTS}
    return {"providers": {"scripted": {"scripts": scripts}}, "stream": {"retries": 0}}


async def read(served: Served) -> dict[tuple[str, ...], float]:
    """The values by their names and labels, which are in the order of their names."""
    async with served.http() as client:
        answered = await client.get("/metrics")
    assert answered.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answered.text)
        for sample in family.samples
    }


async def post(served: Served, path: str, model: str, **members: Any) -> int:
    body = {"model": f"scripted/{model}", **members}
    if path == CHAT:
        body["messages"] = [{"role": "user", "content": SECRET}]
    else:
        body["input"] = SECRET
    async with served.http() as client:
        return (await client.post(path, json=body)).status_code


async def test_tokens_are_counted_by_model_however_they_were_asked_for(home: Path) -> None:
    async with serving(home, **scripted(home)) as served:
        assert await post(served, CHAT, "counted") == 200
        assert await post(served, CHAT, "counted", stream=True) == 200
        assert await post(served, "/v1/responses", "counted") == 200
        assert await post(served, "/v1/responses", "counted", stream=True) == 200
        found = await read(served)
    assert found["vibe_llms_tokens_total", "input", "scripted/counted"] == 4 * 42
    assert found["vibe_llms_tokens_total", "output", "scripted/counted"] == 4 * 5
    assert found["vibe_llms_model_request_seconds_count", "scripted/counted"] == 4
    assert found["vibe_llms_requests_total", CHAT, "200"] == 2
    assert found["vibe_llms_request_seconds_count", "/v1/responses"] == 2
    assert found["vibe_llms_ended_runs_total", "completed"] == 2
    assert found["vibe_llms_ended_runs_total", "failed"] == 0
    assert found["vibe_llms_runs", "waiting"] == 0
    assert ("vibe_llms_runs", "completed") not in found
    assert found["process_resident_memory_bytes",] > 0


async def test_errors_of_models_and_refusals_of_budgets_are_counted_apart(home: Path) -> None:
    tables = {**scripted(home), "budgets": {"users": {"poor": {"tokens": 10}}}}
    async with serving(home, **tables) as served:
        assert await post(served, CHAT, "failing") == 502
        async with served.http("poor") as client:
            body = {"model": "scripted/counted", "messages": [{"role": "user", "content": "Hi"}]}
            assert (await client.post(CHAT, json=body)).status_code == 429
        found = await read(served)
    assert found["vibe_llms_model_errors_total", "ProviderOverloaded", "scripted/failing"] == 1
    assert found["vibe_llms_budget_refusals_total",] == 1
    assert not any("BudgetExceeded" in labels for labels in found)


async def test_labels_are_few_and_hold_nothing_that_a_client_chose(home: Path) -> None:
    async with serving(home, **scripted(home)) as served:
        async with served.http() as client:
            for number in range(3):
                await client.get(f"/{SECRET}/{number}")
                await client.get(f"/v1/models/{SECRET}{number}")
                await client.post(CHAT, json={"model": f"{SECRET}{number}", "messages": [
                    {"role": "user", "content": SECRET}]})  # fmt: skip
            await client.get("/health")
            text = (await client.get("/metrics")).text
        found = await read(served)
    assert SECRET not in text
    assert served.key() not in text
    assert found["vibe_llms_requests_total", "other", "404"] == 3
    assert found["vibe_llms_requests_total", "/v1/models/{model...}", "404"] == 3
    assert found["vibe_llms_requests_total", "/health", "200"] == 1
    names = set(re.findall(r"^# TYPE (vibe_llms_\w+)", text, re.MULTILINE))
    assert {
        *("vibe_llms_requests_total", "vibe_llms_request_seconds", "vibe_llms_tokens_total"),
        *("vibe_llms_model_errors_total", "vibe_llms_model_request_seconds", "vibe_llms_runs"),
        "vibe_llms_ended_runs_total",
        *("vibe_llms_running_turns", "vibe_llms_budget_refusals_total"),
    } <= names


@pytest.mark.parametrize("wrong", [-50_000, 2**62, 2**63])
@pytest.mark.parametrize("name", ["uncached_input_tokens", "output_tokens", "reasoning_tokens"])
async def test_no_usage_of_a_provider_ends_a_turn_or_a_budget_or_gives_tokens_back(
    home: Path, name: str, wrong: int
) -> None:
    home.mkdir(exist_ok=True)
    usage = {"uncached_input_tokens": 30, "output_tokens": 5, name: wrong}
    told = ", ".join(f"{key} = {value}" for key, value in usage.items())
    script = '[[replies]]\nwhen = "."\nparts = [{ text = "Yes." }]\n'
    (home / "wrong.toml").write_text(f"{script}usage = {{ {told} }}\n")
    tables: dict[str, Any] = {
        "providers": {"scripted": {"scripts": {"wrong": str(home / "wrong.toml")}}},
        "budgets": {"users": {"ada": {"tokens": 200_000, "period": "total"}}},
    }
    async with serving(home, **tables) as served:
        body = {
            "model": "scripted/wrong",
            "messages": [{"role": "user", "content": "Well?"}],
            "max_tokens": 100,
        }
        spent = [0]
        async with served.http("ada") as client:
            for stream in (False, True, False):
                answered = await client.post(CHAT, json={**body, "stream": stream})
                assert answered.status_code == 200, answered.text
                (budget,) = (await client.get("/api/budgets")).json()["budgets"]
                assert budget["spent"] >= spent[-1]
                assert budget["spent"] < 60_000
                assert not budget["reserved"]
                spent.append(budget["spent"])
        await read(served)
