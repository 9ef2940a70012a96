"""The command `completion`, and what a shell is offered for the values of other commands."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from vibe_llms.cli.commands import COMPLETION_VARIABLE, PROGRAM
from vibe_llms.cli.offers import (
    OFFERED,
    Offer,
    offer_control_values,
    offer_controls,
    recall_tools,
)
from vibe_llms.cli.terminal import one_line, visible, write
from vibe_llms.configuration import find_places, load_configuration
from vibe_llms.credentials import read_keys
from vibe_llms.ensembles.core import ENSEMBLES
from vibe_llms.exceptions import VibeLlmsError
from vibe_llms.providers.rows import PROVIDERS
from vibe_llms.session import open_session
from vibe_llms.storage.archive import DirectoryArchive


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
    """Aliases, and the models that are known without asking."""
    return _offer(lambda: [(model, "") for model in _survey_addresses()], incomplete)


def complete_default(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The words of `models`: a provider, or `default` and a model."""
    if context.params.get("words"):
        return complete_models(context, _parameter, incomplete)
    return _offer(lambda: [("default", "the model to use"), *_survey_rows(PROVIDERS)], incomplete)


def complete_conversations(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The identities of the latest conversations, with their titles."""

    async def work() -> Iterable[Offer]:
        configuration = load_configuration()
        archive = DirectoryArchive(configuration.places.data, configuration.storage)
        summaries = await archive.survey(limit=OFFERED)
        return [(summary.identity, summary.title) for summary in summaries]

    return _offer(lambda: asyncio.run(work()), incomplete)


def complete_providers(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The rows of providers."""
    return _offer(lambda: _survey_rows(PROVIDERS), incomplete)


def complete_kept_keys(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The names of the keys in the file of keys."""
    return _offer(lambda: [(name, "") for name in read_keys(find_places().keys_file)], incomplete)


def complete_ensembles(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The rows of ensembles."""
    return _offer(lambda: _survey_rows(ENSEMBLES), incomplete)


def complete_servers(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The rows of MCP servers."""

    def work() -> Iterable[Offer]:
        rows = load_configuration().rows(ENSEMBLES)
        return [(row.name, "") for row in rows if row.module == "vibe_llms.ensembles.mcp"]

    return _offer(work, incomplete)


def complete_tools(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The tools that were listed last, of ensembles that are still there; none is opened."""

    def work() -> Iterable[Offer]:
        configuration = load_configuration()
        rows = {row.name for row in configuration.rows(ENSEMBLES)}
        return [
            offer
            for offer in recall_tools(configuration.places.state)
            if offer[0].partition("/")[0] in rows
        ]

    return _offer(work, incomplete)


def complete_facts(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The short identities of what is remembered, with its text."""

    def work() -> Iterable[Offer]:
        # Nothing of memory is loaded where it is not used.
        opening = import_module("vibe_llms.cli.memory.opening")
        entries: Iterable[Any] = opening.survey_latest(OFFERED)
        return [(opening.short_identity(entry), entry.content) for entry in entries]

    return _offer(work, incomplete)


def complete_controls(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The controls that the model takes; after one of them, its values."""
    words = _words_before()

    async def work() -> Iterable[Offer]:
        async with open_session() as session:
            named = context.params.get("model") or session.choose_model()[0]
            attributes = (await session.access_model(named)).attributes
        if words and words[-1] in parameter.opts:
            return offer_controls(attributes)
        return offer_control_values(attributes, words[-1] if words else "")

    return _offer(lambda: asyncio.run(work()), incomplete)


def _words_before() -> Sequence[str]:
    """The words before the one that is completed, as the shell passes them."""
    kind = get_completion_class(os.environ.get(COMPLETION_VARIABLE, "").partition("_")[0])
    if kind is None:
        return []
    root = click.get_current_context(silent=True)
    command = click.Group() if root is None else root.find_root().command
    return kind(command, {}, PROGRAM, COMPLETION_VARIABLE).get_completion_args()[0]


def _survey_addresses() -> Sequence[str]:
    async def work() -> Sequence[str]:
        async with open_session() as session:
            return session.survey_addresses()

    return asyncio.run(work())


def _survey_rows(table: str) -> Sequence[Offer]:
    return [(row.name, "") for row in load_configuration().rows(table)]


def _offer(work: Callable[[], Iterable[Offer]], incomplete: str) -> list[CompletionItem]:
    # A shell that completes has no place for an error.
    with contextlib.suppress(VibeLlmsError):
        return [
            CompletionItem(value, help=visible(one_line(text)) or None)
            for value, text in work()
            if value.startswith(incomplete)
        ]
    return []
