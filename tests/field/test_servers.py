"""Replies of providers' servers, from public reports: what a user gets is right."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.raw_server import RawServer
from tests.field.cases import ServerCase, load_server_cases
from tests.field.upstream import KINDS, SSE, bodies_of, frame, plain, respond
from vibe_llms import NoticeEvent, open_session
from vibe_llms.base.exceptions import VibeLlmsError
from vibe_llms.messages.canisters import AssistantCanister
from vibe_llms.messages.contents import ReasoningContent
from vibe_llms.providers import round_trip

MODULES = {
    "chat": "vibe_llms.providers.openai.chat_completions",
    "responses": "vibe_llms.providers.openai.responses",
    "messages": "vibe_llms.providers.anthropic",
    "ollama": "vibe_llms.providers.ollama",
    "bedrock": "vibe_llms.providers.bedrock",
    "gemini": "vibe_llms.providers.gemini",
}
CASES = load_server_cases()


class Outcome:
    """What a user sees of one turn, and what the server was sent."""

    def __init__(self) -> None:
        self.error: VibeLlmsError | None = None
        self.text = self.reasoning = self.stop = ""
        self.output_tokens = self.cache_read_tokens = 0
        self.calls: list[list[int]] = []
        self.notices: list[str] = []
        self.requests: list[Any] = []


async def hold_turn(case: ServerCase) -> Outcome:
    """Send one message to a server that answers with the payload of a case."""
    outcome = Outcome()

    def add(a: int, b: int = 0) -> int:
        """Add two numbers."""
        outcome.calls.append([a, b])
        return a + b

    def now() -> str:
        """Return the time."""
        outcome.calls.append([])
        return "12:00"

    def note(event: object) -> None:
        if isinstance(event, NoticeEvent):
            outcome.notices.append(event.notice.text)

    kind = KINDS.get(case.dialect, SSE)
    content_type = case.content_type or (kind if case.status < 400 else "application/json")
    body = frame(case.dialect, case.payload) if content_type == kind else case.payload.encode()
    first = respond(case.status, content_type, body, case.headers)
    later = first if case.expect.error else respond(200, kind, plain(case.dialect))
    # Ollama is asked first what its model can do.
    shown = b'{"capabilities":["completion","tools"],"model_info":{}}'
    before = [respond(200, "application/json", shown)] if case.dialect == "ollama" else []
    async with RawServer(*before, first, later) as server:
        tail = "/v1" if case.dialect in ("chat", "responses") else ""
        row = {"module": MODULES[case.dialect], "base-url": server.url + tail}
        row |= {"credential": "none", **case.row}
        configuration = {"providers": {"field": row}}
        async with open_session(configuration=configuration, event_handler=note) as session:
            conversation = await session.begin(f"field/{case.model}", invokers=[add, now])
            try:
                async with asyncio.timeout(30):
                    turn = await conversation.converse("Hello", streaming=case.streaming)
            except VibeLlmsError as error:
                outcome.error = error
            else:
                outcome.text, outcome.stop = turn.text, str(turn.stop_reason)
                outcome.output_tokens = turn.usage.output_tokens
                outcome.cache_read_tokens = turn.usage.cache_read_tokens
                outcome.reasoning = "".join(
                    content.text
                    for canister in turn.canisters
                    if isinstance(canister, AssistantCanister)
                    for content in canister.contents
                    if isinstance(content, ReasoningContent)
                )
        outcome.requests = bodies_of(server)[len(before) :]
    return outcome


def compare(case: ServerCase, outcome: Outcome) -> list[str]:
    """Return the differences between a turn and what was expected."""
    expect = case.expect
    differences = []
    kind = type(outcome.error).__name__ if outcome.error else ""
    if bool(kind) != bool(expect.error) or (kind and kind not in expect.error):
        differences.append(f"error {outcome.error!r}, expected {expect.error or 'none'}")
    for name, got in (
        ("text", outcome.text),
        ("reasoning", outcome.reasoning),
        ("stop", outcome.stop),
        ("calls", outcome.calls),
        ("tokens", getattr(outcome.error, "tokens", None) or 0),
        ("limit", getattr(outcome.error, "limit", None) or 0),
        ("requests", len(outcome.requests)),
        ("output_tokens", outcome.output_tokens),
        ("cache_read_tokens", outcome.cache_read_tokens),
    ):
        wanted = getattr(expect, name)
        accepted = wanted if isinstance(wanted, list) and name != "calls" else [wanted]
        if wanted is not None and got not in accepted:
            differences.append(f"{name} {got!r}, expected {wanted!r}")
    if expect.most_requests is not None and len(outcome.requests) > expect.most_requests:
        differences.append(f"{len(outcome.requests)} requests")
    notices = " ".join(outcome.notices).lower()
    if expect.says.lower() not in f"{outcome.error} {notices}".lower():
        differences.append(f"{expect.says!r} is not said in {outcome.error} {outcome.notices}")
    if expect.notice.lower() not in notices:
        differences.append(f"no notice says {expect.notice!r}: {outcome.notices}")
    second = json.dumps(outcome.requests[1:2], ensure_ascii=False)
    differences += [
        f"the second request lacks {one!r}" for one in expect.second_has if one not in second
    ]
    differences += [
        f"the second request has {one!r}" for one in expect.second_lacks if one in second
    ]
    return differences


@pytest.mark.parametrize("case", [case for _, case in CASES], ids=[name for name, _ in CASES])
async def test_a_user_gets_the_right_result(
    case: ServerCase, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_trip, "FIRST_WAIT_SECONDS", 0.001)
    outcome = await hold_turn(case)
    assert compare(case, outcome) == []
