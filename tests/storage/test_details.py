"""What is kept of a conversation besides its lines."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime

from vibe_llms.storage.details import decode_details, encode_details, fork_details
from vibe_llms.storage.interfaces import FORMAT, Details, Origin


def test_details_come_back_as_they_were() -> None:
    for details in (
        Details(created=datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)),
        Details(
            created=datetime.now(UTC),
            name="a name",
            model="anthropic/claude",
            tags=("a", "b"),
            forked_from=Origin("abcd", "canister"),
        ),
        Details(created=datetime.now(UTC), forked_from=Origin("abcd"), root="ab"),
    ):
        text = encode_details(details).decode()
        assert decode_details(tomllib.loads(text), "here") == details
        assert text.startswith(f"format = {FORMAT}\n")


def test_a_fork_knows_the_root_of_all_forks() -> None:
    first = Details(created=datetime.now(UTC))
    fork = fork_details(first, Origin("first"), "")
    assert fork.root == "first"
    assert fork_details(fork, Origin("fork"), "").root == "first"
    # A fork of an earlier version does not name its root.
    older = Details(created=datetime.now(UTC), forked_from=Origin("first"))
    assert fork_details(older, Origin("older"), "").root == "first"
