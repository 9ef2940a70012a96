"""Messages, typed by who speaks: the six canisters, and what a reply carries besides its words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar, Self, TypeAlias

import msgspec
from msgspec import Struct, field

from vibe_llms.messages.contents import Content, NativePayload, TextualContent, text_of
from vibe_llms.messages.identities import produce_identity


class StopReason(StrEnum):
    """Why a reply ended, in one vocabulary for all providers."""

    FINISHED = "finished"
    INVOCATIONS = "invocations"
    LENGTH = "length"
    REFUSED = "refused"
    PAUSED = "paused"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    LIMIT = "limit"


class Usage(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Tokens of a reply in classes that do not overlap, so that they may be added."""

    uncached_input_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def input_tokens(self) -> int:
        """All tokens that the model read."""
        return self.uncached_input_tokens + self.cache_read_tokens + self.cache_write_tokens

    @property
    def total_tokens(self) -> int:
        """All tokens, read and written."""
        return self.input_tokens + self.output_tokens + self.reasoning_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            *(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__)
        )


class Provenance(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Which provider and model made a reply, and the provider's own identity for it."""

    module: str
    row: str
    model: str
    response: str = ""


class Ending(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """How a reply ended; only the last canister of the reply carries it.

    `reason` is a `StopReason`, or a word of a newer version. `native_reason` is the provider's own
    word, `detail` what it or we said about it (the matched stop sequence, why it refused, what
    failed). `severed` names the tools whose call had begun and did not arrive whole: such a call
    never runs.
    """

    reason: str
    usage: Usage | None = None
    interrupted: bool = False
    native_reason: str = ""
    detail: str = ""
    severed: tuple[str, ...] = ()


def _now() -> datetime:
    return datetime.now(UTC)


class _Canister(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag_field="role",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """What all canisters share: an identity (UUIDv7) and the time of their making (UTC).

    `source_line` is set by the codec alone, where a stored line holds something that this version
    does not know; encoding such a canister gives the line back as it was.
    """

    identity: str = field(default_factory=produce_identity)
    created: datetime = field(default_factory=_now)
    source_line: bytes | None = None


class _Spoken(_Canister, frozen=True):
    """A canister made of contents."""

    contents: tuple[Content, ...] = ()

    @classmethod
    def from_text(cls, text: str) -> Self:
        """A canister with this text as its only content."""
        return cls(contents=(TextualContent(text),))

    @property
    def text(self) -> str:
        """Its visible text; `ContentNotLoaded` where a part of it lies in the archive."""
        return text_of(self.contents)


class UserCanister(_Spoken, frozen=True, tag="user"):
    """What the person said."""


class AssistantCanister(_Spoken, frozen=True, tag="assistant"):
    """What the model said or thought, between its tool calls.

    `reply` is shared by all canisters of one round trip; it is empty where a program made the
    canister itself.
    """

    reply: str = ""
    provenance: Provenance | None = None
    ending: Ending | None = None


class SupervisorCanister(_Spoken, frozen=True, tag="supervisor"):
    """Instructions that stand above the person's: the system text."""


class DocumentCanister(_Spoken, frozen=True, tag="document"):
    """A document to be consulted, kept apart from what the person said."""

    title: str = ""
    source: str = ""


class InvocationCanister(_Canister, frozen=True, tag="invocation"):
    """One tool call, received whole: the canonical name of the tool and its arguments.

    `arguments` is the text exactly as it was received; `call` is the provider's own identity for
    the call, which is provenance only: results are paired by the identity of this canister.
    """

    #: A call has no contents.
    contents: ClassVar[tuple[Content, ...]] = ()

    name: str
    arguments: str = "{}"
    call: str = ""
    reply: str = ""
    provenance: Provenance | None = None
    ending: Ending | None = None
    native: NativePayload | None = None

    @property
    def parsed(self) -> Mapping[str, Any] | None:
        """The arguments as an object, or `None` where the text is not a JSON object."""
        try:
            value = msgspec.json.decode(self.arguments or "{}")
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


class ResultCanister(_Spoken, frozen=True, kw_only=True, tag="result"):
    """What one tool call returned; `invocation` is the identity of the call.

    `display` is what people are shown in place of the contents, where it is not empty. `reused` is
    the identity of the earlier result that this one repeats, where the tool did not run again.
    """

    invocation: str
    failed: bool = False
    display: str = ""
    reused: str = ""


class UnknownCanister(_Canister, frozen=True, tag="?"):
    """A message of a role that a newer version wrote; kept as it is."""

    contents: ClassVar[tuple[Content, ...]] = ()

    label: str = ""


Canister: TypeAlias = (
    UserCanister
    | AssistantCanister
    | SupervisorCanister
    | DocumentCanister
    | InvocationCanister
    | ResultCanister
    | UnknownCanister
)
ReplyCanister: TypeAlias = AssistantCanister | InvocationCanister

#: The table of roles: the tag in a stored line, and its class.
CANISTER_ROLES: dict[str, type[_Canister]] = {
    "user": UserCanister,
    "assistant": AssistantCanister,
    "supervisor": SupervisorCanister,
    "document": DocumentCanister,
    "invocation": InvocationCanister,
    "result": ResultCanister,
}


def role_of(canister: Canister) -> str:
    """The tag of a canister's role, as in its stored line."""
    if isinstance(canister, UnknownCanister):
        return canister.label
    return str(canister.__struct_config__.tag)


class Turn(Struct, frozen=True):
    """What one call of `converse` gave.

    `canisters` are all that were added, the prompt included; `text` is what the model said in its
    last reply; `usage` sums all replies of the turn; `output` is the typed result where one was
    asked for.
    """

    canisters: tuple[Canister, ...]
    text: str
    output: object
    usage: Usage
    stop_reason: str


def usage_of(canisters: Sequence[Canister]) -> Usage:
    """The sum of the usage of all replies among these canisters."""
    total = Usage()
    for canister in canisters:
        if isinstance(canister, AssistantCanister | InvocationCanister) and canister.ending:
            total += canister.ending.usage or Usage()
    return total
