"""The text of a digest: sections that a model writes, and sections that the program makes.

Each digest extends the one before. Instructions and decisions are carried over by the program, so
they do not fade with each summary of a summary.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from vibe_llms.messages.canisters import (
    Canister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    UserCanister,
)
from vibe_llms.messages.contents import MediaContent
from vibe_llms.providers.conversions import name_document, name_file

GOAL = "Goal"
INSTRUCTIONS = "Instructions that still hold"
DECISIONS = "Decisions"
STATE = "State"
NEXT = "Next step"
WITHDRAWN = "No longer valid"
FILES = "Files and sources"
ORIGINALS = "Original messages"
#: Sections of prose, which each summary replaces, and lists, which it extends.
_PROSE = (GOAL, STATE, NEXT)
_LISTS = (INSTRUCTIONS, DECISIONS, FILES)
_ORDER = (GOAL, INSTRUCTIONS, DECISIONS, STATE, NEXT, FILES, ORIGINALS)
_BULLET = re.compile(r"(?:[-*•]|\d{1,4}[.)])[ \t]")
#: Characters of a summary without any of the headings that is still taken for one.
_PLAIN_CHARACTERS = 200
#: Each section of prose may have at least this part of a digest, and this number of characters.
_PROSE_SHARE, _LEAST_PROSE = 8, 200
#: Number of names of files and sources that a digest has.
_MOST_FILES = 100
#: Length of an argument that may be the name of a file or an address.
_LONGEST_NAME = 300
_FILE_ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,7}\Z")

#: Words that say how to read the original of a message.
_POINTERS = ('; reread has it, id "{}"', '; reread has them, id "{}"')

_REQUEST = f"""\
[This message is from the program, not from the user.]
The conversation has become too long. Write a summary that replaces its earlier messages: you will
continue with the summary alone. Do not call tools, and do not answer the user.

Use these headings, and leave out those with nothing to say:

## {GOAL}
What the user wants to achieve.
## {INSTRUCTIONS}
A list: each instruction, restriction, preference, and correction from the user that still holds,
word for word.
## {DECISIONS}
A list: what was decided, and why.
## {STATE}
What is done and what was found out: exact names, numbers, commands, and errors that are still
needed.
## {NEXT}
What to do next.

Write at most {{words}} words, in the language of the conversation.\
"""
_EXTENSION = f"""\

The conversation begins with an earlier summary. The program keeps its lists "{INSTRUCTIONS}" and
"{DECISIONS}": add only new items. If an item no longer holds, repeat it word for word in a list
under the heading "## {WITHDRAWN}".\
"""


class DigestRejected(ValueError):
    """A model's summary cannot be used; the message says why."""


class Sections(Struct):
    """A digest by its headings."""

    prose: dict[str, str] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)

    def render(self) -> str:
        """Return the text of the digest."""
        parts: list[str] = []
        for name in _ORDER:
            if name in _LISTS:
                body = "\n".join(f"- {one}" for one in self.lists.get(name, ()))
            else:
                body = self.prose.get(name, "")
            if body:
                parts.append(f"## {name}\n{body}")
        return "\n\n".join(parts)


def request_digest(words: int, *, extends: bool, focus: str = "") -> str:
    """Return the message that asks a model for a summary of at most these words.

    `extends` is True if the conversation begins with a digest. `focus` is the user's own wish.
    """
    text = _REQUEST.format(words=words)
    if extends:
        text += _EXTENSION
    return f"{text}\nThe user wants this in particular: {focus}" if focus else text


def parse_digest(text: str) -> Sections:
    r"""Return the sections of a text; text without a heading belongs to the state.

    >>> parse_digest("## Goal\\nA boat.\n**Decisions:**\n* oak").lists["Decisions"]
    ['oak']
    """
    known = {name.casefold(): name for name in (*_ORDER, WITHDRAWN)}
    bodies: dict[str, list[str]] = {}
    current = STATE
    for line in text.strip().splitlines():
        name = line.strip().strip("#*: ").casefold()
        if line.lstrip().startswith(("#", "**")) and name in known:
            current = known[name]
            bodies.setdefault(current, [])
        else:
            bodies.setdefault(current, []).append(line.rstrip())
    sections = Sections()
    for name, body in bodies.items():
        if name in (*_LISTS, WITHDRAWN):
            sections.lists[name] = [*_read_items(body)]
        elif prose := "\n".join(body).strip():
            sections.prose[name] = prose
    return sections


def _read_items(lines: Iterable[str]) -> Iterator[str]:
    """Yield the items of a list; a line without a bullet continues the one before."""
    item = ""
    for line in map(str.strip, lines):
        bullet = _BULLET.match(line)
        if bullet or not item:
            if item:
                yield item
            item = line[bullet.end() :].strip() if bullet else line
        elif line:
            item = f"{item} {line}"
    if item:
        yield item


def extend_digest(before: Sections, text: str) -> Sections:
    """Return a digest extended by a model's summary; raises `DigestRejected` if it is unusable."""
    if not text.strip():
        raise DigestRejected("it is empty")
    written = parse_digest(text)
    headed = {*written.prose, *written.lists} & {*_PROSE, INSTRUCTIONS, DECISIONS}
    if written.prose.get(STATE, "").split() == text.split():
        # Text without a heading.
        headed.clear()
    if not headed and len(text.strip()) < _PLAIN_CHARACTERS:
        raise DigestRejected(f"it has none of the sections: {' '.join(text.split())[:100]!r}")
    withdrawn = {one.casefold() for one in written.lists.get(WITHDRAWN, ())}
    lists = {
        name: [
            one
            for one in dict.fromkeys((*before.lists.get(name, ()), *written.lists.get(name, ())))
            if one.casefold() not in withdrawn
        ]
        for name in (INSTRUCTIONS, DECISIONS)
    }
    lists[FILES] = before.lists.get(FILES, [])
    prose = {name: written.prose.get(name) or before.prose.get(name, "") for name in _PROSE}
    return Sections(prose, lists)


def add_artifacts(sections: Sections, covered: Sequence[Canister], *, count: int) -> Sections:
    """Return a digest with the names of files and sources in the messages that it covers.

    `count` is the number of all messages that it covers.
    """
    files: dict[str, list[str]] = {}
    for item in sections.lists.get(FILES, ()):
        name, users = _split_item(item)
        files[name] = users
    for canister in covered:
        for found in _survey_names(canister):
            name, user = map(_write_on_line, found)
            # The most recent names come last.
            users = files.pop(name, [])
            files[name] = users if user in users else [*users, user]
    items = [_join_item(name, users) for name, users in files.items()]
    originals = (
        f"This summary replaces {count} messages. If a detail is missing, find it with the tool "
        "reread, by words or by the id of a message."
    )
    return Sections(
        {**sections.prose, ORIGINALS: originals}, {**sections.lists, FILES: items[-_MOST_FILES:]}
    )


def fit_digest(sections: Sections, characters: int) -> str:
    """Return the text of a digest; if it is too long, without what can be missed best.

    These are the oldest names of files, then the ends of long prose, and then the oldest decisions
    and instructions.
    """
    least = max(characters // _PROSE_SHARE, _LEAST_PROSE)
    prose = {**sections.prose}
    lists = {name: [*items] for name, items in sections.lists.items()}
    text = (fitted := Sections(prose, lists)).render()
    for name in (FILES, *reversed(_PROSE), DECISIONS, INSTRUCTIONS):
        if (excess := len(text) - characters) > 0 and len(prose.get(name, "")) > least:
            length = max(len(prose[name]) - excess - 2, least)
            prose[name] = f"{prose[name][:length].rstrip()} …"
            text = fitted.render()
        items = lists.get(name, [])
        while len(text) > characters and items:
            items.pop(0)
            text = fitted.render()
    return text


def _survey_names(canister: Canister) -> Iterator[tuple[str, str]]:
    """Yield the names of files and sources in a message, each with who used it."""
    match canister:
        case InvocationCanister(name=tool):
            for value in _survey_texts(canister.parsed or {}):
                if _is_name(value):
                    yield value, tool
        case DocumentCanister():
            # Folders are private, as everywhere in requests.
            title, source = name_document(canister)
            if title or source:
                yield source or title, "document"
        case UserCanister() | ResultCanister():
            for content in canister.contents:
                if name := name_file(content):
                    yield name, _name_place(canister.identity)


def _name_place(identity: str) -> str:
    return f"in message {identity}"


def _split_item(item: str) -> tuple[str, list[str]]:
    """Return the name of a file in a list, and its users."""
    name, _, known = item.rpartition(" (")
    return (name, known.removesuffix(")").split(", ")) if name else (item, [])


def _join_item(name: str, users: Sequence[str]) -> str:
    return f"{name} ({', '.join(users)})" if users else name


def _write_on_line(name: str) -> str:
    """Return a name that cannot look like a section of the digest."""
    return " ".join(name.split())[:_LONGEST_NAME]


def _is_name(value: str) -> bool:
    """Return True if an argument looks like a path, a file name, or an address."""
    if len(value) > _LONGEST_NAME or len(value.split()) != 1:
        return False
    return "/" in value or "\\" in value or _FILE_ENDING.search(value) is not None


def _survey_texts(value: Any) -> Iterator[str]:
    """Yield the texts in a call's arguments."""
    match value:
        case str():
            yield value
        case Mapping():
            for one in value.values():
                yield from _survey_texts(one)
        case list():
            for one in value:
                yield from _survey_texts(one)


def without_originals(text: str, history: Iterable[Canister], hidden: Collection[str]) -> str:
    """Return the text of a digest whose original messages cannot be read.

    It names no files and sources that only `hidden` tools used.
    """
    sections = parse_digest(text)
    sections.prose.pop(ORIGINALS, None)
    if FILES in sections.lists:
        private = find_hidden(history, hidden)
        users = {*hidden, *map(_name_place, private)}
        sections.lists[FILES] = [
            rest for one in sections.lists[FILES] if (rest := _without_users(one, users))
        ]
    return sections.render()


def find_hidden(history: Iterable[Canister], hidden: Collection[str]) -> Collection[str]:
    """Return the identities of the calls of hidden tools, and of their results."""
    found: set[str] = set()
    for one in history:
        if (isinstance(one, InvocationCanister) and one.name in hidden) or (
            isinstance(one, ResultCanister) and one.invocation in found
        ):
            found.add(one.identity)
    return found


def _without_users(item: str, users: Collection[str]) -> str:
    """Return an item of a list of files without some users, or nothing if nobody else used it."""
    name, known = _split_item(item)
    kept = [one for one in known if one not in users]
    return _join_item(name, kept) if kept or not known else ""


def without_pointer(text: str, canister: Canister) -> str:
    """Return the text in place of a message whose original cannot be read."""
    for pointer in _POINTERS:
        text = text.replace(pointer.format(canister.identity), "")
    return text


def describe_omission(canister: Canister, tool: str, size: int) -> str:
    """Return the line in place of a message; `tool` is the name of the tool that returned it."""
    what = f"Result of {tool}" if tool else "Message"
    media = [one for one in canister.contents if isinstance(one, MediaContent)]
    kinds = Counter(str(one.__struct_config__.tag) for one in media)
    counts = [f"{size:,} characters"] if size or not media else []
    counts += [f"{count} {kind}{'s' * (count > 1)}" for kind, count in kinds.items()]
    pointer = _POINTERS[0].format(canister.identity)
    return f"[{what} left out: {', '.join(counts)}{pointer}]"


def cut_text(text: str, characters: int, canister: Canister) -> str:
    """Return the beginning and end of a text, and where the rest is."""
    head, tail = text[: characters * 3 // 4], text[-(characters // 4) :]
    left = len(text) - len(head) - len(tail)
    pointer = _POINTERS[1].format(canister.identity)
    rest = f"[… {left:,} characters left out{pointer} …]"
    return f"{head}\n{rest}\n{tail}"
