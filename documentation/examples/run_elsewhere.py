import asyncio

from vibe_llms import Decision, Invoker, open_session
from vibe_llms.runs import ApprovalRequested, MessageDelta


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


TOOLS = [Invoker.from_function(add, approval="ask")]


async def start() -> str:
    async with open_session(invokers=TOOLS) as session:
        conversation = await session.begin("scripted/demo", invokers=TOOLS)
        run = await session.start(conversation, "Please add 2 and 3.")
        async for _, event in run.events():
            if isinstance(event, ApprovalRequested):
                print("waits for a decision on", event.name)
                break
        return run.identity


async def decide(identity: str) -> None:
    async with open_session(invokers=TOOLS) as session:
        run = await session.access_run(identity)
        calls = await run.survey_calls()
        for approval in await run.survey_approvals():
            print("allowing", approval.name, calls[approval.invocation].arguments)
            await run.decide(approval.invocation, Decision.ALLOW)
        last = 0
        async for cursor, event in run.events():
            last = cursor
            if isinstance(event, MessageDelta) and event.kind == "text":
                print(event.text, end="")
        print()
        print((await run.access()).status, "and there is nothing after the last cursor:")
        print([event async for event in run.events(after=last)])


identity = asyncio.run(start())
asyncio.run(decide(identity))
