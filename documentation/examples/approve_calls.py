import asyncio

from vibe_llms import ApprovalRequest, Decision, invoker, open_session

SENT: list[str] = []


@invoker(approval="ask", sends=True)
def send_mail(to: str) -> str:
    """Send a mail."""
    SENT.append(to)
    return f"sent to {to}"


async def approve(request: ApprovalRequest) -> Decision:
    arguments = request.invocation.parsed or {}
    print(f"{request.invocation.name} {arguments}: {request.reason}")
    return Decision.ALLOW if arguments.get("to") == "Ada" else Decision.DENY


async def main() -> None:
    async with open_session(approver=approve) as session:
        conversation = await session.begin("scripted/demo", invokers=[send_mail])
        for name in ("Ada", "Eve"):
            turn = await conversation.converse(f"Send mail {name}.")
            print(turn.text)
    print("Sent to:", *SENT)


asyncio.run(main())
