"""The command `config`: where the configuration lies, what it says, and whether it is right."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import click

from vibe_llms.cli.doctor import check_configuration
from vibe_llms.cli.editors import find_editor, run_editor
from vibe_llms.cli.failures import status_of
from vibe_llms.cli.terminal import note, one_line, shown, write, write_json
from vibe_llms.configuration import (
    find_places,
    load_configuration,
    parse_settings,
    read_settings,
)
from vibe_llms.ensembles.core import ENSEMBLES
from vibe_llms.ensembles.mcp.importing import remember_row
from vibe_llms.exceptions import ConfigurationError
from vibe_llms.files import parse_toml
from vibe_llms.redaction import redact
from vibe_llms.storage.files import make_folder, replace_file, storage_errors
from vibe_llms.storage.locks import locked

_LOCK_SECONDS = 10.0

_STARTING_TEXT = """\
# The settings of vibe-llms; the shipped ones hold where this file says nothing.
# See: vibe-llms config show, and documentation/reference/configuration.md

# default-model = "anthropic/claude-sonnet-5-5"
"""


@click.group("config", context_settings={"help_option_names": ["-h", "--help"]})
def config() -> None:
    """Show, check and edit the configuration."""


@config.command("path")
@click.option("--all", "everything", is_flag=True, help="Also where data and state lie.")
def path(everything: bool) -> None:
    """Print where the configuration file lies."""
    places = find_places()
    write(sys.stdout, f"{places.configuration_file}\n")
    if everything:
        write(sys.stdout, f"{places.data}\n{places.state}\n")


@config.command("show")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def show(as_json: bool) -> None:
    """Print the settings as they result from all files and the environment."""
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
    """Print all that is wrong with the configuration; loads every provider that it names."""
    problems = check_configuration()
    for problem in problems:
        note(f"vibe-llms: {one_line(f'{problem.path}: {problem.text}'.removeprefix(': '))}")
    if problems:
        return status_of(ConfigurationError(""))
    note("the configuration is right")
    return 0


@config.command("edit")
def edit() -> None:
    """Open the configuration file in $VISUAL or $EDITOR."""
    file = find_places().configuration_file
    with storage_errors(file):
        make_folder(file.parent)
        if not file.exists():
            replace_file(file, _STARTING_TEXT.encode())
    run_editor(find_editor(f"edit it yourself: {file}"), file)
    load_configuration()


COMMANDS: dict[str, click.Command] = {"config": config}


def set_value(file: Path, key: str, value: str) -> None:
    """Set a key at the top of the configuration file; everything else stays as it is written."""
    with storage_errors(file):
        make_folder(file.parent)
        with locked(file.parent, seconds=_LOCK_SECONDS):
            # A file that cannot be read is not written over.
            before = read_settings(file)
            known = parse_settings(before, file)
            text = _with_value(before.decode(), key, value)
            if _parse(text) != {**known, key: value}:
                raise ConfigurationError(
                    f"{key} cannot be set without spoiling what stands there; set it by hand: "
                    "vibe-llms config edit",
                    file=str(file),
                )
            replace_file(file, text.encode())


def _with_value(text: str, key: str, value: str) -> str:
    line = f"{key} = {json.dumps(value)}"
    head, tables = _split_top(text)
    pattern = re.compile(rf"^[ \t]*{re.escape(key)}[ \t]*=.*$", re.MULTILINE)
    if pattern.search(head):
        return pattern.sub(lambda _: line, head, count=1) + tables
    return f"{head.rstrip()}\n{line}\n".lstrip("\n") + (f"\n{tables}" if tables else "")


def _parse(text: str) -> object:
    try:
        return parse_toml(text.encode())
    except ValueError:
        return None


def _split_top(text: str) -> tuple[str, str]:
    """The keys before the first table, and the tables."""
    found = re.search(r"^[ \t]*\[", text, re.MULTILINE)
    return (text, "") if found is None else (text[: found.start()], text[found.start() :])
