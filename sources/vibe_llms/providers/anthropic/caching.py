"""How long Anthropic caches the prefix of a conversation: 5 minutes, or an hour.

A cached token costs 0.1 of an uncached one to read, and 1.25 (5 minutes) or 2 (an hour) to write.
Source: https://platform.claude.com/docs/en/build-with-claude/prompt-caching (2026-11).
"""

from __future__ import annotations

from datetime import datetime

from vibe_llms.messages.canisters import AssistantCanister, Canister, InvocationCanister

#: Seconds without a request after which a prefix is no longer cached.
_MINUTES, _HOUR = 300, 3600
#: Seconds after which a request may find the cache of 5 minutes expired: the entry is as old as the
#: request before, and its reply took a while.
_PAUSE = 240
#: Price of writing for an hour instead of 5 minutes, and of writing again instead of reading.
_DEARER, _AGAIN = 2 - 1.25, 1.25 - 0.1


class RequestRhythm:
    """Gaps between the requests of a conversation to one model, from the times of its messages.

    The worth of the hour is the price in tokens that it would have saved so far; pauses halve what
    was before them. A duration is kept until the cache has expired anyway, so that a change never
    writes again what is still cached.
    """

    def __init__(self) -> None:
        self._hour = False
        self._worth = 0.0
        #: Tokens of the last request, and the times of it and of the last message before a reply.
        self._size = 0
        self._asked: datetime | None = None
        self._heard: datetime | None = None
        self._reply = ""

    def add(self, canister: Canister, *, own: bool) -> None:
        """Add the next message; `own` is True for a reply of the model itself."""
        if not isinstance(canister, AssistantCanister | InvocationCanister):
            self._heard = canister.created
        elif own:
            if canister.reply != self._reply:
                self._reply = canister.reply
                self._hour, self._worth = self._decide()
                self._asked = self._heard
            if canister.ending is not None and canister.ending.usage is not None:
                size = canister.ending.usage.input_tokens
                self._worth -= _DEARER * max(size - self._size, 0)
                self._size = size

    @property
    def wants_hour(self) -> bool:
        """True if the next request should be cached for an hour."""
        return self._decide()[0]

    def _decide(self) -> tuple[bool, float]:
        """Return the duration of a request now, and the worth of the hour after its gap."""
        if self._asked is None or self._heard is None:
            return False, self._worth
        gap, worth = self._heard.timestamp() - self._asked.timestamp(), self._worth
        if gap > _PAUSE:
            worth = worth / 2 + self._size * (_AGAIN if gap < _HOUR else -_DEARER)
        if gap < (_HOUR if self._hour else _MINUTES):
            return self._hour, worth
        return worth > (0 if self._hour else _AGAIN * self._size), worth
