"""A job of which something waits. No clock, no I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_worker.queue.flows import Flow


@dataclass(slots=True, kw_only=True, eq=False)
class WaitingJob(Flow):
    """A job whose units from `position` on wait, `tokens` in all.

    `job`: None once nothing of it waits. `key`: its fairness key. `longest`: cost of its largest unit. `long`: its
    lane, however little is left of it. `room`: see `OpenJob`. `has_room`: room was taken for the next unit. `aside`,
    `in_line`: why it is not served now.
    """

    job: object
    key: str
    costs: Sequence[int]
    tokens: int
    longest: int
    long: bool
    room: Sequence[int] = ()
    position: int = 0
    has_room: bool = False
    aside: bool = False
    in_line: bool = False

    @property
    def next_cost(self) -> int:
        """Cost of the next unit."""
        return self.costs[self.position]

    def next_turn(self, wanted: int, free: int) -> tuple[int, int]:
        """The unit at which the job's next turn would stop, and the tokens that the turn would cost.

        The turn has units of at most `wanted` tokens together, or a single larger unit of at most `free` tokens; where
        the next unit is larger than that, the turn has none.
        """
        stop, cost, costs = self.position, 0, self.costs
        while stop < len(costs) and cost + costs[stop] <= (wanted if cost else free):
            stop, cost = stop + 1, cost + costs[stop]
        return stop, cost
