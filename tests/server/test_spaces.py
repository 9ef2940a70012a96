"""What a served user is offered: the tools that an agent's row names, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from vibe_llms.configuration import load_configuration
from vibe_llms.ensembles.core import ENSEMBLES
from vibe_llms.exceptions import ModelNotFound, StorageUnavailable
from vibe_llms.server.settings import read_server_settings
from vibe_llms.server.spaces import UserSpaces
from vibe_llms.session import open_session

#: Rows of the operator, which may be anything that runs code or reads files.
ROWS = f"""
[{ENSEMBLES}.shell]
module = "vibe_llms.ensembles.documents"

[{ENSEMBLES}.documents-of-mine]
module = "vibe_llms.ensembles.documents"

[agents.named]
model = "scripted/demo"
optional-ensembles = ["shell"]

[agents.starred]
model = "scripted/demo"
optional-ensembles = ["*"]

[agents.bare]
model = "scripted/demo"

[agents.brief]
prompt = "Briefly: $input"

[agents.translator]
prompt = "Translate to $language: $input"
"""


@pytest.fixture
def configured(home: Path) -> None:
    """A server's configuration with rows of its operator."""
    home.mkdir()
    (home / "config.toml").write_text(ROWS)


async def survey_offered(session: Any, **chosen: str) -> Sequence[str]:
    """The ensembles that a conversation has."""
    conversation = await session.begin(**chosen)
    return [one.name for one in conversation.settings.toolbox.ensembles]


@pytest.mark.usefixtures("configured")
@pytest.mark.parametrize("user", ["local", "ada"])
async def test_served_users_get_the_tools_that_the_agent_names(user: str) -> None:
    configuration = load_configuration()
    spaces = UserSpaces(configuration, read_server_settings(configuration))
    with spaces.enter(user) as space:
        offered = [
            await survey_offered(space.session, **chosen)
            for chosen in ({"agent": "named"}, {"agent": "starred"}, {"agent": "bare"}, {})
        ]
        general = await survey_offered(space.session, agent="general", model="scripted/demo")
    await spaces.close()
    assert offered == [["shell"], [], [], []]
    assert not {"shell", "documents-of-mine"} & {*general}


@pytest.mark.usefixtures("configured")
async def test_an_agent_that_needs_variables_is_not_offered() -> None:
    configuration = load_configuration()
    spaces = UserSpaces(configuration, read_server_settings(configuration))
    with spaces.enter("ada") as space:
        models = await space.survey_models()
        with pytest.raises(ModelNotFound):
            await space.resolve_model("translator")
    await spaces.close()
    assert "brief" in models
    assert "translator" not in models


@pytest.mark.usefixtures("configured")
async def test_a_space_that_cannot_be_closed_leaves_the_others_time_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configuration = load_configuration()
    spaces = UserSpaces(configuration, read_server_settings(configuration))
    closed: list[str] = []

    async def fail() -> None:
        closed.append("ada")
        raise StorageUnavailable("it cannot be closed")

    async def wait() -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        closed.append("bob")

    async def close_limiters() -> None:
        closed.append("limiters")

    with spaces.enter("ada") as ada, spaces.enter("bob") as bob:
        monkeypatch.setattr(ada, "close", fail)
        monkeypatch.setattr(bob, "close", wait)
        monkeypatch.setattr(spaces.limiters, "close", close_limiters)
    with pytest.raises(StorageUnavailable, match="it cannot be closed"):
        await spaces.close()
    assert closed == ["ada", "bob", "limiters"]


@pytest.mark.usefixtures("configured")
async def test_a_star_stands_for_all_rows_of_a_user_at_the_command_line() -> None:
    async with open_session() as session:
        offered = await survey_offered(session, agent="starred")
    assert {*offered} == {"shell", "documents-of-mine"}
