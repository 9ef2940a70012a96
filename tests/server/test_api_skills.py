"""Skills over HTTP: who sees which, and whose conversations have them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.server.conftest import Served, serving
from tests.skills.folders import write_skill
from vibe_llms.invocation.invokers import InvocationContext
from vibe_llms.messages.canisters import InvocationCanister
from vibe_llms.server.api_conversations import reopen_conversation

ROWS = """
[skills]
folders = ["team", "gone"]

[agents.clerk]
model = "scripted/demo"
skills = ["pdf", "broken"]

[agents.all]
model = "scripted/demo"
skills = ["*"]

[agents.other]
model = "scripted/demo"
"""


@pytest.fixture
async def served(home: Path) -> AsyncIterator[Served]:
    write_skill(home / "skills", "pdf")
    write_skill(home / "team", "png")
    write_skill(home / "team", "broken", "no front matter")
    (home / "config.toml").write_text(ROWS)
    async with serving(home) as server:
        yield server


async def survey(client: httpx2.AsyncClient) -> dict[str, Any]:
    response = await client.get("/api/skills")
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_the_owner_sees_all_with_reasons_and_others_what_their_agents_have(
    served: Served, home: Path
) -> None:
    async with served.http() as client, served.http("ada") as ada:
        mine, hers = await survey(client), await survey(ada)
    assert mine["problems"] == {str(home / "gone"): "No such file or directory"}
    assert [(one["name"], one["agents"], one["folder"]) for one in mine["skills"]] == [
        ("pdf", ["clerk", "all"], str(home / "skills" / "pdf")),
        ("broken", [], str(home / "team" / "broken")),
        ("png", ["all"], str(home / "team" / "png")),
    ]
    assert mine["skills"][1]["problem"].startswith("it has no front matter")
    assert hers["problems"] == {}
    assert [(one["name"], one["description"], one["agents"]) for one in hers["skills"]] == [
        ("pdf", "About pdf.", ["clerk", "all"]),
        ("png", "About png.", ["all"]),
    ]
    assert str(home) not in str(hers)


async def test_users_see_nothing_if_no_agent_has_skills(home: Path) -> None:
    write_skill(home / "skills", "pdf")
    async with serving(home) as served, served.http("ada") as ada, served.http() as client:
        assert await survey(ada) == {"skills": [], "problems": {}}
        assert [one["name"] for one in (await survey(client))["skills"]] == ["pdf"]


async def test_only_the_owners_model_learns_where_a_skill_is(served: Served, home: Path) -> None:
    texts = {}
    for user in ("local", "ada"):
        served.key(user)
        with served.running._core.spaces.enter(user) as space:
            conversation = await space.session.begin("scripted/demo", agent="clerk")
            (tool,) = conversation.invokers.values()
            call = InvocationCanister(name=tool.name, arguments="{}")
            context = InvocationContext("", call, lambda _: None)
            output = await tool.invoke('{"name": "pdf"}', context)
            texts[user] = str(output.contents)
    assert str(home) in texts["local"]
    assert "Do pdf." in texts["ada"]
    assert str(home) not in texts["ada"]


async def tools_of(served: Served, user: str, model: str) -> list[str]:
    """The names of the tools in a conversation of the page, as its context describes it."""
    async with served.http(user) as client:
        made = await client.post("/api/runs", json={"model": model, "prompt": "Hello!"})
        assert made.status_code in (200, 201, 202), made.text
        conversation = made.json()["conversation"]
        async with client.stream("GET", f"/api/runs/{made.json()['id']}/events") as events:
            await events.aread()
    with served.running._core.spaces.enter(user) as space:
        return [*(await reopen_conversation(space, conversation)).invokers]


async def test_only_the_owners_plain_conversations_have_skills(served: Served) -> None:
    tool = ["skills/use_skill"]
    assert await tools_of(served, "local", "scripted/demo") == tool
    assert await tools_of(served, "local", "other") == tool
    assert await tools_of(served, "ada", "scripted/demo") == []
    assert await tools_of(served, "ada", "other") == []
    assert await tools_of(served, "ada", "clerk") == tool


async def test_clients_of_a_model_get_no_skills(served: Served) -> None:
    told: list[str] = []
    with served.running._core.spaces.enter("local") as space:
        begin = space.session.begin

        async def watch(*arguments: Any, **options: Any) -> Any:
            conversation = await begin(*arguments, **options)
            told.append(",".join(conversation.invokers))
            return conversation

        space.session.begin = watch  # type: ignore[method-assign]
        async with served.http() as client:
            for model in ("scripted/demo", "clerk"):
                body = {"model": model, "messages": [{"role": "user", "content": "Hello!"}]}
                reply = await client.post("/v1/chat/completions", json=body)
                assert reply.status_code == 200, reply.text
    assert told == ["", "skills/use_skill"]
