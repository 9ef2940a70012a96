"""The subcommands, each loaded when it is called, and the border of all errors.

Nothing but click is imported here, so that `--help` and completion answer at once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module

import click
from click.shell_completion import shell_complete

from vibe_llms.cli.failures import report
from vibe_llms.cli.lookalikes import FORCED, IMPLICIT
from vibe_llms.meta import __version__

PROGRAM = "vibe-llms"
COMPLETION_VARIABLE = "_VIBE_LLMS_COMPLETE"

#: The subcommands: the module within this package that holds each, and its line in the help.
COMMANDS = {
    "chat": ("chat", "Ask once, or hold a conversation."),
    "list": ("conversations", "List conversations, the most recent first."),
    "show": ("conversations", "Show a conversation."),
    "export": ("export", "Write a conversation as Markdown, a page of HTML, or JSON."),
    "search": ("conversations", "Find messages by the words in them."),
    "fork": ("conversations", "Make an independent copy of a conversation."),
    "rename": ("conversations", "Give a conversation a name."),
    "tag": ("conversations", "Add tags to a conversation, or take them away."),
    "rm": ("conversations", "Remove conversations."),
    "models": ("models", "List models, or set the default one."),
    "providers": ("models", "List providers, and whether they can be used."),
    "tools": ("tools", "List, show and call the tools of ensembles."),
    "mcp": ("servers", "Add, import, test, list and remove MCP servers; approve their changes."),
    "memory": ("memory", "Remember facts, find them, change them, and forget them."),
    "plugins": ("plugins", "Install what rows of the configuration pin; list and remove it."),
    "keys": ("keys", "Set, list and find keys."),
    "config": ("settings", "Show, check and edit the configuration."),
    "doctor": ("doctor", "Check the archive and the configuration; mend what can be."),
    "completion": ("completion", "Print the completion script of a shell."),
    "help": ("help", "Print the help of a command."),
}
_OWN_OPTIONS = frozenset({"-h", "--help", "--version"})


class _Commands(click.Group):
    """The group of subcommands; what is no subcommand is a prompt for `chat`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"vibe_llms.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = module.COMMANDS[cmd_name]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            args = ["chat"]
        elif args and not _is_command(args) and args[0] not in _OWN_OPTIONS:
            ctx.meta[IMPLICIT] = True
            args = ["chat", *args]
        ctx.meta[FORCED] = "--" in args
        return super().parse_args(ctx, args)


def _is_command(args: Sequence[str]) -> bool:
    # "help me with this" is a prompt.
    if args[0] == "help" and len(args) > 2:
        return args[1] in COMMANDS
    return args[0] in COMMANDS


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
def command() -> None:
    """Hold conversations with large language models, and keep them.

    A prompt without a command is a chat: vibe-llms "What can you do?"
    """


def run_command(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name; gives the exit status.

    Every error is told here; only a closed pipe goes further, since nobody is left to be told.
    """
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        return shell_complete(command, {}, PROGRAM, COMPLETION_VARIABLE, instruction)
    try:
        with command.make_context(PROGRAM, list(arguments)) as context:
            status = command.invoke(context)
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  (the border of the terminal)
        return report(error, arguments)
    return status if isinstance(status, int) else 0
