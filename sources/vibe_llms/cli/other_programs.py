"""Commands of other programs, and their counterparts here.

They are not sent to a model: the answer says what to type. Only commands that leave the chat or
show its help are obeyed. The programs are llm, aichat, mods, gptme, aider and ollama, as of
November 2026.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

#: Commands of other programs at the shell, with their counterparts; empty if none.
COMMANDS: Mapping[str, str] = {
    "aliases": "config edit",
    "chats": "list",
    "collections": "index list",
    "delete": "rm",
    "embed": "index add",
    "embed-models": "memory --help",
    "embed-multi": "index add",
    "fragments": "index",
    "history": "list",
    "install": "plugins install",
    "login": "keys set",
    "logs": "list",
    "ls": "list",
    "openai": "models openai",
    "prompt": "chat",
    "remove": "rm",
    "repl": "chat",
    "roles": "agents list",
    "schemas": "chat --schema",
    "sessions": "list",
    "setup": "keys set",
    "similar": "ask --docs",
    "templates": "agents",
    "uninstall": "plugins rm",
    "update": "",
    "upgrade": "",
    "version": "--version",
}
#: Words after a command of another program that a prompt would not have there.
_SUBCOMMANDS = frozenset(
    (
        *("add", "backup", "default", "delete", "dsl", "edit", "list", "loaders", "off", "on"),
        *("path", "remove", "set", "show", "status"),
    )
)

#: Options of other programs, with the arguments that do the same here; empty if none.
OPTIONS: Mapping[str, str] = {
    "--code": "-x",
    "--delete": "rm",
    "--dirs": "config path",
    "--empty-session": "-n",
    "--execute": "",
    "--file": "-f",
    "--functions": "-T",
    "--info": "doctor",
    "--list": "list",
    "--list-agents": "agents list",
    "--list-models": "models",
    "--list-rags": "index list",
    "--list-roles": "agents list",
    "--list-sessions": "list",
    "--max-tokens": "-o output-tokens",
    "--mcp-list": "mcp list",
    "--no-cache": "-n",
    "--no-confirm": "--ta",
    "--rag": "--docs",
    "--resume": "-c",
    "--role": "-A",
    "--save-session": "--name",
    "--serve": "serve",
    "--session": "--cid",
    "--settings": "config edit",
    "--sf": "--system-file",
    "--stop": "-o stop",
    "--sync-models": "models",
    "--system-fragment": "--system-file",
    "--temp": "-o temperature",
    "--temperature": "-o temperature",
    "--template": "-A",
    "--title": "--name",
    "--top-p": "-o top-p",
    "--topk": "-o top-k",
    "--topp": "-o top-p",
    "-l": "list",
    "-r": "-A",
    "-t": "-A",
    "-y": "--ta",
}

#: Beginnings of lines in other programs' chats, with their counterparts; empty if none.
CHAT: Mapping[str, str] = {
    "!end": '/multi, or """,',
    "!exit": "/exit",
    "!help": "/help",
    "!quit": "/exit",
    ".agent": "/exit, then vibe-llms chat -A NAME",
    ".clear": "/clear",
    ".compress": "/new",
    ".continue": "/continue",
    ".copy": "/copy",
    ".delete": "/exit, then vibe-llms rm ID",
    ".edit": "/edit",
    ".empty": "/new",
    ".exit": "/exit",
    ".exit session": "/new",
    ".exit role": "/new",
    ".exit agent": "/new",
    ".exit rag": "/new",
    ".file": "/file PATH",
    ".help": "/help",
    ".info": "/context",
    ".macro": "",
    ".model": "/model NAME",
    ".prompt": "/system TEXT",
    ".quit": "/exit",
    ".rag": "/exit, then vibe-llms chat --docs NAME",
    ".rebuild": "/exit, then vibe-llms index add NAME",
    ".regenerate": "/regenerate",
    ".role": "/exit, then vibe-llms chat -A NAME",
    ".save": "/rename NAME, as everything is saved",
    ".session": "/list and /open ID",
    ".set": "/set NAME VALUE",
    ".sources": "/show",
    ".starter": "",
    ".variable": "",
    "/?": "/help",
    "/add": "/file PATH",
    "/bye": "/exit",
    "/cost": "/usage",
    "/cp": "/copy",
    "/delete": "/exit, then vibe-llms rm ID",
    "/load": "/open ID",
    "/log": "/show",
    "/multiline": "/multi",
    "/q": "/exit",
    "/quit": "/exit",
    "/reset": "/new",
    "/resume": "/list and /open ID",
    "/retry": "/regenerate",
    "/save": "/rename NAME, as everything is saved",
    "/session": "/list and /open ID",
    "/tokens": "/usage",
    ":::": '""" on a line of its own',
    ":q": "/exit",
    ":quit": "/exit",
    ":wq": "/exit",
}
#: Chat command without arguments.
_ONE_WORD = re.compile(r"[/!][a-z]+")
#: Commands that mean the same in all programs.
_TRANSLATED = frozenset(("/exit", "/help"))


def is_command(words: Sequence[str]) -> bool:
    """Return True if words at the shell are a command of another program, not a prompt.

    >>> is_command(["logs", "list", "-n", "5"]), is_command(["logs", "say", "it", "failed"])
    (True, False)
    """
    if not words or words[0] not in COMMANDS:
        return False
    return len(words) <= 2 or words[1] in _SUBCOMMANDS or words[1].startswith("-")


def find_at_shell(words: Sequence[str]) -> str | None:
    """Return what to add about a line of a chat that is typed at the shell; `None` for a prompt.

    >>> find_at_shell([".model", "x"]), find_at_shell(["/undo"]), find_at_shell(["/etc", "is", "?"])
    (', and type /model NAME there', '', None)
    """
    if not words:
        return None
    if found := find_in_chat(" ".join(words)):
        return f", and type {found} there"
    return "" if len(words) == 1 and _ONE_WORD.fullmatch(words[0]) else None


def find_in_chat(line: str) -> str | None:
    """Return what to type in place of a line of another program's chat, or `None` for a message.

    >>> find_in_chat(".model gpt-5"), find_in_chat(".env files are what?"), find_in_chat(" .model")
    ('/model NAME', None, None)
    """
    words = line.split()
    if not words or "\n" in line.rstrip() or line[0].isspace():
        return None
    first = words[0].lower()
    return CHAT.get(" ".join((first, *words[1:2])), CHAT.get(first))


def translate(line: str) -> str:
    """Return the command of our chat that a line surely means, or the line itself.

    >>> translate("/bye"), translate(".exit session"), translate("/bye for now")
    ('/exit', '.exit session', '/bye for now')
    """
    found = CHAT.get(line.strip().lower())
    return found if found in _TRANSLATED else line
