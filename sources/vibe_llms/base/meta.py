"""The package version, names visible to other programs, and lazy exports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

__version__ = "0.1.0"

#: Key in the `_meta` of a call: tells an MCP server which calls belong to one conversation.
CONVERSATION_KEY = "vibe-llms/conversation"
#: Environment variable: `none` lets the interpreter run code without a cage.
CAGE_VARIABLE = "VIBE_LLMS_CAGE"


def export_lazily(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package that loads its exports on first use.

    `homes` maps each module to its exported names: `.entries` is in the package, `..events` in its
    parent. `name=other` exports the module's `other` as `name`. Type checkers must not see the
    result, because they accept any name of a package with a `__getattr__`.
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
