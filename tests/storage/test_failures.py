"""Any failed system call is survivable. S7 of the promises."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.faults.archives import begin, lines_of, open_all, produce_details, say
from tests.faults.calls import ERRORS, SystemCalls
from tests.faults.workers import SHARED
from vibe_llms.base import folders as files
from vibe_llms.base.exceptions import StorageError, VibeLlmsError
from vibe_llms.conversations.history import History
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    Ending,
    InvocationCanister,
    ResultCanister,
    UserCanister,
)
from vibe_llms.messages.contents import ImageContent, Reference, TextualContent
from vibe_llms.messages.events import Notice
from vibe_llms.storage import appending
from vibe_llms.storage.archive import DirectoryArchive

Rounds = Callable[[int, int], int]
PICTURE = b"\x89PNG" + bytes(range(256)) * 40


class Scenario:
    """A turn with a picture and a tool call, a rename and a fork; each step tried until it works.

    Every failure must be an error of ours, and the same step must work once the fault is gone.
    """

    def __init__(self, folder: Path) -> None:
        self.archive = DirectoryArchive(folder)
        self.history = History.begin(self.archive, name="a name", model="scripted/demo")
        self.said: list[Canister] = []
        self.failures: list[StorageError] = []
        self.notices: list[Notice] = []
        self.twin: History | None = None

    async def run(self) -> None:
        picture = ImageContent(PICTURE, "image/png")
        await self.append(UserCanister((TextualContent("Look: " + "long " * 500), picture)))
        call = InvocationCanister(name="look", reply="r", ending=Ending("invocations"))
        await self.append(AssistantCanister.from_text("I look."), call)
        await self.append(
            ResultCanister((TextualContent("seen " * 1_000),), invocation=call.identity)
        )
        await self.append(AssistantCanister.from_text("A picture."))
        await self.attempt(lambda: self.history.revise(name="another name"))
        await self.attempt(self.fork)

    async def append(self, *canisters: Canister) -> None:
        self.said += canisters
        await self.attempt(lambda: self.history.append(canisters, self.notices.append))

    async def fork(self) -> None:
        self.twin = await self.history.fork(2)

    async def attempt(self, step: Callable[[], Awaitable[None]]) -> None:
        failure: VibeLlmsError | None = None
        try:
            await step()
        except VibeLlmsError as error:
            failure = error
        if failure is not None:
            assert isinstance(failure, StorageError), repr(failure)
            assert failure.path, "it says which file is concerned"
            self.failures.append(failure)
            await step()

    def check(self, failed: str) -> None:
        """Nothing is damaged, lost or there twice; what failed was reported."""
        opened = open_all(DirectoryArchive(self.archive.folder))
        assert self.twin is not None
        assert set(opened) >= {self.history.identity, self.twin.identity}
        held = opened[self.history.identity]
        assert [one.identity for one in held.canisters] == [one.identity for one in self.said]
        assert held.details.name == "another name"
        assert not held.notices
        forked = opened[self.twin.identity]
        assert forked.canisters == held.canisters[:2]
        if not self.notices:
            assert set(opened) == {self.history.identity, self.twin.identity}
        match held.canisters[0]:
            case UserCanister(
                contents=(
                    TextualContent(data=Reference() as text),
                    ImageContent(data=Reference() as image),
                )
            ):
                assert self.archive.contents.load(image) == PICTURE
                assert self.archive.contents.load(text).decode() == "Look: " + "long " * 500
            case other:
                raise AssertionError(other)
        assert len(self.failures) <= 1
        if failed in ("write", "fdatasync", "fsync", "rename", "mkdir"):
            assert len(self.failures) == 1, f"{failed} failed in silence"


async def run_with_failure(folder: Path, at: int | None, error: int) -> SystemCalls:
    scenario = Scenario(folder)
    with SystemCalls(fail_at=at, error=error, syncing=False) as calls:
        await scenario.run()
    scenario.check(calls.failed)
    return calls


async def check_every_call(folder: Path, kinds: int) -> None:
    total = len((await run_with_failure(folder / "whole", None, 0)).names)
    assert total > 60
    for at in range(total):
        for kind in range(kinds):
            error = ERRORS[(at + kind) % len(ERRORS)]
            calls = await run_with_failure(folder / f"{at}-{error}", at, error)
            assert calls.failed


@pytest.mark.storm
async def test_a_failing_system_call_loses_nothing_and_the_next_try_works(
    tmp_path: Path, rounds: Rounds
) -> None:
    await check_every_call(tmp_path, rounds(1, len(ERRORS)))


async def test_that_check_sees_a_failure_that_is_swallowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_all = files.write_all

    def write_anyway(descriptor: int, data: bytes) -> None:
        try:
            write_all(descriptor, data)
        except OSError:
            return

    monkeypatch.setattr(appending, "write_all", write_anyway)
    with pytest.raises(AssertionError):
        await check_every_call(tmp_path, 1)


async def test_that_check_sees_a_failure_that_leaves_half_of_a_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DirectoryArchive, "_discard", lambda self, path: None)
    with pytest.raises((AssertionError, StorageError)):
        await check_every_call(tmp_path, 1)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (errno.ENOSPC, "the disk is full; free some space"),
        (errno.EDQUOT, "your quota is used up"),
        (errno.EROFS, "read-only; set VIBE_LLMS_HOME"),
        (errno.EACCES, "permission denied; fix the permissions"),
        (errno.EPERM, "permission denied; fix the permissions"),
        (errno.EIO, "the disk reported an error"),
        (errno.EMFILE, "this process has too many open files"),
        (errno.ENOLCK, "cannot lock a folder"),
        (errno.ENXIO, os.strerror(errno.ENXIO)),
    ],
)
def test_an_error_of_the_system_says_what_to_do(tmp_path: Path, error: int, advice: str) -> None:
    archive = begin(tmp_path)
    before = lines_of(archive).read_bytes()
    with (
        SystemCalls() as calls,
        pytest.raises(StorageError, match=advice) as raised,
        FailingName("write", error),
    ):
        archive.append_now(SHARED, say("further"), None)
    assert raised.value.path == str(lines_of(archive).parent)
    assert isinstance(raised.value.__cause__, OSError)
    assert calls.count("ftruncate") == 1
    assert lines_of(archive).read_bytes() == before
    archive.append_now(SHARED, say("further"), None)
    assert len(archive.restore_now(SHARED).canisters) == 2


class FailingName:
    """Every call of one name fails, for every caller."""

    def __init__(self, name: str, error: int) -> None:
        self._name, self._error = name, error
        self._original = getattr(os, name)

    def __enter__(self) -> None:
        setattr(os, self._name, self._fail)

    def __exit__(self, *_: object) -> None:
        setattr(os, self._name, self._original)

    def _fail(self, *_: object, **__: object) -> None:
        raise OSError(self._error, os.strerror(self._error))


def test_a_disk_that_stays_full_takes_nothing_and_harms_nothing(tmp_path: Path) -> None:
    archive = begin(tmp_path)
    before = lines_of(archive).read_bytes()
    for _ in range(5):
        with FailingName("write", errno.ENOSPC), pytest.raises(StorageError, match="full"):
            archive.append_now(SHARED, say("further"), None)
        with FailingName("write", errno.ENOSPC), pytest.raises(StorageError, match="full"):
            archive.create_now("other", produce_details(), say("first"))
        with FailingName("write", errno.ENOSPC), pytest.raises(StorageError, match="full"):
            archive.fork_now(SHARED, "twin", produce_details())
        with FailingName("write", errno.ENOSPC), pytest.raises(StorageError, match="full"):
            archive.contents.put(b"data")
    assert lines_of(archive).read_bytes() == before
    assert [*open_all(archive)] == [SHARED]
    assert not [*archive.survey_remains()]


def test_an_end_that_cannot_be_taken_back_is_healed_by_the_next_writer(tmp_path: Path) -> None:
    archive = begin(tmp_path)
    write, said = os.write, say("x" * 100)

    def write_half(descriptor: int, data: bytes) -> int:
        if len(data) < 100:
            raise OSError(errno.ENOSPC, "full")
        return write(descriptor, data[:50])

    os.write = write_half  # type: ignore[assignment]
    try:
        with FailingName("ftruncate", errno.EIO), pytest.raises(StorageError, match=r"error|full"):
            write_until_full(archive, said)
    finally:
        os.write = write
    assert archive.restore_now(SHARED).notices
    archive.append_now(SHARED, said, None)
    assert archive.restore_now(SHARED).canisters[1:] == tuple(said)


def write_until_full(archive: DirectoryArchive, said: list[Canister]) -> None:
    while True:
        archive.append_now(SHARED, said, None)
