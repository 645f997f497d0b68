"""Whether the generator was the limit: the same plan against a null server of the same method and reply size."""

from dataclasses import dataclass, replace
from typing import Any

from benchmarks.load.generator import generate
from benchmarks.load.null_server import null_server
from benchmarks.load.outcome import Outcome
from benchmarks.load.pattern import Closed
from benchmarks.load.plan import Plan

ENOUGH = 3.0
"""How many times what was measured the generator must be able to drive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """What the generator reached against the null server; its CPU seconds include that server's."""

    outcome: Outcome
    measured: float

    @property
    def times(self) -> float:
        """The ceiling over what was measured."""
        return self.outcome.requests_per_second / self.measured if self.measured else 0.0

    @property
    def proven(self) -> bool:
        """Whether the generator was far from being the limit."""
        return self.times >= ENOUGH and not self.outcome.tally.errors

    def figures(self) -> dict[str, Any]:
        """For JSON."""
        told = self.outcome.figures()
        kept = ("requests_per_second", "errors", "latency_ms", "cpu_seconds")
        return {name: told[name] for name in kept} | {"times_measured": round(self.times, 1), "proven": self.proven}


async def ceiling_of(
    plan: Plan, measured: Outcome, *, seconds: float, processes: int = 0, clients: int = 0, title: str = ""
) -> Ceiling:
    """A closed loop of `clients` (by default as many as the plan's, or 64) for some seconds."""
    count = clients or (plan.pattern.clients if isinstance(plan.pattern, Closed) else 64)
    async with null_server(plan.address, measured.mean_reply_bytes) as (address, pid):
        null = replace(
            plan, address=address, pattern=Closed(clients=count, seconds=seconds), learn=False, warmup=min(1.0, seconds)
        )
        outcome = await generate(null, processes=processes, watch={"null server": pid}, title=title)
    return Ceiling(outcome=outcome, measured=measured.requests_per_second)
