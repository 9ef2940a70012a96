"""No identifier of one user means anything to another, at any endpoint."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from msgspec import Struct

from tests.server.conftest import serving
from tests.server.test_api_imports import bring, export, talk
from tests.server.test_api_runs import SCRIPT, wait_for
from vibe_llms.runs import sqlite
from vibe_llms.server import import_records, spaces
from vibe_llms.server.endpoints import ENDPOINTS
from vibe_llms.server.operations import UserEndpoint

#: In everything that the victim has, and in nothing else.
MARK = "heronry"
#: Where an identifier of the victim goes, besides the path.
ID = "IDENTIFIER"


class Case(Struct, frozen=True):
    """A request: where it has no place for an identifier, it is one that succeeds."""

    query: dict[str, str] = {}
    body: Any = None
    data: bytes = b""
    headers: dict[str, str] = {}
    #: The response is a stream without an end, of which the first event is read.
    endless: bool = False
    #: In the text of a refusal that has the status 200.
    words: str = ""

    def fill(self, identifier: str) -> Case:
        """The request with an identifier."""
        query, body = json.loads(json.dumps([self.query, self.body]).replace(ID, identifier))
        return Case(query, body, self.data, self.headers, self.endless, self.words)

    async def send(self, http: httpx2.AsyncClient, method: str, url: str) -> tuple[int, str]:
        """The status and the text of the response."""
        content = self.data or json.dumps(self.body).encode()
        text = ""
        async with http.stream(
            method, url, params=self.query, content=content, headers=self.headers
        ) as response:
            async for line in response.aiter_lines():
                text += f"{line}\n"
                if self.endless and line.startswith("data: "):
                    break
        return response.status_code, text


def rpc(method: str, words: str = "not found", **params: Any) -> Case:
    """A request to the MCP server."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return Case(body=body, words=words)


def tool(name: str, **arguments: Any) -> Case:
    """A call of a tool of the MCP server."""
    return rpc("tools/call", name=name, arguments=arguments)


SAID = [{"role": "user", "content": "Hello"}]
AFTER = (Case(), Case({"after": ID}))
FORM = Case(
    data=b"\r\n".join(
        [
            *(b"--x", b'Content-Disposition: form-data; name="purpose"', b"", b"vision"),
            *(b"--x", b'Content-Disposition: form-data; name="file"; filename="a"', b"", b"mine"),
            b"--x--\r\n",
        ]
    ),
    headers={"content-type": "multipart/form-data; boundary=x"},
)
FILE = [{"role": "user", "content": [{"type": "file", "file": {"file_id": ID}}]}]
INPUT_FILE = [{"role": "user", "content": [{"type": "input_file", "file_id": ID}]}]
DOCUMENT = [
    {
        "role": "user",
        "content": [{"type": "document", "source": {"type": "file", "file_id": ID}}],
    }
]
DEMO = {"model": "scripted/demo"}
#: The requests for each endpoint; one that is missing here fails the test.
CASES: dict[str, tuple[Case, ...]] = {
    "GET /api/agents": (Case(),),
    "GET /api/budgets": (Case(),),
    "GET /api/changes": (Case(endless=True),),
    "GET /api/contents/{hash}": (Case(),),
    "GET /api/conversations": (*AFTER, Case({"tag": MARK})),
    "GET /api/conversations/search": (Case({"text": MARK}),),
    "GET /api/conversations/{conversation}": (Case(),),
    "PATCH /api/conversations/{conversation}": (Case(body={"name": "mine"}),),
    "DELETE /api/conversations/{conversation}": (Case(),),
    "POST /api/conversations/{conversation}/compact": (Case(body={"focus": "x"}),),
    "GET /api/conversations/{conversation}/context": (Case(),),
    "GET /api/conversations/{conversation}/export": (Case(), Case({"form": "json"})),
    "GET /api/conversations/{conversation}/family": (Case(),),
    "POST /api/conversations/{conversation}/fork": (Case(body={}), Case(body={"at": ID})),
    "GET /api/conversations/{conversation}/messages": (Case(), Case({"around": ID})),
    "GET /api/conversations/{conversation}/recalled": (Case(),),
    "GET /api/documents": (Case(),),
    "POST /api/documents": (Case({"collection": "mine", "name": "a"}, data=b"mine"),),
    "GET /api/documents/search": (Case({"text": MARK}), Case({"text": "x", "collection": ID})),
    "GET /api/documents/{collection}": (Case(),),
    "DELETE /api/documents/{collection}": (Case(),),
    "POST /api/documents/{collection}/index": (Case(),),
    "GET /api/documents/{collection}/{document}": (Case(),),
    "DELETE /api/documents/{collection}/{document}": (Case(),),
    "GET /api/files": AFTER,
    "POST /api/files": (Case(data=b"mine"),),
    "GET /api/files/{file}": (Case(),),
    "DELETE /api/files/{file}": (Case(),),
    "GET /api/imports": (Case(),),
    "POST /api/imports": (Case(data=b"mine"),),
    "GET /api/imports/{import}": (Case(),),
    "DELETE /api/imports/{import}": (Case(),),
    "POST /api/imports/{import}/cancel": (Case(),),
    "GET /api/imports/{import}/report": (Case(), Case({"problems": "true"})),
    "POST /api/imports/{import}/start": (Case(),),
    "GET /api/memory": AFTER,
    "POST /api/memory": (Case(body={"content": "mine"}),),
    "GET /api/memory/search": (Case({"text": MARK}),),
    "GET /api/memory/{entry}": (Case(),),
    "PATCH /api/memory/{entry}": (Case(body={"content": "mine"}),),
    "DELETE /api/memory/{entry}": (Case(),),
    "GET /api/memory/{entry}/history": (Case(),),
    "GET /api/models": (Case(),),
    "GET /api/runs": (*AFTER, Case({"status": "waiting"})),
    "POST /api/runs": (
        Case(body={"prompt": "x", "conversation": ID}),
        Case(body={"conversation": ID}),
        Case(body={"prompt": "x", "conversation": ID, "fork_at": ID}),
        Case(body={"prompt": "x", "conversation": ID, "fork_at": ""}),
        Case(body={"prompt": "x", "files": [ID]}),
        Case(body={"prompt": "x", "collections": [ID]}),
        Case(body={"prompt": "x", "model": ID}),
    ),
    "GET /api/runs/{run}": (Case(),),
    "POST /api/runs/{run}/answer": (Case(body={"question": ID, "action": "decline"}),),
    "POST /api/runs/{run}/cancel": (Case(),),
    "POST /api/runs/{run}/decide": (Case(body={"invocation": ID, "allowed": True}),),
    "GET /api/runs/{run}/events": (Case(),),
    "POST /api/runs/{run}/steer": (Case(body={"prompt": "x"}),),
    "DELETE /api/runs/{run}/steer/{message}": (Case(),),
    "POST /api/logout": (Case(),),
    "GET /api/session": (Case(),),
    "GET /api/sessions": (Case(),),
    "DELETE /api/sessions/{session}": (Case(),),
    "GET /api/skills": (Case(),),
    "GET /api/tools": (Case(), Case({"check": "true"})),
    "GET /api/waiting": (Case(),),
    "POST /mcp": (
        tool("chat", message="x", conversation=ID),
        tool("chat", message="x", model=ID),
        tool("chat", message="x", agent=ID),
        tool("wait", run=ID),
        tool("cancel", run=ID),
        tool("list_conversations"),
        tool("list_conversations", tag=MARK),
        tool("list_conversations", after=ID),
        tool("search_messages", text=MARK),
        tool("read_conversation", conversation=ID),
        tool("fork", conversation=ID),
        tool("fork", conversation=ID, message=ID),
        tool("search_memory", text=MARK),
        tool("search_documents", text=MARK),
        tool("search_documents", text="x", collection=ID),
        rpc("resources/list"),
        rpc("resources/list", cursor=ID),
        rpc("resources/read", uri=f"conversation://{ID}"),
        rpc("resources/read", uri=ID),
        rpc(
            "completion/complete",
            '"values":[]',
            ref={"type": "ref/resource", "uri": "conversation://{id}"},
            argument={"name": "id", "value": ID},
        ),
        rpc("prompts/get", name=ID, arguments={"input": "x"}),
        rpc("tools/call", name=ID),
    ),
    "POST /openai/deployments/{agent...}/chat/completions": (Case(body={"messages": SAID}),),
    "GET /v1/bucket": (Case(),),
    "POST /v1/chat/completions": (
        Case(body={"model": ID, "messages": SAID}),
        Case(body={**DEMO, "messages": FILE}),
    ),
    "POST /v1/embeddings": (Case(body={"model": ID, "input": "x"}),),
    "GET /v1/files": AFTER,
    "POST /v1/files": (FORM,),
    "GET /v1/files/dial-{path...}": (Case(),),
    "POST /v1/files/dial-{path...}": (FORM,),
    "PUT /v1/files/dial-{path...}": (FORM,),
    "DELETE /v1/files/dial-{path...}": (Case(),),
    "GET /v1/files/{file}": (Case(),),
    "DELETE /v1/files/{file}": (Case(),),
    "GET /v1/files/{file}/content": (Case(),),
    "POST /v1/messages": (
        Case(body={"model": ID, "messages": SAID, "max_tokens": 9}),
        Case(body={**DEMO, "messages": DOCUMENT, "max_tokens": 9}),
    ),
    "POST /v1/responses/compact": (
        Case(body={"model": ID, "input": "Hello"}),
        Case(body={"previous_response_id": ID}),
        Case(body={**DEMO, "input": INPUT_FILE}),
    ),
    "POST /v1/responses/input_tokens": (
        Case(body={"model": ID, "input": "Hello"}),
        Case(body={"previous_response_id": ID}),
        Case(body={**DEMO, "input": INPUT_FILE}),
    ),
    "POST /v1/messages/count_tokens": (
        Case(body={"model": ID, "messages": SAID}),
        Case(body={**DEMO, "messages": DOCUMENT}),
    ),
    "GET /v1/models": (Case(),),
    "GET /v1/models/{model...}": (Case(),),
    "POST /v1/responses": (
        Case(body={"model": ID, "input": "x"}),
        Case(body={"input": "x", "previous_response_id": ID}),
        Case(body={**DEMO, "input": INPUT_FILE}),
    ),
    "GET /v1/responses/{response}": (Case(), Case({"stream": "true"})),
    "DELETE /v1/responses/{response}": (Case(),),
    "POST /v1/responses/{response}/cancel": (Case(),),
    "GET /v1/responses/{response}/input_items": (Case(), Case({"after": ID})),
}


class Victim(Struct, frozen=True):
    """A user with something of each kind, and what it is known by."""

    http: httpx2.AsyncClient
    run: str
    identifiers: dict[str, str]

    @classmethod
    async def produce(cls, http: httpx2.AsyncClient) -> Victim:
        """A conversation that waits for an approval, a response, a fact and a file."""
        order = {"model": "keeper", "prompt": f"{MARK} " * 300}
        run = (await http.post("/api/runs", json=order)).json()
        await wait_for(http, run["id"], "waiting")
        await http.post(f"/api/runs/{run['id']}/steer", json={"prompt": f"Wait, {MARK}."})
        name = f"the {MARK}"
        await http.patch(f"/api/conversations/{run['conversation']}", json={"name": name})
        body = {"model": "scripted/demo", "input": MARK}
        response = (await http.post("/v1/responses", json=body)).json()
        fact = (await http.post("/api/memory", json={"content": f"Ada keeps a {MARK}."})).json()
        file = (await http.post(f"/api/files?name={MARK}", content=MARK.encode())).json()
        form: dict[str, tuple[str | None, str]] = {
            "file": (f"{MARK}.txt", "mine"),
            "purpose": (None, "vision"),
        }
        other = (await http.post("/v1/files", files=form)).json()
        bucket = (await http.get("/v1/bucket")).json()["bucket"]
        put = await http.put(f"/v1/files/{bucket}/{MARK}.txt", files=form)
        query = {"collection": f"{MARK}-papers", "name": f"{MARK}.txt"}
        document = await http.post("/api/documents", params=query, content=b"mine")
        while (await http.get(f"/api/documents/{MARK}-papers")).json()["collection"]["indexing"]:
            await asyncio.sleep(0.02)
        dry = {"name": MARK, "dry_run": "true"}
        imported = await bring(http, export(talk(1, f"The {MARK}")), **dry)
        shown = (await http.get(f"/api/conversations/{run['conversation']}")).json()
        message = shown["messages"][0]
        call = (await http.get(f"/api/runs/{run['id']}")).json()["approvals"][0]
        key = http.headers["authorization"].removeprefix("Bearer ")
        await http.post("/api/login", json={"key": key}, headers={"user-agent": MARK})
        session = (await http.get("/api/sessions")).json()["sessions"][0]
        return cls(
            http,
            run["id"],
            {
                "run": run["id"],
                "conversation": run["conversation"],
                "name": name,
                "message": message["identity"],
                "content": message["contents"][0]["data"]["hash"],
                "call": call["invocation"],
                "session": session["id"],
                "response": response["id"],
                "run of the response": response["id"].removeprefix("resp_"),
                "entry": fact["id"],
                "file": file["id"],
                "uploaded file": other["id"],
                "file in a bucket": put.json()["url"],
                "import": imported["id"],
                "collection": f"{MARK}-papers",
                "document": document.json()["id"],
                "path in a bucket": put.json()["url"].removeprefix("files/dial-"),
            },
        )

    async def survey(self) -> list[Any]:
        """All that the user has."""
        paths: tuple[str, ...] = ("runs", "conversations", "memory", "files", "sessions", "imports")
        paths = (*paths, f"runs/{self.run}", "documents", f"documents/{MARK}-papers")
        found = [(await self.http.get(f"/api/{path}")).json() for path in paths]
        response = self.identifiers["response"]
        others = [f"/v1/responses/{response}", "/v1/files"]
        return [*found, *[(await self.http.get(path)).json() for path in others]]


def survey_endpoints() -> Iterator[tuple[str, str]]:
    """The endpoints that work with what users have."""
    for path, methods in ENDPOINTS.items():
        for method, endpoint in methods.items():
            if isinstance(endpoint, UserEndpoint):
                yield method, path


async def walk(
    eve: httpx2.AsyncClient, victim: Victim, only: str = ""
) -> AsyncGenerator[str, None]:
    """What another user learns or changes with the identifiers of the victim."""
    before = await victim.survey()
    for method, path in survey_endpoints():
        if only not in ("", path):
            continue
        for case in CASES[f"{method} {path}"]:
            for kind, identifier in victim.identifiers.items():
                filled = case.fill(identifier)
                used = "{" in path or filled != case
                url = re.sub("{[^}]*}", quote(identifier), path)
                status, text = await filled.send(eve, method, url)
                said = f"{method} {path} with the {kind}: {status}"
                refused = status == 404 or (status == 200 and case.words and case.words in text)
                if not (refused if used else status in (200, 201)):
                    yield f"{said} {text}"
                if MARK in text.replace(identifier, ""):
                    yield f"{said} tells {text}"
                if not used:
                    break
    if await victim.survey() != before:
        yield "the victim's things have changed"


def scripted(home: Path) -> dict[str, Any]:
    """An agent whose tool asks before it deletes."""
    home.mkdir()
    (home / "keeper.toml").write_text(SCRIPT)
    return {
        "providers": {"scripted": {"scripts": {"keeper": str(home / "keeper.toml")}}},
        "agents": {"keeper": {"model": "scripted/keeper", "ensembles": ["memory"]}},
    }


def test_each_endpoint_has_a_case() -> None:
    assert CASES.keys() == {f"{method} {path}" for method, path in survey_endpoints()}


@pytest.mark.parametrize("name", ["ada", pytest.param("local", marks=pytest.mark.slow)])
async def test_what_one_user_has_does_not_exist_for_another(home: Path, name: str) -> None:
    async with (
        serving(home, **scripted(home)) as served,
        served.http(name) as http,
        served.http("eve") as eve,
    ):
        victim = await Victim.produce(http)
        assert [leak async for leak in walk(eve, victim)] == []


def _forget_user_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def access(database: Any, user: str, run: str) -> Any:
        owner = database.execute("select user from runs where identity = ?", (run,)).fetchone()
        return found(database, owner[0] if owner else user, run)

    found = sqlite._access
    monkeypatch.setattr(sqlite, "_access", access)


def _share_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spaces, "find_user_places", lambda places, _: places)


def _share_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (spaces, import_records):
        monkeypatch.setattr(module, "find_imports", lambda places: places.configuration / "imports")


def _share_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    enter = spaces.UserSpaces.enter
    monkeypatch.setattr(spaces.UserSpaces, "enter", lambda self, _: enter(self, "ada"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "path"),
    [
        *product((_forget_user_of_runs, _share_a_home, _share_a_space), ("", "/mcp")),
        (_share_imports, ""),
    ],
)
async def test_a_leak_would_be_found(
    home: Path, monkeypatch: pytest.MonkeyPatch, plant: Any, path: str
) -> None:
    plant(monkeypatch)
    async with (
        serving(home, **scripted(home)) as served,
        served.http("ada") as http,
        served.http("eve") as eve,
        aclosing(walk(eve, await Victim.produce(http), path)) as leaks,
    ):
        assert await anext(leaks, "") != ""
