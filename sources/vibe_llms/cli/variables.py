"""The option `-p`: values of the variables in an agent's prompt."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import click

from vibe_llms.agents.definitions import Agent
from vibe_llms.base.exceptions import RequestError
from vibe_llms.cli.shared_options import PROGRAM


class VariableOption(click.Option):
    """An option that takes NAME=VALUE, or NAME and VALUE as two arguments, as in llm.

    The name of a variable has no equals sign, so the two are never confused.
    """

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Add the option to a parser of click, and let it take one more argument if needed."""
        super().add_to_parser(parser, ctx)
        for name in self.opts:
            known = parser._long_opt if name.startswith("--") else parser._short_opt
            option = known[name]
            add = option.process

            def process(value: str, state: Any, add: Any = add) -> None:
                if "=" not in value and state.rargs:
                    value = f"{value}={state.rargs.pop(0)}"
                add(value, state)

            option.process = process

    def type_cast_value(self, ctx: click.Context, value: Any) -> tuple[tuple[str, str], ...]:
        """Return names and values; raise `BadParameter` for a name without a value."""
        found: list[tuple[str, str]] = []
        for one in value or ():
            if not isinstance(one, str):
                found.append(one)
                continue
            name, equals, text = one.partition("=")
            if not (equals and name):
                raise click.BadParameter(f"{one!r} is not NAME=VALUE", ctx, self)
            found.append((name, text))
        return tuple(found)


def check_variables(agent: Agent, given: Mapping[str, str]) -> None:
    """Raise `RequestError` with the command that gives all missing variables."""
    if any(name not in agent.variables for name in given):
        # The session names the known ones.
        return
    if missing := [name for name in agent.needed if name not in given]:
        words = [f"{name}={shlex.quote(value)}" for name, value in given.items()]
        words += [f"{name}=VALUE" for name in missing]
        options = " ".join(f"-p {word}" for word in words)
        raise RequestError(
            f"the prompt of the agent {agent.name!r} needs a value for "
            f"{', '.join(f'${name}' for name in missing)}; to give it: "
            f"{PROGRAM} chat -A {agent.name} {options}"
        )
