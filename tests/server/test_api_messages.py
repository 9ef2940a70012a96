"""Messages of a conversation over HTTP, in pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Served

#: Messages of the conversation: an opening and nine answered prompts.
TOTAL = 20


async def converse(served: Served) -> str:
    """The identity of a conversation with `TOTAL` messages."""
    async with served.session() as session:
        conversation = await session.begin("scripted/demo", name="Herons", tags=["birds"])
        for number in range(TOTAL // 2):
            await conversation.converse(f"Number {number}")
        return conversation.identity


@pytest.mark.parametrize(
    ("query", "start", "stop"),
    [
        ({}, 0, 20),
        ({"limit": 3}, 17, 20),
        ({"limit": 3, "before": 17}, 14, 17),
        ({"limit": 5, "before": 2}, 0, 2),
        ({"before": 0}, 0, 0),
        ({"limit": 3, "after": 4}, 5, 8),
        ({"limit": 3, "after": 18}, 19, 20),
        ({"after": 19}, 20, 20),
        ({"limit": 4, "around": 10}, 9, 13),
        ({"limit": 1, "around": 10}, 10, 11),
        ({"limit": 4, "around": 0}, 0, 4),
        ({"limit": 4, "around": 19}, 16, 20),
        ({"limit": 30, "around": 3}, 0, 20),
        ({"limit": 3, "start": 0}, 0, 3),
        ({"limit": 3, "start": 18}, 18, 20),
        ({"start": 30}, 20, 20),
    ],
)
async def test_a_page_has_the_messages_next_to_another(
    served: Served, query: dict[str, int], start: int, stop: int
) -> None:
    identity = await converse(served)
    async with served.http() as http:
        whole = (await http.get(f"/api/conversations/{identity}")).json()
        stored = whole.pop("messages")
        filled: dict[str, Any] = {
            name: value if name in ("limit", "start") else stored[value]["identity"]
            for name, value in query.items()
        }
        reply = await http.get(f"/api/conversations/{identity}/messages", params=filled)
    assert len(stored) == TOTAL
    page = reply.json()
    assert page["messages"] == stored[start:stop]
    assert (page["start"], page["total"], page["has_more"]) == (start, TOTAL, start > 0)
    assert {name: page[name] for name in whole} == whole


async def test_pages_read_backwards_have_every_message_once(served: Served) -> None:
    identity = await converse(served)
    url = f"/api/conversations/{identity}/messages"
    async with served.http() as http:
        whole = (await http.get(f"/api/conversations/{identity}")).json()["messages"]
        page = (await http.get(url, params={"limit": 6})).json()
        read = page["messages"]
        while page["has_more"]:
            query = {"limit": 6, "before": read[0]["identity"]}
            page = (await http.get(url, params=query)).json()
            read = page["messages"] + read
    assert read == whole


async def test_a_damaged_line_is_told_and_the_rest_shown(served: Served, home: Path) -> None:
    identity = await converse(served)
    (file,) = home.glob(f"**/conversations/{identity}/messages.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:4], b"{ damaged\n", *lines[4:]]))
    async with served.http() as http:
        page = (await http.get(f"/api/conversations/{identity}/messages?limit=2")).json()
    assert [gap["line"] for gap in page["gaps"]] == [5]
    assert (page["total"], len(page["messages"])) == (TOTAL, 2)


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        ({"before": "unknown"}, 404, "before"),
        ({"around": "unknown"}, 404, "around"),
        ({"limit": "0"}, 400, "limit"),
        ({"before": "x", "after": "y"}, 400, "after"),
        ({"before": "x", "start": "1"}, 400, "start"),
        ({"start": "-1"}, 400, "start"),
    ],
)
async def test_a_wrong_page_is_refused(
    served: Served, query: dict[str, str], status: int, param: str
) -> None:
    identity = await converse(served)
    async with served.http() as http:
        url = f"/api/conversations/{identity}/messages"
        reply = await http.get(url, params=query)
        unknown = await http.get("/api/conversations/unknown/messages")
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param)
    assert unknown.status_code == 404
