"""The deadlines of jobs. No clock, no I/O."""

import heapq
from math import inf

from gpu_worker.schedule.priority_class import STALE_ENTRIES


class Deadlines:
    """Deadlines by job id, the earliest first."""

    def __init__(self) -> None:
        self._deadlines: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def add(self, job: int, deadline: float) -> None:
        """Adds the deadline of a job that has none yet."""
        self._deadlines[job] = deadline
        heapq.heappush(self._heap, (deadline, job))

    def remove(self, job: int) -> None:
        """Removes the deadline of a job that ended; a job without one is no error."""
        self._deadlines.pop(job, None)
        if len(self._heap) > 2 * len(self._deadlines) + STALE_ENTRIES:  # else stale entries would pile up
            self._heap = [(deadline, other) for other, deadline in self._deadlines.items()]
            heapq.heapify(self._heap)

    @property
    def earliest(self) -> float:
        """The earliest deadline, or an earlier one of a job that ended; `inf` where there is none."""
        return self._heap[0][0] if self._heap else inf

    def take_expired(self, now: float) -> list[int]:
        """Removes and returns the jobs whose deadline is not after `now`."""
        jobs = []
        while self._heap and self._heap[0][0] <= now:
            deadline, job = heapq.heappop(self._heap)
            if self._deadlines.get(job) == deadline:  # else the entry is stale, and its id may be another job's
                del self._deadlines[job]
                jobs.append(job)
        return jobs

    def __len__(self) -> int:
        """Number of heap entries, stale ones included."""
        return len(self._heap)
