"""Conversion of the items in a Responses input to messages.

Calls and outputs of a client's tools become calls and results, even if their types are unknown;
other actions of a model or server become text. No item is refused for its type.

Source: `types/responses/response_input_item_param.py` of openai 3.57.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct, ValidationError

from vibe_llms.providers.openai.chat_completions.chunks import FunctionDelta
from vibe_llms.providers.tool_names import nativize_name
from vibe_llms.server.chat_requests import (
    AudioPart,
    ChatMessage,
    ClientCall,
    FileData,
    FilePart,
    ImagePart,
    ImageUrl,
    InputAudio,
    Part,
    RefusalPart,
    TextPart,
)
from vibe_llms.server.descriptions import describe_json
from vibe_llms.server.failures import Rejected
from vibe_llms.server.omissions import Omissions
from vibe_llms.server.responses_identities import find_run
from vibe_llms.server.responses_tools import offer_name, read_call

Json: TypeAlias = Mapping[str, Any]

OUTPUT = "_output"
_OWN_PREFIX = "x:"
_MESSAGE = "message"
#: Type of reasoning items, which only the model that wrote them can read.
_THOUGHTS = "reasoning"
#: Types of items that list tools, which are offered already.
_TOOL_LISTS = frozenset({"additional_tools", "configuration_update", "mcp_list_tools"})
#: Known types that become text without an entry in X-Left-Out.
_DESCRIBED = frozenset(
    {
        *("code_interpreter_call", "computer_call", "file_search_call", "image_generation_call"),
        *("mcp_approval_request", "mcp_approval_response", "mcp_call", "program"),
        *("program_output", "tool_search_call", "tool_search_output", "web_search_call"),
    }
)
#: Types of outputs that must have a call, as at OpenAI.
_NEED_CALLS = frozenset({"custom_tool_call_output", "function_call_output"})
#: Types of text parts.
_TEXTS = frozenset({"input_text", "output_text", "reasoning_text", "summary_text", "text"})
#: Maximum length of a text without whitespace; longer ones are treated as data.
_MOST_DATA = 1_000
_COMPACTED = "[Earlier messages were summarized; only the server that did so can read the summary.]"


class _Part(Struct):
    """A part of a message's content, of any type."""

    type: str = "input_text"
    text: str | None = None
    refusal: str | None = None
    image_url: str | dict[str, Any] | None = None
    file_data: str | None = None
    file_url: str | None = None
    file_id: str | None = None
    filename: str | None = None
    input_audio: dict[str, Any] | None = None


class Continued(Struct, frozen=True):
    """The response that a request continues: its run, and its open calls by name."""

    run: str = ""
    open_calls: Mapping[str, str] = {}


class ItemReader:
    """Reader of the items of one request."""

    def __init__(self, items: Sequence[Json], continued: Continued, omissions: Omissions) -> None:
        """Create a reader of items that follow an earlier response."""
        self._items = items
        self._omissions = omissions
        #: Calls that outputs may refer to, by each of their names.
        self._calls = {name: name for name in continued.open_calls}
        answered = {
            (_type_of(item).removesuffix(OUTPUT), _name_of(item))
            for item in items
            if _type_of(item).endswith(OUTPUT)
        }
        #: Indexes of items that are read as calls.
        self._paired: set[int] = set()
        #: Indexes of items of the earlier response that the client sends again.
        self._repeated: set[int] = set()
        for place, item in enumerate(items):
            kind, call = _type_of(item), _text_of(item, "call_id")
            identity, output = _text_of(item, "id"), kind.endswith(OUTPUT)
            repeated = continued.run != "" and find_run(identity) == continued.run
            # An output without a call_id has the id of its call.
            if (repeated and (call or not output)) or (call in continued.open_calls and not output):
                self._repeated.add(place)
            if output or not call:
                continue
            known = read_call(item) is not None and item.get("execution") != "server"
            if place not in self._repeated and (known or (kind, call) in answered):
                self._paired.add(place)
                self._calls[call] = call
            if call in self._calls and identity:
                self._calls.setdefault(identity, call)
        #: Index of the first item after the last one of the assistant: from here on, input is new.
        self._past = max(
            (place + 1 for place, one in enumerate(items) if _is_of_assistant(one)), default=0
        )

    def read(self) -> Iterator[tuple[str, ChatMessage]]:
        """Yield the messages, each after the name of its item, such as `input[0]`.

        Raises `Rejected`, which names the invalid item.
        """
        for place, item in enumerate(self._items):
            param = f"input[{place}]"
            if place in self._repeated:
                continue
            if (message := self._read_item(place, item, param)) is not None:
                yield param, message

    def _read_item(self, place: int, item: Json, param: str) -> ChatMessage | None:
        kind = _type_of(item)
        if kind == _MESSAGE:
            return self._read_message(item, param, new=place >= self._past)
        if place in self._paired:
            name, arguments = _read_any_call(item)
            if not name:
                raise Rejected("a call needs a name", param=f"{param}.name")
            piece = ClientCall(
                id=_text_of(item, "call_id"), function=FunctionDelta(name, arguments)
            )
            return ChatMessage(role="assistant", tool_calls=[piece])
        if kind.endswith(OUTPUT):
            if (call := self._calls.get(_name_of(item))) is not None:
                content = self._read_output(item, param)
                return ChatMessage(role="tool", content=content, tool_call_id=call)
            if kind in _NEED_CALLS and _name_of(item):
                raise Rejected(
                    f"no call found for the output with call_id {_name_of(item)!r}", param=param
                )
        elif kind in ("function_call", "custom_tool_call"):
            raise Rejected("a call needs a call_id", param=f"{param}.call_id")
        if kind == "compaction_trigger":
            raise Rejected(
                "a compaction_trigger must be the last item",
                param=param,
            )
        return self._describe_item(kind, item)

    def _describe_item(self, kind: str, item: Json) -> ChatMessage | None:
        """Return the item as text, or None to leave it out."""
        if kind == _THOUGHTS or kind.startswith(_OWN_PREFIX):
            return None
        if kind in _TOOL_LISTS:
            return None
        if "compaction" in kind:
            self._omissions.add("item", kind)
            summary = describe_json(_shorten({**item, "summary": item.get("summary")}))
            return ChatMessage(role="user", content=summary or _COMPACTED)
        if kind not in _DESCRIBED:
            self._omissions.add("item", kind)
        told = describe_json(_shorten(item))
        content = f"[{kind}]\n{told}" if told else f"[{kind}]"
        return ChatMessage(role="assistant" if _is_of_assistant(item) else "user", content=content)

    def _read_message(self, item: Json, param: str, *, new: bool) -> ChatMessage:
        role, content = item.get("role", "user"), item.get("content")
        if role not in ("system", "developer", "user", "assistant"):
            raise Rejected(
                f"a role must be system, developer, user or assistant, not {role!r}",
                param=f"{param}.role",
            )
        return ChatMessage(
            role=role, content=self._read_content(content, f"{param}.content", new=new)
        )

    def _read_content(self, content: Any, param: str, *, new: bool) -> str | list[Part] | None:
        if content is None or isinstance(content, str):
            return content
        if isinstance(content, Mapping):
            content = [content]
        if not isinstance(content, list):
            raise Rejected("content must be a text or a list of parts", param=param)
        return [
            self._read_part(part, f"{param}[{place}]", new=new)
            for place, part in enumerate(content)
        ]

    def _read_part(self, given: Any, param: str, *, new: bool) -> Part:
        if isinstance(given, str):
            return TextPart(given)
        try:
            part = msgspec.convert(given, _Part)
        except ValidationError as error:
            raise Rejected(str(error), param=param) from error
        if part.type in _TEXTS:
            if part.text is None and new:
                raise Rejected("a text needs the member text", param=param)
            return TextPart(part.text or "")
        if part.type == "refusal" and part.refusal is not None:
            return RefusalPart(part.refusal)
        made = _make_media(part)
        if made is None and new:
            reason = (
                "send the data, an address or a file_id"
                if part.type in ("input_image", "input_file", "computer_screenshot")
                else f"parts of the type {part.type!r} are not supported"
            )
            raise Rejected(reason, param=param, code="unsupported_value")
        if made is not None:
            return made
        self._omissions.add("content", part.type)
        told = describe_json(_shorten(given))
        return TextPart(f"[{part.type}] {told}".strip())

    def _read_output(self, item: Json, param: str) -> str | list[Part]:
        kind, output = _type_of(item), item.get("output", item.get("content"))
        if isinstance(output, Mapping) and _type_of(output) == "computer_screenshot":
            output = [output]
        if isinstance(output, str):
            return output
        if isinstance(output, list) and all(_is_part(one) for one in output):
            return self._read_content(output, f"{param}.output", new=False) or ""
        if kind == "tool_search_output":
            return _describe_found(item.get("tools"))
        told = item if output is None else output
        return describe_json(_shorten(told)) or _text_of(item, "status")


def survey_tools(items: Sequence[Json]) -> Iterator[Sequence[Json]]:
    """Yield the tools that items of the input add to those of the request."""
    for item in items:
        if _type_of(item) in ("additional_tools", "tool_search_output"):
            tools = item.get("tools")
            if isinstance(tools, list):
                yield [one for one in tools if isinstance(one, Mapping)]


def find_reference(item: Json) -> str | None:
    """Return the identity of the referenced item, or None if it is not a reference."""
    kind = item.get("type")
    only = kind is None and "role" not in item and "content" not in item and "id" in item
    return _text_of(item, "id") if kind == "item_reference" or only else None


def _read_any_call(item: Json) -> tuple[str, str]:
    if (known := read_call(item)) is not None:
        return known
    hidden = {"call_id", "id", "name", "status", "type"}
    members = {name: one for name, one in item.items() if name not in hidden}
    name = _text_of(item, "name") or _type_of(item).removesuffix("_call")
    return name, msgspec.json.encode(members).decode()


def _make_media(part: _Part) -> Part | None:
    url = part.image_url
    if isinstance(url, Mapping):
        url = url.get("url")
    if part.type in ("input_image", "image_url", "computer_screenshot") and isinstance(url, str):
        return ImagePart(ImageUrl(url))
    if part.type in ("input_image", "computer_screenshot") and part.file_id:
        return ImagePart(ImageUrl(file_id=part.file_id))
    if part.type in ("input_file", "file") and (file := part.file_data or part.file_url):
        return FilePart(FileData(file, part.filename))
    if part.type in ("input_file", "file") and part.file_id:
        return FilePart(FileData(file_id=part.file_id))
    audio = part.input_audio or {}
    if part.type == "input_audio" and isinstance(audio.get("data"), str):
        return AudioPart(InputAudio(audio["data"], str(audio.get("format", "wav"))))
    return None


def _describe_found(tools: Any) -> str:
    """Return the names and descriptions of tools that a search found."""
    lines: list[str] = []

    def add(declared: Any, namespace: str) -> None:
        for one in declared if isinstance(declared, list) else ():
            if not isinstance(one, Mapping):
                continue
            name = _text_of(one, "name")
            if one.get("type") == "namespace":
                add(one.get("tools"), name)
            elif name:
                shown = nativize_name(offer_name(name, namespace))
                lines.append(f"{shown}: {_text_of(one, 'description')}")

    add(tools, "")
    return "\n".join(lines) or "No tools were found."


def _shorten(value: Any) -> Any:
    """Return JSON with long data, such as images, replaced by its length."""
    if isinstance(value, Mapping):
        return {name: _shorten(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_shorten(one) for one in value]
    if isinstance(value, str) and len(value) > _MOST_DATA and not value[:_MOST_DATA].split()[1:]:
        return f"({len(value)} characters of data)"
    return value


def _is_part(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, Mapping)
        and (_type_of(value) in _TEXTS or _type_of(value).startswith(("input_", "computer_scr")))
    )


def _is_of_assistant(item: Json) -> bool:
    kind = _type_of(item)
    if kind == _MESSAGE:
        return item.get("role") == "assistant"
    return kind.endswith("_call") or kind in (_THOUGHTS, "program", "mcp_approval_request")


def _type_of(item: Json) -> str:
    kind = item.get("type")
    return kind if isinstance(kind, str) and kind else _MESSAGE


def _name_of(item: Json) -> str:
    """Return the call that an output belongs to; for some types it is their own id."""
    return _text_of(item, "call_id") or _text_of(item, "id")


def _text_of(item: Json, member: str) -> str:
    value = item.get(member)
    return value if isinstance(value, str) else ""
