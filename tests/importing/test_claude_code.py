"""Sessions of Claude Code: one test for each trap."""

from __future__ import annotations

from pathlib import Path

from tests.importing.conftest import Import, only, read, texts, write_lines
from tests.importing.sessions import SESSION, call, claude_code, line, reply, result
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    ResultCanister,
    Usage,
    usage_of,
)
from vibe_llms.messages.contents import ImageContent, NativeContent, ReasoningContent
from vibe_llms.storage.archive import DirectoryArchive


async def test_a_session_is_one_line_without_what_the_program_wrote(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    report = await bring(write_lines(tmp_path / "s.jsonl", claude_code()))
    main, agent = report.conversations
    assert (main.source, main.id, main.title, main.forks) == (
        "claude-code",
        SESSION,
        "Fix tests",
        (),
    )
    assert main.reasons == ("4 messages that Claude Code wrote itself",)
    said = await texts(archive, main.conversation)
    assert [one.partition("Reference")[0] for one in said] == [
        "user: Fix the tests.",
        "assistant: I look.",
        "invocation: Read",
        "invocation: Bash",
        "result: a = 1",
        "result: b",
        "invocation: Bash",
        "result: denied",
        "user: Thanks.",
        "assistant: ",
        "assistant: ",
    ]
    assert not any("SECRET" in one for one in said)
    assert agent.id == f"{SESSION}/b1"
    assert await texts(archive, agent.conversation) == ["user: Sub-agent task", "assistant: Done."]
    assert [one.identity for one in await archive.survey(tag="sub-agent")] == [agent.conversation]


async def test_lines_of_one_message_are_one_reply_and_its_usage_counts_once(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    report = await bring(write_lines(tmp_path / "s.jsonl", claude_code()))
    found = await read(archive, report.conversations[0].conversation)
    replied = [one for one in found if isinstance(one, AssistantCanister | InvocationCanister)]
    assert len({one.reply for one in replied[:3]}) == 1
    assert usage_of(found[:4]) == Usage(
        uncached_input_tokens=5,
        cache_read_tokens=100,
        cache_write_tokens=30,
        output_tokens=7,
        hour_write_tokens=20,
    )
    first = replied[0]
    assert isinstance(first, AssistantCanister)
    thought = first.contents[0]
    assert isinstance(thought, ReasoningContent)
    assert thought.native is not None
    assert thought.native.issuer.module == "vibe_llms.importing.readers.claude_code"


async def test_results_belong_to_their_calls_and_keep_pictures(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    report = await bring(write_lines(tmp_path / "s.jsonl", claude_code()))
    found = await read(archive, report.conversations[0].conversation)
    calls = [one for one in found if isinstance(one, InvocationCanister)]
    results = [one for one in found if isinstance(one, ResultCanister)]
    assert [one.invocation for one in results] == [one.identity for one in calls]
    assert isinstance(results[1].contents[1], ImageContent)
    assert [one.failed for one in results] == [False, False, True]
    last = found[-1]
    assert isinstance(last, AssistantCanister)
    assert isinstance(last.contents[0], NativeContent)
    assert last.contents[0].label == "error"


async def test_a_session_that_goes_on_is_extended(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    lines = [
        line("u1", None, "user", "Go"),
        reply("a2", "u1", "m1", {"type": "text", "text": "I look."}),
    ]
    path = tmp_path / "s.jsonl"
    first = only(await bring(write_lines(path, lines)))
    # The same message goes on, and the last line is not whole yet.
    lines += [
        reply("a3", "a2", "m1", call("t1", "Read")),
        line("u4", "a3", "user", [result("t1", "x")]),
    ]
    write_lines(path, lines)
    path.write_bytes(path.read_bytes() + b'{"type": "assis')
    done = only(await bring(path))
    assert (done.status, done.messages, done.reasons) == ("extended", 2, ())
    assert await texts(archive, first.conversation) == [
        "user: Go",
        "assistant: I look.",
        "invocation: Read",
        "result: x",
    ]
    assert only(await bring(path)).status == "unchanged"


async def test_sub_agents_in_files_of_their_own_are_conversations(
    bring: Import, tmp_path: Path
) -> None:
    folder = tmp_path / "projects" / "-home-ada"
    write_lines(folder / f"{SESSION}.jsonl", [line("u1", None, "user", "Go")])
    lines = [
        line("c1", None, "user", "Task", isSidechain=True, agentId="agent7"),
        {
            **reply("c2", "c1", "m1", {"type": "text", "text": "Done."}),
            "isSidechain": True,
            "agentId": "agent7",
        },
    ]
    write_lines(folder / SESSION / "subagents" / "agent-7.jsonl", lines)
    report = await bring(tmp_path / "projects")
    assert {one.id for one in report.conversations} == {SESSION, f"{SESSION}/agent7"}


async def test_what_the_user_went_back_to_is_a_fork(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    lines = [
        line("u1", None, "user", "Go"),
        reply("a2", "u1", "m1", {"type": "text", "text": "One"}),
        line("u3", "a2", "user", "Wrong"),
        line("u4", "a2", "user", "Right"),
    ]
    done = only(await bring(write_lines(tmp_path / "s.jsonl", lines)))
    assert (await texts(archive, done.conversation))[-1] == "user: Right"
    assert [(await texts(archive, fork))[-1] for fork in done.forks] == ["user: Wrong"]


async def test_broken_lines_are_counted(bring: Import, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "s.jsonl", claude_code())
    path.write_bytes(path.read_bytes() + b"{broken}\n" + b"[1]\n" + b"[" * 5000 + b"\n")
    report = await bring(path)
    assert report.conversations[0].reasons[0] == "3 lines that cannot be read"


async def test_lines_without_parents_follow_each_other(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    lines = [
        {"type": "summary", "summary": "Greeting", "leafUuid": "a2"},
        line("u1", None, "user", "Hello"),
        reply("a2", "u1", "msg_1", {"type": "text", "text": "Hi."}),
        line("u3", "a2", "user", "Bye"),
    ]
    for one in lines:
        one.pop("parentUuid", None)
    report = await bring(write_lines(tmp_path / "s.jsonl", lines))
    (one,) = report.conversations
    assert one.forks == ()
    said = await texts(archive, one.conversation)
    assert said == ["user: Hello", "assistant: Hi.", "user: Bye"]
