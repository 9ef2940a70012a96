"""The server of the example plugin, made strict, and what it says."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
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
    """The server; a call that has an id twice, and a result of none, are refused."""

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        if request.path == "/models":
            return strict.answer_json(MODELS)
        try:
            body = strict.decode(request.body, free="with")
            _check(body)
        except Refused as error:
            self.refusals.append(str(error))
            return failure(400, str(error))
        if body["model"] not in MODELS:
            return failure(404, f"there is no model {body['model']}")
        reply = self.next_reply(request, lambda: text_reply("Hello."))
        return reply if isinstance(reply, HttpAnswer) else stream_bytes(map(encode_line, reply))


def _check(body: Mapping[str, Any]) -> None:
    calls: set[str] = set()
    if unknown := set(body) - _MEMBERS:
        raise Refused(f"unknown members: {unknown}")
    for one in body["said"]:
        if one["who"] not in _ROLES:
            raise Refused(f"there is no {one['who']!r}")
        if one["who"] == "tool" and one["id"] not in calls:
            raise Refused("a result of no call")
        if "use" in one and one["id"] in calls:
            raise Refused("a call is there twice")
        calls.add(one.get("id", ""))


def encode_line(event: Mapping[str, Any]) -> bytes:
    """A line of a stream."""
    return strict.encode(event).encode() + b"\n"


def text_reply(*chunks: str) -> Events:
    """A reply of text."""
    return [*({"shout": chunk} for chunk in chunks), _end("", len(chunks))]


def tools_reply(*calls: tuple[str, str]) -> Events:
    """A reply of calls."""
    return [*({"use": name, "with": json.loads(text)} for name, text in calls), _end("use", 1)]


def _end(why: str, shouted: int) -> Mapping[str, Any]:
    return {"end": why, "heard": 3, "shouted": shouted}


def stream_bytes(chunks: Any, **faults: Any) -> HttpAnswer:
    """The bytes of a stream in these chunks."""
    chunks = chunks if isinstance(chunks, list) else [*chunks]
    return HttpAnswer(200, {"content-type": "application/x-ndjson"}, chunks, **faults)


def answer_whole(events: Events) -> HttpAnswer:
    """A reply in one piece."""
    data = b"".join(map(encode_line, events))
    length = {"content-length": str(len(data))}
    return HttpAnswer(200, {"content-type": "application/json", **length}, [data])


def failure(status: int, words: str, headers: Mapping[str, str] | None = None) -> HttpAnswer:
    """An error."""
    answer = strict.answer_json({"error": {"message": words}}, status=status)
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
