"""The command `agents`: lists, shows, adds, edits and removes rows of `[agents]`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from vibe_llms.agents.definitions import (
    AGENTS,
    Agent,
    access_agent,
    check_agent,
    refuse_name,
    survey_optional,
)
from vibe_llms.agents.imports import check_row
from vibe_llms.base.configuration import (
    Configuration,
    load_configuration,
    parse_settings,
    parse_value,
    read_settings,
)
from vibe_llms.base.configuration_file import add_rows, draw_path, remove_row, set_values
from vibe_llms.base.exceptions import RequestError, VibeLlmsError
from vibe_llms.base.files import LARGEST_SETTINGS
from vibe_llms.cli.agents_importing import import_templates
from vibe_llms.cli.completion import (
    complete_agents,
    complete_ensembles,
    complete_models,
    complete_paths,
    complete_skills,
)
from vibe_llms.cli.display import print_notices
from vibe_llms.cli.failures import explain
from vibe_llms.cli.programs import edit_text, find_editor, run_editor
from vibe_llms.cli.running import asynchronous, bound_import
from vibe_llms.cli.shared_options import json_option
from vibe_llms.cli.terminal import is_terminal, note, write_json, write_lines, write_row
from vibe_llms.cli.text import pad
from vibe_llms.cli.variables import VariableOption
from vibe_llms.conversations.attachments import read_text
from vibe_llms.messages.controls import read_controls
from vibe_llms.opening import open_session
from vibe_llms.session.core import Session

_CELLS = 16
_STANDARD_INPUT = "-"


@click.group("agents")
def agents() -> None:
    """List, show, add, edit, remove and import agents.

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
        missing: Mapping[str, str] = {}
        if agent.skills:
            _, missing = (await session.survey_skills()).choose(agent.skills)
    described = _describe(agent, problems, missing)
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
@click.option(
    "-s",
    "--system",
    "--instruction",
    "system",
    default="",
    metavar="TEXT",
    help="Its system prompt; - reads it from standard input.",
)
@click.option(
    "--system-file",
    metavar="PATH",
    shell_complete=complete_paths,
    help="Read its system prompt from this file, each time it is used.",
)
@click.option(
    "--system-template",
    default="",
    metavar="TEXT",
    help="Its system prompt, with variables such as $language.",
)
@click.option("-e", "--edit", is_flag=True, help="Write its system prompt in $VISUAL or $EDITOR.")
@click.option(
    "--prompt",
    default="",
    metavar="TEXT",
    help="Write each message like this, with $input and variables such as $language.",
)
@click.option(
    "-p",
    "--param",
    "defaults",
    cls=VariableOption,
    multiple=True,
    metavar="NAME=VALUE",
    help="Set the default of a variable.",
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
    "--skill",
    "skills",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_skills,
    help="Let it use this skill; '*' is all.",
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
def add_agent(name: str, edit: bool, force: bool, as_json: bool, **values: Any) -> None:
    """Add an agent: vibe-llms agents add poet -s 'Answer in verse.'

    Without options, its system prompt is read from standard input, or written in the editor. Writes
    a row of [agents] to the configuration file, once it is checked.
    """
    configuration = load_configuration()
    if problem := refuse_name(name):
        raise configuration.error(problem, AGENTS, name)
    if name in configuration.tree.get(AGENTS, {}) and not force:
        raise RequestError(f"the agent {name!r} exists already; --force replaces it")
    # Not on an event loop, whose handler of Ctrl-C would not end a read that waits.
    row = _read_row(_read_instructions(values, edit=edit))
    agent = _check(name, row)
    add_rows(configuration.places.configuration_file, AGENTS, {name: row}, replace=force)
    if as_json:
        write_json(json.dumps(_summarize(agent), ensure_ascii=False))
        return
    note(f"added; to use it: vibe-llms chat -A {name}")


@agents.command("edit")
@click.argument("name", shell_complete=complete_agents)
@json_option
def edit_agent(name: str, as_json: bool) -> None:
    """Edit the system prompt of an agent, or else its prompt, in $VISUAL or $EDITOR."""
    configuration = load_configuration()
    row = _access_own(configuration, name)
    keys = ("supervisor", "supervisor-template", "supervisor-file", "prompt")
    key = next((key for key in keys if row.get(key)), "supervisor")
    editor = find_editor("edit the file: vibe-llms config path")
    if key == "supervisor-file":
        run_editor(editor, configuration.places.configuration / Path(row[key]).expanduser())
    else:
        before = row.get(key, "").strip()
        text = edit_text(editor, before)
        if text == before:
            note("unchanged")
        else:
            row = {**row, key: text}
            _check(name, row)
            path = (AGENTS, name, key)
            set_values(configuration.places.configuration_file, {path: text}, lambda tree: tree)
            note(f"changed {key} of {name}")
    if as_json:
        write_json(json.dumps(_summarize(_check(name, row)), ensure_ascii=False))


@agents.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_agents)
@json_option
def remove_agents(names: tuple[str, ...], as_json: bool) -> None:
    """Remove agents from the configuration file."""
    configuration = load_configuration()
    for name in names:
        _access_own(configuration, name)
    for other, row in configuration.tree[AGENTS].items():
        if other not in names and (asked := [one for one in row.get("agents", ()) if one in names]):
            raise RequestError(
                f"the agent {other!r} may ask {', '.join(map(repr, asked))}; change its row first: "
                "vibe-llms config edit"
            )
    for name in dict.fromkeys(names):
        remove_row(configuration.places.configuration_file, AGENTS, name)
        note(f"removed {name}")
    if as_json:
        write_json(json.dumps([{"name": name} for name in dict.fromkeys(names)]))


agents.add_command(import_templates)
COMMANDS: dict[str, click.Command] = {"agents": agents}


def _access_own(configuration: Configuration, name: str) -> Mapping[str, Any]:
    """Return the row of an agent in the configuration file; raise an error if it has none."""
    if name not in configuration.tree.get(AGENTS, {}):
        access_agent(configuration, name)
    file = configuration.places.configuration_file
    rows = parse_settings(read_settings(file), file).get(AGENTS, {})
    if name not in rows:
        raise RequestError(
            f"{name!r} is not in {file}; to turn it off: vibe-llms config set "
            f"{draw_path((AGENTS, name, 'enabled'))} false"
        )
    row: Mapping[str, Any] = rows[name]
    return row


@asynchronous
async def _check(name: str, row: Mapping[str, Any]) -> Agent:
    """Return the agent of a new row; raise an error if it is wrong."""
    async with open_session() as session:
        return check_row(session.configuration, name, row, session.locate_model)


def _read_instructions(values: Mapping[str, Any], *, edit: bool) -> Mapping[str, Any]:
    """Return the options with the system prompt from standard input or the editor, if it is."""
    nothing = not any(value not in (None, "", ()) for value in values.values())
    if edit or (nothing and is_terminal(sys.stdin)):
        text = edit_text(find_editor("give its system prompt with -s"), values["system"])
    elif nothing or values["system"] == _STANDARD_INPUT:
        data = sys.stdin.buffer.read(LARGEST_SETTINGS)
        if (found := read_text(data)) is None:
            raise RequestError("standard input is not text")
        text = found.strip()
    else:
        return values
    if not text:
        raise RequestError("the system prompt is empty; give it with -s TEXT; nothing was added")
    return {**values, "system": text}


def _read_row(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the options to a row of `[agents]`."""
    file = values["system_file"]
    row: dict[str, Any] = {
        "description": values["description"],
        "model": values["model"],
        "supervisor": values["system"],
        "supervisor-file": file and str(Path(file).expanduser().absolute()),
        "supervisor-template": values["system_template"],
        "prompt": values["prompt"],
        "defaults": dict(values["defaults"]),
        "ensembles": list(values["ensembles"]),
        "agents": list(values["others"]),
        "collections": list(values["collections"]),
        "skills": list(values["skills"]),
        "controls": read_controls(dict(values["options"])).given(),
        "memory": values["memory"],
    }
    for text in values["settings"]:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise click.UsageError(f"--set needs KEY=VALUE, not {text!r}.")
        row[key] = parse_value(value)
    return {key: value for key, value in row.items() if value not in ("", None, [], {})}


async def _find_problem(session: Session, ensemble: str) -> str:
    """Return why an ensemble cannot be used; empty if it can."""
    try:
        await session.open_ensemble(ensemble)
    except VibeLlmsError as error:
        return explain(error)
    return ""


def _summarize(agent: Agent) -> dict[str, str]:
    return {"name": agent.name, "description": agent.description, "model": agent.model}


def _describe(
    agent: Agent, problems: Mapping[str, str], missing: Mapping[str, str]
) -> dict[str, Any]:
    budget = agent.budget
    return {
        "name": agent.name,
        "description": agent.description,
        "model": agent.model,
        "fallback": list(agent.fallback or ()),
        "supervisor": agent.supervisor_template or agent.supervisor,
        "examples": [{"input": one.input, "output": one.output} for one in agent.examples],
        "prompt": agent.prompt,
        "variables": list(agent.variables),
        "defaults": dict(agent.defaults),
        "ensembles": [{"name": one, "problem": text} for one, text in problems.items()],
        "tools": list(agent.tools),
        "agents": list(agent.agents),
        "collections": list(agent.collections),
        "skills": None
        if agent.skills is None
        else [{"name": one, "problem": missing.get(one, "")} for one in agent.skills],
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
    for skill in described["skills"] or ():
        problem = skill["problem"] and f"  not available: {skill['problem']}"
        lines.append(f"{pad('skill', _CELLS)} {skill['name']}{problem}")
    drawn = ("agents", "collections", "controls", "tool_mode", "context_mode")
    for key in ("fallback", "tools", *drawn, "memory", "prompt", "defaults", "budget"):
        if (value := described[key]) not in (None, "", [], {}):
            lines.append(f"{pad(key.replace('_', '-'), _CELLS)} {_draw_value(value)}")
    if described["supervisor"]:
        lines += ["", described["supervisor"].strip()]
    for example in described["examples"]:
        lines += ["", f"> {example['input']}", example["output"]]
    return "\n".join(lines)


def _draw_value(value: object) -> str:
    match value:
        case str():
            return value
        case Sequence():
            return ", ".join(map(str, value))
        case _:
            return json.dumps(value, ensure_ascii=False)
