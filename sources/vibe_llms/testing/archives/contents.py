"""Checks of contents and files, of separate users, and of closing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from vibe_llms.base.exceptions import ContentMissing, ConversationNotFound
from vibe_llms.messages.canisters import Canister, UserCanister
from vibe_llms.messages.contents import ImageContent, Reference
from vibe_llms.storage.interfaces import Archive
from vibe_llms.testing.archives.opened import (
    LONG,
    Archives,
    Check,
    produce_details,
    refuse_all,
    refuses,
    say,
)
from vibe_llms.testing.limits import require


async def _check_contents_are_kept(archives: Archives) -> None:
    data = [b"", b"\0one", b"two" * LONG]
    references = [await archives.one.put(one, "application/x-test") for one in data]
    require(references == [Reference.from_bytes(one) for one in data], "another hash or size")
    require(await archives.one.put(data[1]) == references[1], "the same bytes are stored twice")
    loaded = await archives.other.load_all(references)
    require(
        loaded == {one.hash: held for one, held in zip(references, data, strict=True)},
        "different bytes are loaded",
    )
    require(await archives.other.load_all([]) == {}, "loading no references returns contents")
    unknown = Reference.from_bytes(b"never stored")
    await refuses(archives.one.load(unknown), ContentMissing, "an unknown content")
    await refuses(
        archives.one.load_all([references[0], unknown]), ContentMissing, "an unknown content"
    )
    identity = await archives.begin()
    picture = UserCanister((ImageContent(unknown, "image/png"),))
    await refuse_all(
        (
            archives.other.append(identity, [*say("x"), picture], after=None),
            archives.one.create("new", produce_details(), [picture]),
        ),
        ContentMissing,
        "a message that refers to an unknown content",
    )
    require(await archives.lists() == [identity], "a refused creation leaves a conversation behind")
    restored = await archives.one.restore(identity)
    require(len(restored.canisters) == 1, "a part of a refused append is kept")
    fitting = UserCanister((ImageContent(references[1], "image/png"),))
    await archives.other.append(identity, [fitting], after=restored.canisters[-1].identity)
    await archives.holds(identity, [*restored.canisters, fitting], "a message that refers to bytes")


async def _check_files_are_kept(archives: Archives) -> None:
    require(not await archives.one.survey_files(), "files are listed before there are any")
    first = await archives.one.upload(b"one", "one.txt", "text/plain")
    await asyncio.sleep(0.005)
    second = await archives.other.upload(b"two", "zwei ü.bin")
    require(
        (first.id, first.name, first.mimetype, first.size)
        == (Reference.from_bytes(b"one").hash, "one.txt", "text/plain", 3),
        f"the file is {first}",
    )
    require(list(await archives.other.survey_files()) == [second, first], "the newest is not first")
    require(await archives.other.access_file(first.id) == first, "another file is found")
    await asyncio.sleep(0.005)
    again = await archives.other.upload(b"one", "renamed.txt")
    require(again.id == first.id, "the same bytes are two files")
    require(list(await archives.one.survey_files()) == [again, second], "one file is two")
    require(await archives.one.load(Reference(first.id, 3)) == b"one", "the bytes have changed")
    require(await archives.one.remove_file(first.id) == again, "another file is removed")
    for unknown in (first.id, "f" * 64, "", "../x", "\0"):
        await refuses(archives.one.access_file(unknown), ContentMissing, "an unknown file")
        await refuses(archives.other.remove_file(unknown), ContentMissing, "an unknown file")
    require(list(await archives.one.survey_files()) == [second], "a removed file is listed")


async def _check_unused_contents_are_collected(archives: Archives) -> None:
    one, other = archives.one, archives.other

    def picture(data: bytes) -> Canister:
        return UserCanister((ImageContent(data, "image/png"),))

    shared, mine, text = b"shared picture", b"my picture", "my text " * 1_000
    first, second = picture(shared), picture(mine)
    identity = await archives.begin(first, second, *say(text))
    await one.fork(identity, "fork", produce_details(), at=first.identity)
    await archives.begin(picture(shared))
    uploaded = await one.upload(b"a file", "a")
    await other.upload(b"a file that stays", "b")
    recent = await one.put(b"not used yet")
    require(
        list(await other.collect()) == [],
        "a content that is used, or was just stored, is collected",
    )
    await other.remove(identity)
    await one.remove_file(uploaded.id)
    hashes = {Reference.from_bytes(data).hash for data in (mine, text.encode(), b"a file")}
    collected = {*await other.collect()}
    require(collected == hashes, f"{len(hashes)} contents are unused, {collected} are collected")
    require(list(await one.collect()) == [], "a content is collected twice")
    for digest in hashes:
        await refuses(one.load(Reference(digest, 1)), ContentMissing, "a collected content")
    for data in (shared, b"a file that stays", b"not used yet"):
        require(await one.load(Reference.from_bytes(data)) == data, "a needed content is collected")
    await other.append("fork", [UserCanister((ImageContent(recent, "image/png"),))], after=None)
    await one.append("fork", [picture(mine)], after=None)
    await other.remove("fork")
    collected = {*await one.collect()}
    require(
        Reference.from_bytes(mine).hash in collected, "a content that came back is not collected"
    )
    require(Reference.from_bytes(shared).hash not in collected, "a needed content is collected")


async def _check_users_are_apart(archives: Archives) -> None:
    stranger = await archives.open(f"not-{archives.user}")
    (said,) = say("a secret lemur")
    identity = await archives.begin(said, name="secret", tags=("t",))
    reference = await archives.one.put(b"secret bytes")
    file = await archives.one.upload(b"secret file", "s")
    require(await stranger.survey(superseded=True) in ([], ()), "another user's list")
    require(await stranger.count() == 0, "another user's conversations are counted")
    require(not await stranger.search("lemur", superseded=True), "another user's words are found")
    require(not await stranger.survey_files(), "another user's files are listed")
    await refuse_all(
        (
            stranger.restore(identity),
            stranger.append(identity, say("x"), after=said.identity),
            stranger.append(identity, say("x"), after=None),
            stranger.retract(identity, after=said.identity, last=said.identity),
            stranger.fork(identity, "mine", produce_details()),
            stranger.revise(identity, name="mine"),
            stranger.remove(identity),
            stranger.resolve(identity),
            stranger.resolve("secret"),
            stranger.resolve("-1"),
        ),
        ConversationNotFound,
        "work on another user's conversation",
    )
    await refuse_all(
        (
            stranger.load(reference),
            stranger.access_file(file.id),
            stranger.remove_file(file.id),
            stranger.append(
                await _begin_as(stranger),
                [UserCanister((ImageContent(reference, "image/png"),))],
                after=None,
            ),
        ),
        ContentMissing,
        "another user's content",
    )
    # Users may have the same identities, and the same bytes.
    mine = say("my own lemur")
    await stranger.create(identity, produce_details(), mine)
    await stranger.put(b"secret bytes")
    await archives.holds(identity, [said], "a conversation whose identity another user has, too")
    require(len(await archives.finds("lemur")) == 1, "two users find each other's words")
    require(len(await stranger.search("lemur")) == 1, "two users find each other's words")
    await stranger.remove(identity)
    await stranger.collect()
    await archives.holds(identity, [said], "a conversation after another user removed one")
    require(await archives.one.load(reference) == b"secret bytes", "another user collects contents")


async def _begin_as(archive: Archive) -> str:
    await archive.create("begun", produce_details(), say("x"))
    return "begun"


async def _check_closing_loses_nothing(archives: Archives) -> None:
    identity = await archives.begin()
    said = say("kept")
    await archives.one.append(identity, said, after=None)
    await archives.one.close()
    await archives.one.close()
    again = await archives.open(archives.user)
    require((await again.restore(identity)).canisters[-1] == said[-1], "closing loses a message")
    await archives.other.append(identity, say("further"), after=said[-1].identity)


CHECKS: Sequence[Check] = (
    _check_contents_are_kept,
    _check_files_are_kept,
    _check_unused_contents_are_collected,
    _check_users_are_apart,
    _check_closing_loses_nothing,
)
