"""What search engines sent in public reports: one case each, read by the tool `search`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.models import model_of, says
from tests.fakes.server import FakeServer, HttpAnswer, ReceivedRequest
from tests.field.cases import EngineCase, load_engine_cases
from vibe_llms.messages.canisters import ResultCanister
from vibe_llms.opening import open_session
from vibe_llms.testing import Part, ScriptedReply

CASES = load_engine_cases()


class Engine(FakeServer):
    """Answers the first request with the payload, and every later one with the second."""

    def __init__(self, case: EngineCase) -> None:
        super().__init__()
        self._case = case

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        case = self._case
        if case.second and len(self.requests) > 1:
            return HttpAnswer(200, {"content-type": "application/json"}, [case.second.encode()])
        headers = {"content-type": case.content_type, **case.headers}
        return HttpAnswer(case.status, headers, [case.payload.encode()])


@pytest.mark.parametrize("case", [case for _, case in CASES], ids=[name for name, _ in CASES])
async def test_what_an_engine_sent_is_a_result_or_a_clear_error(
    case: EngineCase, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BRAVE_API_KEY", "TAVILY_API_KEY"):
        monkeypatch.setenv(name, "a-key-of-this-test")
    with Engine(case) as server:
        settings = {
            "search-engines": {case.engine: {"url": server.url}},
            "ensembles": {"web": {"search": case.engine, "approval": "allow"}},
        }
        call = Part(invocation="web/search", arguments={"query": "hello"})
        async with open_session(home=home, configuration=settings) as session:
            model = model_of(ScriptedReply(parts=(call,)), says("Done."))
            conversation = await session.begin(model, ensembles=["web"])
            turn = await conversation.converse("Search it.")
        (result,) = [one for one in turn.canisters if isinstance(one, ResultCanister)]
        expect = case.expect
        assert result.failed is expect.failed
        assert [text for text in expect.has if text not in result.text] == []
        assert [text for text in expect.lacks if text in result.text] == []
        assert len(server.requests) == expect.requests
