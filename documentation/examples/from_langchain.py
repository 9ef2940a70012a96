import asyncio

from pydantic import BaseModel

from vibe_llms import Conversation, Decision, InvocationCanister, Invoker, open_session
from vibe_llms.runs import ApprovalRequested

MODEL = "anthropic/claude-sonnet-5-5"
TASK = "Tell Ada and Eve that the boat leaves at noon."


class Report(BaseModel):
    sent: int
    summary: str


def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    print(f"To {to}: {text}")
    return f"sent to {to}"


TOOLS = [Invoker.from_function(send_mail, approval="ask")]


def decide(conversation: Conversation, call: str) -> Decision:
    (asked,) = [one for one in conversation.canisters if one.identity == call]
    assert isinstance(asked, InvocationCanister)
    return Decision.ALLOW if input(f"{asked.arguments}? ") == "y" else Decision.DENY


async def main() -> None:
    async with open_session(invokers=TOOLS) as session:
        conversation = await session.begin(
            MODEL, invokers=TOOLS, supervisor="You are a secretary.", name="mails"
        )
        run = await session.start(conversation, TASK, output=Report)
        async for _, event in run.events():
            if isinstance(event, ApprovalRequested):
                await run.decide(event.invocation, decide(conversation, event.invocation))
        print(repr((await run.result()).output))


asyncio.run(main())
