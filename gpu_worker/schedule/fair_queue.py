"""The order in which waiting jobs are served, what goes into the next step, and who has room on the device for keys and
values of long sequences. No clock, no I/O.

The worker is shared at three levels: by the priority classes according to their weights, by the keys of a class evenly,
and by the jobs of a key; `priority_class.py` says how keys and jobs take turns. When a job comes to a class in which
nothing waited, that class is served before all lower ones, which keep their small share.

Whatever else comes, every job is served: before it is done the worker serves no more than what its own tokens and some
turns take, for each job of its key and each key of its class that wait at once, by the weight of its class.
`test_every_job_is_served_within_its_bound` in tests/unit/worker/test_fair_shares.py has the bound as a formula, and
holds it under any stream of jobs. A turn is a quantum, or the largest unit where that is more; where texts are cut, a
unit is a piece of at most --chunk-tokens, so a turn does not grow with the longest text.

Before each sequence that is cut, a job may stand in line for room. It waits there until the sequences that hold room,
or stand before it, have ended: at worst one after the other, each within the bound for as many tokens as the longest
text that fits has. Then its own bound begins anew, which the test after that one holds. A job that is set aside within
a sequence keeps its room, and is served nothing until it is brought back or its deadline passes: its frontend reads too
slowly, and is detached where it takes nothing for half a minute.

Small jobs go ahead in express steps. A call of a few tokens whose step is filled up with pieces of a long text ends
when these do. In a step of its own it ends at once, and the long text is held up by little: by what a small step costs
beside its tokens. So small jobs go first, in at most every second step; those of a key that is ahead of its share wait
for their turn.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from math import inf
from typing import Generic, TypeVar, cast

from gpu_worker.schedule.priority_class import Key, PriorityClass, WaitingJob
from shared.jobs import Priority
from shared.load import SHORT, TURNS_PER_STEP, WEIGHTS, Backlog

LEAD_STEPS = 2
"""Steps of interactive jobs that are served in a row before lower classes get what is theirs.

With fewer, jobs of lower classes would be computed among those of a burst; with more, lower classes would stand still
for longer."""
MOST_MISSES = 32
"""Most jobs of a step that are passed over because their next unit does not fit."""
EXPRESS_SHARE = 4
"""An express step is at most this part of a step. A larger one would hold up others as a full step does."""
MOST_JOBS = 64
"""Where more small jobs wait, there is no express step: they fill steps of their own."""
Pays = Callable[[int], bool]
"""Whether an express step of so many tokens is worth its time."""
J = TypeVar("J")


def never(tokens: int) -> bool:
    """Allows no express step."""
    return False


class FairQueue(Generic[J]):
    """The units of all jobs that wait, with their costs in tokens. A job is any hashable object."""

    def __init__(self, *, quantum: int, short: int = SHORT, room: float = inf, chunk: float = inf) -> None:
        """`quantum`: tokens that a key, or a long job, is served in a row while others wait; a unit may be larger.

        `short`: jobs of fewer tokens than this are short. `room`: bytes that the device can keep. `chunk`: most tokens
        of a sequence that needs no room.
        """
        self.room: Room[J] = Room(room)
        self._quantum, self._short, self._small = quantum, short, int(min(quantum, chunk))
        self._classes = [PriorityClass(weight=WEIGHTS[priority], quantum=quantum) for priority in sorted(Priority)]
        self._lead = LEAD_STEPS * TURNS_PER_STEP * quantum / WEIGHTS[Priority.INTERACTIVE]  # in virtual time
        self._virtual_time = 0.0  # of the classes
        self._jobs: dict[J, WaitingJob] = {}
        self._arrivals = count()
        self.tokens_unserved = 0
        """Tokens of the jobs that are set aside or in line for room. No other job waits for them."""
        self._longest = Counter[int]()  # how many jobs have a largest unit of so many bits
        self._was_express = False

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
            of_class=self._classes[priority - 1],
            key=key,
            costs=costs,
            tokens=tokens,
            longest=max(costs),
            long=tokens >= self._short,
            room=room,
            arrival=next(self._arrivals),
            deadline=deadline,
        )
        self._jobs[job] = waiting
        waiting.of_class.counts.add_job(waiting)
        self._longest[waiting.longest.bit_length()] += 1
        self._join(waiting)

    def remove_job(self, job: J) -> None:
        """Forgets what waits of a job, and gives back its room; an unknown job is no error."""
        if (waiting := self._jobs.get(job)) is not None:
            if waiting.aside or waiting.in_line:
                self.tokens_unserved -= waiting.tokens
            else:
                waiting.of_class.leave(waiting)
            if not waiting.aside:
                waiting.of_class.counts.remove_job(waiting)
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
        if (waiting := self._jobs.get(job)) is None or waiting.aside:
            return
        waiting.aside = True
        waiting.of_class.counts.remove_job(waiting)
        if not waiting.in_line:
            waiting.of_class.leave(waiting)
            self.tokens_unserved += waiting.tokens
        if waiting.has_room:  # the sequence did not begin: others may have its room meanwhile
            waiting.has_room, waiting.in_line = False, True
            self.room.return_to_line(job, waiting.room[waiting.position])
        if waiting.in_line:
            self.room.pass_over(job)
            self._admit_line()

    def bring_back(self, job: J) -> None:
        """Lets a job that was set aside wait again: in the line at its place, or else behind what waits now. Any other
        job is no error."""
        if (waiting := self._jobs.get(job)) is None or not waiting.aside:
            return
        waiting.aside = False
        waiting.of_class.counts.add_job(waiting)
        if waiting.in_line:
            self.room.heed(job)
            self._admit_line()
        else:
            self._serve_again(waiting)

    @property
    def waiting_tokens(self) -> int:
        """Tokens that wait and may be served."""
        # A list is cheaper than a generator, and this is read at every submit.
        return sum([priority_class.tokens for priority_class in self._classes])

    def tokens_of_key(self, priority: Priority, key: str) -> int:
        """Tokens of a key that wait in a class, also in line."""
        return self._classes[priority - 1].counts.by_key.get(key, 0)

    @property
    def largest_turn(self) -> int:
        """Most tokens that a key is served in a row while others wait: a quantum, or a bound of the largest unit."""
        return max(self._quantum, (1 << max(self._longest, default=0)) - 1)

    def backlogs(self) -> dict[Priority, Backlog]:
        """What waits of each priority that has anything waiting: jobs in line as well, but none that is set aside."""
        backlogs = {priority: self._classes[priority - 1].counts for priority in Priority}
        return {priority: counts.backlog for priority, counts in backlogs.items() if counts.jobs}

    def express_tokens(self, budget: int, pays: Pays) -> int:
        """Most tokens that another small job may have to be in the next express step; 0 where there is none, also where
        no other work waits, and where one more job would be too many. `budget`: tokens of a full step.

        It looks at no single job, and counts all small ones down to the class in which others wait, also those that
        wait for their turn: so it tells too little sometimes, and never too much.
        """
        waiting = 0
        for priority_class in self._classes:
            if len(priority_class.small) >= MOST_JOBS:
                return 0
            small = sum([job.tokens for job in priority_class.small.values()])
            waiting += small
            if priority_class.tokens > small:
                break
        else:
            return 0
        size = min(self._small, budget // EXPRESS_SHARE)
        while size > waiting and not pays(size):
            size //= 2
        return max(0, size - waiting)

    def next_step(self, budget: int, *, express_pays: Pays = never) -> dict[J, range]:
        """Takes the units of the next step, by job: `budget` tokens at most, but always a unit if any waits."""
        if small := self._express_jobs(budget, express_pays):
            return {cast(J, waiting.job): self._serve_small(waiting) for waiting in small}
        taken: dict[J, range] = {}
        missed: list[tuple[Key, WaitingJob]] = []
        free = budget
        while free > 0 and len(missed) < MOST_MISSES and (served := self._next_served()) is not None:
            key, waiting = served
            job, start, priority_class = cast(J, waiting.job), waiting.position, waiting.of_class
            stop, cost = waiting.next_turn(min(self._quantum, free), free if taken else max(free, waiting.next_cost))
            if stop == start:  # its next unit does not fit into what is left; those of other jobs may
                key.pause(waiting)
                priority_class.reorder(key)
                missed.append(served)
                continue
            stop, cost = self._with_room(job, waiting, stop, cost)
            if stop == start:  # others are served while it stands in line
                self._join_line(job, waiting)
                continue
            taken[job] = range(taken[job].start if job in taken else start, stop)
            free -= cost
            self._charge(priority_class, cost, filling=bool(missed))
            priority_class.serve(key, waiting, stop, cost, filling=bool(missed))
            if stop == len(waiting.costs):
                self._forget(job, waiting)
        for key, waiting in missed:
            key.resume(waiting)
            waiting.of_class.reorder(key)
        return taken

    def _next_served(self) -> tuple[Key, WaitingJob] | None:
        """The next key of the highest class that is not ahead of its share, and that key's next job."""
        ready = [
            (priority_class, key)
            for priority_class in self._classes
            if priority_class.tokens and (key := priority_class.keys.head()) is not None
        ]
        least = min([priority_class.tag for priority_class, _ in ready], default=0.0)
        for priority_class, key in ready:
            waiting = key.head()
            if priority_class.tag <= least + self._lead and waiting is not None:
                return key, waiting
        return None

    def _charge(self, priority_class: PriorityClass, cost: int, *, filling: bool) -> None:
        """Charges a class for a turn; see `Flows.serve`."""
        least, charged = self._least_tag(), priority_class.tag + cost / priority_class.weight
        priority_class.tag = max(priority_class.tag, min(charged, least + self._lead)) if filling else charged

    def _least_tag(self) -> float:
        """The virtual time of the classes: the least tag will do, since they are few and never forgotten."""
        tags = [priority_class.tag for priority_class in self._classes if priority_class.tokens]
        self._virtual_time = max(self._virtual_time, min(tags, default=0.0))
        return self._virtual_time

    def _express_jobs(self, budget: int, pays: Pays) -> Sequence[WaitingJob]:
        """The jobs of the next step if it is an express step: all small ones, if these are few, if others wait, and if
        the step before was none.

        A class below one where others wait is left out, whatever its small jobs are. Every call plans a step.
        """
        if self._was_express:
            self._was_express = False
            return ()
        most, tokens, has_larger = min(self._small, budget // EXPRESS_SHARE), 0, False
        chosen = list[WaitingJob]()
        for priority_class in self._classes:
            small = priority_class.small_jobs(most) if len(priority_class.small) <= MOST_JOBS else []
            chosen += small
            of_class = sum([job.tokens for job in small])
            tokens += of_class
            has_larger = priority_class.tokens > of_class
            if has_larger:
                break
        self._was_express = has_larger and 0 < tokens <= most and pays(tokens)
        return chosen if self._was_express else ()

    def _serve_small(self, waiting: WaitingJob) -> range:
        """Serves all that waits of a job of an express step. Returns its units."""
        units, job = range(waiting.position, len(waiting.costs)), cast(J, waiting.job)
        self._charge(waiting.of_class, waiting.tokens, filling=False)
        waiting.of_class.serve_small(waiting)
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

    def _join_line(self, job: J, waiting: WaitingJob) -> None:
        """Lets a job wait for the room that its next unit needs."""
        waiting.of_class.leave(waiting)
        waiting.in_line = True
        self.tokens_unserved += waiting.tokens
        self.room.stand_in_line(job, waiting.room[waiting.position])

    def _admit_line(self) -> None:
        """Lets those be served who stand in line and have room now."""
        while (job := self.room.next_in_line()) is not None:
            waiting = self._jobs[job]
            waiting.in_line, waiting.has_room = False, True
            self._serve_again(waiting)

    def _serve_again(self, waiting: WaitingJob) -> None:
        """Lets a job that was not served wait behind what waits now."""
        waiting.tag = 0.0
        self.tokens_unserved -= waiting.tokens
        self._join(waiting)

    def _forget(self, job: J, waiting: WaitingJob) -> None:
        del self._jobs[job]
        bits = waiting.longest.bit_length()
        self._longest[bits] -= 1
        if not self._longest[bits]:
            del self._longest[bits]
        waiting.job = None  # a stale entry of a heap may outlive it, and must not keep what the job has on the device

    def _join(self, waiting: WaitingJob) -> None:
        """Lets a job be served. A class in which nothing waited starts no earlier than the others."""
        if not waiting.of_class.tokens:
            waiting.of_class.tag = max(waiting.of_class.tag, self._least_tag())
        waiting.of_class.join(waiting)


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
