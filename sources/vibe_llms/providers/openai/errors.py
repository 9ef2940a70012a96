"""The errors of OpenAI's interfaces and of compatible servers, by type, code and status.

Source: the classes in `openai._exceptions` and the codes in `types/responses/response_error.py` of
openai 3.54.0; https://developers.openai.com/api/docs/guides/error-codes (2026-11).
`tests/providers/openai/test_errors.py` fails when the package has one that these tables lack.
"""

from __future__ import annotations

from collections.abc import Mapping

from vibe_llms.base.exceptions import (
    ContextOverflow,
    CredentialRefused,
    ModelUnavailable,
    PaymentRequired,
    ProviderError,
    ProviderOverloaded,
    RateLimited,
    RequestRefused,
    RequestTooLarge,
)
from vibe_llms.providers.http_errors import ErrorMap, read_reset

BY_TYPE: dict[str, type[ProviderError]] = {
    "invalid_request_error": RequestRefused,
    "BadRequestError": RequestRefused,
    "authentication_error": CredentialRefused,
    "permission_error": CredentialRefused,
    "not_found_error": ModelUnavailable,
    "NotFoundError": ModelUnavailable,
    "insufficient_quota": PaymentRequired,
    "rate_limit_error": RateLimited,
    "requests": RateLimited,
    "tokens": RateLimited,
    "server_error": ProviderOverloaded,
    "api_error": ProviderOverloaded,
    "overloaded_error": ProviderOverloaded,
    "service_unavailable_error": ProviderOverloaded,
    "unavailable_error": ProviderOverloaded,
    "exceed_context_size_error": ContextOverflow,
}

#: Error codes say more than type and status: a used-up quota, for example, has the status of a rate
#: limit, though waiting does not help.
BY_CODE: dict[str, type[ProviderError]] = {
    "insufficient_quota": PaymentRequired,
    "billing_hard_limit_reached": PaymentRequired,
    "billing_not_active": PaymentRequired,
    "invalid_api_key": CredentialRefused,
    "account_deactivated": CredentialRefused,
    "unsupported_country_region_territory": CredentialRefused,
    "invalid_organization": CredentialRefused,
    "model_not_found": ModelUnavailable,
    "model_not_available": ModelUnavailable,
    # The router of Hugging Face, and Copilot: https://github.com/cline/cline/issues/5098.
    "model_not_supported": ModelUnavailable,
    "context_length_exceeded": ContextOverflow,
    "exceed_context_size_error": ContextOverflow,
    "request_too_large": RequestTooLarge,
    "max_tokens_per_request": RequestTooLarge,
    "rate_limit_exceeded": RateLimited,
    "server_error": ProviderOverloaded,
    "vector_store_timeout": ProviderOverloaded,
    "previous_response_not_found": RequestRefused,
    **dict.fromkeys(
        (
            "invalid_prompt",
            "data_residency_mismatch",
            "bio_policy",
            "misalignment_policy_violation",
            "content_policy_violation",
            "content_filter",
            "invalid_image",
            "invalid_image_format",
            "invalid_base64_image",
            "invalid_image_url",
            "image_too_large",
            "image_too_small",
            "image_parse_error",
            "image_content_policy_violation",
            "invalid_image_mode",
            "image_file_too_large",
            "unsupported_image_media_type",
            "empty_image_file",
            "failed_to_download_image",
            "image_file_not_found",
        ),
        RequestRefused,
    ),
}


class OpenAIErrors(ErrorMap, frozen=True):
    """The errors of both interfaces, in the forms of all servers that speak them."""

    def read_wait(self, kind: type[ProviderError], headers: Mapping[str, str]) -> float | None:
        """Return the seconds to wait, from `retry-after` or until exhausted limits reset."""
        wait = super().read_wait(kind, headers)
        return read_reset(headers) if wait is None and kind is RateLimited else wait


ERRORS = OpenAIErrors(types=BY_TYPE, codes=BY_CODE)
