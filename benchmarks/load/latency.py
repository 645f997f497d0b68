"""Latencies as an HdrHistogram: microseconds to an hour, three significant digits. Knows nothing of requests."""

from collections.abc import Mapping

from hdrh.histogram import HdrHistogram

PERCENTILES = (50.0, 95.0, 99.0, 99.9)
LONGEST = 3600 * 1_000_000
"""Microseconds; a longer latency is recorded as this."""
DIGITS = 3


class Latencies:
    """Recorded in seconds, told in milliseconds; those of several processes add up."""

    def __init__(self, encoded: str = "") -> None:
        self._histogram = HdrHistogram(1, LONGEST, DIGITS)
        if encoded:
            self._histogram.decode_and_add(encoded.encode())

    def record(self, seconds: float) -> None:
        """One latency."""
        self._histogram.record_value(min(LONGEST, max(1, round(seconds * 1e6))))

    def add(self, other: "Latencies") -> None:
        """Those of another process."""
        self._histogram.add(other._histogram)

    def encoded(self) -> str:
        """As text, in HdrHistogram's own format (V2, compressed)."""
        text: bytes = self._histogram.encode()
        return text.decode()

    def __len__(self) -> int:
        return int(self._histogram.get_total_count())

    def milliseconds(self) -> Mapping[str, float]:
        """p50, p95, p99, p99.9 and max; nothing where there is none."""
        if not len(self):
            return {}
        found = self._histogram.get_percentile_to_value_dict(list(PERCENTILES))
        named = {f"p{percentile:g}": found[percentile] / 1e3 for percentile in PERCENTILES}
        return named | {"max": self._histogram.get_max_value() / 1e3}
