"""The version, which the build reads, names that other programs see, and exports on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

__version__ = "0.1.0"

#: In the `_meta` of a call, what shows an MCP server which calls belong to one conversation.
CONVERSATION_KEY = "vibe-llms/conversation"
#: Lets the interpreter run code without a cage, with `none`, as its row says.
CAGE_VARIABLE = "VIBE_LLMS_CAGE"


def export_lazily(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package whose names are loaded on first use.

    `homes` has the names of each module: `.entries` is in the package, `..events` in its parent.
    `name=other` exports what the module calls `other`. Type checkers must not see the result: a
    package with a `__getattr__` has any name for them.
    """
    module = sys.modules[package]

    def load(name: str) -> object:
        for home, names in homes.items():
            for word in names.split():
                here, _, there = word.partition("=")
                if here == name:
                    value: object = getattr(import_module(home, package), there or here)
                    setattr(module, name, value)
                    return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load, lambda: sorted({*vars(module), *module.__all__})
