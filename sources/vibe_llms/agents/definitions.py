"""Agents: named rows of `[agents]` with the settings of a conversation.

This module reads agents, and the session applies them. A missing model or ensemble, or a wrong key,
is reported with the file, the table and the key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from vibe_llms.agents.templates import (
    INPUT,
    Example,
    draw_examples,
    fill_template,
    is_template,
    list_variables,
    survey_variables,
)
from vibe_llms.base.configuration import (
    Budget,
    Configuration,
    ContextMode,
    Positive,
    ToolMode,
)
from vibe_llms.base.exceptions import (
    AgentNotFound,
    CredentialMissing,
    ModelNotFound,
    PackageMissing,
    RequestError,
)
from vibe_llms.base.files import LARGEST_SETTINGS, read_file
from vibe_llms.conversations.hosts import ENSEMBLES, EnsembleConfiguration, access_ensemble
from vibe_llms.conversations.tools import Toolbox
from vibe_llms.invocation.other_names import find_tool
from vibe_llms.messages.controls import Controls, check_table, read_controls

AGENTS = "agents"
#: Entry of `optional-ensembles` that includes all rows of the user's own file.
ALL = "*"
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
_SYNTAX = "a variable is written $name or ${name}, and $$ is a dollar sign"


class Agent(Struct, frozen=True, kw_only=True):
    """The settings that a conversation begins with: model, instructions, tools and others.

    `supervisor` is the system prompt, and `examples` are added to it. `prompt` is a template for
    each message of the user: `$input` is the message, and the caller provides the other variables,
    or `defaults` do. `supervisor_template`, in place of `supervisor`, is a system prompt with such
    variables. `optional_ensembles` are omitted
    without a notice if a package or a key is missing; `*` means all rows of the user's own file.
    `tools` are single tools, as `row/tool`, of rows that are not offered whole. `agents` are the
    names of agents that it may ask as tools, and `skills` those of skills that it may use; `*`
    means all, and with None, the caller decides. If `memory` is None, the caller decides. `budget`
    limits what each user spends with this agent and with the agents that it asks; `payers` are the
    budgets of the agents that it answers, by name. `fallback` are addresses of models that answer
    if its model fails; None for those of the model's row. `context_mode` is the mode of
    `[context]` for its conversations; None for the configured one.
    """

    name: str
    description: str = ""
    model: str = ""
    supervisor: str = ""
    supervisor_template: str = ""
    examples: tuple[Example, ...] = ()
    prompt: str = ""
    defaults: Mapping[str, str] = {}
    ensembles: tuple[str, ...] = ()
    optional_ensembles: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    collections: tuple[str, ...] = ()
    skills: tuple[str, ...] | None = None
    controls: Controls = Controls()
    tool_mode: ToolMode | None = None
    memory: bool | None = None
    budget: Budget | None = None
    fallback: tuple[str, ...] | None = None
    context_mode: ContextMode | None = None
    payers: Mapping[str, Budget] = {}

    @property
    def budgets(self) -> Mapping[str, Budget]:
        """Budgets of agents that its requests count against, by the names of the agents."""
        return {**self.payers, self.name: self.budget} if self.budget else self.payers

    @property
    def equipped(self) -> bool:
        """True if it may read or send anything besides the messages it is given."""
        others = (self.optional_ensembles, self.tools, self.agents, self.collections)
        return bool(self.ensembles or any(others) or self.memory)

    @property
    def tool_rows(self) -> Sequence[str]:
        """Names of the ensembles of its single tools."""
        return [*dict.fromkeys(tool.partition("/")[0] for tool in self.tools)]

    @property
    def variables(self) -> Sequence[str]:
        """Names of the variables of its templates, besides `$input`."""
        names = survey_variables(self.prompt, self.supervisor_template)
        return [name for name in names if name != INPUT]

    @property
    def needed(self) -> Sequence[str]:
        """Names of the variables without a default."""
        return [name for name in self.variables if name not in self.defaults]

    def complete(self, variables: Mapping[str, str]) -> Mapping[str, str]:
        """Return the values of all variables, with defaults where none is given.

        `RequestError` names all variables that are missing, or that its templates do not have.
        """
        known = self.variables
        if unknown := [name for name in variables if name not in known]:
            raise RequestError(
                f"the prompt of the agent {self.name!r} has no {list_variables(unknown)}; its "
                f"variables are {list_variables(known) or 'none'}"
            )
        if missing := [name for name in self.needed if name not in variables]:
            raise RequestError(
                f"the prompt of the agent {self.name!r} needs a value for {list_variables(missing)}"
            )
        return {**self.defaults, **variables}

    def instruct(self, variables: Mapping[str, str] | None = None) -> str:
        """Return its system prompt with variables filled in and examples, or an empty text.

        `RequestError` names a variable that is missing or unknown.
        """
        text = self.supervisor
        if self.supervisor_template:
            text = fill_template(self.supervisor_template, self.complete(variables or {}))
        if not self.examples:
            return text
        return "\n\n".join(filter(None, (text, draw_examples(self.examples))))

    def produce_template(self, variables: Mapping[str, str]) -> Callable[[str], str] | None:
        """Return a function that fills in `prompt` with a message, or None without a prompt.

        `RequestError` names a variable that is missing, or that its templates do not have.
        """
        values = self.complete(variables)
        if not self.prompt:
            return None
        return lambda text: fill_template(self.prompt, {**values, INPUT: text})


class AgentSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Keys of a row of `[agents]`."""

    description: str = ""
    model: str = ""
    supervisor: str = ""
    supervisor_file: str = ""
    supervisor_template: str = ""
    examples: tuple[Example, ...] = ()
    prompt: str = ""
    defaults: dict[str, str] = {}
    ensembles: tuple[str, ...] = ()
    optional_ensembles: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    collections: tuple[str, ...] = ()
    skills: tuple[str, ...] | None = None
    controls: dict[str, Any] = {}
    output_tokens: Positive | None = None
    tool_mode: ToolMode | None = None
    memory: bool | None = None
    budget: Budget | None = None
    fallback: tuple[str, ...] | None = None
    context_mode: ContextMode | None = None
    enabled: bool = True


def read_agents(configuration: Configuration) -> Mapping[str, Agent]:
    """Return the enabled agents by name; raise `ConfigurationError` if a row is wrong."""
    return {name: _read(configuration, name) for name in survey_names(configuration)}


def access_agent(configuration: Configuration, name: str) -> Agent:
    """Return an agent by name without reading other rows, or raise `AgentNotFound`."""
    known = survey_names(configuration)
    if name not in known:
        raise AgentNotFound(f"agent {name!r} not found; known agents: {', '.join(known) or 'none'}")
    return _read(configuration, name)


def refuse_name(name: str) -> str:
    """Return why an agent cannot have this name; empty if it can."""
    if re.fullmatch(_NAME, name):
        return ""
    return (
        "the name of an agent has up to 64 letters, digits, '.', '_' and '-', with a letter or "
        "digit first"
    )


def survey_names(configuration: Configuration) -> Sequence[str]:
    """Return the names of the enabled rows, in file order."""
    rows = configuration.tree.get(AGENTS, {})
    return [name for name, row in rows.items() if row.get("enabled", True) is not False]


def access_others(configuration: Configuration, agent: Agent) -> Sequence[Agent]:
    """Return the agents that it may ask; raise `ConfigurationError` if one needs variables."""
    others = [access_agent(configuration, name) for name in agent.agents]
    for one in others:
        if one.needed:
            raise configuration.error(
                f"{one.name!r} needs {list_variables(one.needed)}, which other agents cannot "
                "provide",
                AGENTS,
                agent.name,
                "agents",
            )
    return others


def check_agent(
    configuration: Configuration, agent: Agent, locate: Callable[[str], object]
) -> None:
    """Raise `ConfigurationError` if one of its models, or an agent that it asks, cannot exist.

    `locate` raises `ModelNotFound`. No server is asked, so a name without a provider is accepted.
    """
    access_others(configuration, agent)
    named = [("model", agent.model), *(("fallback", model) for model in agent.fallback or ())]
    for key, model in named:
        if "/" in model:
            try:
                locate(model)
            except ModelNotFound as error:
                raise configuration.error(str(error), AGENTS, agent.name, key) from error


def check_ensembles(configuration: Configuration, agent: Agent) -> None:
    """Raise `ConfigurationError` if the row of one of its ensembles is wrong; open none.

    Missing keys are ignored, as are missing packages of optional ensembles.
    """
    for name in dict.fromkeys((*agent.ensembles, *agent.tool_rows)):
        with suppress(CredentialMissing):
            _check_ensemble(configuration, name)
    for name in survey_optional(configuration, agent, own_rows=False):
        # Rows that come with the library can lack only packages and keys.
        if configuration.is_of_the_user(ENSEMBLES, name):
            with suppress(CredentialMissing, PackageMissing):
                _check_ensemble(configuration, name)


def survey_optional(
    configuration: Configuration, agent: Agent, *, own_rows: bool = True
) -> Sequence[str]:
    """Return the names of an agent's optional ensembles, with the user's own rows for `*`.

    Without `own_rows`, `*` is ignored.
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


def restrict(
    configuration: Configuration, agent: Agent, toolbox: Toolbox, whole: Collection[str]
) -> Toolbox:
    """Offer only the agent's single tools of the ensembles that are not `whole`.

    Raise `ConfigurationError` for a tool that its ensemble does not have.
    """
    opened = {one.name for one in toolbox.ensembles} - set(whole)
    try:
        return toolbox.single_out(one for one in agent.tools if one.partition("/")[0] in opened)
    except RequestError as error:
        raise configuration.error(str(error), AGENTS, agent.name, "tools") from error


def _check_ensemble(configuration: Configuration, name: str) -> None:
    row = configuration.row(ENSEMBLES, name)
    access_ensemble(row, EnsembleConfiguration(configuration, row.settings))


def _read(configuration: Configuration, name: str) -> Agent:
    place = (AGENTS, name)
    if problem := refuse_name(name):
        raise configuration.error(problem, *place)
    row = configuration.read(AgentSettings, configuration.tree[AGENTS][name], *place)
    _check_templates(configuration, row, place)
    ensembles = [one.name for one in configuration.rows(ENSEMBLES)]
    for key, named, table, known in (
        ("ensembles", row.ensembles, ENSEMBLES, ensembles),
        ("optional-ensembles", row.optional_ensembles, ENSEMBLES, [*ensembles, ALL]),
        ("agents", row.agents, AGENTS, survey_names(configuration)),
    ):
        for one in named:
            if one not in known:
                raise configuration.error(
                    f"{one!r} not found in [{table}]; known names: {', '.join(known) or 'none'}",
                    *place,
                    key,
                )
    tools = [find_tool(one) for one in row.tools]
    for one in tools:
        if one.partition("/")[0] not in ensembles or "/" not in one:
            raise configuration.error(
                f"{one!r} not found; a tool is written ROW/TOOL, with one of the rows of "
                f"[{ENSEMBLES}]: {', '.join(ensembles) or 'none'}",
                *place,
                "tools",
            )
    check_table(configuration, row.controls, *place, "controls")
    controls = read_controls(row.controls)
    return Agent(
        name=name,
        description=row.description,
        model=row.model,
        supervisor=_read_supervisor(configuration, row, place),
        supervisor_template=row.supervisor_template,
        examples=row.examples,
        prompt=row.prompt,
        defaults=row.defaults,
        ensembles=row.ensembles,
        optional_ensembles=row.optional_ensembles,
        tools=tuple(dict.fromkeys(tools)),
        agents=row.agents,
        collections=row.collections,
        skills=row.skills,
        controls=controls.over(Controls(output_tokens=row.output_tokens)),
        tool_mode=row.tool_mode,
        context_mode=row.context_mode,
        memory=row.memory,
        budget=row.budget,
        fallback=row.fallback,
    )


def _check_templates(
    configuration: Configuration, row: AgentSettings, place: Sequence[str]
) -> None:
    """Raise `ConfigurationError` for a wrong template, or a default that none of them has."""
    if row.prompt and not (is_template(row.prompt) and INPUT in survey_variables(row.prompt)):
        raise configuration.error(
            f"it must contain $input, the user's message; {_SYNTAX}", *place, "prompt"
        )
    if not is_template(row.supervisor_template):
        raise configuration.error(_SYNTAX, *place, "supervisor-template")
    if INPUT in survey_variables(row.supervisor_template):
        raise configuration.error(
            "it cannot contain $input, because it is sent once and before all messages; use prompt",
            *place,
            "supervisor-template",
        )
    known = [*survey_variables(row.prompt, row.supervisor_template)]
    for name in row.defaults:
        if name not in known or name == INPUT:
            others = list_variables([one for one in known if one != INPUT])
            raise configuration.error(
                f"${name} is in neither prompt nor supervisor-template, whose variables are "
                f"{others or 'none'}",
                *place,
                "defaults",
                name,
            )


def _read_supervisor(configuration: Configuration, row: AgentSettings, place: Sequence[str]) -> str:
    sources = {
        "supervisor": row.supervisor,
        "supervisor-file": row.supervisor_file,
        "supervisor-template": row.supervisor_template,
    }
    if len(given := [key for key, value in sources.items() if value]) > 1:
        raise configuration.error(f"{' and '.join(given)} exclude each other", *place)
    if not row.supervisor_file:
        return row.supervisor
    path = configuration.places.configuration / os.path.expanduser(row.supervisor_file)
    try:
        return read_file(path, LARGEST_SETTINGS).decode("utf-8").strip()
    except OSError as error:
        reason = f"{path} cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        reason = f"{path} is not UTF-8 text"
    raise configuration.error(reason, *place, "supervisor-file")
