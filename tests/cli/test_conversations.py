"""The commands on stored conversations."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Outcome, invoke, script_of, write_script
from tests.cli.hostile import check_harmless, produce_payloads
from tests.cli.terminal import Terminal
from vibe_llms import invoker
from vibe_llms.cli.conversations import draw_canister, load_whole
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    Ending,
    InvocationCanister,
    ResultCanister,
    UserCanister,
)
from vibe_llms.messages.codecs import encode_canister
from vibe_llms.messages.contents import (
    FileContent,
    ImageContent,
    ReasoningContent,
    TextualContent,
)
from vibe_llms.messages.identities import produce_identity
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.conversations import produce_conversation_identity
from vibe_llms.storage.interfaces import Details
from vibe_llms.synchronous import open_session
from vibe_llms.testing import Part, Script, ScriptedReply, scripted_model

pytestmark = pytest.mark.usefixtures("warm")


def begin(*arguments: str) -> str:
    """A conversation; gives its identity."""
    outcome = invoke("--print-id", "-m", "scripted/demo", *(arguments or ("hello",)))
    assert outcome.status == 0, outcome
    return outcome.errors.splitlines()[-1]


def do(*arguments: str, **options: Any) -> Outcome:
    outcome = invoke(*arguments, **options)
    assert outcome.status == 0, outcome
    return outcome


def listed(*arguments: str) -> list[dict[str, Any]]:
    conversations: list[dict[str, Any]] = do("list", "--json", *arguments).json
    return conversations


def test_the_list_has_the_fields_that_are_promised() -> None:
    identity = begin("--name", "näme", "hello")
    do("tag", identity, "b", "a")
    fork = do("fork", identity).output.strip()
    newest, oldest = listed()
    assert set(oldest) == {
        "id", "name", "title", "created", "updated", "model", "tags", "forked_from", "messages",
        "problem", "superseded_by",
    }  # fmt: skip
    assert oldest["id"] == identity
    assert oldest["name"] == "näme"
    assert oldest["model"] == "scripted/demo"
    assert oldest["tags"] == ["a", "b"]
    assert oldest["forked_from"] is None
    assert oldest["messages"] == 2
    assert datetime.fromisoformat(oldest["created"]).tzinfo is not None
    assert (newest["id"], newest["forked_from"]) == (fork, identity)


def test_the_list_is_the_most_recent_first_and_no_longer_than_wanted() -> None:
    identities = [begin() for _ in range(3)]
    assert [one["id"] for one in listed()] == identities[::-1]
    assert [one["id"] for one in listed("--limit", "2")] == identities[:0:-1]
    assert len(listed("--limit", "0")) == 3
    do("tag", identities[0], "mine")
    assert [one["id"] for one in listed("--tag", "mine")] == identities[:1]
    assert invoke("list", "--limit", "-1").status == 2


def test_the_list_is_read_by_people_too() -> None:
    assert "no conversations yet" in do("list").errors
    assert do("list", "--json").output == "[]\n"
    identity = begin("--name", "a name", "hello")
    do("tag", identity, "x")
    do("fork", identity, "--name", "b name")
    lines = do("list").output.splitlines()
    assert lines[0].endswith("b name #x (fork)") or lines[0].endswith("b name (fork)")
    assert lines[1].startswith(f"{identity}  ")
    assert lines[1].endswith("     2  a name #x")


def test_the_list_fits_the_window() -> None:
    begin("--name", "n" * 300, "hello")
    begin("--name", "a\nb\tc", "hello")
    first, second = do("list", terminals="stdout").output.splitlines()
    assert first.endswith("a b c")
    assert "\x1b[1m" in first
    assert len(second.replace("\x1b[1m", "").replace("\x1b[0m", "")) == 80
    assert second.endswith("n…")
    assert "n" * 300 in do("list").output


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_lists_and_texts_fit_any_window_in_any_script(columns: int, tmp_path: Path) -> None:
    begin(
        "--name", "日本語の会話 🎉 " * 20, "some words that are long " * 10 + "日本語の会話 " * 30
    )
    with Terminal("list", columns=columns, emulated=True) as terminal:
        terminal.wait()
        assert terminal.emulator is not None
        (row,) = filter(None, terminal.emulator.rows)
        assert "日本語" in row
        assert row.endswith("…")
    with Terminal("show", listed()[0]["id"], columns=columns, emulated=True) as terminal:
        terminal.wait()
        assert terminal.emulator is not None
        words = {"some", "words", "that", "are", "long", "日本語の会話"}
        texts = [row for row in terminal.emulator.rows if row.startswith(("some", "long", "words"))]
        assert texts
        assert all(set(row.replace(" ", "\n").split()) <= words for row in texts)
    with Terminal("search", "words", columns=columns, emulated=True) as terminal:
        terminal.wait()
        assert terminal.emulator is not None
        found = list(terminal.emulator.rows)
        found = found[next(n for n, row in enumerate(found) if row.startswith("    user: ")) :]
        whole = {*words, "[words]", "user:", "…"}
        assert all(set(row.replace("…", " …").split()) <= whole for row in found)


def test_a_conversation_is_shown_as_it_is_stored(home: Path) -> None:
    identity = begin("--name", "näme", "hello")
    (path,) = home.glob("conversations/*/messages.jsonl")
    shown = do("show", "näme", "--json")
    assert [json.loads(line) for line in path.read_bytes().splitlines()] == shown.json["messages"]
    for line in path.read_text().splitlines():
        assert line in shown.output
    head = {key: value for key, value in shown.json.items() if key not in ("messages", "created")}
    assert head == {
        "id": identity,
        "name": "näme",
        "model": "scripted/demo",
        "agent": "",
        "tags": [],
        "forked_from": None,
        "gaps": [],
    }


def test_a_conversation_is_shown_to_people_with_the_numbers_that_fork_takes() -> None:
    identity = begin("-s", "Be brief.", "hello")
    lines = do("show", identity[:5]).output.splitlines()
    assert [line.split()[:2] for line in lines[:9:3]] == [
        ["1", "supervisor"],
        ["2", "user"],
        ["3", "assistant"],
    ]
    assert lines[1] == "Be brief."
    assert lines[4] == "hello"


def test_results_are_shown_as_they_are_meant_for_people_and_loaded_whole(home: Path) -> None:
    @invoker(gui_format="so much")
    def much() -> str:
        return "0123456789" * 10_000

    reply = ScriptedReply(parts=(Part(invocation="much"),))
    with open_session(home=home) as session:
        model = scripted_model(Script((reply, ScriptedReply.from_chunks("Much."))))
        talk = session.begin(model, invokers=[much], name="talk")
        talk.converse("Go.")
    shown = do("show", "talk").output
    assert "result" in shown
    assert "so much" in shown
    assert "bytes left out" not in shown

    async def load() -> Canister:
        archive = DirectoryArchive(home)
        restored = await archive.restore((await archive.survey())[0].identity)
        return await load_whole(restored.canisters[2], archive)

    (content,) = asyncio.run(load()).contents
    assert isinstance(content, TextualContent)
    assert "bytes left out" in content.text
    assert content.whole == "0123456789" * 10_000


def test_what_a_model_said_is_drawn_on_a_terminal(tmp_path: Path) -> None:
    model = write_script(tmp_path, script_of("{ text = '# Title\n\n**bold**' }".replace("\n", " ")))
    do("-m", model, "--name", "x", "# mine")
    drawn = do("show", "x", terminals="stdout").output
    assert "# mine" in drawn
    assert "# Title" not in drawn
    assert "# Title" in do("show", "x", "--raw", terminals="stdout").output
    assert "# Title" in do("show", "x").output
    assert "# Title" not in do("show", "x", "--render").output


def test_words_are_found() -> None:
    identity = begin("--name", "talk", "tell me about forks")
    begin("hello")
    outcome = do("search", "forks")
    assert identity in outcome.output
    assert "talk" in outcome.output
    found = do("search", "--json", "tell", "forks").json
    assert {(one["conversation"], one["name"]) for one in found} == {(identity, "talk")}
    assert set(found[0]) == {
        *("conversation", "name", "title", "message", "role", "created", "excerpt"),
    }
    assert len(do("search", "--json", "--limit", "1", "forks").json) == 1
    assert "no messages found" in do("search", "nonesuch").errors
    assert invoke("search").status == 2
    assert invoke("search", "x", "--limit", "0").status == 2


def test_a_fork_keeps_what_is_wanted() -> None:
    identity = begin("hello")
    do("--cid", identity, "-m", "scripted/demo", "forks?")
    messages = do("show", identity, "--json").json["messages"]
    for at, count in (("2", 2), ("-2", 3), (messages[0]["identity"], 1), ("4", 4)):
        made = do("fork", identity, "--at", at, "--name", "n", "--json").json
        assert made["messages"] == count
        assert made["forked_from"] == identity
        assert do("show", made["id"], "--json").json["messages"] == messages[:count]
    assert do("fork", identity).output.strip() in {one["id"] for one in listed()}
    for at, status in (("0", 66), ("5", 66), ("-5", 66), ("nonesuch", 66)):
        outcome = invoke("fork", identity, "--at", at)
        assert outcome.status == status, outcome
        assert outcome.error


async def test_a_fork_within_a_reply_names_the_nearest_points(home: Path) -> None:
    identity = produce_conversation_identity()
    reply = produce_identity()
    canisters = (
        UserCanister.from_text("a"),
        AssistantCanister((TextualContent("b"),), reply=reply),
        InvocationCanister(name="t", reply=reply),
    )
    archive = DirectoryArchive(home)
    await archive.create(identity, Details(created=datetime.now(UTC)), canisters)
    # The command has an event loop of its own.
    outcome = await asyncio.to_thread(invoke, "fork", identity, "--at", "2")
    assert outcome.status == 2
    assert outcome.error.endswith("the nearest messages are 1 and 3")


def test_a_conversation_gets_a_name_and_tags() -> None:
    identity = begin()
    do("rename", identity, "new name")
    assert do("tag", identity, "b", "a").errors == "a, b\n"
    assert do("tag", identity, "a", "--remove").errors == "b\n"
    assert do("tag", identity, "b", "--remove").errors == "no tags\n"
    assert listed()[0]["name"] == "new name"
    do("rename", "new name", "")
    assert (listed()[0]["name"], listed()[0]["title"]) == ("", "hello")
    assert invoke("rename", "nonesuch", "x").status == 66
    assert invoke("tag", identity).status == 2


def test_conversations_are_removed() -> None:
    first, second, third = begin(), begin(), begin()
    outcome = invoke("rm", first)
    assert outcome.status == 2
    assert "not a terminal; use -y to skip the question" in outcome.error
    assert do("rm", "-y", first, second, first[:6]).errors == f"deleted: {first}, {second}\n"
    assert [one["id"] for one in listed()] == [third]
    assert invoke("rm", "-y", first).status == 66


def test_a_part_of_a_name_removes_nothing_unasked() -> None:
    identity = begin("--name", "Rome and Paris", "hello")
    outcome = invoke("rm", "-y", "rome")
    assert outcome.status == 2
    assert (
        f"'rome' is only part of a name; with -y, give the whole name or {identity}"
        in outcome.errors
    )
    assert [one["id"] for one in listed()] == [identity]
    assert do("rm", "-y", "rome and paris").errors == f"deleted: {identity}\n"


def test_a_person_is_asked_before_something_is_removed() -> None:
    identity = begin()
    for answer, status in (("n", 1), ("c-c", 130), ("c-d", 130), ("y", 0)):
        with Terminal("rm", identity) as terminal:
            terminal.expect(rf"{identity}.*hello")
            terminal.expect(r"Delete this conversation permanently\?")
            if answer.startswith("c-"):
                assert terminal.press_until_the_end(answer) == status
            else:
                terminal.enter(answer)
                assert terminal.wait() == status
            assert "Traceback" not in terminal.output
        assert len(listed()) == (1 if status else 0)


def test_hostile_names_and_words_do_not_drive_the_terminal(tmp_path: Path) -> None:
    payloads = [p for p in produce_payloads(5, 40) if "\0" not in p and p.strip()]
    for payload in payloads[::4]:
        name = f"find {payload}"
        path = tmp_path / f"{payload.replace('/', '_')[:60]}.txt"
        path.write_text(f"find {payload}")
        begin("--name", name, "-s", payload, "-f", str(path), f"find {payload}")
        do("tag", listed()[0]["id"], f"t{payload}")
    for arguments in (
        ["list"],
        ["search", "find"],
        *(["show", one["id"], flag] for one in listed() for flag in ("--raw", "--render")),
        ["show", "\x1b[2J"],
        ["--cid", "\u202e", "x"],
    ):
        outcome = invoke(*arguments, terminals="stdin stdout stderr")
        check_harmless(outcome.output)
        check_harmless(outcome.errors)


def test_json_on_a_terminal_is_the_same_and_drives_nothing() -> None:
    said = "".join(produce_payloads(5, 60)).replace("\0", "") + "\u00ad\u2800\u3164"
    begin("--name", "a\u202eb", said)
    for command in (
        ("show", listed()[0]["id"], "--json"),
        ("list", "--json"),
        ("--jsonl", "hello"),
    ):
        seen = do(*command, terminals="stdout").output
        check_harmless(seen)
        if command[0] != "--jsonl":
            assert json.loads(seen) == do(*command).json


def test_a_hole_in_the_clearing_of_lists_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    begin("--name", "\x1b[2Jx", "hello")
    monkeypatch.setattr("vibe_llms.cli.conversations.visible", lambda text: text)
    with pytest.raises(AssertionError):
        check_harmless(do("list", terminals="stdout").output)


async def test_every_kind_of_message_has_its_drawing(home: Path) -> None:
    archive = DirectoryArchive(home)
    call = InvocationCanister(name="t", arguments='{"a": 1}')
    files = (FileContent(b"x", "application/pdf", "p.pdf"), ImageContent(b"", "image/png"))
    cases: dict[Canister, tuple[str, ...]] = {
        DocumentCanister((TextualContent("x"),), title="T"): ("document T", "x"),
        call: ("invocation t", '{"a": 1}'),
        ResultCanister((TextualContent("r"),), invocation=call.identity): ("result", "r"),
        ResultCanister((), invocation="x", failed=True): ("result (failed)",),
        AssistantCanister((ReasoningContent(data="hm"),)): ("assistant", "[reasoning] hm"),
        AssistantCanister((), ending=Ending("interrupted", interrupted=True)): (
            "assistant (interrupted)",
        ),
        AssistantCanister((), ending=Ending("finished")): ("assistant",),
        UserCanister(files): ("user", "[file application/pdf p.pdf]", "[image image/png]"),
    }
    for canister, (head, *rest) in cases.items():
        drawn = await draw_canister(canister, archive, 3)
        assert drawn == "\n".join([f"3 {head} {canister.identity}", *rest]) + "\n"
    assert (await draw_canister(call, archive)).startswith("invocation t")


async def test_a_message_can_be_loaded_whole(home: Path) -> None:
    archive = DirectoryArchive(home)
    identity = produce_conversation_identity()
    said = (
        UserCanister((ImageContent(b"\x89PNG", "image/png"), TextualContent("x" * 5000))),
        AssistantCanister((ReasoningContent(data="y" * 5000), TextualContent("short"))),
        InvocationCanister(name="t"),
    )
    await archive.create(identity, Details(created=datetime.now(UTC)), said)
    restored = await archive.restore(identity)
    assert encode_canister(restored.canisters[0]) != encode_canister(said[0])
    whole = [await load_whole(canister, archive) for canister in restored.canisters]
    assert [encode_canister(one) for one in whole] == [encode_canister(one) for one in said]


def test_gaps_are_shown_in_the_place_of_their_lines(home: Path) -> None:
    identity = begin()
    do("--cid", identity, "-m", "scripted/demo", "forks?")
    (path,) = home.glob("conversations/*/messages.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"{broken}\n", b"{broken too}\n", lines[2], b"{last}\n"]))
    shown = do("show", identity, "--lenient").output
    order = [shown.index(word) for word in ("hello", "line 2", "line 3", "forks?", "line 5")]
    assert order == sorted(order)
    gaps = do("show", identity, "--lenient", "--json").json["gaps"]
    assert [gap["line"] for gap in gaps] == [2, 3, 5]


def test_a_torn_line_is_noted(home: Path) -> None:
    identity = begin()
    (path,) = home.glob("conversations/*/messages.jsonl")
    with path.open("ab") as file:
        file.write(b'{"role"')
    assert "note: " in do("show", identity).errors
    assert "note: " in do("fork", identity).errors


def test_conversations_are_named_by_part_of_a_title_or_by_how_new_they_are() -> None:
    older, newer = begin("--name", "Trip to Rome", "hello"), begin("--name", "Papers", "hello")
    assert invoke("show", "rome", "--json").json["id"] == older
    assert invoke("show", "-1", "--json").json["id"] == newer
    assert invoke("show", "--json", "-2").json["id"] == older
    assert invoke("chat", "-q", "--cid", "-2", "--print-id", "more").errors.split()[-1] == older
    assert invoke("fork", "-1", "--at", "-1", "--json").json["forked_from"] == older
    assert invoke("show", "-9").error == "conversation -9 not found; the list has 3"
    assert "no conversation named 'What'; see: vibe-llms list" in invoke("show", "What").error
    assert invoke("show", "-1", "--jsno").status == 2
    assert invoke("show", "--jsno").status == 2
    assert invoke("rm", "-y", "-1", "-2").status == 0
    assert len(listed()) == 1


def test_the_list_says_how_many_more_there_are_and_can_end_with_the_newest() -> None:
    identities = [begin() for _ in range(3)]
    outcome = invoke("list", "--limit", "2")
    assert outcome.errors == "1 more; to list all: vibe-llms list --limit 0\n"
    assert len(outcome.output.splitlines()) == 2
    assert invoke("list").errors == ""
    assert [one["id"] for one in listed("--reverse")] == identities
    assert [one["id"] for one in listed("--reverse", "--limit", "2")] == identities[1:]


def test_the_titles_are_shown_before_a_person_is_asked() -> None:
    begin("--name", "Trip to Rome", "hello")
    begin("hello there")
    outcome = invoke("rm", "rome", "-1", data=b"n\n", terminals="stdin stderr")
    assert outcome.status == 1
    assert "Trip to Rome" in outcome.errors
    assert "hello there" in outcome.errors
    assert "Delete these 2 conversations permanently?" in outcome.errors
    assert "nothing was deleted" in outcome.errors
    assert len(listed()) == 2
    with Terminal("rm", "rome", columns=60) as terminal:
        terminal.expect("permanently?")
        assert "␛" not in terminal.output
        terminal.send("n\r")
        assert terminal.wait() == 1


def test_the_point_of_a_fork_is_a_number_of_show() -> None:
    identity = begin("hello")
    invoke("chat", "-q", "--cid", identity, "and more")
    numbers = [
        line.split()[0]
        for line in invoke("show", identity).output.splitlines()
        if " user " in line or " assistant " in line
    ]
    assert numbers == ["1", "2", "3", "4"]
    for at, kept in (("1", 1), ("2", 2), ("4", 4), ("-1", 4), ("-2", 3), ("-4", 1)):
        assert invoke("fork", identity, "--at", at, "--json").json["messages"] == kept, at
    for at in ("0", "5", "-5"):
        error = invoke("fork", identity, "--at", at).error
        assert error == f"no message {at}; the messages are numbered 1 to 4"
