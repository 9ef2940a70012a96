"""Files in the formats of OpenAI and Anthropic, over the files of `/api/files`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.pictures import make_png
from tests.server.conftest import Served, serving
from vibe_llms.server import files

PNG = make_png()


async def test_openais_client_uploads_lists_reads_and_deletes(served: Served) -> None:
    async with served.openai() as client:
        sky = await client.files.create(file=("a/sky.png", PNG), purpose="vision")
        again = await client.files.create(file=("sky.png", PNG), purpose="user_data")
        note = await client.files.create(
            file=("note.md", b"# Herons"),
            purpose="user_data",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )
        listed = await client.files.list(limit=2, order="asc")
        rest = [one async for one in client.files.list(limit=1, after=sky.id, order="asc")]
        newest = (await client.files.list()).data
        pictures = (await client.files.list(purpose="vision")).data
        shown = await client.files.retrieve(note.id)
        content = await client.files.content(sky.id)
        deleted = await client.files.delete(sky.id)
        with pytest.raises(openai.NotFoundError, match=sky.id):
            await client.files.retrieve(sky.id)
        kept = await client.files.content(again.id)
    assert (sky.object, sky.bytes, sky.filename, sky.purpose, sky.status, sky.expires_at) == (
        *("file", len(PNG), "sky.png", "vision", "processed"),
        None,
    )
    assert abs(sky.created_at - datetime.now(UTC).timestamp()) < 60
    assert note.expires_at == note.created_at + 3600
    assert sky.id.startswith("file-")
    assert ([one.id for one in listed.data], listed.has_more) == ([sky.id, again.id], True)
    assert [one.id for one in rest] == [again.id, note.id]
    assert [one.id for one in newest] == [note.id, again.id, sky.id]
    assert [one.id for one in pictures] == [sky.id]
    assert shown == note
    assert (content.content, kept.content) == (PNG, PNG)
    assert (deleted.id, deleted.deleted, deleted.object) == (sky.id, True, "file")


async def test_anthropics_client_uploads_lists_reads_and_deletes(served: Served) -> None:
    async with served.anthropic() as client:
        beta = client.beta.files
        made = [
            await beta.upload(file=(f"{name}.txt", name.encode(), "text/plain")) for name in "abc"
        ]
        short = await beta.upload(file=("d.txt", b"d"), extra_body={"expires_in_seconds": 3600})
        shown = await beta.retrieve_metadata(made[0].id)
        every = [one.id async for one in beta.list(limit=2)]
        some = [one.id async for one in beta.list(ids=[made[0].id, made[2].id, "file-0"])]
        content = await beta.download(made[0].id)
        deleted = await beta.delete(short.id)
        with pytest.raises(anthropic.NotFoundError, match=short.id):
            await beta.retrieve_metadata(short.id)
    ids = [one.id for one in made]
    assert (shown, shown.type, shown.filename, shown.mime_type, shown.size_bytes) == (
        *(made[0], "file", "a.txt", "text/plain"),
        1,
    )
    assert shown.downloadable
    assert short.expires_at == short.created_at + timedelta(hours=1) or (
        short.expires_at is not None
        and abs(short.expires_at - short.created_at - timedelta(hours=1)) < timedelta(seconds=5)
    )
    assert every == [short.id, *reversed(ids)]
    assert some == [ids[2], ids[0]]
    assert await content.read() == b"a"
    assert (deleted.id, deleted.type) == (short.id, "file_deleted")


async def test_pages_of_anthropics_older_clients(served: Served) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    async with served.http() as client:
        for name in "abc":
            await client.post("/v1/files", files={"file": (name, name.encode())}, headers=headers)

        async def take(**query: Any) -> Any:
            return (await client.get("/v1/files", params=query, headers=headers)).json()

        first = await take(limit=2)
        after = await take(limit=2, after_id=first["last_id"])
        before = await take(limit=2, before_id=after["first_id"])
        unknown = await client.get("/v1/files", params={"after_id": "x"}, headers=headers)
    assert [one["filename"] for one in first["data"]] == ["c", "b"]
    assert (first["has_more"], after["has_more"]) == (True, False)
    assert [one["filename"] for one in after["data"]] == ["a"]
    assert before == {**first, "has_more": False, "next_page": None}
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")


async def test_both_faces_show_the_same_files(served: Served) -> None:
    async with served.openai() as client, served.http() as http:
        sky = await client.files.create(file=("sky.png", PNG), purpose="vision")
        other = (await http.post("/api/files?name=sea.png", content=PNG)).json()
        (first, second) = (await http.get("/api/files")).json()["files"]
        shown = await client.files.retrieve(other["id"])
        content = await http.get(f"/api/contents/{second['hash']}")
        assert (await http.delete(f"/api/files/{second['id']}")).status_code == 200
        left = (await client.files.list()).data
    assert (first["id"], first["hash"]) == (other["id"], other["id"])
    assert second == {
        "id": sky.id.removeprefix("file-"),
        "name": "sky.png",
        "mimetype": "image/png",
        "size": len(PNG),
        "created": second["created"],
        "hash": other["hash"],
        "purpose": "vision",
        "expires": None,
    }
    assert (shown.filename, shown.purpose, content.content) == ("sea.png", "user_data", PNG)
    assert [one.id for one in left] == [f"file-{other['id']}"]


async def test_an_expired_file_is_gone(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served.openai() as client:
        made = [
            await client.files.create(
                file=("a.txt", b"a"),
                purpose="user_data",
                expires_after={"anchor": "created_at", "seconds": 3600},
            )
            for _ in range(2)
        ]
        monkeypatch.setattr(files, "datetime", _InTwoHours)
        with pytest.raises(openai.NotFoundError, match=made[0].id):
            await client.files.retrieve(made[0].id)
        assert (await client.files.list()).data == []
    async with served.session() as session:
        assert await session.archive.survey_files() == []


class _InTwoHours(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime.now(tz) + timedelta(hours=2)


@pytest.mark.parametrize(
    ("form", "status", "param", "words"),
    [
        ({"purpose": (None, "vision")}, 400, "file", "no part file"),
        ({"file": ("a", b"a")}, 400, "purpose", "assistants, batch"),
        ({"file": ("a", b"a"), "purpose": (None, "fun")}, 400, "purpose", "'fun'"),
        ({"file": ("a", b""), "purpose": (None, "vision")}, 400, "file", "empty"),
        ({"file": ("a" * 256, b"a"), "purpose": (None, "vision")}, 400, "file", "255"),
        ({"file": ("a", bytes(2000)), "purpose": (None, "vision")}, 413, None, "2,000 bytes"),
        (
            {
                "file": ("a", b"a"),
                "purpose": (None, "vision"),
                "expires_after[seconds]": (None, "3600"),
            },
            *(400, "expires_after", "anchor"),
        ),
        (
            {
                "file": ("a", b"a"),
                "purpose": (None, "vision"),
                "expires_after[seconds]": (None, "1"),
                "expires_after[anchor]": (None, "created_at"),
            },
            *(400, "expires_after[seconds]", "3600"),
        ),
    ],
)
async def test_a_wrong_upload_is_refused(
    home: Path, form: Any, status: int, param: str | None, words: str
) -> None:
    async with serving(home, server={"body-bytes": 2000}) as served, served.http() as client:
        refused = await client.post("/v1/files", files=form)
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (status, param)
        assert words in error["message"]
        assert error["type"] == "invalid_request_error"
        assert (await client.get("/v1/files")).json()["data"] == []


async def test_an_expiry_in_another_form_is_refused(served: Served) -> None:
    """See https://github.com/vercel/ai/issues/18223: the file would be kept forever."""
    form: dict[str, tuple[str | None, str]] = {
        "file": ("a", "a"),
        "purpose": (None, "user_data"),
        "expires_after": (None, "604800"),
    }
    async with served.http() as client:
        refused = await client.post("/v1/files", files=form)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "expires_after")


async def test_errors_of_uploads_are_in_anthropics_format(home: Path) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    async with serving(home, server={"user-files": 1}) as served, served.http() as client:
        plain = await client.post("/v1/files", content=b"a", headers=headers)
        first = await client.post("/v1/files", files={"file": ("a", b"a")}, headers=headers)
        second = await client.post("/v1/files", files={"file": ("b", b"b")}, headers=headers)
        other = await client.post("/api/files", content=b"b")
    assert (plain.status_code, plain.json()["type"]) == (415, "error")
    assert "multipart/form-data" in plain.json()["error"]["message"]
    assert first.status_code == 200
    assert (second.status_code, second.json()["error"]["type"]) == (409, "conflict_error")
    assert "user-files" in second.json()["error"]["message"]
    assert other.status_code == 409


async def test_another_user_has_no_such_file(served: Served) -> None:
    async with served.openai() as client, served.openai("eve") as eve, served.http("eve") as http:
        made = await client.files.create(file=("sky.png", PNG), purpose="vision")
        for attempt in (
            *(eve.files.retrieve(made.id), eve.files.content(made.id), eve.files.delete(made.id)),
            eve.files.list(after=made.id),
        ):
            with pytest.raises(openai.NotFoundError, match=made.id):
                await attempt
        assert (await eve.files.list()).data == []
        bare = made.id.removeprefix("file-")
        assert (await http.get(f"/api/files/{bare}")).status_code == 404
        assert (await client.files.retrieve(made.id)) == made
