"""Conversion of canisters for a wire: their texts, issuers, and notices of what is changed."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import PureWindowsPath
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Raw

from vibe_llms.base.exceptions import ContentUnsupported
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DigestCanister,
    DocumentCanister,
    InvocationCanister,
    Provenance,
    ResultCanister,
    SupervisorCanister,
    UnknownCanister,
    UserCanister,
    role_of,
)
from vibe_llms.messages.contents import (
    Content,
    FileContent,
    Issuer,
    MediaContent,
    NativeContent,
    NativePayload,
    ReasoningContent,
    Reference,
    TextualContent,
    repair_text,
)
from vibe_llms.messages.events import Notice
from vibe_llms.providers.interfaces import Loader, Model
from vibe_llms.providers.pieces import compact, encode_json, load_texts

T = TypeVar("T")
P = TypeVar("P")
B = TypeVar("B")

#: Members that only number a call, and default values. Nothing is lost without them.
_NUMBERING = frozenset({"id", "status"})
_USUAL: tuple[object, ...] = (None, {"type": "direct"})
_MEMBERS = msgspec.json.Decoder(dict[str, Any])
_RAW_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
#: Member of a text's payload: the signatures of its parts. Gemini reasons in them.
SIGNATURES = "signatures"
_SCHEME = r"(?i)(?!file:)[a-z][a-z0-9+.-]+:"
_ABSOLUTE = r"(?i)[/~]|\\\\|[a-z]:[/\\]|file:"
_KINDS = {"image": "an image", "audio": "a sound", "video": "a video", "file": "a file"}


class Conversion:
    """Conversion of one canister for the wire of `model`, whose provider's module is `module`.

    `texts` holds the bytes of texts that are references. `notices` collects what is not sent
    unchanged.
    """

    def __init__(
        self, canister: Canister, model: Model, module: str, texts: Mapping[str, bytes]
    ) -> None:
        self.canister = canister
        self.model = model
        self.origin = canister.identity
        self.notices: list[Notice] = []
        self._module = module
        self._texts = texts

    @property
    def own(self) -> bool:
        """True if the canister is from a reply of this model."""
        return is_own(self.canister, self.model, self._module)

    @property
    def _issuer(self) -> Issuer:
        """This model, as it is named in payloads."""
        return Issuer(self._module, self.model.provider, self.model.name)

    def text(self, data: str | Reference) -> str:
        """Return a text, or the text of a reference, in a form that can be sent."""
        if isinstance(data, str):
            return repair_text(data)
        return self._texts[data.hash].decode("utf-8", "replace")

    @property
    def role(self) -> str:
        """Role: `user`, `assistant`, `supervisor`, `document`, `invocation`, or `result`."""
        return role_of(self.canister)

    def words(self) -> str:
        """Return the canister as one text, for wires that support nothing else.

        Other contents are described or left out, with a notice. A call has no text.
        """
        said: list[str] = []
        match self.canister:
            case DocumentCanister() as document:
                said.append(head_document(document))
            case UnknownCanister(label=label):
                self.leave_out(f"a message of the unknown role {label!r}")
        for content in self.canister.contents:
            match content:
                case TextualContent(data=data):
                    said.append(self.text(data))
                    self.leave_out_additions(content)
                case ReasoningContent():
                    self.leave_out("reasoning")
                case NativeContent(label=label):
                    self.leave_out(f"a block {label!r} that only its model understands")
                case _:
                    said.append(self.describe(content))
        return "\n".join(text for text in said if text.strip())

    def issued(self, native: NativePayload | None) -> bool:
        """Return True if there is a payload and it came from this model."""
        return native is not None and native.issuer == self._issuer

    def read(self, native: NativePayload | None, decoder: msgspec.json.Decoder[T]) -> T | None:
        """Decode a payload of this model; return None if it is another model's, or invalid."""
        if native is None or not self.issued(native):
            return None
        try:
            return decoder.decode(native.data)
        except (ValueError, RecursionError):
            return None

    def leave_out(self, what: str, how: str = "left out") -> None:
        """Add a notice that something in the canister is not sent unchanged."""
        text = f"{what} is {how} for {self.model.provider}/{self.model.name}"
        self.notices.append(Notice("conversion", text, self.origin, what))

    def leave_out_additions(self, content: TextualContent) -> None:
        """Add notices of what another model's text has that is not sent: sources and reasoning."""
        if self.own:
            return
        if content.citations:
            self.leave_out("the source list of another model's text")
        reasoning = "the reasoning of another model"
        if is_signed(content) and all(notice.name != reasoning for notice in self.notices):
            self.leave_out(reasoning)

    def leave_out_members(self, native: NativePayload) -> None:
        """Add a notice if another model added members to a call, which are not sent."""
        try:
            members = _MEMBERS.decode(native.data)
        except (ValueError, RecursionError):
            members = {"": native}
        if any(key not in _NUMBERING and value not in _USUAL for key, value in members.items()):
            self.leave_out("another model's additions to a call")

    def describe(self, content: Content, what: str = "") -> str:
        """Describe a content in words for a model that cannot be sent it, and add a notice."""
        name = name_content(content)
        self.leave_out(what or name, "described in text")
        return f"[{name}, not shown to this model]"


class Writer(Conversion, ABC, Generic[P, B]):
    """Conversion to a piece of a wire, whose contents are blocks; `call` is an id on the wire.

    Subclasses frame the blocks of each role. The order of the cases, and the handling of contents
    that a wire does not support, are the same for all.
    """

    def __init__(
        self,
        canister: Canister,
        model: Model,
        module: str,
        texts: Mapping[str, bytes],
        call: str = "",
    ) -> None:
        super().__init__(canister, model, module, texts)
        self.call = call

    @abstractmethod
    def write_reply(self, canister: AssistantCanister) -> P:
        """Return the piece of a model's text."""

    @abstractmethod
    def write_call(self, canister: InvocationCanister) -> P:
        """Return the piece of a call."""

    @abstractmethod
    def write_result(self, canister: ResultCanister) -> P:
        """Return the piece of a result."""

    @abstractmethod
    def write_document(self, canister: DocumentCanister) -> P:
        """Return the piece of a document."""

    def write_instructions(self, canister: SupervisorCanister) -> P:
        """Return the piece of a supervisor's text; by default, text only."""
        return self.frame("system", self.encode(canister.contents, plain=True))

    @abstractmethod
    def frame(self, role: Literal["user", "system"], blocks: Sequence[B]) -> P:
        """Return the piece of a message from a user or a supervisor."""

    @abstractmethod
    def encode_text(self, text: str) -> B:
        """Return the block of a text."""

    @abstractmethod
    def unsupported(self, content: MediaContent) -> str:
        """Explain why the model cannot take a content; return an empty string if it can."""

    @abstractmethod
    def encode_media(self, content: MediaContent) -> B:
        """Return the block of a supported image, sound, or file."""

    def write(self) -> P:
        """Return the piece of the canister."""
        match self.canister:
            case UserCanister(contents=contents):
                return self.frame("user", self.encode(contents))
            case AssistantCanister() as canister:
                return self.write_reply(canister)
            case InvocationCanister() as canister:
                return self.write_call(canister)
            case ResultCanister() as canister:
                return self.write_result(canister)
            case DocumentCanister() as canister:
                return self.write_document(canister)
            case SupervisorCanister() as canister:
                return self.write_instructions(canister)
            case DigestCanister():
                # A conversation applies its digests itself.
                return self.frame("user", ())
            case canister:
                self.leave_out(f"a message of the unknown role {canister.label!r}")
                return self.frame("user", ())

    def encode(self, contents: Sequence[Content], *, plain: bool = False) -> list[B]:
        """Return the blocks of contents; `plain` if a wire supports only text."""
        blocks: list[B] = []
        for content in contents:
            block: B | None = None
            match content:
                case TextualContent(data=data):
                    if (text := self.text(data)) and not text.isspace():
                        block = self.encode_text(text)
                case ReasoningContent() | NativeContent() if not plain:
                    self.leave_out("a part that only a model's own reply can contain")
                case _ if not plain and isinstance(content, MediaContent):
                    reason = self.unsupported(content)
                    block = self.say(content, reason) if reason else self.encode_media(content)
                case _:
                    block = self.say(content)
            blocks += [] if block is None else [block]
        return blocks

    def members(self, canister: InvocationCanister) -> Mapping[str, Raw]:
        """Return this model's additions to its call; leave out those of another model."""
        if canister.native is None:
            return {}
        members = self.read(canister.native, _RAW_MEMBERS)
        if members is None:
            self.leave_out_members(canister.native)
        return members or {}

    def say(self, content: Content, what: str = "") -> B:
        """Return a block that describes a content, for a model that cannot be sent it."""
        return self.encode_text(self.describe(content, what))


def is_signed(content: TextualContent) -> bool:
    """Return True if a text came with reasoning that is encrypted in signatures of its parts."""
    if content.native is None:
        return False
    try:
        return SIGNATURES in _RAW_MEMBERS.decode(content.native.data)
    except (ValueError, RecursionError):
        return False


def is_own(canister: Canister, model: Model, module: str) -> bool:
    """Return True if a message is from a reply of a model whose provider's module is `module`."""
    origin: Provenance | None = getattr(canister, "provenance", None)
    if origin is None:
        return False
    return (origin.module, origin.row, origin.model) == (module, model.provider, model.name)


def name_document(canister: DocumentCanister) -> tuple[str, str]:
    """Return the title and source of a document as they are sent; each may be empty.

    Only the last part of a path is sent, because its folders are private. A source that is not an
    address counts as a path; a title does so only if it is an absolute path.

    >>> name_document(DocumentCanister(title="n.txt", source="/home/ada/acme/n.txt"))
    ('n.txt', '')
    >>> name_document(DocumentCanister(title="TCP/IP", source="https://example.org/tcp.html"))
    ('TCP/IP', 'https://example.org/tcp.html')
    """
    title, source = (repair_text(text).strip() for text in (canister.title, canister.source))
    if re.match(_ABSOLUTE, title):
        title = _strip_folders(title)
    if not re.match(_SCHEME, source):
        source = _strip_folders(source)
        # The title of an attached file is its name.
        source = "" if source == title else source
    return title, source


def head_document(canister: DocumentCanister) -> str:
    """Return the heading of a document, for wires without a field for its name."""
    name = ", ".join(filter(None, name_document(canister)))
    return f"Document: {name}" if name else ""


def nativize_arguments(canister: InvocationCanister) -> Raw:
    """Return a call's arguments as a JSON object; invalid ones become a member of one."""
    if canister.parsed is None:
        return Raw(encode_json({"arguments": repair_text(canister.arguments)}))
    return Raw(compact((canister.arguments.strip() or "{}").encode()))


def name_file(content: Content) -> str:
    """Return the name of a file without its folders; empty if it has none."""
    return _strip_folders(repair_text(getattr(content, "name", "")))


def check_contents(
    canister: Canister, model: Model, unsupported: Callable[[MediaContent], str]
) -> None:
    """Raise `ContentUnsupported` if the model does not support a content of this canister."""
    for content in getattr(canister, "contents", ()):
        if isinstance(content, MediaContent) and (reason := unsupported(content)):
            address = f"{model.provider}/{model.name}"
            raise ContentUnsupported(f"{address} does not accept {repair_text(reason)}")


def is_text_file(content: Content) -> bool:
    """Return True if a content is a text file with known bytes, which can be sent as text."""
    return (
        isinstance(content, FileContent)
        and content.mimetype.startswith("text/")
        and isinstance(content.data, bytes | Reference)
    )


async def load_words(canisters: Sequence[Canister], load: Loader) -> Mapping[str, bytes]:
    """Load the texts that canisters have by reference, and their text files."""
    texts = await load_texts(canisters, load)
    files = [
        content.data
        for canister in canisters
        for content in getattr(canister, "contents", ())
        if not isinstance(content, TextualContent)
        and is_text_file(content)
        and isinstance(content.data, Reference)
    ]
    return {**texts, **await load(files)} if files else texts


def _strip_folders(path: str) -> str:
    """Return the last part of a path of any system."""
    return PureWindowsPath(path).name if "/" in path or "\\" in path else path


def name_content(content: Content) -> str:
    """Describe a content in a few words, for users and for models that are not sent it."""
    kind = str(content.__struct_config__.tag)
    name = _strip_folders(getattr(content, "name", ""))
    mimetype = repair_text(getattr(content, "mimetype", ""))
    label = _KINDS.get(kind, f"a content of kind {getattr(content, 'label', '') or kind!r}")
    parts = (label, repr(name) if name else "", mimetype)
    return repair_text(" ".join(part for part in parts if part))
