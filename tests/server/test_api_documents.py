"""Documents over HTTP: uploaded to collections, indexed, found, and removed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.documents.making import make_pdf
from tests.fakes.postgres import temporary_database
from tests.server.conftest import Served, serving
from vibe_llms.base.configuration import Places, load_configuration
from vibe_llms.base.exceptions import CollectionNotFound
from vibe_llms.documents.core import produce_documents
from vibe_llms.documents.reading import DocumentReader
from vibe_llms.storage.backends import open_backend
from vibe_llms.storage.user_stores import produce_users

KEEPER = "The keeper of the lighthouse is Ada Moen.\n"
REPORT = make_pdf(["The harbour was built in 1911.", "Ferries leave every hour."])


async def upload(client: httpx2.AsyncClient, name: str, data: bytes, to: str = "papers") -> Any:
    """Upload a document, and wait until it is read."""
    query = {"collection": to, "name": name}
    made = await client.post("/api/documents", params=query, content=data)
    assert made.status_code == 201, made.text
    await wait(client, to)
    return made.json()


async def wait(client: httpx2.AsyncClient, collection: str = "papers") -> Any:
    """Wait until nothing of a collection is being indexed, and return its list."""
    while True:
        listed = (await client.get(f"/api/documents/{collection}")).json()
        if not listed["collection"]["indexing"]:
            return listed
        await asyncio.sleep(0.02)


async def search(client: httpx2.AsyncClient, text: str, **query: Any) -> Any:
    """The passages that fit a text."""
    found = await client.get("/api/documents/search", params={"text": text, **query})
    assert found.status_code == 200, found.text
    return found.json()


async def test_documents_are_uploaded_indexed_found_and_removed(served: Served) -> None:
    async with served.http() as client:
        query = {"collection": "papers", "name": "harbour.pdf"}
        made = (await client.post("/api/documents", params=query, content=REPORT)).json()
        assert (made["state"], made["mimetype"]) == ("waiting", "application/pdf")
        await wait(client)
        await upload(client, "keeper.txt", KEEPER.encode())
        listed = await wait(client)
        collections = (await client.get("/api/documents")).json()["collections"]
        found = await search(client, "Who keeps the lighthouse?")
        limited = await search(client, "ferries", collection="papers", limit=1)
        page = (await client.get("/api/documents/papers?limit=1")).json()
        rest = (await client.get(f"/api/documents/papers?after={made['id']}")).json()
        replaced = await upload(client, "keeper.txt", b"The keeper is Ben.")
        after = await search(client, "Who keeps the lighthouse?")
        kept = (await client.get("/api/files")).json()["files"]
        path = f"/api/documents/papers/{replaced['id']}"
        shown = (await client.get(path)).json()
        async with served.http("eve") as eve:
            await upload(eve, "other.txt", b"Mine.")
            foreign = [(await eve.request(one, path)).status_code for one in ("GET", "DELETE")]
        removed = [(await client.delete(path)).status_code for _ in range(2)]
        none = await search(client, "keeper")
        gone = [(await client.delete("/api/documents/papers")).json()]
        missing = [
            (await client.request(method, path)).status_code
            for method, path in (
                ("GET", "/api/documents/papers"),
                ("DELETE", "/api/documents/papers"),
                ("POST", "/api/documents/papers/index"),
                ("GET", "/api/documents/search?text=x&collection=papers"),
            )
        ]
        left = (await client.get("/api/documents")).json(), (await client.get("/api/files")).json()
    description = {"name": "papers", "own": True, "documents": 2, "indexed": 2}
    assert listed["collection"] == {**description, "waiting": 0, "failed": 0, "indexing": False}
    assert collections == [listed["collection"]]
    assert [one["name"] for one in listed["documents"]] == ["harbour.pdf", "keeper.txt"]
    assert {one["state"] for one in listed["documents"]} == {"indexed"}
    best = next(one for one in found["passages"] if one["name"] == "keeper.txt")
    assert (best["collection"], best["text"].strip()) == ("papers", KEEPER.strip())
    assert (found["waiting"], len(limited["passages"])) == (0, 1)
    (ferries,) = (one for one in found["passages"] if "Ferries" in one["text"])
    assert (ferries["place"], ferries["document"]) == ("pages 1-2", made["id"])
    assert (page["documents"], page["has_more"]) == (listed["documents"][:1], True)
    assert (rest["documents"], rest["has_more"]) == (listed["documents"][1:], False)
    assert "Ben" in str(after)
    assert "Ada Moen" not in str(after)
    assert [(one["name"], one["purpose"]) for one in kept] == [
        ("keeper.txt", "collection/papers"),
        ("harbour.pdf", "collection/papers"),
    ]
    assert (shown, foreign) == ({**replaced, "state": "indexed"}, [404, 404])
    assert (removed, "Ben" in str(none)) == ([200, 404], False)
    assert gone == [{"name": "papers", "documents": 1, "deleted": True}]
    assert (missing, left) == (
        [404] * 4,
        ({"collections": []}, {"files": [], "has_more": False}),
    )


async def test_a_model_searches_the_collections_that_a_run_names(served: Served) -> None:
    async with served.http("ada") as client:
        await upload(client, "keeper.txt", KEEPER.encode())
        order = {
            "model": "scripted/demo",
            "prompt": "Search document 'the lighthouse'",
            "collections": ["papers"],
        }
        run = (await client.post("/api/runs", json=order)).json()
        said = await _follow(client, run)
        order = {**order, "conversation": run["conversation"], "collections": ["papers"]}
        again = await _follow(client, (await client.post("/api/runs", json=order)).json())
        unknown = await client.post("/api/runs", json={**order, "collections": ["books"]})
    assert "Ada Moen" in said
    assert again.count("Ada Moen") > said.count("Ada Moen")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "collection_not_found")


async def _follow(client: httpx2.AsyncClient, run: Any) -> str:
    """The messages of a conversation after a run."""
    async with client.stream("GET", f"/api/runs/{run['id']}/events") as events:
        await events.aread()
    return (await client.get(f"/api/conversations/{run['conversation']}")).text


@asynccontextmanager
async def libraries(home: Path, tmp_path: Path) -> AsyncIterator[Served]:
    """A server whose home has a collection of an agent, and a private one."""
    for name in ("offered", "private"):
        (tmp_path / name / "rooms").mkdir(parents=True)
        (tmp_path / name / "rooms" / f"{name}.txt").write_text(f"{name}: {KEEPER}")
        (tmp_path / name / "broken.pdf").write_bytes(b"%PDF-1.7 nothing more")
    configuration = load_configuration(Places.under(home))
    documents = produce_documents(configuration, lambda _: None)
    for name in ("offered", "private"):
        await documents.store.add_to_collection(name, [tmp_path / name])
        await documents.store.refresh(name, documents.reader)
    await documents.close()
    agents = {"librarian": {"model": "scripted/demo", "collections": ["offered"]}}
    async with serving(home, agents=agents) as served:
        yield served


async def test_collections_of_the_server_are_found_if_an_agent_offers_them(
    home: Path, tmp_path: Path
) -> None:
    async with (
        libraries(home, tmp_path) as served,
        served.http("ada") as ada,
        served.http() as local,
    ):
        seen = [
            [one["name"] for one in (await http.get("/api/documents")).json()["collections"]]
            for http in (ada, local)
        ]
        found = (await search(ada, "lighthouse"))["passages"]
        listed = await ada.get("/api/documents/offered")
        own = (await local.get("/api/documents/offered")).json()["documents"]
        private = [
            (await ada.get("/api/documents/private")).status_code,
            (await ada.get("/api/documents/search?text=x&collection=private")).status_code,
            (
                await ada.post("/api/runs", json={"prompt": "x", "collections": ["private"]})
            ).status_code,
        ]
        document = own[0]["id"]
        refused = [
            (await http.request(method, path, content=b"x")).json()["error"]["code"]
            for http in (ada, local)
            for method, path in (
                ("POST", "/api/documents?collection=offered&name=a.txt"),
                ("DELETE", "/api/documents/offered"),
                ("DELETE", f"/api/documents/offered/{document}"),
                ("POST", "/api/documents/offered/index"),
            )
        ]
        # The name of a private one is free for others, and leads to their documents alone.
        await upload(ada, "mine.txt", b"The keeper is my aunt.", to="private")
        order = {
            "model": "scripted/demo",
            "prompt": "Search document 'the keeper'",
            "collections": ["private"],
        }
        said = await _follow(ada, (await ada.post("/api/runs", json=order)).json())
        with served.running._core.spaces.enter("ada") as space:
            documents = space.session.access_documents()
            inside = await documents.find("keeper", [], ["private"])
            await ada.delete("/api/documents/private")
            with pytest.raises(
                CollectionNotFound, match=r"'private' not found; available: offered$"
            ):
                await documents.find("keeper", [], ["private"])
    assert seen == [["offered"], ["offered", "private"]]
    assert [(one["name"], one["collection"]) for one in found] == [("rooms/offered.txt", "offered")]
    assert {one["name"]: one["state"] for one in listed.json()["documents"]} == {
        "broken.pdf": "failed",
        "rooms/offered.txt": "indexed",
    }
    problems = [
        next(one["problem"] for one in found if one["state"] == "failed")
        for found in (listed.json()["documents"], own)
    ]
    assert problems[0] == "the server could not read it"
    assert "broken.pdf: it is not a valid PDF" in problems[1]
    assert str(tmp_path) not in listed.text
    assert (private, {*refused}) == ([404] * 3, {"collection_read_only"})
    assert [one.name for one in inside] == ["mine.txt"]
    assert "my aunt" in said
    assert "Ada Moen" not in said


async def test_what_cannot_be_uploaded_is_refused(home: Path) -> None:
    server = {"body-bytes": 2000, "user-files": 2}
    async with serving(home, server=server) as served, served.http() as client:

        async def attempt(data: bytes = b"x", kind: str = "", **query: str) -> int:
            headers = {"content-type": kind} if kind else {}
            made = await client.post("/api/documents", params=query, content=data, headers=headers)
            assert made.status_code != 201 or made.json()["name"] == query["name"]
            return made.status_code

        refused = [
            await attempt(name="a.txt"),
            await attempt(collection="papers"),
            await attempt(collection="papers", name=""),
            await attempt(collection="papers", name="a" * 256),
            await attempt(collection="", name="a.txt"),
            await attempt(collection="../x", name="a.txt"),
            await attempt(collection="a/b", name="a.txt"),
            await attempt(collection="search", name="a.txt"),
            await attempt(b"", collection="papers", name="a.txt"),
        ]
        multipart = await attempt(kind="multipart/form-data", collection="papers", name="a.txt")
        long = await attempt(b"a" * 3000, collection="papers", name="a.txt")
        assert (await client.get("/api/documents")).json() == {"collections": []}
        odd = "../../etc/<b>passwd\u202e.txt"
        kept = [await attempt(collection="papers", name=name) for name in (odd, "b", "c")]
        listed = await wait(client)
        described = await client.get("/api/documents/papers?after=nothing")
    assert refused == [400] * 9
    assert (multipart, long, kept) == (415, 413, [201, 201, 409])
    assert [one["name"] for one in listed["documents"]] == [odd, "b"]
    assert described.status_code == 404


async def test_a_document_that_cannot_be_read_says_why_and_is_tried_again_on_request(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    read = DocumentReader.read

    async def count(self: DocumentReader, source: Any, name: str = "", **options: Any) -> Any:
        reads.append(name)
        return await read(self, source, name, **options)

    monkeypatch.setattr(DocumentReader, "read", count)
    async with served.http() as client:
        await upload(client, "broken.pdf", b"%PDF-1.7 nothing more")
        await upload(client, "keeper.txt", KEEPER.encode())
        listed = await wait(client)
        before = [*reads]
        begun = await client.post("/api/documents/papers/index")
        await wait(client)
        # A tool does not try it again each time.
        with served.running._core.spaces.enter("local") as space:
            documents = space.session.access_documents()
            found = await documents.find("keeper", [], ["papers"])
    failed, good = listed["documents"]
    assert (failed["state"], good["state"], listed["collection"]["failed"]) == (
        "failed",
        "indexed",
        1,
    )
    assert "broken.pdf" in failed["problem"]
    assert (before, begun.status_code, begun.json()["indexing"]) == (
        ["broken.pdf", "keeper.txt"],
        202,
        True,
    )
    assert reads == [*before, "broken.pdf"]
    assert [one.name for one in found] == ["keeper.txt"]


async def test_what_waits_is_read_by_another_server(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalled, begun = asyncio.Event(), list[object]()
    read = DocumentReader.read

    async def stall(self: DocumentReader, *_: Any, **__: Any) -> Any:
        begun.append(self)
        stalled.set()
        await asyncio.Event().wait()

    async with serving(home, server={"idle-seconds": 0.05}) as served, served.http("ada") as client:
        monkeypatch.setattr(DocumentReader, "read", stall)
        query = {"collection": "papers", "name": "keeper.txt"}
        await client.post("/api/documents", params=query, content=KEEPER.encode())
        await stalled.wait()
        # A space stays open while it indexes.
        await asyncio.sleep(0.2)
        shown = (await client.get("/api/documents/papers")).json()
        assert (shown["collection"]["waiting"], shown["collection"]["indexing"]) == (1, True)
        assert (await search(client, "keeper")) == {"passages": [], "waiting": 1}
        assert len(begun) == 1
        key = served.keys["ada"]
    # Ended in the middle; the texts of the first server are lost too.
    monkeypatch.setattr(DocumentReader, "read", read)
    for path in (home / "users" / "ada" / "documents").rglob("index.sqlite*"):
        path.unlink()
    async with serving(home) as served:
        served.keys["ada"] = key
        async with served.http("ada") as client:
            listed = await wait(client)
            found = await search(client, "keeper")
    assert listed["collection"]["indexed"] == 1
    assert len(found["passages"]) == 1


async def test_vectors_of_documents_count_against_the_budget(home: Path) -> None:
    budgets = {"tokens": 100_000, "period": "total"}
    documents = {"embedder": "scripted/demo"}
    async with (
        serving(home, budgets=budgets, documents=documents) as served,
        served.http() as client,
    ):

        async def read_spent() -> int:
            (balance,) = (await client.get("/api/budgets")).json()["budgets"]
            assert balance["reserved"] == 0
            return int(balance["spent"])

        await upload(client, "keeper.txt", KEEPER.encode() * 50)
        uploaded = await read_spent()
        found = await search(client, "lighthouse")
    assert uploaded > 100
    assert found["passages"]


async def test_servers_of_one_database_have_the_collections_of_their_users(
    home: Path, tmp_path: Path
) -> None:
    with temporary_database() as place:
        archive = {"module": "vibe_llms.storage.postgres", "dsn": place.dsn}
        backend = open_backend(
            load_configuration(Places.under(home), overrides={"archive": archive})
        )
        keys = {name: await produce_users(backend).add(name) for name in ("local", "ben")}
        await backend.close()
        async with serving(home, archive=archive) as one:
            one.keys |= keys
            async with one.http("ben") as client:
                made = await upload(client, "keeper.txt", KEEPER.encode())
        async with serving(tmp_path / "other", archive=archive) as two:
            two.keys |= keys
            async with two.http("ben") as client, two.http() as local:
                waiting = (await search(client, "keeper"))["waiting"]
                listed = await wait(client)
                found = await search(client, "keeper")
                others = (await local.get("/api/documents")).json()
                removed = await client.delete(f"/api/documents/papers/{made['id']}")
                left = (await client.get("/api/documents")).json()
    assert (waiting, listed["collection"]["indexed"]) == (1, 1)
    assert [one["document"] for one in found["passages"]] == [made["id"]]
    assert (others, left) == ({"collections": []}, {"collections": []})
    assert removed.status_code == 200
