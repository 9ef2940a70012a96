import asyncio
import sys
from dataclasses import dataclass

from vibe_llms import (
    ApprovalRequest,
    Conversation,
    Decision,
    InvocationCanister,
    ResultCanister,
    VibeLlmsError,
    open_session,
)

MODEL = "anthropic/claude-sonnet-5-5"
SETTINGS = {"ensembles": {"web": {"search": "searxng", "results": 5}}}
RULES = """\
Search the web, and read the pages that matter before you answer. Cite each statement with the
number of its source. Say what you did not find."""


@dataclass
class Report:
    text: str
    """The answer, with numbers of sources in brackets: [1]."""
    sources: list[str]
    """The addresses of the pages, in the order of their numbers."""


def approve(request: ApprovalRequest) -> Decision:
    """Allow reading and searching everywhere, and show it."""
    arguments = request.invocation.parsed or {}
    print(f"({request.invocation.name}: {arguments.get('query') or arguments.get('url')})")
    return Decision.ALLOW


def find_read_pages(conversation: Conversation) -> set[str]:
    """Return the addresses of the pages that were read, as opposed to found or made up."""
    messages = conversation.canisters
    done = {
        one.invocation for one in messages if isinstance(one, ResultCanister) and not one.failed
    }
    calls = [one for one in messages if isinstance(one, InvocationCanister)]
    return {one.parsed.get("url", "") for one in calls if one.parsed and one.identity in done}


async def main(question: str) -> None:
    async with open_session(configuration=SETTINGS, approver=approve) as session:
        conversation = await session.begin(MODEL, ensembles=["web"], supervisor=RULES)
        report = (await conversation.converse(question, output=Report)).output
        seen = find_read_pages(conversation)
        print(report.text)
        for number, source in enumerate(report.sources, 1):
            print(f"[{number}] {source}" + ("" if source in seen else " (was not read)"))


if len(sys.argv) != 2:
    sys.exit("usage: python research.py QUESTION")
try:
    asyncio.run(main(sys.argv[1]))
except VibeLlmsError as error:
    sys.exit(str(error))
