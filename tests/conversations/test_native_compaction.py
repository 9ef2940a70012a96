"""A provider's own summary stands beside a digest that every other model can read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from tests.fakes.anthropic import KEY as ANTHROPIC_KEY
from tests.fakes.compaction import SUMMARY, CompactingAnthropic, CompactingOpenAI
from tests.fakes.openai import KEY as OPENAI_KEY
from vibe_llms import Conversation, Session, open_session
from vibe_llms.messages.canisters import DigestCanister, Provenance, UserCanister
from vibe_llms.messages.contents import Issuer, NativeContent, NativePayload, TextualContent
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Event, NoticeEvent
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.testing.wires.responses_replies import message, response_reply

MODELS = {"anthropic": "anthropic/claude-opus-5", "openai": "openai/gpt-5.5"}
DIGEST = "## Goal\nA boat of oak.\n## State\nThe keel is laid."


@pytest.fixture
def servers() -> Iterator[dict[str, Any]]:
    with CompactingAnthropic() as anthropic, CompactingOpenAI() as openai:
        yield {"anthropic": anthropic, "openai": openai}


@pytest.fixture
def session(tmp_path: Path, servers: dict[str, Any]) -> Session:
    rows = {
        name: {"base-url": server.url, "compaction": "native"} for name, server in servers.items()
    }
    return open_session(
        home=tmp_path,
        configuration={"providers": rows, "storage": {"durability": "fast"}},
        keys={"anthropic": ANTHROPIC_KEY, "openai": OPENAI_KEY},
    )


async def compact(conversation: Conversation, server: Any) -> DigestCanister:
    for number in range(8):
        await conversation.converse(f"Part {number}: " + "the boat is made of oak. " * 20)
    if isinstance(server, CompactingOpenAI):
        # Its own summary cannot be read, so the model writes another.
        server.replies.append(response_reply(message(DIGEST)))
    turn = await conversation.compact()
    [digest] = turn.canisters
    assert isinstance(digest, DigestCanister)
    return digest


@pytest.mark.parametrize("row", MODELS)
async def test_the_provider_gets_its_own_summary_and_others_a_readable_one(
    session: Session, servers: dict[str, Any], row: str
) -> None:
    server, other = servers[row], next(name for name in MODELS if name != row)
    async with session:
        conversation = await session.begin(MODELS[row], supervisor="Be brief.")
        digest = await compact(conversation, server)
        assert server.compactions == 1
        assert [type(one) for one in digest.contents][1:] == [NativeContent]
        assert (SUMMARY if row == "anthropic" else "The keel is laid.") in digest.text
        assert digest.ending is not None
        assert digest.ending.usage is not None
        assert digest.ending.usage.input_tokens >= 900
        await conversation.converse("Go on.")
        await conversation.converse("And on.")
        assert server.returned == 2
        assert server.refusals == []
        sent = server.requests[-1].body.decode()
        assert "Be brief." in sent
        assert "Part 0" in sent
        assert "Part 3" not in sent
        await conversation.switch(MODELS[other])
        await conversation.converse("Now you.")
        assert servers[other].refusals == []
        assert servers[other].returned == 0
        assert digest.text.splitlines()[-1] in servers[other].requests[-1].body.decode()


@pytest.mark.parametrize("row", MODELS)
async def test_a_summary_that_the_provider_refuses_is_sent_as_text_from_then_on(
    session: Session, servers: dict[str, Any], row: str
) -> None:
    """Keys are rotated, and a conversation must not be lost with them."""
    server, notices = servers[row], list[str]()

    def hear(event: Event) -> None:
        if isinstance(event, NoticeEvent):
            notices.append(event.notice.text)

    async with session:
        conversation = await session.begin(MODELS[row], event_handler=hear)
        digest = await compact(conversation, server)
        server.forgets = True
        notices.clear()
        assert (await conversation.converse("Go on.")).text == "Hello."
        assert len(server.refusals) == 1
        assert "the digest is sent as text" in notices[0]
        assert "oak" in server.requests[-1].body.decode()
        await conversation.converse("And on.")
        assert len(server.refusals) == 1
        assert any(isinstance(one, NativeContent) for one in digest.contents)


@pytest.mark.parametrize("row", MODELS)
async def test_another_process_continues_with_the_same_summary(
    tmp_path: Path, session: Session, servers: dict[str, Any], row: str
) -> None:
    async with session:
        conversation = await session.begin(MODELS[row])
        await compact(conversation, servers[row])
        expected = await conversation.preview("Go on.")
        resumed = await session.resume(conversation.identity)
        assert await resumed.preview("Go on.") == expected
        assert '"compaction"' in expected


async def test_a_digest_of_a_model_that_is_gone_is_read_as_text(
    session: Session, servers: dict[str, Any]
) -> None:
    async with session:
        said = [UserCanister.from_text(f"Part {number}") for number in range(3)]
        native = NativePayload(Issuer("gone", "gone", "m"), Raw(b'{"type":"compaction"}'))
        digest = DigestCanister(
            (TextualContent(DIGEST), NativeContent("compaction", native=native)),
            first=said[0].identity,
            last=said[1].identity,
            provenance=Provenance("gone", "gone", "m"),
        )
        conversation = await session.begin(MODELS["anthropic"], history=[*said, digest])
        assert (await conversation.converse("Go on.")).text == "Hello."
        assert servers["anthropic"].refusals == []
        sent = servers["anthropic"].requests[-1].body.decode()
        assert "The keel is laid." in sent
        assert "Part 0" not in sent


async def test_a_failed_summary_of_the_provider_leaves_our_own(
    session: Session, servers: dict[str, Any]
) -> None:
    server = servers["anthropic"]
    server.summary = None
    async with session:
        conversation = await session.begin(MODELS["anthropic"])
        for number in range(8):
            await conversation.converse(f"Part {number}: " + "the boat is made of oak. " * 20)
        turn = await conversation.compact()
        assert server.compactions == 1
        # The fake's only other reply is no summary, so nothing is left out.
        assert turn.canisters == ()
        assert (await conversation.converse("Go on.")).text == "Hello."


async def test_a_wish_is_sent_in_the_prompt_that_replaces_the_providers_own(
    session: Session, servers: dict[str, Any]
) -> None:
    server = servers["anthropic"]

    async def compact_for(focus: str, summary: str) -> tuple[DigestCanister, Any]:
        for number in range(8):
            await conversation.converse(f"Part {number}: " + "the boat is made of oak. " * 20)
        server.summary = summary
        [digest] = (await conversation.compact(focus)).canisters
        assert isinstance(digest, DigestCanister)
        *_, asked = [one.json["compaction"] for one in server.requests if "compaction" in one.json]
        return digest, asked

    async with session:
        conversation = await session.begin(MODELS["anthropic"])
        _, plain = await compact_for("", SUMMARY)
        assert plain == {"type": "summarize"}
        sections = "## Goal\nA boat of oak.\n## Decisions\n- The sail is red."
        digest, asked = await compact_for("the tides", sections)
        assert asked["type"] == "summarize"
        assert "## Decisions" in asked["instructions"]
        assert "begins with an earlier summary" in asked["instructions"]
        assert asked["instructions"].endswith("The user wants this in particular: the tides")
        # It has our sections, so they are ours, and not all of it is the state.
        assert digest.text.startswith("## Goal\nA boat of oak.\n\n## Decisions\n- The sail is red.")
        assert f"## State\n{SUMMARY}" in digest.text
        assert [type(one) for one in digest.contents][1:] == [NativeContent]
        assert server.refusals == []


async def test_nothing_that_shapes_a_reply_is_sent_for_a_summary(
    session: Session, servers: dict[str, Any]
) -> None:
    server, schema = servers["anthropic"], {"format": {"type": "json_schema", "schema": {}}}
    extras = {
        "stop_sequences": ["x"],
        "context_management": {"edits": []},
        "output_config": {**schema, "effort": "low"},
        "fallbacks": [
            {"model": "claude-opus-4-5", "output_config": {**schema, "effort": "high"}},
            {"model": "claude-haiku-4-5", "max_tokens": 9},
        ],
    }
    controls = Controls(extras={"anthropic": extras})
    async with session:
        model = await session.access_model(MODELS["anthropic"])
        said = [UserCanister.from_text("A boat.")]
        body = await model.preview(said, (), controls, TurnContext(compacts=True, streaming=False))
        asked = json.loads(body)
        assert asked["output_config"] == {"effort": "low"}
        assert asked["fallbacks"] == [
            {"model": "claude-opus-4-5", "output_config": {"effort": "high"}},
            {"model": "claude-haiku-4-5", "max_tokens": 9},
        ]
        assert not {"stop_sequences", "context_management"} & set(asked)
        assert server.requests == []


@pytest.mark.parametrize(("tier", "kept"), [("flex", True), ("scale", False)])
async def test_openai_summarizes_in_the_cache_and_the_tier_of_the_conversation(
    session: Session, servers: dict[str, Any], tier: str, kept: bool
) -> None:
    server = servers["openai"]
    extras = {"openai": {"prompt_cache_key": "boats", "prompt_cache_retention": "24h"}}
    controls = Controls(service_tier=tier, temperature=0.5, extras=extras)
    async with session:
        conversation = await session.begin(MODELS["openai"], controls=controls)
        await compact(conversation, server)
        [asked] = [one.json for one in server.requests if one.path.endswith("/compact")]
        expected = {"model": "gpt-5.5", "input": asked["input"], **extras["openai"]}
        assert asked == (expected | {"service_tier": tier} if kept else expected)
        assert server.refusals == []
