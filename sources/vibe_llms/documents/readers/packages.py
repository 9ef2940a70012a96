"""Packages of the extra `documents`, each imported by the reader that needs it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from vibe_llms.base.exceptions import PackageMissing


def import_package(module: str, package: str, purpose: str) -> Any:
    """Return a module of a package, or raise `PackageMissing`."""
    try:
        return import_module(module)
    except ImportError as error:
        raise PackageMissing(
            purpose, package=package, command="python -m pip install 'vibe-llms[documents]'"
        ) from error
