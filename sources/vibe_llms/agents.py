"""Agents: named rows of `[agents]` that say how a conversation begins.

An agent is read here and applied by the session. A missing model or ensemble, or a wrong key, is
reported with the file, the table and the key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from string import Template
from typing import Any

from msgspec import Struct

from vibe_llms.configuration import Budget, Configuration, Positive, ToolMode
from vibe_llms.controls import Controls, read_controls
from vibe_llms.ensembles.core import ENSEMBLES, access_ensemble
from vibe_llms.ensembles.interfaces import EnsembleConfiguration
from vibe_llms.exceptions import (
    AgentNotFound,
    CredentialMissing,
    ModelNotFound,
    PackageMissing,
    RequestError,
)
from vibe_llms.files import LARGEST_SETTINGS, read_file

AGENTS = "agents"
#: Among the optional ensembles: all rows of the user's own file.
ALL = "*"
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
_INPUT = "input"


class Agent(Struct, frozen=True, kw_only=True):
    """How a conversation begins: its model, instructions, tools and settings.

    `supervisor` is the system prompt. `prompt` is a template for each message of the user: `$input`
    is the message, and the caller gives the other variables. `optional_ensembles` are left out
    without a notice where a package or a key is missing; `*` stands for all rows of the user's own
    file. `agents` are names of agents that it may ask as tools. Without `memory`, the caller
    decides. `budget` limits what each user spends with it, and with the agents that it asks;
    `payers` are the budgets of the agents that it answers, by their names.
    """

    name: str
    description: str = ""
    model: str = ""
    supervisor: str = ""
    prompt: str = ""
    ensembles: tuple[str, ...] = ()
    optional_ensembles: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    collections: tuple[str, ...] = ()
    controls: Controls = Controls()
    tool_mode: ToolMode | None = None
    memory: bool | None = None
    budget: Budget | None = None
    payers: Mapping[str, Budget] = {}

    @property
    def budgets(self) -> Mapping[str, Budget]:
        """The budgets of agents that its requests count against, by the names of the agents."""
        return {**self.payers, self.name: self.budget} if self.budget else self.payers

    @property
    def equipped(self) -> bool:
        """Whether it may read or send anything besides the messages it is given."""
        others = (self.optional_ensembles, self.agents, self.collections)
        return bool(self.ensembles or any(others) or self.memory)

    @property
    def variables(self) -> Sequence[str]:
        """The variables that `prompt` needs besides `$input`."""
        return [name for name in Template(self.prompt).get_identifiers() if name != _INPUT]

    def produce_template(self, variables: Mapping[str, str]) -> Callable[[str], str] | None:
        """A function that writes a message as `prompt` has it; nothing if there is no prompt.

        `RequestError` names a variable that is missing, or that the prompt does not have.
        """
        wanted = self.variables
        if missing := [name for name in wanted if name not in variables]:
            raise RequestError(
                f"the prompt of the agent {self.name!r} needs a value for {_list(missing)}"
            )
        if unknown := [name for name in variables if name not in wanted]:
            raise RequestError(
                f"the prompt of the agent {self.name!r} has no {_list(unknown)}; its variables "
                f"are {_list(wanted) or 'none'}"
            )
        if not self.prompt:
            return None
        return lambda text: Template(self.prompt).substitute({**variables, _INPUT: text})


class AgentSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The keys of a row of `[agents]`."""

    description: str = ""
    model: str = ""
    supervisor: str = ""
    supervisor_file: str = ""
    prompt: str = ""
    ensembles: tuple[str, ...] = ()
    optional_ensembles: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    collections: tuple[str, ...] = ()
    controls: dict[str, Any] = {}
    output_tokens: Positive | None = None
    tool_mode: ToolMode | None = None
    memory: bool | None = None
    budget: Budget | None = None
    enabled: bool = True


def read_agents(configuration: Configuration) -> Mapping[str, Agent]:
    """The enabled agents by name; `ConfigurationError` if one of their rows is wrong."""
    return {name: _read(configuration, name) for name in survey_names(configuration)}


def access_agent(configuration: Configuration, name: str) -> Agent:
    """The agent of a name, or `AgentNotFound`; other rows are not read."""
    known = survey_names(configuration)
    if name not in known:
        raise AgentNotFound(f"no agent is named {name!r}; there are: {', '.join(known) or 'none'}")
    return _read(configuration, name)


def survey_names(configuration: Configuration) -> Sequence[str]:
    """The names of the enabled rows, in file order."""
    rows = configuration.tree.get(AGENTS, {})
    return [name for name, row in rows.items() if row.get("enabled", True) is not False]


def access_others(configuration: Configuration, agent: Agent) -> Sequence[Agent]:
    """The agents that an agent may ask; `ConfigurationError` if one needs variables."""
    others = [access_agent(configuration, name) for name in agent.agents]
    for one in others:
        if one.variables:
            raise configuration.error(
                f"{one.name!r} needs {_list(one.variables)}, which no agent can give",
                *(AGENTS, agent.name, "agents"),
            )
    return others


def check_agent(
    configuration: Configuration, agent: Agent, locate: Callable[[str], object]
) -> None:
    """Raise `ConfigurationError` if its model or an agent that it asks cannot exist.

    `locate` raises `ModelNotFound`. No server is asked, so a name without a provider is accepted.
    """
    access_others(configuration, agent)
    if "/" in agent.model:
        try:
            locate(agent.model)
        except ModelNotFound as error:
            raise configuration.error(str(error), AGENTS, agent.name, "model") from error


def check_ensembles(configuration: Configuration, agent: Agent) -> None:
    """Raise `ConfigurationError` if the row of one of its ensembles is wrong; none is opened.

    A key may still be missing, and what an optional ensemble needs.
    """
    for name in agent.ensembles:
        with suppress(CredentialMissing):
            _check_ensemble(configuration, name)
    for name in survey_optional(configuration, agent, own_rows=False):
        # Of a row that comes with the library, nothing but packages and keys can be missing.
        if configuration.is_of_the_user(ENSEMBLES, name):
            with suppress(CredentialMissing, PackageMissing):
                _check_ensemble(configuration, name)


def survey_optional(
    configuration: Configuration, agent: Agent, *, own_rows: bool = True
) -> Sequence[str]:
    """The names of an agent's optional ensembles, with the user's own rows for `*`.

    Without `own_rows`, only those that are named.
    """
    if not agent.optional_ensembles:
        return ()
    own = [
        row.name
        for row in configuration.rows(ENSEMBLES)
        if own_rows and configuration.is_of_the_user(ENSEMBLES, row.name)
    ]
    named = [name for one in agent.optional_ensembles for name in (own if one == ALL else [one])]
    return [name for name in dict.fromkeys(named) if name not in agent.ensembles]


def _check_ensemble(configuration: Configuration, name: str) -> None:
    row = configuration.row(ENSEMBLES, name)
    access_ensemble(row, EnsembleConfiguration(configuration, row.settings))


def _read(configuration: Configuration, name: str) -> Agent:
    place = (AGENTS, name)
    if not re.fullmatch(_NAME, name):
        raise configuration.error(
            "the name of an agent has up to 64 letters, digits, '.', '_' and '-', with a letter or "
            "digit first",
            *place,
        )
    row = configuration.read(AgentSettings, configuration.tree[AGENTS][name], *place)
    template = Template(row.prompt)
    if row.prompt and not (template.is_valid() and _INPUT in template.get_identifiers()):
        raise configuration.error(
            "it must contain $input, the user's message; a variable is written $name or ${name}, "
            "and $$ is a dollar sign",
            *(*place, "prompt"),
        )
    ensembles = [one.name for one in configuration.rows(ENSEMBLES)]
    for key, named, table, known in (
        ("ensembles", row.ensembles, ENSEMBLES, ensembles),
        ("optional-ensembles", row.optional_ensembles, ENSEMBLES, [*ensembles, ALL]),
        ("agents", row.agents, AGENTS, survey_names(configuration)),
    ):
        for one in named:
            if one not in known:
                raise configuration.error(
                    f"there is no {one!r} in [{table}]; there are {', '.join(known) or 'none'}",
                    *(*place, key),
                )
    configuration.check_controls(row.controls, *place, "controls")
    controls = read_controls(row.controls)
    return Agent(
        name=name,
        description=row.description,
        model=row.model,
        supervisor=_read_supervisor(configuration, row, place),
        prompt=row.prompt,
        ensembles=row.ensembles,
        optional_ensembles=row.optional_ensembles,
        agents=row.agents,
        collections=row.collections,
        controls=controls.over(Controls(output_tokens=row.output_tokens)),
        tool_mode=row.tool_mode,
        memory=row.memory,
        budget=row.budget,
    )


def _read_supervisor(configuration: Configuration, row: AgentSettings, place: Sequence[str]) -> str:
    if not row.supervisor_file:
        return row.supervisor
    if row.supervisor:
        raise configuration.error("supervisor and supervisor-file exclude each other", *place)
    path = configuration.places.configuration / os.path.expanduser(row.supervisor_file)
    try:
        return read_file(path, LARGEST_SETTINGS).decode("utf-8").strip()
    except OSError as error:
        reason = f"{path} cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        reason = f"{path} is not UTF-8 text"
    raise configuration.error(reason, *place, "supervisor-file")


def _list(variables: Sequence[str]) -> str:
    return ", ".join(f"${name}" for name in variables)
