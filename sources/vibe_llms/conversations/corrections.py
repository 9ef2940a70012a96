"""Messages that ask the model to correct a reply that does not have the required form."""

from __future__ import annotations

from collections.abc import Sequence

from vibe_llms.messages.canisters import Canister, UserCanister
from vibe_llms.messages.contents import TextualContent
from vibe_llms.messages.identities import derive_identity

_BEFORE = "This is not a valid answer:\n"
_AFTER = "\nAnswer again, with JSON only."


def write_correction(last: str, problems: str) -> UserCanister:
    """Return the correction after the message `last`; its identity is the same in all processes."""
    contents = (TextualContent(f"{_BEFORE}{problems}{_AFTER}"),)
    return UserCanister(contents, identity=_identify(last))


def describe_correction(correction: UserCanister) -> str:
    """Return the notice to the user about a correction."""
    problems = correction.text.removeprefix(_BEFORE).removesuffix(_AFTER)
    return f"requesting the output again: {problems}"


def is_correction(canisters: Sequence[Canister], index: int) -> bool:
    """Return True if a message of a history is a correction rather than the user's."""
    return (
        index > 0
        and isinstance(canisters[index], UserCanister)
        and canisters[index].identity == _identify(canisters[index - 1].identity)
    )


def is_prompt(canisters: Sequence[Canister], index: int) -> bool:
    """Return True if a message of a history is one with which the user began a turn."""
    canister = canisters[index]
    return (
        isinstance(canister, UserCanister)
        and not canister.steered
        and not is_correction(canisters, index)
    )


def find_last_message(canisters: Sequence[Canister]) -> int | None:
    """Return the index of the user's last message, which may be added to a turn, or None."""
    for index in range(len(canisters) - 1, -1, -1):
        if isinstance(canisters[index], UserCanister) and not is_correction(canisters, index):
            return index
    return None


def find_last_prompt(canisters: Sequence[Canister]) -> int | None:
    """Return the index of the last message with which the user began a turn, or None."""
    return next((i for i in range(len(canisters) - 1, -1, -1) if is_prompt(canisters, i)), None)


def _identify(last: str) -> str:
    return derive_identity(last, "correction")
