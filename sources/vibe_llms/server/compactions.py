"""Compactions that clients keep: messages to continue with, signed, in place of a long history.

A compaction has the messages that a request contains after a digest. The signature binds it to the
user, so that no other text is accepted as the server's. It is not encrypted: it contains only what
the client may see.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import zlib
from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.base.offloading import offload
from vibe_llms.conversations.calls import is_tainted
from vibe_llms.conversations.context_export import export_messages
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.digests import find_hidden
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DigestCanister,
    DocumentCanister,
    InvocationCanister,
    Provenance,
    ResultCanister,
    SupervisorCanister,
    Usage,
    UserCanister,
)
from vibe_llms.messages.codecs import LineUnreadable
from vibe_llms.messages.contents import Content, MediaContent, TextualContent
from vibe_llms.providers.interfaces import Loader
from vibe_llms.runs.interfaces import read_lines, write_lines
from vibe_llms.server.failures import Rejected

#: Beginning of our compactions.
_PREFIX = "vibe1."
_SIGNATURE_BYTES = 32
#: Bytes of a compaction after decompression, at most.
_MOST_BYTES = 256 * 1024 * 1024
_HIDDEN = "[The result is not shown.]"
_PROVENANCE = Provenance("vibe_llms.server", "", "")


class ClientCompaction(Struct, frozen=True):
    """A compaction for a client: the messages to continue with, and the summary in them.

    `usage` is that of the summary. `opaque` are the signed messages, if they are sent to a client.
    """

    messages: Sequence[Canister]
    text: str
    usage: Usage
    opaque: str = ""

    async def sign(self, signer: CompactionSigner) -> ClientCompaction:
        """Return the compaction with its signed messages, which are compressed in a thread."""
        return replace(self, opaque=await offload(True, signer.write, self.messages))


class PastAgents(Struct, frozen=True):
    """Names of the agents of earlier messages; their hidden tools and prompts are not for clients.

    A message of no agent counts as one of an agent without a name.
    """

    names: Collection[str] = ()
    hidden: Collection[str] = ()
    prompts: Collection[str] = ()

    def add(self, name: str, hidden: Collection[str], prompt: str) -> PastAgents:
        """Return these agents and another."""
        prompts = [*self.prompts, prompt] if prompt else self.prompts
        return PastAgents({*self.names, name}, {*self.hidden, *hidden}, {*prompts})


class CompactionSigner:
    """Writer and reader of the compactions of one user."""

    def __init__(self, secret: bytes, user: str) -> None:
        """Create a signer with the secret of the servers."""
        self._secret = secret
        self._user = user

    def write(self, messages: Sequence[Canister]) -> str:
        """Return messages as an opaque text."""
        packed = zlib.compress(write_lines(messages))
        return _PREFIX + base64.urlsafe_b64encode(self._sign(packed) + packed).decode()

    def read(self, content: str, param: str) -> Sequence[Canister]:
        """Return the messages of an opaque text; `Rejected` if it is not one of this user."""
        refused = Rejected(
            "this compaction was not made by this server for you, or it was changed; send the "
            "messages that it replaces, or its summary as text",
            param=param,
            code="invalid_encrypted_content",
        )
        if not is_own(content):
            raise refused
        try:
            signed = base64.b64decode(content.removeprefix(_PREFIX), altchars="-_", validate=True)
        except (binascii.Error, ValueError):
            raise refused from None
        signature, packed = signed[:_SIGNATURE_BYTES], signed[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._sign(packed)):
            raise refused
        unpacking = zlib.decompressobj()
        lines = unpacking.decompress(packed, _MOST_BYTES)
        if unpacking.unconsumed_tail:
            raise Rejected(
                f"the compaction has more than {_MOST_BYTES:,} bytes",
                status=413,
                param=param,
                code="request_too_large",
            )
        try:
            return read_lines(lines)
        except LineUnreadable:
            # Written by a newer version.
            raise refused from None

    def _sign(self, packed: bytes) -> bytes:
        user = self._user.encode()
        signed = b"compaction" + len(user).to_bytes(8, "big") + user + packed
        return hmac.new(self._secret, signed, hashlib.sha256).digest()


def is_own(content: str) -> bool:
    """Return True if a text begins like a compaction of this server."""
    return content.startswith(_PREFIX)


async def export_compaction(
    conversation: Conversation,
    said: Sequence[Canister],
    *,
    hidden: Collection[str],
    repeated: Collection[str],
    usage: Usage,
) -> ClientCompaction:
    """Return the compaction of a conversation and the new messages after it.

    The results of `hidden` tools are left out, and so are the `repeated` system texts, which
    requests contain anyway. `usage` is that of the summary.
    """
    canisters = [*conversation.canisters, *said]
    settings, load = conversation.settings, conversation.history.load
    tainted = is_tainted(canisters, vouched=settings.vouched, claims=settings.claims)
    messages = await _export(canisters, load, hidden, repeated, tainted)
    text = next((one.text for one in messages if isinstance(one, DigestCanister)), "")
    return ClientCompaction(messages, text, usage)


async def export_past(
    history: Sequence[Canister], load: Loader, past: PastAgents
) -> Sequence[Canister]:
    """Return what clients may see of messages of several agents, as if the client had sent it."""
    tainted = is_tainted(history, vouched=(), claims=True)
    return await _export(history, load, past.hidden, past.prompts, tainted)


async def _export(
    history: Sequence[Canister],
    load: Loader,
    hidden: Collection[str],
    repeated: Collection[str],
    tainted: bool,
) -> Sequence[Canister]:
    def strip(shown: Sequence[Canister]) -> Iterator[Canister]:
        for one in _strip(shown, hidden):
            if not (isinstance(one, SupervisorCanister) and one.text in repeated):
                yield one

    return await export_messages(history, load, strip, hidden=hidden, tainted=tainted)


def _strip(messages: Sequence[Canister], hidden: Collection[str]) -> Iterator[Canister]:
    """Yield new messages with what clients may see, which are encoded from their fields only."""
    private = find_hidden(messages, hidden)
    for one in messages:
        identity, created = one.identity, one.created
        match one:
            case SupervisorCanister():
                yield SupervisorCanister(one.contents, identity=identity, created=created)
            case UserCanister():
                yield UserCanister(one.contents, identity=identity, created=created)
            case DigestCanister():
                yield one
            case DocumentCanister():
                yield DocumentCanister(
                    one.contents,
                    title=one.title,
                    source=one.source,
                    trusted=one.trusted,
                    identity=identity,
                    created=created,
                )
            case AssistantCanister() if contents := tuple(_survey_visible(one.contents)):
                yield AssistantCanister(
                    contents,
                    provenance=one.provenance and _PROVENANCE,
                    identity=identity,
                    created=created,
                )
            case InvocationCanister():
                yield InvocationCanister(
                    name=one.name,
                    arguments="{}" if identity in private else one.arguments,
                    call=one.call,
                    provenance=one.provenance and _PROVENANCE,
                    identity=identity,
                    created=created,
                )
            case ResultCanister():
                contents = tuple(one.contents)
                if identity in private:
                    contents = (TextualContent(_HIDDEN),)
                yield ResultCanister(
                    contents,
                    invocation=one.invocation,
                    failed=one.failed,
                    trusted=one.trusted,
                    identity=identity,
                    created=created,
                )


def _survey_visible(contents: Sequence[Content]) -> Iterator[Content]:
    """Yield text and media, without what only the model's provider can read."""
    for one in contents:
        if isinstance(one, TextualContent):
            yield TextualContent(one.data)
        elif isinstance(one, MediaContent):
            yield one
