"""Identities of Responses items, which contain the run so that references can be resolved."""

from __future__ import annotations


def produce_item_identity(prefix: str, run: str, message: str, place: int = 0) -> str:
    """Return the identity of an item: a message of a run, or a part of one.

    A response that is not stored has no run. OpenAI accepts at most 64 characters.

    >>> produce_item_identity("msg", "wk2bq", "019ac1d0-7d5c-7cc3-98c4-dc0c0c07398f", 1)
    'msg_wk2bq_019ac1d0-7d5c-7cc3-98c4-dc0c0c07398f_1'
    """
    return "_".join(filter(None, (prefix, run, message, str(place or ""))))


def find_run(item: str) -> str | None:
    """Return the run in the identity of an item, or None.

    >>> find_run("msg_wk2bq_019ac1d0-7d5c-7cc3-98c4-dc0c0c07398f_1")
    'wk2bq'
    """
    _, run, *rest = f"{item}_".split("_", 2)
    return run if run and rest != [""] else None
