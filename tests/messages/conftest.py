"""Leaves out tests that need more than pytest and the package."""

from __future__ import annotations

from importlib.util import find_spec

_NEEDS = {"test_costs.py": "genai_prices", "test_properties.py": "hypothesis"}
collect_ignore = [name for name, package in _NEEDS.items() if find_spec(package) is None]
