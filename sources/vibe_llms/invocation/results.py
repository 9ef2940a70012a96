"""Converts what a tool returned to contents of bounded size; the whole text is kept with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from vibe_llms.messages.contents import (
    AudioContent,
    Content,
    FileContent,
    ImageContent,
    TextualContent,
    VideoContent,
    repair_text,
    text_of,
)

_CONTENT_TYPES = (TextualContent, ImageContent, AudioContent, VideoContent, FileContent)
#: The share of an excerpt that is the beginning of the text; the rest is its end.
_HEAD_SHARE = 0.75


#: How a value becomes text: a template such as `"{city}: {degrees}°"`, or a function of it.
Rendering: TypeAlias = str | Callable[[Any], str]


class InvocationOutput(Struct, frozen=True):
    """The output of a call: contents for the model, and whether it failed.

    `display`, if not empty, is shown to people in place of the contents. `trusted` is True if the
    contents are not from others, even if the tool is `outside`.
    """

    contents: tuple[Content, ...]
    display: str = ""
    failed: bool = False
    trusted: bool = False

    @property
    def text(self) -> str:
        """The text in its contents."""
        return text_of(self.contents)


class ResultTooLarge(ValueError):
    """A tool returned more than is kept; the message asks the model to request less."""


def produce_output(
    value: object, llm_format: Rendering | None = None, gui_format: Rendering | None = None
) -> InvocationOutput:
    """What a function returned, rendered for the model and for people by its formats.

    An `InvocationOutput` is returned unchanged.
    """
    if isinstance(value, InvocationOutput):
        return value
    contents = contents_from(value if llm_format is None else render(value, llm_format))
    return InvocationOutput(contents, "" if gui_format is None else render(value, gui_format))


def render(value: object, rendering: Rendering) -> str:
    """A value as text; names in a template are members of a mapping or attributes of an object.

    >>> render({"city": "Oslo", "degrees": -4}, "{city}: {degrees}°")
    'Oslo: -4°'
    """
    if not isinstance(rendering, str):
        return repair_text(str(rendering(value)))
    members = value if isinstance(value, Mapping) else _Members(value)
    return repair_text(rendering.format_map(members))


class _Members(dict[str, Any]):
    """The attributes of an object, looked up on demand."""

    def __init__(self, value: object) -> None:
        super().__init__()
        self._value = value

    def __missing__(self, name: str) -> Any:
        return getattr(self._value, name)


def contents_from(value: object) -> tuple[Content, ...]:
    """What a tool returned, as contents: text and contents unchanged, the rest as JSON."""
    match value:
        case str():
            return (TextualContent(repair_text(value)),)
        case _ if isinstance(value, _CONTENT_TYPES):
            return (value,)
        case list() | tuple() if value and all(isinstance(v, _CONTENT_TYPES) for v in value):
            return tuple(value)
        case bytes():
            return (FileContent(value, "application/octet-stream"),)
        case _:
            return (TextualContent(_encode(value)),)


def bound_contents(
    contents: Sequence[Content], *, shown_bytes: int, kept_bytes: int
) -> tuple[Content, ...]:
    """The contents with no more text than the model may see; the whole text stays attached.

    `ResultTooLarge` if together they have more bytes than are kept.
    """
    sizes = [_size_of(content) for content in contents]
    if sum(sizes) > kept_bytes:
        raise ResultTooLarge(
            f"The tool returned {sum(sizes):,} bytes; at most {kept_bytes:,} are kept. Request "
            "less."
        )
    room = shown_bytes
    bounded: list[Content] = []
    for content, size in zip(contents, sizes, strict=True):
        if isinstance(content, TextualContent) and isinstance(content.data, str):
            bounded.append(content if size <= room else _shorten(content, content.data, room))
            room = max(0, room - size)
        else:
            bounded.append(content)
    return tuple(bounded)


def _shorten(content: TextualContent, text: str, size: int) -> TextualContent:
    return msgspec.structs.replace(content, data=produce_excerpt(text, size), whole=text)


def produce_excerpt(text: str, size: int) -> str:
    r"""The beginning and end of a text, `size` bytes of UTF-8 together, and how much is missing.

    >>> produce_excerpt("0123456789", 4)
    '012\n[… 6 of 10 bytes left out …]\n9'
    """
    data = text.encode()
    head = data[: int(size * _HEAD_SHARE)].decode(errors="ignore")
    tail = data[len(data) - (size - int(size * _HEAD_SHARE)) :].decode(errors="ignore")
    missing = len(data) - len(head.encode()) - len(tail.encode())
    return f"{head}\n[… {missing:,} of {len(data):,} bytes left out …]\n{tail}"


def _size_of(content: Content) -> int:
    match getattr(content, "data", None):
        case str() as text:
            # ASCII text need not be encoded to be counted.
            return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        case bytes() as data:
            return len(data)
        case _:
            return 0


def _encode(value: object) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=_simplify).decode()
    except UnicodeEncodeError:
        import json

        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_simplify)
        return repair_text(json.dumps(plain, ensure_ascii=False, separators=(",", ":")))


def _simplify(value: object) -> Any:
    from pydantic_core import to_jsonable_python

    if value is None or isinstance(value, bool | tuple):
        # As a value it needs no help, so it is the key of a dict.
        return next(iter(to_jsonable_python({value: None})))
    return to_jsonable_python(value, fallback=str)
