"""What can be said, and the canisters that it becomes."""

from __future__ import annotations

from typing import Any

import pytest

from vibe_llms.base.exceptions import (
    RequestError,
)
from vibe_llms.conversations.prompts import read_prompt
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    UnknownCanister,
    UserCanister,
)
from vibe_llms.messages.contents import ImageContent, Reference, TextualContent


def test_neighbouring_texts_and_contents_make_one_message() -> None:
    picture = ImageContent(b"x", "image/png")
    document = DocumentCanister.from_text("d")
    (one,) = read_prompt("a")
    assert isinstance(one, UserCanister)
    assert one.contents == (TextualContent("a"),)
    said = read_prompt(["a", picture, document, TextualContent("b"), "c"])
    assert [type(canister) for canister in said] == [UserCanister, DocumentCanister, UserCanister]
    assert [getattr(canister, "contents", None) for canister in said] == [
        (TextualContent("a"), picture),
        (TextualContent("d"),),
        (TextualContent("b"), TextualContent("c")),
    ]
    assert read_prompt(picture)[0].contents == (picture,)
    assert read_prompt(document) == (document,)
    assert read_prompt(None) == read_prompt([]) == ()


def test_canisters_of_every_role_can_be_said_as_they_are() -> None:
    canisters: list[Canister] = [
        SupervisorCanister.from_text("s"),
        UserCanister.from_text("u"),
        AssistantCanister.from_text("a"),
        InvocationCanister(name="f"),
        ResultCanister(invocation="i"),
        UnknownCanister(label="new"),
    ]
    assert list(read_prompt(canisters)) == canisters


def test_lone_surrogates_are_replaced_on_the_way_in() -> None:
    (said,) = read_prompt("a\ud800b")
    assert isinstance(said, UserCanister)
    assert said.text == "a\ufffdb"


@pytest.mark.parametrize("nothing", ["", "  \n\t", ["", " "], UserCanister(), [UserCanister()]])
def test_saying_nothing_is_an_error(nothing: Any) -> None:
    with pytest.raises(RequestError, match="the message is empty"):
        read_prompt(nothing)


def test_a_picture_alone_and_a_text_in_the_archive_are_something() -> None:
    assert len(read_prompt([" ", ImageContent(b"x", "image/png")])) == 1
    assert len(read_prompt(TextualContent(Reference.from_bytes(b"x")))) == 1


@pytest.mark.parametrize("wrong", [5, b"bytes", ["a", None], {"a": 1}, object(), [["a"]]])
def test_what_cannot_be_sent_is_reported(wrong: Any) -> None:
    with pytest.raises(RequestError, match="is not a prompt"):
        read_prompt(wrong)
