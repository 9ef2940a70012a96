"""Finds prompts that look like a command, and asks before they are sent.

A mistyped `lst` is not sent to a model without asking. A first word looks like a command if it is
the name of one, or one typing slip away from it, or a command of another program in
`other_programs`. A prompt in quotes is one word with spaces and is never checked, nor is a prompt
after `--` or `chat`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import click

from vibe_llms.cli import other_programs
from vibe_llms.cli.shared_options import LEAVING, PROGRAM
from vibe_llms.cli.terminal import note

#: Set on the context: the prompt came without `chat`, or after `--`; an option at its second place.
IMPLICIT, FORCED, OPTION = "vibe_llms.implicit", "vibe_llms.forced", "vibe_llms.option"
# Words that often begin prompts, although they are commands or one slip away from one.
_PLAIN = frozenset({"as", "cat", "chart", "expert", "for", "help", "ready", "red", "we"})
_SHORTEST = 3
_LONG = 5


def is_meant(context: click.Context, words: Sequence[str]) -> bool:
    """Return True if the words of `chat` should be sent to a model.

    If they look like a command, ask at a terminal; raise `UsageError` without one.
    """
    root = context.find_root()
    program, group = root.info_name, root.command
    if is_forced(context) or not root.meta.get(IMPLICIT) or not isinstance(group, click.Group):
        return True
    typed = [*words]
    if words and (option := root.meta.get(OPTION)):
        # `logs -n 5` of llm; here -n is a flag, and 5 would be a second word of a prompt.
        typed.insert(1, option)
    if (hint := describe_command(program or PROGRAM, typed, group.list_commands(root))) is None:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        import shlex

        forced = f"{program} -- {shlex.join(words)}"
        raise click.UsageError(f"{hint} To send it as a prompt: {forced}.", root)
    note(hint)
    return click.confirm("Send it to the model as a prompt?", err=True)


def describe_command(program: str, words: Sequence[str], names: Iterable[str]) -> str | None:
    """Return advice for words that look like a command, or None for a prompt."""
    first = words[0] if words else ""
    if (in_chat := other_programs.find_at_shell(words)) is not None:
        return f"{first!r} is not a command; start a chat: {program} chat{in_chat}."
    meant = find_command(words, names)
    if meant is None:
        return None
    if meant == first:
        return f"{meant!r} is a command; its options come after it: {program} {meant} …"
    if meant:
        return f"{first!r} is not a command; did you mean: {program} {meant}?"
    return f"{first!r} is not a command."


def is_forced(context: click.Context) -> bool:
    """Return True if the words of `chat` came after `--`, which marks them as a prompt."""
    return bool(context.find_root().meta.get(FORCED))


def leaves(context: click.Context, words: Sequence[str]) -> bool:
    """Return True if the words of `chat` are only `exit` or `quit`."""
    return " ".join(words) in LEAVING and not is_forced(context)


def find_command(words: Sequence[str], commands: Iterable[str]) -> str | None:
    """Return the command that words look like; empty if only other programs have it, else None."""
    first = words[0] if words else ""
    if other_programs.is_command(words):
        return other_programs.COMMANDS[first]
    # Commands are lowercase letters; "Export" or "list?" begins a sentence.
    if not (first.isalpha() and first.islower()) or first in _PLAIN:
        return None
    names = list(commands)
    if first in names:
        return first
    return next((name for name in names if is_slip(first, name)), None)


def is_slip(word: str, name: str) -> bool:
    """Return True if a word is a name with one typing slip after its first letter.

    A slip is a letter too many or too few, two letters swapped, or, in names of five letters or
    more, a wrong letter.

    >>> [is_slip(word, "list") for word in ("lst", "lisst", "lsit", "last", "mist")]
    [True, True, True, False, False]
    """
    if len(name) < _SHORTEST or word[:1] != name[:1]:
        return False
    start = next((i for i, (a, b) in enumerate(zip(word, name, strict=False)) if a != b), None)
    if start is None:
        return abs(len(word) - len(name)) == 1
    a, b = word[start:], name[start:]
    return (
        a[1:] == b
        or a == b[1:]
        or (a[:2] == b[1::-1] and a[2:] == b[2:])
        or (len(name) >= _LONG and a[1:] == b[1:])
    )
