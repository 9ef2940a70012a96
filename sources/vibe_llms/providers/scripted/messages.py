"""Plain records of canisters, so that tests can see what was sent to a script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vibe_llms.messages.canisters import (
    Canister,
    InvocationCanister,
    ResultCanister,
    role_of,
)
from vibe_llms.messages.contents import Content, ReasoningContent, Reference, TextualContent


def nativize(canister: Canister, texts: Mapping[str, bytes]) -> Mapping[str, Any]:
    """Return the record of a canister: its role, and its contents or its call."""
    record: dict[str, Any] = {"role": role_of(canister)}
    match canister:
        case InvocationCanister():
            record.update(
                identity=canister.identity, name=canister.name, arguments=canister.arguments
            )
        case ResultCanister():
            record.update(invocation=canister.invocation, failed=canister.failed)
    if canister.contents:
        record["contents"] = [_nativize_content(content, texts) for content in canister.contents]
    return record


def _nativize_content(content: Content, texts: Mapping[str, bytes]) -> Mapping[str, Any]:
    kind = str(content.__struct_config__.tag)
    match content:
        case TextualContent(data=data) | ReasoningContent(data=data):
            text = texts[data.hash].decode() if isinstance(data, Reference) else data
            return {"kind": kind, "text": text}
        case _:
            return {"kind": kind, "mimetype": getattr(content, "mimetype", "")}
