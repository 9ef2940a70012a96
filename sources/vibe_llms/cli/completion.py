"""The command `completion`, and the values that shells and the REPL complete."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import click
import msgspec
from click.shell_completion import CompletionItem, get_completion_class

from vibe_llms.agents.definitions import AGENTS, access_agent, survey_names
from vibe_llms.base.configuration import (
    LOCAL,
    SEARCH_ENGINES,
    find_places,
    load_configuration,
)
from vibe_llms.base.credentials import read_keys
from vibe_llms.base.exceptions import VibeLlmsError
from vibe_llms.base.files import LARGEST_FILE
from vibe_llms.base.folders import make_folder, read_within, replace_file, storage_errors
from vibe_llms.cli.shared_options import COMPLETION_VARIABLE, PROGRAM
from vibe_llms.cli.terminal import write
from vibe_llms.conversations.hosts import ENSEMBLES
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.hidden import one_line, visible
from vibe_llms.opening import open_session
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.provider_pool import PROVIDERS
from vibe_llms.storage.backends import opened_backend

#: A value and its description.
Offer: TypeAlias = tuple[str, str]
Completer: TypeAlias = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

#: Maximum number of conversations or facts that are offered.
OFFERED = 200
_TOOLS_FILE = "known-tools.json"
#: Minimum typed characters to also search inside values and descriptions.
_MIN_PART = 3
_VALUES = {
    "parallel-invocations": ("true", "false"),
    "tool-choice": ("auto", "any", "none"),
}


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


def choose(offers: Iterable[Offer], begun: str) -> Sequence[Offer]:
    """Return the offers whose values begin with the typed text, or else those that contain it.

    So `sonnet` finds models, and a word of its title finds a conversation.
    """
    offers = list(offers)
    found = [offer for offer in offers if offer[0].startswith(begun)]
    if found or len(begun) < _MIN_PART:
        return found
    return [offer for offer in offers if begun.lower() in " ".join(offer).lower()]


def _completer(survey: Callable[[], Iterable[Offer]]) -> Completer:
    """Make a completer of values that do not depend on the other words of the command line."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _offer(survey, incomplete)

    return complete


def _offer(survey: Callable[[], Iterable[Offer]], incomplete: str) -> list[CompletionItem]:
    # A shell cannot show errors while it completes.
    with contextlib.suppress(VibeLlmsError):
        return [
            CompletionItem(value, help=visible(one_line(text)) or None)
            for value, text in choose(survey(), incomplete)
        ]
    return []


def complete_paths(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Let the shell complete paths itself."""
    return [CompletionItem(incomplete, type="file")]


def _survey_models() -> Sequence[Offer]:
    async def work() -> Sequence[str]:
        async with open_session() as session:
            return session.survey_addresses()

    return [(address, "") for address in asyncio.run(work())]


def _survey_learned() -> Sequence[Offer]:
    async def work() -> Sequence[Offer]:
        async with open_session() as session:
            learned = await session.windows.survey()
            return [(one.address, f"{one.tokens:,} tokens") for one in learned]

    return asyncio.run(work())


def _survey_conversations() -> Sequence[Offer]:
    async def work() -> Sequence[Offer]:
        configuration = load_configuration()
        async with opened_backend(configuration) as backend:
            archive = backend.open_archive(LOCAL, configuration.places)
            summaries = await archive.survey(limit=OFFERED)
            return [(summary.identity, summary.title) for summary in summaries]

    return asyncio.run(work())


def _survey_runs() -> Sequence[Offer]:
    # Imported only here, to keep other completions fast.
    from vibe_llms.runs.descriptions import read_title

    async def work() -> Sequence[Offer]:
        async with open_session() as session:
            found = await session.survey_runs(limit=OFFERED)
            return [(one.identity, read_title(one)) for one in found]

    return asyncio.run(work())


def _survey_providers() -> Sequence[Offer]:
    return [(row.name, "") for row in load_configuration().rows(PROVIDERS)]


def _survey_keyed() -> Sequence[Offer]:
    configuration = load_configuration()
    tables = (PROVIDERS, SEARCH_ENGINES)
    return [(row.name, "") for table in tables for row in configuration.rows(table)]


def _survey_kept_keys() -> Sequence[Offer]:
    return [(name, "") for name in read_keys(find_places().keys_file)]


def _survey_agents() -> Sequence[Offer]:
    configuration = load_configuration()
    rows = configuration.tree[AGENTS]
    return [(name, str(rows[name].get("description", ""))) for name in survey_names(configuration)]


def _survey_skills() -> Sequence[Offer]:
    # Imported only here, to keep other completions fast.
    from vibe_llms.skills.catalog import produce_library

    found = produce_library(load_configuration()).survey().skills
    return [(one.name, one.problem or one.description) for one in found]


def _survey_ensembles() -> Sequence[Offer]:
    return [(row.name, "") for row in load_configuration().rows(ENSEMBLES)]


def _survey_servers() -> Sequence[Offer]:
    rows = load_configuration().rows(ENSEMBLES)
    return [(row.name, "") for row in rows if row.module == "vibe_llms.ensembles.mcp"]


def _survey_tools() -> Sequence[Offer]:
    """Return the tools that were last listed, of ensembles that still exist; open no ensemble."""
    configuration = load_configuration()
    rows = {row.name for row in configuration.rows(ENSEMBLES)}
    known = recall_tools(configuration.places.state)
    return [offer for offer in known if offer[0].partition("/")[0] in rows]


def _survey_facts() -> Sequence[Offer]:
    # Imported only here, to keep other completions fast.
    from vibe_llms.cli.memory.common import short_identity, survey_latest

    entries = survey_latest(OFFERED)
    return [(short_identity(entry), entry.content) for entry in entries]


#: Aliases, and models that are known without asking a server.
complete_models = _completer(_survey_models)
complete_learned = _completer(_survey_learned)
complete_conversations = _completer(_survey_conversations)
complete_runs = _completer(_survey_runs)
complete_providers = _completer(_survey_providers)
complete_keyed = _completer(_survey_keyed)
complete_kept_keys = _completer(_survey_kept_keys)
complete_agents = _completer(_survey_agents)
complete_skills = _completer(_survey_skills)
complete_ensembles = _completer(_survey_ensembles)
complete_servers = _completer(_survey_servers)
complete_tools = _completer(_survey_tools)
complete_facts = _completer(_survey_facts)


def complete_variables(
    context: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the variables in the prompt of the agent that the command line names."""
    name = context.params.get("agent")
    if not isinstance(name, str):
        return []

    def survey() -> Sequence[Offer]:
        agent = access_agent(load_configuration(), name)
        defaults = agent.defaults
        return [
            (one, f"by default {defaults[one]}" if one in defaults else "needed")
            for one in agent.variables
        ]

    return _offer(survey, incomplete)


def complete_default(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the words of `models`: a provider, `default` and a model, `forget` and a model."""
    if words := context.params.get("words"):
        complete = complete_learned if words[0] == "forget" else complete_models
        return complete(context, parameter, incomplete)
    verbs = [("default", "the model to use"), ("forget", "a learned context window")]
    return _offer(lambda: [*verbs, *_survey_providers()], incomplete)


def complete_provider_check(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the words of `providers`: `check` and a provider."""
    if context.params.get("words"):
        return complete_providers(context, parameter, incomplete)
    return _offer(lambda: [("check", "try what a provider can do")], incomplete)


def complete_controls(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the controls of the model, and the values of a control."""
    words = _words_before()

    async def work() -> Sequence[Offer]:
        async with open_session() as session:
            named, agent = context.params.get("model"), context.params.get("agent")
            if not named and agent:
                named = session.access_agent(agent).model
            named = named or (await session.find_model())[0]
            attributes = (await session.access_model(named)).attributes
        if words and words[-1] in parameter.opts:
            return offer_controls(attributes)
        return offer_control_values(attributes, words[-1] if words else "")

    return _offer(lambda: asyncio.run(work()), incomplete)


def _words_before() -> Sequence[str]:
    """Return the words before the completed one, as the shell passes them."""
    kind = get_completion_class(os.environ.get(COMPLETION_VARIABLE, "").partition("_")[0])
    if kind is None:
        return []
    root = click.get_current_context(silent=True)
    command = click.Group() if root is None else root.find_root().command
    return kind(command, {}, PROGRAM, COMPLETION_VARIABLE).get_completion_args()[0]


def offer_controls(attributes: ModelAttributes) -> Sequence[Offer]:
    """Return the controls that a model takes, or all if they are not known."""
    known = attributes.controls
    return [
        (name, _describe(attributes, name))
        for name in Controls.__struct_encode_fields__
        if known is None or name in known or name == "extras"
    ]


def offer_control_values(attributes: ModelAttributes, control: str) -> Sequence[Offer]:
    """Return the values of a control, if they can be listed."""
    known = (attributes.controls or {}).get(control.replace("_", "-"))
    choices = known.choices if known is not None else ()
    return [(value, "") for value in choices or _VALUES.get(control.replace("_", "-"), ())]


def _describe(attributes: ModelAttributes, control: str) -> str:
    known = (attributes.controls or {}).get(control)
    if known is None:
        return ""
    if known.choices:
        return ", ".join(known.choices)
    bounds = (known.minimum, known.maximum)
    if bounds == (None, None):
        return ""
    low, high = ("" if bound is None else f"{bound:g}" for bound in bounds)
    return f"{low} to {high}" if low and high else f"from {low}" if low else f"up to {high}"


def remember_tools(state: Path, tools: Mapping[str, str]) -> None:
    """Store the names and descriptions of tools, so that completion needs no server.

    They replace the stored tools of the same ensembles. Storage errors are ignored.
    """
    ensembles = {name.partition("/")[0] for name in tools}
    kept = {
        name: text for name, text in recall_tools(state) if name.partition("/")[0] not in ensembles
    }
    with contextlib.suppress(VibeLlmsError), storage_errors(state):
        make_folder(state)
        replace_file(state / _TOOLS_FILE, msgspec.json.encode({**kept, **tools}), LARGEST_FILE)


def recall_tools(state: Path) -> Sequence[Offer]:
    """Return the stored tools; none if they cannot be read."""
    try:
        known = msgspec.json.decode(read_within(state, _TOOLS_FILE), type=dict[str, str])
    except (OSError, ValueError, VibeLlmsError):
        return []
    return list(known.items())
