"""Keeps the requests of one turn within the model's context window."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import chain

from msgspec.structs import replace

from vibe_llms.base.configuration import ContextSettings
from vibe_llms.base.exceptions import ContextOverflow, RequestTooLarge
from vibe_llms.conversations.context_requests import CompactionRequest, NextRequest
from vibe_llms.conversations.context_view import without_digests
from vibe_llms.conversations.context_window import UNKNOWN_WINDOW, estimate_tokens
from vibe_llms.conversations.history import History
from vibe_llms.conversations.settings import ConversationSettings, TurnMemo
from vibe_llms.invocation.asking import ask
from vibe_llms.invocation.questions import ElicitationField, ElicitationRequest
from vibe_llms.messages.canisters import Canister, DigestCanister, ReplyCanister
from vibe_llms.messages.events import Notice
from vibe_llms.providers.interfaces import Model, Notifier

#: Most compactions of one turn after the provider refused a request as too long.
_OVERFLOWS = 3
#: Field of the question whether to compact.
_COMPACT = "compact"


class ContextKeeper:
    """A maker of digests for one turn, as often as the mode allows and as it helps."""

    def __init__(self, history: History, settings: ConversationSettings, memo: TurnMemo) -> None:
        self._history = history
        self._services = settings.services
        self._settings: ContextSettings = settings.context
        self._memo = memo
        self._overflows = 0
        #: True if no further digest is made for requests that the provider might accept.
        self.ended = self._settings.mode == "off"

    def window_of(self, model: Model) -> int:
        """Return the context window of a model in tokens, assumed if it is unknown."""
        return self._services.access_windows().recall(model) or UNKNOWN_WINDOW

    def is_due(self, model: Model, said: Sequence[Canister]) -> bool:
        """Return True if a request with the history and these messages may need a digest."""
        show, apply = self._memo.show, partial(self._memo.apply_documents, model)
        tokens = self._memo.tokens.estimate(apply(show(self._history)), apply(said))
        return tokens >= self.window_of(model) * self._settings.compact_at

    async def compact_if_due(
        self, request: NextRequest, said: Sequence[Canister]
    ) -> DigestCanister | None:
        """Return a digest for a request that also has the messages `said` and is nearly full."""
        said = self._memo.apply_documents(request.model, said)
        tokens = estimate_tokens(chain(reversed(said), reversed(request.messages)))
        window = self.window_of(request.model)
        request = replace(request, said=said)
        digest = await self._compact(
            request, tokens, window, confirm=partial(self._confirm, request, tokens, window)
        )
        if digest is None or digest.after >= window * self._settings.compact_at:
            # Another one in this turn would have no more effect.
            self.ended = True
        return digest

    async def compact_after(
        self, request: NextRequest, error: ContextOverflow
    ) -> DigestCanister | None:
        """Return a digest after the provider refused a request as too long."""
        self._overflows += 1
        estimated = estimate_tokens(reversed(request.messages))
        tokens = error.input_tokens or error.tokens or estimated
        windows = self._services.access_windows()
        window = await windows.learn(request.model, error, tokens) or error.limit
        if self._settings.mode == "off" or self._overflows > _OVERFLOWS:
            return None
        if error.input_tokens is not None and window is not None and error.input_tokens < window:
            text = "the history fits, but the longest reply does not; set fewer output-tokens"
            request.notify(Notice("context", text))
            return None
        if window is None or isinstance(error, RequestTooLarge):
            # The limit is in bytes, or it is not known which one the server has.
            known = windows.recall(request.model)
            window = tokens // 2 if known is None or tokens < known else known
        confirm = partial(self._confirm, request, tokens, window)
        return await self._compact(
            request, tokens, window, confirm=confirm if self._overflows == 1 else _agree
        )

    async def compact_now(self, request: NextRequest, focus: str) -> DigestCanister | None:
        """Return a digest of everything except the last reply and what stays word for word."""
        tokens = estimate_tokens(reversed(request.messages))
        target = int(tokens * self._settings.compact_to)
        window = self.window_of(request.model)
        return await self._compact(request, tokens, window, target=target, focus=focus, manual=True)

    def advise(self, model: Model, notify: Notifier) -> None:
        """Tell the user what to do about a conversation that is too long."""
        if any(isinstance(one, ReplyCanister) for one in self._history.canisters):
            text = (
                f"the conversation is too long for {model.name}; compact it, or use a larger model"
            )
            notify(Notice("context", text))

    async def _compact(
        self,
        request: NextRequest,
        tokens: int,
        window: int,
        *,
        confirm: Callable[[], Awaitable[bool]] | None = None,
        target: int = 0,
        focus: str = "",
        manual: bool = False,
    ) -> DigestCanister | None:
        # Imported only here, because most conversations do not need it.
        from vibe_llms.conversations.compaction import compact

        return await compact(
            CompactionRequest(
                messages=self._memo.documents.apply(
                    request.model, without_digests(self._history.canisters)
                ),
                load=self._history.load,
                next=request,
                digest=self._memo.view.digest,
                tokens=tokens,
                window=window,
                target=target or int(window * self._settings.compact_to),
                confirm=confirm or _agree,
                failures=self._memo.failures,
                manual=manual,
                focus=focus,
            )
        )

    async def _confirm(self, request: NextRequest, tokens: int, window: int) -> bool:
        """Return True if the conversation may be compacted; ask the user if the mode says so."""
        used = f"{tokens:,} of the {window:,} tokens of {request.model.name}"
        if self._services.access_windows().recall(request.model) is None:
            used += " (its window is not known; set context-tokens in its row)"
        if self._settings.mode == "auto":
            request.notify(Notice("context", f"compacting the conversation: it has about {used}"))
            return True
        elicitor = self._services.elicitor
        if elicitor is not None:
            question = ElicitationRequest(
                ensemble="vibe-llms",
                message=f"The conversation has about {used}. Compact it? All messages stay stored.",
                fields=(ElicitationField(name=_COMPACT, kind="boolean", default=True),),
            )
            answer = await ask(elicitor, question)
            if answer.action == "accept" and question.check(answer.values).get(_COMPACT):
                return True
        request.notify(Notice("context", f"the conversation has about {used}; compact it"))
        return False


async def _agree() -> bool:
    return True


def notice_digest(digest: DigestCanister) -> Notice:
    """Return the notice about a digest that was appended."""
    done: list[str] = []
    if digest.last:
        done.append("earlier messages are summarized")
    if digest.shortened:
        done.append(f"{len(digest.shortened)} long messages are shortened")
    usage = digest.ending.usage if digest.ending else None
    cost = f"; the summary took {usage.total_tokens:,} tokens" if usage else ""
    return Notice(
        "context",
        f"compacted from about {digest.before:,} to {digest.after:,} tokens: "
        f"{' and '.join(done)}{cost}. All messages stay stored",
        digest.identity,
    )
