"""The command `archive`: where conversations are kept, as a whole."""

from __future__ import annotations

import click

from vibe_llms.cli.archive_copy import copy_archive


@click.group("archive")
def archive() -> None:
    """Copy everything that is kept from one place to another."""


archive.add_command(copy_archive)
COMMANDS: dict[str, click.Command] = {"archive": archive}
