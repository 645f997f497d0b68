"""How long jobs that are set aside may keep others from room. No clock, no I/O."""

from math import inf

from gpu_worker.loop.interface import OpenJob
from gpu_worker.schedule.room import Room

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
