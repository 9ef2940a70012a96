"""Sessions of Codex: one test for each trap."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import zstandard

from tests.importing.conftest import Import, only, read, texts, write_json, write_lines
from tests.importing.sessions import CODEX_ITEMS, codex, rollout, spoken
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    ResultCanister,
    Usage,
    usage_of,
)
from vibe_llms.messages.contents import ReasoningContent
from vibe_llms.storage.archive import DirectoryArchive

SAID = [
    "user: Fix it.",
    "assistant: Plan.I look.",
    "invocation: shell",
    "invocation: apply_patch",
    "result: a.py",
    "result: Done",
    "assistant: Fixed.",
]


@pytest.mark.parametrize("generation", ["object", "bare", "wrapped"])
async def test_three_generations_say_the_same(
    generation: str, bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    session = {"id": "k1", "timestamp": "2025-04-01T10:00:00Z", "instructions": "SECRET"}
    match generation:
        case "object":
            path = write_json(tmp_path / "r.json", {"session": session, "items": CODEX_ITEMS})
        case "bare":
            state = {"record_type": "state"}
            path = write_lines(tmp_path / "r.jsonl", [session, state, *CODEX_ITEMS])
        case _:
            path = write_lines(tmp_path / "r.jsonl", codex())
    done = only(await bring(path))
    assert (done.source, done.id, done.status) == ("codex", "k1", "imported")
    assert done.reasons == ("2 messages that Codex wrote itself",)
    said = await texts(archive, done.conversation)
    assert [*said[:6], said[6].partition(": ")[0]] == [*SAID[:6], "assistant"]
    assert said[6].endswith("Fixed.")


async def test_calls_have_their_results_and_reasoning_is_kept_for_nobody(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    done = only(await bring(write_lines(tmp_path / "r.jsonl", codex())))
    found = await read(archive, done.conversation)
    calls = [one for one in found if isinstance(one, InvocationCanister)]
    results = [one for one in found if isinstance(one, ResultCanister)]
    assert [one.invocation for one in results] == [one.identity for one in calls]
    assert [one.failed for one in results] == [True, False]
    assert calls[1].parsed == {"input": "*** Begin"}
    answer = found[1]
    assert isinstance(answer, AssistantCanister)
    assert answer.provenance is not None
    assert answer.provenance.model == "gpt-6-codex"
    assert isinstance(answer.contents[0], ReasoningContent)
    assert answer.contents[0].native is not None
    assert usage_of(found) == Usage(
        uncached_input_tokens=10, cache_read_tokens=40, output_tokens=5, reasoning_tokens=4
    )


async def test_a_compressed_session_is_the_same(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    data = write_lines(tmp_path / "plain", codex()).read_bytes()
    # Two frames, as programs that append write.
    packed = zstandard.compress(data[:900]) + zstandard.compress(data[900:])
    (tmp_path / "r.jsonl.zst").write_bytes(packed)
    done = only(await bring(tmp_path / "r.jsonl.zst"))
    assert len(await texts(archive, done.conversation)) == 7
    assert only(await bring(tmp_path / "plain")).status == "unchanged"


async def test_a_compressed_session_without_the_package_says_what_to_install(
    bring: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sessions"
    data = write_lines(folder / "r.jsonl", codex()).read_bytes()
    (folder / "s.jsonl.zst").write_bytes(zstandard.compress(data))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    report = await bring(folder)
    assert {one.status for one in report.conversations} == {"imported", "refused"}
    (refused,) = [one for one in report.conversations if one.status == "refused"]
    assert "pip install 'vibe-llms[import]'" in refused.reasons[0]


async def test_a_compressed_session_that_is_cut_is_refused(bring: Import, tmp_path: Path) -> None:
    data = write_lines(tmp_path / "plain", [*codex(), *[rollout("x", {"a": "b" * 99}, 1)] * 2000])
    packed = zstandard.compress(data.read_bytes())
    folder = tmp_path / "sessions"
    write_lines(folder / "a.jsonl", codex(identity="k0"))
    (folder / "b.jsonl.zst").write_bytes(packed[: len(packed) // 2])
    (folder / "c.jsonl.zst").write_bytes(packed[:9] + b"damage")
    report = await bring(folder)
    assert report.counts["imported"] >= 1
    assert report.counts["refused"] >= 1


async def test_a_fork_that_copies_its_parent_shares_its_messages(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    folder = tmp_path / "sessions"
    parent = codex()
    # The copies have other times.
    copy = [
        rollout("session_meta", {"id": "k2", "forked_from_id": "k1"}, 30),
        *codex(start=31),
        rollout("response_item", spoken("user", "And the rest?"), 50),
        rollout("response_item", spoken("assistant", "Done."), 51),
    ]
    write_lines(folder / "1.jsonl", parent)
    first = only(await bring(folder))
    write_lines(folder / "2.jsonl", copy)
    report = await bring(folder)
    unchanged, extended = report.conversations
    assert (unchanged.status, extended.status) == ("unchanged", "extended")
    assert extended.conversation == first.conversation
    assert (await texts(archive, first.conversation))[-2:] == [
        "user: And the rest?",
        "assistant: Done.",
    ]
    assert extended.messages == 2
    write_lines(folder / "1.jsonl", [*parent, rollout("response_item", spoken("user", "Mine"), 60)])
    report = await bring(folder)
    (fork,) = report.conversations[0].forks
    assert (await texts(archive, fork))[-2:] == [SAID[-1], "user: Mine"]
    assert (await bring(folder)).messages == 0


async def test_a_sub_agent_is_tagged(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    await bring(write_lines(tmp_path / "r.jsonl", codex(parent_thread_id="k0")))
    assert len(await archive.survey(tag="sub-agent")) == 1


async def test_lone_surrogates_are_repaired(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    lines = [*codex(), rollout("response_item", spoken("user", "a\ud83d"), 40)]
    assert "\\ud83d" in json.dumps(lines)
    done = only(await bring(write_lines(tmp_path / "r.jsonl", lines)))
    assert (await texts(archive, done.conversation))[-1] == "user: a\ufffd"
