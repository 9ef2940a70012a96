"""The messages of a conversation as a model reads them, according to the last digest.

The stored messages never change. A fork from before a digest has all of them, and so has undo.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DigestCanister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import Content, NativeContent, TextualContent
from vibe_llms.providers.interfaces import Model

#: Messages that a digest may shorten.
SHORTENED = (UserCanister, DocumentCanister, ResultCanister)
HEADING = (
    "[The program wrote this. The messages between the ones above and the ones below are left out "
    "to save room. This summary replaces them.]"
)


class ContextView:
    """A view of a growing history that processes each message once."""

    def __init__(self) -> None:
        #: The digest that the view follows, if any.
        self.digest: DigestCanister | None = None
        #: Digests that do not fit the history, because it was changed.
        self.invalid: Sequence[DigestCanister] = ()
        #: True if some text of the messages is left out.
        self.omits = False
        self._count = 0
        self._last: Canister | None = None
        self._messages: list[Canister] = []

    def apply(self, history: Sequence[Canister]) -> Sequence[Canister]:
        """Return the messages to send; the history itself if it has no digest."""
        count = self._count
        if count > len(history) or (count and history[count - 1] is not self._last):
            count, self.digest, self.invalid, self.omits = 0, None, (), False
        if count < len(history):
            new = history[count:] if count else history
            if any(type(one) is DigestCanister for one in new):
                self._begin(history)
            elif self.digest is not None:
                self._messages += new
            self._count, self._last = len(history), history[-1]
        return history if self.digest is None else self._messages

    def _begin(self, history: Sequence[Canister]) -> None:
        self.digest, self.omits, invalid = None, False, list[DigestCanister]()
        for place in range(len(history) - 1, -1, -1):
            digest = history[place]
            if not isinstance(digest, DigestCanister):
                continue
            shown = present(history[:place], digest)
            if shown is not None:
                self.digest = digest
                own = bool(digest.contents)
                left_out = len(shown) - own < len(without_digests(history[:place]))
                self.omits = left_out or bool(digest.shortened)
                self._messages = [*shown, *without_digests(history[place:])]
                break
            invalid.append(digest)
        else:
            if invalid:
                # Never sent, but they must not be taken for messages of an unknown kind.
                self.digest, self._messages = DigestCanister(), [*without_digests(history)]
        self.invalid = tuple(invalid)


def present(before: Sequence[Canister], digest: DigestCanister) -> Sequence[Canister] | None:
    """Return the messages that a digest leaves; None if it does not fit the messages before it."""
    messages = without_digests(before)
    shown: list[Canister] = []
    end = 0
    if digest.last:
        places = {one.identity: place for place, one in enumerate(messages)}
        start, last = places.get(digest.first), places.get(digest.last)
        if start is None or last is None or last < start:
            return None
        end, kept = last + 1, frozenset(digest.kept)
        shown += messages[:start]
        shown += [one for one in messages[start:end] if one.identity in kept]
    if digest.contents:
        texts = [one for one in digest.contents if isinstance(one, TextualContent)]
        contents = (TextualContent(HEADING), *texts)
        shown.append(UserCanister(contents, identity=digest.identity, created=digest.created))
    shown += messages[end:]
    return [_shorten(one, digest) for one in shown]


def show_natively(
    messages: Sequence[Canister], digest: DigestCanister, model: Model
) -> Sequence[Canister]:
    """Return the messages with the provider's own summary, if it is from this model.

    It comes first, as providers require, after the instructions at the beginning.
    """
    issuer, native = digest.provenance, [one for one in digest.contents if is_native(one)]
    if not native or issuer is None or (issuer.row, issuer.model) != (model.provider, model.name):
        return messages
    others = [one for one in messages if one.identity != digest.identity]
    begin = next(
        (i for i, one in enumerate(others) if not isinstance(one, SupervisorCanister)), len(others)
    )
    block = AssistantCanister(
        contents=tuple(native),
        identity=digest.identity,
        created=digest.created,
        reply=digest.identity,
        provenance=issuer,
    )
    return [*others[:begin], block, *others[begin:]]


def is_native(content: Content) -> bool:
    """Return True for a provider's own summary."""
    return isinstance(content, NativeContent)


def revise_digest(digest: DigestCanister, **changes: Any) -> DigestCanister:
    """Return a new digest with the summary of another, but not its usage, and with changes."""
    fresh = DigestCanister()
    return replace(
        digest,
        identity=fresh.identity,
        created=fresh.created,
        source_line=None,
        before=0,
        after=0,
        ending=None,
        **changes,
    )


def without_digests(canisters: Sequence[Canister]) -> list[Canister]:
    """Return the messages without digests."""
    return [one for one in canisters if type(one) is not DigestCanister]


def count_covered(messages: Sequence[Canister], digest: DigestCanister | None) -> int:
    """Return how many of the messages, which have no digests, a valid digest summarizes."""
    if digest is None or not digest.last:
        return 0
    return next(i for i, one in enumerate(messages, 1) if one.identity == digest.last)


def _shorten(canister: Canister, digest: DigestCanister) -> Canister:
    ending = getattr(canister, "ending", None)
    if isinstance(canister, AssistantCanister | InvocationCanister) and ending is not None:
        # It measured a longer request.
        canister = replace(canister, ending=replace(ending, usage=None))
    text = digest.shortened.get(canister.identity)
    if text is not None and isinstance(canister, InvocationCanister):
        return replace(canister, arguments=text, native=None)
    if text is None or not isinstance(canister, SHORTENED):
        return canister
    return replace(canister, contents=(TextualContent(text),))
