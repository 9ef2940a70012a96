"""Stored conversations over HTTP: lists in pages, search, forks, names, tags, and removal."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner

from tests.server.conftest import Served, serving
from vibe_llms.cli.commands import command

STALL = "{ stall = true }"
LONG = "a long letter about herons. " * 100


async def converse(client: httpx2.AsyncClient, *texts: str) -> list[str]:
    """Hold conversations of one turn each; returns their identities, the newest first."""
    for text in texts:
        body = {"model": "scripted/demo", "messages": [{"role": "user", "content": text}]}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    listed = (await client.get("/api/conversations")).json()
    return [one["id"] for one in listed["conversations"]]


async def ask_command(*arguments: str) -> Any:
    """What the command prints as JSON, in the home of the server."""
    result = await asyncio.to_thread(CliRunner().invoke, command, [*arguments, "--json"])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


async def test_conversations_are_listed_in_pages(served: Served) -> None:
    async with served.http() as client:
        identities = await converse(client, "One", "Two", "Three")
        first = (await client.get("/api/conversations?limit=2")).json()
        rest = (await client.get(f"/api/conversations?limit=2&after={identities[1]}")).json()
        none = await client.get("/api/conversations?after=unknown")
    assert [one["title"] for one in first["conversations"]] == ["Three", "Two"]
    assert [one["title"] for one in rest["conversations"]] == ["One"]
    assert (first["has_more"], rest["has_more"], none.status_code) == (True, False, 404)


async def test_a_conversation_is_shown_with_its_long_texts_as_references(served: Served) -> None:
    async with served.http() as client:
        (identity,) = await converse(client, LONG)
        shown = (await client.get(f"/api/conversations/{identity}")).json()
        reference = shown["messages"][0]["contents"][0]["data"]
        content = await client.get(f"/api/contents/{reference['hash']}")
    assert [one["role"] for one in shown["messages"]] == ["user", "assistant"]
    assert content.text == LONG
    assert content.headers["x-content-type-options"] == "nosniff"


async def test_the_json_is_that_of_the_command(served: Served) -> None:
    async with served.http() as client:
        (identity,) = await converse(client, "A heron.")
        listed = (await client.get("/api/conversations")).json()["conversations"]
        shown = (await client.get(f"/api/conversations/{identity}")).json()
        found = (await client.get("/api/conversations/search?text=heron")).json()["messages"]
    assert listed == await ask_command("list")
    assert shown == await ask_command("show", identity)
    assert found == await ask_command("search", "heron")
    assert found[0]["message"] == shown["messages"][0]["identity"]


async def test_a_fork_ends_with_the_message_that_is_named(served: Served) -> None:
    async with served.http() as client:
        (identity,) = await converse(client, "Hello")
        messages = (await client.get(f"/api/conversations/{identity}")).json()["messages"]
        url = f"/api/conversations/{identity}/fork"
        made = await client.post(url, json={"at": messages[0]["identity"], "name": "Again"})
        fork = (await client.get(f"/api/conversations/{made.json()['id']}")).json()
        wrong = await client.post(url, json={"at": "unknown"})
    assert (made.status_code, wrong.status_code) == (201, 404)
    assert made.json() == {"id": fork["id"], "forked_from": identity, "messages": 1}
    assert (fork["name"], fork["forked_from"], fork["messages"]) == (
        "Again",
        identity,
        messages[:1],
    )


async def test_a_family_is_shown_with_the_places_where_its_conversations_part(
    served: Served,
) -> None:
    async with served.http() as client:
        identity, stranger = await converse(client, "Stranger", "Hello")
        messages = (await client.get(f"/api/conversations/{identity}")).json()["messages"]
        at = messages[0]["identity"]
        order = {"conversation": identity, "fork_at": at}
        forks = []
        for _ in range(2):
            run = (await client.post("/api/runs", json=order)).json()
            await client.get(f"/api/runs/{run['id']}/events")
            forks.append(run["conversation"])
            order = {"conversation": run["conversation"], "fork_at": at}
        family = (await client.get(f"/api/conversations/{forks[1]}/family")).json()
        alone = (await client.get(f"/api/conversations/{stranger}/family")).json()
        wrong = [
            (await client.get(f"/api/conversations/{one}/family")).status_code
            for one in ("unknown", identity[:6], "-1")
        ]
    whole = [identity, *forks]
    assert (family["root"], family["siblings"]) == (identity, {at: whole})
    assert [one["id"] for one in family["conversations"]] == whole
    last = family["conversations"][-1]
    assert (last["parent"], last["at"], last["at_index"]) == (identity, at, 0)
    assert ([one["id"] for one in alone["conversations"]], alone["siblings"]) == ([stranger], {})
    assert wrong == [404, 404, 404]


async def test_names_and_tags_are_changed(served: Served) -> None:
    async with served.http() as client:
        (identity,) = await converse(client, "Hello")
        url = f"/api/conversations/{identity}"
        named = await client.patch(url, json={"name": "Herons", "add_tags": ["a", "b"]})
        changed = await client.patch(url, json={"name": "", "remove_tags": ["b"]})
        tagged = (await client.get("/api/conversations?tag=a")).json()["conversations"]
        untagged = (await client.get("/api/conversations?tag=b")).json()["conversations"]
        wrong = await client.patch(url, json={"title": "x"})
    assert (named.json()["name"], named.json()["tags"]) == ("Herons", ["a", "b"])
    assert (changed.json()["name"], changed.json()["tags"]) == ("", ["a"])
    assert ([one["id"] for one in tagged], untagged) == ([identity], [])
    assert wrong.status_code == 400


async def test_what_is_removed_is_gone_with_its_contents(served: Served, home: Path) -> None:
    async with served.http() as client:
        (identity,) = await converse(client, LONG)
        url = f"/api/conversations/{identity}"
        shown = (await client.get(url)).json()
        digest = shown["messages"][0]["contents"][0]["data"]["hash"]
        removed = await client.delete(url)
        again = [(await client.get(url)).status_code, (await client.delete(url)).status_code]
        while (await client.get(f"/api/contents/{digest}")).status_code == 200:
            pass
        listed = (await client.get("/api/conversations")).json()["conversations"]
    with closing(sqlite3.connect(home / "server" / "continuations.sqlite")) as database:
        assert database.execute("select * from replies").fetchall() == []
    assert removed.json() == {"id": identity, "deleted": True}
    assert (again, listed) == ([404, 404], [])


async def test_names_and_parts_of_identities_mean_nothing(served: Served) -> None:
    async with served.http() as client:
        (identity,) = await converse(client, "Hello")
        await client.patch(f"/api/conversations/{identity}", json={"name": "herons"})
        for wrong in (
            identity[:6],
            "herons",
            "-1",
            "..",
            "%2e%2e%2fusers",
            "%00",
            "%ff",
            "a" * 5000,
        ):
            for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/fork"), ("PATCH", "")):
                body: Any = None if method in ("GET", "DELETE") else {}
                url = f"/api/conversations/{wrong}{path}"
                assert (await client.request(method, url, json=body)).status_code == 404, url


def scripted(home: Path, parts: str) -> dict[str, Any]:
    """The model `slow`, whose replies have these parts."""
    home.mkdir(exist_ok=True)
    (home / "slow.toml").write_text(f"[[replies]]\nparts = [{parts}]\n")
    return {"providers": {"scripted": {"scripts": {"slow": "slow.toml"}}}}


async def wait_for_one(client: httpx2.AsyncClient) -> str:
    """The identity of the only conversation, once there is one."""
    async with asyncio.timeout(10):
        while not (found := (await client.get("/api/conversations")).json()["conversations"]):
            await asyncio.sleep(0.02)
    return str(found[0]["id"])


@pytest.mark.parametrize("words", ["", "{ text = 'Begun. ' }, "])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_turn_ends_with_its_conversation_which_does_not_come_back(
    home: Path, words: str, stream: bool
) -> None:
    async with serving(home, **scripted(home, words + STALL)) as served, served.http() as client:
        said = [{"role": "user", "content": LONG}]
        body = {"model": "scripted/slow", "messages": said, "stream": stream}
        turn = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        identity = await wait_for_one(client)
        removed = await client.delete(f"/api/conversations/{identity}")
        reply = await turn
        left = (await client.get("/api/conversations?superseded=true")).json()["conversations"]
    assert (removed.status_code, left) == (200, [])
    assert reply.status_code == (200 if stream and words else 404), reply.text
    assert f"the conversation {identity} was deleted" in reply.text


async def test_a_turn_whose_conversation_another_process_deletes_fails(home: Path) -> None:
    late = "{ delay-seconds = 2, text = 'Late.' }"
    async with serving(home, **scripted(home, late)) as served, served.http() as client:
        body = {"model": "scripted/slow", "messages": [{"role": "user", "content": LONG}]}
        turn = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        identity = await wait_for_one(client)
        async with served.session() as session:
            await session.remove(identity)
        reply = await turn
        left = (await client.get("/api/conversations?superseded=true")).json()["conversations"]
    assert (reply.status_code, left) == (404, [])
    assert f"conversation {identity} not found" in reply.text


@pytest.mark.parametrize("path", ["/v1/responses/{}?stream=true", "/api/runs/{}/events"])
async def test_a_run_ends_with_its_conversation_and_followers_see_that(
    home: Path, path: str
) -> None:
    async with (
        serving(home, **scripted(home, "{ text = 'Begun. ' }, " + STALL)) as served,
        served.http() as client,
    ):
        body = {"model": "scripted/slow", "input": LONG, "background": True}
        response = (await client.post("/v1/responses", json=body)).json()["id"]
        run = response.removeprefix("resp_")
        identity = (await client.get(f"/api/runs/{run}")).json()["conversation"]
        lines: list[str] = []
        removing: asyncio.Task[httpx2.Response] | None = None
        path = path.format(response if "responses" in path else run)
        async with client.stream("GET", path) as followed:
            async for line in followed.aiter_lines():
                lines += [line] if line else []
                if removing is None and "Begun. " in line:
                    removing = asyncio.create_task(client.delete(f"/api/conversations/{identity}"))
        ended = time.monotonic()
        assert removing is not None
        removed = await removing
        left = (await client.get("/api/conversations?superseded=true")).json()["conversations"]
        gone = await client.get(f"/api/runs/{run}")
        working = served.running._core.spaces.worker.busy
    assert (removed.status_code, left, gone.status_code, working) == (200, [], 404, False)
    assert time.monotonic() - ended < 2
    assert any(word in "".join(lines[-2:]) for word in ("cancelled", "run_not_found")), lines
