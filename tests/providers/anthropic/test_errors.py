"""Errors of the interface as errors of ours; every class of the official package has its place."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import anthropic
import httpx2
import pytest
from anthropic._error_classes import ERROR_CLASSES, make_status_error
from anthropic.types.shared.error_type import ErrorType

from vibe_llms.base.exceptions import (
    ContextOverflow,
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
from vibe_llms.providers.anthropic.errors import (
    BY_CODE,
    BY_TYPE,
    ERRORS,
)
from vibe_llms.providers.http_errors import ErrorObject, read_object

#: Our error for each class that represents a status, where no code says more.
FAMILIES: dict[type[anthropic.APIStatusError], type[ProviderError]] = {
    anthropic.BadRequestError: RequestRefused,
    anthropic.AuthenticationError: CredentialRefused,
    anthropic.PaymentRequiredError: PaymentRequired,
    anthropic.PermissionDeniedError: CredentialRefused,
    anthropic.NotFoundError: ModelUnavailable,
    anthropic.RequestTimeoutError: ProviderOverloaded,
    anthropic.ConflictError: ProviderOverloaded,
    anthropic.PreconditionFailedError: RequestRefused,
    anthropic.ContentTooLargeError: RequestTooLarge,
    anthropic.UnprocessableEntityError: RequestRefused,
    anthropic.RateLimitError: RateLimited,
    anthropic.RequestHeaderFieldsTooLargeError: RequestRefused,
    anthropic.ClientClosedRequestError: ProviderOverloaded,
    anthropic.InternalServerError: ProviderOverloaded,
    anthropic.HTTPNotImplementedError: ProviderOverloaded,
    anthropic.ServiceUnavailableError: ProviderOverloaded,
    anthropic.GatewayTimeoutError: ProviderOverloaded,
    anthropic.OverloadedError: ProviderOverloaded,
}

#: The codes for which the family of their status is right; those for which it is not are in the
#: table `BY_CODE`. Adding one here means deciding what the caller does next.
_AS_THEIR_STATUS = """
already_member api_key_scope_missing approval_required authorization_check_unavailable
available_tools_limit_exceeded bundle_attachment_not_supported bundle_on_call
cannot_invite_emails_with_unverified_domains cannot_remove_last_member
cannot_sign_out_managed_member cannot_sign_out_membership_admin cannot_sign_out_owner
cannot_sign_out_primary_owner cannot_sign_out_privileged_member cannot_sign_out_self
change_outcome_unknown claude_code_key_creator_not_member claude_code_version_too_old
claude_tag_writes_not_enabled cmek_context_unavailable cmek_feature_unsupported cmek_key_disabled
cmek_key_network_blocked cmek_key_unreachable compaction_block_ambiguous compaction_block_misplaced
compaction_content_mismatch compaction_incomplete_turn compaction_nothing_to_summarize
compaction_signature_invalid compaction_too_many_tool_references compaction_tool_changes_mismatch
compaction_unavailable compliance_configuration_restricted concurrent_membership_change
email_domain_not_allowed environment_archived environment_create_disabled
environment_update_disabled external_key_changed external_key_in_workspace_policy
external_key_validation_failed external_key_validation_timed_out external_storage_in_use
external_storage_in_workspace_policy external_storage_not_available file_not_downloadable
grant_required heartbeat_precondition_failed human_review_not_available
human_review_on_with_external_storage invalid_config_type_change invalid_metadata
invalid_storage_arn invite_already_exists key_profile_mismatch org_api_key_limit_exceeded
org_member_limit_exceeded organization_level_scoped_api_key_required organization_not_eligible
organization_not_enrolled_in_beta organization_type_not_supported parent_organization_required
plugin_name_taken provider_not_allowed ramp_limit_exceeded rbac_group_grants_owner_access
rbac_group_order_limit_exceeded rbac_group_owner_access_unconfirmed registration_pending
request_body_encoding_invalid request_body_encoding_unsupported
request_body_too_large_after_decoding sandbox_egress_restricted scan_failed scan_pending
settings_document_limit_exceeded settings_history_limit_exceeded skill_name_taken
skill_read_blocked_undecryptable slack_channel_set_up_settings_conflict
slack_channel_set_up_settings_refused spend_limits_admin_api_writes_not_enabled
storage_already_registered storage_attach_limit_reached storage_attached_during_archive
storage_changed_concurrently storage_not_attachable storage_profile_mismatch
storage_profile_still_required storage_quota_exceeded storage_verification_failed
thread_already_continued thread_continue_in_flight thread_fingerprint_mismatch
thread_unsupported_request tool_name_conflict tool_reference_unresolved transcripts_storage_required
unsupported_charset unsupported_region user_profile_not_found user_profile_required
workspace_api_key_limit_exceeded workspace_changed_concurrently workspace_created_incomplete
workspace_human_review_disabled workspace_member_limit_exceeded workspace_policy_violation
"""
AS_THEIR_STATUS = frozenset(_AS_THEIR_STATUS.split())

#: Errors of the package's own tools, which nothing here uses.
_TOOLS = "anthropic.lib.tools"
#: Classes that no answer of the server's becomes. Those of connections and credentials are the
#: package transport's affair, and `test_package.py` tests them.
_NO_ANSWERS = """
APIConnectionError APIError APIResponseValidationError APIStatusError APITimeoutError
APIWebhookValidationError AnthropicError CredentialsError IdentityTokenFileError
MissingDependencyError MutuallyExclusiveAuthError RetryableError StreamAlreadyConsumed
WorkloadIdentityError
"""
NO_ANSWERS = frozenset(_NO_ANSWERS.split())


def walk(kind: type[Exception]) -> Iterator[type[Exception]]:
    """A class of the package's and all below it."""
    yield kind
    for below in kind.__subclasses__():
        if below.__module__.partition(".")[0] == anthropic.__name__:
            yield from walk(below)


def load_all() -> None:
    """Import every module of the package that defines an error."""
    for module in pkgutil.walk_packages(anthropic.__path__, "anthropic."):
        if "error" in module.name.rpartition(".")[2] or "credentials" in module.name:
            importlib.import_module(module.name)


def encode(kind: str = "", message: str = "m", code: str | None = None, **more: Any) -> bytes:
    error: dict[str, Any] = {"type": kind, "message": message, **more}
    if code is not None:
        error["details"] = {"error_code": code}
    return json.dumps({"type": "error", "error": error, "request_id": "req_2"}).encode()


def read(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> ProviderError:
    return ERRORS.read("anthropic", status, headers or {}, body)


def complaints(kinds: list[type[Exception]], table: Mapping[Any, Any]) -> list[str]:
    """The classes that are not mapped."""
    known = {kind: (status, code) for (status, code), kind in table.items()}
    reported: list[str] = []
    for kind in kinds:
        if kind in FAMILIES or kind.__name__ in NO_ANSWERS or kind.__module__.startswith(_TOOLS):
            continue
        _, code = known.get(kind, (0, None))
        if code not in AS_THEIR_STATUS and code not in BY_CODE:
            reported.append(kind.__name__)
    return reported


@pytest.mark.drift
def test_every_class_of_the_official_package_is_mapped() -> None:
    load_all()
    assert complaints([*walk(anthropic.AnthropicError)], ERROR_CLASSES) == []


def test_an_unmapped_class_is_detected() -> None:
    class NovelError(anthropic.BadRequestError):
        pass

    table = {**ERROR_CLASSES, (400, "novel"): NovelError}
    assert complaints([NovelError], table) == ["NovelError"]
    assert complaints([anthropic.RateLimitError], {}) == []


@pytest.mark.parametrize(("status", "code"), ERROR_CLASSES, ids=str)
def test_each_answer_becomes_the_error_of_its_class(status: int, code: str | None) -> None:
    body = encode("", code=code)
    official = make_status_error("m", body=json.loads(body), response=_respond(status, body))
    family = next(FAMILIES[kind] for kind in type(official).__mro__ if kind in FAMILIES)
    expected = family if code is None else BY_CODE.get(code, family)
    ours = read(status, body)
    assert type(ours) is expected
    assert (ours.status, ours.code, ours.request_id) == (status, code or "", "req_2")
    assert str(ours).startswith("anthropic: m")
    # The type alone says the same, where the server is as good as its word.
    assert type(read(status, encode(_TYPES.get(status, ""), code=code))) is expected


_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def _respond(status: int, body: bytes) -> httpx2.Response:
    return httpx2.Response(
        status, content=body, request=httpx2.Request("POST", "https://example.org")
    )


@pytest.mark.drift
def test_every_type_of_the_official_package_is_mapped() -> None:
    assert set(get_args(ErrorType)) <= set(BY_TYPE)


@pytest.mark.parametrize("kind", BY_TYPE)
def test_a_type_decides_where_the_status_does_not(kind: str) -> None:
    # As in the middle of a stream.
    error = ERRORS.produce("anthropic", ErrorObject("m", kind))
    assert type(error) is BY_TYPE[kind]
    assert (error.status, error.code) == (None, kind)


@pytest.mark.parametrize("code", BY_CODE)
def test_a_code_that_the_package_does_not_know_is_no_longer_needed(code: str) -> None:
    assert code in {known for _, known in ERROR_CLASSES}


def test_an_unknown_type_is_classified_by_its_status() -> None:
    assert type(read(529, encode("brand_new_error"))) is ProviderOverloaded
    assert type(ERRORS.produce("anthropic", ErrorObject("m", "brand_new"))) is ProviderOverloaded


@pytest.mark.parametrize(
    ("status", "expected"),
    [(404, ModelUnavailable), (413, RequestTooLarge), (429, RateLimited), (422, RequestRefused)],
)
def test_a_status_says_more_than_that_a_request_is_invalid(
    status: int, expected: type[ProviderError]
) -> None:
    assert type(read(status, encode("invalid_request_error"))) is expected


def test_an_error_says_what_to_do() -> None:
    assert "vibe-llms keys set" in str(read(401, encode()))
    assert "vibe-llms models" in str(read(404, encode("not_found_error")))
    assert "compact the conversation" in str(read(413, encode()))
    assert "; try again later" in str(read(429, encode()))
    assert str(read(400, encode())) == "anthropic: m"


@pytest.mark.parametrize(
    ("message", "tokens", "limit"),
    [
        ("prompt is too long: 208310 tokens > 200000 maximum", 208310, 200000),
        ("messages: prompt is too long", None, None),
        (
            "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease",
            210000,
            200000,
        ),
    ],
)
def test_an_overflow_has_both_sizes(message: str, tokens: int | None, limit: int | None) -> None:
    error = read(400, encode("invalid_request_error", message))
    assert type(error) is ContextOverflow
    assert (error.tokens, error.limit) == (tokens, limit)
    assert (error.code, error.status, error.request_id) == ("context_overflow", 400, "req_2")
    assert "compact the conversation" in str(error)


@pytest.mark.parametrize(
    "message",
    [
        "too many images and documents: 601 + 0 > 600",
        "At least one of the image dimensions exceed max allowed size for many-image requests: 9",
    ],
)
def test_too_many_pictures_are_an_overflow_too(message: str) -> None:
    error = read(400, encode("invalid_request_error", message))
    assert type(error) is RequestTooLarge
    assert "leave images and files out" in str(error)


def test_the_identity_of_the_request_comes_from_the_header_first() -> None:
    assert read(400, encode(), {"request-id": "req_1"}).request_id == "req_1"
    assert read(400, encode()).request_id == "req_2"


def test_lone_surrogates_in_an_error_do_no_harm() -> None:
    error = ERRORS.produce(
        "anthropic",
        read_object(
            {"type": "x\ud800", "message": "a\ud800b", "details": {"error_code": "\ud800"}}
        ),
    )
    assert str(error).startswith("anthropic: a\ufffdb")
    assert error.code == "\ufffd"
    assert str(read(400, encode("\ud800", "\ud800"))).isprintable()


def test_a_code_that_is_no_text_is_passed_over() -> None:
    body = encode("overloaded_error", details={"error_code": 5})
    assert read(529, body).code == "overloaded_error"
    assert type(read(400, encode("", details=None))) is RequestRefused


def test_a_body_that_came_too_slowly_may_be_sent_again() -> None:
    assert type(read(400, encode(code="request_body_timeout"))) is ProviderUnreachable
