"""The command `keys`: keys in the system's keyring or in a file that only their owner can read."""

from __future__ import annotations

import sys

import click

from vibe_llms.cli.completion import complete_kept_keys, complete_providers
from vibe_llms.cli.terminal import is_terminal, note, shown, write
from vibe_llms.configuration import find_places, load_configuration
from vibe_llms.credentials import check_key, read_keys
from vibe_llms.exceptions import CredentialMissing, RequestError
from vibe_llms.keys import store_key
from vibe_llms.providers.rows import PROVIDERS


@click.group("keys", context_settings={"help_option_names": ["-h", "--help"]})
def keys() -> None:
    """Set, list and find keys. None is ever printed but by `get`."""


@keys.command("set")
@click.argument("name", shell_complete=complete_providers)
def set_key(name: str) -> None:
    """Keep the key of a provider.

    It is typed without being shown, or read from a pipe.
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
    note(f"kept in {file}")


@keys.command("get")
@click.argument("name", shell_complete=complete_kept_keys)
def get_key(name: str) -> None:
    """Print the key that is kept in the file of keys."""
    key = read_keys(find_places().keys_file).get(name)
    if key is None:
        raise CredentialMissing(f"the file of keys has none for {name!r}")
    write(sys.stdout, f"{key}\n")


@keys.command("list")
def list_keys() -> None:
    """Print the names of the kept keys."""
    for name in sorted(read_keys(find_places().keys_file)):
        write(sys.stdout, shown(name) + "\n")


@keys.command("rm")
@click.argument("name", shell_complete=complete_kept_keys)
def remove_key(name: str) -> None:
    """Remove a kept key."""
    file = find_places().keys_file
    if name not in read_keys(file):
        raise CredentialMissing(f"the file of keys has none for {name!r}")
    store_key(file, name, "")
    note("removed")


@keys.command("path")
def path() -> None:
    """Print where the file of keys lies."""
    write(sys.stdout, f"{find_places().keys_file}\n")


COMMANDS: dict[str, click.Command] = {"keys": keys}


def _require_row(name: str) -> None:
    rows = [row.name for row in load_configuration().rows(PROVIDERS)]
    if name not in rows:
        raise RequestError(
            f"there is no provider {name!r} whose key could be kept; see: vibe-llms providers"
        )
