"""The threads of an archive: few, woken once for each call, and ended with it."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from vibe_llms.storage.threads import DiskThreads

NAME = "archive under test"


def count_threads() -> int:
    return sum(thread.name == NAME for thread in threading.enumerate())


class Doors:
    """Work that waits in a thread until it is let go."""

    def __init__(self) -> None:
        self.reached = threading.Semaphore(0)
        self.opened = threading.Event()

    def pass_through(self, number: int = 0) -> int:
        self.reached.release()
        assert self.opened.wait(60)
        return number

    async def wait(self, count: int) -> None:
        for _ in range(count):
            await asyncio.to_thread(self.reached.acquire, timeout=60)


async def test_results_and_errors_come_back() -> None:
    threads = DiskThreads(NAME, 2)
    assert await threads.run(max, 3, 4) == 4
    with pytest.raises(ZeroDivisionError):
        await threads.run(divmod, 1, 0)
    assert await threads.run_shielded(max, 5, 6) == 6
    await threads.close()


async def test_one_thread_serves_calls_that_come_one_after_the_other() -> None:
    threads = DiskThreads(NAME, 8)
    seen = {await threads.run(threading.get_ident) for _ in range(20)}
    assert len(seen) == count_threads() == 1
    await threads.close()
    assert count_threads() == 0
    # It remains usable.
    assert await threads.run(max, 1, 2) == 2
    await threads.close()
    assert count_threads() == 0


async def test_as_many_calls_run_at_once_as_there_may_be_threads() -> None:
    threads, doors = DiskThreads(NAME, 3), Doors()
    running = [threads.run(doors.pass_through, number) for number in range(10)]
    await doors.wait(3)
    assert count_threads() == 3
    assert not doors.reached.acquire(blocking=False)
    doors.opened.set()
    assert await asyncio.gather(*running) == [*range(10)]
    assert count_threads() == 3
    await threads.close()


async def test_closing_waits_for_what_was_begun_and_for_what_waits() -> None:
    threads, doors = DiskThreads(NAME, 2), Doors()
    running = [threads.run(doors.pass_through, number) for number in range(5)]
    await doors.wait(2)
    closing = asyncio.ensure_future(threads.close())
    await asyncio.sleep(0)
    # Others do not wait for it.
    assert await threads.run(max, 1, 2) == 2
    assert not closing.done()
    doors.opened.set()
    await closing
    assert await asyncio.gather(*running) == [*range(5)]
    await threads.close()
    assert count_threads() == 0


async def test_a_call_whose_caller_is_gone_is_not_begun_unless_it_is_shielded() -> None:
    threads, doors, done = DiskThreads(NAME, 1), Doors(), list[int]()
    first = threads.run(doors.pass_through)
    await doors.wait(1)
    second = threads.run(done.append, 2)
    third = threads.run_shielded(done.append, 3)
    assert second.cancel()
    assert not third.cancel()
    first.cancel()
    doors.opened.set()
    await threads.close()
    assert done == [3]


async def test_threads_end_when_their_object_is_gone() -> None:
    threads = DiskThreads(NAME, 2)
    await threads.run(max, 1, 2)
    (thread,) = (one for one in threading.enumerate() if one.name == NAME)
    del threads
    gc.collect()
    await asyncio.to_thread(thread.join, 60)
    assert not thread.is_alive()


async def test_results_and_errors_are_not_held_until_the_next_call() -> None:
    class Value:
        pass

    class Failure(Exception):
        pass

    references: list[weakref.ref[object]] = []

    def give() -> Value:
        value = Value()
        references.append(weakref.ref(value))
        return value

    def fail() -> None:
        error = Failure()
        references.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    threads = DiskThreads(NAME, 1)
    gc.disable()
    try:
        await threads.run(give)
        with pytest.raises(Failure):
            await threads.run(fail)
        # The thread is idle again after this.
        await threads.run(max, 1, 2)
        assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()
    await threads.close()


def test_a_loop_that_is_closed_before_its_call_ends_is_no_error() -> None:
    threads, doors = DiskThreads(NAME, 1), Doors()

    async def leave() -> None:
        threads.run(doors.pass_through)
        await doors.wait(1)

    asyncio.run(leave())
    doors.opened.set()

    async def go_on() -> int:
        result: int = await threads.run(max, 1, 2)
        await threads.close()
        return result

    assert asyncio.run(go_on()) == 2


async def test_where_no_thread_can_be_started_the_others_do_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads, doors = DiskThreads(NAME, 2), Doors()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            threads.run(max, 1, 2)
    first = threads.run(doors.pass_through, 1)
    await doors.wait(1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        second = threads.run(max, 1, 2)
    doors.opened.set()
    assert (await first, await second) == (1, 2)
    await threads.close()


async def test_a_process_that_forks_starts_threads_of_its_own() -> None:
    threads, doors = DiskThreads(NAME, 1), Doors()
    busy = threads.run(doors.pass_through)
    await doors.wait(1)
    child = os.fork()
    if not child:
        status = 1
        try:
            asyncio._set_running_loop(None)
            status = asyncio.run(_run_in_child(threads))
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    doors.opened.set()
    await busy
    await threads.close()


async def _run_in_child(threads: DiskThreads) -> int:
    result: int = await threads.run(max, 6, 7)
    await threads.close()
    return result


PROGRAM = """
import asyncio, sys, time
from vibe_llms.storage.threads import DiskThreads

threads = DiskThreads("archive", 1)

def write(text):
    time.sleep(0.05)
    with open(sys.argv[1], "a") as file:
        file.write(text)

async def leave():
    threads.run_shielded(write, "one,")
    threads.run_shielded(write, "two,")
    {end}

asyncio.run(leave())
"""


@pytest.mark.parametrize("end", ["pass", "sys.exit(3)", "raise KeyboardInterrupt", "del threads"])
def test_a_program_that_ends_completes_what_it_has_begun(tmp_path: Path, end: str) -> None:
    file = tmp_path / "written"
    program = PROGRAM.format(end=end)
    if end == "del threads":
        program = program.replace("async def leave():", "async def leave():\n    global threads")
    command = [sys.executable, "-c", program, str(file)]
    subprocess.run(command, check=False, timeout=60, stderr=subprocess.DEVNULL)
    assert file.read_text() == "one,two,"
