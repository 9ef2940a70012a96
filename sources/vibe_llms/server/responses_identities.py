"""Identities of items of Responses: each names its run, by which a reference to it is found."""

from __future__ import annotations

import base64
import binascii
from uuid import UUID

#: Characters of a UUID in base64.
_UUID_CHARACTERS = 22


def produce_item_identity(prefix: str, run: str, message: str, place: int = 0) -> str:
    """Return the identity of an item that is a message of a run, or a part of one.

    It has at most 64 characters, which is what OpenAI accepts. A response that is not stored has
    no run.

    >>> run = "019ac1d0-7d5c-7cc3-98c4-dc0c0c07398f"
    >>> len(produce_item_identity("msg", run, run, 1))
    50
    """
    number = f"_{place}" if place else ""
    return f"{prefix}_{_shorten(run)}{_shorten(message)}{number}"


def find_run(item: str) -> str | None:
    """Return the run that the identity of an item names; `None` if it names none.

    >>> run = "019ac1d0-7d5c-7cc3-98c4-dc0c0c07398f"
    >>> find_run(produce_item_identity("msg", run, run)) == run
    True
    """
    rest = item.partition("_")[2]
    if len(rest) < 2 * _UUID_CHARACTERS:
        return None
    try:
        data = base64.b64decode(rest[:_UUID_CHARACTERS] + "==", altchars=b"-_", validate=True)
        return str(UUID(bytes=data))
    except (binascii.Error, ValueError):
        return None


def _shorten(identity: str) -> str:
    try:
        data = UUID(identity).bytes
    except ValueError:
        return identity
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
