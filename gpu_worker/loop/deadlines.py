"""When jobs expire. Pure; no clock."""

import heapq

SPARE = 64
"""Entries of jobs that are gone that are kept, whatever waits."""


class Deadlines:
    """Of jobs by their ids; the earliest first."""

    def __init__(self) -> None:
        self._of: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def add(self, job: int, deadline: float) -> None:
        """Of a job that has none here."""
        self._of[job] = deadline
        heapq.heappush(self._heap, (deadline, job))

    def forget(self, job: int) -> None:
        """A job that was answered or cancelled; an unknown one is no error."""
        self._of.pop(job, None)
        if len(self._heap) > 2 * len(self._of) + SPARE:  # else those that are gone would pile up
            self._heap = [(deadline, each) for each, deadline in self._of.items()]
            heapq.heapify(self._heap)

    def passed(self, now: float) -> list[int]:
        """Takes the jobs whose deadline is not after `now`."""
        jobs = []
        while self._heap and self._heap[0][0] <= now:
            deadline, job = heapq.heappop(self._heap)
            if self._of.get(job) == deadline:  # else it is gone, and its id may be another job's
                del self._of[job]
                jobs.append(job)
        return jobs

    def __len__(self) -> int:
        """Entries that are kept."""
        return len(self._heap)
