"""Conversations of gptme and aichat: one test for each trap."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.importing.chatgpt import PIXEL
from tests.importing.conftest import Import, only, read, texts, write_lines
from tests.importing.sessions import AICHAT, gptme
from vibe_llms.base.exceptions import ImportUnreadable
from vibe_llms.messages.canisters import DocumentCanister, InvocationCanister, ResultCanister
from vibe_llms.messages.contents import ImageContent, Reference
from vibe_llms.storage.archive import DirectoryArchive


async def test_output_of_gptmes_tools_has_no_authority(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    write_lines(tmp_path / "logs" / "2026-02-01-files" / "conversation.jsonl", gptme())
    done = only(await bring(tmp_path / "logs"))
    assert (done.source, done.title) == ("gptme", "2026-02-01-files")
    assert done.reasons == (
        "1 file that the export does not contain",
        "1 message that gptme hides",
    )
    assert await texts(archive, done.conversation) == [
        "user: List files[file /home/ada/a.txt, not in the export]",
        "assistant: ```shell\nls\n```",
        "document: Ran command: ls\na.txt",
        "assistant: One file.",
    ]
    assert isinstance((await read(archive, done.conversation))[2], DocumentCanister)


async def test_branches_of_gptme_are_forks_and_views_are_not_read(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    folder = tmp_path / "logs" / "talk"
    lines = gptme()
    other = [*lines[:2], {**lines[2], "content": "No."}]
    write_lines(folder / "conversation.jsonl", lines)
    write_lines(folder / "branches" / "no.jsonl", other)
    write_lines(folder / "views" / "compacted.jsonl", [{**lines[1], "content": "Summary"}])
    done = only(await bring(tmp_path / "logs"))
    assert (await texts(archive, done.conversation))[-1] == "assistant: One file."
    assert [(await texts(archive, fork))[-1] for fork in done.forks] == ["assistant: No."]


async def test_a_session_of_aichat_begins_with_what_was_compressed(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    path = tmp_path / "trip.yaml"
    path.write_text(AICHAT, "utf-8")
    done = only(await bring(path))
    assert (done.source, done.title) == ("aichat", "trip")
    assert done.reasons == ("1 message that aichat wrote itself",)
    found = await read(archive, done.conversation)
    picture = found[1].contents[1]
    assert isinstance(picture, ImageContent)
    assert isinstance(picture.data, Reference)
    assert await archive.load(picture.data) == PIXEL
    said = await texts(archive, done.conversation)
    assert said[0].startswith("supervisor: ")
    assert [one.partition("Reference")[0] for one in said[1:]] == [
        "user: What is this?",
        "assistant: A pixel.",
        "user: And the weather?",
        "assistant: I look.",
        "invocation: weather",
        "result: mild",
        "assistant: Mild.",
    ]
    call, result = found[5], found[6]
    assert isinstance(call, InvocationCanister)
    assert isinstance(result, ResultCanister)
    assert (call.parsed, result.invocation) == ({"city": "Oslo"}, call.identity)


async def test_a_session_without_times_is_unchanged_after_it_was_copied(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    path = tmp_path / "trip.yaml"
    path.write_text(AICHAT, "utf-8")
    await bring(path)
    path.write_text(f"{AICHAT}save_session: true\n", "utf-8")
    import os

    os.utime(path, (2_000_000_000, 2_000_000_000))
    done = only(await bring(path))
    assert (done.status, done.reasons) == ("unchanged", ("1 message that aichat wrote itself",))


async def test_yaml_that_grows_without_bounds_is_refused(bring: Import, tmp_path: Path) -> None:
    bomb = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    bomb += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    text = "\n".join(["model: m", *bomb, "messages: *a29", ""])
    (tmp_path / "bomb.yaml").write_text(text, "utf-8")
    assert only(await bring(tmp_path / "bomb.yaml")).reasons == (
        "its YAML has aliases, which are not read",
    )


async def test_yaml_that_is_broken_is_refused_and_other_yaml_is_not_ours(
    bring: Import, tmp_path: Path
) -> None:
    (tmp_path / "broken.yaml").write_text("model: m\nmessages: [\n", "utf-8")
    assert "not valid YAML" in only(await bring(tmp_path / "broken.yaml")).reasons[0]
    (tmp_path / "other.yaml").write_text("model: m\nlayers: 3\n", "utf-8")
    with pytest.raises(ImportUnreadable):
        await bring(tmp_path / "other.yaml")
