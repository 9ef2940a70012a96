"""Prompts that look like commands: a mistyped `lst` is not sent to a model unasked.

A first word without spaces looks like a command if it is the name of one, or one typing slip away
from it. The names of commands that only other tools have count if at most one word follows. A
prompt in quotes has spaces, and a prompt after `--` or `chat` is meant: neither is checked.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import click

#: What the group of commands says of a prompt: it came without `chat`, or after `--`.
IMPLICIT, FORCED = "vibe_llms.implicit", "vibe_llms.forced"
#: What leaves, as a line of the REPL or as the whole prompt.
LEAVING = frozenset({"exit", "quit"})
#: Commands of similar tools, and what does the same here, if anything does.
_ELSEWHERE = {
    "delete": "rm",
    "history": "list",
    "install": "plugins install",
    "login": "keys set",
    "logs": "list",
    "ls": "list",
    "prompt": "chat",
    "remove": "rm",
    "repl": "chat",
    "serve": "",
    "setup": "keys set",
    "upgrade": "",
    "update": "",
    "version": "--version",
}
# Words that begin many prompts, and are commands or one slip away from one.
_PLAIN = frozenset({"cat", "chart", "expert", "for", "help"})
_SHORTEST = 3
_LONG = 5


def find_command(words: Sequence[str], commands: Iterable[str]) -> str | None:
    """The command that some words look like; empty if only other tools have it.

    `None` if they are a prompt.
    """
    first = words[0] if words else ""
    # Commands are in small letters; "Export" or "list?" begins a sentence.
    if not (first.isalpha() and first.islower()) or first in _PLAIN:
        return None
    names = list(commands)
    if first in names:
        return first
    if first in _ELSEWHERE and len(words) <= 2:
        return _ELSEWHERE[first]
    return next((name for name in names if is_slip(first, name)), None)


def is_slip(word: str, name: str) -> bool:
    """Whether a word is a name with one typing slip, its first letter being right.

    A slip is a letter too many or too few, two that changed places, or, in names of five letters or
    more, a wrong one.

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


def is_meant(context: click.Context, words: Sequence[str]) -> bool:
    """Whether the words of `chat` are to be sent; a person at a terminal is asked where in doubt.

    `UsageError` where it is doubtful and there is no terminal to ask at.
    """
    root = context.find_root()
    program, group = root.info_name, root.command
    if root.meta.get(FORCED) or not root.meta.get(IMPLICIT) or not isinstance(group, click.Group):
        return True
    meant = find_command(words, group.list_commands(root))
    if meant is None:
        return True
    if meant == words[0]:
        told = f"{meant!r} is a command; its options come after it: {program} {meant} …"
    elif meant:
        told = f"{words[0]!r} is not a command; did you mean: {program} {meant}?"
    else:
        told = f"{words[0]!r} is not a command."
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        import shlex

        forced = f"{program} -- {shlex.join(words)}"
        raise click.UsageError(f"{told} To send it as a prompt: {forced}.", root)
    click.echo(told, err=True)
    return click.confirm("Send it to the model as a prompt?", err=True)


def leaves(context: click.Context, words: Sequence[str]) -> bool:
    """Whether the words of `chat` only want to leave."""
    return " ".join(words) in LEAVING and not context.find_root().meta.get(FORCED)
