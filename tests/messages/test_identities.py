"""Identities are UUIDv7: unique, and in the order of their making."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

from vibe_llms.messages.identities import produce_identity


def test_an_identity_is_a_uuid_of_version_seven_with_its_time() -> None:
    before = time.time_ns() // 1_000_000
    identity = uuid.UUID(produce_identity())
    after = time.time_ns() // 1_000_000
    assert identity.version == 7
    assert identity.variant == uuid.RFC_4122
    assert before <= identity.int >> 80 <= after


def test_identities_sort_by_the_time_of_their_making() -> None:
    identities = [produce_identity() for _ in range(20_000)]
    assert identities == sorted(identities)


def test_identities_are_unique_also_when_many_threads_make_them() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: [produce_identity() for _ in range(2500)], range(8)))
    assert len({identity for some in made for identity in some}) == 20_000
