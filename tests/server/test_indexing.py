"""Indexing in the background: one task for each collection, which runs again if it must."""

from __future__ import annotations

import asyncio
import logging

import pytest

from vibe_llms.base.exceptions import StorageError
from vibe_llms.server.indexing import CollectionIndexer


async def test_a_start_during_the_work_repeats_it_once() -> None:
    done: list[tuple[str, bool]] = []
    gate = asyncio.Semaphore(0)

    async def index(collection: str, failed: bool) -> None:
        await gate.acquire()
        done.append((collection, failed))

    indexer = CollectionIndexer(index)
    indexer.start("papers")
    await asyncio.sleep(0)
    for failed in (True, False, False):
        indexer.start("papers", failed=failed)
    indexer.start("books")
    assert (indexer.is_indexing("papers"), indexer.is_indexing("other")) == (True, False)
    for _ in range(3):
        gate.release()
    while indexer.busy:
        await asyncio.sleep(0)
    assert sorted(done) == [("books", False), ("papers", False), ("papers", True)]
    indexer.start("papers")
    gate.release()
    while indexer.busy:
        await asyncio.sleep(0)
    assert done[-1] == ("papers", False)


async def test_a_failure_is_logged_and_a_later_start_tries_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = [StorageError("the disk is full", path="index"), None]

    async def index(_: str, __: bool) -> None:
        if (failure := failures.pop(0)) is not None:
            raise failure

    indexer = CollectionIndexer(index)
    with caplog.at_level(logging.WARNING, "vibe_llms.server"):
        for _ in range(2):
            indexer.start("papers")
            while indexer.busy:
                await asyncio.sleep(0)
    assert failures == []
    assert "the disk is full" in caplog.text


async def test_closing_cancels_what_runs() -> None:
    async def index(_: str, __: bool) -> None:
        await asyncio.Event().wait()

    indexer = CollectionIndexer(index)
    indexer.start("papers")
    indexer.start("books")
    await asyncio.sleep(0)
    await indexer.close()
    assert not indexer.busy
