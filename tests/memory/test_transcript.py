"""Who said what in a turn; the pipeline's own tests show what is made of it."""

from __future__ import annotations

from vibe_llms.memory.entries import Role
from vibe_llms.memory.transcript import identity_of, read_turn, text_in
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    UserCanister,
)
from vibe_llms.messages.contents import ReasoningContent, Reference, TextualContent


def test_of_several_replies_the_last_one_counts_with_all_of_its_texts() -> None:
    early = AssistantCanister(contents=(TextualContent("Let me look."),), reply="r1")
    first = AssistantCanister(contents=(TextualContent("It is"),), reply="r2")
    blank = AssistantCanister(contents=(ReasoningContent("hm"),), reply="r2")
    last = AssistantCanister(contents=(TextualContent("six."),), reply="r2")
    call = InvocationCanister(name="look")
    said = UserCanister.from_text("When?")
    canisters: list[Canister] = [said, early, call, first, blank, last]
    spoken = read_turn(canisters)
    assert spoken.assistant == (first, last)


def test_a_call_alone_is_an_answer_too() -> None:
    assert (
        read_turn([InvocationCanister(name="look"), UserCanister.from_text("not the user")]).user
        == ()
    )
    assert read_turn([]).assistant == ()


def test_only_documents_of_memory_were_recalled() -> None:
    recalled = DocumentCanister(contents=(TextualContent("I like tea very much"),), source="memory")
    other = DocumentCanister(contents=(TextualContent("I like rum very much"),), source="memory.md")
    spoken = read_turn((recalled, other))
    assert spoken.recalled.holds("I like tea")
    assert not spoken.recalled.holds("I like rum")


def test_text_in_the_archive_is_left_out() -> None:
    far = TextualContent(Reference("0" * 64, 9))
    near = TextualContent("near")
    assert text_in(UserCanister(contents=(far, near, near))) == "\nnear\nnear"
    assert text_in(AssistantCanister(contents=(near, near))) == "nearnear"


def test_an_entrys_identity_is_of_its_conversation_and_role() -> None:
    said = UserCanister.from_text("Hi")
    one = identity_of(said, "c1", Role.USER)
    assert one == identity_of(said, "c1", Role.USER)
    assert len({one, identity_of(said, "c2", Role.USER), identity_of(said, "c1", Role.FACT)}) == 3
