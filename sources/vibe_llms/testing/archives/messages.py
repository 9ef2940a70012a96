"""Checks that messages are kept, added, deleted and shared completely or not at all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from vibe_llms.base.exceptions import ConversationMoved, ConversationNotFound
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.codecs import decode_canister, encode_canister
from vibe_llms.messages.contents import ImageContent, Reference, TextualContent
from vibe_llms.storage.interfaces import Archive, Origin
from vibe_llms.testing.archives.opened import (
    LONG,
    RIVALS,
    Archives,
    Check,
    produce_details,
    refuse_all,
    refuses,
    say,
)
from vibe_llms.testing.limits import require

#: Number of rounds of each race.
_ROUNDS = 4
#: A message of a newer version, with members, a content and an order unknown to this one.
_NEWER = (
    b'{"role":"user","identity":"newer-1","created":"2031-01-02T03:04:05Z","mood":{"a":[1,null]},'
    b'"contents":[{"kind":"text","data":"read me","shade":"blue"},{"kind":"smell","data":1.50}]}'
)
_NEWEST = (
    b'{ "role": "oracle", "created": "2031-01-02T03:04:06Z", "identity": "newer-2", "z": "\\u00e9"}'
)


def _offer(
    identity: str, offers: Sequence[Sequence[Canister]], *, after: str | None
) -> Callable[[Archive, int], Awaitable[object]]:
    """Return work that appends one of the offers."""
    return lambda archive, number: archive.append(identity, offers[number], after=after)


def _remove_or_offer(
    identity: str, offers: Sequence[Sequence[Canister]], last: str
) -> Callable[[Archive, int], Awaitable[object]]:
    """Return work that appends for odd numbers and removes for even ones, after `last`."""
    return lambda archive, number: (
        archive.append(identity, offers[number], after=last)
        if number % 2
        else archive.remove(identity, last=last)
    )


async def _check_messages_are_kept(archives: Archives) -> None:
    details = produce_details(
        name="a näme\nin two lines",
        model="scripted/demo",
        agent="clerk",
        tags=("b", "a"),
        forked_from=Origin("elsewhere", "m"),
    )
    first = [
        SupervisorCanister.from_text("Be brief."),
        *say("", "\0 \u2028 \ud800 😀\n" + "x" * 3_000),
        AssistantCanister((TextualContent("well"),)),
        InvocationCanister(name="clock", arguments='{"zone": "UTC"}'),
        UserCanister((ImageContent(b"\0picture", "image/png"),)),
    ]
    kept = await archives.one.create("first", details, first)
    require(len(kept) == len(first), "not all messages come back from a creation")
    require(
        [one.identity for one in kept] == [one.identity for one in first],
        "messages come back with different identities",
    )
    large = "y" * LONG
    said = say(large)
    kept, notices = await archives.other.append("first", said, after=first[-1].identity)
    require(not notices, f"an append gives notices: {notices}")
    (one,) = kept
    assert isinstance(one, UserCanister)
    require(one.text == large, "a large text is not kept in memory")
    restored = await archives.one.restore("first")
    require(restored.identity == "first", "a conversation is restored with a different identity")
    require(restored.details == details, f"{details} was stored, {restored.details} came back")
    require(
        [one.identity for one in restored.canisters] == [one.identity for one in (*first, *said)],
        "messages are missing, or in another order",
    )
    require(not restored.gaps and not restored.notices, "a whole conversation has gaps or notices")
    lenient = await archives.other.restore("first", lenient=True)
    require(lenient == restored, "a lenient restore of a complete conversation differs")
    for canister in restored.canisters:
        for content in canister.contents:
            if isinstance(content, TextualContent) and isinstance(content.data, Reference):
                text = (await archives.one.load(content.data)).decode()
                require(text in ("Be brief.", large) or "x" * 3_000 in text, f"a text is {text!r}")
            if isinstance(content, ImageContent):
                require(isinstance(content.data, Reference), "an image is stored in its message")
                assert isinstance(content.data, Reference)
                data = await archives.other.load(content.data)
                require(data == b"\0picture", "an image is lost")
    again, _ = await archives.other.append("first", restored.canisters[:0], after=None)
    require(again == (), "appending no messages returns messages")
    await archives.one.create("empty", produce_details(), [])
    await archives.holds("empty", [], "an empty conversation")
    said = say("one", "two")
    await refuses(
        archives.one.append("empty", said, after="x"), ConversationMoved, "after a message of none"
    )
    await archives.other.append("empty", said, after=None)
    await archives.holds("empty", said, "a conversation that was empty")


async def _check_newer_members_survive(archives: Archives) -> None:
    lines = [_NEWER, _NEWEST]
    newer = [decode_canister(line) for line in lines]
    identity = await archives.begin(*newer)
    said = say("between")
    await archives.other.append(identity, said, after="newer-2")
    third = decode_canister(_NEWER.replace(b"newer-1", b"newer-3"))
    await archives.one.append(identity, [third], after=said[0].identity)
    restored = await archives.holds(identity, [*newer, *said, third], "messages of a newer version")
    require(
        [encode_canister(one) for one in restored.canisters[:2]] == lines,
        "the line of a newer version is rewritten",
    )
    await archives.one.fork(identity, "fork", produce_details())
    await archives.holds("fork", [*newer, *said, third], "a fork of a newer version's messages")
    require(
        await archives.finds("read me", limit=1) != [], "the words of a newer version are not found"
    )


async def _check_appends_compare(archives: Archives) -> None:
    (first,) = say("first")
    identity = await archives.begin(first)
    said = [first]
    for _ in range(_ROUNDS):
        offers = [say(f"{number}", f"{number} too") for number in range(RIVALS)]
        winners, errors = await archives.race(_offer(identity, offers, after=said[-1].identity))
        require(len(winners) == 1, f"{len(winners)} appends after the same message succeed")
        for error in errors:
            require(isinstance(error, ConversationMoved), f"the loser of a race gets {error!r}")
        said += offers[winners[0]]
        await archives.holds(identity, said, "a race of appends")
    for stale in (said[-2].identity, "unknown", ""):
        await refuses(
            archives.other.append(identity, say("late"), after=stale),
            ConversationMoved,
            f"an append after {stale!r}",
        )
    await archives.holds(identity, said, "refused appends")


async def _check_appends_stay_together(archives: Archives) -> None:
    identity = await archives.begin()
    offers = [say(*"abc") for _ in range(RIVALS)]
    winners, errors = await archives.race(_offer(identity, offers, after=None))
    require(len(winners) == RIVALS, f"appends without a condition fail: {errors}")
    restored = await archives.one.restore(identity)
    found = [one.identity for one in restored.canisters[1:]]
    require(len(found) == 3 * RIVALS, f"of {3 * RIVALS} messages {len(found)} are there")
    for offer in offers:
        one = [canister.identity for canister in offer]
        place = found.index(one[0])
        require(found[place : place + 3] == one, "messages of one append are not adjacent")


async def _check_creation_is_unique(archives: Archives) -> None:
    offers = [say(f"{number}") for number in range(RIVALS)]
    winners, errors = await archives.race(
        lambda archive, number: archive.create("same", produce_details(), offers[number])
    )
    require(len(winners) == 1, f"{len(winners)} conversations have the same identity")
    require(all(isinstance(one, ConversationMoved) for one in errors), f"losers get {errors}")
    await archives.holds("same", offers[winners[0]], "a race of creations")
    await refuses(
        archives.other.create("same", produce_details(), say("again")),
        ConversationMoved,
        "a conversation that exists",
    )
    await archives.holds("same", offers[winners[0]], "a refused creation")


async def _check_unknown_conversations(archives: Archives) -> None:
    one = archives.one
    await archives.begin()
    for unknown in ("unknown", "", "../etc", "Upper", "x" * 65, "a/b", "a\0b", "ä"):
        await refuse_all(
            (
                one.append(unknown, say("x"), after=None),
                one.append(unknown, say("x"), after="y"),
                one.retract(unknown, after="x", last="y"),
                one.restore(unknown),
                one.restore(unknown, lenient=True),
                one.fork(unknown, "fork", produce_details()),
                one.revise(unknown, name="x"),
                one.remove(unknown),
                one.resolve(unknown),
            ),
            ConversationNotFound,
            f"work on {unknown!r}",
        )
    identity = await archives.begin()
    await refuses(
        one.fork(identity, "../etc", produce_details()),
        ConversationNotFound,
        "a fork with a bad identity",
    )
    await refuses(
        one.create("../etc", produce_details(), []),
        ConversationNotFound,
        "a creation with a bad identity",
    )
    require(len(await archives.lists()) == 2, "refused work leaves conversations behind")


async def _check_messages_are_retracted(archives: Archives) -> None:
    one, two, three, four = said = say("one zebra", "two", "three zebra", "four")
    identity = await archives.begin(*said)
    for wrong in (three.identity, "unknown", ""):
        await refuses(
            archives.one.retract(identity, after=two.identity, last=wrong),
            ConversationMoved,
            f"retracting a conversation that does not end with {wrong!r}",
        )
    for wrong in ("unknown", ""):
        await refuses(
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
    await refuses(
        archives.other.append(identity, say("x"), after=four.identity),
        ConversationMoved,
        "an append after a retracted message",
    )
    (five,) = say("five")
    await archives.other.append(identity, [five], after=two.identity)
    await archives.holds(identity, [one, two, five], "what follows a retraction")

    async def retract(archive: Archive, number: int) -> None:
        if number % 2:
            await archive.retract(identity, after=two.identity, last=five.identity)
        else:
            await archive.append(identity, offers[number], after=five.identity)

    offers = [say(f"{number}") for number in range(RIVALS)]
    winners, errors = await archives.race(retract)
    appended = [number for number in winners if not number % 2]
    require(len(appended) <= 1, "appends after the same message succeed beside a retraction")
    require(all(isinstance(error, ConversationMoved) for error in errors), f"losers get {errors}")
    kept = [one, two, five, *offers[appended[0]]] if appended else [one, two]
    await archives.holds(identity, kept, "a race of a retraction and appends")


async def _check_titles_follow_retractions(archives: Archives) -> None:
    system, asked = SupervisorCanister.from_text("Be brief."), UserCanister.from_text("asked first")
    identity = await archives.begin(system, asked)
    (summary,) = await archives.other.survey()
    require(summary.opening == "asked first", f"the opening is {summary.opening!r}")
    await archives.one.retract(identity, after=system.identity, last=asked.identity)
    (summary,) = await archives.other.survey()
    require(not summary.opening, f"a retracted opening is shown: {summary.opening!r}")
    await archives.other.append(identity, say("asked again", "more"), after=system.identity)
    (summary,) = await archives.one.survey()
    require(summary.opening == "asked again", f"the opening is {summary.opening!r}")


async def _check_forks_are_independent(archives: Archives) -> None:
    one, two, three = said = say("one", "two", "three")
    parent = await archives.begin(*said)
    details = produce_details(name="child", forked_from=Origin(parent, two.identity))
    await archives.other.fork(parent, "child", details, at=two.identity)
    require(
        (await archives.one.restore("child")).details == details, "a fork has different details"
    )
    await archives.holds("child", [one, two], "a fork")
    await archives.one.fork(parent, "whole", produce_details())
    await archives.holds("whole", said, "a fork of all")
    for taken in ("whole", parent):
        await refuses(
            archives.one.fork(parent, taken, produce_details()),
            ConversationMoved,
            "a fork that exists",
        )
    for unknown in ("unknown", ""):
        await refuses(
            archives.one.fork(parent, "new", produce_details(), at=unknown),
            ConversationNotFound,
            f"a fork at {unknown!r}",
        )
    mine, yours, theirs = say("mine", "yours", "theirs")
    await archives.one.append("child", [mine], after=two.identity)
    await archives.other.append(parent, [yours], after=three.identity)
    await archives.one.append("whole", [theirs], after=three.identity)
    await archives.holds("child", [one, two, mine], "a fork that continues")
    await archives.holds(parent, [*said, yours], "its parent that continues")
    await archives.holds("whole", [*said, theirs], "another fork that continues")
    # Forks of a fork, at a message of its own and at one that all share.
    await archives.one.fork("child", "late", produce_details(), at=mine.identity)
    await archives.other.fork("child", "early", produce_details(), at=one.identity)
    (last,) = say("last")
    await archives.other.append("late", [last], after=mine.identity)
    await archives.one.append("early", [last], after=one.identity)
    await archives.holds("late", [one, two, mine, last], "a fork of a fork")
    await archives.holds("early", [one, last], "a fork of a fork before its own messages")
    await archives.holds("child", [one, two, mine], "a fork that was forked")
    # Messages that one conversation loses stay in the others.
    await archives.one.retract(parent, after=one.identity, last=yours.identity)
    await archives.other.retract("late", after=one.identity, last=last.identity)
    (anew,) = say("anew")
    await archives.one.append(parent, [anew], after=one.identity)
    await archives.one.append("late", [anew], after=one.identity)
    await archives.holds(parent, [one, anew], "a parent that retracted messages")
    await archives.holds("late", [one, anew], "a fork that retracted shared messages")
    await archives.holds("child", [one, two, mine], "a fork of a parent that retracted messages")
    await archives.holds("whole", [*said, theirs], "another fork of it")
    await archives.other.remove(parent, "late")
    await archives.holds("child", [one, two, mine], "a fork without its parent")
    await archives.holds("early", [one, last], "a fork of a fork without the first")
    await archives.one.remove("child")
    await archives.holds("whole", [*said, theirs], "the last fork")
    await archives.other.append("whole", [anew], after=theirs.identity)
    await archives.holds("whole", [*said, theirs, anew], "the last fork, which continues")
    for word, number in (("yours", 0), ("mine", 0), ("two", 1), ("last", 1)):
        found = await archives.finds(word)
        require(len(found) == number, f"{word!r} is found in {found}")


async def _check_removed_is_gone(archives: Archives) -> None:
    kept = await archives.begin(*say("a badger"), name="kept")
    (said,) = say("another badger")
    gone = await archives.begin(said, name="doomed")
    await archives.other.remove(gone)
    await refuse_all(
        (
            archives.one.restore(gone),
            archives.one.append(gone, say("x"), after=said.identity),
            archives.one.resolve("doomed"),
            archives.other.remove(gone),
        ),
        ConversationNotFound,
        "work on a removed conversation",
    )
    require(await archives.lists() == [kept], "a removed conversation is listed")
    require(len(await archives.finds("badger")) == 1, "a removed conversation is found")
    (anew,) = say("anew")
    await archives.one.create(gone, produce_details(), [anew])
    await archives.holds(gone, [anew], "one that has the identity of a removed one")

    async def remove(archive: Archive, number: int) -> None:
        if number % 2:
            await archive.remove(gone)
        else:
            await archive.append(gone, say("further"), after=None)

    winners, errors = await archives.race(remove)
    require(sum(number % 2 for number in winners) == 1, "one conversation is removed twice")
    require(
        all(isinstance(error, ConversationNotFound) for error in errors), f"losers get {errors}"
    )
    require(await archives.lists() == [kept], "an append brings a removed conversation back")
    await archives.one.remove()


async def _check_removals_compare(archives: Archives) -> None:
    first, second = said = say("first", "second")
    identity = await archives.begin(*said)
    for wrong in (first.identity, "unknown", ""):
        await refuses(
            archives.other.remove(identity, last=wrong),
            ConversationMoved,
            f"removing a conversation that does not end with {wrong!r}",
        )
    await archives.holds(identity, said, "a refused removal")
    await archives.one.remove(identity, last=second.identity)
    await archives.one.create("empty", produce_details(), [])
    await archives.other.remove("empty", last="")
    for _ in range(_ROUNDS):
        identity = await archives.begin(first)
        offers = [say(f"{number}") for number in range(RIVALS)]
        winners, errors = await archives.race(_remove_or_offer(identity, offers, first.identity))
        require(len(winners) == 1, f"{len(winners)} removals and appends after the same message")
        for error in errors:
            require(
                isinstance(error, ConversationMoved | ConversationNotFound),
                f"the loser of a race gets {error!r}",
            )
        if winners[0] % 2:
            await archives.holds(identity, [first, *offers[winners[0]]], "a lost removal")
        else:
            await refuses(archives.one.restore(identity), ConversationNotFound, "a removed one")


CHECKS: Sequence[Check] = (
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
    _check_removals_compare,
)
