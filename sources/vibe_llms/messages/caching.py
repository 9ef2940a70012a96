"""Share of the prompt cache in each request, and the reasons why it was smaller than it could be.

Counts are those that the provider reports with a reply. A request that adds N tokens to the one
before should pay N tokens that are not read from the cache; if it pays many more, the cache broke.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import takewhile
from operator import is_
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DigestCanister,
    InvocationCanister,
    ReplyCanister,
    SupervisorCanister,
)
from vibe_llms.messages.controls import Controls

#: Seconds after which a break is explained by the cache's lifetime, Anthropic's and OpenAI's least.
LIFETIME = 300.0
#: Share of a request, and tokens, that may be paid again without being a break: caches hold blocks
#: of tokens, and nothing of short requests.
_SHARE, _TOKENS = 0.05, 2000
_MOST_REPORTS = 1000


class CacheBreak(StrEnum):
    """The reason why a request paid for tokens that the one before had paid for."""

    EXPIRED = "expired"
    COMPACTED = "compacted"
    #: A message that was summarized or shortened is whole again, because it was pinned.
    PINNED = "pinned"
    MODEL = "model"
    TOOLS = "tools"
    INSTRUCTIONS = "instructions"
    CONTROLS = "controls"
    #: None of the above: the messages changed, or the provider dropped them.
    UNEXPECTED = "unexpected"
    #: The tools, instructions and controls of one of both requests are not known.
    UNKNOWN = "unknown"


class RequestCaching(Struct, frozen=True, omit_defaults=True):
    """The cache's share in one request.

    `new_tokens` were added since the request before, `paid_tokens` were not read from the cache.
    `reason` is a `CacheBreak` if many more were paid than were new, else empty.
    """

    reply: str
    model: str
    input_tokens: int
    new_tokens: int
    paid_tokens: int
    read_tokens: int
    reason: str = ""

    @property
    def rewrite_factor(self) -> float:
        """Paid tokens per new one: about 1 if the cache works."""
        return self.paid_tokens / max(self.new_tokens, 1)


class CachingSummary(Struct, frozen=True):
    """The sum over several requests; `breaks` counts the reasons."""

    requests: int
    new_tokens: int
    paid_tokens: int
    read_tokens: int
    breaks: Mapping[str, int]

    @property
    def rewrite_factor(self) -> float:
        """Paid tokens per new one: about 1 if the cache works."""
        return self.paid_tokens / max(self.new_tokens, 1)


class RequestHead(Struct, frozen=True):
    """The parts of a request before its messages, whose change breaks the cache.

    `digest` is the one that replaces earlier messages, if any.
    """

    tools: Sequence[Any] = ()
    instructions: Sequence[str] = ()
    digest: DigestCanister | None = None
    controls: Controls = Controls()

    @classmethod
    def of(
        cls,
        messages: Sequence[Canister],
        tools: Sequence[Any],
        controls: Controls,
        digest: DigestCanister | None = None,
    ) -> RequestHead:
        """Return the head of a request; its instructions are the first messages."""
        first = takewhile(lambda one: isinstance(one, SupervisorCanister), messages)
        instructions = tuple(one.identity for one in first)
        return cls(tuple(tools), instructions, digest, controls)

    def compare(self, other: RequestHead) -> CacheBreak:
        """Return the first part that differs from an earlier head."""
        if (change := compare_digests(self.digest, other.digest)) is not None:
            return change
        if len(self.tools) != len(other.tools) or not all(map(is_, self.tools, other.tools)):
            return CacheBreak.TOOLS
        if self.instructions != other.instructions:
            return CacheBreak.INSTRUCTIONS
        return CacheBreak.UNEXPECTED if self.controls == other.controls else CacheBreak.CONTROLS


def compare_digests(now: DigestCanister | None, before: DigestCanister | None) -> CacheBreak | None:
    """Return what a digest changes in a request with an earlier one, or None if nothing."""
    now, before = now or DigestCanister(), before or DigestCanister()
    summary, earlier = ((one.first, one.last, one.contents) for one in (now, before))
    if summary != earlier or not now.shortened.items() <= before.shortened.items():
        return CacheBreak.COMPACTED
    same = (now.kept, now.shortened) == (before.kept, before.shortened)
    return None if same else CacheBreak.PINNED


class _Measured(Struct, frozen=True):
    """A measured request; `reports` is True if its model has ever reported a cache."""

    model: str
    size: int
    asked: float
    head: RequestHead | None
    reports: bool


class CacheMeter:
    """A meter that reads the requests of one conversation in order, each in constant time.

    `reports` are those of the last requests, by their replies.
    """

    def __init__(self, lifetime: float = LIFETIME) -> None:
        self.reports: dict[str, RequestCaching] = {}
        self._order: deque[str] = deque()
        self._lifetime = lifetime
        self._digest: DigestCanister | None = None
        #: The change by digests since the last request.
        self._change: CacheBreak | None = None
        self._last: _Measured | None = None
        self._models: dict[str, _Measured] = {}

    @property
    def begun(self) -> bool:
        """True if a request has been measured."""
        return self._last is not None

    def compact(self, digest: DigestCanister) -> None:
        """Note that a digest replaces earlier messages from the next request on."""
        change = compare_digests(digest, self._digest)
        self._digest = digest
        if self._change is not CacheBreak.COMPACTED:
            self._change = change or self._change

    def measure(
        self, reply: ReplyCanister, asked: datetime, head: RequestHead | None = None
    ) -> RequestCaching | None:
        """Return the cache's share in a request, or None if its usage is not known.

        `reply` is the last message of the reply, and `asked` the time of the last one before it.
        """
        usage = reply.ending.usage if reply.ending is not None else None
        if usage is None or reply.provenance is None or not usage.input_tokens:
            return None
        model = f"{reply.provenance.row}/{reply.provenance.model}"
        size, read = usage.input_tokens, usage.cache_read_tokens
        before, own = self._last, self._models.get(model)
        new = size if before is None else max(size - before.size, 0)
        reports = bool(read or usage.cache_write_tokens) or (own is not None and own.reports)
        now = _Measured(model, size, asked.timestamp(), head, reports)
        reason = ""
        if before is not None and size - read - new > max(_SHARE * size, _TOKENS):
            reason = self._explain(now, before)
        self._last = self._models[model] = now
        self._change = None
        measured = RequestCaching(reply.reply, model, size, new, size - read, read, reason)
        self._note(measured)
        return measured

    def _explain(self, now: _Measured, before: _Measured) -> str:
        change = self._change
        if now.head is not None and before.head is not None:
            change = change or compare_digests(now.head.digest, before.head.digest)
        if change is not None:
            return change
        if now.model != before.model:
            return CacheBreak.MODEL if now.reports or before.reports else ""
        if not now.reports:
            # The provider has no cache, or does not report it.
            return ""
        if now.asked - before.asked > self._lifetime:
            return CacheBreak.EXPIRED
        if now.head is None or before.head is None:
            return CacheBreak.UNKNOWN
        return now.head.compare(before.head)

    def _note(self, measured: RequestCaching) -> None:
        self.reports[measured.reply] = measured
        self._order.append(measured.reply)
        if len(self._order) > _MOST_REPORTS:
            self.reports.pop(self._order.popleft(), None)


def measure_caching(
    canisters: Iterable[Canister], known: Mapping[str, RequestCaching] | None = None
) -> Iterator[RequestCaching]:
    """Yield the cache's share in each request of a conversation, from its messages.

    They do not tell the tools and controls of a request, so `known` reports of a `CacheMeter`, by
    their replies, are preferred.
    """
    meter, known = CacheMeter(), known or {}
    asked: datetime | None = None
    for canister in canisters:
        if isinstance(canister, AssistantCanister | InvocationCanister):
            measured = meter.measure(canister, asked or canister.created)
            if measured is not None:
                better = known.get(measured.reply)
                reason = measured.reason if better is None else better.reason
                yield replace(measured, reason=reason)
            continue
        asked = canister.created
        if isinstance(canister, DigestCanister):
            meter.compact(canister)


def summarize_caching(requests: Iterable[RequestCaching]) -> CachingSummary:
    """Return the sum over requests."""
    every = [*requests]
    return CachingSummary(
        requests=len(every),
        new_tokens=sum(one.new_tokens for one in every),
        paid_tokens=sum(one.paid_tokens for one in every),
        read_tokens=sum(one.read_tokens for one in every),
        breaks=dict(Counter(str(one.reason) for one in every if one.reason)),
    )
