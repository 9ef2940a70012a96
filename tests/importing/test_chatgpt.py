"""Exports of ChatGPT: one test for each trap."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.importing.chatgpt import (
    PIXEL,
    conversation,
    files,
    node,
    talk,
    talk_with_everything,
    text,
)
from tests.importing.conftest import Import, only, read, texts, write_json, write_zip
from vibe_llms.messages.canisters import (
    AssistantCanister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    AudioContent,
    ImageContent,
    NativeContent,
    ReasoningContent,
    Reference,
    TextualContent,
)
from vibe_llms.storage.archive import DirectoryArchive


async def test_hidden_messages_are_counted_and_never_the_users_words(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    done = only(await bring(write_json(tmp_path / "c.json", [talk()])))
    assert await texts(archive, done.conversation) == [
        "user: When is high tide?",
        "assistant: At noon.",
    ]
    assert done.status == "imported"
    assert done.reasons == ("2 messages that ChatGPT hides",)
    answer = (await read(archive, done.conversation))[1]
    assert isinstance(answer, AssistantCanister)
    assert answer.provenance is not None
    assert (answer.provenance.row, answer.provenance.model) == ("chatgpt", "gpt-5-1")


async def test_a_split_export_is_read_as_one(bring: Import, tmp_path: Path) -> None:
    one = write_zip(
        tmp_path / "1.zip",
        {
            "conversations-000.json": [talk()],
            "conversations-001.json": [{**talk(), "conversation_id": "g2"}],
        },
    )
    other = write_zip(
        tmp_path / "2.zip",
        {"conversations-002.json": [{**talk_with_everything(), "conversation_id": "g3"}]},
    )
    third = write_zip(tmp_path / "3.zip", files())
    report = await bring(one, other, third)
    assert [one.id for one in report.conversations] == ["g1", "g2", "g3"]
    assert report.conversations[2].reasons[0] == "1 file that the export does not contain"


@pytest.mark.parametrize("container", ["array", "object", "wrapped"])
async def test_the_container_may_be_an_array_or_an_object(
    container: str, bring: Import, tmp_path: Path
) -> None:
    value: Any = {
        "array": [talk()],
        "object": talk(),
        "wrapped": {"conversations": [talk()], "version": 2},
    }[container]
    assert only(await bring(write_json(tmp_path / "c.json", value))).messages == 2


async def test_children_may_be_missing(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    tree = talk()
    for one in tree["mapping"].values():
        del one["children"]
    del tree["mapping"]["client-created-root"]
    done = only(await bring(write_json(tmp_path / "c.json", [tree])))
    assert done.reasons == ("2 messages that ChatGPT hides",)
    assert len(await texts(archive, done.conversation)) == 2


async def test_parents_may_be_missing_if_there_are_children(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    tree = talk()
    for one in tree["mapping"].values():
        del one["parent"]
    done = only(await bring(write_json(tmp_path / "c.json", [tree])))
    assert (done.forks, len(await texts(archive, done.conversation))) == ((), 2)


async def test_a_conversation_without_a_mapping_is_refused_alone(
    bring: Import, tmp_path: Path
) -> None:
    lost = {key: one for key, one in talk().items() if key != "mapping"}
    report = await bring(write_json(tmp_path / "c.json", [lost, talk()]))
    assert [one.status for one in report.conversations] == ["refused", "imported"]
    assert report.conversations[0].reasons == ("it has no messages (mapping)",)


async def test_status_weight_and_times_may_be_missing(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    tree = talk()
    del tree["create_time"], tree["update_time"]
    for one in tree["mapping"].values():
        for key in ("status", "weight", "create_time", "recipient"):
            (one["message"] or {}).pop(key, None)
    path = write_json(tmp_path / "c.json", [tree])
    done = only(await bring(path))
    assert len(await texts(archive, done.conversation)) == 2
    path.touch()
    assert only(await bring(path)).status == "unchanged"


async def test_the_model_of_the_conversation_is_used_if_no_message_has_one(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    tree = talk()
    tree["mapping"]["n4"]["message"]["metadata"] = {}
    done = only(await bring(write_json(tmp_path / "c.json", [tree])))
    answer = (await read(archive, done.conversation))[1]
    assert isinstance(answer, AssistantCanister)
    assert answer.provenance is not None
    assert answer.provenance.model == "gpt-5"


async def test_the_shown_branch_is_the_conversation_and_first_messages_branch_too(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    tree = conversation(
        node("n1", "client-created-root", "user", text("First")),
        node("n2", "n1", "assistant", text("One")),
        node("n3", "client-created-root", "user", text("Edited")),
        node("n4", "n3", "assistant", text("Two")),
        node("n5", "n3", "assistant", text("Three")),
        current="n2",
    )
    done = only(await bring(write_json(tmp_path / "c.json", [tree])))
    assert await texts(archive, done.conversation) == ["user: First", "assistant: One"]
    assert [await texts(archive, fork) for fork in done.forks] == [
        ["user: Edited", "assistant: Three"],
        ["user: Edited", "assistant: Two"],
    ]


async def test_every_kind_of_contents_is_kept(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    path = write_zip(
        tmp_path / "e.zip", {"conversations.json": [talk_with_everything()], **files()}
    )
    done = only(await bring(path))
    assert done.reasons == (
        "1 file that the export does not contain",
        "2 results without a call, kept as a document",
    )
    found = await read(archive, done.conversation)
    document, asked, spoken, *rest = found
    assert isinstance(document, DocumentCanister)
    assert (document.title, document.text) == ("notes.txt", "Buy a boat.")
    assert isinstance(asked, UserCanister)
    images = [one for one in asked.contents if isinstance(one, ImageContent)]
    assert [one.mimetype for one in images] == ["image/png", "image/png"]
    assert isinstance(images[0].data, Reference)
    assert await archive.load(images[0].data) == PIXEL
    assert asked.text == "Look[file file_gone, not in the export]"
    assert [type(one) for one in spoken.contents] == [AudioContent, TextualContent]
    thought, recap, call, result, web, search, found_moon, found_tides, late, odd, answer = rest
    assert [type(one) for one in thought.contents + recap.contents] == [ReasoningContent] * 2
    assert isinstance(call, InvocationCanister)
    assert (call.name, call.parsed) == ("python", {"input": "print(1)"})
    assert isinstance(result, ResultCanister)
    assert (result.invocation, result.text) == (call.identity, "1")
    assert isinstance(web, InvocationCanister)
    assert isinstance(search, InvocationCanister)
    assert isinstance(found_moon, ResultCanister)
    assert isinstance(found_tides, ResultCanister)
    assert (web.arguments, found_tides.invocation) == ('{"q": "tides"}', web.identity)
    assert found_moon.invocation == search.identity
    assert isinstance(late, DocumentCanister)
    assert isinstance(odd, DocumentCanister)
    assert isinstance(odd.contents[0], NativeContent)
    assert odd.contents[0].native is not None
    assert json.loads(bytes(odd.contents[0].native.data)) == {"content_type": "novelty", "x": [1]}
    assert odd.contents[0].native.issuer.module == "vibe_llms.importing.readers.chatgpt"
    assert isinstance(answer, AssistantCanister)
    assert answer.text == "At noon ([tides](https://t.example)). More  【12†L1-L3】"
    content = answer.contents[0]
    assert isinstance(content, TextualContent)
    assert [(one.title, one.source, one.quote) for one in content.citations] == [
        ("Tides", "https://t.example", "Noon.")
    ]
    assert answer.ending is not None
    assert answer.ending.reason == "length"
    assert only(await bring(path)).status == "unchanged"


async def test_thousands_of_marks_of_citations_take_no_time(bring: Import, tmp_path: Path) -> None:
    words = "\ue200" * 200_000 + "【" * 200_000 + "\ue200cite"
    tree = conversation(node("n1", "client-created-root", "assistant", text(words)))
    assert only(await bring(write_json(tmp_path / "c.json", [tree]))).messages == 1


async def test_tags_tell_what_was_archived_and_starred(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    await bring(write_json(tmp_path / "c.json", [{**talk(), "is_archived": True}]))
    assert [one.name for one in await archive.survey(tag="archived")] == ["Harbor"]
