"""Canisters for a script: a plain record of each, so that tests can see what was sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vibe_llms.events import Notice
from vibe_llms.messages.canisters import (
    Canister,
    InvocationCanister,
    ResultCanister,
    role_of,
)
from vibe_llms.messages.contents import Content, ReasoningContent, Reference, TextualContent
from vibe_llms.providers.interfaces import Model


class ScriptedMessagesProcessor:
    """Canisters to plain records; nothing is lost, so there are no notices."""

    def nativize(
        self, canister: Canister, model: Model, texts: Mapping[str, bytes]
    ) -> tuple[Mapping[str, Any], Sequence[Notice]]:
        """The record of a canister: its role, and its text or its call."""
        record: dict[str, Any] = {"role": role_of(canister)}
        match canister:
            case InvocationCanister():
                record.update(
                    identity=canister.identity, name=canister.name, arguments=canister.arguments
                )
            case ResultCanister():
                record.update(invocation=canister.invocation, failed=canister.failed)
        contents: Sequence[Content] = canister.contents
        if contents:
            record["contents"] = [self._nativize_content(content, texts) for content in contents]
        return record, ()

    def _nativize_content(self, content: Content, texts: Mapping[str, bytes]) -> Any:
        kind = str(content.__struct_config__.tag)
        match content:
            case TextualContent(data=data) | ReasoningContent(data=data):
                text = texts[data.hash].decode() if isinstance(data, Reference) else data
                return {"kind": kind, "text": text}
            case _:
                return {"kind": kind, "mimetype": getattr(content, "mimetype", "")}
