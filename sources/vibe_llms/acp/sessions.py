"""`AcpSession`: a conversation that a client has open, with its turns and settings."""

from __future__ import annotations

import asyncio
import os.path
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from vibe_llms.acp.choices import AGENT, MODEL, NO_AGENT, describe_choices
from vibe_llms.acp.client import SessionClient
from vibe_llms.acp.replaying import replay
from vibe_llms.acp.reporting import TurnReporter
from vibe_llms.acp.reviewing import review_changes
from vibe_llms.acp.rpc import INVALID_PARAMS, RpcError, quote
from vibe_llms.acp.updates import CostAmount, InfoUpdate, SelectOption, TokensUpdate
from vibe_llms.base.exceptions import PackageMissing, RequestError
from vibe_llms.conversations.context_window import UNKNOWN_WINDOW
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.steering import as_prompt
from vibe_llms.messages.canisters import Canister, ReplyCanister, StopReason, UserCanister
from vibe_llms.messages.contents import TextualContent
from vibe_llms.session.core import Session
from vibe_llms.session.options import ConversationOptions
from vibe_llms.storage.texts import title_of
from vibe_llms.transcripts.loading import load_text

AcpReason: TypeAlias = Literal[
    "end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"
]
_REASONS: Mapping[str, AcpReason] = {
    StopReason.LENGTH: "max_tokens",
    StopReason.LIMIT: "max_turn_requests",
    StopReason.REFUSED: "refusal",
    StopReason.INTERRUPTED: "cancelled",
}
#: Beginning of the tag with the folder of a conversation.
FOLDER_TAG = "folder:"


class _Pending:
    """A prompt that has no answer yet."""

    def __init__(self) -> None:
        self.cancelled = False


class AcpSession:
    """An open conversation: one turn at a time; prompts during a turn are added to it."""

    def __init__(
        self,
        client: SessionClient,
        session: Session,
        conversation: Conversation,
        *,
        folder: str,
        ensembles: Sequence[str],
        agent: str,
        servers: Sequence[str],
    ) -> None:
        """Create a session; `servers` are the `ensembles` that the client has named."""
        self.client = client
        self.session = session
        self.conversation = conversation
        self._folder = folder
        self._ensembles = tuple(ensembles)
        self._agent = self._wanted_agent = agent
        self._wanted_model = ""
        self._reporter = TurnReporter(client, lambda: self.conversation.invokers)
        self._free = asyncio.Lock()
        self._prompts: dict[_Pending, None] = {}
        #: The turn that is running, which returns its stop reason.
        self._turn: asyncio.Task[AcpReason] | None = None
        self._title = ""
        #: Ensembles whose changed tools the user is asked about before the next turn.
        self._unreviewed = frozenset(servers)

    @property
    def busy(self) -> bool:
        """True if a prompt has no answer yet."""
        return bool(self._prompts)

    @property
    def choices(self) -> Sequence[SelectOption]:
        """The settings with their values; those chosen during a turn hold from the next one on."""
        return describe_choices(
            self.session, self._wanted_model or self._address, self._wanted_agent
        )

    async def prompt(self, said: Sequence[Canister]) -> AcpReason:
        """Answer a prompt, and return why the turn ended.

        During a turn, the message is added to it, and the answer is that of the turn.
        """
        pending = _Pending()
        self._prompts[pending] = None
        try:
            if (turn := await self._steer(said)) is not None:
                await asyncio.wait([turn])
                return turn.result()
            async with self._free:
                return await self._answer(pending, said)
        finally:
            del self._prompts[pending]

    async def cancel(self) -> None:
        """End the turn, and those of the prompts that wait; what has arrived is stored."""
        for pending in self._prompts:
            pending.cancelled = True
        await self.conversation.cancel()

    async def choose(self, option: str, value: object) -> None:
        """Change a setting; during a turn, it holds from the next one on."""
        if not isinstance(value, str):
            raise RpcError(INVALID_PARAMS, f"the option {quote(option)} has values that are text")
        match option:
            case "model":
                model = await self.session.access_model(value)
                self._wanted_model = f"{model.provider}/{model.name}"
            case "agent" if value == NO_AGENT:
                self._wanted_agent = ""
            case "agent":
                agent = self.session.access_agent(value)
                if agent.needed:
                    raise RequestError(
                        f"the agent {value!r} needs variables, which an editor cannot give"
                    )
                self._wanted_agent = value
                self._wanted_model = agent.model
            case _:
                known = f"{MODEL} and {AGENT}"
                raise RpcError(INVALID_PARAMS, f"option {quote(option)} not found; use {known}")
        if not self._free.locked():
            async with self._free:
                await self._apply_choices()

    async def replay(self) -> None:
        """Send the messages of the conversation to the client."""
        await self._replay(self.conversation.canisters)
        await self._report_usage()

    async def close(self) -> None:
        """End the turn, store the messages that it did not send, and close everything."""
        await self.cancel()
        async with self._free:
            if queued := self.conversation.hand_over_queued():
                await self.conversation.add(as_prompt(queued))
        await self.session.close()

    def produce_options(self, agent: str) -> ConversationOptions:
        """Return the options of its conversation with an agent, or without one."""
        return produce_options(self.session, agent, self._ensembles)

    @property
    def _address(self) -> str:
        model = self.conversation.model
        return f"{model.provider}/{model.name}"

    async def _steer(self, said: Sequence[Canister]) -> asyncio.Task[AcpReason] | None:
        """Add a message to the running turn and return it; None if that is not possible.

        Then the message has a turn of its own.
        """
        turn = self._turn
        if turn is None or not self.conversation.busy:
            return None
        try:
            await self.conversation.steer(said)
        except RequestError:
            # The turn is ending, or the prompt has documents, or the model cannot read it.
            return None
        return turn

    async def _answer(self, pending: _Pending, said: Sequence[Canister]) -> AcpReason:
        await self._apply_choices()
        await self._catch_up()
        await self._review(pending)
        self._turn = asyncio.create_task(self._converse(pending, said))
        try:
            reason = await self._turn
        finally:
            self._turn = None
            self._reporter.finish()
        await self._report_usage()
        await self._report_title()
        return reason

    async def _converse(self, pending: _Pending, said: Sequence[Canister]) -> AcpReason:
        if pending.cancelled:
            await self.conversation.add(said)
            return "cancelled"
        # The turn begins without a pause, so that no cancel is missed.
        turn = await self.conversation.converse(said, event_handler=self._reporter)
        return _REASONS.get(turn.stop_reason, "end_turn")

    async def _review(self, pending: _Pending) -> None:
        """Ask once about tools of the client's servers that have changed since their approval."""
        names, self._unreviewed = self._unreviewed, frozenset()
        if names and not pending.cancelled:
            state = self.session.configuration.places.state
            await review_changes(self.client, self.conversation.ensembles, names, state)

    async def _catch_up(self) -> None:
        """Show the messages that other programs have added, and tag the folder."""
        conversation = self.conversation
        known = len(conversation.canisters)
        await conversation.refresh()
        await self._replay(conversation.canisters[known:])
        history = conversation.history
        if history.stored and not any(one.startswith(FOLDER_TAG) for one in history.details.tags):
            tags = [produce_tag(self._folder)]
            await self.session.archive.revise(conversation.identity, add_tags=tags)

    async def _replay(self, canisters: Sequence[Canister]) -> None:
        tools = self.conversation.invokers
        await replay(canisters, self.session.archive, self.client, tools)

    async def _apply_choices(self) -> None:
        """Apply the chosen settings; if that fails, the old ones stay."""
        agent, model = self._wanted_agent, self._wanted_model
        try:
            if agent != self._agent:
                await self._change_agent(agent, model)
            elif model and model != self._address:
                await self.conversation.switch(model)
        finally:
            self._wanted_agent, self._wanted_model = self._agent, ""

    async def _change_agent(self, agent: str, model: str) -> None:
        old, options = self.conversation, self.produce_options(agent)
        if old.history.stored:
            new = await self.session.resume(old.identity, model=model or None, **options)
        else:
            tags = old.history.details.tags
            new = await self.session.begin(model or old.model, tags=tags, **options)
            # Nothing is stored yet under either identity, and the client knows the old one.
            new.history.identity = old.identity
        new.queue_again(old.hand_over_queued())
        self.conversation, self._agent = new, agent

    async def _report_usage(self) -> None:
        """Send the tokens of the last request and reply, if the provider reported them."""
        canisters = self.conversation.canisters
        endings = (one.ending for one in reversed(canisters) if isinstance(one, ReplyCanister))
        usage = next((one.usage for one in endings if one is not None and one.usage), None)
        if usage is None:
            return
        window = await self.session.windows.window_of(self.conversation.model)
        self.client.send(
            TokensUpdate(
                used=usage.input_tokens + usage.output_tokens,
                size=window or UNKNOWN_WINDOW,
                cost=self._estimate_cost(canisters),
                meta=None if window else {"vibe-llms": {"size": "assumed"}},
            )
        )

    def _estimate_cost(self, canisters: Sequence[Canister]) -> CostAmount | None:
        """Return the cost of all replies, or None if a price is missing."""
        try:
            cost = self.session.estimate_cost(canisters)
        except PackageMissing:
            return None
        return None if cost.unpriced else CostAmount(float(cost.dollars), "USD")

    async def _report_title(self) -> None:
        """Send the title, which is the name or the beginning of the first message, if it is new."""
        title = self.conversation.name or await self._read_opening()
        if title and title != self._title:
            self._title = title
            last = self.conversation.canisters[-1].created
            self.client.send(InfoUpdate(title=title, updated_at=last.isoformat()))

    async def _read_opening(self) -> str:
        messages = (one for one in self.conversation.canisters if isinstance(one, UserCanister))
        first = next(messages, UserCanister())
        texts = [
            await load_text(content.data, self.session.archive)
            for content in first.contents
            if isinstance(content, TextualContent)
        ]
        return title_of("\n".join(texts))


def produce_tag(folder: str) -> str:
    """Return the tag of the conversations of a folder."""
    return f"{FOLDER_TAG}{os.path.normpath(folder)}"


def produce_options(session: Session, agent: str, ensembles: Sequence[str]) -> ConversationOptions:
    """Return the options of a conversation with these ensembles, and perhaps an agent."""
    own = session.access_agent(agent).memory if agent else None
    memory = session.configuration.memory_enabled if own is None else own
    return ConversationOptions(
        ensembles=ensembles,
        memory=memory,
        agent=agent or None,
        skills=session.choose_skills(agent or None),
    )
