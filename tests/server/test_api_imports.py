"""Imports over HTTP: uploads, dry runs, progress, cancelling, and what is left after a kill."""

from __future__ import annotations

import asyncio
import json
import os
import zipfile
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from tests.fakes.postgres import temporary_database
from tests.importing.chatgpt import PIXEL, conversation, node, text
from tests.server.conftest import Served, serving
from vibe_llms.base.configuration import Places, load_configuration
from vibe_llms.importing.reports import STATUSES, ImportReport, ImportReportDocument
from vibe_llms.server import imports, postgres_imports
from vibe_llms.server.import_records import MOST_RECORDS, find_imports, held_folder
from vibe_llms.session.core import Session
from vibe_llms.storage.backends import open_backend
from vibe_llms.storage.user_stores import produce_users
from vibe_llms.storage.users import find_user_places

_ENDED = ("completed", "failed", "cancelled", "interrupted")


def talk(number: int, title: str = "", **others: Any) -> dict[str, Any]:
    """A conversation of ChatGPT with two messages."""
    question = text(f"Question {number}?")
    return conversation(
        node(f"q{number}", "client-created-root", "user", question),
        node(f"a{number}", f"q{number}", "assistant", text(f"Answer {number}.")),
        current=f"a{number}",
        title=title or f"Talk {number}",
        conversation_id=f"c{number}",
        id=f"c{number}",
        **others,
    )


def lossy(number: int) -> dict[str, Any]:
    """A conversation whose picture is missing."""
    picture = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://file-None"}
    return conversation(
        node(f"q{number}", "client-created-root", "user", text("Look:", picture)),
        current=f"q{number}",
        title=f"Lossy {number}",
        conversation_id=f"c{number}",
        id=f"c{number}",
    )


def pack(members: Mapping[str, bytes | str]) -> bytes:
    """A ZIP file."""
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def export(*talks: dict[str, Any]) -> bytes:
    """An export of ChatGPT."""
    return pack({"conversations.json": json.dumps(talks), "file-1.png": PIXEL})


async def upload(client: httpx2.AsyncClient, data: bytes, **query: Any) -> Any:
    """Upload a file, and return the import."""
    made = await client.post("/api/imports", params={"name": "export.zip", **query}, content=data)
    assert made.status_code == 201, made.text
    return made.json()


async def wait(client: httpx2.AsyncClient, one: Any) -> Any:
    """Wait until an import has ended."""
    while True:
        shown = (await client.get(f"/api/imports/{one['id']}")).json()
        if shown["state"] in _ENDED:
            return shown
        await asyncio.sleep(0.02)


async def bring(client: httpx2.AsyncClient, data: bytes, **query: Any) -> Any:
    """Import a file, and wait for the end."""
    return await wait(client, await upload(client, data, **query))


async def titles(client: httpx2.AsyncClient) -> list[str]:
    """Titles of all conversations."""
    listed = (await client.get("/api/conversations")).json()["conversations"]
    return sorted(one["title"] for one in listed)


def survey_uploads(served: Served, user: str = "ada") -> list[Path]:
    """Uploaded files on the disk of the server, which may be deleting them."""
    top = find_imports(find_user_places(served.configuration.places, user))
    found = [(Path(folder), files) for folder, _, files in os.walk(top)]
    return [folder / name for folder, files in found if folder.name == "upload" for name in files]


def counts(**found: int) -> dict[str, int]:
    """Counts of a report."""
    return {**dict.fromkeys(STATUSES, 0), **found}


class Gate:
    """Holds imports when everything is imported, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        found = Session.import_conversations

        async def work(session: Session, path: Path, **given: Any) -> ImportReport:
            report = await found(session, path, **given)
            self.reached.set()
            await self.opened.wait()
            return report

        monkeypatch.setattr(Session, "import_conversations", work)


@pytest.fixture
async def ada(served: Served) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a user."""
    async with served.http("ada") as client:
        yield client


async def test_a_dry_run_is_previewed_and_then_imported(
    served: Served, ada: httpx2.AsyncClient
) -> None:
    data = export(talk(1), lossy(2), {"title": "Broken", "mapping": 7})
    one = await bring(ada, data, dry_run="true")
    assert await titles(ada) == []
    report = (await ada.get(f"/api/imports/{one['id']}/report")).json()
    expected = counts(imported=1, partly=1, refused=1)
    assert (one["state"], one["ready"], one["dry_run"]) == ("completed", True, True)
    assert (one["counts"], one["conversations"], one["sources"]) == (expected, 3, ["chatgpt"])
    assert one["received"] == len(data)
    assert (one["oldest"][:10], one["newest"][:10]) == ("2025-08-24", "2025-08-24")
    assert (report["counts"], report["dry_run"], report["interrupted"]) == (expected, True, False)
    assert len(survey_uploads(served)) == 1
    started = await ada.post(f"/api/imports/{one['id']}/start")
    assert started.status_code == 202
    (record,) = served.configuration.places.data.rglob(f"imports/{one['id']}/record.json")
    assert json.loads(record.read_text())["dry_run"] is False
    done = await wait(ada, one)
    assert (done["dry_run"], done["ready"], done["expected"]) == (False, False, 3)
    assert (done["counts"], done["done"]) == (expected, done["total"])
    assert await titles(ada) == ["Lossy 2", "Talk 1"]
    assert survey_uploads(served) == []
    problems = (await ada.get(f"/api/imports/{one['id']}/report?problems=true")).json()
    found = {each["title"]: each["reasons"] for each in problems["conversations"]}
    assert found.keys() == {"Lossy 2", "Broken"}
    assert all(found.values())
    again = await ada.post(f"/api/imports/{one['id']}/start")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "import_not_ready")
    same = await bring(ada, export(talk(1), lossy(2)))
    assert same["counts"] == counts(unchanged=2)
    listed = (await ada.get("/api/imports")).json()
    assert [each["id"] for each in listed["imports"]] == [same["id"], one["id"]]
    assert listed["most_bytes"] == 4 * 1024**3


async def test_the_report_is_what_the_command_prints(
    served: Served, ada: httpx2.AsyncClient, tmp_path: Path
) -> None:
    one = await bring(ada, export(talk(1), talk(2)), match="talk 2", tag="old", since="2020-01-01")
    report = (await ada.get(f"/api/imports/{one['id']}/report")).json()
    (told,) = report["conversations"]
    shown = (await ada.get(f"/api/conversations/{told['conversation']}")).json()
    late = await bring(ada, export(talk(1)), since="2030-01-01")
    assert report.keys() == {
        *("counts", "skipped", "messages", "dry_run", "interrupted", "conversations")
    }
    assert (report["skipped"], report["messages"], told["source"]) == (1, 2, "chatgpt")
    assert (told["id"], told["title"], told["status"]) == ("c2", "Talk 2", "imported")
    assert shown["tags"] == ["old"]
    assert (late["skipped"], late["conversations"]) == (1, 0)


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (b"", "empty_file", "empty"),
        (b"Dear diary", "", "not an export of a known program"),
        (export(talk(1))[:-30], "", "damaged or incomplete ZIP file"),
        (pack({"conversations.json": b"[" + b" " * (80 * 1024**2) + b"]"}), "", "unpacks from"),
    ],
    ids=["empty", "unknown", "truncated", "bomb"],
)
async def test_a_file_that_is_no_export_is_refused_without_a_trace(
    served: Served, ada: httpx2.AsyncClient, data: bytes, code: str, words: str
) -> None:
    made = await ada.post("/api/imports?name=export.zip", content=data)
    if code:
        assert (made.status_code, made.json()["error"]["code"]) == (400, code)
        told = made.text
    else:
        one = await wait(ada, made.json())
        told = one["error"]
        assert (one["state"], one["ready"]) == ("failed", False)
        assert "export.zip" in told
    assert words in told
    assert str(served.configuration.places.data) not in told
    assert survey_uploads(served) == []
    assert (await bring(ada, export(talk(1))))["state"] == "completed"


@pytest.mark.parametrize("declared", [True, False])
async def test_a_file_that_is_too_large_is_refused(home: Path, declared: bool) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(300):
            yield b"x" * 10_000

    async with (
        serving(home, server={"import-bytes": 2_000_000}) as served,
        served.http("ada") as ada,
    ):
        content: Any = b"x" * 2_000_001 if declared else parts()
        made = await ada.post("/api/imports", content=content)
        assert (made.status_code, made.json()["error"]["code"]) == (413, "request_too_large")
        assert "2,000,000 bytes (import-bytes)" in made.text
        assert survey_uploads(served) == []
        assert (await ada.get("/api/imports")).json()["imports"] == []
        assert (await bring(ada, export(talk(1))))["state"] == "completed"


async def test_a_large_upload_is_never_in_memory_as_a_whole(
    served: Served, ada: httpx2.AsyncClient
) -> None:
    # Larger than any body that the server keeps in memory.
    size = served.running._core.settings.body_bytes + 1

    async def parts() -> AsyncIterator[bytes]:
        yield b"["
        for _ in range(0, size, 1 << 20):
            yield b" " * (1 << 20)
        yield json.dumps(talk(1)).encode() + b"]"

    made = await ada.post("/api/imports", content=parts())
    done = await wait(ada, made.json())
    assert done["counts"] == counts(imported=1)
    assert done["received"] > size


async def test_names_of_files_are_not_paths(served: Served, ada: httpx2.AsyncClient) -> None:
    for name in ("../../../evil.json", "/etc/passwd", "..", "a" * 255, "ä\n\t:<b>.json"):
        data = json.dumps([talk(1)]).encode()
        one = await bring(ada, data, name=name)
        assert (one["state"], one["name"]) == ("completed", name)
    assert not [*served.configuration.places.data.rglob("evil*")]
    refused = await ada.post("/api/imports", params={"name": "a" * 256}, content=b"x")
    assert refused.status_code == 400


async def test_a_client_that_goes_leaves_nothing(served: Served, ada: httpx2.AsyncClient) -> None:
    arrived = asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        yield export(talk(1))
        arrived.set()
        await asyncio.Event().wait()

    uploading = asyncio.create_task(ada.post("/api/imports", content=parts()))
    await arrived.wait()
    async with served.http("ada") as other:
        while not survey_uploads(served):
            await asyncio.sleep(0.01)
        (one,) = (await other.get("/api/imports")).json()["imports"]
        second = await other.post("/api/imports", content=export(talk(1)))
        uploading.cancel()
        await asyncio.gather(uploading, return_exceptions=True)
        while (await other.get("/api/imports")).json()["imports"]:
            await asyncio.sleep(0.01)
        assert one["state"] == "uploading"
        assert (second.status_code, second.json()["error"]["code"]) == (409, "import_in_progress")
        assert survey_uploads(served) == []
        assert (await bring(other, export(talk(1))))["state"] == "completed"


async def test_an_upload_is_cancelled(served: Served, ada: httpx2.AsyncClient) -> None:
    refused = asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        yield b"["
        # The server answers although nothing arrives.
        await refused.wait()

    uploading = asyncio.create_task(ada.post("/api/imports", content=parts()))
    async with served.http("ada") as other:
        while not (listed := (await other.get("/api/imports")).json()["imports"]):
            await asyncio.sleep(0.01)
        await other.post(f"/api/imports/{listed[0]['id']}/cancel")
        while (await other.get("/api/imports")).json()["imports"]:
            await asyncio.sleep(0.01)
        refused.set()
        made = await uploading
        assert (made.status_code, made.json()["error"]["code"]) == (409, "import_cancelled")
        assert survey_uploads(served) == []


async def test_nothing_that_arrives_for_some_time_ends_an_upload(home: Path) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"["
        await asyncio.sleep(0.4)
        yield b" "
        await asyncio.sleep(1.5)

    async with serving(home, server={"receive-seconds": 0.6}) as served, served.http("ada") as ada:
        made = await ada.post("/api/imports", content=parts())
        assert (made.status_code, survey_uploads(served)) == (408, [])


async def test_an_import_is_cancelled_and_what_was_imported_stays(
    served: Served, ada: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    one = await upload(ada, export(talk(1), talk(2)))
    await gate.reached.wait()
    second = await ada.post("/api/imports", content=export(talk(3)))
    refused = await ada.delete(f"/api/imports/{one['id']}")
    early = (await ada.get(f"/api/imports/{one['id']}/report")).json()
    running = (await ada.get(f"/api/imports/{one['id']}")).json()
    await ada.post(f"/api/imports/{one['id']}/cancel")
    done = await wait(ada, one)
    report = (await ada.get(f"/api/imports/{one['id']}/report")).json()
    again = await ada.post(f"/api/imports/{one['id']}/cancel")
    assert (second.status_code, second.json()["error"]["code"]) == (409, "import_in_progress")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "import_active")
    assert (running["state"], running["conversations"]) == ("running", 2)
    assert (early["counts"], early["conversations"]) == (counts(imported=2), [])
    assert (done["state"], done["counts"]) == ("cancelled", counts(imported=2))
    assert (report["interrupted"], len(report["conversations"])) == (True, 2)
    assert (again.status_code, again.json()["state"]) == (200, "cancelled")
    assert await titles(ada) == ["Talk 1", "Talk 2"]
    assert survey_uploads(served) == []


async def test_the_file_of_a_dry_run_is_deleted(
    served: Served, ada: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await bring(ada, export(talk(1)), dry_run="true")
    second = await bring(ada, export(talk(2)), dry_run="true")
    assert len(survey_uploads(served)) == 1
    assert (await wait(ada, first))["ready"] is False
    assert (await ada.post(f"/api/imports/{first['id']}/start")).status_code == 409
    cancelled = (await ada.post(f"/api/imports/{second['id']}/cancel")).json()
    assert (cancelled["state"], survey_uploads(served)) == ("cancelled", [])
    third = await bring(ada, export(talk(3)), dry_run="true")
    assert (await ada.delete(f"/api/imports/{third['id']}")).status_code == 200
    assert survey_uploads(served) == []
    monkeypatch.setattr(imports, "_KEPT_SECONDS", 0.0)
    monkeypatch.setattr(imports, "_BEAT_SECONDS", 0.01)
    fourth = await bring(ada, export(talk(4)), dry_run="true")
    while survey_uploads(served):
        await asyncio.sleep(0.01)
    assert (await ada.post(f"/api/imports/{fourth['id']}/start")).status_code == 409
    kept = [one["id"] for one in (await ada.get("/api/imports")).json()["imports"]]
    assert kept == [fourth["id"], second["id"], first["id"]]


async def test_old_imports_are_forgotten(ada: httpx2.AsyncClient) -> None:
    made = [await bring(ada, export(talk(1))) for _ in range(MOST_RECORDS + 2)]
    kept = (await ada.get("/api/imports")).json()["imports"]
    assert [one["id"] for one in kept] == [one["id"] for one in made[:1:-1]]


async def test_a_server_that_ends_leaves_an_interrupted_import(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        gate = Gate(patch)
        async with serving(home) as served, served.http("ada") as ada:
            gate.opened.set()
            one = await bring(ada, export(talk(1), talk(2)), dry_run="true")
            gate.opened.clear()
            gate.reached.clear()
            await ada.post(f"/api/imports/{one['id']}/start")
            await gate.reached.wait()
            key = served.keys["ada"]
    async with serving(home) as served:
        served.keys["ada"] = key
        async with served.http("ada") as ada:
            shown = await wait(ada, one)
            assert (shown["state"], shown["counts"]) == ("interrupted", counts(imported=2))
            report = (await ada.get(f"/api/imports/{one['id']}/report")).json()
            assert (report["interrupted"], report["dry_run"], report["messages"]) == (
                True,
                False,
                4,
            )
            assert survey_uploads(served) == []
            again = await bring(ada, export(talk(1), talk(2), talk(3)))
            assert again["counts"] == counts(imported=1, unchanged=2)
            assert await titles(ada) == ["Talk 1", "Talk 2", "Talk 3"]


async def test_what_a_killed_server_has_left_is_deleted(home: Path) -> None:
    places = Places.under(home)
    users = [places, find_user_places(places, "ada")]
    left = imports.ImportDescription(
        id="1", name="x.zip", created=datetime.now(UTC), dry_run=False, state="running"
    )
    dry = ImportReportDocument.from_report(ImportReport(conversations=(), skipped=7, dry_run=True))
    for one in users:
        (find_imports(one) / "1" / "upload").mkdir(parents=True)
        (find_imports(one) / "1" / "upload" / "x.zip").write_bytes(b"x")
        (find_imports(one) / "1" / "record.json").write_bytes(msgspec.json.encode(left))
        (find_imports(one) / "1" / "report.json").write_bytes(msgspec.json.encode(dry))
    (find_imports(users[0]) / "2" / "upload").mkdir(parents=True)
    with held_folder(find_imports(users[0]), "3") as held:
        # Another server works on it.
        (held / "upload").mkdir()
        async with serving(home) as served, served.http("ada") as ada:
            (shown,) = (await ada.get("/api/imports")).json()["imports"]
            assert (shown["state"], survey_uploads(served)) == ("interrupted", [])
            report = (await ada.get("/api/imports/1/report")).json()
            assert (report["interrupted"], report["dry_run"], report["skipped"]) == (True, False, 0)
            kept = sorted(one.name for one in find_imports(users[0]).iterdir())
            assert (kept, (held / "upload").exists()) == (["1", "3"], True)
            assert not (find_imports(users[0]) / "1" / "upload").exists()
    assert not held.exists()


async def test_a_record_that_is_not_whole_is_skipped(
    served: Served, ada: httpx2.AsyncClient
) -> None:
    one = await bring(ada, export(talk(1)))
    (record,) = served.configuration.places.data.rglob(f"imports/{one['id']}/record.json")
    record.write_bytes(b"\0\0")
    assert (await ada.get("/api/imports")).json()["imports"] == []
    assert (await bring(ada, export(talk(1))))["state"] == "completed"


async def test_a_fault_of_the_server_is_logged_and_not_told(
    served: Served, ada: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any, **__: Any) -> ImportReport:
        raise ZeroDivisionError("of /a/path")

    monkeypatch.setattr(Session, "import_conversations", fail)
    one = await bring(ada, export(talk(1)))
    assert (one["state"], one["error"]) == ("failed", "The server failed.")
    assert "an import failed" in served.log
    assert survey_uploads(served) == []


async def test_changes_tell_of_imports(ada: httpx2.AsyncClient) -> None:
    found: list[dict[str, Any]] = []
    async with ada.stream("GET", "/api/changes") as stream:
        lines = stream.aiter_lines()
        async for line in lines:
            if line.startswith("data: "):
                break
        one = await bring(ada, export(talk(1)))
        async for line in lines:
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
                if found[-1].get("state") == "completed":
                    break
    assert {each["change"] for each in found} == {"conversation", "import"}
    assert {each["id"] for each in found if each["change"] == "import"} == {one["id"]}


async def test_imports_of_other_users_wait_or_run_on_their_own(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    users = [f"user{number}" for number in range(imports.PARALLEL + 1)]
    made = []
    for user in users:
        async with served.http(user) as client:
            made.append(await upload(client, export(talk(1))))
    await gate.reached.wait()
    async with served.http(users[-1]) as client:
        assert (await client.get(f"/api/imports/{made[-1]['id']}")).json()["state"] == "waiting"
        assert (await client.get(f"/api/imports/{made[0]['id']}")).status_code == 404
        gate.opened.set()
        assert (await wait(client, made[-1]))["state"] == "completed"
        assert await titles(client) == ["Talk 1"]


async def test_a_login_of_the_page_imports_and_other_pages_do_not(served: Served) -> None:
    key = served.key("ada")
    async with httpx2.AsyncClient(base_url=served.url) as browser:
        own = {"origin": served.url, "sec-fetch-site": "same-origin"}
        await browser.post("/api/login", json={"key": key}, headers=own)
        foreign = {"origin": "https://evil.test", "sec-fetch-site": "cross-site"}
        data = export(talk(1))
        for headers in (foreign, {}):
            refused = await browser.post("/api/imports", content=data, headers=headers)
            assert refused.status_code == 403
        made = await browser.post("/api/imports", content=data, headers=own)
        assert made.status_code == 201
        await wait(browser, made.json())
    assert survey_uploads(served) == []


async def test_servers_of_a_database_share_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "_BEAT_SECONDS", 0.02)
    monkeypatch.setattr(postgres_imports, "_SILENT_SECONDS", 3.0)
    with temporary_database() as database:
        archive = {"module": "vibe_llms.storage.postgres", "dsn": database.dsn}
        places = Places.under(tmp_path / "one")
        backend = open_backend(load_configuration(places, overrides={"archive": archive}))
        key = await produce_users(backend).add("ada")
        await backend.close()
        async with (
            serving(tmp_path / "one", archive=archive) as one,
            serving(tmp_path / "two", archive=archive) as two,
        ):
            one.keys["ada"] = two.keys["ada"] = key
            async with one.http("ada") as here, two.http("ada") as there:
                await check_sharing(here, there, monkeypatch)
                # As after a kill, its record is not updated any more.
                gate = Gate(monkeypatch)
                killed = await upload(here, export(talk(4)))
                await gate.reached.wait()
                await asyncio.sleep(0.1)
                job = one.running._core.spaces._spaces["ada"].imports.job
                assert job is not None
                assert job._beating is not None
                job._beating.cancel()
                shown = await wait(there, killed)
                assert (shown["state"], shown["counts"]) == ("interrupted", counts(imported=1))
                gate.opened.set()
                again = await bring(there, export(talk(4)))
                assert again["counts"] == counts(unchanged=1)


async def test_servers_of_a_home_share_imports(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "_BEAT_SECONDS", 0.02)
    async with serving(home) as one, serving(home) as two:
        two.keys["ada"] = one.key("ada")
        async with one.http("ada") as here, two.http("ada") as there:
            await check_sharing(here, there, monkeypatch)


async def check_sharing(
    here: httpx2.AsyncClient, there: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One server has imports, and another shows, starts, cancels, and deletes them."""
    dry = await bring(here, export(talk(1), lossy(2)), dry_run="true")
    await asyncio.sleep(0.1)
    assert (await wait(there, dry))["ready"] is True
    assert (await there.post(f"/api/imports/{dry['id']}/start")).status_code == 202
    while (done := await wait(there, dry))["dry_run"]:
        await asyncio.sleep(0.02)
    assert (done["state"], done["counts"]) == ("completed", counts(imported=1, partly=1))
    report = (await there.get(f"/api/imports/{dry['id']}/report")).json()
    assert len(report["conversations"]) == 2
    assert await titles(there) == ["Lossy 2", "Talk 1"]
    with monkeypatch.context() as patch:
        gate = Gate(patch)
        running = await upload(here, export(talk(3)))
        await gate.reached.wait()
        await asyncio.sleep(0.1)
        second = await there.post("/api/imports", content=export(talk(3)))
        assert (second.status_code, second.json()["error"]["code"]) == (409, "import_in_progress")
        await there.post(f"/api/imports/{running['id']}/cancel")
        assert (await wait(there, running))["state"] == "cancelled"
    removed = await there.delete(f"/api/imports/{running['id']}")
    assert removed.status_code == 200
    assert (await here.get(f"/api/imports/{running['id']}")).status_code == 404
