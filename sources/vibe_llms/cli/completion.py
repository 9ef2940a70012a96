"""The command `completion`, and what a shell is offered for the values of other commands."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from vibe_llms.cli.commands import COMPLETION_VARIABLE, PROGRAM
from vibe_llms.cli.terminal import one_line, visible, write
from vibe_llms.configuration import load_configuration
from vibe_llms.exceptions import VibeLlmsError
from vibe_llms.session import open_session
from vibe_llms.storage.archive import DirectoryArchive

_OFFERED = 200


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash: add to ~/.bashrc   eval "$(vibe-llms completion bash)"
    zsh:  add to ~/.zshrc    eval "$(vibe-llms completion zsh)"
    fish: write it to        ~/.config/fish/completions/vibe-llms.fish
    """  # noqa: D301  (click reads the control character)
    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root().command
    write(sys.stdout, kind(root, {}, PROGRAM, COMPLETION_VARIABLE).source())


COMMANDS: dict[str, click.Command] = {"completion": completion}


def complete_paths(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """What lets the shell complete files as it always does."""
    return [CompletionItem(incomplete, type="file")]


def complete_models(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Aliases, and the default models of the providers."""

    async def work() -> list[CompletionItem]:
        async with open_session() as session:
            return [
                CompletionItem(model)
                for model in session.survey_addresses()
                if model.startswith(incomplete)
            ]

    return _offer(work)


def complete_conversations(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The identities of the latest conversations, with their names."""

    async def work() -> list[CompletionItem]:
        configuration = load_configuration()
        archive = DirectoryArchive(configuration.places.data, configuration.storage)
        summaries = await archive.survey(limit=_OFFERED)
        return [
            CompletionItem(summary.identity, help=visible(one_line(summary.title)))
            for summary in summaries
            if summary.identity.startswith(incomplete)
        ]

    return _offer(work)


def _offer(work: Callable[[], Coroutine[Any, Any, list[CompletionItem]]]) -> list[CompletionItem]:
    # A shell that completes has no place for an error.
    with contextlib.suppress(VibeLlmsError):
        return asyncio.run(work())
    return []
