"""Requests of clients, from public reports: our server does what the client wants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.raw_server import Peer, RawServer
from tests.field.cases import ClientCase, load_client_cases
from tests.field.test_servers import MODULES
from tests.field.upstream import SSE, bodies_of, plain, plain_whole, respond
from tests.server.conftest import serving

CASES = load_client_cases()


@pytest.mark.parametrize("case", [case for _, case in CASES], ids=[name for name, _ in CASES])
async def test_a_client_gets_what_it_asked_for(case: ClientCase, home: Path) -> None:
    streamed = respond(200, SSE, case.reply.encode() or plain("chat"))
    whole = respond(200, "application/json", plain_whole())

    async def answer(peer: Peer) -> None:
        asked = json.loads(upstream.requests[-1].partition(b"\r\n\r\n")[2])
        await (streamed if asked.get("stream") or case.reply else whole)(peer)

    expect, differences = case.expect, []
    async with RawServer(answer) as upstream:
        row: dict[str, Any] = {
            "module": MODULES["chat"],
            "base-url": f"{upstream.url}/v1",
            "credential": "none",
        }
        row |= {"known-models": ["m"], **case.row}
        async with serving(home, providers={"ok": row}) as served, served.http() as client:
            headers = {"content-type": "application/json", **case.headers}
            if case.post == "/v1/messages":
                headers = {"anthropic-version": "2023-06-01", **headers}
            identity = ""
            for payload in case.before:
                body = payload.replace("{id}", identity)
                before = await client.post(case.post, content=body, headers=headers)
                if before.headers["content-type"].startswith("application/json"):
                    identity = str(before.json().get("id"))
            sent = len(bodies_of(upstream))
            body = case.payload.replace("{id}", identity)
            reply = await client.post(case.post, content=body, headers=headers)
        asked = json.dumps(bodies_of(upstream)[sent:], ensure_ascii=False)
    if reply.status_code != expect.status:
        differences.append(f"status {reply.status_code}, expected {expect.status}: {reply.text}")
    named = "\n".join(f"{name}: {value}" for name, value in reply.headers.items())
    for where, text, wanted in (
        ("the reply", reply.text, expect.has),
        ("the headers", named, expect.headers_have),
        ("what the model was sent", asked, expect.upstream_has),
    ):
        differences += [f"{where} lacks {one!r}: {text}" for one in wanted if one not in text]
    for where, text, unwanted in (
        ("the reply", reply.text, expect.lacks),
        ("what the model was sent", asked, expect.upstream_lacks),
    ):
        differences += [f"{where} has {one!r}: {text}" for one in unwanted if one in text]
    assert differences == []
