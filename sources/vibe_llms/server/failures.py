"""What a failed request is answered with, whatever the dialect: a status, and words for it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from vibe_llms import exceptions
from vibe_llms.exceptions import ControlInvalid, VibeLlmsError, find_wait

INVALID = "invalid_request_error"
_UPSTREAM = "upstream_error"
_SERVER = "server_error"


class Failure(Struct, frozen=True, kw_only=True):
    """A failure as a client is told of it; the dialects differ in how they write it.

    `type` and `code` are OpenAI's words. `param` names the member of the request that is wrong.
    """

    status: int
    message: str
    type: str = INVALID
    code: str | None = None
    param: str | None = None
    retry_after: float | None = None


class Rejected(Exception):
    """The server refuses a request; the gate answers it with the failure."""

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
        self.failure = Failure(
            status=status,
            message=message,
            type=type,
            code=code,
            param=param,
            retry_after=retry_after,
        )

    @classmethod
    def from_failure(cls, failure: Failure) -> Rejected:
        """The refusal of a request that came to a failure elsewhere."""
        rejected = cls(failure.message)
        rejected.failure = failure
        return rejected


#: Status, type and code of each error; the first class that fits decides.
_FAILURES: tuple[tuple[type[VibeLlmsError], int, str, str | None], ...] = (
    (exceptions.ModelNotFound, 404, INVALID, "model_not_found"),
    (exceptions.ModelUnavailable, 404, INVALID, "model_not_found"),
    (exceptions.ControlInvalid, 400, INVALID, "unsupported_parameter"),
    (exceptions.RunNotFound, 404, INVALID, "run_not_found"),
    (exceptions.ConversationNotFound, 404, INVALID, "conversation_not_found"),
    (exceptions.MemoryNotFound, 404, INVALID, "fact_not_found"),
    (exceptions.SecretRefused, 400, INVALID, "secret_refused"),
    (exceptions.DecisionRefused, 409, INVALID, "decision_refused"),
    (exceptions.ConversationBusy, 409, INVALID, "conversation_busy"),
    (exceptions.TooManyRuns, 429, "rate_limit_error", "too_many_turns"),
    (exceptions.RequestKeyReused, 422, INVALID, "idempotency_key_reused"),
    (exceptions.SessionClosed, 503, _SERVER, "shutting_down"),
    (exceptions.StorageUnavailable, 503, _SERVER, "storage_unavailable"),
    (exceptions.RequestError, 400, INVALID, None),
    (exceptions.ContextOverflow, 400, INVALID, "context_length_exceeded"),
    (exceptions.RequestRefused, 400, INVALID, None),
    (exceptions.BudgetExceeded, 429, "insufficient_quota", "insufficient_quota"),
    (exceptions.RateLimited, 429, "rate_limit_error", "rate_limit_exceeded"),
    (exceptions.ReplyTimeout, 504, _UPSTREAM, "upstream_timeout"),
    (exceptions.ProviderUnreachable, 502, _UPSTREAM, "upstream_unreachable"),
    (exceptions.CredentialRefused, 502, _UPSTREAM, "upstream_credential"),
    (exceptions.ProviderError, 502, _UPSTREAM, "upstream_failed"),
    (exceptions.CredentialMissing, 502, _UPSTREAM, "upstream_credential"),
    # What is wrong here is known once it is needed, and may be right again later.
    (exceptions.EnsembleFailed, 503, _SERVER, "ensemble_failed"),
    (exceptions.ConfigurationError, 503, _SERVER, "configuration_error"),
    (exceptions.StorageError, 500, _SERVER, "storage_error"),
)
#: What is said instead of the words of an error that has paths or addresses of the server, or
#: advice for who runs it, by its code.
_INSTEAD = {
    "upstream_unreachable": "the provider of the model cannot be reached now; try again later",
    "upstream_timeout": "the provider of the model did not answer in time; try again later",
    "upstream_credential": "the key for the provider of the model is missing or not valid",
    "ensemble_failed": "a tool server does not work; the log of the server says why",
    "configuration_error": "the configuration of the server is wrong; its log says where",
    "storage_unavailable": "the server cannot reach its storage now; try again later",
    "storage_error": "the server cannot read or write its files; its log says why",
}

#: Advice to run the command, which a client does not have.
_COMMAND = re.compile(r" \([^()]*vibe-llms [^()]*\)|(?:[;,]|(?<=\?)) [\w' -]+: vibe-llms [\w -]+$")


def describe_failure(error: Exception, controls: Mapping[str, str] = {}) -> Failure:
    """The failure that an error is answered with; one that is not ours shows nothing of itself.

    `controls` are the members of the request for controls that have other names there.
    """
    if isinstance(error, Rejected):
        return error.failure
    if not isinstance(error, VibeLlmsError):
        return _describe(type(error), "")
    failure = _describe(type(error), str(error), find_wait(error))
    if isinstance(error, ControlInvalid):
        return replace(failure, param=controls.get(error.control, error.control))
    return failure


def describe_kind(kind: str, message: str, retry_after: float | None = None) -> Failure:
    """The failure of a run, whose error is known by the name of its class and by its words."""
    return _describe(getattr(exceptions, kind, None), message, retry_after)


def _describe(kind: object, message: str, retry_after: float | None = None) -> Failure:
    for known, status, type_, code in _FAILURES:
        if isinstance(kind, type) and issubclass(kind, known):
            return Failure(
                status=status,
                message=_INSTEAD.get(code or "", _COMMAND.sub("", message)),
                type=type_,
                code=code,
                retry_after=retry_after,
            )
    return Failure(status=500, message="The server failed.", type=_SERVER, code="internal_error")
