"""The errors of Anthropic's interface, by type and status.

Source: the classes in `anthropic._exceptions` and the names in `anthropic.types.shared.error_type`
of anthropic 2.13.0; `pytest -m drift` fails when the package has one that this table does not know.
"""

from __future__ import annotations

from vibe_llms.base.exceptions import (
    CredentialRefused,
    ModelUnavailable,
    PaymentRequired,
    ProviderError,
    ProviderOverloaded,
    ProviderUnreachable,
    RateLimited,
    RequestRefused,
    RequestTooLarge,
)
from vibe_llms.providers.http_errors import ErrorMap, Remedy

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

#: Error codes that say more than type and status: spending limits with the status of a rate limit
#: (waiting does not help); missing things other than a model; a body that came too slowly; pictures
#: that are too large because there are many of them.
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

REMEDIES = (
    # Only the message says that a request has too many pictures, or many that are too large:
    #  - too many images and documents: 601 + 0 > 600
    #  - At least one of the image dimensions exceed max allowed size for many-image requests: …
    Remedy(
        r"too many images and documents|exceed max allowed size for many-image",
        kind=RequestTooLarge,
    ),
)

ERRORS = ErrorMap(
    types=BY_TYPE,
    codes=BY_CODE,
    telling=(404, 413, 429),
    request_id="request-id",
    remedies=REMEDIES,
)
