"""The server of the example plugin, made strict, and what it says."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from itertools import chain, starmap
from pathlib import Path
from typing import Any

from tests.fakes import strict
from tests.fakes.server import HttpAnswer, ReceivedRequest
from tests.fakes.strict import Events, Refused, StrictServer
from vibe_llms.base.configuration import StreamSettings, load_configuration
from vibe_llms.base.credentials import Credential
from vibe_llms.messages.events import EventHandler, ignore_events
from vibe_llms.providers.interfaces import ProviderConfiguration

MODULE = "shout_example"
_EXAMPLE = (
    Path(__file__).resolve().parents[2] / "documentation/examples/shout/vibe_llms_shout/__init__.py"
)
MODELS = ("loud", "louder")
_MEMBERS = {"model", "ending", "said", "tools", "words"}
_ROLES = {"model", "tool", "person", "system"}


class FakeShout(StrictServer):
    """The server; it refuses an id of two calls, results of no call, and calls without one."""

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        if request.path == "/models":
            return strict.answer_json(dict.fromkeys(MODELS, 1000))
        try:
            body = strict.decode(request.body, free="with")
            _check(body)
        except Refused as error:
            self.refusals.append(str(error))
            return failure(400, str(error))
        if body["model"] not in MODELS:
            return failure(404, f"there is no model {body['model']}")
        reply = self.next_reply(request, lambda: text_reply("Hello."))
        return reply if isinstance(reply, HttpAnswer) else stream_bytes(map(encode_event, reply))


def _check(body: Mapping[str, Any]) -> None:
    calls: set[str] = set()
    waiting: set[str] = set()
    if unknown := set(body) - _MEMBERS:
        raise Refused(f"unknown members: {unknown}")
    for one in body["said"]:
        if one["who"] not in _ROLES:
            raise Refused(f"there is no {one['who']!r}")
        if one["who"] == "tool":
            if one["id"] not in waiting:
                raise Refused("a result of no call")
            waiting.remove(one["id"])
        elif "use" in one:
            if one["id"] in calls:
                raise Refused("a call is there twice")
            calls.add(one["id"])
            waiting.add(one["id"])
        elif waiting and one["who"] != "model":
            break
    if waiting:
        raise Refused("calls without results")


def encode_event(event: Mapping[str, Any]) -> bytes:
    """An event of a stream, whose name is not in its data."""
    data = {name: value for name, value in event.items() if name != "event"}
    return f"event: {event['event']}\ndata: {strict.encode(data)}\n\n".encode()


def text_reply(*chunks: str) -> Events:
    """A reply of text."""
    return [*(shout(chunk) for chunk in chunks), _end("done", len(chunks))]


def tools_reply(*calls: tuple[str, str]) -> Events:
    """A reply of calls."""
    return [*chain.from_iterable(starmap(_use, enumerate(calls))), _end("use", 1)]


def shout(text: str) -> Mapping[str, Any]:
    """The event of some text."""
    return {"event": "shout", "text": text}


def _use(number: int, call: tuple[str, str]) -> Events:
    name, text = call
    identity = f"use-{number}"
    return [
        {"event": "use.begin", "id": identity, "name": name},
        {"event": "use.piece", "id": identity, "piece": text},
        {"event": "use.end", "id": identity},
    ]


def _end(why: str, shouted: int) -> Mapping[str, Any]:
    return {"event": "end", "why": why, "used": [3, shouted]}


def stream_bytes(chunks: Any, **faults: Any) -> HttpAnswer:
    """The bytes of a stream in these chunks."""
    chunks = chunks if isinstance(chunks, list) else [*chunks]
    return HttpAnswer(200, {"content-type": "text/event-stream"}, chunks, **faults)


def answer_whole(events: Events) -> HttpAnswer:
    """A reply in one piece."""
    data = b"".join(map(encode_event, events))
    length = {"content-length": str(len(data))}
    return HttpAnswer(200, {"content-type": "text/event-stream", **length}, [data])


def failure(status: int, words: str, headers: Mapping[str, str] | None = None) -> HttpAnswer:
    """An error."""
    answer = strict.answer_json({"hush": {"says": words}}, status=status)
    answer.headers.update(headers or {})
    return answer


def _load() -> Any:
    """The example, by a name that no test of installing it can come upon."""
    spec = importlib.util.spec_from_file_location(MODULE, _EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[MODULE] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_PROVIDER = _load().ShoutProvider


async def produce_model(
    url: str,
    *,
    name: str = MODELS[0],
    stream: StreamSettings = StreamSettings(retries=0),
    event_handler: EventHandler = ignore_events,
    models: Mapping[str, Any] | None = None,
) -> Any:
    """A model of a client of its own."""
    overrides = {"providers": {"shout": {"models": dict(models or {})}}}
    configuration = ProviderConfiguration(
        configuration=load_configuration(overrides=overrides),
        settings={"base-url": url},
        stream=stream,
        credential=Credential("shout", "none"),
    )
    client = _PROVIDER("shout", configuration, event_handler).produce_client()
    return await client.access_model(name)
