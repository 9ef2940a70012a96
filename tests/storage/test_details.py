"""What is kept of a conversation besides its lines."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime

from vibe_llms.storage.details import decode_details, encode_details
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
        Details(created=datetime.now(UTC), forked_from=Origin("abcd")),
    ):
        text = encode_details(details).decode()
        assert decode_details(tomllib.loads(text), "here") == details
        assert text.startswith(f"format = {FORMAT}\n")
