"""Errors of an image server, by status and code.

Source: the codes of images in `openai.types` 3.54.0, and
https://developers.openai.com/api/docs/guides/error-codes (2026-11).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from vibe_llms.base.exceptions import (
    PaymentRequired,
    ProviderError,
    ProviderOverloaded,
    RequestRefused,
)
from vibe_llms.providers.http_errors import ErrorMap, ErrorObject, read_reset

_POLICY = ("moderation_blocked", "content_policy_violation", "image_generation_user_error")
_KINDS: Mapping[str, type[ProviderError]] = {
    "insufficient_quota": PaymentRequired,
    "billing_hard_limit_reached": PaymentRequired,
    "billing_not_active": PaymentRequired,
    **dict.fromkeys(_POLICY, RequestRefused),
}
_STATUSES: Mapping[int, type[ProviderError]] = {
    **dict.fromkeys((404, 408, 409, 413, 499), RequestRefused),
    # The image may have been made and charged: retry only if the server says "later".
    **dict.fromkeys(range(500, 600), ProviderError),
    503: ProviderOverloaded,
    529: ProviderOverloaded,
}


class ImageErrors(ErrorMap, frozen=True):
    """The errors of an image server, in words that a model can act on."""

    def produce(
        self, provider: str, error: ErrorObject, *, status: int | None = None, model: str = ""
    ) -> ProviderError:
        """Return the error of an answer; its message says if the server forbids the image."""
        if (error.code or error.type) in _POLICY:
            words = f"{error.message} (the provider's policy forbids this image; request another)"
            error = msgspec.structs.replace(error, message=words)
        return super().produce(provider, error, status=status, model=model)

    def read_wait(self, kind: type[ProviderError], headers: Mapping[str, str]) -> float | None:
        """Return the seconds to wait, including the time until used-up limits are reset."""
        wait = super().read_wait(kind, headers)
        return read_reset(headers) if wait is None else wait


ERRORS = ImageErrors(statuses=_STATUSES, types=_KINDS, codes=_KINDS, telling=())
