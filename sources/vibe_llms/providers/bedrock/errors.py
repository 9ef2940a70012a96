"""The errors of Bedrock, by the names of its exceptions and by status.

Source: the error shapes of `bedrock-runtime` and `bedrock` in botocore 1.44, and
https://docs.aws.amazon.com/bedrock/latest/userguide/troubleshooting-api-error-codes.html and
https://docs.aws.amazon.com/IAM/latest/UserGuide/signature-v4-troubleshooting.html (2026-11).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from vibe_llms.base.exceptions import (
    CredentialRefused,
    ModelUnavailable,
    PaymentRequired,
    ProviderError,
    ProviderOverloaded,
    RateLimited,
    RequestRefused,
    RequestTooLarge,
)
from vibe_llms.providers.http_errors import ErrorMap, ErrorObject, Remedy, read_object
from vibe_llms.providers.pieces import encode_json
from vibe_llms.providers.repairs import parse_object, parse_value, repair

BY_TYPE: dict[str, type[ProviderError]] = {
    "AccessDeniedException": CredentialRefused,
    "ExpiredTokenException": CredentialRefused,
    "IncompleteSignatureException": CredentialRefused,
    "InternalServerException": ProviderOverloaded,
    "InvalidSignatureException": CredentialRefused,
    "MissingAuthenticationTokenException": CredentialRefused,
    "ModelErrorException": ProviderOverloaded,
    "ModelNotReadyException": ProviderOverloaded,
    "ModelStreamErrorException": ProviderOverloaded,
    "ModelTimeoutException": ProviderOverloaded,
    "OptInRequired": PaymentRequired,
    "RequestEntityTooLargeException": RequestTooLarge,
    "RequestExpired": CredentialRefused,
    "ResourceNotFoundException": ModelUnavailable,
    "ServiceQuotaExceededException": RateLimited,
    "ServiceUnavailableException": ProviderOverloaded,
    "SignatureDoesNotMatch": CredentialRefused,
    "ThrottlingException": RateLimited,
    "UnknownOperationException": RequestRefused,
    "UnrecognizedClientException": CredentialRefused,
    "ValidationException": RequestRefused,
}
#: Exceptions whose status is that of a rate limit or a timeout, although a server failed.
_STATUSES: Mapping[int, type[ProviderError]] = {424: ProviderOverloaded}


REMEDIES = (
    Remedy(
        r"signature (?:expired|not yet current)|is (?:now )?(?:earlier|later) than",
        "this machine's clock is wrong: set it, then try again",
    ),
    Remedy(
        r"token .{0,40}(?:is|has) expired|expired token",
        "the login has expired: run aws sso login, or set new credentials",
    ),
    Remedy(
        r"scoped to a valid region|scoped to correct service",
        "is `region` of the row right?",
    ),
    Remedy(
        r"access to the model|model access is denied|marketplace subscription|use case details",
        "ask for access in the Bedrock console, under Model access, in the region of the row",
        ModelUnavailable,
    ),
    Remedy(
        r"not authorized to perform|explicit deny|no identity-based policy",
        "allow the action in the IAM policy of these credentials",
    ),
    Remedy(
        r"on-demand throughput",
        "name an inference profile, such as us.MODEL or global.MODEL; list them: vibe-llms "
        "models NAME",
        ModelUnavailable,
    ),
    Remedy(
        r"model identifier is invalid|could not resolve the foundation model|not supported in "
        r"this region|end of its life|legacy by provider",
        "list the models: vibe-llms models NAME; is `region` of the row right?",
        ModelUnavailable,
    ),
    Remedy(
        r"tokens per day|quota|limit of 0",
        "the account's quota may be 0 for this model: see Service Quotas in the AWS console, or "
        "use another model or region",
    ),
    Remedy(
        r"(?:image|document|file|page).{0,80}(?:exceed|too large|too big|more than|maximum)",
        kind=RequestTooLarge,
    ),
)


class BedrockErrors(ErrorMap, frozen=True):
    """The errors of Bedrock; the exception's name is in a header, in the body, or in an event."""

    def parse(self, body: bytes) -> ErrorObject:
        """Parse an error body, or the failure in a stream."""
        try:
            value = parse_value(body)
        except ValueError:
            return ErrorObject()
        failure = value.get("failure") if isinstance(value, dict) else None
        if not isinstance(failure, dict):
            error = ErrorMap.parse(self, body)
        else:
            told = failure.get("body")
            members = told if isinstance(told, dict) else {}
            # The model's own words say more than "An error occurred while streaming".
            words = members.get("originalMessage") or failure.get("message")
            error = read_object({**members, "message": words or members.get("message")})
            error = msgspec.structs.replace(error, type=str(failure.get("type") or ""))
        return msgspec.structs.replace(error, type=clear_name(error.type))

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
        """Return the error of an unsuccessful response; a header may have its name."""
        named = clear_name(headers.get("x-amzn-errortype", ""))
        if named in BY_TYPE:
            body = _name_error(body, named)
        return ErrorMap.read(self, provider, status, headers, body, model=model, size=size)

    def refine(
        self, kind: type[ProviderError], message: str, provider: str, model: str
    ) -> tuple[type[ProviderError], str]:
        """Return the class and the advice for messages that tell more than their exception."""
        if issubclass(kind, ProviderOverloaded):
            return kind, ""
        refined = super().refine(kind, message, provider, model)
        too_large = refined[0] is RequestTooLarge and kind is not RequestRefused
        return (kind, "") if too_large else refined


def _name_error(body: bytes, name: str) -> bytes:
    """Return an error body with the name of the exception; leave it unchanged if it is not JSON."""
    try:
        members = parse_object(body) if body.strip() else {}
    except ValueError:
        return body
    return encode_json(repair({**members, "__type": name}))


def clear_name(name: str) -> str:
    """Return the name of an exception, without its namespace and address.

    >>> clear_name("com.amazon.coral.service#AccessDeniedException:http://internal/")
    'AccessDeniedException'
    >>> clear_name("throttlingException")
    'ThrottlingException'
    """
    name = name.rpartition("#")[2].partition(":")[0].strip()
    return name[:1].upper() + name[1:]


ERRORS = BedrockErrors(
    statuses=_STATUSES,
    types=BY_TYPE,
    request_id="x-amzn-requestid",
    members={"type": "__type", "message": "Message"},
    remedies=REMEDIES,
)
