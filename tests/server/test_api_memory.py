"""Memory over HTTP: facts are added, listed, found, shown and removed."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from tests.fakes.postgres import access_cluster, temporary_database
from tests.server.conftest import Served, serving
from tests.server.test_api_conversations import ask_command
from vibe_llms.base.configuration import Places, load_configuration
from vibe_llms.storage.backends import open_backend
from vibe_llms.storage.user_stores import produce_users


async def test_facts_are_added_listed_found_and_removed(served: Served) -> None:
    async with served.http() as client:
        fact = {"content": "Ada likes herons.", "topics": ["birds"], "importance": 0.9}
        made = await client.post("/api/memory", json=fact)
        again = await client.post("/api/memory", json=fact)
        await client.post("/api/memory", json={"content": "Ada sails."})
        listed = (await client.get("/api/memory")).json()
        page = (await client.get("/api/memory?limit=1")).json()
        rest = (await client.get(f"/api/memory?after={made.json()['id']}")).json()
        newest = (await client.get("/api/memory?order=newest&limit=1")).json()
        wrong = await client.get("/api/memory?order=best")
        found = (await client.get("/api/memory/search?text=herons")).json()["entries"]
        identity = made.json()["id"]
        shown = (await client.get(f"/api/memory/{identity}")).json()
        commands = [
            await ask_command("memory", *words)
            for words in (("list",), ("show", identity), ("search", "herons"))
        ]
        removed = await client.delete(f"/api/memory/{identity}")
        gone = [(await client.get(f"/api/memory/{identity}")).status_code]
        gone.append((await client.delete(f"/api/memory/{identity}")).status_code)
    assert (made.status_code, again.json()["id"]) == (201, identity)
    assert [one["content"] for one in listed["entries"]] == ["Ada likes herons.", "Ada sails."]
    assert (page["entries"], page["has_more"]) == (listed["entries"][:1], True)
    assert (rest["entries"], rest["has_more"]) == (listed["entries"][1:], False)
    assert (newest["entries"], newest["has_more"]) == (listed["entries"][1:], True)
    assert wrong.status_code == 400
    assert [one["id"] for one in found] == [identity]
    assert commands == [listed["entries"], shown, found]
    assert (shown, removed.json()["id"], gone) == (made.json(), identity, [404, 404])


async def test_what_cannot_be_remembered_is_refused(served: Served) -> None:
    secret = "my key is sk-ant-api03-" + "a1B2" * 20
    async with served.http() as client:
        long = {"content": "a " * 20_000}, {"content": "a", "category": "a" * 101}
        many = {"content": "a", "topics": ["a" * 101]}, {"content": "a", "topics": ["a"] * 101}
        wrong = {"content": ""}, {"content": " "}, {"content": secret}, {"text": "a"}
        for body in (*wrong, *long, *many):
            assert (await client.post("/api/memory", json=body)).status_code == 400, body
        made = (await client.post("/api/memory", json={"content": "Ada sails."})).json()
        part = await client.get(f"/api/memory/{made['id'][:8]}")
        listed = (await client.get("/api/memory")).json()["entries"]
    assert part.status_code == 404
    assert [one["id"] for one in listed] == [made["id"]]


async def test_servers_of_one_database_have_one_memory_of_each_user(
    home: Path, tmp_path: Path
) -> None:
    with temporary_database() as place:
        archive = {"module": "vibe_llms.storage.postgres", "dsn": place.dsn}
        configuration = load_configuration(Places.under(home), overrides={"archive": archive})
        backend = open_backend(configuration)
        keys = {name: await produce_users(backend).add(name) for name in ("local", "ben")}
        await backend.close()
        async with serving(home, archive=archive) as one:
            one.keys.update(keys)
            fact = {"content": "Ada likes herons."}
            async with one.http() as client:
                made = await client.post("/api/memory", json=fact)
            assert made.status_code == 201, made.text
            identity = made.json()["id"]
            async with one.http("ben") as stranger:
                assert (await stranger.get(f"/api/memory/{identity}")).status_code == 404
                assert (await stranger.get("/api/memory")).json()["entries"] == []
        # Nothing of it is in the folder of the first server.
        async with AsyncExitStack() as stack:
            other = await stack.enter_async_context(serving(tmp_path / "other", archive=archive))
            other.keys.update(keys)
            client = await stack.enter_async_context(other.http())
            found = (await client.get("/api/memory/search?text=herons")).json()["entries"]
            access_cluster().execute(f"alter database {place.name} allow_connections false")
            access_cluster().execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                f"where datname = '{place.name}'"
            )
            away = await client.get("/api/memory/search?text=herons")
            access_cluster().execute(f"alter database {place.name} allow_connections true")
            back = await client.get("/api/memory/search?text=herons")
    assert [one["id"] for one in found] == [identity]
    assert (away.status_code, away.headers["retry-after"]) == (503, "1")
    assert back.json()["entries"] == found


async def test_vectors_that_a_user_asks_for_count_against_their_budget(home: Path) -> None:
    budgets = {"tokens": 60, "period": "total"}
    memory = {"embedder": "scripted/demo"}
    async with serving(home, budgets=budgets, memory=memory) as served, served.http() as client:

        async def read_spent() -> int:
            (balance,) = (await client.get("/api/budgets")).json()["budgets"]
            assert balance["reserved"] == 0
            return int(balance["spent"])

        spent = [await read_spent()]
        for number in range(12):
            path = f"/api/memory/search?text={'heron ' * 4}{number}"
            assert (await client.get(path)).status_code == 200
            spent.append(await read_spent())
        await client.post("/api/memory", json={"content": "Ada likes herons."})
        found = (await client.get("/api/memory/search?text=herons")).json()["entries"]
    assert spent[1] > spent[0]
    assert spent[-1] == spent[-2] <= 60
    # Without vectors, words are enough.
    assert len(found) == 1


async def test_requests_that_ask_a_provider_count_as_turns(home: Path) -> None:
    async with serving(home, server={"user-turns": 1}) as served, served.http() as client:
        assert (await client.get("/api/memory/search?text=a")).status_code == 200
        with served.running._core.spaces.enter("local") as space, space.turn():
            search = await client.get("/api/memory/search?text=a")
            add = await client.post("/api/memory", json={"content": "Ada sails."})
    assert (search.status_code, add.status_code) == (429, 429)


async def test_an_entry_is_changed_and_its_history_shown(served: Served) -> None:
    async with served.http() as client:
        body = {"content": "Ada lives in Lisbon.", "topics": ["home"]}
        made = (await client.post("/api/memory", json=body)).json()
        path = f"/api/memory/{made['id']}"
        added = (await client.get(f"{path}/history")).json()
        changes = {"content": "Ada lives in Porto.", "importance": 0.9}
        changed = await client.patch(path, json=changes)
        kept = await client.patch(path, json={"category": "place"})
        same = await client.patch(path, json={})
        shown = (await client.get(path)).json()
        found = (await client.get("/api/memory/search?text=Porto")).json()["entries"]
        refused = [
            (await client.patch(path, json=one)).status_code
            for one in (
                {"content": " "},
                {"content": "my key is sk-ant-api03-" + "a1B2" * 20},
                {"content": "a " * 20_000},
                {"importance": 2},
                {"created": "2020-01-01T00:00:00Z"},
            )
        ]
        removed = await client.delete(path)
        late = await client.patch(path, json={"content": "Ada lives in Rome."})
        history = (await client.get(f"{path}/history")).json()
        part = await client.get(f"/api/memory/{made['id'][-12:]}/history")
        command = await ask_command("memory", "log", made["id"])
    assert [one["change"] for one in added["changes"]] == ["added"]
    assert changed.json() == {**made, **changes}
    assert kept.json() == same.json() == shown == {**made, **changes, "category": "place"}
    assert [one["id"] for one in found] == [made["id"]]
    assert (refused, removed.status_code, late.status_code) == ([400] * 5, 200, 404)
    assert [one["change"] for one in history["changes"]] == ["added", "deleted"]
    assert (history["changes"][-1]["entry"], history["note"]) == (shown, "")
    assert (part.status_code, command) == (404, history["changes"])


async def test_each_version_of_an_entry_is_shown_if_git_keeps_them(home: Path) -> None:
    async with serving(home, memory={"versioning": True}) as served, served.http() as client:
        body = {"content": "Ada lives in Lisbon."}
        path = f"/api/memory/{(await client.post('/api/memory', json=body)).json()['id']}"
        await client.get(f"{path}/history")
        await client.patch(path, json={"content": "Ada lives in Porto."})
        await client.get(f"{path}/history")
        await client.delete(path)
        history = (await client.get(f"{path}/history")).json()
        (home / "memory" / ".git" / "HEAD").write_text("damaged")
        rest = (await client.get(f"{path}/history")).json()
    said = [(one["change"], one["entry"]["content"]) for one in history["changes"]]
    assert said == [
        ("added", "Ada lives in Lisbon."),
        ("changed", "Ada lives in Porto."),
        ("deleted", "Ada lives in Porto."),
    ]
    assert (all(one["commit"] for one in history["changes"]), history["note"]) == (True, "")
    assert [one["change"] for one in rest["changes"]] == ["added", "deleted"]
    assert "git could not be" in rest["note"]
    assert any("git cannot be read" in line for line in served.log)


async def test_the_source_of_a_fact_and_what_was_recalled_are_shown(home: Path) -> None:
    async with serving(home, memory={"enabled": True}) as served, served.http() as client:
        facts = [{"content": f"Heron {number} lives at the pond."} for number in range(3)]
        made = [(await client.post("/api/memory", json=fact)).json() for fact in facts]
        order = {"model": "scripted/demo", "prompt": "Where do the herons live?"}
        run = (await client.post("/api/runs", json=order)).json()
        async with client.stream("GET", f"/api/runs/{run['id']}/events") as events:
            await events.aread()
        await client.delete(f"/api/memory/{made[-1]['id']}")
        path = f"/api/conversations/{run['conversation']}"
        messages = (await client.get(path)).json()["messages"]
        (recalled,) = (await client.get(f"{path}/recalled")).json()["recalled"]
        with served.running._core.spaces.enter("local") as space:
            await space.session.background.wait()
            said = await space.memory.memory.survey()
    document = next(one for one in messages if one["identity"] == recalled["message"])
    assert (document["role"], document["title"]) == ("document", "Memory")
    assert sorted(one["id"] for one in recalled["entries"]) == [one["id"] for one in made[:2]]
    assert recalled["gone"] == 1
    source = next(one for one in said if one.content == order["prompt"])
    identities = [one["identity"] for one in messages]
    assert (source.conversation, source.turn in identities) == (run["conversation"], True)
