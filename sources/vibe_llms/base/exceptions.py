"""The error tree: every error that the library raises on purpose.

The branches say what to do next:

```text
VibeLlmsError
├── ConfigurationError              fix the configuration
│   ├── RegistrationError           fix the module or factory of a row
│   ├── PackageMissing              install a package
│   │   └── PluginMissing
│   ├── CredentialMissing           set a key
│   └── RequestForbidden            allow requests, or send none
├── RequestError                    fix the call
│   ├── ModelNotFound
│   ├── ControlInvalid
│   ├── ContentUnsupported
│   ├── ContentNotLoaded
│   ├── AttachmentUnreadable
│   │   ├── DocumentUnreadable
│   │   └── PageUnreadable
│   ├── ImportUnreadable
│   ├── InvokerInvalid
│   ├── FunctionsInvalid
│   ├── ArgumentsInvalid
│   ├── AnswerInvalid
│   ├── ScriptInvalid
│   ├── ConversationNotFound
│   ├── ConversationAmbiguous
│   ├── ConversationBusy
│   ├── TooManyRuns
│   ├── CollectionNotFound
│   ├── AgentNotFound
│   ├── SkillUnavailable
│   ├── ForkPointInvalid
│   ├── EmbeddingsMixed
│   ├── MemoryInvalid
│   │   └── SecretRefused           confirm it, or leave it out
│   ├── MemoryNotFound
│   ├── RunNotFound
│   ├── DecisionRefused
│   ├── SteeringRefused
│   │   └── SteeringQueueFull       wait, or take a message back
│   ├── RequestRepeated
│   ├── RequestKeyReused
│   ├── SessionClosed
│   └── TurnInterrupted
├── ProviderError                   a provider refused or failed
│   ├── RequestRefused              fix the request or the history
│   │   ├── ContextOverflow
│   │   │   └── RequestTooLarge
│   │   └── ModelUnavailable
│   ├── CredentialRefused           fix the key or its permissions
│   ├── PaymentRequired             check the account
│   ├── RateLimited                 wait, then retry
│   ├── ProviderOverloaded          wait, then retry
│   ├── ProviderUnreachable         check the network or the address
│   ├── ReplyTimeout                raise the limit, or retry
│   ├── ReplyCut                    the connection ended early
│   ├── ReplyMalformed              the reply does not follow the API
│   ├── OutputCut                   allow more output tokens
│   └── OutputInvalid               ask differently, or another model
├── EnsembleFailed                  fix the tool server, or continue without it
│   ├── SignInNeeded                sign in to it
│   ├── SessionLost
│   └── SearchFailed                fix its row, or search later
├── BudgetExceeded                  wait, or raise the budget
│   └── LimitExceeded               wait for less than a minute
│       └── LimitTooLow             shorten the request, or raise the limit
├── RunFailed                       look at the error that it names
└── StorageError                    nothing was lost; fix the disk or the file
    ├── ArchiveLocked
    ├── StorageUnavailable          try again later
    ├── ArchiveDamaged
    ├── ContentDamaged
    ├── ContentMissing
    ├── ConversationMoved
    ├── LeaseLost                   another process continues the run
    ├── RunUnreadable               let a newer version continue the run
    ├── FormatNewer
    ├── MemoryDamaged
    └── VersioningFailed
```

A message says what failed, why, and what to do. Facts for a program's decisions are in fields too.
"""

from __future__ import annotations

from collections.abc import Sequence

from vibe_llms.base.redaction import redact

_LONGEST_URL = 300


class VibeLlmsError(Exception):
    """Base class of all errors of this library. No error message contains a key."""

    def __init__(self, *words: object) -> None:
        super().__init__(*(redact(word) if isinstance(word, str) else word for word in words))

    @property
    def kind(self) -> str:
        """Error name for programs, as printed by `--json`, such as `rate-limited`."""
        name = type(self).__name__
        return "".join(f"-{c.lower()}" if c.isupper() else c for c in name).lstrip("-")


class ConfigurationError(VibeLlmsError):
    """A configuration value is missing or wrong; the fields say where.

    `message` describes the problem without the place. `path` lists the keys to the value, if known.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str = "",
        table: str = "",
        key: str = "",
        path: Sequence[str] = (),
    ) -> None:
        place = ", ".join(
            part for part in (file, f"[{table}]" if table else "", key and f"key {key!r}") if part
        )
        super().__init__(f"{place}: {message}" if place else message)
        self.file, self.table, self.key = file, table, key
        self.message, self.path = message, tuple(path)


class RegistrationError(ConfigurationError):
    """A row names a module or a factory that cannot be found or loaded."""


class PackageMissing(ConfigurationError):
    """A package is not installed; `command` installs it."""

    def __init__(self, purpose: str, *, package: str, command: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed. Run: {command}"
        )
        self.purpose, self.package, self.command = purpose, package, command


class PluginMissing(PackageMissing):
    """The package of a row is not installed; the user must agree to install it."""

    def __init__(self, package: str, *, row: str, command: str) -> None:
        super().__init__(f"[providers.{row}]", package=package, command=command)
        self.row = row


class CredentialMissing(ConfigurationError):
    """No key was found for a provider."""


class RequestForbidden(ConfigurationError):
    """Offline mode forbids a request to another machine; `host` is its target."""

    def __init__(self, message: str, *, host: str) -> None:
        super().__init__(message)
        self.host = host


class RequestError(VibeLlmsError):
    """The call itself is invalid."""


class ModelNotFound(RequestError):
    """No configured provider has a model with this name."""


class ControlInvalid(RequestError):
    """The model does not accept this control, or its value is out of range.

    `unsupported` is True if the model has no equivalent for any value of the control.
    """

    def __init__(
        self, message: str, *, control: str, model: str = "", unsupported: bool = False
    ) -> None:
        super().__init__(f"{model}: {message}" if model else message)
        self.control, self.model, self.unsupported = control, model, unsupported


class ContentUnsupported(RequestError):
    """The model does not support a content in this call."""


class ContentNotLoaded(RequestError):
    """A content has a reference but needs data; call `await archive.load(reference)`."""


class AttachmentUnreadable(RequestError):
    """The file or URL of an attachment cannot be read, or its type is unknown."""


class DocumentUnreadable(AttachmentUnreadable):
    """The text of a document cannot be read.

    `password` is True if it needs a password, or another one; `damaged` if no program can read it.
    """

    def __init__(self, message: str, *, password: bool = False, damaged: bool = False) -> None:
        super().__init__(message)
        self.password = password
        self.damaged = damaged


class PageUnreadable(AttachmentUnreadable):
    """A web page is refused or cannot be read; `status` is the HTTP status, if any."""

    def __init__(self, message: str, *, url: str, status: int | None = None) -> None:
        super().__init__(f"{redact(url)[:_LONGEST_URL]}: {message}")
        self.url, self.status = redact(url), status


class ImportUnreadable(RequestError):
    """A file to import cannot be read, or is not an export of a known program."""


class InvokerInvalid(RequestError):
    """A function cannot be a tool, or two tools have the same name."""


class FunctionsInvalid(RequestError):
    """A file of functions cannot be read or run, or one of its functions cannot be a tool."""

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


class ArgumentsInvalid(RequestError):
    """The arguments of a call do not match the tool's schema; the message lists what to change."""


class AnswerInvalid(RequestError):
    """An answer does not match an ensemble's question, or the question cannot be answered."""


class ScriptInvalid(RequestError):
    """A script for the scripted provider cannot be read."""


class ConversationNotFound(RequestError):
    """No conversation has this id, prefix, or name."""


class ConversationAmbiguous(RequestError):
    """Several conversations match; `candidates` are their ids."""

    def __init__(self, message: str, *, candidates: tuple[str, ...]) -> None:
        super().__init__(message)
        self.candidates = candidates


class ConversationBusy(RequestError):
    """A turn of this conversation is running; wait for it or cancel it."""


class TooManyRuns(RequestError):
    """The user's limit of concurrent runs is reached; `retry_after` is in seconds."""

    retry_after = 1.0


class CollectionNotFound(RequestError):
    """No document collection has this name."""


class AgentNotFound(RequestError):
    """No row of `[agents]` has this name."""


class SkillUnavailable(RequestError):
    """No skill that is offered has this name, or the skill has no such file.

    `summary` is the message without the reason, which may name paths and users of this machine.
    """

    def __init__(self, summary: str, reason: str = "") -> None:
        super().__init__(f"{summary}: {reason}" if reason else summary)
        self.summary = summary


class ForkPointInvalid(RequestError):
    """A conversation cannot be forked here; `nearest` are the ids of the nearest valid points."""

    def __init__(self, message: str, *, nearest: tuple[str, ...]) -> None:
        super().__init__(message)
        self.nearest = nearest


class RunNotFound(RequestError):
    """No run has this id."""


class DecisionRefused(RequestError):
    """The call is already decided, or is not waiting for a decision."""


class SteeringRefused(RequestError):
    """A message cannot be added to a turn that has ended, or taken back after it was sent."""


class SteeringQueueFull(SteeringRefused):
    """Too many messages wait in a run; `retry_after` is in seconds."""

    retry_after = 1.0


class RequestRepeated(RequestError):
    """A request with the same key has already started a run; `run` is its id."""

    def __init__(self, message: str, *, run: str) -> None:
        super().__init__(message)
        self.run = run


class RequestKeyReused(RequestError):
    """The key of this request already belongs to another request; use a new key."""


class BudgetExceeded(VibeLlmsError):
    """A request could exceed its budget and was not sent.

    `retry_after` is the time in seconds until the budget's period ends, or until running requests
    may have ended; None if waiting does not help. `agent` is empty if it is the user's budget.
    """

    def __init__(
        self, message: str, *, user: str, agent: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.user, self.agent, self.retry_after = user, agent, retry_after


class LimitExceeded(BudgetExceeded):
    """A request would exceed the user's limit for a minute and was not sent.

    `retry_after` is the time in seconds until it fits.
    """


class LimitTooLow(LimitExceeded):
    """A request alone needs more tokens than the user may use in a minute; do not retry it."""


class RunFailed(VibeLlmsError):
    """The turn of a run failed; `error` is the class name of the error that ended it."""

    def __init__(self, message: str, *, error: str = "") -> None:
        super().__init__(message)
        self.error = error


class SessionClosed(RequestError):
    """The session of this conversation is closed."""


class TurnInterrupted(RequestError):
    """The turn was cancelled; the part that arrived is stored and marked as interrupted."""


class ProviderError(VibeLlmsError):
    """A provider refused or failed; `__cause__` is the transport's exception.

    `status` is the HTTP status, if any, `code` the provider's own error code, `request_id` the id
    that its support asks for, and `model` the model, once known.
    """

    model: str = ""

    def __init__(
        self,
        message: str,
        *,
        provider: str,
        status: int | None = None,
        code: str = "",
        request_id: str = "",
    ) -> None:
        super().__init__(f"{provider}: {message}")
        self.provider, self.status = provider, status
        self.code, self.request_id = redact(code), redact(request_id)


class RequestRefused(ProviderError):
    """The provider rejects the request; an unchanged retry does not help."""


class ContextOverflow(RequestRefused):
    """The history exceeds the model's context: `tokens` against `limit`, if known.

    `input_tokens` are those of the history, if the server says that `tokens` include the reply.
    """

    tokens: int | None = None
    limit: int | None = None
    input_tokens: int | None = None


class RequestTooLarge(ContextOverflow):
    """The request exceeds the provider's size limit in bytes; handle it like `ContextOverflow`."""


class ModelUnavailable(RequestRefused):
    """The provider does not have this model, or has retired it."""


class CredentialRefused(ProviderError):
    """The key is invalid or lacks permission."""


class PaymentRequired(ProviderError):
    """The account has no credit or has reached its spending limit."""


class RateLimited(ProviderError):
    """Too many requests; `retry_after` is the wait in seconds that the provider asks for."""

    retry_after: float | None = None


class ProviderOverloaded(ProviderError):
    """The provider is overloaded or has an internal error; the same request may succeed later."""

    retry_after: float | None = None


class ProviderUnreachable(ProviderError):
    """No connection, or it broke before the reply began; `connected` says if there was one."""

    connected: bool = True


class ReplyTimeout(ProviderError):
    """A time limit was exceeded; `limit` is its configuration key, such as `idle-seconds`."""

    def __init__(self, message: str, *, provider: str, limit: str, seconds: float) -> None:
        super().__init__(message, provider=provider)
        self.limit, self.seconds = limit, seconds


class ReplyCut(ProviderError):
    """The reply ended without the provider's end marker."""


class ReplyMalformed(ProviderError):
    """The reply does not follow the provider's API."""


class OutputCut(ProviderError):
    """The reply reached its token limit before its typed output was complete."""


class OutputInvalid(ProviderError):
    """The reply does not fit the requested type after all `attempts`."""

    def __init__(self, message: str, *, provider: str, attempts: int = 1) -> None:
        super().__init__(message, provider=provider)
        self.attempts = attempts


class EnsembleFailed(VibeLlmsError):
    """An ensemble cannot be opened, or its server does not answer correctly.

    `phase` is `opening`, `listing`, or `calling NAME`, if known.
    """

    def __init__(self, message: str, *, ensemble: str, phase: str = "") -> None:
        super().__init__(f"{ensemble}: {message}")
        self.ensemble, self.phase = ensemble, phase


class SignInNeeded(EnsembleFailed):
    """The server requires the user to sign in."""

    def __init__(self, reason: str, *, ensemble: str) -> None:
        super().__init__(
            f"{reason}; sign in at a terminal: vibe-llms mcp test {ensemble}",
            ensemble=ensemble,
        )


class SessionLost(EnsembleFailed):
    """The server no longer knows the session and did not carry out the request."""


class SearchFailed(EnsembleFailed):
    """A search engine refused a query, or its reply cannot be read.

    `engine` is the row of `[search-engines]`, `status` the HTTP status, and `retry_after` the
    seconds to wait, if known.
    """

    def __init__(
        self,
        message: str,
        *,
        engine: str,
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, ensemble=f"search engine {engine!r}", phase="calling search")
        self.engine, self.status, self.retry_after = engine, status, retry_after


class StorageError(VibeLlmsError):
    """The archive could not be read or written; `path` is the file."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


class ArchiveLocked(StorageError):
    """Another process held the lock for longer than `lock-seconds`."""


class StorageUnavailable(StorageError):
    """The database, the object store, or a full disk cannot be used now. Try again later.

    Nothing was changed, except that the outcome is unknown if the connection broke during a commit.
    `full` is True if the disk or quota is full, `refused` if the program's role lacks a right.
    """

    #: Seconds to wait before a retry.
    retry_after = 1.0

    def __init__(
        self, message: str, *, path: str = "", full: bool = False, refused: bool = False
    ) -> None:
        super().__init__(message, path=path)
        self.full, self.refused = full, refused


class ArchiveDamaged(StorageError):
    """A stored file cannot be read; `line` counts from 1, `offset` is in bytes from 0."""

    def __init__(self, message: str, *, path: str, line: int = 0, offset: int = 0) -> None:
        where = f"{path}:{line}" if line else path
        super().__init__(f"{where}: {message}")
        self.path, self.line, self.offset = path, line, offset


class ContentDamaged(StorageError):
    """Stored bytes do not match their hash."""


class ContentMissing(StorageError):
    """A line refers to bytes that are not in the content store.

    `lost` is True if the archive has stored the bytes, but the object with them is gone.
    """

    def __init__(self, message: str, *, path: str = "", lost: bool = False) -> None:
        super().__init__(message, path=path)
        self.lost = lost


class ConversationMoved(StorageError):
    """Another process has continued this conversation; continue in a fork."""


class LeaseLost(StorageError):
    """Another process has taken over this run; this process stops and appends nothing."""


class RunUnreadable(StorageError):
    """A run's record is damaged, or a newer version of this library wrote it; `run` is its id."""

    def __init__(self, message: str, *, run: str) -> None:
        super().__init__(message)
        self.run = run


class FormatNewer(StorageError):
    """A newer version of this library wrote this; install that version to open it."""


class MemoryInvalid(RequestError):
    """A text or query for memory is invalid."""


class SecretRefused(MemoryInvalid):
    """A text seems to contain a secret; `masked` is the text around it, masked."""

    def __init__(self, masked: str) -> None:
        super().__init__(f"this looks like a secret and is not stored: {masked}")
        self.masked = masked


class MemoryNotFound(RequestError):
    """Memory has no entry with this id."""


class EmbeddingsMixed(RequestError):
    """Vectors of different models or lengths cannot be compared.

    Until `vibe-llms memory reindex` rebuilds them, memory searches by words only.
    """


class MemoryDamaged(StorageError):
    """A memory file cannot be read; it is left unchanged, and the others are used."""


class VersioningFailed(StorageError):
    """Git failed, but the memory's files are saved.

    `slow` is True if git timed out.
    """

    def __init__(self, message: str, *, path: str = "", slow: bool = False) -> None:
        super().__init__(message, path=path)
        self.slow = slow


def find_wait(error: BaseException) -> float | None:
    """Return the seconds to wait before a retry, if the error says so."""
    match error:
        case (
            RateLimited()
            | ProviderOverloaded()
            | BudgetExceeded()
            | StorageUnavailable()
            | TooManyRuns()
            | SteeringQueueFull()
        ):
            return error.retry_after
    return None
