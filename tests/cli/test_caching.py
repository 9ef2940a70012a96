"""`vibe-llms show --caching`: what prompt caches held of a conversation's requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cli.command import Outcome, invoke
from tests.cli.hostile import check_harmless, produce_payloads
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Ending,
    Provenance,
    Usage,
)
from vibe_llms.synchronous import open_session
from vibe_llms.testing import Script, ScriptedReply, scripted_model


def do(*arguments: str, **options: Any) -> Outcome:
    outcome = invoke("show", "--caching", *arguments, **options)
    assert outcome.status == 0, outcome
    return outcome


def hold(*usages: Usage | None, name: str = "talk") -> None:
    """A stored conversation whose requests have these usages."""
    replies = [ScriptedReply.from_chunks("Well.") for _ in usages]
    replies = [
        ScriptedReply(parts=one.parts, usage=usage)
        for one, usage in zip(replies, usages, strict=True)
    ]
    with open_session() as session:
        conversation = session.begin(scripted_model(Script(tuple(replies))), name=name)
        for _ in usages:
            conversation.converse("Hi")


def test_each_request_is_shown_with_what_it_paid(home: Path) -> None:
    hold(Usage(20_000, cache_write_tokens=5), Usage(995, cache_read_tokens=20_005), Usage(22_000))
    first, second, third, summary = do("talk").output.splitlines()
    assert first == (
        "1. scripted/script: 20,005 tokens in, 0 from the cache; paid 20,005 for 20,005 new"
    )
    assert second == (
        "2. scripted/script: 21,000 tokens in, 20,005 from the cache; paid 995 for 995 new"
    )
    assert third == (
        "3. scripted/script: 22,000 tokens in, 0 from the cache; paid 22,000 for 1,000 new, "
        "cache broken: unknown"
    )
    assert summary == (
        "in total: 43,000 tokens did not come from the cache, and 22,000 were new (ratio 2.0); "
        "the cache broke: 1 unknown"
    )


def test_programs_get_it_as_json(home: Path) -> None:
    hold(Usage(20_000, cache_write_tokens=5), Usage(995, cache_read_tokens=20_005))
    shown = do("talk", "--json").json
    assert [one["paid_tokens"] for one in shown["requests"]] == [20_005, 995]
    assert shown["requests"][1] == {
        "reply": shown["requests"][1]["reply"],
        "model": "scripted/script",
        "input_tokens": 21_000,
        "read_tokens": 20_005,
        "new_tokens": 995,
        "paid_tokens": 995,
        "rewrite_factor": 1.0,
        "reason": "",
    }
    assert shown["summary"] == {
        "requests": 2,
        "new_tokens": 21_000,
        "paid_tokens": 21_000,
        "read_tokens": 20_005,
        "breaks": {},
        "rewrite_factor": 1.0,
    }


def test_a_conversation_without_usages_says_so(home: Path) -> None:
    hold(None, name="bare")
    assert do("bare").output == "no reply of this conversation has a token usage\n"
    assert do("bare", "--json").json["requests"] == []


def test_names_of_models_cannot_harm_a_terminal(home: Path) -> None:
    with open_session() as session:
        conversation = session.begin("scripted/demo", name="hostile")
        for payload in produce_payloads(1, 60):
            origin = Provenance("", payload, payload)
            ending = Ending("finished", Usage(20_000))
            conversation.add([AssistantCanister(provenance=origin, ending=ending)])
    check_harmless(do("hostile", terminals="stdout").output)
