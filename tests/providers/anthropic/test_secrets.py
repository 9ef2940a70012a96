"""K1: the key stands in one header and nowhere else, whatever a server, a tool or a log does.

Keys of several shapes go through both transports; then everything that a program, a person or a
disk can get to see is searched for them, in every form in which they could be written.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.fakes.anthropic import (
    FakeAnthropic,
    answer_json,
    failure,
    stream,
    text_reply,
    tools_reply,
)
from tests.fakes.server import Answer, Request
from vibe_llms import redaction
from vibe_llms.configuration import StorageSettings
from vibe_llms.events import Event
from vibe_llms.exceptions import CredentialRefused, ProviderError
from vibe_llms.providers.anthropic.package import PackageTransport
from vibe_llms.session import Session, open_session
from vibe_llms.storage.archive import DirectoryArchive

MODEL = "anthropic/claude-opus-5"
KEYS = {
    "as Anthropic's": "sk-ant-api03-Zq0w9e8r7t6y5u4i3o2p1-A_B-CQAA",
    "as a token": "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiI0MiJ9.c2lnbmF0dXJl",
    "hexadecimal": "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c",
    "base64": "Zm9vL2Jhcis9PT0vK2Zvbw/+abcdEFGH==",
    "as an identity": "3f2504e0-4f89-11d3-9a0c-0305e82c3301",
    "with quotes": "a\"b'c`d-0123456789",
    "with backslashes": "back\\slash\\\\0123456789",
    "with signs of addresses": "key%41&x=y?z#0123456789",
    "with signs of patterns": "(.*)[a-z]+$^{2}|0123456789",
    "with brackets": "<b>{key}</b>0123456789",
    "short": "s3cr3t",
    "of one letter": "aaaaaaaaaaaaaaaaaaaaaaaa",
}


def forms(key: str) -> set[str]:
    """The ways in which a key could be written somewhere."""
    return {
        key,
        json.dumps(key)[1:-1],
        repr(key)[1:-1],
        repr(key.encode())[2:-1],
        quote(key, safe=""),
        key.replace("\\", "\\\\").replace("/", "\\/"),
    }


class EchoingServer(FakeAnthropic):
    """Says the key back wherever a server can say something."""

    def respond(self, request: Request) -> Answer:
        answer = super().respond(request)
        answer.headers = {**answer.headers, "request-id": self.key, "x-echo": self.key}
        return answer


class Watcher:
    """Everything that somebody could get to see, as text."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def see(self, *things: object) -> None:
        for thing in things:
            self.seen += [str(thing), repr(thing)]
            if isinstance(thing, BaseException):
                self.seen += traceback.format_exception(thing)
                self.seen += [repr(vars(thing)), repr(thing.args)]

    def see_event(self, event: Event) -> None:
        self.see(event)

    def see_files(self, folder: Path) -> None:
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert files
        self.seen += [path.read_bytes().decode("utf-8", "replace") for path in files]
        self.seen += [str(path) for path in files]

    def complaints(self, key: str) -> list[str]:
        """Where the key is to be seen."""
        return [text[:300] for text in self.seen for form in forms(key) if form in text]


@contextmanager
def all_logs(watcher: Watcher) -> Iterator[None]:
    """Every record of every logger, at the lowest level, as a handler would print it."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            watcher.seen += [self.format(record), repr(vars(record))]

    root, handler, level = logging.getLogger(), Handler(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(handler)


def echoes(key: str) -> list[Any]:
    """Answers that hold the key, each of another kind."""
    said = f"invalid x-api-key: {key} (Bearer {key}) {json.dumps(key)}"
    event = {"type": "error", "error": {"type": "api_error", "message": said}}
    detailed = {"type": "x", "message": "m", "details": {"error_code": key}}
    page = f"<html>{key}</html>".encode()
    location = {
        "location": f"https://example.org/?key={quote(key, safe='')}",
        "content-length": "0",
    }
    length = {"content-length": str(len(page)), "content-type": "text/html"}
    return [
        failure(401, "authentication_error", said),
        failure(400, f"type {key}", said),
        answer_json({"error": detailed}, status=403),
        answer_json({"message": said}, status=500),
        answer_json([key], status=200),
        Answer(502, length, [page]),
        Answer(307, location),
        Answer(404, {"content-length": str(len(key))}, [key.encode()]),
        stream([*text_reply("a")[:4], event]),
        stream([{"type": "content_block_start", "index": key}]),
        Answer(200, {"content-type": "text/event-stream"}, [f"data: {key}\n\n".encode()]),
        Answer(drop="reset"),
    ]


async def look_everywhere(
    server: FakeAnthropic, home: Path, key: str, credential: str, watcher: Watcher
) -> None:
    """Hold turns of which most fail, and watch all that can be watched."""
    row = {"base-url": server.url, "retries": 0, "credential": credential}
    archive = DirectoryArchive(home, StorageSettings(durability="fast"))

    def leak() -> str:
        raise LookupError(f"the key {key} is wrong")

    with all_logs(watcher):
        async with open_session(
            configuration={"providers": {"anthropic": row}},
            archive=archive,
            keys={"anthropic": key} if credential == "key" else None,
            event_handler=watcher.see_event,
        ) as session:
            conversation = await session.begin(MODEL, invokers=[leak])
            server.replies = [tools_reply(("leak", "{}"))]
            watcher.see(await conversation.converse("Hi"))
            for answer in echoes(key):
                server.replies = [answer]
                with pytest.raises(ProviderError) as caught:
                    await conversation.converse("Hi")
                watcher.see(caught.value)
            await _ask_otherwise(session, server, key, watcher)
            watcher.see(await conversation.converse("And now?"), await conversation.preview("x"))
            model = conversation.model
            client = getattr(model, "client")  # noqa: B009
            watcher.see(conversation, model, client, vars(client), session, vars(session))
            watcher.see(session.survey_providers(), session.configuration, client.transport)
            assert isinstance(client.transport, PackageTransport) == (credential == "package")
    watcher.see_files(home)


async def _ask_otherwise(
    session: Session, server: FakeAnthropic, key: str, watcher: Watcher
) -> None:
    """The lists and counts, of a server that does not know the key any more."""
    server.key = "another-key-that-is-right"
    with pytest.raises(CredentialRefused) as caught:
        await session.survey_models("anthropic")
    watcher.see(caught.value)
    server.key = key
    server.count = answer_json({"input_tokens": key})
    model = await session.access_model(MODEL)
    with pytest.raises(ProviderError) as malformed:
        await model.count_tokens([])
    watcher.see(malformed.value)


@pytest.mark.parametrize("credential", ["key", "package"])
@pytest.mark.parametrize("shape", KEYS)
async def test_the_key_is_to_be_seen_nowhere(
    shape: str, credential: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = KEYS[shape]
    if credential == "package":
        monkeypatch.setenv("ANTHROPIC_API_KEY", key)
    watcher = Watcher()
    with EchoingServer(key=key) as server:
        await look_everywhere(server, tmp_path, key, credential, watcher)
        sent = [request.headers["authorization"] for request in server.requests]
        assert set(sent) == {f"Bearer {key}"}
        bodies = [request.path.encode() + request.body for request in server.requests]
    assert watcher.complaints(key) == []
    assert not [body for body in bodies if key.encode() in body]
    assert len(watcher.seen) > 100


@pytest.mark.parametrize("credential", ["key", "package"])
async def test_a_key_that_nobody_remembers_would_be_found_out(
    credential: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "0123456789abcdef-not-seen-before"
    monkeypatch.setattr(redaction, "_KNOWN", _Forgetful())
    if credential == "package":
        monkeypatch.setenv("ANTHROPIC_API_KEY", key)
    watcher = Watcher()
    with EchoingServer(key=key) as server:
        await look_everywhere(server, tmp_path, key, credential, watcher)
    assert watcher.complaints(key)


class _Forgetful(dict[str, tuple[str, ...]]):
    def __setitem__(self, key: str, value: tuple[str, ...]) -> None:
        """The seeded bug: nothing is kept."""


FIRST = """
import asyncio, logging, os, sys
from tests.fakes.clients import produce_client
from vibe_llms.credentials import Credential, Secret
from vibe_llms.exceptions import CredentialRefused
from vibe_llms.messages.canisters import UserCanister

async def main(url, key, kind):
    os.environ["ANTHROPIC_API_KEY"] = key
    secret = Secret(key) if kind == "key" else None
    client = produce_client(url, credential=Credential("anthropic", kind, given=secret))
    model = await client.access_model("claude-opus-5")
    try:
        await model.converse([UserCanister.from_text("Hi")])
    except CredentialRefused:
        print("refused")
    await client.close()

logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("credential", ["key", "package"])
def test_the_very_first_request_is_logged_without_the_key(credential: str) -> None:
    # Some loggers of the packages below come to be only now.
    key = "0123456789abcdef-the-first"
    with EchoingServer(key=key) as server:
        server.replies = [failure(401, "authentication_error", key)]
        done = subprocess.run(
            [sys.executable, "-c", FIRST, server.url, key, credential],
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=True,
        )
    assert "receive_response_headers.complete" in done.stdout
    assert "refused\n" in done.stdout
    assert key not in done.stdout + done.stderr
