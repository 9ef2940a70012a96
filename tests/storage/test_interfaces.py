"""What an archive is, and the values it speaks of."""

from __future__ import annotations

import inspect
import re
from typing import Any

from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.interfaces import FORMAT, Archive


def methods_of(kind: type[Any]) -> dict[str, str]:
    return {
        name: re.sub(r"Coroutine\[Any, Any, (.*)\]", r"\1", str(inspect.signature(method)))
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if inspect.iscoroutinefunction(method) or "Coroutine" in str(method.__annotations__)
    }


def test_the_archive_in_a_folder_is_an_archive() -> None:
    wanted, given = methods_of(Archive), methods_of(DirectoryArchive)
    assert len(wanted) > 8
    assert {name: given[name] for name in wanted} == wanted


def test_the_format_is_the_one_that_a_sample_is_frozen_of() -> None:
    assert FORMAT == 1
