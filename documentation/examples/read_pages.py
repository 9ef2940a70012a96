import asyncio

from page_server import serve_pages

from vibe_llms import ApprovalRequest, Decision, open_session


async def approve(request: ApprovalRequest) -> Decision:
    print("May it read pages of", request.scope.partition(":")[0] + "? Yes, always.")
    return Decision.ALWAYS


async def main(host: str) -> None:
    rows = {"web": {"allow-hosts": [host]}}
    async with open_session(configuration=rows, approver=approve) as session:
        ensemble = await session.open_ensemble("web")
        conversation = await session.begin("scripted/demo", ensembles=[ensemble])
        for path in ("/", "/hours"):
            turn = await conversation.converse(f"Fetch page 1 of 'http://{host}{path}'")
            print(turn.text.splitlines()[0].replace(host, "HOST"))
        print(turn.text.partition("\n\n")[2])


with serve_pages() as host:
    asyncio.run(main(host))
