"""What the strict fakes share: scripted replies, JSON read strictly, the official request types."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import pydantic

from tests.fakes.server import FakeServer, HttpAnswer, ReceivedRequest

Events: TypeAlias = Sequence[Mapping[str, Any]]
Reply: TypeAlias = HttpAnswer | Events


class Refused(Exception):
    """The real server would answer 400, with this code."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class StrictServer(FakeServer):
    """Answers each request with the next of `replies`: events, an answer, or a function of it.

    Without replies left it says "Hello.". `refusals` are the complaints about requests that the
    real server would refuse.
    """

    def __init__(self, key: str = "") -> None:
        super().__init__()
        self.key = key
        self.replies: list[Reply | Callable[[ReceivedRequest], Reply]] = []
        self.refusals: list[str] = []

    def next_reply(self, request: ReceivedRequest, otherwise: Callable[[], Events]) -> Reply:
        """The reply to a request."""
        reply = self.replies.pop(0) if self.replies else otherwise()
        return reply(request) if callable(reply) else reply


def dump(value: Any) -> str:
    """JSON that is the same for equal values."""
    return json.dumps(value, sort_keys=True)


def decode(data: bytes, free: str = "") -> dict[str, Any]:
    """The body of a request; a duplicate member is refused, except below `free`."""

    def refuse_constant(name: str) -> None:
        raise Refused(f"the body is not JSON: {name}")

    try:
        body: dict[str, Any] = json.loads(
            data.decode(), parse_constant=refuse_constant, object_pairs_hook=_gather
        )
        json.dumps(body, ensure_ascii=False).encode()
    except ValueError as error:
        raise Refused(f"the body is not JSON: {error}") from error
    _check_members(body, free)
    return body


class _Twice(dict[str, Any]):
    """An object in which some member stood twice."""


def _gather(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    return members if len(members) == len(pairs) else _Twice(members)


def _check_members(value: Any, free: str) -> None:
    if isinstance(value, _Twice):
        raise Refused("the body has a member twice")
    if isinstance(value, list):
        for item in value:
            _check_members(item, free)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name != free:
                _check_members(item, free)


@cache
def _adapter(kind: Any) -> pydantic.TypeAdapter[Any]:
    # No configuration is taken for a TypedDict itself, but it reaches those within another type.
    several: Any = list.__class_getitem__(kind)
    return pydantic.TypeAdapter(several, config=pydantic.ConfigDict(extra="forbid"))


def validate(kind: Any, *values: Any) -> None:
    """`Refused` where a value does not fit the official type, or has more than that."""
    try:
        # Iterables are validated lazily, so they are walked to their ends.
        _walk(_adapter(kind).validate_python(values))
    except pydantic.ValidationError as error:
        raise Refused(str(error)) from error


def _walk(value: Any) -> None:
    if isinstance(value, Mapping):
        for item in value.values():
            _walk(item)
    elif not isinstance(value, str | bytes) and hasattr(value, "__iter__"):
        for item in value:
            _walk(item)


def answer_json(body: Any, *, status: int = 200, **headers: str) -> HttpAnswer:
    """A whole body, with its length."""
    data = json.dumps(body, separators=(",", ":")).encode()
    reported = {name.replace("_", "-"): value for name, value in headers.items()}
    reported |= {"content-type": "application/json", "content-length": str(len(data))}
    return HttpAnswer(status, reported, [data])


def encode_event(event: Mapping[str, Any]) -> bytes:
    """One server-sent event; its name is its type."""
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {encode(event)}\n\n".encode()


def encode(value: Any) -> str:
    """Compact JSON; what UTF-8 cannot say is escaped."""
    data = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    try:
        data.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return data
