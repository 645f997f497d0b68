"""Room on the device for the keys and values of long sequences: who has some, who waits for some, and how long a job
that is set aside may keep others from it. No clock, no I/O."""

from math import inf
from typing import Generic, TypeVar

from gpu_worker.schedule.interface import OpenJob

MOST_SECONDS = 30.0
"""Seconds, over all times that it is set aside, for which a job may keep others from room: as many as a frontend gives
a caller that reads nothing."""
NOT_READ = (
    f"its rows were not read for {MOST_SECONDS:g} s, while others waited for the memory that its text keeps: read them "
    "faster, or give the worker more (--cache-megabytes)"
)
"""The message for such a job."""
ROUNDED = 1e-3
"""Seconds by which a timer may come too early."""
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
        job = self._first_in_line()
        if job is None or self.taken + self._line[job] > self.capacity:
            return None
        self._take(job, self._line.pop(job))
        return job

    def room_of(self, job: J) -> int:
        """Bytes that a job has."""
        return self._of_job.get(job, 0)

    @property
    def first_need(self) -> int:
        """Bytes that the first job of the line needs that is not passed over; 0 where there is none."""
        first = self._first_in_line()
        return 0 if first is None else self._line[first]

    @property
    def waiting(self) -> int:
        """Number of jobs in line that are not passed over."""
        return len(self._line) - len(self._passed_over)

    def _first_in_line(self) -> J | None:
        return next((job for job in self._line if job not in self._passed_over), None)

    def _take(self, job: J, room: int) -> None:
        self.taken += room
        self._of_job[job] = self._of_job.get(job, 0) + room


class SetAsideJobs:
    """Jobs that are set aside within a text, and so keep room, and how long each has kept others from it.

    Their seconds count only while the first job in line could not begin even if all other jobs ended: where there is
    room enough beside them, a slow reader has all the time that it wants. `pass_time` must be called before anything
    changes: these jobs, room, or the line for it.
    """

    def __init__(self, room: Room[OpenJob]) -> None:
        self._room = room
        self._aside: set[OpenJob] = set()
        self._seconds: dict[OpenJob, float] = {}  # of jobs that were set aside, also of those that were brought back
        self._passed = 0.0

    def add(self, job: OpenJob) -> None:
        """Adds a job that is set aside; one without room keeps nobody waiting."""
        if self._room.room_of(job):
            self._aside.add(job)
            self._seconds.setdefault(job, 0.0)

    def bring_back(self, job: OpenJob) -> None:
        """Removes a job that goes on. Its seconds stay: it may be set aside again."""
        self._aside.discard(job)

    def forget(self, job: OpenJob) -> None:
        """Removes a job that ended."""
        self._aside.discard(job)
        self._seconds.pop(job, None)

    def pass_time(self, now: float) -> None:
        """Counts the seconds since the last call."""
        for job in self._keeping_others_out():
            self._seconds[job] += now - self._passed
        self._passed = now

    def seconds_left(self, now: float) -> float:
        """Seconds after which a job has kept others from room for too long; `inf` where none will."""
        most = max((self._seconds[job] for job in self._keeping_others_out()), default=-inf)
        return max(0.0, MOST_SECONDS - most - (now - self._passed))

    @property
    def overdue(self) -> OpenJob | None:
        """The job that has kept others from room the longest, if it still does and that is too long; else None."""
        longest = max(self._keeping_others_out(), key=self._seconds.__getitem__, default=None)
        return longest if longest is not None and self._seconds[longest] >= MOST_SECONDS - ROUNDED else None

    def _keeping_others_out(self) -> list[OpenJob]:
        """The jobs with room, if the first job in line could not begin even if all jobs ended that are not set aside;
        else none."""
        if not self._aside:  # as most of the time, and this is read several times a step
            return []
        holders = [job for job in self._aside if self._room.room_of(job)]
        held = sum(map(self._room.room_of, holders))
        return holders if self._room.first_need > self._room.capacity - held else []
