import asyncio

from vibe_llms import (
    AssistantCanister,
    ConfigurationError,
    ContextOverflow,
    ProviderError,
    RateLimited,
    open_session,
)
from vibe_llms.testing import Part, Script, ScriptedReply, scripted_model

BUSY = ScriptedReply(parts=(Part(error="rate-limited", retry_after_seconds=90),))
TOO_LONG = ScriptedReply(parts=(Part(error="context-overflow"),))
CUT = ScriptedReply(parts=(Part(text="Half a"), Part(cut=True)))


async def main() -> None:
    async with open_session() as session:
        conversation = await session.begin(scripted_model(Script((BUSY, TOO_LONG, CUT))))
        for _ in range(3):
            try:
                await conversation.converse("Hello!")
            except RateLimited as error:
                print("wait", error.retry_after, "seconds")
            except ContextOverflow:
                print("compact the conversation, or use a larger model")
            except ProviderError as error:
                print(error.kind, "-", error)
            except ConfigurationError as error:
                print("mend", error.file, error.table, error.key)
        for canister in conversation.canisters:
            if isinstance(canister, AssistantCanister) and canister.contents:
                print("kept:", canister.text)


asyncio.run(main())
