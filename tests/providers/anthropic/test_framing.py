"""Pieces put together: what a history need not fulfil and the interface demands."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec import Raw

from tests.fakes.anthropic import Issued
from tests.fakes.clients import assemble, produce_model
from vibe_llms.invocation.execution import INTERRUPTED
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    Ending,
    InvocationCanister,
    Provenance,
    ResultCanister,
    StopReason,
    SupervisorCanister,
    UnknownCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    FileContent,
    ImageContent,
    Issuer,
    NativeContent,
    NativePayload,
    ReasoningContent,
    TextualContent,
)
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.anthropic.messages import MODULE

NEW, OLD = "claude-opus-5", "claude-sonnet-4-5"
BEGIN = "(The conversation begins.)"
CONTINUE = "(Please continue.)"
SEVERED = "(A server tool was called here and did not return.)"


def native(members: Mapping[str, Any], name: str = NEW) -> NativePayload:
    return NativePayload(Issuer(MODULE, "anthropic", name), Raw(json.dumps(members).encode()))


def user(*texts: str) -> UserCanister:
    return UserCanister(tuple(TextualContent(text) for text in texts))


def said(*texts: str, reply: str = "", reason: str = "") -> AssistantCanister:
    contents = tuple(TextualContent(text) for text in texts)
    return AssistantCanister(contents, reply=reply, ending=Ending(reason) if reason else None)


def thought(words: str, reply: str = "", name: str = NEW) -> AssistantCanister:
    """A signed thought; `issued` knows its signature."""
    content = ReasoningContent(words, native=native({"signature": f"S{words}"}, name))
    return AssistantCanister((content,), reply=reply)


def issued(*words: str, name: str = NEW, pauses: Sequence[Mapping[str, Any]] = ()) -> Issued:
    signatures = {f"S{word}": json.dumps([name, word]) for word in words}
    known = {json.dumps(block, sort_keys=True) for block in pauses}
    return Issued(signatures, set(known), known)


def call(name: str = "f", reply: str = "", **options: Any) -> InvocationCanister:
    return InvocationCanister(name=name, reply=reply, **options)


def result(of: InvocationCanister, text: str = "r") -> ResultCanister:
    return ResultCanister((TextualContent(text),), invocation=of.identity)


def describe(block: Mapping[str, Any]) -> str:
    match block["type"]:
        case "text":
            return str(block["text"])
        case "thinking":
            return f"thinking {block['thinking']}"
        case "tool_use":
            return f"call {block['name']}"
        case "tool_result":
            inner = ", ".join(describe(part) for part in block.get("content", ()))
            return f"result {inner}" + (" (failed)" if block.get("is_error") else "")
        case kind:
            return str(kind)


async def frame(
    *canisters: Canister, name: str = NEW, known: Issued | None = None, **options: Any
) -> list[tuple[str, list[str]]]:
    """The messages of a request in a few words; the strict fake accepts it."""
    model = await produce_model(name=name)
    members, _ = await assemble(model, canisters, issued=known, **options)
    return [
        (message["role"], [describe(block) for block in message["content"]])
        for message in members["messages"]
    ]


# Roles.


async def test_neighbours_of_one_role_are_merged() -> None:
    assert await frame(user("a"), DocumentCanister.from_text("d"), user("b", "c")) == [
        ("user", ["a", "document", "b", "c"])
    ]
    assert await frame(user("a"), said("b"), said("c"), user("d")) == [
        ("user", ["a"]),
        ("assistant", ["b", "c"]),
        ("user", ["d"]),
    ]


@pytest.mark.parametrize("first", [said("a"), call()])
async def test_the_first_message_is_the_users(first: Canister) -> None:
    assert (await frame(first))[0] == ("user", [BEGIN])


@pytest.mark.parametrize("nothing", [[], [user()], [user(" ")], [said(" "), user("")]])
async def test_a_history_without_words_asks_to_go_on(nothing: Sequence[Canister]) -> None:
    assert await frame(*nothing) == [("user", [CONTINUE])]


async def test_a_reply_at_the_end_is_asked_to_go_on() -> None:
    assert await frame(user("a"), said("b")) == [
        ("user", ["a"]),
        ("assistant", ["b"]),
        ("user", [CONTINUE]),
    ]


async def test_empty_messages_are_left_out() -> None:
    assert await frame(user("a"), said(), user("b"), said(" "), user("c")) == [
        ("user", ["a", "b", "c"])
    ]
    assert await frame(user("a"), said("b"), user(), said("c")) == [
        ("user", ["a"]),
        ("assistant", ["b", "c"]),
        ("user", [CONTINUE]),
    ]


async def test_messages_of_a_newer_role_do_not_part_what_belongs_together() -> None:
    first, second = call("f"), call("g")
    assert await frame(
        first, UnknownCanister(label="critic"), second, result(second), result(first)
    ) == [
        ("user", [BEGIN]),
        ("assistant", ["call f", "call g"]),
        ("user", ["result r", "result r"]),
    ]


# Calls and results.


async def test_results_follow_their_calls_in_their_order() -> None:
    first, second = call("f"), call("g")
    assert await frame(
        user("a"), said("b"), first, said("c"), second, result(second, "2"), result(first, "1")
    ) == [
        ("user", ["a"]),
        ("assistant", ["b", "call f", "c", "call g"]),
        ("user", ["result 1", "result 2"]),
    ]


async def test_what_is_said_between_results_follows_them() -> None:
    first, second = call("f"), call("g")
    picture = UserCanister((ImageContent(b"x", "image/png"),))
    framed = await frame(first, second, result(first, "1"), picture, user("b"), result(second, "2"))
    assert framed[-1] == ("user", ["result 1", "result 2", "image", "b"])


async def test_a_call_without_a_result_was_interrupted() -> None:
    first, second = call("f"), call("g")
    reported = f"result {INTERRUPTED} (failed)"
    assert await frame(user("a"), first, second, result(first)) == [
        ("user", ["a"]),
        ("assistant", ["call f", "call g"]),
        ("user", ["result r", reported]),
    ]
    assert (await frame(first, user("b")))[-1] == ("user", [reported, "b"])
    assert await frame(call("f", "1"), call("g", "2")) == [
        ("user", [BEGIN]),
        ("assistant", ["call f"]),
        ("user", [reported]),
        ("assistant", ["call g"]),
        ("user", [reported]),
    ]


async def test_a_result_that_comes_too_late_twice_or_for_nothing_is_said_in_words() -> None:
    lone, twice, late = call("f"), call("g"), call("h")
    model = await produce_model()
    canisters: list[Canister] = [
        late, user("a"), said("b"), result(late, "late"), twice, result(twice), result(twice, "2"),
        result(lone, "3"),
    ]  # fmt: skip
    members, notices = await assemble(model, canisters)
    words = [[describe(block) for block in message["content"]] for message in members["messages"]]
    assert words[4] == ["A tool returned:", "late"]
    assert words[-1] == ["result r", "A tool returned:", "2", "A tool returned:", "3"]
    assert len([text for text in notices if "is sent as text" in text]) == 3


async def test_a_result_before_everything_is_said_in_words() -> None:
    assert await frame(result(call(), "r"), user("a")) == [("user", ["A tool returned:", "r", "a"])]


async def test_identities_of_calls_are_unique_and_of_an_accepted_form() -> None:
    calls = [
        call(call="toolu_1"), call(call="toolu_1"), call(call=""), call(call="a b"),
        call(call="x" * 65), call(call="call-2"),
        # Whose own identity has been used up, or is of no accepted form.
        call(call="", identity="1"), call(call="toolu_1", identity="1"), call(identity="é"),
    ]  # fmt: skip
    model = await produce_model()
    members, _ = await assemble(model, [*calls, *map(result, calls)])
    uses = [block["id"] for block in members["messages"][1]["content"]]
    assert uses == [block["tool_use_id"] for block in members["messages"][2]["content"]]
    assert uses[0] == "toolu_1"
    assert uses[1] == f"toolu_{calls[1].identity.replace('-', '')}"
    assert uses[5] == "call-2"
    assert len(set(uses)) == len(calls)


async def test_results_are_paired_by_our_identities() -> None:
    # Local servers repeat the identities of their calls, or leave them out.
    first, second = call("f", call="same"), call("g", call="same")
    framed = await frame(first, second, result(second, "2"), result(first, "1"))
    assert framed[-1] == ("user", ["result 1", "result 2"])


async def test_a_round_of_calls_after_another_is_a_message_of_its_own() -> None:
    first, second = call("f", "1"), call("g", "2")
    assert await frame(user("a"), first, result(first), said("b", reply="2"), second) == [
        ("user", ["a"]),
        ("assistant", ["call f"]),
        ("user", ["result r"]),
        ("assistant", ["b", "call g"]),
        ("user", [f"result {INTERRUPTED} (failed)"]),
    ]


# Instructions.


async def test_instructions_at_the_head_are_system_text() -> None:
    model = await produce_model(cache="off")
    instructions = [SupervisorCanister.from_text("a"), SupervisorCanister.from_text("b")]
    members, _ = await assemble(model, [*instructions, user("c")])
    assert members["system"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    members, _ = await assemble(model, [SupervisorCanister.from_text(" "), user("c")])
    assert "system" not in members


LATER = SupervisorCanister.from_text("Be brief.")


@pytest.mark.parametrize(
    ("canisters", "framed"),
    [
        (
            [user("a"), LATER, user("b")],
            [("user", ["a", "b"]), ("system", ["Be brief."])],
        ),
        (
            [user("a"), said("b"), LATER],
            [
                ("user", ["a"]),
                ("assistant", ["b"]),
                ("user", [CONTINUE]),
                ("system", ["Be brief."]),
            ],
        ),
        (
            [user("a"), LATER, LATER, said("b"), user("c")],
            [
                ("user", ["a"]),
                ("system", ["Be brief.", "Be brief."]),
                ("assistant", ["b"]),
                ("user", ["c"]),
            ],
        ),
        (
            [user("a"), LATER, said(), user("c")],
            [("user", ["a", "c"]), ("system", ["Be brief."])],
        ),
        ([user(), LATER], [("user", [CONTINUE]), ("system", ["Be brief."])]),
    ],
)
async def test_instructions_in_mid_conversation_follow_a_users_message(
    canisters: Sequence[Canister], framed: Sequence[tuple[str, Sequence[str]]]
) -> None:
    assert await frame(*canisters) == framed


async def test_instructions_after_a_result_follow_it() -> None:
    one = call()
    framed = await frame(one, result(one), LATER)
    assert framed[2:] == [("user", ["result r"]), ("system", ["Be brief."])]


async def test_a_model_without_system_messages_reads_marked_text() -> None:
    marked = ["<system>", "Be brief.", "</system>"]
    assert await frame(user("a"), LATER, user("b"), name=OLD) == [("user", ["a", *marked, "b"])]
    one = call()
    framed = await frame(one, LATER, result(one), name=OLD)
    assert framed[-1] == ("user", ["result r", *marked])


# Thinking.


async def test_thinking_stays_before_what_it_led_to() -> None:
    one = call("f")
    assert await frame(user("a"), thought("hm"), one, result(one), known=issued("hm")) == [
        ("user", ["a"]),
        ("assistant", ["thinking hm", "call f"]),
        ("user", ["result r"]),
    ]


@pytest.mark.parametrize(
    ("canisters", "words"),
    [
        ([thought("hm")], []),
        ([said("b"), thought("hm")], ["b"]),
        ([thought("hm"), said("b"), thought("so"), thought("then")], ["thinking hm", "b"]),
        ([thought("hm"), said(" ")], []),
        ([thought("hm"), said(" "), said("b")], ["thinking hm", "b"]),
    ],
)
async def test_no_message_ends_with_thinking(
    canisters: Sequence[Canister], words: Sequence[str]
) -> None:
    framed = await frame(user("a"), *canisters, user("c"), known=issued("hm", "so", "then"))
    assert [texts for role, texts in framed if role == "assistant"] == ([words] if words else [])


async def test_thinking_at_the_end_of_one_piece_counts_in_the_next() -> None:
    mixed = AssistantCanister(
        (
            TextualContent("b"),
            ReasoningContent("hm", native=native({"signature": "Shm"})),
        )
    )
    framed = await frame(user("a"), mixed, thought("so"), known=issued("hm", "so"))
    assert framed[1] == ("assistant", ["b"])
    framed = await frame(user("a"), mixed, thought("so"), said("d"), known=issued("hm", "so"))
    assert framed[1] == ("assistant", ["b", "thinking hm", "thinking so", "d"])


BUDGET = Controls(reasoning_tokens=2048)


@pytest.mark.parametrize(
    ("canisters", "thinks"),
    [
        ([user("a")], True),
        ([user("a"), said("b")], True),
        ([user("a"), call("f", "1")], False),
        ([user("a"), thought("hm", "1", OLD), call("f", "1")], True),
        ([user("a"), said("b", reply="1"), thought("hm", "1", OLD), call("f", "1")], False),
        # A run of calls and results that began without thinking goes on without it.
        ([user("a"), call("f", "1"), thought("hm", "2", OLD), call("g", "2")], False),
        ([user("a"), thought("hm", "1", OLD), call("f", "1"), call("g", "2")], True),
        ([user("a"), call("f", "1"), user("b"), thought("hm", "2", OLD), call("g", "2")], False),
        ([user("a"), thought("hm", "1", OLD), call("f", "1"), user("b"), call("g", "2")], False),
        (
            [
                user("a"),
                thought("hm", "1", OLD),
                call("f", "1"),
                user("b"),
                thought("hm", "2", OLD),
                call("g", "2"),
            ],
            True,
        ),
        ([user("a"), call("f", "1"), said("b", reply="2"), user("c")], True),
        # A reply of which nothing is sent ends no run.
        ([user("a"), call("f", "1"), said(reply="2")], False),
        ([user("a"), call("f", "1"), said(reply="2"), user("b"), said(reply="3")], False),
        ([user("a"), thought("hm", "1", OLD), call("f", "1"), thought("hm", "2", OLD)], True),
        ([user("a"), call("f", "1"), said("b", reply="2")], True),
    ],
)
async def test_a_budget_is_not_sent_while_calls_go_on_that_began_without_thinking(
    canisters: Sequence[Canister], thinks: bool
) -> None:
    every: list[Canister] = []
    for canister in canisters:
        every.append(canister)
        if isinstance(canister, InvocationCanister):
            every.append(result(canister))
    model = await produce_model(name=OLD)
    known = issued("hm", name=OLD)
    members, notices = await assemble(model, every, controls=BUDGET, issued=known)
    assert ("thinking" in members) is thinks
    assert any("reasoning-tokens is not sent" in text for text in notices) is not thinks


# Tools of the server, and pauses.


OURS = Provenance(MODULE, "anthropic", NEW)
USE = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
RETURN = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}


def server(*blocks: Mapping[str, Any], reason: str = "", reply: str = "1") -> AssistantCanister:
    contents = tuple(NativeContent(str(one["type"]), native=native(one)) for one in blocks)
    ending = Ending(reason) if reason else None
    return AssistantCanister(contents, reply=reply, provenance=OURS, ending=ending)


async def test_a_reply_that_paused_goes_on_from_its_own_words() -> None:
    paused = server(USE, reason=StopReason.PAUSED)
    framed = await frame(user("a"), paused, known=issued(pauses=[USE]))
    assert framed == [("user", ["a"]), ("assistant", ["server_tool_use"])]


async def test_what_a_paused_reply_goes_on_with_is_of_the_same_message() -> None:
    paused = server(USE, reason=StopReason.PAUSED)
    framed = await frame(user("a"), paused, server(RETURN, reply="2"), said("b", reply="2"))
    assert framed[1] == ("assistant", ["server_tool_use", "web_search_tool_result", "b"])


async def test_a_paused_reply_that_was_not_gone_on_with_is_severed() -> None:
    paused = server(USE, reason=StopReason.PAUSED)
    framed = await frame(user("a"), paused, user("b"))
    assert framed == [("user", ["a"]), ("assistant", [SEVERED]), ("user", ["b"])]
    framed = await frame(user("a"), paused, LATER)
    assert framed[1:] == [
        ("assistant", [SEVERED]), ("user", [CONTINUE]), ("system", ["Be brief."])
    ]  # fmt: skip


@pytest.mark.parametrize(
    "provenance",
    [None, Provenance(MODULE, "anthropic", OLD), Provenance(MODULE, "gateway", NEW)],
)
async def test_what_another_model_paused_in_is_not_gone_on_with(
    provenance: Provenance | None,
) -> None:
    paused = AssistantCanister(
        (TextualContent("b"),), provenance=provenance, ending=Ending(StopReason.PAUSED)
    )
    framed = await frame(user("a"), paused)
    assert framed[1:] == [("assistant", ["b"]), ("user", [CONTINUE])]


async def test_a_pause_with_nothing_said_asks_to_go_on() -> None:
    empty = AssistantCanister(provenance=OURS, ending=Ending(StopReason.PAUSED))
    assert await frame(user("a"), empty) == [("user", ["a", CONTINUE])]
    framed = await frame(user("a"), said("b", reply="1"), empty)
    assert framed[1:] == [("assistant", ["b"]), ("user", [CONTINUE])]
    content = ReasoningContent("hm", native=native({"signature": "Shm"}))
    thinks = AssistantCanister((content,), provenance=OURS, ending=Ending(StopReason.PAUSED))
    assert await frame(user("a"), said("b", reply="1"), thinks, known=issued("hm")) == [
        ("user", ["a"]),
        *framed[1:],
    ]


async def test_a_tool_of_the_servers_that_did_not_return_is_severed() -> None:
    framed = await frame(user("a"), server(USE), user("b"))
    assert framed[1] == ("assistant", [SEVERED])
    framed = await frame(user("a"), server(USE, RETURN), user("b"))
    assert framed[1] == ("assistant", ["server_tool_use", "web_search_tool_result"])


async def test_code_of_the_servers_waits_for_our_result() -> None:
    code = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {}}
    caller = {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}
    one = call("f", "1", native=native({"caller": caller}))
    framed = await frame(user("a"), server(code), one, result(one))
    assert framed[1] == ("assistant", ["server_tool_use", "call f"])


# Cache marks.


async def mark(*canisters: Canister, **options: Any) -> tuple[list[str], dict[str, Any]]:
    """The marked blocks of the messages, and the body."""
    model = await produce_model(**options)
    members, _ = await assemble(model, canisters)
    blocks = [block for message in members["messages"] for block in message["content"]]
    return [describe(block) for block in blocks if "cache_control" in block], members


async def test_the_last_two_messages_of_the_user_are_marked() -> None:
    marked, members = await mark(
        SupervisorCanister((TextualContent("s"), TextualContent("t"))),
        user("a"), said("b"), user("c", "d"), said("e"), user("f"),
    )  # fmt: skip
    assert marked == ["d", "f"]
    assert [block.get("cache_control") for block in members["system"]] == [
        None,
        {"type": "ephemeral"},
    ]


async def test_results_pictures_and_documents_can_be_marked() -> None:
    one = call()
    picture = UserCanister((ImageContent(b"x", "image/png"),))
    document = UserCanister((FileContent(b"x", "application/pdf"),))
    pages = DocumentCanister(contents=(TextualContent("a"), ImageContent(b"x", "image/png")))
    assert (await mark(one, result(one), said("a"), picture))[0] == ["result r", "image"]
    marked, _ = await mark(document, said("c"), pages)
    assert marked == ["document", "document"]


async def test_how_long_is_kept_and_whether_is_a_setting() -> None:
    _, members = await mark(user("a"), cache="1h")
    (block,) = members["messages"][0]["content"]
    assert block["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    instructions = SupervisorCanister.from_text("s")
    marked, members = await mark(instructions, user("a"), said("b"), user("c"), cache="off")
    assert marked == []
    assert "cache_control" not in json.dumps(members)


# Growing.


async def test_what_is_marked_does_not_stay_marked() -> None:
    model = await produce_model()
    cache = model.produce_cache()
    canisters: list[Canister] = []
    for number in range(12):
        canisters += [user(f"u{number}"), said(f"a{number}")]
        members, _ = await assemble(model, canisters[:-1], cache=cache)
        blocks = [block for message in members["messages"] for block in message["content"]]
        marked = [describe(block) for block in blocks if "cache_control" in block]
        assert marked == [f"u{n}" for n in range(max(number - 1, 0), number + 1)]
