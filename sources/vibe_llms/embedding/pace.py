"""Batch sizes that adapt to how fast batches are."""

from __future__ import annotations


class Pace:
    """Batch size that grows while batches are fast, so that an interruption loses little.

    Call `note` with the seconds that each batch took.
    """

    #: Seconds of a batch below which the size doubles, and above which it halves.
    quick_seconds, slow_seconds = 0.25, 2.0

    def __init__(self, least: int, most: int) -> None:
        self.count = least
        self._least = least
        self._most = most

    def note(self, seconds: float) -> None:
        """Adapt the size to the duration of the last batch."""
        if seconds < self.quick_seconds:
            self.count = min(2 * self.count, self._most)
        elif seconds > self.slow_seconds:
            self.count = max(self.count // 2, self._least)
