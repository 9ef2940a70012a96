"""The errors of Gemini's interface: Google's status words, and the reasons in their details.

Source: https://ai.google.dev/gemini-api/docs/troubleshooting, and `ErrorReason` of
https://github.com/googleapis/googleapis/blob/master/google/api/error_reason.proto (2026-11).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from vibe_llms.base.exceptions import (
    CredentialRefused,
    PaymentRequired,
    ProviderError,
    RateLimited,
    RequestRefused,
    RequestTooLarge,
)
from vibe_llms.providers.http_errors import ErrorMap, ErrorObject, Remedy, read_word
from vibe_llms.providers.repairs import parse_value

#: Reasons of `google.rpc.ErrorInfo`, where the status alone means something else.
BY_REASON: Mapping[str, type[ProviderError]] = {
    **dict.fromkeys(
        ("API_KEY_INVALID", "API_KEY_EXPIRED", "API_KEY_NOT_FOUND", "ACCESS_TOKEN_EXPIRED",
         "ACCESS_TOKEN_TYPE_UNSUPPORTED", "ACCOUNT_STATE_INVALID", "CREDENTIALS_MISSING"),
        CredentialRefused,
    ),
    "BILLING_DISABLED": PaymentRequired,
    "RATE_LIMIT_EXCEEDED": RateLimited,
}  # fmt: skip
#: Files of the Files API that have expired, or belong to another key, are answered with 403.
_FILE = re.compile(r"\bFile \S+ or it may not exist|permission to access the File", re.I)
REMEDIES = (
    Remedy(r"request payload size exceeds", kind=RequestTooLarge),
    Remedy(
        r"\blimit: 0(?!\.?\d)|doesn't have a free quota tier",
        "the project's quota for this model is 0: enable billing at "
        "https://aistudio.google.com, or choose another model: vibe-llms models NAME",
        PaymentRequired,
    ),
    Remedy(
        r"location is not supported|not available in your (country|region)",
        "Google does not offer this here, or only with billing; another provider may: "
        "vibe-llms providers",
    ),
    Remedy(
        r"API has not been used in project|requests to this API .{0,200}are blocked",
        "allow the Generative Language API for the project and the key, in Google's console",
    ),
    Remedy(
        r"unsupported mime ?type|unable to process input image",
        "convert the file, such as an image to PNG, or leave it out",
    ),
)


class GeminiErrors(ErrorMap, frozen=True):
    """The errors of Gemini's interface."""

    def parse(self, body: bytes) -> ErrorObject:
        """Parse an error body, with the reason in its details as the code."""
        error = super().parse(body)
        reason = _find_reason(body)
        return msgspec.structs.replace(error, code=reason) if reason else error

    def refine(
        self, kind: type[ProviderError], message: str, provider: str, model: str
    ) -> tuple[type[ProviderError], str]:
        """Return the class of an error, and what to do."""
        if kind is CredentialRefused and _FILE.search(message):
            return RequestRefused, " (attach the file again)"
        return super().refine(kind, message, provider, model)


def is_gone(error: ProviderError) -> bool:
    """Return True if a file that the request names is gone."""
    return isinstance(error, RequestRefused) and _FILE.search(str(error)) is not None


def _find_reason(body: bytes) -> str:
    """Return a known reason in the details of an error, or an empty text."""
    try:
        value: Any = parse_value(body)
    except ValueError:
        return ""
    value = value[0] if isinstance(value, list) and value else value
    error = value.get("error") if isinstance(value, dict) else None
    details = error.get("details") if isinstance(error, dict) else None
    for detail in details if isinstance(details, list) else ():
        reason = read_word(detail.get("reason")) if isinstance(detail, dict) else ""
        if reason in BY_REASON:
            return reason
    return ""


ERRORS = GeminiErrors(codes=BY_REASON, remedies=REMEDIES)
