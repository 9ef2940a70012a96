"""Compacts a conversation that nearly fills its model's context window.

A compaction appends a digest to the history, from which later requests are made. One large step,
because each one changes the beginning of the request, which providers cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, TypeGuard

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.base.exceptions import ContextOverflow, ReplyCut, ReplyMalformed, VibeLlmsError
from vibe_llms.base.offloading import LOOP_MESSAGES, offload
from vibe_llms.conversations.context_plans import POLICY, ContextPlan, ContextSize, plan
from vibe_llms.conversations.context_requests import CompactionRequest
from vibe_llms.conversations.context_use import measure_tools
from vibe_llms.conversations.context_view import HEADING, count_covered
from vibe_llms.conversations.context_window import (
    CHARACTERS_PER_TOKEN,
    measure_tokens,
)
from vibe_llms.conversations.digests import (
    STATE,
    DigestRejected,
    Sections,
    add_artifacts,
    cut_text,
    describe_omission,
    extend_digest,
    fit_digest,
    parse_digest,
    request_digest,
)
from vibe_llms.conversations.history import may_end
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DigestCanister,
    Ending,
    InvocationCanister,
    Provenance,
    ReplyCanister,
    ResultCanister,
    StopReason,
    UserCanister,
)
from vibe_llms.messages.contents import Content, NativeContent, TextualContent, text_of
from vibe_llms.messages.events import Notice
from vibe_llms.providers.interfaces import Loader, compacts_natively
from vibe_llms.providers.pieces import with_texts

#: Most tokens of a summary, and its share of the window.
_SUMMARY_TOKENS, _SUMMARY_SHARE = 4_096, 0.1
#: Share of a request that a compaction must save; less is not worth a new prompt cache.
_WORTHWHILE = 0.1
#: Share of the window that one request for a part of a long summary has.
_PART_SHARE = 0.6
#: Share of the window above which a request may not be accepted.
_FULL = 0.95
#: Share of the window above which shortened results are not enough, as the next turn needs room.
_STILL_FULL = 0.8
#: Most parts, and shares of a part that one message and one result may have.
_MOST_PARTS, _MESSAGE_SHARE, _RESULT_SHARE = 12, 0.25, 0.06
_WORDS_PER_TOKEN = 0.6
#: Summaries that cannot be used in a row, after which none is requested for a conversation.
_MOST_FAILURES = 3
#: Characters that name a message in its place, at most.
_LONGEST_NOTE = 300
#: Errors after which a digest that the user asked for is made without a summary. Others, such as a
#: used up budget, are for the user.
_UNUSABLE = (DigestRejected, ReplyCut, ReplyMalformed, ContextOverflow)


class _Summary(Struct, frozen=True):
    """The sections of a summary, and the model that wrote them, with the end of its reply.

    `native` is the provider's own summary, if any.
    """

    sections: Sections
    provenance: Provenance | None = None
    ending: Ending | None = None
    native: tuple[NativeContent, ...] = ()


async def compact(request: CompactionRequest) -> DigestCanister | None:
    """Return the digest to append to the history, or None if none would help enough."""
    work = await _prepare(request)
    chosen = work.plan
    if not work.helps(chosen):
        if request.manual:
            text = "the conversation is too short to be compacted"
            request.next.notify(Notice("context", text))
        return None
    if not await request.confirm():
        return None
    summary: _Summary | None = None
    if chosen.end > work.covered:
        try:
            summary = await work.summarize()
        except (DigestRejected, VibeLlmsError) as error:
            if request.manual and not isinstance(error, _UNUSABLE):
                raise
            request.next.notify(Notice("context", f"the model's summary is not used: {error}"))
            chosen = await work.replan(summarizes=False)
            if work.helps(chosen):
                full = chosen.after > request.window * _STILL_FULL
            else:
                # Usage from before a digest does not count, so tools may not be in the estimate.
                full = request.tokens + work.size.overhead > request.window * _FULL
            if full:
                # The program's own summary has names of files, and what was kept before.
                chosen, summary = work.plan, _Summary(work.sections)
            elif not work.helps(chosen):
                return None
    return await work.produce(chosen, summary)


class _Work(Struct, frozen=True, kw_only=True):
    """The state of one compaction; the last digest summarizes the first `covered` messages."""

    request: CompactionRequest
    covered: int
    sections: Sections
    size: ContextSize
    plan: ContextPlan

    @property
    def previous(self) -> DigestCanister:
        """The digest that this one extends; an empty one if there is none."""
        return self.request.digest or DigestCanister()

    @property
    def messages(self) -> Sequence[Canister]:
        return self.request.messages

    @property
    def load(self) -> Loader:
        return self.request.load

    def helps(self, chosen: ContextPlan) -> bool:
        """Return True if a plan leaves out enough to be worth a new prompt cache."""
        changes = chosen.end > self.covered or any(
            _is_shorter(length, self.previous.shortened.get(name))
            for name, length in chosen.shortened.items()
        )
        return changes and chosen.after <= self.size.now * (1 - _WORTHWHILE)

    async def replan(self, *, summarizes: bool) -> ContextPlan:
        return await _plan(self.messages, self.covered, self.size, self.previous, summarizes)

    async def summarize(self) -> _Summary:
        """Ask the model for a summary; raises `DigestRejected` for one that cannot be used.

        If the provider summarizes too, its block is added. If its summary can be read, it is the
        digest.
        """
        request = self.request
        if request.failures.count >= _MOST_FAILURES and not request.manual:
            raise DigestRejected("earlier ones could not be used, so none was requested")
        request.next.notify(Notice("context", "summarizing the earlier messages …"))
        try:
            summary = await self._summarize()
        except (DigestRejected, VibeLlmsError):
            request.failures.count += not request.manual
            raise
        request.failures.count = 0
        return summary

    async def _summarize(self) -> _Summary:
        native: tuple[NativeContent, ...] = ()
        following = self.request.next
        if compacts_natively(following.model):
            try:
                prompt = self._order(extends=self._extends) if self.request.focus else ""
                reply = await following.ask(following.messages, natively=True, prompt=prompt)
            except VibeLlmsError as error:
                following.notify(Notice("context", f"the provider's summary failed: {error}"))
            else:
                native = tuple(filter(_is_summary, chain.from_iterable(c.contents for c in reply)))
                if native and (text := _read_native(native[0])):
                    return _Summary(
                        self._read(text), reply[-1].provenance, reply[-1].ending, native
                    )
        return replace(await self._summarize_ourselves(), native=native)

    async def _summarize_ourselves(self) -> _Summary:
        request, chosen = self.request, self.plan
        said = UserCanister.from_text(self._order(extends=self._extends))
        room = request.window * _FULL - self.size.summary - measure_tokens(said)
        replies: list[Sequence[ReplyCanister]] = []
        if request.tokens <= room:
            # The same messages as before, and one more: the provider has them in its cache.
            with suppress(ContextOverflow):
                replies = [await self._ask([*request.next.messages, said])]
        if replies:
            left_out = self.messages[self.covered : chosen.end]
            sections = self._extend(self.sections, _text_of(replies[0]), left_out)
        else:
            sections, kept = self.sections, self._kept
            for part in await self._split(int(request.window * _PART_SHARE)):
                before = _as_message(sections)
                said = UserCanister.from_text(self._order(extends=bool(before)))
                replies.append(await self._ask([*kept, *before, *part, said], tools=False))
                sections = self._extend(sections, _text_of(replies[-1]), [*before, *part])
        last = replies[-1][-1]
        return _Summary(sections, last.provenance, last.ending or Ending(StopReason.FINISHED))

    @property
    def _extends(self) -> bool:
        return bool(self.sections.prose or self.sections.lists)

    def _order(self, *, extends: bool) -> str:
        """Return the prompt for a summary, with the user's wish."""
        words = int(self.size.summary * _WORDS_PER_TOKEN)
        return request_digest(words, extends=extends, focus=self.request.focus)

    def _read(self, text: str) -> Sections:
        """Return the sections of a provider's summary; a short one without headings is kept too."""
        try:
            return extend_digest(self.sections, text)
        except DigestRejected:
            return Sections({**self.sections.prose, STATE: text}, self.sections.lists)

    def _extend(self, before: Sections, text: str, replaced: Sequence[Canister]) -> Sections:
        sections = extend_digest(before, text)
        size = len(sections.render()) // CHARACTERS_PER_TOKEN
        sent = self.previous.shortened
        if size >= sum(
            len(sent[one.identity]) // CHARACTERS_PER_TOKEN
            if one.identity in sent
            else measure_tokens(one)
            for one in replaced
        ):
            raise DigestRejected("it is longer than the messages that it replaces")
        return sections

    async def _ask(
        self, messages: Sequence[Canister], *, tools: bool = True
    ) -> Sequence[ReplyCanister]:
        ask = self.request.next.ask
        reply = await ask(messages, tools=tools)
        if tools and not _text_of(reply).strip() and _calls(reply):
            reply = await ask(messages, tools=False)
        ending = reply[-1].ending
        reason = StopReason.FINISHED if ending is None else ending.reason
        if reason == StopReason.LENGTH:
            raise DigestRejected("it was cut off at the length limit")
        if reason not in (StopReason.FINISHED, StopReason.INVOCATIONS):
            raise DigestRejected(f"it ended as {reason}")
        return reply

    @property
    def _kept(self) -> Sequence[Canister]:
        """The messages in the summarized part that every request has."""
        return [one for one in self.messages[: self.plan.end] if one.identity in self.plan.kept]

    async def _split(self, room: int) -> Sequence[Sequence[Canister]]:
        """Return the messages to summarize, in parts of at most `room` tokens by estimate.

        If there are too many parts, the oldest are left to the tool `reread`.
        """
        left_out = await with_texts(self.messages[self.covered : self.plan.end], self.load)
        parts: list[list[Canister]] = [[]]
        used = 0
        for place, canister in enumerate(left_out, self.covered):
            if canister.identity in self.plan.kept:
                continue
            share = _RESULT_SHARE if isinstance(canister, ResultCanister) else _MESSAGE_SHARE
            parts[-1].append(bounded := _bound(canister, int(room * share)))
            used += measure_tokens(bounded)
            if used >= room * (1 - _MESSAGE_SHARE) and may_end(self.messages, place):
                parts.append([])
                used = 0
        return [part for part in parts if part][-_MOST_PARTS:]

    async def produce(self, chosen: ContextPlan, summary: _Summary | None) -> DigestCanister:
        """Return the digest of a plan."""
        messages, before = self.messages, self.previous
        after = chosen.after
        contents, first, last = before.contents, before.first, before.last
        provenance, ending = before.provenance, None
        if summary is not None:
            left_out = messages[self.covered : chosen.end]
            sections = add_artifacts(summary.sections, left_out, count=chosen.end)
            text = fit_digest(sections, self.size.summary * CHARACTERS_PER_TOKEN)
            contents = (TextualContent(text), *summary.native)
            after += len(text) // CHARACTERS_PER_TOKEN - self.size.summary
            first, last = messages[0].identity, messages[chosen.end - 1].identity
            provenance, ending = summary.provenance, summary.ending
        shown = {*chosen.kept, *(one.identity for one in messages[chosen.end :])}
        old = {name: text for name, text in before.shortened.items() if name in shown}
        return DigestCanister(
            contents,
            first=first,
            last=last,
            kept=chosen.kept,
            shortened={**old, **await _shorten(messages, chosen.shortened, old, self.load)},
            pinned=before.pinned,
            before=self.request.tokens,
            after=max(after, 0),
            policy=POLICY,
            provenance=provenance,
            ending=ending,
        )


async def _prepare(request: CompactionRequest) -> _Work:
    messages, digest = request.messages, request.digest
    covered, sections = count_covered(messages, digest), Sections()
    if digest is not None and covered:
        sections = parse_digest((await _load_whole([digest], request.load))[0])
    overhead = measure_tools(request.next.tools) + sum(map(measure_tokens, request.next.said))
    size = ContextSize(
        tokens=request.tokens,
        overhead=min(overhead, request.tokens),
        estimated=sum(map(measure_tokens, request.next.messages)),
        target=request.target,
        summary=min(_SUMMARY_TOKENS, int(request.window * _SUMMARY_SHARE), request.tokens // 4),
        limit=int(request.window * _FULL),
    )
    previous = digest or DigestCanister()
    chosen = await _plan(messages, covered, size, previous, summarizes=True)
    return _Work(request=request, covered=covered, sections=sections, size=size, plan=chosen)


async def _plan(
    messages: Sequence[Canister],
    covered: int,
    size: ContextSize,
    digest: DigestCanister,
    summarizes: bool,
) -> ContextPlan:
    return await offload(
        len(messages) > LOOP_MESSAGES,
        partial(
            plan,
            messages,
            size,
            covered=covered,
            shortened=digest.shortened,
            pinned=frozenset(digest.pinned),
            summarizes=summarizes,
        ),
    )


async def _shorten(
    messages: Sequence[Canister], lengths: Mapping[str, int], old: Mapping[str, str], load: Loader
) -> Mapping[str, str]:
    """Return the texts in place of messages that are shortened now."""
    tools = {one.identity: one.name for one in messages if isinstance(one, InvocationCanister)}
    chosen = [
        one
        for one in messages
        if one.identity in lengths and _is_shorter(lengths[one.identity], old.get(one.identity))
    ]
    texts: dict[str, str] = {}
    for canister, text in zip(chosen, await _load_whole(chosen, load), strict=True):
        length = lengths[canister.identity]
        if length and len(text) > length:
            texts[canister.identity] = cut_text(text, length, canister)
        elif not length:
            called = canister.invocation if isinstance(canister, ResultCanister) else ""
            tool = tools.get(called, "")
            texts[canister.identity] = describe_omission(canister, tool, len(text))
    return texts


def _is_shorter(length: int, before: str | None) -> bool:
    """Return True if an excerpt of this length is shorter than the text that is sent now."""
    return before is None or len(before) > length + _LONGEST_NOTE


async def _load_whole(canisters: Sequence[Canister], load: Loader) -> Sequence[str]:
    """Return the text that a model reads of each message."""
    return [text_of(one.contents) for one in await with_texts(canisters, load)]


def _bound(canister: Canister, tokens: int) -> Canister:
    """Return a message with at most these tokens, for a summary in parts."""
    if isinstance(canister, InvocationCanister) or measure_tokens(canister) <= tokens:
        return canister
    text = text_of(canister.contents) or describe_omission(canister, "", 0)
    if len(text) > tokens * CHARACTERS_PER_TOKEN:
        text = cut_text(text, tokens * CHARACTERS_PER_TOKEN, canister)
    return replace(canister, contents=(TextualContent(text),))


def _as_message(sections: Sections) -> Sequence[Canister]:
    text = sections.render()
    return [UserCanister.from_text(f"{HEADING}\n{text}")] if text else []


def _text_of(reply: Sequence[ReplyCanister]) -> str:
    return "".join(text_of(one.contents) for one in reply if isinstance(one, AssistantCanister))


def _is_summary(content: Content) -> TypeGuard[NativeContent]:
    """Return True for a provider's summary; one without content failed."""
    if not isinstance(content, NativeContent):
        return False
    members = _read_members(content)
    return bool(members.get("content", members))


def _read_native(content: NativeContent) -> str:
    """Return the text of a provider's summary; empty if only the provider can read it."""
    text = _read_members(content).get("content")
    return text if isinstance(text, str) else ""


def _read_members(content: NativeContent) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(content.native.data if content.native else b"{}", type=dict)
    except ValueError:
        return {}


def _calls(reply: Sequence[ReplyCanister]) -> bool:
    return any(isinstance(one, InvocationCanister) for one in reply)
