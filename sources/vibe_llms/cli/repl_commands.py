"""The commands of the REPL: the table of them, its help, and what completion offers after each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vibe_llms.cli.layout import draw_columns, wrap
from vibe_llms.cli.offers import OFFERED, Offer, offer_control_values, offer_controls
from vibe_llms.cli.terminal import one_line
from vibe_llms.conversation import Conversation
from vibe_llms.ensembles.core import ENSEMBLES
from vibe_llms.session import Session

#: The commands in groups; of each its arguments, and what it does.
GROUPS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Conversations": {
        "/new": ("[MODEL]", "begin a new conversation; this one is kept"),
        "/list": ("[N]", "list the latest conversations"),
        "/open": ("ID", "continue another conversation: its id, or its name"),
        "/show": ("", "show the whole conversation"),
        "/rename": ("[NAME]", "show or change the name of the conversation"),
        "/export": ("FILE", "write it as a file to send: .html, .md or .json"),
        "/fork": ("[NAME]", "continue in a copy; this one stays as it is"),
    },
    "Messages": {
        "/file": ("PATH|URL", "attach a picture or a file to the next message"),
        "/multi": ("[WORD]", "write several lines, up to a line /end or /end WORD"),
        "/edit": ("[TEXT]", "write the next message in your editor"),
        "/continue": ("", "let the model go on from where it stopped"),
        "/regenerate": ("", "answer the last message again"),
        "/undo": ("[N]", "undo the last N turns"),
        "/copy": ("[code]", "copy the last answer, or its last code block, to the clipboard"),
    },
    "Model": {
        "/model": ("[NAME]", "show or change the model"),
        "/system": ("[TEXT]", "show the instructions, or add to them from here on"),
        "/set": ("[NAME [VALUE]]", "show the controls, or set or clear one, such as effort"),
        "/usage": ("", "show the tokens that were used, and their cost"),
        "/context": ("", "show how much of the model's context window is used"),
    },
    "Tools and memory": {
        "/tools": ("[on|off NAME]", "list the tools, or offer or withhold some"),
        "/approve": ("[allow|ask|deny TOOL]", "show or change what may run unasked"),
        "/memory": ("[on|off|list|…]", "show what was recalled; search, add, rm too"),
    },
    "Program": {
        "/clear": ("", "clear the screen"),
        "/help": ("", "show this"),
        "/exit": ("", "leave, as Ctrl-D does"),
    },
}
#: The description of each command.
COMMANDS = {name: text for group in GROUPS.values() for name, (_, text) in group.items()}
_KEYS = (
    "Enter sends. Ctrl-J, Alt-Enter or a paste begin new lines, as does a block between "
    '""" and """. Ctrl-O opens your editor, Tab completes. A line that begins with // is sent '
    "with one slash. Ctrl-C stops an answer and keeps what arrived; at the prompt it clears "
    "the line."
)


def draw_help(cells: int) -> str:
    """The commands and keys, as wide as a terminal is."""
    lines: list[str] = []
    for title, group in GROUPS.items():
        rows = [(f"  {name} {words}".rstrip(), text) for name, (words, text) in group.items()]
        lines += [title, *draw_columns(rows, cells), ""]
    return "\n".join([*lines, *wrap(_KEYS, cells)])


async def offer_words(
    session: Session, conversation: Conversation, command: str, words: str
) -> Sequence[Offer]:
    """What can follow a command and some words, for completion."""
    match command, words.split():
        case (("/model" | "/new"), []):
            return [(address, "") for address in session.survey_addresses()]
        case "/open", []:
            found = await session.survey(limit=OFFERED)
            return [(one.identity, one_line(one.title)) for one in found]
        case "/tools", []:
            return [("on ", "offer a tool or an ensemble"), ("off ", "withhold it")]
        case "/tools", ["on"]:
            rows = [row.name for row in session.configuration.rows(ENSEMBLES)]
            return [(name, "") for name in (*conversation.withheld, *rows)]
        case "/tools", ["off"]:
            return [(name, "") for name in conversation.invokers]
        case "/approve", []:
            return [("allow ", "run without asking"), ("ask ", ""), ("deny ", "never run")]
        case "/approve", [_]:
            return [(name, "") for name in conversation.invokers]
        case "/memory", []:
            return [(word, "") for word in ("on", "off", "list", "search ", "add ", "rm ")]
        case "/copy", []:
            return [("code", "the last code block")]
        case "/set", []:
            return offer_controls(conversation.model.attributes)
        case "/set", [name]:
            return offer_control_values(conversation.model.attributes, name)
    return []
