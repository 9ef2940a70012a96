import asyncio

from vibe_llms import Usage, open_session
from vibe_llms.messages.caching import summarize_caching
from vibe_llms.testing import Part, Script, ScriptedReply, scripted_model

# The counts of a provider whose cache breaks when the tools change.
USAGES = [
    Usage(20, cache_write_tokens=12_000),
    Usage(20, cache_read_tokens=12_000, cache_write_tokens=40),
    Usage(20, cache_write_tokens=12_200),
]
REPLIES = tuple(ScriptedReply(parts=(Part(text="Well."),), usage=usage) for usage in USAGES)


def clock() -> str:
    """Return the time."""
    return "noon"


async def main() -> None:
    async with open_session() as session:
        conversation = await session.begin(scripted_model(Script(REPLIES)))
        await conversation.converse("What is in the report?")
        await conversation.converse("Who wrote it?")
        await conversation.converse("How late is it?", invokers=[clock])
        for one in conversation.caching:
            print(one.paid_tokens, "paid for", one.new_tokens, "new:", one.reason or "fine")
        print(summarize_caching(conversation.caching).breaks)


asyncio.run(main())
