"""The database of llm, made by llm itself: both generations, forks, fragments, attachments."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import llm
import pytest
import sqlite_utils
from llm.logs import LogStore
from llm.migrations import migrate
from llm.parts import (
    AttachmentPart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

from tests.importing.chatgpt import PIXEL
from tests.importing.conftest import Import, only, read, texts
from vibe_llms.base.exceptions import ImportUnreadable
from vibe_llms.importing import sqlite
from vibe_llms.messages.canisters import AssistantCanister, InvocationCanister, ResultCanister
from vibe_llms.messages.contents import ImageContent, ReasoningContent, Reference
from vibe_llms.storage.archive import DirectoryArchive


def open_logs(path: Path) -> Any:
    """A database with the tables of llm, both generations."""
    database = sqlite_utils.Database(path)
    prepare: Any = migrate
    prepare(database)
    return database


def open_store(database: Any) -> Any:
    """The tree of messages in a database; llm's own types are incomplete."""
    produce: Any = LogStore
    return produce(database)


def add_turn(database: Any, identity: str, thread: str, tip: str, **values: Any) -> None:
    """A turn of a thread; its time is in its id, such as `t3`."""
    row = {
        "id": identity,
        "thread_id": thread,
        "tip_message_hash": tip,
        "model": "gpt-4o",
        "datetime_utc": f"2026-02-01T10:00:{int(identity[1:]):02}+00:00",
        **values,
    }
    database["turns"].insert(row)


def write_thread(path: Path) -> Mapping[str, str]:
    """A thread with a fragment, a picture, a call and reasoning; and its fork."""
    database = open_logs(path)
    store = open_store(database)
    book = "A long book. " * 200
    database["fragments"].insert(
        {"id": 1, "hash": "h", "content": book, "datetime_utc": "2026-01-01", "source": "b.txt"}
    )
    thread = store.create_thread(name="Books")
    picture = llm.Attachment(type="image/png", content=PIXEL)
    asked = [
        Message("system", [TextPart("Be brief.")]),
        Message("user", [TextPart(f"{book}Who wrote it?"), AttachmentPart(picture)]),
    ]
    tip = store.ensure_chain(asked, fragments=[book])
    replied = [
        Message(
            "assistant",
            [
                ReasoningPart("Hm."),
                TextPart("I look."),
                ToolCallPart("find", {"q": "book"}, tool_call_id="c1"),
            ],
        )
    ]
    first = store.ensure_chain(replied, parent=tip)
    add_turn(database, "t1", thread, first, input_tokens=50, output_tokens=7)
    results = [Message("tool", [ToolResultPart("find", "Ada", tool_call_id="c1")])]
    answer = [Message("assistant", [TextPart("Ada did.")])]
    second = store.ensure_chain([*results, *answer], parent=first)
    add_turn(database, "t2", thread, second)
    database["threads"].update(thread, {"tip_message_hash": second})
    fork = store.fork(first, name="Other", forked_from=thread)
    other = [
        Message("tool", [ToolResultPart("find", "", tool_call_id="c1", exception="Lost")]),
        Message("assistant", [TextPart("Nobody knows.")]),
    ]
    third = store.ensure_chain(other, parent=first)
    add_turn(database, "t3", fork, third, model="claude")
    database["threads"].update(fork, {"tip_message_hash": third})
    assert store.verify() == []
    database.close()
    return {"thread": thread, "fork": fork}


def write_responses(path: Path) -> None:
    """A conversation of the earlier generation, with a system prompt, a fragment and a call."""
    database = open_logs(path)
    database["conversations"].insert({"id": "v1", "name": "Old", "model": "gpt-3.5"})
    database["fragments"].insert({"id": 7, "hash": "g", "content": "A note.", "source": "n"})
    rows: list[dict[str, Any]] = [
        {"prompt": "Hello", "response": "Hi.", "system": "Be kind."},
        {"prompt": "Sum?", "response": "", "system": "Be kind."},
        {"prompt": "", "response": "It is 4.", "system": None, "reasoning": "Easy."},
    ]
    for number, row in enumerate(rows, 1):
        database["responses"].insert(
            {
                "id": f"r{number}",
                "model": "gpt-3.5",
                "conversation_id": "v1",
                "datetime_utc": f"2024-02-01T10:00:0{number}",
                **row,
            }
        )
    database["responses"].insert({"id": "r9", "prompt": "Alone", "response": "Yes."})
    database["prompt_fragments"].insert({"response_id": "r2", "fragment_id": 7, "order": 0})
    database["tool_calls"].insert(
        {"response_id": "r2", "name": "sum", "arguments": '{"a": 2}', "tool_call_id": "c"}
    )
    database["tool_results"].insert(
        {"response_id": "r3", "name": "sum", "output": "4", "tool_call_id": "c"}
    )
    picture = {"id": "p", "type": "image/png", "path": "/home/ada/x.png", "content": None}
    database["attachments"].insert(picture)
    link = {"response_id": "r1", "attachment_id": "p", "order": 0}
    database["prompt_attachments"].insert(link)
    database.close()


OLD = [
    "user: Hello[file /home/ada/x.png, not in the export]",
    "assistant: Hi.",
    "document: A note.",
    "user: Sum?",
    "invocation: sum",
    "result: 4",
    "assistant: Easy.It is 4.",
]


async def test_threads_and_their_forks_are_one_family(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    names = write_thread(tmp_path / "logs.db")
    done = only(await bring(tmp_path / "logs.db"))
    assert (done.source, done.id, done.title) == ("llm", names["thread"], "Books")
    found = await read(archive, done.conversation)
    assert [type(one).__name__.removesuffix("Canister") for one in found] == [
        *("Supervisor", "User", "Assistant", "Invocation", "Result", "Assistant")
    ]
    asked = found[1].contents
    assert isinstance(asked[0].data, Reference)  # type: ignore[union-attr]
    text = (await archive.load(asked[0].data)).decode()  # type: ignore[union-attr]
    assert text == f"{'A long book. ' * 200}Who wrote it?"
    assert isinstance(asked[1], ImageContent)
    assert isinstance(found[2].contents[0], ReasoningContent)
    call, result = found[3], found[4]
    assert isinstance(call, InvocationCanister)
    assert isinstance(result, ResultCanister)
    assert (call.parsed, result.invocation, result.text) == ({"q": "book"}, call.identity, "Ada")
    assert call.ending is not None
    assert call.ending.usage is not None
    assert call.ending.usage.uncached_input_tokens == 50
    (fork,) = done.forks
    assert (await texts(archive, fork))[-1] == "assistant: Nobody knows."
    other = (await read(archive, fork))[-1]
    assert isinstance(other, AssistantCanister)
    assert other.provenance is not None
    assert other.provenance.model == "claude"
    assert len(await archive.survey()) == 2
    assert only(await bring(tmp_path / "logs.db")).status == "unchanged"


async def test_responses_of_the_earlier_generation_are_read(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    write_responses(tmp_path / "logs.db")
    report = await bring(tmp_path / "logs.db")
    one, alone = report.conversations
    assert (one.title, one.reasons) == ("Old", ("1 file that the export does not contain",))
    said = await texts(archive, one.conversation)
    assert said[0].startswith("supervisor: ")
    assert said[1:] == OLD
    assert await texts(archive, alone.conversation) == ["user: Alone", "assistant: Yes."]


async def test_a_thread_that_continues_earlier_responses_is_not_read_twice(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    write_responses(tmp_path / "logs.db")
    first = (await bring(tmp_path / "logs.db")).conversations[0]
    database: Any = sqlite_utils.Database(tmp_path / "logs.db")
    store = open_store(database)
    store.ensure_thread("v1", name="Old")
    tip = store.ensure_chain(
        [Message("user", [TextPart("More?")]), Message("assistant", [TextPart("No.")])]
    )
    add_turn(database, "t1", "v1", tip)
    database["threads"].update("v1", {"tip_message_hash": tip})
    database.close()
    done = (await bring(tmp_path / "logs.db")).conversations[0]
    assert (done.conversation, done.messages, done.forks) == (first.conversation, 2, ())
    assert (await texts(archive, first.conversation))[1:] == [*OLD, "user: More?", "assistant: No."]


async def test_a_database_that_is_being_written_is_read(bring: Import, tmp_path: Path) -> None:
    write_thread(tmp_path / "logs.db")
    writer = sqlite3.connect(tmp_path / "logs.db", isolation_level=None)
    writer.execute("pragma journal_mode = wal")
    writer.execute("begin immediate")
    writer.execute("update threads set name = 'Later'")
    try:
        assert only(await bring(tmp_path / "logs.db")).title == "Books"
    finally:
        writer.close()


async def test_a_locked_database_is_an_error_that_says_why(
    bring: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_LOCK_SECONDS", 0.05)
    write_thread(tmp_path / "logs.db")
    program = (
        "import sqlite3, sys; one = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "one.execute('begin exclusive'); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "logs.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(ImportUnreadable, match="in use by another program; close it"):
            await bring(tmp_path / "logs.db")
        other.communicate()
    assert only(await bring(tmp_path / "logs.db")).status == "imported"


async def test_a_damaged_database_is_an_error(bring: Import, tmp_path: Path) -> None:
    write_thread(tmp_path / "logs.db")
    data = bytearray((tmp_path / "logs.db").read_bytes())
    data[100:4000] = bytes(3900)
    (tmp_path / "logs.db").write_bytes(data)
    with pytest.raises(ImportUnreadable, match=r"logs\.db is damaged"):
        await bring(tmp_path / "logs.db")


async def test_a_database_in_a_zip_file_has_to_be_unpacked(bring: Import, tmp_path: Path) -> None:
    write_thread(tmp_path / "logs.db")
    with zipfile.ZipFile(tmp_path / "logs.zip", "w") as archive:
        archive.write(tmp_path / "logs.db", "logs.db")
    with pytest.raises(ImportUnreadable, match="unpack it first"):
        await bring(tmp_path / "logs.zip")
