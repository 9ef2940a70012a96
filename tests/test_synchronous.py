"""The synchronous face: the same library for code that does not await."""

from __future__ import annotations

import _thread
import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from vibe_llms import synchronous
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.exceptions import (
    ConfigurationError,
    ModelNotFound,
    PageUnreadable,
    ProviderOverloaded,
    RequestError,
    SessionClosed,
    StorageError,
)
from vibe_llms.conversations import conversation as asynchronous
from vibe_llms.conversations import hook_runner, streams
from vibe_llms.documents import core as documents
from vibe_llms.messages.canisters import AssistantCanister, StopReason
from vibe_llms.messages.contents import FileContent
from vibe_llms.messages.events import Event, MessageProgressEvent, TurnEndedEvent
from vibe_llms.providers import windows
from vibe_llms.runs import MessageDelta, Run, RunEnded, RunStatus, core
from vibe_llms.session import core as sessions
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.synchronous import Errand, Portal, Session, _Face, open_session
from vibe_llms.testing import Part, Script, ScriptedReply, check_events, scripted_model

#: Public names that only the asynchronous class has, by the reason.
LEFT_OUT: dict[type, dict[str, str]] = {
    asynchronous.Conversation: {
        "runs need them": (
            "begin_recorded hand_over_queued history queue_again read_prompt running settings"
        ),
        "a turn ends before its call returns": "busy",
        "the session closes it": "close",
    },
    sessions.Session: {
        "the server needs them": (
            "access_budgets access_prices access_spending inspect_ensembles is_of_callers"
        ),
        "the command needs them": (
            "choose_model locate_model registered_invokers survey_addresses survey_providers"
        ),
        "the tools of an ensemble are asynchronous": "open_ensemble",
    },
    Run: {},
    core.Runs: {
        "the session has them": "access detach start survey",
        "the server needs them": "exists find forget",
        "workers need them": "are_left open",
        "the session closes it": "close give_back",
    },
    documents.Documents: {
        "the tools of a conversation need them": (
            "add_page has_attachments_alone offer read_page search shorten survey withdraw"
        ),
        "the session closes it": "close",
    },
    hook_runner.Background: {"hooks need them": "add postpone tasks"},
    windows.Windows: {"turns need them": "learn recall"},
}
LONG = Part(delay_seconds=3600)
SLOW = ScriptedReply(parts=(Part(text=("It ", "is ")), LONG), when="wait")
WORKS = ScriptedReply(parts=(Part(text="Works."),), when=".")


@pytest.fixture
def session(home: Path) -> Iterator[Session]:
    archive = DirectoryArchive(home, StorageSettings(durability="fast"))
    with open_session(archive=archive) as session:
        yield session


def endless() -> Any:
    return scripted_model(Script((SLOW, WORKS)))


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("vibe-llms")]


def test_conversations_are_held_without_awaiting(session: Session) -> None:
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    conversation = session.begin("scripted/demo", supervisor="Be brief.", invokers=[add])
    turn = conversation.converse("Please add 2 and 3.")
    assert "`add` returned: 5" in turn.text
    assert len(conversation.canisters) == 6
    assert conversation.model.name == "demo"
    assert (conversation.name, len(conversation.identity)) == ("", 12)
    conversation.rename("talk")
    assert conversation.name == "talk"
    fork = conversation.fork(name="other")
    assert isinstance(fork, synchronous.Conversation)
    assert fork.canisters == conversation.canisters
    fork.add("And?")
    assert fork.regenerate().converse().text
    assert fork.undo().canisters == conversation.canisters
    conversation.switch(endless())
    assert conversation.converse("x").text == "Works."
    assert conversation.count_tokens().tokens > 0
    assert "Hello" in conversation.preview("Hello")
    conversation.cancel()
    assert session.resume(fork.identity).canisters == fork.canisters
    assert session.access_model("scripted/demo").name == "demo"
    assert [model.name for model in session.survey_models("scripted")] == ["demo"]
    # The fork is superseded by the one without its last turn.
    assert len(session.survey_conversations()) == 2
    assert len(session.survey_conversations(superseded=True)) == 3
    assert {one.conversation for one in session.search("2 and 3")} >= {conversation.identity}
    session.remove(fork.identity)
    assert len(session.survey_conversations(superseded=True)) == 2


def test_every_public_method_has_its_twin() -> None:
    for inner, reasons in LEFT_OUT.items():
        face = getattr(synchronous, inner.__name__)
        names = {name for name in vars(inner) if not name.startswith("_")}
        left_out = " ".join(reasons.values()).split()
        # A name that is left out exists, and once.
        assert sorted(names & {*left_out}) == sorted(left_out)
        assert names - {*left_out} == {name for name in vars(face) if not name.startswith("_")}
        for name in names - {*left_out}:
            twin, own = getattr(face, name), getattr(inner, name)
            assert twin.__doc__ == own.__doc__
            if not isinstance(own, property):
                assert survey_parameters(twin) == survey_parameters(own), name


def test_every_class_without_await_has_its_twin() -> None:
    faces = {name for name, one in vars(synchronous).items() if is_face(one)}
    assert faces == {inner.__name__ for inner in LEFT_OUT}


def survey_parameters(method: Callable[..., Any]) -> list[tuple[str, Any]]:
    return [(one.name, one.kind) for one in signature(method).parameters.values()]


def is_face(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, _Face) and found is not _Face


def test_documents_are_read_and_found_without_awaiting(session: Session, tmp_path: Path) -> None:
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "ferries.txt").write_text("The blue ferry leaves at noon.")
    documents = session.access_documents()
    assert documents.add("papers", [folder]).read == (str(folder / "ferries.txt"),)
    (found,) = documents.find("When does the blue ferry leave?", [], ["papers"])
    assert (found.name, found.text) == ("ferries.txt", "The blue ferry leaves at noon.")
    note = FileContent(b"It rains.", "text/plain", "note.txt")
    assert documents.read(note).text == "It rains."
    assert session.access_documents().find("rain", [note])[0].name == "note.txt"
    with pytest.raises(RequestError, match="papers2"):
        documents.refresh("papers2")
    with pytest.raises(PageUnreadable):
        documents.fetch("http://127.0.0.1:9/")


def test_messages_of_another_process_are_read_without_awaiting(home: Path) -> None:
    with open_session(home=home) as session, open_session(home=home) as other:
        conversation = session.begin("scripted/demo")
        conversation.add("Hello!")
        other.resume(conversation.identity).converse()
        assert len(conversation.canisters) == 1
        conversation.refresh()
        assert len(conversation.canisters) == 2


def test_runs_of_another_process_are_finished_without_awaiting(home: Path) -> None:
    with open_session(home=home) as session:
        session.access_runs()._inner.worker.pause()
        run = session.start(session.begin("scripted/demo"), "Hello!")
    with open_session(home=home) as other:
        other.access_runs().finish()
        assert other.access_run(run.identity).record.status is RunStatus.COMPLETED
        other.access_runs().resume()


def test_learned_windows_are_listed_and_forgotten(session: Session, home: Path) -> None:
    home.mkdir(exist_ok=True)
    learned = {"row": "scripted", "model": "script", "tokens": 8_192}
    (home / windows.FILE_NAME).write_text(json.dumps({"windows": [learned]}))
    model = scripted_model([""])
    assert session.windows.find(model) is not None
    assert session.windows.window_of(model) == 8_192
    assert [one.address for one in session.windows.survey()] == ["scripted/script"]
    assert len(session.windows.forget("scripted/script")) == 1
    assert session.windows.window_of(model) is None


async def test_it_works_where_a_loop_is_running_already(home: Path) -> None:
    with open_session(home=home) as session:
        assert session.begin("scripted/demo").converse("Hello!").text.startswith("Hello!")


def test_no_thread_is_left_when_a_session_is_closed(home: Path) -> None:
    before = threads()
    with open_session(home=home) as session:
        assert "vibe-llms session" in threads()
        session.begin("scripted/demo").converse("Hello!")
    assert threads() == before


def test_two_sessions_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    seen: dict[str, list[str]] = {}

    def hold(name: str) -> None:
        with open_session(home=tmp_path / name) as session:
            model = scripted_model(lambda canisters, invokers: ScriptedReply.from_chunks(name))
            conversation = session.begin(model)
            seen[name] = [conversation.converse("a").text for _ in range(20)]

    workers = [threading.Thread(target=hold, args=(name,)) for name in ("one", "two")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert seen == {"one": ["one"] * 20, "two": ["two"] * 20}


def test_conversations_of_one_session_may_be_held_in_many_threads(session: Session) -> None:
    texts: list[str] = []

    def hold(number: int) -> None:
        reply = ScriptedReply.from_chunks(str(number))
        conversation = session.begin(scripted_model(lambda canisters, invokers: reply))
        texts.extend(conversation.converse("a").text for _ in range(5))

    workers = [threading.Thread(target=hold, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert sorted(texts) == sorted(str(number) for number in range(8) for _ in range(5))


# Errors.


def test_errors_pass_through(session: Session, home: Path) -> None:
    with pytest.raises(ModelNotFound):
        session.begin("nowhere/model")
    failing = ScriptedReply(parts=(Part(text="a"), Part(error="overloaded")))
    conversation = session.begin(scripted_model(failing))
    with pytest.raises(ProviderOverloaded):
        conversation.converse("a")
    with pytest.raises(RequestError, match="message is empty"):
        conversation.converse("")
    with pytest.raises(TypeError):
        conversation.converse(nonsense=1)  # type: ignore[call-overload]


def test_a_session_that_cannot_be_opened_leaves_no_thread(home: Path) -> None:
    before = threads()
    home.mkdir()
    (home / "config.toml").write_text("nonsense")
    with pytest.raises(ConfigurationError), open_session(home=home):
        pass
    with pytest.raises(TypeError), open_session(nonsense=1):  # type: ignore[call-arg]
        pass
    assert threads() == before


def test_what_is_raised_in_the_block_is_raised_after_the_session_has_closed(home: Path) -> None:
    opened: list[Any] = []

    def fail() -> None:
        with open_session(home=home) as session:
            opened.extend([session, session.begin("scripted/demo")])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    session, conversation = opened
    with pytest.raises(SessionClosed):
        conversation.converse("a")
    with pytest.raises(SessionClosed):
        session.begin("scripted/demo")
    with pytest.raises(SessionClosed):
        list(conversation.stream("a"))


def test_waiting_within_a_handler_is_refused_where_it_would_never_end(session: Session) -> None:
    caught: list[BaseException] = []

    def handle(event: Event) -> None:
        if isinstance(event, TurnEndedEvent):
            for act in (conversation.fork, lambda: next(conversation.stream("b"))):
                try:
                    act()
                except RequestError as error:
                    caught.append(error)

    conversation = session.begin(endless(), event_handler=handle)
    conversation.converse("a")
    assert len(caught) == 2
    assert "where event handlers run" in str(caught[0])


def test_a_tool_may_hold_another_conversation(session: Session) -> None:
    other = session.begin(endless())

    def ask(question: str) -> str:
        """Ask another model."""
        return other.converse(question).text

    call = ScriptedReply(parts=(Part(invocation="ask", arguments={"question": "b"}),))
    model = scripted_model(Script((call, ScriptedReply.from_chunks("Done."))))
    conversation = session.begin(model, invokers=[ask])
    turn = conversation.converse("a")
    assert turn.text == "Done."
    assert "Works." in [getattr(one, "text", "") for one in turn.canisters]


# Streaming.


def test_events_can_be_looped_over(session: Session) -> None:
    events = list(session.begin(endless()).stream("a"))
    check_events(events)
    assert isinstance(events[-1], TurnEndedEvent)


def test_leaving_the_loop_early_ends_the_turn(session: Session) -> None:
    conversation = session.begin(endless())
    for event in conversation.stream("wait"):
        if isinstance(event, MessageProgressEvent) and event.chunk.text == "is ":
            break
    assert isinstance(conversation.canisters[-1], AssistantCanister)
    assert conversation.canisters[-1].text == "It is "
    with closing(conversation.stream("wait")) as stream:
        next(stream)
    assert conversation.converse("b").text == "Works."


def test_a_loop_that_was_never_begun_begins_nothing(session: Session) -> None:
    conversation = session.begin(endless())
    stream = conversation.stream("a")
    del stream
    assert conversation.canisters == ()


def test_errors_are_raised_in_the_loop(session: Session) -> None:
    failing = ScriptedReply(parts=(Part(text="a"), Part(error="overloaded")))
    conversation = session.begin(scripted_model(failing))
    events: list[Event] = []
    with pytest.raises(ProviderOverloaded):
        events.extend(conversation.stream("a"))
    with pytest.raises(RequestError, match="message is empty"):
        next(conversation.stream(""))


def test_a_slow_loop_holds_the_stream_back(session: Session) -> None:
    conversation = session.begin(
        scripted_model(ScriptedReply.from_chunks(*["x"] * 3000)), save=False
    )
    stream = conversation.stream("a")
    next(stream)
    ahead = streams._QUEUED_EVENTS + synchronous._QUEUED_EVENTS
    # The turn of the loop itself comes after whatever it could still do.
    for _ in range(20):
        session._portal.call(asyncio.sleep(0.002))
    assert conversation._inner.busy
    count = sum(isinstance(event, MessageProgressEvent) for event in stream)
    assert count == 3000 > ahead


class Broken(DirectoryArchive):
    """An archive whose disk is full from some moment on."""

    full = False

    async def append(self, *args: Any, **kwargs: Any) -> Any:
        if self.full:
            raise StorageError("the disk is full")
        return await super().append(*args, **kwargs)


def test_what_cannot_be_kept_when_a_loop_is_left_is_reported(home: Path) -> None:
    archive = Broken(home, StorageSettings(durability="fast"))
    with open_session(archive=archive) as session:
        conversation = session.begin(endless())
        conversation.converse("a")
        stream = conversation.stream("wait")
        while not isinstance(event := next(stream), MessageProgressEvent):
            assert event
        archive.full = True
        with pytest.raises(StorageError, match="disk is full"):
            stream.close()
        archive.full = False
        assert conversation.converse("b").text == "Works."


# Ctrl-C.

PROGRAM = """
import os, signal, sys
from vibe_llms.messages.events import MessageProgressEvent
from vibe_llms.synchronous import open_session
from vibe_llms.testing import Part, Script, ScriptedReply, scripted_model

slow = ScriptedReply(parts=(Part(text=("It ", "is ")), Part(delay_seconds=3600)), when="wait")
works = ScriptedReply(parts=(Part(text="Works."),), when=".")

def interrupt(event):
    match event:
        case MessageProgressEvent(chunk=chunk) if chunk.text == "is ":
            os.kill(os.getpid(), signal.SIGINT)

with open_session(event_handler=interrupt) as session:
    conversation = session.begin(scripted_model(Script((slow, works))))
    try:
        if sys.argv[1] == "converse":
            conversation.converse("wait")
        else:
            for event in conversation.stream("wait"):
                interrupt(event)
    except KeyboardInterrupt:
        last = session.resume(conversation.identity, model="scripted/demo").canisters[-1]
        print("interrupted", repr(last.text), last.ending.interrupted)
    print(conversation.converse("b").text)
    if sys.argv[1] == "again":
        conversation.converse("wait")
"""


@pytest.mark.parametrize("way", ["converse", "stream"])
def test_ctrl_c_is_raised_once_what_had_arrived_is_kept(way: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, way],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "interrupted 'It is ' True\nWorks.\n", done.stderr
    assert done.returncode == 0


def test_an_uncaught_ctrl_c_ends_the_program_and_closes_the_session() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "again"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.endswith("Works.\n")
    assert done.returncode in (-signal.SIGINT, 130)
    assert "KeyboardInterrupt" in done.stderr


async def nothing() -> str:
    return "nothing"


def test_an_errand_can_be_ended_at_every_moment() -> None:
    Errand(nothing()).end()
    portal = Portal()
    try:
        handed_over = Errand(nothing())
        handed_over._loop = portal._loop
        handed_over.end()
        assert isinstance(handed_over.outcome.exception(), asyncio.CancelledError)
        ended = portal.begin(nothing())
        assert ended.outcome.result(30) == "nothing"
        ended.end()
        waiting = portal.begin(asyncio.sleep(3600))
        waiting.end()
        assert isinstance(waiting.outcome.exception(), asyncio.CancelledError)
    finally:
        portal.close()


def test_an_interrupted_wait_ends_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    portal = Portal()
    begun = threading.Event()
    ended = threading.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.sleep(3600)
        finally:
            ended.set()

    def interrupt() -> None:
        begun.wait(30)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=interrupt)
    pressing.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            portal.call(work())
        assert ended.is_set()
    finally:
        pressing.join(30)
        portal.close()


@pytest.mark.parametrize("streamed", [False, True])
def test_an_interruption_without_a_waiter_is_seen(session: Session, streamed: bool) -> None:
    # Ctrl-C just before a wait begins is noted by Python, and no system call is interrupted by it.
    rescued = threading.Event()

    def rescue() -> None:
        rescued.set()
        os.kill(os.getpid(), signal.SIGINT)

    late = threading.Timer(30, rescue)
    late.start()
    pressing = threading.Timer(1, _thread.interrupt_main)
    conversation = session.begin(endless())

    def hold() -> None:
        pressing.start()
        if streamed:
            for _ in conversation.stream("wait"):
                pass
        else:
            conversation.converse("wait")

    with pytest.raises(KeyboardInterrupt):
        hold()
    late.cancel()
    assert not rescued.is_set()
    assert conversation.canisters


def test_a_turn_that_is_cancelled_from_another_thread_says_so(session: Session) -> None:
    conversation = session.begin(endless())
    seen = threading.Event()

    def watch(event: Event) -> None:
        if isinstance(event, MessageProgressEvent) and event.chunk.text == "is ":
            seen.set()

    reasons: list[str] = []
    worker = threading.Thread(
        target=lambda: reasons.append(
            conversation.converse("wait", event_handler=watch).stop_reason
        )
    )
    worker.start()
    assert seen.wait(30)
    conversation.cancel()
    worker.join(30)
    assert reasons == [StopReason.INTERRUPTED]


def test_the_text_of_a_turn_can_be_looped_over(session: synchronous.Session) -> None:
    conversation = session.begin(endless())
    stream = conversation.stream("a")
    assert stream.turn is None
    assert "".join(stream.text()) == "Works."
    assert stream.turn is not None
    assert stream.turn.text == "Works."
    for _ in conversation.stream("wait").text():
        break
    assert not conversation._inner.busy


def test_a_run_is_followed_and_cancelled_without_awaiting(session: synchronous.Session) -> None:
    run = session.start(session.begin("scripted/demo"), "Hello!")
    events = [event for _, event in run.events()]
    text = "".join(one.text for one in events if isinstance(one, MessageDelta))
    assert text == run.result().text == run.read().text
    assert isinstance(events[-1], RunEnded)
    assert run.access() == run.record
    assert [one.identity for one in session.survey_runs()] == [run.identity]
    assert session.access_run(run.identity).cancel() is RunStatus.COMPLETED
    assert (run.survey_approvals(), run.survey_questions()) == ([], [])
    assert run.survey_calls() == {}


def test_a_session_without_a_block_is_closed_at_the_end(home: Path) -> None:
    program = """
from vibe_llms.synchronous import Session, open_session
close = Session.close
def report(session):
    print("closed")
    close(session)
Session.close = report
session = open_session()
print(session.begin("scripted/demo").converse("Hello!").text[:6])
"""
    environment = {**os.environ, "VIBE_LLMS_HOME": str(home), "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.stdout.split(), done.stderr) == (["Hello!", "closed"], "")


def test_a_closed_session_says_so(home: Path) -> None:
    session = open_session(home=home)
    session.close()
    session.close()
    with pytest.raises(SessionClosed):
        session.begin("scripted/demo")
