"""Scripts of the scripted provider, as values and as read from TOML."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

import msgspec
from msgspec import Meta, Struct

from vibe_llms.base.configuration import read_toml
from vibe_llms.base.exceptions import (
    ConfigurationError,
    ContextOverflow,
    CredentialRefused,
    ModelUnavailable,
    PaymentRequired,
    ProviderError,
    ProviderOverloaded,
    ProviderUnreachable,
    RateLimited,
    ReplyCut,
    ReplyMalformed,
    RequestRefused,
    RequestTooLarge,
    ScriptInvalid,
)
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, StopReason, Usage

FAULTS: dict[str, type[ProviderError]] = {
    "rate-limited": RateLimited,
    "overloaded": ProviderOverloaded,
    "unreachable": ProviderUnreachable,
    "refused": RequestRefused,
    "context-overflow": ContextOverflow,
    "too-large": RequestTooLarge,
    "credential-refused": CredentialRefused,
    "payment-required": PaymentRequired,
    "model-unavailable": ModelUnavailable,
    "malformed": ReplyMalformed,
}


class Part(
    Struct,
    frozen=True,
    kw_only=True,
    rename="kebab",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """One step of a scripted reply, which sets one of these fields.

    `text` and `reasoning` are streamed chunk by chunk if they are lists, otherwise word by word.
    `invocation` names a tool to call with `arguments`: an object, or any text to test how a program
    handles invalid arguments. `delay_seconds` waits. `error` is a key of `FAULTS`, `cut` ends the
    stream early, and `stall` leaves it open without sending anything.

    In a fake server, `status` replaces the HTTP status of an error, and `cut` says how the
    connection ends: closed (also `true`), reset, or cleanly as if the body were complete.
    """

    text: str | tuple[str, ...] | None = None
    reasoning: str | tuple[str, ...] | None = None
    invocation: str | None = None
    arguments: dict[str, Any] | str = {}
    delay_seconds: float = 0.0
    error: str | None = None
    message: str = "as the script says"
    retry_after_seconds: float | None = None
    status: Annotated[int, Meta(ge=400, le=599)] | None = None
    cut: bool | Literal["close", "reset", "clean"] = False
    stall: bool = False


class ScriptedReply(
    Struct,
    frozen=True,
    kw_only=True,
    rename="kebab",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """One reply. With `when`, a regular expression, it answers all requests that match.

    A fake server sends each event of a stream as one HTTP chunk, or with `chunk_bytes` in chunks of
    this size, regardless of event boundaries.
    """

    parts: tuple[Part, ...]
    when: str | None = None
    stop_reason: str | None = None
    usage: Usage | None = None
    chunk_bytes: Annotated[int, Meta(ge=1)] | None = None

    @classmethod
    def from_chunks(cls, *chunks: str) -> Self:
        """Return a reply whose text is streamed in exactly these chunks."""
        return cls(parts=(Part(text=chunks),))

    @property
    def reason(self) -> str:
        """Stop reason that the reply reports."""
        if self.stop_reason is not None:
            return self.stop_reason
        calls = any(part.invocation is not None for part in self.parts)
        return StopReason.INVOCATIONS if calls else StopReason.FINISHED


class Script(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Sequence of replies. Those without `when` are given in order, one per request.

    With `context_tokens`, longer requests are refused, and replies report the tokens that were
    read: one for four bytes of a stored message.
    """

    replies: tuple[ScriptedReply, ...]
    context_tokens: Annotated[int, Meta(ge=1)] | None = None

    def choose(self, words: str, position: int) -> ScriptedReply:
        """Return the reply to the last words; `position` counts the requests from 0."""
        for reply in self.replies:
            if reply.when is not None and _compile(reply.when).search(words):
                return reply
        ordered = [reply for reply in self.replies if reply.when is None]
        if position < len(ordered):
            return ordered[position]
        raise ScriptInvalid(
            f"the script has no reply to request {position + 1} ({words[:60]!r}); "
            "add one, or one with when = '.*'"
        )


# msgspec 0.22 crashes if two threads are the first to use a type, so use it here first.
msgspec.json.Decoder(Script)

#: Script in Python: a function of the conversation and the tools that returns the reply.
Improvisation: TypeAlias = Callable[[Sequence[Canister], Sequence[Invoker]], ScriptedReply]


def read_script(path: Path) -> Script:
    """Read a script from a TOML file; `ScriptInvalid` says where it is wrong."""
    try:
        tree = read_toml(path)
    except ConfigurationError as error:
        raise ScriptInvalid(str(error)) from error
    return produce_script(tree, str(path))


def produce_script(tree: Mapping[str, Any], origin: str) -> Script:
    """Convert plain data to a script; `ScriptInvalid` says where it is wrong."""
    try:
        script = msgspec.convert(_rename_usage(tree), Script)
    except msgspec.ValidationError as error:
        raise ScriptInvalid(f"{origin}: {error}") from error
    for number, reply in enumerate(script.replies, 1):
        try:
            _compile(reply.when or "")
            for part in reply.parts:
                produce_fault(part, "")
        except ScriptInvalid as error:
            raise ScriptInvalid(f"{origin}: reply {number}: {error}") from error
    return script


def produce_fault(part: Part, provider: str) -> ProviderError | None:
    """Return the error that a part of a script raises, if any."""
    if part.error is None:
        return ReplyCut("the script cuts the reply here", provider=provider) if part.cut else None
    if part.error not in FAULTS:
        raise ScriptInvalid(
            f"unknown error {part.error!r}; the errors are {', '.join(sorted(FAULTS))}"
        )
    error = FAULTS[part.error](part.message, provider=provider, status=part.status)
    if isinstance(error, RateLimited | ProviderOverloaded):
        error.retry_after = part.retry_after_seconds
    return error


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise ScriptInvalid(f"{pattern!r} is not a regular expression: {error}") from error


def _rename_usage(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rename the kebab-case keys of `usage`; the stored class uses snake_case."""
    replies = tree.get("replies")
    if not isinstance(replies, list):
        return tree
    return {
        **tree,
        "replies": [
            {**reply, "usage": {key.replace("-", "_"): n for key, n in reply["usage"].items()}}
            if isinstance(reply, dict) and isinstance(reply.get("usage"), dict)
            else reply
            for reply in replies
        ],
    }
