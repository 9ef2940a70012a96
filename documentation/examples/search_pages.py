import asyncio

from page_server import serve_pages

from vibe_llms import ApprovalRequest, Decision, open_session


async def approve(request: ApprovalRequest) -> Decision:
    print(request.reason.partition("; ")[2].replace(request.scope, "HOST"))
    return Decision.ALWAYS


async def main(host: str) -> None:
    rows = {
        "search-engines": {"searxng": {"url": f"http://{host}"}},
        "ensembles": {"web": {"search": "searxng", "results": 3}},
    }
    async with open_session(configuration=rows, approver=approve) as session:
        ensemble = await session.open_ensemble("web")
        conversation = await session.begin("scripted/demo", ensembles=[ensemble])
        turn = await conversation.converse("Search 'library opening hours'")
        print(turn.text.partition("\n\n")[2].replace(host, "HOST"))


with serve_pages() as host:
    asyncio.run(main(host))
