"""The options of `chat`, and their effects on the conversation, the display and the settings."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from vibe_llms.base.configuration import ToolMode, Tree, merge, parse_value
from vibe_llms.base.exceptions import (
    AttachmentUnreadable,
    ControlInvalid,
    ConversationNotFound,
    PluginMissing,
    RequestError,
)
from vibe_llms.cli.completion import (
    complete_agents,
    complete_controls,
    complete_models,
    complete_paths,
    complete_variables,
)
from vibe_llms.cli.conversations import load_whole
from vibe_llms.cli.display import Display, EventLines, Silence, take_code
from vibe_llms.cli.terminal import is_terminal, note
from vibe_llms.cli.variables import VariableOption, check_variables
from vibe_llms.conversations.attachments import read_bytes, read_text
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.history import History
from vibe_llms.invocation.ensembles import Ensemble
from vibe_llms.messages.canisters import (
    Canister,
    UnknownCanister,
)
from vibe_llms.messages.contents import repair_text
from vibe_llms.messages.controls import Controls, read_controls
from vibe_llms.opening import open_session
from vibe_llms.providers.provider_pool import PROVIDERS
from vibe_llms.session.core import Session

STANDARD_INPUT = "-"
#: Printed at a terminal with -n.
UNSAVED = "(nothing of this conversation is saved: -n)"
# The short form is that of https://llm.datasette.io/en/stable/schemas.html (2026-11).
_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


# Options of all commands that ask a model.
unlogged_option = click.option("-n", "--no-log", is_flag=True, help="Do not save the conversation.")
stream_option = click.option(
    "--stream/--no-stream", default=True, help="Stream the answer, or print it at once."
)
render_option = click.option(
    "--render/--raw", default=None, help="Render Markdown, or print it unchanged."
)
answer_json_option = click.option("--json", is_flag=True, help="Print one JSON object.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Print only the answer and errors.")
usage_option = click.option(
    "-u", "--usage", is_flag=True, help="Print token usage and cost on stderr."
)
key_option = click.option("--key", metavar="KEY", help="Use this API key for this run.")
functions_option = click.option(
    "--functions",
    multiple=True,
    metavar="FILE",
    shell_complete=complete_paths,
    help="Offer the functions of a Python file as tools; asks before it first runs the file.",
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Check and print the request; send nothing."
)
debug_option = click.option("--debug", is_flag=True, help="Print the traceback of an error.")
model_option = click.option(
    "-m",
    "--model",
    metavar="MODEL",
    shell_complete=complete_models,
    help="Use this model: provider/model, part of its name, or an alias.",
)
fallback_option = click.option(
    "--fallback",
    multiple=True,
    metavar="MODEL",
    shell_complete=complete_models,
    help="Let this model answer if the first one fails; may be repeated.",
)
agent_option = click.option(
    "-A",
    "--agent",
    metavar="NAME",
    shell_complete=complete_agents,
    help="Use an agent: a model with instructions and tools; see: vibe-llms agents.",
)
variable_option = click.option(
    "-p",
    "--param",
    "variables",
    cls=VariableOption,
    multiple=True,
    metavar="NAME=VALUE",
    shell_complete=complete_variables,
    help="Set a variable of the agent's prompt, such as: -p language=French.",
)
control_option = click.option(
    "-o",
    "--option",
    "options",
    multiple=True,
    type=(str, str),
    metavar="NAME VALUE",
    shell_complete=complete_controls,
    help="Set a control of the model, such as: -o effort high.",
)


class Options(Struct, frozen=True, kw_only=True):
    """The options of the command, as given."""

    prompt: tuple[str, ...] = ()
    model: str | None = None
    system: str | None = None
    system_file: str | None = None
    agent: str | None = None
    variables: tuple[tuple[str, str], ...] = ()
    continue_last: bool = False
    conversation: str | None = None
    fork: bool = False
    name: str = ""
    print_id: bool = False
    no_log: bool = False
    detach: bool = False
    attachments: tuple[str, ...] = ()
    typed_attachments: tuple[tuple[str, str], ...] = ()
    fragments: tuple[str, ...] = ()
    #: Files that the shell put in place of a pattern; unreadable ones are omitted.
    expanded: tuple[str, ...] = ()
    trust: bool = False
    follow_links: bool = False
    options: tuple[tuple[str, str], ...] = ()
    tools: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    collections: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    no_skills: bool = False
    approve_all: bool = False
    tool_mode: ToolMode | None = None
    fallback: tuple[str, ...] = ()
    tools_debug: bool = False
    rounds: int | None = None
    memory: bool | None = None
    wait: bool | None = None
    schema: str | None = None
    stream: bool = True
    render: bool | None = None
    json: bool = False
    jsonl: bool = False
    extract: bool = False
    extract_last: bool = False
    quiet: bool = False
    usage: bool = False
    hide_reasoning: bool = False
    save: str | None = None
    key: str | None = None
    settings: tuple[str, ...] = ()
    context_size: int | None = None
    gpu_layers: int | None = None
    dry_run: bool = False
    debug: bool = False

    @property
    def continues(self) -> bool:
        """True if the options continue a conversation."""
        return self.continue_last or self.conversation is not None

    @property
    def reads_standard_input(self) -> bool:
        """True if an attachment or a document reads standard input."""
        return STANDARD_INPUT in (
            *self.attachments,
            *self.fragments,
            *(source for source, _ in self.typed_attachments),
        )


def check_options(options: Options) -> None:
    """Raise `UsageError` for options that exclude each other."""
    pairs = (
        (options.continue_last and options.conversation is not None, "-c and --cid"),
        (options.system is not None and options.system_file is not None, "-s and --system-file"),
        (bool(options.skills) and options.no_skills, "--skill and --no-skills"),
        (options.json and options.jsonl, "--json and --jsonl"),
        (options.extract and options.extract_last, "-x and --xl"),
        (options.schema is not None and options.extract, "--schema and -x"),
        (options.schema is not None and options.extract_last, "--schema and --xl"),
    )
    for both, names in pairs:
        if both:
            raise click.UsageError(f"{names} exclude each other.")
    if options.detach:
        _check_detached(options)
    if options.fork and not options.continues:
        raise click.UsageError("--fork needs -c or --cid.")
    if options.name and options.continues and not options.fork:
        raise click.UsageError("--name is for a new conversation or a fork; see: vibe-llms rename.")


def _check_detached(options: Options) -> None:
    """Raise `UsageError` for options that the background process would not know."""
    if not options.prompt and is_terminal(sys.stdin):
        raise click.UsageError("--detach needs a prompt.")
    given = {
        "-n": options.no_log,
        "--functions": bool(options.functions),
        "--ta": options.approve_all,
        "--cl": options.rounds is not None,
        "--key": options.key is not None,
        "--set": bool(options.settings),
        "--context-size": options.context_size is not None,
        "--gpu-layers": options.gpu_layers is not None,
        "--jsonl": options.jsonl,
        "-x": options.extract,
        "--xl": options.extract_last,
        "--save": options.save is not None,
        "--dry-run": options.dry_run,
    }
    for name in (name for name, is_given in given.items() if is_given):
        raise click.UsageError(f"{name} and --detach exclude each other.")


def produce_display(options: Options) -> Display | EventLines | Silence:
    """Make the event handler that the options ask for."""
    if options.jsonl:
        return EventLines()
    if options.json:
        return Silence(quiet=options.quiet)
    return produce_text_display(options)


def produce_text_display(options: Options, *, typed: bool = False) -> Display:
    """Make the event handler for answers as text; `typed` ones are printed whole at the end."""
    transform: Callable[[str], str] | None = None
    if options.extract or options.extract_last:
        transform = take_code("last" if options.extract_last else "first")
    elif typed or options.schema is not None:
        transform = show_nothing
    return Display(
        render=options.render,
        hide_reasoning=options.hide_reasoning,
        quiet=options.quiet,
        transform=transform,
        tools_debug=options.tools_debug,
    )


def show_nothing(_: str) -> str:
    """Hide typed answers: invalid ones are requested again, so only the last one is printed."""
    return ""


def output_of(options: Options) -> Mapping[str, Any] | None:
    """Return the JSON Schema for answers, if any."""
    return None if options.schema is None else read_schema(options.schema)


async def open_conversation(session: Session, options: Options) -> Conversation:
    """Open the conversation that the options ask for: a new or a stored one, or a fork of it.

    If its model needs a plugin that is not installed, offer to install it at a terminal.
    """
    check_extras(session, options)
    if options.collections:
        # Imported only here: most conversations search no collections.
        from vibe_llms.cli.index import refresh

        for name in options.collections:
            await refresh(session.access_documents(), name, quiet=options.quiet)
    ensembles: list[str | Ensemble] = [*options.tools]
    if options.functions:
        from vibe_llms.cli.function_files import open_functions

        ensembles += open_functions(
            session.configuration, options.functions, run=options.approve_all
        )
    try:
        return await _open(session, options, ensembles)
    except PluginMissing as error:
        from vibe_llms.cli.providers import offer_plugin

        silent = options.json or options.jsonl or options.quiet
        if silent or not offer_plugin(session, error.row):
            raise
    return await _open(session, options, ensembles)


def wants_memory(session: Session, options: Options) -> bool:
    """Return True if memory is used, by the options, the agent or the configuration, in order."""
    if options.memory is not None:
        return options.memory
    own = None if options.agent is None else session.access_agent(options.agent).memory
    return session.configuration.memory_enabled if own is None else own


def _choose_skills(session: Session, options: Options) -> Sequence[str] | None:
    """Return the skills by the options, or the default ones."""
    if options.no_skills:
        return ()
    return options.skills or session.choose_skills(options.agent)


async def _find_conversation(session: Session, options: Options) -> str:
    """Return the id of the conversation to continue."""
    if options.conversation is not None:
        return await session.archive.resolve(options.conversation)
    newest = await session.archive.survey(limit=1)
    if not newest:
        raise ConversationNotFound("no conversation to continue yet")
    return newest[0].identity


async def _open(
    session: Session, options: Options, ensembles: Sequence[str | Ensemble]
) -> Conversation:
    if options.agent is not None:
        check_variables(session.access_agent(options.agent), dict(options.variables))
    # A dry run makes no fork and changes no model.
    keeps = not (options.no_log or options.dry_run)
    wanted = await _find_conversation(session, options) if options.continues else None
    model, said = options.model, list[Canister]()
    if wanted is not None and (options.fork or not keeps):
        if model is not None:
            # Fails before a fork is made for an unknown model.
            await session.access_model(model)
        history, notices = await History.restore(session.archive, wanted)
        for notice in notices:
            note(f"note: {notice.text}")
        if keeps:
            wanted = (await history.fork(len(history.canisters), name=options.name)).identity
        else:
            model = model or history.details.model or None
            said = [
                await load_whole(canister, session.archive)
                for canister in history.canisters
                if not isinstance(canister, UnknownCanister)
            ]
    memory = wants_memory(session, options)
    skills = _choose_skills(session, options)
    if wanted is not None and keeps:
        return await session.resume(
            wanted,
            model=model,
            ensembles=ensembles,
            collections=options.collections,
            skills=skills,
            tool_mode=options.tool_mode,
            fallback=options.fallback or None,
            memory=memory,
            agent=options.agent,
            variables=dict(options.variables),
        )
    return await session.begin(
        model,
        supervisor=read_system(options) if wanted is None else None,
        name=options.name,
        history=said or None,
        ensembles=ensembles,
        collections=options.collections,
        skills=skills,
        tool_mode=options.tool_mode,
        fallback=options.fallback or None,
        memory=memory,
        save=keeps,
        agent=options.agent,
        variables=dict(options.variables),
    )


class Overrides(Struct, frozen=True):
    """Settings, and keys by row, that the options override."""

    settings: Mapping[str, Any] = {}
    keys: Mapping[str, str] = {}


async def overrides_of(options: Options) -> Overrides:
    """Return the settings and the key that the options set, mostly for the model's row."""
    settings: Tree = {} if options.rounds is None else {"tools": {"max-rounds": options.rounds}}
    own = _read_row_settings(options)
    if not own and options.key is None:
        return Overrides(settings)
    async with open_session() as session:
        row = await _locate_row(session, options)
        if options.key is not None:
            _check_keyed({**session.configuration.row(PROVIDERS, row).settings, **own}, row)
    if own:
        settings = merge(settings, {PROVIDERS: {row: own}})
    return Overrides(settings, {} if options.key is None else {row: options.key})


def _check_keyed(settings: Mapping[str, Any], row: str) -> None:
    """Raise `UsageError` if a key is given, but its row does not send one."""
    credential = settings.get("credential", "key")
    if credential != "key":
        raise click.UsageError(
            f"--key is not used: [providers.{row}] has credential = {credential!r}; to use it, "
            "add --set credential=key."
        )


def _read_row_settings(options: Options) -> Tree:
    """Return the settings of `--set` and its short forms for the row of the model."""
    given = list(options.settings)
    if options.context_size is not None:
        given.append(f"context-tokens={options.context_size}")
    if options.gpu_layers is not None:
        given.append(f"gpu-layers={options.gpu_layers}")
    own: Tree = {}
    for text in given:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise click.UsageError(f"--set needs KEY=VALUE, not {text!r}.")
        *tables, last = key.strip().replace("_", "-").split(".")
        tree: Tree = {last: parse_value(value.strip())}
        for table in reversed(tables):
            tree = {table: tree}
        own = merge(own, tree)
    return own


async def _locate_row(session: Session, options: Options) -> str:
    """Find the row of the model that will answer."""
    model = options.model
    if model is None and options.continues:
        identity = await _find_conversation(session, options)
        model = (await session.archive.restore(identity, lenient=True)).details.model
    if not model and options.agent is not None:
        model = session.access_agent(options.agent).model
    if not model and options.key is not None and not session.configuration.default_model:
        # The first row with a key of its own may not be the one that this key is for.
        raise click.UsageError("--key needs a model: -m provider/model.")
    if not model:
        model = (await session.find_model())[0]
    row, _ = session.locate_model(model)
    return row.name


def controls_of(options: Options) -> Controls:
    """Read the controls of `-o`; `stop` can be repeated."""
    values: dict[str, Any] = {}
    for name, value in options.options:
        if name == "stop":
            values.setdefault(name, []).append(value)
        else:
            values[name] = value
    return read_controls(values)


def check_extras(session: Session, options: Options) -> None:
    """Raise `ControlInvalid` for extras that are not under the name of a provider."""
    rows = session.configuration.tree.get("providers", {})
    for name in controls_of(options).extras:
        if name not in rows:
            raise ControlInvalid(
                f"'extras' are tables by provider, and there is no provider '{name}'; for example: "
                '-o extras \'{"anthropic": {"metadata": {}}}\'',
                control="extras",
            )


def read_system(options: Options) -> str | None:
    """Return the system prompt, given or read from a file."""
    if options.system_file is not None:
        data = read_bytes(Path(options.system_file))
        return read_text(data) or data.decode("utf-8", "replace")
    return repair_text(options.system) if options.system is not None else None


def read_schema(text: str) -> dict[str, Any]:
    """Read a JSON Schema from JSON, from a file, or from its short form.

    The short form lists the members of an object: `name, age int, bio: a short text`.

    >>> read_schema("name, age int")["properties"]
    {'name': {'type': 'string'}, 'age': {'type': 'integer'}}
    """
    if text.lstrip().startswith("{"):
        return _read_json(text, "--schema")
    if os.path.exists(text):
        return _read_json(read_text(read_bytes(Path(text))) or "", text)
    if text.endswith(".json") or os.sep in text.partition(":")[0]:
        raise AttachmentUnreadable(f"{text}: no such file")
    return _read_short(text)


def _read_json(text: str, origin: str) -> dict[str, Any]:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{origin}: not valid JSON: {error}") from error
    if not isinstance(schema, dict):
        raise RequestError(f"{origin}: a JSON Schema must be an object")
    return schema


def _read_short(text: str) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for field in text.split("\n" if "\n" in text else ","):
        if not field.strip():
            continue
        head, _, description = field.partition(":")
        match head.split():
            case [name]:
                kind = "str"
            case [name, kind] if kind in _TYPES:
                pass
            case _:
                raise RequestError(
                    f"--schema: {field.strip()!r} is not NAME, NAME TYPE or "
                    f"NAME TYPE: DESCRIPTION; the types are {', '.join(_TYPES)}"
                )
        properties[name] = {"type": _TYPES[kind]}
        if description := description.strip():
            properties[name]["description"] = description
    if not properties:
        raise RequestError("--schema is empty")
    return {"type": "object", "properties": properties, "required": list(properties)}
