"""Errors of this library as errors of the protocol."""

from __future__ import annotations

from typing import Any

from vibe_llms.acp.rpc import INTERNAL_ERROR, INVALID_PARAMS, NOT_FOUND, RpcError
from vibe_llms.base.exceptions import (
    ConversationNotFound,
    RequestError,
    VibeLlmsError,
    find_wait,
)
from vibe_llms.base.redaction import redact

#: Codes by class of error; the first matching row is used.
_CODES: tuple[tuple[type[VibeLlmsError], int], ...] = (
    (ConversationNotFound, NOT_FOUND),
    (RequestError, INVALID_PARAMS),
)


def explain(error: Exception) -> RpcError:
    """Return the error that the client gets, without keys."""
    if not isinstance(error, VibeLlmsError):
        reason = error.strerror if isinstance(error, OSError) else ""
        text = redact(reason or f"{type(error).__name__}: {error} (a bug)")
        return RpcError(INTERNAL_ERROR, text)
    code = next((code for kind, code in _CODES if isinstance(error, kind)), INTERNAL_ERROR)
    data: dict[str, Any] = {"kind": error.kind}
    if (seconds := find_wait(error)) is not None:
        data["retryAfter"] = seconds
    return RpcError(code, redact(str(error)), data)
