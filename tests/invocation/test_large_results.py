"""U5: large results are shown to the model in part, kept whole, and never spoil the history."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from tests.fakes.anthropic import FakeAnthropic
from vibe_llms import open_session
from vibe_llms.invocation import execution
from vibe_llms.messages.canisters import ResultCanister
from vibe_llms.messages.contents import Reference, TextualContent
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.testing.wires.anthropic_replies import text_reply, tools_reply

MEGABYTE = 1_000_000


async def check_large_result(home: Path, server: FakeAnthropic, size: int) -> ResultCanister:
    """A tool returns so many bytes; the next request is small and so is the stored line."""

    def produce() -> str:
        return "0123456789" * (size // 10)

    server.replies = [tools_reply(("produce", "{}")), text_reply("Long."), text_reply("Yes.")]
    rows = {"providers": {"anthropic": {"base-url": server.url}}}
    async with open_session(home=home, keys={"anthropic": server.key}, configuration=rows) as one:
        conversation = await one.begin("anthropic/claude-opus-5", invokers=[produce])
        tracemalloc.start()
        await conversation.converse("Make much.")
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        await conversation.converse("Really?")
    assert most < 150 * MEGABYTE
    assert all(len(request.body) < MEGABYTE for request in server.requests)
    lines = (home / "conversations" / conversation.identity / "messages.jsonl").read_bytes()
    assert max(map(len, lines.splitlines())) < 64 * 1024
    (result,) = (one for one in conversation.canisters if isinstance(one, ResultCanister))
    return result


async def test_the_whole_of_a_large_result_stays_with_its_excerpt(
    home: Path, fake_anthropic: FakeAnthropic
) -> None:
    result = await check_large_result(home, fake_anthropic, 10 * MEGABYTE)
    (content,) = result.contents
    assert isinstance(content, TextualContent)
    assert not result.failed
    assert isinstance(content.whole, Reference)
    assert content.whole.size == 10 * MEGABYTE
    assert b"bytes left out" in fake_anthropic.requests[-1].body
    archive = DirectoryArchive(home)
    (summary,) = await archive.survey()
    os.utime(archive.contents.folder / content.whole.hash, (0, 0))
    assert await archive.collect() == []
    restored = await archive.restore(summary.identity)
    (again,) = (one for one in restored.canisters if isinstance(one, ResultCanister))
    assert again.contents[0] == content
    assert len(await archive.load(content.whole)) == 10 * MEGABYTE
    await archive.close()


async def test_what_is_too_large_to_be_kept_is_reported_to_the_model(
    home: Path, fake_anthropic: FakeAnthropic
) -> None:
    result = await check_large_result(home, fake_anthropic, 50 * MEGABYTE)
    assert result.failed
    assert "returned 50,000,000 bytes; at most 16,777,216 are kept" in result.text


async def test_a_result_that_is_shown_whole_would_be_seen(
    home: Path, fake_anthropic: FakeAnthropic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "bound_contents", lambda contents, **_: tuple(contents))
    with pytest.raises(AssertionError):
        await check_large_result(home, fake_anthropic, 10 * MEGABYTE)
