"""Which runs are responses, and which responses a request may continue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.server.conftest import Served
from tests.server.test_responses import TEXT
from tests.server.test_responses import scripted as scripted
from vibe_llms.messages.contents import text_of
from vibe_llms.providers.scripted.client import ScriptedModel
from vibe_llms.server.responses_replies import PREFIX


async def test_what_is_not_stored_is_still_given_the_history_that_it_continues(
    scripted: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[list[str]] = []
    converse = ScriptedModel.converse

    async def watch(self: ScriptedModel, canisters: Sequence[Any], *others: Any) -> Any:
        given.append([text_of(one.contents) for one in canisters])
        return await converse(self, canisters, *others)

    monkeypatch.setattr(ScriptedModel, "converse", watch)
    async with scripted.http() as http:
        body: dict[str, Any] = {"model": "scripted/talk", "input": "One?"}
        first = (await http.post("/v1/responses", json=body)).json()
        going = {**body, "input": "Two?", "previous_response_id": first["id"], "store": False}
        for more in ({}, {"stream": True}):
            answer = await http.post("/v1/responses", json={**going, **more})
            assert answer.status_code == 200
            assert given[-1] == ["One?", TEXT, "Two?"]
        # None of it was added to what is stored.
        await http.post("/v1/responses", json={**going, "input": "Three?", "store": True})
        assert given[-1] == ["One?", TEXT, "Three?"]


async def test_a_run_that_is_no_response_is_not_found_as_one(scripted: Served) -> None:
    async with scripted.session() as session:
        conversation = await session.begin("scripted/talk")
        run = await session.start(conversation, "Go on.")
        await run.result()
    identity = PREFIX + run.identity
    async with scripted.http() as http:
        body: dict[str, Any] = {"model": "scripted/talk", "input": "One?"}
        own = (await http.post("/v1/responses", json=body)).json()["id"]
        for one in (identity, own[:-4], own.removeprefix(PREFIX)):
            for method, path in (
                ("GET", ""),
                ("GET", "/input_items"),
                ("POST", "/cancel"),
                ("DELETE", ""),
            ):
                answer = await http.request(method, f"/v1/responses/{one}{path}")
                assert answer.status_code == 404, (one, method, path)
                assert answer.json()["error"]["code"] == "response_not_found"
            going = {**body, "previous_response_id": one}
            answer = await http.post("/v1/responses", json=going)
            assert (answer.status_code, answer.json()["error"]["param"]) == (
                404,
                "previous_response_id",
            )
        assert (await http.get(f"/v1/responses/{own}")).status_code == 200


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["three", "two", "one"]),
        ("order=asc", ["one", "two", "three"]),
        ("order=asc&limit=3", ["one", "two", "three"]),
        ("limit=2", ["three", "two"]),
    ],
)
async def test_the_input_is_listed_page_by_page(
    scripted: Served, query: str, expected: list[str]
) -> None:
    said = [{"role": "user", "content": one} for one in ("one", "two", "three")]
    async with scripted.http() as http:
        body = {"model": "scripted/talk", "input": said}
        url = f"/v1/responses/{(await http.post('/v1/responses', json=body)).json()['id']}"
        page = (await http.get(f"{url}/input_items?{query}")).json()
        assert [read(item) for item in page["data"]] == expected
        assert page["has_more"] is (len(expected) < 3)
        assert (page["first_id"], page["last_id"]) == (
            page["data"][0]["id"],
            page["data"][-1]["id"],
        )
        rest = (await http.get(f"{url}/input_items?{query}&after={page['first_id']}")).json()
        assert [read(item) for item in rest["data"]][: len(expected) - 1] == expected[1:]
        unknown = await http.get(f"{url}/input_items?after=none")
        assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "after")
        kept = (await http.get(url)).json()
        assert kept["completed_at"] >= kept["created_at"]


def read(item: dict[str, Any]) -> str:
    content = item["content"]
    return str(content if isinstance(content, str) else content[0]["text"])
