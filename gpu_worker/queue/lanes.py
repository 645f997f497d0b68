"""The jobs of a key: short ones one after the other, long ones by turns. Pure; no clock.

If a rerank of twenty passages took turns with 64 single texts, it would wait for all of them twenty times. So a short
job takes no turns: of those that came at about the same time the earliest deadline goes first, else the first to come.
Long jobs share what `SHORT_SHARE` leaves them while a short one waits.
"""

from dataclasses import dataclass

from gpu_worker.queue.flows import Flows
from gpu_worker.queue.waiting import Waiting
from shared.load import SHORT_SHARE


@dataclass(slots=True, kw_only=True, eq=False)
class Lane:
    """Jobs that share, the lane's weight against the other's, and the tokens that it was served by its weight."""

    jobs: Flows[Waiting]
    weight: int
    tag: float = 0.0


class Lanes:
    """What waits of a key, the next job first."""

    def __init__(self, quantum: int) -> None:
        """`quantum`: tokens that are one turn of a long job."""
        self._quantum = quantum
        self._short = Lane(jobs=Flows(quantum, charged=False), weight=SHORT_SHARE)
        self._long = Lane(jobs=Flows(quantum), weight=1)

    @property
    def waiting(self) -> int:
        """Jobs of both lanes."""
        return self._short.jobs.waiting + self._long.jobs.waiting

    def join(self, job: Waiting) -> None:
        """Lets a job wait. A lane that was empty starts level with the other one."""
        lane, other = self._both(job)
        if not lane.jobs.waiting:
            lane.tag = max(lane.tag, other.tag) if other.jobs.waiting else other.tag
        lane.jobs.join(job)

    def leave(self, job: Waiting) -> None:
        """It waits no more."""
        self._both(job)[0].jobs.leave(job)

    def ready(self, job: Waiting) -> None:
        """Lets a waiting job be served, at its place."""
        self._both(job)[0].jobs.ready(job)

    def hold(self, job: Waiting) -> None:
        """Lets others be served before a job that waits on."""
        self._both(job)[0].jobs.hold(job)

    def head(self) -> Waiting | None:
        """Who is next."""
        short, long = self._short.jobs.head(), self._long.jobs.head()
        if short is None or long is None:
            return short or long
        return long if self._long.tag < self._short.tag else short

    def serve(self, head: Waiting, cost: int, *, filling: bool, done: bool) -> None:
        """Charges the head for its turn; see `Flows.serve`."""
        lane, other = self._both(head)
        charged = lane.tag + cost / lane.weight
        if filling and other.jobs.waiting:
            charged = max(lane.tag, min(charged, other.tag + self._quantum))
        lane.tag = charged
        lane.jobs.serve(head, cost, filling=filling, done=done)

    def _both(self, job: Waiting) -> tuple[Lane, Lane]:
        """Its lane, and the other one."""
        return (self._long, self._short) if job.long else (self._short, self._long)
