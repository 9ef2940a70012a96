"""`Failure`: status and message for a failed request, in any dialect."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.base import exceptions
from vibe_llms.base.exceptions import ControlInvalid, VibeLlmsError, find_wait

INVALID = "invalid_request_error"
_UPSTREAM = "upstream_error"
_SERVER = "server_error"


class ClientFailure(Struct, frozen=True, kw_only=True):
    """A failure in the form reported to clients; dialects differ in how they encode it.

    `type` and `code` are OpenAI's terms. `param` names the invalid member of the request.
    """

    status: int
    message: str
    type: str = INVALID
    code: str | None = None
    param: str | None = None
    retry_after: float | None = None


class Rejected(Exception):
    """The server refuses a request; the application responds with the failure."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = INVALID,  # noqa: A002  (the member of OpenAI's errors)
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.failure = ClientFailure(
            status=status,
            message=message,
            type=type,
            code=code,
            param=param,
            retry_after=retry_after,
        )

    @classmethod
    def from_failure(cls, failure: ClientFailure) -> Rejected:
        """Create a refusal from an existing failure."""
        rejected = cls(failure.message)
        rejected.failure = failure
        return rejected


#: Status, type, and code of each error; the first matching class applies.
_FAILURES: tuple[tuple[type[VibeLlmsError], int, str, str | None], ...] = (
    (exceptions.ModelNotFound, 404, INVALID, "model_not_found"),
    (exceptions.ModelUnavailable, 404, INVALID, "model_not_found"),
    (exceptions.ControlInvalid, 400, INVALID, "unsupported_parameter"),
    (exceptions.RunNotFound, 404, INVALID, "run_not_found"),
    (exceptions.ConversationNotFound, 404, INVALID, "conversation_not_found"),
    (exceptions.MemoryNotFound, 404, INVALID, "fact_not_found"),
    (exceptions.CollectionNotFound, 404, INVALID, "collection_not_found"),
    (exceptions.SecretRefused, 400, INVALID, "secret_refused"),
    (exceptions.DecisionRefused, 409, INVALID, "decision_refused"),
    (exceptions.SteeringQueueFull, 429, "rate_limit_error", "too_many_messages"),
    (exceptions.SteeringRefused, 409, INVALID, "steering_refused"),
    (exceptions.ConversationBusy, 409, INVALID, "conversation_busy"),
    (exceptions.TooManyRuns, 429, "rate_limit_error", "too_many_turns"),
    (exceptions.RequestKeyReused, 422, INVALID, "idempotency_key_reused"),
    (exceptions.SessionClosed, 503, _SERVER, "shutting_down"),
    (exceptions.StorageUnavailable, 503, _SERVER, "storage_unavailable"),
    (exceptions.RequestError, 400, INVALID, None),
    (exceptions.ContextOverflow, 400, INVALID, "context_length_exceeded"),
    (exceptions.RequestRefused, 400, INVALID, None),
    # Retrying does not help, so clients must not do it.
    (exceptions.LimitTooLow, 413, INVALID, "request_too_large"),
    (exceptions.LimitExceeded, 429, "rate_limit_error", "rate_limit_exceeded"),
    (exceptions.BudgetExceeded, 429, "insufficient_quota", "insufficient_quota"),
    (exceptions.RateLimited, 429, "rate_limit_error", "rate_limit_exceeded"),
    (exceptions.ReplyTimeout, 504, _UPSTREAM, "upstream_timeout"),
    (exceptions.ProviderUnreachable, 502, _UPSTREAM, "upstream_unreachable"),
    (exceptions.CredentialRefused, 502, _UPSTREAM, "upstream_credential"),
    (exceptions.ProviderError, 502, _UPSTREAM, "upstream_failed"),
    (exceptions.CredentialMissing, 502, _UPSTREAM, "upstream_credential"),
    # These problems are only found when needed, and may be temporary.
    (exceptions.EnsembleFailed, 503, _SERVER, "ensemble_failed"),
    (exceptions.ConfigurationError, 503, _SERVER, "configuration_error"),
    (exceptions.StorageError, 500, _SERVER, "storage_error"),
)
#: Messages by code that replace those with the server's paths or addresses, or with advice for its
#: operator.
_PUBLIC_MESSAGES = {
    "upstream_unreachable": "the provider of the model cannot be reached now; try again later",
    "upstream_timeout": "the provider of the model did not answer in time; try again later",
    "upstream_credential": "the key for the provider of the model is missing or not valid",
    "ensemble_failed": "a tool server failed; the log of the server says why",
    "configuration_error": "the configuration of the server is wrong; its log says where",
    "storage_unavailable": "the server cannot reach its storage now; try again later",
    "storage_error": "the server cannot read or write its files; its log says why",
}

#: Advice to run the command, which clients do not have.
_COMMAND = re.compile(r" \([^()]*vibe-llms [^()]*\)|(?:[;,]|(?<=\?)) [\w' -]+: vibe-llms [\w -]+$")


def describe_failure(error: Exception, controls: Mapping[str, str] = {}) -> ClientFailure:
    """Return the failure for an error; foreign errors reveal no details.

    `controls` maps controls to request members with different names.
    """
    if isinstance(error, Rejected):
        return error.failure
    if not isinstance(error, VibeLlmsError):
        return _describe(type(error), "")
    failure = _describe(type(error), str(error), find_wait(error))
    if isinstance(error, ControlInvalid):
        return replace(failure, param=controls.get(error.control, error.control))
    return failure


def describe_kind(kind: str, message: str, retry_after: float | None = None) -> ClientFailure:
    """Return the failure of a run from the class name and message of its error."""
    return _describe(getattr(exceptions, kind, None), message, retry_after)


def _describe(kind: object, message: str, retry_after: float | None = None) -> ClientFailure:
    for known, status, type_, code in _FAILURES:
        if isinstance(kind, type) and issubclass(kind, known):
            return ClientFailure(
                status=status,
                message=_PUBLIC_MESSAGES.get(code or "", _COMMAND.sub("", message)),
                type=type_,
                code=code,
                retry_after=retry_after,
            )
    return ClientFailure(
        status=500, message="The server failed.", type=_SERVER, code="internal_error"
    )
