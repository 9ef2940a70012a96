"""Conversations over HTTP as files."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

import pytest
from click.testing import CliRunner

from tests.server.conftest import Served
from vibe_llms.cli.commands import command

ATTACK = "</title><script>alert(1)</script>"


@pytest.mark.parametrize(
    ("form", "media"),
    [
        ("md", "text/markdown; charset=utf-8"),
        ("html", "text/html; charset=utf-8"),
        ("json", "application/json"),
    ],
)
async def test_a_file_is_that_of_the_command(served: Served, form: str, media: str) -> None:
    async with served.session() as session:
        conversation = await session.begin("scripted/demo", name=f"Übung {ATTACK}")
        await conversation.converse(f"{ATTACK} " * 300)
        identity = conversation.identity
    async with served.http() as http:
        url = f"/api/conversations/{identity}/export"
        reply = await http.get(url, params={"form": form})
    arguments = ["export", identity, "--format", form]
    printed = await asyncio.to_thread(CliRunner().invoke, command, arguments)
    assert printed.exit_code == 0, printed.stderr
    assert reply.text == printed.stdout
    assert reply.headers["content-type"] == media
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["content-security-policy"] == "sandbox"
    named = quote(f"Übung {ATTACK}.{form}", safe="")
    wanted = f"attachment; filename=\"{identity}.{form}\"; filename*=UTF-8''{named}"
    assert reply.headers["content-disposition"] == wanted
    assert form == "json" or "<script" not in reply.text


async def test_a_wrong_form_is_refused(served: Served) -> None:
    async with served.http() as http:
        run = (await http.post("/api/runs", json={"prompt": "x", "model": "scripted/demo"})).json()
        await http.get(f"/api/runs/{run['id']}/events")
        url = f"/api/conversations/{run['conversation']}/export"
        wrong = await http.get(url, params={"form": "exe"})
        plain = await http.get(url)
        unknown = await http.get("/api/conversations/unknown/export")
    assert (wrong.status_code, unknown.status_code) == (400, 404)
    assert plain.text.startswith("# x\n")
