"""Errors of servers that speak HTTP: one table from status, type and code to our errors.

An `ErrorMap` has the lines that all servers share; a provider adds its own::

    errors = ErrorMap({404: ModelUnavailable}, codes={"no_funds": PaymentRequired})
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from email.utils import mktime_tz, parsedate_tz
from typing import Any

import msgspec
from msgspec import Struct

from vibe_llms.exceptions import (
    ContextOverflow,
    CredentialRefused,
    ModelUnavailable,
    PaymentRequired,
    ProviderError,
    ProviderOverloaded,
    RateLimited,
    ReplyMalformed,
    RequestRefused,
    RequestTooLarge,
)
from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.repairs import parse_object, repair
from vibe_llms.redaction import redact

#: The statuses that all servers use alike; others below 500 refuse the request.
STATUSES: Mapping[int, type[ProviderError]] = {
    400: RequestRefused,
    401: CredentialRefused,
    402: PaymentRequired,
    403: CredentialRefused,
    404: ModelUnavailable,
    405: RequestRefused,
    408: ProviderOverloaded,
    409: ProviderOverloaded,
    412: RequestRefused,
    413: RequestTooLarge,
    415: RequestRefused,
    422: RequestRefused,
    429: RateLimited,
    431: RequestRefused,
    499: ProviderOverloaded,
}
#: NAME is replaced by the provider's row.
_ADVICE: dict[type[ProviderError], str] = {
    CredentialRefused: " (set another key: vibe-llms keys set NAME)",
    ModelUnavailable: " (list the models: vibe-llms models NAME; is base-url right?)",
    RequestTooLarge: " (continue in a fork from an earlier message, or leave images and files out)",
    RateLimited: "; try again later",
    ProviderOverloaded: "; try again later",
}
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)(ms|s|m|h|d)")
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,12})?")
#: More of what a server says of an error does not help.
_LONGEST_WORDS = 4_000
#: No key is longer than this, so that none is cut before it can be taken out.
_LONGEST_KEY = 4_000


_MOST_DIGITS = 12
# llama-cpp-python's server has no other sign than the text of pydantic's and FastAPI's errors.
_INVALID = re.compile(r"\A\d{1,6} validation errors?\b|'loc': \('body'")


class ErrorObject(Struct, frozen=True):
    """What a server says of an error, in a body or in the middle of a stream.

    `status` is a status of the 400s that the object itself names, whatever the status of the
    answer is. `tokens` against `limit` are the sizes of an overflow.
    """

    message: str = ""
    type: str = ""
    code: str = ""
    request_id: str = ""
    status: int | None = None
    tokens: int | None = None
    limit: int | None = None


class ErrorMap(Struct, frozen=True):
    """The errors of one interface: its own statuses, types and codes over those of all.

    A code says more than a type, and a type more than a status. A type that only says that the
    request is refused gives way to the statuses in `telling`. `overflows` are the words of an
    overflow, for servers that have no code for it, with the groups `tokens`, `more` and `limit`.
    `remedy` ends the advice on an overflow. `request_id` is the header with the id of a request.
    `members` are the server's own names for the members `error`, `message`, `type` and `code`.

    Where tables do not suffice, a subclass overrides a method.
    """

    statuses: Mapping[int, type[ProviderError]] = {}
    types: Mapping[str, type[ProviderError]] = {}
    codes: Mapping[str, type[ProviderError]] = {}
    overflows: tuple[re.Pattern[str], ...] = ()
    telling: tuple[int, ...] = (401, 402, 403, 404, 413, 429)
    remedy: str = "with a model that has a larger context"
    request_id: str = "x-request-id"
    members: Mapping[str, str] = {}

    def parse(self, body: bytes) -> ErrorObject:
        """What the body of an answer says of its error; empty where it says nothing."""
        try:
            reported = self._rename(parse_object(body))
        except ValueError:
            return ErrorObject()
        if isinstance(reported.get("error"), dict):
            reported["error"] = self._rename(reported["error"])
        return find_error(reported) or read_object(reported)

    def is_misplaced(self, status: int, error: ErrorObject, body: bytes) -> bool:
        """Whether nothing of this interface is at the address, rather than no such model."""
        del body
        return status == 404 and not error.message and not error.type

    def refine(
        self, kind: type[ProviderError], message: str, provider: str, model: str
    ) -> tuple[type[ProviderError], str]:
        """The class that the words of an error show, and advice in place of the usual."""
        return kind, ""

    def find_overflow(
        self, kind: type[ProviderError], error: ErrorObject, message: str
    ) -> tuple[int | None, int | None] | None:
        """The tokens and the limit of an overflow, as far as it names them, or `None`."""
        found = next((found for one in self.overflows if (found := one.search(message))), None)
        if found is None:
            return (error.tokens, error.limit) if kind is ContextOverflow else None
        sizes = {name: read_number(text) for name, text in found.groupdict().items()}
        tokens = sizes.get("tokens")
        if tokens is not None:
            tokens += sizes.get("more") or 0
        return error.tokens or tokens, error.limit or sizes.get("limit")

    def read_wait(self, kind: type[ProviderError], headers: Mapping[str, str]) -> float | None:
        """The seconds to wait before another attempt, where the headers say so."""
        return read_retry_after(headers)

    def read(
        self,
        provider: str,
        status: int,
        headers: Mapping[str, str],
        body: bytes,
        *,
        model: str = "",
        size: int = 0,
    ) -> ProviderError:
        """The error of an answer whose status is not success; `size` is the bytes of the request.

        `ReplyMalformed` for an answer that does not come from such an interface.
        """
        if 300 <= status < 400:
            return refuse_redirect(provider, status, headers)
        error = self.parse(body)
        message = error.message or describe_answer(status, headers, body)
        if self.is_misplaced(status, error, body):
            words = describe_answer(status, headers, body)
            return ReplyMalformed(f"{words}; is base-url right?", provider=provider, status=status)
        if status == 413 and size:
            message += f" (it has {size} bytes)"
        request_id = headers.get(self.request_id, "") or error.request_id
        error = msgspec.structs.replace(error, message=message, request_id=request_id)
        made = self.produce(provider, error, status=status, model=model)
        if isinstance(made, RateLimited | ProviderOverloaded):
            made.retry_after = self.read_wait(type(made), headers)
        return made

    def produce(
        self, provider: str, error: ErrorObject, *, status: int | None = None, model: str = ""
    ) -> ProviderError:
        """The error that a server reports, in a body or in the middle of a stream."""
        message = clear_words(error.message).strip() or error.code or error.type or "an error"
        kind = self._classify(error, status)
        about: dict[str, Any] = {"provider": provider, "status": status}
        about["request_id"] = error.request_id
        if (sizes := self.find_overflow(kind, error, message)) is not None:
            overflow = ContextOverflow(
                f"the history is too long for this model ({message}); continue in a fork from "
                f"an earlier message, or {self.remedy}",
                code="context_overflow",
                **about,
            )
            overflow.tokens, overflow.limit = sizes
            return overflow
        kind, advice = self.refine(kind, message, provider, model)
        words = f"{message}{advice or advise(kind, provider)}"
        return kind(words, code=error.code or error.type, **about)

    def _rename(self, value: dict[str, Any]) -> dict[str, Any]:
        named = {usual: value[own] for usual, own in self.members.items() if own in value}
        return {**value, **named}

    def _classify(self, error: ErrorObject, status: int | None) -> type[ProviderError]:
        kind = self.codes.get(error.code) or self.types.get(error.type)
        if error.status is not None and (status is None or status >= 500):
            # The server failed, but at what the request says: sent again it would fail again.
            status = error.status
            kind = None if kind is ProviderOverloaded else kind
        failed = status is None or status >= 500
        usual = ProviderOverloaded if failed else RequestRefused
        known = self.statuses.get(status or 0) or STATUSES.get(status or 0)
        if kind is RequestRefused and status in self.telling:
            kind = self.codes.get(error.code) or known
        return kind or known or usual


def read_object(value: Any) -> ErrorObject:
    """An error object in any of the forms that servers send: an object, a text, nothing."""
    value = repair(value)
    if not isinstance(value, dict):
        value = {"message": value} if value else {}
    message = value.get("message") or value.get("msg") or value.get("detail") or ""
    code = value.get("code")
    words = message if isinstance(message, str) else msgspec.json.encode(message).decode()
    return ErrorObject(
        words,
        read_word(value.get("type")),
        "" if isinstance(code, int) else read_word(code),
        "",
        422 if _lists_problems(message) or _INVALID.search(words) else _read_status(code),
        read_number(value.get("n_prompt_tokens")),
        read_number(value.get("n_ctx")),
    )


def find_error(body: Mapping[str, Any]) -> ErrorObject | None:
    """The error that a JSON object of a server holds, if it holds one.

    OpenAI's have `error`; old vLLM's are the object itself, those of FastAPI have `detail`.
    """
    if body.get("error"):
        return read_object(body["error"])
    if body.get("object") == "error" or body.get("type") == "error":
        return read_object(body)
    if "detail" in body and "choices" not in body and "output" not in body:
        return read_object(body["detail"]) if body["detail"] else None
    return None


def read_word(value: object) -> str:
    """The name of an error, fit to be shown; empty where it is no text."""
    return clear_words(value) if isinstance(value, str) else ""


def read_number(value: object) -> int | None:
    """A number of tokens, or its digits."""
    if isinstance(value, str):
        return int(value) if value.isdecimal() and len(value) <= _MOST_DIGITS else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _lists_problems(value: object) -> bool:
    """Whether this is what FastAPI and pydantic say of a request that does not fit its schema."""
    return isinstance(value, list) and any(
        isinstance(one, dict) and {"loc", "msg", "type"} <= one.keys() for one in value
    )


def _read_status(code: object) -> int | None:
    """The status in the 400s that a code is, as a number or its digits."""
    text = str(code) if isinstance(code, int | str) else ""
    return int(text) if re.fullmatch(r"4[0-9]{2}", text, re.ASCII) else None


def advise(kind: type[ProviderError], provider: str) -> str:
    """What to do about an error, in words that end its message; perhaps nothing."""
    return _ADVICE.get(kind, "").replace("NAME", provider)


def clear_words(text: str) -> str:
    """What a server says of an error, as it may be shown and looked through: cut, without keys."""
    cleared = redact(repair_text(text[: _LONGEST_WORDS + _LONGEST_KEY]))
    return cleared if len(cleared) <= _LONGEST_WORDS else f"{cleared[:_LONGEST_WORDS]}…"


def describe_answer(status: int, headers: Mapping[str, str], body: bytes) -> str:
    """An answer that has no message of its own, in words."""
    text = body[:200].decode("utf-8", "replace").strip()
    if "html" in headers.get("content-type", "") or text[:1] == "<":
        return f"the server answered with status {status} and a web page"
    return f"the server answered with status {status}" + (f": {redact(text)!r}" if text else "")


def refuse_redirect(provider: str, status: int, headers: Mapping[str, str]) -> ReplyMalformed:
    """The error of an answer that sends us elsewhere."""
    target = headers.get("location", "elsewhere")
    return ReplyMalformed(
        f"the server redirects to {redact(target)}; no key is sent there. Mend base-url.",
        provider=provider,
        status=status,
    )


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that an answer asks us to wait: a number or a date of `retry-after`."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name, "")
        try:
            seconds = float(text) * scale
        except ValueError:
            seconds = _until(text)
        if 0 <= seconds < math.inf:
            return seconds
    return None


def _until(text: str) -> float:
    """Seconds until a date as headers have it; infinity where it is none."""
    date = parsedate_tz(text)
    try:
        return math.inf if date is None else max(mktime_tz(date) - time.time(), 0.0)
    except (ValueError, OverflowError):
        return math.inf


def read_reset(headers: Mapping[str, str]) -> float | None:
    """The seconds until the limits that are used up are so no more: `x-ratelimit-reset-…`.

    Only those whose `x-ratelimit-remaining-…` is 0 count; the last of them decides.
    """
    waits = [
        wait
        for name, text in headers.items()
        if name.startswith("x-ratelimit-reset-")
        and headers.get(name.replace("-reset-", "-remaining-"), "").strip() == "0"
        and (wait := read_span(text)) is not None
    ]
    return max(waits, default=None)


def read_span(text: str) -> float | None:
    """A span of time as servers write it, in seconds; `None` where it is none.

    >>> [read_span(text) for text in ("6m0s", "20ms", "1.5s", "7", "soon")]
    [360.0, 0.02, 1.5, 7.0, None]
    """
    text = text.strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    seconds, place = 0.0, 0
    while found := _SPAN.match(text, place):
        seconds += float(found[1]) * _UNITS[found[2]]
        place = found.end()
    return seconds if place and place == len(text) else None
