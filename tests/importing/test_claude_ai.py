"""Exports of Claude.ai: one test for each trap."""

from __future__ import annotations

from pathlib import Path

from tests.importing.claude_ai import conversation, message
from tests.importing.conftest import Import, only, read, texts, write_json
from tests.importing.fixtures import write_claude_ai
from vibe_llms.messages.canisters import AssistantCanister, InvocationCanister, ResultCanister
from vibe_llms.messages.contents import NativeContent, ReasoningContent, TextualContent
from vibe_llms.storage.archive import DirectoryArchive


async def test_a_reply_is_split_at_its_calls_which_get_ids(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    path = write_claude_ai(tmp_path)
    done = only(await bring(path))
    assert done.reasons == ("1 file that the export does not contain", "1 call without a result")
    assert await texts(archive, done.conversation) == [
        "document: Wind.",
        "user: [file boat.png, not in the export]",
        "assistant: Hm.I look.",
        "invocation: web_search",
        "result: Found.",
        "assistant: Like wings.",
        "invocation: repl",
        "user: Thanks",
    ]
    found = await read(archive, done.conversation)
    spoken, call, result, answer = found[2:6]
    assert isinstance(spoken, AssistantCanister)
    assert isinstance(call, InvocationCanister)
    assert isinstance(result, ResultCanister)
    assert isinstance(answer, AssistantCanister)
    assert spoken.reply == call.reply != answer.reply
    assert result.invocation == call.identity
    assert isinstance(spoken.contents[0], ReasoningContent)
    assert spoken.contents[0].native is None
    text = spoken.contents[1]
    assert isinstance(text, TextualContent)
    assert text.citations[0].source == "https://s.example"
    assert isinstance(answer.contents[1], NativeContent)
    assert answer.contents[1].label == "widget"
    assert isinstance(result.contents[1], NativeContent)
    assert only(await bring(path)).status == "unchanged"


async def test_the_model_is_unknown_and_not_guessed(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    done = only(await bring(write_claude_ai(tmp_path)))
    answer = (await read(archive, done.conversation))[2]
    assert isinstance(answer, AssistantCanister)
    assert answer.provenance is not None
    assert answer.provenance.model == "unknown"
    assert (await archive.restore(done.conversation)).details.model == ""


async def test_exports_without_parents_and_blocks_are_one_line(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    said = [message("m1", "human", "Hi"), message("m2", "assistant", "Hello")]
    for one in said:
        del one["parent_message_uuid"], one["content"]
    done = only(await bring(write_json(tmp_path / "c.json", [conversation(*said)])))
    assert await texts(archive, done.conversation) == ["user: Hi", "assistant: Hello"]


async def test_a_conversation_without_a_title_or_times_is_imported(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    said = message("m1", "human", "Hi", created_at=None)
    tree = conversation(said, name=None, created_at="soon", updated_at=None)
    path = write_json(tmp_path / "c.json", [tree])
    done = only(await bring(path))
    assert (await archive.survey())[0].title == "Hi"
    path.write_bytes(path.read_bytes() + b" ")
    assert only(await bring(path)).conversation == done.conversation


async def test_blocks_that_are_nested_too_deeply_to_be_read_again_leave_a_mark(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    deep: dict[str, object] = {}
    for _ in range(300):
        deep = {"a": deep}
    blocks = [{"type": "text", "text": "Hi"}, {"type": "deep", "x": deep}]
    tree = conversation(message("m1", "assistant", "Hi", content=blocks))
    done = only(await bring(write_json(tmp_path / "c.json", [tree])))
    (found,) = await read(archive, done.conversation)
    assert isinstance(found.contents[1], NativeContent)
    assert (found.contents[1].label, found.contents[1].native) == ("deep", None)
