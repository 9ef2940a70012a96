"""Lookup of a model by a part of its name, and suggestions of similar names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vibe_llms.base.exceptions import ModelNotFound

_LISTED = 6
_SIMILAR = 0.6


def match_model(name: str, known: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """Return the row and the model that a name means among known ones, or `None`.

    The whole name of a model has priority over a part of it; of several rows that have a model, the
    first is returned. `ModelNotFound` lists the models if several have the part in their names.

    >>> match_model("sonnet", [("a", "claude-sonnet-5"), ("a", "claude-opus-5")])
    ('a', 'claude-sonnet-5')
    """
    rows: dict[str, str] = {}
    for row, model in known:
        rows.setdefault(model, row)
    wanted = name.lower()
    found = [model for model in rows if model.lower() == wanted]
    found = found or [model for model in rows if wanted and wanted in model.lower()]
    if len(found) > 1:
        addresses = [f"{rows[model]}/{model}" for model in found]
        raise ModelNotFound(f"{name!r} matches {list_some(addresses)}; write more of the name")
    return (rows[found[0]], found[0]) if found else None


def suggest_models(name: str, known: Iterable[tuple[str, str]]) -> Sequence[str]:
    """Return the addresses of known models with similar names, the closest first."""
    from difflib import get_close_matches

    rows: dict[str, str] = {}
    for row, model in known:
        rows.setdefault(model.lower(), f"{row}/{model}")
    close = get_close_matches(name.lower(), rows, n=3, cutoff=_SIMILAR)
    return [rows[model] for model in close]


def list_some(choices: Sequence[str]) -> str:
    """List the first choices in words, and the number of the others.

    >>> list_some(["a", "b", "c"]), list_some("abcdefgh")
    ('a, b or c', 'a, b, c, d, e, f or 2 more')
    """
    shown = list(choices[:_LISTED])
    if left := len(choices) - len(shown):
        shown.append(f"{left} more")
    return " or ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
