"""Context windows that refusals teach: what is learned, stored, shared, and forgotten."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.fakes.raw_server import RawServer
from tests.field.upstream import respond
from vibe_llms.base import files, folders
from vibe_llms.base.configuration import LOCAL, load_configuration
from vibe_llms.base.exceptions import ContextOverflow, RequestTooLarge, StorageError
from vibe_llms.conversations.settings import Services
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Notice, NoticeEvent, ignore_events
from vibe_llms.opening import open_session
from vibe_llms.providers import windows
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.windows import FILE_NAME, Windows
from vibe_llms.session.core import Session
from vibe_llms.session.parts import SessionParts
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.users import find_user_places
from vibe_llms.testing import scripted_model


def declare(declared: int | None = None, name: str = "qwen") -> Model:
    model = scripted_model([""], name=name)
    model.attributes = replace(model.attributes, context_tokens=declared)
    return model


def refuse(
    limit: int | None = None, tokens: int | None = None, words: str = "too long"
) -> ContextOverflow:
    error = ContextOverflow(words, provider="scripted")
    error.limit, error.tokens = limit, tokens
    return error


async def test_a_named_limit_is_the_window_of_all_later_sessions(tmp_path: Path) -> None:
    model = declare(131_072)
    store = Windows(tmp_path)
    assert await store.window_of(model) == 131_072
    assert await store.learn(model, refuse(limit=13_107), 20_000) == 13_107
    assert await store.window_of(model) == 13_107
    assert await Windows(tmp_path).window_of(model) == 13_107


async def test_a_refusal_without_a_limit_halves_what_was_measured() -> None:
    store, model = Windows(), declare(131_072)
    assert await store.learn(model, refuse(), 100_000) == 50_000
    assert await store.learn(model, refuse(), 50_000) == 25_000
    # The server's own count is better than an estimate.
    assert await store.learn(model, refuse(tokens=20_000), 1_000_000) == 10_000


async def test_a_request_that_was_really_too_long_teaches_nothing() -> None:
    """Servers that name no number also refuse what the declared window does not hold."""
    store, model = Windows(), declare(400_000)
    for tokens in (420_000, 401_000, 390_000):
        assert await store.learn(model, refuse(), tokens) is None
    assert await store.learn(model, refuse(), 100_000) == 50_000
    assert await store.learn(model, refuse(), 60_000) is None


async def test_a_window_is_never_inferred_below_1024() -> None:
    store, model = Windows(), declare()
    assert await store.learn(model, refuse(), 900) == 1_024
    assert await store.learn(model, refuse(), 900) is None


async def test_a_window_becomes_smaller_only() -> None:
    store, model = Windows(), declare(8_192)
    assert await store.learn(model, refuse(limit=8_192), 9_000) is None
    assert await store.learn(model, refuse(limit=4_096), 9_000) == 4_096
    assert await store.learn(model, refuse(limit=6_000), 9_000) is None
    assert await store.learn(model, refuse(), 9_000) is None
    assert await store.window_of(model) == 4_096


async def test_a_limit_too_small_for_a_window_is_not_taken_for_one() -> None:
    store, model = Windows(), declare(131_072)
    assert await store.learn(model, refuse(limit=10), 100_000) == 50_000


async def test_a_limit_in_bytes_teaches_nothing() -> None:
    store, model = Windows(), declare(131_072)
    error = RequestTooLarge("it has 40000000 bytes", provider="scripted")
    assert await store.learn(model, error, 100_000) is None
    assert await store.learn(model, refuse(), 0) is None
    assert await store.window_of(model) == 131_072


async def test_a_new_declaration_ends_a_learned_window(tmp_path: Path) -> None:
    store = Windows(tmp_path)
    await store.learn(declare(131_072), refuse(limit=8_192), 9_000)
    assert await store.window_of(declare(32_768)) == 32_768
    # Without a declaration, what was learned is better than nothing.
    assert await store.window_of(declare(None)) == 8_192
    assert await store.learn(declare(32_768), refuse(limit=16_384), 20_000) == 16_384
    assert await Windows(tmp_path).window_of(declare(32_768)) == 16_384


async def test_models_do_not_teach_each_other(tmp_path: Path) -> None:
    store = Windows(tmp_path)
    await store.learn(declare(131_072, "one"), refuse(limit=8_192), 9_000)
    assert await store.window_of(declare(131_072, "two")) == 131_072


async def test_another_process_is_heard(tmp_path: Path) -> None:
    here, there, model = Windows(tmp_path), Windows(tmp_path), declare(131_072)
    await here.survey()
    await there.learn(model, refuse(limit=8_192), 9_000)
    assert here.recall(model) == 131_072
    found = await here.find(model)
    assert found is not None
    assert found.tokens == 8_192
    assert await here.window_of(model) == 8_192
    assert here.recall(model) == 8_192
    await there.forget()
    await here.survey()
    assert await here.window_of(model) == 131_072


_LEARN = """
import asyncio, sys
from pathlib import Path
from tests.providers.test_windows import declare, refuse
from vibe_llms.providers.windows import Windows

async def learn() -> None:
    store = Windows(Path(sys.argv[1]))
    for number in range(20):
        await store.learn(declare(None, f"{sys.argv[2]}-{number}"), refuse(limit=4_096), 9_000)

asyncio.run(learn())
"""


async def test_two_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _LEARN, str(tmp_path)]
    workers = [subprocess.Popen([*command, name]) for name in ("one", "two", "three")]
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    learned = {one.model for one in await Windows(tmp_path).survey()}
    assert learned == {f"{name}-{n}" for name in ("one", "two", "three") for n in range(20)}


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[1]",
        b"\xff\xfe",
        b'{"windows": 1}',
        b'{"windows": [{"row": "scripted", "model": "qwen", "tokens": -5}]}',
        b'{"windows": [{"row": "scripted", "model": "qwen"}]}',
        b"[" * 100_000,
    ],
)
async def test_a_damaged_file_is_reported_once_and_replaced(tmp_path: Path, damage: bytes) -> None:
    told: list[Notice] = []
    (tmp_path / FILE_NAME).write_bytes(damage)
    store, model = Windows(tmp_path, told.append), declare(131_072)
    for _ in range(2):
        await store.survey()
        assert await store.window_of(model) == 131_072
    (notice,) = told
    assert notice.subject == "window"
    assert "is damaged" in notice.text
    assert FILE_NAME in notice.text
    assert await store.learn(model, refuse(limit=8_192), 9_000) == 8_192
    assert len(told) == 1
    assert await Windows(tmp_path).window_of(model) == 8_192


async def test_a_file_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    model = declare(131_072)
    await Windows(tmp_path).learn(model, refuse(limit=8_192), 9_000)
    (tmp_path / FILE_NAME).chmod(0o666)
    told: list[Notice] = []
    store = Windows(tmp_path, told.append)
    await store.survey()
    assert await store.window_of(model) == 131_072
    assert "others may write to it" in told[0].text


async def test_a_folder_in_which_nothing_can_be_written_is_reported_and_the_session_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_writing(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(folders, "write_new", refuse_writing)
    told: list[Notice] = []
    store, model = Windows(tmp_path, told.append), declare(131_072)
    assert await store.learn(model, refuse(limit=8_192), 9_000) == 8_192
    (notice,) = told
    assert "this session only" in notice.text
    assert "read-only" in notice.text
    await store.survey()
    assert await store.window_of(model) == 8_192
    assert [one.tokens for one in await store.survey()] == [8_192]
    assert [one.tokens for one in await store.forget()] == [8_192]
    assert await store.window_of(model) == 131_072


async def test_a_file_that_cannot_be_written_is_an_error_to_who_asks_to_forget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_writing(*_: object, **__: object) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    store, model = Windows(tmp_path), declare(131_072)
    await store.learn(model, refuse(limit=8_192), 9_000)
    monkeypatch.setattr(folders, "write_new", refuse_writing)
    with pytest.raises(StorageError, match="permission denied"):
        await store.forget()
    assert await store.window_of(model) == 8_192


async def test_the_folder_of_a_removed_user_does_not_reappear(tmp_path: Path) -> None:
    store, model = Windows(tmp_path / "users" / "anna", create=False), declare(131_072)
    assert await store.learn(model, refuse(limit=8_192), 9_000) == 8_192
    assert await store.window_of(model) == 8_192
    assert not [*tmp_path.iterdir()]


async def test_a_missing_folder_is_created_for_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    await Windows(folder).learn(declare(), refuse(limit=8_192), 9_000)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / FILE_NAME).stat().st_mode & 0o777 == 0o600


async def test_one_or_all_windows_are_forgotten(tmp_path: Path) -> None:
    store = Windows(tmp_path)
    for name in ("one", "two", "org/three"):
        await store.learn(declare(131_072, name), refuse(limit=8_192), 9_000)
    assert [one.address for one in await store.forget("scripted/org/three")] == [
        "scripted/org/three"
    ]
    assert await store.forget("scripted/four") == []
    assert [one.model for one in await Windows(tmp_path).survey()] == ["one", "two"]
    assert len(await store.forget()) == 2
    assert await Windows(tmp_path).survey() == []


async def test_an_entry_says_what_the_server_said_without_keys(tmp_path: Path) -> None:
    words = "the key sk-abcdefghijklmnopqrst accepts 8192\ntokens" + " and no more" * 50
    await Windows(tmp_path).learn(declare(131_072), refuse(limit=8_192, words=words), 9_000)
    (learned,) = await Windows(tmp_path).survey()
    assert learned.words.startswith("scripted: the key [secret] accepts 8192 tokens and no more")
    assert len(learned.words) == 200
    assert learned.declared == 131_072
    assert len(learned.created) == len("2026-11-27")
    assert "sk-abc" not in (tmp_path / FILE_NAME).read_text()


async def test_the_oldest_windows_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "MOST_WINDOWS", 2)
    store = Windows(tmp_path)
    for name in ("one", "two", "three"):
        await store.learn(declare(131_072, name), refuse(limit=8_192), 9_000)
    assert [one.model for one in await store.survey()] == ["three", "two"]


async def test_an_unchanged_file_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Windows(tmp_path)
    await store.learn(declare(), refuse(limit=8_192), 9_000)
    opened: list[object] = []
    read: Callable[..., int] = files.open_regular

    def watch(path: Path, *rest: int, **named: int) -> int:
        opened.append(path)
        return read(path, *rest, **named)

    monkeypatch.setattr(files, "open_regular", watch)
    await store.survey()
    await store.survey()
    assert not opened
    await Windows(tmp_path).survey()
    assert opened


#: What servers say whose model accepts a tenth of the declared tokens.
_REFUSALS = {
    "vllm": (
        "This model's maximum context length is 13107 tokens. However, you requested 20000 tokens.",
        13_107,
    ),
    "nameless": ("Prompt exceeds max length", 10_000),
}


@pytest.mark.parametrize("server", _REFUSALS)
async def test_a_declaration_ten_times_too_large_is_corrected_by_one_refusal(
    home: Path, server: str
) -> None:
    words, window = _REFUSALS[server]
    body = json.dumps({"error": {"message": words, "type": "invalid_request_error"}}).encode()
    async with RawServer(respond(400, "application/json", body)) as raw:
        row = {
            "module": "vibe_llms.providers.openai.chat_completions",
            "base-url": f"{raw.url}/v1",
            "credential": "none",
            "models": {"m": {"context-tokens": 131_072}},
        }
        configuration = {"providers": {"local": row}}
        async with open_session(configuration=configuration) as session:
            model = await session.access_model("local/m")
            assert await session.windows.window_of(model) == 131_072
            with pytest.raises(ContextOverflow) as caught:
                await model.converse([UserCanister.from_text("Hello")])
            assert await session.windows.learn(model, caught.value, 20_000) == window
        async with open_session(configuration=configuration) as session:
            model = await session.access_model("local/m")
            assert await session.windows.window_of(model) == window
            (learned,) = await session.windows.survey()
            assert (learned.address, learned.declared) == ("local/m", 131_072)
            assert words[:60] in learned.words
    assert [path.name for path in home.iterdir()] == [FILE_NAME]


async def test_another_server_of_the_same_row_has_not_taught_anything(home: Path) -> None:
    def declare_row(url: str) -> dict[str, object]:
        row = {
            "module": "vibe_llms.providers.openai.chat_completions",
            "base-url": url,
            "credential": "none",
            "models": {"m": {"context-tokens": 131_072}},
        }
        return {"providers": {"local": row}}

    async def ask(url: str, *, teach: int | None = None) -> int | None:
        async with open_session(configuration=declare_row(url)) as session:
            model = await session.access_model("local/m")
            if teach is not None:
                return await session.windows.learn(model, refuse(limit=teach), 20_000)
            return await session.windows.window_of(model)

    first = "http://me:hunter22@One.example:8000/v1/?token=abcdef"
    assert await ask(first, teach=8_192) == 8_192
    # Only the place counts, and nothing else of the address is stored.
    assert await ask("http://one.example:8000/v1") == 8_192
    stored = (home / FILE_NAME).read_text()
    assert '"server": "http://one.example:8000/v1"' in stored
    assert not [word for word in ("me:", "hunter22", "abcdef", "token=") if word in stored]
    for other in (
        "http://one.example:9000/v1",
        "https://one.example:8000/v1",
        "http://one.example:8000/v2",
        "http://two.example:8000/v1",
        "http://[",
    ):
        assert await ask(other) == 131_072
    # A larger window is learned from the other server.
    assert await ask("http://two.example/v1", teach=16_384) == 16_384
    assert await ask("http://two.example/v1") == 16_384
    assert await ask(first) == 131_072


async def test_users_of_a_server_do_not_teach_each_other(home: Path) -> None:
    model = declare(131_072)
    configuration = load_configuration()
    (home / "users" / "anna").mkdir(parents=True)

    def open_for(user: str) -> Session:
        places = find_user_places(configuration.places, user)
        own = replace(configuration, places=places)
        return Session(SessionParts(configuration=own, archive=DirectoryArchive(home), user=user))

    async with open_for("anna") as session:
        assert await session.windows.learn(model, refuse(limit=8_192), 9_000) == 8_192
    async with open_for("anna") as session:
        assert await session.windows.window_of(model) == 8_192
    for other in ("ben", LOCAL):
        async with open_for(other) as session:
            assert await session.windows.window_of(model) == 131_072
    async with open_for("ben") as session:
        assert await session.windows.learn(model, refuse(limit=4_096), 9_000) == 4_096
        assert await session.windows.window_of(model) == 4_096
    # Without a folder of the user, nothing is stored.
    assert [path.name for path in (home / "users").iterdir()] == ["anna"]


async def test_services_without_a_session_remember_windows_in_memory(home: Path) -> None:
    async def access_model(_: str) -> Model:
        return declare()

    services = Services(
        event_handler=ignore_events,
        access_model=access_model,
        access_controls=lambda _: Controls(),
    )
    await services.access_windows().learn(declare(), refuse(limit=8_192), 9_000)
    assert await services.access_windows().window_of(declare()) == 8_192
    assert not home.exists()


async def test_a_session_reports_what_it_cannot_read(home: Path) -> None:
    home.mkdir()
    (home / FILE_NAME).write_text("{")
    told: list[object] = []
    async with open_session(event_handler=told.append) as session:
        assert not told
        assert await session.windows.window_of(declare(131_072)) == 131_072
    (event,) = told
    assert isinstance(event, NoticeEvent)
    assert event.notice.subject == "window"
