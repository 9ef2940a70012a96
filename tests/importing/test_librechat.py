"""Exports of LibreChat: one test for each trap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.importing.conftest import Import, only, read, texts, write_json
from tests.importing.librechat import talk, talk_as_tree
from vibe_llms.messages.canisters import AssistantCanister
from vibe_llms.messages.contents import NativeContent, ReasoningContent
from vibe_llms.storage.archive import DirectoryArchive


@pytest.mark.parametrize("tree", [talk(), talk_as_tree()], ids=["list", "tree"])
async def test_a_list_and_a_tree_are_the_same(
    tree: Any, bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    done = only(await bring(write_json(tmp_path / "story.json", tree)))
    assert (done.source, done.status) == ("librechat", "partly")
    assert done.reasons == ("1 file that the export does not contain",)
    assert await texts(archive, done.conversation) == [
        "user: Tell a long story",
        "assistant: Once.",
    ]
    (fork,) = done.forks
    assert await texts(archive, fork) == [
        "user: Tell a story",
        "assistant: Hm.I look.",
        "invocation: search",
        "result: A ship.",
        "assistant: Here it is.",
        "document: [file a.pdf, not in the export]",
        "user: More",
        "assistant: It wa",
    ]
    found = await read(archive, fork)
    assert isinstance(found[1].contents[0], ReasoningContent)
    assert isinstance(found[4].contents[1], NativeContent)
    last = found[-1]
    assert isinstance(last, AssistantCanister)
    assert last.ending is not None
    assert last.ending.interrupted
    assert last.provenance is not None
    assert last.provenance.model == "gpt-4o"


async def test_a_list_and_a_tree_of_one_conversation_are_not_imported_twice(
    bring: Import, tmp_path: Path
) -> None:
    await bring(write_json(tmp_path / "list.json", talk()))
    assert only(await bring(write_json(tmp_path / "tree.json", talk_as_tree()))).messages == 0


async def test_a_deep_tree_needs_no_recursion(bring: Import, tmp_path: Path) -> None:
    tree = talk_as_tree()
    below: list[Any] = []
    for number in range(150, 0, -1):
        one = {**talk()["messages"][0], "messageId": f"d{number}", "children": below}
        del one["parentMessageId"]
        below = [one]
    tree["messagesTree"] = below
    assert only(await bring(write_json(tmp_path / "deep.json", tree))).messages == 150
