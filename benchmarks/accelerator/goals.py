"""What others published for these workloads on one NVIDIA H200, and what is wanted there. Data; shapes as published."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEVICE = "NVIDIA H200"
SOURCE = "the goals of the project"
PUBLISHER = "vLLM"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """0 where nothing is said. `share_of_encoder`: of a rerank's time."""

    requests_per_second: float = 0
    tokens_per_second: float = 0
    p99_ms: float = 0
    share_of_encoder: float = 0

    def as_json(self) -> dict[str, float]:
        """Without what is not said."""
        return {name: value for name in self.__slots__ if (value := getattr(self, name))}

    def shown(self) -> str:
        """For people."""
        units = {"requests_per_second": "req/s", "tokens_per_second": "tok/s", "p99_ms": "ms p99"}
        numbers = {name: f"{value:,.0f}" if value > 100 else f"{value:g}" for name, value in self.as_json().items()}
        return ", ".join(f"{number} {units.get(name, 'of the encoder')}" for name, number in numbers.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """`published` went through a server of theirs; `wanted` is ours."""

    published: Figures = Figures()
    wanted: Figures = Figures()

    def met_by(self, row: Mapping[str, Any]) -> bool | None:
        """Whether a row has all that is wanted; None where nothing is."""
        had = {**row, "p99_ms": row["latency_ms"]["p99"]}
        wanted = self.wanted.as_json()
        late = wanted.pop("p99_ms", None)
        enough = [had[name] >= value for name, value in wanted.items()]
        return all(enough + ([had["p99_ms"] <= late] if late else [])) if wanted or late else None


SHORT = Goal(published=Figures(requests_per_second=1089), wanted=Figures(requests_per_second=8 * 1089))
GOALS = {
    ("colbert-rerank", 64): Goal(
        published=Figures(requests_per_second=161, tokens_per_second=331_638, p99_ms=432),
        wanted=Figures(tokens_per_second=600_000, p99_ms=220),
    ),
    ("big-rerank", 1): Goal(published=Figures(requests_per_second=1.14), wanted=Figures(share_of_encoder=0.85)),
    ("instruct-burst", 2000): Goal(
        published=Figures(requests_per_second=288, tokens_per_second=13_016, p99_ms=6800),
        wanted=Figures(tokens_per_second=40_000, p99_ms=2300),
    ),
    ("token-embed", 4): Goal(
        published=Figures(requests_per_second=13.7, tokens_per_second=55_463, p99_ms=328),
        wanted=Figures(tokens_per_second=280_000),
    ),
    ("medium", 64): Goal(
        published=Figures(requests_per_second=253, tokens_per_second=129_000),
        wanted=Figures(requests_per_second=4 * 253),
    ),
    ("short", 64): SHORT,
    ("short through the services", 64): SHORT,
    ("clients", 1): Goal(published=Figures(tokens_per_second=145_000)),
    ("clients", 16): Goal(wanted=Figures(tokens_per_second=620_000)),  # theirs, at a quarter of the clients
    ("clients", 64): Goal(published=Figures(tokens_per_second=620_000)),
}
"""By workload and jobs in flight."""


def of(row: Mapping[str, Any]) -> Goal:
    """An empty one where nobody said anything."""
    return GOALS.get((row["workload"], row.get("in_flight", 0)), Goal())
