"""The files of this folder, as values."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct, field

FOLDER = Path(__file__).parent
Dialect: TypeAlias = Literal["chat", "responses", "messages", "ollama", "bedrock", "gemini"]


class Case(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """One public report: its address, and the kind of fault it stands for."""

    link: str
    about: str


class ServerResult(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """What a user gets from a provider's reply; keys that are left out are not checked.

    `error` lists accepted exceptions; without it the turn must succeed. `tokens` and `limit` are
    the sizes of a `ContextOverflow`, 0 if the error must not have any. `text`, `reasoning`, and
    `stop` list the accepted values of the turn. `calls` lists the calls of the tools in order: the
    two arguments of `add`, or an empty list for `now`. `says` must occur in the error or a notice
    (in any case), `notice` in a notice. `requests` is the number of requests sent, `most_requests`
    its maximum. `second_has` and `second_lacks` look at the JSON of the second request.
    """

    error: list[str] = field(default_factory=list)
    tokens: int | None = None
    limit: int | None = None
    text: list[str] | str | None = None
    reasoning: list[str] | str | None = None
    stop: list[str] | str | None = None
    calls: list[list[int]] | None = None
    says: str = ""
    notice: str = ""
    requests: int | None = None
    most_requests: int | None = None
    second_has: list[str] = field(default_factory=list)
    second_lacks: list[str] = field(default_factory=list)
    output_tokens: int | None = None
    cache_read_tokens: int | None = None


class ServerCase(Case, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """A reply that a provider's server sends; `row` adds keys to the provider's row."""

    dialect: Dialect
    payload: str
    expect: ServerResult
    model: str = "m"
    status: int = 200
    content_type: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    streaming: bool = True
    row: dict[str, Any] = field(default_factory=dict)


class ClientResult(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """What a client gets from our server, and what the model's server gets.

    `has` and `lacks` look at the reply, `headers_have` at its headers, `upstream_has` and
    `upstream_lacks` at the JSON of what was sent to the model's server.
    """

    status: int = 200
    has: list[str] = field(default_factory=list)
    lacks: list[str] = field(default_factory=list)
    headers_have: list[str] = field(default_factory=list)
    upstream_has: list[str] = field(default_factory=list)
    upstream_lacks: list[str] = field(default_factory=list)


class ClientCase(Case, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """A request that a client sends to our server; `payload` is JSON.

    `reply` is what the model's server answers instead of `second answer`: a stream of Chat
    Completions. `row` adds keys to its row. Payloads in `before` are posted first; `{id}` in a
    later payload stands for the `id` of the reply before it.
    """

    post: str
    payload: str
    expect: ClientResult
    before: list[str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    reply: str = ""
    row: dict[str, Any] = field(default_factory=dict)


class EngineResult(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """What a model reads of a search: `has` and `lacks` look at the text."""

    failed: bool = False
    has: list[str] = field(default_factory=list)
    lacks: list[str] = field(default_factory=list)
    requests: int = 1


class EngineCase(Case, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """A reply of a search engine; `second` is its reply to a second request."""

    engine: Literal["searxng", "brave", "tavily"]
    payload: str
    expect: EngineResult
    status: int = 200
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    second: str = ""


class SkillResult(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Names of the offered skills, words of the problems of the others, by name, and bodies.

    `refused` lists paths that are not read as files of the first offered skill.
    """

    offered: list[str]
    problems: dict[str, str] = {}
    bodies: dict[str, str] = {}
    refused: list[str] = []


class SkillCase(Case, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """Files and links by their paths, of which the folder `skills` is looked at."""

    files: dict[str, str]
    links: dict[str, str] = {}
    expect: SkillResult


def load_server_cases() -> list[tuple[str, ServerCase]]:
    """Return all cases of `servers/` with their names."""
    return [(path.stem, _load(path, ServerCase)) for path in sorted(FOLDER.glob("servers/*.toml"))]


def load_client_cases() -> list[tuple[str, ClientCase]]:
    """Return all cases of `clients/` with their names."""
    return [(path.stem, _load(path, ClientCase)) for path in sorted(FOLDER.glob("clients/*.toml"))]


def load_engine_cases() -> list[tuple[str, EngineCase]]:
    """Return all cases of `engines/` with their names."""
    return [(path.stem, _load(path, EngineCase)) for path in sorted(FOLDER.glob("engines/*.toml"))]


def load_skill_cases() -> list[tuple[str, SkillCase]]:
    """Return all cases of `skills/` with their names."""
    return [(path.stem, _load(path, SkillCase)) for path in sorted(FOLDER.glob("skills/*.toml"))]


def _load(path: Path, kind: type[Any]) -> Any:
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), kind)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error
