"""Canisters: who spoke, what a reply carries besides its words, and what a turn gave."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from vibe_llms.base.exceptions import ContentNotLoaded
from vibe_llms.messages.canisters import (
    CANISTER_ROLES,
    AssistantCanister,
    Canister,
    DocumentCanister,
    Ending,
    InvocationCanister,
    ResultCanister,
    StopReason,
    SupervisorCanister,
    UnknownCanister,
    Usage,
    UserCanister,
    is_untrusted,
    role_of,
    usage_of,
)
from vibe_llms.messages.contents import (
    AudioContent,
    Content,
    FileContent,
    ImageContent,
    ReasoningContent,
    Reference,
    TextualContent,
    VideoContent,
)


def test_the_table_of_roles_names_each_class_by_its_tag() -> None:
    assert {role: cls.__struct_config__.tag for role, cls in CANISTER_ROLES.items()} == {
        role: role for role in CANISTER_ROLES
    }
    assert role_of(DocumentCanister()) == "document"
    assert role_of(UnknownCanister(label="robot")) == "robot"


def test_a_canister_has_an_identity_of_its_own_and_the_time_of_its_making_in_utc() -> None:
    one, other = UserCanister.from_text("a"), UserCanister.from_text("a")
    assert one.identity != other.identity
    assert one != other
    assert one.created.utcoffset() == timedelta(0)
    assert timedelta(0) <= datetime.now(UTC) - one.created < timedelta(minutes=5)


def test_the_text_of_a_canister_is_what_can_be_seen_of_it() -> None:
    canister = AssistantCanister((ReasoningContent("hm"), TextualContent("a"), TextualContent("b")))
    assert canister.text == "ab"
    assert SupervisorCanister.from_text("Be brief.").text == "Be brief."
    with pytest.raises(ContentNotLoaded):
        _ = UserCanister((TextualContent(Reference.from_bytes(b"x")),)).text


def test_classes_of_tokens_do_not_overlap_so_that_they_can_be_added() -> None:
    usage = Usage(1, 20, 300, 4000, 50_000)
    assert usage.input_tokens == 321
    assert usage.total_tokens == 54_321
    assert usage + usage == Usage(2, 40, 600, 8000, 100_000)
    assert usage + Usage() == usage


def test_the_usage_of_many_canisters_is_the_sum_of_their_endings() -> None:
    canisters: list[Canister] = [
        UserCanister.from_text("a"),
        AssistantCanister(),
        InvocationCanister(name="f", ending=Ending(StopReason.INVOCATIONS, Usage(1, 2, 3, 4, 5))),
        ResultCanister(invocation="x"),
        AssistantCanister(ending=Ending(StopReason.FAILED)),
        AssistantCanister(ending=Ending(StopReason.FINISHED, Usage(10, 20, 30, 40, 50))),
    ]
    assert usage_of(canisters) == Usage(11, 22, 33, 44, 55)
    assert usage_of([]) == Usage()


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [
        ('{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
        ("", {}),
        ("{}", {}),
        ("[1]", None),
        ('"text"', None),
        ('{"a": 1', None),
        ('{"a": NaN}', None),
        ("{'a': 1}", None),
        ('{"a": "\ud800"}', None),
        ('{"a":' * 5000 + "1" + "}" * 5000, None),
    ],
)
def test_parsed_arguments_are_an_object_or_nothing(arguments: str, parsed: object) -> None:
    assert InvocationCanister(name="f", arguments=arguments).parsed == parsed


@pytest.mark.parametrize(
    ("content", "untrusted"),
    [
        (TextualContent("a"), False),
        (ImageContent(b"a", "image/png"), False),
        (ImageContent(b"<svg>", "image/svg+xml"), True),
        (AudioContent(b"a", "audio/wav"), True),
        (VideoContent(b"a", "video/mp4"), True),
        (FileContent(b"a", "application/pdf"), True),
    ],
)
def test_what_a_user_attaches_is_untrusted_unless_it_is_an_image(
    content: Content, untrusted: bool
) -> None:
    assert is_untrusted(UserCanister((content,))) is untrusted
