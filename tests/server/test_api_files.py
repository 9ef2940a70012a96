"""Files over HTTP: uploaded, listed, attached to a turn, and removed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.pictures import make_png
from tests.server.conftest import Served, serving

DATA = make_png()
DIGEST = hashlib.sha256(DATA).hexdigest()


async def test_a_file_is_uploaded_listed_read_and_removed(served: Served) -> None:
    async with served.http() as client:
        made = await client.post("/api/files?name=sky.png", content=DATA)
        again = await client.post("/api/files?name=sea.png", content=DATA)
        listed = (await client.get("/api/files")).json()
        shown = (await client.get(f"/api/files/{DIGEST}")).json()
        read = await client.get(f"/api/contents/{DIGEST}")
        removed = await client.delete(f"/api/files/{DIGEST}")
        gone = [(await client.get(f"/api/files/{DIGEST}")).status_code]
        gone.append((await client.delete(f"/api/files/{DIGEST}")).status_code)
        while (await client.get(f"/api/contents/{DIGEST}")).status_code == 200:
            pass
    file = made.json()
    assert (made.status_code, file["id"], file["size"]) == (201, DIGEST, len(DATA))
    assert (file["name"], file["mimetype"]) == ("sky.png", "image/png")
    assert listed == {"files": [again.json()], "has_more": False}
    assert again.json()["name"] == "sea.png"
    assert shown == again.json() == removed.json()
    assert (read.content, read.headers["content-disposition"]) == (DATA, "attachment")
    assert gone == [404, 404]


async def test_a_file_whose_bytes_are_gone_is_logged(served: Served, home: Path) -> None:
    async with served.http() as client:
        await client.post("/api/files?name=sky.png", content=DATA)
        for path in (home / "content").rglob("*"):
            if path.is_file():
                path.unlink()
        served.log.clear()
        assert (await client.get(f"/api/contents/{DIGEST}")).status_code == 404
    assert any(DIGEST[:12] in line for line in served.log), served.log


@pytest.mark.parametrize(
    ("name", "header", "data", "mimetype"),
    [
        ("a.md", "", b"# Herons", "text/markdown"),
        ("a.bin", "", bytes(range(256)), "application/octet-stream"),
        ("a.md", "text/csv; charset=utf-8", b"a,b", "text/csv"),
        ("a.txt", "application/x-www-form-urlencoded", b"a", "text/plain"),
    ],
)
async def test_the_type_is_said_or_found(
    served: Served, name: str, header: str, data: bytes, mimetype: str
) -> None:
    headers = {"content-type": header} if header else {}
    async with served.http() as client:
        made = await client.post(f"/api/files?name={name}", content=data, headers=headers)
    assert made.json()["mimetype"] == mimetype


async def test_what_is_too_much_is_refused(home: Path) -> None:
    settings = {"body-bytes": 200, "user-files": 1}
    async with serving(home, server=settings) as served, served.http() as client:
        large = await client.post("/api/files", content=bytes(201))
        empty = await client.post("/api/files", content=b"")
        first = await client.post("/api/files", content=b"a")
        second = await client.post("/api/files", content=b"b")
        parts = await client.post("/api/files", files={"file": ("a.txt", b"a")})
        unnamed = await client.post(f"/api/files?name={'a' * 300}", content=b"a")
        wrong = await client.post("/api/files", content=b"a", headers={"content-type": "x y/z"})
    refused = (large, empty, first, second, parts, unnamed, wrong)
    assert [one.status_code for one in refused] == [413, 400, 201, 409, 415, 400, 415]


async def test_a_file_stays_while_it_is_listed(served: Served) -> None:
    async with served.http() as client:
        await client.post("/api/files", content=DATA)
        async with served.session() as session:
            archive = session.archive
            assert archive.collect_now(grace_seconds=-1.0) == []  # type: ignore[attr-defined]
        assert (await client.get(f"/api/contents/{DIGEST}")).content == DATA


async def test_a_file_is_attached_to_a_turn(served: Served) -> None:
    async with served.http() as client:
        await client.post("/api/files?name=sky.png", content=DATA)
        order = {"model": "scripted/demo", "prompt": "What is this?", "files": [DIGEST]}
        run = (await client.post("/api/runs", json=order)).json()
        unknown = await client.post("/api/runs", json={**order, "files": ["0" * 64]})
        await client.get(f"/api/runs/{run['id']}/events")
        shown = (await client.get(f"/api/conversations/{run['conversation']}")).json()
    user = shown["messages"][0]
    assert user["contents"][0]["data"] == "What is this?"
    assert user["contents"][1]["data"]["hash"] == DIGEST
    assert unknown.status_code == 404
