import asyncio
import sys

from vibe_llms import ApprovalRequest, Decision, open_session

ROWS = {
    "clock": {
        "module": "vibe_llms.ensembles.mcp",
        "command": [sys.executable, "clock_server.py"],
        "open-seconds": 60,
    }
}


async def approve(request: ApprovalRequest) -> Decision:
    print(f"May {request.invocation.name} run with {request.invocation.arguments}? Yes.")
    return Decision.ALLOW


async def main() -> None:
    async with open_session(configuration={"ensembles": ROWS}, approver=approve) as session:
        conversation = await session.begin("scripted/demo", ensembles=["clock"])
        for prompt in ("The hour in Oslo?", "Set alarm in Lima!"):
            turn = await conversation.converse(prompt)
            print(turn.text)


asyncio.run(main())
