"""Room on the device for the keys and values of long sequences, and the jobs that wait for some. No clock, no I/O."""

from collections import deque
from math import inf
from typing import Generic, TypeVar

J = TypeVar("J")


class Room(Generic[J]):
    """Tokens whose keys and values the device keeps, by job, and a line of jobs: who came first gets room first.

    `capacity`: all the room that there is, in tokens. `taken`: what jobs have of it. A job gets all the room that a
    sequence needs before its first piece, so whoever has room can go on. Nobody passes the line: else a stream of
    shorter sequences could keep a long one waiting for ever.
    """

    def __init__(self, tokens: float = inf) -> None:
        """`tokens`: the capacity."""
        self.capacity, self.taken = tokens, 0
        self._of_job: dict[J, int] = {}
        self._line: deque[tuple[J, int]] = deque()

    def take(self, job: J, tokens: int) -> bool:
        """Takes room for a job, unless others wait in line or too little is left."""
        if self._line or self.taken + tokens > self.capacity:
            return False
        self._take(job, tokens)
        return True

    def stand_in_line(self, job: J, tokens: int) -> None:
        """Lets a job, which stands in no line, wait for room."""
        self._line.append((job, tokens))

    def give_back(self, job: J, tokens: int) -> None:
        """Gives back some of a job's room; a job that has less gives back what it has."""
        returned = min(tokens, self._of_job.get(job, 0))
        self.taken -= returned
        if job in self._of_job:
            self._of_job[job] -= returned
            if not self._of_job[job]:
                del self._of_job[job]

    def forget(self, job: J) -> None:
        """Gives back all of a job's room, and takes it out of the line; an unknown job is no error."""
        self.taken -= self._of_job.pop(job, 0)
        self.leave_line(job)

    def leave_line(self, job: J) -> None:
        """Takes a job out of the line; one that stands in none is no error."""
        if any(other == job for other, _ in self._line):
            self._line = deque((other, tokens) for other, tokens in self._line if other != job)

    def next_in_line(self) -> J | None:
        """Takes room for the first job of the line, and the job out of the line; None where it has to wait."""
        if not self._line or self.taken + self._line[0][1] > self.capacity:
            return None
        job, tokens = self._line.popleft()
        self._take(job, tokens)
        return job

    @property
    def waiting(self) -> int:
        """Number of jobs in line."""
        return len(self._line)

    def _take(self, job: J, tokens: int) -> None:
        self.taken += tokens
        self._of_job[job] = self._of_job.get(job, 0) + tokens
