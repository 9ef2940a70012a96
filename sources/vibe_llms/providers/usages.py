"""Token counts that providers report, in classes that do not overlap, and within bounds."""

from __future__ import annotations

from vibe_llms.messages.canisters import Usage

#: Maximum tokens of a class in one reply: ten times the longest context of any model today.
MOST_TOKENS = 100_000_000
_MOST_SHOWN = 10**30


def subtract(total: int, *parts: int) -> int:
    """Return the tokens of a total that are in none of its parts.

    A part below 0 counts as 0, and a total below 0 stays as it is, for `check_usage` to report.

    >>> subtract(10, 3, -50), subtract(10, 12), subtract(-1, 3)
    (7, 0, -1)
    """
    if total < 0:
        return total
    return max(total - sum(max(part, 0) for part in parts), 0)


def check_usage(usage: Usage) -> tuple[Usage | None, str]:
    """Return a reported usage within bounds, and what was wrong with it.

    A count below 0 is 0. With a count above `MOST_TOKENS`, the usage is unknown, so that budgets
    charge what they reserved for the request.
    """
    counts = {name: getattr(usage, name) for name in usage.__struct_fields__}
    wrong = {name: count for name, count in counts.items() if not 0 <= count <= MOST_TOKENS}
    if not wrong:
        return usage, ""
    said = ", ".join(f"{name}: {_round(count):.3g}" for name, count in wrong.items())
    if any(count > 0 for count in wrong.values()):
        return None, f"the provider reports an impossible usage, which is ignored ({said})"
    bounded = {name: max(count, 0) for name, count in counts.items()}
    return Usage(**bounded), f"the provider reports a usage below 0, which counts as 0 ({said})"


def _round(count: int) -> float:
    """Return a count, within bounds, as a float."""
    return float(max(-_MOST_SHOWN, min(count, _MOST_SHOWN)))
