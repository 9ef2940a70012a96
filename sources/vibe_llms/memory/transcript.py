"""Speakers of a turn: the user, the assistant, and memory."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from msgspec import Struct

from vibe_llms.memory.entries import Role
from vibe_llms.memory.gate import Recalled
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    UserCanister,
)
from vibe_llms.messages.contents import TextualContent

#: Source of documents with recalled entries.
RECALLED_SOURCE = "memory"
_NAMESPACE = uuid.UUID("6f0d7a52-3c1e-5d0b-9a44-0d9c1f6b7e21")


class Spoken(Struct, frozen=True):
    """Words of the user and of the last reply in a turn, and the texts recalled for it."""

    user: tuple[UserCanister, ...]
    assistant: tuple[AssistantCanister, ...]
    recalled: Recalled


def read_turn(canisters: Sequence[Canister]) -> Spoken:
    """Read a turn from the canisters that it added.

    User canisters after the first reply that the user did not add to the running turn come from the
    library, which asks again for a typed output. Of several replies, with tool calls between them,
    the last one counts.
    """
    user: list[UserCanister] = []
    replies: list[AssistantCanister] = []
    recalled: list[str] = []
    answered = False
    for canister in canisters:
        match canister:
            case UserCanister(steered=steered) if steered or not answered:
                user.append(canister)
            case DocumentCanister(source=source) if source == RECALLED_SOURCE:
                recalled.append(text_in(canister))
            case AssistantCanister():
                answered = True
                replies.append(canister)
            case InvocationCanister() | ResultCanister():
                answered = True
    last = [one for one in replies if one.reply == replies[-1].reply and text_in(one).strip()]
    return Spoken(tuple(user), tuple(last), Recalled(recalled))


def text_in(canister: UserCanister | AssistantCanister | DocumentCanister) -> str:
    """Return the text in a canister itself, without texts in the archive."""
    texts = (
        content.data if isinstance(content.data, str) else ""
        for content in canister.contents
        if isinstance(content, TextualContent)
    )
    return "\n".join(texts) if isinstance(canister, UserCanister) else "".join(texts)


def identity_of(canister: UserCanister | AssistantCanister, conversation: str, role: Role) -> str:
    """Return the identity of a canister's entry, always the same, so that it is stored once."""
    return str(uuid.uuid5(_NAMESPACE, f"{conversation}/{role}/{canister.identity}"))
