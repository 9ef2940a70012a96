"""The options of `chat`, and what they mean: what is said, in which conversation, shown how."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import Struct

from vibe_llms.attachments import (
    produce_attachment,
    produce_document,
    read_attachment,
    read_bytes,
    read_document,
    read_text,
)
from vibe_llms.cli.conversations import load_whole
from vibe_llms.cli.display import Display, EventLines, Silence, describe_usage, take_code
from vibe_llms.cli.plugins import offer_plugin
from vibe_llms.cli.schemas import print_output, read_schema
from vibe_llms.cli.terminal import is_terminal, note, write_json
from vibe_llms.configuration import ToolMode, Tree, merge, parse_value
from vibe_llms.controls import Controls, read_controls
from vibe_llms.conversation import Conversation
from vibe_llms.costs import Cost
from vibe_llms.exceptions import (
    AttachmentUnreadable,
    ControlInvalid,
    ConversationNotFound,
    PackageMissing,
    PluginMissing,
    RequestError,
)
from vibe_llms.ledger import Ledger
from vibe_llms.messages.canisters import (
    Canister,
    StopReason,
    SupervisorCanister,
    Turn,
    UnknownCanister,
    UserCanister,
)
from vibe_llms.messages.contents import Content, TextualContent, repair_text
from vibe_llms.providers.rows import FALLBACK, PROVIDERS
from vibe_llms.session import Session, open_session

_STANDARD_INPUT = "-"


class Options(Struct, frozen=True, kw_only=True):
    """The options of the command, as they were given."""

    prompt: tuple[str, ...] = ()
    model: str | None = None
    system: str | None = None
    system_file: str | None = None
    continue_last: bool = False
    conversation: str | None = None
    fork: bool = False
    name: str = ""
    print_id: bool = False
    no_log: bool = False
    attachments: tuple[str, ...] = ()
    typed_attachments: tuple[tuple[str, str], ...] = ()
    fragments: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    tools: tuple[str, ...] = ()
    approve_all: bool = False
    tool_mode: ToolMode | None = None
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
        """Whether an old conversation goes on."""
        return self.continue_last or self.conversation is not None

    @property
    def reads_standard_input(self) -> bool:
        """Whether an attachment or a document takes what is piped in."""
        return _STANDARD_INPUT in (
            *self.attachments,
            *self.fragments,
            *(source for source, _ in self.typed_attachments),
        )


class Said(Struct, frozen=True):
    """What goes to the model: documents and instructions, and the contents of one message."""

    before: tuple[Canister, ...] = ()
    contents: tuple[Content, ...] = ()

    def canisters(self) -> Sequence[Canister]:
        """All of it; `RequestError` where nothing is said."""
        if not self.contents:
            raise RequestError("the message is empty; say something")
        return [*self.before, UserCanister(self.contents)]


def check_options(options: Options) -> None:
    """Refuse options that contradict each other."""
    pairs = (
        (options.continue_last and options.conversation is not None, "-c and --cid"),
        (options.system is not None and options.system_file is not None, "-s and --system-file"),
        (options.json and options.jsonl, "--json and --jsonl"),
        (options.extract and options.extract_last, "-x and --xl"),
        (options.schema is not None and options.extract, "--schema and -x"),
        (options.schema is not None and options.extract_last, "--schema and --xl"),
    )
    for both, names in pairs:
        if both:
            raise click.UsageError(f"{names} exclude each other.")
    if options.fork and not options.continues:
        raise click.UsageError("--fork needs -c or --cid.")
    if options.name and options.continues and not options.fork:
        raise click.UsageError("--name is for a new conversation or a fork; see: vibe-llms rename.")


def read_said(options: Options) -> Said:
    """What the options, the arguments and standard input say, the piped text first."""
    before: list[Canister] = []
    system = _read_system(options)
    if system is not None and options.continues:
        before.append(SupervisorCanister.from_text(system))
    before += [
        produce_document(_read_standard_input(), "standard input")
        if source == _STANDARD_INPUT
        else read_document(source)
        for source in options.fragments
    ]
    contents: list[Content] = []
    for source, kind in (*((one, "") for one in options.attachments), *options.typed_attachments):
        if source == _STANDARD_INPUT:
            contents.append(produce_attachment(_read_standard_input(), "standard input", kind))
        else:
            contents.append(read_attachment(source, kind))
    spoken = repair_text(" ".join(options.prompt))
    replaced = spoken != " ".join(options.prompt)
    texts = [spoken]
    if not options.reads_standard_input and not is_terminal(sys.stdin):
        piped = read_piped(sys.stdin.buffer.read())
        if isinstance(piped, str):
            replaced = replaced or "\ufffd" in piped
            texts.insert(0, piped)
        else:
            contents.append(piped)
    if replaced and not options.quiet:
        note("note: what is no character was replaced by U+FFFD")
    if text := "\n\n".join(part for part in texts if part.strip()):
        contents.append(TextualContent(text))
    return Said(tuple(before), tuple(contents))


def read_piped(data: bytes) -> str | Content:
    """What was piped in: text, or else a picture or a file, as `-a -` would attach it."""
    text = read_text(data)
    if text is None:
        try:
            return produce_attachment(data, "standard input")
        except AttachmentUnreadable:
            if b"\0" in data:
                raise
            text = data.decode("utf-8", "replace")
    return text.strip("\n")


def produce_display(options: Options) -> Display | EventLines | Silence:
    """The event handler that the options ask for."""
    if options.jsonl:
        return EventLines()
    if options.json:
        return Silence(quiet=options.quiet)
    return produce_text_display(options)


def produce_text_display(options: Options) -> Display:
    """The event handler that shows answers as text."""
    transform: Callable[[str], str] | None = None
    if options.extract or options.extract_last:
        transform = take_code("last" if options.extract_last else "first")
    elif options.schema is not None:
        # What is no value of the schema is asked for again, so only the last answer is printed.
        transform = _show_nothing
    return Display(
        render=options.render,
        hide_reasoning=options.hide_reasoning,
        quiet=options.quiet,
        transform=transform,
        tools_debug=options.tools_debug,
    )


def _show_nothing(_: str) -> str:
    return ""


def output_of(options: Options) -> Mapping[str, Any] | None:
    """The JSON Schema that answers have to follow, if there is one."""
    return None if options.schema is None else read_schema(options.schema)


async def open_conversation(session: Session, options: Options) -> Conversation:
    """The conversation that the options ask for: a new one, an old one, or a fork of it.

    Where its model needs a plugin that is not installed, a person at a terminal is asked.
    """
    check_extras(session, options)
    try:
        return await _open(session, options)
    except PluginMissing as error:
        silent = options.json or options.jsonl or options.quiet
        if silent or not offer_plugin(session, error.row):
            raise
    return await _open(session, options)


def wants_memory(session: Session, options: Options) -> bool:
    """Whether the conversation has the memory: as the options say, else the configuration."""
    if options.memory is not None:
        return options.memory
    return session.configuration.memory_enabled


async def _find_conversation(session: Session, options: Options) -> str:
    """The identity of the conversation that is continued."""
    if options.conversation is not None:
        return await session.archive.resolve(options.conversation)
    newest = await session.archive.survey(limit=1)
    if not newest:
        raise ConversationNotFound("there is no conversation to go on with yet")
    return newest[0].identity


async def _open(session: Session, options: Options) -> Conversation:
    memory = wants_memory(session, options)
    wanted = await _find_conversation(session, options) if options.continues else None
    # A request that is only shown leaves no trace, neither a fork nor another model.
    keeps = not (options.no_log or options.dry_run)
    if wanted is None:
        return await session.begin(
            options.model,
            supervisor=_read_system(options),
            name=options.name,
            ensembles=options.tools,
            tool_mode=options.tool_mode,
            memory=memory,
            save=keeps,
        )
    if keeps and not options.fork:
        return await session.resume(
            wanted,
            model=options.model,
            ensembles=options.tools,
            tool_mode=options.tool_mode,
            memory=memory,
        )
    if options.model is not None:
        # A model that there is not shall leave no fork behind.
        await session.access_model(options.model)
    ledger, notices = await Ledger.restore(session.archive, wanted)
    for notice in notices:
        note(f"note: {notice.text}")
    if not keeps:
        history = [
            await load_whole(canister, session.archive)
            for canister in ledger.canisters
            if not isinstance(canister, UnknownCanister)
        ]
        model = options.model or ledger.details.model or None
        return await session.begin(
            model,
            history=history,
            ensembles=options.tools,
            tool_mode=options.tool_mode,
            memory=memory,
            save=False,
        )
    twin = await ledger.fork(len(ledger.canisters), name=options.name)
    return await session.resume(
        twin.identity,
        model=options.model,
        ensembles=options.tools,
        tool_mode=options.tool_mode,
        memory=memory,
    )


class Overrides(Struct, frozen=True):
    """What the options put over the configuration, and over the keys of its rows."""

    settings: Mapping[str, Any] = {}
    keys: Mapping[str, str] = {}


async def overrides_of(options: Options) -> Overrides:
    """The settings of the options, and those and the key that are for the row of the model."""
    settings: Tree = {} if options.rounds is None else {"tools": {"max-rounds": options.rounds}}
    own = _read_row_settings(options)
    if not own and options.key is None:
        return Overrides(settings)
    async with open_session() as session:
        row = await _locate_row(session, options)
    if own:
        settings = merge(settings, {PROVIDERS: {row: own}})
    return Overrides(settings, {} if options.key is None else {row: options.key})


def _read_row_settings(options: Options) -> Tree:
    """What `--set` and its short forms say of the row of the model."""
    given = list(options.settings)
    if options.context_size is not None:
        given.append(f"context-tokens={options.context_size}")
    if options.gpu_layers is not None:
        given.append(f"gpu-layers={options.gpu_layers}")
    own: Tree = {}
    for text in given:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise click.UsageError(f"--set takes KEY=VALUE, not {text!r}.")
        *tables, last = key.strip().replace("_", "-").split(".")
        tree: Tree = {last: parse_value(value.strip())}
        for table in reversed(tables):
            tree = {table: tree}
        own = merge(own, tree)
    return own


async def _locate_row(session: Session, options: Options) -> str:
    """The row of the model that is going to answer."""
    model = options.model
    if model is None and options.continues:
        identity = await _find_conversation(session, options)
        model = (await session.archive.restore(identity, lenient=True)).details.model
    if not model:
        model = session.choose_model()[0]
    if model == FALLBACK and options.key is not None:
        raise click.UsageError("--key needs to know for whom: -m provider/model.")
    row, _ = session.locate_model(model)
    return row.name


def controls_of(options: Options) -> Controls:
    """The controls of `-o`; `stop` may be given several times."""
    values: dict[str, Any] = {}
    for name, value in options.options:
        if name == "stop":
            values.setdefault(name, []).append(value)
        else:
            values[name] = value
    return read_controls(values)


def check_extras(session: Session, options: Options) -> None:
    """Refuse extras that no provider is sent, since they are not under the name of one."""
    rows = session.configuration.tree.get("providers", {})
    for name in controls_of(options).extras:
        if name not in rows:
            raise ControlInvalid(
                f"'extras' are tables by provider, and there is no provider '{name}', as in: "
                '-o extras \'{"anthropic": {"metadata": {}}}\'',
                control="extras",
            )


def report_turn(session: Session, conversation: Conversation, turn: Turn, options: Options) -> None:
    """What the options want to know of a turn that has ended."""
    cost = access_cost(session, turn.canisters) if options.usage else None
    if options.json:
        write_json(_encode_turn(conversation, turn, cost, options))
    elif options.schema is not None and not options.jsonl and turn.output is not None:
        print_output(turn.output)
    if turn.stop_reason == StopReason.LENGTH and not options.quiet:
        note("note: the answer was cut off by its length limit (-o output-tokens N)")
    if turn.stop_reason == StopReason.REFUSED and not options.quiet:
        note("note: the model refused to answer")
    if options.usage:
        note(describe_usage(turn.usage, cost), dim=True)


def access_cost(session: Session, canisters: Iterable[Canister]) -> Cost | None:
    """What replies cost; nothing where no list of prices is installed, or knows of them."""
    try:
        cost = session.estimate_cost(canisters)
    except PackageMissing:
        return None
    return cost if cost.dollars or not cost.unpriced else None


def address_of(conversation: Conversation) -> str:
    """The model that the conversation speaks with, as it is written."""
    return f"{conversation.model.provider}/{conversation.model.name}"


def _encode_turn(
    conversation: Conversation, turn: Turn, cost: Cost | None, options: Options
) -> str:
    return msgspec.json.encode(
        {
            "conversation": None if options.no_log else conversation.identity,
            "model": address_of(conversation),
            "text": turn.text,
            **({} if options.schema is None else {"output": turn.output}),
            "stop_reason": turn.stop_reason,
            "usage": turn.usage,
            "cost": None
            if cost is None
            else {
                "dollars": float(cost.dollars),
                "unpriced": cost.unpriced,
                "source": cost.source,
            },
        }
    ).decode()


def _read_standard_input() -> bytes:
    data = sys.stdin.buffer.read()
    if not data:
        raise AttachmentUnreadable("standard input: it is empty")
    return data


def _read_system(options: Options) -> str | None:
    if options.system_file is not None:
        data = read_bytes(Path(options.system_file))
        return read_text(data) or data.decode("utf-8", "replace")
    return repair_text(options.system) if options.system is not None else None
