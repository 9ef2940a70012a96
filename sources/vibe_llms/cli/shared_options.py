"""Options that many commands have, and the names of the program."""

from __future__ import annotations

import click

PROGRAM = "vibe-llms"
COMPLETION_VARIABLE = "_VIBE_LLMS_COMPLETE"
#: Words that leave the REPL, and do nothing as the whole prompt.
LEAVING = frozenset({"exit", "quit"})
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
follow_links_option = click.option(
    "--follow-links",
    is_flag=True,
    help="In folders, also read files that symbolic links lead to.",
)
yes_option = click.option("-y", "--yes", is_flag=True, help="Skip the question.")
