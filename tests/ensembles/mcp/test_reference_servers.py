"""The reference servers of MCP's authors, used through the library; they are installed apart.

    TEST_MCP_EVERYTHING="node …/server-everything/dist/index.js stdio" … python -m pytest -m mcp

Each has its variable: `TEST_MCP_EVERYTHING`, `_FILESYSTEM`, `_MEMORY`, `_TIME`, `_FETCH` and `_GIT`
are commands, `TEST_MCP_HTTP` and `_SSE` the addresses of server-everything over HTTP. The file
system has a folder with `hello.txt`, and git a repository whose only commit is called `first`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.ensembles.mcp.servers import opened
from vibe_llms.conversations.hosts import EnsembleHost
from vibe_llms.ensembles.mcp.ensemble import McpEnsemble
from vibe_llms.invocation.questions import ElicitationAnswer, ElicitationRequest
from vibe_llms.messages.contents import FileContent, ImageContent, TextualContent

pytestmark = pytest.mark.mcp

#: Read before the home of a test is made.
GIVEN = {name: value for name, value in os.environ.items() if name.startswith("TEST_MCP_")}
EVERYTHING = ("EVERYTHING", "HTTP", "SSE")


def row(name: str, **keys: Any) -> dict[str, Any]:
    value = GIVEN[f"TEST_MCP_{name}"]
    if name in ("HTTP", "SSE"):
        return {"url": value, "transport": name.lower(), **keys}
    return {"command": shlex.split(value), **keys}


async def call(ensemble: McpEnsemble, name: str, **arguments: Any) -> Any:
    return await ensemble.invoke(name, json.dumps(arguments))


@pytest.mark.parametrize("name", EVERYTHING)
async def test_everything_is_used(name: str) -> None:
    async with opened(**row(name)) as ensemble:
        assert ensemble.details["protocol"] == "2025-11-25"
        assert (await call(ensemble, "echo", message="hi")).text == "Echo: hi"
        assert "5" in (await call(ensemble, "get-sum", a=2, b=3)).text
        shown = await call(ensemble, "get-tiny-image")
        (picture,) = (one for one in shown.contents if isinstance(one, ImageContent))
        assert isinstance(picture.data, bytes)
        assert picture.data.startswith(b"\x89PNG")
        structured = await call(ensemble, "get-structured-content", location="Chicago")
        assert {"temperature", "conditions"} <= set(json.loads(structured.text))
        links = await call(ensemble, "get-resource-links", count=2)
        assert links.text.count("[resource ") == 2
        embedded = await call(ensemble, "get-resource-reference", resourceType="Text", resourceId=1)
        assert any("Resource 1" in getattr(one, "text", "") for one in embedded.contents)
        assert (await call(ensemble, "get-sum", a="two", b=3)).failed
        assert "secret" not in (await call(ensemble, "get-env")).text.lower()


@pytest.mark.parametrize("name", EVERYTHING)
async def test_everything_is_read(name: str) -> None:
    async with opened(**row(name)) as ensemble:
        prompts = {one.name: one for one in await ensemble.survey_prompts()}
        assert [one.name for one in prompts["args-prompt"].arguments] == ["city", "state"]
        (said,) = await ensemble.read_prompt("args-prompt", {"city": "Oslo"})
        assert "Oslo" in getattr(said, "text", "")
        assert await ensemble.read_prompt(
            "resource-prompt", {"resourceType": "Text", "resourceId": "1"}
        )
        (first, *_) = await ensemble.survey_resources()
        (text,) = await ensemble.read_resource(first.uri)
        assert isinstance(text, TextualContent)
        (template, blob) = await ensemble.survey_templates()
        assert template.template.endswith("{resourceId}")
        (content,) = await ensemble.read_resource(blob.template.replace("{resourceId}", "1"))
        assert isinstance(content, FileContent | TextualContent)


@pytest.mark.parametrize("name", ["EVERYTHING", "HTTP"])
async def test_everything_asks_a_person(name: str) -> None:
    seen: list[ElicitationRequest] = []

    def elicit(request: ElicitationRequest) -> ElicitationAnswer:
        seen.append(request)
        values = {
            one.name: one.default
            if one.default is not None
            else (one.choices[0][0] if one.choices else "Ada")
            for one in request.fields
            if one.kind in ("text", "choice") and not one.format
        }
        return ElicitationAnswer("accept", {key: str(value) for key, value in values.items()})

    async with opened(EnsembleHost(elicitor=elicit), **row(name)) as ensemble:
        tools = [one.name.partition("/")[2] for one in ensemble.invokers]
        assert "trigger-elicitation-request" in tools
        output = await call(ensemble, "trigger-elicitation-request")
    (request,) = seen
    assert len(request.fields) > 3
    assert not output.failed, output.text


async def test_progress_is_reported() -> None:
    from vibe_llms.invocation.invokers import InvocationContext
    from vibe_llms.messages.canisters import InvocationCanister

    reported: list[float] = []
    async with opened(**row("EVERYTHING")) as ensemble:
        name = "fake/trigger-long-running-operation"
        (tool,) = (one for one in ensemble.invokers if one.name == name)
        context = InvocationContext(
            "", InvocationCanister(name=name), lambda *_, **news: reported.append(news["done"])
        )
        await tool.invoke('{"duration": 1, "steps": 4}', context)
    assert reported == [1, 2, 3, 4]


async def test_the_file_system_is_that_of_the_roots(tmp_path: Path) -> None:
    async with opened(**row("FILESYSTEM")) as ensemble:
        (folder,) = (await call(ensemble, "list_allowed_directories")).text.splitlines()[1:]
        text = (await call(ensemble, "read_text_file", path=f"{folder}/hello.txt")).text
        assert "hello from" in text
        assert (await call(ensemble, "read_text_file", path="/etc/passwd")).failed
    (tmp_path / "mine.txt").write_text("mine")
    async with opened(**row("FILESYSTEM", roots=[str(tmp_path)])) as ensemble:
        path = str(tmp_path / "mine.txt")
        # It asks for the roots once it has been greeted, and takes them over in its own time.
        async with asyncio.timeout(30):
            while (read := await call(ensemble, "read_text_file", path=path)).failed:
                await asyncio.sleep(0.05)
        assert read.text == "mine" or '"mine"' in read.text


async def test_a_memory_keeps_what_it_is_given(tmp_path: Path) -> None:
    environment = {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    command = [one for one in shlex.split(GIVEN["TEST_MCP_MEMORY"]) if "=" not in one]
    command = command[1:] if command[0] == "env" else command
    entity = {"name": "Ada", "entityType": "person", "observations": ["likes numbers"]}
    for known in (False, True):
        async with opened(command=command, environment=environment) as ensemble:
            graph = (await call(ensemble, "read_graph")).text
            assert ("likes numbers" in graph) == known
            if not known:
                await call(ensemble, "create_entities", entities=[entity])


@pytest.mark.parametrize(("era", "version"), [("handshake", "2025"), ("stateless", "2026-07-28")])
async def test_the_time_is_sent_in_both_eras(era: str, version: str) -> None:
    async with opened(**row("TIME", protocol=era)) as ensemble:
        assert ensemble.details["protocol"].startswith(version)
        assert "Oslo" in (await call(ensemble, "get_current_time", timezone="Europe/Oslo")).text
        assert (await call(ensemble, "get_current_time", timezone="Nowhere")).failed


async def test_git_is_asked() -> None:
    command = shlex.split(GIVEN["TEST_MCP_GIT"])
    async with opened(command=command) as ensemble:
        assert "first" in (await call(ensemble, "git_log", repo_path=command[-1])).text


@contextmanager
def page() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<html><body><h1>Hello</h1></body></html>")

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


async def test_fetch_refuses_this_machine_and_says_so() -> None:
    with page() as url:
        async with opened(**row("FETCH")) as ensemble:
            output = await call(ensemble, "fetch", url=url)
            (prompt,) = await ensemble.survey_prompts()
    assert output.failed
    assert output.text
    assert prompt.name == "fetch"
