"""The one error tree; every error that this library raises on purpose is in it.

The families are cut by what the caller does next::

    VibeLlmsError
    ├── ConfigurationError              mend the configuration
    │   ├── RegistrationError           a row names what cannot be found or loaded
    │   ├── PackageMissing              install a package
    │   │   └── PluginMissing
    │   ├── CredentialMissing           give a key
    │   └── RequestForbidden            allow requests, or send none
    ├── RequestError                    mend the call
    │   ├── ModelNotFound
    │   ├── ControlInvalid
    │   ├── ContentUnsupported
    │   ├── ContentNotLoaded
    │   ├── AttachmentUnreadable
    │   ├── InvokerInvalid
    │   ├── ArgumentsInvalid
    │   ├── AnswerInvalid
    │   ├── ScriptInvalid
    │   ├── ConversationNotFound
    │   ├── ConversationAmbiguous
    │   ├── ConversationBusy
    │   ├── ForkPointInvalid
    │   ├── EmbeddingsMixed
    │   ├── MemoryInvalid
    │   │   └── SecretRefused           say that it may be kept, or leave it out
    │   ├── MemoryNotFound
    │   ├── SessionClosed
    │   └── TurnInterrupted
    ├── ProviderError                   a provider refused or failed
    │   ├── RequestRefused              mend the request, or the history
    │   │   ├── ContextOverflow
    │   │   │   └── RequestTooLarge
    │   │   └── ModelUnavailable
    │   ├── CredentialRefused           mend the key or its rights
    │   ├── PaymentRequired             mend the account
    │   ├── RateLimited                 wait, then send it again
    │   ├── ProviderOverloaded          wait, then send it again
    │   ├── ProviderUnreachable         mend the network or the address
    │   ├── ReplyTimeout                a limit of ours ran out
    │   ├── ReplyCut                    the reply ended before its end
    │   ├── ReplyMalformed              the reply is not what the interface promises
    │   ├── OutputCut                   allow more output tokens
    │   └── OutputInvalid               ask otherwise, or another model
    ├── EnsembleFailed                  mend the server of the tools, or go on without them
    │   ├── SignInNeeded                sign in to it
    │   └── SessionLost
    └── StorageError                    nothing was lost; mend the disk or the file
        ├── ArchiveLocked
        ├── ArchiveDamaged
        ├── ContentDamaged
        ├── ContentMissing
        ├── ConversationMoved
        ├── FormatNewer
        ├── MemoryDamaged
        └── VersioningFailed

A message says what failed, why, and what to do. What a program needs to decide is in fields, never
only in the words.
"""

from __future__ import annotations

from collections.abc import Sequence

from vibe_llms.redaction import redact


class VibeLlmsError(Exception):
    """The base of all errors of this library. No message of theirs shows a key."""

    def __init__(self, *words: object) -> None:
        super().__init__(*(redact(word) if isinstance(word, str) else word for word in words))

    @property
    def kind(self) -> str:
        """The name of the error for machines, as `--json` prints it: `rate-limited`, say."""
        name = type(self).__name__
        return "".join(f"-{c.lower()}" if c.isupper() else c for c in name).lstrip("-")


class ConfigurationError(VibeLlmsError):
    """A configuration value is missing or wrong; the fields say where it stands.

    `message` is what is wrong without the place, `path` the names that lead to the value, if they
    are known one by one.
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
        self.package, self.command = package, command


class PluginMissing(PackageMissing):
    """What a row pins is not installed, and nothing is installed unasked; `row` is its name."""

    def __init__(self, package: str, *, row: str, command: str) -> None:
        super().__init__(f"[providers.{row}]", package=package, command=command)
        self.row = row


class CredentialMissing(ConfigurationError):
    """No key was found for a provider in any of the places where one may stand."""


class RequestForbidden(ConfigurationError):
    """A request would have left this machine, and real requests are forbidden; `host` is where."""

    def __init__(self, message: str, *, host: str) -> None:
        super().__init__(message)
        self.host = host


class RequestError(VibeLlmsError):
    """The call itself cannot be carried out as it was made."""


class ModelNotFound(RequestError):
    """No configured provider knows a model by this name."""


class ControlInvalid(RequestError):
    """A control is unknown to the model, or its value is out of range."""

    def __init__(self, message: str, *, control: str, model: str = "") -> None:
        super().__init__(f"{model}: {message}" if model else message)
        self.control, self.model = control, model


class ContentUnsupported(RequestError):
    """A content of this very call cannot be carried by the model."""


class ContentNotLoaded(RequestError):
    """A content holds a reference where its data is needed; `await archive.load(reference)`."""


class AttachmentUnreadable(RequestError):
    """A file or an address that should be attached cannot be read, or is of an unknown type."""


class InvokerInvalid(RequestError):
    """A function cannot be offered as a tool, or two tools would share a name."""


class ArgumentsInvalid(RequestError):
    """The arguments of a call do not fit the tool's schema; the message lists what to change."""


class AnswerInvalid(RequestError):
    """An answer does not fit what an ensemble asked, or it asked what nobody can answer."""


class ScriptInvalid(RequestError):
    """A script of the scripted provider cannot be read."""


class ConversationNotFound(RequestError):
    """No conversation has this identity, prefix or name."""


class ConversationAmbiguous(RequestError):
    """Several conversations fit; `candidates` are their identities."""

    def __init__(self, message: str, *, candidates: tuple[str, ...]) -> None:
        super().__init__(message)
        self.candidates = candidates


class ConversationBusy(RequestError):
    """A turn of this conversation is running; wait for it, or cancel it."""


class ForkPointInvalid(RequestError):
    """A conversation cannot be cut here; `nearest` are the identities where it can."""

    def __init__(self, message: str, *, nearest: tuple[str, ...]) -> None:
        super().__init__(message)
        self.nearest = nearest


class SessionClosed(RequestError):
    """The session of this conversation has been closed."""


class TurnInterrupted(RequestError):
    """The turn was cancelled; what had arrived is kept and marked as interrupted."""


class ProviderError(VibeLlmsError):
    """A provider refused or failed; `__cause__` keeps what its transport raised.

    `status` is the HTTP status where there was one, `code` the provider's own name for the error,
    `request_id` what its support asks for, `model` the model that was asked, once that is known.
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
    """The provider does not accept the request; sending it again unchanged is useless."""


class ContextOverflow(RequestRefused):
    """The history is longer than the model's context window: `tokens` against `limit`, if known."""

    tokens: int | None = None
    limit: int | None = None


class RequestTooLarge(ContextOverflow):
    """The request has more bytes than the provider accepts; what helps an overflow helps here."""


class ModelUnavailable(RequestRefused):
    """The provider does not have this model, or has retired it."""


class CredentialRefused(ProviderError):
    """The key is not valid, or may not do this."""


class PaymentRequired(ProviderError):
    """The account has no credit, or has reached its spending limit."""


class RateLimited(ProviderError):
    """Refused for now; `retry_after` is the provider's advice in seconds, if it gave one."""

    retry_after: float | None = None


class ProviderOverloaded(ProviderError):
    """The provider has an inner error or is overloaded; the same request may succeed later."""

    retry_after: float | None = None


class ProviderUnreachable(ProviderError):
    """No connection, or it broke before the reply began."""


class ReplyTimeout(ProviderError):
    """A time limit ran out; `limit` is its name in the configuration, such as `idle-seconds`."""

    def __init__(self, message: str, *, provider: str, limit: str, seconds: float) -> None:
        super().__init__(message, provider=provider)
        self.limit, self.seconds = limit, seconds


class ReplyCut(ProviderError):
    """The reply ended without the provider's mark of its end."""


class ReplyMalformed(ProviderError):
    """The reply is not what the provider's interface promises."""


class OutputCut(ProviderError):
    """The reply ended before its typed output was complete: a bound on its tokens was reached."""


class OutputInvalid(ProviderError):
    """The reply is no value of the type that was asked for, in any of so many `attempts`."""

    def __init__(self, message: str, *, provider: str, attempts: int = 1) -> None:
        super().__init__(message, provider=provider)
        self.attempts = attempts


class EnsembleFailed(VibeLlmsError):
    """An ensemble cannot be opened, or its server does not answer as it should.

    `phase` says when that was noticed: `opening`, `listing` or `calling NAME`, where it is known.
    """

    def __init__(self, message: str, *, ensemble: str, phase: str = "") -> None:
        super().__init__(f"{ensemble}: {message}")
        self.ensemble, self.phase = ensemble, phase


class SignInNeeded(EnsembleFailed):
    """The server wants somebody to sign in, and nobody did."""

    def __init__(self, reason: str, *, ensemble: str) -> None:
        super().__init__(
            f"{reason}; sign in at a terminal: vibe-llms mcp test {ensemble}",
            ensemble=ensemble,
        )


class SessionLost(EnsembleFailed):
    """The server knows the session no more, and so has not done what it was asked."""


class StorageError(VibeLlmsError):
    """The archive could not be read or written; `path` is the file concerned."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


class ArchiveLocked(StorageError):
    """Another process holds the lock for longer than `lock-seconds`."""


class ArchiveDamaged(StorageError):
    """A stored file cannot be read; `line` counts from 1, `offset` in bytes from 0."""

    def __init__(self, message: str, *, path: str, line: int = 0, offset: int = 0) -> None:
        where = f"{path}:{line}" if line else path
        super().__init__(f"{where}: {message}")
        self.path, self.line, self.offset = path, line, offset


class ContentDamaged(StorageError):
    """Stored bytes do not have the hash under which they are kept."""


class ContentMissing(StorageError):
    """A line refers to bytes that are not in the content store."""


class ConversationMoved(StorageError):
    """Another process has gone on with this conversation; go on in a fork."""


class FormatNewer(StorageError):
    """A newer version of this library wrote this; install that version to open it."""


class MemoryInvalid(RequestError):
    """Nothing can be remembered or looked for like this."""


class SecretRefused(MemoryInvalid):
    """A text looks like it holds a secret; `masked` is the text around it, without it."""

    def __init__(self, masked: str) -> None:
        super().__init__(f"this looks like a secret and is not stored: {masked}")
        self.masked = masked


class MemoryNotFound(RequestError):
    """Nothing is remembered by this identity."""


class EmbeddingsMixed(RequestError):
    """Vectors of different models, or of different dimensions, cannot be compared.

    Memory finds by words alone until its vectors are made anew: `vibe-llms memory reindex`.
    """


class MemoryDamaged(StorageError):
    """A file of a memory cannot be read; it is left as it is, and the others are used."""


class VersioningFailed(StorageError):
    """Git could not do its part; what is remembered is saved all the same.

    `slow` tells that its time ran out.
    """

    def __init__(self, message: str, *, path: str = "", slow: bool = False) -> None:
        super().__init__(message, path=path)
        self.slow = slow
