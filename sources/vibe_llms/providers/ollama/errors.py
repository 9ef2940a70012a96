"""The errors of Ollama, told apart by their status, and by their words where there is no more.

An error has no type or code, only words, and in the middle of a stream not even a status.

Source: `server/routes.go` and `llm/llama_server.go` of the server; the classes of the package
ollama 0.6.3, which `tests/providers/ollama/test_errors.py` compares with this table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Raw, Struct, json

from vibe_llms.exceptions import (
    ContextOverflow,
    CredentialRefused,
    ModelUnavailable,
    PaymentRequired,
    ProviderError,
    ProviderOverloaded,
    ProviderUnreachable,
    RateLimited,
    ReplyMalformed,
    RequestRefused,
    RequestTooLarge,
)
from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.refusals import (
    advise,
    clear_words,
    describe_answer,
    read_retry_after,
    refuse_redirect,
)
from vibe_llms.redaction import redact

BY_STATUS: dict[int, type[ProviderError]] = {
    400: RequestRefused,
    401: CredentialRefused,
    402: PaymentRequired,
    403: CredentialRefused,
    404: ModelUnavailable,
    408: ProviderOverloaded,
    409: ProviderOverloaded,
    413: RequestTooLarge,
    422: RequestRefused,
    429: RateLimited,
    499: ProviderOverloaded,
}

_OVERFLOW = re.compile(
    r"exceeds? the (?:available )?context|longer than the context|exceed_context_size"
    r"|exceeds? (?:maximum )?context (?:length|size|window)|prompt is too long",
    re.IGNORECASE,
)
_SIZES = re.compile(r"\((\d{1,12}) tokens\)")
# Sent again it would be refused again, although the status says that the server failed.
_MEMORY = re.compile(
    r"more system memory|out of memory|cudaMalloc failed|insufficient memory", re.I
)


class _ErrorBody(Struct):
    error: Raw = Raw(b'""')


class _ErrorObject(Struct):
    message: str = ""


_BODY = json.Decoder(_ErrorBody)


def read_error(
    provider: str,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    model: str = "",
    size: int = 0,
) -> ProviderError:
    """The error of an answer whose status is not success; `size` is the bytes of the request."""
    message = read_message(body)
    if 300 <= status < 400:
        return refuse_redirect(provider, status, headers)
    if not message:
        message = describe_answer(status, headers, body)
        if status in (404, 405):
            return ReplyMalformed(
                f"{message}; is base-url right?", provider=provider, status=status
            )
    if status == 413 and size:
        message += f" (it has {size} bytes)"
    error = produce_error(provider, message, status=status, model=model)
    if isinstance(error, RateLimited | ProviderOverloaded):
        error.retry_after = read_retry_after(headers)
    return error


def read_message(body: bytes) -> str:
    """The words of an error body; empty where it is none."""
    try:
        raw = bytes(_BODY.decode(body).error)
        if raw[:1] == b'"':
            return repair_text(json.decode(raw, type=str))
        return repair_text(json.decode(raw, type=_ErrorObject).message)
    except (ValueError, RecursionError):
        return ""


def produce_error(
    provider: str, message: str, *, status: int | None = None, model: str = ""
) -> ProviderError:
    """The error of the server's words, from a body or from the middle of a stream."""
    message = clear_words(message).strip()
    kind = BY_STATUS.get(status) if status is not None else None
    if kind is None:
        kind = RequestRefused if status is not None and status < 500 else ProviderOverloaded
    advice = ""
    if _OVERFLOW.search(message):
        return _produce_overflow(provider, message, status)
    if _misses_model(message) and kind in (ModelUnavailable, ProviderOverloaded, RequestRefused):
        kind, advice = ModelUnavailable, f" (pull it: ollama pull {model or 'NAME'})"
    elif kind is ModelUnavailable:
        kind = RequestRefused
    elif kind is CredentialRefused:
        advice = f" (sign in with `ollama signin`, or set a key: vibe-llms keys set {provider})"
    elif _MEMORY.search(message) and kind is ProviderOverloaded:
        kind = RequestRefused
        advice = " (take a smaller model, or a smaller num-ctx in the row)"
    return kind(f"{message}{advice or advise(kind, provider)}", provider=provider, status=status)


def _misses_model(message: str) -> bool:
    small = message.lower()
    return "try pulling it first" in small or "not found" in small.partition("model ")[2]


def advise_unreachable(error: ProviderUnreachable, address: str) -> ProviderUnreachable:
    """The same error with what to do about a server that does not answer."""
    return ProviderUnreachable(
        f"no server answers at {redact(address)}; is it running? Start it: ollama serve",
        provider=error.provider,
        code="not_running",
    )


def _produce_overflow(provider: str, message: str, status: int | None) -> ContextOverflow:
    error = ContextOverflow(
        f"the history is too long for this model ({message}); go on in a fork of an earlier "
        "point, or with a larger num-ctx or another model",
        provider=provider,
        status=status,
        code="context_overflow",
    )
    match _SIZES.findall(message):
        case [tokens, limit, *_]:
            error.tokens, error.limit = int(tokens), int(limit)
    return error
