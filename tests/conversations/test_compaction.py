"""A conversation that fills its window is compacted: nothing stored changes, and it goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from vibe_llms import (
    Canister,
    Controls,
    Conversation,
    ElicitationAnswer,
    ElicitationRequest,
    Invoker,
    Session,
    Turn,
    open_session,
)
from vibe_llms.base.exceptions import (
    BudgetExceeded,
    ContextOverflow,
    ConversationNotFound,
    ForkPointInvalid,
    ProviderOverloaded,
)
from vibe_llms.conversations.context_view import HEADING, ContextView
from vibe_llms.conversations.context_window import CHARACTERS_PER_TOKEN
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.messages.canisters import (
    AssistantCanister,
    DigestCanister,
    InvocationCanister,
    ResultCanister,
    StopReason,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import FileContent, TextualContent
from vibe_llms.messages.events import Event, Notice, NoticeEvent
from vibe_llms.providers.scripted.client import ScriptedModel
from vibe_llms.providers.scripted.scripts import Part, ScriptedReply
from vibe_llms.testing import scripted_model
from vibe_llms.transcripts.exports import export

WINDOW = 4_000
ORDER = "[This message is from the program"
SUMMARY = """\
## Goal
Build a boat.
## Instructions that still hold
- Never use tar.
## State
The keel is laid."""
TALK = "All is well. " * 150


def reply(text: str, **given: Any) -> ScriptedReply:
    return ScriptedReply(parts=(Part(text=text),), **given)


def is_order(canisters: Sequence[Canister]) -> bool:
    last = canisters[-1]
    return isinstance(last, UserCanister) and last.text.startswith(ORDER)


class Script:
    """A model's replies: `summary` to the program's order, `talk` to everything else."""

    def __init__(self, summary: str | ScriptedReply = SUMMARY, talk: str = TALK) -> None:
        self.summary = summary if isinstance(summary, ScriptedReply) else reply(summary)
        self.talk = talk
        self.orders = 0
        #: Names of the tools of each request, and the calls to make next.
        self.offered: list[list[str]] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, canisters: Sequence[Canister], tools: Sequence[Invoker]) -> ScriptedReply:
        self.offered.append([one.name for one in tools])
        if is_order(canisters):
            self.orders += 1
            return self.summary
        if self.calls:
            name, arguments = self.calls.pop(0)
            return ScriptedReply(parts=(Part(invocation=name, arguments=arguments),))
        return reply(self.talk)


class Heard(list[Notice]):
    """An event handler that keeps notices about the context."""

    def __bool__(self) -> bool:
        return True

    def __call__(self, event: Event) -> None:
        if isinstance(event, NoticeEvent) and event.notice.subject == "context":
            self.append(event.notice)


def digests_of(conversation: Conversation) -> list[DigestCanister]:
    return [one for one in conversation.canisters if isinstance(one, DigestCanister)]


def sent_texts(model: ScriptedModel, request: int = -1) -> list[str]:
    """The texts of a request's messages."""
    return [
        "".join(one.get("text", "") for one in message.get("contents", ()))
        for message in model.requests[request]["messages"]
    ]


def produce_model(script: Script, window: int | None = WINDOW) -> ScriptedModel:
    return scripted_model(script, context_tokens=window)


async def fill(conversation: Conversation, turns: int = 8, text: str = "Message {}.") -> None:
    for number in range(turns):
        await conversation.converse(text.format(number))


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return open_session(home=tmp_path, configuration={"storage": {"durability": "fast"}})


async def test_a_conversation_goes_on_beyond_its_window_and_keeps_every_message(
    session: Session,
) -> None:
    script, heard = Script(), Heard()
    model = produce_model(script)
    async with session:
        conversation = await session.begin(model, supervisor="Be brief.", event_handler=heard)
        await conversation.converse("Build a boat of oak.")
        await fill(conversation, 40)
        said = conversation.canisters
        assert [one.text for one in said if isinstance(one, UserCanister)][1:] == [
            f"Message {number}." for number in range(40)
        ]
        made = digests_of(conversation)
        assert 6 <= len(made) <= 14
        # So small a window has no room for the order, so the history is summarized in parts.
        assert len(made) <= script.orders <= len(made) * 3
        for digest in made:
            assert digest.before > digest.after
            assert digest.after < WINDOW * 0.5
            assert digest.provenance is not None
            assert digest.ending is not None
            assert digest.ending.usage is not None
            assert said.index(digest) > [one.identity for one in said].index(digest.last)
        for request in range(len(model.requests)):
            texts = sent_texts(model, request)
            assert texts[0] == "Be brief."
            assert "Build a boat of oak." in texts
        texts = sent_texts(model)
        assert any(text.startswith(HEADING) for text in texts)
        assert texts[-1] == "Message 39."
    assert heard[0].text.startswith("compacting the conversation: it has about 3,")
    assert [one.canister for one in heard if one.canister] == [one.identity for one in made]


async def test_the_order_rides_on_the_request_that_the_provider_has_cached(
    session: Session,
) -> None:
    script = Script()
    model = produce_model(script, window=40_000)
    async with session:
        conversation = await session.begin(model)
        await fill(conversation, 65)
    place = next(
        number
        for number, request in enumerate(model.requests)
        if sent_texts(model, number)[-1].startswith(ORDER)
    )
    before, order = model.requests[place - 1], model.requests[place]
    assert order["messages"][: len(before["messages"])] == before["messages"]
    # The reply to the request before, and the order.
    assert len(order["messages"]) == len(before["messages"]) + 2
    assert (order["tools"], order["controls"]) == (before["tools"], before["controls"])


async def test_another_session_continues_with_the_same_request(
    tmp_path: Path, session: Session
) -> None:
    model = produce_model(Script())
    async with session:
        conversation = await session.begin(model)
        await fill(conversation, 12)
        expected = json.loads(await conversation.preview("More"))
    again = produce_model(Script())
    async with open_session(home=tmp_path) as other:
        resumed = await other.resume(conversation.identity, model=again)
        assert json.loads(await resumed.preview("More"))["messages"] == expected["messages"]
        assert resumed.canisters == conversation.canisters


async def test_a_fork_from_before_a_digest_and_an_undo_have_all_messages(
    session: Session,
) -> None:
    model = produce_model(Script())
    async with session:
        conversation = await session.begin(model)
        await fill(conversation, 8)
        place = conversation.canisters.index(digests_of(conversation)[0])
        before = await conversation.fork(at=place - 1)
        assert not digests_of(before)
        assert json.loads(await before.preview("x"))["messages"][1]["contents"][0]["text"] == TALK
        after = await conversation.fork(at=place)
        assert digests_of(after)
        assert any(HEADING in str(one) for one in json.loads(await after.preview("x"))["messages"])
        # The digest came before the prompt of its turn, so undoing the turn keeps it.
        undone = await conversation.undo(1)
        assert len(digests_of(undone)) == len(digests_of(conversation))


async def test_search_and_export_show_the_messages_and_not_only_the_digest(
    session: Session,
) -> None:
    script = Script("## Goal\nBuild a catamaran.\n## State\nThe keel is laid.")
    async with session:
        conversation = await session.begin(produce_model(script))
        await conversation.converse("The sails are crimson.")
        await fill(conversation, 8)
        assert digests_of(conversation)
        found = await session.search("crimson")
        assert [one.conversation for one in found] == [conversation.identity]
        assert not await session.search("catamaran")
        text = await export(conversation.canisters, session.archive, "md")
        assert "The sails are crimson." in text
        assert "Summary of earlier messages" in text
        assert "catamaran" in await export(conversation.canisters, session.archive, "html")


async def test_within_a_turn_old_results_become_lines_and_pairs_stay_together(
    session: Session,
) -> None:
    script, heard = Script(talk="Done."), Heard()
    script.calls = [("look", {"path": f"notes/{number}.txt"}) for number in range(9)]
    model = produce_model(script, window=6_000)

    def look(path: str) -> str:
        return f"{path}: " + "the sea is calm and the wind is low. " * 50

    async with session:
        conversation = await session.begin(model, invokers=[look], event_handler=heard)
        turn = await conversation.converse("Read my notes.")
        assert turn.text == "Done."
        [*_, digest] = made = digests_of(conversation)
        assert all(one in turn.canisters for one in made)
        assert digest.shortened
        for name, text in digest.shortened.items():
            assert "Result of look left out" in text
            assert name in text
        results = [one for one in conversation.canisters if isinstance(one, ResultCanister)]
        assert all(len(one.text) > 1_000 for one in results)
    for request in model.requests:
        messages = request["messages"]
        for place, one in enumerate(messages):
            if one["role"] == "result":
                assert messages[place - 1]["role"] == "invocation"
    # Offered only once it can be needed.
    assert "reread" not in script.offered[0]
    assert "reread" in script.offered[-1]


@pytest.mark.parametrize(
    ("summary", "why"),
    [
        (reply(" "), "it is empty"),
        (reply("Ok."), "it has none of the sections"),
        (reply(SUMMARY, stop_reason=StopReason.LENGTH), "cut off at the length limit"),
        (reply(SUMMARY, stop_reason=StopReason.REFUSED), "it ended as refused"),
        (reply(SUMMARY + "\nmore words" * 3_000), "it is longer than"),
        (ScriptedReply(parts=(Part(error="overloaded", message="busy"),)), "busy"),
        (ScriptedReply(parts=(Part(error="unreachable", message="cut"),)), "cut"),
        (ScriptedReply(parts=(Part(error="context-overflow"),)), ""),
    ],
)
async def test_a_summary_that_cannot_be_used_is_reported_and_the_conversation_goes_on(
    session: Session, summary: ScriptedReply, why: str
) -> None:
    heard = Heard()
    model = produce_model(Script(summary))
    async with session:
        conversation = await session.begin(model, event_handler=heard)
        await fill(conversation, 14)
        assert len([one for one in conversation.canisters if isinstance(one, UserCanister)]) == 14
        rejected = [one.text for one in heard if "summary is not used" in one.text]
        assert rejected
        assert why in rejected[0]
        # Without a usable summary, the program's own replaces the messages when nothing else fits.
        [digest, *_] = digests_of(conversation)
        assert digest.provenance is None
        assert digest.last


async def test_controls_of_replies_do_not_cut_or_shape_a_summary(session: Session) -> None:
    def look() -> str:
        return "sea"

    script = Script()
    model = produce_model(script)
    controls = Controls(stop=("##",), output_tokens=50, temperature=0.5)
    schema = {"type": "object", "properties": {"x": {"type": "string"}}}
    async with session:
        conversation = await session.begin(model, invokers=[look], controls=controls)
        await fill(conversation, 5)
        script.talk = '{"x": "' + TALK + '"}'
        for _ in range(4):
            await conversation.converse("More.", output=schema, controls=Controls(top_k=3))
        assert digests_of(conversation)[0].provenance is not None
    orders = [one for one in model.requests if ORDER in str(one["messages"][-1])]
    assert orders
    for request in orders:
        assert request["controls"].keys() <= {"temperature", "top-k"}


async def test_a_model_that_cannot_summarize_is_not_asked_each_time(session: Session) -> None:
    script = Script("Ok.")
    async with session:
        conversation = await session.begin(produce_model(script))
        await fill(conversation, 40)
        asked = script.orders
        assert len(digests_of(conversation)) > 5
        await fill(conversation, 20)
        assert script.orders == asked
        # The user may ask again.
        await conversation.compact()
        assert script.orders > asked


async def test_a_budget_that_forbids_the_summary_does_not_end_the_conversation(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, model = Heard(), produce_model(Script())
    converse = model.converse

    async def refuse(canisters: Sequence[Canister], *given: Any) -> Any:
        if is_order(canisters):
            raise BudgetExceeded("the budget of 'me' is used up", user="me")
        return await converse(canisters, *given)

    monkeypatch.setattr(model, "converse", refuse)
    async with session:
        conversation = await session.begin(model, event_handler=heard)
        await fill(conversation, 12)
        assert digests_of(conversation)
    assert any("the budget of 'me' is used up" in one.text for one in heard)


async def test_a_window_that_is_ten_times_too_large_is_learned_from_the_error(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider refuses what the attributes promise, and says how much it accepts, or not."""
    heard, model = Heard(), produce_model(Script())
    monkeypatch.setattr(model, "attributes", type(model.attributes)(context_tokens=WINDOW * 10))
    async with session:
        conversation = await session.begin(model, event_handler=heard)
        await fill(conversation, 20)
        assert digests_of(conversation)
        assert len([one for one in conversation.canisters if isinstance(one, UserCanister)]) == 20
        assert session.windows.recall(model) == WINDOW
    assert not any("too long" in one.text for one in heard)


async def test_a_reply_limit_that_does_not_fit_is_not_taken_for_a_long_history(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some servers count the longest reply with the history."""
    script, heard = Script(), Heard()
    model = produce_model(script, window=100_000)
    async with session:
        conversation = await session.begin(model, event_handler=heard)
        await fill(conversation, 4)
        error = ContextOverflow("too long", provider="scripted")
        error.tokens, error.limit, error.input_tokens = 9_000, 8_192, 1_000

        async def refuse(*given: Any) -> Any:
            raise error

        monkeypatch.setattr(model, "converse", refuse)
        with pytest.raises(ContextOverflow):
            await conversation.converse("Go on.")
        assert not digests_of(conversation)
        assert script.orders == 0
    assert "set fewer output-tokens" in heard[0].text


async def test_an_interrupted_summary_is_not_a_failed_one(session: Session) -> None:
    script = Script(ScriptedReply(parts=(Part(stall=True),)))
    async with session:
        conversation = await session.begin(produce_model(script))
        await fill(conversation, 5)
        for number in range(4):
            task = asyncio.create_task(conversation.compact())
            while script.orders == number:
                await asyncio.sleep(0)
            await conversation.cancel()
            await task
        script.summary = reply(SUMMARY)
        await fill(conversation, 5)
        assert digests_of(conversation)[0].provenance is not None


async def test_a_single_message_beyond_the_window_is_an_error_and_changes_nothing(
    session: Session,
) -> None:
    model = produce_model(Script())
    async with session:
        conversation = await session.begin(model)
        await fill(conversation, 2)
        said = conversation.canisters
        with pytest.raises(ContextOverflow):
            await conversation.converse("x " * WINDOW * 3)
        assert [one for one in conversation.canisters if not isinstance(one, DigestCanister)] == [
            *said
        ]
        await conversation.converse("Go on.")


@pytest.mark.parametrize(
    ("error", "raised"), [("overloaded", ProviderOverloaded), ("malformed", None)]
)
async def test_an_error_of_the_provider_is_for_the_user_who_asked_for_a_digest(
    session: Session, error: str, raised: type[Exception] | None
) -> None:
    part = Part(error=error) if raised else Part(text="")
    script = Script(ScriptedReply(parts=(part,)))
    async with session:
        conversation = await session.begin(produce_model(script, window=100_000))
        await fill(conversation, 8)
        said = conversation.canisters
        if raised is None:
            assert (await conversation.compact()).canisters == ()
        else:
            with pytest.raises(raised):
                await conversation.compact()
        assert conversation.canisters == said


@pytest.mark.parametrize("mode", ["off", "ask"])
async def test_nothing_is_compacted_unless_somebody_agrees(session: Session, mode: Any) -> None:
    heard = Heard()
    model = produce_model(Script())
    async with session:
        conversation = await session.begin(model, context_mode=mode, event_handler=heard)
        with pytest.raises(ContextOverflow):
            await fill(conversation, 14)
        assert not digests_of(conversation)
        assert len(heard) == 1 or mode == "ask"
        assert all("compact it" in one.text for one in heard)
        turn = await conversation.compact()
        assert turn.canisters == tuple(digests_of(conversation))
        await conversation.converse("Go on.")


@pytest.mark.parametrize("agrees", [True, False])
async def test_in_the_mode_ask_the_user_decides(tmp_path: Path, agrees: bool) -> None:
    asked: list[str] = []

    def answer(question: ElicitationRequest) -> ElicitationAnswer:
        asked.append(question.message)
        return ElicitationAnswer("accept", {"compact": agrees})

    async with open_session(
        home=tmp_path, elicitor=answer, configuration={"context": {"mode": "ask"}}
    ) as session:
        conversation = await session.begin(produce_model(Script()))
        await fill(conversation, 8)
        assert asked
        assert "of the 4,000 tokens" in asked[0]
        assert bool(digests_of(conversation)) == agrees


async def test_the_user_compacts_with_a_wish_whenever_it_helps(session: Session) -> None:
    script, heard = Script(), Heard()
    model = produce_model(script, window=100_000)
    async with session:
        conversation = await session.begin(model, event_handler=heard)
        await conversation.converse("Hello.")
        turn = await conversation.compact("keep the names of ships")
        assert (turn.canisters, turn.stop_reason) == ((), StopReason.FINISHED)
        assert "too short" in heard[-1].text
        await fill(conversation, 10)
        turn = await conversation.compact("keep the names of ships")
        [digest] = turn.canisters
        assert isinstance(digest, DigestCanister)
        assert turn.usage.input_tokens > 1_000
        assert "keep the names of ships" in sent_texts(model)[-1]
        await conversation.converse("And now?")
        assert len(sent_texts(model)) < 12


async def test_a_compaction_can_be_cancelled_and_leaves_nothing(session: Session) -> None:
    script = Script(ScriptedReply(parts=(Part(stall=True),)))
    async with session:
        conversation = await session.begin(produce_model(script))
        await fill(conversation, 5)
        said = conversation.canisters
        task = asyncio.create_task(conversation.compact())
        while not script.orders:
            await asyncio.sleep(0)
        await conversation.cancel()
        assert (await task).stop_reason == StopReason.INTERRUPTED
        assert conversation.canisters == said


async def test_pinned_messages_are_in_every_request(session: Session) -> None:
    model = produce_model(Script())
    async with session:
        conversation = await session.begin(model)
        await fill(conversation, 2)
        await conversation.converse("Never sell the anchor.")
        pinned = conversation.canisters[-2]
        await conversation.pin(pinned.identity)
        start = len(model.requests)
        await fill(conversation, 30)
        assert len(digests_of(conversation)) > 2
        for request in range(start, len(model.requests)):
            assert "Never sell the anchor." in sent_texts(model, request)


async def test_instructions_and_decisions_are_carried_over_until_they_are_withdrawn(
    session: Session,
) -> None:
    script = Script("## Goal\nBoat\n## Decisions\n- Oak, because it lasts.")
    model = produce_model(script)
    async with session:
        conversation = await session.begin(model)
        await fill(conversation, 8)
        script.summary = reply("## Goal\nShip\n## Instructions that still hold\n- Be quick.")
        await fill(conversation, 8)
        digest = digests_of(conversation)[-1]
        text = digest.text if len(digest.text) < 1024 else ""
        assert "Ship" in text
        assert "- Oak, because it lasts." in text
        assert "- Be quick." in text
        script.summary = reply("## Goal\nShip\n## No longer valid\n- Oak, because it lasts.")
        await fill(conversation, 8)
        assert "Oak" not in digests_of(conversation)[-1].text


async def test_the_names_of_files_come_from_the_calls(session: Session) -> None:
    script = Script(talk="Done. " * 100)
    model = produce_model(script)

    def write_file(path: str, text: str) -> str:
        return "written"

    async with session:
        conversation = await session.begin(model, invokers=[write_file])
        for number in range(14):
            script.calls = [("write_file", {"path": f"src/part{number}.py", "text": "1.5 x"})]
            await conversation.converse(f"Write part {number}.")
        text = digests_of(conversation)[-1].text
        assert "## Files and sources" in text
        assert "- src/part0.py (write_file)" in text
        assert "1.5" not in text


async def test_a_history_edited_around_a_digest_is_sent_whole_with_a_notice(
    session: Session,
) -> None:
    heard = Heard()
    async with session:
        conversation = await session.begin(produce_model(Script()))
        await fill(conversation, 8)
        digest = digests_of(conversation)[0]
        left = [one for one in conversation.canisters if one.identity != digest.last]
        model = produce_model(Script(), window=100_000)
        edited = await session.begin(model, history=left, event_handler=heard)
        await edited.converse("Go on.")
        texts = sent_texts(model)
        assert sum(text.startswith("Message ") for text in texts) == 8
        assert not any(HEADING in text for text in texts)
    assert [one.canister for one in heard] == [digest.identity]
    assert "were changed" in heard[0].text


async def test_a_model_that_calls_tools_in_place_of_a_summary_is_asked_without_tools(
    session: Session,
) -> None:
    def look() -> str:
        return "sea"

    class Calling(Script):
        def __call__(self, canisters: Any, tools: Any) -> ScriptedReply:
            if is_order(canisters) and tools:
                return ScriptedReply(parts=(Part(invocation="look"),))
            return super().__call__(canisters, tools)

    async with session:
        conversation = await session.begin(produce_model(Calling()), invokers=[look])
        await fill(conversation, 8)
        assert digests_of(conversation)[0].provenance is not None
        assert not any(isinstance(one, ResultCanister) for one in conversation.canisters)


async def test_a_long_imported_history_is_summarized_in_parts(session: Session) -> None:
    """No request may have more than the window, although the history has five times as much."""
    history: list[Canister] = [SupervisorCanister.from_text("Be brief.")]
    for number in range(60):
        history += [
            UserCanister.from_text(f"Question {number}. " * 20),
            AssistantCanister.from_text(f"Answer {number}. " * 60),
        ]
    script = Script()
    async with session:
        model = produce_model(script)
        conversation = await session.begin(model, history=history)
        assert (await conversation.converse("And now?")).text == TALK
        assert script.orders > 2
        assert len(digests_of(conversation)) == 1


async def test_a_turn_counts_the_usage_of_its_digest(session: Session) -> None:
    used = reply(SUMMARY, usage=None)
    async with session:
        conversation = await session.begin(produce_model(Script(used)))
        turn = await conversation.converse("More.")
        while not (made := [one for one in turn.canisters if isinstance(one, DigestCanister)]):
            turn = await conversation.converse("More.")
        [digest] = made
        assert digest.ending is not None
        assert digest.ending.usage is not None
        answer = turn.canisters[-1]
        assert isinstance(answer, AssistantCanister)
        assert answer.ending is not None
        assert answer.ending.usage is not None
        assert turn.usage == digest.ending.usage + answer.ending.usage


async def test_the_next_request_says_what_fills_the_window(session: Session) -> None:
    def look() -> str:
        return "sea " * 100

    script = Script()
    async with session:
        model = produce_model(script)
        conversation = await session.begin(model, supervisor="Be brief.", invokers=[look])
        script.calls = [("look", {})]
        await conversation.converse("Look.")
        use = await conversation.measure_context()
        assert sum(use.parts.values()) == use.tokens
        assert use.window == WINDOW
        assert use.compact_at == 3_200
        assert use.free == WINDOW - use.tokens
        assert all(use.parts[name] for name in ("system", "tools", "results", "talk"))
        assert not use.parts["digest"]
        await fill(conversation, 10)
        use = await conversation.measure_context()
        assert use.parts["digest"]
        assert use.covered


async def test_a_pinned_result_keeps_its_call_also_if_it_is_summarized_already(
    session: Session,
) -> None:
    def look() -> str:
        return "the depth is 12 fathoms"

    script = Script()
    async with session:
        conversation = await session.begin(produce_model(script), invokers=[look])
        script.calls = [("look", {})]
        await conversation.converse("How deep is it?")
        [result] = [one for one in conversation.canisters if isinstance(one, ResultCanister)]
        await fill(conversation, 10)
        with pytest.raises(ConversationNotFound, match="message 'x' not found"):
            await conversation.pin("x")
        await conversation.pin(result.identity)
        for _ in range(12):
            shown = ContextView().apply(conversation.canisters)
            assert result in shown
            calls = [one.identity for one in shown if isinstance(one, InvocationCanister)]
            assert calls == [result.invocation]
            await conversation.converse("Go on.")


async def test_a_summary_that_is_too_long_is_cut(session: Session) -> None:
    script = Script(f"{SUMMARY} {'The keel is laid. ' * 150}")
    async with session:
        conversation = await session.begin(produce_model(script))
        await fill(conversation, 30)
        made = digests_of(conversation)
        assert made
        for digest in made:
            assert len(digest.text) <= WINDOW * 0.1 * 3
            assert "Never use tar." in digest.text
            assert digest.after < WINDOW / 2


async def test_a_message_of_the_user_is_stored_if_the_summary_before_it_is_interrupted(
    session: Session,
) -> None:
    script = Script(ScriptedReply(parts=(Part(stall=True),)))
    model = produce_model(script)

    async def talk() -> Turn[None]:
        while (turn := await conversation.converse("Go on.")).stop_reason == StopReason.FINISHED:
            pass
        return turn

    async with session:
        conversation = await session.begin(model)
        talking = asyncio.create_task(talk())
        while not script.orders:
            await asyncio.sleep(0)
        await conversation.cancel()
        assert (await talking).stop_reason == StopReason.INTERRUPTED
        assert isinstance(conversation.canisters[-1], UserCanister)
        script.summary = reply(SUMMARY)
        assert (await conversation.converse()).stop_reason == StopReason.FINISHED
        assert sent_texts(model)[-1] == "Go on."


async def test_a_turn_counts_a_summary_that_is_not_used(session: Session) -> None:
    model = produce_model(Script(summary="no"), 40_000)
    async with session:
        conversation = await session.begin(model)
        await fill(conversation, 8)
        turn = await conversation.compact()
    assert turn.canisters == ()
    assert turn.usage.input_tokens > 1_000


async def test_calls_and_results_are_not_separated_although_a_digest_is_between(
    session: Session,
) -> None:
    script = Script()
    elsewhere = Invoker.from_declaration("elsewhere", {"type": "object", "properties": {}})
    async with session:
        conversation = await session.begin(produce_model(script, 40_000), invokers=[elsewhere])
        await fill(conversation, 8)
        script.calls = [("elsewhere", {})]
        await conversation.converse("Ask them.")
        call = conversation.canisters[-1]
        assert (await conversation.compact()).canisters
        result = ResultCanister((TextualContent("42"),), invocation=call.identity)
        await conversation.converse([result])
        digest = digests_of(conversation)[0]
        for identity in (call.identity, digest.identity):
            with pytest.raises(ForkPointInvalid):
                await conversation.fork(identity)
        assert (await conversation.fork(call.identity, open_calls=True)).canisters[-1] == call


async def test_undo_keeps_what_is_pinned(session: Session) -> None:
    async with session:
        conversation = await session.begin(produce_model(Script()))
        await fill(conversation, 3)
        first, last = conversation.canisters[0], conversation.canisters[-1]
        await conversation.pin(first.identity, last.identity)
        assert digests_of(await conversation.undo())[-1].pinned == (first.identity,)


async def test_a_digest_shortens_documents_that_the_model_reads_as_text(session: Session) -> None:
    script, heard = Script(), Heard()
    model: Any = produce_model(script, 30_000)
    model.attributes = msgspec.structs.replace(model.attributes, accepts=("image",))

    def fetch(number: int) -> InvocationOutput:
        """Fetch a file."""
        data = b"%d " % number + b"The tide table says seven. " * 300
        return InvocationOutput((FileContent(data, "application/json", f"tide{number}.json"),))

    async with session:
        conversation = await session.begin(model, invokers=[fetch], event_handler=heard)
        for number in range(16):
            script.calls = [("fetch", {"number": number})]
            await conversation.converse(f"Fetch {number}")
            assert sum(map(len, sent_texts(model))) < 30_000 * CHARACTERS_PER_TOKEN
        shortened = {name for digest in digests_of(conversation) for name in digest.shortened}
        results = {
            one.identity for one in conversation.canisters if isinstance(one, ResultCanister)
        }
        assert shortened & results
        assert any("left out" in text for text in sent_texts(model))
