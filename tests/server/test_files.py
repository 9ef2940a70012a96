"""Files that were uploaded once, in messages of all dialects."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.fakes.raw_server import Peer, RawServer
from tests.field.upstream import SSE, bodies_of, plain, plain_whole, respond
from tests.pictures import make_png
from tests.server.conftest import Served, serving
from vibe_llms.messages.contents import Reference

PNG = make_png()
PICTURE = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
#: The data of a file of text, as the model's server gets it.
NOTE = "# Herons wade."
MODEL = "row/m"


@asynccontextmanager
async def relaying(home: Path, **settings: Any) -> AsyncIterator[tuple[Served, RawServer]]:
    """A server whose model is another server, which notes what it is sent."""
    streamed = respond(200, SSE, plain("chat"))
    whole = respond(200, "application/json", plain_whole())

    async def reply(peer: Peer) -> None:
        asked = json.loads(upstream.requests[-1].partition(b"\r\n\r\n")[2])
        await (streamed if asked.get("stream") else whole)(peer)

    async with RawServer(reply) as upstream:
        row = {
            "module": "vibe_llms.providers.openai.chat_completions",
            "base-url": f"{upstream.url}/v1",
            "credential": "none",
            "known-models": ["m", "blind"],
            "models": {"m": {"accepts": ["image", "image/png"]}},
        }
        async with serving(home, providers={"row": row}, server=settings) as served:
            yield served, upstream


def say_file(reference: str) -> Any:
    return [{"role": "user", "content": [{"type": "file", "file": {"file_id": reference}}]}]


def input_file(reference: str, kind: str = "input_file") -> Any:
    part = {"type": kind, "file_id": reference}
    return [{"role": "user", "content": [{"type": "input_text", "text": "Look."}, part]}]


def source_of(reference: str, kind: str = "document") -> Any:
    block = {"type": kind, "source": {"type": "file", "file_id": reference}}
    return [{"role": "user", "content": [{"type": "text", "text": "Look."}, block]}]


async def test_openais_client_uploads_once_and_uses_a_file_everywhere(home: Path) -> None:
    async with (
        relaying(home) as (served, upstream),
        served.openai() as client,
        served.http() as http,
    ):
        sky = await client.files.create(file=("sky.png", PNG), purpose="vision")
        note = await client.files.create(file=("note.md", NOTE.encode()), purpose="user_data")
        await client.chat.completions.create(model=MODEL, messages=say_file(sky.id))
        await client.chat.completions.create(model=MODEL, messages=say_file(note.id))
        first = await client.responses.create(model=MODEL, input=input_file(sky.id, "input_image"))
        await client.responses.create(model=MODEL, input=input_file(note.id))
        await client.files.delete(sky.id)
        # The response keeps what it was sent.
        await client.responses.create(model=MODEL, input="Why?", previous_response_id=first.id)
        listed = (await http.get(f"/v1/responses/{first.id}/input_items")).json()
        sent = [json.dumps(body["messages"]) for body in bodies_of(upstream)]
        contents = {path.name for path in (home / "content").rglob("*") if path.is_file()}
    assert [PICTURE in one for one in sent] == [True, False, True, False, True]
    assert [NOTE in one for one in sent] == [False, True, False, True, False]
    assert "Why?" in sent[-1]
    assert listed["data"][0]["content"][1]["file_id"] == sky.id
    assert len([name for name in contents if Reference.from_bytes(PNG).hash in name]) <= 1


async def test_anthropics_client_uploads_once_and_uses_a_file(home: Path) -> None:
    async with relaying(home) as (served, upstream), served.anthropic() as client:
        sky = await client.beta.files.upload(file=("sky.png", PNG, "image/png"))
        # The Ruby client sends this type: anthropics/anthropic-sdk-ruby#128.
        note = await client.beta.files.upload(
            file=("note.md", NOTE.encode(), "application/octet-stream")
        )
        for said in (source_of(sky.id, "image"), source_of(note.id), source_of(sky.id)):
            await client.beta.messages.create(model=MODEL, max_tokens=9, messages=said)
        counted = await client.beta.messages.count_tokens(model=MODEL, messages=source_of(note.id))
        said = source_of(note.id, "image")
        with pytest.raises(anthropic.BadRequestError, match="is not an image, but text/markdown"):
            await client.beta.messages.create(model=MODEL, max_tokens=9, messages=said)
        sent = [json.dumps(body["messages"]) for body in bodies_of(upstream)]
    assert [PICTURE in one for one in sent] == [True, False, True]
    assert [NOTE in one for one in sent] == [False, True, False]
    assert counted.input_tokens > 0


async def test_a_file_of_one_dialect_is_used_in_another(home: Path) -> None:
    async with (
        relaying(home) as (served, upstream),
        served.openai() as client,
        served.anthropic() as other,
        served.http() as http,
    ):
        ours = (await http.post("/api/files?name=note.md", content=NOTE.encode())).json()["id"]
        sky = await other.beta.files.upload(file=("sky.png", PNG, "image/png"))
        bucket = (await http.get("/v1/bucket")).json()["bucket"]
        form = {"file": ("x", PNG)}
        put = (await http.put(f"/v1/files/{bucket}/my sky.png", files=form)).json()
        for reference in (ours, f"file-{ours}", sky.id, put["url"]):
            await client.chat.completions.create(model=MODEL, messages=say_file(reference))
        names = [one.filename async for one in client.files.list()]
        sent = [json.dumps(body["messages"]) for body in bodies_of(upstream)]
    assert [PICTURE in one for one in sent] == [False, False, True, True]
    assert [NOTE in one for one in sent] == [True, True, False, False]
    assert names == ["my sky.png", "sky.png", "note.md"]


async def test_another_users_file_is_not_found_in_any_dialect(home: Path) -> None:
    async with (
        relaying(home) as (served, upstream),
        served.openai() as client,
        served.openai("eve") as eve,
        served.anthropic("eve") as other,
    ):
        sky = await client.files.create(file=("sky.png", PNG), purpose="vision")
        for reference in (sky.id, "file-unknown"):
            with pytest.raises(openai.NotFoundError, match=reference) as chat:
                await eve.chat.completions.create(model=MODEL, messages=say_file(reference))
            with pytest.raises(openai.NotFoundError, match=reference) as response:
                await eve.responses.create(model=MODEL, input=input_file(reference))
            with pytest.raises(openai.NotFoundError, match=reference):
                await eve.responses.create(
                    model=MODEL, input=input_file(reference, "input_image"), store=False
                )
            with pytest.raises(openai.NotFoundError, match=reference):
                await eve.responses.input_tokens.count(model=MODEL, input=input_file(reference))
            with pytest.raises(anthropic.NotFoundError, match=reference) as message:
                await other.messages.create(
                    model=MODEL, max_tokens=9, messages=source_of(reference)
                )
            assert (chat.value.code, chat.value.param) == ("file_not_found", "messages[0].content")
            assert (response.value.code, response.value.param) == (
                *("file_not_found", "input[0].content"),
            )
            assert message.value.type == "not_found_error"
        assert bodies_of(upstream) == []


async def test_a_deleted_file_in_the_history_becomes_words(home: Path) -> None:
    async with relaying(home) as (served, upstream), served.openai() as client:
        sky = await client.files.create(file=("sky.png", PNG), purpose="vision")
        await client.files.delete(sky.id)
        said = [
            *say_file(sky.id),
            *({"role": "assistant", "content": "Blue."}, {"role": "user", "content": "Why?"}),
        ]
        reply = await client.chat.completions.with_raw_response.create(model=MODEL, messages=said)
        (sent,) = bodies_of(upstream)
    assert reply.headers["x-left-out"] == f"file {sky.id}"
    assert f"file '{sky.id}' not found" in json.dumps(sent)


async def test_a_file_that_the_model_cannot_take_is_refused(home: Path) -> None:
    async with relaying(home) as (served, upstream), served.openai() as client:
        made = await client.files.create(file=("a.bin", b"\0\xff" * 9), purpose="user_data")
        with pytest.raises(openai.BadRequestError, match=r"a\.bin: it is of an unknown format"):
            await client.chat.completions.create(model=MODEL, messages=say_file(made.id))
        sky = await client.files.create(file=("sky.png", PNG), purpose="vision")
        with pytest.raises(openai.BadRequestError, match="does not accept an image"):
            await client.chat.completions.create(model="row/blind", messages=say_file(sky.id))
        torn = await client.files.create(file=("torn.png", PNG[:40]), purpose="vision")
        with pytest.raises(openai.BadRequestError, match=torn.id):
            await client.chat.completions.create(model=MODEL, messages=say_file(torn.id))
        assert bodies_of(upstream) == []


async def test_files_count_as_bytes_of_the_request(home: Path) -> None:
    async with relaying(home, **{"body-bytes": 3000}) as (served, upstream):
        async with served.openai() as client:
            made = [
                await client.files.create(file=("a.txt", text * 2000), purpose="user_data")
                for text in (b"a", b"a", b"b")
            ]
            parts = [{"type": "file", "file": {"file_id": one.id}} for one in made]
            same: Any = [{"role": "user", "content": parts[:2]}]
            await client.chat.completions.create(model=MODEL, messages=same)
            other: Any = [{"role": "user", "content": parts}]
            with pytest.raises(openai.APIStatusError, match="body-bytes") as refused:
                await client.chat.completions.create(model=MODEL, messages=other)
        assert len(bodies_of(upstream)) == 1
    assert refused.value.status_code == 413


async def test_a_file_whose_bytes_are_gone_is_not_found_and_logged(home: Path) -> None:
    async with relaying(home) as (served, _), served.openai() as client:
        sky = await client.files.create(file=("sky.png", PNG), purpose="vision")
        for path in (home / "content").rglob("*"):
            if path.is_file():
                path.unlink()
        served.log.clear()
        with pytest.raises(openai.NotFoundError, match=sky.id):
            await client.files.content(sky.id)
        with pytest.raises(openai.NotFoundError, match=sky.id):
            await client.chat.completions.create(model=MODEL, messages=say_file(sky.id))
    assert len([line for line in served.log if "content of a file is missing" in line]) == 2
