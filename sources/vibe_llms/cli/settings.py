"""The commands `config` and `keys`: the configuration, and the API keys in a private file."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from vibe_llms.base.configuration import (
    SEARCH_ENGINES,
    find_places,
    load_configuration,
    parse_settings,
    parse_value,
)
from vibe_llms.base.configuration_file import (
    draw_path,
    read_path,
    set_values,
    survey_values,
    unset_value,
)
from vibe_llms.base.credentials import check_key, read_keys
from vibe_llms.base.exceptions import ConfigurationError, CredentialMissing, RequestError
from vibe_llms.base.files import LARGEST_SETTINGS
from vibe_llms.base.folders import make_folder, replace_file, storage_errors
from vibe_llms.base.keys import store_key
from vibe_llms.base.redaction import redact
from vibe_llms.cli.completion import complete_kept_keys, complete_keyed, complete_paths
from vibe_llms.cli.config_checks import check_change
from vibe_llms.cli.doctor import check_configuration
from vibe_llms.cli.failures import status_of
from vibe_llms.cli.programs import find_editor, run_editor
from vibe_llms.cli.shared_options import json_option
from vibe_llms.cli.terminal import is_terminal, note, shown, write, write_json
from vibe_llms.conversations.attachments import read_bytes
from vibe_llms.conversations.hosts import ENSEMBLES
from vibe_llms.ensembles.mcp.importing import remember_row
from vibe_llms.messages.hidden import one_line
from vibe_llms.providers.provider_pool import PROVIDERS

_STARTING_TEXT = """\
# The settings of vibe-llms; they override the defaults.
# See: vibe-llms config show, and documentation/reference/configuration.md

# default-model = "anthropic/claude-sonnet-5-5"
"""


#: Maximum number of keys that are named.
_NAMED = 3


@click.group("config")
def config() -> None:
    """Show, check and edit the configuration."""


@config.command("path")
@click.option("--all", "everything", is_flag=True, help="Also print the paths of data and state.")
def path(everything: bool) -> None:
    """Print the path of the configuration file."""
    places = find_places()
    write(sys.stdout, f"{places.configuration_file}\n")
    if everything:
        write(sys.stdout, f"{places.data}\n{places.state}\n")


@config.command("show")
@json_option
def show(as_json: bool) -> None:
    """Print the effective settings, from all files and the environment."""
    import tomli_w

    tree = load_configuration().tree
    for row in tree.get(ENSEMBLES, {}).values():
        remember_row(row)
    if as_json:
        write_json(redact(json.dumps(tree, default=str)))
    else:
        write(sys.stdout, shown(redact(tomli_w.dumps(tree).rstrip())) + "\n")


@config.command("check")
def check() -> int:
    """Print all problems of the configuration.

    Loads every provider that it names.
    """
    problems = check_configuration()
    for problem in problems:
        note(f"vibe-llms: {one_line(f'{problem.path}: {problem.text}'.removeprefix(': '))}")
    if problems:
        return status_of(ConfigurationError(""))
    note("no problems found")
    return 0


@config.command("set")
@click.argument("key", metavar="KEY")
@click.argument("value", metavar="VALUE")
def set_key_of_file(key: str, value: str) -> None:
    """Set a key in the configuration file: vibe-llms config set stream.retries 3

    VALUE is TOML, or else a text. Comments and all other settings stay. Nothing is changed if the
    settings would be wrong then.
    """
    _change({read_path(key): parse_value(value)})


@config.command("merge")
@click.argument("file", metavar="FILE", shell_complete=complete_paths)
def merge_file(file: str) -> None:
    """Set all keys of a TOML file in the configuration file; - reads standard input.

    Comments and all other settings stay. Nothing is changed if the settings would be wrong then.
    """
    data = sys.stdin.buffer.read() if file == "-" else read_bytes(Path(file))
    _change(dict(survey_values(parse_settings(data, Path(file)))))


@config.command("unset")
@click.argument("key", metavar="KEY")
def unset_key_of_file(key: str) -> None:
    """Remove a key or a table from the configuration file, so that its default holds."""
    file = find_places().configuration_file
    path = read_path(key)
    if not unset_value(file, path):
        raise RequestError(f"{draw_path(path)} is not in {file}")
    note(f"removed {draw_path(path)} from {file}")


@config.command("edit")
def edit() -> None:
    """Open the configuration file in $VISUAL or $EDITOR."""
    file = find_places().configuration_file
    with storage_errors(file):
        make_folder(file.parent)
        if not file.exists():
            replace_file(file, _STARTING_TEXT.encode(), LARGEST_SETTINGS)
    run_editor(find_editor(f"edit it yourself: {file}"), file)
    load_configuration()


@click.group("keys")
def keys() -> None:
    """Manage API keys. Only `get` prints a key."""


@keys.command("set")
@click.argument("name", shell_complete=complete_keyed)
def set_key(name: str) -> None:
    """Save the API key of a provider or a search engine.

    Asks for it without showing it, or reads it from a pipe.
    """
    _require_row(name)
    text = (
        click.prompt(f"Key for {name}", hide_input=True, err=True)
        if is_terminal(sys.stdin)
        else sys.stdin.readline()
    )
    secret = check_key(text, "the input")
    file = find_places().keys_file
    store_key(file, name, secret.reveal())
    note(f"saved in {file}")


@keys.command("get")
@click.argument("name", shell_complete=complete_kept_keys)
def get_key(name: str) -> None:
    """Print a saved key."""
    key = read_keys(find_places().keys_file).get(name)
    if key is None:
        raise CredentialMissing(f"no key is saved for {name!r}")
    write(sys.stdout, f"{key}\n")


@keys.command("list")
def list_keys() -> None:
    """List the names of saved keys."""
    for name in sorted(read_keys(find_places().keys_file)):
        write(sys.stdout, shown(name) + "\n")


@keys.command("rm")
@click.argument("name", shell_complete=complete_kept_keys)
def remove_key(name: str) -> None:
    """Delete a saved key."""
    file = find_places().keys_file
    if name not in read_keys(file):
        raise CredentialMissing(f"no key is saved for {name!r}")
    store_key(file, name, "")
    note("deleted")


@keys.command("path")
def keys_path() -> None:
    """Print the path of the file with the keys."""
    write(sys.stdout, f"{find_places().keys_file}\n")


COMMANDS: dict[str, click.Command] = {"config": config, "keys": keys}


def _change(values: Mapping[tuple[str, ...], Any]) -> None:
    file = find_places().configuration_file
    if not values:
        raise RequestError("no key is set there")
    set_values(file, values, check_change)
    names = ", ".join(map(draw_path, values)) if len(values) <= _NAMED else f"{len(values)} keys"
    note(redact(f"set {names} in {file}"))


def _require_row(name: str) -> None:
    configuration = load_configuration()
    tables = (PROVIDERS, SEARCH_ENGINES)
    rows = [row.name for table in tables for row in configuration.rows(table)]
    if name not in rows:
        raise RequestError(f"no provider or search engine {name!r}; see: vibe-llms config show")
