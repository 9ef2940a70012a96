import asyncio

from vibe_llms import (
    AssistantCanister,
    Controls,
    Event,
    NoticeEvent,
    ProviderError,
    RateLimited,
    open_session,
)


def show(event: Event) -> None:
    if isinstance(event, NoticeEvent):
        print(f"({event.notice.text})")


async def main() -> None:
    async with open_session(event_handler=show) as session:
        conversation = await session.begin(
            "anthropic/claude-sonnet-5-5",
            fallback=["openai/gpt-6.1-sol"],
            controls=Controls(output_tokens=500),
        )
        try:
            turn = await conversation.converse("Why is the sky blue?")
        except RateLimited as error:
            print(f"no model has room; try again in {error.retry_after} seconds")
        except ProviderError as error:
            print(f"no model answered: {error}")
        else:
            print(turn.text)
            reply = turn.canisters[-1]
            if isinstance(reply, AssistantCanister) and reply.provenance and turn.cost:
                print(f"{reply.provenance.model}: ${turn.cost.dollars:.6f}")


asyncio.run(main())
