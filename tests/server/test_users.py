"""The users of a server: several servers of one home can start at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from vibe_llms.configuration import LOCAL, load_configuration
from vibe_llms.server.users import find_users


def test_of_servers_that_start_at_once_one_makes_the_first_key(home: Path) -> None:
    barrier = Barrier(4)

    def start(_: int) -> str:
        users = find_users(load_configuration())
        barrier.wait()
        return users.add_first()

    with ThreadPoolExecutor(4) as threads:
        keys = [key for key in threads.map(start, range(4)) if key]
    assert len(keys) == 1
    users = find_users(load_configuration())
    assert users.find(keys[0]) == LOCAL
    assert users.add_first() == ""
