"""Errors at the terminal: one line on stderr, an object with `--json`, and an exit status.

The statuses are documented in `documentation/reference/command.md`; most are from sysexits.h.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Sequence

import click

from vibe_llms.base import exceptions
from vibe_llms.base.exceptions import VibeLlmsError, find_wait
from vibe_llms.base.redaction import redact
from vibe_llms.cli.other_programs import OPTIONS
from vibe_llms.cli.terminal import aside, is_terminal, note, write_json
from vibe_llms.messages.hidden import one_line

INTERRUPTED = 130
BAD_USAGE = 2

#: Exit statuses by class of error; the first matching row is used.
STATUSES: tuple[tuple[type[VibeLlmsError], int], ...] = (
    (exceptions.RateLimited, 75),
    (exceptions.PaymentRequired, 75),
    (exceptions.BudgetExceeded, 75),
    (exceptions.ProviderOverloaded, 69),
    (exceptions.ProviderUnreachable, 69),
    (exceptions.ReplyTimeout, 69),
    (exceptions.ReplyCut, 69),
    (exceptions.OutputCut, 65),
    (exceptions.OutputInvalid, 65),
    (exceptions.CredentialMissing, 77),
    (exceptions.CredentialRefused, 77),
    (exceptions.ModelNotFound, 66),
    (exceptions.ModelUnavailable, 66),
    (exceptions.AttachmentUnreadable, 66),
    (exceptions.CollectionNotFound, 66),
    (exceptions.AgentNotFound, 66),
    (exceptions.SkillUnavailable, 66),
    (exceptions.ScriptInvalid, 66),
    (exceptions.ConversationNotFound, 66),
    (exceptions.MemoryNotFound, 66),
    (exceptions.RunNotFound, 66),
    (exceptions.ConversationAmbiguous, 66),
    (exceptions.ConfigurationError, 78),
    (exceptions.TurnInterrupted, INTERRUPTED),
    (exceptions.RequestError, BAD_USAGE),
)


def status_of(error: BaseException) -> int:
    """Return the exit status of an error."""
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return INTERRUPTED
    if isinstance(error, click.ClickException):
        return BAD_USAGE
    kind = type(error)
    if isinstance(error, exceptions.RunFailed):
        # Only the name of the error that ended the turn is known.
        kind = getattr(exceptions, getattr(error, "error", ""), kind)
    return next((status for known, status in STATUSES if issubclass(kind, known)), 1)


def report(error: BaseException, arguments: Sequence[str]) -> int:
    """Print an error in the form that the arguments ask for; return the exit status."""
    if "--debug" in arguments:
        aside(redact("".join(traceback.format_exception(error))))
    if "--json" in arguments or "--jsonl" in arguments:
        write_json(json.dumps({"error": describe(error)}))
    status = status_of(error)
    if status != INTERRUPTED:
        note(f"vibe-llms: {explain(error)}")
    elif is_terminal(sys.stderr):
        # The cursor is after ^C or a question.
        note("")
    return status


def explain(error: BaseException) -> str:
    """Describe an error in one line: the failure, its cause, and the remedy."""
    text = message_of(error)
    if isinstance(error, click.UsageError):
        end = "" if text.endswith((".", "?", "!")) else "."
        text += f"{end} See: {error.ctx.command_path if error.ctx else 'vibe-llms'} --help"
    elif isinstance(error, VibeLlmsError):
        if isinstance(error, exceptions.RateLimited) and "limit" not in text.lower():
            text = text.replace(": ", ": rate limited: ", 1)
        if (seconds := find_wait(error)) is not None:
            text = f"{text.removesuffix('; try again later')}; try again in {seconds:.0f} s"
    elif not isinstance(error, OSError | click.ClickException):
        text += " (a bug; --debug shows where)"
    return one_line(text)


def describe(error: BaseException) -> dict[str, object]:
    """Describe an error as JSON; stable."""
    described: dict[str, object] = {
        "kind": _kind_of(error),
        "message": message_of(error),
        "status": status_of(error),
    }
    if (retry_after := find_wait(error)) is not None:
        described["retry_after"] = retry_after
    return described


def message_of(error: BaseException) -> str:
    """Return the message of an error, without keys."""
    match error:
        case click.exceptions.NoArgsIsHelpError():
            # Its message is the whole help.
            text = "Missing command."
        case click.NoSuchOption(option_name=name) if name in OPTIONS and _is_question(error.ctx):
            text = f"No such option {name!r}"
            if here := OPTIONS[name]:
                text += f"; did you mean{'' if here.startswith('-') else ': vibe-llms'} {here}?"
        case click.ClickException():
            text = error.format_message()
            text = re.sub(r"(is not a valid (?:integer|float)) range", r"\1", text)
        case KeyboardInterrupt() | click.Abort():
            text = "interrupted"
        case VibeLlmsError():
            text = str(error)
        case OSError(strerror=str() as reason):
            place = f"{error.filename}: " if error.filename else ""
            text = f"{place}{reason}"
        case _:
            text = f"{type(error).__name__}: {error}"
    return redact(text)


def _is_question(context: click.Context | None) -> bool:
    """Return True for the options of a prompt, also without `chat`."""
    return context is not None and context.info_name in ("chat", "ask")


def _kind_of(error: BaseException) -> str:
    match error:
        case VibeLlmsError():
            return error.kind
        case click.ClickException():
            return "usage"
        case KeyboardInterrupt() | click.Abort():
            return "interrupted"
        case OSError():
            return "system"
        case _:
            return "unexpected"
