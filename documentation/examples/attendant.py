import asyncio
from datetime import date

from vibe_llms import DocumentCanister, Turn, open_session
from vibe_llms.attendants import Briefing, Occasion, Work


class Calendar:
    name = "calendar"
    brief_seconds = 1.0
    close_seconds = 5.0
    resumes = False

    async def brief(self, occasion: Occasion) -> Briefing:
        today = DocumentCanister.from_text(f"Today is {date(2026, 11, 22):%A, %d %B %Y}.")
        return Briefing([today], outside=False)

    def conclude(self, occasion: Occasion, turn: Turn) -> Work | None:
        return self.note(turn)

    async def note(self, turn: Turn) -> None:
        print("afterwards:", turn.stop_reason, "with", len(turn.canisters), "messages")

    async def close(self) -> None:
        pass


async def main() -> None:
    async with open_session() as session:
        conversation = await session.begin("scripted/demo", attendants=[Calendar()])
        turn = await conversation.converse("Hello!")
        brought = turn.canisters[0]
        assert isinstance(brought, DocumentCanister)
        print("brought:", brought.text)


asyncio.run(main())
