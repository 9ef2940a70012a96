import asyncio

from picture_server import serve_pictures

from vibe_llms import ApprovalRequest, Decision, ImageContent, ResultCanister, open_session


async def approve(request: ApprovalRequest) -> Decision:
    print(f"May it make a picture of {(request.invocation.parsed or {})['prompt']!r}? Yes.")
    return Decision.ALLOW


async def main(address: str) -> None:
    rows = {
        "providers": {"openai": {"base-url": address, "credential": "none"}},
        "ensembles": {"images": {"model": "painter-1"}},
    }
    async with open_session(configuration=rows, approver=approve) as session:
        conversation = await session.begin("scripted/demo", ensembles=["images"])
        turn = await conversation.converse("Generate image 'a cat on a mat'")
        for canister in turn.canisters:
            if isinstance(canister, ResultCanister):
                for content in canister.contents:
                    if isinstance(content, ImageContent):
                        print("It came as", content.mimetype)


with serve_pictures() as address:
    asyncio.run(main(address))
