"""Reading of requests in all dialects: JSON bodies, base64 data, and tools."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import ValidationError

from vibe_llms.invocation.invokers import Invoker, gather_invokers
from vibe_llms.server.failures import Rejected
from vibe_llms.server.json_bodies import decode_large

T = TypeVar("T")

#: Maximum size of requests without media or histories.
SMALL_BODY_BYTES = 1024 * 1024
#: Number of base64 characters decoded at once.
_SLICE = 4 * 64 * 1024
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_PLACE = re.compile(r" - at `\$\.?([\w.\[\]]*)`")
_ANYTHING = msgspec.json.Decoder()
_MISSING = re.compile(r"missing required field `(\w+)`")


def read_body(
    decoder: msgspec.json.Decoder[T],
    body: bytes,
    rewrite: Callable[[Any], Any] | None = None,
    *,
    most_bytes: int | None = None,
) -> T:
    """Decode the request in a body; `Rejected` names the invalid member.

    If the body does not match the type, the result of `rewrite` on its JSON is tried. `most_bytes`
    limits the body for types whose members have maximum sizes.
    """
    if most_bytes is not None and len(body) > most_bytes:
        raise Rejected(
            f"the body has {len(body):,} bytes, and the limit is {most_bytes:,}",
            status=413,
            code="request_too_large",
        )
    try:
        try:
            return decode_large(decoder, body) if most_bytes is None else decoder.decode(body)
        except ValidationError:
            if rewrite is None:
                raise
            return msgspec.convert(rewrite(decode_large(_ANYTHING, body)), decoder.type)
    except ValidationError as error:
        raise _reject(error) from error
    except (ValueError, RecursionError) as error:
        raise Rejected(f"the body is not valid JSON: {error}") from error


def read_query(kind: type[T], query: Mapping[str, str]) -> T:
    """Convert query parameters; `Rejected` names the invalid one."""
    try:
        return msgspec.convert(query, kind, strict=False)
    except ValidationError as error:
        raise _reject(error) from error


def read_base64(encoded: str, param: str) -> bytes:
    """Decode base64 data."""
    try:
        # In slices, between which other threads run.
        return b"".join(
            base64.b64decode(encoded[start : start + _SLICE], validate=True)
            for start in range(0, len(encoded), _SLICE)
        )
    except (binascii.Error, ValueError) as error:
        raise Rejected(f"the data is not valid base64: {error}", param=param) from error


def is_web_address(url: str) -> bool:
    """Return True for an HTTP address, which the provider may fetch."""
    return url[:8].lower().startswith(("http://", "https://"))


def get_member(value: Any, name: str) -> Any:
    """Return a member of a JSON object; None if missing or if the value is not an object."""
    return value.get(name) if isinstance(value, dict) else None


def find_last_reply(roles: Iterable[object]) -> int:
    """Return the index of the assistant's last message, or -1.

    >>> find_last_reply(["user", "assistant", "user"]), find_last_reply(["user"])
    (1, -1)
    """
    return max((index for index, role in enumerate(roles) if role == "assistant"), default=-1)


def declare_tools(
    tools: Iterable[tuple[str, str | None, Mapping[str, Any] | None]],
) -> tuple[Invoker, ...]:
    """Return the client's own tools, from names, descriptions, and argument schemas.

    A name may have a namespace, as in `files/read`.
    """
    declared = []
    for name, description, schema in tools:
        if not _TOOL_NAME.fullmatch(name.rpartition("/")[2]):
            raise Rejected(
                f"{name!r} is not a valid name; use 1 to 128 letters, digits, _ and -",
                param="tools",
            )
        taken = schema or {"type": "object", "properties": {}}
        declared.append(Invoker.from_declaration(name, taken, description=description or ""))
    return tuple(gather_invokers(declared).values())


def _reject(error: ValidationError) -> Rejected:
    return Rejected(str(error), param=_find_param(str(error)))


def _find_param(message: str) -> str | None:
    """Return the member that a decoder's error message refers to.

    >>> _find_param("Object missing required field `b` - at `$.a[0]`")
    'a[0].b'
    """
    found = [pattern.search(message) for pattern in (_PLACE, _MISSING)]
    return ".".join(one[1] for one in found if one and one[1]) or None
