"""The command `archive`: where conversations are kept, as a whole."""

from __future__ import annotations

import click

from vibe_llms.cli.archive_copy import copy_archive
from vibe_llms.cli.archive_migrate import migrate_archive


@click.group("archive")
def archive() -> None:
    """Prepare a database, or copy everything that is kept to another place."""


archive.add_command(copy_archive)
archive.add_command(migrate_archive)
COMMANDS: dict[str, click.Command] = {"archive": archive}
