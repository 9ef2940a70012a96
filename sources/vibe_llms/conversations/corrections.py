"""Corrections: what the model is told where its reply does not have the form that was asked for."""

from __future__ import annotations

from collections.abc import Sequence

from vibe_llms.messages.canisters import Canister, UserCanister
from vibe_llms.messages.contents import TextualContent
from vibe_llms.messages.identities import derive_identity

_BEFORE = "This is not a valid answer:\n"
_AFTER = "\nAnswer again, with JSON only."


def write_correction(last: str, problems: str) -> UserCanister:
    """The correction of a reply whose last message is `last`; it has one identity everywhere."""
    contents = (TextualContent(f"{_BEFORE}{problems}{_AFTER}"),)
    return UserCanister(contents, identity=_identify(last))


def describe_correction(correction: UserCanister) -> str:
    """What the user is told of a correction."""
    problems = correction.text.removeprefix(_BEFORE).removesuffix(_AFTER)
    return f"the output is asked for again: {problems}"


def is_correction(canisters: Sequence[Canister], index: int) -> bool:
    """Whether a message of a history corrects the reply before it, and is not the user's."""
    return (
        index > 0
        and isinstance(canisters[index], UserCanister)
        and canisters[index].identity == _identify(canisters[index - 1].identity)
    )


def find_last_message(canisters: Sequence[Canister]) -> int | None:
    """The place of the user's last message; `None` if there is none."""
    for index in range(len(canisters) - 1, -1, -1):
        if isinstance(canisters[index], UserCanister) and not is_correction(canisters, index):
            return index
    return None


def _identify(last: str) -> str:
    return derive_identity(last, "correction")
