import asyncio

from vibe_llms import (
    AssistantCanister,
    DocumentCanister,
    TextualContent,
    open_session,
    read_document,
)


async def main() -> None:
    async with open_session() as session:
        conversation = await session.begin("anthropic/claude-sonnet-5-5")
        minutes = DocumentCanister.from_text("The next meeting is on Monday.")
        turn = await conversation.converse(
            [read_document("notes.txt"), minutes, "When does the sun rise?"]
        )
        for canister in turn.canisters:
            if not isinstance(canister, AssistantCanister):
                continue
            for content in canister.contents:
                if isinstance(content, TextualContent):
                    print(content.text)
                    for citation in content.citations:
                        print(f"  {citation.title}: {citation.quote!r}")


asyncio.run(main())
