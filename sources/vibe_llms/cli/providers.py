"""The commands `models`, `providers` and `plugins`, and the offer to install a plugin."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from vibe_llms.base.configuration import Configuration, load_configuration
from vibe_llms.base.configuration_file import set_value
from vibe_llms.base.exceptions import (
    PluginMissing,
    ProviderError,
    RegistrationError,
    RequestError,
    VibeLlmsError,
)
from vibe_llms.cli.completion import (
    complete_default,
    complete_models,
    complete_provider_check,
    complete_providers,
)
from vibe_llms.cli.display import print_notices
from vibe_llms.cli.failures import explain, status_of
from vibe_llms.cli.questions import confirm
from vibe_llms.cli.running import asynchronous, bound_import, interruptible
from vibe_llms.cli.shared_options import json_option, yes_option
from vibe_llms.cli.terminal import is_terminal, note, shown, write, write_json, write_row
from vibe_llms.messages.hidden import one_line
from vibe_llms.opening import open_session
from vibe_llms.plugins.installing import Installation, install, plan_installation, remove
from vibe_llms.plugins.pins import Plugin, survey_folder
from vibe_llms.plugins.records import Record, survey_records, verify
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.provider_pool import ProviderStatus, survey_plugins
from vibe_llms.providers.windows import LearnedWindow
from vibe_llms.session.core import Session


@click.command()
@click.argument(
    "words",
    nargs=-1,
    metavar="[PROVIDER | default [MODEL] | forget PROVIDER/MODEL]",
    shell_complete=complete_default,
)
@json_option
@click.option("-q", "--query", default="", metavar="TEXT", help="Filter by TEXT in the name.")
@click.option("--all", "every", is_flag=True, help="With `forget`: forget all learned windows.")
@asynchronous
async def models(words: tuple[str, ...], as_json: bool, query: str, every: bool) -> int:
    """List the models of all usable providers, or of one.

    Asks the servers for them. `models default` prints the default model, `models default
    MODEL` sets it. `models forget` removes the context window that was learned from a server's
    refusal.
    """
    verb = words[0] if words[:1] in (("default",), ("forget",)) else ""
    if len(words) > (2 if verb else 1):
        raise click.UsageError(f"Too many arguments: {' '.join(words)}.")
    if every and verb != "forget":
        raise click.UsageError("--all is an option of `models forget`.")
    if verb and query:
        raise click.UsageError(f"-q filters the list; it is not an option of `models {verb}`.")
    if verb == "forget":
        if every == (len(words) > 1):
            raise click.UsageError("Name a model, PROVIDER/MODEL, or give --all.")
        return await _forget(None if every else words[1], as_json)
    if verb == "default":
        return await _default(words[1] if len(words) > 1 else None, as_json)
    # Accepts `list`, as other commands do; it is not the name of a provider.
    return await _survey(words[0] if words and words != ("list",) else None, as_json, query)


@click.command()
@click.argument(
    "words", nargs=-1, metavar="[check PROVIDER]", shell_complete=complete_provider_check
)
@click.option("--check", is_flag=True, help="Ask each usable server for its models.")
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    shell_complete=complete_models,
    help="With `check`: the model to try.",
)
@yes_option
@json_option
@asynchronous
async def providers(
    words: tuple[str, ...], check: bool, model: str | None, yes: bool, as_json: bool
) -> int:
    """List providers and their status, or check one.

    With --check, the exit status is that of the first failure. `providers check PROVIDER` sends up
    to four tiny requests and says what works: key, model, streaming, tools, images, structured
    output, usage. It asks first. Its exit status is 0 if key, model and streaming work.
    """
    if words:
        if words[0] != "check" or len(words) != 2 or check:
            raise click.UsageError(f"Not understood: {' '.join(words)}; use `check PROVIDER`.")
        from vibe_llms.cli.provider_checks import check_provider

        return await check_provider(words[1], model, yes=yes, as_json=as_json)
    if model is not None or yes:
        raise click.UsageError("-m and --yes are options of `providers check PROVIDER`.")
    rows: list[dict[str, Any]] = []
    status = 0
    async with open_session(import_guard=bound_import) as session:
        usable = _usable(session)
        for provider in session.survey_providers():
            row = msgspec.to_builtins(provider)
            rows.append(row)
            if check and provider.name in usable:
                try:
                    row["models"] = len(await session.survey_models(provider.name))
                except VibeLlmsError as error:
                    if _is_absent(provider, error):
                        row["running"] = False
                        continue
                    row["problem"] = explain(error)
                    status = status or status_of(error)
    if as_json:
        write_json(json.dumps(rows))
    for row in () if as_json else rows:
        write_row(row["name"], _describe_row(row), cells=16)
    return status


async def _survey(provider: str | None, as_json: bool, query: str) -> int:
    found: list[Model] = []
    failures: list[VibeLlmsError] = []
    async with open_session(event_handler=print_notices(), import_guard=bound_import) as session:
        # If a provider is named, load no other.
        usable = _usable(session) if provider is None else {}
        for name in usable if provider is None else [provider]:
            try:
                found += await session.survey_models(name)
            except VibeLlmsError as error:
                if provider is not None:
                    raise
                if _is_absent(usable[name], error):
                    continue
                # The models of other servers are still listed.
                failures.append(error)
        found = [m for m in found if query.lower() in f"{m.provider}/{m.name}".lower()]
        windows = [await session.windows.find(model) for model in found]
    if as_json:
        rows = [_describe_model(*pair) for pair in zip(found, windows, strict=True)]
        write_json(json.dumps(rows))
    for model, window in () if as_json else zip(found, windows, strict=True):
        address = one_line(f"{model.provider}/{model.name}")
        write_row(address, f"{model.attributes.title} {_describe_window(window)}".strip(), gap=2)
    for failure in failures:
        note(f"vibe-llms: {explain(failure)}")
    if not found and not failures and not as_json:
        note("no models; see: vibe-llms providers")
    return status_of(failures[0]) if failures else 0


async def _default(name: str | None, as_json: bool) -> int:
    async with open_session(import_guard=bound_import) as session:
        if name is None:
            address, why = await session.find_model()
            if as_json:
                write_json(json.dumps({"model": address, "note": why}))
                return 0
            write(sys.stdout, shown(address) + "\n")
            if why:
                note(why)
            return 0
        model = await session.access_model(name)
        if name not in session.configuration.aliases:
            name = f"{model.provider}/{model.name}"
        file = session.configuration.places.configuration_file
    set_value(file, "default-model", name)
    if as_json:
        write_json(json.dumps({"model": name, "note": ""}))
    else:
        note(f"default-model is {name}")
    return 0


async def _forget(address: str | None, as_json: bool) -> int:
    async with open_session(event_handler=print_notices(), import_guard=bound_import) as session:
        learned = [one.address for one in await session.windows.survey()]
        if address is not None and address not in learned:
            known = f"learned are those of {', '.join(learned)}" if learned else "none is learned"
            raise RequestError(f"no context window was learned for {address!r}; {known}")
        forgotten = await session.windows.forget(address)
    if as_json:
        write_json(json.dumps([{"model": one.address, "tokens": one.tokens} for one in forgotten]))
        return 0
    for window in forgotten:
        note(f"forgot that {window.address} accepts {window.tokens:,} tokens")
    if not learned:
        note("no context window was learned")
    return 0


def _usable(session: Session) -> dict[str, ProviderStatus]:
    return {
        status.name: status
        for status in session.survey_providers()
        if status.present and not status.problem
    }


def _is_absent(provider: ProviderStatus, error: VibeLlmsError) -> bool:
    """Return True if an optional local server does not answer, which is not a failure."""
    return provider.optional and isinstance(error, ProviderError)


def _describe_model(model: Model, window: LearnedWindow | None) -> dict[str, Any]:
    shown = {
        "model": f"{model.provider}/{model.name}",
        **msgspec.to_builtins(model.attributes),
    }
    if window is not None:
        known = {"tokens": window.tokens, "created": window.created, "words": window.words}
        shown["learned-window"] = known
    return shown


def _describe_window(window: LearnedWindow | None) -> str:
    if window is None:
        return ""
    declared = f", not {window.declared:,}" if window.declared is not None else ""
    return f"(learned {window.created}: accepts {window.tokens:,} tokens{declared})"


def _describe_row(row: dict[str, Any]) -> str:
    if row["problem"]:
        state = f"cannot be used: {row['problem']}"
    elif row.get("running") is False:
        state = "needs no key; server is not running"
    elif row["credential"] == "none" and "models" not in row:
        state = "needs no key"
    elif row["present"]:
        state = "ready" if "models" not in row else f"ready, {row['models']} models"
    elif row["credential"] == "package":
        state = "uses the credentials of its package"
    else:
        state = f"no key; run: vibe-llms keys set {row['name']}"
    if row["variable"]:
        state += f"; at {row['address']} ({row['variable']})"
    return state


@click.group("plugins")
def plugins() -> None:
    """Install, list and remove the plugins that the configuration pins.

    Nothing is installed without a question, and a plugin runs only when its row is used.
    """


@plugins.command("list")
def list_plugins() -> int:
    """List plugins and their status.

    Includes installed plugins that are no longer pinned.
    """
    configuration = load_configuration()
    pinned = survey_plugins(configuration)
    for plugin in pinned:
        _print(plugin.row, _describe_plugin(plugin))
    for _, record in _survey_left(configuration, pinned):
        _print(
            record.row,
            f"{record.name}: no longer pinned; run: vibe-llms plugins rm {record.row}",
        )
    return 0


@plugins.command("install")
@click.argument("name", shell_complete=complete_providers)
@yes_option
def install_plugin(name: str, yes: bool) -> int:
    """Install or reinstall a plugin.

    Installs what the row NAME pins. Shows the command first, and asks.
    """
    configuration = load_configuration()
    plugin = next((one for one in survey_plugins(configuration) if one.row == name), None)
    if plugin is None:
        raise RequestError(f"no table [providers.{name}.install]; see: vibe-llms plugins list")
    try:
        verify(plugin)
    except (PluginMissing, RegistrationError):
        pass
    else:
        note(f"{plugin.name} is already installed")
        return 0
    plan = plan_installation(plugin, offline=configuration.offline)
    print_plan(plan)
    if not confirm("Install it?", yes=yes, remedy=f"to install it: {plugin.remedy} --yes"):
        raise click.Abort
    carry_out(plan)
    return 0


@plugins.command("rm")
@click.argument("name", shell_complete=complete_providers)
def remove_plugin(name: str) -> int:
    """Remove the plugin of the row NAME, older versions included."""
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


COMMANDS: dict[str, click.Command] = {
    "models": models,
    "providers": providers,
    "plugins": plugins,
}


def offer_plugin(session: Session, row: str) -> bool:
    """Offer to install a plugin; return True if it was installed.

    Without a terminal, return False.
    """
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        return False
    plugin = next(one for one in survey_plugins(session.configuration) if one.row == row)
    plan = plan_installation(plugin, offline=session.configuration.offline)
    print_plan(plan)
    if not confirm("Install it?"):
        return False
    with interruptible():
        carry_out(plan)
    return True


def print_plan(plan: Installation) -> None:
    """Show the command and the packages of an installation."""
    note(f"[providers.{plan.plugin.row}] needs a plugin. To install it, this runs:\n")
    note(f"    {plan.line}\n")
    note(f"It installs only these packages from {plan.plugin.index}:\n")
    for line in plan.plugin.pinned.splitlines():
        note(f"    {line}")
    note("\nThey have their own folder. Their code runs with your rights when the row is used.")


def carry_out(plan: Installation) -> None:
    """Install a plugin and report it."""
    note("installing …")
    install(plan)
    note(f"installed {plan.plugin.name}")


def _print(row: str, text: str) -> None:
    write_row(one_line(row), text, cells=16)


def _describe_plugin(plugin: Plugin) -> str:
    try:
        verify(plugin)
    except PluginMissing:
        return f"{plugin.name}: not installed; run: {plugin.remedy}"
    except RegistrationError:
        return f"{plugin.name}: changed since it was installed; run: {plugin.remedy}"
    return f"{plugin.name}: installed"


def _survey_left(configuration: Configuration, pinned: list[Plugin]) -> list[tuple[Path, Record]]:
    wanted = {plugin.folder for plugin in pinned}
    found = survey_records(survey_folder(configuration.places.data))
    return [(folder, record) for folder, record in found if folder not in wanted]
