"""The endpoint `/api/skills`: the skills that the user's conversations have, and why others not."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from vibe_llms.base.configuration import LOCAL
from vibe_llms.conversations.settings import ALL_SKILLS
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.spaces import UserSpace


class SkillDescription(Struct):
    """A skill, and the `agents` that have it; with a `problem`, it is not offered.

    The `folder` on the server is empty except for the user `local`. `remarks` are departures from
    the format that do not matter here.
    """

    name: str
    description: str
    agents: list[str]
    folder: str
    problem: str
    remarks: tuple[str, ...]


class SkillList(Struct):
    """Skills in order of precedence.

    `problems` says why folders of skills cannot be used, by their paths; empty except for the user
    `local`.
    """

    skills: list[SkillDescription]
    problems: Mapping[str, str]


async def list_skills(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """List skills.

    The user `local` sees all skills in the folders of the server, others those of their agents.
    """
    session = space.session
    wanted = {name: session.access_agent(name).skills or () for name in space.agents}
    local = space.user == LOCAL
    listed = SkillList([], {})
    # Without folders of skills, users see none, and nothing is read.
    if local or any(wanted.values()):
        catalog = await session.survey_skills()
        for one in catalog.skills:
            offered = not one.problem
            agents = [
                agent
                for agent, names in wanted.items()
                if offered and (one.name in names or ALL_SKILLS in names)
            ]
            if local:
                listed.skills.append(
                    SkillDescription(
                        one.name, one.description, agents, one.folder, one.problem, one.remarks
                    )
                )
            elif agents:
                listed.skills.append(
                    SkillDescription(one.name, one.description, agents, "", "", ())
                )
        listed.problems = catalog.problems if local else {}
    await exchange.reply(msgspec.json.encode(listed))
