"""The REPL of `vibe-llms chat`: a conversation at a terminal.

Each command of `repl_commands`, such as `/model`, is a method such as `_model`.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import click
import msgspec

from vibe_llms.base.exceptions import ProviderError, RequestError, RunFailed, SteeringRefused
from vibe_llms.cli import other_programs
from vibe_llms.cli.added import BARE, Added, change_queue, find_message
from vibe_llms.cli.completion import Offer
from vibe_llms.cli.conversations import draw_canister, draw_summary, load_whole
from vibe_llms.cli.display import Display, find_code, print_notices
from vibe_llms.cli.failures import INTERRUPTED, explain, status_of
from vibe_llms.cli.inputs import PromptInput, fetch_pages, read_attachments
from vibe_llms.cli.options import (
    UNSAVED,
    Options,
    check_extras,
    controls_of,
    open_conversation,
    output_of,
    overrides_of,
    produce_text_display,
)
from vibe_llms.cli.programs import copy
from vibe_llms.cli.prompts import Block, Prompts, TerminalPrompts
from vibe_llms.cli.questions import Questions
from vibe_llms.cli.repl_commands import (
    COMMANDS,
    draw_help,
    find_behind,
    offer_words,
    print_approvals,
    print_tools,
    print_untrusted,
    suggest_command,
)
from vibe_llms.cli.reports import access_cost, address_of, report_turn
from vibe_llms.cli.running import SECOND_PRESS_SECONDS, bound_import, finish_work, run_turn
from vibe_llms.cli.terminal import aside, can_redraw, columns, is_terminal, note, write
from vibe_llms.cli.text import cut
from vibe_llms.cli.tool_questions import produce_approver, produce_elicitor
from vibe_llms.cli.typed_lines import TypedLines
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.invocation.invokers import find_invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    StopReason,
    SupervisorCanister,
    Turn,
    UserCanister,
    usage_of,
)
from vibe_llms.messages.contents import Content, TextualContent, repair_text, text_of
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.hidden import one_line
from vibe_llms.opening import open_session
from vibe_llms.session.core import Session
from vibe_llms.transcripts.usages import describe_usage

if TYPE_CHECKING:
    from vibe_llms.runs.run import Run

#: Other names of commands, known from llm.
_ALIASES = {"!edit": "/edit", "!fragment": "/file"}
#: Commands that change the conversation, which a run on it does not expect.
_CHANGING = frozenset(
    (
        "/continue",
        "/regenerate",
        "/undo",
        "/fork",
        "/system",
        "/model",
        "/edit",
        "/rename",
        "/compact",
    )
)
_CONTINUE = "Continue exactly where you stopped."
_LISTED = 10
_SHOWN_CELLS = 50


class Repl:
    """One conversation at a terminal; a fork replaces it."""

    def __init__(
        self,
        session: Session,
        conversation: Conversation,
        options: Options,
        prompts: Prompts,
        said: PromptInput = PromptInput(),
    ) -> None:
        self.conversation = conversation
        self._session = session
        self._options = options
        self._prompts = prompts
        self._before: tuple[Canister, ...] = said.before
        self._attached: tuple[Content, ...] = said.contents
        self._display: Display | None = None
        self._left = False
        self._draft, self._edits = "", False
        #: Text typed during the last answer.
        self._ahead = ""
        #: Last message if it has no answer: its id, and the input that was sent with it.
        self._unanswered: tuple[str, tuple[Canister, ...], tuple[Content, ...]] = ("", (), ())
        self._interrupted = -math.inf
        #: Run in the background on this conversation, and the task that is starting one.
        self._run: Run | None = None
        self._detaching: asyncio.Task[Run] | None = None
        self._typed: TypedLines | None = None
        #: Tasks that add typed messages to the turn.
        self._adding: list[asyncio.Task[None]] = []

    def pause(self) -> None:
        """Finish the current drawing."""
        if self._display is not None:
            self._display.pause()

    def resume(self) -> None:
        """Read typed input again, after a question."""
        if self._typed is not None:
            self._typed.open()

    async def run(self) -> int:
        """Read and answer until the user leaves; return the exit status."""
        self._print(f"{self._describe()} /help lists the commands, Ctrl-D exits.")
        if self._options.no_log:
            self._print(UNSAVED)
        while not self._left:
            try:
                ahead, self._ahead = self._ahead, ""
                self._prompts.type_ahead(ahead)
                draft, edits, self._draft, self._edits = self._draft, self._edits, "", False
                line = await self._prompts.read(draft, edit=edits)
                command, kept = find_behind(line, draft)
                if command:
                    # Keep the draft, unless the command replaces it.
                    line, self._draft = command, kept
            except KeyboardInterrupt:
                if time.monotonic() - self._interrupted < SECOND_PRESS_SECONDS:
                    return INTERRUPTED
                self._print("Press Ctrl-D or type /exit to exit.")
                continue
            except EOFError:
                break
            if not line.strip():
                continue
            try:
                status = await self._answer(line)
            except Exception as error:  # noqa: BLE001  (the border of the terminal, line by line)
                if self._options.debug:
                    aside("".join(traceback.format_exception(error)))
                note(f"vibe-llms: {explain(error)}")
                self._keep_typed()
                if isinstance(error, ProviderError):
                    self._print(self._describe_unanswered())
                status = INTERRUPTED if status_of(error) == INTERRUPTED else 0
            if status:
                return status
        return 0

    def _keep_typed(self) -> None:
        """Move text typed during an incomplete answer to the draft, without sending it."""
        self._keep_queued()
        ahead, self._ahead = self._ahead.rstrip("\n"), ""
        self._draft = "\n".join(filter(None, (self._draft, ahead)))

    async def _answer(self, line: str) -> int:
        if isinstance(line, Block):
            await self._require_free()
            return await self._say(str(line))
        if line.startswith("//"):
            await self._require_free()
            return await self._say(line[1:])
        if (word := line.strip().lower().removesuffix("()")) in BARE:
            line = f"/{word}"
        line = other_programs.translate(line)
        name, _, rest = line.partition(" ")
        name = _ALIASES.get(name, name)
        if not name.startswith("/"):
            if (here := other_programs.find_in_chat(line)) is not None:
                raise RequestError(
                    f"{name} is not a command here; "
                    f"{f'type {here}' if here else 'see /help'}; a space before it sends it"
                )
            await self._require_free()
            return await self._say(line)
        command = getattr(self, f"_{name[1:]}", None) if name in COMMANDS else None
        if command is None:
            raise RequestError(f"no command {name}{suggest_command(name)}; // sends a slash")
        if name in _CHANGING:
            await self._require_free()
        return await command(rest.strip()) or 0

    async def _say(self, text: str) -> int:
        await self._replace_unanswered()
        message = UserCanister((*self._attached, TextualContent(repair_text(text))))
        try:
            return await self._converse((*self._before, message))
        finally:
            said = self.conversation.canisters
            if said and said[-1].identity == message.identity:
                self._unanswered = (message.identity, self._before, self._attached)
            if any(one.identity == message.identity for one in said):
                self._before, self._attached = (), ()
            else:
                self._draft = "\n".join(filter(None, (text, self._draft)))

    async def _replace_unanswered(self) -> None:
        """Undo a message without an answer; the next message takes over its attachments."""
        identity, before, attached = self._unanswered
        said = self.conversation.canisters
        if said and said[-1].identity == identity:
            self.conversation = await self.conversation.undo()
            self._before, self._attached = (*before, *self._before), (*attached, *self._attached)
        self._unanswered = ("", (), ())

    async def _converse(self, said: Sequence[Canister] | None) -> int:
        converse = partial(
            self.conversation.converse,
            said,
            controls=controls_of(self._options),
            output=output_of(self._options),
            streaming=self._options.stream,
        )
        return await self._run_turn(converse)

    async def _run_turn(self, begin: Callable[..., Awaitable[Turn]]) -> int:
        """Run a turn, showing its events; return the exit status."""
        display = self._display = produce_text_display(self._options)
        running = begin(event_handler=Added(display))
        display.begin(address_of(self.conversation))
        self._typed, self._adding = TypedLines(self._take), []
        try:
            with self._typed:
                turn, leave = await run_turn(self.conversation, running)
            display.finish()
        finally:
            await asyncio.gather(*self._adding)
            self._ahead += self._typed.begun
            self._typed = None
            display.close()
        if turn.stop_reason == StopReason.SUSPENDED:
            return await self._leave_turn()
        if turn.stop_reason != StopReason.INTERRUPTED:
            self._keep_queued()
        await report_turn(self._session, self.conversation, turn, self._options)
        if turn.stop_reason == StopReason.INTERRUPTED:
            self._interrupted = time.monotonic()
            self._keep_typed()
            # The terminal has written ^C at the cursor.
            kept = "; the partial answer is kept" if turn.canisters else ""
            self._print(f"\n(interrupted{kept})")
        if is_terminal(sys.stderr):
            note("")
        return INTERRUPTED if leave else 0

    def _take(self, line: str) -> None:
        """Take a line that was typed while an answer is written.

        A message is added to the turn. Commands, and the lines after one, wait for its end.
        """
        words = line.split()
        if words[:1] == ["/queue"]:
            self._adding.append(asyncio.ensure_future(self._report_queue(words[1:])))
        elif line.strip() != "/detach":
            text = None if self._ahead else find_message(line)
            if text is None:
                self._ahead += f"{line}\n"
            elif text:
                self._adding.append(asyncio.ensure_future(self._steer(line, text)))
        elif self._detaching is None:
            runs = self._session.access_runs()
            # A background process works on it, even after this one has ended.
            runs.worker.pause()
            self._detaching = asyncio.ensure_future(runs.detach(self.conversation))
            self._detaching.add_done_callback(self._report_detached)

    async def _steer(self, line: str, text: str) -> None:
        """Add a message to the turn; if it is ending, the line waits for its end."""
        try:
            await self.conversation.steer(repair_text(text))
        except SteeringRefused:
            self._ahead += f"{line}\n"
        except RequestError as error:
            self.pause()
            note(f"vibe-llms: {explain(error)}")

    async def _report_queue(self, words: Sequence[str]) -> None:
        """List the messages that were added to the turn, or take one back."""
        self.pause()
        try:
            if report := await change_queue(self.conversation, words):
                note(report, dim=True)
        except RequestError as error:
            note(f"vibe-llms: {explain(error)}")

    async def _queue(self, _: str) -> None:
        raise RequestError("nothing is queued; what you type during an answer is added to its turn")

    def _keep_queued(self) -> None:
        """Move messages that the turn did not send to the draft, unless a run sends them."""
        if self._detaching is None:
            queued = [text_of(one.contents) for one in self.conversation.hand_over_queued()]
            self._draft = "\n".join(filter(None, (self._draft, *queued)))

    def _report_detached(self, task: asyncio.Task[Run]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._detaching = None
        self.pause()
        note(f"vibe-llms: {explain(error)}")

    async def _leave_turn(self) -> int:
        assert self._detaching is not None
        task, self._detaching = self._detaching, None
        self._run = await task
        from vibe_llms.cli.following import start_worker

        start_worker(self._session.configuration)
        self._print(f"(it continues in the background as {self._run.identity}; /follow shows it)")
        return 0

    async def _require_free(self) -> None:
        """Continue from a run that has ended; raise `RequestError` while it is working."""
        if self._run is None:
            return
        record = await self._run.access()
        if not record.status.ended:
            raise RequestError(
                f"{record.identity} is still working on this conversation ({record.status}); "
                "/follow shows it, /new starts another conversation"
            )
        self._run = None
        if record.conversation == self.conversation.identity:
            await self.conversation.refresh()
        else:
            await self._start(None, record.conversation)

    async def _detach(self, _: str) -> None:
        raise RequestError("nothing to detach; type /detach while an answer is being written")

    async def _follow(self, identity: str) -> None:
        run = self._run
        if identity:
            run = await self._session.access_run(identity)
        if run is None:
            raise RequestError(
                "no background run in this conversation; /runs lists runs, /follow ID shows one"
            )
        from vibe_llms.cli.runs import watch

        self._session.access_runs().worker.pause()
        typed = run.record.recipe.output is not None
        display = produce_text_display(self._options, typed=typed)
        if not await watch(self._session, run, display):
            self._print(f"\n(the run is {run.record.status}; /follow shows it again)")
        elif run.record.error:
            raise RunFailed(run.record.error, error=run.record.kind)
        elif run is self._run:
            await self._require_free()

    async def _runs(self, count: str) -> None:
        if count and not re.fullmatch(r"[1-9]\d{0,5}", count):
            raise RequestError(f"/runs needs a number of runs, not {count!r}")
        from vibe_llms.cli.runs import draw_run

        found = await self._session.survey_runs(limit=int(count or _LISTED))
        for record in found:
            write(sys.stdout, draw_run(record))
        if not found:
            self._print(
                "(nothing in the background yet; type /detach while an answer is being written)"
            )

    async def _help(self, _: str) -> None:
        note(draw_help(columns(sys.stderr)))

    async def _exit(self, _: str) -> None:
        self._left = True

    async def _model(self, name: str) -> None:
        if name:
            await self.conversation.switch(name)
        note(address_of(self.conversation))

    async def _system(self, text: str) -> None:
        if text:
            await self.conversation.add(SupervisorCanister.from_text(repair_text(text)))
            self._print("(added)")
            return
        found = [c for c in self.conversation.canisters if isinstance(c, SupervisorCanister)]
        for canister in found:
            write(sys.stdout, await draw_canister(canister, self._session.archive))
        if not found:
            self._print("(no system prompts)")

    async def _file(self, source: str) -> None:
        if not source:
            raise RequestError("/file needs a PATH or URL")
        found = read_attachments(unquote(source))
        self._attached = (*self._attached, *found)
        count = f"{len(found)} files " if len(found) > 1 else ""
        self._print(f"({count}attached to the next message)")

    async def _tools(self, words: str) -> None:
        match words.split():
            case []:
                print_tools(self._session, self.conversation)
            case ["on", name]:
                await self.conversation.offer(name)
                self._print(f"({name} is offered now)")
            case ["off", name]:
                self.conversation.withhold(name)
                self._print(f"({name} is no longer offered)")
            case _:
                raise RequestError(
                    "/tools lists them; /tools on NAME or /tools off NAME switches one"
                )

    async def _approve(self, words: str) -> None:
        match words.split():
            case []:
                print_approvals(self._session.gatekeeper)
            case [("always" | "allow" | "ask" | "deny") as rule, tool]:
                invoker = find_invoker(self.conversation.invokers, tool)
                if invoker is None:
                    raise RequestError(f"no tool {tool!r}; see /tools")
                self._session.gatekeeper.decide(invoker.name, rule)
                after = {
                    "always": "never asks, not even after untrusted text,",
                    "allow": "runs without asking",
                    "ask": "asks",
                    "deny": "is denied",
                }[rule]
                self._print(f"({invoker.name} {after} for the rest of this session)")
            case _:
                raise RequestError(
                    "/approve shows the rules; /approve always|allow|ask|deny TOOL sets one"
                )

    async def _trust(self, words: str) -> None:
        untrusted = {one.identity: one for one in self.conversation.untrusted}
        if not words:
            print_untrusted(self.conversation)
            return
        chosen = [*untrusted]
        if words != "all":
            if not re.fullmatch(r"[1-9]\d{0,5}", words) or int(words) > len(chosen):
                raise RequestError("/trust lists untrusted text; /trust N or /trust all trusts it")
            chosen = [chosen[int(words) - 1]]
        self.conversation.vouch(*chosen)
        left = len(untrusted) - len(chosen)
        self._print(f"({len(chosen)} trusted for the rest of this session, {left} untrusted)")

    async def _new(self, model: str) -> None:
        await self._start(model or address_of(self.conversation), None)
        self._print(f"(new conversation with {address_of(self.conversation)})")

    async def _list(self, count: str) -> None:
        if count and not re.fullmatch(r"[1-9]\d{0,5}", count):
            raise RequestError(f"/list needs a number of conversations, not {count!r}")
        found = await self._session.survey_conversations(limit=int(count or _LISTED))
        for summary in found:
            write(sys.stdout, f"{draw_summary(summary)}\n")
        if not found:
            self._print("(no conversations yet)")

    async def _open(self, handle: str) -> None:
        if not handle:
            raise RequestError("/open needs an ID; /list shows them")
        await self._start(None, handle)
        self._print(self._describe())

    async def _start(self, model: str | None, conversation: str | None) -> None:
        """Open a new conversation with a model, or a stored one."""
        options = msgspec.structs.replace(
            self._options,
            model=model,
            conversation=conversation,
            continue_last=False,
            fork=False,
            name="",
        )
        if conversation is not None:
            # Otherwise the agent's instructions would be added to an unrelated conversation.
            options = msgspec.structs.replace(options, agent=None, variables=())
        self.conversation = await open_conversation(self._session, options)
        self._run = None

    async def _export(self, file: str) -> None:
        if not file:
            raise RequestError("/export needs a FILE.html, FILE.md or FILE.json")
        # Imported only here, to start fast.
        from vibe_llms.cli import export as exporting
        from vibe_llms.transcripts.exports import export

        conversation, file = self.conversation, unquote(file)
        form = exporting.form_of(file)
        try:
            wanted = exporting.check_target(file)
        except click.Abort:
            wanted = False
        if not wanted:
            self._print("(nothing was written)")
            return
        text = await export(
            conversation.canisters,
            self._session.archive,
            form,
            identity=conversation.identity,
            name=conversation.name,
        )
        exporting.write_export(file, text)
        self._print(f"(written to {file})")

    async def _edit(self, text: str) -> None:
        self._draft, self._edits = text, True

    async def _continue(self, _: str) -> int:
        said = self.conversation.canisters
        if said and isinstance(said[-1], AssistantCanister):
            return await self._say(_CONTINUE)
        return await self._converse(None)

    async def _copy(self, what: str) -> None:
        if what not in ("", "code"):
            raise RequestError("/copy copies the last answer, /copy code its last code block")
        texts = [
            text
            for canister in self.conversation.canisters
            if isinstance(canister, AssistantCanister) and (text := await self._read(canister))
        ]
        if not texts:
            raise RequestError("no answer to copy yet")
        text = texts[-1]
        if what:
            blocks = find_code(text)
            if not blocks:
                raise RequestError("the last answer has no code block; /copy copies all of it")
            text = blocks[-1]
        where = copy(text)
        self._print(f"(copied {len(text):,} characters with {where})")

    async def _read(self, canister: Canister) -> str:
        whole = await load_whole(canister, self._session.archive)
        return text_of(whole.contents)

    async def _set(self, words: str) -> None:
        name, _, value = words.partition(" ")
        name, value = name.replace("_", "-"), value.strip()
        if not name:
            given = controls_of(self._options)
            for key, one in {**given.given(), **given.extras}.items():
                note(f"{key:<24} {json.dumps(one, ensure_ascii=False)}")
            if given == Controls():
                self._print("(no controls are set; /set NAME VALUE sets one)")
            return
        left = tuple(one for one in self._options.options if one[0].replace("_", "-") != name)
        if not value and len(left) == len(self._options.options):
            raise RequestError(f"{name!r} is not set; /set {name} VALUE sets it")
        chosen = (*left, (name, value)) if value else left
        options = msgspec.structs.replace(self._options, options=chosen)
        # Fails now instead of with the next message if the model does not accept it.
        check_extras(self._session, options)
        self.conversation.model.check((), controls_of(options))
        self._options = options
        self._print(f"({name} is {value} now)" if value else f"({name} is cleared)")

    async def _context(self, _: str) -> None:
        # Imported only here, to start fast.
        from vibe_llms.cli.caching import draw_summary
        from vibe_llms.cli.context import draw_context

        note(draw_context(await self.conversation.measure_context(), columns(sys.stderr)))
        if summary := draw_summary(self.conversation.caching):
            note(summary)

    async def _compact(self, focus: str) -> int:
        return await self._run_turn(partial(self.conversation.compact, focus))

    async def _clear(self, _: str) -> None:
        if can_redraw(sys.stderr):
            write(sys.stderr, "\x1b[H\x1b[2J")

    async def _fork(self, name: str) -> None:
        self.conversation = await self.conversation.fork(name=name)
        self._print(f"(continuing in the fork {self.conversation.identity})")

    async def _undo(self, count: str) -> None:
        if count and not re.fullmatch(r"[1-9]\d{0,5}", count):
            raise RequestError(f"/undo needs a number of turns, not {count!r}")
        turns, before = int(count or 1), self.conversation.canisters
        self.conversation = await self.conversation.undo(turns)
        undone = before[len(self.conversation.canisters) :]
        prompt = next(one for one in undone if isinstance(one, UserCanister))
        self._draft = await self._read(prompt)
        self._attached = tuple(c for c in prompt.contents if not isinstance(c, TextualContent))
        first = cut(one_line(self._draft), _SHOWN_CELLS)
        more = f" and {turns - 1} more" if turns > 1 else ""
        self._print(f"(undone: '{first}'{more}; vibe-llms list --all still lists it)")

    def _describe_unanswered(self) -> str:
        said = self.conversation.canisters
        if said and said[-1].identity == self._unanswered[0]:
            return "(/regenerate tries again; a new message replaces this one)"
        if self._draft:
            return "(nothing was sent or saved; your message is at the prompt again)"
        return "(the partial answer is kept; /regenerate tries again)"

    async def _regenerate(self, _: str) -> int:
        self.conversation = await self.conversation.regenerate()
        return await self._converse(None)

    async def _rename(self, name: str) -> None:
        if name:
            await self.conversation.rename(repair_text(name))
        self._print(f"(name: {self.conversation.name or 'not set'})")

    async def _show(self, _: str) -> None:
        for number, canister in enumerate(self.conversation.canisters, 1):
            drawn = await draw_canister(canister, self._session.archive, number)
            write(sys.stdout, f"{drawn}\n")

    async def _memory(self, words: str) -> None:
        # Imported only here, to start fast.
        from vibe_llms.cli.memory.repl_memory import run_memory_command

        await run_memory_command(words, self._session, self.conversation, quiet=self._options.quiet)

    async def _usage(self, _: str) -> None:
        said = self.conversation.canisters
        note(describe_usage(usage_of(said), access_cost(self._session, said)))

    def _describe(self) -> str:
        conversation = self.conversation
        count = len(conversation.canisters)
        if not count:
            return f"{address_of(conversation)}."
        name = f" '{conversation.name}'" if conversation.name else ""
        return f"{address_of(conversation)}, {conversation.identity}{name}, {count} messages."

    def _print(self, text: str) -> None:
        if not self._options.quiet:
            note(text, dim=True)


async def run_repl(options: Options, said: PromptInput = PromptInput()) -> int:
    """Run a conversation at the terminal; return the exit status.

    The input of the options is sent with the first message.
    """

    def pause() -> None:
        if repl is not None:
            repl.pause()

    repl: Repl | None = None
    overrides = await overrides_of(options)

    def resume() -> None:
        if repl is not None:
            repl.resume()

    questions = Questions(pause, resume)
    async with open_session(
        event_handler=print_notices(quiet=options.quiet),
        configuration=overrides.settings,
        keys=overrides.keys,
        interactive=is_terminal(sys.stdout),
        import_guard=bound_import,
        approver=produce_approver(approve_all=options.approve_all, questions=questions),
        elicitor=produce_elicitor(questions),
    ) as session:
        conversation = await open_conversation(session, options)
        before = await fetch_pages(session, said.before, quiet=options.quiet)
        said = msgspec.structs.replace(said, before=tuple(before))
        history = None if options.no_log else session.configuration.places.history_file

        async def offer(command: str, words: str) -> Sequence[Offer]:
            if repl is None:
                return []
            return await offer_words(session, repl.conversation, command, words)

        prompts = TerminalPrompts(history, COMMANDS, offer)
        repl = Repl(session, conversation, options, prompts, said)
        status = await repl.run()
        await finish_work(session, leave=status == INTERRUPTED, quiet=options.quiet)
        conversation = repl.conversation
        said_anything = any(isinstance(c, UserCanister) for c in conversation.canisters)
        if said_anything and options.no_log and not options.quiet:
            note(UNSAVED, dim=True)
        if said_anything and not options.no_log and not options.quiet:
            note(f"saved; to continue: vibe-llms chat --cid {conversation.identity}", dim=True)
        if options.print_id and not options.no_log:
            note(conversation.identity)
        return status


def unquote(path: str) -> str:
    r"""Decode a path as it is typed, or as a terminal writes a file that is dropped on it.

    >>> unquote("'two words.txt'"), unquote(r"two\ words.txt")
    ('two words.txt', 'two words.txt')
    """
    if len(path) > 1 and path[0] == path[-1] and path[0] in "'\"":
        return path[1:-1]
    return path.replace("\\ ", " ")
