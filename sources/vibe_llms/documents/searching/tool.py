"""The tool `search` of the ensemble `web`: a query in, titles, addresses, and snippets out."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import msgspec

from vibe_llms.base.exceptions import ArgumentsInvalid, ConfigurationError, EnsembleFailed
from vibe_llms.documents.searching.interfaces import SearchAnswer, SearchEngine, SearchRequest
from vibe_llms.invocation.invokers import InvocationContext, Invoker
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.messages.contents import TextualContent

#: Most characters of a query. Brave and Tavily refuse longer ones (2026-11-27).
_LONGEST_QUERY = 400
#: Addresses that people see of a result.
_SHOWN = 3


def produce_search_tool(ensemble: str, engine: SearchEngine, limit: int) -> Invoker:
    """Return the tool of an ensemble that asks a search engine for at most `limit` results."""
    host = engine.host

    async def search(query: str, context: InvocationContext) -> InvocationOutput:
        """Search the web. Returns titles, addresses, and snippets; read a page to be certain.

        Args:
            query: A few words, as for a search engine.
        """
        request = SearchRequest(" ".join(query.split()), limit, context)
        try:
            answer = await engine.search(request)
        except (EnsembleFailed, ConfigurationError) as error:
            return InvocationOutput((TextualContent(str(error)),), failed=True)
        return _draw(answer, host, datetime.now(UTC))

    tool = Invoker.from_function(search, name=f"{ensemble}/search", outside=True, sends=True)
    check = tool.check

    def check_arguments(arguments: str) -> None:
        check(arguments)
        query = json.loads(arguments)["query"].strip()
        if not query:
            raise ArgumentsInvalid("query: it is empty")
        if len(query) > _LONGEST_QUERY:
            raise ArgumentsInvalid(f"query: it is longer than {_LONGEST_QUERY} characters")

    return msgspec.structs.replace(
        tool,
        ensemble=ensemble,
        check=check_arguments,
        caution=f"{host} receives the query; its results are untrusted",
        scope_of=lambda _: host,
    )


def _draw(answer: SearchAnswer, host: str, now: datetime) -> InvocationOutput:
    head = [f"Search engine: {host}", f"Searched: {now:%Y-%m-%d %H:%M} UTC"]
    head += [f"Note: {note}" for note in answer.notes]
    listed = [
        "\n".join(filter(None, (f"{number}. {one.title}", f"Address: {one.url}", one.snippet)))
        for number, one in enumerate(answer.results, 1)
    ]
    body = "\n\n".join(filter(None, (*listed, answer.text)))
    display = f"results of {host}"
    if listed:
        shown = [one.url for one in answer.results[:_SHOWN]]
        if len(listed) > _SHOWN:
            shown.append(f"{len(listed) - _SHOWN} more")
        count = "1 result" if len(listed) == 1 else f"{len(listed)} results"
        display = f"{count} of {host}: {', '.join(shown)}"
    elif not body:
        body, display = "No results. Try other words.", f"no {display}"
    return InvocationOutput((TextualContent("\n".join(head) + "\n\n" + body),), display)
