import asyncio
from collections.abc import Sequence

from vibe_llms import Canister, Invoker, open_session
from vibe_llms.testing import ScriptedReply, scripted_model


def echo(canisters: Sequence[Canister], invokers: Sequence[Invoker]) -> ScriptedReply:
    """Answer with the number of messages so far."""
    return ScriptedReply.from_chunks(f"message {len(canisters)}, ", f"{len(invokers)} tools")


async def main() -> None:
    async with open_session() as session:
        conversation = await session.begin(scripted_model(echo), save=False)
        print((await conversation.converse("Hi!")).text)
        print((await conversation.converse("Hi!")).text)


asyncio.run(main())
