"""Context management of Messages, with Anthropic's official client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.types.beta import BetaMessage

from tests.server.conftest import Served, serving
from tests.server.test_api_context import TALK, read_messages, survey, write_script

TOOLS: Any = [
    {
        "name": name,
        "description": "Look something up.",
        "input_schema": {"type": "object", "properties": {"what": {"type": "string"}}},
    }
    for name in ("look_up", "read_file")
]
COMPACT: Any = {
    "edits": [{"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 1_200}}]
}
CLEAR: Any = {"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 1}}
CLEAR_AND_COMPACT: Any = {"edits": [CLEAR, *COMPACT["edits"]]}
SCRIPTS = {
    "small": write_script(2_000),
    "sailor": write_script(),
    "silent": write_script(summary='text = ""'),
    "broken": write_script(summary='error = "overloaded"'),
    "slow": write_script(summary="stall = true"),
    "failing": write_script()
    .replace('when = "."', 'when = "^xx"', 1)
    .replace(f'text = "{TALK}"', 'error = "overloaded"'),
}


@pytest.fixture
async def served(home: Path) -> AsyncIterator[Served]:
    """A server with a model that summarizes."""
    home.mkdir()
    for name, script in SCRIPTS.items():
        (home / f"{name}.toml").write_text(script)
    scripts = {name: str(home / f"{name}.toml") for name in SCRIPTS}
    async with serving(
        home, providers={"scripted": {"scripts": scripts, "retries": 0}}, stream={"retries": 0}
    ) as server:
        yield server


async def ask(
    client: anthropic.AsyncAnthropic, messages: list[Any], *, streaming: bool = False, **given: Any
) -> BetaMessage:
    """Send a request, and add the reply to the messages."""
    options: Any = {
        "model": "scripted/sailor",
        "max_tokens": 1_000,
        "messages": messages,
        "system": "Be brief.",
        **given,
    }
    if streaming:
        async with client.beta.messages.stream(**options) as stream:
            reply: BetaMessage = await stream.get_final_message()
    else:
        reply = await client.beta.messages.create(**options)
    messages.append({"role": "assistant", "content": [one.to_dict() for one in reply.content]})
    return reply


def make_history(turns: int) -> list[Any]:
    return [
        one
        for number in range(turns)
        for one in (
            {"role": "user", "content": f"Message {number}."},
            {"role": "assistant", "content": TALK},
        )
    ]


def make_uses(count: int, name: str = "look_up", size: int = 2_000) -> list[Any]:
    """A history of uses of a tool with long results."""
    messages: list[Any] = [{"role": "user", "content": "Begin."}]
    for number in range(count):
        use = {"type": "tool_use", "id": f"c{number}", "name": name, "input": {"what": "a" * 300}}
        result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": "word " * size}
        messages += [
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ]
    return messages


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_conversation_is_compacted_and_continues_from_the_block(
    served: Served, streaming: bool
) -> None:
    async with served.anthropic() as client, served.http() as http:
        messages = [*make_history(16), {"role": "user", "content": "Go on."}]
        reply = await ask(client, messages, streaming=streaming, context_management=COMPACT)
        block, text = reply.content
        assert block.type == "compaction"
        assert "- Never use tar." in (block.content or "")
        assert "reread" not in (block.content or "")
        assert text.type == "text"
        assert reply.stop_reason == "end_turn"
        assert reply.context_management is not None
        assert reply.context_management.applied_edits == []
        first, second = reply.usage.iterations or []
        assert (first.type, second.type) == ("compaction", "message")
        assert first.output_tokens > 0
        assert second.input_tokens == reply.usage.input_tokens < 1_000

        # The whole history, and only what the block does not replace, are the same request.
        messages.append({"role": "user", "content": "And now?"})
        later = await ask(client, [*messages], streaming=streaming, context_management=COMPACT)
        assert len(await survey(http)) == 1
        short = await ask(client, messages[-2:], streaming=streaming)
        assert [one.type for one in later.content] == ["text"]
        assert later.usage.input_tokens == short.usage.input_tokens < 1_000
        conversations = await survey(http)
        stored = [one for each in conversations for one in await read_messages(http, each["id"])]
        assert sum(one["role"] == "digest" for one in stored) == len(conversations)
        assert sum(one["role"] == "supervisor" for one in stored) == len(conversations)


async def test_the_messages_that_stay_are_in_the_block(served: Served) -> None:
    async with served.anthropic() as client, served.http() as http:
        messages = [*make_history(16), {"role": "user", "content": "Remember the number 4711."}]
        await ask(client, messages, context_management=COMPACT)
        messages.append({"role": "user", "content": "And now?"})
        body = {"model": "scripted/sailor", "messages": messages[-2:], "max_tokens": 10}
        assert (await http.post("/v1/messages", json={**body, "store": True})).status_code == 200
        newest = (await survey(http))[0]
        texts = [
            one["contents"][0]["data"]
            for one in await read_messages(http, newest["id"])
            if one["role"] == "user"
        ]
    assert "Remember the number 4711." in texts
    assert {"Message 0.", "Message 15."} <= {*texts}


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_compaction_alone_is_the_whole_reply(served: Served, streaming: bool) -> None:
    edit = {**COMPACT["edits"][0], "pause_after_compaction": True}
    async with served.anthropic() as client, served.http() as http:
        for given in (
            {"context_management": {"edits": [edit]}},
            {"compaction": {"type": "summarize", "instructions": "Keep the tide."}},
        ):
            messages = [*make_history(16), {"role": "user", "content": "Go on."}]
            options: Any = {"streaming": streaming, **given}
            reply = await ask(client, messages, **options)
            [block] = reply.content
            assert (block.type, reply.stop_reason) == ("compaction", "compaction")
            assert [one.type for one in reply.usage.iterations or []] == ["compaction"]
            before = len(await survey(http))
            messages.append({"role": "user", "content": "And now?"})
            later = await ask(client, messages[-2:])
            assert later.usage.input_tokens < 1_000
            # It continues the conversation that was compacted.
            assert len(await survey(http)) == before


async def test_a_short_conversation_has_no_summary_and_loses_nothing(served: Served) -> None:
    async with served.anthropic() as client, served.http() as http:
        messages: list[Any] = [{"role": "user", "content": "Remember 4711."}]
        reply = await ask(client, messages, context_management=COMPACT)
        assert [one.type for one in reply.content] == ["text"]
        reply = await ask(client, messages, compaction={"type": "summarize"})
        [block] = reply.content
        assert block.type == "compaction"
        assert block.content is None
        messages.append({"role": "user", "content": "And now?"})
        await ask(client, messages[-2:])
        newest = (await survey(http))[0]
        stored = await read_messages(http, newest["id"])
    assert stored[1]["contents"][0]["data"] == "Remember 4711."


async def test_a_block_that_was_changed_or_is_of_another_user_is_refused(served: Served) -> None:
    async with served.anthropic() as client, served.anthropic("eve") as eve:
        messages = [*make_history(16), {"role": "user", "content": "Go on."}]
        await ask(client, messages, context_management=COMPACT)
        messages.append({"role": "user", "content": "And now?"})
        with pytest.raises(anthropic.BadRequestError, match="compaction"):
            await ask(eve, [*messages])
        block = messages[-2]["content"][0]
        for wrong in (
            block["encrypted_content"][:-8],
            block["encrypted_content"] + "AAAA",
            block["encrypted_content"][:30] + "é",
            block["encrypted_content"][:6],
        ):
            block["encrypted_content"] = wrong
            with pytest.raises(anthropic.BadRequestError, match="made by this server"):
                await ask(client, [*messages])


@pytest.mark.parametrize("streaming", [True, False])
async def test_old_results_are_cleared_and_reported(served: Served, streaming: bool) -> None:
    clear: Any = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "input_tokens", "value": 5_000},
        "keep": {"type": "tool_uses", "value": 2},
        "clear_tool_inputs": True,
    }
    management: Any = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}, clear]}
    async with served.anthropic() as client, served.http() as http:
        messages = make_uses(6)
        whole = await ask(client, [*messages], tools=TOOLS)
        reply = await ask(
            client, messages, streaming=streaming, tools=TOOLS, context_management=management
        )
        assert reply.context_management is not None
        [edit] = reply.context_management.applied_edits
        assert edit.type == "clear_tool_uses_20250919"
        assert edit.cleared_tool_uses == 4
        assert edit.cleared_input_tokens > 10_000
        assert reply.usage.input_tokens < whole.usage.input_tokens * 0.5

        # The next request is edited too, from the stored conversation.
        messages.append({"role": "user", "content": "And now?"})
        later = await ask(
            client, messages, streaming=streaming, tools=TOOLS, context_management=management
        )
        assert later.context_management is not None
        assert len(later.context_management.applied_edits) == 1
        assert later.usage.input_tokens < whole.usage.input_tokens * 0.5
        stored = await read_messages(http, (await survey(http))[0]["id"])
    results = [one for one in stored if one["role"] == "result"]
    assert all("left out" not in str(one) for one in results)
    [digest] = [one for one in stored if one["role"] == "digest"]
    assert sum(text == "{}" for text in digest["shortened"].values()) == 4


@pytest.mark.parametrize(
    ("changes", "cleared"),
    [
        ({"trigger": {"type": "tool_uses", "value": 6}}, 0),
        ({"trigger": {"type": "tool_uses", "value": 5}}, 3),
        ({"keep": {"type": "tool_uses", "value": 0}}, 5),
        ({"keep": {"type": "tool_uses", "value": 9}}, 0),
        ({"exclude_tools": ["look_up"]}, 0),
        ({"clear_at_least": {"type": "input_tokens", "value": 1_000_000}}, 0),
        ({"trigger": {"type": "input_tokens", "value": 90_000}}, 0),
    ],
)
async def test_the_settings_of_clearing_are_kept(
    served: Served, changes: dict[str, Any], cleared: int
) -> None:
    clear: Any = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "input_tokens", "value": 1_000},
        **changes,
    }
    store = {"store": False}
    async with served.anthropic() as client:
        reply = await ask(
            client,
            make_uses(6),
            tools=TOOLS,
            context_management={"edits": [clear]},
            extra_body=store,
        )
    assert reply.context_management is not None
    found = [
        one.to_dict().get("cleared_tool_uses") for one in reply.context_management.applied_edits
    ]
    assert found == ([cleared] if cleared else [])


async def test_old_thinking_is_reported_as_cleared(served: Served) -> None:
    thinking = {"type": "thinking", "thinking": "Let me see. " * 10, "signature": "x"}
    messages = make_history(4)
    for reply in messages[1::2]:
        reply["content"] = [thinking, {"type": "text", "text": "Yes."}]
    messages.append({"role": "user", "content": "Go on."})
    async with served.anthropic() as client:
        reply = await ask(
            client, messages, context_management={"edits": [{"type": "clear_thinking_20251015"}]}
        )
    assert reply.context_management is not None
    [edit] = reply.context_management.applied_edits
    assert edit.to_dict() == {
        "type": "clear_thinking_20251015",
        "cleared_thinking_turns": 3,
        "cleared_input_tokens": 120,
    }


async def test_tokens_are_counted_with_and_without_the_edits(served: Served) -> None:
    clear: Any = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "input_tokens", "value": 1_000},
    }
    async with served.anthropic() as client, served.http() as http:
        counted = await client.beta.messages.count_tokens(
            model="scripted/sailor",
            messages=make_uses(6),
            tools=TOOLS,
            context_management={"edits": [clear]},
        )
        assert await survey(http) == []
    assert counted.context_management is not None
    assert counted.input_tokens < counted.context_management.original_input_tokens * 0.7


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"edits": [{"keep": "all"}]}, "context_management.edits[0].type"),
        ({"edits": 3}, "context_management.edits"),
        (
            {"edits": [{"type": "clear_tool_uses_20250919", "keep": 3}]},
            "context_management.edits[0].keep",
        ),
        (
            {"edits": [{"type": "clear_tool_uses_20250919", "trigger": {"type": "hours"}}]},
            "context_management.edits[0].trigger",
        ),
        (
            {"edits": [COMPACT["edits"][0], {"type": "clear_thinking_20251015"}]},
            "context_management.edits[1]",
        ),
        ({"edits": [*COMPACT["edits"], *COMPACT["edits"]]}, "context_management.edits[1]"),
        (
            {
                "edits": [
                    {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": -1}}
                ]
            },
            "context_management.edits[0].trigger.value",
        ),
    ],
)
async def test_a_wrong_value_is_named(served: Served, given: Any, param: str) -> None:
    body = {
        "model": "scripted/sailor",
        "max_tokens": 10,
        "messages": [{"role": "user", "content": "Hello"}],
        "context_management": given,
    }
    async with served.http() as http:
        refused = await http.post("/v1/messages", json=body)
        assert refused.status_code == 400
        assert param in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"compaction": {"type": "summarize", "instructions": "x" * 10_001}}, "compaction"),
        (
            {
                "context_management": {
                    "edits": [{"type": "compact_20260112", "instructions": "x" * 10_001}]
                }
            },
            "context_management.edits[0]",
        ),
    ],
)
async def test_long_instructions_are_refused(
    served: Served, given: dict[str, Any], param: str
) -> None:
    async with served.anthropic() as client:
        with pytest.raises(anthropic.BadRequestError, match="10000") as refused:
            await ask(client, [{"role": "user", "content": "Hello"}], **given)
    assert f"{param}.instructions" in str(refused.value.body)


@pytest.mark.parametrize(
    ("given", "left_out"),
    [
        ({"edits": None}, None),
        ({}, None),
        ({"edits": [{"type": "clear_everything"}]}, "context_management clear_everything"),
        (
            {
                "edits": [
                    {"type": "clear_images", "keep": 3},
                    {"type": "unknown"},
                    {"type": "clear_thinking_20251015"},
                    {"type": "clear_images"},
                ]
            },
            "context_management clear_images, context_management unknown",
        ),
    ],
)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_unknown_edits_are_left_out(
    served: Served, given: Any, left_out: str | None, path: str
) -> None:
    body = {
        "model": "scripted/sailor",
        "max_tokens": 10,
        "messages": [{"role": "user", "content": "Hello"}],
        "context_management": given,
    }
    async with served.http() as http:
        reply = await http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    assert reply.headers.get("x-left-out") == left_out


async def test_blocks_of_others_in_a_history_are_named(served: Served) -> None:
    foreign = [
        {"type": "compaction", "content": "We build a boat.", "encrypted_content": "abc"},
        {"type": "hologram", "title": "A boat"},
        {"type": "text", "text": "Yes."},
    ]
    body = {
        "model": "scripted/sailor",
        "max_tokens": 10,
        "messages": [
            {"role": "assistant", "content": foreign},
            {"role": "user", "content": "Hello"},
        ],
    }
    async with served.http() as http:
        reply = await http.post("/v1/messages", json=body)
        [listed] = await survey(http)
        stored = str(await read_messages(http, listed["id"]))
    assert reply.headers["x-left-out"] == "content hologram, content compaction"
    assert "We build a boat." in stored
    assert "[hologram]\\ntitle: A boat" in stored


async def test_both_ways_of_compaction_exclude_each_other(served: Served) -> None:
    async with served.anthropic() as client:
        with pytest.raises(anthropic.BadRequestError, match="exclude each other"):
            await ask(
                client,
                [{"role": "user", "content": "Hello"}],
                compaction={"type": "summarize"},
                context_management=COMPACT,
            )


async def test_a_summary_that_cannot_be_used_leaves_the_history_as_it_is(served: Served) -> None:
    async with served.anthropic() as client:
        messages = [*make_history(16), {"role": "user", "content": "Go on."}]
        reply = await ask(client, messages, model="scripted/silent", context_management=COMPACT)
    assert [one.type for one in reply.content] == ["text"]


@pytest.mark.parametrize("streaming", [True, False])
async def test_the_usage_of_a_reply_does_not_count_a_summary_that_nobody_asked_for(
    served: Served, streaming: bool
) -> None:
    messages: list[Any] = []
    iterations = []
    async with served.anthropic() as client:
        for number in range(20):
            messages.append({"role": "user", "content": f"Message {number}."})
            reply = await ask(client, messages, model="scripted/small", streaming=streaming)
            assert reply.usage.input_tokens < 2_000
            iterations += [one.type for one in reply.usage.iterations or []]
    assert iterations.count("compaction") == iterations.count("message") > 0


def make_long() -> list[Any]:
    """A history with old uses of a tool, and a message."""
    reply, message = ({"role": role, "content": TALK} for role in ("assistant", "user"))
    return [*make_uses(5), reply, *make_history(16), message]


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_repeated_request_gets_the_same_compaction(served: Served, streaming: bool) -> None:
    given: Any = {
        "context_management": CLEAR_AND_COMPACT,
        "streaming": streaming,
        "extra_headers": {"idempotency-key": "once"},
        "tools": TOOLS,
    }
    async with served.anthropic() as client, served.http() as http:
        messages: list[Any] = []
        replies = []
        for _ in range(3):
            messages = make_long()
            replies.append(await ask(client, messages, **given))
        for reply in replies:
            assert [one.type for one in reply.content] == ["compaction", "text"]
            assert reply.content[0] == replies[0].content[0]
            assert reply.usage.iterations == replies[0].usage.iterations
            assert reply.context_management == replies[0].context_management
            assert reply.context_management is not None
            assert len(reply.context_management.applied_edits) == 1
        messages.append({"role": "user", "content": "And now?"})
        await ask(client, messages[-2:], tools=TOOLS)
        assert len(await survey(http)) == 1


@pytest.mark.parametrize("keyed", [True, False])
async def test_a_compaction_that_fails_leaves_no_conversation(served: Served, keyed: bool) -> None:
    headers = {"idempotency-key": "once"} if keyed else {}
    given: Any = {
        "context_management": CLEAR_AND_COMPACT,
        "extra_headers": headers,
        "tools": TOOLS,
    }
    async with served.anthropic() as client, served.http() as http:
        with pytest.raises(anthropic.APIStatusError):
            await ask(client, make_long(), model="scripted/broken", **given)
        assert await survey(http) == []
        with pytest.raises(anthropic.APITimeoutError):
            await ask(client, make_long(), model="scripted/slow", timeout=1.0, **given)
        async with asyncio.timeout(10):
            while await survey(http):
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("given", [{}, {"context_management": CLEAR_AND_COMPACT}])
@pytest.mark.parametrize("keyed", [True, False])
async def test_a_turn_that_fails_leaves_no_conversation(
    served: Served, keyed: bool, given: dict[str, Any]
) -> None:
    headers = {"idempotency-key": "once"} if keyed else {}
    messages = [*make_long()[:-1], {"role": "user", "content": "xx"}]
    async with served.anthropic() as client, served.http() as http:
        with pytest.raises(anthropic.APIStatusError):
            await ask(
                client,
                messages,
                model="scripted/failing",
                tools=TOOLS,
                extra_headers=headers,
                **given,
            )
        assert await survey(http) == []
