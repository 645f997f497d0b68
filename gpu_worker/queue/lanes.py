"""The jobs of one key: short jobs are served one after the other, long jobs in turns. No clock, no I/O.

A rerank of twenty passages that took turns with 64 single texts would wait for all of them twenty times. So short jobs
take no turns: of those that came at about the same time the earliest deadline is served first, then the earliest
arrival. While a short job waits, long jobs share what `SHORT_SHARE` leaves to them.
"""

from dataclasses import dataclass

from gpu_worker.queue.flows import Flows
from gpu_worker.queue.waiting_job import WaitingJob
from shared.load import SHORT_SHARE


@dataclass(slots=True, kw_only=True, eq=False)
class Lane:
    """The short or the long jobs of a key. `weight`: its share. `tag`: its virtual time, in tokens / weight."""

    jobs: Flows[WaitingJob]
    weight: int
    tag: float = 0.0


class Lanes:
    """The waiting jobs of a key, the next one first."""

    def __init__(self, quantum: int) -> None:
        """`quantum`: tokens of one turn of a long job."""
        self._quantum = quantum
        self._short = Lane(jobs=Flows(quantum, charged=False), weight=SHORT_SHARE)
        self._long = Lane(jobs=Flows(quantum), weight=1)

    @property
    def waiting(self) -> int:
        """Number of jobs in both lanes."""
        return self._short.jobs.waiting + self._long.jobs.waiting

    def join(self, job: WaitingJob) -> None:
        """Adds a job. A lane that was empty starts no earlier than the other one."""
        lane, other = self._lanes_of(job)
        if not lane.jobs.waiting:
            lane.tag = max(lane.tag, other.tag) if other.jobs.waiting else other.tag
        lane.jobs.join(job)

    def leave(self, job: WaitingJob) -> None:
        """Removes a job that waits no more."""
        self._lanes_of(job)[0].jobs.leave(job)

    def resume(self, job: WaitingJob) -> None:
        """Lets a waiting job be served, in its order."""
        self._lanes_of(job)[0].jobs.resume(job)

    def pause(self, job: WaitingJob) -> None:
        """Passes a waiting job over until it is resumed."""
        self._lanes_of(job)[0].jobs.pause(job)

    def head(self) -> WaitingJob | None:
        """The next job to be served, or None."""
        short, long = self._short.jobs.head(), self._long.jobs.head()
        if short is None or long is None:
            return short or long
        return long if self._long.tag < self._short.tag else short

    def serve(self, head: WaitingJob, cost: int, *, filling: bool, done: bool) -> None:
        """Charges the head for its turn; see `Flows.serve`."""
        lane, other = self._lanes_of(head)
        charged = lane.tag + cost / lane.weight
        if filling and other.jobs.waiting:
            charged = max(lane.tag, min(charged, other.tag + self._quantum))
        lane.tag = charged
        lane.jobs.serve(head, cost, filling=filling, done=done)

    def charge(self, job: WaitingJob, cost: int) -> None:
        """Charges a waiting job for what it was served out of its turn; see `Flows.charge`."""
        lane = self._lanes_of(job)[0]
        lane.tag += cost / lane.weight
        lane.jobs.charge(job, cost)

    def _lanes_of(self, job: WaitingJob) -> tuple[Lane, Lane]:
        """The lane of a job, and the other lane."""
        return (self._long, self._short) if job.long else (self._short, self._long)
