"""DIAL's storage, with the requests of aidial-client 0.18.0."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.field.upstream import bodies_of
from tests.pictures import make_png
from tests.server.conftest import Served, serving
from tests.server.test_files import MODEL, NOTE, PICTURE, relaying

PNG = make_png()
PATH = f"/openai/deployments/{MODEL}/chat/completions"


def attach(*urls: str) -> Any:
    attachments = [{"type": "image/png", "title": "sky", "url": url} for url in urls]
    custom = {"attachments": attachments}
    return {"messages": [{"role": "user", "content": "Look.", "custom_content": custom}]}


async def test_a_file_is_put_read_replaced_and_deleted(served: Served) -> None:
    async with served.http() as client:
        bucket = (await client.get("/v1/bucket")).json()["bucket"]
        url = f"/v1/files/{bucket}/trips/my%20sky.png"
        put = await client.put(url, files={"file": ("x.png", PNG, "image/png")})
        read = await client.get(url)
        etag = {"if-match": put.json()["etag"]}
        once = await client.put(url, files={"file": ("x", b"a")}, headers={"if-none-match": "*"})
        wrong = await client.delete(url, headers={"if-match": "0"})
        replaced = await client.post(url, files={"file": ("x", NOTE.encode())}, headers=etag)
        late = await client.get(url, headers=etag)
        same = await client.put(f"/v1/files/{bucket}/b", files={"file": ("x", NOTE.encode())})
        deleted = await client.delete(url)
        gone = [(await client.get(url)).status_code, (await client.delete(url)).status_code]
        kept = await client.get(f"/v1/files/{bucket}/b")
    assert put.json() == {
        "name": "my sky.png",
        "parentPath": "trips",
        "bucket": bucket,
        "url": f"files/{bucket}/trips/my%20sky.png",
        "createdAt": put.json()["createdAt"],
        "updatedAt": put.json()["updatedAt"],
        "etag": hashlib.sha256(PNG).hexdigest(),
        "contentLength": len(PNG),
        "contentType": "image/png",
        "nodeType": "ITEM",
        "resourceType": "FILE",
    }
    assert (read.content, read.headers["etag"]) == (PNG, put.json()["etag"])
    assert read.headers["content-disposition"] == "attachment"
    assert [one.status_code for one in (once, wrong, late)] == [412, 412, 412]
    assert "ETag" in once.json()["error"]["message"]
    assert replaced.json()["etag"] == same.json()["etag"] != put.json()["etag"]
    assert (same.json()["name"], same.json()["parentPath"]) == ("b", None)
    assert (deleted.status_code, gone, kept.text) == (200, [404, 404], NOTE)


async def test_an_attachment_is_the_file_with_its_url(home: Path) -> None:
    async with relaying(home) as (served, upstream), served.http() as client:
        bucket = (await client.get("/v1/bucket")).json()["bucket"]
        url = f"/v1/files/{bucket}/my%20sky.png"
        put = await client.put(url, files={"file": ("sky.png", PNG)})
        said = attach(put.json()["url"])
        reply = await client.post(PATH, json=said)
        assert reply.status_code == 200, reply.text
        message = reply.json()["choices"][0]["message"]
        await client.delete(url)
        missing = await client.post(PATH, json=said)
        more = [*said["messages"], message, {"role": "user", "content": "Why?"}]
        later = await client.post(PATH, json={"messages": more})
        assert (missing.status_code, later.status_code) == (404, 200), later.text
        first, second = [json.dumps(body["messages"]) for body in bodies_of(upstream)]
    assert PICTURE in first
    assert missing.json()["error"]["code"] == "file_not_found"
    assert put.json()["url"] in missing.json()["error"]["message"]
    assert "cannot be read" in second
    assert "state" in message["custom_content"]
    assert "state messages" in later.headers["x-left-out"]


async def test_a_bucket_is_of_one_user(home: Path) -> None:
    async with (
        relaying(home) as (served, upstream),
        served.http() as client,
        served.http("eve") as eve,
    ):
        bucket = (await client.get("/v1/bucket")).json()["bucket"]
        url = f"/v1/files/{bucket}/sky.png"
        form = {"file": ("sky.png", PNG)}
        put = (await client.put(url, files=form)).json()
        other = (await eve.get("/v1/bucket")).json()["bucket"]
        answers = [
            *(await eve.get(url), await eve.delete(url), await eve.put(url, files=form)),
            *(await eve.post(url, files=form), await eve.get(f"/v1/files/{other}/sky.png")),
            await eve.post(PATH, json=attach(put["url"])),
        ]
        assert bodies_of(upstream) == []
        assert (await client.get(url)).content == PNG
    assert bucket != other
    assert [one.status_code for one in answers] == [404] * 6


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [("folder/", 400, "name at its end"), ("a" * 256, 400, "255"), ("", 404, "not found")],
)
async def test_a_wrong_path_is_refused(served: Served, path: str, status: int, words: str) -> None:
    async with served.http() as client:
        bucket = (await client.get("/v1/bucket")).json()["bucket"]
        refused = await client.put(f"/v1/files/{bucket}/{path}", files={"file": ("x", b"a")})
        bare = await client.put(f"/v1/files/{bucket}/a", content=b"a")
    assert (refused.status_code, bare.status_code) == (status, 415)
    assert words in refused.json()["error"]["message"]


async def test_a_replaced_file_does_not_count_twice(home: Path) -> None:
    async with serving(home, server={"user-files": 1}) as served, served.http() as client:
        bucket = (await client.get("/v1/bucket")).json()["bucket"]
        made = [
            await client.put(f"/v1/files/{bucket}/{name}", files={"file": ("x", data)})
            for name, data in (("a", b"a"), ("a", b"b"), ("c", b"c"))
        ]
    assert [one.status_code for one in made] == [200, 200, 409]
