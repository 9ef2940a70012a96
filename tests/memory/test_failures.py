"""Whatever call of the system fails, nothing is lost, and it works the next time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.faults.calls import ERRORS, SystemCalls
from vibe_llms.base import folders as storage_files
from vibe_llms.base.exceptions import MemoryNotFound, StorageError, VibeLlmsError
from vibe_llms.memory import files as files_module
from vibe_llms.memory.changes import HeldScope
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Entry, Role, Scope

ADA = Scope.of_user("ada")
BEGIN = datetime(2026, 5, 4, tzinfo=UTC)


def entry(number: int, content: str, role: Role = Role.FACT) -> Entry:
    return Entry(content=content, identity=f"entry-{number}", role=role, scope=ADA, created=BEGIN)


KEPT, SAID = entry(1, "the red lantern"), entry(2, "I have a lantern", Role.USER)
GIVEN, REPLACED = entry(3, "the green lantern"), entry(4, "the old lantern")
FIRST, SECRET = entry(5, "the blue lantern"), entry(6, "the zebra lantern")


class Scenario:
    """What is done with a memory, each step again where it failed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.memory = Memory(folder)
        self.failures: list[str] = []

    async def run(self) -> None:
        memory = self.memory
        for one in (KEPT, SAID, GIVEN, REPLACED, FIRST, SECRET):
            await self.attempt(lambda one=one: memory.restore(one))  # type: ignore[misc]
        await self.attempt(lambda: memory.search("lantern", scopes=[ADA]))
        await self.attempt(lambda: memory.revise(FIRST.identity, content="the yellow lantern"))
        await self.attempt(lambda: memory.change(ADA, self.change))
        await self.attempt(lambda: self.remove(REPLACED))
        await self.attempt(lambda: memory.forget("zebra", scopes=[ADA]))
        await self.attempt(memory.close)

    def change(self, held: HeldScope) -> None:
        assert held.rewrite(entry(1, "the red lantern of Ada"))
        # When this is done again it may have been deleted.
        assert held.delete(GIVEN, replaced_by=KEPT.identity) or held.is_deleted(GIVEN)

    async def remove(self, one: Entry) -> None:
        try:
            await self.memory.remove(one.identity)
        except MemoryNotFound:
            # It was moved before its failure.
            assert self.failures

    async def attempt(self, step: Callable[[], Awaitable[object]]) -> None:
        failure: VibeLlmsError | None = None
        try:
            await step()
        except VibeLlmsError as error:
            failure = error
        if failure is not None:
            assert isinstance(failure, StorageError | MemoryNotFound), repr(failure)
            self.failures.append(str(failure))
            await step()

    async def check(self) -> None:
        """What is there is what was done, in the files and in the indexes of all."""
        wanted = {"the red lantern of Ada", SAID.content, "the yellow lantern"}
        for memory in (self.memory, Memory(self.folder)):
            found = await memory.survey(ADA)
            assert {one.content for one in found} == wanted
            assert len(found) == len(wanted)
            hits = await memory.search("lantern", scopes=[ADA])
            assert {one.entry.content for one in hits} == wanted
            (status,) = await memory.status()
            assert (status.entries, status.deleted, status.damaged) == (3, 2, ())
        left = [path for path in self.folder.rglob("*") if path.is_file()]
        assert not [path for path in left if b"zebra" in path.read_bytes()]
        assert len(self.failures) <= 1


async def run_with_failure(folder: Path, at: int | None, error: int) -> SystemCalls:
    scenario = Scenario(folder)
    modules = ("vibe_llms.base", "vibe_llms.storage", "vibe_llms.memory")
    with SystemCalls(fail_at=at, error=error, syncing=False, modules=modules) as calls:
        await scenario.run()
    await scenario.check()
    return calls


async def check_every_call(folder: Path, kinds: int, *, step: int = 1, name: str = "") -> None:
    names = (await run_with_failure(folder / "whole", None, 0)).names
    chosen = [at for at, one in enumerate(names) if name in ("", one)][::step]
    if len(chosen) < 5:
        pytest.fail("there are too few calls to judge")
    for at in chosen:
        for kind in range(kinds):
            error = ERRORS[(at + kind) % len(ERRORS)]
            await run_with_failure(folder / f"{at}-{error}", at, error)


@pytest.mark.storm
async def test_a_failing_system_call_loses_nothing_and_the_next_try_works(
    tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    await check_every_call(tmp_path, rounds(1, len(ERRORS)), step=rounds(5, 1))


@pytest.mark.slow
async def test_that_check_sees_words_that_were_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the standard library walks: a folder that cannot be read is as one that is empty.
    monkeypatch.setattr(files_module, "_raise_unless_gone", lambda error: None)
    with pytest.raises(AssertionError):
        await check_every_call(tmp_path, 1, name="scandir")


async def test_that_check_sees_a_failure_that_is_swallowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_all = storage_files.write_all

    def write_anyway(descriptor: int, data: bytes) -> None:
        with suppress(OSError):
            write_all(descriptor, data)

    monkeypatch.setattr(storage_files, "write_all", write_anyway)
    with pytest.raises(AssertionError):
        await check_every_call(tmp_path, 1, name="write")
