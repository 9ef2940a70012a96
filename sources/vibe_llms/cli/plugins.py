"""The command `plugins`, and the question before anything is installed on demand."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from vibe_llms.cli.completion import complete_providers
from vibe_llms.cli.layout import pad
from vibe_llms.cli.running import interruptible
from vibe_llms.cli.terminal import is_terminal, note, one_line, shown, write
from vibe_llms.configuration import Configuration, load_configuration
from vibe_llms.exceptions import PluginMissing, RegistrationError, RequestError
from vibe_llms.plugins.installing import Installation, install, plan_installation, remove
from vibe_llms.plugins.pins import Plugin, survey_folder
from vibe_llms.plugins.records import Record, survey_records, verify
from vibe_llms.providers.rows import survey_plugins
from vibe_llms.session import Session


@click.group("plugins", context_settings={"help_option_names": ["-h", "--help"]})
def plugins() -> None:
    """Install what rows of the configuration pin; list and remove it.

    Nothing is ever installed unasked, and nothing of it runs before its row is used.
    """


@plugins.command("list")
def list_plugins() -> int:
    """Print what rows pin, and whether it is installed; then what no row pins any more."""
    configuration = load_configuration()
    pinned = survey_plugins(configuration)
    for plugin in pinned:
        _print(plugin.row, _describe(plugin))
    for _, record in _survey_left(configuration, pinned):
        _print(record.row, f"{record.name}: no row pins it; run: vibe-llms plugins rm {record.row}")
    return 0


@plugins.command("install")
@click.argument("name", shell_complete=complete_providers)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def install_plugin(name: str, yes: bool) -> int:
    """Install what the row NAME pins, or install it anew. Tells what will be run, and asks."""
    configuration = load_configuration()
    plugin = next((one for one in survey_plugins(configuration) if one.row == name), None)
    if plugin is None:
        raise RequestError(
            f"no row {name!r} has a table [providers.{name}.install]; see: vibe-llms plugins list"
        )
    try:
        verify(plugin)
    except (PluginMissing, RegistrationError):
        pass
    else:
        note(f"{plugin.name} is installed already")
        return 0
    plan = plan_installation(plugin, offline=configuration.offline)
    tell(plan)
    if not yes:
        if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
            raise RequestError(f"not a terminal; to install it: {plugin.remedy} --yes")
        click.confirm("Install it?", abort=True, err=True)
    carry_out(plan)
    return 0


@plugins.command("rm")
@click.argument("name", shell_complete=complete_providers)
def remove_plugin(name: str) -> int:
    """Remove what was installed for the row NAME, older versions included."""
    configuration = load_configuration()
    home = survey_folder(configuration.places.data)
    pinned = [plugin.folder for plugin in survey_plugins(configuration) if plugin.row == name]
    found = [
        (folder, record)
        for folder, record in survey_records(home)
        if folder in pinned or record.row == name
    ]
    if not found:
        raise RequestError(f"nothing is installed for {name!r}; see: vibe-llms plugins list")
    for folder, record in found:
        remove(folder)
        note(f"removed {record.name}")
    return 0


COMMANDS: dict[str, click.Command] = {"plugins": plugins}


def offer_plugin(session: Session, row: str) -> bool:
    """Ask a person at a terminal whether a plugin may be installed, and install it.

    False where nobody is there, or does not want it.
    """
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        return False
    plugin = next(one for one in survey_plugins(session.configuration) if one.row == row)
    plan = plan_installation(plugin, offline=session.configuration.offline)
    tell(plan)
    with interruptible():
        if not click.confirm("Install it?", err=True):
            return False
        carry_out(plan)
    return True


def tell(plan: Installation) -> None:
    """Show what will be run, all of it."""
    note(f"[providers.{plan.plugin.row}] needs what is not installed. Installing it runs\n")
    note(f"    {plan.line}\n")
    note(f"which takes these from {plan.plugin.index}, and nothing else:\n")
    for line in plan.plugin.pinned.splitlines():
        note(f"    {line}")
    note("\nThey are kept in a folder of their own; their code runs, with your rights, when the")
    note("row is used.")


def carry_out(plan: Installation) -> None:
    """Install, and say so."""
    note("installing …")
    install(plan)
    note(f"installed {plan.plugin.name}")


def _print(row: str, text: str) -> None:
    write(sys.stdout, pad(shown(one_line(row)), 16) + " " + shown(one_line(text)) + "\n")


def _describe(plugin: Plugin) -> str:
    try:
        verify(plugin)
    except PluginMissing:
        return f"{plugin.name}: not installed; run: {plugin.remedy}"
    except RegistrationError:
        return f"{plugin.name}: not as it was installed; run: {plugin.remedy}"
    return f"{plugin.name}: installed"


def _survey_left(configuration: Configuration, pinned: list[Plugin]) -> list[tuple[Path, Record]]:
    wanted = {plugin.folder for plugin in pinned}
    found = survey_records(survey_folder(configuration.places.data))
    return [(folder, record) for folder, record in found if folder not in wanted]
