"""The tool that reads original messages: by id, in parts, and by words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from vibe_llms.conversations.rereading import produce_reread
from vibe_llms.invocation.invokers import InvocationContext
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DigestCanister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import ImageContent, Reference, TextualContent

LONG = "".join(f"line {number:05} of the log\n" for number in range(1_000))
STORED = b"The harbor of Oslo is deep."
HISTORY: Sequence[Canister] = (
    SupervisorCanister.from_text("a secret rule about harbors"),
    UserCanister.from_text("How deep is the harbor?"),
    InvocationCanister(name="look", arguments='{"where": "the quay"}', identity="c1"),
    ResultCanister((TextualContent("an excerpt", whole=LONG),), invocation="c1", trusted=True),
    AssistantCanister(
        (ImageContent(b"x", "image/png"), TextualContent(Reference.from_bytes(STORED)))
    ),
    UserCanister.from_text("And now?"),
    AssistantCanister.from_text("The tide turns."),
    ResultCanister((TextualContent("from the web: whales are large"),), invocation="c2"),
    DigestCanister((TextualContent("harbor harbor harbor"),)),
)


async def load(references: Sequence[Reference]) -> dict[str, bytes]:
    return {one.hash: STORED for one in references}


async def call(**arguments: Any) -> InvocationOutput:
    return await call_in(HISTORY, **arguments)


async def call_in(history: Sequence[Canister], **arguments: Any) -> InvocationOutput:
    tool = produce_reread(lambda: history, load)
    text = json.dumps(arguments)
    invocation = InvocationCanister(name=tool.name, arguments=text)
    return await tool.invoke(text, InvocationContext("", invocation, lambda *_, **__: None))


async def test_a_long_result_is_read_in_parts_to_its_end() -> None:
    identity = HISTORY[3].identity
    read, offset = "", 0
    while True:
        output = await call(id=identity, offset=offset)
        head, _, part = output.text.partition("\n")
        assert not output.failed
        read += part
        if "Continue with offset" not in head:
            break
        offset = int(head.rsplit("offset ", 1)[1].rstrip(".]"))
    assert read == LONG
    assert (await call(id=identity, offset=len(LONG))).failed


async def test_words_find_the_passage_also_in_stored_texts_and_arguments() -> None:
    assert "The harbor of Oslo is deep." in (await call(words="Oslo")).text
    assert "the quay" in (await call(words="quay")).text
    found = await call(words="line 00777")
    assert "line 00777 of the log" in found.text
    assert f"id {HISTORY[3].identity}" in found.text
    assert len(found.text) <= 6_000
    assert "secret" not in (await call(words="harbor")).text
    assert "harbor harbor" not in (await call(words="harbor")).text


async def test_text_of_others_stays_untrusted() -> None:
    assert (await call(words="Oslo")).trusted
    assert not (await call(words="whales")).trusted


async def test_a_wrong_call_says_what_to_do() -> None:
    for wrong in ({}, {"words": " "}, {"id": "x"}, {"words": "submarine"}):
        output = await call(**wrong)
        assert output.failed
        assert output.text.endswith(".")


def talk(*texts: str) -> list[Canister]:
    return [UserCanister.from_text(text) for text in texts]


async def test_a_number_is_found_among_others_that_begin_alike() -> None:
    many = talk(*(f"booking number{place} was made by somebody {'x' * 400}" for place in range(99)))
    assert "number73 was" in (await call_in(many, words="the booking number73")).text


async def test_the_answer_beside_the_question_is_found_too() -> None:
    filler = [f"Something else about the weather, part {place}." for place in range(200)]
    said = talk(*filler[:100], "Where did Ada buy the violin?", "In Cremona.", *filler[100:])
    assert "In Cremona." in (await call_in(said, words="buy violin")).text


async def test_messages_that_are_left_out_come_before_those_in_the_request() -> None:
    old = talk(*(f"old violin {'x' * 400}" for _ in range(20)))
    new = talk(*(f"new violin violin {'x' * 400}" for _ in range(20)))
    digest = DigestCanister(
        (TextualContent("summary"),), first=old[0].identity, last=old[-1].identity
    )
    text = (await call_in([*old, *new, digest], words="violin")).text
    assert "old violin" in text
    assert "new violin" not in text
    # Words that only the request has are found nevertheless.
    assert "new violin" in (await call_in([*old, *new, digest], words="new")).text


async def test_images_come_with_the_first_part() -> None:
    image = ImageContent(b"png", "image/png")
    result = ResultCanister((TextualContent("word " * 2_000), image), invocation="call")
    read = await call_in([result], id=result.identity)
    assert read.contents[1:] == (image,)
    assert len((await call_in([result], id=result.identity, offset=6_000)).contents) == 1
