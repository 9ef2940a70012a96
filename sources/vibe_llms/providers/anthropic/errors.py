"""The errors of Anthropic's interface, told apart by their type and status.

Source: the classes in `anthropic._exceptions` and the names in `anthropic.types.shared.error_type`
of anthropic 2.12.0; `tests/providers/anthropic/test_errors.py` fails when the package grows one
that this table does not know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct, json

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
from vibe_llms.providers.refusals import (
    advise,
    clear_words,
    describe_answer,
    read_retry_after,
    refuse_redirect,
)

BY_TYPE: dict[str, type[ProviderError]] = {
    "invalid_request_error": RequestRefused,
    "authentication_error": CredentialRefused,
    "billing_error": PaymentRequired,
    "permission_error": CredentialRefused,
    "not_found_error": ModelUnavailable,
    "request_too_large": RequestTooLarge,
    "rate_limit_error": RateLimited,
    "timeout_error": ProviderOverloaded,
    "api_error": ProviderOverloaded,
    "overloaded_error": ProviderOverloaded,
    "conflict_error": ProviderOverloaded,
    "memory_precondition_failed_error": RequestRefused,
    "memory_path_conflict_error": RequestRefused,
}

BY_STATUS: dict[int, type[ProviderError]] = {
    400: RequestRefused,
    401: CredentialRefused,
    402: PaymentRequired,
    403: CredentialRefused,
    404: ModelUnavailable,
    408: ProviderOverloaded,
    409: ProviderOverloaded,
    412: RequestRefused,
    413: RequestTooLarge,
    422: RequestRefused,
    429: RateLimited,
    431: RequestRefused,
    499: ProviderOverloaded,
}

#: Where the name of the cause says more than type and status: spending limits that have the status
#: of a rate limit, though waiting does not help; things other than a model that were not found; a
#: body that came too slowly; pictures that are too large because there are many of them.
BY_CODE: dict[str, type[ProviderError]] = {
    "contract_spend_limit_reached": PaymentRequired,
    "enforced_spend_limit_reached": PaymentRequired,
    "linked_organization_billing_unavailable": PaymentRequired,
    "linked_organization_spend_limit_reached": PaymentRequired,
    "organization_on_hold": PaymentRequired,
    "user_profile_billing_not_authorized": PaymentRequired,
    "user_profile_not_billable": PaymentRequired,
    "environment_not_found": RequestRefused,
    "file_expired": RequestRefused,
    "rbac_group_managed_settings_not_found": RequestRefused,
    "rbac_group_not_found": RequestRefused,
    "rbac_role_not_found": RequestRefused,
    "slack_channel_set_up_environment_not_found": RequestRefused,
    "thread_not_found": RequestRefused,
    "request_body_timeout": ProviderUnreachable,
    "image_dimensions_too_large": RequestTooLarge,
}

# An overflow has no type or code of its own, so its words have to tell it:
#   prompt is too long: 208310 tokens > 200000 maximum
#   input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease ...
_OVERFLOW = re.compile(
    r"prompt is too long(?:: (?P<prompt>\d{1,12}) tokens > (?P<maximum>\d{1,12}))?"
    r"|exceed context limit: (?P<input>\d{1,12}) \+ (?P<output>\d{1,12}) > (?P<limit>\d{1,12})"
)
# Likewise where a request has too many pictures, or many that are too large beside each other:
#   too many images and documents: 601 + 0 > 600
#   At least one of the image dimensions exceed max allowed size for many-image requests: 2000 ...
_TOO_MANY = re.compile(r"too many images and documents|exceed max allowed size for many-image")


class ErrorObject(Struct, frozen=True):
    """The `error` member of an error body or event."""

    type: str = ""
    message: str = ""
    details: dict[str, object] | None = None


class _ErrorBody(Struct, frozen=True):
    error: ErrorObject = ErrorObject()
    request_id: str = ""


_BODY = json.Decoder(_ErrorBody)


def read_error(
    provider: str, status: int, headers: Mapping[str, str], body: bytes, *, size: int = 0
) -> ProviderError:
    """The error of an answer whose status is not success; `size` is the bytes of the request."""
    try:
        decoded = _BODY.decode(body)
    except (ValueError, RecursionError):
        decoded = _ErrorBody()
    error = decoded.error
    request_id = headers.get("request-id", "") or decoded.request_id
    if 300 <= status < 400:
        return refuse_redirect(provider, status, headers)
    if not error.message:
        error = ErrorObject(error.type, describe_answer(status, headers, body), error.details)
        if status == 404 and not error.type:
            return ReplyMalformed(
                f"{error.message}; is base-url right?", provider=provider, status=status
            )
    if status == 413 and size:
        error = ErrorObject(error.type, f"{error.message} (it has {size} bytes)", error.details)
    made = produce_error(provider, error, status=status, request_id=request_id)
    if isinstance(made, RateLimited | ProviderOverloaded):
        made.retry_after = read_retry_after(headers)
    return made


def produce_error(
    provider: str, error: ErrorObject, *, status: int | None = None, request_id: str = ""
) -> ProviderError:
    """The error of an error object, in a body or in the middle of a stream."""
    detail = (error.details or {}).get("error_code")
    code = detail if isinstance(detail, str) else error.type
    kind = BY_TYPE.get(error.type) or (BY_STATUS.get(status) if status is not None else None)
    if kind is None:
        kind = RequestRefused if status is not None and status < 500 else ProviderOverloaded
    if kind is RequestRefused and status in (404, 413, 429):
        kind = BY_STATUS[status]
    kind = BY_CODE.get(code, kind)
    message = clear_words(error.message)
    if _TOO_MANY.search(message):
        kind = RequestTooLarge
    if overflow := _OVERFLOW.search(message):
        return _produce_overflow(overflow, message, provider, status, request_id)
    return kind(
        f"{message}{advise(kind, provider)}",
        provider=provider,
        status=status,
        code=clear_words(code),
        request_id=request_id,
    )


def _produce_overflow(
    overflow: re.Match[str], message: str, provider: str, status: int | None, request_id: str
) -> ContextOverflow:
    error = ContextOverflow(
        f"the history is too long for this model ({message}); go on in a fork of an earlier "
        "point, or with a model that has a larger context",
        provider=provider,
        status=status,
        code="context_overflow",
        request_id=request_id,
    )
    sizes = {name: int(text) for name, text in overflow.groupdict().items() if text}
    if sizes:
        error.tokens = sizes.get("prompt") or sizes["input"] + sizes["output"]
        error.limit = sizes.get("maximum") or sizes["limit"]
    return error
