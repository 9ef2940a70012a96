"""The command `archive`: prepares and copies the storage of conversations."""

from __future__ import annotations

import click

from vibe_llms.cli.archive_copy import copy_archive
from vibe_llms.cli.archive_migrate import migrate_archive


@click.group("archive")
def archive() -> None:
    """Prepare a database, or copy all stored data to another place."""


archive.add_command(copy_archive)
archive.add_command(migrate_archive)
COMMANDS: dict[str, click.Command] = {"archive": archive}
