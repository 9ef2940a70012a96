"""The packages of the extra `documents`, each imported by the reader that needs it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from vibe_llms.exceptions import PackageMissing


def import_package(module: str, package: str, purpose: str) -> Any:
    """A module of a package; `PackageMissing` if it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise PackageMissing(
            purpose, package=package, command="python -m pip install 'vibe-llms[documents]'"
        ) from error
