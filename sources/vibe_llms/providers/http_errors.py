"""Errors of HTTP servers: one table from status, type, and code to our errors.

An `ErrorMap` has the entries that all servers share; a provider adds its own:

```python
errors = ErrorMap({404: ModelUnavailable}, codes={"no_funds": PaymentRequired})
```
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from email.utils import mktime_tz, parsedate_tz
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import (
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
from vibe_llms.base.redaction import LONGEST_KEY, quote, redact
from vibe_llms.messages.contents import repair_text
from vibe_llms.providers import error_words
from vibe_llms.providers.content_filters import find_refused
from vibe_llms.providers.error_words import find_wait, read_number
from vibe_llms.providers.repairs import parse_value, repair

#: Statuses that mean the same at all servers; others below 500 refuse the request.
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
#: Types and codes that mean the same at all servers, for errors in streams, without a status.
TYPES: Mapping[str, type[ProviderError]] = {
    **dict.fromkeys(
        ("invalid_request_error", "invalid_request", "bad_request", "badrequesterror",
         "validation_error", "unprocessable_entity", "invalid_argument", "failed_precondition",
         "out_of_range"),
        RequestRefused,
    ),
    **dict.fromkeys(
        ("authentication_error", "unauthenticated", "unauthorized", "invalid_api_key",
         "permission_error", "permission_denied", "forbidden"),
        CredentialRefused,
    ),
    **dict.fromkeys(
        ("not_found_error", "not_found", "notfounderror", "model_not_found"), ModelUnavailable
    ),
    **dict.fromkeys(
        ("insufficient_quota", "billing_error", "payment_required", "insufficient_credits",
         "insufficient_balance"),
        PaymentRequired,
    ),
    **dict.fromkeys(
        ("rate_limit_error", "rate_limit_exceeded", "resource_exhausted", "too_many_requests"),
        RateLimited,
    ),
    **dict.fromkeys(
        ("context_length_exceeded", "exceed_context_size_error", "context_window_exceeded",
         "model_context_window_exceeded"),
        ContextOverflow,
    ),
    "request_too_large": RequestTooLarge,
}  # fmt: skip
#: HTTP statuses (4xx) of Google's status words.
_RPC_STATUSES: Mapping[str, int] = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
}
#: Source: https://platform.minimax.io/docs/api-reference/errorcode (2026-11).
_MINIMAX: Mapping[int, str] = {
    1002: "rate_limit_error", 1039: "rate_limit_error", 1041: "rate_limit_error",
    1004: "authentication_error", 2049: "authentication_error",
    1008: "insufficient_balance", 2056: "insufficient_balance",
    1026: "invalid_request_error", 1027: "invalid_request_error", 2013: "invalid_request_error",
}  # fmt: skip
#: Members in which servers put the message of an error, its status, and the time to wait.
_MESSAGES = (
    "message", "msg", "detail", "error_message", "errorMessage", "error_description",
    "description", "error", "reason", "title", "status_msg",
)  # fmt: skip
_STATUS_MEMBERS = (
    "code", "status", "status_code", "statusCode", "http_status", "http_code", "httpStatus",
    "error_code",
)  # fmt: skip
_WAITS: Mapping[str, float] = {
    "retrydelay": 1.0, "retryafter": 1.0, "retryafterseconds": 1.0, "retryafterms": 0.001,
    "retryinseconds": 1.0, "estimatedtime": 1.0, "waitseconds": 1.0, "resetafter": 1.0,
}  # fmt: skip
#: Members that only replies have.
_REPLY_MEMBERS = ("choices", "output", "content", "delta", "usage", "candidates", "response")
#: Advice at the end of a message; NAME is replaced by the provider's row.
_ADVICE: dict[type[ProviderError], str] = {
    CredentialRefused: " (set another key: vibe-llms keys set NAME)",
    ModelUnavailable: " (list the models: vibe-llms models NAME; is base-url right?)",
    RequestTooLarge: " (compact the conversation, or leave images and files out)",
    RateLimited: "; try again later",
    ProviderOverloaded: "; try again later",
}
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)(ms|s|m|h|d)")
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,12})?")
#: Maximum length in characters of a server's message.
_LONGEST_WORDS = 4_000


#: Waits from here on are ignored, in any unit.
_MOST_WAIT = 1e12
#: Number of members of an object that are searched for the time to wait.
_MOST_MEMBERS = 50
# llama-cpp-python's server shows these only in the text of pydantic's and FastAPI's errors.
_INVALID = re.compile(r"\A\d{1,6} validation errors?\b|'loc': \('body'")
_NOWHERE = re.compile(rb'\s*\{\s*"detail"\s*:\s*"Not Found"\s*\}\s*')


class ErrorObject(Struct, frozen=True):
    """Error as a server reports it, in a body or in the middle of a stream.

    `status` is a 4xx status that the object itself names, independent of the response's status.
    `tokens` and `limit` are the sizes of an overflow. `wait` is the seconds before another attempt.
    """

    message: str = ""
    type: str = ""
    code: str = ""
    request_id: str = ""
    status: int | None = None
    tokens: int | None = None
    limit: int | None = None
    wait: float | None = None


class Remedy(Struct, frozen=True):
    """Advice on an error whose message has certain words.

    `words` is a regular expression, without regard to case. In `advice`, NAME stands for the row
    and 'MODEL' for the model. `kind` replaces the class of the error.
    """

    words: str
    advice: str = ""
    kind: type[ProviderError] | None = None


class ErrorMap(Struct, frozen=True):
    """Errors of one interface: its own statuses, types, and codes over those of all.

    A code overrides a type, and a type overrides a status. A type that only says that the request
    is refused gives way to the statuses in `telling`. If these do not distinguish a bad request
    from a failing server, the message decides; see `error_words`. `overflows` are further patterns
    of an overflow, with the groups `tokens`, `more`, and `limit`. `remedy` ends the advice on an
    overflow; of `remedies`, the first that fits is the advice on another error, and `doubt` is the
    advice on an address that the server does not know. `request_id` is the header with the id of a
    request. `members` are the server's own names for `error`, `message`, `type`, and `code`. If
    tables do not suffice, override a method.
    """

    statuses: Mapping[int, type[ProviderError]] = {}
    types: Mapping[str, type[ProviderError]] = {}
    codes: Mapping[str, type[ProviderError]] = {}
    overflows: tuple[re.Pattern[str], ...] = ()
    telling: tuple[int, ...] = (401, 402, 403, 404, 413, 429)
    remedy: str = "with a model that has a larger context"
    request_id: str = "x-request-id"
    members: Mapping[str, str] = {}
    remedies: tuple[Remedy, ...] = ()
    doubt: str = "is base-url right?"

    def parse(self, body: bytes) -> ErrorObject:
        """Parse an error body; return an empty `ErrorObject` if it has no error."""
        try:
            value = parse_value(body)
        except ValueError:
            return ErrorObject()
        if isinstance(value, list):
            # Gemini sends errors in a list.
            value = next((one for one in value if isinstance(one, dict)), None)
        if not isinstance(value, dict):
            return ErrorObject()
        reported = self._rename(value)
        if isinstance(reported.get("error"), dict):
            reported["error"] = self._rename(reported["error"])
        return find_error(reported) or read_object(reported)

    def is_misplaced(self, status: int, error: ErrorObject, body: bytes) -> bool:
        """Return True if the address, not the model, is unknown to the server."""
        silent = not (error.message or error.type or error.code)
        # Sent by FastAPI and by llama.cpp.
        nowhere = _NOWHERE.fullmatch(body) or error.message == "File Not Found"
        return status == 404 and bool(silent or nowhere)

    def refine(
        self, kind: type[ProviderError], message: str, provider: str, model: str
    ) -> tuple[type[ProviderError], str]:
        """Return a more specific error class, and advice that replaces the default."""
        for one in self.remedies:
            if re.search(one.words, message, re.IGNORECASE | re.DOTALL):
                advice = one.advice.replace("NAME", provider).replace("'MODEL'", repr(model))
                return one.kind or kind, f" ({advice})" if advice else ""
        return kind, ""

    def find_overflow(
        self, kind: type[ProviderError], error: ErrorObject, message: str
    ) -> tuple[int | None, int | None] | None:
        """Return the tokens and the limit of an overflow, or None; each is None if not named."""
        if self.codes.get(error.code) is RequestRefused:
            return None
        if issubclass(kind, RequestTooLarge):
            # The status of a body with too many bytes, for some servers also of too many tokens.
            told = error.code in self.codes or error.type in self.types
            sizes = None if told else error_words.find_overflow(message)
            return sizes if sizes is not None and sizes[1] is not None else None
        sizes = None
        if issubclass(kind, RequestRefused | ProviderOverloaded):
            # Some servers report an overflow as an internal error.
            sizes = self._find_own_overflow(message) or error_words.find_overflow(message)
        if kind is ContextOverflow:
            sizes = sizes or (None, None)
        return None if sizes is None else (error.tokens or sizes[0], error.limit or sizes[1])

    def _find_own_overflow(self, message: str) -> tuple[int | None, int | None] | None:
        found = next((found for one in self.overflows if (found := one.search(message))), None)
        return None if found is None else error_words.read_sizes(found)

    def read_wait(self, kind: type[ProviderError], headers: Mapping[str, str]) -> float | None:
        """Return the seconds to wait before another attempt, if the headers name them."""
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
        """Return the error of an unsuccessful response to a request of `size` bytes.

        It is a `ReplyMalformed` if the response does not come from such an interface.
        """
        if 300 <= status < 400:
            return refuse_redirect(provider, status, headers)
        error = self.parse(body)
        message = error.message or describe_answer(status, headers, body)
        if self.is_misplaced(status, error, body):
            words = describe_answer(status, headers, body)
            return ReplyMalformed(f"{words}; {self.doubt}", provider=provider, status=status)
        if status == 413 and size:
            message += f" (it has {size} bytes)"
        request_id = headers.get(self.request_id, "") or error.request_id
        error = msgspec.structs.replace(error, message=message, request_id=request_id)
        made = self.produce(provider, error, status=status, model=model)
        if isinstance(made, RateLimited | ProviderOverloaded):
            advised = self.read_wait(type(made), headers)
            made.retry_after = made.retry_after if advised is None else advised
        return self.complete(made, headers)

    def complete(self, error: ProviderError, headers: Mapping[str, str]) -> ProviderError:
        """Return the error of a response, or another one that its headers tell."""
        return error

    def produce(
        self, provider: str, error: ErrorObject, *, status: int | None = None, model: str = ""
    ) -> ProviderError:
        """Return the error that a server reports, in a body or in the middle of a stream."""
        message = clear_words(error.message).strip() or error.code or error.type or "an error"
        kind = self._classify(error, status)
        about: dict[str, Any] = {"provider": provider, "status": status}
        about["request_id"] = error.request_id
        if (sizes := self.find_overflow(kind, error, message)) is not None:
            overflow = ContextOverflow(
                f"the history is too long for this model ({message}); compact the "
                f"conversation, or continue {self.remedy}",
                code="context_overflow",
                **about,
            )
            overflow.tokens, overflow.limit = sizes
            overflow.input_tokens = error_words.find_input(message)
            return overflow
        wait = error.wait if error.wait is not None else find_wait(message)
        if kind in (RequestRefused, ProviderOverloaded) and wait is None:
            failed = kind is ProviderOverloaded or error.code == "tool_use_failed"
            kind = error_words.find_kind(message, failed=failed) or kind
        kind, advice = self.refine(kind, message, provider, model)
        words = f"{message}{advice or advise(kind, provider)}"
        made = kind(words, code=error.code or error.type, **about)
        if isinstance(made, RateLimited | ProviderOverloaded):
            made.retry_after = wait
        return made

    def _rename(self, value: dict[str, Any]) -> dict[str, Any]:
        named = {usual: value[own] for usual, own in self.members.items() if own in value}
        return {**value, **named}

    def _classify(self, error: ErrorObject, status: int | None) -> type[ProviderError]:
        kind = self.codes.get(error.code) or self.types.get(error.type)
        if kind is None and status is None:
            # In a stream, nothing else tells the kind.
            kind = TYPES.get(error.code.lower()) or TYPES.get(error.type.lower())
        if error.status is not None and (status is None or status >= 500):
            # The server failed because of the request, and would fail again.
            status = error.status
            kind = None if kind is ProviderOverloaded else kind
        failed = status is None or status >= 500
        usual = ProviderOverloaded if failed else RequestRefused
        known = self.statuses.get(status or 0) or STATUSES.get(status or 0)
        if kind is RequestRefused and status in self.telling:
            kind = self.codes.get(error.code) or known
        return kind or known or usual


def read_object(value: Any) -> ErrorObject:
    """Read an error object in any form that servers send: an object, a text, nothing."""
    value = repair(value)
    if isinstance(value, list) and len(value) == 1 and not _lists_problems(value):
        value = value[0]
    if not isinstance(value, dict):
        value = {"message": value} if value else {}
    message = next((told for name in _MESSAGES if (told := value.get(name))), "")
    inner = _read_inner(value, message)
    words = message if isinstance(message, str) else msgspec.json.encode(message).decode()
    if inner is not None and inner.message and inner.message not in words:
        # Gateways often say only that there was an error behind them.
        words = inner.message if words[:1] == "{" else f"{words}: {inner.message}"
    inner = inner or ErrorObject()
    if refused := find_refused(value):
        words += f" (content filter: {', '.join(refused)})"
    code, kind = value.get("code"), read_word(value.get("type"))
    details = value.get("details")
    if code is None and isinstance(details, dict):
        code = details.get("error_code")
    status = _find_status(value)
    if not kind and isinstance(value.get("status"), str):
        # Google's form.
        kind = read_word(value["status"])
    invalid = _lists_problems(message) or _INVALID.search(words)
    wait = _find_wait(value)
    return ErrorObject(
        words,
        kind or inner.type,
        ("" if isinstance(code, int) else read_word(code)) or inner.code,
        "",
        422 if invalid else status or inner.status,
        read_number(value.get("n_prompt_tokens")) or inner.tokens,
        read_number(value.get("n_ctx")) or inner.limit,
        inner.wait if wait is None else wait,
    )


def find_error(body: Mapping[str, Any]) -> ErrorObject | None:
    """Find the error in a server's JSON object; return None if it has none.

    OpenAI's objects have `error`, FastAPI's `detail`; old vLLM's are the error itself. Others have
    only a message, in place of all that a reply has.
    """
    found = _find_error(body) if body else None
    if found is None:
        return None
    wait = _find_wait(body) if found.wait is None else found.wait
    request_id = found.request_id or read_word(body.get("request_id"))
    return msgspec.structs.replace(found, wait=wait, request_id=request_id)


def find_event_error(event: Mapping[str, Any]) -> ErrorObject | None:
    """Return the error in an event of an unknown type, or None.

    An event with a message may be news of any kind, unless its type is that of an error.
    """
    kind = event.get("type")
    if isinstance(kind, str) and not (event.get("error") or event.get("errors")):
        kind = kind.lower()
        failed = kind.endswith(("error", "exception")) or kind in TYPES
        if not failed and _find_status(event) is None:
            return None
    return find_error(event)


def _find_error(body: Mapping[str, Any]) -> ErrorObject | None:
    told = body.get("error") or body.get("errors")
    if told is True or (isinstance(told, dict) and not any(told.get(name) for name in _MESSAGES)):
        # The message, or the code, is next to it.
        told = {**body, **(told if isinstance(told, dict) else {}), "error": None}
    if told:
        error = read_object(told)
        status = error.status or _find_status(body)
        return msgspec.structs.replace(error, status=status)
    if body.get("object") == "error" or body.get("type") == "error":
        return read_object(body)
    base = body.get("base_resp")
    if isinstance(base, dict) and base.get("status_code"):
        # MiniMax's form; 0 means no error.
        code = base["status_code"]
        kind = _MINIMAX.get(code, "") if isinstance(code, int) else ""
        return read_object({**base, "type": kind, "code": str(code)})
    if any(body.get(name) not in (None, [], {}) for name in _REPLY_MEMBERS):
        return None
    if "choices" in body and _find_status(body) is None:
        # A chunk that reports progress.
        return None
    if "detail" in body:
        return read_object(body["detail"]) if body["detail"] else None
    if isinstance(body.get("message") or body.get("msg"), str) and "done" not in body:
        return read_object(body)
    return None


def _read_inner(value: Mapping[str, Any], message: object) -> ErrorObject | None:
    """Read another server's error within that of a gateway, as JSON or an object."""
    metadata = value.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    for told in (raw, message):
        inner = told
        if isinstance(told, str) and told.lstrip()[:1] in ("{", "["):
            try:
                inner = parse_value(told)
            except ValueError:
                continue
        if isinstance(inner, list) and inner and isinstance(inner[0], dict):
            inner = inner[0] if not _lists_problems(inner) else None
        if isinstance(inner, dict):
            return find_error(inner) or read_object(inner)
        if isinstance(inner, str) and told is raw and inner:
            return ErrorObject(inner)
    return None


def _find_status(value: Mapping[str, Any]) -> int | None:
    """Find a 4xx status in one of several members."""
    for name in _STATUS_MEMBERS:
        told = value.get(name)
        status = _read_status(told)
        if status is None and isinstance(told, str):
            status = _RPC_STATUSES.get(told.upper())
        if status is not None:
            return status
    return None


def _find_wait(value: object, depth: int = 4) -> float | None:
    """Find the seconds to wait in an error object, in any place that servers use."""
    if isinstance(value, list):
        value = dict(enumerate(value[:_MOST_MEMBERS]))
    if not isinstance(value, dict) or not depth:
        return None
    for name, told in islice(value.items(), _MOST_MEMBERS):
        unit = _WAITS.get(re.sub(r"[^a-z]", "", str(name)[:40].lower()))
        wait = None if unit is None else _read_wait(told, unit)
        if wait is None and isinstance(told, dict | list):
            wait = _find_wait(told, depth - 1)
        if wait is not None:
            return wait
    return None


def _read_wait(told: object, unit: float) -> float | None:
    if isinstance(told, dict):
        told = told.get("seconds")
    if isinstance(told, str):
        seconds = read_span(told)
        plain = _NUMBER.fullmatch(told.strip())
        return seconds * unit if seconds is not None and plain else seconds
    if isinstance(told, bool) or not isinstance(told, int | float):
        return None
    return told * unit if 0 <= told < _MOST_WAIT else None


def read_word(value: object) -> str:
    """Return the name of an error, fit for display; empty if it is not text."""
    return clear_words(value) if isinstance(value, str) else ""


def _lists_problems(value: object) -> bool:
    """Return True if this is a list of validation errors as FastAPI and pydantic write it."""
    return isinstance(value, list) and any(
        isinstance(one, dict) and {"loc", "msg", "type"} <= one.keys() for one in value
    )


def _read_status(code: object) -> int | None:
    """Return the 4xx status that a code is, as a number or as digits."""
    text = str(code) if isinstance(code, int | str) else ""
    return int(text) if re.fullmatch(r"4[0-9]{2}", text, re.ASCII) else None


def advise(kind: type[ProviderError], provider: str) -> str:
    """Return advice on an error, to end its message; it may be empty."""
    return _ADVICE.get(kind, "").replace("NAME", provider)


def clear_words(text: str) -> str:
    """Return a server's message for display and searching: shortened, without keys."""
    cleared = redact(repair_text(text[: _LONGEST_WORDS + LONGEST_KEY]))
    return cleared if len(cleared) <= _LONGEST_WORDS else f"{cleared[:_LONGEST_WORDS]}…"


def describe_answer(status: int, headers: Mapping[str, str], body: bytes) -> str:
    """Describe a response that has no message of its own."""
    text = body.strip()
    if "html" in headers.get("content-type", "") or text[:1] == b"<":
        return f"the server answered with status {status} and a web page"
    return f"the server answered with status {status}" + (f": {quote(text, 200)}" if text else "")


def refuse_redirect(provider: str, status: int, headers: Mapping[str, str]) -> ReplyMalformed:
    """Return the error of a redirect."""
    target = headers.get("location", "elsewhere")
    return ReplyMalformed(
        f"the server redirects to {redact(target)}; keys are not sent there. Fix base-url.",
        provider=provider,
        status=status,
    )


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait, from a number or a date in `retry-after`."""
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
    """Return the seconds until a date in a header; infinity if it is invalid."""
    date = parsedate_tz(text)
    try:
        return math.inf if date is None else max(mktime_tz(date) - time.time(), 0.0)
    except (ValueError, OverflowError):
        return math.inf


def read_reset(headers: Mapping[str, str]) -> float | None:
    """Return the seconds until exhausted limits are reset, from `x-ratelimit-reset-…`.

    Only limits whose `x-ratelimit-remaining-…` is 0 count; the last of them decides.
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
    """Convert a span of time as servers write it to seconds; return `None` if it is invalid.

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
