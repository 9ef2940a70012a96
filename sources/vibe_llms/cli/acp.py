"""The command `acp`: an agent for editors that speak the Agent Client Protocol."""

from __future__ import annotations

import asyncio

import click

from vibe_llms.acp.options import LaunchOptions
from vibe_llms.acp.running import serve
from vibe_llms.cli.terminal import note


@click.command("acp")
@click.option("-m", "--model", metavar="PROVIDER/MODEL", help="Answer with this model.")
@click.option("--agent", metavar="NAME", help="Begin new sessions with an agent of [agents].")
@click.option(
    "-T",
    "--tool",
    "tools",
    multiple=True,
    metavar="NAME",
    help="Offer the tools of an MCP server or another row of [ensembles].",
)
def acp(model: str | None, agent: str | None, tools: tuple[str, ...]) -> int:
    """Answer an editor that speaks the Agent Client Protocol (ACP).

    The editor starts this command, and sends and reads messages on its standard streams. Sessions
    are conversations: all other commands know them too. It ends when its standard input ends.
    """
    options = LaunchOptions(model=model, agent=agent, ensembles=tools)
    return asyncio.run(serve(options, note))


COMMANDS: dict[str, click.Command] = {"acp": acp}
