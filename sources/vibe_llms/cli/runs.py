"""The command `runs`: lists, follows, decides and cancels turns in the background."""

from __future__ import annotations

import asyncio
import functools
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, TypeVar

import click
import msgspec
from msgspec.structs import asdict

from vibe_llms.base.exceptions import DecisionRefused, RequestError, RunFailed
from vibe_llms.cli.completion import complete_runs
from vibe_llms.cli.display import Display, Silence, print_notices
from vibe_llms.cli.failures import INTERRUPTED, status_of
from vibe_llms.cli.following import attended, follow, start_worker
from vibe_llms.cli.inputs import PromptInput, fetch_pages
from vibe_llms.cli.options import (
    Options,
    controls_of,
    open_conversation,
    output_of,
    quiet_option,
    render_option,
    show_nothing,
)
from vibe_llms.cli.questions import Questions
from vibe_llms.cli.reports import write_output
from vibe_llms.cli.running import ENDINGS, asynchronous, bound_import, signals
from vibe_llms.cli.shared_options import json_option, yes_option
from vibe_llms.cli.terminal import columns, is_terminal, note, shown, write, write_json, write_row
from vibe_llms.cli.text import cut, pad
from vibe_llms.cli.tool_questions import TerminalElicitor, decide_call
from vibe_llms.conversations.steering import read_steering
from vibe_llms.invocation.approval import Decision
from vibe_llms.invocation.questions import ElicitationAnswer, ElicitationRequest
from vibe_llms.invocation.questions import decline as decline_
from vibe_llms.messages.hidden import one_line
from vibe_llms.opening import open_session
from vibe_llms.runs.descriptions import (
    AskedQuestion,
    QueuedMessage,
    RunDescription,
    read_title,
    view_run,
)
from vibe_llms.runs.events import AnswerRequested, ApprovalRequested
from vibe_llms.runs.interfaces import UNFINISHED, CallApproval, RunQuestion, RunRecord, RunStatus
from vibe_llms.runs.run import Run
from vibe_llms.session.core import Session

P = ParamSpec("P")
T = TypeVar("T")

_LISTED = 20
_STATUS_CELLS = 9
#: Minimum cells for the title; the time is omitted to make room.
_MIN_TITLE = 12

_run_argument = click.argument("identity", metavar="ID", shell_complete=complete_runs)


def with_session(
    work: Callable[Concatenate[Session, P], Coroutine[Any, Any, T]],
) -> Callable[P, T]:
    """Make a command that runs with a session, and leaves runs to the background process."""

    @asynchronous
    @functools.wraps(work)
    async def command(*arguments: P.args, **options: P.kwargs) -> T:
        async with open_session(event_handler=print_notices()) as session:
            session.access_runs().worker.pause()
            return await work(session, *arguments, **options)

    return command


@click.group("runs")
def runs() -> None:
    """List, follow, steer, decide and cancel runs.

    A run is a turn in the background: vibe-llms chat --detach PROMPT. An ID may be shortened to the
    first 4 or more characters.
    """


@runs.command("list")
@click.option(
    "--status",
    type=click.Choice([*(one.value for one in RunStatus), "unfinished"]),
    help="List only runs of this status, or all that have not ended.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=_LISTED,
    show_default=True,
    metavar="N",
    help="List at most N; 0 lists all.",
)
@json_option
@with_session
async def list_runs(session: Session, status: str | None, limit: int, as_json: bool) -> None:
    """List runs, newest first."""
    statuses: Sequence[RunStatus] = ()
    if status is not None:
        statuses = UNFINISHED if status == "unfinished" else (RunStatus(status),)
    found = await session.survey_runs(statuses=statuses, limit=limit or None)
    if as_json:
        write_json(_encode([RunDescription.of(one) for one in found]))
        return
    for record in found:
        write(sys.stdout, draw_run(record))
    if not found:
        words = "no runs" if status is None else f"no {status} runs"
        note(f"{words}; start one: vibe-llms chat --detach PROMPT")


@runs.command("show")
@_run_argument
@json_option
@with_session
async def show(session: Session, identity: str, as_json: bool) -> None:
    """Show a run: its status, what it waits for, and the answer so far."""
    run = await session.access_run(identity)
    turn, view = await run.read(), await view_run(run)
    if as_json:
        write_json(_encode({**asdict(view), "text": turn.text, "usage": turn.usage}))
        return
    rows = {
        "status": run.record.status,
        "conversation": run.record.conversation,
        "model": run.record.recipe.model,
        "started": _local(run.record.created),
        "updated": _local(run.record.updated),
        "error": run.record.error,
        "prompt": read_title(run.record),
        "answer": turn.text,
    }
    for name, value in rows.items():
        if value:
            write_row(name, str(value), cells=12)
    for message in view.queued:
        write_row("queued", f"{one_line(message.text)} ({message.id})", cells=12)
    for asked in view.questions:
        write_row("question", f"{asked.message}: {asked.answered or 'waits'}", cells=12)
    for one in view.approvals:
        decided = {None: "waits for a decision", True: "allowed", False: "denied"}[one.allowed]
        write_row("call", f"{one.name} {one.arguments}: {decided}", cells=12)
    _note_next(run.record, asks=any(one.answered is None for one in view.questions))


@runs.command("follow")
@_run_argument
@click.option(
    "--after",
    type=click.IntRange(min=0),
    default=0,
    metavar="CURSOR",
    help="Show only what comes after this cursor of --jsonl.",
)
@render_option
@quiet_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
@click.option("--jsonl", is_flag=True, help="Print a JSON object for each event, with its cursor.")
@with_session
async def follow_run(
    session: Session,
    identity: str,
    after: int,
    render: bool | None,
    quiet: bool,
    as_json: bool,
    jsonl: bool,
) -> int:
    """Show a run from its beginning until it ends.

    At a terminal it asks about calls that wait for a decision. Ctrl-C stops following; the run
    continues. The exit status is that of the turn.
    """
    if as_json and jsonl:
        raise click.UsageError("--json and --jsonl exclude each other.")
    run = await session.access_run(identity)
    silent = as_json or jsonl
    hides = None if run.record.recipe.output is None else show_nothing
    display = (
        Silence(quiet=quiet) if silent else Display(render=render, quiet=quiet, transform=hides)
    )
    ended = await watch(session, run, display, after=after, lines=jsonl, asks=not silent)
    if as_json:
        turn = await run.read()
        members = ("text", "output", "stop_reason", "usage")
        facts = {name: getattr(turn, name) for name in members}
        write_json(_encode({**asdict(RunDescription.of(run.record)), **facts}))
    if not ended:
        if not quiet:
            note(_detached(run))
        return INTERRUPTED
    return _conclude(run.record, reported=as_json, quiet=quiet)


@runs.command("steer")
@_run_argument
@click.argument("text", metavar="TEXT")
@json_option
@with_session
async def steer(session: Session, identity: str, text: str, as_json: bool) -> None:
    """Add a message to a run; the model reads it with its next request.

    While it waits, `runs show` lists it with its id, and `runs unsteer` takes it back.
    """
    run = await session.access_run(identity)
    message = read_steering(text, None)
    await run.steer(message)
    if as_json:
        write_json(_encode(QueuedMessage.of(message)))
        return
    note(f"queued; take it back: vibe-llms runs unsteer {run.identity} {message.identity}")


@runs.command("unsteer")
@_run_argument
@click.argument("message", metavar="MESSAGE")
@json_option
@with_session
async def unsteer(session: Session, identity: str, message: str, as_json: bool) -> None:
    """Take back a message that was added to a run and is not sent yet."""
    run = await session.access_run(identity)
    taken = await run.take_back(message)
    if as_json:
        write_json(_encode(QueuedMessage.of(taken)))
        return
    note(f"taken back: {one_line(QueuedMessage.of(taken).text)}")


@runs.command("cancel")
@_run_argument
@json_option
@with_session
async def cancel(session: Session, identity: str, as_json: bool) -> None:
    """End a run; the text received so far is kept."""
    run = await session.access_run(identity)
    before = run.record.status
    status = await run.cancel()
    if status is RunStatus.RUNNING:
        # Its worker ends it within a second; if that has died, the next one does.
        async with attended(session.access_runs(), session.configuration):
            async for _ in run.events():
                pass
    record = await run.access()
    if as_json:
        write_json(_encode(RunDescription.of(record)))
    elif before.ended:
        note(f"nothing to cancel: the run is {before}")
    else:
        note(f"{record.identity} is {record.status}")


_call_argument = click.argument("call", required=False, metavar="[CALL]")


@runs.command("approve")
@_run_argument
@_call_argument
@yes_option
@json_option
@with_session
async def approve(
    session: Session, identity: str, call: str | None, yes: bool, as_json: bool
) -> int:
    """Allow the calls that a run waits for, or only CALL.

    Shows each call with all of its arguments and asks, except with -y.
    """
    run = await session.access_run(identity)
    waiting = await _find_waiting(run, call)
    if not yes:
        if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
            raise RequestError("not a terminal; use -y to skip the question")
        return await _decide_each(session, run, waiting, as_json=as_json)
    made = [await run.decide(one.invocation, Decision.ALLOW) for one in waiting]
    return _report(session, run, made, as_json=as_json)


@runs.command("deny")
@_run_argument
@_call_argument
@click.option("--reason", default="", metavar="TEXT", help="Send the model a reason.")
@json_option
@with_session
async def deny(
    session: Session, identity: str, call: str | None, reason: str, as_json: bool
) -> int:
    """Deny the calls that a run waits for, or only CALL; the model is told."""
    run = await session.access_run(identity)
    decision = Decision(False, reason=reason)
    waiting = await _find_waiting(run, call)
    made = [await run.decide(one.invocation, decision) for one in waiting]
    return _report(session, run, made, as_json=as_json)


@runs.command("answer")
@_run_argument
@click.argument("values", nargs=-1, metavar="[VALUE|NAME=VALUE]...")
@click.option("--question", metavar="QUESTION", help="Answer this question, if there are several.")
@click.option("--decline", is_flag=True, help="Decline to answer; the model is told.")
@json_option
@with_session
async def answer(
    session: Session,
    identity: str,
    values: tuple[str, ...],
    question: str | None,
    decline: bool,
    as_json: bool,
) -> int:
    """Answer the question that a run waits for.

    Without values, asks at the terminal. A form of several fields takes NAME=VALUE for each.
    """
    if decline and values:
        raise click.UsageError("--decline and values exclude each other.")
    run = await session.access_run(identity)
    waiting = await _find_questions(run, question)
    if values or decline:
        if len(waiting) > 1:
            names = ", ".join(one.identity for one in waiting)
            raise RequestError(f"there are {len(waiting)} questions; choose --question: {names}")
        given = ElicitationAnswer("decline")
        if not decline:
            given = ElicitationAnswer("accept", _read_values(waiting[0].request, values))
        made = [await run.answer(waiting[0].identity, given)]
        left = False
    else:
        if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
            raise RequestError("not a terminal; give the values, or --decline")
        asked = [await _ask_question(Questions(), run, one) for one in waiting]
        made = [one for one in asked if one is not None]
        left = len(made) < len(asked)
    if made:
        start_worker(session.configuration)
    if as_json:
        write_json(_encode([asdict(AskedQuestion.of(one)) for one in made]))
    for one in () if as_json else made:
        assert one.answer is not None
        note("declined" if one.answer.action == "decline" else "answered")
    if made and not as_json:
        note(f"follow the run: vibe-llms runs follow {run.identity}", dim=True)
    return INTERRUPTED if left else 0


@runs.command("work", hidden=True)
@asynchronous
async def work() -> None:
    """Work on runs until none is left; other commands start this in the background."""
    async with open_session(
        event_handler=print_notices(), import_guard=bound_import, elicitor=decline_
    ) as session:
        task = asyncio.ensure_future(session.access_runs().finish())
        ended = signals(dict.fromkeys((signal.SIGINT, *ENDINGS), task.cancel))
        with ended, suppress(asyncio.CancelledError):
            await task
            await session.background.wait()


COMMANDS: dict[str, click.Command] = {"runs": runs}


async def start_detached(options: Options, said: PromptInput) -> int:
    """Start a run for `chat --detach`, and a process that works on it."""
    handler = print_notices(quiet=options.quiet)
    async with open_session(event_handler=handler, import_guard=bound_import) as session:
        session.access_runs().worker.pause()
        conversation = await open_conversation(session, options)
        said_ = await fetch_pages(session, said.canisters(), quiet=options.quiet)
        run = await session.start(
            conversation, said_, controls=controls_of(options), output=output_of(options)
        )
        if options.print_id:
            note(conversation.identity)
    start_worker(session.configuration)
    if options.json:
        write_json(_encode(RunDescription.of(run.record)))
        return 0
    write(sys.stdout, f"{run.identity}\n")
    if not options.quiet:
        note(f"follow it: vibe-llms runs follow {run.identity}", dim=True)
    return 0


def draw_run(record: RunRecord) -> str:
    """Draw a run as a line of a list, cut to the terminal."""
    begun = f"{record.identity}  {pad(record.status, _STATUS_CELLS)}  "
    head = f"{begun}{_local(record.updated)}  "
    if is_terminal(sys.stdout) and columns(sys.stdout) - len(head) < _MIN_TITLE:
        head = begun
    text = f"{head}{one_line(read_title(record))}"
    if is_terminal(sys.stdout):
        text = cut(shown(text), columns(sys.stdout))
    return f"{text.rstrip()}\n"


async def watch(
    session: Session,
    run: Run,
    display: Display | Silence,
    *,
    after: int = 0,
    lines: bool = False,
    asks: bool = True,
) -> bool:
    """Show a run until it ends; return False if the user left earlier."""
    record, questions = run.record, Questions(display.pause)
    missing = [*record.recipe.invokers]
    if missing and not record.status.ended:
        note(f"note: only a program with its tools can work on it: {', '.join(missing)}", dim=True)
    asks = asks and is_terminal(sys.stdin) and is_terminal(sys.stderr)

    async def attend(event: ApprovalRequested | AnswerRequested) -> bool:
        if isinstance(event, AnswerRequested):
            return await attend_question(event)
        open_ = {one.invocation: one for one in await _survey_waiting(run)}
        if event.invocation not in open_:
            return True
        if not asks:
            display.pause()
            note(f"{event.name} waits for a decision: vibe-llms runs approve {run.identity}")
            return True
        return await _ask(questions, run, open_[event.invocation], whole=False) is not None

    async def attend_question(event: AnswerRequested) -> bool:
        open_ = {one.identity: one for one in await _survey_questions(run)}
        if event.question not in open_:
            return True
        question = open_[event.question]
        if not asks:
            display.pause()
            text = f"{event.name} asks: {question.request.message}"
            note(f"{text}; answer: vibe-llms runs answer {run.identity}")
            return True
        return await _ask_question(questions, run, question) is not None

    async with attended(session.access_runs(), session.configuration):
        ended = await follow(run, display, attend, after=after, lines=lines)
    record = await run.access()
    typed = record.recipe.output is not None and record.status is RunStatus.COMPLETED
    if ended and typed and isinstance(display, Display):
        write_output((await run.read()).output)
    return ended


async def _survey_waiting(run: Run) -> Sequence[CallApproval]:
    if (await run.access()).status.ended:
        return ()
    return [one for one in await run.survey_approvals() if one.allowed is None]


async def _survey_questions(run: Run) -> Sequence[RunQuestion]:
    if (await run.access()).status.ended:
        return ()
    return [one for one in await run.survey_questions() if one.answer is None]


async def _find_questions(run: Run, question: str | None) -> Sequence[RunQuestion]:
    """Return the questions to answer; raise `DecisionRefused` if there are none."""
    found = await _survey_questions(run)
    waiting = [one for one in found if question is None or one.identity.startswith(question)]
    if not waiting:
        what = "no answer" if question is None else f"no answer to {question!r}"
        raise DecisionRefused(f"the run {run.identity} waits for {what}; it is {run.record.status}")
    return waiting


async def _ask_question(
    questions: Questions, run: Run, question: RunQuestion
) -> RunQuestion | None:
    """Ask the user a run's question, and record the answer; return None if it is left open."""
    given = await TerminalElicitor(questions)(question.request)
    if given.action == "cancel":
        return None
    try:
        return await run.answer(question.identity, given)
    except DecisionRefused as error:
        # Another client was faster, or the call no longer waits.
        note(f"vibe-llms: {error}")
        return msgspec.structs.replace(question, answer=given)


def _read_values(request: ElicitationRequest, values: Sequence[str]) -> Mapping[str, Any]:
    """Parse the typed values of a form; a form's only field needs no name."""
    fields = {field.name: field for field in request.fields}
    if len(fields) == 1:
        (field,) = fields.values()
        if not values[0].startswith(f"{field.name}="):
            return {field.name: field.parse(" ".join(values))}
    read: dict[str, Any] = {}
    for text in values:
        name, separator, value = text.partition("=")
        if not separator or name not in fields:
            known = ", ".join(fields) or "none"
            raise RequestError(f"{text!r} is not NAME=VALUE; the fields are {known}")
        read[name] = fields[name].parse(value)
    return read


async def _find_waiting(run: Run, call: str | None) -> Sequence[CallApproval]:
    """Return the calls to decide on: one or all; raise `DecisionRefused` if there are none."""
    waiting = [
        one
        for one in await _survey_waiting(run)
        if call is None or one.invocation.startswith(call) or one.name == call
    ]
    if not waiting:
        what = "no decision" if call is None else f"no decision on {call!r}"
        raise DecisionRefused(f"the run {run.identity} waits for {what}; it is {run.record.status}")
    return waiting


async def _ask(
    questions: Questions, run: Run, approval: CallApproval, *, whole: bool
) -> CallApproval | None:
    """Ask about a call and record the decision; return None if it is left open."""
    calls = await run.survey_calls()
    call = calls.get(approval.invocation)
    if call is None:
        raise DecisionRefused(f"the call {approval.invocation!r} is no longer stored")
    decision = await decide_call(questions, approval.name, call, approval.reason, whole=whole)
    if decision is None:
        return None
    try:
        return await run.decide(approval.invocation, decision)
    except DecisionRefused as error:
        # Another client was faster.
        note(f"vibe-llms: {error}")
        return approval


async def _decide_each(
    session: Session, run: Run, waiting: Sequence[CallApproval], *, as_json: bool
) -> int:
    questions, made = Questions(), list[CallApproval]()
    for one in waiting:
        decided = await _ask(questions, run, one, whole=True)
        if decided is None:
            break
        made.append(decided)
    status = _report(session, run, made, as_json=as_json)
    if len(made) < len(waiting):
        note("the rest is not decided" if made else "nothing was decided")
        return INTERRUPTED
    return status


def _report(session: Session, run: Run, made: Sequence[CallApproval], *, as_json: bool) -> int:
    """Report decisions, and start a process that continues the run."""
    if made:
        start_worker(session.configuration)
    if as_json:
        members = ("invocation", "name", "allowed")
        write_json(_encode([{name: getattr(one, name) for name in members} for one in made]))
        return 0
    for one in made:
        note(f"{'allowed' if one.allowed else 'denied'}: {one.name}")
    if made:
        note(f"follow the run: vibe-llms runs follow {run.identity}", dim=True)
    return 0


def _conclude(record: RunRecord, *, reported: bool, quiet: bool) -> int:
    """Report how a run ended; return the exit status."""
    if record.status is RunStatus.FAILED:
        error = RunFailed(record.error, error=record.kind)
        if reported:
            note(f"vibe-llms: {record.error}")
            return status_of(error)
        raise error
    if record.status is RunStatus.CANCELLED:
        if not quiet:
            note("the run was cancelled")
        return INTERRUPTED
    return 0


def _detached(run: Run) -> str:
    # The terminal has written ^C at the cursor.
    start = "\n" if is_terminal(sys.stderr) else ""
    again = f"vibe-llms runs follow {run.identity}"
    return f"{start}the run is {run.record.status}; follow it again: {again}"


def _note_next(record: RunRecord, *, asks: bool) -> None:
    waits = f"answer: vibe-llms runs answer {record.identity}"
    command = {
        RunStatus.WAITING: waits if asks else f"decide: vibe-llms runs approve {record.identity}",
        RunStatus.QUEUED: f"follow it: vibe-llms runs follow {record.identity}",
        RunStatus.RUNNING: f"follow it: vibe-llms runs follow {record.identity}",
    }.get(record.status)
    if command:
        note(command, dim=True)


def _local(time: Any) -> str:
    return f"{time.astimezone():%Y-%m-%d %H:%M}"


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()
