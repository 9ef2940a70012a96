"""Exports of Open WebUI: one test for each trap."""

from __future__ import annotations

from pathlib import Path

from tests.importing.chatgpt import PIXEL
from tests.importing.conftest import Import, only, read, texts, write_json
from tests.importing.open_webui import conversation, message, talk
from vibe_llms.messages.canisters import AssistantCanister, InvocationCanister, Usage, UserCanister
from vibe_llms.messages.contents import ImageContent, ReasoningContent, Reference, TextualContent
from vibe_llms.storage.archive import DirectoryArchive


async def test_output_is_preferred_and_html_of_earlier_versions_is_understood(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    done = only(await bring(write_json(tmp_path / "chats.json", [talk()])))
    said = await texts(archive, done.conversation)
    assert said[0] == "document: A."
    assert said[1].endswith("[file b.pdf, not in the export]What is 2 + 2?")
    assert said[2:] == [
        "assistant: Two & two.\nFour.Let me ask.",
        "invocation: sum",
        "result: 4",
        "assistant: It is 4, not <details>.",
        "user: And 3 + 3?",
        "assistant: Exact.",
        "invocation: sum",
        "result: 6",
        "assistant: It is 6.",
    ]
    found = await read(archive, done.conversation)
    first = found[3]
    assert isinstance(first, InvocationCanister)
    assert first.parsed == {"a": 2}
    assert isinstance(found[2].contents[0], ReasoningContent)
    last = found[-1]
    assert isinstance(last, AssistantCanister)
    text = last.contents[-1]
    assert isinstance(text, TextualContent)
    assert text.citations[0].source == "https://s.example"
    assert last.ending is not None
    assert last.ending.usage == Usage(uncached_input_tokens=7, output_tokens=3)


async def test_pictures_are_kept_and_missing_files_are_counted(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    done = only(await bring(write_json(tmp_path / "chats.json", [talk()])))
    assert done.reasons == ("1 file that the export does not contain",)
    asked = (await read(archive, done.conversation))[1]
    assert isinstance(asked, UserCanister)
    image = asked.contents[0]
    assert isinstance(image, ImageContent)
    assert isinstance(image.data, Reference)
    assert await archive.load(image.data) == PIXEL
    assert asked.text == "[file b.pdf, not in the export]What is 2 + 2?"


async def test_tags_and_times_are_kept(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    await bring(write_json(tmp_path / "chats.json", [talk()]))
    (found,) = await archive.survey()
    assert found.tags == ("math", "pinned")
    assert found.created.timestamp() == 1_700_000_000


async def test_parallel_answers_of_several_models_are_listed_and_edits_are_not(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    messages = [
        message("m1", None, "user", "Why?"),
        message("m2", "m1", "assistant", "So.", model="llama"),
        message("m3", "m1", "assistant", "Thus.", model="qwen"),
    ]
    tree = conversation(*messages, current="m2", models=("llama", "qwen"))
    done = only(await bring(write_json(tmp_path / "a.json", [tree])))
    assert len(done.forks) == 1
    assert len(await archive.survey()) == 2
    edited = conversation(*[{**one, "model": "llama"} for one in messages], current="m2", id="w2")
    await bring(write_json(tmp_path / "b.json", [edited]))
    assert len(await archive.survey()) == 3


async def test_one_chat_that_was_exported_alone_is_read(bring: Import, tmp_path: Path) -> None:
    alone = {**talk()["chat"], "id": "w9"}
    assert only(await bring(write_json(tmp_path / "chat.json", alone))).id == "w9"


async def test_unclosed_html_is_text(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    text = 'See <details type="reasoning"' + "<details type=" * 50_000
    tree = conversation(message("m1", None, "assistant", text, model="llama"))
    done = only(await bring(write_json(tmp_path / "chats.json", [tree])))
    (found,) = await read(archive, done.conversation)
    assert len(found.contents) == 1


async def test_a_reply_that_was_cut_is_marked(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    tree = conversation(message("m1", None, "assistant", "It wa", model="llama", done=False))
    done = only(await bring(write_json(tmp_path / "chats.json", [tree])))
    (found,) = await read(archive, done.conversation)
    assert isinstance(found, AssistantCanister)
    assert found.ending is not None
    assert found.ending.interrupted
