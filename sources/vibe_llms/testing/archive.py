"""What every archive must keep to, as a function that anyone can run on their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any, TypeAlias

from vibe_llms.exceptions import (
    ContentMissing,
    ConversationAmbiguous,
    ConversationMoved,
    ConversationNotFound,
    VibeLlmsError,
)
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    SupervisorCanister,
    UserCanister,
    role_of,
)
from vibe_llms.messages.codecs import decode_canister, encode_canister
from vibe_llms.messages.contents import ImageContent, Reference, TextualContent
from vibe_llms.storage.interfaces import Archive, Details, Finding, Origin, Restored, Summary
from vibe_llms.testing.limits import require

_Check: TypeAlias = "Callable[[_Archives], Awaitable[None]]"

#: So many tasks of two archives do the same at the same time, and so often.
_RIVALS = 8
_ROUNDS = 4
#: Larger than what any archive keeps within a line.
_LONG = 100_000
#: A message of a newer version: with members, a content and an order that this one does not have.
_NEWER = (
    b'{"role":"user","identity":"newer-1","created":"2031-01-02T03:04:05Z","mood":{"a":[1,null]},'
    b'"contents":[{"kind":"text","data":"read me","shade":"blue"},{"kind":"smell","data":1.50}]}'
)
_NEWEST = (
    b'{ "role": "oracle", "created": "2031-01-02T03:04:06Z", "identity": "newer-2", "z": "\\u00e9"}'
)


async def check_archive(open_archive: Callable[[str], Awaitable[Archive]]) -> None:
    """Raise `AssertionError` where an archive breaks what conversations rely on.

    `open_archive` opens the archive of a user, in the same store each time, as another process
    would; it has nothing of the users whose names begin with `check-`. Most checks use two of them.
    They are closed in the end.
    """
    for check in CHECKS:
        user = check.__name__.removeprefix("_").replace("_", "-")
        archives = _Archives(user, open_archive)
        await archives.open()
        try:
            await check(archives)
        finally:
            await archives.close()


class _Archives:
    """The archive of one user, opened twice."""

    one: Archive
    other: Archive

    def __init__(self, user: str, open_archive: Callable[[str], Awaitable[Archive]]) -> None:
        self.user = user
        self._open = open_archive
        self._numbers = count(1)
        self._opened: list[Archive] = []

    async def open(self, user: str = "") -> Archive:
        """The archive of another user; without one, both of this one."""
        if user:
            self._opened.append(await self._open(user))
            return self._opened[-1]
        self.one, self.other = await self._open(self.user), await self._open(self.user)
        self._opened += (self.one, self.other)
        return self.one

    async def close(self) -> None:
        """Close all, twice, which is safe."""
        for archive in self._opened:
            await archive.close()
            await archive.close()

    async def begin(self, *canisters: Canister, **details: Any) -> str:
        """A new conversation; returns its identity."""
        identity = f"c{next(self._numbers):03}-{self.user}"[:60]
        await self.one.create(identity, _details(**details), canisters or _say("first"))
        return identity

    async def race(
        self, work: Callable[[Archive, int], Awaitable[object]]
    ) -> tuple[Sequence[int], Sequence[VibeLlmsError]]:
        """The numbers of those that succeed in the same at the same time, and the errors."""
        archives = [self.one, self.other] * (_RIVALS // 2)
        done = await asyncio.gather(
            *(work(archive, number) for number, archive in enumerate(archives)),
            return_exceptions=True,
        )
        errors: list[VibeLlmsError] = []
        winners: list[int] = []
        for number, one in enumerate(done):
            if isinstance(one, VibeLlmsError):
                errors.append(one)
            elif isinstance(one, BaseException):
                raise one
            else:
                winners.append(number)
        return winners, errors

    async def holds(self, identity: str, canisters: Sequence[Canister], what: str) -> Restored:
        """Require that a conversation has exactly these messages, in both archives."""
        for archive in (self.other, self.one):
            restored = await archive.restore(identity)
            found = [encode_canister(one) for one in restored.canisters]
            wanted = [encode_canister(one) for one in canisters]
            require(found == wanted, f"{what}: {len(wanted)} messages are due, {found} are there")
            require(not restored.gaps, f"{what}: there are gaps")
        return restored

    async def lists(self, **options: Any) -> Sequence[str]:
        """The identities of a list, which both archives and the count agree on."""
        one = [found.identity for found in await self.one.survey(**options)]
        other = [found.identity for found in await self.other.survey(**options)]
        require(one == other, f"two archives of one store list {one} and {other}")
        if "limit" not in options:
            number = await self.other.count(**options)
            require(number == len(one), f"{len(one)} conversations are counted as {number}")
        return one

    async def finds(self, text: str, **options: Any) -> Sequence[tuple[str, str]]:
        """The conversations and messages that a search finds, sorted."""
        found = await self.other.search(text, **options)
        return sorted((one.conversation, one.canister) for one in found)


def _details(**changes: Any) -> Details:
    return Details(**{"created": datetime.now(UTC), **changes})


def _say(*texts: str) -> list[Canister]:
    return [UserCanister.from_text(text) for text in texts]


async def _refuses(work: Awaitable[object], kind: type[VibeLlmsError], what: str) -> VibeLlmsError:
    """The error that work must raise."""
    try:
        await work
    except kind as error:
        return error
    raise AssertionError(f"{what}: no {kind.__name__} is raised")


async def _refuse_all(
    works: Sequence[Coroutine[Any, Any, object]], kind: type[VibeLlmsError], what: str
) -> None:
    """Require that each of several pieces of work raises an error."""
    try:
        for work in works:
            await _refuses(work, kind, what)
    finally:
        for work in works:
            work.close()


async def _check_messages_are_kept(archives: _Archives) -> None:
    details = _details(
        name="a näme\nin two lines",
        model="scripted/demo",
        agent="clerk",
        tags=("b", "a"),
        forked_from=Origin("elsewhere", "m"),
    )
    first = [
        SupervisorCanister.from_text("Be brief."),
        *_say("", "\0 \u2028 \ud800 😀\n" + "x" * 3_000),
        AssistantCanister((TextualContent("well"),)),
        InvocationCanister(name="clock", arguments='{"zone": "UTC"}'),
        UserCanister((ImageContent(b"\0picture", "image/png"),)),
    ]
    kept = await archives.one.create("first", details, first)
    require(len(kept) == len(first), "not all messages come back from a creation")
    require(
        [one.identity for one in kept] == [one.identity for one in first],
        "messages come back with other identities",
    )
    large = "y" * _LONG
    said = _say(large)
    kept, notices = await archives.other.append("first", said, after=first[-1].identity)
    require(not notices, f"an append gives notices: {notices}")
    (one,) = kept
    assert isinstance(one, UserCanister)
    require(one.text == large, "a large text does not stay in memory")
    restored = await archives.one.restore("first")
    require(restored.identity == "first", "a conversation is restored with another identity")
    require(restored.details == details, f"{details} was kept, {restored.details} came back")
    require(
        [one.identity for one in restored.canisters] == [one.identity for one in (*first, *said)],
        "messages are missing, or in another order",
    )
    require(not restored.gaps and not restored.notices, "a whole conversation has gaps or notices")
    lenient = await archives.other.restore("first", lenient=True)
    require(lenient == restored, "a lenient look at a whole conversation is another one")
    for canister in restored.canisters:
        for content in canister.contents:
            if isinstance(content, TextualContent) and isinstance(content.data, Reference):
                text = (await archives.one.load(content.data)).decode()
                require(text in ("Be brief.", large) or "x" * 3_000 in text, f"a text is {text!r}")
            if isinstance(content, ImageContent):
                require(isinstance(content.data, Reference), "a picture is kept in its message")
                assert isinstance(content.data, Reference)
                data = await archives.other.load(content.data)
                require(data == b"\0picture", "a picture is lost")
    again, _ = await archives.other.append("first", restored.canisters[:0], after=None)
    require(again == (), "no messages come back as some")
    await archives.one.create("empty", _details(), [])
    await archives.holds("empty", [], "an empty conversation")
    said = _say("one", "two")
    await _refuses(
        archives.one.append("empty", said, after="x"), ConversationMoved, "after a message of none"
    )
    await archives.other.append("empty", said, after=None)
    await archives.holds("empty", said, "a conversation that was empty")


async def _check_newer_members_survive(archives: _Archives) -> None:
    lines = [_NEWER, _NEWEST]
    newer = [decode_canister(line) for line in lines]
    identity = await archives.begin(*newer)
    said = _say("between")
    await archives.other.append(identity, said, after="newer-2")
    third = decode_canister(_NEWER.replace(b"newer-1", b"newer-3"))
    await archives.one.append(identity, [third], after=said[0].identity)
    restored = await archives.holds(identity, [*newer, *said, third], "messages of a newer version")
    require(
        [encode_canister(one) for one in restored.canisters[:2]] == lines,
        "the line of a newer version is written in another way",
    )
    await archives.one.fork(identity, "fork", _details())
    await archives.holds("fork", [*newer, *said, third], "a fork of a newer version's messages")
    require(
        await archives.finds("read me", limit=1) != [], "the words of a newer version are not found"
    )


async def _check_appends_compare(archives: _Archives) -> None:
    (first,) = _say("first")
    identity = await archives.begin(first)
    said = [first]
    for _ in range(_ROUNDS):
        offers = [_say(f"{number}", f"{number} too") for number in range(_RIVALS)]
        winners, errors = await archives.race(_offer(identity, offers, after=said[-1].identity))
        require(len(winners) == 1, f"{len(winners)} appends after the same message succeed")
        for error in errors:
            require(isinstance(error, ConversationMoved), f"the loser of a race gets {error!r}")
        said += offers[winners[0]]
        await archives.holds(identity, said, "a race of appends")
    for stale in (said[-2].identity, "unknown", ""):
        await _refuses(
            archives.other.append(identity, _say("late"), after=stale),
            ConversationMoved,
            f"an append after {stale!r}",
        )
    await archives.holds(identity, said, "refused appends")


def _offer(
    identity: str, offers: Sequence[Sequence[Canister]], *, after: str | None
) -> Callable[[Archive, int], Awaitable[object]]:
    """Work that appends one of the offers."""
    return lambda archive, number: archive.append(identity, offers[number], after=after)


async def _check_appends_stay_together(archives: _Archives) -> None:
    identity = await archives.begin()
    offers = [_say(*"abc") for _ in range(_RIVALS)]
    winners, errors = await archives.race(_offer(identity, offers, after=None))
    require(len(winners) == _RIVALS, f"appends without a condition fail: {errors}")
    restored = await archives.one.restore(identity)
    found = [one.identity for one in restored.canisters[1:]]
    require(len(found) == 3 * _RIVALS, f"of {3 * _RIVALS} messages {len(found)} are there")
    for offer in offers:
        one = [canister.identity for canister in offer]
        place = found.index(one[0])
        require(found[place : place + 3] == one, "messages of one append are not one after another")


async def _check_creation_is_unique(archives: _Archives) -> None:
    offers = [_say(f"{number}") for number in range(_RIVALS)]
    winners, errors = await archives.race(
        lambda archive, number: archive.create("same", _details(), offers[number])
    )
    require(len(winners) == 1, f"{len(winners)} conversations have the same identity")
    require(all(isinstance(one, ConversationMoved) for one in errors), f"losers get {errors}")
    await archives.holds("same", offers[winners[0]], "a race of creations")
    await _refuses(
        archives.other.create("same", _details(), _say("again")), ConversationMoved, "one that is"
    )
    await archives.holds("same", offers[winners[0]], "a refused creation")


async def _check_unknown_conversations(archives: _Archives) -> None:
    one = archives.one
    await archives.begin()
    for unknown in ("unknown", "", "../etc", "Upper", "x" * 65, "a/b", "a\0b", "ä"):
        await _refuse_all(
            (
                one.append(unknown, _say("x"), after=None),
                one.append(unknown, _say("x"), after="y"),
                one.retract(unknown, after="x", last="y"),
                one.restore(unknown),
                one.restore(unknown, lenient=True),
                one.fork(unknown, "fork", _details()),
                one.revise(unknown, name="x"),
                one.remove(unknown),
                one.resolve(unknown),
            ),
            ConversationNotFound,
            f"work on {unknown!r}",
        )
    identity = await archives.begin()
    await _refuses(
        one.fork(identity, "../etc", _details()), ConversationNotFound, "a fork with a bad identity"
    )
    await _refuses(
        one.create("../etc", _details(), []), ConversationNotFound, "a creation with a bad identity"
    )
    require(len(await archives.lists()) == 2, "refused work leaves conversations behind")


async def _check_messages_are_retracted(archives: _Archives) -> None:
    one, two, three, four = said = _say("one zebra", "two", "three zebra", "four")
    identity = await archives.begin(*said)
    for wrong in (three.identity, "unknown", ""):
        await _refuses(
            archives.one.retract(identity, after=two.identity, last=wrong),
            ConversationMoved,
            f"retracting what does not end with {wrong!r}",
        )
    for wrong in ("unknown", ""):
        await _refuses(
            archives.other.retract(identity, after=wrong, last=four.identity),
            ConversationNotFound,
            f"retracting after {wrong!r}",
        )
    await archives.holds(identity, said, "refused retractions")
    await archives.one.retract(identity, after=two.identity, last=four.identity)
    await archives.holds(identity, [one, two], "a retraction")
    require(
        await archives.finds("zebra") == [(identity, one.identity)], "a retracted message is found"
    )
    (summary,) = await archives.one.survey()
    require(summary.messages == 2, f"2 messages are counted as {summary.messages}")
    await _refuses(
        archives.other.append(identity, _say("x"), after=four.identity),
        ConversationMoved,
        "an append after a retracted message",
    )
    (five,) = _say("five")
    await archives.other.append(identity, [five], after=two.identity)
    await archives.holds(identity, [one, two, five], "what follows a retraction")

    async def retract(archive: Archive, number: int) -> None:
        if number % 2:
            await archive.retract(identity, after=two.identity, last=five.identity)
        else:
            await archive.append(identity, offers[number], after=five.identity)

    offers = [_say(f"{number}") for number in range(_RIVALS)]
    winners, errors = await archives.race(retract)
    appended = [number for number in winners if not number % 2]
    require(len(appended) <= 1, "appends after the same message succeed beside a retraction")
    require(all(isinstance(error, ConversationMoved) for error in errors), f"losers get {errors}")
    kept = [one, two, five, *offers[appended[0]]] if appended else [one, two]
    await archives.holds(identity, kept, "a race of a retraction and appends")


async def _check_titles_follow_retractions(archives: _Archives) -> None:
    system, asked = SupervisorCanister.from_text("Be brief."), UserCanister.from_text("asked first")
    identity = await archives.begin(system, asked)
    (summary,) = await archives.other.survey()
    require(summary.opening == "asked first", f"the opening is {summary.opening!r}")
    await archives.one.retract(identity, after=system.identity, last=asked.identity)
    (summary,) = await archives.other.survey()
    require(not summary.opening, f"a retracted opening is shown: {summary.opening!r}")
    await archives.other.append(identity, _say("asked again", "more"), after=system.identity)
    (summary,) = await archives.one.survey()
    require(summary.opening == "asked again", f"the opening is {summary.opening!r}")


async def _check_forks_are_independent(archives: _Archives) -> None:
    one, two, three = said = _say("one", "two", "three")
    parent = await archives.begin(*said)
    details = _details(name="child", forked_from=Origin(parent, two.identity))
    await archives.other.fork(parent, "child", details, at=two.identity)
    require((await archives.one.restore("child")).details == details, "a fork has other details")
    await archives.holds("child", [one, two], "a fork")
    await archives.one.fork(parent, "whole", _details())
    await archives.holds("whole", said, "a fork of all")
    for taken in ("whole", parent):
        await _refuses(
            archives.one.fork(parent, taken, _details()), ConversationMoved, "a fork that exists"
        )
    for unknown in ("unknown", ""):
        await _refuses(
            archives.one.fork(parent, "new", _details(), at=unknown),
            ConversationNotFound,
            f"a fork at {unknown!r}",
        )
    mine, yours, theirs = _say("mine", "yours", "theirs")
    await archives.one.append("child", [mine], after=two.identity)
    await archives.other.append(parent, [yours], after=three.identity)
    await archives.one.append("whole", [theirs], after=three.identity)
    await archives.holds("child", [one, two, mine], "a fork that goes on")
    await archives.holds(parent, [*said, yours], "its parent that goes on")
    await archives.holds("whole", [*said, theirs], "another fork that goes on")
    # A fork of a fork, at a message of its own and at one that all share.
    await archives.one.fork("child", "late", _details(), at=mine.identity)
    await archives.other.fork("child", "early", _details(), at=one.identity)
    (last,) = _say("last")
    await archives.other.append("late", [last], after=mine.identity)
    await archives.one.append("early", [last], after=one.identity)
    await archives.holds("late", [one, two, mine, last], "a fork of a fork")
    await archives.holds("early", [one, last], "a fork of a fork before its own messages")
    await archives.holds("child", [one, two, mine], "a fork that was forked")
    # What one of them loses, the others keep.
    await archives.one.retract(parent, after=one.identity, last=yours.identity)
    await archives.other.retract("late", after=one.identity, last=last.identity)
    (anew,) = _say("anew")
    await archives.one.append(parent, [anew], after=one.identity)
    await archives.one.append("late", [anew], after=one.identity)
    await archives.holds(parent, [one, anew], "a parent that took messages back")
    await archives.holds("late", [one, anew], "a fork that took back what it shares")
    await archives.holds("child", [one, two, mine], "a fork of a parent that took messages back")
    await archives.holds("whole", [*said, theirs], "another fork of it")
    await archives.other.remove(parent, "late")
    await archives.holds("child", [one, two, mine], "a fork without its parent")
    await archives.holds("early", [one, last], "a fork of a fork without the first")
    await archives.one.remove("child")
    await archives.holds("whole", [*said, theirs], "the last fork")
    await archives.other.append("whole", [anew], after=theirs.identity)
    await archives.holds("whole", [*said, theirs, anew], "the last fork, which goes on")
    for word, number in (("yours", 0), ("mine", 0), ("two", 1), ("last", 1)):
        found = await archives.finds(word)
        require(len(found) == number, f"{word!r} is found in {found}")


async def _check_removed_is_gone(archives: _Archives) -> None:
    kept = await archives.begin(*_say("a badger"), name="kept")
    (said,) = _say("another badger")
    gone = await archives.begin(said, name="doomed")
    await archives.other.remove(gone)
    await _refuse_all(
        (
            archives.one.restore(gone),
            archives.one.append(gone, _say("x"), after=said.identity),
            archives.one.resolve("doomed"),
            archives.other.remove(gone),
        ),
        ConversationNotFound,
        "work on a removed conversation",
    )
    require(await archives.lists() == [kept], "a removed conversation is listed")
    require(len(await archives.finds("badger")) == 1, "a removed conversation is found")
    (anew,) = _say("anew")
    await archives.one.create(gone, _details(), [anew])
    await archives.holds(gone, [anew], "one that has the identity of a removed one")

    async def remove(archive: Archive, number: int) -> None:
        if number % 2:
            await archive.remove(gone)
        else:
            await archive.append(gone, _say("further"), after=None)

    winners, errors = await archives.race(remove)
    require(sum(number % 2 for number in winners) == 1, "one conversation is removed twice")
    require(
        all(isinstance(error, ConversationNotFound) for error in errors), f"losers get {errors}"
    )
    require(await archives.lists() == [kept], "an append brings a removed conversation back")
    await archives.one.remove()


async def _check_details_change(archives: _Archives) -> None:
    identity = await archives.begin(name="old", tags=("x",), agent="clerk")
    revised = await archives.one.revise(identity, name="new", model="m", add_tags=["b", "a"])
    require(revised.name == "new" and revised.model == "m", f"the details are {revised}")
    require(revised.tags == ("a", "b", "x"), f"the tags are {revised.tags}")
    revised = await archives.other.revise(identity, add_tags=["c"], remove_tags=["a", "z"])
    require(revised.tags == ("b", "c", "x") and revised.name == "new", f"the details are {revised}")
    require(revised.agent == "clerk", "a revision forgets the agent")
    restored = await archives.one.restore(identity)
    require(restored.details == revised, "a revision is not kept")
    require(await archives.other.revise(identity) == revised, "no change changes the details")
    names = [f"tag{number}" for number in range(_RIVALS)]
    winners, errors = await archives.race(
        lambda archive, number: archive.revise(identity, add_tags=[names[number]])
    )
    require(len(winners) == _RIVALS, f"revisions at the same time fail: {errors}")
    tags = (await archives.one.restore(identity)).details.tags
    require({*names} <= {*tags}, f"a revision overwrites another: {tags}")
    cleared = await archives.one.revise(identity, name="", model="", remove_tags=tags)
    require((cleared.name, cleared.model, cleared.tags) == ("", "", ()), f"left is {cleared}")


async def _check_lists(archives: _Archives) -> None:
    require(await archives.lists() == [], "an empty archive lists conversations")
    one = await archives.begin(*_say("one"), tags=("t",), model="m")
    two = await archives.begin(*_say("two"), tags=("t", "u"), name="name")
    three = await archives.begin(*_say("three\nlines"))
    require(await archives.lists() == [three, two, one], "the newest is not the first")
    await asyncio.sleep(0.02)
    await archives.other.append(one, _say("more"), after=None)
    require(await archives.lists() == [one, three, two], "one that goes on is not the first")
    await asyncio.sleep(0.02)
    await archives.one.revise(three, name="named")
    require(await archives.lists() == [one, three, two], "a name makes a conversation the newest")
    require(await archives.lists(limit=2) == [one, three], "a limit is not kept to")
    require(await archives.lists(limit=0) == [], "a limit of 0 gives some")
    require(await archives.lists(tag="t") == [one, two], "a tag is not looked for")
    require(await archives.lists(tag="t", limit=1) == [one], "a tag with a limit")
    for unknown in ("T", "tt", "%", "\0", "ü'"):
        require(await archives.lists(tag=unknown) == [], f"the tag {unknown!r} finds some")
    first, second, _ = await archives.other.survey()
    require(isinstance(first, Summary), "a list has no summaries")
    require(
        (first.opening, first.title, first.messages, first.model, first.tags, first.problem)
        == ("one", "one", 2, "m", ("t",), ""),
        f"the first of the list is {first}",
    )
    require(first.updated > first.created, "a conversation was last changed before it began")
    require((second.title, second.opening) == ("named", "three"), f"the second is {second}")


async def _check_superseded_is_hidden(archives: _Archives) -> None:
    old = await archives.begin(*_say("a walrus"), name="old")
    new = await archives.begin(*_say("a walrus too"), name="new")
    await archives.one.revise(old, superseded_by=new)
    require(await archives.lists() == [new], "a superseded conversation is listed")
    require(
        sorted(await archives.lists(superseded=True)) == sorted([old, new]), "not all are listed"
    )
    require(
        [one for one, _ in await archives.finds("walrus")] == [new], "a superseded one is found"
    )
    found = [one for one, _ in await archives.finds("walrus", superseded=True)]
    require(found == sorted([old, new]), "not all are searched")
    require(await archives.other.resolve("-1") == new, "the newest is a superseded one")
    await _refuses(
        archives.one.resolve("-2"), ConversationNotFound, "a superseded one by its place"
    )
    require(await archives.one.resolve(old) == old, "a superseded one has no identity")
    await _refuses(
        archives.one.resolve("old"), ConversationNotFound, "a superseded one by its name"
    )
    (listed,) = [one for one in await archives.one.survey(superseded=True) if one.identity == old]
    require(listed.superseded_by == new, f"it is superseded by {listed.superseded_by!r}")
    await archives.other.remove(new)
    require(await archives.lists() == [old], "a conversation stays hidden without its successor")
    require(len(await archives.finds("walrus")) == 1, "nor is it found")
    await archives.one.revise(old, superseded_by="")
    require((await archives.one.restore(old)).details.superseded_by == "", "it stays superseded")


async def _check_texts_mean_conversations(archives: _Archives) -> None:
    one = archives.one
    await _refuses(one.resolve("-1"), ConversationNotFound, "the newest of none")
    said = _say("shopping list")
    for identity, name in (
        *(("aaaa1111", "Garden plan"), ("aaaa2222", "Garden"), ("bbbb3333", "")),
        *(("cccc4444", "the garden of a friend"), ("dddd5555", "Straße"), ("garden66", "")),
    ):
        await one.create(identity, _details(name=name), said)
        await asyncio.sleep(0.005)
    for text, meant in {
        "aaaa1111": "aaaa1111",
        "aaaa1": "aaaa1111",
        "AAAA2": "aaaa2222",
        "garden6": "garden66",
        "GARDEN PLAN": "aaaa1111",
        "of a FRIEND": "cccc4444",
        "STRASSE": "dddd5555",
        "-1": "garden66",
        "-6": "aaaa1111",
        "the g": "cccc4444",
    }.items():
        found = await archives.other.resolve(text)
        require(found == meant, f"{text!r} means {found}, not {meant}")
    for text, candidates in {
        "aaaa": {"aaaa1111", "aaaa2222"},
        # A name counts as much as the beginning of an identity.
        "garden": {"aaaa2222", "garden66"},
        "shopping": {"bbbb3333", "garden66"},
        "gard": {"garden66"},
        "plan": {"aaaa1111"},
    }.items():
        if len(candidates) == 1:
            require({await one.resolve(text)} == candidates, f"{text!r} means another")
            continue
        error = await _refuses(one.resolve(text), ConversationAmbiguous, f"{text!r}")
        assert isinstance(error, ConversationAmbiguous)
        require({*error.candidates} == candidates, f"{text!r} fits {error.candidates}")
    for text in (
        "",
        " ",
        "aaa",
        "-0",
        "-7",
        "--1",
        "nothing",
        "%",
        "_",
        "\0",
        "\ud800",
        "-99999999999",
    ):
        await _refuses(one.resolve(text), ConversationNotFound, f"{text!r}")


async def _check_texts_of_any_script_mean_conversations(archives: _Archives) -> None:
    for identity, name in {
        "aaaa1111": "Straße nach Wei\u017fenburg",
        "bbbb2222": "300 K (KELVIN)",
        "cccc3333": "日本語の質問",
        "dddd4444": "100%_\\ sure",
        "eeee5555": "ΟΔΟΣ",
    }.items():
        await archives.one.create(identity, _details(name=name), _say("shopping list"))
    for text, meant in {
        "STRASSE NACH WEISEN": "aaaa1111",
        "nach weiß": "",
        "k (\u212aelvin": "bbbb2222",
        "の質": "cccc3333",
        "%_\\": "dddd4444",
        "_%": "",
        "οδος": "eeee5555",
        "δοσ": "eeee5555",
    }.items():
        if meant:
            found = await archives.other.resolve(text)
            require(found == meant, f"{text!r} means {found}, not {meant}")
        else:
            await _refuses(archives.one.resolve(text), ConversationNotFound, f"{text!r}")


async def _check_words_are_found(archives: _Archives) -> None:
    said: dict[str, Canister] = {
        "fox": UserCanister.from_text("The quick brown fox; it jumps!"),
        "foxes": UserCanister.from_text("brown bears and a fox\n\nfar away"),
        "long": UserCanister.from_text("filler " * 3_000 + "needle in the haystack"),
        "japanese": UserCanister.from_text("明日は東京都へ行きます。京東 と"),
        "accents": UserCanister.from_text("Café crème, naïve ÉCLAIR, Ünïcode"),
        "code": UserCanister.from_text(
            "call config.toml with --dry-run=1 and e-mail to a@b.example"
        ),
        "call": InvocationCanister(name="weather", arguments='{"city": "Reykjavik"}'),
        "document": DocumentCanister((TextualContent("of tides"),), title="Almanac", source="/sea"),
        "quoted": UserCanister.from_text("it's a \"quote\" \\ of O'Brien & sons | or not"),
    }
    identity = await archives.begin(*said.values(), name="words")
    other = await archives.begin(*_say("dry run of an email; 東の京"), name="")
    names = {one.identity: name for name, one in said.items()}
    for text, wanted in {
        "fox": "fox foxes",
        "FOX brown": "fox foxes",
        "jumps fox": "fox",
        "fox bears": "foxes",
        "fox needle": "",
        "fo": "",
        "needle": "long",
        "haystack needle": "long",
        "filler": "long",
        "東京": "japanese",
        "東京都": "japanese",
        "京都": "japanese",
        "都へ行": "japanese",
        "東都": "",
        "cafe CREME": "accents",
        "éclair": "accents",
        "unicode": "accents",
        "config.toml": "code",
        "toml.config": "",
        "dry-run": "code",
        "e-mail": "code",
        "reykjavik": "call",
        "weather": "call",
        "almanac tides": "document",
        "sea": "document",
        "o'brien": "quoted",
        '"quote"': "quoted",
        "sons OR": "quoted",
        "& |": "",
        "!": "",
        "": "",
        "fox & !": "fox foxes",
        "\0fox": "fox foxes",
        "fox:* | needle": "",
        "\ud800": "",
    }.items():
        found = [one for one in await archives.other.search(text) if one.conversation == identity]
        shown = " ".join(sorted(names[one.canister] for one in found))
        require(shown == wanted, f"{text!r} finds {shown!r}, not {wanted!r}")
    places = await archives.finds("run dry")
    require(len(places) == 2, f"words in another order are found in {places}")
    (finding,) = await archives.one.search("jumps")
    require(isinstance(finding, Finding), "a search gives no findings")
    require("[jumps]" in finding.excerpt, f"the excerpt is {finding.excerpt!r}")
    require(
        (finding.title, finding.name, finding.role) == ("words", "words", role_of(said["fox"])),
        f"{finding} is found",
    )
    require(finding.created == said["fox"].created, f"{finding} was said at another time")
    (finding,) = await archives.one.search("needle")
    require("the haystack" in finding.excerpt, f"a large text has the excerpt {finding.excerpt!r}")
    (finding,) = await archives.one.search("email")
    require(finding.conversation == other and finding.name == "", f"{finding} is found")
    require(finding.title.startswith("dry run"), f"the title is {finding.title!r}")
    require(len(await archives.one.search("fox", limit=1)) == 1, "a limit is not kept to")
    require(len(await archives.one.search("fox", limit=0)) == 0, "a limit of 0 gives some")


async def _check_the_best_is_the_first(archives: _Archives) -> None:
    poor = [f"{'padding words ' * 100} otter {number}" for number in range(5)]
    (best,) = _say("otter, otter and otter")
    await archives.begin(*_say(*poor[:3]), best, *_say(*poor[3:]))
    found = await archives.other.search("otter")
    require(len(found) == 6, f"6 messages are found as {len(found)}")
    require(found[0].canister == best.identity, "a message full of a word is not the best")


async def _check_contents_are_kept(archives: _Archives) -> None:
    data = [b"", b"\0one", b"two" * _LONG]
    references = [await archives.one.put(one, "application/x-test") for one in data]
    require(references == [Reference.from_bytes(one) for one in data], "another hash or size")
    require(await archives.one.put(data[1]) == references[1], "the same bytes are stored twice")
    loaded = await archives.other.load_all(references)
    require(
        loaded == {one.hash: held for one, held in zip(references, data, strict=True)},
        "other bytes are loaded",
    )
    require(await archives.other.load_all([]) == {}, "nothing is loaded as something")
    unknown = Reference.from_bytes(b"never stored")
    await _refuses(archives.one.load(unknown), ContentMissing, "an unknown content")
    await _refuses(
        archives.one.load_all([references[0], unknown]), ContentMissing, "an unknown content"
    )
    identity = await archives.begin()
    picture = UserCanister((ImageContent(unknown, "image/png"),))
    await _refuse_all(
        (
            archives.other.append(identity, [*_say("x"), picture], after=None),
            archives.one.create("new", _details(), [picture]),
        ),
        ContentMissing,
        "a message that refers to nothing",
    )
    require(await archives.lists() == [identity], "a refused creation leaves a conversation behind")
    restored = await archives.one.restore(identity)
    require(len(restored.canisters) == 1, "a part of a refused append is kept")
    fitting = UserCanister((ImageContent(references[1], "image/png"),))
    await archives.other.append(identity, [fitting], after=restored.canisters[-1].identity)
    await archives.holds(identity, [*restored.canisters, fitting], "a message that refers to bytes")


async def _check_files_are_kept(archives: _Archives) -> None:
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
    require(await archives.one.load(Reference(first.id, 3)) == b"one", "the bytes are others")
    require(await archives.one.remove_file(first.id) == again, "another file is removed")
    for unknown in (first.id, "f" * 64, "", "../x", "\0"):
        await _refuses(archives.one.access_file(unknown), ContentMissing, "an unknown file")
        await _refuses(archives.other.remove_file(unknown), ContentMissing, "an unknown file")
    require(list(await archives.one.survey_files()) == [second], "a removed file is listed")


async def _check_unused_contents_are_collected(archives: _Archives) -> None:
    one, other = archives.one, archives.other

    def picture(data: bytes) -> Canister:
        return UserCanister((ImageContent(data, "image/png"),))

    shared, mine, text = b"shared picture", b"my picture", "my text " * 1_000
    first, second = picture(shared), picture(mine)
    identity = await archives.begin(first, second, *_say(text))
    await one.fork(identity, "fork", _details(), at=first.identity)
    await archives.begin(picture(shared))
    uploaded = await one.upload(b"a file", "a")
    await other.upload(b"a file that stays", "b")
    recent = await one.put(b"not used yet")
    require(list(await other.collect()) == [], "what is used, or was just put, is collected")
    await other.remove(identity)
    await one.remove_file(uploaded.id)
    hashes = {Reference.from_bytes(data).hash for data in (mine, text.encode(), b"a file")}
    collected = {*await other.collect()}
    require(collected == hashes, f"{len(hashes)} contents are unused, {collected} are collected")
    require(list(await one.collect()) == [], "what was collected is collected again")
    for digest in hashes:
        await _refuses(one.load(Reference(digest, 1)), ContentMissing, "a collected content")
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


async def _check_users_are_apart(archives: _Archives) -> None:
    stranger = await archives.open(f"not-{archives.user}")
    (said,) = _say("a secret lemur")
    identity = await archives.begin(said, name="secret", tags=("t",))
    reference = await archives.one.put(b"secret bytes")
    file = await archives.one.upload(b"secret file", "s")
    require(await stranger.survey(superseded=True) in ([], ()), "another user's list")
    require(await stranger.count() == 0, "another user's conversations are counted")
    require(not await stranger.search("lemur", superseded=True), "another user's words are found")
    require(not await stranger.survey_files(), "another user's files are listed")
    await _refuse_all(
        (
            stranger.restore(identity),
            stranger.append(identity, _say("x"), after=said.identity),
            stranger.append(identity, _say("x"), after=None),
            stranger.retract(identity, after=said.identity, last=said.identity),
            stranger.fork(identity, "mine", _details()),
            stranger.revise(identity, name="mine"),
            stranger.remove(identity),
            stranger.resolve(identity),
            stranger.resolve("secret"),
            stranger.resolve("-1"),
        ),
        ConversationNotFound,
        "work on another user's conversation",
    )
    await _refuse_all(
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
    # Both may have the same identity, and the same bytes.
    mine = _say("my own lemur")
    await stranger.create(identity, _details(), mine)
    await stranger.put(b"secret bytes")
    await archives.holds(identity, [said], "a conversation whose identity another user has, too")
    require(len(await archives.finds("lemur")) == 1, "two users find each other's words")
    require(len(await stranger.search("lemur")) == 1, "two users find each other's words")
    await stranger.remove(identity)
    await stranger.collect()
    await archives.holds(identity, [said], "a conversation after another user removed his")
    require(await archives.one.load(reference) == b"secret bytes", "another user collects contents")


async def _begin_as(archive: Archive) -> str:
    await archive.create("begun", _details(), _say("x"))
    return "begun"


async def _check_closing_loses_nothing(archives: _Archives) -> None:
    identity = await archives.begin()
    said = _say("kept")
    await archives.one.append(identity, said, after=None)
    await archives.one.close()
    await archives.one.close()
    again = await archives.open(archives.user)
    require((await again.restore(identity)).canisters[-1] == said[-1], "closing loses a message")
    await archives.other.append(identity, _say("further"), after=said[-1].identity)


#: One by one, to run only some of them.
CHECKS: Sequence[_Check] = (
    _check_messages_are_kept,
    _check_newer_members_survive,
    _check_appends_compare,
    _check_appends_stay_together,
    _check_creation_is_unique,
    _check_unknown_conversations,
    _check_messages_are_retracted,
    _check_titles_follow_retractions,
    _check_forks_are_independent,
    _check_removed_is_gone,
    _check_details_change,
    _check_lists,
    _check_superseded_is_hidden,
    _check_texts_mean_conversations,
    _check_texts_of_any_script_mean_conversations,
    _check_words_are_found,
    _check_the_best_is_the_first,
    _check_contents_are_kept,
    _check_files_are_kept,
    _check_unused_contents_are_collected,
    _check_users_are_apart,
    _check_closing_loses_nothing,
)
