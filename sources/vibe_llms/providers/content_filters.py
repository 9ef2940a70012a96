"""Results of content filters, which Azure adds to prompts, replies and errors.

Source: https://learn.microsoft.com/azure/ai-foundry/openai/concepts/content-filter and
https://learn.microsoft.com/azure/ai-foundry/openai/concepts/content-streaming (2026-11).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vibe_llms.messages.contents import repair_text

#: Number of categories that are read, and the length in characters of a name.
_MOST_CATEGORIES = 40
_LONGEST_NAME = 60


def find_flags(results: object) -> Sequence[str]:
    """Return the categories that a filter blocked or detected, by category.

    >>> find_flags({"hate": {"filtered": False, "severity": "safe"},
    ...             "violence": {"filtered": True, "severity": "medium"},
    ...             "jailbreak": {"filtered": False, "detected": True}})
    ['violence (medium)', 'jailbreak (detected)']
    """
    if not isinstance(results, dict):
        return []
    return [*_find_flags(dict([*results.items()][:_MOST_CATEGORIES]))]


def find_refused(error: Mapping[str, Any]) -> Sequence[str]:
    """Return the categories for which a request was refused, from the object of the error."""
    inner = error.get("innererror")
    if isinstance(inner, dict):
        results = inner.get("content_filter_result") or inner.get("content_filter_results")
        if flags := find_flags(results):
            return flags
    return [flag for _, flag in read_filters(error.get("content_filters"))]


def read_filters(filters: object) -> Iterator[tuple[str, str]]:
    """Yield the flags of the filters of a response; each with its source, `prompt` or `reply`."""
    for one in filters if isinstance(filters, list) else ():
        if isinstance(one, dict):
            source = "prompt" if one.get("source_type") == "prompt" else "reply"
            for flag in find_flags(one.get("content_filter_results")):
                yield source, flag


def read_prompt_filters(filters: object) -> Iterator[tuple[str, str]]:
    """Yield the flags of the prompts of a request to Chat Completions; see `read_filters`."""
    for one in filters if isinstance(filters, list) else ():
        if isinstance(one, dict):
            results = one.get("content_filter_results") or one.get("content_filter_result")
            for flag in find_flags(results):
                yield "prompt", flag


def _find_flags(results: Mapping[str, Any]) -> Iterator[str]:
    for name, result in results.items():
        category = repair_text(name[:_LONGEST_NAME]).replace("_", " ")
        if isinstance(result, list):
            # The block lists of older versions.
            result = {"filtered": any(map(_is_filtered, result))}  # noqa: PLW2901
        if not isinstance(result, dict):
            continue
        severity = result.get("severity")
        if name == "error":
            yield "not checked"
        elif _is_filtered(result):
            words = severity if isinstance(severity, str) else "blocked"
            yield f"{category} ({repair_text(words[:_LONGEST_NAME])})"
        elif result.get("detected") is True:
            yield f"{category} (detected)"


def _is_filtered(result: object) -> bool:
    return isinstance(result, dict) and result.get("filtered") is True
