"""The command `skills`: lists, shows and checks skills."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from vibe_llms.agents.definitions import read_agents
from vibe_llms.base.configuration import Configuration, load_configuration
from vibe_llms.base.exceptions import SkillUnavailable
from vibe_llms.cli.completion import complete_paths, complete_skills
from vibe_llms.cli.running import asynchronous
from vibe_llms.cli.shared_options import json_option
from vibe_llms.cli.terminal import note, write_json, write_lines, write_row
from vibe_llms.cli.text import pad
from vibe_llms.messages.hidden import visible
from vibe_llms.skills.catalog import LoadedSkill, Skill, check_skill, produce_library

_CELLS = 16
_INVALID = 1


@click.group("skills")
def skills() -> None:
    """List, show and check skills.

    A skill is a folder with a SKILL.md, whose instructions the model reads when a task needs them.
    """


@skills.command("list")
@json_option
@asynchronous
async def list_skills(as_json: bool) -> None:
    """List skills, and why some of them are not offered."""
    configuration = load_configuration()
    found = await asyncio.to_thread(produce_library(configuration).survey)
    if as_json:
        users = _survey_users(configuration, found.skills)
        listed = [_describe(one, users[one.folder]) for one in found.skills]
        write_json(json.dumps(listed, ensure_ascii=False))
    for skill in () if as_json else found.skills:
        text = f"(not offered: {skill.problem})" if skill.problem else skill.description
        write_row(visible(skill.name), visible(text), cells=_CELLS)
    for folder, problem in found.problems.items():
        note(f"vibe-llms: {folder}: {problem}")
    if not found.skills and not as_json:
        note(f"no skills yet; put the folder of one into {configuration.places.skills}")


@skills.command("show")
@click.argument("name", shell_complete=complete_skills)
@json_option
@asynchronous
async def show_skill(name: str, as_json: bool) -> None:
    """Show a skill: its instructions, its files, and whether it is offered."""
    configuration = load_configuration()
    library = produce_library(configuration)
    found = (await asyncio.to_thread(library.survey)).skills
    named = sorted((one for one in found if one.name == name), key=lambda one: bool(one.problem))
    if not named:
        known = ", ".join(dict.fromkeys(one.name for one in found)) or "none"
        raise SkillUnavailable(f"skill {name!r} not found; known skills: {known}")
    skill = named[0]
    loaded = LoadedSkill(skill, "", ())
    if not skill.problem:
        loaded = await asyncio.to_thread(library.load, name)
    described = {
        **_describe(skill, _survey_users(configuration, found)[skill.folder]),
        "files": [{"path": one.path, "bytes": one.size} for one in loaded.files],
        "instructions": loaded.body,
    }
    if as_json:
        write_json(json.dumps(described, ensure_ascii=False))
    else:
        write_lines(visible(_draw(described)))


@skills.command("check")
@click.argument("path", shell_complete=complete_paths)
@json_option
def check(path: str, as_json: bool) -> int:
    """Check the folder of a skill against the format.

    Also reports what does not keep the skill from being offered here, but other programs may
    refuse. Exits with status 1 if there is anything to report.
    """
    skill = check_skill(Path(path).expanduser())
    found = [*([skill.problem] if skill.problem else []), *skill.remarks]
    if as_json:
        write_json(json.dumps(_describe(skill), ensure_ascii=False))
    elif not found:
        write_lines(visible(f"{skill.name}: valid"))
    for text in () if as_json else found:
        write_lines(visible(f"{skill.name}: {text}"))
    return _INVALID if found else 0


COMMANDS: dict[str, click.Command] = {"skills": skills}


def _survey_users(
    configuration: Configuration, found: Sequence[Skill]
) -> Mapping[str, Sequence[str]]:
    """Return the agents that name each skill, by the folder of the skill."""
    agents = read_agents(configuration).values()
    return {
        one.folder: [
            agent.name
            for agent in agents
            if not one.problem and {one.name, "*"} & {*(agent.skills or ())}
        ]
        for one in found
    }


def _describe(skill: Skill, agents: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "name": skill.name,
        "description": skill.description,
        "folder": skill.folder,
        "offered": not skill.problem,
        "problem": skill.problem,
        "remarks": list(skill.remarks),
        "agents": list(agents),
        "license": skill.license,
        "compatibility": skill.compatibility,
        "allowed_tools": list(skill.allowed_tools),
        "metadata": dict(skill.metadata),
    }


def _draw(described: Mapping[str, Any]) -> str:
    lines = [*filter(None, (described["name"], described["description"])), ""]
    facts = {
        "not offered": described["problem"],
        "folder": described["folder"],
        "agents": ", ".join(described["agents"]),
        "license": described["license"],
        "compatibility": described["compatibility"],
        "allowed-tools": " ".join(described["allowed_tools"]),
        **described["metadata"],
        "files": ", ".join(one["path"] for one in described["files"]),
        "remarks": "; ".join(described["remarks"]),
    }
    lines += [f"{pad(key, _CELLS)} {value}" for key, value in facts.items() if value]
    if described["instructions"]:
        lines += ["", described["instructions"]]
    return "\n".join(lines)
