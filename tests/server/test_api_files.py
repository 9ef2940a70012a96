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
    assert (read.content, read.headers["content-type"]) == (DATA, "image/png")
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


WAV = b"RIFF\x24\0\0\0WAVEfmt " + bytes(24)
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


@pytest.mark.parametrize(
    ("data", "said", "media"),
    [
        (DATA, "image/png", "image/png"),
        # The bytes count, not who names them.
        (DATA, "text/html", "image/png"),
        (b"\xff\xd8\xff\xe0" + bytes(20), "image/jpeg", "image/jpeg"),
        (WAV, "audio/wav", "audio/wav"),
        (b"OggS" + bytes(20), "audio/ogg", "audio/ogg"),
        (SVG, "image/svg+xml", ""),
        (SVG, "image/png", ""),
        (b"<!doctype html><script>alert(1)</script>", "image/gif", ""),
        (b"%PDF-1.7\n" + bytes(20), "application/pdf", ""),
        (b"\0\0\1\0\1\0" + bytes(20), "image/x-icon", ""),
        (b"alert(1)", "text/javascript", ""),
    ],
)
async def test_a_browser_shows_only_what_cannot_run(
    served: Served, data: bytes, said: str, media: str
) -> None:
    async with served.http() as client:
        made = await client.post("/api/files", content=data, headers={"content-type": said})
        response = await client.get(f"/api/contents/{made.json()['hash']}")
    assert response.content == data
    assert response.headers["content-type"] == (media or "application/octet-stream")
    assert response.headers["content-disposition"] == ("inline" if media else "attachment")
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["content-security-policy"] == "sandbox"
    assert response.headers["cross-origin-resource-policy"] == "same-origin"
    assert response.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("wanted", "status", "part", "shown"),
    [
        ("bytes=0-3", 206, slice(0, 4), "bytes 0-3/{size}"),
        ("bytes=4-", 206, slice(4, None), "bytes 4-{last}/{size}"),
        ("bytes=-4", 206, slice(-4, None), "bytes {fourth}-{last}/{size}"),
        ("bytes=-99999", 206, slice(None), "bytes 0-{last}/{size}"),
        ("bytes=0-99999", 206, slice(None), "bytes 0-{last}/{size}"),
        ("bytes=99999-", 416, slice(0), "bytes */{size}"),
        ("bytes=-0", 416, slice(0), "bytes */{size}"),
        # Not understood, so ignored.
        ("bytes=0-1,4-5", 200, slice(None), None),
        ("bytes=3-1", 200, slice(None), None),
        ("bytes=-", 200, slice(None), None),
        ("lines=0-3", 200, slice(None), None),
        ("bytes=" + "9" * 30 + "-", 200, slice(None), None),
    ],
)
async def test_a_player_gets_a_part(
    served: Served, wanted: str, status: int, part: slice, shown: str | None
) -> None:
    size = len(DATA)
    async with served.http() as client:
        await client.post("/api/files", content=DATA)
        response = await client.get(f"/api/contents/{DIGEST}", headers={"range": wanted})
    assert response.status_code == status
    places = {"size": size, "last": size - 1, "fourth": size - 4}
    assert response.headers.get("content-range") == (shown and shown.format(**places))
    if status != 416:
        assert response.content == DATA[part]
        assert response.headers["accept-ranges"] == "bytes"
