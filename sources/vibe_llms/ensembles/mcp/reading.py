"""Readable parts of a server: prompts, resources, and URI templates of resources."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from msgspec import Struct

from vibe_llms.base.exceptions import EnsembleFailed
from vibe_llms.ensembles.mcp.contents import (
    assimilate_block,
    assimilate_resource,
    assimilate_user_block,
)
from vibe_llms.messages.canisters import AssistantCanister, Canister, UserCanister
from vibe_llms.messages.contents import Content, repair_text

T = TypeVar("T")

_MAX_PAGES = 1000
MAX_ITEMS = 10_000


class PromptArgument(Struct, frozen=True):
    """An argument of a prompt."""

    name: str
    description: str = ""
    required: bool = False


class ServerPrompt(Struct, frozen=True):
    """A prompt that a server offers: `await ensemble.read_prompt(name, arguments)`."""

    name: str
    title: str = ""
    description: str = ""
    arguments: tuple[PromptArgument, ...] = ()


class ServerResource(Struct, frozen=True):
    """A resource that a server offers: `await ensemble.read_resource(uri)`.

    `size` is in bytes, if the server reports it.
    """

    uri: str
    name: str
    title: str = ""
    description: str = ""
    mimetype: str = ""
    size: int | None = None


class ResourceTemplate(Struct, frozen=True):
    """A family of resources, as a template of their URIs (RFC 6570): `file:///{path}`."""

    template: str
    name: str
    title: str = ""
    description: str = ""
    mimetype: str = ""


async def gather_pages(
    ensemble: str, what: str, turn: Callable[[str | None], Awaitable[tuple[list[T], str | None]]]
) -> list[T]:
    """Gather all pages of a server's list, within limits."""
    found: list[T] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        items, cursor = await turn(cursor)
        found += items
        if cursor is None:
            return found
        if len(found) > MAX_ITEMS:
            break
    raise EnsembleFailed(
        f"listing: it has more than {MAX_ITEMS:,} {what} or {_MAX_PAGES:,} pages of them",
        ensemble=ensemble,
    )


def assimilate_prompt(prompt: Any) -> ServerPrompt:
    """Convert a prompt of a list."""
    arguments = tuple(
        PromptArgument(one.name, repair_text(one.description or ""), bool(one.required))
        for one in prompt.arguments or ()
    )
    return ServerPrompt(*_names(prompt.name, prompt), arguments)


def assimilate_messages(result: Any) -> tuple[Canister, ...]:
    """Convert the messages of a filled-in prompt."""
    return tuple(
        UserCanister(tuple(assimilate_user_block(message.content)))
        if message.role == "user"
        else AssistantCanister(tuple(assimilate_block(message.content)))
        for message in result.messages
    )


def assimilate_listed(resource: Any) -> ServerResource:
    """Convert a resource of a list."""
    name, title, description = _names(resource.name, resource)
    mimetype = resource.mime_type or ""
    return ServerResource(str(resource.uri), name, title, description, mimetype, resource.size)


def assimilate_template(template: Any) -> ResourceTemplate:
    """Convert a template of a list."""
    name, title, description = _names(template.name, template)
    return ResourceTemplate(
        template.uri_template, name, title, description, template.mime_type or ""
    )


def assimilate_read(result: Any) -> tuple[Content, ...]:
    """Convert the contents of a resource."""
    return tuple(content for one in result.contents for content in assimilate_resource(one))


def _names(name: str, item: Any) -> tuple[str, str, str]:
    return name, repair_text(item.title or ""), repair_text(item.description or "")
