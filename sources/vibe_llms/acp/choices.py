"""The settings of a session that a client shows: the model and the agent."""

from __future__ import annotations

from collections.abc import Sequence

from vibe_llms.acp.updates import OptionValue, SelectOption
from vibe_llms.agents.definitions import survey_names
from vibe_llms.base.exceptions import VibeLlmsError
from vibe_llms.session.core import Session

#: Ids of the options.
MODEL, AGENT = "model", "agent"
#: Value of the option for no agent; no agent can have this name.
NO_AGENT = "-"


def describe_choices(session: Session, model: str, agent: str) -> Sequence[SelectOption]:
    """Return the options with their values; `model` and `agent` are the current ones."""
    addresses = dict.fromkeys((model, *session.survey_addresses(usable=True)))
    options = [
        SelectOption(
            id=MODEL,
            name="Model",
            description="The model that answers the next message",
            category="model",
            current_value=model,
            options=[OptionValue(one, one) for one in addresses],
        )
    ]
    if agents := _survey_agents(session, agent):
        options.append(
            SelectOption(
                id=AGENT,
                name="Agent",
                description="Instructions and tools from your configuration",
                category="_agent",
                current_value=agent or NO_AGENT,
                options=[OptionValue(NO_AGENT, "No agent"), *agents],
            )
        )
    return options


def _survey_agents(session: Session, current: str) -> list[OptionValue]:
    """Return the agents that a client can choose: those that need no variables."""
    found: list[OptionValue] = []
    for name in dict.fromkeys((*survey_names(session.configuration), *filter(None, [current]))):
        try:
            agent = session.access_agent(name)
        except VibeLlmsError:
            # Choosing it would say what is wrong with its row.
            found.append(OptionValue(name, name))
            continue
        if not agent.needed or name == current:
            found.append(OptionValue(name, name, agent.description or None))
    return found
