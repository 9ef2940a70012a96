"""Checks of details, lists, names and search."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from vibe_llms.base.exceptions import ConversationAmbiguous, ConversationNotFound
from vibe_llms.messages.canisters import (
    Canister,
    DocumentCanister,
    InvocationCanister,
    UserCanister,
    role_of,
)
from vibe_llms.messages.contents import TextualContent
from vibe_llms.storage.interfaces import Finding, Origin, Summary
from vibe_llms.testing.archives.opened import RIVALS, Archives, Check, produce_details, refuses, say
from vibe_llms.testing.limits import require


async def _check_details_change(archives: Archives) -> None:
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
    names = [f"tag{number}" for number in range(RIVALS)]
    winners, errors = await archives.race(
        lambda archive, number: archive.revise(identity, add_tags=[names[number]])
    )
    require(len(winners) == RIVALS, f"revisions at the same time fail: {errors}")
    tags = (await archives.one.restore(identity)).details.tags
    require({*names} <= {*tags}, f"a revision overwrites another: {tags}")
    cleared = await archives.one.revise(identity, name="", model="", remove_tags=tags)
    require((cleared.name, cleared.model, cleared.tags) == ("", "", ()), f"left is {cleared}")


async def _check_lists(archives: Archives) -> None:
    require(await archives.lists() == [], "an empty archive lists conversations")
    one = await archives.begin(*say("one"), tags=("t",), model="m")
    two = await archives.begin(*say("two"), tags=("t", "u"), name="name")
    three = await archives.begin(*say("three\nlines"))
    require(await archives.lists() == [three, two, one], "the newest is not the first")
    await asyncio.sleep(0.02)
    await archives.other.append(one, say("more"), after=None)
    require(
        await archives.lists() == [one, three, two],
        "a conversation that continues is not the first",
    )
    await asyncio.sleep(0.02)
    await archives.one.revise(three, name="named")
    require(await archives.lists() == [one, three, two], "a name makes a conversation the newest")
    require(await archives.lists(limit=2) == [one, three], "a limit is exceeded")
    require(await archives.lists(limit=0) == [], "a limit of 0 returns some")
    require(await archives.lists(tag="t") == [one, two], "a tag is ignored")
    require(await archives.lists(tag="t", limit=1) == [one], "a tag with a limit")
    for number, place in enumerate(order := [one, three, two], 1):
        for limit in (None, 1):
            found = await archives.other.survey(after=place, limit=limit)
            wanted = order[number:][:limit]
            require([each.identity for each in found] == wanted, "a page begins at the wrong place")
    found = await archives.one.survey(after=three, tag="t")
    require([each.identity for each in found] == [two], "a page of those with a tag")
    for unknown in ("unknown", "../etc", "\0"):
        await refuses(
            archives.one.survey(after=unknown), ConversationNotFound, f"a list after {unknown!r}"
        )
    for unknown in ("T", "tt", "%", "\0", "ü'"):
        require(await archives.lists(tag=unknown) == [], f"the tag {unknown!r} finds conversations")
    first, second, _ = await archives.other.survey()
    require(isinstance(first, Summary), "a list has no summaries")
    require(
        (first.opening, first.title, first.messages, first.model, first.tags, first.problem)
        == ("one", "one", 2, "m", ("t",), ""),
        f"the first of the list is {first}",
    )
    require(first.updated > first.created, "a conversation was last changed before it began")
    require((second.title, second.opening) == ("named", "three"), f"the second is {second}")


async def _check_superseded_is_hidden(archives: Archives) -> None:
    old = await archives.begin(*say("a walrus"), name="old")
    new = await archives.begin(*say("a walrus too"), name="new")
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
    await refuses(
        archives.one.resolve("-2"), ConversationNotFound, "a superseded one by its number"
    )
    require(await archives.one.resolve(old) == old, "a superseded one has no identity")
    await refuses(archives.one.resolve("old"), ConversationNotFound, "a superseded one by its name")
    (listed,) = [one for one in await archives.one.survey(superseded=True) if one.identity == old]
    require(listed.superseded_by == new, f"it is superseded by {listed.superseded_by!r}")
    await archives.other.remove(new)
    require(await archives.lists() == [old], "a conversation stays hidden without its successor")
    require(
        len(await archives.finds("walrus")) == 1,
        "a conversation without its successor is not found",
    )
    await archives.one.revise(old, superseded_by="")
    require((await archives.one.restore(old)).details.superseded_by == "", "it stays superseded")


async def _check_families_are_found(archives: Archives) -> None:
    one, two, _ = said = say("one", "two", "three")
    first, other = await archives.begin(*said), await archives.begin(*said)
    for parent, child, last in ((first, "a", two), ("a", "b", one), (other, "c", one)):
        details = produce_details(forked_from=Origin(parent, last.identity))
        await archives.one.fork(parent, child, details, at=last.identity)
    empty = produce_details(forked_from=Origin("b"))
    await archives.one.create("d", empty, ())
    await archives.other.append("a", say("more"), after=two.identity)
    for member in (first, "a", "b", "d"):
        found = await archives.other.survey_family(member)
        described = [(each.summary.identity, each.shared, each.summary.messages) for each in found]
        wanted = [(first, 0, 3), ("a", 2, 3), ("b", 1, 1), ("d", 0, 0)]
        require(described == wanted, f"the family of {member} is {described}")
    await archives.other.remove("a")
    found = await archives.one.survey_family("d")
    require([each.summary.identity for each in found] == ["b", "d"], "a family without its first")
    for unknown in ("a", "unknown", "", "../etc", "\0"):
        await refuses(
            archives.one.survey_family(unknown), ConversationNotFound, f"a family of {unknown!r}"
        )


async def _check_versions_differ_after_changes(archives: Archives) -> None:
    one, two = await archives.begin(*say("one")), await archives.begin(*say("two"))
    versions = await archives.other.survey_versions()
    require({*versions.versions} == {one, two}, f"there are versions of {[*versions.versions]}")
    again = await archives.other.survey_versions(versions)
    require(again.versions == versions.versions, "versions differ without a change")
    (last,) = (await archives.one.restore(one)).canisters
    for change, what in (
        (archives.one.append(one, say("more"), after=last.identity), "a message"),
        (archives.one.revise(one, name="name"), "a name"),
        (archives.one.revise(one, add_tags=["tag"]), "a tag"),
        (archives.one.revise(one, superseded_by=two), "a successor"),
    ):
        await change
        before, versions = versions, await archives.other.survey_versions(versions)
        changed = before.versions[one] != versions.versions[one]
        require(changed, f"{what} does not change the version")
        require(two in versions.versions, f"{what} forgets another conversation")
    await archives.one.fork(two, "fork", produce_details())
    versions = await archives.other.survey_versions(versions)
    require({*versions.versions} == {one, two, "fork"}, "a fork has no version")
    await archives.one.remove(one)
    versions = await archives.other.survey_versions(versions)
    require({*versions.versions} == {two, "fork"}, "a removed conversation has a version")
    stranger = await archives.open("check-versions-of-others")
    require(not (await stranger.survey_versions()).versions, "versions of another user are shown")


async def _check_texts_mean_conversations(archives: Archives) -> None:
    one = archives.one
    await refuses(one.resolve("-1"), ConversationNotFound, "the newest of an empty archive")
    said = say("shopping list")
    for identity, name in (
        *(("aaaa1111", "Garden plan"), ("aaaa2222", "Garden"), ("bbbb3333", "")),
        *(("cccc4444", "the garden of a friend"), ("dddd5555", "Straße"), ("garden66", "")),
    ):
        await one.create(identity, produce_details(name=name), said)
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
        error = await refuses(one.resolve(text), ConversationAmbiguous, f"{text!r}")
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
        await refuses(one.resolve(text), ConversationNotFound, f"{text!r}")


async def _check_texts_of_any_script_mean_conversations(archives: Archives) -> None:
    for identity, name in {
        "aaaa1111": "Straße nach Wei\u017fenburg",
        "bbbb2222": "300 K (KELVIN)",
        "cccc3333": "日本語の質問",
        "dddd4444": "100%_\\ sure",
        "eeee5555": "ΟΔΟΣ",
    }.items():
        await archives.one.create(identity, produce_details(name=name), say("shopping list"))
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
            await refuses(archives.one.resolve(text), ConversationNotFound, f"{text!r}")


async def _check_words_are_found(archives: Archives) -> None:
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
    other = await archives.begin(*say("dry run of an email; 東の京"), name="")
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
    require(isinstance(finding, Finding), "a search returns no findings")
    require("[jumps]" in finding.excerpt, f"the excerpt is {finding.excerpt!r}")
    require(
        (finding.title, finding.name, finding.role) == ("words", "words", role_of(said["fox"])),
        f"{finding} is found",
    )
    require(finding.created == said["fox"].created, f"{finding} has the wrong time")
    (finding,) = await archives.one.search("needle")
    require("the haystack" in finding.excerpt, f"a large text has the excerpt {finding.excerpt!r}")
    (finding,) = await archives.one.search("email")
    require(finding.conversation == other and finding.name == "", f"{finding} is found")
    require(finding.title.startswith("dry run"), f"the title is {finding.title!r}")
    require(len(await archives.one.search("fox", limit=1)) == 1, "a limit is exceeded")
    require(len(await archives.one.search("fox", limit=0)) == 0, "a limit of 0 returns some")


async def _check_the_best_is_the_first(archives: Archives) -> None:
    poor = [f"{'padding words ' * 100} otter {number}" for number in range(5)]
    (best,) = say("otter, otter and otter")
    await archives.begin(*say(*poor[:3]), best, *say(*poor[3:]))
    found = await archives.other.search("otter")
    require(len(found) == 6, f"6 messages are found as {len(found)}")
    require(found[0].canister == best.identity, "a message that repeats a word is not the best")


CHECKS: Sequence[Check] = (
    _check_details_change,
    _check_lists,
    _check_superseded_is_hidden,
    _check_families_are_found,
    _check_versions_differ_after_changes,
    _check_texts_mean_conversations,
    _check_texts_of_any_script_mean_conversations,
    _check_words_are_found,
    _check_the_best_is_the_first,
)
