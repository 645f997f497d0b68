"""Which waiting sequences make the next step. Pure; no clock.

Three levels share the worker: priority classes by weight, the keys of a class evenly, then the jobs of a key. A class
of which nothing waited goes before all lower ones when a job comes; they keep their small share. `flows.py` says how
keys take turns, `lanes.py` how jobs do.

Whatever else comes, every job is served. A job of T tokens has all of them in steps before the worker has taken

    (W / w) * (K * (L * J * (T + s(J)) + s(K)) + 2 q) * B / (B - q) + W q + B

tokens in all: q is the larger of a quantum and the longest sequence, B the budget of a step, J the most jobs of its key
that wait at once, K the most keys of its class, w the weight of its class, W the sum of weights, L one more than the
share of short jobs. s(n) = (6 + ln n) p, and p is the larger of q and the largest short job. Where q is more than
B / 2, the factor B / (B - q) is 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from math import inf

from gpu_worker.queue.priority_class import Class, Key
from gpu_worker.queue.sizes import Sizes
from gpu_worker.queue.waiting import Waiting
from shared.jobs import Priority
from shared.load import SHORT, WEIGHTS, Backlog

MISSES = 32
"""Jobs whose next sequence does not fit that are passed over in a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Sequences `start` to `stop` of a job's own order."""

    job: int
    start: int
    stop: int


class FairQueue:
    """The backlog of all jobs, in tokens."""

    def __init__(self, *, quantum: int, short: int = SHORT) -> None:
        """`quantum`: tokens that a key, or a long job, gets in a row while others wait; a sequence may be longer.

        `short`: jobs of fewer tokens than this are short.
        """
        self._quantum, self._short = quantum, short
        self._classes = {each: Class(weight=WEIGHTS[each], quantum=quantum) for each in sorted(Priority)}
        self._lead = quantum / 16  # what a class may be ahead of a lower one: two steps or so of interactive jobs
        self._jobs: dict[int, tuple[Class, Waiting]] = {}
        self._arrivals = count()
        self._time = 0.0
        self._jobs_aside = self._aside = 0
        self._longest = Sizes()  # of the longest sequence of each job

    def add(
        self,
        job: int,
        costs: Sequence[int],
        *,
        key: str = "",
        priority: Priority = Priority.DEFAULT,
        deadline: float = inf,
    ) -> None:
        """Adds a job whose sequences cost so many tokens, in the order in which it wants them served."""
        assert costs
        assert job not in self._jobs
        tokens = sum(costs)
        waiting = Waiting(
            job=job,
            name=key,
            costs=costs,
            tokens=tokens,
            longest=max(costs),
            long=tokens >= self._short,
            arrival=next(self._arrivals),
            deadline=deadline,
        )
        self._jobs[job] = (self._classes[priority], waiting)
        self._longest.add(waiting.longest)
        self._enter(job)

    def remove(self, job: int) -> None:
        """Forgets what waits of a job; an unknown one is no error."""
        if job in self._jobs:
            self.bring_back(job)
            group, waiting = self._jobs[job]
            group.leave(waiting)
            self._forget(waiting)

    def set_aside(self, job: int) -> None:
        """Serves nothing of a job until it is brought back; an unknown one is no error."""
        group, waiting = self._jobs.get(job, (None, None))
        if group is not None and waiting is not None and not waiting.aside:
            group.leave(waiting)
            waiting.aside = True
            self._jobs_aside += 1
            self._aside += waiting.tokens

    def bring_back(self, job: int) -> None:
        """Lets a job wait again that was set aside, behind what waits now; any other is no error."""
        if job in self._jobs and self._jobs[job][1].aside:
            waiting = self._jobs[job][1]
            waiting.aside, waiting.tag = False, 0.0
            self._jobs_aside -= 1
            self._aside -= waiting.tokens
            self._enter(job)

    @property
    def waiting(self) -> int:
        """Tokens that wait and may be served; kept, not counted, since every submit asks."""
        return sum(group.tokens for group in self._classes.values())

    @property
    def aside(self) -> int:
        """Tokens of the jobs that are set aside. They take up room, but nobody waits for them."""
        return self._aside

    def tokens_of(self, priority: Priority, key: str) -> int:
        """Tokens of a key that wait in a class."""
        return self._classes[priority].tokens_of(key)

    @property
    def turn(self) -> int:
        """Most tokens that a key is served in a row while others wait: a quantum, or the longest sequence."""
        return max(self._quantum, (1 << len(self._longest.counts)) - 1)

    def backlogs(self) -> dict[Priority, Backlog]:
        """What waits of each priority that has any, without what is set aside."""
        return {priority: group.backlog for priority, group in self._classes.items() if group.tokens}

    def __len__(self) -> int:
        """Jobs that wait and may be served."""
        return len(self._jobs) - self._jobs_aside

    def next_step(self, budget: int) -> list[Slice]:
        """Takes the next step's sequences: `budget` tokens at most, but always one sequence if any waits."""
        taken: dict[int, Slice] = {}
        missed: list[tuple[Class, Key, Waiting]] = []
        free = budget
        while free > 0 and len(missed) < MISSES and (found := self._next()) is not None:
            group, key, waiting = found
            start = waiting.position
            stop, cost = waiting.turn(min(self._quantum, free), free if taken else max(free, waiting.costs[start]))
            if stop == start:  # its next sequence does not fit into what is left; others may
                key.jobs.hold(waiting)
                group.refresh(key)
                missed.append(found)
                continue
            begin = taken[waiting.job].start if waiting.job in taken else start
            taken[waiting.job] = Slice(job=waiting.job, start=begin, stop=stop)
            free -= cost
            self._charge(group, cost, filling=bool(missed))
            group.serve(key, waiting, stop, cost, filling=bool(missed))
            if stop == len(waiting.costs):
                self._forget(waiting)
        for group, key, waiting in missed:
            key.jobs.ready(waiting)
            group.refresh(key)
        return list(taken.values())

    def _forget(self, waiting: Waiting) -> None:
        del self._jobs[waiting.job]
        self._longest.remove(waiting.longest)

    def _enter(self, job: int) -> None:
        group, waiting = self._jobs[job]
        if not group.tokens:
            group.tag = max(group.tag, self._least())
        group.enter(waiting)

    def _least(self) -> float:
        """The virtual time of the classes. They are few and remembered for ever, so the least tag will do."""
        self._time = max(self._time, min((each.tag for each in self._classes.values() if each.tokens), default=0.0))
        return self._time

    def _next(self) -> tuple[Class, Key, Waiting] | None:
        """The highest class that is not ahead of its share, its next key, and that one's next job."""
        ready = [(group, key) for group in self._classes.values() if (key := group.keys.head()) is not None]
        least = min((group.tag for group, _ in ready), default=0.0)
        for group, key in ready:
            waiting = key.jobs.head()
            if group.tag <= least + self._lead and waiting is not None:
                return group, key, waiting
        return None

    def _charge(self, group: Class, cost: int, *, filling: bool) -> None:
        least, charged = self._least(), group.tag + cost / group.weight
        group.tag = max(group.tag, min(charged, least + self._lead)) if filling else charged
