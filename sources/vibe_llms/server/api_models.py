"""The endpoints `/api/agents` and `/api/models`: what the user may name, and what it can do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal

import msgspec
from msgspec import Struct

from vibe_llms.agents.definitions import access_agent, survey_optional
from vibe_llms.base.exceptions import ModelNotFound, PackageMissing
from vibe_llms.messages.controls import ControlRange
from vibe_llms.messages.costs import ModelPrices, find_prices
from vibe_llms.providers.interfaces import Model
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.spaces import UserSpace


class ModelAbilities(Struct):
    """Abilities and limits of a model.

    `accepts` has the kinds of contents besides text, `image`, `audio`, and `video`, and types of
    files, such as `application/pdf`; other files are given as text. `context_tokens` is the
    declared or learned context window. `controls` has the accepted controls with their ranges; null
    if that is not known. `retires` is a date, if the end of the model is announced.
    """

    title: str
    accepts: tuple[str, ...]
    tools: Literal["native", "contract", "none"]
    reasoning: bool
    context_tokens: int | None
    output_tokens: int | None
    controls: Mapping[str, ControlRange] | None
    retires: str


class AnsweringModel(Struct, kw_only=True):
    """A model that answers.

    `model` is its address, `provider/name`. With `own_key`, requests need the header
    `X-Provider-Key`. `abilities` are null if the provider cannot be used now, and `prices` if they
    are not known.
    """

    model: str
    own_key: bool
    abilities: ModelAbilities | None
    prices: ModelPrices | None


class ModelDescription(AnsweringModel, kw_only=True):
    """A model that the user may name by its `id`: its address, or an alias."""

    id: str


class ModelList(Struct):
    """Models that the user may name, aliases first.

    `default` is the name of an agent or the address of a model that answers if none is named;
    `note` says why, if that needs an explanation.
    """

    default: str
    note: str
    models: list[ModelDescription]


class AgentDescription(AnsweringModel, kw_only=True):
    """An agent that the user may name by its `id`.

    `model` is its own model or else the default one. `ensembles` are its sources of tools; of
    `optional_ensembles`, only those that work are used. `tools` are single tools, and `agents` the
    agents that it may ask. If `memory` is null, the server's setting applies.
    """

    id: str
    description: str
    fallback: tuple[str, ...]
    ensembles: tuple[str, ...]
    optional_ensembles: tuple[str, ...]
    tools: tuple[str, ...]
    agents: tuple[str, ...]
    collections: tuple[str, ...]
    memory: bool | None


class AgentList(Struct):
    """Agents that the user may name, in the order of the configuration."""

    agents: list[AgentDescription]


async def list_agents(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """List the agents that the user may name, with the abilities of their models."""
    configuration = space.session.configuration
    agents = [access_agent(configuration, name) for name in space.agents]
    default = (await space.session.find_model())[0]
    models = await _describe(space, [agent.model or default for agent in agents])
    listed = [
        AgentDescription(
            id=agent.name,
            description=agent.description,
            fallback=agent.fallback or (),
            ensembles=agent.ensembles,
            optional_ensembles=tuple(survey_optional(configuration, agent, own_rows=False)),
            tools=agent.tools,
            agents=agent.agents,
            collections=agent.collections,
            memory=agent.memory,
            **msgspec.structs.asdict(model),
        )
        for agent, model in zip(agents, models, strict=True)
    ]
    await exchange.reply(msgspec.json.encode(AgentList(listed)))


async def describe_models(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """List the models that the user may name, with abilities, prices, and the default one."""
    names = [name for name in await space.survey_models() if space.find_agent(name) is None]
    default, note = await space.session.find_model()
    models = [
        ModelDescription(id=name, **msgspec.structs.asdict(model))
        for name, model in zip(names, await _describe(space, names), strict=True)
    ]
    await exchange.reply(msgspec.json.encode(ModelList(default, note, models)))


async def _describe(space: UserSpace, names: Sequence[str]) -> Sequence[AnsweringModel]:
    """Describe models by their addresses or aliases."""
    session = space.session
    models = [await space.access_model(name) for name in names]
    located = [_locate(space, *pair) for pair in zip(names, models, strict=True)]
    priced = [(name, session.access_prices(row)) for row, name in located]
    prices = await asyncio.to_thread(_find_prices, priced)
    return [
        AnsweringModel(
            model=f"{row}/{name}" if row else name,
            own_key=session.is_of_callers(row),
            abilities=None if model is None else await _describe_abilities(space, model),
            prices=price,
        )
        for (row, name), model, price in zip(located, models, prices, strict=True)
    ]


def _locate(space: UserSpace, name: str, model: Model | None) -> tuple[str, str]:
    """Return the row and the own name of a model; without a row if no provider is known for it."""
    if model is not None:
        return model.provider, model.name
    try:
        row, own = space.session.locate_model(name)
    except ModelNotFound:
        return "", name
    return row.name, own


async def _describe_abilities(space: UserSpace, model: Model) -> ModelAbilities:
    known = model.attributes
    return ModelAbilities(
        title=known.title,
        accepts=known.accepts,
        tools=known.tools,
        reasoning=known.reasoning,
        context_tokens=await space.session.windows.window_of(model),
        output_tokens=known.output_tokens,
        controls=known.controls,
        retires=known.retires,
    )


def _find_prices(models: Iterable[tuple[str, str]]) -> Sequence[ModelPrices | None]:
    """Return the prices of models with the names of their price lists."""
    models, today = [*models], datetime.now(UTC).date()
    with suppress(PackageMissing):
        return [find_prices(model, listed, today) for model, listed in models]
    return [None] * len(models)
