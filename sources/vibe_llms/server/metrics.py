"""What the server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from vibe_llms.messages.canisters import Usage

MEDIA_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """Counts requests, turns and tokens; it names no user and no content."""

    def __init__(self, count_turns: Callable[[], int]) -> None:
        """`count_turns` returns how many turns are running."""
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "vibe_llms_requests",
            "Requests, by path and status.",
            ("path", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "vibe_llms_request_seconds",
            "Seconds from a request to the end of its response.",
            ("path",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._tokens = Counter(
            "vibe_llms_tokens",
            "Tokens that models read and wrote.",
            ("model", "kind"),
            registry=self._registry,
        )
        running = Gauge("vibe_llms_running_turns", "Turns that run.", registry=self._registry)
        running.set_function(count_turns)

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """Count a request that has been answered."""
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def count_tokens(self, model: str, usage: Usage) -> None:
        """Count what a turn used."""
        self._tokens.labels(model, "input").inc(usage.input_tokens)
        self._tokens.labels(model, "output").inc(usage.output_tokens + usage.reasoning_tokens)

    def render(self) -> bytes:
        """All counts, in the text format of Prometheus."""
        return generate_latest(self._registry)
