"""The order in which waiting jobs are served, and what goes into the next step. No clock, no I/O.

The worker is shared at three levels: by the priority classes according to their weights, by the keys of a class evenly,
and by the jobs of a key. When a job comes to a class in which nothing waited, that class is served before all lower
ones, which keep their small share. `flows.py` says how keys take turns, `lanes.py` how jobs do.

Whatever else comes, every job is served. All T tokens of a job are in steps before the worker has served

    (W / w) * (K * (L * J * (T + s(J)) + s(K)) + 2 q) * (B + e) / (B - q) + W q + B

tokens in all: q is the larger of a quantum and the largest unit, B the budget of a step, J the most jobs of its key
that wait at once, K the most keys of its class, w the weight of its class, W the sum of weights, L one more than the
share of short jobs. s(n) = (6 + ln n) p, and p is the larger of q and the largest short job. Where q is more than
B / 2, the factor 1 / (B - q) is 2 / B. Where texts are cut, a unit is a piece of at most --chunk-tokens, so q does not
grow with the longest text. e is the most that an express step has, the smaller of a quantum and B / 4: there may be one
before each other step, see `express.py`.

Before each sequence that is cut, a job may stand in line for room. It waits there until the sequences that hold room,
or stand before it, have ended: at worst one after the other, each within the bound above for T as long as the longest
text that fits. Then its own bound begins anew. A job that is set aside within a sequence keeps its room, and is served
nothing; how long it may keep others from room is bounded in seconds, by `loop/set_aside_jobs.py`.

`test_every_job_is_served_within_its_bound` in tests/unit/worker/test_fair_shares.py holds the first bound under any
stream of jobs, and the test after it the second.
"""

from collections.abc import Sequence
from itertools import count
from math import inf
from typing import Generic, TypeVar, cast

from gpu_worker.queue.express import ExpressSteps, Pays, never
from gpu_worker.queue.priority_class import Key, PriorityClass
from gpu_worker.queue.priority_classes import PriorityClasses
from gpu_worker.queue.room import Room
from gpu_worker.queue.size_counts import SizeCounts
from gpu_worker.queue.waiting_job import WaitingJob
from shared.jobs import Priority
from shared.load import SHORT, Backlog

MOST_MISSES = 32
"""Most jobs of a step that are passed over because their next unit does not fit."""
J = TypeVar("J")


class FairQueue(Generic[J]):
    """The units of all jobs that wait, with their costs in tokens. A job is any hashable object."""

    def __init__(self, *, quantum: int, short: int = SHORT, room: float = inf, chunk: float = inf) -> None:
        """`quantum`: tokens that a key, or a long job, is served in a row while others wait; a unit may be larger.

        `short`: jobs of fewer tokens than this are short. `room`: bytes that the device can keep. `chunk`: most tokens
        of a sequence that needs no room.
        """
        self.room: Room[J] = Room(room)
        self._quantum, self._short = quantum, short
        self._classes = PriorityClasses(quantum)
        self._jobs: dict[J, tuple[PriorityClass, WaitingJob]] = {}
        self._arrivals = count()
        self._jobs_unserved = self._tokens_unserved = 0  # set aside, or in line for room
        self._largest_units = SizeCounts()  # the largest unit of each job
        self._express = ExpressSteps(self._classes, int(min(quantum, chunk)))

    def add_job(
        self,
        job: J,
        costs: Sequence[int],
        room: Sequence[int] = (),
        *,
        key: str = "",
        priority: Priority = Priority.DEFAULT,
        deadline: float = inf,
    ) -> None:
        """Adds a job whose units cost so many tokens, in the order in which they are to be served.

        `room`: see `OpenJob`; no sequence needs more than there is.
        """
        assert costs
        assert job not in self._jobs
        tokens = sum(costs)
        waiting = WaitingJob(
            job=job,
            key=key,
            costs=costs,
            tokens=tokens,
            longest=max(costs),
            long=tokens >= self._short,
            room=room,
            arrival=next(self._arrivals),
            deadline=deadline,
        )
        priority_class = self._classes.of(priority)
        self._jobs[job] = (priority_class, waiting)
        priority_class.counts.add_job(waiting)
        self._largest_units.add_job(waiting.longest)
        self._join(job)

    def remove_job(self, job: J) -> None:
        """Forgets what waits of a job, and gives back its room; an unknown job is no error."""
        if job in self._jobs:
            priority_class, waiting = self._jobs[job]
            if waiting.aside or waiting.in_line:
                self._count_unserved(waiting, -1)
            else:
                priority_class.leave(waiting)
            if not waiting.aside:
                priority_class.counts.remove_job(waiting)
            self._forget(job, waiting)
        self.room.forget(job)
        self._admit_line()

    def give_back_room(self, job: J, room: int) -> None:
        """Gives back room that a job took for a sequence which was computed."""
        self.room.give_back(job, room)
        self._admit_line()

    def set_aside(self, job: J) -> None:
        """Serves nothing of a job until it is brought back; an unknown job is no error. It keeps the room of a sequence
        that began, and its place in the line for room."""
        priority_class, waiting = self._jobs.get(job, (None, None))
        if priority_class is None or waiting is None or waiting.aside:
            return
        waiting.aside = True
        priority_class.counts.remove_job(waiting)
        if not waiting.in_line:
            priority_class.leave(waiting)
            self._count_unserved(waiting, 1)
        if waiting.has_room:  # the sequence did not begin: others may have its room meanwhile
            waiting.has_room, waiting.in_line = False, True
            self.room.return_to_line(job, waiting.room[waiting.position])
        if waiting.in_line:
            self.room.pass_over(job)
            self._admit_line()

    def bring_back(self, job: J) -> None:
        """Lets a job that was set aside wait again: in the line at its place, or else behind what waits now. Any other
        job is no error."""
        priority_class, waiting = self._jobs.get(job, (None, None))
        if priority_class is None or waiting is None or not waiting.aside:
            return
        waiting.aside = False
        priority_class.counts.add_job(waiting)
        if waiting.in_line:
            self.room.heed(job)
            self._admit_line()
        else:
            self._serve_again(job)

    @property
    def waiting_tokens(self) -> int:
        """Tokens that wait and may be served."""
        # A list is cheaper than a generator, and this is read at every submit.
        return sum([priority_class.tokens for priority_class in self._classes])

    @property
    def tokens_unserved(self) -> int:
        """Tokens of the jobs that are set aside or in line for room. No other job waits for them."""
        return self._tokens_unserved

    def tokens_of_key(self, priority: Priority, key: str) -> int:
        """Tokens of a key that wait in a class, also in line."""
        return self._classes.of(priority).counts.by_key.get(key, 0)

    @property
    def largest_turn(self) -> int:
        """Most tokens that a key is served in a row while others wait: a quantum, or a bound of the largest unit."""
        return max(self._quantum, (1 << len(self._largest_units.counts)) - 1)

    def backlogs(self) -> dict[Priority, Backlog]:
        """What waits of each priority that has anything waiting: jobs in line as well, but none that is set aside."""
        return self._classes.backlogs()

    def express_tokens(self, budget: int, pays: Pays) -> int:
        """Most tokens of a job that goes ahead of longer ones; see `ExpressSteps.tokens_left`."""
        return self._express.tokens_left(budget, pays)

    def __len__(self) -> int:
        """Number of jobs that wait and may be served."""
        return len(self._jobs) - self._jobs_unserved

    def next_step(self, budget: int, *, express_pays: Pays = never) -> dict[J, range]:
        """Takes the units of the next step, by job: `budget` tokens at most, but always a unit if any waits."""
        if small := self._express.next_jobs(budget, express_pays):
            return {cast(J, waiting.job): self._serve_small(of, waiting) for of, waiting in small}
        taken: dict[J, range] = {}
        missed: list[tuple[PriorityClass, Key, WaitingJob]] = []
        free = budget
        while free > 0 and len(missed) < MOST_MISSES and (served := self._classes.next_served()) is not None:
            priority_class, key, waiting = served
            job, start = cast(J, waiting.job), waiting.position
            stop, cost = waiting.next_turn(min(self._quantum, free), free if taken else max(free, waiting.next_cost))
            if stop == start:  # its next unit does not fit into what is left; those of other jobs may
                key.jobs.pause(waiting)
                priority_class.reorder(key)
                missed.append(served)
                continue
            stop, cost = self._with_room(job, waiting, stop, cost)
            if stop == start:  # others are served while it stands in line
                self._join_line(job)
                continue
            taken[job] = range(taken[job].start if job in taken else start, stop)
            free -= cost
            self._classes.charge(priority_class, cost, filling=bool(missed))
            priority_class.serve(key, waiting, stop, cost, filling=bool(missed))
            if stop == len(waiting.costs):
                self._forget(job, waiting)
        for priority_class, key, waiting in missed:
            key.jobs.resume(waiting)
            priority_class.reorder(key)
        return taken

    def _serve_small(self, priority_class: PriorityClass, waiting: WaitingJob) -> range:
        """Serves all that waits of a job of an express step. Returns its units."""
        units, job = range(waiting.position, len(waiting.costs)), cast(J, waiting.job)
        self._classes.charge(priority_class, waiting.tokens, filling=False)
        priority_class.serve_small(waiting)
        self._forget(job, waiting)
        return units

    def _with_room(self, job: J, waiting: WaitingJob, stop: int, cost: int) -> tuple[int, int]:
        """Takes room for the sequences that begin in a turn up to unit `stop`; ends the turn before the first one that
        gets none. Returns where the turn ends then, and its cost."""
        for unit in range(waiting.position, stop) if waiting.room else ():
            if unit == waiting.position and waiting.has_room:
                waiting.has_room = False
            elif waiting.room[unit] > 0 and not self.room.take(job, waiting.room[unit]):
                return unit, sum(waiting.costs[waiting.position : unit])
        return stop, cost

    def _join_line(self, job: J) -> None:
        """Lets a job wait for the room that its next unit needs."""
        priority_class, waiting = self._jobs[job]
        priority_class.leave(waiting)
        waiting.in_line = True
        self._count_unserved(waiting, 1)
        self.room.stand_in_line(job, waiting.room[waiting.position])

    def _admit_line(self) -> None:
        """Lets those be served who stand in line and have room now."""
        while (job := self.room.next_in_line()) is not None:
            waiting = self._jobs[job][1]
            waiting.in_line, waiting.has_room = False, True
            self._serve_again(job)

    def _serve_again(self, job: J) -> None:
        """Lets a job that was not served wait behind what waits now."""
        waiting = self._jobs[job][1]
        waiting.tag = 0.0
        self._count_unserved(waiting, -1)
        self._join(job)

    def _count_unserved(self, waiting: WaitingJob, jobs: int) -> None:
        self._jobs_unserved += jobs
        self._tokens_unserved += jobs * waiting.tokens

    def _forget(self, job: J, waiting: WaitingJob) -> None:
        del self._jobs[job]
        self._largest_units.remove_job(waiting.longest)
        waiting.job = None  # a stale entry of a heap may outlive it, and must not keep what the job has on the device

    def _join(self, job: J) -> None:
        priority_class, waiting = self._jobs[job]
        self._classes.join(priority_class, waiting)
