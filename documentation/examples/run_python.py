import asyncio

from vibe_llms import ApprovalRequest, Decision, open_session


async def approve(request: ApprovalRequest) -> Decision:
    code = (request.invocation.parsed or {}).get("code", "")
    print(f"It wants to run: {code}")
    return Decision.ALLOW


async def main() -> None:
    async with open_session(approver=approve) as session:
        conversation = await session.begin("scripted/demo", ensembles=["python"])
        for code in ("total = sum(range(101))", "total"):
            turn = await conversation.converse(f"Execute code '{code}'")
            print(turn.text)


asyncio.run(main())
