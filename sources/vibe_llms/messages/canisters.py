"""The types of messages (canisters), and the metadata of a reply."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import astuple, force_setattr

from vibe_llms.base.offloading import LOOP_BYTES, LOOP_MESSAGES
from vibe_llms.messages.contents import (
    AudioContent,
    Content,
    FileContent,
    ImageContent,
    NativePayload,
    TextualContent,
    VideoContent,
    text_of,
)
from vibe_llms.messages.identities import produce_identity

if TYPE_CHECKING:
    # The default makes a plain `Turn` a `Turn[Any]`; Python supports such defaults since 3.13.
    from decimal import Decimal

    import typing_extensions

    T = typing_extensions.TypeVar("T", default=Any)
else:
    T = TypeVar("T")


class StopReason(StrEnum):
    """The reason why a reply ended, in the same words for all providers."""

    FINISHED = "finished"
    INVOCATIONS = "invocations"
    LENGTH = "length"
    REFUSED = "refused"
    PAUSED = "paused"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    LIMIT = "limit"
    #: A turn waits for a decision; never the reason of a reply.
    SUSPENDED = "suspended"


class Usage(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Token counts of a reply, in classes that do not overlap and can be added.

    Only `hour_write_tokens` are a part of others: of `cache_write_tokens`, those that are cached
    for an hour, which costs more.
    """

    uncached_input_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    hour_write_tokens: int = 0

    @property
    def input_tokens(self) -> int:
        """Number of tokens that the model read."""
        return self.uncached_input_tokens + self.cache_read_tokens + self.cache_write_tokens

    @property
    def total_tokens(self) -> int:
        """Number of tokens that the model read and wrote."""
        return self.input_tokens + self.output_tokens + self.reasoning_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*map(add, astuple(self), astuple(other)))


class Cost(Struct, frozen=True):
    """An estimated cost in US dollars.

    `unpriced` is the number of replies that are not included because no price list has their model.
    `source` is the name and version of the package with the lists.
    """

    dollars: "Decimal"
    unpriced: int
    source: str


class Provenance(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The row and model of a reply, and the provider's id for it."""

    module: str
    row: str
    model: str
    response: str = ""


class Ending(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The end of a reply, stored with its last canister.

    `reason` is a `StopReason`, or a word from a newer version. `native_reason` is the provider's
    own word. `detail` explains it: the matched stop sequence, the reason for a refusal, the
    failure. `severed` names the tools whose calls did not arrive completely; such calls never run.
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
    """Common fields of all canisters: an identity (UUIDv7) and the time of creation (UTC).

    Only the codec sets `source_line`, for a stored line with elements that this version does not
    know. Encoding such a canister returns the line unchanged.
    """

    identity: str = field(default_factory=produce_identity)
    created: datetime = field(default_factory=_now)
    source_line: bytes | None = None


class _Spoken(_Canister, frozen=True):
    """A canister with contents."""

    contents: tuple[Content, ...] = ()

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return a canister with this text as its only content."""
        return cls(contents=(TextualContent(text),))

    @property
    def text(self) -> str:
        """Visible text; raises `ContentNotLoaded` if part of it is in the archive."""
        return text_of(self.contents)


class UserCanister(_Spoken, frozen=True, tag="user"):
    """A message from the user.

    `steered` is True if it was added to a running turn, so that it does not begin one.
    """

    steered: bool = False


class AssistantCanister(_Spoken, frozen=True, tag="assistant"):
    """Text or thoughts of the model, between its tool calls.

    All canisters of one round trip have the same `reply`; empty if a program created them.
    """

    reply: str = ""
    provenance: Provenance | None = None
    ending: Ending | None = None


class SupervisorCanister(_Spoken, frozen=True, tag="supervisor"):
    """Instructions with more authority than the user's messages: the system text."""


class DocumentCanister(_Spoken, frozen=True, tag="document"):
    """A document for reference, separate from the user's message.

    Its text is untrusted unless the user vouches for it with `trusted`.
    """

    title: str = ""
    source: str = ""
    trusted: bool = False


class InvocationCanister(_Canister, frozen=True, tag="invocation"):
    """One complete tool call: the canonical name of the tool and its arguments.

    `arguments` is the text exactly as received. `call` is the provider's id for the call, for
    information only: a result refers to the identity of this canister.
    """

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
        """The arguments as an object, or None if the text is not a JSON object."""
        try:
            value = msgspec.json.decode(self.arguments or "{}")
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


class ResultCanister(_Spoken, frozen=True, kw_only=True, tag="result"):
    """The result of one tool call; `invocation` is the identity of the call.

    A `display` is shown to people instead of the contents. `reused` is the identity of an earlier
    result that this one repeats without another call. The text is untrusted unless `trusted`: the
    library sets it for tools that return no text from others.
    """

    invocation: str
    failed: bool = False
    display: str = ""
    reused: str = ""
    trusted: bool = False


class DigestCanister(_Spoken, frozen=True, kw_only=True, tag="digest"):
    """A view of the conversation for models, appended when it nearly fills their context window.

    Later requests contain the summary in `contents` in place of the messages from `first` to
    `last`, except those that are `kept`. Without `last`, no message is summarized. For a message in
    `shortened`, they contain the given text in place of its contents or arguments. `pinned` are
    messages that every later digest keeps. The stored messages do not change. It is not `trusted`
    if it summarizes untrusted text that is not in the history.

    `before` and `after` are the estimated tokens of a request. `policy` names the rules that chose
    the messages. `provenance` and `ending` are those of the model that wrote the summary; without
    them, no model wrote it.
    """

    first: str = ""
    last: str = ""
    kept: tuple[str, ...] = ()
    shortened: Mapping[str, str] = {}
    pinned: tuple[str, ...] = ()
    before: int = 0
    after: int = 0
    policy: str = ""
    trusted: bool = True
    provenance: Provenance | None = None
    ending: Ending | None = None


class UnknownCanister(_Canister, frozen=True, tag="?"):
    """A message with a role from a newer version, kept unchanged."""

    contents: ClassVar[tuple[Content, ...]] = ()

    label: str = ""


Canister: TypeAlias = (
    UserCanister
    | AssistantCanister
    | SupervisorCanister
    | DocumentCanister
    | InvocationCanister
    | ResultCanister
    | DigestCanister
    | UnknownCanister
)
ReplyCanister: TypeAlias = AssistantCanister | InvocationCanister

#: Classes of canisters by role, which is the tag in a stored line.
CANISTER_ROLES: dict[str, type[_Canister]] = {
    "user": UserCanister,
    "assistant": AssistantCanister,
    "supervisor": SupervisorCanister,
    "document": DocumentCanister,
    "invocation": InvocationCanister,
    "result": ResultCanister,
    "digest": DigestCanister,
}


def role_of(canister: Canister) -> str:
    """Return the role of a canister, as in its stored line."""
    if isinstance(canister, UnknownCanister):
        return canister.label
    return str(canister.__struct_config__.tag)


def is_untrusted(canister: Canister) -> bool:
    """Return True if a message has text from others for which the user has not vouched.

    Such text is in documents, in files other than images in the user's messages, and in results of
    tools, unless they are `trusted`, and in digests that are not.
    """
    match canister:
        case DocumentCanister(trusted=trusted) | ResultCanister(trusted=trusted):
            return not trusted
        case DigestCanister(trusted=trusted):
            return not trusted
        case UserCanister(contents=contents):
            return any(map(_is_document, contents))
        case _:
            return False


def _is_document(content: Content) -> bool:
    match content:
        case FileContent() | AudioContent() | VideoContent():
            return True
        case ImageContent(mimetype=mimetype):
            # SVG is text.
            return mimetype.lower().startswith("image/svg")
        case _:
            return False


class Turn(Struct, Generic[T], frozen=True, dict=True):
    """The result of one call of `converse`.

    `canisters` are all that the turn added, including the prompt. `text` is the text of the last
    reply. `usage` is the sum over all replies, also those to requests for a summary. `output` is
    the typed result, if requested.
    """

    canisters: tuple[Canister, ...]
    text: str
    output: T
    usage: Usage
    stop_reason: str

    @property
    def cost(self) -> Cost | None:
        """Estimated cost of the turn, by the price lists of its providers' rows.

        None if the turn does not belong to a session. Raises `PackageMissing` if `genai-prices` is
        not installed.
        """
        estimate = getattr(self, "_estimate", None)
        return None if estimate is None else estimate(self.canisters)

    def price(self, estimate: Callable[[Sequence[Canister]], Cost] | None) -> Self:
        """Set the function that estimates the cost; return the turn."""
        # Not a field: it is not part of the turn's value and cannot be encoded.
        force_setattr(self, "_estimate", estimate)
        return self

    def __repr__(self) -> str:
        from textwrap import shorten

        text = shorten(self.text, 60, placeholder="…")
        return f"<Turn {text!r}: {self.usage.total_tokens} tokens, {self.stop_reason}>"

    def _repr_markdown_(self) -> str:
        """Return Markdown for a notebook: the text, with HTML escaped."""
        from vibe_llms.messages.markdown import escape_html

        return escape_html(self.text)


def is_large(canisters: Sequence[Canister]) -> bool:
    """Return True if work on all of these messages takes too long for the event loop."""
    if len(canisters) > LOOP_MESSAGES:
        return True
    contents = [getattr(one, "data", None) for said in canisters for one in said.contents]
    sizes = (len(data) for data in contents if isinstance(data, str | bytes))
    return len(contents) > LOOP_MESSAGES or sum(sizes) > LOOP_BYTES


def usage_of(canisters: Sequence[Canister]) -> Usage:
    """Return the total usage of all replies and digests among these canisters."""
    usages = [
        canister.ending.usage
        for canister in canisters
        if isinstance(canister, AssistantCanister | InvocationCanister | DigestCanister)
        if canister.ending and canister.ending.usage
    ]
    return reduce(add, usages) if usages else Usage()
