"""The command `help`: what `--help` of a command prints, for those who ask the other way round."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from vibe_llms.cli.lookalikes import find_command


def _complete_commands(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    group = _descend(context.find_root(), context.params.get("path") or ())
    if not isinstance(group.command, click.Group):
        return []
    return [
        CompletionItem(name)
        for name in group.command.list_commands(group)
        if name.startswith(incomplete)
    ]


@click.command("help")
@click.argument("path", nargs=-1, metavar="[COMMAND]...", shell_complete=_complete_commands)
@click.pass_context
def show_help(context: click.Context, path: tuple[str, ...]) -> None:
    """Print the help of a command, as COMMAND --help does."""
    click.echo(_descend(context.find_root(), path).get_help(), color=context.color)


COMMANDS: dict[str, click.Command] = {"help": show_help}


def _descend(context: click.Context, path: tuple[str, ...]) -> click.Context:
    """The context of a command by the words that lead to it."""
    for word in path:
        group = context.command
        found = group.get_command(context, word) if isinstance(group, click.Group) else None
        if found is None:
            names = group.list_commands(context) if isinstance(group, click.Group) else []
            meant = find_command([word], names)
            hint = f"; did you mean {meant!r}?" if meant in names else "."
            raise click.UsageError(f"{context.command_path} has no command {word!r}{hint}", context)
        context = click.Context(found, parent=context, info_name=word)
    return context
