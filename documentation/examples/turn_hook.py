import asyncio
from datetime import date

from vibe_llms import DocumentCanister, Turn, open_session
from vibe_llms.conversations.hooks import HookContext, HookRequest, TurnHook, Work


class Calendar(TurnHook):
    name = "calendar"

    async def before_turn(self, request: HookRequest) -> HookContext:
        today = DocumentCanister.from_text(f"Today is {date(2026, 11, 22):%A, %d %B %Y}.")
        return HookContext([today], outside=False)

    def after_turn(self, request: HookRequest, turn: Turn) -> Work | None:
        return self.note(turn)

    async def note(self, turn: Turn) -> None:
        print("afterwards:", turn.stop_reason, "with", len(turn.canisters), "messages")


async def main() -> None:
    async with open_session() as session:
        conversation = await session.begin("scripted/demo", hooks=[Calendar()])
        turn = await conversation.converse("Hello!")
        added = turn.canisters[0]
        assert isinstance(added, DocumentCanister)
        print("added:", added.text)


asyncio.run(main())
