"""Converts the output of a tool to contents of bounded size, and keeps the whole text."""

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
#: Share of an excerpt for the beginning of the text; the rest is for its end.
_HEAD_SHARE = 0.75


#: Rendering of a value as text: a template such as `"{city}: {degrees}°"`, or a function.
Rendering: TypeAlias = str | Callable[[Any], str]


class InvocationOutput(Struct, frozen=True):
    """The output of a call: contents for the model, and `failed` if the call failed.

    A `display` is shown to people instead of the contents. `trusted` is True if the contents are
    not from others, even if the tool is `outside`.
    """

    contents: tuple[Content, ...]
    display: str = ""
    failed: bool = False
    trusted: bool = False

    @property
    def text(self) -> str:
        """The text in the contents."""
        return text_of(self.contents)


class ResultTooLarge(ValueError):
    """A tool returned more than the limit; the message asks the model to request less."""


def produce_output(
    value: object, llm_format: Rendering | None = None, gui_format: Rendering | None = None
) -> InvocationOutput:
    """Render a function's return value for the model and for people.

    An `InvocationOutput` is returned unchanged.
    """
    if isinstance(value, InvocationOutput):
        return value
    contents = contents_from(value if llm_format is None else render(value, llm_format))
    return InvocationOutput(contents, "" if gui_format is None else render(value, gui_format))


def render(value: object, rendering: Rendering) -> str:
    """Render a value as text; names in a template are members of a mapping, or attributes.

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
    """Convert a tool's return value to contents: text and contents unchanged, the rest as JSON."""
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
    """Shorten contents to the text that the model may see, with the whole text attached.

    Raises `ResultTooLarge` if their total size in bytes exceeds `kept_bytes`.
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
    r"""Return `size` bytes from the beginning and end of a text, and the size of the omission.

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
            # Avoids encoding ASCII text.
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
        # Values of these types are serializable, so this one is a key of a dict.
        return next(iter(to_jsonable_python({value: None})))
    return to_jsonable_python(value, fallback=str)
