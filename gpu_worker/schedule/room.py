"""Room on the device for keys and values of long sequences: who has some, and who waits for some. No clock, no I/O."""

from math import inf
from typing import Generic, TypeVar

J = TypeVar("J")


class Room(Generic[J]):
    """Bytes that the device keeps of texts in pieces, by job, and a line of jobs: who came first gets room first.

    `capacity`: all the room that there is, in bytes. `taken`: what jobs have of it. A job gets all the room that a
    sequence needs before its first piece, so whoever has room can go on. Nobody passes the line: else a stream of
    shorter sequences could keep a long one waiting for ever. Only a job that is set aside is passed over, and it keeps
    its place.
    """

    def __init__(self, capacity: float = inf) -> None:
        self.capacity, self.taken = capacity, 0
        self._of_job: dict[J, int] = {}
        self._line: dict[J, int] = {}  # in the order of the line, with what each job needs
        self._passed_over: set[J] = set()  # jobs of the line

    def take(self, job: J, room: int) -> bool:
        """Takes room for a job, unless others wait in line or too little is left."""
        if self.waiting or self.taken + room > self.capacity:
            return False
        self._take(job, room)
        return True

    def stand_in_line(self, job: J, room: int) -> None:
        """Lets a job, which stands in no line, wait for room."""
        self._line[job] = room

    def return_to_line(self, job: J, room: int) -> None:
        """Takes back the room of a sequence that did not begin; its job is first in line again."""
        self.give_back(job, room)
        self._line = {job: room, **self._line}

    def pass_over(self, job: J) -> None:
        """Lets others of the line pass a job of it."""
        self._passed_over.add(job)

    def heed(self, job: J) -> None:
        """Passes over a job of the line no longer."""
        self._passed_over.discard(job)

    def give_back(self, job: J, room: int) -> None:
        """Gives back some of a job's room; a job that has less gives back what it has."""
        returned = min(room, self._of_job.get(job, 0))
        self.taken -= returned
        if job in self._of_job:
            self._of_job[job] -= returned
            if not self._of_job[job]:
                del self._of_job[job]

    def forget(self, job: J) -> None:
        """Gives back all of a job's room, and takes it out of the line; an unknown job is no error."""
        self.taken -= self._of_job.pop(job, 0)
        self._line.pop(job, None)
        self._passed_over.discard(job)

    def next_in_line(self) -> J | None:
        """Takes room for the first job of the line that is not passed over, and takes it out of the line; None where it
        has to wait."""
        job = next((job for job in self._line if job not in self._passed_over), None)
        if job is None or self.taken + self._line[job] > self.capacity:
            return None
        self._take(job, self._line.pop(job))
        return job

    @property
    def waiting(self) -> int:
        """Number of jobs in line that are not passed over."""
        return len(self._line) - len(self._passed_over)

    def _take(self, job: J, room: int) -> None:
        self.taken += room
        self._of_job[job] = self._of_job.get(job, 0) + room
