"""The commands of the REPL: their table, help and completion, and the lists of tools."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from vibe_llms.cli import other_programs
from vibe_llms.cli.completion import OFFERED, Offer, offer_control_values, offer_controls
from vibe_llms.cli.terminal import note, note_columns
from vibe_llms.cli.text import draw_columns, wrap
from vibe_llms.cli.tools import summarize
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.hosts import ENSEMBLES
from vibe_llms.invocation.approval import Gatekeeper
from vibe_llms.messages.canisters import DocumentCanister, InvocationCanister, ResultCanister
from vibe_llms.messages.contents import FileContent
from vibe_llms.messages.hidden import one_line
from vibe_llms.session.core import Session

#: Commands in groups, each with its arguments and its description.
GROUPS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Conversations": {
        "/new": ("[MODEL]", "start a new conversation; this one is saved"),
        "/list": ("[N]", "list the latest conversations"),
        "/open": ("ID", "continue another conversation, by id or name"),
        "/show": ("", "show the conversation"),
        "/rename": ("[NAME]", "show or change the name"),
        "/export": ("FILE", "export to a file: .html, .md or .json"),
        "/fork": ("[NAME]", "continue in a fork; the original stays as it is"),
    },
    "Messages": {
        "/file": ("PATH|URL", "attach an image or a file to the next message"),
        "/multi": ("[WORD]", "write several lines, until a line /end or /end WORD"),
        "/queue": ("[N]", "during an answer: list added messages, or take back the Nth"),
        "/edit": ("[TEXT]", "write the next message in your editor"),
        "/continue": ("", "let the model continue where it stopped"),
        "/regenerate": ("", "answer the last message again"),
        "/undo": ("[N]", "undo the last N turns"),
        "/copy": ("[code]", "copy the last answer, or its last code block, to the clipboard"),
    },
    "Background": {
        "/detach": ("", "while an answer is being written: continue it in the background"),
        "/follow": ("[ID]", "show the answer that continues in the background"),
        "/runs": ("[N]", "list the last N answers in the background"),
    },
    "Model": {
        "/model": ("[NAME]", "show the current model, or change it"),
        "/system": ("[TEXT]", "show the system prompts, or add one"),
        "/set": ("[NAME [VALUE]]", "show, set or clear controls, such as effort"),
        "/usage": ("", "show token usage and cost"),
        "/context": ("", "show what fills the context window"),
        "/compact": ("[WISH]", "let the model summarize earlier messages, to save room"),
    },
    "Tools and memory": {
        "/tools": ("[on|off NAME]", "list tools, or switch some on or off"),
        "/approve": ("[RULE TOOL]", "show or set: always, allow, ask, or deny"),
        "/trust": ("[N|all]", "list untrusted text, or trust it"),
        "/memory": ("[on|off|list|…]", "show what was recalled; also search, add, rm"),
    },
    "Program": {
        "/clear": ("", "clear the screen"),
        "/help": ("", "show this help"),
        "/exit": ("", "exit, like Ctrl-D"),
    },
}
#: Descriptions of all commands.
COMMANDS = {name: text for group in GROUPS.values() for name, (_, text) in group.items()}
#: Minimum similarity, from 0 to 1, of a suggested command.
_SIMILAR = 0.75
_KEYS = (
    "Enter sends. Ctrl-J, Alt-Enter, a paste, or a block between "
    '""" and """ adds lines. Ctrl-O opens your editor, Tab completes. A line that '
    "begins with // is sent with one slash. What you type during an answer is added to its turn. "
    "Ctrl-C stops an answer and keeps what arrived; at the prompt it clears the line."
)


#: Command typed after a draft at the prompt.
_BEHIND = re.compile(r"\s*(/[a-z]+)(?:\s.*)?", re.DOTALL)
_UNDO_BEHIND = re.compile(r"(.*)(/undo(?: +\d+)?\s*)", re.DOTALL)


def suggest_command(name: str) -> str:
    """Return the end of a message about an unknown command, with a similar name.

    >>> suggest_command("/modle"), suggest_command("/regen"), suggest_command("/retry")
    ('; did you mean /model?', '; did you mean /regenerate?', '; type /regenerate')
    """
    if here := other_programs.CHAT.get(name.lower()):
        return f"; type {here}"
    close = [one for one in COMMANDS if len(name) > 2 and one.startswith(name.lower())]
    close += get_close_matches(name.lower(), COMMANDS, n=1, cutoff=_SIMILAR)
    return f"; did you mean {close[0]}?" if close else "; see /help"


def find_behind(line: str, draft: str) -> tuple[str, str]:
    """Return a command that was typed beside the offered draft, and the draft without it.

    Both are empty without such a command. `/undo` is also found after a changed draft.

    >>> find_behind("How are you?/undo", "How are you?"), find_behind("a/b", "a")
    (('/undo', 'How are you?'), ('', ''))
    >>> find_behind("How are they?/undo", "How are you?"), find_behind("Why /undo", "How are you?")
    (('/undo', 'How are they?'), ('', ''))
    """
    if not draft:
        return "", ""
    if line.startswith(draft):
        rest = line[len(draft) :]
        if (found := _BEHIND.fullmatch(rest)) and found[1] in COMMANDS:
            return rest.strip(), draft
    if line.endswith(draft) and (before := line[: -len(draft)].strip()) in COMMANDS:
        return before, draft
    if (found := _UNDO_BEHIND.fullmatch(line)) and _is_like(found[1], draft):
        return found[2].strip(), found[1].rstrip()
    return "", ""


def _is_like(text: str, draft: str) -> bool:
    """Return True if a text shares at least half of a draft at its beginning and end."""
    text, draft = text.rstrip(), draft.rstrip()
    begin = _count_same(text, draft)
    end = _count_same(text[begin:][::-1], draft[begin:][::-1])
    return text != "" and (draft.startswith(text) or 2 * (begin + end) >= len(draft))


def _count_same(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def draw_help(cells: int) -> str:
    """Draw the commands and keys, wrapped to a width."""
    lines: list[str] = []
    for title, group in GROUPS.items():
        rows = [(f"  {name} {words}".rstrip(), text) for name, (words, text) in group.items()]
        lines += [title, *draw_columns(rows, cells), ""]
    return "\n".join([*lines, *wrap(_KEYS, cells)])


def print_tools(session: Session, conversation: Conversation) -> None:
    """Print the tools of a conversation with their rules, and the ensembles that are not open."""
    rows = [
        (one.name, session.gatekeeper.describe(one), summarize(one))
        for one in conversation.invokers.values()
    ]
    note_columns([*rows, *((name, "off", "") for name in conversation.withheld)])
    opened = {one.name for one in conversation.ensembles}
    others = [row.name for row in session.configuration.rows(ENSEMBLES) if row.name not in opened]
    if others:
        note(f"(not opened: {', '.join(others)}; /tools on NAME opens one)", dim=True)
    elif not opened and not conversation.invokers:
        note("(no tools; vibe-llms mcp add NAME -- COMMAND adds a server)", dim=True)


def print_approvals(gatekeeper: Gatekeeper) -> None:
    """Print the rules and the approvals of this session."""
    rows = [(tool, str(rule), "") for tool, rule in gatekeeper.rules.items()]
    rows += [(tool, "always", "with any arguments") for tool in gatekeeper.allowed_tools]
    rows += [(tool, "always", f"for {scope}") for tool, scope in gatekeeper.allowed_scopes]
    rows += [(one.name, "always", f"with {one_line(one.arguments)}") for one in gatekeeper.allowed]
    note_columns(rows)
    if not rows:
        note("(no approvals in this session)", dim=True)


def print_untrusted(conversation: Conversation) -> None:
    """Print the messages with untrusted text, numbered, with their sources."""
    names = {
        one.identity: one.name
        for one in conversation.canisters
        if isinstance(one, InvocationCanister)
    }
    rows = []
    for number, one in enumerate(conversation.untrusted, 1):
        match one:
            case DocumentCanister(title=title, source=source):
                row = ("document", title or source)
            case ResultCanister(invocation=call):
                row = ("result of", names.get(call, "an unknown tool"))
            case _:
                files = [part.name for part in one.contents if isinstance(part, FileContent)]
                row = ("attached", ", ".join(filter(None, files)) or "a file")
        rows.append((str(number), row[0], one_line(row[1])))
    note_columns(rows)
    if not rows:
        note("(no untrusted text in this conversation)", dim=True)


async def offer_words(
    session: Session, conversation: Conversation, command: str, words: str
) -> Sequence[Offer]:
    """Return the completions after a command and some words."""
    match command, words.split():
        case (("/model" | "/new"), []):
            return [(address, "") for address in session.survey_addresses()]
        case "/open", []:
            found = await session.survey_conversations(limit=OFFERED)
            return [(one.identity, one_line(one.title)) for one in found]
        case "/tools", []:
            return [("on ", "offer a tool or an ensemble"), ("off ", "stop offering it")]
        case "/tools", ["on"]:
            rows = [row.name for row in session.configuration.rows(ENSEMBLES)]
            return [(name, "") for name in (*conversation.withheld, *rows)]
        case "/tools", ["off"]:
            return [(name, "") for name in conversation.invokers]
        case "/approve", []:
            return [
                ("always ", "never ask, not even after untrusted text"),
                ("allow ", "run without asking"),
                ("ask ", ""),
                ("deny ", "never run"),
            ]
        case "/approve", [_]:
            return [(name, "") for name in conversation.invokers]
        case "/trust", []:
            return [("all", "trust all of it")]
        case "/memory", []:
            return [(word, "") for word in ("on", "off", "list", "search ", "add ", "rm ")]
        case "/copy", []:
            return [("code", "the last code block")]
        case "/set", []:
            return offer_controls(conversation.model.attributes)
        case "/set", [name]:
            return offer_control_values(conversation.model.attributes, name)
    return []
