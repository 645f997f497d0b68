"""What waits of one job. Pure; no clock."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_worker.queue.flows import Flow


@dataclass(slots=True, kw_only=True, eq=False)
class Waiting(Flow):
    """Places `position` and on of its order, `tokens` in all; `long`: its lane, however little is left of it."""

    job: int
    name: str
    costs: Sequence[int]
    tokens: int
    longest: int
    long: bool
    position: int = 0
    aside: bool = False

    def turn(self, wanted: int, free: int) -> tuple[int, int]:
        """Where a turn would stop, and its cost: `wanted` tokens, or one sequence of at most `free`."""
        stop, cost, costs = self.position, 0, self.costs
        while stop < len(costs) and cost + costs[stop] <= (wanted if cost else free):
            stop, cost = stop + 1, cost + costs[stop]
        return stop, cost
