"""The commands on models and providers."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
import msgspec

from vibe_llms.cli.completion import complete_default
from vibe_llms.cli.failures import explain, status_of
from vibe_llms.cli.layout import pad
from vibe_llms.cli.running import bound_import, run
from vibe_llms.cli.settings import set_value
from vibe_llms.cli.terminal import note, one_line, shown, write, write_json
from vibe_llms.exceptions import ProviderError, VibeLlmsError
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.rows import ProviderStatus
from vibe_llms.session import Session, open_session


@click.command()
@click.argument(
    "words",
    nargs=-1,
    metavar="[PROVIDER | default [MODEL]]",
    shell_complete=complete_default,
)
@click.option("--json", "as_json", is_flag=True, help="An array of objects.")
@click.option("-q", "--query", default="", metavar="TEXT", help="Only those with this in the name.")
def models(words: tuple[str, ...], as_json: bool, query: str) -> int:
    """List the models of all providers that can be used, or of one; asks their servers.

    `models default` tells the model that is used where none is given, `models default MODEL` sets
    it.
    """
    if len(words) > (2 if words[:1] == ("default",) else 1):
        raise click.UsageError(f"These are too many arguments: {' '.join(words)}.")
    if words[:1] == ("default",):
        return run(_default(words[1] if len(words) > 1 else None))
    return run(_survey(words[0] if words else None, as_json, query))


@click.command()
@click.option("--check", is_flag=True, help="Ask each server that can be used for its models.")
@click.option("--json", "as_json", is_flag=True, help="An array of objects.")
def providers(check: bool, as_json: bool) -> int:
    """List the providers of the configuration, and whether they can be used.

    With --check, the exit status is that of the first server that fails.
    """
    return run(_survey_providers(check, as_json))


COMMANDS: dict[str, click.Command] = {"models": models, "providers": providers}


async def _survey(provider: str | None, as_json: bool, query: str) -> int:
    found: list[Model] = []
    failures: list[VibeLlmsError] = []
    async with open_session(import_guard=bound_import) as session:
        # Of one that is named, no other is loaded.
        usable = _usable(session) if provider is None else {}
        for name in usable if provider is None else [provider]:
            try:
                found += await session.survey_models(name)
            except VibeLlmsError as error:
                if provider is not None:
                    raise
                if _is_absent(usable[name], error):
                    continue
                # One server that fails does not hide what the others have.
                failures.append(error)
    found = [m for m in found if query.lower() in f"{m.provider}/{m.name}".lower()]
    if as_json:
        write_json(json.dumps([_describe(model) for model in found]))
    for model in () if as_json else found:
        words = (f"{model.provider}/{model.name}", model.attributes.title)
        write(sys.stdout, shown("  ".join(one_line(word) for word in words if word)) + "\n")
    for failure in failures:
        note(f"vibe-llms: {explain(failure)}")
    if not found and not failures and not as_json:
        note("no models; see: vibe-llms providers")
    return status_of(failures[0]) if failures else 0


async def _survey_providers(check: bool, as_json: bool) -> int:
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
        write(sys.stdout, shown(_describe_row(row)) + "\n")
    return status


async def _default(name: str | None) -> int:
    async with open_session(import_guard=bound_import) as session:
        if name is None:
            address, why = session.choose_model()
            write(sys.stdout, shown(address) + "\n")
            if why:
                note(why)
            return 0
        model = await session.access_model(name)
        if name not in session.configuration.aliases:
            name = f"{model.provider}/{model.name}"
        file = session.configuration.places.configuration_file
    set_value(file, "default-model", name)
    note(f"default-model is {name}")
    return 0


def _usable(session: Session) -> dict[str, ProviderStatus]:
    return {
        status.name: status
        for status in session.survey_providers()
        if status.present and not status.problem
    }


def _is_absent(provider: ProviderStatus, error: VibeLlmsError) -> bool:
    """Whether a server of the user's own is meant and another or none answers: no failure."""
    return provider.optional and isinstance(error, ProviderError)


def _describe(model: Model) -> dict[str, Any]:
    return {
        "model": f"{model.provider}/{model.name}",
        **msgspec.to_builtins(model.attributes),
    }


def _describe_row(row: dict[str, Any]) -> str:
    if row["problem"]:
        state = f"cannot be used: {row['problem']}"
    elif row.get("running") is False:
        state = "needs no key; no such server answers"
    elif row["credential"] == "none" and "models" not in row:
        state = "needs no key"
    elif row["present"]:
        state = "ready" if "models" not in row else f"ready, {row['models']} models"
    elif row["credential"] == "package":
        state = "uses the credentials of its package"
    else:
        state = f"no key; run: vibe-llms keys set {row['name']}"
    return f"{pad(row['name'], 16)} {state}"
