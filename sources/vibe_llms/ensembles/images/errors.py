"""What a server of pictures answers when it makes none, told apart by status and code.

Source: the codes of images in `openai.types` 3.54.0, and
https://developers.openai.com/api/docs/guides/error-codes (2026-11).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from vibe_llms.exceptions import (
    CredentialRefused,
    PaymentRequired,
    ProviderError,
    ProviderOverloaded,
    RateLimited,
    RequestRefused,
)
from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.refusals import (
    describe_answer,
    read_reset,
    read_retry_after,
    refuse_redirect,
)
from vibe_llms.redaction import redact

_PAYMENT = ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active")
_POLICY = ("moderation_blocked", "content_policy_violation", "image_generation_user_error")


def read_error(
    provider: str, status: int, headers: Mapping[str, str], body: bytes
) -> ProviderError:
    """The error of an answer that is no success, in words that a model can act on."""
    if 300 <= status < 400:
        return refuse_redirect(provider, status, headers)
    message, code = _read_words(body)
    words = redact(repair_text(message)) or describe_answer(status, headers, body)
    about: dict[str, Any] = {
        "provider": provider,
        "status": status,
        "code": code,
        "request_id": headers.get("x-request-id", ""),
    }
    if code in _PAYMENT or status == 402:
        return PaymentRequired(words, **about)
    if code in _POLICY:
        return RequestRefused(f"{words} (its rules forbid this picture; ask for another)", **about)
    match status:
        case 401 | 403:
            return CredentialRefused(words, **about)
        case 429 | 503 | 529:
            kind = RateLimited if status == 429 else ProviderOverloaded
            made = kind(words, **about)
            made.retry_after = read_retry_after(headers) or read_reset(headers)
            return made
        case _ if status < 500:
            return RequestRefused(words, **about)
        case _:
            return ProviderError(words, **about)


def _read_words(body: bytes) -> tuple[str, str]:
    try:
        told = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "", ""
    error = told.get("error", told) if isinstance(told, dict) else {}
    if isinstance(error, str):
        return error, ""
    if not isinstance(error, dict):
        return "", ""
    message, code = error.get("message") or error.get("detail"), error.get("code")
    return (
        message if isinstance(message, str) else "",
        code if isinstance(code, str) else str(error.get("type") or ""),
    )
