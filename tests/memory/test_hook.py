"""Memory in conversations: recalled before a turn, taken in after it, lost never."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from tests.fakes.askers import ScriptedAsker, names_repeats
from tests.fakes.loading import SlowEmbedder, loads
from tests.fakes.models import LONG, model_of, says
from tests.fakes.postgres import access_cluster, temporary_database
from vibe_llms import synchronous
from vibe_llms.base.configuration import LOCAL, load_configuration
from vibe_llms.base.exceptions import ConfigurationError, ProviderError, StorageError
from vibe_llms.conversations.asking import ModelAsker
from vibe_llms.conversations.hosts import HookHost
from vibe_llms.invocation.approval import Decision
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.memory.core import Memory
from vibe_llms.memory.deduplication import Deduplication
from vibe_llms.memory.entries import Role, Scope
from vibe_llms.memory.hook import MemoryHook, produce_hook
from vibe_llms.memory.journal import Journal
from vibe_llms.memory.postgres_journal import PostgresJournal
from vibe_llms.memory.settings import MemorySettings
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.events import Event, Notice, NoticeEvent, ignore_events
from vibe_llms.opening import open_session
from vibe_llms.providers.provider_pool import Providers
from vibe_llms.session.core import Session
from vibe_llms.storage.backends import open_backend
from vibe_llms.storage.postgres.blocking import BlockingDatabase
from vibe_llms.storage.postgres.settings import PostgresSettings
from vibe_llms.testing import Part, ScriptedModel, ScriptedReply, scripted_model

ME = Scope.of_user("me")
FAST: dict[str, Any] = {"storage": {"durability": "fast"}}


def improvise(canisters: Sequence[Canister], tools: Sequence[Invoker]) -> ScriptedReply:
    """Answers people, and questions for facts: each sentence that begins with My is one."""
    words = canisters[-1].text  # type: ignore[union-attr]
    head, said = words.partition(":\n\n")[::2]
    if head.startswith("The user said"):
        facts = [
            {"statement": f"The user's {line.removeprefix('My ')}"}
            for line in said.splitlines()
            if line.startswith("My ")
        ]
        return says(json.dumps({"facts": facts}))
    if words.startswith("1. "):
        return says(msgspec.json.encode(names_repeats(words)).decode())
    if words.startswith("fail"):
        return ScriptedReply(parts=(Part(error="overloaded"),))
    if words.startswith("wait"):
        return ScriptedReply(parts=(Part(text=("It ", "is ")), LONG))
    return says("That is good to know about it.")


def model() -> ScriptedModel:
    return scripted_model(improvise)


async def stored(home: Path, role: Role = Role.FACT, scope: Scope | None = None) -> list[str]:
    memory = Memory(home / "memory")
    return [entry.content for entry in await memory.survey(scope, role=role)]


def notices(events: Sequence[Event]) -> list[str]:
    return [event.notice.text for event in events if isinstance(event, NoticeEvent)]


def slow_embedder(folder: Path) -> dict[str, Any]:
    """Settings with an embedder that is ready when a file `gate` is in the folder."""
    row = {"module": "tests.fakes.loading", "folder": str(folder)}
    memory = {"embedder": "loading", "recall": {"seconds": 0.3}}
    return {**FAST, "embedders": {"loading": row}, "memory": memory}


async def test_words_alone_answer_where_the_embedder_is_not_ready(
    home: Path, tmp_path: Path
) -> None:
    memory = Memory(home / "memory")
    await memory.add("The cat is called Tom", scope=ME)
    events: list[Event] = []
    async with open_session(
        home=home, configuration=slow_embedder(tmp_path), event_handler=events.append
    ) as session:
        conversation = await session.begin(model(), memory=True)
        for _ in range(2):
            await conversation.converse("What is the cat called?")
        assert isinstance(conversation.canisters[0], DocumentCanister)
        assert "cat is called Tom" in conversation.canisters[0].text
        session.background.cancel()
    late = [text for text in notices(events) if "by words only" in text]
    why = "the embedder slow was not ready within 0.3 s"
    remedy = "to keep it loaded: vibe-llms memory serve-embedder"
    assert late == [f"recalled by words only: {why}; {remedy}"]


async def test_vectors_join_when_they_are_ready(home: Path, tmp_path: Path) -> None:
    memory = Memory(home / "memory")
    await memory.add("The cat is called Tom", scope=ME)
    settings = slow_embedder(tmp_path)
    settings["memory"]["recall"]["seconds"] = 60.0
    async with open_session(home=home, configuration=settings) as session:
        # It loads from the beginning, before anything is said.
        conversation = await session.begin(model(), memory=True)
        async with asyncio.timeout(60):
            while not loads(tmp_path):
                await asyncio.sleep(0.01)
        asked = asyncio.create_task(conversation.converse("What is the cat called?"))
        (tmp_path / "gate").touch()
        turn = await asked
        assert isinstance(turn.canisters[0], DocumentCanister)
    assert loads(tmp_path) == [os.getpid()] * len(loads(tmp_path))
    again = Memory(home / "memory", embedder=SlowEmbedder(tmp_path))
    entries = await again.survey(ME)
    assert len(await again.read_vectors(entries)) == len(entries)
    await again.close()


async def test_nothing_is_loaded_for_an_empty_memory(home: Path, tmp_path: Path) -> None:
    async with open_session(home=home, configuration=slow_embedder(tmp_path)) as session:
        conversation = await session.begin(model(), memory=True, save=False)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not loads(tmp_path)
        del conversation


# What a user sees.


async def test_what_was_said_once_is_recalled_in_another_conversation(home: Path) -> None:
    async with open_session(home=home, configuration=FAST) as session:
        first = await session.begin(model(), memory=True)
        await first.converse("My cat is called Tom.")
        assert [type(one) for one in first.canisters] == [UserCanister, AssistantCanister]
    assert await stored(home) == ["The user's cat is called Tom."]
    async with open_session(home=home, configuration=FAST) as session:
        speaker = model()
        second = await session.begin(speaker, memory=True)
        turn = await second.converse("What is my cat called?")
        document = turn.canisters[0]
        assert isinstance(document, DocumentCanister)
        assert "The user's cat is called Tom." in document.text
        assert "cat is called Tom" in str(speaker.requests[0]["messages"][0])
        # It is in the history from now on.
        await second.converse("And is the cat called Tom or not?")
        assert sum(isinstance(one, DocumentCanister) for one in second.canisters) == 1
    assert await stored(home) == ["The user's cat is called Tom."]


async def test_turns_lie_in_the_scope_of_their_conversation(home: Path) -> None:
    async with open_session(home=home, configuration=FAST) as session:
        conversation = await session.begin(model(), memory=True)
        await conversation.converse("My cat is called Tom.")
    here = Scope.of_conversation(conversation.identity)
    assert await stored(home, Role.USER, here) == ["My cat is called Tom."]
    assert await stored(home, Role.ASSISTANT, here) == ["That is good to know about it."]


async def test_without_memory_nothing_of_it_is_there(home: Path) -> None:
    async with open_session(home=home, configuration=FAST) as session:
        conversation = await session.begin(model())
        await conversation.converse("My cat is called Tom.")
        assert conversation.hooks == ()
    assert not (home / "memory").exists()
    assert not (home / "ingestion").exists()


async def test_a_conversation_that_is_not_kept_recalls_and_leaves_nothing(home: Path) -> None:
    memory = Memory(home / "memory")
    await memory.add("The cat is called Tom", scope=ME)
    async with open_session(home=home, configuration=FAST) as session:
        conversation = await session.begin(model(), memory=True, save=False)
        turn = await conversation.converse("My cat is called?")
        assert isinstance(turn.canisters[0], DocumentCanister)
        assert session.background.pending == 0
    assert await stored(home, Role.USER) == []
    assert not (home / "ingestion").exists()


async def test_a_conversation_that_goes_on_may_have_it(home: Path) -> None:
    memory = Memory(home / "memory")
    await memory.add("The cat is called Tom", scope=ME)
    async with open_session(home=home, configuration=FAST) as session:
        conversation = await session.begin("scripted/demo")
        await conversation.converse("Hello!")
        again = await session.resume(conversation.identity, memory=True)
        turn = await again.converse("What is the cat called?")
        assert isinstance(turn.canisters[0], DocumentCanister)
        assert again.hooks[0] is session.access_memory()


def test_without_await_it_is_the_same(home: Path) -> None:
    with synchronous.open_session(home=home, configuration=FAST) as session:
        conversation = session.begin(model(), memory=True)
        conversation.converse("My cat is called Tom.")
        session.background.wait()
        assert session.background.pending == 0
        other = session.begin(model(), memory=True)
        turn = other.converse("What is my cat called?")
        assert isinstance(turn.canisters[0], DocumentCanister)
        other.remove_hook("memory")
        assert not other.hooks
        other.add_hook(session.access_memory())
        assert [one.name for one in other.hooks] == ["memory"]


async def test_in_the_mode_of_tools_the_model_has_tools_instead(home: Path) -> None:
    settings = {**FAST, "memory": {"mode": "tools"}}
    async with open_session(home=home, configuration=settings) as session:
        conversation = await session.begin(model(), memory=True)
        assert conversation.hooks == ()
        assert sorted(conversation.invokers) == [
            "memory/delete_memories", "memory/search_memories", "memory/store_memory"
        ]  # fmt: skip


@pytest.mark.parametrize(
    "memory",
    [{"mode": "both"}, {"recall": {"limit": 0}}, {"recall": {"x": 1}}, {"drain-seconds": 0}],
)
async def test_a_setting_that_is_wrong_is_named(home: Path, memory: Any) -> None:
    async with open_session(home=home, configuration={"memory": memory}) as session:
        with pytest.raises(ConfigurationError, match="memory"):
            await session.begin(model(), memory=True)


@pytest.mark.parametrize("enabled", ["yes", 1])
def test_whether_it_is_enabled_is_true_or_false(enabled: object) -> None:
    with pytest.raises(ConfigurationError, match="true or false"):
        _ = load_configuration(overrides={"memory": {"enabled": enabled}}).memory_enabled


# Where it comes from.


async def ask_to_send(home: Path, entry: Role) -> int:
    """How often a tool that sends is asked for, where such an entry is recalled."""
    asked: list[str] = []
    sent: list[str] = []

    def approve(request: Any) -> Decision:
        asked.append(request.reason)
        return Decision.ALLOW

    def send() -> str:
        """Send."""
        sent.append("it")
        return "sent"

    tool = Invoker.from_function(send, sends=True)
    speaker = model_of(ScriptedReply(parts=(Part(invocation="send"),)), says("Done."))
    async with open_session(home=home, configuration=FAST, approver=approve) as session:
        conversation = await session.begin(speaker, memory=True, invokers=[tool], save=False)
        hook = session.access_memory()
        assert isinstance(hook, MemoryHook)
        here = Scope.of_conversation(conversation.identity)
        scope = here if entry == Role.SUMMARY else ME
        await hook.memory.add("The cat is called Tom", scope=scope, role=entry, category="L3")
        turn = await conversation.converse("Send the cat")
        assert isinstance(turn.canisters[0], DocumentCanister)
    assert sent == ["it"]
    return len(asked)


async def test_what_the_person_said_does_not_make_tools_ask(home: Path) -> None:
    assert await ask_to_send(home, Role.FACT) == 0
    assert await ask_to_send(home, Role.USER) == 0


async def test_what_a_model_said_makes_tools_ask_that_send(home: Path) -> None:
    assert await ask_to_send(home, Role.ASSISTANT) == 1


async def test_what_a_summary_says_makes_tools_ask_that_send(home: Path) -> None:
    # It is of what an assistant said too, and so perhaps of a page that it read.
    assert await ask_to_send(home, Role.SUMMARY) == 1


# Ends of turns.


async def test_a_turn_that_was_interrupted_leaves_what_the_person_said(home: Path) -> None:
    seen = asyncio.Event()

    def see(event: Event) -> None:
        seen.set()

    async with open_session(home=home, configuration=FAST) as session:
        conversation = await session.begin(model(), memory=True, event_handler=see)
        task = asyncio.ensure_future(conversation.converse("wait\nMy cat is called Tom."))
        await seen.wait()
        await conversation.cancel()
        await task
    assert await stored(home) == ["The user's cat is called Tom."]
    assert await stored(home, Role.ASSISTANT) == []


async def test_a_turn_that_failed_is_taken_in_with_the_next(home: Path) -> None:
    async with open_session(home=home, configuration=FAST) as session:
        conversation = await session.begin(model(), memory=True)
        with pytest.raises(ProviderError):
            await conversation.converse("fail\nMy cat is called Tom.")
        assert session.background.pending == 0
        await session.background.wait()
        assert await stored(home) == []
        await conversation.converse("My dog is called Leo.")
        await session.background.wait()
        assert sorted(await stored(home)) == [
            "The user's cat is called Tom.", "The user's dog is called Leo."
        ]  # fmt: skip


async def test_a_turn_that_is_answered_anew_is_taken_in_once(home: Path) -> None:
    async with open_session(home=home, configuration=FAST) as session:
        conversation = await session.begin(model(), memory=True)
        await conversation.converse("My cat is called Tom.")
        again = await conversation.regenerate()
        await again.converse()
    assert await stored(home) == ["The user's cat is called Tom."]


async def test_a_typed_output_is_what_it_is_without_memory(home: Path) -> None:
    async with open_session(home=home, configuration=FAST) as session:
        speaker = scripted_model(
            lambda said, tools: (
                improvise(said, tools) if "notes" in said[0].text else says('{"a": 1}')  # type: ignore[union-attr]
            )
        )
        conversation = await session.begin(speaker, memory=True)
        turn = await conversation.converse("My cat is called Tom.", output=dict[str, int])
        assert turn.output == {"a": 1}
    assert await stored(home) == ["The user's cat is called Tom."]


# What is left undone.


class Report(Struct):
    failures: tuple[str, ...] = ()

    def describe(self) -> Iterable[str]:
        return ("done",)


class Taker:
    """Takes in what it is given, once it may; `failing` turns come to no end."""

    def __init__(self, *, failing: int = 0) -> None:
        self.taken: list[list[str]] = []
        self.gate = asyncio.Event()
        self.begun = asyncio.Event()
        self.failing = failing
        self.asker = ScriptedAsker()

    async def take_in(self, canisters: Sequence[Canister], *, conversation: str) -> Report:
        self.begun.set()
        await self.gate.wait()
        self.taken.append([one.text for one in canisters if isinstance(one, UserCanister)])
        self.failing -= 1
        return Report(("it did not answer",) if self.failing >= 0 else ())


def hook(
    session: Session,
    home: Path,
    taker: Taker,
    *,
    restore: Any = None,
    load: Any = None,
    journal: Any = None,
) -> MemoryHook:
    async def produce(_: object) -> Taker:
        return taker

    async def read(identity: str) -> Sequence[Canister]:
        return (await session.archive.restore(identity)).canisters

    return MemoryHook(
        Memory(home / "memory", durable=False),
        MemorySettings(),
        journal=journal or Journal(home / "ingestion"),
        produce_ingester=produce,
        host=HookHost(
            backend=open_backend(session.configuration),
            user=LOCAL,
            providers=Providers(session.configuration, ignore_events),
            produce_asker=lambda model, tokens: ModelAsker(model, output_tokens=tokens),
            restore=restore or read,
            load=load or session.archive.load_all,
            notify=lambda notice: session.event_handler(NoticeEvent(notice=notice)),
        ),
    )


async def test_a_turn_of_another_server_is_remembered_by_the_one_that_works(home: Path) -> None:
    with temporary_database() as place:
        database = BlockingDatabase(PostgresSettings(dsn=place.dsn))
        async with open_session(home=home, configuration=FAST) as session:
            takers = Taker(), Taker()
            one, other = (
                hook(session, home, taker, journal=PostgresJournal(database, "ada"))
                for taker in takers
            )
            first = await session.begin(model(), hooks=[one])
            await first.converse("One")
            await takers[0].begun.wait()
            second = await session.begin(model(), hooks=[other])
            await second.converse("Two")
            # It is noted when the turn ends, and the other server has the lease.
            assert len(PostgresJournal(database, "ada").survey()) == 2
            takers[0].gate.set()
            takers[1].gate.set()
            await session.background.wait()
            assert (takers[0].taken, takers[1].taken) == ([["One"], ["Two"]], [])
            await second.converse("Three")
            await session.background.wait()
            assert takers[1].taken == [["Three"]]
            assert PostgresJournal(database, "ada").survey() == []
            await one.close()
            await other.close()
        database.close()


class LateJournal(PostgresJournal):
    """A journal whose process begins to remember only when it is told to."""

    def __init__(self, database: BlockingDatabase, user: str) -> None:
        super().__init__(database, user)
        self.gate = threading.Event()

    def begin(self) -> bool:
        assert self.gate.wait(30)
        return super().begin()


async def test_a_turn_that_another_server_has_remembered_is_not_remembered_again(
    home: Path,
) -> None:
    with (
        temporary_database() as place,
        closing(BlockingDatabase(PostgresSettings(dsn=place.dsn))) as database,
    ):
        async with open_session(home=home, configuration=FAST) as session:
            takers = Taker(), Taker()
            late = LateJournal(database, "ada")
            one = hook(session, home, takers[0], journal=PostgresJournal(database, "ada"))
            other = hook(session, home, takers[1], journal=late)
            for taker in takers:
                taker.gate.set()
            second = await session.begin(model(), hooks=[other])
            await second.converse("Two")
            first = await session.begin(model(), hooks=[one])
            await first.converse("One")
            while len(takers[0].taken) < 2:
                await asyncio.sleep(0.01)
            while PostgresJournal(database, "ada").survey():
                await asyncio.sleep(0.01)
            late.gate.set()
            await session.background.wait()
            assert (takers[0].taken, takers[1].taken) == ([["Two"], ["One"]], [])
            # The lease is not kept for it.
            await first.converse("Three")
            await session.background.wait()
            assert takers[0].taken[2:] == [["Three"]]
            await one.close()
            await other.close()


async def test_a_turn_that_cannot_be_noted_is_remembered_with_the_next_one(home: Path) -> None:
    events: list[Event] = []
    with temporary_database() as place:
        database = BlockingDatabase(PostgresSettings(dsn=place.dsn, connect_seconds=1))
        async with open_session(
            home=home, configuration=FAST, event_handler=events.append
        ) as session:
            taker = Taker()
            taker.gate.set()
            one = hook(session, home, taker, journal=PostgresJournal(database, "ada"))
            conversation = await session.begin(model(), hooks=[one])
            access_cluster().execute(f"alter database {place.name} allow_connections false")
            answered = await conversation.converse("One")
            await session.background.wait()
            assert (answered.text, taker.taken) == ("That is good to know about it.", [])
            access_cluster().execute(f"alter database {place.name} allow_connections true")
            await conversation.converse("Two")
            await session.background.wait()
            assert taker.taken == [["One"], ["Two"]]
            assert PostgresJournal(database, "ada").survey() == []
            await one.close()
        database.close()
    noted, worked = notices(events)
    assert noted.startswith("memory could not record this turn: the database cannot be used now")
    assert worked.startswith("memory could not finish its work: the database cannot be used now")


async def test_cancelled_work_is_done_by_the_next_session(home: Path) -> None:
    events: list[Event] = []
    async with open_session(home=home, configuration=FAST, event_handler=events.append) as session:
        stuck = Taker()
        one = hook(session, home, stuck)
        conversation = await session.begin(model(), hooks=[one])
        await conversation.converse("x" * 5000)
        await conversation.converse("Two")
        session.background.cancel()
        await session.background.wait()
        await one.close()
    assert stuck.taken == []
    assert notices(events) == [
        "the work of memory on 2 turns was cancelled; it will resume next time"
    ]
    async with open_session(home=home, configuration=FAST, event_handler=events.append) as session:
        taker = Taker()
        taker.gate.set()
        two = hook(session, home, taker)
        conversation = await session.begin(model(), hooks=[two])
        await conversation.converse("Three")
        await session.background.wait()
        await two.close()
    assert taker.taken == [["x" * 5000], ["Two"], ["Three"]]
    assert notices(events)[1:] == ["memory remembered 2 turns of an earlier session"]
    assert not list((home / "ingestion").iterdir())


async def test_what_does_not_come_to_its_end_is_tried_some_times_and_no_more(home: Path) -> None:
    for count in (1, 2, 3, 3):
        async with open_session(home=home, configuration=FAST) as session:
            taker = Taker(failing=99)
            taker.gate.set()
            one = hook(session, home, taker)
            conversation = await session.begin(model(), hooks=[one])
            await conversation.converse(f"Turn of session {count}")
            await session.background.wait()
            await one.close()
        assert len(taker.taken) == count


@pytest.mark.parametrize("where", ["restore", "load"])
async def test_a_turn_that_cannot_be_read_holds_no_other_up(home: Path, where: str) -> None:
    async with open_session(home=home, configuration=FAST) as session:
        one = hook(session, home, Taker())
        conversation = await session.begin(model(), hooks=[one])
        await conversation.converse("x" * 5000)
        session.background.cancel()
        await session.background.wait()
        await one.close()

    async def refuse(*_: object) -> Any:
        raise StorageError("the disk is bad", path="x")

    for number in range(4):
        events: list[Event] = []
        async with open_session(
            home=home, configuration=FAST, event_handler=events.append
        ) as session:
            taker = Taker()
            taker.gate.set()
            two = hook(session, home, taker, **{where: refuse})
            await (await session.begin(model(), hooks=[two])).converse(f"Turn {number}")
            await session.background.wait()
            await two.close()
        assert taker.taken == [[f"Turn {number}"]]
        after = ["it is retried in a later session"] * 2 + ["to retry: vibe-llms memory ingest"]
        assert [text.rpartition("; ")[2] for text in notices(events)] == after[number : number + 1]
    # It is kept until it is asked for.
    (left,) = Journal(home / "ingestion").survey()
    assert (left.ticket.failed, left.held) == (True, False)
    assert "the disk is bad" in left.ticket.failure


async def test_a_turn_is_taken_in_with_the_model_that_answered_it(
    home: Path, tmp_path: Path
) -> None:
    for name, fact in (("one", "bees"), ("two", "goats")):
        answer = json.dumps({"facts": [{"statement": f"The user keeps {fact}."}]})
        (tmp_path / f"{name}.toml").write_text(f"""
            [[replies]]
            when = "The user said"
            parts = [{{ text = '{answer}' }}]
            [[replies]]
            when = "."
            parts = [{{ text = "Well." }}]
        """)
    async with open_session(home=home, configuration=FAST) as session:
        session.background.postpone()
        talk = await session.begin(f"scripted/{tmp_path / 'one.toml'}", memory=True)
        await talk.converse("I keep bees and goats.")
        assert (session.background.postponed, session.background.pending) == (1, 0)
    (left,) = Journal(home / "ingestion").survey()
    assert left.ticket.model == f"scripted/{tmp_path / 'one.toml'}"
    assert await stored(home) == []
    async with open_session(home=home, configuration=FAST) as session:
        talk = await session.begin(f"scripted/{tmp_path / 'two.toml'}", memory=True)
        await talk.converse("Hello")
        await session.background.wait()
    # What was said to the one was not said to the other.
    assert await stored(home) == ["The user keeps bees."]


async def test_turns_of_a_conversation_that_is_gone_are_left_out(home: Path) -> None:
    async with open_session(home=home, configuration=FAST) as session:
        one = hook(session, home, Taker())
        conversation = await session.begin(model(), hooks=[one])
        await conversation.converse("One")
        session.background.cancel()
        await session.background.wait()
        await one.close()
        await session.remove(conversation.identity)
        taker = Taker()
        taker.gate.set()
        two = hook(session, home, taker)
        await (await session.begin(model(), hooks=[two])).converse("Two")
        await session.background.wait()
        await two.close()
    assert taker.taken == [["Two"]]
    assert not list((home / "ingestion").iterdir())


async def test_what_the_supervisor_or_no_role_says_is_not_remembered(home: Path) -> None:
    async with open_session(home=home, configuration=FAST) as session:
        taker = Taker()
        taker.gate.set()
        one = hook(session, home, taker)
        conversation = await session.begin(
            scripted_model(improvise), hooks=[one], supervisor="Be brief."
        )
        with pytest.raises(ProviderError):
            await conversation.converse(
                [SupervisorCanister.from_text("x"), UserCanister.from_text("fail")]
            )
        with pytest.raises(ProviderError):
            await conversation.converse()
        assert session.background.pending == 0
        await one.close()


async def test_what_is_made_of_the_configuration_reads_nothing_yet(home: Path) -> None:
    async with open_session(home=home) as session:
        made = session.access_memory()
        assert isinstance(made, MemoryHook)
        assert session.access_memory() is made
        assert (made.name, made.before_seconds, made.close_seconds) == ("memory", 15.0, 60.0)
    assert not home.exists() or not list(home.iterdir())
    assert callable(produce_hook)


async def test_what_another_thread_reports_is_handled_in_the_conversations_thread(
    home: Path,
) -> None:
    heard: list[tuple[str, int]] = []

    def hear(event: Event) -> None:
        if isinstance(event, NoticeEvent):
            heard.append((event.notice.text, threading.get_ident()))

    async with open_session(home=home, event_handler=hear) as session:
        await session.begin(model(), save=False)
        report = session._notify
        await asyncio.to_thread(report, Notice("memory", "from afar"))
        report(Notice("memory", "from here"))
        await asyncio.sleep(0)
    here = threading.get_ident()
    assert sorted(heard) == [("from afar", here), ("from here", here)]


def test_what_a_thread_reports_when_the_loop_has_ended_breaks_nothing(home: Path) -> None:
    events: list[Event] = []

    async def hold() -> Session:
        async with open_session(
            home=home, configuration=FAST, event_handler=events.append
        ) as session:
            await session.begin(model())
        return session

    session = asyncio.run(hold())
    raised: list[BaseException] = []

    def report() -> None:
        try:
            session._notify(Notice("memory", "late"))
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=report)
    thread.start()
    thread.join()
    assert (raised, notices(events)) == ([], [])


async def test_facts_that_say_the_same_are_merged_when_it_is_due(home: Path) -> None:
    memory = Memory(home / "memory", durable=False)
    for number in range(11):
        await memory.add(f"box{number} stands in the cellar.", scope=ME)
    await memory.add("box3 stands in the cellar today.", scope=ME)
    events: list[Event] = []
    async with open_session(home=home, configuration=FAST, event_handler=events.append) as session:
        conversation = await session.begin(model(), memory=True)
        await conversation.converse("My cat is called Tom.")
    assert len(await stored(home)) == 12
    assert "memory merged 1 repeated fact" in notices(events)


async def test_a_deduplication_that_fails_is_reported_and_fails_no_turn(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Deduplication, scope: Scope) -> None:
        raise StorageError("the disk is full", path="memory")

    monkeypatch.setattr(Deduplication, "run_if_due", fail)
    events: list[Event] = []
    async with open_session(home=home, configuration=FAST, event_handler=events.append) as session:
        conversation = await session.begin(model(), memory=True)
        await conversation.converse("My cat is called Tom.")
    assert await stored(home) == ["The user's cat is called Tom."]
    assert any("facts were not deduplicated" in text for text in notices(events))
