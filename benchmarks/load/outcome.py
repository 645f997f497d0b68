"""What a run gave, as figures. Nothing here is measured; it is merged and divided."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.load.latency import Latencies
from benchmarks.load.tally import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`tokens` by request. `cpu_seconds` of every process over the `window`, by name.

    `seconds` is what rates are divided by. In a closed loop it reaches from the last answer before the window to the
    last in it: clients fall into step with the server's batches, and a window's edge would gain or lose a whole one.
    """

    seconds: float
    window: float
    tally: Tally
    tokens: Mapping[int, int]
    cpu_seconds: Mapping[str, float]

    @property
    def requests(self) -> int:
        """Those answered with OK."""
        return self.tally.answers.total()

    @property
    def requests_per_second(self) -> float:
        """Of answers with OK."""
        return self.requests / self.seconds

    @property
    def total_tokens(self) -> int:
        """Of all answers; 0 where nobody tells tokens."""
        return sum(self.tokens.get(index, 0) * times for index, times in self.tally.answers.items())

    @property
    def mean_reply_bytes(self) -> int:
        """What a null server has to send."""
        return round(self.tally.reply_bytes / max(1, self.requests))

    def figures(self) -> dict[str, Any]:
        """For JSON."""
        every = Latencies()
        for latencies in self.tally.latencies.values():
            every.add(latencies)
        kinds = {kind: _of_kind(latencies) for kind, latencies in sorted(self.tally.latencies.items())}
        return {
            "seconds": round(self.seconds, 3),
            "window_seconds": round(self.window, 3),
            "requests": self.requests,
            "requests_per_second": round(self.requests_per_second, 2),
            "tokens": self.total_tokens,
            "tokens_per_second": round(self.total_tokens / self.seconds),
            "errors": dict(self.tally.errors),
            "reply_bytes": self.tally.reply_bytes,
            "latency_ms": _rounded(every.milliseconds()),
            **({"kinds": kinds} if len(kinds) > 1 else {}),
            **({"sent_late_ms": _rounded(self.tally.lateness.milliseconds())} if len(self.tally.lateness) else {}),
            "cpu_seconds": {name: round(spent, 2) for name, spent in self.cpu_seconds.items()},
        }


def _of_kind(latencies: Latencies) -> dict[str, Any]:
    return {"requests": len(latencies), "latency_ms": _rounded(latencies.milliseconds())}


def _rounded(milliseconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in milliseconds.items()}
