"""The command `agents`: lists, shows and adds rows of `[agents]`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from vibe_llms.agents.definitions import AGENTS, Agent, access_agent, check_agent, survey_optional
from vibe_llms.base.configuration import Layer, assemble, parse_value
from vibe_llms.base.exceptions import RequestError, VibeLlmsError
from vibe_llms.cli.completion import (
    complete_agents,
    complete_ensembles,
    complete_models,
    complete_paths,
)
from vibe_llms.cli.config_file import add_rows
from vibe_llms.cli.display import print_notices
from vibe_llms.cli.failures import explain
from vibe_llms.cli.running import asynchronous, bound_import
from vibe_llms.cli.shared_options import json_option
from vibe_llms.cli.terminal import note, write_json, write_lines, write_row
from vibe_llms.cli.text import pad
from vibe_llms.messages.controls import read_controls
from vibe_llms.opening import open_session
from vibe_llms.session.core import Session

_CELLS = 16


@click.group("agents")
def agents() -> None:
    """List, show and add agents.

    An agent is a model with instructions, tools and settings: vibe-llms chat -A NAME.
    """


@agents.command("list")
@json_option
@asynchronous
async def list_agents(as_json: bool) -> None:
    """List agents with their models and descriptions."""
    async with open_session() as session:
        found = session.survey_agents()
        for agent in found:
            check_agent(session.configuration, agent, session.locate_model)
    if as_json:
        write_json(json.dumps([*map(_summarize, found)], ensure_ascii=False))
    for agent in () if as_json else found:
        words = (agent.model and f"({agent.model})", agent.description)
        write_row(agent.name, " ".join(filter(None, words)), cells=_CELLS)
    if not found and not as_json:
        note("no agents yet; add one: vibe-llms agents add NAME")


@agents.command("show")
@click.argument("name", shell_complete=complete_agents)
@json_option
@asynchronous
async def show_agent(name: str, as_json: bool) -> None:
    """Show an agent; opens its ensembles to find out which ones can be used."""
    async with open_session(event_handler=print_notices(), import_guard=bound_import) as session:
        agent = session.access_agent(name)
        check_agent(session.configuration, agent, session.locate_model)
        optional = survey_optional(session.configuration, agent)
        rows = dict.fromkeys((*agent.ensembles, *optional, *agent.tool_rows))
        problems = {one: await _find_problem(session, one) for one in rows}
    described = _describe(agent, problems)
    if as_json:
        write_json(json.dumps(described, ensure_ascii=False))
    else:
        write_lines(_draw(described))


@agents.command("add")
@click.argument("name")
@click.option("--description", default="", metavar="TEXT", help="Say what it is for.")
@click.option(
    "-m", "--model", default="", metavar="MODEL", shell_complete=complete_models, help="Its model."
)
@click.option("-s", "--system", default="", metavar="TEXT", help="Its system prompt.")
@click.option(
    "--system-file",
    metavar="PATH",
    shell_complete=complete_paths,
    help="Read its system prompt from this file, each time it is used.",
)
@click.option(
    "--prompt", default="", metavar="TEXT", help="Write each message like this, with $input."
)
@click.option(
    "-T",
    "--tool",
    "ensembles",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_ensembles,
    help="Offer it the tools of this row of [ensembles].",
)
@click.option(
    "-A",
    "--agent",
    "others",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_agents,
    help="Let it ask this agent.",
)
@click.option(
    "--docs", "collections", multiple=True, metavar="NAME", help="Let it search this collection."
)
@click.option(
    "-o",
    "--option",
    "options",
    multiple=True,
    type=(str, str),
    metavar="NAME VALUE",
    help="Set a control of its model.",
)
@click.option("--memory/--no-memory", default=None, help="Recall facts and remember new ones.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set another key of its row, such as: --set tool-mode=contract.",
)
@click.option("--force", is_flag=True, help="Replace an agent with this name.")
@json_option
@asynchronous
async def add_agent(name: str, force: bool, as_json: bool, **values: Any) -> None:
    """Add an agent: vibe-llms agents add poet -s 'Answer in verse.'

    Writes a row of [agents] to the configuration file, once it is checked.
    """
    row = _read_row(values)
    async with open_session() as session:
        configuration = session.configuration
        if name in configuration.tree.get(AGENTS, {}) and not force:
            raise RequestError(f"the agent {name!r} exists already; --force replaces it")
        layers = [
            Layer(one.origin, {**one.tree, AGENTS: _without(one.tree.get(AGENTS, {}), name)})
            for one in configuration.layers
        ]
        added = Layer("the command line", {AGENTS: {name: row}})
        trial = assemble(configuration.places, (*layers, added))
        agent = access_agent(trial, name)
        check_agent(trial, agent, session.locate_model)
    add_rows(configuration.places.configuration_file, AGENTS, {name: row})
    if as_json:
        write_json(json.dumps(_summarize(agent), ensure_ascii=False))
        return
    note(f"added; to use it: vibe-llms chat -A {name}")


COMMANDS: dict[str, click.Command] = {"agents": agents}


def _read_row(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the options to a row of `[agents]`."""
    file = values["system_file"]
    row: dict[str, Any] = {
        "description": values["description"],
        "model": values["model"],
        "supervisor": values["system"],
        "supervisor-file": file and str(Path(file).expanduser().absolute()),
        "prompt": values["prompt"],
        "ensembles": list(values["ensembles"]),
        "agents": list(values["others"]),
        "collections": list(values["collections"]),
        "controls": read_controls(dict(values["options"])).given(),
        "memory": values["memory"],
    }
    for text in values["settings"]:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise click.UsageError(f"--set needs KEY=VALUE, not {text!r}.")
        row[key] = parse_value(value)
    return {key: value for key, value in row.items() if value not in ("", None, [], {})}


def _without(rows: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: row for key, row in rows.items() if key != name}


async def _find_problem(session: Session, ensemble: str) -> str:
    """Return why an ensemble cannot be used; empty if it can."""
    try:
        await session.open_ensemble(ensemble)
    except VibeLlmsError as error:
        return explain(error)
    return ""


def _summarize(agent: Agent) -> dict[str, str]:
    return {"name": agent.name, "description": agent.description, "model": agent.model}


def _describe(agent: Agent, problems: Mapping[str, str]) -> dict[str, Any]:
    budget = agent.budget
    return {
        "name": agent.name,
        "description": agent.description,
        "model": agent.model,
        "fallback": list(agent.fallback or ()),
        "supervisor": agent.supervisor,
        "prompt": agent.prompt,
        "variables": list(agent.variables),
        "ensembles": [{"name": one, "problem": text} for one, text in problems.items()],
        "tools": list(agent.tools),
        "agents": list(agent.agents),
        "collections": list(agent.collections),
        "controls": {**agent.controls.given(), **agent.controls.extras},
        "tool_mode": agent.tool_mode,
        "context_mode": agent.context_mode,
        "memory": agent.memory,
        "budget": None
        if budget is None
        else {"tokens": budget.tokens, "money": budget.money, "period": budget.period},
    }


def _draw(described: Mapping[str, Any]) -> str:
    lines = [described["name"], described["description"], ""]
    lines.append(f"{pad('model', _CELLS)} {described['model'] or '(the default model)'}")
    for ensemble in described["ensembles"]:
        problem = ensemble["problem"] and f"  not available: {ensemble['problem']}"
        lines.append(f"{pad('ensemble', _CELLS)} {ensemble['name']}{problem}")
    drawn = ("agents", "collections", "controls", "tool_mode", "context_mode")
    for key in ("fallback", "tools", *drawn, "memory", "prompt", "budget"):
        if (value := described[key]) not in (None, "", [], {}):
            lines.append(f"{pad(key.replace('_', '-'), _CELLS)} {_draw_value(value)}")
    if described["supervisor"]:
        lines += ["", described["supervisor"].strip()]
    return "\n".join(lines)


def _draw_value(value: object) -> str:
    match value:
        case str():
            return value
        case Sequence():
            return ", ".join(map(str, value))
        case _:
            return json.dumps(value, ensure_ascii=False)
