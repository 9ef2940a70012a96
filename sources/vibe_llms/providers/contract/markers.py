"""Detection, as early as possible, of replies in the form of the contract.

A decision never changes as more text arrives, so chunk boundaries do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

#: Predicate that returns True if a tool of this name is offered.
IsKnown: TypeAlias = Callable[[str], bool]

#: Accepted values of an object's `type`; the prompt asks for `final` and `tool_call`.
FINALS = frozenset({"final", "final_answer", "answer"})
CALLS = frozenset({"tool_call", "function_call", "tool_use", "function"})
#: Accepted member names for the tool's name and arguments.
NAMES = ("name", "tool", "tool_name", "function")
ARGUMENTS = ("arguments", "parameters", "args", "input")
#: Members with calls in the form of Chat Completions: a list of them, or one.
NESTED = ("tool_calls", "function_call")
_MEMBERS = frozenset({"type", "role", "content", *NAMES, *ARGUMENTS, *NESTED})

#: Marks around and between the objects: fences, tags, brackets, ends of turns.
_TAG = re.compile(r"</?(?:tool_calls?|function_calls?|tools?|s)>|<\|[a-z_]{1,30}\|>")
MARK = re.compile(
    rf"\s+|\[/?TOOL_CALLS\]|[\[\],;]|`{{3}}(?!`)[\w-]*|~{{3}}(?!~)[\w-]*|{_TAG.pattern}"
)
_PART_OF_A_TAG = re.compile(r"<(?:/?[a-z_]{0,15}|\|[a-z_]{0,30}\|?)")
_FENCE = re.compile(r"(`+|~+)([\w-]*)")
_LIST = "[TOOL_CALLS]"
_KEY = re.compile(r"\{\s*(?:\"([^\"\\\s]{0,40})\"|'([^'\\\s]{0,40})'|(\w{1,40}))\s*:")
_PART_OF_A_KEY = re.compile(r"\{\s*(?:(?:\"[^\"\\\s]{0,40}\"?|'[^'\\\s]{0,40}'?|\w{1,40})\s*)?")
_WORD = re.compile(r"\s*[\"']([\w./-]{0,64})[\"']")
_PART_OF_A_WORD = re.compile(r"\s*(?:[\"'][\w./-]{0,64})?")
#: Limit in characters for deciding the kind of a text; an undecided text is then a `form`.
_LONGEST = 4096


class Beginning(NamedTuple):
    """Kind of a text, judged by its beginning; `start` is where a final answer's content begins."""

    kind: Literal["open", "prose", "form", "content"]
    start: int = 0


OPEN, PROSE, FORM = Beginning("open"), Beginning("prose"), Beginning("form")


def read_beginning(text: str, is_known: IsKnown) -> Beginning:
    r"""Decide whether a text is prose, in the form of the contract, or still open.

    >>> is_known = {"add"}.__contains__
    >>> read_beginning("Hello", is_known).kind, read_beginning('```json\n{"ty', is_known).kind
    ('prose', 'open')
    >>> read_beginning('{"type": "final", "content": "He', is_known)
    Beginning(kind='content', start=30)
    """
    beginning = _read_marks(text[:_LONGEST], is_known)
    return FORM if beginning is OPEN and len(text) >= _LONGEST else beginning


def spell(word: str) -> str:
    """Normalize the case and hyphens of a type or member name."""
    return word.casefold().replace("-", "_")


def _read_marks(text: str, is_known: IsKnown) -> Beginning:
    position = 0
    while True:
        rest = text[position:].lstrip()
        position = len(text) - len(rest)
        match rest[:1]:
            case "":
                return OPEN
            case "{":
                return _read_object(text, position, is_known)
            case "[":
                found = _read_bracket(rest)
            case "`" | "~":
                found = _read_fence(rest)
            case "<":
                found = _read_tag(rest)
            case _:
                return PROSE
        if isinstance(found, Beginning):
            return found
        position += found


def _read_bracket(rest: str) -> Beginning | int:
    """Return the length of a bracket that opens a list of objects, or the decision."""
    if rest.startswith(_LIST):
        return len(_LIST)
    inner = rest[1:].lstrip()
    if not inner or _LIST.startswith(rest):
        return OPEN
    return 1 if inner[0] == "{" else PROSE


def _read_fence(rest: str) -> Beginning | int:
    found = _FENCE.match(rest)
    assert found is not None
    if found.end() == len(rest):
        return OPEN
    # A longer fence quotes text that has fences itself.
    return found.end() if len(found[1]) == 3 else PROSE


def _read_tag(rest: str) -> Beginning | int:
    if found := _TAG.match(rest):
        return found.end()
    return OPEN if _PART_OF_A_TAG.fullmatch(rest) else PROSE


def _read_object(text: str, position: int, is_known: IsKnown) -> Beginning:
    found = _KEY.match(text, position)
    if found is None:
        return OPEN if _PART_OF_A_KEY.fullmatch(text, position) else PROSE
    member = spell(found[1] or found[2] or found[3] or "")
    if member != "type":
        return FORM if member in _MEMBERS else PROSE
    word = _WORD.match(text, found.end())
    if word is None:
        return OPEN if _PART_OF_A_WORD.fullmatch(text, found.end()) else PROSE
    if spell(word[1]) in CALLS or is_known(word[1]):
        return FORM
    return _read_final(text, word.end()) if spell(word[1]) in FINALS else PROSE


def _read_final(text: str, position: int) -> Beginning:
    """Find where the content begins, if it comes next and is a string."""
    for mark in (",", '"content"', ":", '"'):
        rest = text[position:].lstrip()
        if not rest.startswith(mark):
            return OPEN if mark.startswith(rest) else FORM
        position = len(text) - len(rest) + len(mark)
    return Beginning("content", position)
