"""K1: the key is in one header and nowhere else, whatever a server, a tool or a log does.

Keys of several shapes go through every interface and both transports; then everything that a
program, a person or a disk can get to see is searched for them, in every form in which they could
be written.
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

from tests.fakes.anthropic import answer_json
from tests.fakes.interfaces import (
    ANTHROPIC,
    AZURE,
    BEDROCK,
    GEMINI,
    OLLAMA,
    RESPONSES,
    VENDORS,
    VERTEX,
    RecordedInterface,
    slow_if_repeated,
)
from tests.fakes.server import HttpAnswer, ReceivedRequest
from vibe_llms.base import redaction
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.exceptions import CredentialRefused, ProviderError
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.events import Event
from vibe_llms.opening import open_session
from vibe_llms.providers.sdk_transport import OfficialTransport
from vibe_llms.session.core import Session
from vibe_llms.storage.archive import DirectoryArchive

#: The interfaces, each with the ways in which it may come by its key.
WAYS = [
    (interface, credential)
    for interface in (*VENDORS.values(), *VERTEX.values())
    for credential in ("key", "package")
    if credential == "key" or interface not in (OLLAMA, BEDROCK, GEMINI, *VERTEX.values())
]
every_way = pytest.mark.parametrize(
    ("interface", "credential"), WAYS, ids=[f"{one.row}-{way}" for one, way in WAYS]
)
#: Two of them that begin their first request in ways of their own.
SHOWN_FIRST = [(ANTHROPIC, "key"), (RESPONSES, "package")]
VARIABLES = {"anthropic": "ANTHROPIC_API_KEY"}
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


@contextmanager
def echoing_server(interface: RecordedInterface, key: str) -> Iterator[Any]:
    """The strict fake, which says the key back wherever a server can say something."""
    with interface.serve() as server:
        respond = server.respond

        def echo(request: ReceivedRequest) -> HttpAnswer:
            answer: HttpAnswer = respond(request)
            said = {"request-id": server.key, "x-request-id": server.key, "x-echo": server.key}
            answer.headers = {**answer.headers, **said}
            return answer

        server.key, server.respond = key, echo
        yield server


class Watcher:
    """Everything that a user could get to see, as text."""

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


def echoes(interface: RecordedInterface, key: str) -> list[Any]:
    """Answers that hold the key, each of another kind."""
    said = f"invalid x-api-key: {key} (Bearer {key}) {json.dumps(key)}"
    detailed = {"type": "x", "code": key, "message": "m", "details": {"error_code": key}}
    page = f"<html>{key}</html>".encode()
    location = {
        "location": f"https://example.org/?key={quote(key, safe='')}",
        "content-length": "0",
    }
    length = {"content-length": str(len(page)), "content-type": "text/html"}
    begun = interface.encode(interface.texts("a"))[: interface.spoken]
    (late, *_) = interface.encode([interface.late["broken"]])
    return [
        answer_json({"error": {"type": "authentication_error", "message": said}}, status=401),
        interface.refuse(said),
        answer_json({"error": {"type": f"type {key}", "message": said}}, status=400),
        answer_json({"error": detailed}, status=403),
        answer_json({"message": said}, status=500),
        answer_json([key], status=200),
        HttpAnswer(502, length, [page]),
        HttpAnswer(307, location),
        HttpAnswer(404, {"content-length": str(len(key))}, [key.encode()]),
        interface.stream_bytes([*begun, late.replace(b"oh", json.dumps(key)[1:-1].encode())]),
        interface.stream_bytes([f"data: {key}\n\n".encode()]),
        HttpAnswer(drop="reset"),
    ]


async def look_everywhere(
    interface: RecordedInterface,
    server: Any,
    home: Path,
    key: str,
    credential: str,
    watcher: Watcher,
) -> None:
    """Hold turns of which most fail, and watch all that can be watched."""
    archive = DirectoryArchive(home, StorageSettings(durability="fast"))

    def leak() -> str:
        raise LookupError(f"the key {key} is wrong")

    with all_logs(watcher):
        async with open_session(
            configuration=interface.configure(server, credential=credential),
            archive=archive,
            keys={interface.row: key} if credential == "key" else None,
            event_handler=watcher.see_event,
        ) as session:
            conversation = await session.begin(interface.address, invokers=[leak])
            server.replies = [interface.tools(("leak", "{}"))]
            watcher.see(await conversation.converse("Hi"))
            for answer in echoes(interface, key):
                server.replies = [answer]
                with pytest.raises(ProviderError) as caught:
                    await conversation.converse("Hi")
                watcher.see(caught.value)
            await _ask_otherwise(interface, session, server, key, watcher)
            watcher.see(await conversation.converse("And now?"), await conversation.preview("x"))
            model = conversation.model
            client = getattr(model, "client")  # noqa: B009
            watcher.see(conversation, model, client, vars(client), session, vars(session))
            watcher.see(session.survey_providers(), session.configuration, client.transport)
            official = isinstance(client.transport, OfficialTransport)
            assert official == (credential == "package")
    watcher.see_files(home)


async def _ask_otherwise(
    interface: RecordedInterface, session: Session, server: Any, key: str, watcher: Watcher
) -> None:
    """The lists and counts, of a server that does not know the key any more."""
    server.key = "another-key-that-is-right"
    # Azure has no list of deployments.
    listed = interface.row not in AZURE
    model = await session.access_model(interface.address)
    hi = [UserCanister.from_text("Hi")]
    with pytest.raises(CredentialRefused) as caught:
        await (session.survey_models(interface.row) if listed else model.converse(hi))
    watcher.see(caught.value)
    server.key = key
    if interface in (ANTHROPIC, RESPONSES, GEMINI, *VERTEX.values()):
        server.count = key
        with pytest.raises(ProviderError) as malformed:
            await model.count_tokens(hi)
        watcher.see(malformed.value)


def give_key(
    monkeypatch: pytest.MonkeyPatch, interface: RecordedInterface, credential: str, key: str
) -> None:
    """The key is where the official package looks for it, if that shall send it."""
    if credential == "package":
        monkeypatch.setenv(VARIABLES.get(interface.row, "OPENAI_API_KEY"), key)


#: Every shape with a plain key; with the official clients, and in the headers of Azure, those that
#: have to be quoted somewhere.
QUOTED = ("with quotes", "with backslashes", "with signs of addresses", "short")
CASES = [(*way, shape) for way in WAYS for shape in (KEYS if way[1] == "key" else QUOTED)]
CASES += [(one, "key", shape) for one in AZURE.values() for shape in QUOTED]
#: In the header of a cloud, one of them is sent in the ordinary run.
_SHOWN = "with quotes"
#: The headers of keys; all others send it as a bearer token.
HEADERS = {
    "gemini": "x-goog-api-key",
    "azure": "api-key",
    "azure-chat": "api-key",
    "azure-anthropic": "x-api-key",
    "vertex": "x-goog-api-key",
}


@pytest.mark.parametrize(
    ("interface", "credential", "shape"),
    [
        pytest.param(
            *(one, way, shape),
            id=f"{one.row}-{way}-{shape}",
            marks=() if shape == _SHOWN else slow_if_repeated(one.row),
        )
        for one, way, shape in CASES
    ],
)
async def test_the_key_is_to_be_seen_nowhere(
    shape: str,
    interface: RecordedInterface,
    credential: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = KEYS[shape]
    give_key(monkeypatch, interface, credential, key)
    watcher = Watcher()
    with echoing_server(interface, key) as server:
        await look_everywhere(interface, server, tmp_path, key, credential, watcher)
        header = HEADERS.get(interface.row, "authorization")
        sent = [request.headers[header] for request in server.requests]
        assert set(sent) == {f"Bearer {key}" if header == "authorization" else key}
        bodies = [request.path.encode() + request.body for request in server.requests]
    assert watcher.complaints(key) == []
    assert not [body for body in bodies if key.encode() in body]
    assert len(watcher.seen) > 100


@pytest.mark.slow
@every_way
async def test_an_unrecorded_key_is_detected(
    interface: RecordedInterface, credential: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "0123456789abcdef-not-seen-before"
    monkeypatch.setattr(redaction, "_KNOWN", _Forgetful())
    give_key(monkeypatch, interface, credential, key)
    watcher = Watcher()
    with echoing_server(interface, key) as server:
        await look_everywhere(interface, server, tmp_path, key, credential, watcher)
    assert watcher.complaints(key)


class _Forgetful(dict[str, tuple[str, ...]]):
    def __setitem__(self, key: str, value: tuple[str, ...]) -> None:
        """The seeded bug: nothing is kept."""


FIRST = """
import asyncio, json, logging, os, sys
from vibe_llms import open_session
from vibe_llms.base.exceptions import CredentialRefused

async def main(address, configuration, key, kind):
    os.environ["ANTHROPIC_API_KEY"] = os.environ["OPENAI_API_KEY"] = key
    keys = {address.partition("/")[0]: key} if kind == "key" else None
    async with open_session(configuration=json.loads(configuration), keys=keys) as session:
        conversation = await session.begin(address, save=False)
        try:
            await conversation.converse("Hi")
        except CredentialRefused:
            print("refused")

# So all requests go through httpx2, which logs what it sends.
sys.modules["httptools"] = None
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("interface", "credential"),
    [pytest.param(*way, marks=() if way in SHOWN_FIRST else pytest.mark.slow) for way in WAYS],
    ids=[f"{one.row}-{way}" for one, way in WAYS],
)
def test_the_very_first_request_is_logged_without_the_key(
    interface: RecordedInterface, credential: str
) -> None:
    # Some loggers of the packages below come to be only now.
    key = "0123456789abcdef-the-first"
    with echoing_server(interface, key) as server:
        refusal = {"error": {"type": "authentication_error", "message": key}}
        if interface is OLLAMA:
            refusal = {"error": key}  # type: ignore[dict-item]
        server.replies = [answer_json(refusal, status=401)]
        configuration = json.dumps(interface.configure(server, credential=credential))
        done = subprocess.run(
            [sys.executable, "-c", FIRST, interface.address, configuration, key, credential],
            capture_output=True,
            text=True,
            check=True,
        )
    assert "receive_response_headers.complete" in done.stdout
    assert "refused\n" in done.stdout
    assert key not in done.stdout + done.stderr
