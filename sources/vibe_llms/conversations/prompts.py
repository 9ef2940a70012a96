"""Prompts: text, contents, or canisters, converted to canisters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from vibe_llms.base.exceptions import RequestError
from vibe_llms.messages.canisters import Canister, SupervisorCanister, UserCanister
from vibe_llms.messages.codecs import repair_canister
from vibe_llms.messages.contents import Content, Reference, TextualContent

#: Text, contents, whole canisters, or a sequence of these.
Prompt: TypeAlias = str | Content | Canister | Sequence[str | Content | Canister]


def read_prompt(prompt: Prompt | None) -> tuple[Canister, ...]:
    """Convert a prompt to canisters; adjacent texts and contents form one user message.

    Lone surrogates become U+FFFD. Raises `RequestError` for a blank message or another type.
    """
    if prompt is None:
        return ()
    items = [prompt] if isinstance(prompt, str) or not isinstance(prompt, Sequence) else prompt
    said: list[Canister] = []
    contents: list[Content] = []
    for item in items:
        if isinstance(item, Canister):
            if contents:
                said.append(UserCanister(tuple(contents)))
                contents = []
            said.append(item)
        elif isinstance(item, str):
            contents.append(TextualContent(item))
        elif isinstance(item, Content):
            contents.append(item)
        else:
            raise RequestError(
                f"a {type(item).__name__} is not a prompt; pass text, contents, or canisters"
            )
    if contents:
        said.append(UserCanister(tuple(contents)))
    for canister in said:
        if isinstance(canister, UserCanister) and not _says_something(canister):
            raise RequestError("the message is empty; enter some text")
    return tuple(repair_canister(canister) for canister in said)


def apply_template(
    said: Sequence[Canister], template: Callable[[str], str]
) -> tuple[Canister, ...]:
    """Apply a template to the text of each user message."""
    return tuple(
        rewrite_message(canister, template) if isinstance(canister, UserCanister) else canister
        for canister in said
    )


def rewrite_message(canister: UserCanister, template: Callable[[str], str]) -> UserCanister:
    """Apply a template to the text of a message."""
    texts, others, place = list[str](), list[Content](), 0
    for content in canister.contents:
        if isinstance(content, TextualContent) and isinstance(content.data, str):
            place = place if texts else len(others)
            texts.append(content.data)
        else:
            others.append(content)
    others.insert(place, TextualContent(template("\n\n".join(texts))))
    return replace(canister, contents=tuple(others))


def is_instructed(canisters: Iterable[Canister], supervisor: str) -> bool:
    """Return True if a history has these instructions (as text or reference), or there are none."""
    if not supervisor:
        return True
    stored = TextualContent(Reference.from_bytes(supervisor.encode()))
    return any(
        isinstance(canister, SupervisorCanister)
        and canister.contents in ((TextualContent(supervisor),), (stored,))
        for canister in canisters
    )


def _says_something(canister: UserCanister) -> bool:
    return any(
        not isinstance(content, TextualContent)
        or not isinstance(content.data, str)
        or not (content.data == "" or content.data.isspace())
        for content in canister.contents
    )
