"""Imports: branches, repetition, growth, filters, refusals, and files that harm."""

from __future__ import annotations

import asyncio
import json
import zipfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.importing.claude_ai import conversation, message, talk
from tests.importing.conftest import Import, only, snapshot, texts, write_json, write_zip
from vibe_llms import synchronous
from vibe_llms.base.configuration import Places, load_configuration
from vibe_llms.base.exceptions import ImportUnreadable, RegistrationError, StorageUnavailable
from vibe_llms.importing.core import import_conversations
from vibe_llms.importing.exports import Export
from vibe_llms.importing.interfaces import ExportedRecord
from vibe_llms.importing.readers.claude_ai import ClaudeAiImporter
from vibe_llms.importing.reports import ImportOptions, ImportProgress
from vibe_llms.importing.storing import MOST_FORKS
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.transfer import NewConversation


async def test_a_conversation_is_imported_with_its_title_and_its_times(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    done = only(await bring(write_json(tmp_path / "any name.txt", [talk()])))
    assert (done.status, done.source, done.id, done.messages) == ("imported", "claude-ai", "c1", 4)
    assert await texts(archive, done.conversation) == [
        "user: How do sails work?",
        "assistant: Like wings.",
        "user: And upwind?",
        "assistant: At an angle.",
    ]
    (summary,) = await archive.survey()
    assert summary.name == "Sails"
    assert summary.created == datetime(2026, 3, 1, 10, tzinfo=UTC)
    assert summary.updated == datetime(2026, 3, 1, 10, 4, tzinfo=UTC)
    found = await archive.export_conversation(done.conversation)
    assert b'imported-from = "claude-ai:c1"' in found.metadata


async def test_importing_again_changes_nothing(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    tree = talk()
    tree["chat_messages"].append(message("m7", "assistant", "x" * 5000, "m3"))
    path = write_json(tmp_path / "export.json", [tree])
    first = only(await bring(path))
    before = snapshot(archive.folder)
    again = only(await bring(path))
    assert again.status == "unchanged"
    assert (again.conversation, again.forks, again.messages) == (
        first.conversation,
        first.forks,
        0,
    )
    assert snapshot(archive.folder) == before


async def test_two_archives_get_the_same_bytes(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    path = write_json(tmp_path / "export.json", [talk()])
    await bring(path)
    other = DirectoryArchive(tmp_path / "other")
    await import_conversations(path, other, configuration=load_configuration(environment={}))
    await other.close()
    assert snapshot(other.folder) == snapshot(archive.folder)


async def test_a_branch_that_has_grown_is_extended(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    first = only(await bring(write_json(tmp_path / "export.json", [talk()])))
    await archive.revise(first.conversation, name="Mine", add_tags=["kept"])
    before = await archive.export_conversation(first.conversation)
    done = only(await bring(write_json(tmp_path / "export.json", [talk(longer=True)])))
    assert (done.status, done.messages, done.conversation) == ("extended", 2, first.conversation)
    after = await archive.export_conversation(first.conversation)
    assert after.lines.startswith(before.lines)
    assert after.metadata == before.metadata, "the user's own name and tags stay"
    assert len(await texts(archive, done.conversation)) == 6


async def test_other_branches_become_forks_that_lists_leave_out(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    tree = talk(longer=True)
    tree["chat_messages"] += [
        message("m0", "human", "Hello?"),
        message("m2", "assistant", "a repeated id"),
        message("m1", "human", "another"),
    ]
    tree["chat_messages"].insert(4, message("m3", "human", "repeated", "m2"))
    tree["chat_messages"].insert(2, message("m00", "assistant", "Badly.", "m1"))
    done = only(await bring(write_json(tmp_path / "export.json", [tree])))
    assert done.reasons == ("3 messages with the id of another",)
    assert len(done.forks) == 2
    (listed,) = await archive.survey()
    assert listed.identity == done.conversation
    family = await archive.survey_family(done.conversation)
    assert {one.summary.identity for one in family} == {done.conversation, *done.forks}
    main = await archive.export_conversation(done.conversation)
    shared = {one.summary.identity: one.shared for one in family}
    found = sorted([await texts(archive, fork) for fork in done.forks])
    assert found == [["user: Hello?"], ["user: How do sails work?", "assistant: Badly."]]
    for fork in done.forks:
        lines = (await archive.export_conversation(fork)).lines.splitlines()
        assert lines[: shared[fork]] == main.lines.splitlines()[: shared[fork]]


async def test_what_was_continued_here_is_kept_and_what_is_new_there_becomes_a_fork(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    first = only(await bring(write_json(tmp_path / "export.json", [talk()])))
    await archive.append(first.conversation, [UserCanister.from_text("Mine.")], after=None)
    before = await archive.export_conversation(first.conversation)
    assert only(await bring(tmp_path / "export.json")).status == "unchanged"
    path = write_json(tmp_path / "export.json", [talk(longer=True)])
    done = only(await bring(path))
    assert (done.status, done.messages) == ("extended", 2)
    assert (await archive.export_conversation(first.conversation)).lines == before.lines
    (fork,) = done.forks
    assert (await texts(archive, fork))[-2:] == ["user: Why?", "assistant: Lift."]
    assert only(await bring(path)).status == "unchanged"


async def test_a_message_that_changed_at_the_source_is_kept_as_it_was_and_that_is_said(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    first = only(await bring(write_json(tmp_path / "export.json", [talk()])))
    before = snapshot(archive.folder)
    tree = talk()
    tree["chat_messages"][1]["content"][0]["text"] = "Like kites."
    done = only(await bring(write_json(tmp_path / "export.json", [tree])))
    assert done.status == "unchanged"
    assert done.reasons == ("1 message that changed at the source after its import",)
    assert done.conversation == first.conversation
    assert snapshot(archive.folder) == before


async def test_a_dry_run_stores_nothing_and_says_the_same(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    tree = talk()
    tree["chat_messages"].append(message("m7", "assistant", "Or so.", "m3"))
    path = write_json(tmp_path / "export.json", [tree])
    dry = await bring(path, dry_run=True)
    assert dry.dry_run
    assert snapshot(archive.folder) == {}
    real = await bring(path)
    assert dry.conversations == real.conversations


async def test_filters_leave_conversations_out_and_count_them(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    old = {**talk(), "uuid": "c2", "name": "Old SAILS", "updated_at": "2025-01-01T00:00:00Z"}
    other = {**talk(), "uuid": "c3", "name": "Kites"}
    path = write_json(tmp_path / "export.json", [talk(), old, other])
    report = await bring(path, match="sails", since=datetime(2026, 1, 1, tzinfo=UTC), tags=["in"])
    assert only(report).title == "Sails"
    assert report.skipped == 2
    assert [one.name for one in await archive.survey(tag="in")] == ["Sails"]


async def test_one_broken_conversation_is_refused_and_the_others_are_imported(
    bring: Import, tmp_path: Path
) -> None:
    whole = [{**talk(), "uuid": f"c{number}", "name": f"N{number}"} for number in range(50)]
    text = ",".join(
        [
            *(json.dumps(one) for one in whole[:20]),
            '{"uuid": "x", "chat_messages": [}, {"a": "]"}]}',
            '{"uuid": "y", "chat_messages": "none"}',
            "nothing",
            '"text"',
            '{"uuid": "z", "chat_messages": [{"uuid": "m", "content": '
            + "[" * 3000
            + "]" * 3000
            # and an integer that Python refuses to read
            + "}]}",
            '{"uuid": "i", "chat_messages": [' + "1" * 5000 + "]}",
            '{"uuid": "e", "chat_messages": []}',
            *(json.dumps(one) for one in whole[20:]),
        ]
    )
    (tmp_path / "export.json").write_text(f"[{text}]", "utf-8")
    report = await bring(tmp_path / "export.json")
    assert report.counts["imported"] == 50
    assert report.counts["empty"] == 1
    refused = [one.reasons[0] for one in report.conversations if one.status == "refused"]
    assert [reason.split(":")[0] for reason in refused] == [
        "it is not valid JSON",
        "it has no list of messages (chat_messages)",
        "it is not valid JSON",
        "it is not a conversation but another value",
        "it is nested too deeply",
        "Exceeds the limit (4300 digits) for integer string conversion",
    ]


async def test_an_export_that_is_cut_gives_what_is_whole_and_says_so(
    bring: Import, tmp_path: Path
) -> None:
    data = json.dumps([talk(), {**talk(), "uuid": "c2"}])
    (tmp_path / "export.json").write_text(data[:-200], "utf-8")
    report = await bring(tmp_path / "export.json")
    assert [one.status for one in report.conversations] == ["imported", "refused"]
    assert report.conversations[1].reasons == ("the file ends in the middle of it",)


async def test_a_cut_zip_file_is_an_error_and_nothing_is_stored(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    whole = write_zip(tmp_path / "export.zip", {"conversations.json": [talk()]})
    whole.write_bytes(whole.read_bytes()[:-40])
    with pytest.raises(
        ImportUnreadable, match=r"damaged or incomplete ZIP file.*download it again"
    ):
        await bring(whole)
    assert snapshot(archive.folder) == {}


async def test_a_damaged_member_of_a_zip_file_is_refused(bring: Import, tmp_path: Path) -> None:
    members = {"conversations-000.json": [talk()], "conversations-001.json": [talk()] * 300}
    path = write_zip(tmp_path / "export.zip", members)
    data = bytearray(path.read_bytes())
    data[-1200:-1150] = bytes(50)
    place = data.rindex(b"conversations-001.json", 0, len(data) - 200)
    data[place + 200 : place + 230] = bytes(30)
    path.write_bytes(data)
    report = await bring(path)
    assert report.counts["imported"] == 1
    assert report.counts["refused"] >= 1
    assert any("damaged" in one.reasons[0] for one in report.conversations if one.reasons)


async def test_a_zip_bomb_is_refused_before_it_is_unpacked(bring: Import, tmp_path: Path) -> None:
    path = tmp_path / "bomb.zip"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("conversations.json", "w") as member,
    ):
        member.write(b'[{"chat_messages": ["')
        for _ in range(100):
            member.write(b"a" * 1024**2)
    with pytest.raises(ImportUnreadable, match=r"unpacks from .* as only harmful files do"):
        await bring(path)


async def test_names_that_lead_out_of_a_folder_are_not_read(bring: Import, tmp_path: Path) -> None:
    names = ("../conversations.json", "/conversations.json", "a\\..\\..\\conversations.json")
    path = write_zip(tmp_path / "export.zip", {name: [talk()] for name in names})
    with pytest.raises(ImportUnreadable, match="no conversations found"):
        await bring(path)


async def test_an_encrypted_zip_file_is_an_error(bring: Import, tmp_path: Path) -> None:
    path = write_zip(tmp_path / "export.zip", {"conversations.json": [talk()]})
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
        data[data.index(signature) + offset] |= 1
    path.write_bytes(data)
    with pytest.raises(ImportUnreadable, match=r"conversations\.json.*encrypted"):
        await bring(path)


@pytest.mark.parametrize(
    "data", [b"%PDF-1.7 no", b"", b"[]", b"{}", b'[{"a": 1}]', b"PK\3\4 no zip", b"\x00" * 100]
)
async def test_a_wrong_file_is_an_error(data: bytes, bring: Import, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_bytes(data)
    with pytest.raises(ImportUnreadable, match="wrong"):
        await bring(tmp_path / "wrong")


async def test_a_wrong_file_beside_a_right_one_is_named(bring: Import, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Hello", "utf-8")
    right = write_json(tmp_path / "export.json", [talk()])
    report = await bring(right, tmp_path / "notes.txt")
    assert {one.title: one.status for one in report.conversations} == {
        "Sails": "imported",
        "notes.txt": "refused",
    }


async def test_a_missing_file_is_an_error_before_anything_is_stored(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    with pytest.raises(ImportUnreadable, match=r"cannot read .*missing"):
        await bring(write_json(tmp_path / "export.json", [talk()]), tmp_path / "missing")
    assert snapshot(archive.folder) == {}


async def test_messages_in_a_circle_are_left_out_with_a_count(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    tree = talk()
    tree["chat_messages"] += [
        message("m7", "human", "a", "m8"),
        message("m8", "assistant", "b", "m7"),
        message("m9", "human", "c", "m9"),
    ]
    done = only(await bring(write_json(tmp_path / "export.json", [tree])))
    assert done.status == "partly"
    assert done.reasons == ("3 messages that lead to themselves",)
    assert len(await texts(archive, done.conversation)) == 4


async def test_a_message_whose_parent_is_missing_begins_a_branch(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    tree = talk()
    tree["chat_messages"][2]["parent_message_uuid"] = "gone"
    done = only(await bring(write_json(tmp_path / "export.json", [tree])))
    assert done.reasons == ("1 message whose parent is missing (now a beginning)",)
    assert len(done.forks) == 1
    assert (await texts(archive, done.conversation))[0] == "user: And upwind?"


async def test_a_tree_with_hundreds_of_branches_is_limited_and_counted(
    bring: Import, tmp_path: Path
) -> None:
    many = [
        {**message("m2", "assistant", f"Answer {number}.", "m1"), "uuid": f"a{number}"}
        for number in range(300)
    ]
    tree = conversation(message("m1", "human", "Why?"), *many)
    done = only(await bring(write_json(tmp_path / "export.json", [tree])))
    assert len(done.forks) == MOST_FORKS
    assert done.reasons == ("199 of 299 branches",)


async def test_a_long_conversation_is_imported_without_recursion(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    said = [
        {
            **message("m1", "human" if number % 2 else "assistant", f"{number}"),
            "uuid": f"n{number}",
            "parent_message_uuid": f"n{number - 1}",
        }
        for number in range(3000)
    ]
    done = only(await bring(write_json(tmp_path / "export.json", [conversation(*said)])))
    assert (done.status, done.messages) == ("imported", 3000)
    assert len(await texts(archive, done.conversation)) == 3000


async def test_a_cancelled_import_keeps_what_is_done_and_another_continues(
    archive: DirectoryArchive, tmp_path: Path
) -> None:
    many = [{**talk(), "uuid": f"c{number}"} for number in range(350)]
    path = write_json(tmp_path / "export.json", many)
    configuration = load_configuration(Places.under(tmp_path / "home"), environment={})
    seen: list[ImportProgress] = []

    def stop(progress: ImportProgress) -> None:
        seen.append(progress)
        if len(seen) == 105:
            work.cancel()

    work = asyncio.ensure_future(
        import_conversations(path, archive, configuration=configuration, progress=stop)
    )
    with pytest.raises(asyncio.CancelledError):
        await work
    kept = len(await archive.survey_identities())
    assert kept == len(seen)
    assert 105 <= kept < 350
    for identity in await archive.survey_identities():
        assert len(await texts(archive, identity)) == 4
    report = await import_conversations(path, archive, configuration=configuration)
    assert (report.counts["imported"], report.counts["unchanged"]) == (350 - kept, kept)
    shares = [one.done for one in seen]
    assert shares == sorted(shares)
    assert shares[-1] <= seen[-1].total == path.stat().st_size


async def test_an_archive_that_fails_stops_the_import(
    bring: Import, archive: DirectoryArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(conversations: Sequence[NewConversation]) -> None:
        raise StorageUnavailable("the database is away")

    monkeypatch.setattr(archive, "create_batch", fail)
    with pytest.raises(StorageUnavailable):
        await bring(write_json(tmp_path / "export.json", [talk()]))


class OneByOne(DirectoryArchive):
    """An archive without batches, as that of PostgreSQL is."""

    create_batch = None  # type: ignore[assignment]


async def test_an_archive_without_batches_gets_the_same_bytes(
    bring: Import, archive: DirectoryArchive, tmp_path: Path
) -> None:
    many = [{**talk(), "uuid": f"c{number}"} for number in range(20)]
    path = write_json(tmp_path / "export.json", many)
    await bring(path)
    other = OneByOne(tmp_path / "other")
    configuration = load_configuration(environment={})
    report = await import_conversations(path, other, configuration=configuration)
    assert report.counts["imported"] == 20
    await other.close()
    assert snapshot(other.folder) == snapshot(archive.folder)


async def test_a_conversation_that_appears_meanwhile_is_refused_and_the_others_are_made(
    bring: Import, archive: DirectoryArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [{**talk(), "uuid": "c1"}, {**talk(), "uuid": "c2"}]
    first = only(await bring(write_json(tmp_path / "one.json", names[:1])))

    async def survey() -> list[str]:
        return []

    monkeypatch.setattr(archive, "survey_identities", survey)
    report = await bring(write_json(tmp_path / "both.json", names))
    assert [one.status for one in report.conversations] == ["refused", "imported"]
    assert "already exists" in report.conversations[0].reasons[0]
    assert len(await texts(archive, first.conversation)) == 4


async def test_a_conversation_that_an_export_has_twice_is_imported_once(
    bring: Import, tmp_path: Path
) -> None:
    report = await bring(write_json(tmp_path / "export.json", [talk(), talk(longer=True)]))
    assert [one.status for one in report.conversations] == ["imported", "extended"]
    assert [one.messages for one in report.conversations] == [4, 2]


async def test_a_power_failure_leaves_conversations_complete_or_missing(
    bring: Import, archive: DirectoryArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has its name before the sync, and contents have theirs before conversations."""
    seen: list[set[str]] = []

    def look() -> None:
        seen.append({Path(name).parts[0] for name in snapshot(archive.folder)})

    monkeypatch.setattr("os.sync", look)
    monkeypatch.setattr(
        "vibe_llms.storage.batches.synchronise_folder",
        lambda folder: seen.append(
            {
                Path(name).parts[0]
                for name in snapshot(archive.folder)
                if not Path(name).parts[1].startswith(".")
            }
        ),
    )
    durable = DirectoryArchive(archive.folder)
    tree = talk()
    tree["chat_messages"][1]["content"][0]["text"] = "long " * 1000
    path = write_json(tmp_path / "export.json", [tree])
    await import_conversations(path, durable, configuration=load_configuration(environment={}))
    await durable.close()
    assert seen[1] == {"content"}
    assert seen[2] == {"content", "conversations"}


async def test_an_importer_that_fails_refuses_only_its_conversation(
    bring: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert = ClaudeAiImporter.convert

    def fail(self: ClaudeAiImporter, record: ExportedRecord, export: Export) -> Any:
        if record.value["uuid"] == "c2":
            raise ZeroDivisionError("by zero")
        return convert(self, record, export)

    monkeypatch.setattr(ClaudeAiImporter, "convert", fail)
    many = [{**talk(), "uuid": f"c{number}"} for number in range(3)]
    report = await bring(write_json(tmp_path / "export.json", many))
    assert [one.status for one in report.conversations] == ["imported", "imported", "refused"]
    assert "the importer 'claude-ai' failed: ZeroDivisionError: by zero" in str(
        report.conversations[2].reasons
    )


async def test_the_importer_of_another_package_is_a_row(
    archive: DirectoryArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = Path(__file__).parents[2] / "documentation" / "examples"
    monkeypatch.syspath_prepend(examples)
    rows = {"importers": {"notes": {"module": "notes_importer"}}}
    configuration = load_configuration(environment={}, overrides=rows)
    report = await import_conversations(
        examples / "notes.chat", archive, configuration=configuration
    )
    assert (only(report).source, only(report).title) == ("notes", "Tides")
    rows = {"importers": {"notes": {"module": "no_such_module"}}}
    configuration = load_configuration(environment={}, overrides=rows)
    with pytest.raises(RegistrationError, match="no_such_module"):
        await import_conversations(examples / "notes.chat", archive, configuration=configuration)


def test_a_session_imports_too_without_await(tmp_path: Path) -> None:
    path = write_json(tmp_path / "export.json", [talk()])
    with synchronous.open_session(home=tmp_path / "home") as session:
        report = session.import_conversations(path, options=ImportOptions(tags=["old"]))
        assert report.counts["imported"] == 1
        assert [one.name for one in session.survey_conversations(tag="old")] == ["Sails"]
